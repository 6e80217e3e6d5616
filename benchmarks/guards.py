"""Times a call whose guards pass and whose graph does nothing: `python -m benchmarks.guards [--output FILE]`.

For a function of 3 tensors and 2 scalars, BERT-base, and a convolutional net of some 200 modules, under graphlift and
torch.compile in one run: the two take turns, and the median of the rounds counts. The backend returns tensors made
beforehand, so that only dispatch and guards are measured; the time of calling the bare backend is shown too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import graphlift
from benchmarks.zoo import MODELS

ROUNDS = 9


class Empty:
    """A backend whose compiled graph returns what the graph gave at its first call."""

    def __init__(self) -> None:
        self.graphs = 0
        self.runners: list[Callable[..., Any]] = []

    def __call__(self, gm: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        made: list[Any] = []

        def run(*args: Any) -> Any:
            if not made:
                made.append(gm.forward(*args))
            return made[0]

        self.runners.append(run)
        return run


def scalars() -> tuple[Callable[..., Any], dict[str, Any]]:
    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, scale: float, count: int) -> torch.Tensor:
        return (a * scale + b) * count - c

    a, b, c = torch.randn(3, 8).unbind()
    return fn, {"a": a, "b": b, "c": c, "scale": 0.5, "count": 3}


def bert() -> tuple[Callable[..., Any], dict[str, Any]]:
    model = MODELS["bert"]
    return model.make("full").eval(), model.batch("full", 1)[0]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = nn.ReLU(inplace=True)
        self.drop = nn.Identity()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act2 = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.act1(self.bn1(self.conv1(x))))
        return self.act2(self.bn2(self.conv2(y)) + x)


def convolutional() -> tuple[Callable[..., Any], dict[str, Any]]:
    model = nn.Sequential(*(nn.Sequential(*(Block(8) for _ in range(6))) for _ in range(4)))
    return model.eval(), {"input": torch.randn(1, 8, 8, 8)}


CASES = {
    "3 tensors and 2 scalars": scalars,
    "BERT-base": bert,
    "convolutional net, 197 modules": convolutional,
}


def time_ns(call: Callable[[], Any], seconds: float) -> float:
    """Nanoseconds a call takes of its thread's CPU time, over about `seconds`: what else runs does not count."""
    count = 1
    while True:
        start = time.thread_time_ns()
        for _ in range(count):
            call()
        took = time.thread_time_ns() - start
        if took > seconds * 1e9:
            return took / count
        count = max(count * 2, int(count * seconds * 1e9 / max(took, 1)))


def measure(name: str, seconds: float) -> dict[str, Any]:
    fn, inputs = CASES[name]()
    backends = {"graphlift": Empty(), "torch.compile": Empty()}
    compiled = {
        "graphlift": graphlift.compile(fn, backend=backends["graphlift"]),
        "torch.compile": torch.compile(fn, backend=backends["torch.compile"]),
    }
    explained = graphlift.explain(fn, backend="eager")(**inputs)
    calls = {label: (lambda c=c: c(**inputs)) for label, c in compiled.items()}
    with torch.no_grad():
        for call in calls.values():
            call()
            call()
        times: dict[str, list[float]] = {label: [] for label in calls}
        for _ in range(ROUNDS):
            for label, call in calls.items():
                times[label].append(time_ns(call, seconds))
    return {
        "name": name,
        "guards": len(explained.guards),
        "graphs": {label: b.graphs for label, b in backends.items()},
        **{label: statistics.median(values) / 1000 for label, values in times.items()},
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| call of an empty graph | guards | graphlift, us | torch.compile, us | torch.compile / graphlift |",
        "|---|---|---|---|---|",
    ]
    for r in rows:
        ratio = r["torch.compile"] / r["graphlift"]
        lines.append(
            f"| {r['name']} | {r['guards']} | {r['graphlift']:.2f} | {r['torch.compile']:.2f} | {ratio:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.1, help="of one round of one compiler")
    parser.add_argument("--cases", default=";".join(CASES), help="separated by semicolons")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = [measure(name, options.seconds) for name in options.cases.split(";")]
    text = markdown(rows)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
