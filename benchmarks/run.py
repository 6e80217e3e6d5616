"""Measures graphlift beside eager and torch.compile: `python -m benchmarks.run [--models bert,mlp] [--quick]`.

Every figure comes from a process of its own with a time limit, so that nothing is warm that should be cold and one
failure costs one row. torch.compile runs with an empty Inductor cache for its first call and, to save the reader's
time, with what that left for its steady state. Writes benchmarks/RESULTS.md (a quick run only prints).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import children
from benchmarks.report import COMPILERS, markdown
from benchmarks.zoo import MODELS

ROOT = Path(__file__).resolve().parent.parent
MODES = ("inference", "training")
CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "GRAPHLIFT_CACHE_DIR")


def measure(caches: Path, timeout_s: float, **measurement: Any) -> dict[str, Any]:
    """Run one measurement in a fresh process; a failure or a timeout becomes {"error": why}."""
    environment = children.environment(**{name: str(caches / name.lower()) for name in CACHE_VARIABLES})
    environment.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    command = [sys.executable, "-m", "benchmarks.worker", json.dumps(measurement)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:.0f} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = (
            f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        )
        return {"error": f"{reason}: {lines[-1].strip() if lines else 'no message'}"}
    return json.loads(done.stdout.splitlines()[-1])


def say(started: float, what: str, result: dict[str, Any]) -> None:
    shown = {
        key: value
        for key, value in result.items()
        if key in ("first_s", "later_s", "median_s", "errors", "error")
    }
    print(
        f"[{time.perf_counter() - started:5.0f} s] {what}: {json.dumps(shown)}", file=sys.stderr, flush=True
    )


def run(
    models: list[str],
    compilers: list[str],
    modes: list[str],
    quick: bool,
    timeout_s: float,
    budget_s: float,
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """All figures, keyed as report.py reads them; ``save`` is given what there is after each model and mode."""
    started = time.perf_counter()
    size = "tiny" if quick else "full"
    least_rounds = 10 if quick else 7
    cold: dict[tuple[str, str, str], dict[str, Any]] = {}
    steady: dict[tuple[str, str], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="graphlift-bench-") as folder:
        shared = Path(folder)
        imported = measure(shared, 120, kind="import", repeats=5)
        say(started, "import", imported)
        overhead = measure(
            shared, timeout_s, kind="overhead", compilers=compilers, rounds=10 if quick else 40, calls=500
        )
        say(started, "call overhead", overhead)
        for model in models:
            for mode in modes:
                common = {"model": model, "size": size, "training": mode == "training"}
                caches = shared / f"{model}-{mode}"
                for name in compilers:
                    entry = measure(caches, timeout_s, kind="cold", compiler=name, later_calls=3, **common)
                    cold[model, mode, name] = entry
                    say(started, f"{model} {mode}, first call, {name}", entry)
                entry = measure(
                    caches,
                    timeout_s,
                    kind="steady",
                    compilers=compilers,
                    budget_s=budget_s,
                    least_rounds=least_rounds,
                    **common,
                )
                steady[model, mode] = entry
                say(started, f"{model} {mode}, steady state", entry)
                save({"cold": cold, "steady": steady, "overhead": overhead, "import": imported})
    return {"cold": cold, "steady": steady, "overhead": overhead, "import": imported}


def chosen(text: str, known: tuple[str, ...], what: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise SystemExit(f"no {what} named {', '.join(unknown) or 'nothing'}; there are: {', '.join(known)}")
    return names


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", default=",".join(MODELS), help="comma-separated names from benchmarks/zoo.py"
    )
    parser.add_argument("--modes", default=",".join(MODES), help="inference, training or both")
    parser.add_argument("--compilers", default=",".join(COMPILERS), help="eager, graphlift, torch")
    parser.add_argument(
        "--quick", action="store_true", help="tiny models and few rounds; prints, writes no file"
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that one measurement may take")
    parser.add_argument(
        "--budget",
        type=float,
        help="seconds of interleaved steady-state calls a model and mode (20; quick: 2)",
    )
    parser.add_argument("--output", type=Path, help="where to write (default: benchmarks/RESULTS.md)")
    options = parser.parse_args(arguments)
    size = "tiny" if options.quick else "full"
    output = options.output or (None if options.quick else ROOT / "benchmarks" / "RESULTS.md")

    def save(figures: dict[str, Any]) -> None:
        if output is not None:  # an interrupted run keeps what it measured
            output.write_text(markdown(figures, size))

    figures = run(
        chosen(options.models, tuple(MODELS), "model"),
        chosen(options.compilers, COMPILERS, "compiler"),
        chosen(options.modes, MODES, "mode"),
        options.quick,
        options.timeout,
        options.budget or (2.0 if options.quick else 20.0),
        save,
    )
    print(markdown(figures, size) if output is None else f"wrote {output}")


if __name__ == "__main__":
    main()
