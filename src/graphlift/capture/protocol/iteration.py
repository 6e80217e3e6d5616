"""The iterator protocol and the insides of containers: length, items in order, and how they are changed.

In: trackers. Out: trackers (or the program's own exception as `Raised`).
Always: constants are evaluated for real, tensors become graph nodes, everything else follows the special methods.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...guards import ABSENT, Call, Const, gives
from ...guards._guards import same_constant, set_clone, set_table
from .. import polyfills
from ..attributes import is_python, python_type, says_itself
from ..breaks import Break, Exhausted, Raised
from ..calls import call, call_special
from ..capture import DIRECT, Capture, Link
from ..constants import PLAIN_CONSTANTS
from ..frame import DequeIter, DictIter, GeneratorVar, IteratorVar, RangeIter, SeqIter, SetIter, at_end
from ..overriding import is_customized
from ..trackers import (
    NONE,
    ConstVar,
    DequeVar,
    DictVar,
    DictViewVar,
    ListVar,
    ObjectVar,
    OpaqueVar,
    SetVar,
    TensorVar,
    Tracker,
    TrackerKey,
    TupleVar,
    describe,
)
from ..wrapping import as_builtin

#: What may be asked of a constant by calling a builtin or an operator on it.
_OPERATIONS = tuple(
    f"__{name}__"
    for name in (
        "eq ne lt le gt ge add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow "
        "matmul rmatmul lshift rlshift rshift rrshift and rand or ror xor rxor neg pos abs invert "
        "len getitem contains iter bool hash index int float"
    ).split()
)


def evaluate(cap: Capture, fn: Callable[..., Any], *values: Any, **kwargs: Any) -> Tracker:
    """Call ``fn`` for real on constants; what it raises, the program raises."""
    if any(type(v) not in PLAIN_CONSTANTS and says_itself(cap, ConstVar(v), *_OPERATIONS) for v in values):
        raise Break("unsupported-object", "a constant whose class has operators that are the program's code")
    try:
        result = fn(*values, **kwargs)
    except Exception as error:
        raise Raised(cap.exception_var(error)) from error
    return cap.from_python(result)


def payload_of(tracker: Tracker) -> Tracker:
    """The builtin container inside an instance of a subclass of one, or the tracker itself."""
    if type(tracker) is ObjectVar and tracker.payload is not None:
        return tracker.payload
    return tracker


def sequence_items(cap: Capture, tracker: Tracker) -> list[Tracker]:
    """The items of a tuple or list (not of other iterables)."""
    tracker = payload_of(cap.realize(tracker))
    if type(tracker) in (TupleVar, ListVar):
        return tracker.items  # type: ignore[attr-defined]
    if type(tracker) is ConstVar and isinstance(tracker.value, (tuple, torch.Size, range)):
        return [cap.from_python(item) for item in tracker.value]
    raise Break("unsupported-object", f"{describe(tracker)} as a sequence")


def extend_list(cap: Capture, target: ListVar, items: list[Tracker]) -> None:
    """Append to a list without looking at what it holds."""
    if target.untouched:
        cap.mark_changed(target)
        target.tail.extend(items)
    else:
        change_list(cap, target).extend(items)


def extend_from(cap: Capture, target: ListVar, iterable: Tracker) -> None:
    """``target.extend(iterable)``: what an iterator runs on the way sees the items that came before."""
    iterable = cap.realize(iterable)
    if type(iterable) in (ListVar, TupleVar):
        extend_list(cap, target, iterate(cap, iterable))
        return
    if type(iterable) is ObjectVar and iterable.payload is target:  # what it has now: it grows on the way
        extend_list(cap, target, iterate(cap, iterable))
        return
    iterator = get_iter(cap, iterable)
    if type(iterable) is ObjectVar:
        _ask_length(cap, iterable)
    for item in rest(cap, iterator):
        extend_list(cap, target, [item])


def change_list(cap: Capture, target: ListVar | DequeVar) -> list[Tracker]:
    """The items, to be changed in place."""
    if target.real is not None:
        if not target.mutated:
            for value in as_builtin(target.real, "__iter__"):
                cap.let_go(value)
        target.mutated = True
        cap.mark_changed(target)
    return target.items


def change_set(cap: Capture, target: SetVar) -> dict[Any, Tracker]:
    if target.real is not None:
        if has_constants(target):
            real_set(cap, target)  # as it was before the change
        target.mutated = True
        cap.mark_changed(target)
    return target.known


def set_keys(cap: Capture, tracker: Tracker) -> dict[Any, Tracker]:
    if type(tracker) is SetVar:
        return tracker.known
    return set_of(cap, tracker)


def real_set(cap: Capture, value: SetVar) -> Any:
    """A real set of the same keys, which are constants, that took the steps that the program's has: its `twin`."""
    known, twin = value.known, value.twin
    if twin is None and value.real is not None and not value.mutated:
        twin = value.twin = set_clone(value.real)
        if value.source is not None and not isinstance(value.source, Const):
            text = f"{value.source.name()} iterates as {list(twin)!r}"
            cap.guard(gives(Call(same_constant, set_table(twin), Call(set_table, value.source)), True, text))
    elif twin is None or len(twin) != len(known) or not all(key in known for key in twin):
        twin = value.twin = value.cls(list(known))  # it grows one by one, and not at once as by a dict
    return twin


def has_constants(*values: SetVar | DictVar) -> bool:
    """Whether sets, and dicts of the region's own, have keys that are all constants."""
    return all(
        (type(v) is SetVar or v.real is None) and not any(isinstance(key, TrackerKey) for key in v.known)
        for v in values
    )


def add_to_set(cap: Capture, target: SetVar, item: Tracker) -> None:
    key = cap.key_of(item)
    change_set(cap, target).setdefault(key, item)
    if target.twin is not None and target.cls is set and not isinstance(key, TrackerKey):
        target.twin.add(key)


def update_set(cap: Capture, target: SetVar, source: Tracker) -> None:
    """``target.update(source)``: what is a set is merged as a whole."""
    source = cap.realize(source)
    if type(source) is SetVar and has_constants(target, source):
        twin, merged = real_set(cap, target), real_set(cap, source)
        known = change_set(cap, target)
        for key in merged:
            known.setdefault(key, source.known[key])
        twin.update(merged)
        return
    for item in iterate(cap, source):
        add_to_set(cap, target, item)


def set_of(cap: Capture, iterable: Tracker) -> dict[Any, Tracker]:
    """The items of an iterable as a set takes them: one by one, the first of those that are equal."""
    known: dict[Any, Tracker] = {}
    for item in rest(cap, get_iter(cap, iterable)):
        known.setdefault(cap.key_of(item), item)
    return known


def length(cap: Capture, value: Tracker, link: Link | None = None) -> int:
    """``len(value)``; ``link``: what is made of the value of a ``__len__``."""
    value = cap.realize(value)
    kind = type(value)
    if kind in (TupleVar, ListVar, DequeVar):
        return len(value.items)  # type: ignore[attr-defined]
    if kind is DictVar:
        cap.complete(value)  # type: ignore[arg-type]
        return len(value.known)  # type: ignore[attr-defined]
    if kind is SetVar:
        return len(value.known)  # type: ignore[attr-defined]
    if kind is DictViewVar:
        return length(cap, value.owner)  # type: ignore[attr-defined]
    if kind is ConstVar and not says_itself(cap, value, "__len__"):
        result = evaluate(cap, len, value.value)  # type: ignore[attr-defined]
        return result.value  # type: ignore[attr-defined, no-any-return]
    if kind is TensorVar:
        _require_plain(cap, value, "len()")  # type: ignore[arg-type]
        if value.fake.dim() == 0:  # type: ignore[attr-defined]
            raise cap.raise_(TypeError, "len() of a 0-d tensor")
        return cap.sizes.specialize(value.fake.spec.shape[0], "the length of a tensor as a number")  # type: ignore
    if kind is OpaqueVar:
        raise Break(value.code, value.detail)  # type: ignore[attr-defined]
    if cap.type_attr(python_type(value), "__len__") is ABSENT:
        raise cap.raise_(TypeError, f"object of type '{python_type(value).__name__}' has no len()")
    size = cap.value_of(call_special(cap, value, "__len__", [], link))
    if type(size) is not int or not 0 <= size <= sys.maxsize:
        size = evaluate(cap, len, _Sized(size)).value  # type: ignore[attr-defined]
    return size  # type: ignore[no-any-return]


class _Sized:
    """Has this length, whatever it is."""

    def __init__(self, size: Any) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size  # type: ignore[no-any-return]


def _require_plain(cap: Capture, tensor: TensorVar, what: str) -> None:
    if is_customized(cap, tensor):
        raise Break("unsupported-tensor-subclass", f"{what} of a tensor that a __torch_function__ sees")


#: `iter` and `next` of kinds of trackers that have rules of their own.
ITERABLES: dict[type, Callable[[Capture, Any], Tracker]] = {}
ITERATORS: dict[type, Callable[[Capture, Any], Tracker]] = {}


#: What is made of the value of an ``__iter__``.
_ITER = Link((ConstVar(polyfills.asked), ConstVar(iter)))


def get_iter(cap: Capture, value: Tracker, link: Link | None = None) -> Tracker:
    """``iter(value)``; ``link``: the result of the instruction."""
    value = cap.realize(value)
    kind = type(value)
    if kind in ITERABLES:
        return ITERABLES[kind](cap, value)
    if isinstance(value, IteratorVar):
        return value
    if kind in (TupleVar, ListVar):
        return SeqIter(value.items, value)  # type: ignore[attr-defined]
    if kind is ConstVar:
        if isinstance(value.value, range):  # type: ignore[attr-defined]
            return RangeIter(value.value)  # type: ignore[attr-defined]
        if says_itself(cap, value, "__iter__"):
            return _iterator(cap, call_special(cap, value, "__iter__", []))
        if says_itself(cap, value, "__getitem__"):
            raise Break("unsupported-object", f"iteration over {describe(value)}")
        try:
            items = [cap.from_python(item) for item in value.value]  # type: ignore[attr-defined]
        except TypeError as error:
            raise Raised(cap.exception_var(error)) from None
        plain = type(value.value) in (str, bytes, torch.Size)  # type: ignore[attr-defined]
        return SeqIter(items, value if plain else TupleVar(items))
    if kind is TensorVar:
        from ..torch_rules import unbind

        _require_plain(cap, value, "iteration")  # type: ignore[arg-type]
        return get_iter(cap, unbind(cap, value))  # type: ignore[arg-type]
    if kind is DequeVar:
        return DequeIter(cap, value)  # type: ignore[arg-type]
    if kind is SetVar:
        return SetIter(cap, _set_items(cap, value), value)  # type: ignore[arg-type]
    if kind in (DictVar, DictViewVar):
        owner, view = (value.owner, value.kind) if kind is DictViewVar else (value, "keys")  # type: ignore[attr-defined]
        return DictIter(cap, cap.complete(owner), view)
    if kind is ObjectVar:
        raw = cap.type_attr(value.cls, "__iter__")  # type: ignore[attr-defined]
        if isinstance(raw, types.FunctionType):
            return _iterator(cap, call_special(cap, value, "__iter__", [], link and _ITER))
        if value.payload is not None:  # type: ignore[attr-defined]
            return get_iter(cap, value.payload)  # type: ignore[attr-defined]
        if raw is ABSENT and cap.type_attr(value.cls, "__getitem__") is not ABSENT:  # type: ignore[attr-defined]
            return call(cap, ConstVar(polyfills.iterate_by_index), [value], {})
        if raw is not ABSENT and raw is not None:
            raise Break("unsupported-object", f"iteration over a {value.cls.__name__}")  # type: ignore[attr-defined]
    if kind is OpaqueVar:
        raise Break(value.code, value.detail)  # type: ignore[attr-defined]
    if kind is ConstVar or cap.type_attr(python_type(value), "__iter__") is ABSENT:
        raise cap.raise_(TypeError, f"'{python_type(value).__name__}' object is not iterable")
    raise Break("unsupported-object", f"iteration over {describe(value)}")


def is_iterable(cap: Capture, value: Tracker) -> bool:
    """Whether the class of a value says that it can be iterated over; that may fail all the same."""
    return any(cap.type_attr(python_type(value), name) is not ABSENT for name in ("__iter__", "__getitem__"))


def _iterator(cap: Capture, made: Tracker) -> Tracker:
    """What an ``__iter__`` of the program's has given."""
    made = cap.realize(made)
    if type(made) is OpaqueVar or isinstance(made, IteratorVar):
        return made
    cls = python_type(made)
    if cap.type_attr(cls, "__next__") is ABSENT:
        raise cap.raise_(TypeError, f"iter() returned non-iterator of type '{cls.__name__}'")
    return made


def _set_items(cap: Capture, value: SetVar) -> list[Tracker]:
    """The items of a set in the order of its iteration."""
    return [value.known[key] for key in (real_set(cap, value) if has_constants(value) else value.known)]


def next_item(cap: Capture, iterator: Tracker, link: Link | None = None) -> Tracker:
    """``next(iterator)``; raises Exhausted at the end. ``link``: a loop, which goes on with the iterator left to it."""
    iterator = cap.realize(iterator)
    if type(iterator) is GeneratorVar:
        return iterator.resume(cap, NONE, link)
    if isinstance(iterator, IteratorVar):
        return iterator.next(cap)
    if type(iterator) in ITERATORS:
        return ITERATORS[type(iterator)](cap, iterator)
    if type(iterator) is ObjectVar and isinstance(
        cap.type_attr(iterator.cls, "__next__"), types.FunctionType
    ):
        # A loop goes on with an iterator that gives the item first.
        ahead = ConstVar(polyfills.ahead), iterator
        way = Link(ahead, (SeqIter([], TupleVar([])),)) if link is DIRECT else None
        try:
            return call_special(cap, iterator, "__next__", [], way)
        except Raised as raised:
            raise (at_end(raised) or raised) from None
    if cap.type_attr(python_type(iterator), "__next__") is ABSENT:
        raise cap.raise_(TypeError, f"'{python_type(iterator).__name__}' object is not an iterator")
    raise Break("unsupported-object", f"an iterator made outside ({describe(iterator)})")


def iterate(cap: Capture, value: Tracker) -> list[Tracker]:
    """All items of an iterable."""
    value = cap.realize(value)
    if type(value) in (TupleVar, ListVar):
        return [cap.realize(item) for item in value.items]  # type: ignore[attr-defined]
    return list(rest(cap, get_iter(cap, value)))


def rest(cap: Capture, iterator: Tracker) -> Iterator[Tracker]:
    """The items that an iterator has still to give, each taken when it is asked for."""
    while True:
        try:
            item = next_item(cap, iterator)
        except Exhausted:
            return
        yield item


def gather(cap: Capture, value: Tracker) -> list[Tracker]:
    """All items, for what asks first how many there may be: a list, a tuple, the arguments of a call."""
    value = cap.realize(value)
    if says_itself(cap, value, "__iter__"):
        iterator = get_iter(cap, value)
        if says_itself(cap, value, "__len__"):
            length(cap, value)
        return list(rest(cap, iterator))
    if type(value) is GeneratorVar and value.frame.code in polyfills.BY_INDEX and not value.done:
        owner = cap.realize(value.frame.locals["obj"])  # type: ignore[arg-type]
        assert type(owner) is ObjectVar
        _ask_length(cap, owner)
    if type(value) is not ObjectVar:
        return iterate(cap, value)
    iterator = get_iter(cap, value)
    _ask_length(cap, value)
    return list(rest(cap, iterator))


def _ask_length(cap: Capture, value: ObjectVar) -> None:
    """``operator.length_hint(value)`` for what a class written in Python does in it."""
    if is_python(cap, value, "__length_hint__"):
        raise Break("unsupported-object", f"a {value.cls.__name__} with a __length_hint__")
    if is_python(cap, value, "__len__"):
        call(cap, ConstVar(polyfills.ask_length), [value], {})
