"""Breaks inside callees: values, exceptions and lines as of a plain call, wherever the frames are left and entered."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from types import FunctionType
from typing import Any

from graphlift.bytecode import FrameLayout, call_stub, origin, placeholders, rest_code, under_way
from graphlift.frame import Callee, Handover, LoopIter, is_skipped
from tests.bytecode.chain import describe, outcome
from tests.bytecode.nested import result_of, run_nested
from tests.bytecode.samples import CASES, Recorder
from tests.bytecode.test_chain import in_slot_order, plain
from tests.bytecode.test_continuation import index_of

HERE = __file__


def nested_outcome(fn: FunctionType, args: tuple[Any, ...], filename: str, **how: Any) -> Any:
    return outcome(result_of, filename, fn, copy.deepcopy(args), **how)


def test_samples() -> None:
    for fn, case in CASES:
        args = in_slot_order(fn, case)
        assert nested_outcome(fn, args, fn.__code__.co_filename) == plain(fn, args), fn.__name__


def helper(a: int, b: int = 2, *rest: int, key: Any = None, **more: Any) -> Any:
    c = a + b
    if key == "fail":
        raise ValueError(f"bad {c}")
    return c, rest, key, more, sys._getframe(1).f_code.co_name, sys._getframe(1).f_lineno


class Point:
    def __init__(self, x: int, y: int = 3) -> None:
        self.x = x
        self.sum = helper(x, y)[0]

    def shifted(self, by: int) -> Any:
        return Point(self.x + by).sum, self.sum


class Wrong:
    def __init__(self) -> None:
        return helper(1)  # type: ignore[return-value]


def calls(n: int) -> Any:
    a = helper(n)
    b = helper(n, 5, 6, key="k", z=[helper(1), 2])
    p = Point(n)
    log: list[Any] = []
    with Recorder(log, ValueError):
        log.append(helper(p.sum, key="fail"))
    try:
        helper(p.shifted(4)[0], key="fail")
    except ValueError as error:
        log.append(str(error))
    finally:
        log.append(helper(0, n))
    return a, b, p.sum, log, [helper(i)[:2] for i in range(n)], (lambda v: helper(v)[0] or n)(n)


def fails_inside(n: int) -> Any:
    def inner(k: int) -> Any:
        nonlocal n
        n += k
        return helper(n, key="fail")

    return [inner(k) for k in range(n)]


def returns_from_init() -> Any:
    return Wrong()


def counts_down(n: int) -> Any:
    return [] if n == 0 else [n, *counts_down(n - 1)]


def test_calls_of_all_kinds() -> None:
    for fn, args in ((calls, (3,)), (fails_inside, (2,)), (returns_from_init, ()), (counts_down, (9,))):
        want = outcome(fn, HERE, *args)
        for limit in (1, 2, 3, 5):
            got = nested_outcome(fn, args, HERE, limit=limit)
            assert got == want, f"{fn.__name__} to depth {limit}: {got}, plain {want}"
    assert run_nested(counts_down, (9,), limit=6) == (counts_down(9), 6)


def test_the_rest_runs_natively_from_everywhere() -> None:
    """Where what is left is never captured, the resume functions run: they call what is left of their calls."""
    for fn, args in ((calls, (2,)), (fails_inside, (2,)), (counts_down, (4,))):
        want = outcome(fn, HERE, *args)
        for steps in range(0, 150, 3):
            got = nested_outcome(fn, args, HERE, native_after=steps)
            assert got == want, f"{fn.__name__} natively after {steps}: {got}, plain {want}"


def outer(f: Any, a: Any) -> Any:
    return f(a, k=2), a


def test_codes_are_made_once_and_for_each_inner_code() -> None:
    code = outer.__code__
    index, layout = index_of(code, "CALL"), FrameLayout((), ("a", "f"))
    stub = call_stub(code, index, layout)
    assert stub is call_stub(code, index, layout) and is_skipped(stub) and origin(stub) is None
    assert placeholders(code, index) == (None, None)
    full = under_way(code, index, layout)
    assert sum(full.stack) == 3 and len(full.stack) == 4
    one, two = helper.__code__, calls.__code__
    first = rest_code(code, index, full, one)
    assert first is rest_code(code, index, full, one) and first is not rest_code(code, index, full, two)
    point = origin(first)
    assert point is not None and (point.code, point.index, point.layout) == (code, index, full)


def test_codes_go_with_the_code_that_they_are_for() -> None:
    space: dict[str, Any] = {}
    text = "def outer(f, a):\n    return f(a), a\ndef inner(a):\n    return a\n"
    for first, second in (("outer", "inner"), ("inner", "outer")):
        exec(text, space)
        layout = FrameLayout((), ("a", "f"))
        code = space["outer"].__code__
        index = index_of(code, "CALL")
        made = rest_code(code, index, under_way(code, index, layout), space["inner"].__code__)
        gone = weakref.ref(made)
        del made, code
        for name in (first, second):
            space[name] = None
            gc.collect()
            assert gone() is None, name


class Thing:
    pass


def test_values_live_no_longer_than_in_a_plain_call() -> None:
    def inner(thing: Any) -> Any:
        gone = weakref.ref(thing)
        del thing
        return gone() is None

    def holds(make: Any) -> Any:
        return inner(make())

    assert holds(Thing)
    assert run_nested(holds, (Thing,)) == (True, 2)


def test_callees_are_called_once_and_collected() -> None:
    spent = Callee(Handover((lambda: 7).__code__, globals(), None, ()))
    assert spent(1, 2, key=3) == 7 and spent.handover is None
    assert describe(_raised(spent), HERE)[0] == "SystemError"
    values: tuple[Any, ...] = (Thing(),)
    gone = weakref.ref(values[0])
    values[0].callee = Callee(
        Handover((lambda v: v).__code__, globals(), None, values), ((print, values[0]),)
    )
    del values
    gc.collect()
    assert gone() is None


def _raised(fn: Any) -> BaseException:
    try:
        fn()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_loop_iterators() -> None:
    items = [1, 2]
    over = LoopIter(0, items)
    assert (over.upcoming0, over.upcoming1, over.ended1, over.ended2) == (1, 2, False, True)
    assert next(over) == 1 and over.upcoming0 == 2
    items.append(3)
    assert list(over) == [2, 3] and over.ended0 and over.over is None
    items.append(4)
    assert list(over) == []
    pairs = LoopIter(2, (LoopIter(1, LoopIter(0, "abc", 1), 5), LoopIter(0, range(9))))
    assert pairs.upcoming1 == ((6, "c"), 1) and pairs.ended2
    assert list(pairs) == [((5, "b"), 0), ((6, "c"), 1)]
    table = {"a": 1, "b": 2}
    keyed = LoopIter(3, table, 0, iter(table.items()))
    assert next(keyed) == ("a", 1) and keyed.upcoming0 == ("b", 2) and keyed.ended1
    table["c"] = 3
    for step in (lambda: keyed.upcoming0, lambda: next(keyed)):
        assert str(_raised(step)) == "dictionary changed size during iteration"
    assert isinstance(_raised(lambda: LoopIter(0, {})), TypeError)
    assert isinstance(_raised(lambda: over.upcoming0), AttributeError)
