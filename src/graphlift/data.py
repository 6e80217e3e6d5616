"""Data classes that cost little to define and to make.

In: a class with annotated fields. Out: what `dataclasses.dataclass` gives, with the parameters that graphlift uses.
Always: the type checker sees the standard decorator; `frozen` is for it alone and is not enforced at run time, where
it would triple the price of every object.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import MISSING
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass", "values_of"]

_PLAIN: Any = dataclasses._FIELD  # type: ignore[attr-defined]  # what tells `dataclasses.fields` a field from a ClassVar

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, eq: bool = True, init: bool = True
    ) -> Callable[[type], type]:
        """The decorator. Methods are closures, and `__init__` is compiled when the first object is made."""

        def define(cls: type) -> type:
            fields = _fields(cls)
            names = tuple(fields)
            if slots:
                cls = _slotted(cls, names)
            own = cls.__dict__
            methods: dict[str, Any] = {
                "__dataclass_fields__": fields,
                "__match_args__": tuple(name for name, f in fields.items() if f.init),
                "__repr__": _repr(tuple(name for name, f in fields.items() if f.repr)),
            }
            if init:
                methods["__init__"] = _compiled_at_first(cls, fields.values())
            if eq:
                methods["__eq__"] = _equal(values_of([name for name, f in fields.items() if f.compare]))
                hashed = [name for name, f in fields.items() if (f.compare if f.hash is None else f.hash)]
                methods["__hash__"] = _hash(values_of(hashed)) if frozen else None
            for name, method in methods.items():
                if own.get(name) is None:  # as Python leaves __hash__ where a class writes its own __eq__
                    setattr(cls, name, method)
            return cls

        return define


def _fields(cls: type) -> dict[str, Any]:
    """The fields of the bases and the class's own, in order; what a class attribute says of one becomes its default."""
    fields: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:]):
        fields.update(base.__dict__.get("__dataclass_fields__", ()))
    for name, kind in cls.__dict__.get("__annotations__", {}).items():
        if "ClassVar" in kind:
            continue
        given = cls.__dict__.get(name, MISSING)
        made: Any = given if isinstance(given, dataclasses.Field) else dataclasses.field(default=given)
        made.name, made.type, made.kw_only, made._field_type = name, kind, False, _PLAIN
        fields[name] = made
        if made is not given:
            continue
        if made.default is MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, made.default)
    return fields


def _slotted(cls: type, names: tuple[str, ...]) -> type:
    """The class again, with a slot for each field that no base has one for."""
    inherited = {slot for base in cls.__mro__[1:] for slot in base.__dict__.get("__slots__", ())}
    left_out = {*names, "__dict__", "__weakref__"}
    space = {name: value for name, value in cls.__dict__.items() if name not in left_out}
    space["__slots__"] = tuple(name for name in names if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, space)
    made.__qualname__ = cls.__qualname__
    return made


def _compiled_at_first(cls: type, fields: Iterable[Any]) -> Callable[..., None]:
    """An `__init__` that puts the compiled one in its place: most classes have no object in a program's first call."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        compiled = _initializer(cls, fields)
        cls.__init__ = compiled  # type: ignore[misc]
        compiled(self, *args, **kwargs)

    return __init__


def _initializer(cls: type, fields: Iterable[Any]) -> Callable[..., None]:
    space: dict[str, Any] = {"_missing": MISSING}
    params, lines = ["self"], []
    for f in fields:
        name = value = f.name
        made, default = f"_made_{name}", f"_default_{name}"
        if f.default_factory is not MISSING:
            space[made] = f.default_factory
            params += [f"{name}=_missing"] if f.init else []
            value = f"{made}() if {name} is _missing else {name}" if f.init else f"{made}()"
        elif f.default is not MISSING:
            space[default] = f.default
            params += [f"{name}={default}"] if f.init else []
            value = name if f.init else default
        elif f.init:
            params.append(name)
        else:
            continue
        lines.append(f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec("\n".join([f"def __init__({', '.join(params)}):", *(lines or [" pass"])]), space)
    compiled: Callable[..., None] = space["__init__"]
    compiled.__qualname__ = f"{cls.__qualname__}.__init__"
    return compiled


def values_of(names: list[str]) -> Callable[[Any], Any]:
    """What of an object is compared: a tuple, in which an object equals itself whatever its own equality."""
    if not names:
        return type
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda self: (get(self),)


def _equal(values: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def __eq__(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _hash(values: Callable[[Any], Any]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _repr(names: tuple[str, ...]) -> Callable[[Any], str]:
    @reprlib.recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__
