"""Where compile time goes.

In: `with stage("aot"):` around the work of a stage. Out: exclusive seconds per stage, to every active
collector. Always: a nested stage's time is counted once, for the inner stage; collectors are per thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from graphlift.collector import collector_paused

__all__ = ["StageTimes", "collect", "importing", "stage", "total_seconds", "total_times"]


class StageTimes:
    """Seconds and number of entries per stage, in order of first appearance."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def add(self, name: str, seconds: float) -> None:
        """Counts one piece of work of `seconds` for stage `name`."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.counts[name] = self.counts.get(name, 0) + 1

    @property
    def total(self) -> float:
        """Seconds over all stages."""
        return sum(self.seconds.values())

    def __repr__(self) -> str:
        parts = (f"{name}={seconds:.3f}s" for name, seconds in self.seconds.items())
        return f"StageTimes({', '.join(parts)})"


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.nested: list[float] = []  # per open stage: seconds spent in stages inside it
        self.collectors: list[StageTimes] = []


_state = _ThreadState()
_totals = StageTimes()
# Reentrant: the frame hook may ask for a capture, itself a stage, while a stage is being counted.
_totals_lock = threading.RLock()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Counts the time of the block, less that of stages inside it, as stage `name`."""
    state = _state
    state.nested.append(0.0)
    start = time.perf_counter()
    try:
        yield
    finally:
        elapsed = time.perf_counter() - start
        own = elapsed - state.nested.pop()
        if state.nested:
            state.nested[-1] += elapsed
        for times in state.collectors:
            times.add(name, own)
        with _totals_lock:
            _totals.add(name, own)


@contextmanager
def importing() -> Iterator[None]:
    """The stage of loading our own modules: of all that they define nothing is garbage."""
    with stage("import"), collector_paused():
        yield


@contextmanager
def collect() -> Iterator[StageTimes]:
    """Collects the stages that run on this thread during the block."""
    times = StageTimes()
    _state.collectors.append(times)
    try:
        yield times
    finally:
        _state.collectors.remove(times)


def total_times() -> dict[str, float]:
    """Seconds per stage since the process started, over all threads."""
    with _totals_lock:
        return dict(_totals.seconds)


def total_seconds() -> float:
    """Seconds spent compiling since the process started, over all threads."""
    with _totals_lock:
        return _totals.total
