"""Functions wrapped by `functools.lru_cache`, of outside and made in the region.

In: calls of the wrapper. Out: what the function gives. Always: hits, misses and what the cache holds are eager's. A
function of outside is traced to see that it only computes, unless its cache holds the result already; the region then
calls the wrapper each time, before its graph.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..data import dataclass
from ..frame import call_disabled
from ..guards import Call, Const, gives
from ..guards._guards import cached_result
from ..guards.sources import describe_object
from ..shapes.expr import free
from .attributes import LRU_CACHE
from .breaks import Break, Raised
from .calls import CONSTANT_CALLS, INSTANCE_CALLS, call, known_object
from .capture import Capture, Link, NotConst
from .constants import IDENTITY_CONSTANTS, PLAIN_CONSTANTS
from .residual import OBJECT_BUILDERS, Residual
from .rules import rule
from .trackers import (
    NONE,
    Args,
    ConstVar,
    DictVar,
    Kwargs,
    ListVar,
    ObjectVar,
    SizeVar,
    Tracker,
    TupleVar,
    describe,
)

#: Functions that did not give what tracing them gave: they depend on more than their arguments and what is guarded.
UNSTABLE: set[weakref.ref[Any]] = set()


_ABSENT = NotImplemented  # what `cached_result` gives


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """A call of a cached function that the region repeats, as the cache counts it; ``expected``: what it has to give,
    and how the region looks whether it will (None: guards say so)."""

    fn: Any
    args: tuple[Tracker, ...]
    kwargs: dict[str, Tracker]
    expected: tuple[Any, Callable[..., bool]] | None
    call: Callable[..., Any]

    def before(self, residual: Residual, eagerly: str) -> str:
        if self.expected is None:
            return ""
        value, check = self.expected
        text = _template(residual, value) if isinstance(value, Tracker) else residual.constant(value)
        given = f"{residual.constant(self.fn)}, {text}, {self._given(residual)}"
        return f"if not {residual.constant(check)}({given}): return {eagerly}"

    def after(self, residual: Residual) -> str:
        return f"{residual.constant(self.call)}({residual.constant(self.fn)}, {self._given(residual)})"

    def _given(self, residual: Residual) -> str:
        named = [f"{name}={_argument(residual, arg)}" for name, arg in self.kwargs.items()]
        return ", ".join([*(_argument(residual, arg) for arg in self.args), *named])


#: What a call gives, the check of `Repeated`, and what makes the call.
Found = tuple[Tracker, tuple[Any, Callable[..., bool]] | None, Callable[..., Any]]


#: Hashes of calls made while capturing, which the next call that a region repeats stands for.
MADE: set[int] = set()


@dataclass(frozen=True, slots=True)
class Counted:
    """Calls a cached function, unless a capture has made that call."""

    key: int

    def __call__(self, fn: Any, /, *args: Any, **kwargs: Any) -> None:
        if self.key in MADE:
            MADE.discard(self.key)
        else:
            call_disabled(fn, *args, **kwargs)


def _argument(residual: Residual, tracker: Tracker) -> str:
    tracker = residual.cap.realize(tracker)
    if _varies(residual.cap, tracker):
        return _template(residual, tracker)
    if tracker.source is not None:
        return residual.load(tracker.source)
    return residual.constant(residual.cap.value_of(tracker))


def will_give(fn: Any, expected: Any, /, *args: Any, **kwargs: Any) -> bool:
    """Whether a call gives what the region takes it to give: the cache holds that, or nothing."""
    held = peek(fn, args, kwargs)
    if held is _ABSENT or _same(held, expected):
        return True
    UNSTABLE.add(weakref.ref(fn, UNSTABLE.discard))
    return False


def holds(fn: Any, expected: Any, /, *args: Any, **kwargs: Any) -> bool:
    """Whether the cache holds what the region takes a call to give."""
    return _same(peek(fn, args, kwargs), expected)


def _same(held: Any, expected: Any) -> bool:
    alike = type(held) is type(expected) and repr(held) == repr(expected)
    return alike and bool(held == expected or held != held)


def peek(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the cache holds for a call, without the call. Raises: LookupError where it does not show."""
    return cached_result(fn, *_layout(fn, kwargs), *args, *kwargs.values())


def _layout(fn: Any, kwargs: dict[str, Any]) -> tuple[bool, tuple[str, ...]]:
    """How the cache's keys are made: whether by types too, and of which names after the positional arguments."""
    return bool(fn.cache_parameters()["typed"]), tuple(kwargs)


def _is_immutable(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)) and not getattr(value, "__dict__", None):
        return all(map(_is_immutable, value))
    return type(value) in PLAIN_CONSTANTS or issubclass(type(value), IDENTITY_CONSTANTS)


def call_cached(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Tracker:
    """A call of a cached function that existed before the region."""
    if any(_varies(cap, arg) for arg in (*args, *kwargs.values())):
        return _of_sizes(cap, fn, args, kwargs)
    try:
        real = tuple(known_object(cap, arg) for arg in args)
        named = {name: known_object(cap, arg) for name, arg in kwargs.items()}
    except NotConst:
        text = f"cached function {_name(fn)} with arguments that are not constants"
        raise Break("c-function", text) from None
    _require_stable(fn)
    try:
        key = (id(fn), functools._make_key(real, named, True))
        known = cap.cached.get(key)
    except TypeError as error:
        raise Raised(cap.exception_var(error)) from None
    known = known or _found(cap, fn, args, kwargs, real, named, key)
    found, expected, again = cap.cached[key] = known
    if not cap.in_cached:
        cap.repeated.append(Repeated(fn, tuple(args), kwargs, expected, again))
    return found


def _require_stable(fn: Any) -> None:
    if weakref.ref(fn) in UNSTABLE:
        raise Break("c-function", f"cached function {_name(fn)}, whose result changes", at_once=True)


def _guard_stable(cap: Capture, fn: Any) -> None:
    stable = Call(operator.contains, UNSTABLE, weakref.ref(fn))
    cap.guard(gives(stable, False, f"{_name(fn)} gives what it gave"))


def _varies(cap: Capture, tracker: Tracker) -> bool:
    """Whether an argument is, or holds, a size that may differ from call to call."""
    tracker = cap.realize(tracker)
    if type(tracker) is ObjectVar and tracker.cls is torch.Size:
        return tracker.payload is not None and _varies(cap, tracker.payload)
    return type(tracker) is SizeVar or (
        type(tracker) is TupleVar and any(_varies(cap, t) for t in tracker.items)
    )


def _of_sizes(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Tracker:
    """A call with sizes that vary: traced, and compared at each call with what the cache holds for it, if anything.

    What the function gives is in the cache too: it may neither be changed nor leave the region.
    """
    what = f"cached function {_name(fn)}"
    _require_stable(fn)
    given = [_key_of_sizes(cap, arg) for arg in (*args, *kwargs.values())]
    key = (id(fn), tuple(given), len(args), tuple(kwargs))
    if key not in cap.cached:
        step = cap.break_step()
        found = _traced(cap, fn, args, kwargs)
        held = _Held(cap, found, what)
        if not cap.in_cached:
            for container, _ in held.contents:
                cap.stays_inside(container, step)
            cap.looked_at.append((what, held, step))
        cap.cached[key] = found, (found, will_give), call_disabled
        _guard_stable(cap, fn)
    found, expected, again = cap.cached[key]
    if not cap.in_cached:
        cap.repeated.append(Repeated(fn, tuple(args), kwargs, expected, again))
    return found


def _key_of_sizes(cap: Capture, tracker: Tracker) -> Any:
    tracker = cap.realize(tracker)
    if not _varies(cap, tracker):
        try:
            value = known_object(cap, tracker)
        except NotConst:
            raise Break("c-function", "a cached function with arguments that are not constants") from None
        return type(value), value if type(value) in PLAIN_CONSTANTS else id(value)
    if type(tracker) is SizeVar:
        if any(symbol not in cap.size_sources for symbol in free(tracker.expr)):
            raise Break("c-function", "a cached function of a size that is found out in the region")
        return tracker.expr
    items = tracker if type(tracker) is TupleVar else tracker.payload  # type: ignore[attr-defined]
    return type(tracker), tuple([_key_of_sizes(cap, item) for item in items.items])


class _Held:
    """The containers that a result is made of, and what they hold. Raises: Break for what is no plain data."""

    def __init__(self, cap: Capture, found: Tracker, what: str) -> None:
        self.contents: list[tuple[Tracker, list[Any]]] = []
        stack = [cap.realize(found)]
        while stack:
            at = stack.pop()
            if type(at) in (TupleVar, ListVar, DictVar):
                self.contents.append((at, _items(at)))
                stack += [cap.realize(item) for _, item in _items(at)]
            elif type(at) is not SizeVar and not (type(at) is ConstVar and _is_immutable(at.value)):
                raise Break("c-function", f"{what} gives a {describe(at)} for a size that varies")

    def changed(self) -> bool:
        return any(_items(container) != held for container, held in self.contents)

    def has_cell(self, frames: Any) -> bool:
        return False


def _items(container: Any) -> list[tuple[Any, Tracker]]:
    return list(container.known.items()) if type(container) is DictVar else list(enumerate(container.items))


def _template(residual: Residual, tracker: Tracker) -> str:
    """The text that makes an argument or a result of sizes anew, of what is known before the graph runs."""
    tracker = residual.cap.realize(tracker)
    if type(tracker) is SizeVar:
        return residual.size(tracker.expr)
    if type(tracker) is ObjectVar and tracker.cls is torch.Size and tracker.payload is not None:
        return f"{residual.constant(torch.Size)}({_template(residual, tracker.payload)})"
    if type(tracker) not in (TupleVar, ListVar, DictVar):
        return _argument(residual, tracker)
    parts = [_template(residual, item) for _, item in _items(tracker)]
    if type(tracker) is DictVar:
        items = [f"{key!r}: {part}" for key, part in zip(tracker.known, parts, strict=True)]
        return f"{{{', '.join(items)}}}"
    text = "".join([f"{part}, " for part in parts])
    return f"({text})" if type(tracker) is TupleVar else f"[{text}]"


def _found(
    cap: Capture, fn: Any, args: Args, kwargs: Kwargs, real: tuple[Any, ...], named: dict[str, Any], key: Any
) -> Found:
    """What the function gives, and how the region repeats the call. A constant is compared with what the cache holds
    at each call; guards say of an object that the cache holds it, and one that it does not hold yet is made."""
    what = f"cached function {_name(fn)}"
    try:
        held = peek(fn, real, named)
    except LookupError:
        raise Break("c-function", f"{what}, whose cache does not show") from None
    limit, plain = fn.cache_parameters()["maxsize"], held is not _ABSENT and _is_immutable(held)
    if plain and limit is None and not cap.in_cached:
        _guard_stable(cap, fn)
        return cap.from_python(held), (held, holds), call_disabled
    if plain or held is _ABSENT:
        try:
            found, value = _only_computed(cap, fn, args, kwargs)
        except Break:
            if held is _ABSENT:
                raise
        else:
            if value is not _ABSENT:
                _guard_stable(cap, fn)
                return found, (value, will_give), call_disabled
            if held is _ABSENT:
                if cap.in_cached or (limit is not None and fn.cache_info().currsize >= limit):
                    raise Break("c-function", f"{what} gives an object, and may have no room for it")
                held = call_disabled(fn, *real, **named)
                MADE.add(hash(key))
    if _keeps_tensors(held):
        raise Break("c-function", f"{what} gives a {type(held).__name__} of tensors")
    source = Const(held, f"{_name(fn)}_result")
    values = [_weakly(value) for value in (*real, *named.values())]
    looked_up = Call(cached_result, fn, *_layout(fn, named), *values)
    cap.guard(gives(Call(operator.is_, looked_up, source), True, f"{_name(fn)} still holds what it gave"))
    again = Counted(hash(key)) if hash(key) in MADE else call_disabled
    return cap.wrap(held, source), None, again


def _name(fn: Any) -> str:
    """The function's name; partial functions and objects with ``__call__`` have none."""
    return getattr(fn, "__qualname__", None) or describe_object(fn.__wrapped__)


def _weakly(value: Any) -> Any:
    """An argument as a guard keeps it: objects as `Const` does."""
    return value if _is_immutable(value) else Const(value, describe_object(value))


def _keeps_tensors(held: Any) -> bool:
    """Whether a container, which guards cannot hold weakly, would keep tensors alive."""
    if isinstance(held, (tuple, list, dict)):
        return any(map(_keeps_tensors, held.values() if isinstance(held, dict) else held))
    return isinstance(held, torch.Tensor)


def _only_computed(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> tuple[Tracker, Any]:
    """What the function gives, traced, and its value if that is constant. Raises: Break where it does more."""
    found = _traced(cap, fn, args, kwargs)
    try:
        value = cap.value_of(found)
    except NotConst:
        return found, _ABSENT
    return found, value if _is_immutable(value) else _ABSENT


def _traced(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Tracker:
    what = f"cached function {_name(fn)}"
    outer, cap.in_cached = cap.in_cached, True
    try:
        wrapped = cap.wrap(fn.__wrapped__, Const(fn.__wrapped__, _name(fn)))
        return cap.realize(cap.only_computed(what, lambda: call(cap, wrapped, args, kwargs)))
    except Raised:
        raise Break("c-function", f"{what} raises") from None
    finally:
        cap.in_cached = outer


# --- made in the region ----------------------------------------------------------------------------------------------


@rule(LRU_CACHE)
def _made(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """``_lru_cache_wrapper(user_function, maxsize, typed, cache_info_type)``, as `functools.lru_cache` calls it."""
    func, maxsize, typed, info = args
    made = ObjectVar(LRU_CACHE)
    # No names of attributes.
    made.slots = {
        **{"(func)": func, "(maxsize)": maxsize, "(typed)": typed, "(info)": info},
        **{"(hits)": ConstVar(0), "(misses)": ConstVar(0), "(cache)": DictVar({})},
    }
    made.slots["(born)"] = ConstVar(cap.break_step())
    return made


_KEYWORDS = object()  # between positional and named arguments in a key


def _call_made(cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
    """Source: CPython, Modules/_functoolsmodule.c, infinite_lru_cache_wrapper and bounded_lru_cache_wrapper."""
    slots = fn.slots
    cap.stays_inside(fn, slots["(born)"].value)  # type: ignore[attr-defined]
    limit, known = cap.value_of(slots["(maxsize)"]), slots["(cache)"].known  # type: ignore[attr-defined]
    key = None
    if limit != 0:
        key = cap.key_of(_key(cap, args, kwargs, cap.value_of(slots["(typed)"])))
        if key in known:
            slots["(hits)"] = ConstVar(slots["(hits)"].value + 1)  # type: ignore[attr-defined]
            if limit is not None:
                known[key] = known.pop(key)
            return cap.realize(known[key])
    slots["(misses)"] = ConstVar(slots["(misses)"].value + 1)  # type: ignore[attr-defined]
    found = call(cap, slots["(func)"], args, kwargs)
    if limit != 0 and key not in known:
        if limit is not None and len(known) >= limit:
            del known[next(iter(known))]
        known[key] = found
    return found


def _key(cap: Capture, args: Args, kwargs: Kwargs, typed: bool) -> Tracker:
    if len(args) == 1 and not kwargs and not typed:
        only = cap.realize(args[0])
        if type(only) is ConstVar and type(only.value) in (int, str):
            return only
    parts = list(args)
    if kwargs:
        parts.append(ConstVar(_KEYWORDS))
        for name, value in kwargs.items():
            parts += [ConstVar(name), value]
    if typed:
        parts += [call(cap, ConstVar(type), [value], {}) for value in (*args, *kwargs.values())]
    return TupleVar(parts)


CONSTANT_CALLS[LRU_CACHE] = call_cached
INSTANCE_CALLS[LRU_CACHE] = _call_made


def _own(cap: Capture, tracker: Tracker, name: str) -> ObjectVar:
    tracker = cap.realize(tracker)
    if type(tracker) is not ObjectVar:
        raise Break("c-function", f"{name} of a cached function", at_once=True)
    return tracker


@rule(LRU_CACHE.cache_info)
def _cache_info(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    slots = _own(cap, args[0], "cache_info()").slots
    size = ConstVar(len(slots["(cache)"].known))  # type: ignore[attr-defined]
    return call(cap, slots["(info)"], [slots["(hits)"], slots["(misses)"], slots["(maxsize)"], size], {})


@rule(LRU_CACHE.cache_clear)
def _cache_clear(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    slots = _own(cap, args[0], "cache_clear()").slots
    slots |= {"(hits)": ConstVar(0), "(misses)": ConstVar(0), "(cache)": DictVar({})}
    return NONE


def _rebuilt(residual: Residual, tracker: ObjectVar) -> str:
    """The text that makes a wrapper of the region, which holds nothing."""
    given = residual.exprs([tracker.slots[f"({name})"] for name in ("func", "maxsize", "typed", "info")])
    return f"{residual.constant(LRU_CACHE)}({given})"


OBJECT_BUILDERS[LRU_CACHE] = _rebuilt
