"""Outputs whose backwards are called one after another free of the graph what eager frees, and raise as eager."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphlift


def disjoint(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x.exp().sum(), w.sin().sum()


def shared(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    s = x.exp()
    return (s * w).sum(), s.sin().sum()


def holds_nothing(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x + w
    return y.sum(), (y - w).sum()


def chain(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    a, b = x.sin(), w.sin()
    return (a * a).sum(), a.sum() + b.sum(), (b * b).sum()


def numbers(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (x * 2).sum(), x.sum(), w.exp().sum()


def written(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x.clone()
    y[0] = 1
    return y.sum(), w.exp().sum()


def one(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (x.sum() + w.sum(),)


def told(f: Callable, steps: tuple[tuple[int, bool], ...]) -> list:
    """Gradients after each step, a backward of one output or of all (-1); an error ends the story."""
    torch.manual_seed(0)
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    outs, seen = f(x, w), []
    for k, retain in steps:
        try:
            (outs[k] if k >= 0 else sum(outs)).backward(retain_graph=retain)
        except RuntimeError as error:
            return [*seen, str(error)]
        seen.append([t.grad if t.grad is None else t.grad.clone() for t in (x, w)])
    return seen


@pytest.mark.parametrize("f", [disjoint, shared, holds_nothing, chain, numbers, written, one])
def test_backwards_one_after_another(f: Callable) -> None:
    compiled = graphlift.compile(f, backend="aot_eager", fullgraph=True)
    count = len(f(torch.ones(3, 3, requires_grad=True), torch.ones(3, 3)))
    one_step = list(itertools.product(range(-1, count), (False, True)))
    for steps in itertools.product(one_step, repeat=2 if count < 3 else 3):
        for found, expected in zip(told(compiled, steps), told(f, steps), strict=True):
            assert type(found) is type(expected)
            if isinstance(expected, str):
                assert found == expected
            else:
                torch.testing.assert_close(found, expected)


def test_what_a_backward_freed_is_let_go() -> None:
    compiled = graphlift.compile(lambda x, w: ((x @ x).exp().sum(), (w @ w).sin().sum()), backend="aot_eager")
    x, w = torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.randn(4, 4))  # so it is one node
    first, second = compiled(x, w)
    kept = first.grad_fn.next_functions[0][0].kept
    held = [
        weakref.ref(t) for group in kept.groups.values() for _, t, _ in group if t is not x and t is not w
    ]
    first.backward()
    assert len(kept.groups) == 1
    del kept
    node = weakref.ref(second.grad_fn.next_functions[0][0])
    gc.disable()
    try:
        del first, second
        assert node() is None and all(ref() is None for ref in held)  # no cycle holds the graph
    finally:
        gc.enable()
