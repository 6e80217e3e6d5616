"""Objects of C classes that the region makes of constants and keeps to itself: they are real, and used for real.

In: calls that make such objects, their methods and operators. Out: constants, or more such objects.
Always: an object that is to outlive the region is copied by each run as it is at the end; one that cannot be copied is
made natively instead: the region ends before it. Nothing that depends on more than the arguments is made here.
"""

from __future__ import annotations

import copy
import datetime
import random

import numpy as np

from .attributes import C_DATA, CYTHON, FINDERS
from .breaks import Break, Exhausted, Raised, RunEagerly
from .calls import INSTANCE_CALLS
from .capture import Capture, Link
from .constants import PRIVATE_CLASSES
from .draws import draw_of_numpy
from .mirror import run
from .protocol.arithmetic import BINARY, INPLACE, INPLACE_OPERATORS, UNARY, UNARY_OPERATORS
from .protocol.comparison import COMPARE, OPERATORS, TRUTHS
from .protocol.iteration import ITERABLES, ITERATORS
from .residual import BUILDERS, Residual
from .rules import rule
from .trackers import Args, ConstVar, Kwargs, MethodVar, ObjectVar, PrivateVar, Tracker

#: Made without a seed, they are made of the system's randomness.
_SEEDED = (random.Random, np.random.RandomState)


def _made(cap: Capture, cls: type, args: Args, kwargs: Kwargs) -> Tracker:
    if cls in _SEEDED and (
        not args or type(cap.realize(args[0])) is not ConstVar or cap.value_of(args[0]) is None
    ):
        raise Break("unsupported-object", f"a {cls.__name__} made without a seed that is a constant")
    return run(cap, cls, args, kwargs)


def _attribute(cap: Capture, obj: PrivateVar, name: str) -> Tracker | None:
    cls = type(obj.value)
    found = getattr(cls, name, None)
    if callable(found) and not isinstance(found, type):
        return MethodVar(ConstVar(found), obj)
    if isinstance(found, C_DATA):
        return cap.from_python(getattr(obj.value, name))
    if not hasattr(obj.value, name):
        return None
    raise Break("unsupported-attribute", f"{name} of a {cls.__name__}")


def _operate(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    return run(cap, (BINARY.get(symbol) or COMPARE[symbol])[0], [left, right], {})


def _next(cap: Capture, iterator: Tracker) -> Tracker:
    try:
        return run(cap, next, [iterator], {})
    except Raised as raised:
        if raised.value.cls is StopIteration:  # type: ignore[attr-defined]
            raise Exhausted from None
        raise


def _copied(residual: Residual, tracker: PrivateVar) -> str:
    cls = type(tracker.value)
    if not PRIVATE_CLASSES[cls]:
        raise RunEagerly(
            "unsupported-object", f"a {cls.__name__} that outlives the region", earlier=tracker.born
        )
    text = f"{residual.constant(copy.copy)}({residual.constant(tracker.value, cls.__name__)})"
    return residual._keep(tracker, "v", text)


FINDERS[PrivateVar] = _attribute
OPERATORS[PrivateVar] = _operate
INPLACE_OPERATORS[PrivateVar] = lambda cap, symbol, left, right: run(
    cap, INPLACE[symbol][0], [left, right], {}
)
UNARY_OPERATORS[PrivateVar] = lambda cap, symbol, operand: run(cap, UNARY[symbol][0], [operand], {})
TRUTHS[PrivateVar] = lambda cap, value: bool(cap.value_of(run(cap, bool, [value], {})))
ITERABLES[PrivateVar] = lambda cap, value: run(cap, iter, [value], {})
ITERATORS[PrivateVar] = _next
BUILDERS[PrivateVar] = _copied


def _class(cls: type) -> None:
    @rule(cls)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        return _made(cap, cls, args, kwargs)


def _value_class(cls: type) -> None:
    """Instances never change: they are constants."""

    @rule(cls)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        return run(cap, cls, args, kwargs)


def _call_of_numpy(cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
    """``default_rng(seed)``; numpy's other functions of Cython draw from its global state."""
    drawn = draw_of_numpy(cap, fn, args, kwargs)
    if drawn is not None:
        return drawn
    if (
        fn.obj is not np.random.default_rng
        or not args
        or kwargs
        or type(cap.realize(args[0])) is not ConstVar
    ):
        raise Break("c-function", f"call of a {fn.cls.__name__} object")
    if cap.value_of(args[0]) is None:
        raise Break("unsupported-object", "a Generator made without a seed that is a constant")
    return run(cap, np.random.default_rng, args, kwargs)


INSTANCE_CALLS[CYTHON] = _call_of_numpy
for _cls in PRIVATE_CLASSES:
    _class(_cls)
for _cls in (datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone):
    _value_class(_cls)
