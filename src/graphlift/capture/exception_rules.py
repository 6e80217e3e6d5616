"""Rules of exceptions: what is being handled, their fields and notes, groups of exceptions.

In: calls of what is named. Out: trackers with the interpreter's meaning.
Always: messages about wrong arguments come from the real functions; what groups do is Python in `polyfills.py`.
"""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

from . import polyfills
from .attribute_writes import set_attr, write_slot
from .attributes import get_attr, has_attr, python_type
from .breaks import Break
from .calls import call
from .capture import Capture
from .constants import exception_values
from .protocol import evaluate, get_item, is_same, iterate
from .rules import rule
from .trackers import NONE, Args, ConstVar, Kwargs, ListVar, ObjectVar, Tracker, TupleVar, describe


def _exception(cap: Capture, tracker: Tracker) -> ObjectVar:
    tracker = cap.realize(tracker)
    if type(tracker) is not ObjectVar or not issubclass(tracker.cls, BaseException):
        raise Break("unsupported-call", f"a method of exceptions on a {describe(tracker)}")
    return tracker


# --- what is being handled ------------------------------------------------------------------------------------------


@rule(sys.exc_info)
def _exc_info(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    error = cap.handled()
    if error is None:
        cap.nothing_handled_outside()
        return TupleVar([NONE, NONE, NONE])
    return TupleVar([cap.from_python(python_type(error)), error, cap.traceback_of(error)])


@rule(sys.exception)
def _current_exception(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    error = cap.handled()
    if error is None:
        cap.nothing_handled_outside()
        return NONE
    return error


# --- fields ---------------------------------------------------------------------------------------------------------


def _set_args(cap: Capture, error: ObjectVar, args: Args) -> None:
    write_slot(cap, error, "args", TupleVar(list(args)))


_WITH_INIT: list[Any] = [
    cls
    for cls in vars(builtins).values()
    if isinstance(cls, type) and issubclass(cls, BaseException) and "__init__" in cls.__dict__
]


@rule(*dict.fromkeys(cls.__init__ for cls in _WITH_INIT if not exception_values(cls)))
def _exception_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if kwargs:
        raise Break("unsupported-call", "an exception with named arguments")
    _set_args(cap, _exception(cap, args[0]), args[1:])
    return NONE


def _field_init(cls: Any) -> None:
    """The ``__init__`` of an exception whose fields follow from constant arguments."""

    @rule(cls.__init__)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        error = _exception(cap, args[0])
        made: Any = evaluate(
            cap,
            cls,
            *map(cap.value_of, args[1:]),
            **{name: cap.value_of(arg) for name, arg in kwargs.items()},
        )
        _set_args(cap, error, args[1:])
        for name in exception_values(cls):
            write_slot(cap, error, name, made.slots[name])
        return NONE


#: OSError decides in `__new__`, and StopIteration's value may be anything.
for _cls in (AttributeError, NameError, ImportError, SystemExit, SyntaxError):
    _field_init(_cls)


@rule(StopIteration.__init__)
def _stop_iteration_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    error = _exception(cap, args[0])
    if kwargs or error.obj is not None:
        raise Break("unsupported-call", "StopIteration.__init__")
    _set_args(cap, error, args[1:])
    error.slots["value"] = cap.realize(args[1]) if len(args) > 1 else NONE
    return NONE


@rule(BaseException.with_traceback)
def _with_traceback(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    set_attr(cap, _exception(cap, args[0]), "__traceback__", args[1])
    return args[0]


@rule(BaseException.add_note)
def _add_note(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    error, note = _exception(cap, args[0]), cap.realize(args[1])
    if not issubclass(python_type(note), str):
        evaluate(cap, BaseException.add_note, Exception(), cap.value_of(note))
    if not has_attr(cap, error, "__notes__"):
        set_attr(cap, error, "__notes__", ListVar([]))
    notes = get_attr(cap, error, "__notes__")
    if not issubclass(python_type(notes), list):
        raise cap.raise_(TypeError, "Cannot add note: __notes__ is not a list")
    return call(cap, ConstVar(list.append), [notes, note], {})


# --- groups ---------------------------------------------------------------------------------------------------------


def new_group(cap: Capture, cls: Any, args: Args) -> ObjectVar:
    """``BaseExceptionGroup.__new__``: made for real of exceptions that stand for the tracked ones, to be told what it is."""
    items: Args = []
    values: list[Any] = []
    for position, arg in enumerate(map(cap.realize, args)):
        is_sequence = issubclass(python_type(arg), (list, tuple))
        if position == 1 and is_sequence:
            items = iterate(cap, arg)
            values.append([_stand_in(cap, item) for item in items])
        else:
            values.append(cap.value_of(arg))
    if len(args) == 2 and not items and hasattr(type(values[1]), "__getitem__"):
        values[1] = []
        if not issubclass(python_type(args[1]), (list, tuple, str, bytes)):
            raise Break("unsupported-object", f"a group of exceptions in a {describe(args[1])}")
    try:
        made = BaseExceptionGroup.__new__(cls, *values)
    except Exception as error:
        raise cap.raise_(type(error), *error.args) from None
    result = ObjectVar(type(made))
    result.slots = {"args": TupleVar(list(args)), "message": args[0], "exceptions": TupleVar(items)}
    return result


def _stand_in(cap: Capture, item: Tracker) -> Any:
    cls = python_type(cap.realize(item))
    if not issubclass(cls, BaseException):
        return None
    return Exception() if issubclass(cls, Exception) else BaseException()


@rule(BaseExceptionGroup.derive)
def _derive(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    message = get_attr(cap, _exception(cap, args[0]), "message")
    return call(cap, ConstVar(BaseExceptionGroup), [message, args[1]], {})


def _check_matcher(cap: Capture, matcher: Tracker) -> None:
    """What tells which exceptions of a group are meant: a class, a tuple of classes, a function."""
    matcher = cap.realize(matcher)
    if python_type(matcher) is types.FunctionType:
        return
    value = cap.value_of(matcher)
    if not (isinstance(value, (type, tuple)) or not callable(value)):
        raise Break("unsupported-call", f"a group of exceptions split by a {describe(matcher)}")
    evaluate(cap, lambda: BaseExceptionGroup("", [Exception()]).split(value) and None)


@rule(BaseExceptionGroup.split)
def _split(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    _check_matcher(cap, args[1])
    return call(cap, ConstVar(polyfills.split_group), [_exception(cap, args[0]), args[1], ConstVar(True)], {})


@rule(BaseExceptionGroup.subgroup)
def _subgroup(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    _check_matcher(cap, args[1])
    parts = call(
        cap, ConstVar(polyfills.split_group), [_exception(cap, args[0]), args[1], ConstVar(False)], {}
    )
    return get_item(cap, parts, ConstVar(0))


def matches(cap: Capture, error: Tracker, wanted: Tracker) -> bool:
    """``PyErr_GivenExceptionMatches``: by the classes alone, whatever their metaclasses say."""
    return _fits(python_type(error), cap.value_of(wanted))


def _fits(cls: type, wanted: Any) -> bool:
    return any(_fits(cls, each) for each in wanted) if isinstance(wanted, tuple) else wanted in cls.__mro__


@rule(polyfills.matches)
def _matches(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    error, wanted = map(cap.realize, args)
    if python_type(wanted) is types.FunctionType:
        return call(cap, wanted, [error], {})
    return ConstVar(matches(cap, error, wanted))


@rule(polyfills.inherit)
def _inherit(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """A part of a group has the group's traceback, context, cause and a copy of its notes."""
    part, group = (_exception(cap, arg) for arg in args)
    if group.obj is not None or part.obj is not None:
        raise Break("unsupported-object", "part of a group of exceptions made outside the captured code")
    for name in ("__context__", "__cause__"):
        part.slots[name] = group.slots.get(name, NONE)
    part.slots["__suppress_context__"] = ConstVar(True)
    cap.share_trace(part, group)
    if has_attr(cap, group, "__notes__"):
        notes = get_attr(cap, group, "__notes__")
        if issubclass(python_type(notes), (list, tuple)):
            set_attr(cap, part, "__notes__", ListVar(iterate(cap, notes)))
    return NONE


@rule(polyfills.is_same_raise)
def _is_same_raise(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """Whether a group is the very raise of another, or a part of it: their tracebacks, causes and contexts are one."""
    left, right = (_exception(cap, arg) for arg in args)
    if not (issubclass(left.cls, BaseExceptionGroup) and issubclass(right.cls, BaseExceptionGroup)):
        return ConstVar(False)
    fields = ("__cause__", "__context__")
    alike = all(is_same(cap, left.slots.get(f, NONE), right.slots.get(f, NONE)) for f in fields)
    return ConstVar(alike and cap.trace_of(left) is cap.trace_of(right))
