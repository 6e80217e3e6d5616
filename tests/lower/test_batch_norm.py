"""Batch norm in training: one kernel with the activation after it, and ATen's running statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphlift.runtime import load

from .tracing import check, externs, kernels

FUNCTIONAL = torch.ops.aten._native_batch_norm_legit_functional.default


@pytest.mark.parametrize("shape", [(4, 16, 6, 5), (8, 12), (2, 3, 40), (2, 3, 200, 200)])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_training(shape: tuple[int, ...], affine: bool, last: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape) * 3 + 1
    if last and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    given = [torch.randn(shape[1]), torch.rand(shape[1]), torch.rand(shape[1]), torch.randn(shape[1])]

    def norm(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, w: Any, b: Any) -> Any:
        weight, bias = (w, b) if affine else (None, None)
        out, *rest = FUNCTIONAL(x, weight, bias, mean, var, True, 0.1, 1e-5)
        return [out.relu(), *rest]

    plan = check(norm, x, *given)
    assert not externs(plan)
    for got, expected in zip(load(plan)([x, *given]), norm(x, *given), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    if shape == (4, 16, 6, 5) and not last:
        assert len(kernels(plan)) == 1


def test_inference_is_left_to_aten() -> None:
    x, stats = torch.randn(2, 3, 4), [torch.randn(3), torch.rand(3)]
    plan = check(lambda x, m, v: FUNCTIONAL(x, None, None, m, v, False, 0.1, 1e-5)[0], x, *stats)
    assert externs(plan)
