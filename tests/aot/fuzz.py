"""`python -m tests.aot.fuzz --seed S --count N`: random programs of views and writes, compiled against eager.

Out: one block per program that differs, with its seed; the counts of programs compiled and left to eager.
Exit status: 0 where all programs ran as in eager.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random

from .test_programs import check

SLICE = 500


def check_slice(seeds: range) -> tuple[int, list[str]]:
    """How many of the programs are compiled, and a report for each that differs."""
    compiled, wrong = 0, []
    for seed in seeds:
        try:
            compiled += check(random.Random(seed).randrange) is None
        except Exception as error:
            wrong.append(f"# seed {seed}: {type(error).__name__}: {error}")
    return compiled, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    end = options.seed + options.count
    slices = [range(at, min(at + SLICE, end)) for at in range(options.seed, end, SLICE)]
    compiled, failures = 0, 0
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=20) as pool:
        for of_slice, wrong in pool.imap_unordered(check_slice, slices):
            compiled += of_slice
            failures += len(wrong)
            for report in wrong:
                print(report, flush=True)
    print(
        f"{options.count} programs: {failures} differ, {compiled} compiled, "
        f"{options.count - compiled - failures} left to eager"
    )
    return bool(failures)


if __name__ == "__main__":
    raise SystemExit(main())
