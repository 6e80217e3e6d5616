"""Weak references and proxies: made in the region, or met there.

In: calls of `weakref` and of references. Out: trackers of references, and of what they refer to.
Always: a reference is followed only where the program is seen to hold its target; what may have ended by then is left
to Python, which knows.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..guards import Call, WeakTarget, _guards, gives
from .attributes import PROXIES, python_type
from .breaks import Break
from .calls import INSTANCE_CALLS, Args, Kwargs, call
from .capture import Capture, Link
from .endings import REFERENCES, held
from .protocol import compare, is_same
from .residual import OBJECT_BUILDERS, Residual
from .rules import rule
from .trackers import (
    NONE,
    ConstVar,
    ObjectVar,
    Tracker,
    describe,
)


def _is_held(cap: Capture, target: Tracker | None, value: Any) -> bool:
    """Whether the target of a reference is sure to live: it is seen, or the region has let go of nothing."""
    trackers, real = held(cap)
    if (target is not None and id(target) in trackers) or (value is not None and id(value) in real):
        return True
    return value is not None and not cap.changed and all(id(given) in real for given in cap.given)


# --- following ------------------------------------------------------------------------------------------------------


def target_of(cap: Capture, reference: ObjectVar) -> Tracker:
    """What a reference or proxy refers to; None where it has ended."""
    if reference.obj is None:
        target = reference.slots["target"]
        if not _is_held(cap, target, getattr(target, "obj", None)):
            raise Break("weak-reference", f"to a {describe(target)} that nothing may hold any more")
        return target
    assert reference.source is not None
    value = referent(reference.obj)
    if value is None:
        source = reference.source
        cap.guard(gives(Call(referent, source), None, f"{source.name()} has ended"))
        return NONE
    target = cap.wrap(value, WeakTarget(reference.source))
    if not _is_held(cap, target, value):
        raise Break("weak-reference", f"to a {type(value).__name__} that nothing may hold any more")
    return target


def referent(reference: Any) -> Any:
    """The object that a weak reference or proxy refers to, or None."""
    return _guards.weak_target(reference)


@rule(weakref.ref.__call__)
def _call(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    reference = cap.realize(args[0])
    if type(reference) is not ObjectVar or len(args) > 1 or kwargs:
        raise Break("unsupported-call", "a weak reference called with arguments")
    return target_of(cap, reference)


def proxied(cap: Capture, proxy: ObjectVar) -> Tracker:
    """What a proxy stands for."""
    target = target_of(cap, proxy)
    if target is NONE:
        raise cap.raise_(ReferenceError, "weakly-referenced object no longer exists")
    return target


def _call_proxy(cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
    return call(cap, proxied(cap, fn), args, kwargs, link)


def _call_reference(cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
    return _call(cap, [fn, *args], kwargs)


INSTANCE_CALLS.update(dict.fromkeys(REFERENCES, _call_reference) | {weakref.CallableProxyType: _call_proxy})


# --- making ---------------------------------------------------------------------------------------------------------


def _make(cap: Capture, cls: type, args: Args, kwargs: Kwargs) -> Tracker:
    target = cap.realize(args[0]) if args else NONE
    if kwargs or not 1 <= len(args) <= 2:
        raise Break("unsupported-call", f"{cls.__name__} with {len(args)} arguments")
    if len(args) == 2 and not is_same(cap, args[1], NONE):
        raise Break("weak-reference", "with a callback")
    kind = python_type(target)
    if not kind.__weakrefoffset__:
        raise cap.raise_(TypeError, f"cannot create weak reference to '{kind.__name__}' object")
    if type(target) is ConstVar and cls is weakref.ref:  # a class or function, which stays
        reference = weakref.ref(cap.value_of(target))
        if cap.born(target.value) is not None:
            cap.note_made(reference, None)
        return ConstVar(reference)
    if type(target) is not ObjectVar or target.cls in PROXIES:
        raise Break("weak-reference", f"to a {describe(target)}")
    known = cap.references.get((cls, id(target)))
    if known is None:
        made = ObjectVar(cls)
        made.slots = {"target": target}
        known = cap.references[cls, id(target)] = made
    return known


@rule(weakref.ref)
def _make_ref(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return _make(cap, weakref.ref, args, kwargs)


@rule(weakref.proxy)
def _make_proxy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    callable_ = bool(args) and "__call__" in {
        n for c in python_type(cap.realize(args[0])).__mro__ for n in vars(c)
    }
    return _make(cap, weakref.CallableProxyType if callable_ else weakref.ProxyType, args, kwargs)


def _rebuild(residual: Residual, reference: ObjectVar) -> str:
    make = weakref.ref if reference.cls is weakref.ref else weakref.proxy
    return f"{residual.constant(make)}({residual.expr(reference.slots['target'])})"


OBJECT_BUILDERS.update(dict.fromkeys((weakref.ref, *PROXIES), _rebuild))


# --- comparing ------------------------------------------------------------------------------------------------------


def _equal(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    left, right = map(cap.realize, args)
    if not all(type(side) is ObjectVar and issubclass(side.cls, weakref.ref) for side in (left, right)):
        return ConstVar(NotImplemented)
    targets = [target_of(cap, side) for side in (left, right)]  # type: ignore[arg-type]
    if any(target is NONE for target in targets):
        raise Break("weak-reference", "compared after its target has ended")
    return compare(cap, "==", *targets)


rule(weakref.ref.__eq__)(_equal)


@rule(weakref.ref.__ne__)
def _unequal(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    found = _equal(cap, args, kwargs)
    if type(found) is ConstVar and found.value is not NotImplemented:
        return ConstVar(not found.value)
    return found
