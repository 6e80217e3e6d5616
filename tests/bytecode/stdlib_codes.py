"""Code objects of the standard library, for tests that want much real bytecode.

In: how many files, a seed. Out: code objects, nested ones too. Always: the same sample for the same seed.
"""

from __future__ import annotations

import random
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

_SKIPPED = ("site-packages", "lib2to3", "test/bad", "__pycache__", "idlelib")


def nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from nested(const)


def stdlib_codes(files: int, seed: int) -> Iterator[CodeType]:
    root = Path(sysconfig.get_paths()["stdlib"])
    found = sorted(p for p in root.rglob("*.py") if not any(part in p.as_posix() for part in _SKIPPED))
    random.Random(seed).shuffle(found)
    for path in found[:files]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                code = compile(path.read_bytes(), str(path), "exec")
        except (SyntaxError, ValueError):
            continue
        yield from nested(code)
