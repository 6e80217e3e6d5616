"""Random chains of compiled functions with random views before, between and after them, trained through.

In: seeds. Out: pass or fail; a failing seed is named. Always: outputs, their strides and the gradient are eager's. In
double precision, so that what differs is no rounding.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import graphlift

Step = Callable[[Tensor], Tensor]
SECONDS = 5.0
STEPS: tuple[Step, ...] = (
    torch.exp,
    torch.sin,
    torch.sigmoid,
    torch.relu,
    torch.neg,
    F.gelu,
    lambda a: (a * a + 1).sqrt(),
    lambda a: torch.where(a > 0, a, a * 0.1),
    lambda a: a.clamp(-1, 1),
    lambda a: a.softmax(-1),
    lambda a: a.log_softmax(0),
    lambda a: a.cumsum(-1),
    lambda a: a - a.mean(-1, keepdim=True),
    lambda a: a / (a.norm(dim=-1, keepdim=True) + 1),
    lambda a: F.layer_norm(a, a.shape[-1:]),
    lambda a: a.square().mean(0, keepdim=True) + a,
    lambda a: a.roll(1, 0).contiguous(),
)
#: Views of a tensor and one of its dimensions.
VIEWS: tuple[Callable[[Tensor, int], Tensor], ...] = (
    lambda a, d: a.narrow(d, 1, a.shape[d] - 1) if a.shape[d] > 1 else a,
    lambda a, d: a[(slice(None),) * d + (slice(None, None, 2),)],
    lambda a, d: a.transpose(d, -1),
    lambda a, d: a.unsqueeze(d).expand(*a.shape[:d], 2, *a.shape[d:]),
    lambda a, d: a.select(d, 0) if a.dim() > 1 else a,
    lambda a, d: a.reshape(-1),
    lambda a, d: a.unfold(d, 2, 1) if a.shape[d] > 1 else a,
    lambda a, d: a.permute(*reversed(range(a.dim()))),
    lambda a, d: a.diagonal(0, 0, 1) if a.dim() > 1 else a,
    lambda a, d: a.chunk(2, d)[-1],
    lambda a, d: a.flip(d),
    lambda a, d: torch.cat([a, a], d),
    lambda a, d: torch.stack([a, a * 2], -1)[..., 1],
)


class Program:
    """Functions to compile, and how they are called; all of it follows from the seed."""

    def __init__(self, seed: int) -> None:
        r = self.random = random.Random(seed)
        self.seed = seed
        self.shape = [r.choice((1, 2, 3, 4, 5, 8, 16, 17)) for _ in range(r.choice((1, 2, 2, 3)))]
        self.before, self.after = self._steps(r.randrange(4)), self._steps(r.randrange(3))
        self.functions = [self._function() for _ in range(r.choice((1, 1, 2)))]
        self.between = [self._steps(r.randrange(2)) for _ in self.functions]
        self.dynamic, self.is_leaf = r.random() < 0.3, r.random() < 0.2

    def _steps(self, count: int) -> list[Step]:
        return [
            self._view() if self.random.random() < 0.5 else self.random.choice(STEPS) for _ in range(count)
        ]

    def _view(self) -> Step:
        view, at = self.random.choice(VIEWS), self.random.randrange(3)
        return lambda a: view(a, at % a.dim()) if 0 < a.dim() < 4 else a

    def _function(self) -> Callable[[Tensor], tuple[Tensor, ...]]:
        steps = self._steps(self.random.randrange(1, 7))
        kept, squares = self.random.randrange(len(steps)), self.random.random() < 0.3

        def run(a: Tensor) -> tuple[Tensor, ...]:
            beside = a
            for k, step in enumerate(steps):
                a = step(a)
                beside = a if k == kept else beside
            return (a * a if squares else a), beside

        return run

    def run(self, wrap: Callable[[Any], Any]) -> tuple[list[Tensor], list[tuple[int, ...]], Tensor]:
        """Outputs, the strides of those dimensions that have any, the gradient."""
        x = torch.randn(self.shape, generator=torch.Generator().manual_seed(self.seed), dtype=torch.double)
        x.requires_grad_()
        a = x if self.is_leaf else x * 1.5
        for step in self.before:
            a = step(a)
        outputs: list[Tensor] = []
        for function, steps in zip(map(wrap, self.functions), self.between, strict=True):
            for step in steps:
                a = step(a)
            results = function(a)
            outputs += results
            a = results[0]
        for step in self.after:
            a = step(a)
        weights = torch.linspace(0.5, 1.5, a.numel(), dtype=torch.double).view(a.shape)
        ((a * weights).sum() + sum(out.sum() for out in outputs)).backward()
        strides = [tuple(s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1) for t in outputs]
        assert x.grad is not None
        return [t.detach() for t in outputs], strides, x.grad


def check(seed: int, backend: str) -> None:
    program = Program(seed)
    expected = program.run(lambda fn: fn)
    graphlift.reset()
    found = program.run(lambda fn: graphlift.compile(fn, backend=backend, dynamic=program.dynamic))
    assert found[1] == expected[1], f"seed {seed}"
    torch.testing.assert_close(
        [*found[0], found[2]],
        [*expected[0], expected[2]],
        rtol=1e-6,
        atol=1e-8,
        equal_nan=True,
        msg=lambda text: f"seed {seed}: {text}",
    )


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_fixed_programs(backend: str) -> None:
    for seed in range(60):
        check(seed, backend)


def test_new_programs(capsys: pytest.CaptureFixture[str]) -> None:
    seed, end = random.SystemRandom().randrange(10**9), time.monotonic() + SECONDS
    with capsys.disabled():
        print(f"\nrandom regions from seed {seed}", flush=True)
    while time.monotonic() < end:
        check(seed, "auto")
        seed += 1
