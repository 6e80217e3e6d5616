"""Classes made in the region: real classes, whose attributes stand for what the region put there.

In: `__build_class__`, `type()`, `property` and kin, `dataclass`, `namedtuple`. Out: the class, as a constant.
Always: no code of the user's runs for real; `Capture.made` knows every object made so. They serve all calls of the region,
so one that would outlive a call ends the region where it was made.
"""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import enum
import functools
import operator
import types
import typing
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import FunctionMeta

from ..guards import ABSENT, Call, Const, gives
from .attributes import find_attr, get_attr, is_data_descriptor, python_type
from .breaks import Break, Raised
from .calls import CODE_RULES, call, call_special, known_object
from .capture import Capture, NotConst
from .constants import is_constant_key, is_static_type
from .frame import Frame, inline
from .protocol import get_item, set_item
from .rules import rule
from .trackers import (
    NONE,
    Args,
    CellVar,
    ConstVar,
    DictVar,
    FunctionVar,
    Kwargs,
    ListVar,
    ObjectVar,
    OpaqueVar,
    SetVar,
    SuperVar,
    Tracker,
    TupleVar,
    describe,
)


class Stand:
    """Stands in a real class for a tracked object."""


class UnhashableStand:
    """The same for a list, a dict or a set."""

    __hash__ = None  # type: ignore[assignment]


class _Mute:
    """Keeps `type.__new__` from running the `__init_subclass__` of the bases, which is captured afterwards."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


class _MuteSlots:
    """The same for bases without an instance dictionary."""

    __slots__ = ()
    __init_subclass__ = _Mute.__init_subclass__


#: What the interpreter or the standard library reads in a namespace when it makes a class.
_READ_FOR_REAL = frozenset(
    "__slots__ __annotations__ __match_args__ __orig_bases__ __module__ __qualname__ __doc__ __firstlineno__ "
    "__static_attributes__ _ignore_ _order_".split()
)
#: Metaclasses in Python that make classes of constants and of functions that they do not call.
_LIBRARY_METACLASSES = ("enum", "typing")
#: Hooks of the user's that these would call.
_ENUM_HOOKS = frozenset(
    "__new__ __init__ __init_subclass__ __set_name__ _generate_next_value_ _missing_ mro".split()
)
_DESCRIPTOR = ("__get__", "__set__", "__delete__", "__set_name__")


def _refuse(what: str) -> Break:
    return Break("class-definition", what)


# --- what stands for what -------------------------------------------------------------------------------------------


def stand_for(cap: Capture, tracker: Tracker) -> Any:
    """A real object to put into a class for a tracked one."""
    tracker = cap.realize(tracker)
    if type(tracker) is ConstVar:
        cap.pin(tracker)
        return tracker.value
    known = next((made for made, stands_for, _ in cap.made.values() if stands_for is tracker), None)
    if known is not None:
        return known
    kind = python_type(tracker)
    real: Any = UnhashableStand() if type(tracker) in (ListVar, DictVar, SetVar) else Stand()
    if type(tracker) is FunctionVar:
        real = _real_function(cap, tracker)
    elif type(tracker) is ObjectVar and kind is enum.auto:
        return enum.auto()
    elif type(tracker) is ObjectVar and any(cap.type_attr(kind, name) is not ABSENT for name in _DESCRIPTOR):
        if kind.__new__ is not object.__new__:
            raise _refuse(f"a class with a {kind.__name__} inside")
        real = object.__new__(kind)
    cap.note_made(real, tracker)
    return real


def _real_function(cap: Capture, tracker: FunctionVar) -> types.FunctionType:
    """A function of the same code, to be looked at and never called: its cells are empty."""
    cells = tuple(types.CellType() for _ in tracker.closure) or None
    real = types.FunctionType(tracker.code, tracker.globals_, tracker.code.co_name, None, cells)
    real.__defaults__ = tuple(stand_for(cap, value) for value in tracker.defaults) or None
    real.__kwdefaults__ = {name: stand_for(cap, value) for name, value in tracker.kwdefaults.items()} or None
    real.__qualname__ = tracker.qualname
    if tracker.annotations is not None:
        real.__annotations__ = _plain(cap, tracker.annotations)
    for name, value in tracker.attrs.known.items():
        setattr(real, name, stand_for(cap, value))
    return real


def _plain(cap: Capture, tracker: Tracker) -> Any:
    """The real value of what the interpreter itself is to read."""
    tracker = cap.realize(tracker)
    if type(tracker) is DictVar:
        return {
            cap.value_of(cap.from_python(k)): _plain(cap, v) for k, v in cap.complete(tracker).known.items()
        }
    if type(tracker) in (TupleVar, ListVar):
        items = [_plain(cap, item) for item in tracker.items]  # type: ignore[attr-defined]
        return tuple(items) if type(tracker) is TupleVar else items
    try:
        return known_object(cap, tracker)
    except NotConst:
        raise _refuse(f"a class that is described by a {describe(tracker)}") from None


# --- the statement --------------------------------------------------------------------------------------------------


@rule(builtins.__build_class__)
def _build_class(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """Source: CPython, Python/bltinmodule.c, builtin___build_class__."""
    body, name, *named = (cap.realize(arg) for arg in args)
    if type(body) is not FunctionVar:
        raise _refuse(f"__build_class__ of a {describe(body)}")
    bases = _resolve_bases(cap, named)
    kwargs = dict(kwargs)
    meta = _metaclass(cap, kwargs.pop("metaclass", None), bases)
    namespace = _prepare(cap, meta, name, bases, kwargs)
    frame = Frame(body.code, cap.globals_var(body.globals_), body)
    frame.cells = dict(zip(body.code.co_freevars, body.closure))
    frame.namespace = namespace
    frame.run(cap)
    if len(bases) != len(named) or any(
        type(b) is not ConstVar or b.value is not r for b, r in zip(named, bases)
    ):
        store(cap, namespace, "__orig_bases__", TupleVar(named))
    this = ConstVar.known(meta)
    return call(cap, this, [name, TupleVar([_class(base) for base in bases]), namespace], kwargs)


def _class(cls: type) -> ConstVar:
    return ConstVar.known(cls)


def _resolve_bases(cap: Capture, named: Args) -> tuple[type, ...]:
    real = [_plain(cap, base) for base in named]
    for base in real:
        if not isinstance(base, type):
            home = base.__module__ if isinstance(base, types.FunctionType) else type(base).__module__
            if home not in ("typing", "types"):
                raise _refuse(f"a class whose base is a {type(base).__name__}")
    bases = types.resolve_bases(real)
    for base in bases:
        if isinstance(base, type) and issubclass(base, (torch.Tensor, type)):
            raise _refuse(f"a subclass of {base.__name__}")
    return tuple(bases)


def _metaclass(cap: Capture, given: Tracker | None, bases: tuple[type, ...]) -> type:
    meta = cap.value_of(given) if given is not None else type(bases[0]) if bases else type
    if not isinstance(meta, type):
        raise _refuse("a metaclass that is no class")
    try:
        return types._calculate_meta(meta, bases)  # type: ignore[attr-defined,no-any-return]
    except TypeError as error:
        raise cap.raise_(TypeError, *error.args) from None


def _prepare(cap: Capture, meta: type, name: Tracker, bases: tuple[type, ...], kwargs: Kwargs) -> Tracker:
    """The namespace for the body: a dict, or what the metaclass gives."""
    if meta.__module__ in _LIBRARY_METACLASSES:
        prepare: Any = meta.__prepare__
        named = {key: cap.value_of(value) for key, value in kwargs.items()}
        return _made_value(cap, prepare(cap.value_of(name), bases, **named))
    if cap.type_attr(meta, "__prepare__") is type.__dict__["__prepare__"]:
        return DictVar({})
    prepare = get_attr(cap, _class(meta), "__prepare__")
    made = cap.realize(call(cap, prepare, [name, TupleVar([_class(base) for base in bases])], kwargs))
    if cap.type_attr(python_type(made), "__getitem__") is ABSENT:
        text = f"{meta.__name__}.__prepare__() must return a mapping, not {python_type(made).__name__}"
        raise cap.raise_(TypeError, text)
    return made


def _made_value(cap: Capture, value: Any) -> Tracker:
    made = DictVar({}) if type(value) is dict else ConstVar(value)
    if type(value) is not dict:
        cap.note_made(value, made)
    return made


def load(cap: Capture, namespace: Tracker, name: str) -> Tracker | None:
    """What the body of a class has under a name; None where it has nothing."""
    if type(namespace) is DictVar:
        return cap.dict_get(namespace, name)
    if type(namespace) is ConstVar:  # of a metaclass of the library
        return cap.from_python(namespace.value[name]) if name in namespace.value else None
    try:
        return get_item(cap, namespace, ConstVar(name))
    except Raised as raised:
        if issubclass(python_type(raised.value), KeyError):
            return None
        raise


def store(cap: Capture, namespace: Tracker, name: str, value: Tracker) -> None:
    if type(namespace) is DictVar:
        cap.dict_set(namespace, name, value)
    elif type(namespace) is ConstVar:
        if name in _ENUM_HOOKS:
            raise _refuse(f"an enumeration with {name}")
        real = _plain(cap, value) if name in _READ_FOR_REAL else _called_for_real(cap, name, value)
        try:
            namespace.value[name] = real
        except Exception as error:
            raise cap.raise_(type(error), *error.args) from None
    else:
        set_item(cap, namespace, ConstVar(name), value)


def _called_for_real(cap: Capture, name: str, value: Tracker) -> Any:
    """What is put into a class whose methods the library may call: functions that need nothing of the region."""
    value = cap.realize(value)
    if type(value) is CellVar:  # __classcell__
        return types.CellType()
    real = stand_for(cap, value)
    parts = [getattr(real, part, None) for part in ("fget", "fset", "fdel", "__func__")]
    for function in (real, *parts):
        known = cap.memo.get(id(function))
        if type(known) is FunctionVar and (known.defaults or known.kwdefaults or known.closure):
            raise _refuse(f"an enumeration whose {name} uses what is outside of it")
    if isinstance(real, (Stand, UnhashableStand)):
        raise _refuse(f"an enumeration whose {name} is a {describe(value)}")
    return real


# --- the class itself -----------------------------------------------------------------------------------------------


@rule(type.__init__)
def _type_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return NONE


@rule(type.__subclasses__)
def _subclasses(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    cls = cap.value_of(args[0])
    found = type.__subclasses__(cls)
    if id(cls) in cap.made or any(id(each) in cap.made for each in found):
        raise Break("c-function", f"the subclasses of {cls.__name__}, of which some are made in the region")
    listed = Call(type.__subclasses__, cls)
    known = [Const(each, each.__qualname__) for each in found]
    same = [Call(operator.is_, Call(operator.getitem, listed, k), each) for k, each in enumerate(known)]
    alike = functools.reduce(
        functools.partial(Call, operator.and_), same, Call(operator.eq, Call(len, listed), len(found))
    )
    cap.guard(gives(alike, True, f"the subclasses of {cls.__qualname__} are the same"))
    return ListVar([cap.wrap(each, source) for each, source in zip(found, known, strict=True)])


def make_class(cap: Capture, meta: type, args: Args, kwargs: Kwargs) -> Tracker:
    """``meta(name, bases, namespace)``: what `type.__call__` does for metaclasses."""
    if meta.__module__ in _LIBRARY_METACLASSES:
        return _make_for_real(cap, meta, args, kwargs)
    new = cap.type_attr(meta, "__new__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    this = _class(meta)
    if isinstance(new, types.FunctionType) and meta is not abc.ABCMeta:
        made = call(cap, cap.wrap(new, Const(new, new.__qualname__)), [this, *args], kwargs)
    else:
        made = new_class(cap, [this, *args], kwargs)
    init = cap.type_attr(meta, "__init__")
    if isinstance(init, types.FunctionType) and meta in python_type(made).__mro__:
        call(cap, cap.wrap(init, Const(init, init.__qualname__)), [made, *args], kwargs)
    return made


@rule(FunctionMeta.__init__)
def _function_meta_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """Makes the class of the nodes in autograd's graph, one more each time; the graph has a class of its own for them."""
    cls = cap.value_of(args[0])
    FunctionMeta.__init__(cls, cls.__name__, cls.__bases__, {})
    nodes = OpaqueVar(cls._backward_cls, None, "class-definition", "a class of autograd's nodes")
    cap.note_made(cls._backward_cls, nodes)
    return NONE


@rule(type.__new__, abc.ABCMeta.__new__)
def _new_class(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return new_class(cap, args, kwargs)


def new_class(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """``type.__new__(meta, name, bases, namespace)``, with what it calls on the way captured."""
    if len(args) != 4:
        raise _refuse(f"type() with {len(args) - 1} arguments")
    meta, name, bases = (cap.value_of(arg) for arg in args[:3])
    content = _content(cap, args[3])
    if cap.type_attr(meta, "mro") is not type.mro or any(not isinstance(base, type) for base in bases):
        raise _refuse("a class whose metaclass decides its order of bases")
    if "__subclasshook__" in content or any(issubclass(base, (type, torch.Tensor)) for base in bases):
        raise _refuse("a class that decides what its instances are")
    bases = tuple(types._calculate_meta and bases)  # type: ignore[attr-defined]
    named: dict[str, Any] = {}
    later: dict[str, Any] = {}
    for key, value in content.items():
        if key in ("__classcell__", "__classdictcell__"):
            continue
        if key in _READ_FOR_REAL:
            named[key] = _plain(cap, value)
            if key == "__annotations__":
                cap.note_made(named[key], value)
            continue
        named[key] = real = stand_for(cap, value)
        if type(real).__module__ != "builtins" and hasattr(type(real), "__set_name__"):
            if type(real) is not functools.cached_property and type(real) is not dataclasses.Field:
                named[key], later[key] = None, real
    named.setdefault("__module__", cap.frames[-1].globals_var.real.get("__name__"))
    cls = _create(cap, meta, name, bases, named)
    for key, real in later.items():
        type.__setattr__(cls, key, real)
    this = _class(cls)
    cap.note_made(cls, this)
    for cell, value in (("__classcell__", this), ("__classdictcell__", args[3])):
        if cell in content:
            content[cell].content = value  # type: ignore[attr-defined]
    for key in later:
        call_special(cap, content[key], "__set_name__", [this, ConstVar(key)])
    hook = find_attr(cap, SuperVar(cls, this), "__init_subclass__")
    assert hook is not None
    call(cap, hook, [], kwargs)
    return this


def _content(cap: Capture, namespace: Tracker) -> dict[str, Tracker]:
    namespace = cap.realize(namespace)
    if type(namespace) is ObjectVar and type(namespace.payload) is DictVar:
        namespace = namespace.payload
    if type(namespace) is not DictVar:
        raise _refuse(f"a class made of a {describe(namespace)}")
    content = {key: cap.realize(value) for key, value in cap.complete(namespace).known.items()}
    if not all(type(key) is str for key in content):
        raise _refuse("a class with attributes that have no names")
    return content


def _create(cap: Capture, meta: Any, name: str, bases: tuple[type, ...], named: dict[str, Any]) -> type:
    hooks = [vars(c).get("__init_subclass__") for base in bases for c in base.__mro__ if c is not object]
    mute = any(hook is not None for hook in hooks)
    new = abc.ABCMeta.__new__ if issubclass(meta, abc.ABCMeta) else type.__new__
    try:
        muted = (_Mute if any(base.__dictoffset__ for base in bases) else _MuteSlots, *bases)
        cls: type = new(meta, name, muted if mute else bases, named)  # type: ignore[arg-type]
        if mute:
            type.__dict__["__bases__"].__set__(cls, bases)
    except Exception as error:
        if mute:  # its text might speak of a base that the program does not have
            raise _refuse(str(error)) from None
        raise cap.raise_(type(error), *error.args) from None
    return cls


def _make_for_real(cap: Capture, meta: Any, args: Args, kwargs: Kwargs) -> Tracker:
    """A class made by the standard library's own metaclass, which calls nothing of the program's."""
    name, bases = (cap.value_of(arg) for arg in args[:2])
    for base in bases:
        hooks = [
            h
            for c in base.__mro__
            if c.__module__ not in (*_LIBRARY_METACLASSES, "builtins")
            for h in vars(c)
        ]
        if _ENUM_HOOKS.intersection(hooks):
            raise _refuse(f"a subclass of {base.__name__}, which decides about its members")
    namespace = cap.realize(args[2])
    if type(namespace) is DictVar:
        namespace, content = ConstVar({}), _content(cap, namespace)
        for key, value in content.items():
            store(cap, namespace, key, value)
    named = {key: cap.value_of(value) for key, value in kwargs.items()}
    try:
        cls = meta(name, bases, namespace.value, **named)  # type: ignore[attr-defined]
    except Exception as error:
        raise _refuse(f"{type(error).__name__}: {error}") from None
    return made_by_library(cap, cls)


def made_by_library(cap: Capture, cls: Any) -> Tracker:
    """A class that the standard library made in this region, with what it has put there."""
    this = _class(cls)
    cap.note_made(cls, this)
    for key in [key for key in cap.type_attrs if cls in key[0].__mro__]:
        del cap.type_attrs[key]
    for value in list(vars(cls).values()):
        if not is_constant_key(value) and id(value) not in cap.made:
            cap.note_made(value, None)
    return this


def set_class_attr(cap: Capture, cls: Any, name: str, value: Tracker | None) -> None:
    """``cls.name = value`` (or ``del``) for a class made in the region."""
    meta = type(cls)
    raw = cap.type_attr(meta, name)
    if raw is not ABSENT and (hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")):
        if name not in ("__doc__", "__qualname__", "__name__", "__module__") or value is None:
            raise Break("attribute-mutation", f"{name} of a class")
    if name == "__bases__" or name == "__class__" or name == "__abstractmethods__":
        raise Break("attribute-mutation", f"{name} of a class")
    try:
        if value is None:
            type.__delattr__(cls, name)
        else:
            type.__setattr__(
                cls, name, _plain(cap, value) if name in _READ_FOR_REAL else stand_for(cap, value)
            )
    except (AttributeError, TypeError) as error:
        raise cap.raise_(type(error), *error.args) from None
    _forget(cap, cls, name)


def write_outside_class(cap: Capture, cls: Any, name: str, value: Tracker) -> None:
    """``cls.name = value`` for a class from outside: the shadow of its namespace, which is replayed like other effects.

    Names that the interpreter looks at, and values that say themselves what an attribute gives, end the region.
    """
    value, meta = cap.realize(value), type(cls)
    raw = cap.type_attr(meta, name)
    if (
        is_static_type(cls)
        or name.startswith("__")
        or cap.type_attr(meta, "__setattr__") is not type.__setattr__
        or (raw is not ABSENT and is_data_descriptor(raw))
        or cap.type_attr(python_type(value), "__get__") is not ABSENT
    ):
        raise Break("attribute-mutation", f"{name} of {describe(ConstVar(cls))}")
    namespace = cap.class_writes.get(cls)
    if namespace is None:
        namespace = DictVar({}, Const(cls, cls.__qualname__), dict(vars(cls)))
        cap.class_writes[cls] = cap.globals_memo[id(cls)] = namespace
    cap.dict_set(namespace, name, value)
    _forget(cap, cls, name)


def _forget(cap: Capture, cls: type, name: str) -> None:
    """What was looked up before an attribute was set is looked up again."""
    for key in [key for key in cap.type_attrs if key[1] == name and cls in key[0].__mro__]:
        del cap.type_attrs[key]


# --- what classes are made of ---------------------------------------------------------------------------------------


def _wrapper(target: Any) -> None:
    """A descriptor of the interpreter or the standard library around functions."""

    @rule(target)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        try:
            real = target(
                *(stand_for(cap, arg) for arg in args), **{k: stand_for(cap, v) for k, v in kwargs.items()}
            )
        except TypeError as error:
            raise cap.raise_(TypeError, *error.args) from None
        this = ConstVar(real)
        cap.note_made(real, this)
        return this


_WRAPPERS: tuple[Any, ...] = (
    *(property, property.getter, property.setter, property.deleter),
    *(staticmethod, classmethod, functools.cached_property, dataclasses.field),
)
for _target in _WRAPPERS:
    _wrapper(_target)


@rule(dataclasses._process_class)  # type: ignore[attr-defined]
def _process_class(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    process: Callable[..., Any] = dataclasses._process_class  # type: ignore[attr-defined]
    cls = cap.value_of(args[0])
    if id(cls) not in cap.made or type(cls) not in (type, abc.ABCMeta):
        return inline(cap, ConstVar(process), args, kwargs)
    try:
        made = process(cls, *map(cap.value_of, args[1:]), **{k: cap.value_of(v) for k, v in kwargs.items()})
    except Exception as error:
        raise _refuse(f"{type(error).__name__}: {error}") from None
    return made_by_library(cap, made)


def _class_decorator(target: Any, *metas: type) -> None:
    """A decorator of the standard library that only looks at a class and sets attributes of it."""

    @rule(target)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        cls = cap.value_of(args[0])
        if id(cls) not in cap.made or type(cls) not in metas:
            return inline(cap, ConstVar(target), args, kwargs)
        try:
            return made_by_library(cap, target(cls))
        except (TypeError, ValueError) as error:
            raise cap.raise_(type(error), *error.args) from None


_class_decorator(functools.total_ordering, type, abc.ABCMeta)
_class_decorator(typing.runtime_checkable, type, abc.ABCMeta, type(typing.Protocol))


def _typing_item(cap: Capture, fn: ConstVar, args: Args, kwargs: Kwargs) -> Tracker:
    """``typing.List[int]`` and kin, which `typing` keeps in a cache."""
    try:
        real = [_plain(cap, arg) for arg in args]
    except Break:
        return inline(cap, fn, args, kwargs)
    if kwargs or any(cap.born(value) is not None for value in real):
        return inline(cap, fn, args, kwargs)
    try:
        result = fn.value(*real)
    except Exception as error:
        raise cap.raise_(type(error), *error.args) from None
    return cap.wrap(result, Const(result, f"typing_{type(result).__name__}"))


CODE_RULES[typing._tp_cache(lambda self: None).__code__] = _typing_item  # type: ignore[attr-defined]


@rule(typing.TypeVar)
def _type_var(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    made = typing.TypeVar(*(_plain(cap, a) for a in args), **{k: _plain(cap, v) for k, v in kwargs.items()})
    made.__module__ = cap.frames[-1].globals_var.real.get("__name__")
    cap.note_made(made, None)
    return cap.wrap(made, Const(made, made.__name__))


@rule(collections.namedtuple)
def _namedtuple(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    kwargs = dict(kwargs)
    defaults = kwargs.pop("defaults", NONE)
    named = {key: cap.value_of(value) for key, value in kwargs.items()}
    if type(cap.realize(defaults)) in (TupleVar, ListVar):
        named["defaults"] = [stand_for(cap, item) for item in defaults.items]  # type: ignore[attr-defined]
    else:
        named["defaults"] = cap.value_of(defaults)
    named.setdefault("module", cap.frames[-1].globals_var.real.get("__name__", "__main__"))
    given = [cap.value_of(arg) for arg in args]
    try:
        made = collections.namedtuple(*given, **named)
    except Exception as error:
        raise cap.raise_(type(error), *error.args) from None
    return made_by_library(cap, made)


def enum_call(cap: Capture, cls: Any, args: Args, kwargs: Kwargs) -> Tracker | None:
    """``Enum(name, members)`` makes a class; None where the call looks a member up."""
    if cls._member_map_ or (len(args) < 2 and "names" not in kwargs):
        return None
    named = {key: cap.value_of(value) for key, value in kwargs.items()}
    named.setdefault("module", cap.frames[-1].globals_var.real.get("__name__"))
    if _ENUM_HOOKS.intersection(
        h for c in cls.__mro__ if c.__module__ not in ("enum", "builtins") for h in vars(c)
    ):
        raise _refuse(f"a subclass of {cls.__name__}, which decides about its members")
    try:
        made = cls(*map(cap.value_of, args), **named)
    except Exception as error:
        raise cap.raise_(type(error), *error.args) from None
    return made_by_library(cap, made)
