"""Containers that contain themselves: their text is short inside itself, and comparing two such is a RecursionError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
