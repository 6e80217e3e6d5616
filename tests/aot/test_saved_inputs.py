"""Inputs that a backward keeps although eager's would not: copied where kept, whatever their layout.

In: views with holes or overlaps of a tensor that has a history, functions of them. Out: pass or fail.
Always: the gradients are eager's, also where the view is changed behind autograd's back after the forward.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphlift

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows with holes": lambda x: x[:, 1:],
    "every other": lambda x: x[:, ::2],
    "transposed": lambda x: x.t()[1:],
    "expanded": lambda x: x[:1].expand(4, 7),
    "overlapping": lambda x: x.unfold(1, 3, 2),
    "a column": lambda x: x[..., 1],
    "whole": lambda x: x,
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda y: y.exp() * 3,
    "chain": lambda y: (y.exp().sin() + y.sigmoid()).tanh(),
    "where": lambda y: torch.where(y > 0, y.exp(), y.sigmoid()),
    "compared": lambda y: (y > 0).float() * y.exp().sqrt(),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_inputs_with_a_history(backend: str, view: str, function: str) -> None:
    fn = FUNCTIONS[function]

    def gradient(call: Callable[[Tensor], Tensor], changed: bool) -> Tensor:
        x = torch.linspace(-0.5, 0.5, 35).view(5, 7).requires_grad_()
        given = VIEWS[view](x * 2)
        out = call(given)
        if changed:
            given.detach().copy_(given.detach() * 0.5) if view not in ("expanded", "overlapping") else None
        out.sum().backward()
        assert x.grad is not None
        return x.grad

    compiled = {d: graphlift.compile(fn, backend=backend, dynamic=d) for d in (False, True)}
    for call in compiled.values():
        for changed in (False, True):
            torch.testing.assert_close(gradient(call, changed), gradient(fn, changed))
