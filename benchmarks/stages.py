"""Times capture and AOT autograd of BERT-base alone: `python -m benchmarks.stages [--output FILE]`.

Each figure comes from a fresh process. Capture is the first call through backend "eager" less a call of the eager
model; AOT autograd (trace, functionalize, partition, both graphs) is what backend "aot_eager" takes beyond that for the
first training step. Both compilers run in turn, for several rounds; medians count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import children

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("graphlift", "torch.compile")
MODEL, BATCH = "bert", 1


def child(compiler: str, backend: str, training: bool) -> dict[str, float]:
    """One cold first call in this process."""
    import torch

    import graphlift
    from benchmarks.zoo import MODELS

    model = MODELS[MODEL]
    module = model.make("full").train(training)
    inputs, targets = model.batch("full", BATCH)

    def step(run: Any) -> None:
        if not training:
            with torch.no_grad():
                run(**inputs)
        else:
            model.training_loss(run, inputs, targets).backward()

    step(module)
    start = time.perf_counter()
    step(module)
    eager = time.perf_counter() - start
    module.zero_grad(set_to_none=True)
    start = time.perf_counter()
    if compiler == "graphlift":
        compiled = graphlift.compile(module, backend=backend)
    else:
        compiled = torch.compile(module, backend=backend)
    step(compiled)
    return {"first_s": time.perf_counter() - start, "eager_s": eager}


def measure(compiler: str, backend: str, training: bool) -> float:
    """Seconds of the first call beyond an eager call."""
    environment = children.environment()
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.stages", "--child"]
    command.append(json.dumps([compiler, backend, training]))
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    return float(result["first_s"] - result["eager_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(*json.loads(options.child))))
        return
    cases = (("eager", False), ("eager", True), ("aot_eager", True))
    times: dict[tuple[str, str, bool], list[float]] = {}
    for _ in range(options.rounds):
        for backend, training in cases:
            for compiler in COMPILERS:
                times.setdefault((compiler, backend, training), []).append(
                    measure(compiler, backend, training)
                )
    median = {key: statistics.median(values) for key, values in times.items()}
    rows = {
        "capture, inference": {c: median[c, "eager", False] for c in COMPILERS},
        "capture, training": {c: median[c, "eager", True] for c in COMPILERS},
        "AOT autograd, training": {
            c: median[c, "aot_eager", True] - median[c, "eager", True] for c in COMPILERS
        },
    }
    lines = [
        "| BERT-base, cold | graphlift, s | torch.compile, s | torch.compile / graphlift |",
        "|---|---|---|---|",
    ]
    for name, row in rows.items():
        ours, theirs = (row[c] for c in COMPILERS)
        lines.append(f"| {name} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.1f} |")
    text = "\n".join(lines)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
