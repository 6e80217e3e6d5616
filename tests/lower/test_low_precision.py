"""Low-precision results bit for bit, where ATen rounds within one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphlift

SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    float("inf"),
    -float("inf"),
    float("nan"),
    3.0,
    -7.0,
    1e-3,
    -1e-3,
    6e4,
    -6e4,
    0.1,
)
HUGE = (1e38, -3e38, 1e-38)

#: ATen divides by a tensor in steps of the tensors' dtype, by a number (or a tensor of one element) in float32.
PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tensors": torch.floor_divide,
    "mode": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "to int": lambda x, y: (x[:5000] // y[:5000]).int(),
    "number": lambda x, y: x // 2.7,
    "of a number": lambda x, y: 2.7 // y,
    "one element": lambda x, y: x // y[:1],
    "of one element": lambda x, y: x[:1] // y,
    "broadcast": lambda x, y: x[:50, None] // y[:33],
    "values": lambda x, y: (x * 2) // (y + 1),
}


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("name", PROGRAMS)
def test_floor_division(name: str, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    special = torch.tensor(SPECIAL + (HUGE if dtype == torch.bfloat16 else ())).to(dtype)
    x = torch.cat([torch.randn(5000, generator=g).to(dtype) * 6, special.repeat_interleave(len(special))])
    y = torch.cat([torch.randn(5000, generator=g).to(dtype) * 3, special.repeat(len(special))])
    expected = PROGRAMS[name](x, y)
    found = graphlift.compile(PROGRAMS[name])(x, y)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit()[found == 0], expected.signbit()[expected == 0])


MIXED: dict[str, Any] = {
    "plus": lambda x, t, n: x + 0.1,
    "minus": lambda x, t, n: 0.1 - x,
    "alpha": lambda x, t, n: torch.add(x, 0.7, alpha=0.3),
    "tensor without dimensions": lambda x, t, n: (x + t, x * t, t - x, x / t),
    "integers": lambda x, t, n: (x + n, x * n, x / n, x > n),
    "size": lambda x, t, n: x + x.shape[0],
}


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("name", MIXED)
def test_numbers_and_integers_are_rounded_as_eager_rounds_them(name: str, dtype: torch.dtype) -> None:
    """Before they are added, multiplied or compared; exactly."""
    torch.manual_seed(0)
    x, n = (torch.randn(4001) * 300).to(dtype), torch.arange(1, 4002)
    given = x, torch.tensor(0.1, dtype=torch.float64), n
    for dynamic in (False, True):
        found, expected = graphlift.compile(MIXED[name], dynamic=dynamic)(*given), MIXED[name](*given)
        for a, b in zip(*[v if isinstance(v, tuple) else (v,) for v in (found, expected)], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
