"""Compiled callables inside compiled code: what they compile is part of the region around them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphlift
from graphlift.errors import GraphBreakError
from tests.capture.program import CountingBackend

scale = 2.0


@graphlift.compile(backend="eager")
def scaled(x: Tensor, by: float | None = None) -> Tensor:
    return x * (scale if by is None else by)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = graphlift.compile(nn.Linear(3, 3), backend="eager")
        self.helper = graphlift.compile(self.shift, backend="eager")

    def shift(self, x: Tensor) -> Tensor:
        return x + self.inner.bias

    @graphlift.compile(backend="eager", fullgraph=True)
    def method(self, x: Tensor) -> Tensor:
        return x.sin()

    def forward(self, x: Tensor) -> Tensor:
        return self.helper(self.method(self.inner(x)))


class Called:
    def __call__(self, x: Tensor) -> Tensor:
        return x.cos()


Compiled = graphlift.compile(type("Compiled", (Called,), {"__call__": Called.__call__}), backend="eager")
called, callable_object = Compiled(), graphlift.compile(Called(), backend="eager")
again = graphlift.compile(scaled, backend="eager")


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: scaled(x) + scaled(x, by=3.0),
        lambda x: again(x) + 1,
        lambda x: called(x) + callable_object(x),
        lambda x: torch.stack([*map(scaled, (x, x))]),
        lambda x: scaled.__wrapped__(x),
    ],
)
def test_calls_of_compiled_functions_are_captured(fn: Any) -> None:
    counted = CountingBackend()
    x = torch.randn(2, 3)
    torch.testing.assert_close(graphlift.compile(fn, fullgraph=True, backend=counted)(x), fn(x))
    assert len(counted.graphs) == 1


def test_calls_of_compiled_modules_and_methods_are_captured() -> None:
    counted, block, x = CountingBackend(), Block(), torch.randn(2, 3)
    compiled = graphlift.compile(block, fullgraph=True, backend=counted)
    torch.testing.assert_close(compiled(x), block(x))
    block.inner.weight.data.mul_(2)
    torch.testing.assert_close(compiled(x), block(x))
    assert len(counted.graphs) == 1


def test_what_the_inner_one_reads_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = graphlift.compile(lambda x: scaled(x) + 1, backend="eager")
    x = torch.ones(2)
    assert outer(x).tolist() == [3, 3]
    monkeypatch.setitem(globals(), "scale", 5.0)
    assert outer(x).tolist() == [6, 6]
    monkeypatch.setitem(globals(), "scaled", graphlift.compile(lambda x: x - 1, backend="eager"))
    assert outer(x).tolist() == [1, 1]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_break_inside(fullgraph: bool) -> None:
    """One that asks for a full graph raises where it is called, as when it is called from outside."""

    @graphlift.compile(backend="eager", fullgraph=fullgraph)
    def inner(x: Tensor) -> Tensor:
        y = x.sin()
        graphlift.graph_break()
        return y + 1

    def outer(x: Tensor, seen: list[str]) -> Tensor:
        seen.append("before")
        try:
            return inner(x + 1) * 2
        except GraphBreakError:
            seen.append("raised")
            return x

    counted, seen, x = CountingBackend(), [], torch.randn(3)
    result = graphlift.compile(outer, backend=counted)(x, seen)
    assert seen == (["before", "raised"] if fullgraph else ["before"])
    torch.testing.assert_close(result, x if fullgraph else ((x + 1).sin() + 1) * 2)
    assert len(counted.graphs) == (1 if fullgraph else 2)
