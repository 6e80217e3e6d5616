"""Data classes that cost little to define and to make.

In: a class with annotated fields. Out: what `dataclasses.dataclass` gives, with the parameters that graphlift uses.
Always: the type checker sees the standard decorator; `frozen` is for it alone and is not enforced at run time, where
it would triple the price of every object.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass", "values_of"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, eq: bool = True, init: bool = True
    ) -> Callable[[type], type]:
        """The decorator. Only `__init__` is compiled for the class; the other methods are closures."""

        def define(cls: type) -> type:
            cls = dataclasses.dataclass(init=init, repr=False, eq=False, slots=slots)(cls)
            own = cls.__dict__
            fields = dataclasses.fields(cls)
            methods: dict[str, Any] = {"__repr__": _repr(tuple(f.name for f in fields if f.repr))}
            if eq:
                methods["__eq__"] = _equal(values_of([f.name for f in fields if f.compare]))
                hashed = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
                methods["__hash__"] = _hash(values_of(hashed)) if frozen else None
            for name, method in methods.items():
                if own.get(name) is None:  # as Python leaves __hash__ where a class writes its own __eq__
                    setattr(cls, name, method)
            return cls

        return define


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
