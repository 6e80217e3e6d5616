"""Functions whose kernel makes other calls on fakes than on real tensors: what they return is what eager returns."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import graphlift

INPUTS = {
    "plain": lambda: torch.randn(2, 3, 8),
    "one row": lambda: torch.randn(3, 8),
    "permuted": lambda: torch.randn(2, 8, 3).transpose(1, 2),
    "grad": lambda: torch.randn(2, 3, 8, requires_grad=True),
    "half": lambda: torch.randn(2, 3, 8).bfloat16(),
}


@pytest.mark.parametrize("backend", ("aot_eager", "auto"))
@pytest.mark.parametrize("name", INPUTS)
def test_max_pool1d_is_a_view_only_under_autograd(name: str, backend: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.max_pool1d(x, 3, 2, 1), torch.max_pool1d(x, 2)

    graphlift.reset()
    x = INPUTS[name]()
    for found, expected in zip(graphlift.compile(program, backend=backend)(x), program(x), strict=True):
        assert torch.equal(found, expected)
        assert (found._is_view(), found.stride()) == (expected._is_view(), expected.stride())


@pytest.mark.parametrize("backend", ("aot_eager", "auto"))
def test_max_pool1d_of_integers_raises(backend: str) -> None:
    graphlift.reset()
    with pytest.raises(NotImplementedError, match="max_pool1d_impl"):
        graphlift.compile(lambda x: F.max_pool1d(x, 2), backend=backend)(torch.ones(2, 8).int())


@pytest.mark.parametrize("grad", (False, True))
def test_the_program_sees_whether_it_is_a_view(grad: bool) -> None:
    graphlift.reset()
    x = torch.randn(2, 8, requires_grad=grad)
    assert graphlift.compile(lambda x: F.max_pool1d(x, 2)._is_view())(x) is F.max_pool1d(x, 2)._is_view()
    assert F.max_pool1d(x, 2)._is_view() is grad
