"""What the program sees of autograd's graph: nodes, hooks and errors are eager's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import graphlift

pytestmark = pytest.mark.filterwarnings("ignore")


def test_hooks_on_a_node_see_the_operator_that_made_the_tensor() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act = nn.Linear(3, 3), nn.ReLU()
            self.seen: list[tuple[Tensor, ...]] = []
            self.act.register_backward_hook(lambda m, inputs, outputs: self.seen.append((*inputs, *outputs)))

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.act(y).sum() + y.exp().sum()

    model, x = Model(), torch.randn(2, 3, requires_grad=True)
    model(x).backward()
    graphlift.compile(model, backend="aot_eager")(x).backward()
    expected, found = model.seen
    assert len(expected) == len(found) == 2
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
