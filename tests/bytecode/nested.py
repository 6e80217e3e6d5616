"""Runs a function by breaking at every instruction of it and of the Python functions it calls, each under its callers.

In: a function and its bound arguments. Out: what it returns or raises, and how deep it broke. Always: a native
instruction runs below the stubs of all its callers, which stand in the middle of their calls.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

from graphlift.bytecode import (
    NULL_FIRST,
    FrameLayout,
    break_stub,
    call_stub,
    can_continue,
    decode,
    origin,
    placeholders,
)
from graphlift.frame import Callee, Handover
from tests.bytecode.chain import State, entry_state, parameters

_GENERATORS = 0x20 | 0x80 | 0x200


def initialised(made: Any, value: Any) -> Any:
    """The value of a call that made an object, whose ``__init__`` returned `value`."""
    if value is not None:
        raise TypeError(f"__init__() should return None, not '{type(value).__name__}'")
    return made


@dataclass(frozen=True, slots=True)
class Live:
    """A frame: its function's code and globals, its state; `finish`: the steps from its value to the call's."""

    code: CodeType
    globals: dict[str, Any]
    state: State
    finish: tuple[Any, ...] = ()


def handover(frames: list[Live]) -> Handover:
    inner = frames[-1]
    state = inner.state
    made = Handover(
        break_stub(inner.code, state.index, state.layout), inner.globals, state.closure or None, state.values
    )
    for outer, callee in zip(frames[-2::-1], frames[:0:-1], strict=True):
        state = outer.state
        values = (
            *state.values,
            Callee(made, callee.finish, (), True),
            *placeholders(outer.code, state.index),
        )
        made = Handover(
            call_stub(outer.code, state.index, state.layout), outer.globals, state.closure or None, values
        )
    return made


def frames_of(left: Handover) -> list[Live]:
    """The frames that a Handover describes, the outermost first."""
    point = origin(left.code)
    assert point is not None
    callee = next((v for v in left.args if type(v) is Callee), None)
    layout, values = point.layout, left.args
    if callee is None:
        return [Live(point.code, left.globals, State(point.index, layout, left.closure or (), values))]
    extra = len(placeholders(point.code, point.index))
    layout = FrameLayout(layout.stack[: len(layout.stack) - extra - 2], layout.locals)
    state = State(point.index, layout, left.closure or (), values[: len(values) - extra - 1])
    first, *rest = frames_of(callee.handover)
    return [
        Live(point.code, left.globals, state),
        Live(first.code, first.globals, first.state, callee.finish or ()),
        *rest,
    ]


def enter_call(live: Live, filename: str) -> list[Live]:
    """The frame in the middle of its call, and the frame called, where that is a Python function of `filename`."""
    state = live.state
    at = decode(live.code).instrs[state.index]
    if at.op != "CALL":
        return [live]
    argc, names = at.arg
    stack = state.layout.stack
    bound = len(state.layout.locals)
    values = list(state.values[bound:])
    slots = [values.pop(0) if filled else None for filled in stack]
    first, second, *args = slots[len(stack) - argc - 2 :]
    both = stack[-argc - 2] and stack[-argc - 1]
    if both:
        args = [second, *args]
    fn = first if both or not NULL_FIRST else second
    keywords = dict(zip(names, args[len(args) - len(names) :], strict=True)) if names else {}
    args = args[: len(args) - len(names)]
    finish: tuple[Any, ...] = ()
    if isinstance(fn, MethodType):
        fn, args = fn.__func__, [fn.__self__, *args]
    elif isinstance(fn, type) and fn.__new__ is object.__new__ and type(fn) is type:
        made = object.__new__(fn)
        finish = ((initialised, made),)
        fn, args = fn.__init__, [made, *args]
    if not isinstance(fn, FunctionType) or fn.__code__.co_filename != filename:
        return [live]
    code = fn.__code__
    if code.co_flags & _GENERATORS or not can_continue(code, decode(code).entry):
        return [live]
    try:
        given = inspect.signature(fn).bind(*args, **keywords)
    except (TypeError, ValueError):
        return [live]
    given.apply_defaults()
    ordered = tuple(given.arguments.values()) if code.co_varnames[0:1] == (".0",) else in_order(given, code)
    below = FrameLayout(stack[: len(stack) - argc - 2], state.layout.locals)
    kept = state.values[: bound + sum(below.stack)]
    outer = Live(live.code, live.globals, State(state.index, below, state.closure, kept), live.finish)
    return [outer, Live(code, fn.__globals__, entry_state(fn, ordered), finish)]


def in_order(given: inspect.BoundArguments, code: CodeType) -> tuple[Any, ...]:
    return tuple(given.arguments[name] for name in parameters(code))


def run_nested(
    fn: FunctionType, args: tuple[Any, ...], *, limit: int = 6, native_after: int | None = None
) -> Any:
    """(What the function returns, how many frames were live at most.)"""
    frames = [Live(fn.__code__, fn.__globals__, entry_state(fn, args))]
    deepest = steps = 0
    while True:
        while len(frames) < limit and len(more := enter_call(frames[-1], fn.__code__.co_filename)) > 1:
            frames[-1:] = more
        deepest = max(deepest, len(frames))
        steps += 1
        left: Any = handover(frames)
        if native_after is not None and steps > native_after:
            return to_the_end(left), deepest
        result = run(left)
        if not isinstance(result, Handover):
            return result, deepest
        frames = frames_of(result)


def result_of(fn: FunctionType, args: tuple[Any, ...], **how: Any) -> Any:
    return run_nested(fn, args, **how)[0]


def run(left: Handover) -> Any:
    return FunctionType(left.code, left.globals, left.code.co_name, None, left.closure)(*left.args)


def to_the_end(left: Handover) -> Any:
    """Runs resume functions as they are, which call what is left of their calls."""
    while isinstance(left, Handover):
        left = run(left)
    return left
