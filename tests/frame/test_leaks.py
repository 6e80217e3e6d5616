"""No reference and no memory is lost over many calls."""

from __future__ import annotations

import gc
import sys
from types import FunctionType
from typing import Any

from graphlift.frame import CompiledCallable
from tests.frame.breaker import Breaker

CALLS = 200_000


def resident_pages() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1])
    except OSError:
        return 0


def positional(a: Any, b: Any = None) -> Any:
    return a


def keyword(a: Any, *rest: Any, key: Any = None, **more: Any) -> Any:
    return a


def failing(a: Any) -> Any:
    raise ValueError


def loop(items: Any) -> Any:
    total = 0
    for item in items:
        total += item
    return total


def accept(func: FunctionType, *args: Any) -> tuple[Any, ...]:
    return args


def install(func: FunctionType, args: tuple[Any, ...], recompiles: int) -> Any:
    if func is failing:
        return accept, refuse
    return accept, lambda f, a, *rest: a


def refuse(func: FunctionType, *args: Any) -> Any:
    raise ValueError


def steady(call: Any, count: int, watched: list[Any]) -> None:
    for _ in range(1000):
        call()
    gc.collect()
    before = [sys.getrefcount(value) for value in watched]
    blocks, pages = sys.getallocatedblocks(), resident_pages()
    for _ in range(count):
        call()
    gc.collect()
    assert [sys.getrefcount(value) for value in watched] == before
    assert sys.getallocatedblocks() - blocks < 200, sys.getallocatedblocks() - blocks
    assert resident_pages() - pages < 2000


def test_hits() -> None:
    token = object()
    fast = CompiledCallable(positional, install)
    steady(lambda: fast(token, token), CALLS, [token, positional, positional.__code__, fast, None][:4])


def test_hits_through_the_frame() -> None:
    token = object()
    fast = CompiledCallable(keyword, install)
    steady(lambda: fast(token, token, key=token, z=token), CALLS, [token, keyword, keyword.__code__, fast])


def test_raising_replacements() -> None:
    token = object()
    fast = CompiledCallable(failing, install)

    def call() -> None:
        try:
            fast(a=token)
        except ValueError:
            pass

    steady(call, CALLS // 4, [token, failing, failing.__code__, fast])


def test_eager_runs() -> None:
    token = object()
    fast = CompiledCallable(positional, lambda *args: None)
    steady(lambda: fast(token), CALLS // 4, [token, positional, fast])


def test_breaks_everywhere() -> None:
    items = [1000, 2000, 3000]
    fast = CompiledCallable(loop, Breaker(__file__))
    assert fast(items) == 6000
    steady(lambda: fast(items), CALLS // 100, [items, loop, loop.__code__, fast, *items])
