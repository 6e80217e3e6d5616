"""Attribute assignment and deletion on trackers: the descriptor protocol's other half.

In: a tracker, a name and a value. Out: nothing; the shadow of the object has changed, and the effects log with it.
Always: what cannot be replayed behind the graph is a `Break` before anything has changed.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import types
from typing import Any

from ..guards import ABSENT
from .attributes import (
    PROXIES,
    is_data_descriptor,
    object_attr,
    proxied,
    python_type,
    refuse_access,
    require_plain,
    wrap_class_value,
)
from .breaks import Break, Raised
from .calls import call
from .capture import Capture, Link
from .constants import PLAIN_CONSTANTS
from .frame import inline
from .trackers import (
    NONE,
    NULL,
    CellVar,
    ConstVar,
    DictVar,
    FunctionVar,
    ListVar,
    ObjectVar,
    SetVar,
    TensorVar,
    Tracker,
    TupleVar,
    describe,
)


def set_attr(cap: Capture, obj: Tracker, name: str, value: Tracker, link: Link | None = None) -> None:
    """``obj.name = value`` in the shadow of the object; ``link``: it is all that the instruction does."""
    obj = cap.realize(obj)
    if type(obj) is ObjectVar and obj.cls in PROXIES:
        set_attr(cap, proxied(cap, obj), name, value)
    elif type(obj) is ObjectVar:
        setter = cap.type_attr(obj.cls, "__setattr__")
        if isinstance(setter, types.FunctionType):
            inline(cap, ConstVar.known(setter), [obj, ConstVar(name), value], {}, link)
        else:
            require_plain(obj.cls, setter)
            object_set_attr(cap, obj, name, value, link)
    elif type(obj) is FunctionVar:
        if name == "__name__":
            obj.attrs.known[name] = value
        else:
            cap.dict_set(obj.attrs, name, value)
    elif type(obj) is CellVar and name == "cell_contents":
        write_cell(cap, obj, value)
    elif type(obj) is ConstVar and isinstance(obj.value, type):
        _write_class(cap, obj, name, value)
    elif type(obj) is TensorVar:
        from .tensor_attributes import set_tensor_attr

        set_tensor_attr(cap, obj, name, value)
    elif type(obj) is DictVar and issubclass(obj.cls, collections.OrderedDict):
        set_ordered_attr(cap, obj, name, value)
    elif type(obj) in (ListVar, TupleVar, DictVar, SetVar) or (
        type(obj) is ConstVar and type(obj.value) in PLAIN_CONSTANTS
    ):
        if name != "__class__":
            try:
                setattr(obj.value if type(obj) is ConstVar else python_type(obj)(), name, None)
            except AttributeError as error:
                raise cap.raise_(AttributeError, str(error)) from None
        raise Break("attribute-mutation", f"{name} of {describe(obj)}")
    else:
        raise Break("attribute-mutation", f"{name} of {describe(obj)}")


def set_ordered_attr(cap: Capture, obj: DictVar, name: str, value: Tracker) -> None:
    """``obj.name = value`` of an OrderedDict."""
    raw = cap.type_attr(obj.cls, name)
    if raw is not ABSENT:
        raise Break("attribute-mutation", f"{name} of a {obj.cls.__name__}")
    cap.tensor_attrs.setdefault(id(obj), {})[name] = value
    cap.keep_alive.append(obj)
    if obj.real is not None:
        cap.mark_changed(obj)


def _write_class(cap: Capture, obj: ConstVar, name: str, value: Tracker | None) -> None:
    """Set or (None) delete an attribute of a class."""
    from .class_rules import set_class_attr, write_outside_class

    if id(obj.value) not in cap.made:
        assert value is not None
        write_outside_class(cap, obj.value, name, value)
        return
    method = cap.type_attr(type(obj.value), "__delattr__" if value is None else "__setattr__")
    if isinstance(method, types.FunctionType):
        args = [obj, ConstVar(name)] if value is None else [obj, ConstVar(name), value]
        inline(cap, ConstVar.known(method), args, {})
    else:
        set_class_attr(cap, obj.value, name, value)


def object_set_attr(
    cap: Capture, obj: ObjectVar, name: str, value: Tracker, link: Link | None = None
) -> None:
    """``object.__setattr__``."""
    raw = cap.type_attr(obj.cls, name)
    if raw is not ABSENT and is_data_descriptor(raw):
        if type(raw) is property:
            if raw.fset is None:
                refuse_access(cap, obj.cls, raw.__set__, None)
            call(cap, wrap_class_value(cap, obj.cls, name, raw.fset), [obj, value], {}, link)
            return
        if name == "__dict__" or name == "__class__":
            raise Break("attribute-mutation", f"{name} of {obj.cls.__name__}")
        if isinstance(raw, types.GetSetDescriptorType):
            _set_exception_field(cap, obj, name, value)
            return
        if isinstance(raw, types.MemberDescriptorType):
            write_slot(cap, obj, name, value)
            return
        setter = cap.type_attr(type(raw), "__set__")
        if isinstance(setter, types.FunctionType):
            inline(
                cap,
                ConstVar.known(setter, name),
                [wrap_class_value(cap, obj.cls, name, raw), obj, value],
                {},
                link,
            )
            return
        raise Break("attribute-mutation", f"{name} of {obj.cls.__name__}")
    if not obj.cls.__dictoffset__:
        raise _no_dict(cap, obj.cls, name)
    cap.dict_set(obj.attrs, name, value)


def _set_exception_field(cap: Capture, obj: ObjectVar, name: str, value: Tracker) -> None:
    """What an exception made in the region keeps in fields of C."""
    value = cap.realize(value)
    is_none = type(value) is ConstVar and value.value is None
    if name == "__traceback__" and (value is (own := cap.traceback_of(obj)) or (is_none and own is NONE)):
        return  # as contextlib gives an exception its own traceback back
    fields = ("args", "__cause__", "__context__")
    if not issubclass(obj.cls, BaseException) or obj.obj is not None or name not in fields:
        raise Break("attribute-mutation", f"{name} of {obj.cls.__name__}")
    if name == "args":
        obj.slots[name] = call(cap, ConstVar(tuple), [value], {})
        return
    if not is_none and not issubclass(python_type(value), BaseException):
        text = f"exception {name.strip('_')} must be None or derive from BaseException"
        raise cap.raise_(TypeError, text)
    obj.slots[name] = value
    if name == "__cause__":  # after it, as it is set with it
        obj.slots.pop("__suppress_context__", None)
        obj.slots["__suppress_context__"] = ConstVar(True)


def del_attr(cap: Capture, obj: Tracker, name: str, link: Link | None = None) -> None:
    """``del obj.name``; ``link``: it is all that the instruction does."""
    obj = cap.realize(obj)
    if type(obj) is ConstVar and id(obj.value) in cap.made and isinstance(obj.value, type):
        _write_class(cap, obj, name, None)
        return
    if type(obj) is not ObjectVar:
        raise Break("attribute-mutation", f"del {name} of {describe(obj)}")
    if obj.cls in PROXIES:
        del_attr(cap, proxied(cap, obj), name)
        return
    deleter = cap.type_attr(obj.cls, "__delattr__")
    if isinstance(deleter, types.FunctionType):
        inline(cap, ConstVar.known(deleter), [obj, ConstVar(name)], {}, link)
        return
    require_plain(obj.cls, deleter)
    object_del_attr(cap, obj, name, link)


def _del_descriptor(cap: Capture, raw: Any, obj: ObjectVar, name: str, link: Link | None) -> None:
    cls = obj.cls
    if type(raw) is property:
        if raw.fdel is None:
            refuse_access(cap, cls, raw.__delete__)
        call(cap, wrap_class_value(cap, cls, name, raw.fdel), [obj], {}, link)
        return
    if isinstance(raw, types.MemberDescriptorType):
        if object_attr(cap, obj, name) is None:
            raise cap.raise_(AttributeError, name)
        write_slot(cap, obj, name, NULL)
        return
    deleter = cap.type_attr(type(raw), "__delete__")
    if not isinstance(deleter, types.FunctionType):
        raise Break("attribute-mutation", f"del {name} of {cls.__name__}")
    descriptor = wrap_class_value(cap, cls, name, raw)
    inline(cap, ConstVar.known(deleter), [descriptor, obj], {}, link)


def write_slot(cap: Capture, obj: ObjectVar, name: str, value: Tracker) -> None:
    """Set a slot, or with NULL empty it."""
    obj.slots[name] = value
    if obj.obj is not None:
        cap.mark_changed(obj)
    if name not in obj.slots_written:
        obj.slots_written.append(name)


def object_del_attr(cap: Capture, obj: ObjectVar, name: str, link: Link | None = None) -> None:
    """``object.__delattr__``."""
    raw = cap.type_attr(obj.cls, name)
    if raw is not ABSENT and is_data_descriptor(raw):
        _del_descriptor(cap, raw, obj, name, link)
        return
    if not obj.cls.__dictoffset__:
        raise _no_dict(cap, obj.cls, name)
    if not cap.dict_del(obj.attrs, name):
        raise cap.raise_(AttributeError, f"'{obj.cls.__name__}' object has no attribute '{name}'")


def _no_dict(cap: Capture, cls: type, name: str) -> Raised:
    """What is raised where an attribute of an object without a dictionary is set or deleted."""
    more = " and no __dict__ for setting new attributes" if sys.version_info >= (3, 13) else ""
    return cap.raise_(AttributeError, f"'{cls.__name__}' object has no attribute '{name}'{more}")


def write_cell(cap: Capture, cell: CellVar, value: Tracker | None) -> None:
    if cell.real is not None and not cell.written:
        with contextlib.suppress(ValueError):
            cap.let_go(cell.real.cell_contents)
    old, cell.content = cell.content, value
    cell.loaded = True
    if cap.mortal and old is not None:
        cap.drop(old)
    if cell.real is not None:
        cell.written = True
        cap.mark_changed(cell)
