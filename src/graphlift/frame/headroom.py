"""Deep recursion while compiling.

In: `with deep_recursion():` around a stage. Out: room for long chains of expressions and frames meanwhile.
Always: the limit is the process's, so threads share it, and the last to leave puts it back.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from graphlift.frame._frame import add_c_recursion

__all__ = ["deep_recursion"]

_ROOM = 20_000
_lock = threading.Lock()
_depth, _limit = 0, 0


@contextmanager
def deep_recursion() -> Iterator[None]:
    """A recursion limit of at least 20,000 during the block, and as many calls from C; nests."""
    _change(+1)
    added = max(_ROOM - add_c_recursion(0), 0)
    add_c_recursion(added)
    try:
        yield
    finally:
        add_c_recursion(-added)
        _change(-1)


def _change(by: int) -> None:
    global _depth, _limit
    with _lock:
        if _depth == 0:
            _limit = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_limit, _ROOM))
        _depth += by
        if _depth == 0:
            sys.setrecursionlimit(_limit)
