"""The processes that measure: what they find when they start.

In: nothing. Out: the environment of a fresh process that measures a first call.
Always: graphlift's modules are byte-compiled before, as `pip install` leaves them, and torch's with it.
"""

from __future__ import annotations

import compileall
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def environment(**more: str) -> dict[str, str]:
    """This process's, in which bytecode is cached and no model hub is asked; with ``more``."""
    for folder in ("src", "benchmarks"):
        compileall.compile_dir(ROOT / folder, quiet=2)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"} | more
