"""Runs the torch-free guard tests on any interpreter, without pytest: `python -m tests.guards.plain_runner`."""

from __future__ import annotations

import sys
import traceback

from tests.guards import random_objects, test_plain_hostile, test_plain_kinds


def test_random_objects() -> None:
    for seed in range(60):
        random_objects.run(seed)


def main() -> int:
    failed = passed = 0
    for module in (test_plain_kinds, test_plain_hostile, sys.modules[__name__]):
        for name, test in sorted(vars(module).items()):
            if not name.startswith("test_") or not callable(test):
                continue
            try:
                test()
                passed += 1
            except Exception:
                failed += 1
                print(f"{module.__name__}.{name}", file=sys.stderr)
                traceback.print_exc()
    print(f"{passed} passed, {failed} failed on {sys.version.split()[0]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
