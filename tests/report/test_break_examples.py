"""Each reason's example breaks for that reason and no other, and its remedied version does not break at all."""

from __future__ import annotations

import linecache
import sys
from typing import Any

import pytest
import torch

import graphlift
from graphlift.capture import handler
from graphlift.capture.reasons import REASONS, BreakReason
from graphlift.options import CompileOptions

pytestmark = pytest.mark.filterwarnings("ignore")
#: Faults of graphlift itself have no example, nor has what only newer versions of Python compile to.
OURS = frozenset({"internal-error", "unsupported-opcode"})
EXAMPLES = [code for code in REASONS if code not in OURS]


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> list[BreakReason]:
    """Every reason given while the test runs."""
    seen: list[BreakReason] = []

    def region(self: Any, region: Any) -> None:
        seen.extend([region.break_reason] if region.break_reason is not None else [])

    def event(self: Any, event: Any) -> None:
        seen.extend([event.reason] if event.reason is not None else [])

    monkeypatch.setattr(CompileOptions, "region", region)
    monkeypatch.setattr(CompileOptions, "event", event)
    graphlift.reset()
    return seen


def run(program: str, name: str) -> None:
    filename = f"{name}.py"
    linecache.cache[filename] = (len(program), None, program.splitlines(keepends=True), filename)
    sys.modules.pop("colorsys", None)  # for the example of a first import
    with torch.random.fork_rng():
        exec(
            compile(program, filename, "exec"),
            {"torch": torch, "graphlift": graphlift, "__name__": name},
        )


@pytest.mark.parametrize("code", EXAMPLES)
def test_example_gives_the_reason(code: str, reasons: list[BreakReason]) -> None:
    assert REASONS[code].example, f"the row of {code!r} has no example"
    run(REASONS[code].example, "example")
    assert {reason.code for reason in reasons} == {code}, [str(reason) for reason in reasons]


@pytest.mark.parametrize("code", EXAMPLES)
def test_remedy_helps(code: str, reasons: list[BreakReason]) -> None:
    assert REASONS[code].fixed, f"the row of {code!r} has no remedied program"
    run(REASONS[code].fixed, "fixed")
    assert reasons == [], [str(reason) for reason in reasons]


def test_fault_of_ours_is_told(reasons: list[BreakReason], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise LookupError("a fault")

    monkeypatch.setattr(handler, "capture_region", fails)
    with graphlift.config.patch(strict=False):
        compiled = graphlift.compile(lambda x: x + 1, backend="eager")
        assert [compiled(1), compiled(2), compiled(3.0)] == [2, 3, 4.0]  # told once
    assert [reason.code for reason in reasons] == ["internal-error"] and "a fault" in str(reasons[0])
