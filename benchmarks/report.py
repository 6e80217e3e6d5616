"""Turns a run's figures into benchmarks/RESULTS.md.

In: the figures as `run.py` collects them. Out: markdown. A measurement that failed is a row that says how.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Figures = Mapping[str, Any]
COMPILERS = ("eager", "graphlift", "torch")
TITLES = {"eager": "eager", "graphlift": "graphlift", "torch": "torch.compile"}


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def machine() -> list[str]:
    """What the figures depend on; no names of machines or people."""
    import torch

    packages = []
    for name in ("torch", "llvmlite", "transformers", "numpy"):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            packages.append(f"{name} absent")
    return [
        f"- {cpu_model()}, {os.cpu_count()} cores used, {memory_gib():.0f} GiB of memory, "
        f"{torch.backends.cpu.get_cpu_capability()}",
        f"- {platform.system()} on {platform.machine()}, CPython {platform.python_version()}, {', '.join(packages)}",
        f"- {datetime.date.today().isoformat()}, {torch.get_num_threads()} threads",
    ]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def figure(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    scale, digits = {"s": (1, 2), "ms": (1e3, 2), "µs": (1e6, 1), "MiB": (2**-20, 0)}[unit]
    return f"{value * scale:,.{digits}f}"


def ratio(a: float | None, b: float | None) -> str:
    return "–" if not a or not b else f"{a / b:.2f}×"


def cell(entry: Figures | None, key: str, unit: str) -> tuple[float | None, str]:
    if entry is None:
        return None, "–"
    if "error" in entry:
        return None, "**failed**"
    return entry[key], figure(entry[key], unit)


def cold_table(
    cold: Mapping[tuple[str, str, str], Figures], key: str, unit: str, titles: list[str]
) -> list[str]:
    rows = []
    for model, mode in dict.fromkeys((model, mode) for model, mode, _ in cold):
        cells = {name: cell(cold.get((model, mode, name)), key, unit) for name in COMPILERS}
        last = ratio(cells["torch"][0], cells["graphlift"][0])
        rows.append([model, mode, *(cells[name][1] for name in COMPILERS), last])
    return table(["model", "mode", *(TITLES[name] for name in COMPILERS), *titles], rows)


def steady_table(steady: Mapping[tuple[str, str], Figures]) -> list[str]:
    rows = []
    for (model, mode), entry in steady.items():
        medians = entry.get("median_s", {})
        cells = [
            "**failed**"
            if name in entry.get("errors", {}) or "error" in entry
            else figure(medians.get(name), "ms")
            for name in COMPILERS
        ]
        difference = entry.get("difference", {}).get("graphlift")
        rows.append(
            [
                model,
                mode,
                *cells,
                ratio(medians.get("eager"), medians.get("graphlift")),
                ratio(medians.get("torch"), medians.get("graphlift")),
                "–" if difference is None else f"{difference:.1e}",
                str(entry.get("rounds", "–")),
            ]
        )
    head = ["model", "mode", *(TITLES[name] for name in COMPILERS)]
    return table(
        [*head, "eager ÷ ours", "torch.compile ÷ ours", "largest difference to eager", "rounds"], rows
    )


def failures(figures: Figures) -> list[str]:
    rows = []
    for (model, mode, name), entry in figures["cold"].items():
        if "error" in entry:
            rows.append([model, mode, f"first call, {TITLES[name]}", entry["error"]])
    for (model, mode), entry in figures["steady"].items():
        if "error" in entry:
            rows.append([model, mode, "steady state", entry["error"]])
        rows += [
            [model, mode, f"steady state, {TITLES[n]}", text] for n, text in entry.get("errors", {}).items()
        ]
    for kind in ("overhead", "import"):
        entry = figures[kind]
        texts = (
            [entry["error"]]
            if "error" in entry
            else [f"{n}: {t}" for n, t in entry.get("errors", {}).items()]
        )
        rows += [["–", "–", kind, text] for text in texts]
    rows = [[*row[:3], row[3].replace("|", "\\|").replace("\n", " ")[:400]] for row in rows]
    return ["## What failed", "", *table(["model", "mode", "measurement", "why"], rows)] if rows else []


def markdown(figures: Figures, size: str) -> str:
    """The whole report."""
    overhead = figures["overhead"].get("median_s", {})
    added = figures["import"].get("median_s")
    lines = [
        "# Results",
        "",
        "Written by `make bench`; how each figure is taken is in `benchmarks/run.py` and `benchmarks/worker.py`.",
        "Every row compares the three on the same machine in the same run. Ratios above 1 are in graphlift's favour.",
        "",
        "## Machine",
        "",
        *machine(),
        f'- model sizes: "{size}" of `benchmarks/zoo.py`',
        "",
        "## First call, cold (seconds)",
        "",
        "A fresh process with empty caches: compiling and the first call together; in training the first whole step.",
        "",
        *cold_table(figures["cold"], "first_s", "s", ["torch.compile ÷ ours"]),
        "## Steady state (milliseconds)",
        "",
        "Median of interleaved calls in one process. A training step is forward, loss, backward and AdamW.",
        "",
        *steady_table(figures["steady"]),
        "## Peak memory (MiB)",
        "",
        "Largest resident size of the process of the first call, Python, torch and model included; compilers that run",
        "as child processes are not counted.",
        "",
        *cold_table(figures["cold"], "peak_bytes", "MiB", ["torch.compile ÷ ours"]),
        "## Time of one call on a two-layer MLP, batch 1 (microseconds)",
        "",
        *table(
            (TITLES[name] for name in COMPILERS), [[figure(overhead.get(name), "µs") for name in COMPILERS]]
        ),
        "## Import",
        "",
        f"`import graphlift` adds {figure(added, 'ms')} ms to `import torch`.",
        "",
        *failures(figures),
    ]
    return "\n".join(lines).rstrip() + "\n"
