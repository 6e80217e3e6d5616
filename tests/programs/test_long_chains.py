"""Long straight programs: hundreds of operators in a row are compiled, not given up."""

from __future__ import annotations

import sys

import pytest
import torch

import graphlift


@pytest.mark.parametrize("count", [300, 1500])
def test_chains_of_pointwise_operators(count: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for k in range(count):
            x = torch.sin(x) + 0.5 if k % 3 else x * 1.01
        return x

    limit = sys.getrecursionlimit()
    x = torch.randn(64, dtype=torch.double, requires_grad=True)
    explained = graphlift.explain(f)(x)
    assert explained.fallbacks == () and explained.graph_count == 1
    torch.testing.assert_close(explained.result, f(x), rtol=1e-9, atol=1e-9)
    (found,) = torch.autograd.grad(explained.result.sum(), x)
    (expected,) = torch.autograd.grad(f(x).sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert sys.getrecursionlimit() == limit
