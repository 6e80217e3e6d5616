"""Nearest upsampling and adaptive pooling: kernels where sizes divide, ATen elsewhere; forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import graphlift
from graphlift.runtime import load

from .tracing import check, externs

SHAPES = {1: (2, 3, 20), 2: (2, 3, 7, 24), 3: (2, 3, 3, 4, 16)}


def upsample(mode: str, **how: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, mode=mode, **how)


@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
def test_nearest_of_whole_factors(rank: int, mode: str, dtype: torch.dtype) -> None:
    x = (torch.randn(SHAPES[rank]) * 50).to(dtype)
    if rank == 1 and dtype == torch.uint8:
        pytest.skip("eager has none")
    sizes = SHAPES[rank][2:]
    given: list[dict[str, Any]] = [{"scale_factor": 2.0}, {"scale_factor": 4.0}]
    given += [{"size": tuple(2 * n for n in sizes)}, {"size": (*sizes[:-1], 8 * sizes[-1])}]
    for how in given:
        f = upsample(mode, **how)
        plan = check(f, x)
        assert not externs(plan), how
        assert torch.equal(load(plan)([x])[0], f(x)), how


@pytest.mark.parametrize("how", [{"scale_factor": 3.0}, {"scale_factor": 1.5}, {"size": (9, 24)}])
def test_nearest_of_other_factors_is_atens(how: dict[str, Any]) -> None:
    x = torch.randn(SHAPES[2])
    assert externs(check(upsample("nearest", **how), x))


def test_a_scale_that_rounds_to_a_whole_factor_is_atens() -> None:
    x = torch.randn(2, 3, 3, 3)  # the sizes double, the positions go by the scale
    assert externs(check(upsample("nearest", scale_factor=2.3), x))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        upsample("nearest", scale_factor=2.0),
        upsample("nearest-exact", size=(16, 32)),
        upsample("nearest", scale_factor=4.0),
        lambda x: F.adaptive_avg_pool2d(x, (4, 8)),
        lambda x: F.adaptive_avg_pool2d(x, (2, 16)),
        lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    ],
)
def test_trained(f: Callable[[Tensor], Tensor], layout: torch.memory_format, dynamic: bool) -> None:
    graphlift.reset()
    compiled = graphlift.compile(lambda x: f(x.sin()) * 2, dynamic=dynamic)
    found, expected = [], []
    for into, g in ((found, compiled), (expected, lambda x: f(x.sin()) * 2)):
        for batch in (2, 3):
            x = torch.randn(batch, 4, 8, 16, generator=torch.Generator().manual_seed(0))
            x = x.contiguous(memory_format=layout).requires_grad_()
            y = g(x)
            (y * torch.linspace(0, 1, y.numel()).view(y.shape)).sum().backward()
            into += [y.detach(), y.stride(), x.grad]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (3, 11), (17, 2), (17, 22), (2, 2)])
def test_adaptive_pool_of_equal_windows(size: tuple[int, int], dtype: torch.dtype) -> None:
    def pool(x: Tensor) -> Tensor:
        return torch.ops.aten._adaptive_avg_pool2d(x, size)

    x = torch.randn(2, 3, 51, 22).to(dtype)
    plan = check(pool, x)
    assert bool(externs(plan)) == (51 % size[0] != 0)
    torch.testing.assert_close(load(plan)([x])[0], pool(x))
