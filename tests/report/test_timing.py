"""Stage times are exclusive and reach every collector of the thread."""

from __future__ import annotations

import threading
import time

import pytest

from graphlift.timing import collect, stage, total_seconds, total_times


def test_nested_stages_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    with collect() as outer, stage("a"):
        clock += 1
        with collect() as inner, stage("b"):
            clock += 2
    assert set(inner.seconds) == {"b"} and outer.seconds == {"a": 1, "b": 2}
    assert outer.counts == {"a": 1, "b": 1} and abs(outer.total - sum(outer.seconds.values())) < 1e-9


def test_exceptions_and_threads() -> None:
    before = total_seconds()
    with collect() as times:
        try:
            with stage("raising"):
                raise KeyError
        except KeyError:
            pass
        thread = threading.Thread(target=lambda: stage("elsewhere").__enter__())
        thread.start()
        thread.join()
    assert set(times.seconds) == {"raising"}
    assert total_seconds() >= before and "raising" in total_times()
