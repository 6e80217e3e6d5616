"""What became of each captured graph, for reports.

In: `new_record()` by the pipeline. Out: the records of a `recording()` block.
Always: per thread; a record outlives its block only where somebody keeps it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from graphlift.data import dataclass


@dataclass(frozen=True, slots=True)
class Fallback:
    """A graph that runs operator by operator because a stage failed."""

    stage: str
    graph: str
    error: str


@dataclass(slots=True)
class GraphRecord:
    """What became of one captured graph; filled as its parts are compiled (the backward when first needed).

    `compiled` is what `aot.compile_graph` returned: its `forms` are the graphs by name.
    """

    op_count: int
    compiled: Any = None
    plans: dict[str, Any] = field(default_factory=dict)
    fallbacks: list[Fallback] = field(default_factory=list)


class _Recorders(threading.local):
    def __init__(self) -> None:
        self.active: list[list[GraphRecord]] = []


_recorders = _Recorders()


@contextmanager
def recording() -> Iterator[list[GraphRecord]]:
    """Collects the records of the graphs compiled on this thread during the block."""
    records: list[GraphRecord] = []
    _recorders.active.append(records)
    try:
        yield records
    finally:
        _recorders.active.remove(records)


def discard(record: GraphRecord) -> None:
    """Takes back a record of a graph that is compiled again in another form."""
    for records in _recorders.active:
        if record in records:
            records.remove(record)


def new_record(op_count: int) -> GraphRecord:
    """A record of a graph of `op_count` operations, given to every recording in progress."""
    record = GraphRecord(op_count)
    for records in _recorders.active:
        records.append(record)
    return record
