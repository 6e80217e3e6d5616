"""Models whose batch, length and image sizes vary: one compilation, equal to eager at every size."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import graphlift
from graphlift import pipeline

Inputs = tuple[torch.Tensor, ...]


class Feedforward(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class EncoderBlock(nn.Module):
    """Attention under a padding mask, then a feed-forward layer."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out, self.rest = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            Feedforward(width),
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, t, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        weights = scores.masked_fill(~mask[:, None, None, :], float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, t, width))
        return self.rest(x)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = x + F.relu(self.second(x))
        return self.head(x.mean((2, 3)))


def features(n: int, _: int) -> Inputs:
    return (torch.randn(n, 32, requires_grad=True),)


def sequences(n: int, t: int) -> Inputs:
    mask = torch.ones(n, t, dtype=torch.bool)
    mask[0, (t + 1) // 2 :] = False
    return torch.randn(n, t, 32, requires_grad=True), mask


def images(n: int, t: int) -> Inputs:
    return (torch.randn(n, 3, t, t + 3),)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Inputs]]] = {
    "feedforward": (Feedforward, features),
    "encoder block": (EncoderBlock, sequences),
    "convolutions": (Convolutions, images),
}
SIZES = ((5, 12), (3, 7), (2, 16), (16, 9), (7, 33), (33, 4))


class Counting:
    """The usual backend, counting its graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs += 1
        return pipeline.compile_native(gm, inputs)


def close(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.stride() == b.stride() and a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_one_compilation_serves_every_size(name: str, train: bool) -> None:
    make, inputs_at = MODELS[name]
    torch.manual_seed(0)
    model = make().train(train)
    twin = copy.deepcopy(model)
    backend = Counting()
    compiled = graphlift.compile(model, backend=backend, dynamic=True)

    def step(f: Callable[..., torch.Tensor], inputs: Inputs, parameters: Sequence[torch.Tensor]) -> Any:
        if not train:
            with torch.no_grad():
                return [f(*inputs)]
        result = f(*inputs)
        wanted = [*parameters, *[x for x in inputs if x.requires_grad]]
        return [result.detach(), *torch.autograd.grad(result.square().mean(), wanted)]

    for n, t in SIZES:
        inputs = inputs_at(n, t)
        close(step(compiled, inputs, [*model.parameters()]), step(twin, inputs, [*twin.parameters()]))
    close([*model.buffers()], [*twin.buffers()])
    assert backend.graphs == 1
