"""The table of call rules: what a call of a particular callable means during capture.

In: callables (builtins, C methods, torch functions). Out: `RULES`, filled by the modules that define the rules.
Always: one row per callable; a rule takes (capture, positional trackers, keyword trackers) and returns a tracker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from .capture import Capture
    from .trackers import Tracker

Rule: TypeAlias = "Callable[[Capture, list[Tracker], dict[str, Tracker]], Tracker]"
RULES: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Registers a rule for each of ``targets``; a second rule for one callable is an error."""

    def register(handler: Rule) -> Rule:
        for target in targets:
            if target in RULES:
                raise ValueError(f"two rules for {target!r}")
            RULES[target] = handler
        return handler

    return register
