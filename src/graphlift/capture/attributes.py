"""Attributes of trackers read: the descriptor protocol, once for every kind of object.

In: a tracker and a name. Out: the tracker of the attribute (or the program's AttributeError as `Raised`).
Always: no user code runs for real; what a lookup depended on (instance keys, MRO lookups) is guarded.
"""

from __future__ import annotations

import collections
import enum
import functools
import sys
import types
import weakref
from typing import Any

import numpy as np
import torch

from ..frame import CompiledCallable
from ..guards import (
    ABSENT,
    Attr,
    Call,
    Const,
    DictItem,
    HasKey,
    InstanceDict,
    Slot,
    Source,
    gives,
)
from ..guards._guards import is_plain_access, is_unset
from .breaks import Break, Raised
from .called_iterators import ReversedIter
from .capture import DIRECT, Capture, Link
from .constants import PLAIN_CONSTANTS, is_static_type, raw_attribute
from .frame import DictIter, GeneratorVar, IteratorVar, RangeIter, SetIter, inline, is_library_code
from .trackers import (
    NONE,
    NULL,
    CellVar,
    ConstVar,
    DequeVar,
    DictVar,
    DictViewVar,
    FunctionVar,
    IdVar,
    ListVar,
    MethodVar,
    NumberVar,
    ObjectVar,
    OpaqueVar,
    PrivateVar,
    SetVar,
    SuperVar,
    TensorVar,
    Tracker,
    TupleVar,
    describe,
)

#: Their attributes are those of what they refer to.
PROXIES = weakref.ProxyTypes
C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
C_DATA = (types.GetSetDescriptorType, types.MemberDescriptorType)
_TYPE_NAMES = {
    "__name__",
    "__qualname__",
    "__module__",
    "__mro__",
    "__bases__",
    "__base__",
    "__doc__",
    "__flags__",
}
_FUNCTION_NAMES = {
    "__name__",
    "__qualname__",
    "__module__",
    "__doc__",
    "__code__",
    "__defaults__",
    "__kwdefaults__",
}
_CACHED_PROPERTY = functools.cached_property
LRU_CACHE = type(functools.lru_cache(lambda: None))
#: Numpy's functions of Cython: they bind as Python's do.
CYTHON = type(np.random.default_rng)


def python_type(tracker: Tracker) -> type:
    """``type(value)`` of what a tracker stands for."""
    kind = type(tracker)
    if kind is ConstVar:
        return tracker.kind  # type: ignore[attr-defined,no-any-return]
    if kind is NumberVar and tracker.kind is not None:  # type: ignore[attr-defined]
        return tracker.kind  # type: ignore[attr-defined,no-any-return]
    if kind in (ObjectVar, DictVar, SetVar, TensorVar):
        return tracker.cls  # type: ignore[attr-defined]
    if kind in (OpaqueVar, PrivateVar):
        return type(tracker.value)  # type: ignore[attr-defined]
    if kind is DictViewVar:
        return {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}[tracker.kind]  # type: ignore
    if kind is MethodVar:
        return types.BuiltinMethodType if python_type(tracker.func) in C_METHODS else types.MethodType  # type: ignore
    found = TYPES.get(kind)
    if found is None:
        if isinstance(tracker, IteratorVar):
            return _iterator_type(tracker)
        raise Break("unsupported-object", f"type of {describe(tracker)}")
    return found


TYPES: dict[type, type] = {
    ListVar: list,
    DequeVar: collections.deque,
    TupleVar: tuple,
    FunctionVar: types.FunctionType,
    IdVar: int,
    CellVar: types.CellType,
    SuperVar: super,
    GeneratorVar: types.GeneratorType,
}


def _iterator_type(tracker: IteratorVar) -> type:
    builtin = getattr(tracker, "builtin", None)
    if isinstance(builtin, type):
        return builtin
    owner = getattr(tracker, "owner", None)
    if isinstance(tracker, ReversedIter):
        return type(reversed([])) if type(owner) is ListVar else reversed
    if type(tracker) is RangeIter:
        return type(iter(range(0)))
    if type(tracker) is SetIter:
        return type(iter(set()))
    if type(tracker) is DictIter:
        made: Any = (
            collections.OrderedDict() if issubclass(tracker.owner.cls, collections.OrderedDict) else {}
        )
        return type(iter(getattr(made, tracker.kind)()))
    if type(owner) is DequeVar:
        return type(iter(collections.deque()))
    if type(owner) is ConstVar:
        return type(iter(owner.value))
    return type(iter(())) if type(owner) is TupleVar else type(iter([]))


def shown_name(cls: type) -> str:
    """A class as the interpreter's messages name it: those of C modules with the module."""
    static = is_static_type(cls) and cls.__module__ != "builtins"
    return f"{cls.__module__}.{cls.__name__}" if static else cls.__name__


def _name_without(cap: Capture, cls: type, name: str) -> str:
    """A class as the interpreter names it where an instance has no attribute ``name``."""
    slot = sys.version_info >= (3, 13) and isinstance(cap.type_attr(cls, name), types.MemberDescriptorType)
    if not slot or cls.__module__ in ("builtins", "__main__"):
        return shown_name(cls)
    return f"{cls.__module__}.{cls.__qualname__}"


def get_attr(cap: Capture, obj: Tracker, name: str, link: Link | None = None) -> Tracker:
    """``obj.name``; raises `Raised` with AttributeError as the program would, which says of what.

    ``link``: the attribute is the result of the instruction, that of an object of a Python class may be left under way.
    """
    try:
        return _get_attr(cap, obj, name, link)
    except Raised as raised:
        _say_of_what(raised, obj, name)
        raise


def _say_of_what(raised: Raised, obj: Tracker, name: str) -> None:
    error: Any = raised.value
    if type(error) is ObjectVar and error.obj is None and issubclass(error.cls, AttributeError):
        if all(
            error.slots.get(field, NONE) is NONE or is_none(error.slots[field]) for field in ("name", "obj")
        ):
            error.slots.update(name=ConstVar(name), obj=obj)


def get_missed(cap: Capture, raised: Raised, obj: Any, name: str, hook: Any) -> Tracker:
    """A lookup that a break left under way raised: what ``hook``, the class's ``__getattr__``, gives for an AttributeError."""
    found = None
    if issubclass(python_type(raised.value), AttributeError) and hook is not None:
        try:
            found = _attr_fallback(cap, obj, name, hook)
            raised = raised if found is not None else _lacking(cap, obj, name)
        except Raised as another:
            raised = another
    if found is None:
        _say_of_what(raised, obj, name)
        raise raised
    return found


def is_none(tracker: Tracker) -> bool:
    return type(tracker) is ConstVar and tracker.value is None


def _get_attr(cap: Capture, obj: Tracker, name: str, link: Link | None) -> Tracker:
    obj = cap.realize(obj)
    finder = LINKING.get(type(obj))
    found = finder(cap, obj, name, link) if finder is not None else find_attr(cap, obj, name)
    if found is None:
        raise _lacking(cap, obj, name)
    return found


def _lacking(cap: Capture, obj: Tracker, name: str) -> Raised:
    cls = python_type(obj)
    what = (
        f"type object '{obj.value.__name__}'"
        if type(obj) is ConstVar and isinstance(obj.value, type)
        else f"'{_name_without(cap, cls, name)}' object"
    )
    if type(obj) is ConstVar and isinstance(obj.value, types.ModuleType):
        what = f"module '{obj.value.__name__}'"
    return cap.raise_(AttributeError, f"{what} has no attribute '{name}'")


def has_attr(cap: Capture, obj: Tracker, name: str) -> bool:
    try:
        return find_attr(cap, obj, name) is not None
    except Raised as raised:
        if issubclass(python_type(raised.value), AttributeError):
            return False
        raise


def find_attr(cap: Capture, obj: Tracker, name: str) -> Tracker | None:
    """The attribute or None (an AttributeError of a user's ``__getattr__`` comes as `Raised`)."""
    obj = cap.realize(obj)
    finder = FINDERS.get(type(obj))
    if finder is not None:
        return finder(cap, obj, name)
    return builtin_attr(cap, obj, name)


def is_python(cap: Capture, obj: ObjectVar, name: str) -> bool:
    """Whether the class has a special method that is written in Python."""
    return isinstance(cap.type_attr(obj.cls, name), types.FunctionType)


def says_itself(cap: Capture, tracker: Tracker, *names: str) -> bool:
    """Whether one of these special methods of a constant, a class or a member of an enumeration, is the program's code."""
    kind: Any = type(tracker.value) if type(tracker) is ConstVar else type
    if kind is type or not issubclass(kind, (enum.Enum, type)):
        return False
    for name in names:
        found = raw_attribute(kind, name)
        if type(found) is types.FunctionType and found.__module__ not in _MODELLED:
            cap.type_attr(kind, name)  # guarded
            return True
    return False


#: Modules whose special methods of classes capture knows.
_MODELLED = frozenset(
    ("abc", "enum", "typing", "torch.nn.parameter", "torch.autograd.variable", "torch._opaque_base")
)


def builtin_attr(cap: Capture, obj: Tracker, name: str) -> Tracker | None:
    """An attribute that the class of a builtin object has."""
    cls = python_type(obj)
    raw = cap.type_attr(cls, name)
    if raw is ABSENT:
        return None
    if isinstance(raw, C_METHODS):
        return MethodVar(ConstVar(raw), obj)
    if name == "__class__":
        return ConstVar(cls)
    if isinstance(raw, types.FunctionType):
        return MethodVar(wrap_class_value(cap, cls, name, raw), obj)
    if isinstance(raw, types.ClassMethodDescriptorType):
        return MethodVar(ConstVar(raw), ConstVar.known(cls))
    if type(raw) in PLAIN_CONSTANTS:
        return cap.from_python(raw)
    if type(obj) is DequeVar and name == "maxlen":
        return ConstVar(obj.maxlen)
    raise Break("unsupported-attribute", f"{name} of {describe(obj)}")


def wrap_class_value(cap: Capture, cls: type, name: str, raw: Any) -> Tracker:
    """The tracker of an object found in a class; the class lookup guards its identity, but of plain data."""
    source = cap.class_value(cls, name, raw)
    return cap.wrap(raw, source if source is not None else Const(raw, f"{cls.__name__}.{name}"))


# --- instances ---------------------------------------------------------------------------------------------------


def proxied(cap: Capture, proxy: ObjectVar) -> Tracker:
    from .weak_rules import proxied

    return proxied(cap, proxy)


def _object_attr(cap: Capture, obj: ObjectVar, name: str, link: Link | None = None) -> Tracker | None:
    if obj.cls in PROXIES:
        return find_attr(cap, proxied(cap, obj), name)
    getter = cap.type_attr(obj.cls, "__getattribute__")
    fallback = cap.type_attr(obj.cls, "__getattr__")
    try:
        if isinstance(getter, types.FunctionType):
            return inline(
                cap, ConstVar.known(getter), [obj, ConstVar(name)], {}, link and _lookup(cap, obj, name)
            )
        require_plain(obj.cls, getter)
        found = object_attr(cap, obj, name, link)
    except Raised as raised:
        if fallback is ABSENT or not issubclass(python_type(raised.value), AttributeError):
            raise
        found = None
    return found if found is not None else _attr_fallback(cap, obj, name, fallback, link)


def require_plain(cls: type, access: Any) -> None:
    """Raises: Break where a class that C code defines reads or writes attributes in its own way (`threading.local`)."""
    if not is_plain_access(access):
        code = "unsupported-attribute" if access.__name__ == "__getattribute__" else "attribute-mutation"
        raise Break(code, f"a {cls.__name__} has its own {access.__name__} in C")


def _lookup(cap: Capture, obj: Tracker, name: str) -> Link | None:
    """How the value of a Python function that looks for an attribute becomes the attribute, if it is asked first."""
    hook = cap.type_attr(python_type(obj), "__getattr__")
    if hook is not ABSENT and not isinstance(hook, types.FunctionType):
        return None
    return Link(attribute=(obj, ConstVar(name), NONE if hook is ABSENT else ConstVar.known(hook)))


def _way(cap: Capture, obj: Tracker, name: str, link: Link | None) -> Link | None:
    """``link`` where it says already how the lookup goes on."""
    return _lookup(cap, obj, name) if link is DIRECT else link


def object_attr(cap: Capture, obj: ObjectVar, name: str, link: Link | None = None) -> Tracker | None:
    """``object.__getattribute__``."""
    cap.note_read(obj)
    raw = cap.type_attr(obj.cls, name)
    if raw is not ABSENT and is_data_descriptor(raw):
        return bind_descriptor(cap, raw, obj, obj.cls, name, link)
    if name in obj.slots:
        return cap.realize(obj.slots[name])
    found = cap.dict_get(obj.attrs, name)
    if found is not None:
        return found
    return bind_descriptor(cap, raw, obj, obj.cls, name, link) if raw is not ABSENT else None


def _attr_fallback(
    cap: Capture, obj: ObjectVar, name: str, fallback: Any, link: Link | None = None
) -> Tracker | None:
    """What the class's ``__getattr__`` gives where the plain lookup failed."""
    if fallback is torch.nn.Module.__getattr__:
        return _module_attr(cap, obj, name)
    if isinstance(fallback, types.FunctionType):
        last = Link(attribute=(obj, ConstVar(name), NONE)) if link is not None else None
        return inline(cap, ConstVar.known(fallback), [obj, ConstVar(name)], {}, last)
    if isinstance(fallback, C_METHODS):  # __getattr__ = dict.__getitem__
        return _call(cap, MethodVar(ConstVar(fallback), obj), [ConstVar(name)])
    if fallback is not ABSENT:
        raise Break("unsupported-attribute", f"__getattr__ of {obj.cls.__name__} is not a Python function")
    return None


def _module_attr(cap: Capture, obj: ObjectVar, name: str) -> Tracker | None:
    """What ``nn.Module.__getattr__`` does: parameters, buffers, submodules."""
    for table in ("_parameters", "_buffers", "_modules"):
        entries = cap.dict_get(obj.attrs, table)
        if type(entries) is DictVar:
            found = cap.dict_get(entries, name)
            if found is not None:
                return found
        elif entries is not None:
            raise Break("unsupported-attribute", f"{table} of {obj.cls.__name__} is a {describe(entries)}")
    return None


def is_data_descriptor(raw: Any) -> bool:
    kind = type(raw)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def refuse_access(cap: Capture, cls: type, act: Any, *args: Any) -> None:
    """A property does not do ``act``: it says so itself, of an object of a class of the same name."""
    from .protocol import evaluate

    evaluate(cap, act, type(cls.__name__, (), {"__qualname__": cls.__qualname__})(), *args)


def bind_descriptor(
    cap: Capture, raw: Any, obj: Tracker, cls: type, name: str, link: Link | None = None
) -> Tracker | None:
    """``raw.__get__(obj, cls)`` for an object found on the class."""
    kind = type(raw)
    if kind in (types.FunctionType, LRU_CACHE, CYTHON, CompiledCallable):
        return MethodVar(wrap_class_value(cap, cls, name, raw), obj)
    if kind is property or (isinstance(raw, property) and cap.type_attr(kind, "__get__") is property.__get__):
        if raw.fget is None:
            refuse_access(cap, cls, raw.__get__)
        return _call(cap, wrap_class_value(cap, cls, name, raw.fget), [obj], _way(cap, obj, name, link))
    if kind is staticmethod:
        return wrap_class_value(cap, cls, name, raw.__func__)
    if kind is classmethod:
        return MethodVar(wrap_class_value(cap, cls, name, raw.__func__), ConstVar.known(cls))
    if isinstance(raw, C_METHODS):
        return MethodVar(ConstVar(raw), obj)
    if isinstance(raw, types.ClassMethodDescriptorType):
        return MethodVar(ConstVar(raw), ConstVar.known(cls))
    if isinstance(raw, C_DATA):
        return _c_attribute(cap, raw, obj, cls, name)
    if kind is _CACHED_PROPERTY and type(obj) is ObjectVar:
        value = _call(cap, wrap_class_value(cap, cls, name, raw.func), [obj])
        cap.dict_set(obj.attrs, raw.attrname, value)
        return value
    if kind.__name__ == "_tuplegetter" and type(obj) is ObjectVar and type(obj.payload) is TupleVar:
        index = raw.__get__(tuple(range(len(obj.payload.items))), cls)
        obj.payload.items[index] = cap.realize(obj.payload.items[index])
        return obj.payload.items[index]
    getter = cap.type_attr(kind, "__get__")
    if getter is ABSENT:
        return wrap_class_value(cap, cls, name, raw)
    if isinstance(getter, types.FunctionType):
        descriptor = wrap_class_value(cap, cls, name, raw)
        return inline(
            cap,
            ConstVar.known(getter),
            [descriptor, obj, ConstVar.known(cls)],
            {},
            _way(cap, obj, name, link),
        )
    if isinstance(raw, (types.BuiltinFunctionType, type)):
        return wrap_class_value(cap, cls, name, raw)
    raise Break("unsupported-attribute", f"{cls.__name__}.{name} is a {kind.__name__}")


def _c_attribute(cap: Capture, raw: Any, obj: Tracker, cls: type, name: str) -> Tracker | None:
    """A slot or a C-level attribute of an instance."""
    if name == "__class__":
        return ConstVar.known(cls)
    if type(obj) is not ObjectVar:
        raise Break("unsupported-attribute", f"{name} of {describe(obj)}")
    if name == "__dict__":
        return obj.attrs
    if name in obj.slots:
        return None if obj.slots[name] is NULL else cap.realize(obj.slots[name])
    if type(obj.payload) is TupleVar and hasattr(cls, "n_sequence_fields"):
        return _structseq_field(cap, raw, obj, cls)
    if name == "__traceback__" and obj.obj is None:
        return cap.traceback_of(obj)
    if name in ("__weakref__", "__context__", "__cause__") and obj.obj is None:
        if name == "__context__" and id(obj) in cap.raise_points:
            cap.nothing_handled_outside()
        return NONE
    if obj.obj is None:
        if name == "__suppress_context__":
            return ConstVar(False)
        if issubclass(cls, BaseException) and not issubclass(cls, StopIteration):
            raise Break("unsupported-attribute", f"{name} of a {cls.__name__} made in the captured code")
        return None
    assert obj.source is not None
    try:
        value = raw.__get__(obj.obj, cls)
    except AttributeError:
        if not isinstance(raw, types.MemberDescriptorType):
            return None
        unset = Call(is_unset, raw, obj.source)
        cap.guard(gives(unset, True, f"{obj.source.name()}.{name} has no value"))
        obj.slots[name] = NULL
        return None
    if cap.late is not None:
        cap.late.source(Slot(obj.source, name))
    found = cap.wrap(value, Slot(obj.source, name))
    obj.slots[name] = found
    return found


def _structseq_field(cap: Capture, raw: Any, obj: ObjectVar, cls: Any) -> Tracker:
    probe = cls(range(cls.n_sequence_fields))
    return cap.realize(obj.payload.items[raw.__get__(probe, cls)])  # type: ignore[union-attr]


# --- classes, modules, functions and other constants -----------------------------------------------------------------


def _const_attr(cap: Capture, obj: ConstVar, name: str) -> Tracker | None:
    value = obj.value
    if isinstance(value, types.ModuleType):
        return _python_module_attr(cap, obj, name)
    if isinstance(value, type):
        return class_attr(cap, value, name)
    kind = type(value)
    if kind is types.FunctionType:
        return _function_attr(cap, obj, name)
    raw = cap.type_attr(kind, name)
    if isinstance(value, enum.Enum):
        return _member_attr(cap, obj, raw, name)
    if raw is ABSENT and not hasattr(value, name):
        return None
    if isinstance(raw, types.WrapperDescriptorType) and isinstance(value, C_DATA):
        # An accessor, which is what a `__torch_function__` compares and looks up.
        return ConstVar(getattr(value, name))
    if isinstance(raw, C_METHODS):
        return MethodVar(ConstVar(raw), obj)
    if isinstance(raw, types.FunctionType):
        return MethodVar(wrap_class_value(cap, kind, name, raw), obj)
    if name == "__class__":
        return ConstVar(kind)
    if kind in PLAIN_CONSTANTS or isinstance(
        value, (*C_METHODS, *C_DATA, types.BuiltinFunctionType, types.CodeType, np.finfo, np.iinfo)
    ):
        return cap.from_python(getattr(value, name))
    if isinstance(raw, C_DATA) or isinstance(value, (property, staticmethod, classmethod)):
        return cap.from_python(getattr(value, name))
    if isinstance(raw, types.ClassMethodDescriptorType):
        return cap.from_python(getattr(value, name))
    source = obj.source
    instance_dict = getattr(value, "__dict__", None)
    if source is not None and type(instance_dict) is dict and name in instance_dict:
        return cap.wrap(instance_dict[name], DictItem(InstanceDict(source), name))
    raise Break("unsupported-attribute", f"{name} of {describe(obj)}")


def _member_attr(cap: Capture, obj: ConstVar, raw: Any, name: str) -> Tracker | None:
    """An attribute of a member of an enumeration: code of its class is captured, what it holds may change."""
    value, kind = obj.value, type(obj.value)
    getter = getattr(raw, "fget", None)
    if type(getter) is types.FunctionType and getter.__module__ != "enum":
        return _call(cap, wrap_class_value(cap, kind, name, getter), [obj])
    held = object.__getattribute__(value, "__dict__")
    source = obj.source or Const(value, f"{kind.__name__}.{value._name_}")
    if getter is None and name in held and name not in _FIXED_IN_MEMBERS:
        return cap.wrap(held[name], DictItem(InstanceDict(source), name))
    if isinstance(raw, classmethod):
        return MethodVar(wrap_class_value(cap, kind, name, raw.__func__), ConstVar.known(kind))
    if isinstance(raw, (types.FunctionType, *C_METHODS)):
        return MethodVar(wrap_class_value(cap, kind, name, raw), obj)
    if isinstance(raw, staticmethod):
        return wrap_class_value(cap, kind, name, raw.__func__)
    if type(raw) is _CACHED_PROPERTY:
        raise Break("unsupported-attribute", f"{name} of {describe(obj)}")
    if raw is ABSENT and name not in held:
        cap.guard(HasKey(InstanceDict(source), name, False))
        fallback = cap.type_attr(kind, "__getattr__")
        own = isinstance(fallback, types.FunctionType)
        return _call(cap, ConstVar.known(fallback), [obj, ConstVar(name)]) if own else None
    if name != "__class__" and not hasattr(value, name):
        return None
    return ConstVar(kind) if name == "__class__" else cap.from_python(getattr(value, name))


_FIXED_IN_MEMBERS = frozenset(("_value_", "_name_", "_sort_order_", "__objclass__"))


def _python_module_attr(cap: Capture, obj: ConstVar, name: str) -> Tracker | None:
    module = obj.value
    var = cap.globals_memo.get(id(module.__dict__))
    if var is None:
        var = cap.globals_var(module.__dict__)
    if name == "__dict__":
        return var
    kind = type(module)
    raw = raw_attribute(kind, name, ABSENT) if not hasattr(types.ModuleType, name) else ABSENT
    if hasattr(type(raw), "__set__"):
        return bind_descriptor(cap, cap.type_attr(kind, name), obj, kind, name)
    missing = name not in module.__dict__ and raw is ABSENT
    fallback = (raw_attribute(kind, "__getattr__") or module.__dict__.get("__getattr__")) if missing else None
    own = type(fallback) is types.FunctionType and not is_library_code(fallback.__code__)
    # A lazy module of a library then keeps it in its dict.
    value = _of_library_module(module, name) if missing and not own else ABSENT
    found = cap.dict_get(var, name)
    if found is not None:
        return found
    if raw is not ABSENT:
        return bind_descriptor(cap, cap.type_attr(kind, name), obj, kind, name)
    if own:
        return _call(cap, get_attr(cap, obj, "__getattr__"), [ConstVar(name)])
    if value is ABSENT:
        return None
    return cap.wrap(value, Const(value, f"{module.__name__.replace('.', '_')}_{name}"))


def _of_library_module(module: types.ModuleType, name: str) -> Any:
    try:
        return getattr(module, name, ABSENT)
    except Exception:
        raise Break("unsupported-attribute", f"{module.__name__}.{name}, which raises") from None


def class_attr(cap: Capture, cls: type, name: str) -> Tracker | None:
    """``cls.name``: the metaclass's data descriptors, the class's MRO, the metaclass."""
    meta = type(cls)
    meta_raw = cap.type_attr(meta, name)
    if name in _TYPE_NAMES or name == "__class__":
        return cap.from_python(getattr(cls, name)) if name != "__class__" else ConstVar(meta)
    if isinstance(cls, enum.EnumMeta) and isinstance(cls.__dict__.get("_member_map_", {}).get(name), cls):
        return ConstVar.known(cls.__members__[name], f"{cls.__name__}.{name}")
    if meta_raw is not ABSENT and type(meta_raw) is property:
        return _call(cap, wrap_class_value(cap, meta, name, meta_raw.fget), [ConstVar.known(cls)])
    if name == "__dict__":
        raise Break("unsupported-attribute", f"{cls.__name__}.__dict__")
    raw = cap.type_attr(cls, name)
    if raw is not ABSENT:
        return _from_class(cap, cls, name, raw)
    if meta_raw is ABSENT:
        fallback = cap.type_attr(meta, "__getattr__")
        if isinstance(fallback, types.FunctionType):
            return _call(
                cap,
                ConstVar.known(fallback, name),
                [ConstVar.known(cls), ConstVar(name)],
            )
        return None
    if isinstance(meta_raw, (types.FunctionType, *C_METHODS)):
        return MethodVar(wrap_class_value(cap, meta, name, meta_raw), ConstVar.known(cls))
    if isinstance(meta_raw, C_DATA):
        try:
            return cap.from_python(getattr(cls, name))
        except AttributeError:
            return None
    return wrap_class_value(cap, meta, name, meta_raw)


def _from_class(cap: Capture, cls: type, name: str, raw: Any) -> Tracker:
    if isinstance(raw, staticmethod):
        return wrap_class_value(cap, cls, name, raw.__func__)
    this = ConstVar.known(cls)
    if isinstance(raw, classmethod):
        return MethodVar(wrap_class_value(cap, cls, name, raw.__func__), this)
    if isinstance(raw, types.ClassMethodDescriptorType):
        return MethodVar(ConstVar(raw), this)
    getter = cap.type_attr(type(raw), "__get__")
    if isinstance(getter, types.FunctionType) and type(raw) is not _CACHED_PROPERTY:
        descriptor = wrap_class_value(cap, cls, name, raw)
        return inline(cap, ConstVar.known(getter), [descriptor, NONE, this], {})
    return wrap_class_value(cap, cls, name, raw)


def _function_attr(cap: Capture, obj: ConstVar, name: str) -> Tracker | None:
    fn = obj.value
    source: Source = obj.source or Const(fn, fn.__qualname__)
    if name in _FUNCTION_NAMES:
        value = getattr(fn, name)
        if name in ("__defaults__", "__kwdefaults__") or not isinstance(source, Const):
            return cap.wrap(value, Attr(source, name))
        return cap.from_python(value)
    if name == "__globals__":
        return cap.globals_var(fn.__globals__)
    if name == "__class__":
        return ConstVar(types.FunctionType)
    if name == "__type_params__" and sys.version_info >= (3, 12):
        return cap.wrap(fn.__type_params__, Attr(source, name))
    if name == "__annotations__":
        return cap.wrap(fn.__annotations__, Attr(source, name))
    if name == "__closure__":
        cells: list[Tracker] = [cap.wrap_cell_of(fn, source, i) for i in range(len(fn.__closure__ or ()))]
        return TupleVar(cells) if cells else NONE
    if name == "__kwdefaults__":
        return cap.wrap(fn.__kwdefaults__, Attr(source, name))
    if name in fn.__dict__:
        return cap.wrap(fn.__dict__[name], DictItem(InstanceDict(source), name))
    raw = cap.type_attr(types.FunctionType, name)
    if isinstance(raw, C_METHODS):
        return MethodVar(ConstVar(raw), obj)
    if raw is ABSENT:
        return None
    if name == "__dict__":
        return cap.dict_var(fn.__dict__, InstanceDict(source))
    raise Break("unsupported-attribute", f"{name} of function {fn.__qualname__}")


def made_doc(code: types.CodeType) -> str | None:
    """The docstring that MAKE_FUNCTION takes from the constants."""
    has_doc = bool(code.co_consts) and isinstance(code.co_consts[0], str)
    return code.co_consts[0] if has_doc else None  # type: ignore[no-any-return]


def _made_function_attr(cap: Capture, obj: FunctionVar, name: str) -> Tracker | None:
    simple = {
        "__name__": obj.code.co_name,
        "__qualname__": obj.qualname,
        "__code__": obj.code,
        "__doc__": made_doc(obj.code),
    }
    found = cap.dict_get(obj.attrs, name)
    if found is not None:
        return found
    if name in simple:
        return cap.from_python(simple[name])
    if name == "__module__":
        return cap.from_python(obj.globals_.get("__name__"))
    if name == "__dict__":
        return obj.attrs
    if name == "__defaults__":
        return TupleVar(obj.defaults) if obj.defaults else NONE
    if name == "__kwdefaults__":
        if obj.kwdefaults:
            raise Break(
                "unsupported-attribute", "the dictionary of a made function's defaults, which may change"
            )
        return NONE
    if name == "__annotations__":
        if obj.annotations is None:
            obj.annotations = DictVar({})
        return obj.annotations
    if name == "__closure__":
        return TupleVar(list(obj.closure)) if obj.closure else NONE
    if name == "__globals__":
        return cap.globals_var(obj.globals_)
    if name == "__type_params__" and sys.version_info >= (3, 12):
        return TupleVar([])  # a function that has some is made natively
    raw = cap.type_attr(types.FunctionType, name)
    if isinstance(raw, C_METHODS):
        return MethodVar(ConstVar(raw), obj)
    if raw is ABSENT:
        return None
    raise Break("unsupported-attribute", f"{name} of a function made in the captured code")


def _method_attr(cap: Capture, obj: MethodVar, name: str) -> Tracker | None:
    if name == "__self__":
        return obj.self_var
    if name == "__func__":
        return obj.func
    if name == "__class__":
        return ConstVar(python_type(obj))
    return find_attr(cap, obj.func, name)


def _super_attr(cap: Capture, obj: SuperVar, name: str, link: Link | None = None) -> Tracker | None:
    self_var = obj.self_var
    is_class = (
        type(self_var) is ConstVar and isinstance(self_var.value, type) and obj.cls in self_var.value.__mro__
    )
    cls = self_var.value if is_class else python_type(self_var)  # type: ignore[attr-defined]
    mro = cls.__mro__
    for base in mro[mro.index(obj.cls) + 1 :]:
        cap.exact_type_attr(base, name)  # those without it are to stay so
        if name in base.__dict__:
            raw = base.__dict__[name]
            if isinstance(raw, staticmethod):
                return wrap_class_value(cap, base, name, raw.__func__)
            if isinstance(raw, (classmethod, types.ClassMethodDescriptorType)):
                func = raw.__func__ if isinstance(raw, classmethod) else raw
                return MethodVar(wrap_class_value(cap, base, name, func), ConstVar.known(cls))
            if is_class:
                return wrap_class_value(cap, base, name, raw)
            # which asks no __getattr__
            last = link and Link(attribute=(obj, ConstVar(name), NONE))
            return bind_descriptor(cap, raw, self_var, base, name, last)
    return None


def _cell_attr(cap: Capture, obj: CellVar, name: str) -> Tracker | None:
    if name == "cell_contents":
        content = cap.read_cell(obj)
        if content is None:
            raise cap.raise_(ValueError, "Cell is empty")
        return content
    return None


def _opaque_attr(cap: Capture, obj: OpaqueVar, name: str) -> Tracker | None:
    raise Break(obj.code, f"attribute {name} of {obj.detail}")


def ordered_attrs(cap: Capture, obj: DictVar) -> dict[str, Tracker]:
    """The attributes of an OrderedDict, as that of a module's state has: of its own, or set in the region."""
    names = {**getattr(obj.real, "__dict__", {}), **cap.tensor_attrs.get(id(obj), {})}
    return {name: found for name in names if (found := _ordered_attr(cap, obj, name)) is not None}


def _ordered_attr(cap: Capture, obj: DictVar, name: str) -> Tracker | None:
    found = cap.tensor_attrs.get(id(obj), {}).get(name)
    own = getattr(obj.real, "__dict__", {})
    if found is None and name in own:
        return cap.wrap(own[name], DictItem(InstanceDict(obj.source), name))  # type: ignore[arg-type]
    return found


def _dict_attr(cap: Capture, obj: DictVar, name: str) -> Tracker | None:
    if issubclass(obj.cls, collections.OrderedDict):
        found = _ordered_attr(cap, obj, name)
        if found is not None and name not in vars(object):
            return found
        if found is None and obj.source is not None and cap.type_attr(obj.cls, name) is ABSENT:
            cap.guard(HasKey(InstanceDict(obj.source), name, False))
    return builtin_attr(cap, obj, name)


def _call(cap: Capture, fn: Tracker, args: list[Tracker], link: Link | None = None) -> Tracker:
    from .calls import call

    return call(cap, fn, args, {}, link)


FINDERS: dict[type, Any] = {
    ObjectVar: _object_attr,
    ConstVar: _const_attr,
    FunctionVar: _made_function_attr,
    MethodVar: _method_attr,
    SuperVar: _super_attr,
    CellVar: _cell_attr,
    OpaqueVar: _opaque_attr,
    DictVar: _dict_attr,
}
#: Those whose attribute may be that of a function that is left under way.
LINKING: dict[type, Any] = {ObjectVar: _object_attr, SuperVar: _super_attr}
