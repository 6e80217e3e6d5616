"""Scripted functions inside captured code: nodes of the graph where they only compute, breaks where they do more.

In: TorchScript functions of this file. Out: values, gradients, mutations and random numbers as in eager.
Always: what the script shows outside its results happens natively, in its place.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import graphlift
from graphlift import explain

with warnings.catch_warnings():
    warnings.simplefilter("ignore")

    @torch.jit.script
    def swish(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    @torch.jit.script
    def looped(x: Tensor, n: int) -> tuple[Tensor, list[Tensor]]:
        for i in range(n):
            x = x + i if i % 2 == 0 else x * 2
        return x, [x, x + 1]

    @torch.jit.script
    def doubled_in_place(x: Tensor) -> Tensor:
        return x.mul_(2)

    @torch.jit.script
    def shown(x: Tensor) -> Tensor:
        print(x.size(0))
        return x

    @torch.jit.script
    def dropped(x: Tensor) -> Tensor:
        return torch.dropout(x, 0.5, True)

    @torch.jit.script
    def by_value(x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            return x
        return -x


def computed(x: Tensor) -> Tensor:
    y = x * 1
    z, more = looped(y, n=3)
    return swish(x) + z + more[1] + doubled_in_place(y) + y


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "auto"])
def test_script_is_one_node(backend):
    compiled = graphlift.compile(computed, backend=backend, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(3, requires_grad=True)
        expected, found = computed(x), compiled(x)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (expected, found)]
        torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize(("script", "why"), [(shown, "prim::Print"), (dropped, "aten::dropout")])
def test_script_that_does_more_runs_natively(script, why):
    def fn(x):
        return script(x + 1) * 2

    torch.manual_seed(0)
    explanation = explain(fn)(torch.ones(3))
    assert explanation.graph_count == 2
    assert [why in reason.headline() for reason in explanation.break_reasons] == [True]


def test_script_that_needs_values_is_not_taken_to_raise():
    def fn(x):
        try:
            return by_value(x + 1)
        except RuntimeError:
            return x * 100

    compiled = graphlift.compile(fn, backend="eager")
    for x in (torch.ones(3), -torch.ones(3) * 5):
        assert torch.equal(compiled(x), fn(x))


def test_annotate_is_its_value():
    def fn(x):
        sizes = torch.jit.annotate(list[int], [])
        sizes.append(x.size(0))
        return x + sizes[0]

    assert torch.equal(
        graphlift.compile(fn, backend="eager", fullgraph=True)(torch.ones(3)), torch.full((3,), 4.0)
    )
