"""graphlift.data.dataclass beside the standard library's: the same fields, equality, hash, text and copies."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from dataclasses import field
from typing import Any

import pytest

from graphlift.data import dataclass


class Odd:
    """Equal to nothing, itself included."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Base:
    a: int
    b: Any = 2


@dataclass(frozen=True, slots=True)
class Derived(Base):
    c: list[int] = field(default_factory=list, hash=False)
    note: str = field(default="", compare=False)
    secret: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class One:
    value: Any


@dataclass(frozen=True, slots=True)
class Empty:
    pass


@dataclass(slots=True)
class Mutable:
    a: int


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    a: int


@dataclass(frozen=True, slots=True)
class Own:
    a: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "own"


def standard(cls: type, **options: Any) -> Any:
    """The class that the standard decorator makes of the same body."""
    body = {"__annotations__": cls.__annotations__, "__qualname__": cls.__qualname__}
    return dataclasses.dataclass(**options)(type(cls.__name__, (), body))


def test_equality_and_hash() -> None:
    assert Derived(1, 2, [3], "x") == Derived(1, 2, [3], "y")
    assert Derived(1, 2, [3]) != Derived(1, 2, [4])
    assert hash(Derived(1, 2, [3])) == hash(Derived(1, 2, [4]))
    assert Base(1) != Derived(1)
    assert Base(1) != (1, 2)
    assert Empty() == Empty()
    assert len({Base(1), Base(1, 2), Base(2)}) == 2
    assert Identity(1) != Identity(1)


def test_an_object_equals_itself_whatever_its_own_equality() -> None:
    nan, odd, theirs = float("nan"), Odd(), standard(One)
    for value in (nan, odd):
        assert One(value) == One(value)
        # Later versions compare field by field, where a field need not equal itself.
        assert (theirs(value) == theirs(value)) is (sys.version_info < (3, 13))
    assert One(nan) != One(float("nan"))


def test_mutable_ones_have_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Mutable(1))


def test_own_methods_stay() -> None:
    assert Own(1) == Own(2)
    assert hash(Own(1)) == 7
    assert repr(Own(1)) == "own"


def test_text_fields_and_slots() -> None:
    assert repr(Derived(1)) == "Derived(a=1, b=2, c=[], note='')"
    assert repr(Base(1)) == repr(standard(Base)(1, 2))
    assert [f.name for f in dataclasses.fields(Derived)] == ["a", "b", "c", "note", "secret"]
    with pytest.raises(AttributeError):
        Mutable(1).other = 2  # type: ignore[attr-defined]


def test_copies() -> None:
    one = Derived(1, 2, [3], "x", 4)
    assert dataclasses.replace(one, a=5) == Derived(5, 2, [3], "x", 4)
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert other == one and other.secret == 4
