"""`explain`: counts, reasons, state, and its printed forms."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import graphlift
from graphlift.errors import GraphBreakError, NotCallable

X = torch.linspace(-1, 1, 6)


def one(x: torch.Tensor) -> torch.Tensor:
    return x.sin().cos() + 1


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print("value")
    return y.cos() * 2


def test_one_graph() -> None:
    told = graphlift.explain(one, backend="eager")(X)
    assert (told.graph_count, told.graph_break_count, told.op_count) == (1, 0, 3)
    assert sum(told.ops_per_graph[0].values()) == 3 and told.guards
    assert told.compile_time_s["capture"] > 0 and told.run_time_s > 0
    torch.testing.assert_close(told.result, one(X))
    assert told.graphs[0].graph.nodes and not told.break_reasons and not told.fallbacks


def test_breaks_name_the_users_line() -> None:
    told = graphlift.explain(broken, backend="eager")(X)
    assert told.graph_count == 2 and told.graph_break_count >= 1
    reason = told.break_reasons[0]
    assert reason.filename == __file__
    assert reason.lineno == broken.__code__.co_firstlineno + 2
    assert "print(" in reason.user_stack()


def test_a_break_in_a_loop_is_one_place() -> None:
    def loop(x: torch.Tensor) -> torch.Tensor:
        for step in range(5):
            x = x + step
            print("step")
        return x

    told = graphlift.explain(loop, backend="eager")(X)
    assert told.graph_break_count == len(told.break_sites) == 1
    site = told.break_sites[0]
    assert (
        site.times == len(told.break_reasons) > 1 and site.reason.lineno == loop.__code__.co_firstlineno + 3
    )
    assert str(told).count('print("step")') == 1 and site.reason.reason.remedy[:20] in str(told)
    assert "handover" not in str(told) and "stack0" not in str(told)


def test_the_stack_is_the_users() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x.max().item()

    told = graphlift.explain(Net(), backend="eager")(X)
    assert [frame.name.rpartition(".")[2] for frame in told.break_reasons[0].user_frames] == ["forward"]


def test_text_and_html_tell_it() -> None:
    told = graphlift.explain(broken, backend="eager")(X)
    text = str(told)
    for part in (
        "broken: 2 graphs",
        "Graphs",
        "Graph breaks",
        "Compile time",
        "Guards",
        "what to do",
        "capture",
    ):
        assert part in text, text
    html = told._repr_html_()
    assert html.count("<table>") >= 4 and "<details>" in html and "broken" in html
    assert str(graphlift.explain(lambda: 3, backend="eager")()).startswith("test_text_and_html_tell_it")


def test_state_is_left_as_one_eager_call_leaves_it() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.seen: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(len(x))
            return nn.functional.dropout(self.norm(x), 0.5)

    net = Stateful()
    other = copy.deepcopy(net)
    x = torch.randn(4, 3)
    torch.manual_seed(1)
    expected = other(x)
    torch.manual_seed(1)
    told = graphlift.explain(net, backend="eager")(x)
    torch.testing.assert_close(told.result, expected)
    assert net.seen == [4]
    torch.testing.assert_close(net.state_dict(), other.state_dict())


def test_entries_of_a_compiled_function_are_neither_used_nor_changed() -> None:
    compiled_graphs: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        compiled_graphs.append(gm)
        return gm.forward

    compiled = graphlift.compile(one, backend=backend)
    compiled(X)
    told = graphlift.explain(compiled)(X)
    assert told.graph_count == 1 and len(compiled_graphs) == 2 and told.backend == "backend"
    compiled(X)
    assert len(compiled_graphs) == 2


def test_compiled_module_and_method() -> None:
    net = nn.Sequential(nn.Linear(6, 2), nn.ReLU())
    for target in (net, graphlift.compile(net, backend="eager"), net.forward):
        told = graphlift.explain(target, backend="eager")(X)
        assert told.graph_count == 1 and told.op_count == 2
        torch.testing.assert_close(told.result, net(X))


def test_recompiles_are_told() -> None:
    def inner(x: torch.Tensor, n: int) -> torch.Tensor:
        graphlift.graph_break()
        return x * n

    def outer(x: torch.Tensor) -> torch.Tensor:
        for n in (2, 3, 4):
            x = inner(x, n)
        return x

    told = graphlift.explain(outer, backend="eager")(X)
    torch.testing.assert_close(told.result, X * 24)
    assert told.graph_count >= 3


def test_errors() -> None:
    with pytest.raises(NotCallable):
        graphlift.explain(3)
    with pytest.raises(GraphBreakError):
        graphlift.explain(broken, backend="eager", fullgraph=True)(X)

    def raises(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        graphlift.explain(raises, backend="eager")(X)


def test_auto_backend_tells_kernels_and_stages() -> None:
    told = graphlift.explain(one)(X)
    torch.testing.assert_close(told.result, one(X))
    assert {"capture", "aot", "lower", "codegen"} <= set(told.compile_time_s)
    assert any("fused kernels" in name for name in told.kernels), told.kernels
    assert "Generated code" in str(told)
