"""Runs test functions where pytest is not installed: `python -m tests.frame.plain_runner MODULE...`.

In: module names. Out: exit status, and what failed on stderr. Always: every `test_*` function, no fixtures.
"""

from __future__ import annotations

import importlib
import sys
import traceback

#: Modules that need neither torch nor pytest.
TORCH_FREE = (
    "tests.bytecode.test_decode",
    "tests.bytecode.test_chain",
    "tests.bytecode.test_continuation",
    "tests.bytecode.test_nested",
    "tests.bytecode.test_random_programs",
    "tests.frame.test_hook",
    "tests.frame.test_breaks",
    "tests.frame.test_leaks",
)


def main(modules: list[str]) -> int:
    ran = failed = 0
    for module_name in modules or TORCH_FREE:
        module = importlib.import_module(module_name)
        for name, test in sorted(vars(module).items()):
            if not name.startswith("test_") or not callable(test) or test.__module__ != module_name:
                continue
            ran += 1
            try:
                test()
            except Exception:
                failed += 1
                print(f"FAILED {module_name}.{name}", file=sys.stderr)
                traceback.print_exc()
    assert "torch" not in sys.modules
    print(f"{ran} ran, {failed} failed on {sys.version.split()[0]}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
