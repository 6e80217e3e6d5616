"""Both ways between graphlift and TorchDynamo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import graphlift
from graphlift.backends.bridge import without_fakes
from graphlift.backends.dynamo import Specialising, graphlift_backend
from graphlift.errors import InvalidOption

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def test_our_capture_feeds_a_dynamo_backend() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.GELU())
    compiled = graphlift.compile(net, backend="aot_eager_decomp_partition")
    out = compiled(X)
    torch.testing.assert_close(out, net(X))
    out.sum().backward()
    grad = net[0].weight.grad.clone()
    net.zero_grad()
    net(X).sum().backward()
    torch.testing.assert_close(grad, net[0].weight.grad)


def test_inductor_compiles_our_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1) + 1

    compiled = graphlift.compile(f, backend="inductor")
    torch.testing.assert_close(compiled(X), f(X))


def test_inductor_is_not_given_what_it_would_not_see() -> None:
    def swap(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.data = y
        y.data = torch.zeros(0)
        return x * 2

    compiled = graphlift.compile(swap, backend="inductor")
    for _ in range(2):
        x, y = torch.ones(3), torch.full((3,), 2.0)
        assert torch.equal(compiled(x, y), torch.full((3,), 4.0))
        assert x.tolist() == [2.0] * 3 and y.tolist() == []


def test_inductor_options_are_checked_by_inductor() -> None:
    with pytest.raises(InvalidOption, match="no_such_option"):
        graphlift.compile(lambda x: x, backend="inductor", options={"no_such_option": 1})


def test_graph_given_away_has_no_fakes_of_ours() -> None:
    gm = torch.fx.symbolic_trace(lambda x: torch.sin(x) + 1)
    for node in gm.graph.nodes:
        node.meta = {"val": object(), "stack_trace": "here"}
    copied = without_fakes(gm)
    assert all(set(node.meta) == {"stack_trace"} for node in copied.graph.nodes)
    torch.testing.assert_close(copied(X), X.sin() + 1)


def test_entry_point_is_registered() -> None:
    from importlib import metadata

    entries = {e.name: e.value for e in metadata.entry_points(group="torch_dynamo_backends")}
    assert entries.get("graphlift") == "graphlift.backends.dynamo:graphlift_backend"


@pytest.fixture
def through_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_torch_compile_with_our_backend(through_dynamo: None) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    compiled = torch.compile(net, backend="graphlift")
    for rows in (4, 4, 7, 9):
        x = torch.randn(rows, 3)
        out = compiled(x)
        torch.testing.assert_close(out, net(x))
        net.zero_grad()
        out.square().sum().backward()
        grads = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        net(x).square().sum().backward()
        torch.testing.assert_close(grads, [p.grad for p in net.parameters()])


def test_torch_compile_dynamic_with_options(through_dynamo: None) -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.sum(0) * n + x.shape[0]

    compiled = torch.compile(f, backend="graphlift", dynamic=True, options={"backend": "aot_eager"})
    for rows, n in ((4, 2), (5, 3), (6, 2), (4, 2)):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x, n), f(x, n))


def test_specialising_stops_at_the_limit() -> None:
    gm = torch.fx.symbolic_trace(lambda n, x: (x * n,))
    compiled: list[Any] = []

    def inner(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    run = Specialising(gm, inner)
    with graphlift.config.patch(cache_size_limit=2):
        for n in (2, 3, 2, 4, 5):
            torch.testing.assert_close(run(n, X)[0], X * n)
    assert len(compiled) == 2


def test_direct_call_with_real_inputs() -> None:
    gm = torch.fx.symbolic_trace(lambda x: (torch.sin(x),))
    torch.testing.assert_close(graphlift_backend(gm, [X])(X)[0], X.sin())


@pytest.mark.parametrize("inner", ["function", "module"])
def test_torch_compile_leaves_our_callables_alone(inner: str, through_dynamo: None) -> None:
    net = nn.Linear(3, 3)
    ours = graphlift.compile(net if inner == "module" else lambda x: (x * 2).relu())
    graphs: list[int] = []

    def count(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(sum(node.op == "call_function" for node in gm.graph.nodes))
        return gm.forward

    outer = torch.compile(lambda x: ours(x) + 1, backend=count)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(outer(X), ours(X) + 1)
            torch.testing.assert_close(torch.compile(ours, backend=count)(X), ours(X))
    # torch 2.14 leaves the function around a compiled module of ours to eager, as a whole.
    assert graphs == [1] or (inner == "module" and not graphs)
