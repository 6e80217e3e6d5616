"""The text of graphs, guards and replacements, kept in golden/ and read in review; `--update-golden` rewrites it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphlift
from graphlift.capture import handler
from graphlift.capture.region import Region

GOLDEN = Path(__file__).parent / "golden"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = 2
        self.calls = 0

    def forward(self, x: Tensor, residual: bool = True) -> Tensor:
        self.calls += 1
        y = torch.relu(self.linear(x)) * self.scale
        return x + y if residual else y


def effects(x: Tensor, items: list, table: dict) -> Any:
    items.append(x * 2)
    table["n"] = len(items)
    made = [x + 1]
    return made, {"same": made, "shape": tuple(x.shape)}, lambda: made


def broken(x: Tensor, n: int) -> Any:
    with torch.no_grad():
        y = x * n
        for i in range(2):
            y = y + i
            print(end="")
    return y


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "module": (Layer(), lambda: (torch.ones(2, 3),)),
    "effects": (effects, lambda: (torch.ones(2), [1], {})),
    "broken": (broken, lambda: (torch.ones(2), 3)),
}


def text_of(region: Region) -> str:
    """One region as text, without what changes from run to run."""
    parts = [f"# {region.kind} region of {region.fn_name}"]
    if region.break_reason is not None:
        parts.append(f"# then: {region.break_reason.headline()}")
    parts += ["", "## guards", *(guard.describe() for guard in region.guards)]
    if region.graph is not None:
        parts += ["", "## graph", region.graph.code.strip()]
    parts += ["", "## what runs", region.source_text.rstrip()]
    return re.sub(r"0x[0-9a-f]+|(?<=const_)\w+_\d+", "…", "\n".join(parts)) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    regions: list[Region] = []
    capture = handler.capture_region

    def keep(*args: Any) -> Region:
        regions.append(capture(*args))
        return regions[-1]

    monkeypatch.setattr(handler, "capture_region", keep)
    graphlift.reset()
    fn, arguments = CASES[name]
    graphlift.compile(fn, backend="eager")(*arguments())
    graphlift.reset()
    text = "\n\n".join(text_of(region) for region in regions)
    path = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"differs from {path}; look, then run with --update-golden"
