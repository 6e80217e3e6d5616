"""Rules of `itertools`.

In: calls of its classes. Out: iterator trackers of these classes, whose items generators of `polyfills.py` give.
Always: what is done with the arguments when the iterator is made is done then, in the order of the C code; arguments
that are not as expected go to the C class itself.
"""

from __future__ import annotations

import itertools
from typing import Any

from ..guards import ABSENT
from . import polyfills
from .attributes import python_type
from .breaks import Break, Exhausted
from .called_iterators import CalledIter, TeeIter
from .calls import call, known_index, plain_index, refuse
from .capture import Capture, NotConst
from .frame import CallIter
from .protocol import gather, get_iter, is_same
from .rules import rule
from .trackers import NONE, Args, ConstVar, Kwargs, Tracker, TupleVar


def _pool(cap: Capture, iterable: Tracker) -> Tracker:
    return TupleVar(gather(cap, iterable))


def _as_is(cap: Capture, value: Tracker) -> Tracker:
    return cap.realize(value)


def _called(
    cap: Capture, maker: Any, polyfill: Any, args: Args, kwargs: Kwargs, inside: Args, pooled: bool = False
) -> Tracker:
    """What ``maker(*args, **kwargs)`` gives, by ``polyfill(*inside)``."""
    inner: Any = call(cap, ConstVar(polyfill), inside, {})
    return CalledIter(cap, maker, args, kwargs, inner, pooled)


def _stepwise(target: Any, polyfill: Any, *how: Any) -> None:
    """A class that keeps functions as they are (`_as_is`) and iterators of its iterables (`get_iter`)."""

    @rule(target)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        made = [each(cap, arg) for each, arg in zip(how, args, strict=True)]
        return _called(cap, target, polyfill, made, {}, made)


for _target, _polyfill, *_how in (
    (itertools.starmap, polyfills.starmap_, _as_is, get_iter),
    (itertools.pairwise, polyfills.pairwise_, get_iter),
    (itertools.compress, polyfills.compress_, get_iter, get_iter),
    (itertools.cycle, polyfills.cycle_, get_iter),
    (itertools.dropwhile, polyfills.dropwhile_, _as_is, get_iter),
    (itertools.takewhile, polyfills.takewhile_, _as_is, get_iter),
    (itertools.filterfalse, polyfills.filterfalse_, _as_is, get_iter),
):
    _stepwise(_target, _polyfill, *_how)


def _chosen(target: Any, polyfill: Any) -> None:
    """A class that takes all of its input, and how many of it are chosen."""

    @rule(target)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        everything = len(args) < 2 or (target is itertools.permutations and is_same(cap, args[1], NONE))
        count = 0 if everything else plain_index(cap, args[1])
        if count is None or count < 0:
            return refuse(cap, target, args, kwargs)
        made = [_pool(cap, args[0]), *([] if everything else [ConstVar(count)])]
        return _called(cap, target, polyfill, made, {}, made, pooled=True)


_chosen(itertools.combinations, polyfills.combinations_)
_chosen(itertools.combinations_with_replacement, polyfills.combinations_with_replacement_)
_chosen(itertools.permutations, polyfills.permutations_)


@rule(itertools.product)
def _product(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    repeat = plain_index(cap, kwargs.get("repeat", ConstVar(1)))
    if repeat is None or repeat < 0:
        return refuse(cap, itertools.product, args, kwargs)
    pools = [_pool(cap, arg) for arg in args] * repeat
    return _called(
        cap, itertools.product, polyfills.product_, list(pools), {}, [TupleVar(pools)], pooled=True
    )


@rule(itertools.chain)
def _chain(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return _called(cap, itertools.chain, polyfills.chain_, args, {}, [TupleVar(list(args))])


@rule(itertools.chain.__dict__["from_iterable"])
def _chain_from_iterable(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if len(args) != 2 or kwargs:
        return refuse(cap, itertools.chain.from_iterable, args[1:], kwargs)
    iterator = get_iter(cap, args[1])
    return _called(cap, itertools.chain.from_iterable, polyfills.chain_, [iterator], {}, [iterator])


@rule(itertools.zip_longest)
def _zip_longest(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    iterators = [get_iter(cap, arg) for arg in args]
    inside = [TupleVar(list(iterators)), kwargs.get("fillvalue", NONE)]
    return _called(cap, itertools.zip_longest, polyfills.zip_longest_, iterators, kwargs, inside)


@rule(itertools.accumulate)
def _accumulate(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    made = [get_iter(cap, args[0]), *(args[1:] or [NONE])]
    inside = [*made, kwargs.get("initial", NONE)]
    return _called(cap, itertools.accumulate, polyfills.accumulate_, made, kwargs, inside)


@rule(itertools.islice)
def _islice(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    bounds = [NONE, *args[1:]] if len(args) == 2 else args[1:]
    found: list[int | None] = []
    for bound, default, least in zip(bounds, (0, None, 1), (0, 0, 1)):
        value = default if is_same(cap, bound, NONE) else plain_index(cap, bound)
        if value is None and not is_same(cap, bound, NONE) or (value is not None and value < least):
            return refuse(cap, itertools.islice, args, kwargs)
        found.append(value)
    made = [get_iter(cap, args[0]), *map(ConstVar, [*found, 1][:3])]
    return _called(cap, itertools.islice, polyfills.islice_, made, {}, made)


_GROUPER: type = type(next(itertools.groupby("a"))[1])
_TEE: type = type(itertools.tee(())[0])


@rule(itertools.groupby)
def _groupby(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    key = kwargs.get("key") or (args[1] if len(args) > 1 else NONE)
    iterator = get_iter(cap, args[0])
    group = ConstVar(polyfills.as_group)
    return _called(cap, itertools.groupby, polyfills.groupby_, [iterator, key], {}, [iterator, key, group])


@rule(polyfills.as_group)
def _as_group(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    made = CalledIter(cap, _GROUPER, [], {}, args[0])  # type: ignore[arg-type]
    made.taken = 1  # it shares the state of the groupby, which nobody can make again
    return made


@rule(itertools.tee)
def _tee(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    count = plain_index(cap, args[1] if len(args) > 1 else ConstVar(2))
    if count is None or count < 0:
        return refuse(cap, itertools.tee, args, kwargs)
    if not count:
        return TupleVar([])
    iterator = get_iter(cap, args[0])
    if cap.type_attr(python_type(iterator), "__copy__") is not ABSENT:
        raise Break("unsupported-object", "tee() of an iterator that copies itself")
    seen: list[Tracker] = []
    return TupleVar([TeeIter(cap, _TEE, iterator, seen) for _ in range(count)])


@rule(_TEE.__copy__)  # type: ignore[attr-defined]
def _tee_copy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    tee = cap.realize(args[0])
    if type(tee) is not TeeIter:
        raise Break("c-function", "copy of a tee made outside")
    return TeeIter(cap, _TEE, tee.inner, tee.seen, tee.position)


@rule(itertools.repeat)
def _repeat(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if len(args) < 2:
        return CallIter(itertools.repeat, [args[0]], lambda cap, this: this.parts[0])
    times = plain_index(cap, args[1])
    if times is None:
        return refuse(cap, itertools.repeat, args, kwargs)

    def step(cap: Capture, this: CallIter) -> Tracker:
        if not this.extra["times"]:
            raise Exhausted
        this.extra["times"] -= 1
        return this.parts[0]

    return CallIter(itertools.repeat, [args[0]], step, {"times": max(times, 0)})


@rule(itertools.count)
def _count(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    def step(cap: Capture, this: CallIter) -> Tracker:
        value = this.extra["count"]
        this.extra["count"] = value + this.extra["step"]
        return ConstVar(value)

    start = kwargs.get("start") or (args[0] if args else ConstVar(0))
    stride = kwargs.get("step") or (args[1] if len(args) > 1 else ConstVar(1))
    numbers = [_number(cap, start), _number(cap, stride)]
    if None in numbers:
        return refuse(cap, itertools.count, args, kwargs)
    return CallIter(itertools.count, [], step, dict(zip(("count", "step"), numbers, strict=True)))


def _number(cap: Capture, tracker: Tracker) -> Any:
    """A number that `count` adds as Python does; None for what it may treat otherwise."""
    try:
        value = cap.value_of(known_index(cap, tracker))
    except NotConst:
        return None
    return value if type(value) in (int, float, complex) else None
