"""Deques from outside: read item by item, changed as effects, iterated as CPython does."""

from __future__ import annotations

import copy
from collections import deque

import torch
from torch import Tensor, nn

import graphlift
from tests.capture.program import CountingBackend, program
from tests.equality import assert_equal


def mixed() -> deque:
    return deque([torch.arange(3.0), 1, 2.5])


def bounded() -> deque:
    return deque([1, 2, 3], maxlen=3)


@program(mixed, bounded)
def test_ends(x: Tensor, d: deque, e: deque):
    d.append(x)
    d.appendleft(1)
    e.append(x * 2)
    e.appendleft(7)
    return x + d.pop(), d.popleft(), len(d), e[0], e[-1], list(e)


@program(mixed, bounded)
def test_order(x: Tensor, d: deque, e: deque):
    d.rotate(1)
    e.rotate(-2)
    e.reverse()
    d[0] = x * 3
    del d[1]
    e.insert(1, 9) if e.maxlen is None else e.__setitem__(1, 9)
    return x + 1, d[0], e[-1], e.index(9), e.count(2), 9 in e


@program(mixed, bounded)
def test_many(x: Tensor, d: deque, e: deque):
    d.extend([x, x * 2])
    e.extendleft((3, 4))
    same = e
    e += [5]
    e *= 2
    return x + len(d), e is same, e.maxlen, copy.copy(e), repr(e), e == deque(e), isinstance(e, deque)


@program(bounded, lambda: deque([1]))
def test_changed_while_iterated(x: Tensor, d: deque, e: deque):
    caught, total = [], 0
    for value in d:
        total += value
    for target in (d, e):
        try:
            for _ in target:
                target.append(1)
        except RuntimeError as error:
            caught.append(str(error))
    return x + total, caught


@program(bounded)
def test_escapes_and_errors(x: Tensor, d: deque):
    d.clear()
    try:
        d.pop()
    except IndexError as error:
        d.append(str(error))
    try:
        d[5]
    except IndexError as error:
        d.append(str(error))
    return x * 2, d, [d], bool(d)


def break_between(x: Tensor, d: deque) -> Tensor:
    d.append(x + 1)
    graphlift.graph_break()
    d.append(x * 2)
    return d[-1] + d[-2]


test_across_a_break = program(bounded, breaks=True)(break_between)


def test_a_buffer_of_a_stream(compiler) -> None:
    class Smooth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last: deque[Tensor] = deque(maxlen=3)

        def forward(self, x: Tensor) -> Tensor:
            self.last.append(x * 2)
            return torch.stack(list(self.last)).mean(0)

    backend = CountingBackend()
    ours, eager = Smooth(), Smooth()
    compiled = compiler.compile(ours, backend=backend)
    for k in range(8):
        assert_equal(compiled(torch.full((2,), float(k))), eager(torch.full((2,), float(k))))
        assert_equal(list(ours.last), list(eager.last))
    if compiler.name != "eager":
        assert (
            len(backend.graphs) == 4
        )  # one for each length, and one for the full buffer, which loses an item


def test_one_deque_twice_or_two(compiler) -> None:
    def fn(x: Tensor, d: deque, e: deque):
        d.append(x)
        return x + len(e), e[-1] is x

    compiled = compiler.compile(fn)
    x, one = torch.ones(2), deque([1])
    for arguments in ((one, one), (deque([1]), deque([1])), (deque([1], 4), deque([1]))):
        wanted = fn(x, *copy.deepcopy(arguments))
        assert_equal(compiled(x, *arguments), wanted)
