"""Data parallel training of compiled modules in two processes: eager's numbers, and gradients that leave in time."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from graphlift import buckets, pieces

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    command = [sys.executable, "-W", "ignore", "-m", "tests.aot.distributed_worker"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), port], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert not any(rank.returncode for rank in ranks), outputs[0][1] + outputs[1][1]
    return outputs[0][0].splitlines()


@pytest.mark.parametrize(
    "kind",
    ["ddp of compiled", "compiled ddp", "compiled fsdp"]
    + ["static graph", "unused parameters", "mixed precision"],
)
def test_three_steps_are_equal_to_eager(lines: list[str], kind: str) -> None:
    assert f"equal: {kind}" in lines


@pytest.mark.parametrize("kind", ["ddp of compiled", "compiled ddp"])
def test_buckets_leave_while_the_backward_runs(lines: list[str], kind: str) -> None:
    (events,) = (line.removeprefix(f"{kind}: ").split() for line in lines if line.startswith(f"{kind}: "))
    assert events.count("piece") > 1
    last_piece = len(events) - 1 - events[::-1].index("piece")
    assert "bucket" in events[:last_piece], "no bucket left before the last piece of the backward started"


# -- cutting a graph ---------------------------------------------------------------------------------------


def _graph(
    module: nn.Module, x: torch.Tensor, residual: bool = False
) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """A chain of linear layers as capture writes it: parameters are inputs, nodes have values."""
    graph, inputs = fx.Graph(), [x]
    first = h = graph.placeholder("x")
    h.meta["val"] = value = x
    for k, layer in enumerate(module):
        w = graph.placeholder(f"w{k}")
        w.meta["val"] = layer.weight
        inputs.append(layer.weight)
        value = value @ layer.weight
        h = graph.call_function(torch.matmul, (h, w))
        h.meta["val"] = value
    if residual:
        h = graph.call_function(torch.add, (h, first))
        h.meta["val"] = value + x
    graph.output((h, h))
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for n in reversed(placeholders):
        next(iter(graph.nodes)).prepend(n)
    return fx.GraphModule(nn.Module(), graph), inputs


@pytest.mark.parametrize(("cap", "parts"), [(1, 4), (2 * 256, 2), (3 * 256, 2), (10**6, None)])
def test_a_graph_is_cut_where_buckets_are_full(cap: int, parts: int | None) -> None:
    layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(4))
    gm, inputs = _graph(layers, torch.randn(2, 8), residual=True)
    found = buckets.split(gm, inputs, (cap, cap))
    if parts is None:
        assert found is None
        return
    assert found is not None and len(found) == parts
    chain = pieces.Program(gm, found, lambda g, given: g.forward)
    for _ in range(2):
        for a, b in zip(chain(*inputs), gm(*inputs), strict=True):
            assert torch.equal(a, b)


def test_values_other_than_tensors_are_not_cut_apart() -> None:
    layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(4))
    gm, inputs = _graph(layers, torch.randn(2, 8))
    node = next(n for n in gm.graph.nodes if n.op == "call_function")
    with gm.graph.inserting_before(node):
        gm.graph.call_function(torch._C._set_grad_enabled, (False,))
    assert buckets.split(gm, inputs, (1, 1)) is None
