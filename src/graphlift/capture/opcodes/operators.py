"""Instructions that compute and decide: operators, jumps, loops.

In: the capture, the frame, the instruction's resolved argument. Out: None (go on), a jump target, RETURN or YIELD.
Always: a handler leaves exactly the stack that the interpreter would leave.
"""

from __future__ import annotations

import operator
from typing import Any

from ..assumed import branch
from ..breaks import Exhausted
from ..called_iterators import Ahead
from ..capture import DIRECT, Capture, Link
from ..frame import Frame, IteratorVar
from ..protocol import (
    binary,
    compare,
    contains,
    get_iter,
    inplace,
    is_same,
    next_item,
    truth,
    unary,
)
from ..trackers import (
    NONE,
    ConstVar,
    ObjectVar,
    Tracker,
)
from .table import Handler, op

# --- operators --------------------------------------------------------------------------------------------------------------


@op("BINARY_OP")
def _binary_op(cap: Capture, frame: Frame, symbol: str) -> None:
    left, right = frame.popn(2)
    if symbol.endswith("=") and symbol not in ("==", "<=", ">=", "!="):
        frame.stack.append(inplace(cap, symbol[:-1], left, right, DIRECT))
    else:
        frame.stack.append(binary(cap, symbol, left, right, link=DIRECT))


def _unary_handler(symbol: str) -> Handler:
    def handler(cap: Capture, frame: Frame, arg: Any) -> None:
        frame.stack.append(unary(cap, symbol, frame.stack.pop(), DIRECT))

    return handler


op("UNARY_NEGATIVE")(_unary_handler("-"))
op("UNARY_POSITIVE")(_unary_handler("+"))
op("UNARY_INVERT")(_unary_handler("~"))


@op("UNARY_NOT")
def _unary_not(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(ConstVar(not truth(cap, frame.stack.pop(), DIRECT)))


@op("TO_BOOL")
def _to_bool(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(ConstVar(branch(cap, frame, frame.stack.pop(), frame.pc + 1)))


@op("COMPARE_OP")
def _compare_op(cap: Capture, frame: Frame, symbol: str) -> None:
    left, right = frame.popn(2)
    frame.stack.append(compare(cap, symbol, left, right, DIRECT))


@op("IS_OP")
def _is_op(cap: Capture, frame: Frame, invert: bool) -> None:
    left, right = frame.popn(2)
    frame.stack.append(ConstVar(is_same(cap, left, right) != bool(invert)))


#: What `in`, and `not in`, make of the value of a ``__contains__``.
_CONTAINED = [Link((ConstVar(of_truth),)) for of_truth in (operator.truth, operator.not_)]


@op("CONTAINS_OP")
def _contains_op(cap: Capture, frame: Frame, invert: bool) -> None:
    item, container = frame.popn(2)
    frame.stack.append(ConstVar(contains(cap, container, item, _CONTAINED[invert]) != bool(invert)))


# --- jumps ------------------------------------------------------------------------------------------------------------------


@op("JUMP")
def _jump(cap: Capture, frame: Frame, target: int) -> int:
    return target


@op("POP_JUMP_IF_TRUE")
def _pop_jump_if_true(cap: Capture, frame: Frame, target: int) -> int | None:
    return target if branch(cap, frame, frame.stack.pop(), frame.pc) else None


@op("POP_JUMP_IF_FALSE")
def _pop_jump_if_false(cap: Capture, frame: Frame, target: int) -> int | None:
    return None if branch(cap, frame, frame.stack.pop(), frame.pc) else target


def _is_none(cap: Capture, value: Tracker) -> bool:
    return is_same(cap, value, NONE)


@op("POP_JUMP_IF_NONE")
def _pop_jump_if_none(cap: Capture, frame: Frame, target: int) -> int | None:
    return target if _is_none(cap, frame.stack.pop()) else None


@op("POP_JUMP_IF_NOT_NONE")
def _pop_jump_if_not_none(cap: Capture, frame: Frame, target: int) -> int | None:
    return None if _is_none(cap, frame.stack.pop()) else target


@op("JUMP_IF_TRUE_OR_POP")
def _jump_if_true_or_pop(cap: Capture, frame: Frame, target: int) -> int | None:
    if truth(cap, frame.stack[-1]):
        return target
    frame.stack.pop()
    return None


@op("JUMP_IF_FALSE_OR_POP")
def _jump_if_false_or_pop(cap: Capture, frame: Frame, target: int) -> int | None:
    if not truth(cap, frame.stack[-1]):
        return target
    frame.stack.pop()
    return None


@op("GET_ITER")
def _get_iter(cap: Capture, frame: Frame, arg: Any) -> None:
    iterable = cap.realize(frame.stack.pop())
    iterator = get_iter(cap, iterable, DIRECT)
    frame.stack.append(iterator)
    if iterator is not iterable and type(iterable) is not ObjectVar and isinstance(iterator, IteratorVar):
        iterator.hidden = True


@op("FOR_ITER")
def _for_iter(cap: Capture, frame: Frame, target: int) -> int | None:
    iterator = frame.stack[-1]
    frame.loops[len(frame.stack) - 1] = iterator, frame.pc, target
    if type(iterator) is Ahead:
        frame.stack[-1:] = iterator.iterator, iterator.item
        return None
    try:
        item = next_item(cap, iterator, DIRECT)
    except Exhausted:
        frame.stack.pop()
        if cap.mortal:
            cap.drop(iterator)
        return target
    frame.stack.append(item)
    return None
