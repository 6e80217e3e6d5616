"""What the forward keeps: among equals, what is in memory anyway."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor

from graphlift import config
from graphlift.aot import compile_graph, interpret
from graphlift.aot.cut import INFINITE, _reaches_sink
from graphlift.aot.partition import save_all
from tests.aot.programs import graph_of

aten = torch.ops.aten


def kept(f, *inputs: Tensor) -> list:
    c = compile_graph(graph_of(f, len(inputs)), inputs, fw_compiler=interpret)
    output = next(n for n in c.forms["forward"].graph.nodes if n.op == "output")
    return [n.target for n in output.all_input_nodes][1:]  # after the result


def test_a_product_is_kept_rather_than_what_is_computed_from_it() -> None:
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    assert kept(lambda x, w: (x @ w - 1).pow(2).sum(), x, w) == [aten.mm.default]


def test_a_value_that_a_product_reads_is_kept() -> None:
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    found = kept(lambda x, w: (torch.tanh(x @ w) @ w).sum(), x, w)
    assert aten.tanh.default in found and aten.mm.default not in found


def test_a_narrow_mask_is_kept_rather_than_the_random_numbers() -> None:
    x = torch.randn(8, 8, requires_grad=True)
    assert aten.rand.default not in kept(lambda x: (x * (torch.rand(8, 8) > 0.5)).sum(), x)


@pytest.mark.parametrize("seed", range(60))
def test_the_cut_is_the_cheapest_and_nearest_the_sink(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randrange(3, 9)
    edges = [
        (rng.choice([0, *range(2, n)]), rng.randrange(1, n), rng.choice([0, 1, 3, 7, 20, INFINITE]))
        for _ in range(rng.randrange(1, 3 * n))
    ]
    if (0, 1, INFINITE) in edges:
        edges.remove((0, 1, INFINITE))
    sides = [{1, *chosen} for size in range(n - 1) for chosen in itertools.combinations(range(2, n), size)]
    crossing = [sum(c for a, b, c in edges if b in side and a not in side) for side in sides]
    if min(crossing) < INFINITE:
        below = set(_reaches_sink(edges, n))
        assert below == min(
            (side for side, cost in zip(sides, crossing, strict=True) if cost == min(crossing)), key=len
        )


# -- memory budgets ----------------------------------------------------------------------------------------


def _layers(x: Tensor, *weights: Tensor) -> Tensor:
    for w in weights:
        x = torch.nn.functional.gelu(x @ w).softmax(-1) + x
    return x.sum()


def _at_budget(budget: float, f=_layers, count: int = 6):
    torch.manual_seed(0)
    inputs = [torch.randn(16, 32, dtype=torch.double)]
    inputs += [torch.randn(32, 32, dtype=torch.double, requires_grad=True) for _ in range(count)]
    with config.patch(activation_memory_budget=budget):
        return compile_graph(graph_of(f, len(inputs)), inputs, fw_compiler=interpret), inputs


def test_a_smaller_budget_saves_less_and_repeats_more() -> None:
    compiled = [_at_budget(b)[0] for b in (1.0, 0.7, 0.4, 0.2, 0.0)]
    saved = [c.saved_bytes for c in compiled]
    assert saved == sorted(saved, reverse=True) and len(set(saved)) >= 4
    least, most = saved[-1], saved[0]
    for c, b in zip(compiled, (1.0, 0.7, 0.4, 0.2, 0.0), strict=True):
        assert c.saved_bytes <= least + b * (most - least)
    assert compiled[-1].recomputed > compiled[0].recomputed
    assert saved[0] <= compiled[0].eager_saved_bytes


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.0])
def test_gradients_do_not_depend_on_the_budget(budget: float) -> None:
    compiled, inputs = _at_budget(budget)
    expected = torch.autograd.grad(_layers(*inputs), inputs[1:])
    found = torch.autograd.grad(compiled(*inputs)[0], inputs[1:])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_random_numbers_are_never_drawn_again() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (torch.nn.functional.dropout(x @ w, 0.5) * torch.rand_like(x)).sum()

    compiled, inputs = _at_budget(0.0, f, 1)
    ops = {n.target for n in compiled.forms["backward"].graph.nodes if n.op == "call_function"}
    assert not ops & {aten.bernoulli.p, aten.rand.default, aten.rand_like.default}
    torch.manual_seed(3)
    expected = torch.autograd.grad(f(*inputs), inputs[1])[0]
    torch.manual_seed(3)
    assert torch.equal(torch.autograd.grad(compiled(*inputs)[0], inputs[1])[0], expected)


def test_what_runs_again_runs_right_before_its_use() -> None:
    compiled, _ = _at_budget(0.0)
    nodes = [n for n in compiled.forms["backward"].graph.nodes if n.op == "call_function"]
    position = {n: k for k, n in enumerate(nodes)}
    first_tangent = next(
        k for k, n in enumerate(nodes) if any(a.name.startswith("tangent") for a in n.all_input_nodes)
    )
    assert any(n.target is aten.gelu.default for n in nodes[first_tangent:])
    assert all(position[a] < position[n] for n in nodes for a in n.all_input_nodes if a in position)


def test_saving_all_repeats_nothing() -> None:
    inputs = [torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)]
    c = compile_graph(graph_of(_layers, 2), inputs, fw_compiler=interpret, partitioner=save_all)
    assert c.recomputed == 0 and c.saved_bytes > 0
