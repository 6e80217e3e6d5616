"""Low-precision results bit for bit, where ATen rounds within one operator."""

from __future__ import annotations

from collections.abc import Callable

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
