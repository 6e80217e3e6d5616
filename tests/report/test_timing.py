"""Stage times are exclusive and reach every collector of the thread."""

from __future__ import annotations

import threading
import time

from graphlift.timing import collect, stage, total_seconds, total_times


def test_nested_stages_are_counted_once() -> None:
    with collect() as outer, stage("a"):
        time.sleep(0.01)
        with collect() as inner, stage("b"):
            time.sleep(0.02)
    assert set(inner.seconds) == {"b"} and set(outer.seconds) == {"a", "b"}
    assert 0.009 < outer.seconds["a"] < 0.02 <= outer.seconds["b"]
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
