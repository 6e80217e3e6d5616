"""Garbage collection while compiling.

In: `with collector_paused():` around a stage. Out: no collection meanwhile.
Always: a stage makes many objects and little garbage, so walking the heap amid it costs more than the stage.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_paused"]


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collections during the block; nests."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
