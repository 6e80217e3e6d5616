"""A handler without symbolic execution: every function under the hook breaks at once, at its first instruction.

In: what the hook asks. Out: replacements that hand over to a break stub. Always: one entry per code object,
whatever the number of calls and of loop iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

from graphlift.bytecode import ContinuationUnsupported, FrameLayout, break_stub, decode, origin
from graphlift.frame import SKIP, Handover


class Breaker:
    """Compiles functions whose file is `only`; counts what it was asked."""

    def __init__(self, only: str) -> None:
        self.only = only
        self.asked: list[str] = []

    def __call__(self, func: FunctionType, args: tuple[Any, ...], recompiles: int) -> Any:
        code = func.__code__
        if code.co_filename != self.only:  # a callback of the garbage collector, say
            return SKIP
        self.asked.append(code.co_qualname)
        try:
            point = origin(code)
            if point is None:
                return always, root(code)
            return always, resumed(point.code, point.index, point.layout)
        except ContinuationUnsupported:
            return None


def always(func: FunctionType, *args: Any) -> tuple[()]:
    return ()


def root(code: CodeType) -> Callable[..., Any]:
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    names = code.co_varnames[:count]
    cells = code.co_cellvars
    plain = tuple(name for name in names if name not in cells)
    stub = break_stub(code, decode(code).entry, FrameLayout((), plain))

    def replacement(func: FunctionType, *args: Any) -> Any:
        bound = dict(zip(names, args[:-1], strict=True))
        made = tuple(CellType(bound[name]) if name in bound else CellType() for name in cells)
        closure = made + (func.__closure__ or ())
        return Handover(stub, func.__globals__, closure, tuple(bound[n] for n in plain))

    return replacement


def resumed(code: CodeType, index: int, layout: FrameLayout) -> Callable[..., Any]:
    stub = break_stub(code, index, layout)

    def replacement(func: FunctionType, *args: Any) -> Any:
        return Handover(stub, func.__globals__, func.__closure__, args[:-1])

    return replacement
