"""Random programs of tensor operations: the interpreted plan equals eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from .tracing import check

Step = Callable[[list[torch.Tensor]], Any]

UNARY: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x * 0.5,
    lambda x: x + 1,
    torch.tanh,
    torch.relu,
    F.gelu,
    lambda x: x.abs().sqrt(),
    lambda x: (x > 0).to(x.dtype),
    lambda x: torch.where(x > 0.25, x, x * 2),
    lambda x: x.clamp(-1, 1),
    lambda x: x.to(torch.bfloat16).to(x.dtype),
    lambda x: -x,
]
REDUCTIONS: list[Callable[[torch.Tensor, int, bool], torch.Tensor]] = [
    lambda x, d, k: x.sum(d, k),
    lambda x, d, k: x.mean(d, k),
    lambda x, d, k: x.amax(d, k),
    lambda x, d, k: x.var(d, keepdim=k, unbiased=False),
    lambda x, d, k: x.logsumexp(d, k),
    lambda x, d, k: x.argmax(d, k).to(x.dtype),
    lambda x, d, k: x.min(d, k).values,
]
WHOLE: list[Callable[[torch.Tensor, int], torch.Tensor]] = [
    lambda x, d: x.softmax(d),
    lambda x, d: x.log_softmax(d),
    lambda x, d: (x - x.mean(d, True)) / (x.std(d, keepdim=True, unbiased=False) + 1),
    lambda x, d: x.flip(d),
    lambda x, d: torch.cat([x, x * 2], d),
    lambda x, d: x.cumsum(d),
    lambda x, d: x.roll(1, d),
]
BINARY: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    torch.add,
    torch.mul,
    torch.maximum,
    lambda x, y: x - y * 0.5,
    lambda x, y: torch.where(x > y, x, y * 2),
    lambda x, y: x / (y.abs() + 1),
]


def _compatible(a: torch.Size, b: torch.Size) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Step], list[torch.Tensor], list[int]]:
    """Steps, inputs, and which values are returned. The shapes are followed by running the steps as they are made."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    shape = draw(st.sampled_from([(4, 6), (2, 3, 4), (2, 4, 3, 2), (8,), (1, 6)]))
    inputs = [
        torch.randn(shape),
        torch.randn(shape[-1:]),
        torch.randn(*shape).transpose(0, -1).contiguous().transpose(0, -1),
    ]
    values, steps = list(inputs), []
    for _ in range(draw(st.integers(2, 9))):
        x = draw(st.integers(0, len(values) - 1))
        rank = values[x].dim()
        kind = draw(
            st.sampled_from(
                ["unary", "unary", "binary", "binary", "reduce", "whole", "reshape", "permute", "slice"]
            )
        )
        if kind == "unary" or not rank:
            f = draw(st.sampled_from(UNARY))
            step: Step = lambda v, f=f, x=x: f(v[x])  # noqa: E731
        elif kind == "binary":
            y = draw(
                st.sampled_from([k for k, v in enumerate(values) if _compatible(v.shape, values[x].shape)])
            )
            g = draw(st.sampled_from(BINARY))
            step = lambda v, g=g, x=x, y=y: g(v[x], v[y])  # noqa: E731
        elif kind == "reduce":
            r, d, k = draw(st.sampled_from(REDUCTIONS)), draw(st.integers(0, rank - 1)), draw(st.booleans())
            step = lambda v, r=r, d=d, k=k, x=x: r(v[x], d, k)  # noqa: E731
        elif kind == "whole":
            w, d = draw(st.sampled_from(WHOLE)), draw(st.integers(0, rank - 1))
            step = lambda v, w=w, d=d, x=x: w(v[x], d)  # noqa: E731
        elif kind == "reshape":
            numel = values[x].numel()
            rows = draw(st.sampled_from([k for k in range(1, numel + 1) if numel % k == 0]))
            step = lambda v, rows=rows, x=x: v[x].reshape(rows, -1)  # noqa: E731
        elif kind == "permute":
            order = draw(st.permutations(range(rank)))
            step = lambda v, order=order, x=x: v[x].permute(*order)  # noqa: E731
        else:
            d = draw(st.integers(0, rank - 1))
            first = draw(st.integers(0, values[x].shape[d] - 1))
            stride = draw(st.integers(1, 2))
            at = (slice(None),) * d + (slice(first, None, stride),)
            step = lambda v, at=at, x=x: v[x][at]  # noqa: E731
        result = step(values)
        if result.numel() > 2000:
            continue
        steps.append(step)
        values.append(result)
    outputs = sorted(
        {len(values) - 1, *draw(st.lists(st.integers(len(inputs), len(values) - 1), max_size=3))}
    )
    return steps, inputs, outputs


@given(programs())
def test_plan_equals_eager(program: tuple[list[Step], list[torch.Tensor], list[int]]) -> None:
    steps, inputs, outputs = program

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        values = list(given)
        for step in steps:
            values.append(step(values))
        return [values[k] for k in outputs if k >= len(given)]

    check(run, *inputs, rtol=1e-4, atol=1e-4)
