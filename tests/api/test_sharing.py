"""Equal blocks compile once: regions serve every callable of the same code and settings whose guards pass."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

import graphlift
from graphlift import sharing


class Count:
    """A backend that counts what it compiles."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm, example):
        self.graphs += 1
        return gm.forward


class Block(nn.Module):
    def __init__(self, width: int = 4, scale: float = 1.0) -> None:
        super().__init__()
        self.linear, self.norm, self.scale = nn.Linear(width, width), nn.LayerNorm(width), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x))) * self.scale + x


def test_blocks_that_differ_in_parameters_compile_once() -> None:
    backend = Count()
    blocks = [Block() for _ in range(6)]
    compiled = [graphlift.compile(b, backend=backend) for b in blocks]
    x = torch.randn(3, 4)
    for _ in range(2):
        for block, c in zip(blocks, compiled, strict=True):
            assert torch.equal(c(x), block(x))
    assert backend.graphs == 1


def test_gradients_reach_each_blocks_own_parameters() -> None:
    blocks = [Block() for _ in range(3)]
    eager = copy.deepcopy(blocks)
    backend = Count()
    x = torch.randn(3, 4)
    for c, e in zip([graphlift.compile(b, backend=backend) for b in blocks], eager, strict=True):
        c(x).sum().backward()
        e(x).sum().backward()
    for b, e in zip(blocks, eager, strict=True):
        for p, q in zip(b.parameters(), e.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
    assert backend.graphs == 1


@pytest.mark.parametrize("other", [Block(scale=2.0), Block(width=5), Block().eval().requires_grad_(False)])
def test_blocks_that_differ_otherwise_compile_their_own(other: Block) -> None:
    backend = Count()
    blocks = [Block(), other, Block(), copy.deepcopy(other)]
    compiled = [graphlift.compile(block, backend=backend) for block in blocks]
    for block, c in zip(blocks, compiled, strict=True):
        x = torch.randn(2, block.linear.in_features)
        assert torch.equal(c(x), block(x))
    assert backend.graphs == 2


def test_settings_are_not_shared_across() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    x, backend, another = torch.randn(3), Count(), Count()
    options = ({}, {"fullgraph": True}, {"backend": another})
    keep = [graphlift.compile(f, **({"backend": backend} | o)) for o in options]
    for compiled in keep:
        compiled(x)
    with graphlift.config.patch(cache_size_limit=3):
        graphlift.compile(f, backend=backend)(x)
    assert (backend.graphs, another.graphs) == (3, 1)


def test_a_regions_last_owner_takes_it_away() -> None:
    backend = Count()
    block, x = Block(), torch.randn(3, 4)
    compiled = graphlift.compile(block, backend=backend)
    compiled(x)
    graphlift.compile(Block(), backend=backend)(x)
    assert backend.graphs == 1
    del compiled, block
    gc.collect()
    graphlift.compile(Block(), backend=backend)(x)
    assert backend.graphs == 2


def test_resumed_parts_are_shared_too(capsys) -> None:
    class Printing(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.linear(x)
            print("here")
            return self.norm(x) * 2

    backend = Count()
    keep = []
    for _ in range(4):
        block, x = Printing(), torch.randn(3, 4)
        keep.append(graphlift.compile(block, backend=backend))
        assert torch.equal(keep[-1](x), block(x))
    assert backend.graphs == 2
    assert capsys.readouterr().out == "here\n" * 8


def test_reset_forgets_every_callable_of_equal_code() -> None:
    backend = Count()
    compiled = [graphlift.compile(Block(), backend=backend) for _ in range(3)]
    x = torch.randn(3, 4)
    for c in compiled:
        c(x)
    graphlift.reset()
    assert not sharing._regions
    for c in compiled:
        c(x)
    assert backend.graphs == 2


def test_explain_compiles_anew() -> None:
    block, x = Block(), torch.randn(3, 4)
    graphlift.compile(block, backend="eager")(x)
    assert graphlift.explain(block, backend="eager")(x).graph_count == 1


def test_one_code_object_has_a_limit_over_all_callables() -> None:
    def make(k: float):
        return lambda x: x * k

    backend, keep = Count(), []
    x = torch.ones(3)
    with (
        graphlift.config.patch(accumulated_cache_size_limit=4),
        pytest.warns(RuntimeWarning, match="accumulated"),
    ):
        for k in range(7):
            keep.append(graphlift.compile(make(float(k)), backend=backend))
            assert torch.equal(keep[-1](x), x * k)
    assert backend.graphs == 4
