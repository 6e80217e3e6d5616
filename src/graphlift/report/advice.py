"""Advice after many calls: what varied, over what range, what that cost, and what would remove it.

In: a compiled callable that has been called. Out: `Advice`, which prints as a table.
Always: counts what happened in this process; asking changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any

from graphlift import padding
from graphlift.data import dataclass
from graphlift.options import CompileEvent

from .table import Table

_SHOWN = 4  # values listed before they are counted


@dataclass(frozen=True, slots=True)
class Varied:
    """One value that varied: `values` in the order they were first seen, `recompiles` that it had a part in."""

    fn_name: str
    subject: str
    values: tuple[Any, ...]
    recompiles: int
    remedy: str

    def range_text(self) -> str:
        """`32 .. 128 (17 values)` for numbers, a list for the rest."""
        if len(self.values) > 2 and all(type(v) in (int, float) for v in self.values):
            return f"{min(self.values)} .. {max(self.values)} ({len(self.values)} values)"
        shown = ", ".join(str(v) for v in self.values[:_SHOWN])
        more = len(self.values) - _SHOWN
        return f"{shown} and {more} more" if more > 0 else shown


@dataclass(frozen=True, slots=True)
class Advice:
    """What varied between calls, the costliest first; `at_limit` names functions that run eagerly because of it."""

    varied: tuple[Varied, ...]
    recompiles: int
    at_limit: tuple[str, ...]
    padding: padding.Cost = field(default_factory=padding.Cost)

    def __str__(self) -> str:
        if not self.varied and not self.padding.total:
            return "Nothing varied: no call was compiled again."
        parts = []
        if self.varied:
            rows = [(v.fn_name, v.subject, v.range_text(), v.recompiles, v.remedy) for v in self.varied]
            columns = ("function", "what varied", "values", "recompiles", "what would remove them")
            parts.append(Table.of(f"Recompiles: {self.recompiles}", columns, rows).text(150))
        if self.at_limit:
            parts.append("At the limit, run eagerly now: " + ", ".join(self.at_limit))
        if self.padding.total:
            parts.append(str(self.padding))
        return "\n\n".join(parts)


def advise(events: Iterable[CompileEvent]) -> Advice:
    """The advice that follows from the events of one compiled callable."""
    events = list(events)
    recompiles = [e for e in events if e.kind == "recompile"]
    values: dict[tuple[str, str, str], dict[Any, None]] = {}
    counts: dict[tuple[str, str, str], int] = {}
    for event in events:
        for change in event.changes:
            key = (event.fn_name, change.subject, change.remedy)
            values.setdefault(key, {}).update({change.old: None, change.new: None})
            counts[key] = counts.get(key, 0) + (event.kind == "recompile")
    varied = [
        Varied(fn_name, subject, tuple(values[key]), counts[key], remedy)
        for key in values
        for fn_name, subject, remedy in [key]
    ]
    varied.sort(key=lambda v: -v.recompiles)
    at_limit = dict.fromkeys(e.fn_name for e in events if e.kind == "cache_limit")
    return Advice(tuple(varied), len(recompiles), tuple(at_limit), padding.cost())
