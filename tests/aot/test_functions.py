"""aot_function and aot_module: what compilers receive, and that calls behave as the function itself."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, fx

import graphlift
from graphlift import aot

aten = torch.ops.aten


class Seen:
    """A compiler that keeps the graphs it was given."""

    def __init__(self, boxed: bool = False) -> None:
        self.graphs: list[fx.GraphModule] = []
        self.boxed = boxed

    def __call__(self, graph: fx.GraphModule, example: list) -> object:
        self.graphs.append(graph)
        assert [tuple(e.shape) for e in example] == [
            tuple(n.meta["val"].shape) for n in graph.graph.nodes if n.op == "placeholder"
        ]
        if not self.boxed:
            return graph.forward

        def run(args: list) -> tuple:
            return graph.forward(*args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def targets(graph: fx.GraphModule) -> list:
    return [n.target for n in graph.graph.nodes if n.op == "call_function"]


def f(x: Tensor, w: dict[str, Tensor], scale: float = 1.0) -> dict[str, object]:
    h = x @ w["a"]
    h.mul_(scale)
    return {"y": h.sin(), "parts": [h.sum(), "text"]}


@pytest.mark.parametrize("boxed", [False, True])
def test_results_and_gradients_are_those_of_the_function(boxed: bool) -> None:
    fw, bw = Seen(boxed), Seen(boxed)
    compiled = graphlift.aot_function(f, fw, bw)
    for scale in (2.0, 3.0, 2.0):
        x = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
        w = {"a": torch.randn(4, 4, dtype=torch.double, requires_grad=True)}
        got, want = compiled(x, w, scale=scale), f(x, w, scale=scale)
        assert got["parts"][1] == "text" and torch.equal(got["y"], want["y"])
        for a, b in zip(
            torch.autograd.grad(got["y"].sum() + got["parts"][0], [x, w["a"]]),
            torch.autograd.grad(want["y"].sum() + want["parts"][0], [x, w["a"]]),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert len(fw.graphs) == len(bw.graphs) == 2  # one for each scale
    assert compiled.__name__ == "f"


def test_graphs_are_functional_and_every_step_prints() -> None:
    fw = Seen()
    compiled = graphlift.aot_function(f, fw)
    x = torch.randn(3, 4, requires_grad=True)
    compiled(x, {"a": torch.randn(4, 4)}, 2.0)["y"].sum().backward()
    assert not any(t._schema.is_mutable for g in fw.graphs for t in targets(g) if hasattr(t, "_schema"))
    region = compiled.regions[0]
    assert region.fallback_reason is None
    assert aten.mul_.Tensor in targets(region.forms["traced"])
    assert aten.mul_.Tensor not in targets(region.forms["joint"])
    text = compiled.print_readable()
    for name in ("traced", "joint", "forward", "backward"):
        assert f"# {name}\n" in text


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:2],
        lambda x: x.double(),
        lambda x: x.t().contiguous().t(),
        lambda x: x.detach().requires_grad_(),
        lambda x: torch.nn.Parameter(x),
    ],
    ids=["shape", "dtype", "stride", "requires_grad", "class"],
)
def test_another_kind_of_call_is_traced_anew(change) -> None:
    compiled = graphlift.aot_function(lambda x: (x * 2).cumsum(0), Seen())
    x = torch.randn(3, 4)
    for y in (x, change(x), x, change(x)):
        torch.testing.assert_close(compiled(y), (y * 2).cumsum(0))
        assert compiled(y).requires_grad == y.requires_grad
    assert len(compiled.regions) == 2


def test_modes_and_shared_memory_belong_to_the_kind_of_call() -> None:
    def g(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a + b

    compiled = graphlift.aot_function(g, Seen())
    for make in (lambda: (torch.zeros(4), torch.zeros(4)), lambda: (torch.zeros(4),) * 2):
        got, want = compiled(*make()), g(*make())
        assert torch.equal(got, want)
    whole, same = torch.zeros(5), torch.zeros(5)
    assert torch.equal(compiled(whole[:4], whole[1:]), g(same[:4], same[1:])) and torch.equal(whole, same)
    with torch.no_grad():
        compiled(torch.zeros(4), torch.zeros(4))
    assert len(compiled.regions) == 4


def test_a_custom_partitioner_and_decompositions_are_used() -> None:
    fw = Seen()
    sinc = {aten.sinc.default: lambda x: torch.where(x == 0, 1.0, torch.sin(x * torch.pi) / (x * torch.pi))}
    compiled = graphlift.aot_function(
        lambda x: x.sin().sinc().exp(), fw, partitioner=aot.save_all, decompositions=sinc
    )
    x = torch.randn(5, dtype=torch.double, requires_grad=True)
    y = compiled(x)
    torch.testing.assert_close(y, x.sin().sinc().exp())
    assert aten.sinc.default not in targets(fw.graphs[0]) and aten.where.self in targets(fw.graphs[0])
    assert compiled.regions[0].recomputed == 0


def test_what_cannot_be_traced_runs_as_it_is_and_says_why(recwarn) -> None:
    compiled = graphlift.aot_function(lambda x: x + 1 if x.sum() > 0 else x - 1, Seen())
    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(compiled(x), x + x.sign())
    assert "value" in compiled.regions[0].fallback_reason


def test_errors_are_those_of_the_function() -> None:
    compiled = graphlift.aot_function(lambda x: x @ torch.ones(7), Seen())
    with pytest.raises(RuntimeError, match="size mismatch"):
        compiled(torch.ones(3, 4))


def test_a_module_shares_its_state() -> None:
    torch.manual_seed(0)
    eager = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    module = copy.deepcopy(eager)
    fw = Seen()
    compiled = graphlift.aot_module(module, fw)
    for mode in (True, False, True):
        eager.train(mode)
        module.train(mode)
        x = torch.randn(5, 4)
        got, want = compiled(x), eager(x)
        torch.testing.assert_close(got, want)
        got.sum().backward()
        want.sum().backward()
    for (name, a), b in zip(module.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    for a, b in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert {id(p) for p in compiled.parameters()} == {id(p) for p in module.parameters()}
