"""The order of sets, which their history decides: how they were filled, merged and emptied.

In: ways to make a set of the same numbers, and to use one from outside. Out: tests against eager, also across breaks.
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


def lived(seed: int) -> set[int]:
    """A set with a history: items came and went, and were popped."""
    rng = random.Random(seed)
    made = added(rng.sample(range(200), rng.choice((3, 5, 9, 14, 30))))
    for value in rng.sample(sorted(made), rng.choice((0, 1, 2))):
        made.discard(value)
    for _ in range(rng.choice((0, 0, 1, 2))):
        made.add(rng.randrange(200))
        made.pop()
    return made


def use_add(s: set[int]) -> Any:
    s.add(300)
    return list(s), sorted(s), s == {300}, 5 in s, str(s), [*(s | {5})], {**dict.fromkeys(s)}


def use_discard(s: set[int]) -> Any:
    s.discard(next(iter(s)))
    s.add(77)
    return list(s)


def use_update(s: set[int]) -> Any:
    s.update({77, 78})
    s.update([79, 80], (k for k in (5, 6)), {1: 2, 55: 3})
    return list(s)


def use_operators(s: set[int]) -> Any:
    s |= {77, 78}
    s -= {max(s)}
    s ^= {*range(10)}
    s &= {*range(100)}
    s |= {1: 0, 120: 0}.keys()
    return list(s)


def use_breaks(s: set[int]) -> Any:
    s.add(300)
    graphlift.graph_break()
    s.add(301)
    return list(s)


def use_pop(s: set[int]) -> Any:
    first = s.pop()
    s.add(first)
    return first, s.pop()


def use_pop_of_new(s: set[int]) -> Any:
    made = {9, 1, 17, 33}
    first = made.pop()
    made.add(first)
    graphlift.graph_break()
    return first, made.pop(), list(made)


def use_clear(s: set[int]) -> Any:
    s.clear()
    s.add(33)
    s.add(1)
    return list(s)


def use_copies(s: set[int]) -> Any:
    made = {1, 77}
    made.update(s)
    more = set()
    more.update(s)
    copies = set(s), frozenset(s), s.copy(), {*s, 77}, set().union(s, [3]), s | {77}, made, more
    return [list(each) for each in copies]


def use_many(s: set[int]) -> Any:
    for i in range(12):
        s.add(i * 37 % 100)
    return len(s)


def use_methods(s: set[int]) -> Any:
    s.intersection_update(range(150))
    s.difference_update({3})
    s.symmetric_difference_update(range(4))
    return list(s)


USES = [use for name, use in list(globals().items()) if name.startswith("use_")]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_sets_from_outside_take_the_steps_of_eager(compiler: Compiler, use: Any) -> None:
    """Also what they give and how they go on after the call."""
    for seed in (*range(7), 2):
        compiler.reset()  # each is compiled anew, and what they have in common as well
        compiled = compiler.compile(use, backend="eager")
        for _ in range(2):
            theirs, ours = lived(seed), lived(seed)
            assert compiled(ours) == use(theirs)
            assert list(ours) == list(theirs)
            for grows in (theirs, ours):
                grows.update((401, 17, 433))
            assert [ours.pop() for _ in range(len(ours))] == [theirs.pop() for _ in range(len(theirs))]
