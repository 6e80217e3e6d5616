"""Instructions that raise and handle exceptions, and those of `with`.

In: the capture, the frame, the instruction's resolved argument. Out: None (go on), a jump target, RETURN or YIELD.
Always: a handler leaves exactly the stack that the interpreter would leave.
"""

from __future__ import annotations

from typing import Any

from ...guards import ABSENT
from .. import polyfills
from ..attributes import bind_descriptor, get_attr, python_type
from ..breaks import Break, Raised
from ..calls import call
from ..capture import DIRECT, Capture
from ..exception_rules import matches
from ..frame import Frame
from ..protocol import is_same, iterate
from ..trackers import (
    NONE,
    ConstVar,
    ObjectVar,
    Tracker,
)
from .table import op

# --- exceptions -----------------------------------------------------------------------------------------------------------------


@op("LOAD_ASSERTION_ERROR")
def _load_assertion_error(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(ConstVar(AssertionError))


@op("RAISE_VARARGS")
def _raise_varargs(cap: Capture, frame: Frame, n: int) -> None:
    if n == 0:
        handled = cap.handled()
        if handled is None:
            raise cap.raise_(RuntimeError, "No active exception to reraise")
        raise Raised(handled)
    cause = frame.stack.pop() if n == 2 else None
    error = _exception_of(cap, frame.stack.pop(), "exceptions must derive from BaseException")
    if error.obj is not None:  # raising it changes its context and traceback, which outlive the region
        raise Break("exception-raised", f"a {error.cls.__name__} made outside the captured code")
    if cause is not None:
        if not is_same(cap, cause, NONE):
            cause = _exception_of(cap, cause, "exception causes must derive from BaseException")
        error.slots["__cause__"] = cap.realize(cause)
        error.slots["__suppress_context__"] = ConstVar(True)
    raise Raised(error)


def _exception_of(cap: Capture, value: Tracker, message: str) -> ObjectVar:
    """The exception that ``raise value`` raises: an instance, or a class to be instantiated."""
    value = cap.realize(value)
    if type(value) is ConstVar and isinstance(value.value, type) and issubclass(value.value, BaseException):
        value = call(cap, value, [], {})
    if type(value) is not ObjectVar or not issubclass(value.cls, BaseException):
        raise cap.raise_(TypeError, message)
    return value


@op("PUSH_EXC_INFO")
def _push_exc_info(cap: Capture, frame: Frame, arg: Any) -> None:
    error = frame.stack.pop()
    frame.stack.append(frame.handled[-1] if frame.handled else NONE)
    frame.stack.append(error)
    frame.handled.append(error)


@op("POP_EXCEPT")
def _pop_except(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.pop()
    if frame.handled:
        frame.handled.pop()


@op("RERAISE")
def _reraise(cap: Capture, frame: Frame, arg: Any) -> None:
    error = frame.stack.pop()
    raise Raised(error)


@op("CHECK_EXC_MATCH")
def _check_exc_match(cap: Capture, frame: Frame, arg: Any) -> None:
    wanted = frame.stack.pop()
    _check_classes(cap, cap.value_of(wanted))
    frame.stack.append(ConstVar(matches(cap, frame.stack[-1], wanted)))


def _check_classes(cap: Capture, wanted: Any) -> None:
    for cls in wanted if isinstance(wanted, tuple) else (wanted,):
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise cap.raise_(
                TypeError, "catching classes that do not inherit from BaseException is not allowed"
            )


@op("CHECK_EG_MATCH")
def _check_eg_match(cap: Capture, frame: Frame, arg: Any) -> None:
    """Stack [exception, classes] becomes [rest, match]; the match is what is then being handled."""
    wanted = frame.stack.pop()
    classes = cap.value_of(wanted)
    _check_classes(cap, classes)
    if any(
        issubclass(cls, BaseExceptionGroup) for cls in (classes if isinstance(classes, tuple) else (classes,))
    ):
        text = "catching ExceptionGroup with except* is not allowed. Use except instead."
        raise cap.raise_(TypeError, text)
    error = frame.stack[-1]
    parts: Any = call(cap, ConstVar(polyfills.star_match), [error, wanted], {})
    match, rest = map(cap.realize, iterate(cap, parts))
    frame.stack[-1:] = [rest, match]
    if not is_same(cap, match, NONE):
        if (
            id(match) not in cap.raise_points
        ):  # made around a single exception: no traceback, but not to be kept
            cap.raise_points[id(match)] = (*cap.raise_points[id(error)][:2], match)
        frame.handled[-1] = match


@op("PREP_RERAISE_STAR")
def _prep_reraise_star(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(call(cap, ConstVar(polyfills.prepare_reraise), frame.popn(2), {}))


@op("CLEANUP_THROW")
def _cleanup_throw(cap: Capture, frame: Frame, arg: Any) -> None:
    """What was thrown into an iterator that is delegated to: the end of the iterator, or an exception that goes on."""
    error: Any = frame.popn(3)[-1]
    if not issubclass(error.cls, StopIteration):
        raise Raised(error)
    frame.stack += [NONE, get_attr(cap, error, "value")]


@op("BEFORE_WITH")
def _before_with(cap: Capture, frame: Frame, arg: Any) -> None:
    manager = cap.realize(frame.stack.pop())
    cls = python_type(manager)
    methods = []
    for name in ("__enter__", "__exit__"):
        raw = cap.type_attr(cls, name)
        if raw is ABSENT:
            missed = " (missed __exit__ method)" if name == "__exit__" else ""
            raise cap.raise_(
                TypeError, f"'{cls.__name__}' object does not support the context manager protocol{missed}"
            )
        methods.append(bind_descriptor(cap, raw, manager, cls, name))
    enter, leave = methods
    assert enter is not None and leave is not None
    frame.stack.append(leave)
    frame.stack.append(call(cap, enter, [], {}, DIRECT))


@op("WITH_EXCEPT_START")
def _with_except_start(cap: Capture, frame: Frame, arg: Any) -> None:
    # stack: exit function, last instruction, previous exception, exception
    error, leave = frame.stack[-1], frame.stack[-4]
    frame.stack.append(call(cap, leave, [ConstVar(python_type(error)), error, cap.traceback_of(error)], {}))
