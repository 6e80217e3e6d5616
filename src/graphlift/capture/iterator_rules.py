"""Rules of iterators: builtins that make or drive them, generator methods.

In: calls of what is named. Out: trackers with the builtins' meaning.
Always: what needs a loop over user values is a polyfill in Python, traced like user code.
"""

from __future__ import annotations

import collections
import functools
import itertools
import types
from collections.abc import Callable
from typing import Any

from ..guards import ABSENT
from . import polyfills
from .attributes import is_python, python_type
from .breaks import Break, Exhausted, Raised
from .called_iterators import Ahead, FixedIter, ReversedIter
from .calls import LED, call, call_c, call_special, construct, known_index, plain_index, refuse
from .capture import DIRECT, Capture, Link, NotConst
from .frame import CallIter, GeneratorVar, IteratorVar, RangeIter
from .protocol import (
    evaluate,
    gather,
    get_iter,
    is_same,
    iterate,
    next_item,
    payload_of,
    truth,
)
from .rules import RULES, rule
from .trackers import (
    NONE,
    Args,
    ConstVar,
    DequeVar,
    DictVar,
    DictViewVar,
    FunctionVar,
    Kwargs,
    ListVar,
    ObjectVar,
    TensorVar,
    Tracker,
    TupleVar,
    describe,
)


@rule(iter)
def _iter(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if len(args) == 2:
        raise Break("unsupported-builtin", "iter(callable, sentinel)")
    return get_iter(cap, args[0])


_ITERATORS = (
    *map(type, map(iter, ([], (), "", range(0), set(), {}, {}.values(), {}.items(), collections.deque()))),
    *(
        type(reversed([])),
        zip,
        map,
        filter,
        enumerate,
        reversed,
        itertools.chain,
        itertools.count,
        itertools.islice,
    ),
)


@rule(*(cls.__next__ for cls in _ITERATORS))
def _next_of(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """The method, which has no default."""
    try:
        return next_item(cap, args[0])
    except Exhausted as end:
        raise _stop_iteration(cap, end) from None


@rule(next)
def _next(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    try:
        return next_item(cap, args[0])
    except Exhausted as end:
        if len(args) > 1:
            return cap.realize(args[1])
        raise _stop_iteration(cap, end) from None


def _stop_iteration(cap: Capture, end: Exhausted) -> Raised:
    """The StopIteration that carries what a generator returned."""
    raised = cap.raise_(StopIteration)
    if end.value is not None:
        error = raised.value
        assert type(error) is ObjectVar
        error.slots["value"] = end.value
        if not is_same(cap, end.value, NONE):
            error.slots["args"] = TupleVar([end.value])
    return raised


@rule(polyfills.ahead)
def _ahead(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return Ahead(args[0], args[1])


@rule(range)
def _range(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    try:
        return evaluate(cap, range, *[cap.value_of(known_index(cap, a)) for a in args])
    except NotConst:
        raise Break("tensor-item", "range() of a value that is not a constant") from None


@rule(enumerate)
def _enumerate(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    start = plain_index(cap, args[1]) if len(args) > 1 else 0
    if start is None:
        return refuse(cap, enumerate, args, kwargs)

    def step(cap: Capture, this: CallIter) -> Tracker:
        item = next_item(cap, this.parts[0])
        count = this.extra["count"]
        this.extra["count"] += 1
        return TupleVar([ConstVar(count), item])

    return CallIter(enumerate, [get_iter(cap, args[0])], step, {"count": start})


@rule(zip)
def _zip(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    strict = "strict" in kwargs and truth(cap, kwargs["strict"])

    def step(cap: Capture, this: CallIter) -> Tracker:
        items: Args = []
        for index, part in enumerate(this.parts):
            try:
                items.append(next_item(cap, part))
            except Exhausted:
                if strict:
                    _check_strict(cap, this.parts, index)
                raise
        if not items:
            raise Exhausted
        return TupleVar(items)

    return CallIter(zip, [get_iter(cap, arg) for arg in args], step, {"strict": strict})


def _check_strict(cap: Capture, parts: Args, index: int) -> None:
    if index > 0:
        plural = "s 1-" if index > 1 else " "
        raise cap.raise_(ValueError, f"zip() argument {index + 1} is shorter than argument{plural}{index}")
    for later, part in enumerate(parts[1:], 1):
        try:
            next_item(cap, part)
        except Exhausted:
            continue
        plural = "s 1-" if later > 1 else " "
        raise cap.raise_(ValueError, f"zip() argument {later + 1} is longer than argument{plural}{later}")


@rule(map)
def _map(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    def step(cap: Capture, this: CallIter) -> Tracker:
        return call(cap, this.parts[0], [next_item(cap, part) for part in this.parts[1:]], {})

    return CallIter(map, [args[0], *[get_iter(cap, arg) for arg in args[1:]]], step)


@rule(filter)
def _filter(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    def step(cap: Capture, this: CallIter) -> Tracker:
        fn = this.parts[0]
        while True:
            item = next_item(cap, this.parts[1])
            keep = item if type(fn) is ConstVar and fn.value is None else call(cap, fn, [item], {})
            if truth(cap, keep):
                return item

    return CallIter(filter, [cap.realize(args[0]), get_iter(cap, args[1])], step)


@rule(reversed)
def _reversed(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    value = cap.realize(args[0])
    if type(value) is TensorVar:  # a flipped copy, rather than an iterator
        if value.fake.dim() == 0:
            return value
        return cap.emit("call_method", "flip", [value, ConstVar(0)], {}, lambda t, d: t.flip(d))
    if type(value) is ObjectVar and is_python(cap, value, "__reversed__"):
        return call_special(cap, value, "__reversed__", [])
    if type(value) is ObjectVar and _goes_by_index(cap, value):
        if any(cap.type_attr(value.cls, name) is ABSENT for name in ("__len__", "__getitem__")):
            return refuse(cap, reversed, args, kwargs)
        return call(cap, ConstVar(polyfills.reversed_), [value], {})
    return reverse_iter(cap, payload_of(value))


def _goes_by_index(cap: Capture, value: ObjectVar) -> bool:
    """Whether ``reversed(value)`` asks the class for length and items; lists and dicts know the way back themselves."""
    if value.payload is None:
        return True
    if hasattr(python_type(value.payload), "__reversed__"):
        return False
    return is_python(cap, value, "__len__") or is_python(cap, value, "__getitem__")


def reverse_iter(cap: Capture, value: Tracker) -> Tracker:
    """``reversed(value)`` of a builtin container."""
    if not hasattr(python_type(value), "__reversed__") and not hasattr(python_type(value), "__getitem__"):
        raise cap.raise_(TypeError, f"'{python_type(value).__name__}' object is not reversible")
    if type(value) in (ListVar, TupleVar):
        return ReversedIter(value.items, value)  # type: ignore[attr-defined]
    if type(value) is ConstVar and isinstance(value.value, range):
        return RangeIter(value.value[::-1])
    items = iterate(cap, value)[::-1]
    return FixedIter(cap, _reversed_type(value), items, value)


def _reversed_type(value: Tracker) -> type:
    """The class of ``reversed(value)``."""
    if type(value) is DequeVar:
        return type(reversed(collections.deque()))
    owner = value.owner if type(value) is DictViewVar else value
    if type(owner) is not DictVar:
        return reversed
    empty: Any = collections.OrderedDict() if issubclass(owner.cls, collections.OrderedDict) else {}
    return type(reversed(getattr(empty, value.kind)() if type(value) is DictViewVar else empty))


def _polyfilled(target: Any, replacement: Callable[..., Any]) -> None:
    @rule(target)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        return call(cap, ConstVar(replacement), args, kwargs)

    LED[target] = lambda cap, args, kwargs: call(cap, ConstVar(replacement), args, kwargs, DIRECT)


for _target, _replacement in (
    (any, polyfills.any_),
    (all, polyfills.all_),
    (sum, polyfills.sum_),
    (functools.reduce, polyfills.reduce_),
):
    _polyfilled(_target, _replacement)


def _extreme(target: Any, replacement: Callable[..., Any]) -> None:
    def extreme(cap: Capture, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
        items = cap.realize(args[0]) if len(args) == 1 else TupleVar(list(args))
        key = cap.realize(kwargs.get("key", NONE))
        missing = ConstVar(polyfills._MISSING)
        if not isinstance(items, IteratorVar | ObjectVar):  # whose items come as they are asked for
            items = found = TupleVar(iterate(cap, items))
            if (
                is_same(cap, key, NONE)
                and found.items
                and all(type(item) is ConstVar for item in found.items)
            ):
                values = [cap.value_of(item) for item in found.items]
                best = cap.value_of(evaluate(cap, lambda: target(range(len(values)), key=values.__getitem__)))
                return found.items[best]
        given = [items, key, kwargs.get("default", missing), missing]
        return call(cap, ConstVar(replacement), given, {}, link)

    rule(target)(lambda cap, args, kwargs: extreme(cap, args, kwargs, None))
    LED[target] = lambda cap, args, kwargs: extreme(cap, args, kwargs, DIRECT) if "key" in kwargs else None


_extreme(min, polyfills.min_of)
_extreme(max, polyfills.max_of)


@rule(sorted)
def _sorted(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if type(cap.realize(args[0])) is GeneratorVar:  # it may be asked how much is left, as an iterator of C is
        args = [ListVar(list(gather(cap, args[0]))), *args[1:]]
    return call_c(cap, sorted, args, kwargs)


def _led_sorted(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker | None:
    """By ranks, where a function of the program's gives them."""
    key = cap.realize(kwargs.get("key", NONE))
    is_python = type(key) is FunctionVar or (
        type(key) is ConstVar and type(key.value) is types.FunctionType and key.value not in RULES
    )
    if not is_python:
        return None
    items = ListVar(list(gather(cap, args[0])))
    backwards = kwargs.get("reverse", ConstVar(False))
    return call(cap, ConstVar(polyfills.sorted_), [items, key, backwards], {}, DIRECT)


LED[sorted] = _led_sorted


def _led_all(target: Any, replacement: Callable[..., Any]) -> None:
    """A container of all that a generator of the program's gives."""

    def led(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker | None:
        source = cap.realize(args[0]) if args else None
        if type(source) is not GeneratorVar or source.frame.code in polyfills.BY_INDEX:
            return None
        return call(cap, ConstVar(replacement), [source], {}, DIRECT)

    LED[target] = led


_led_all(list, polyfills.listed)
_led_all(tuple, polyfills.tupled)


# --- generators --------------------------------------------------------------------------------


@rule(types.GeneratorType.__next__, types.GeneratorType.send)
def _generator_send(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    generator = cap.realize(args[0])
    if type(generator) is not GeneratorVar:
        raise Break("generator", f"a generator made outside ({describe(generator)})")
    try:
        return generator.resume(cap, cap.realize(args[1]) if len(args) > 1 else NONE)
    except Exhausted as end:
        raise _stop_iteration(cap, end) from None


@rule(types.GeneratorType.throw)
def _generator_throw(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    generator = cap.realize(args[0])
    if type(generator) is not GeneratorVar:
        raise Break("generator", f"a generator made outside ({describe(generator)})")
    error = cap.realize(args[2] if len(args) > 2 and not is_same(cap, args[2], NONE) else args[1])
    if type(error) is ConstVar:
        error = construct(cap, error.value, [], {})
    try:
        return generator.throw(cap, error)
    except Exhausted as end:
        raise _stop_iteration(cap, end) from None


@rule(types.GeneratorType.close)
def _generator_close(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    generator = cap.realize(args[0])
    if type(generator) is not GeneratorVar:
        raise Break("generator", f"a generator made outside ({describe(generator)})")
    return generator.close(cap, cap.exception_var(GeneratorExit()))
