"""Results have eager's strides where a kernel chooses them by how its argument lies in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import graphlift

#: Pooling of three dimensions goes through four, one of size 1, whose stride tells ATen the memory format.
PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "diff": torch.diff,
    "rrelu": F.rrelu,
    "rrelu, training": lambda x: F.rrelu(x, 0.1, 0.3, training=True),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x, 3),
    "adaptive_max_pool1d, indices": lambda x: F.adaptive_max_pool1d(x, 3, return_indices=True)[1],
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x, 2),
    "avg_pool1d": lambda x: F.avg_pool1d(x, 2),
    "max_pool1d": lambda x: F.max_pool1d(x, 2),
    "area": lambda x: F.interpolate(x, size=4, mode="area"),
    "avg_pool1d of a value": lambda x: F.avg_pool1d(x.sin(), 2),
    "avg_pool2d of a value": lambda x: F.avg_pool2d(x.sin().unsqueeze(1), (2, 2)),
}


@pytest.mark.parametrize("backend", ("aot_eager", "auto"))
@pytest.mark.parametrize("order", ((0, 1, 2), (0, 2, 1), (2, 1, 0)))
@pytest.mark.parametrize("name", PROGRAMS)
def test_strides(name: str, order: tuple[int, ...], backend: str) -> None:
    program = PROGRAMS[name]
    for grad in (False, True):
        x = torch.linspace(-2, 3, 96).view(2, 6, 8).permute(order).requires_grad_(grad)
        torch.manual_seed(0)
        expected = program(x)
        torch.manual_seed(0)
        found = graphlift.compile(program, backend=backend)(x)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        assert (found.stride(), found._is_view()) == (expected.stride(), expected._is_view())
        if expected.requires_grad:
            (ours,), (eagers,) = (torch.autograd.grad(y.sum(), [x]) for y in (found, expected))
            torch.testing.assert_close(ours, eagers, rtol=1e-6, atol=1e-6)
            assert ours.stride() == eagers.stride()
