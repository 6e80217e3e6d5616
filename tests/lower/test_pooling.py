"""Pooling as pointwise kernels: values and positions, at edges, among equals, with NaN and infinities."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphlift.runtime import load

from .tracing import check, externs, kernels, lowered

WINDOWS = {
    "halves": ((2,), {}),
    "overlapping, padded": ((3, 2, 1), {}),
    "dilated": ((2, 1, 1, 2), {}),
    "ceiling": ((3, 2, 0, 1, True), {}),
    "uneven": (((1, 3), (2, 1), (0, 1)), {}),
}


def pictures(kind: str) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 17, 22)
    if kind == "equals":
        return x.round()
    if kind == "nan":
        return torch.where(torch.rand_like(x) < 0.1, float("nan"), x)
    if kind == "infinite":
        return torch.where(torch.rand_like(x) < 0.7, float("-inf"), x)
    return x


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", ["plain", "equals", "nan", "infinite"])
def test_max_pool(window: str, kind: str) -> None:
    args, kwargs = WINDOWS[window]
    x = pictures(kind)

    def pool(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.max_pool2d(x, *args, **kwargs, return_indices=True)

    plan = check(pool, x)
    assert not externs(plan)
    values, positions = load(plan)([x])
    expected = pool(x)
    torch.testing.assert_close(values, expected[0], equal_nan=True, rtol=0, atol=0)
    assert torch.equal(positions, expected[1])


@pytest.mark.parametrize(
    "kernel, stride, padding", [(2, None, 0), (3, 1, 1), (3, 2, 1), ((2, 3), 2, (1, 0)), ((1, 3), (2, 1), 0)]
)
@pytest.mark.parametrize(
    "ceiling, padding_counts, divisor",
    [(False, True, None), (True, True, None), (False, False, None), (True, False, None), (True, True, 5)],
)
@pytest.mark.parametrize("kind", ["plain", "nan"])
def test_avg_pool(
    kernel: Any,
    stride: Any,
    padding: Any,
    ceiling: bool,
    padding_counts: bool,
    divisor: int | None,
    kind: str,
) -> None:
    def pool(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(x, kernel, stride, padding, ceiling, padding_counts, divisor)

    x = pictures(kind)
    plan = check(pool, x)
    assert not externs(plan)
    torch.testing.assert_close(load(plan)([x])[0], pool(x), equal_nan=True, rtol=0, atol=0)


def test_channels_last_keeps_its_layout() -> None:
    x = torch.randn(2, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    plan = check(lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1).relu(), x)
    assert not externs(plan) and len(kernels(plan)) == 1


def test_large_windows_are_left_to_aten() -> None:
    assert externs(lowered(lambda x: torch.nn.functional.max_pool2d(x, 5), (torch.randn(1, 1, 10, 10),)))
