"""Models that branch on random numbers draw the ones that eager draws, and take its way: layer drop and its kin."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.compilers import Compiler

DRAWS: dict[str, Callable[[], Any]] = {
    "random.random": random.random,
    "random.choice": lambda: random.choice([0.2, 0.8]),
    "random.randint": lambda: random.randint(0, 9) / 10,
    "torch.rand.item": lambda: torch.rand(1).item(),
    "torch.rand.float": lambda: float(torch.rand(())),
    "torch.rand": lambda: torch.rand(1),
    "torch.randint": lambda: torch.randint(0, 10, (1,)).item() / 10,
    "torch.empty.uniform_": lambda: torch.empty([]).uniform_(0, 1),
    "numpy": np.random.rand,
}


class LayerDrop(torch.nn.Module):
    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
        self.dropout = torch.nn.Dropout(0.3)
        self.draw, self.taken = draw, []

    def forward(self, x: torch.Tensor) -> Any:
        kept = ()
        for index, layer in enumerate(self.layers):
            drawn = self.draw()
            if self.training and drawn < 0.5:
                continue
            x = self.dropout(layer(x).relu()) + drawn
            kept += (x,)
            self.taken.append(index)
        while self.draw() > 0.4:
            x = x + 1
        return x, kept, random.sample(range(9), 3)


def run(model: LayerDrop, function: Callable[..., Any]) -> list[str]:
    seen = []
    for call in range(8):
        model.train(call != 5)
        torch.manual_seed(call)
        random.seed(call)
        np.random.seed(call)
        seen.append(str(function(torch.ones(2, 4))))
        seen.append(str((random.random(), torch.rand(1).item(), np.random.rand(), model.taken)))
    return seen


@pytest.mark.filterwarnings(
    "ignore:graphlift:RuntimeWarning"
)  # a limit of versions reached: still eager's results
@pytest.mark.parametrize("draw", DRAWS)
def test_branches_on_random_numbers(compiler: Compiler, draw: str) -> None:
    eager, model = LayerDrop(DRAWS[draw]), LayerDrop(DRAWS[draw])
    assert run(model, compiler.compile(model, backend="eager")) == run(eager, eager)
