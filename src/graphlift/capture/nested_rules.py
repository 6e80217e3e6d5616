"""Calls of compiled callables in compiled code: what they compile is captured in place.

In: the call of a function, method or module that `graphlift.compile` made. Out: the call of what it was made of.
Always: of its own settings only `fullgraph` says anything here: a break inside it is one at its call, which raises then.
"""

from __future__ import annotations

from typing import Any

from ..frame import CompiledCallable
from .attributes import get_attr
from .breaks import Break
from .calls import INSTANCE_CALLS, call, known_object
from .capture import Capture, Link
from .trackers import Args, Kwargs, ObjectVar, Tracker


def _call_compiled(cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
    compiled: Any = known_object(cap, fn)
    settings = getattr(compiled, "_graphlift_settings", None)
    if settings is None:  # made by the extension alone
        raise Break("c-function", f"call of a {fn.cls.__name__} object", at_once=True)
    original = get_attr(cap, fn, "_graphlift_original")
    try:
        return call(cap, original, args, kwargs, link)
    except Break as stop:
        if not settings.fullgraph:
            raise
        at_call = Break(stop.code, stop.detail)
        at_call.stack, at_call.step = stop.stack, cap.break_step()
        raise at_call from None


INSTANCE_CALLS[CompiledCallable] = _call_compiled
