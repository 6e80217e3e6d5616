"""Parameters that no used output depends on keep `grad is None`, as in eager (an optimizer skips them)."""

from __future__ import annotations

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
