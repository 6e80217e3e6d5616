"""Inputs that eager's graph does not lead to: a backward of the region leaves their history alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphlift


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None


#: Programs of a tensor to differentiate and one whose history is freed before the backward.
PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "value": lambda x, old: x * old.detach(),
    "returned": lambda x, old: (x.exp(), old),
    "view returned": lambda x, old: (x.exp(), old.view(-1)),
    "compared": lambda x, old: torch.where(old > 0, x, -x),
    "shape": lambda x, old: x.sum() * old.shape[0],
    "without grad": lambda x, old: (x * 2, _without_grad(old)),
    "written": lambda x, old: (old.detach().add_(1), x.exp())[1],
    "used": lambda x, old: x * old,
    "custom function": lambda x, old: x * _NoGradient.apply(old),
}


def _without_grad(old: Tensor) -> Tensor:
    with torch.no_grad():
        return old * 3


def _outcome(f: Callable[..., Any], history: str) -> Any:
    w = torch.tensor([[1.0, -2.0], [0.5, 3.0]], requires_grad=True)
    x = torch.tensor([[0.1, 0.2], [0.3, 0.4]], requires_grad=True)
    old = w if history == "leaf" else w.exp()
    calls = []
    old.register_hook(lambda g: calls.append(None if g is None else g.clone()))
    if history == "freed":
        old.sum().backward()
        w.grad = None
    out = f(x, old)
    loss = (out[0] if isinstance(out, tuple) else out).sum()
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error)[:50]
    return x.grad, w.grad, calls[1:], old._version


@pytest.mark.parametrize("backend", ("aot_eager", "auto"))
@pytest.mark.parametrize("history", ("freed", "kept", "leaf"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_history_is_left_alone(name: str, history: str, backend: str) -> None:
    program = PROGRAMS[name]
    expected = _outcome(program, history)
    found = _outcome(graphlift.compile(program, backend=backend), history)
    if isinstance(expected, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("leaf", (False, True))
def test_second_derivative_beside_an_unconnected_input(leaf: bool) -> None:
    def program(old: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return x.sin() * y * old.detach()

    def outcome(f: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        old, x, y = (torch.linspace(0, 1, 3).add(k).requires_grad_() for k in range(3))
        given = (old, x, y) if leaf else (old * 1, x * 1, y * 1)
        loss = f(*given).sum()
        (first,) = torch.autograd.grad(loss, [x], create_graph=True)
        return first, *torch.autograd.grad(first.sum(), [x, y])

    torch.testing.assert_close(outcome(graphlift.compile(program)), outcome(program))
