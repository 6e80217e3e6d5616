"""Tensors made of constants alone: what is read from them is known while capturing, until they are written.

In: programs that compute sizes, bounds and flags by way of small tensors. Out: eager's values, in one graph.
Always: what was changed in place, drawn at random or left uninitialised is not taken to be known.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import graphlift
from graphlift import explain
from tests.capture.program import program


@program()
def test_numbers_of_literals(x: Tensor):
    size = torch.tensor(x.size())
    axes = torch.arange(0, x.dim()).tolist()
    scale = torch.tensor([1.5, 2.5])[1].item()
    return x.sum(axes) * scale, int(size.prod() * 2), float(torch.ones(2).sum()), torch.tensor(3).item()


@program()
def test_operators_on_numbers_alone(x: Tensor):
    half = torch.div(x.shape[0], 2)
    return x + half, int(half), int(torch.add(x.shape[0], 1)), torch.eye(2).tolist(), torch.div(7, 2)


@program()
def test_branches_and_bounds(x: Tensor):
    n = torch.tensor(x.shape[0]) - 1
    if n > 1 and bool(torch.tensor([1, 2]).max() == 2):
        x = x[:n]
    for _ in range(n):
        x = x + 1
    return x, torch.zeros(2).tolist()


@program()
def test_views_share_what_is_known(x: Tensor):
    grid = torch.arange(6).view(2, 3)
    return x + grid[1].tolist()[2], grid.t()[2, 0].item(), grid.view(-1)[4].item()


@pytest.mark.parametrize(
    "change",
    [
        lambda t, x: t.add_(x.sum().long()),
        lambda t, x: t.view(2).fill_(x[0].long()),
        lambda t, x: t.__setitem__(0, x[0].long()),
        lambda t, x: t.data.mul_(3),
        lambda t, x: t.detach().random_(5),
        lambda t, x: torch.add(t, 1, out=t),
    ],
)
def test_what_is_written_is_known_no_more(change):
    def fn(x):
        t = torch.tensor([1, 2])
        before = t.tolist()
        change(t, x)
        return before, t.tolist(), t[0].item() + 1

    compiled = graphlift.compile(fn, backend="eager")
    for seed in range(3):
        torch.manual_seed(seed)
        expected = fn(torch.full((3,), 2.0))
        torch.manual_seed(seed)
        assert compiled(torch.full((3,), 2.0)) == expected


@pytest.mark.parametrize(
    "make", [lambda: torch.rand(1), lambda: torch.randint(5, (1,)), lambda: torch.randperm(3)[0]]
)
def test_random_values_are_not_known(make):
    def fn(x):
        return x + make().item()

    compiled = graphlift.compile(fn, backend="eager")
    for seed in range(3):
        torch.manual_seed(seed)
        expected = fn(torch.zeros(1))
        torch.manual_seed(seed)
        assert torch.equal(compiled(torch.zeros(1)), expected)
    assert [reason.code for reason in explain(fn)(torch.zeros(1)).break_reasons] == ["tensor-item"]


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_known_through_the_backends(backend):
    def fn(x):
        sizes = torch.tensor(x.shape) // 2
        twice = x.view(torch.tensor(-1).item(), sizes[1].item()) * torch.div(4, 2)
        return twice * x.new_tensor([2.0, 3.0]).sum().item()

    x = torch.randn(2, 4, requires_grad=True)
    found = graphlift.compile(fn, backend=backend, fullgraph=True)(x)
    assert torch.equal(found, fn(x))
    assert torch.equal(torch.autograd.grad(found.sum(), x)[0], torch.full((2, 4), 10.0))
