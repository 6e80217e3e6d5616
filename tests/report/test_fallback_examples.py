"""Each reason for leaving a graph to eager: its example shows the code, its remedied version has no fallback."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import graphlift
from graphlift import aot, record
from graphlift.aot.reasons import FALLBACKS
from graphlift.capture import torch_contexts
from graphlift.capture.reasons import REASONS
from tests.report.test_break_examples import run

pytestmark = pytest.mark.filterwarnings("ignore")
EXAMPLES = [code for code, row in FALLBACKS.items() if row.example]
FIXED = [code for code, row in FALLBACKS.items() if row.fixed]


@pytest.fixture
def fallbacks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `explain` reported while the test runs, or the records say where the program raised."""
    seen: list[str] = []
    explain = graphlift.explain

    def told(fn: Any) -> Any:
        def call(*args: Any) -> Any:
            with record.recording() as records:
                try:
                    report = explain(fn)(*args)
                except Exception:
                    seen.extend(f"aot, captured graph: {f.error}" for r in records for f in r.fallbacks)
                    raise
            seen.extend(report.fallbacks)
            return report

        return call

    monkeypatch.setattr(graphlift, "explain", told)
    graphlift.reset()
    return seen


@pytest.mark.parametrize("code", EXAMPLES)
def test_example_shows_the_code(code: str, fallbacks: Sequence[str]) -> None:
    run(FALLBACKS[code].example, "example")
    start = f"aot, captured graph: {code}: {FALLBACKS[code].text}"
    assert fallbacks and all(text.startswith(start) for text in fallbacks), fallbacks


@pytest.mark.parametrize("code", FIXED)
def test_remedy_helps(code: str, fallbacks: Sequence[str]) -> None:
    run(FALLBACKS[code].fixed, "fixed")
    assert fallbacks == []


def test_rows_are_complete() -> None:
    assert set(FALLBACKS) == {*EXAMPLES, *GRAPHS} and not set(FALLBACKS) & set(REASONS)
    for code, row in FALLBACKS.items():
        assert code == row.code and code == code.lower() and " " not in code
        assert row.text[0].islower() and row.why.endswith(".") and row.remedy.endswith(".")


def test_only_registered_codes_are_raised() -> None:
    raised = set()
    for file in Path(inspect.getfile(aot)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("FallBack", "_refuse"):
                assert isinstance(node.args[0], (ast.Constant, ast.Name)), f"{file}:{node.lineno}"
                raised.update([node.args[0].value] if isinstance(node.args[0], ast.Constant) else [])
    assert raised == set(FALLBACKS)
    with pytest.raises(KeyError):
        aot.FallBack("no-such-code")


def _graph(*calls: tuple[Callable[..., Any], tuple[Any, ...]]) -> fx.GraphModule:
    """The calls one after another, the last of which gives the result; "x": the input."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = [graph.call_function(fn, tuple(x if arg == "x" else arg for arg in args)) for fn, args in calls]
    graph.output((made[-1],))
    return fx.GraphModule(torch.nn.Module(), graph)


class _Constant(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.ones(3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table[1:], x + 1


#: Codes of graphs that capture does not make, or before which it breaks: a graph, its input, and what is told of it.
GRAPHS: dict[str, tuple[Callable[[], fx.GraphModule], torch.Tensor, str]] = {
    "operator-limit": (lambda: _graph((torch.geqrf, ("x",))), torch.eye(3), "geqrf"),
    "graph-raises": (lambda: _graph((torch.mm, ("x", "x"))), torch.ones(2, 3), "RuntimeError"),
    "graph-form": (
        lambda: fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU())),
        torch.ones(2),
        "submodule",
    ),
    "inference-part": (
        lambda: _graph((torch_contexts.enter_inference, (True,)), (torch.relu, ("x",))),
        torch.ones(2),
        "",
    ),
    "outside-tensor": (lambda: fx.symbolic_trace(_Constant()), torch.ones(3), "constant"),
    "autocast-left": (
        lambda: _graph((torch.set_autocast_enabled, ("cpu", True)), (torch.mm, ("x", "x"))),
        torch.eye(3),
        "",
    ),
}


@pytest.mark.parametrize("code", GRAPHS)
def test_particulars_are_told(code: str) -> None:
    make, x, particulars = GRAPHS[code]
    compiled = aot.compile_graph(make(), [x], fw_compiler=aot.interpret)
    reason = compiled.fallback_reason
    assert (
        reason is not None and reason.startswith(f"{code}: {FALLBACKS[code].text}") and particulars in reason
    )
