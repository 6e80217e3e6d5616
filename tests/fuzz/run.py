"""`python -m tests.fuzz.run --seed S --count N`: random programs, compiled against eager; found faults are shrunk.

Out: one line per fault with the seed, the difference and a self-contained program in which it still happens.
Exit status: 0 where all programs ran as in eager.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

os.environ.setdefault("GRAPHLIFT_STRICT", "1")

from .check import Difference, Slow, check
from .generator import Program, generate
from .shrink import shrink


def run_one(program: Program, backend: str | None = None) -> Difference | None:
    """The difference that a program shows, if any; programs that are slow in eager count as clean."""
    try:
        return check(program.source, backend or program.backend)
    except Slow:
        return None


def report(program: Program, difference: Difference, source: str, backend: str) -> str:
    return (
        f"# seed {program.seed}, backend {backend}\n"
        + "".join(f"# {line}\n" for line in str(difference).splitlines())
        + source
        + f"\n# compiled = graphlift.compile(program, backend={backend!r}); for call in CALLS: compiled(*call())\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="first seed; a fresh one if not given")
    parser.add_argument("--count", type=int, default=100, help="how many programs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--backend", default=None, help="the backend of all programs")
    parser.add_argument(
        "--shrink", type=float, default=20, help="seconds for shrinking a program; 0 for never"
    )
    parser.add_argument("--out", type=Path, default=None, help="folder for the programs that fail")
    parser.add_argument("--show", action="store_true", help="print each program before it runs")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    print(f"programs from seed {seed}", flush=True)
    failures, ran, start = 0, 0, time.monotonic()
    seen: dict[tuple[str, ...], int] = {}
    for number in range(seed, seed + options.count):
        if time.monotonic() - start > options.seconds:
            break
        program = generate(number)
        backend = options.backend or program.backend
        if options.show:
            print(program.source, flush=True)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "current").write_text(str(number))
        ran += 1
        difference = run_one(program, backend)
        if difference is not None:
            failures += 1
            seen[difference.kind] = seen.get(difference.kind, 0) + 1
            source = program.source
            if options.shrink and seen[difference.kind] <= 3:
                source, difference = shrink(source, backend, difference, options.shrink)
            told = report(program, difference, source, backend)
            if options.out:
                name = (
                    "_".join(difference.kind)
                    .replace("/", "_")
                    .replace(" ", "_")
                    .replace("<", "")
                    .replace(">", "")
                )
                (options.out / f"{name}_{number}.py").write_text(told)
                print(f"seed {number}: {' '.join(difference.kind)}", flush=True)
            else:
                print(told, flush=True)
        if failures > 25 and failures > ran / 2:
            print("most programs fail: stopped")
            break
        if ran % 200 == 0:
            print(f"{ran} programs, {failures} differ, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{ran} programs from seed {seed}, {failures} differ, {time.monotonic() - start:.0f} s")
    for kind, times in sorted(seen.items(), key=lambda item: -item[1]):
        print(f"  {times} {' '.join(kind)}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
