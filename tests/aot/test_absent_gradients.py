"""Parameters that no used output depends on keep `grad is None`, as in eager (an optimizer skips them)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import graphlift


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(x)
        return h, torch.tanh(self.head(h)), self.other(x)


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_gradients_that_do_not_arrive_are_none(backend: str, used: tuple[int, ...]) -> None:
    model = TwoHeads()
    compiled = graphlift.compile(model, backend=backend)
    x = torch.randn(4, 3)
    found = []
    for run in (model, compiled):
        model.zero_grad()
        outs = run(x)
        sum(outs[k].sum() for k in used).backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    eager, got = found
    assert {n for n, g in got.items() if g is None} == {n for n, g in eager.items() if g is None}
    for name, grad in eager.items():
        if grad is not None:
            torch.testing.assert_close(got[name], grad)


def test_zeros_where_a_gradient_is_absent_have_its_strides() -> None:
    """The diagonal is written through strides, which say where the gradient of the transposed input lies."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        y.fill_diagonal_(9)
        return x.index_put((torch.tensor([0, 0]),), y[:2], accumulate=True)

    def run(fn: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
        w = torch.arange(12.0).view(4, 3).requires_grad_()
        out = fn(torch.zeros(3, 4), (w * 0.5).t())
        (out * torch.arange(12.0).view(3, 4)).sum().backward()
        return w.grad

    expected = run(f)
    for backend in ("aot_eager", "auto"):
        torch.testing.assert_close(run(graphlift.compile(f, backend=backend)), expected)
