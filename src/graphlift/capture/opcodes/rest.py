"""Intrinsic functions of the interpreter, cells of inlined comprehensions, and what is never captured.

In: the capture, the frame, the instruction's resolved argument. Out: None (go on), a jump target, RETURN or YIELD.
Always: a handler leaves exactly the stack that the interpreter would leave.
"""

from __future__ import annotations

from typing import Any

from ..attributes import (
    python_type,
)
from ..breaks import Break
from ..capture import Capture
from ..frame import Frame, stopped_inside
from ..protocol import (
    unary,
)
from ..trackers import (
    TupleVar,
)
from .table import UNSUPPORTED, Handler, op


@op("SAVE_CELL")
def _save_cell(cap: Capture, frame: Frame, name: str) -> None:
    frame.stack.append(frame.cells.pop(name))


@op("RESTORE_CELL")
def _restore_cell(cap: Capture, frame: Frame, name: str) -> None:
    frame.cells[name] = frame.stack.pop()  # type: ignore[assignment]


@op("CALL_INTRINSIC_1")
def _call_intrinsic_1(cap: Capture, frame: Frame, name: str) -> None:
    value = frame.stack.pop()
    if name == "INTRINSIC_LIST_TO_TUPLE":
        frame.stack.append(TupleVar(list(value.items)))  # type: ignore[attr-defined]
    elif name == "INTRINSIC_UNARY_POSITIVE":
        frame.stack.append(unary(cap, "+", value))
    elif name == "INTRINSIC_STOPITERATION_ERROR":
        if issubclass(python_type(value), StopIteration):
            raise stopped_inside(cap, value)
        frame.stack.append(value)
    else:
        frame.stack.append(value)
        raise Break("unsupported-opcode", f"CALL_INTRINSIC_1 {name}")


@op("CALL_INTRINSIC_2")
def _call_intrinsic_2(cap: Capture, frame: Frame, name: str) -> None:
    raise Break("unsupported-opcode", f"CALL_INTRINSIC_2 {name}")


def _unsupported_handler(name: str, why: str) -> Handler:
    def handler(cap: Capture, frame: Frame, arg: Any) -> None:
        raise Break("unsupported-opcode", f"{name}: {why}")

    return handler


for _name, _why in UNSUPPORTED.items():
    op(_name)(_unsupported_handler(_name, _why))
