"""The order of sets, which their history decides: how they were filled, merged and emptied.

In: ways to make a set of the same numbers. Out: tests, each against eager, without and with a graph break behind the set.
Always: iteration, text and what is made of the set have eager's order.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

import graphlift
from benchmarks.compilers import Compiler


def added(values: list[int]) -> set[int]:
    made = set()
    for value in values:
        made.add(value)
    return made


def taken(values: list[int]) -> set[int]:
    made = set(values)
    made.discard(values[0])
    made.add(values[0])
    made.add(made.pop())
    return made


def updated(values: list[int]) -> set[int]:
    made = set(values[:2])
    made.update(values)
    made |= {300, 301}
    made -= {values[1]}
    made ^= {values[2], 302}
    made &= {*values, 300}
    return made


WAYS = (
    *(set, frozenset, added, taken, updated, lambda v: set(dict.fromkeys(v)), lambda v: set(frozenset(v))),
    *(lambda v: {*v}, lambda v: {*set(v[:3]), *v}, lambda v: {i for i in v}, lambda v: set(i for i in v)),
    *(lambda v: set(v[:3]) | set(v[3:]), lambda v: set(v) & set(v[1:]), lambda v: set(v) - {v[0]}),
    *(lambda v: set(v) ^ set(v[:2]), lambda v: set(v[:2]).union(v), lambda v: set(v).intersection(v[1:])),
    *(lambda v: set(v).difference(v[:1]), lambda v: set(v).copy(), lambda v: dict.fromkeys(v).keys() & set(v[1:])),
    *(lambda v: {194, 107, 10, 66, 130, 124, 103, 77, 122} - {194}, lambda v: {26, 77, 101, 122, 184}),
)  # fmt: skip


@pytest.mark.parametrize("breaks", (False, True))
@pytest.mark.parametrize("seed", range(4))
def test_sets_iterate_in_the_order_of_their_history(compiler: Compiler, seed: int, breaks: bool) -> None:
    rng = random.Random(seed)
    values = rng.sample(range(200), rng.choice((4, 5, 6, 9)))

    def fn(make: Any) -> Any:
        made = make(values)
        if breaks:
            graphlift.graph_break()
        return list(made), str(made), [*made, *(made | {7})], tuple(made), dict.fromkeys(made), [made]

    for make in WAYS:
        compiled = compiler.compile(fn, backend="eager")
        expected, got = fn(make), compiled(make)
        assert got == expected
        assert list(got[-2]) == list(expected[-2])
        assert list(got[-1][0]) == list(expected[-1][0])


def test_the_first_of_equal_items_is_kept(compiler: Compiler) -> None:
    def fn() -> Any:
        numbers = [1, True, 1.0]
        sets = set(numbers), {*numbers}, {n for n in numbers}, frozenset(numbers), {1} | {True}, {True} & {1}
        return [[(type(item), item) for item in each] for each in sets]

    assert compiler.compile(fn, backend="eager")() == fn()
