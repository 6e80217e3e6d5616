"""What the forward keeps: among equals, what is in memory anyway."""

from __future__ import annotations

import torch
from torch import Tensor

from graphlift.aot import compile_graph, interpret
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
