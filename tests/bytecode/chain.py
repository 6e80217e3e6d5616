"""Runs a function by breaking at every instruction: a stub for each, no executor.

In: a function and its bound arguments. Out: what it returns or raises, and where it broke. Always: every
stub is made from the origin, at the place that the last hand-over named.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

from graphlift.bytecode import ContinuationUnsupported, FrameLayout, break_stub, decode, origin, resume_code
from graphlift.frame import Handover


@dataclass(frozen=True, slots=True)
class State:
    """A frame between two instructions."""

    index: int
    layout: FrameLayout
    closure: tuple[CellType, ...]
    values: tuple[Any, ...]


def parameters(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return code.co_varnames[:count]


def entry_state(fn: FunctionType, args: tuple[Any, ...]) -> State:
    """The frame as the interpreter has it when the function's prefix has run."""
    code = fn.__code__
    bound = dict(zip(parameters(code), args, strict=True))
    cells = tuple(CellType(bound[name]) if name in bound else CellType() for name in code.co_cellvars)
    plain = tuple(name for name in bound if name not in code.co_cellvars)
    layout = FrameLayout((), plain)
    return State(decode(code).entry, layout, cells + (fn.__closure__ or ()), tuple(bound[n] for n in plain))


def enter(fn: FunctionType, code: CodeType, state: State) -> Any:
    continued = FunctionType(code, fn.__globals__, fn.__name__, None, state.closure)
    return continued(*state.values)


def next_state(code: CodeType, handover: Handover) -> State:
    point = origin(handover.code)
    assert point is not None and point.code is code
    return State(point.index, point.layout, handover.closure or (), handover.args)


def run_chain(
    fn: FunctionType,
    args: tuple[Any, ...],
    *,
    native_after: int | None = None,
    unsupported: list[str] | None = None,
) -> tuple[Any, list[int]]:
    """Breaks at every instruction, or at `native_after` of them and then runs on natively."""
    code = fn.__code__
    state = entry_state(fn, args)
    broke: list[int] = []
    while True:
        if native_after is not None and len(broke) >= native_after:
            return enter(fn, resume_code(code, state.index, state.layout), state), broke
        try:
            stub = break_stub(code, state.index, state.layout)
        except ContinuationUnsupported as why:
            if unsupported is None:
                raise
            unsupported.append(f"{decode(code).instrs[state.index]}: {why.reason}")
            return enter(fn, resume_code(code, state.index, state.layout), state), broke
        broke.append(state.index)
        result = enter(fn, stub, state)
        if not isinstance(result, Handover):
            return result, broke
        state = next_state(code, result)


def outcome(call: Callable[..., Any], filename: str, *args: Any, **kwargs: Any) -> Any:
    """What a call returns, or the exception it raises with the lines of `filename` in its traceback."""
    try:
        return "returned", shape(call(*args, **kwargs))
    except Exception as error:
        return "raised", describe(error, filename)


def describe(error: BaseException, filename: str) -> Any:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        (f.name, f.lineno, f.end_lineno, f.colno, f.end_colno) if hasattr(f, "colno") else (f.name, f.lineno)
        for f in frames
        if f.filename == filename
    ]
    below = [describe(e, filename) for e in (error.__cause__, error.__context__) if e is not None]
    return type(error).__name__, str(error), lines, below


def shape(value: Any) -> Any:
    """Values that compare: functions and classes by name, the rest as they are."""
    if isinstance(value, (list, tuple, set, frozenset)):
        made = [shape(v) for v in value]
        return (type(value).__name__, sorted(made, key=repr) if isinstance(value, (set, frozenset)) else made)
    if isinstance(value, dict):
        return ("dict", [(shape(k), shape(v)) for k, v in value.items()])
    if callable(value):
        return ("callable", getattr(value, "__qualname__", "?"))
    return value
