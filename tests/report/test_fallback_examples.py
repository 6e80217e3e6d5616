"""Each reason for leaving a graph to eager: its example shows the code, its remedied version has no fallback."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import graphlift
from graphlift import aot, record
from graphlift.aot.reasons import FALLBACKS
from graphlift.capture.reasons import REASONS
from tests.report.test_break_examples import run

pytestmark = pytest.mark.filterwarnings("ignore")
EXAMPLES = [code for code, row in FALLBACKS.items() if row.example]
FIXED = [code for code, row in FALLBACKS.items() if row.fixed]
#: Reached only by graphs that capture does not make, or where capture breaks before: no program of its own.
WITHOUT_EXAMPLE = {
    "autocast-left", "resized", "view-history", "outside-tensor", "operator-limit", "graph-raises", "graph-form",
}  # fmt: skip


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
    assert set(FALLBACKS) - set(EXAMPLES) == WITHOUT_EXAMPLE and not set(FALLBACKS) & set(REASONS)
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


#: Graphs made by other means, with their input, and what is told of each.
GRAPHS: dict[str, tuple[Any, torch.Tensor, str]] = {
    "operator-limit": (lambda x: torch.geqrf(x), torch.eye(3), "geqrf"),
    "graph-raises": (lambda x: torch.mm(x, x), torch.ones(2, 3), "RuntimeError"),
}


@pytest.mark.parametrize("code", GRAPHS)
def test_particulars_are_told(code: str) -> None:
    program, x, particulars = GRAPHS[code]
    gm = torch.fx.symbolic_trace(program)
    compiled = aot.compile_graph(gm, [x], fw_compiler=aot.interpret)
    assert compiled.fallback_reason is not None and compiled.fallback_reason.startswith(f"{code}: ")
    assert particulars in compiled.fallback_reason
