"""Functions wrapped by `functools.lru_cache`, of outside and made in the region.

In: calls of the wrapper. Out: what the function gives. Always: hits, misses and what the cache holds are eager's. A
function of outside is traced to see that it only computes, unless its cache, which never forgets, holds the result
already; the region then calls the wrapper each time, before its graph.
"""

from __future__ import annotations

import functools
import gc
import operator
import weakref
from typing import Any

from ..data import dataclass
from ..frame import call_disabled
from ..guards import Call, Const, gives
from .attributes import LRU_CACHE
from .breaks import Break, Raised
from .calls import CONSTANT_CALLS, INSTANCE_CALLS, call, known_object
from .capture import Capture, Link, NotConst
from .constants import IDENTITY_CONSTANTS, PLAIN_CONSTANTS
from .residual import OBJECT_BUILDERS, Residual
from .rules import rule
from .trackers import NONE, Args, ConstVar, DictVar, Kwargs, ObjectVar, Tracker, TupleVar

#: Functions that did not give what tracing them gave: they depend on more than their arguments and what is guarded.
UNSTABLE: set[weakref.ref[Any]] = set()


_ABSENT = object()


@dataclass(frozen=True, slots=True, eq=False)
class Recall:
    """A call of a cached function that the region repeats, after it has looked whether the cache holds `expected`."""

    fn: Any
    args: tuple[Tracker, ...]
    kwargs: dict[str, Tracker]
    expected: Any
    traced: bool  # whether the function gives `expected` where the cache holds nothing

    def before(self, residual: Residual, eagerly: str) -> str:
        given = f"{residual.constant(self.fn)}, {residual.constant(self.expected)}, {self._given(residual)}"
        check = will_give if self.traced else holds
        return f"if not {residual.constant(check)}({given}): return {eagerly}"

    def after(self, residual: Residual) -> str:
        return f"{residual.constant(call_disabled)}({residual.constant(self.fn)}, {self._given(residual)})"

    def _given(self, residual: Residual) -> str:
        named = [f"{name}={_argument(residual, arg)}" for name, arg in self.kwargs.items()]
        return ", ".join([*(_argument(residual, arg) for arg in self.args), *named])


def _argument(residual: Residual, tracker: Tracker) -> str:
    tracker = residual.cap.realize(tracker)
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
    """What the cache holds for a call, without the call. Raises: LookupError where it does not show.

    Source: CPython, Modules/_functoolsmodule.c, lru_cache_make_key and what the wrapper shows to the garbage collector.
    """
    given = fn.cache_parameters()
    if given["maxsize"] == 0:
        return _ABSENT
    cache, func, mark, *_ = (parts := gc.get_referents(fn))[-6:]
    if type(cache) is not dict or type(mark) is not object or not callable(func):
        raise LookupError
    key: Any = args
    if kwargs:
        key += (mark, *(part for item in kwargs.items() for part in item))
    if given["typed"]:
        key += (*map(type, args), *map(type, kwargs.values()))
    elif len(key) == 1 and type(key[0]) in (int, str):
        key = key[0]
    held = cache.get(key, _ABSENT)
    if held is _ABSENT or given["maxsize"] is None:
        return held
    links = parts[1 : 1 + 3 * len(cache)]  # of each entry: the key, the result, the class of what holds them
    return next(result for known, result in zip(links[::3], links[1::3], strict=True) if known == key)


def _is_immutable(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)) and not getattr(value, "__dict__", None):
        return all(map(_is_immutable, value))
    return type(value) in PLAIN_CONSTANTS or issubclass(type(value), IDENTITY_CONSTANTS)


def call_cached(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Tracker:
    """A call of a cached function that existed before the region."""
    try:
        real = tuple(known_object(cap, arg) for arg in args)
        named = {name: known_object(cap, arg) for name, arg in kwargs.items()}
    except NotConst:
        text = f"cached function {fn.__qualname__} with arguments that are not constants"
        raise Break("c-function", text) from None
    if weakref.ref(fn) in UNSTABLE:
        raise Break("c-function", f"cached function {fn.__qualname__}, whose result changes", at_once=True)
    try:
        key = (id(fn), functools._make_key(real, named, True))
        found = cap.cached.get(key)
    except TypeError as error:
        raise Raised(cap.exception_var(error)) from None
    try:
        held = peek(fn, real, named)
    except LookupError:
        raise Break("c-function", f"cached function {fn.__qualname__}, whose cache does not show") from None
    remembered = fn.cache_parameters()["maxsize"] is None and not cap.in_cached and _is_immutable(held)
    if found is None:
        found = cap.from_python(held) if remembered else _only_computed(cap, fn, args, kwargs)
        cap.cached[key] = found
    if not cap.in_cached:
        cap.repeated.append(Recall(fn, tuple(args), kwargs, cap.value_of(found), not remembered))
        stable = Call(operator.contains, UNSTABLE, weakref.ref(fn))
        cap.guard(gives(stable, False, f"{fn.__qualname__} gives what it gave"))
    return found


def _only_computed(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Tracker:
    """What the function gives, traced. Raises: Break where it does more than compute a constant."""
    what = f"cached function {fn.__qualname__}"
    outer, cap.in_cached = cap.in_cached, True
    try:
        wrapped = cap.wrap(fn.__wrapped__, Const(fn.__wrapped__, fn.__wrapped__.__qualname__))
        found = cap.only_computed(what, lambda: call(cap, wrapped, args, kwargs))
    except Raised:
        raise Break("c-function", f"{what} raises") from None
    finally:
        cap.in_cached = outer
    try:
        value = cap.value_of(found)
    except NotConst:
        raise Break("c-function", f"{what} gives an object") from None
    if not _is_immutable(value):
        raise Break("c-function", f"{what} gives a {type(value).__name__}")
    return found


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
