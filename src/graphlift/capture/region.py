"""What one capture gives: the compiled region and its particulars, for the cache, `explain` and the logs.

In: the results of capture and backend. Out: `Region`.
Always: frozen; holds no tensors of the user's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal

from torch import fx

from ..data import dataclass
from ..guards import Guard
from .reasons import BreakReason


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """One captured region: its guards, its graph and the Python source that runs instead of the frame."""

    fn_name: str
    filename: str
    lineno: int
    kind: Literal["root", "resume"]
    graph: fx.GraphModule | None
    guards: tuple[Guard, ...]
    check: Any
    replacement: Callable[..., Any]
    source_text: str
    break_reason: BreakReason | None
    timings: dict[str, float] = field(default_factory=dict)
    op_count: int = 0
    compiled: Any = None
