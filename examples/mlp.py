"""A multi-layer perceptron: the smallest model worth compiling, and the one that shows per-call overhead best.

In: (batch, features) floats. Out: (batch, classes) logits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with an activation between them."""

    def __init__(self, features: int = 64, hidden: int = 256, classes: int = 10, layers: int = 2) -> None:
        super().__init__()
        widths = [features, *([hidden] * (layers - 1)), classes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.dropout(torch.nn.functional.gelu(layer(x)))
        return self.layers[-1](x)
