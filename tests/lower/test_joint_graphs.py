"""Forward and backward of small models: plan against graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from graphlift.lower.interpret import interpret
from graphlift.lower.lowering import lower_graph

from .graphs import joint
from .tracing import externs, kernels


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).split(c, -1))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        mixed = self.dropout(F.softmax(scores, -1)) @ v
        return self.dropout(self.out(mixed.transpose(1, 2).reshape(b, t, c)))


class Transformer(nn.Module):
    def __init__(self, layers: int = 2, width: int = 16, words: int = 50) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.attention = nn.ModuleList([Attention(width, 2) for _ in range(layers)])
        self.mlp = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 40), nn.GELU(), nn.Linear(40, width)) for _ in range(layers)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * layers)])
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for k, (attention, mlp) in enumerate(zip(self.attention, self.mlp, strict=True)):
            x = x + attention(self.norms[2 * k](x))
            x = x + mlp(self.norms[2 * k + 1](x))
        return self.head(x)


class Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, out, 3, stride, 1), nn.Conv2d(out, out, 3, 1, 1)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.skip = nn.Sequential(nn.Conv2d(channels, out, 1, stride), nn.GroupNorm(2, out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm2(self.second(F.relu(self.norm1(self.first(x))))) + self.skip(x))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.SiLU())
        self.blocks = nn.Sequential(Block(4, 4, 1), Block(4, 8, 2))
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


Loss = Callable[..., torch.Tensor]


def _language(f: Loss, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(f(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _classes(f: Loss, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(f(x), y)


IDS = torch.randint(0, 50, (3, 8))
IMAGES, LABELS = torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))


@pytest.mark.parametrize(
    ("module", "loss", "inputs", "extern"),
    [
        (Transformer, _language, (IDS,), {"mm", "addmm", "bmm", "bernoulli", "empty_strided",
                                           "embedding_dense_backward"}),
        (Residual, _classes, (IMAGES, LABELS), {"mm", "addmm", "convolution", "convolution_backward"}),
        (lambda: Residual().to(memory_format=torch.channels_last), _classes,
         (IMAGES.to(memory_format=torch.channels_last), LABELS),
         {"mm", "addmm", "convolution", "convolution_backward", "as_strided", "as_strided_scatter"}),
    ],
    ids=["transformer", "residual", "channels last"],
)  # fmt: skip
def test_step_equals_its_graph(
    module: Callable[[], nn.Module], loss: Loss, inputs: tuple[torch.Tensor, ...], extern: set[str]
) -> None:
    torch.manual_seed(0)
    gm, example = joint(module().train(), loss, inputs)
    plan = lower_graph(gm, example)
    assert {e.split(".")[1] for e in externs(plan)} <= extern
    torch.manual_seed(1)
    expected = gm(*example)
    torch.manual_seed(1)
    got = interpret(plan, example)
    assert got is not None
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e.detach(), rtol=1e-3, atol=1e-5)
        assert g.stride() == e.stride()


def test_equal_layers_share_kernels() -> None:
    few, many = (len({k.kernel for k in kernels(lower_graph(joint(Transformer(n).train(), _language, (IDS,))[0]))})
                 for n in (2, 6))  # fmt: skip
    assert many <= few + 2
