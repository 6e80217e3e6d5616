"""Rules of the builtins that ask about objects: attributes, types, numbers, containers by their classes.

In: calls of what is named. Out: trackers with the builtins' meaning.
Always: what needs a loop over user values is a polyfill in Python, traced like user code.
"""

from __future__ import annotations

import abc
import builtins
import copyreg
import datetime
import functools
import logging
import time
import types
import typing
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from ..guards import Call, gives
from . import polyfills
from .attribute_writes import del_attr, object_del_attr, object_set_attr, set_attr
from .attributes import (
    PROXIES,
    find_attr,
    get_attr,
    has_attr,
    object_attr,
    ordered_attrs,
    python_type,
    says_itself,
)
from .breaks import Break, Raised
from .calls import (
    LED,
    call,
    call_special,
    is_callable,
    is_known,
    known_object,
    new_object,
    refuse,
    refuse_excess,
    type_call,
)
from .capture import DIRECT, Capture, Link
from .frame import inline
from .mirror import run
from .protocol import (
    evaluate,
    gather,
    get_iter,
    has_constants,
    iterate,
    length,
    make_slice,
    real_set,
    set_of,
    truth,
)
from .reordered import put_off_warning
from .rules import RULES, rule
from .tensor_reads import instance_attr
from .trackers import (
    NONE,
    NULL,
    Args,
    ConstVar,
    DictVar,
    FloatVar,
    IdVar,
    Kwargs,
    ListVar,
    ObjectVar,
    OpaqueVar,
    SetVar,
    SuperVar,
    TensorVar,
    Tracker,
    TupleVar,
    describe,
)
from .weak_rules import proxied


def text(cap: Capture, tracker: Tracker) -> str:
    value = cap.value_of(tracker)
    if not isinstance(value, str):
        raise cap.raise_(TypeError, f"attribute name must be string, not '{type(value).__name__}'")
    return value


# --- attributes and types --------------------------------------------------------------------------------


@rule(getattr)
def _getattr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    name = text(cap, args[1])
    if len(args) < 3:
        return get_attr(cap, args[0], name)
    try:
        found = find_attr(cap, args[0], name)
    except Raised as raised:
        if not issubclass(python_type(raised.value), AttributeError):
            raise
        found = None
    return found if found is not None else cap.realize(args[2])


@rule(hasattr)
def _hasattr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(has_attr(cap, args[0], text(cap, args[1])))


@rule(setattr)
def _setattr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    set_attr(cap, args[0], text(cap, args[1]), args[2])
    return NONE


@rule(delattr)
def _delattr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    del_attr(cap, args[0], text(cap, args[1]))
    return NONE


def _own_object(cap: Capture, tracker: Tracker) -> ObjectVar:
    tracker = cap.realize(tracker)
    if type(tracker) is not ObjectVar:
        raise Break("attribute-mutation", f"object method on a {describe(tracker)}")
    return tracker


@rule(object.__setattr__)
def _object_setattr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    object_set_attr(cap, _own_object(cap, args[0]), text(cap, args[1]), args[2])
    return NONE


@rule(object.__delattr__)
def _object_delattr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    object_del_attr(cap, _own_object(cap, args[0]), text(cap, args[1]))
    return NONE


@rule(object.__getattribute__)
def _object_getattribute(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    obj, name = cap.realize(args[0]), text(cap, args[1])
    if type(obj) is not ObjectVar:
        return get_attr(cap, obj, name)
    found = object_attr(cap, obj, name)
    if found is None:
        raise cap.raise_(AttributeError, f"'{obj.cls.__name__}' object has no attribute '{name}'")
    return found


@rule(object.__init__)
def _object_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """Source: CPython, Objects/typeobject.c, object_init: who overrides one of the two may take arguments there."""
    cls = python_type(cap.realize(args[0]))
    own = cap.type_attr(cls, "__init__") is object.__init__
    if (len(args) > 1 or kwargs) and (not own or cap.type_attr(cls, "__new__") is object.__new__):
        name = cls.__name__ if own else "object"
        text = f"{name}.__init__() takes exactly one argument (the instance to initialize)"
        raise cap.raise_(TypeError, text)
    return NONE


@rule(object.__init_subclass__, vars(object)["__init_subclass__"])
def _object_init_subclass(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if kwargs:  # it takes none
        plain = vars(object)["__init_subclass__"].__get__(None, cap.value_of(args[0]))
        evaluate(cap, plain, **dict.fromkeys(kwargs))
    return NONE


@rule(object.__new__)
def _object_new(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    cls = cap.value_of(args[0])
    refuse_excess(cap, cls, args[1:], kwargs)
    return new_object(cap, cls, [])


_MADE_HERE: list[Any] = [tuple, dict, list, set, frozenset, str, int, float, complex, bytes]
_EXCEPTIONS = [
    cls
    for cls in vars(builtins).values()
    if isinstance(cls, type) and issubclass(cls, BaseException) and not issubclass(cls, OSError)
]


@rule(*dict.fromkeys(cls.__new__ for cls in (*_MADE_HERE, *_EXCEPTIONS)))
def _container_new(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    cls = cap.value_of(args[0])
    if cls.__module__ == "builtins" and not issubclass(cls, BaseException):
        return call(cap, ConstVar(cls), args[1:], kwargs)
    return new_object(cap, cls, args[1:])


@rule(type.__call__)
def _type_call(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return type_call(cap, cap.value_of(args[0]), args[1:], kwargs)


@rule(type)
def _type(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if kwargs and len(args) != 3:
        return refuse(cap, type, args, kwargs)
    if len(args) == 3:
        return type_call(cap, type, args, kwargs)
    if len(args) != 1:
        return refuse(cap, type, args, kwargs)
    return (
        get_attr(cap, args[0], "__class__")
        if type(cap.realize(args[0])) is ConstVar
        else cap.from_python(python_type(cap.realize(args[0])))
    )


@rule(isinstance)
def _isinstance(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    cls = known_object(cap, args[1])
    if not _are_classes(cls):
        raise Break("unsupported-call", "isinstance() with what is no class")
    return ConstVar(_instance_of(cap, cap.realize(args[0]), cls))


def _are_classes(cls: Any) -> bool:
    """Whether ``isinstance`` may take it; where it finds out late, among later ones of a tuple, it says so itself."""
    if isinstance(cls, tuple):
        return all(map(_are_classes, cls))
    return (
        isinstance(cls, (type, types.UnionType))
        or typing.get_origin(cls) is typing.Union
        or any("__instancecheck__" in base.__dict__ for base in type(cls).__mro__)
    )


def _instance_of(cap: Capture, value: Tracker, cls: Any) -> bool:
    if isinstance(cls, tuple):
        return any(_instance_of(cap, value, c) for c in cls)
    if isinstance(cls, types.UnionType) or typing.get_origin(cls) is typing.Union:
        return any(_instance_of(cap, value, c) for c in typing.get_args(cls))
    if python_type(value) is cls:
        return True
    if says_itself(cap, ConstVar(cls), "__instancecheck__"):
        return truth(cap, call_special(cap, ConstVar.known(cls), "__instancecheck__", [value]))
    answer: bool | None
    try:
        answer = _by_class(cap, value, cls)
    except TypeError:  # a protocol, which looks at values, not at classes, or refuses to look at either
        answer = None
    has_attributes = type(value) is TensorVar or type(value) is ObjectVar and value.obj is None
    if answer is None or not answer and has_attributes and getattr(cls, "_is_protocol", False):
        raise Break("unsupported-call", f"isinstance() of a {describe(value)} with a protocol")
    if isinstance(cls, abc.ABCMeta):
        _guard_abstract(cap, value, cls, answer)
    return answer


def _guard_abstract(cap: Capture, value: Tracker, cls: type, answer: bool) -> None:
    """Classes may be registered with an abstract class later; a protocol looks at what an object has."""
    found = python_type(value)
    if cls in found.__mro__ or type(value) is TensorVar:
        return
    of_object = getattr(cls, "_is_protocol", False) and value.source is not None
    asked = (
        Call(isinstance, value.source, cls)
        if of_object
        else Call(_SUBCLASS, cls, Call(type, value.source) if value.source is not None else found)
    )
    cap.guard(gives(asked, answer, f"isinstance(a {found.__qualname__}, {cls.__qualname__}) is {answer}"))


_SUBCLASS: Any = abc._abc_subclasscheck  # type: ignore[attr-defined]  # in C


def _by_class(cap: Capture, value: Tracker, cls: Any) -> bool:
    if type(value) is ConstVar:
        return issubclass(value.kind, cls) if value.is_unread else isinstance(value.value, cls)
    if type(value) is TensorVar:
        marker = _MARKERS.get(cls)
        if marker is not None and not issubclass(value.cls, cls):
            mark = instance_attr(cap, value, marker)
            return mark is not None and truth(cap, mark)
        if cls is torch.autograd.Variable:
            return True
        return issubclass(value.cls, cls) or (cls in _TENSOR_TYPES and isinstance(value.fake, cls))
    if type(value) is OpaqueVar:
        return isinstance(value.value, cls)
    found = python_type(value)
    if type(value) is ObjectVar and found in PROXIES:
        return found is cls or _instance_of(cap, proxied(cap, value), cls)
    plain = cap.type_attr(type(cls), "__instancecheck__") is type.__instancecheck__
    if type(value) is ObjectVar and value.obj is not None and not plain:
        return isinstance(value.obj, cls)
    if issubclass(found, cls):
        return True
    if type(value) is not ObjectVar or cap.type_attr(found, "__class__") is object.__dict__["__class__"]:
        return False
    claimed = cap.value_of(get_attr(cap, value, "__class__"))
    return isinstance(claimed, type) and issubclass(claimed, cls)


#: What makes tensors of other classes instances too.
_MARKERS: dict[Any, str] = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}
_TENSOR_TYPES = tuple(
    t
    for t in vars(torch).values()
    if isinstance(t, type) and t.__module__ == "torch" and t.__name__.endswith("Tensor")
)


@rule(issubclass)
def _issubclass(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    cls = cap.value_of(args[1])
    if isinstance(cls, tuple) and any(says_itself(cap, ConstVar(c), "__subclasscheck__") for c in cls):
        raise Break(
            "unsupported-call", "issubclass() of several classes, one of which says itself what they are"
        )
    if says_itself(cap, ConstVar(cls), "__subclasscheck__"):
        return ConstVar(truth(cap, call_special(cap, ConstVar.known(cls), "__subclasscheck__", [args[0]])))
    answer = evaluate(cap, issubclass, cap.value_of(args[0]), cls)
    for each in cls if isinstance(cls, tuple) else (cls,):
        if isinstance(each, abc.ABCMeta) and each not in (found := cap.value_of(args[0])).__mro__:
            text = f"whether {found.__qualname__} is a subclass of {each.__qualname__}"
            cap.guard(gives(Call(_SUBCLASS, each, found), issubclass(found, each), text))
    return answer


@rule(callable)
def _callable(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(is_callable(cap, args[0]))


@rule(super)
def _super(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if args:
        cls = cap.value_of(args[0])
        if not isinstance(cls, type):
            raise cap.raise_(TypeError, f"super() argument 1 must be a type, not {type(cls).__name__}")
        if len(args) == 1:
            raise Break("unsupported-call", "super() with one argument")
        obj = cap.realize(args[1])
        of_class = type(obj) is ConstVar and isinstance(obj.value, type) and cls in obj.value.__mro__
        if not of_class and cls not in python_type(obj).__mro__:
            raise Break("unsupported-call", "super() with what is no instance of the class")
        return SuperVar(cls, obj)
    frame = cap.frames[-1]
    if not frame.code.co_argcount:
        raise cap.raise_(RuntimeError, "super(): no arguments")
    if "__class__" not in frame.cells:
        raise cap.raise_(RuntimeError, "super(): __class__ cell not found")
    cls = cap.read_cell(frame.cells["__class__"])
    first = frame.code.co_varnames[0]
    self_var = frame.locals.get(first)
    if self_var is None:
        self_var = cap.read_cell(frame.cells[first])
    return SuperVar(cap.value_of(cls), cap.realize(self_var))  # type: ignore[arg-type]


@rule(super.__init__)
def _super_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    raise Break("unsupported-call", "super().__init__ called as a function")


@rule(id)
def _id(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return IdVar(cap.realize(args[0]))


@rule(object.__reduce_ex__)
def _reduce_ex(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """What ``copy`` and ``pickle`` ask of a plain object: how to make it again."""
    obj = cap.realize(args[0])
    if type(obj) is SetVar and obj.cls in (set, frozenset):
        return TupleVar([ConstVar(obj.cls), TupleVar([ListVar(iterate(cap, obj))]), NONE])
    if type(obj) is DictVar and obj.cls is OrderedDict and not ordered_attrs(cap, obj):
        pairs = call(cap, ConstVar(OrderedDict.items), [obj], {})
        return TupleVar([ConstVar(OrderedDict), TupleVar([]), NONE, NONE, get_iter(cap, pairs)])
    plain = type(obj) is ObjectVar and obj.payload is None and obj.cls is not functools.partial
    if not plain or cap.type_attr(obj.cls, "__reduce__") is not object.__reduce__:  # type: ignore[attr-defined]
        raise Break("unsupported-call", f"copy of a {describe(obj)}")
    assert type(obj) is ObjectVar
    get_state = cap.type_attr(obj.cls, "__getstate__")
    if isinstance(get_state, types.FunctionType):
        state = call_special(cap, obj, "__getstate__", [])
    else:
        cap.complete(obj.attrs)
        state = DictVar(dict(obj.attrs.known)) if obj.attrs.known else NONE
        names = copyreg._slotnames(obj.cls)  # type: ignore[attr-defined]
        slots = {name: _getattr(cap, [obj, ConstVar(name), NULL], {}) for name in names}
        slots = {name: value for name, value in slots.items() if value is not NULL}
        if slots:
            state = TupleVar([state, DictVar(slots)])
    new = ConstVar.known(copyreg.__newobj__, "copyreg_newobj")
    return TupleVar([new, TupleVar([ConstVar.known(obj.cls)]), state, NONE, NONE])


@rule(vars)
def _vars(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if not args:
        raise Break("frame-introspection", "vars()")
    found = find_attr(cap, args[0], "__dict__")
    if found is None:
        raise cap.raise_(TypeError, "vars() argument must have __dict__ attribute")
    return found


@rule(globals)
def _globals(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return cap.frames[-1].globals_var


def _breaking(code: str, *targets: Any) -> None:
    for target in targets:
        name = getattr(target, "__qualname__", str(target))

        @rule(target)
        def handler(cap: Capture, args: Args, kwargs: Kwargs, name: str = name) -> Tracker:
            raise Break(code, f"call of {name}", at_once=True)


_breaking("print-or-io", print, input, open, warnings.warn_explicit)
RULES[warnings.warn] = put_off_warning
_breaking(
    "print-or-io", time.time, time.perf_counter, time.monotonic, time.sleep, time.process_time, time.time_ns
)
_breaking(
    "print-or-io",
    *(
        cls.__dict__[name]
        for cls in (datetime.date, datetime.datetime)
        for name in ("fromtimestamp", "today")
        if name in cls.__dict__
    ),
    *(datetime.datetime.__dict__[name] for name in ("now", "utcnow", "timestamp", "astimezone")),
)
_breaking("print-or-io", logging.Logger._log)
_breaking("frame-introspection", locals, dir, eval, exec, compile)
_breaking("dynamic-import", builtins.__import__)


@rule(logging.Logger.isEnabledFor)
def _is_enabled_for(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """Asked for real once: the logger then remembers its answer, and is not seen to take a lock."""
    logger, *level = [cap.realize(arg) for arg in args]
    if type(logger) is ObjectVar and not logger.attrs.known and isinstance(logger.obj, logging.Logger):
        if len(level) == 1 and type(level[0]) is ConstVar and type(level[0].value) is int:
            logger.obj.isEnabledFor(level[0].value)
    return inline(cap, ConstVar(logging.Logger.isEnabledFor), args, kwargs)


def _led(target: Any, act: Callable[..., Tracker | None], finish: Any, count: int) -> None:
    def led(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker | None:
        if len(args) != count or type(cap.realize(args[0])) not in (ObjectVar, SuperVar):
            return None
        return act(cap, args, Link((ConstVar(finish),)) if finish is not None else DIRECT)

    LED[target] = led


def _led_set(cap: Capture, args: Args, link: Link) -> Tracker:
    set_attr(cap, args[0], text(cap, args[1]), args[2], link)
    return NONE


def _led_del(cap: Capture, args: Args, link: Link) -> Tracker:
    del_attr(cap, args[0], text(cap, args[1]), link)
    return NONE


_led(getattr, lambda cap, args, link: get_attr(cap, args[0], text(cap, args[1]), link), None, 2)
_led(setattr, _led_set, polyfills.nothing, 3)
_led(delattr, _led_del, polyfills.nothing, 2)
_led(bool, lambda cap, args, link: ConstVar(truth(cap, args[0], link)), polyfills.truth_of, 1)


# --- numbers and text --------------------------------------------------------------------------------


@rule(len)
def _len(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(length(cap, args[0]))


@rule(bool)
def _bool(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(truth(cap, args[0]) if args else False)


def _number(cls: type) -> None:
    @rule(cls)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        if args and type(cap.realize(args[0])) is TensorVar:
            if len(args) == 1 and not kwargs and is_known(cap.realize(args[0])):
                return cap.emit("call_function", cls, args, kwargs, cls)
            if len(args) == 1 and not kwargs and cls is not complex:
                item = call(cap, get_attr(cap, args[0], "item"), [], {})
                if type(item) is not FloatVar or cls is float:
                    return call(cap, ConstVar(cls), [item], {})
            raise Break("tensor-item", f"{cls.__name__}() of a tensor")
        return run(cap, cls, args, kwargs)


for _cls in (int, float, complex):
    _number(_cls)


# --- containers made by their classes --------------------------------------------------------------------------------


@rule(list)
def _list(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ListVar(list(gather(cap, args[0])) if args else [])


@rule(tuple)
def _tuple(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return TupleVar(list(gather(cap, args[0])) if args else [])


@rule(set)
def _set(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return _new_set(cap, args, set)


@rule(frozenset)
def _frozenset(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return _new_set(cap, args, frozenset)


def _new_set(cap: Capture, args: Args, cls: type) -> Tracker:
    source = cap.realize(args[0]) if args else None
    if type(source) is SetVar and has_constants(source):
        twin = cls(real_set(cap, source))
        return SetVar({key: source.known[key] for key in twin}, cls, twin=twin)
    made = SetVar(set_of(cap, source) if source is not None else {}, cls)
    if type(source) is DictVar and has_constants(made):
        made.twin = cls(dict.fromkeys(made.known))
    return made


@rule(slice)
def _slice(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return make_slice(cap, args)
