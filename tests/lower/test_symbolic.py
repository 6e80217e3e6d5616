"""Graphs with sizes that vary: lowered and compiled once, equal to eager for every size, odd tails and small ones too.

Each program runs by the reference interpreter, by the native launcher and by the Python one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from graphlift.lower.interpret import interpret
from graphlift.lower.ir import ExternCall, KernelCall
from graphlift.runtime import load
from tests.lower.symbolic import Traced
from tests.lower.tracing import same_strides

SIZES = (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 40)
Make = Callable[..., torch.Tensor]


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def ints(high: int) -> Make:
    return lambda *shape: torch.randint(0, high, shape)


class Case:
    """A program over inputs whose sizes are numbers, or letters for those that vary."""

    def __init__(
        self,
        function: Callable[..., Any],
        *inputs: str,
        makers: dict[int, Make] | None = None,
        externs: int | None = None,
        tolerance: float = 1e-5,
    ) -> None:
        self.function = function
        self.inputs = [spec.split() for spec in inputs]
        self.makers = makers or {}
        self.externs = externs
        self.tolerance = tolerance
        self.letters = sorted({s for spec in self.inputs for s in spec if not s.isdigit()})

    def make(self, env: dict[str, int]) -> list[torch.Tensor]:
        return [
            self.makers.get(k, randn)(*[int(s) if s.isdigit() else env[s] for s in spec])
            for k, spec in enumerate(self.inputs)
        ]

    @property
    def dynamic(self) -> list[list[int]]:
        return [[d for d, s in enumerate(spec) if not s.isdigit()] for spec in self.inputs]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / 4.0
    scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    y = F.layer_norm(x, (16,), g, g)
    return x + F.gelu(F.linear(y, w, b))


def padded(x: torch.Tensor) -> Any:
    return F.pad(x, (1, 2, 0, 1)).sin(), F.pad(x, (-1, 0))


def shifts(x: torch.Tensor) -> Any:
    return x[1:] - x[:-1], x[:, -1], x[..., 1:].cumsum(0), torch.roll(x, 1, 0), x.flip(1), x[:, ::2] * 2


def sized(x: torch.Tensor) -> Any:
    n = x.shape[0]
    return (
        x * n,
        x + torch.arange(n).unsqueeze(1),
        torch.full((n, 3), n),
        torch.ones(n).cumsum(0),
        x / (n + 1),
    )


def causal(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[-1]
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    return x.masked_fill(~mask, -1.0).softmax(-1)


def split_heads(x: torch.Tensor) -> Any:
    b, s, _ = x.shape
    q, k = x.view(b, s, 2, 4, 8).unbind(2)
    return q.transpose(1, 2).contiguous() * 2, k.permute(0, 2, 3, 1).reshape(b * 4, 8, s) + 1


def losses(x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> Any:
    return F.mse_loss(x, y), F.cross_entropy(x, t), F.smooth_l1_loss(x, y), (x - y).abs().mean(0)


CASES = {
    "pointwise": Case(lambda x, y: (x * y + 1).tanh() * x, "n m", "n m", externs=0),
    "broadcast": Case(lambda x, y, z: (x + y) * z, "n 1 k", "m 1", "k", externs=0),
    "transpose": Case(lambda x, y: x.t() + y, "n m", "m n", externs=0),
    "softmax": Case(lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(1)), "n m k", externs=0),
    "norms": Case(block, "n m 16", "16 16", "16", "16", externs=1),
    "layer_norm": Case(lambda x: F.layer_norm(x, (x.shape[-1],)), "n m", externs=0),
    "reductions": Case(
        lambda x: (x.mean(), x.sum(0), x.amax(1), x.var(0), x.std(1, correction=0), x.mean((0, 2))), "n m k",
        externs=0,
    ),
    "positions": Case(lambda x: (x.argmax(0), x.argmin(1), x.max(1), x.argmax()), "n m", externs=0),
    "logical": Case(lambda x: ((x > 0).any(0), (x > -9).all(), (x > 0).sum(1)), "n m", externs=0),
    "reshapes": Case(split_heads, "n m 64", externs=0),
    "flat": Case(lambda x: (x.view(-1) * 2, x.reshape(x.shape[0], -1).relu(), x.flatten(1).sum(1)), "n m 3"),
    "merge": Case(lambda x: x.transpose(0, 1).reshape(-1, 4) + 1, "n m 4", externs=0),
    "slices": Case(shifts, "n m"),
    "padding": Case(padded, "n m"),
    "cat": Case(lambda x, y: (torch.cat([x, y * 2], 0).exp(), torch.stack([x, x + 1], 1)), "n m", "k m"),
    "embedding": Case(
        lambda w, i: F.embedding(i, w).mean(1), "50 12", "n m", makers={1: ints(50)}, externs=0
    ),
    "gather": Case(
        lambda x, i: (x.gather(1, i), x[i[:, 0]], x.index_select(0, i[0])), "n m", "n n", makers={1: ints(2)},
    ),
    "sizes": Case(sized, "n 5"),
    "causal": Case(causal, "2 n n", externs=0),
    "products": Case(lambda a, b, c: (a @ b + c, torch.bmm(a.expand(2, *a.shape), b.expand(2, *b.shape))), "n m",
                     "m 8", "8"),
    "attention": Case(
        attention, "n 2 m 16", "n 2 m 16", "n 2 m 16", "n m", makers={3: ints(2)}, externs=2
    ),
    "sdpa": Case(lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), "n 2 m 8", "n 2 m 8"),
    "convolution": Case(
        lambda x, w: F.max_pool2d(F.relu(F.conv2d(x, w, padding=1)), 2), "n 3 h w", "4 3 3 3"
    ),
    "average": Case(lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), "n 3 h w", externs=0),
    "batch_norm": Case(
        lambda x, m, v: F.batch_norm(x, m, v, training=False).relu(), "n 4 h w", "4", "4",
        makers={2: lambda *s: torch.rand(s) + 1},
    ),
    "group_norm": Case(lambda x: F.group_norm(x, 2), "n 4 h w", externs=0),
    "losses": Case(losses, "n 7", "n 7", "n", makers={2: ints(7)}),
    "bf16": Case(lambda x: F.gelu(x).softmax(-1), "n m", makers={0: lambda *s: torch.randn(s).bfloat16()},
                 externs=0, tolerance=2e-2),
    "doubles": Case(lambda x: (x.double() * 2).sum(1), "n m", externs=0),
    "whole": Case(lambda x: (x.repeat(2, 3), x.expand(3, *x.shape).contiguous(), x.tril(), x.triu(1)), "n m"),
    "strides": Case(lambda x: (x.t(), x.unsqueeze(0).transpose(1, 2), x[1:], x.view(-1)), "n m"),
}  # fmt: skip


def agree(got: Sequence[Any], expected: Sequence[Any], tolerance: float) -> None:
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        if not isinstance(e, torch.Tensor):
            assert g == e
            continue
        assert g.dtype == e.dtype and g.shape == e.shape
        assert same_strides(g, e), (g.shape, g.stride(), e.stride())
        torch.testing.assert_close(g, e, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", sorted(CASES))
def test_sizes_from_one_plan(name: str) -> None:
    case = CASES[name]
    rng = random.Random(name)
    torch.manual_seed(len(name))
    hints = {letter: k for letter, k in zip(case.letters, (6, 11, 19, 13), strict=False)}
    traced = Traced(case.function, case.make(hints), case.dynamic)
    plan = traced.lowered()
    assert plan.symbols
    if case.externs is not None:
        found = [str(s.target) for s in plan.steps if isinstance(s, ExternCall)]
        assert len(found) == case.externs, found
    loaded = load(plan)
    assert loaded.native
    runs = [lambda inputs: interpret(plan, inputs), loaded.run, loaded.run_python]
    envs = [{letter: rng.choice(SIZES) for letter in case.letters} for _ in range(5)]
    envs += [{letter: n for letter in case.letters} for n in (2, 16)]
    compared = 0
    for env in envs:
        inputs = case.make(env)
        try:
            expected = pytree.tree_leaves(case.function(*inputs))
        except (RuntimeError, IndexError):  # sizes that the program refuses
            continue
        for run in runs:
            agree(run(traced.arguments(inputs)), expected, case.tolerance)
        compared += 1
    assert compared >= 2


def test_training_graph() -> None:
    """Forward and backward of a transformer's feed-forward block and loss, in one graph, over batch and length."""

    def step(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> Any:
        parameters = [p.detach().requires_grad_() for p in (w, v, g)]
        w, v, g = parameters
        with torch.enable_grad():
            y = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (16,), g), w)), v)
            loss = F.cross_entropy(y.softmax(-1).view(-1, 16), t.view(-1)) + y.square().mean()
            return loss.detach(), *torch.autograd.grad(loss, parameters)

    case = Case(step, "n m 16", "n m", "32 16", "16 32", "16", makers={1: ints(16)})
    traced = Traced(step, case.make({"n": 6, "m": 11}), case.dynamic)
    loaded = load(traced.lowered())
    for n, m in ((6, 11), (2, 2), (3, 17), (40, 5)):
        inputs = case.make({"n": n, "m": m})
        expected = pytree.tree_leaves(step(*inputs))
        agree(loaded.run(traced.arguments(inputs)), expected, 1e-4)
        agree(loaded.run_python(traced.arguments(inputs)), expected, 1e-4)


def test_indices_out_of_range_raise_what_eager_raises() -> None:
    traced = Traced(lambda w, i: F.embedding(i, w), [torch.randn(9, 4), torch.tensor([1, 2, 3])], [[0], [0]])
    loaded = load(traced.lowered())
    w = torch.randn(20, 4)
    agree(loaded.run(traced.arguments([w, torch.tensor([19, 0])])), [w[[19, 0]]], 0.0)
    for run in (loaded.run, loaded.run_python):
        with pytest.raises(IndexError, match="index out of range in self"):
            run(traced.arguments([w, torch.tensor([20, 0])]))

    traced = Traced(lambda x, i: x.gather(1, i), [torch.randn(4, 9), torch.zeros(4, 3).long()], [[0, 1], [0]])
    loaded = load(traced.lowered())
    x = torch.randn(5, 12)
    for run in (loaded.run, loaded.run_python):
        with pytest.raises(RuntimeError, match="index 12 is out of bounds for dimension 1 with size 12"):
            run(traced.arguments([x, torch.full((5, 3), 12)]))


def test_long_sums_are_shared_out() -> None:
    traced = Traced(lambda x: (x.sum(), x.amax()), [torch.randn(30, 50, 70)], [[0, 1, 2]])
    plan = traced.lowered()
    assert any(s.kernel.outer for s in plan.steps if isinstance(s, KernelCall))
    for shape in ((30, 50, 70), (2, 3, 5), (33, 40, 65)):
        x = torch.randn(shape)
        agree(load(plan).run(traced.arguments([x])), [x.sum(), x.amax()], 1e-3)


def test_plans_without_symbols_stay_as_they_are() -> None:
    traced = Traced(lambda x: x.softmax(-1), [torch.randn(3, 5)], [[]])
    plan = traced.lowered()
    assert not plan.symbols and all(not s.kernel.symbols for s in plan.steps)  # type: ignore[union-attr]
    assert not load(plan).memory.pools


def test_memory_is_shared_and_follows_the_sizes() -> None:
    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = (x @ w).relu()
        return x

    traced = Traced(chain, [torch.randn(6, 8), torch.randn(8, 8)], [[0], []])
    loaded = load(traced.lowered())
    assert len(loaded.memory.pools) <= 3
    w = torch.randn(8, 8)
    for n in (2, 1000, 7):
        x = torch.randn(n, 8)
        agree(loaded.run(traced.arguments([x, w])), [chain(x, w)], 1e-4)
