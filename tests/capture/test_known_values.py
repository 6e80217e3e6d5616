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


def picked_by_mask(x):
    return x[:, ~torch.eye(4).bool()].view(2, 3, 4), x[:, :, [True, False, True, False]]


def picked_by_place(x):
    place = torch.ones(4, 4).triu().reshape(16).nonzero()
    rows, columns = torch.where(torch.ones(4, 4).tril() == 1)
    return x.reshape(2, 16)[:, place[:, 0]], x[:, rows, columns] * 2, torch.argwhere(place)


def picked_by_written_mask(x):
    mask = torch.ones(4, 4, dtype=torch.bool).fill_diagonal_(False)
    for i in range(2):
        mask[i, 2 + i] = mask[2 + i, i] = False
    even = torch.arange(4) % 2 == 0
    even[1:] = even[:-1].clone()
    return x[:, mask].view(2, 4, 2), x[:, even, 1:], mask.nonzero(as_tuple=True), even.sum().item()


def selected(x):
    mask = torch.eye(4).bool()
    return x.masked_select(mask), torch.masked_select(x, mask[0] | mask[1]), x[0].masked_select(mask)


def counted(x):
    repeats = torch.tensor([1, 2, 0, 3])
    several, counts = torch.tensor([3, 1, 3]).unique(return_counts=True)
    return x.repeat_interleave(repeats, dim=1) * counts.max().item(), several, repeats.unique_consecutive()


def compared(x):
    same = torch.equal(torch.arange(3), torch.tensor([0, 1, 2]))
    return x * (2 if same and torch.allclose(torch.ones(2), torch.ones(2)) else 3)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "auto"])
@pytest.mark.parametrize(
    "fn", [picked_by_mask, picked_by_place, picked_by_written_mask, selected, counted, compared]
)
def test_what_is_found_in_known_values_has_known_sizes(fn, backend):
    def gradient(found):
        tensors = found if isinstance(found, tuple) else (found,)
        tensors = [t for t in tensors if isinstance(t, Tensor) and t.requires_grad]
        return torch.autograd.grad(sum(t.pow(2).sum() for t in tensors), x)[0]

    x = torch.randn(2, 4, 4, requires_grad=True)
    found, expected = graphlift.compile(fn, backend=backend, fullgraph=True)(x), fn(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert torch.equal(gradient(found), gradient(expected))


@pytest.mark.parametrize(
    "write",
    [
        lambda mask, x: mask.logical_and_(x[0] > 0),
        lambda mask, x: mask[1:].copy_(x[0, 1:] > 0),
        lambda mask, x: mask.bernoulli_(0.5),
        lambda mask, x: torch.gt(x[0], 0, out=mask),
    ],
)
def test_a_mask_that_others_wrote_is_not_known(write):
    def fn(x):
        mask = torch.ones(4, dtype=torch.bool)
        write(mask, x)
        return x[:, mask]

    compiled = graphlift.compile(fn, backend="eager")
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(2, 4)
        torch.manual_seed(seed)
        expected = fn(x)
        torch.manual_seed(seed)
        assert torch.equal(compiled(x), expected)
    assert [reason.code for reason in explain(fn)(x).break_reasons] == ["data-dependent-op"]


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
