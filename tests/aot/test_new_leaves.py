"""`requires_grad_()` of an input inside a compiled function: the input is a leaf from there on, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import graphlift
from graphlift import record

PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {}


def program(fn: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    PROGRAMS[fn.__name__] = fn
    return fn


@program
def adversarial(x: Tensor, w: Tensor) -> Any:
    x.requires_grad_()
    loss = F.cross_entropy(x @ w, torch.zeros(3, dtype=torch.int64))
    (grad,) = torch.autograd.grad(loss, x)
    return x.detach() + 0.1 * grad.sign(), loss.detach()


@program
def used_before(x: Tensor, w: Tensor) -> Any:
    y = x * 3
    x.requires_grad_()
    return (y + x.sin()) * w, y.requires_grad, x.requires_grad


@program
def returned(x: Tensor, w: Tensor) -> Any:
    return x.requires_grad_(), x.exp() @ w


@program
def unused(x: Tensor, w: Tensor) -> Any:
    x.requires_grad_()
    return w * 2


@program
def without_grad(x: Tensor, w: Tensor) -> Any:
    with torch.no_grad():
        x.requires_grad_()
        y = x * 2
    return y, x * w.detach()


def run(fn: Callable[[Tensor, Tensor], Any]) -> tuple[Any, ...]:
    torch.manual_seed(0)
    x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    outs = fn(x, w)
    outs = outs if isinstance(outs, tuple) else (outs,)
    roots = [t for t in outs if isinstance(t, Tensor) and t.requires_grad]
    torch.autograd.backward([t.sum() for t in roots])
    told = [(t.requires_grad, t.is_leaf, t is x) if isinstance(t, Tensor) else t for t in outs]
    values = [t.detach() for t in outs if isinstance(t, Tensor)]
    return told, x.requires_grad, x.is_leaf, values, x.grad, w.grad


@pytest.mark.parametrize("backend", ("aot_eager", "auto"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_input_becomes_a_leaf(name: str, backend: str) -> None:
    expected = run(PROGRAMS[name])
    graphlift.reset()
    with record.recording() as records:
        compiled = graphlift.compile(PROGRAMS[name], backend=backend, fullgraph=True)
        for _ in range(2):
            got = run(compiled)
            assert got[:3] == expected[:3]
            torch.testing.assert_close(got[3:], expected[3:])
    assert not any(r.fallbacks for r in records)


def test_a_run_that_raises_leaves_eagers_state() -> None:
    def f(x: Tensor, index: Tensor) -> Tensor:
        y = x[index]
        x.requires_grad_()
        return y * x

    x = torch.ones(2)
    compiled = graphlift.compile(f, backend="aot_eager")
    compiled(torch.ones(2), torch.tensor([0, 1]))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([0, 7]))
    assert not x.requires_grad
