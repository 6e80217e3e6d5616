"""Random programs do what they do in eager: always the same ones, and for a while new ones.

The seed of the new ones is printed. `FUZZ_SECONDS` changes how long; a failing program is printed shrunk, and
`python -m tests.fuzz.run --seed SEED --count 1` runs it again.
"""

from __future__ import annotations

import os
import random
import time

from .generator import generate
from .run import report, run_one
from .shrink import shrink

FIXED = range(1, 41)
SECONDS = float(os.environ.get("FUZZ_SECONDS", "20"))


def fails(seed: int) -> str | None:
    """The shrunk program of a seed, where it differs from eager."""
    program = generate(seed)
    difference = run_one(program)
    if difference is None:
        return None
    source, difference = shrink(program.source, program.backend, difference, seconds=20)
    return report(program, difference, source, program.backend)


def test_programs_are_what_their_seed_says() -> None:
    assert generate(3) == generate(3) and generate(3).source != generate(4).source


def test_fixed_programs() -> None:
    for seed in FIXED:
        failure = fails(seed)
        assert failure is None, failure


def test_new_programs(capsys) -> None:
    seed, end, count = random.SystemRandom().randrange(10**9), time.monotonic() + SECONDS, 0
    with capsys.disabled():
        print(f"\nrandom programs from seed {seed}", flush=True)
    while time.monotonic() < end:
        failure = fails(seed + count)
        assert failure is None, failure
        count += 1
    assert count > 0
