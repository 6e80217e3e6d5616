"""Breaks through the hook and the trampoline: the sample functions, long loops, lifetimes, tracebacks."""

from __future__ import annotations

import copy
import gc
import sys
import traceback
import weakref
from types import FunctionType
from typing import Any

from graphlift.frame import CompiledCallable, entries, hook_installed
from tests.bytecode import samples
from tests.bytecode.chain import outcome
from tests.bytecode.test_chain import bound_args, in_slot_order
from tests.frame.breaker import Breaker

HERE = __file__


def compiled(fn: FunctionType) -> CompiledCallable:
    return CompiledCallable(fn, Breaker(fn.__code__.co_filename))


def test_samples_through_the_hook() -> None:
    for fn, case in samples.CASES:
        positional, keywords = bound_args(fn, in_slot_order(fn, case))
        broken = compiled(fn)
        want = outcome(fn, samples.__file__, *copy.deepcopy(positional), **keywords)
        for attempt in range(2):
            got = outcome(broken, samples.__file__, *copy.deepcopy(positional), **keywords)
            assert got == want, f"{fn.__name__}, call {attempt}: {got}, plain {want}"
        assert not hook_installed()


def counted(n: int) -> int:
    total = 0
    for i in range(n):
        total += i % 7
    return total


def test_ten_thousand_iterations_neither_recurse_nor_compile_again() -> None:
    breaker = Breaker(HERE)
    fast = CompiledCallable(counted, breaker)
    limit = sys.getrecursionlimit()
    fast(3)
    asked = len(breaker.asked)
    try:
        sys.setrecursionlimit(200)
        assert fast(10_000) == counted(10_000)
    finally:
        sys.setrecursionlimit(limit)
    assert len(breaker.asked) == asked, breaker.asked[asked:]
    assert len(entries(counted)) == 1


def forgiving(texts: list[str]) -> Any:
    total, bad = 0, []
    for text in texts:
        try:
            total += int(text)
        except ValueError as error:
            bad.append(len(str(error)))
        with samples.Recorder([], ValueError):
            total += int(text)
    return total, len(bad)


def test_capture_goes_on_after_a_caught_exception() -> None:
    breaker = Breaker(HERE)
    fast = CompiledCallable(forgiving, breaker)
    texts = ["1", "x", "2", "y"]
    assert fast(texts) == forgiving(texts)
    asked = len(breaker.asked)
    texts *= 500
    assert fast(texts) == forgiving(texts)
    assert len(breaker.asked) == asked, breaker.asked[asked:]


class Thing:
    pass


def drops(out: list[Any]) -> None:
    thing = Thing()
    seen = weakref.ref(thing)
    out.append(seen() is None)
    del thing
    out.append(seen() is None)
    keep = [Thing()]
    seen = weakref.ref(keep[0])
    keep.pop()
    out.append(seen() is None)
    out.append(len([weakref.ref(Thing())() is None]))


def test_values_die_when_they_would() -> None:
    gc.disable()
    try:
        want: list[Any] = []
        drops(want)
        fast = compiled(drops)
        for _ in range(2):
            got: list[Any] = []
            fast(got)
            assert got == want
    finally:
        gc.enable()


def raises_below(text: str) -> int:
    value = [text]
    number = samples.fail(
        value[0],
    )
    return number


def test_traceback_shows_the_users_lines_once() -> None:
    fast = compiled(raises_below)
    shown = []
    for call in (raises_below, fast, fast):
        try:
            call("no")
        except ValueError as error:
            frames = traceback.extract_tb(error.__traceback__)
            shown.append(
                [(f.name, f.line) for f in frames if f.filename == HERE and f.name == "raises_below"]
            )
    assert shown[0] == shown[1] == shown[2] and len(shown[0]) == 1


def reads_locals(a: int) -> Any:
    b = a + 1
    return sorted(locals().items()), [sorted(vars().items())][0]


def test_locals_look_as_they_should() -> None:
    fast = compiled(reads_locals)
    assert fast(1) == reads_locals(1)


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def test_recursion() -> None:
    assert compiled(fib)(10) == 55


def deep(n: int) -> int:
    return 0 if n == 0 else 1 + deep(n - 1)


def test_recursion_error_is_an_ordinary_exception() -> None:
    fast = compiled(deep)
    assert fast(20) == 20
    for _ in range(2):
        try:
            fast(100_000)
        except RecursionError:
            pass
        else:
            raise AssertionError("no RecursionError")
    assert fast(20) == 20
    assert not hook_installed()
