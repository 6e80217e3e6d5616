"""Tensors on other devices than the CPU, made inside a compiled function: where and what they are in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphlift

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "made": lambda x: torch.ones(3, device="meta"),
    "computed": lambda x: torch.ones(3, device="meta") * 2,
    "moved": lambda x: x.to("meta") + 1,
    "like": lambda x: torch.zeros_like(x, device="meta").exp(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ("aot_eager", "auto"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_meta(name: str, backend: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return PROGRAMS[name](x), x * 3

    graphlift.reset()
    x = torch.ones(2, 3)
    (found, near), (expected, _) = graphlift.compile(program, backend=backend)(x), program(x)
    assert (found.device, found.shape, found.stride()) == (expected.device, expected.shape, expected.stride())
    assert torch.equal(near, x * 3)
