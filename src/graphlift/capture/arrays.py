"""Arrays of known content: which memory each is on, so that views of one array stay views of one array.

In: arrays that numpy made while capturing. Out: one tracker per array, and the array that owns its memory.
Always: the arrays themselves are never changed, nor given to the program.
"""

from __future__ import annotations

import numpy as np

from .breaks import Break
from .capture import Capture
from .trackers import ArrayVar


def known_array(cap: Capture, content: np.ndarray) -> ArrayVar:
    """The tracker of this very array."""
    found = cap.memo.get(id(content))
    if found is None:
        found = cap.memo[id(content)] = ArrayVar(None, content=content)
        cap.keep_alive.append(content)
    assert type(found) is ArrayVar
    return found


def memory_of(content: np.ndarray) -> tuple[np.ndarray, int]:
    """The array that owns the memory, and where in it, in bytes, ``content`` starts."""
    root = content
    while isinstance(root.base, np.ndarray):
        root = root.base
    if root.base is not None:
        raise Break("unsupported-object", "a numpy array on memory that is not numpy's")
    return root, content.ctypes.data - root.ctypes.data
