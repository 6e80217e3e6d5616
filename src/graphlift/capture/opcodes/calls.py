"""Instructions that call, return, yield and delegate.

In: the capture, the frame, the instruction's resolved argument. Out: None (go on), a jump target, RETURN or YIELD.
Always: a handler leaves exactly the stack that the interpreter would leave.
"""

from __future__ import annotations

from typing import Any

from ...bytecode import AGAIN, DROP, LEADING, NULL_FIRST, leaves_null
from ..attributes import find_attr, get_attr, python_type
from ..breaks import Break, Exhausted, Raised
from ..calls import call
from ..capture import DIRECT, Capture
from ..frame import RETURN, YIELD, Frame, GeneratorVar, finish_send
from ..protocol import (
    gather,
    get_iter,
    is_iterable,
    is_same,
    mapping_items,
    next_item,
)
from ..trackers import (
    NONE,
    NULL,
    Tracker,
    TupleVar,
)
from .table import op

# --- calls --------------------------------------------------------------------------------------------------------------------


@op("CALL")
def _call(cap: Capture, frame: Frame, arg: tuple[int, tuple[str, ...]]) -> None:
    argc, names = arg
    operands = frame.popn(argc + 2)
    first, second, *args = operands
    if first is NULL:
        fn = second
    elif second is NULL:
        fn = first
    else:
        fn, args = first, [second, *args]
    kwargs: dict[str, Tracker] = {}
    if names:
        kwargs = dict(zip(names, args[-len(names) :]))
        args = args[: -len(names)]
    try:
        result = call(cap, fn, args, kwargs, DIRECT)
    except Break as stop:
        stop.undo_call(cap, operands)
        raise
    frame.stack.append(result)


@op("CALL_FUNCTION_EX")
def _call_function_ex(cap: Capture, frame: Frame, has_kwargs: bool) -> None:
    kwargs: dict[str, Tracker] = {}
    if has_kwargs:
        for key, value in mapping_items(cap, frame.stack.pop()):
            if type(key) is not str:
                raise cap.raise_(TypeError, "keywords must be strings")
            kwargs[key] = value
    packed = cap.realize(frame.stack.pop())
    first, second = frame.popn(2)
    fn = second if first is NULL else first
    args = list(packed.items) if type(packed) is TupleVar else _star_arguments(cap, fn, packed)
    frame.stack.append(call(cap, fn, args, kwargs, DIRECT))


def _star_arguments(cap: Capture, fn: Tracker, packed: Tracker) -> list[Tracker]:
    """The items of ``*packed`` alone in a call (CPython, Python/ceval.c, check_args_iterable)."""
    if not is_iterable(cap, packed):
        cls = python_type(packed)
        name, module = (find_attr(cap, fn, field) for field in ("__qualname__", "__module__"))
        if name is None:
            raise Break("unsupported-call", f"* of a {cls.__name__}")
        home = cap.value_of(module) if module is not None else None
        shown = f"{cap.value_of(name)}()" if home in (None, "builtins") else f"{home}.{cap.value_of(name)}()"
        raise cap.raise_(TypeError, f"{shown} argument after * must be an iterable, not {cls.__name__}")
    return gather(cap, packed)


def go_on_in_callee(cap: Capture, frame: Frame, arg: Any) -> int | None:
    """The instruction led to a callee that a break left under way, a Callee is on the stack in its operands' place."""
    (callee,) = (slot for slot in frame.popn(2) if slot is not NULL)
    at = frame.info.instrs[frame.pc]
    value = call(cap, callee, [], {}, DIRECT)
    frame.entering = False
    way = LEADING[at.op]
    if way is DROP:
        cap.drop(value)
        return None
    if leaves_null(at):
        frame.stack += [NULL, value] if NULL_FIRST else [value, NULL]
    else:
        frame.stack.append(value)
    return frame.pc if way is AGAIN else None


@op("RETURN_VALUE")
def _return_value(cap: Capture, frame: Frame, arg: Any) -> str:
    if cap.mortal and not frame.is_root:
        cap.drop(frame=frame, result=frame.stack[-1])
    return RETURN


@op("RETURN_GENERATOR")
def _return_generator(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(NONE)  # the value "sent" by the first next(), popped by the following POP_TOP


@op("YIELD_VALUE")
def _yield_value(cap: Capture, frame: Frame, arg: Any) -> str:
    if frame.is_root:
        raise Break("generator", "yield in the frame being captured")
    return YIELD


@op("GET_YIELD_FROM_ITER")
def _get_yield_from_iter(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = get_iter(cap, frame.stack[-1])


@op("SEND")
def _send(cap: Capture, frame: Frame, target: int) -> int | None:
    """Stack [iterator, sent] becomes [iterator, yielded], or [iterator-or-nothing, result] at ``target``."""
    sent, receiver = frame.stack[-1], frame.stack[-2]
    frame.delegate = receiver, frame.pc
    try:
        if type(receiver) is GeneratorVar:
            item = receiver.resume(cap, sent)
        elif is_same(cap, sent, NONE):
            item = next_item(cap, receiver)
        else:
            item = call(cap, get_attr(cap, receiver, "send"), [sent], {})
    except Exhausted as end:
        return finish_send(frame, frame.pc, end)
    except Raised:
        frame.delegate = None
        raise
    frame.stack[-1] = item
    return None


@op("END_SEND")
def _end_send(cap: Capture, frame: Frame, arg: Any) -> None:
    value = frame.stack.pop()
    frame.stack[-1] = value
