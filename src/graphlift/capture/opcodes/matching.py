"""Instructions of `match` statements.

In: the capture, the frame, the instruction's resolved argument. Out: None (go on), a jump target, RETURN or YIELD.
Always: a handler leaves exactly the stack that the interpreter would leave.
"""

from __future__ import annotations

import collections.abc
from typing import Any

from ...guards import ABSENT
from ..attributes import (
    get_attr,
    has_attr,
    python_type,
)
from ..calls import call
from ..capture import Capture
from ..frame import Frame
from ..protocol import (
    iterate,
    length,
    truth,
)
from ..trackers import (
    NONE,
    ConstVar,
    Tracker,
    TupleVar,
)
from .table import op

# --- the rest -------------------------------------------------------------------------------------------------------------------


@op("GET_LEN")
def _get_len(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(ConstVar(length(cap, frame.stack[-1])))


@op("MATCH_SEQUENCE")
def _match_sequence(cap: Capture, frame: Frame, arg: Any) -> None:
    cls = python_type(frame.stack[-1])
    matches = issubclass(cls, collections.abc.Sequence) and not issubclass(cls, (str, bytes, bytearray))
    frame.stack.append(ConstVar(matches))


@op("MATCH_MAPPING")
def _match_mapping(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(ConstVar(issubclass(python_type(frame.stack[-1]), collections.abc.Mapping)))


@op("MATCH_KEYS")
def _match_keys(cap: Capture, frame: Frame, arg: Any) -> None:
    subject, keys = frame.stack[-2:]
    found: list[Tracker] = []
    for key in iterate(cap, keys):
        missing = ConstVar(_NO_VALUE)
        value = call(cap, get_attr(cap, subject, "get"), [key, missing], {})
        if value is missing:
            frame.stack.append(NONE)
            return
        found.append(value)
    frame.stack.append(TupleVar(found))


_NO_VALUE = object()
#: Classes whose positional pattern is the subject itself.
_SELF_MATCHING = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


@op("MATCH_CLASS")
def _match_class(cap: Capture, frame: Frame, count: int) -> None:
    subject, cls_var, keyword_names = frame.popn(3)
    cls = cap.value_of(cls_var)
    if not isinstance(cls, type):
        raise cap.raise_(TypeError, "called match pattern must be a class")
    matched = call(cap, ConstVar(isinstance), [subject, cls_var], {})
    frame.stack.append(
        _class_pattern(cap, subject, cls, count, cap.value_of(keyword_names)) if truth(cap, matched) else NONE
    )


def _class_pattern(
    cap: Capture, subject: Tracker, cls: type, count: int, keyword_names: tuple[str, ...]
) -> Tracker:
    """The attributes that a class pattern with ``count`` positional sub-patterns looks at, or None."""
    names: tuple[str, ...] = ()
    found: list[Tracker] = []
    if count:
        declared = cap.type_attr(cls, "__match_args__")
        if declared is ABSENT and issubclass(cls, _SELF_MATCHING):
            found, count = [cap.realize(subject)], count - 1
        names = () if declared is ABSENT else declared
        if count > len(names):
            allowed = len(names) + len(found)
            plural = "" if allowed == 1 else "s"
            given = count + len(found)
            raise cap.raise_(
                TypeError,
                f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({given} given)",
            )
    for name in (*names[:count], *keyword_names):
        if not has_attr(cap, subject, name):
            return NONE
        found.append(get_attr(cap, subject, name))
    return TupleVar(found)
