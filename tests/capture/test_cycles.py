"""What contains itself: its text is short inside itself, comparing two such is a RecursionError, and it outlives a region."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from benchmarks.compilers import Compiler


def looped_list(first: int) -> list[Any]:
    made: list[Any] = [first]
    made.append(made)
    return made


def equal_lists() -> Any:
    try:
        return looped_list(1) == looped_list(1)
    except RecursionError as error:
        return str(error)


def equal_dicts() -> Any:
    left: dict[int, Any] = {}
    right: dict[int, Any] = {}
    left[1], right[1] = left, right
    try:
        return left == right
    except RecursionError as error:
        return type(error).__name__


def unequal_lists() -> Any:
    left, right = looped_list(1), looped_list(2)
    return left == left, left != left, left == right, left < right, left in [right], left in [left]


def text_of_tuple() -> Any:
    inner: list[Any] = []
    outer = (1, inner)
    inner.append(outer)
    return repr(inner), repr(outer), str(outer), f"{outer} {inner!r}", repr([outer, inner])


def text_of_dict() -> Any:
    table: dict[int, Any] = {}
    outer = (table,)
    table[1] = outer
    return repr(table), repr(outer), repr([table, outer]), str({2: outer})


def text_of_lists() -> Any:
    left: list[Any] = []
    right = [left]
    left.append(right)
    return repr(left), repr(right), repr((left, right, (1, "a"), ((2,), 3.5)))


PROGRAMS = (equal_lists, equal_dicts, unequal_lists, text_of_tuple, text_of_dict, text_of_lists)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_containers_inside_themselves(compiler: Compiler, program: Callable[[], Any]) -> None:
    def fn(x: torch.Tensor) -> Any:
        return program(), x + 1

    compiled = compiler.compile(fn, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(1))[0] == program()


class Holder:
    """Holds what holds it."""


class Pair(NamedTuple):
    first: Any
    second: Any


class TupleOf(tuple):
    pass


class SetOf(set):
    pass


class FrozenSetOf(frozenset):
    pass


def defaults(holder: Any) -> Any:
    def fn(held: Any = holder) -> Any:
        return held

    return fn


def named_defaults(holder: Any) -> Any:
    def fn(*, held: Any = holder) -> Any:
        return held

    return fn


def closure(holder: Any) -> Any:
    def fn() -> Any:
        return holder

    return fn


def weak_values(holder: Any) -> Any:
    return weakref.WeakValueDictionary(k=holder)


#: What is made whole, around a holder; and how the holder is found in it.
WHOLE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (lambda h: (h, 1), lambda v: v[0]),
    "named tuple": (lambda h: Pair(h, 1), lambda v: v[0]),
    "subclass of tuple": (lambda h: TupleOf([h]), lambda v: v[0]),
    "set": (lambda h: {h}, lambda v: next(iter(v))),
    "subclass of set": (lambda h: SetOf([h]), lambda v: next(iter(v))),
    "frozenset": (lambda h: frozenset([h]), lambda v: next(iter(v))),
    "subclass of frozenset": (lambda h: FrozenSetOf([h]), lambda v: next(iter(v))),
    "partial": (lambda h: functools.partial(print, h), lambda v: v.args[0]),
    "mapping proxy": (lambda h: types.MappingProxyType({"h": h}), lambda v: v["h"]),
    "exception": (lambda h: ValueError(h), lambda v: v.args[0]),
    "method": (lambda h: types.MethodType(print, h), lambda v: v.__self__),
    "reference": (weakref.ref, lambda v: v()),
    "weak values": (weak_values, lambda v: v["k"]),
    "iterator": (lambda h: iter([h]), next),
    "zip": (lambda h: zip([h], [1], strict=True), lambda v: next(v)[0]),
    "function with defaults": (defaults, lambda v: v()),
    "function with defaults by name": (named_defaults, lambda v: v()),
    "closure": (closure, lambda v: v()),
    "tuple in a tuple": (lambda h: ((h,),), lambda v: v[0][0]),
    "list in a tuple": (lambda h: ([h],), lambda v: v[0][0]),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("breaks", [False, True])
def test_what_is_made_whole_and_holds_itself(compiler: Compiler, name: str, breaks: bool) -> None:
    make, find = WHOLE[name]

    def fn(x: torch.Tensor) -> Any:
        holder = Holder()
        holder.x = x + 1  # type: ignore[attr-defined]
        holder.whole = whole = make(holder)  # type: ignore[attr-defined]
        if breaks:
            print(end="")
        return whole, holder

    whole, holder = compiler.compile(fn, backend="eager")(torch.ones(2))
    assert holder.whole is whole
    assert find(whole) is holder
    assert holder.x.tolist() == [2.0, 2.0]
