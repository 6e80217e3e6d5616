"""numpy on constants alone: grids, masks and numbers that the program computes anew in each call, and always the same.

In: calls of numpy's functions, and of arrays' methods, on constants. Out: constants, and arrays of known content.
Always: the function runs for real, once; what it would warn of, or refuse, runs natively.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

from ..guards import IdIs
from .arrays import known_array, memory_of
from .breaks import Break
from .calls import INSTANCE_CALLS
from .capture import Capture, Link, NotConst
from .constants import NUMPY_SCALARS, PLAIN_CONSTANTS
from .rules import RULES, rule
from .trackers import Args, ArrayVar, Kwargs, ListVar, ObjectVar, Tracker, TupleVar

#: Functions that act through their arguments alone and draw no random numbers.
FUNCTIONS = (
    "array asarray ascontiguousarray zeros ones full arange linspace logspace eye identity tri tril triu diag meshgrid indices "
    "stack concatenate vstack hstack dstack column_stack split array_split tile repeat reshape transpose swapaxes moveaxis "
    "expand_dims squeeze ravel broadcast_to atleast_1d atleast_2d flip rot90 roll where clip round around cumsum cumprod diff "
    "sum prod mean std var median max min amax amin argmax argmin argsort sort unique nonzero any all ptp dot matmul outer "
    "kron trace isclose allclose array_equal isscalar ndim shape size pad interp bincount searchsorted digitize histogram "
    "result_type promote_types can_cast issubdtype hanning hamming blackman bartlett kaiser sinc real imag angle conj"
).split()
METHODS = (
    "copy astype reshape transpose swapaxes flatten ravel squeeze repeat sum prod mean std var max min argmax argmin argsort "
    "cumsum cumprod clip round dot trace any all item tolist nonzero diagonal __len__"
).split()


def content_of(cap: Capture, tracker: Tracker) -> Any:
    """The value of a tracker made of constants and known arrays. Raises: NotConst."""
    tracker = cap.realize(tracker)
    if type(tracker) is ArrayVar:
        if tracker.content is None:
            raise NotConst
        return tracker.content
    if type(tracker) in (ListVar, TupleVar):
        items = [content_of(cap, item) for item in tracker.items]  # type: ignore[attr-defined]
        return items if type(tracker) is ListVar else tuple(items)
    return cap.value_of(tracker)


def is_constant(cap: Capture, *trackers: Tracker) -> bool:
    try:
        for tracker in trackers:
            content_of(cap, tracker)
    except NotConst:
        return False
    return True


def compute(cap: Capture, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Tracker:
    """``fn(*args)`` for real. Raises: Break where an argument is no constant."""
    name = getattr(fn, "__name__", str(fn))
    try:
        values = [content_of(cap, arg) for arg in args]
        named = {key: content_of(cap, arg) for key, arg in kwargs.items()}
    except NotConst:
        raise Break("c-function", f"numpy.{name} of values that are not constants") from None
    try:
        with np.errstate(all="raise"):
            result = fn(*values, **named)
    except Exception as error:
        raise Break("c-function", f"numpy.{name}: {error}") from None
    return _tracker_of(cap, name, result)


def _tracker_of(cap: Capture, name: str, result: Any) -> Tracker:
    if type(result) is np.ndarray and result.ndim and not result.dtype.hasobject:
        memory_of(result)
        return known_array(cap, result)
    if type(result) in (list, tuple):
        items = [_tracker_of(cap, name, item) for item in result]
        return ListVar(items) if type(result) is list else TupleVar(items)
    if type(result) in PLAIN_CONSTANTS or type(result) in NUMPY_SCALARS or isinstance(result, np.dtype):
        return cap.from_python(result)
    raise Break("c-function", f"numpy.{name}, which gives a {type(result).__name__}")


def _call_array_function(
    cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs, link: Link | None = None
) -> Tracker:
    assert fn.source is not None
    cap.guard(IdIs(fn.source, fn.obj))
    if fn.obj not in _DISPATCHED:
        raise Break("c-function", f"numpy.{fn.obj.__name__}")
    return compute(cap, fn.obj, args, kwargs)


_FOUND = [getattr(np, name) for name in FUNCTIONS]
_DISPATCHER = type(np.concatenate)
_DISPATCHED = frozenset(fn for fn in _FOUND if type(fn) is _DISPATCHER)
INSTANCE_CALLS[_DISPATCHER] = _call_array_function
for _fn in dict.fromkeys(_FOUND):
    if isinstance(_fn, (types.FunctionType, types.BuiltinFunctionType)) and _fn not in RULES:
        rule(_fn)(lambda cap, args, kwargs, fn=_fn: compute(cap, fn, args, kwargs))
