"""Rules of the methods of list, dict, OrderedDict and set.

In: method descriptors called with a tracked container first. Out: the methods' results and changes, in the shadow.
Always: real containers are not touched; `change_list`, `dict_set` and kin remember what the replacement must replay.
"""

from __future__ import annotations

import collections
from typing import Any

from ..guards import ABSENT
from . import polyfills
from .attributes import find_attr, python_type
from .breaks import Break
from .calls import call, plain_index, refuse
from .capture import Capture
from .frame import key_tracker
from .mirror import run
from .protocol import (
    add_to_set,
    change_list,
    extend_from,
    extend_list,
    get_iter,
    has_constants,
    inplace,
    is_same,
    iterate,
    key_error,
    length,
    mapping_items,
    payload_of,
    real_set,
    set_item,
)
from .rules import rule
from .trackers import (
    NONE,
    Args,
    ConstVar,
    DictVar,
    DictViewVar,
    Kwargs,
    ListVar,
    ObjectVar,
    SetVar,
    Tracker,
    TupleVar,
    describe,
)


def own(cap: Capture, tracker: Tracker, kind: type) -> Any:
    """The container tracker of the given kind behind a receiver."""
    tracker = cap.realize(tracker)
    if type(tracker) is ObjectVar and tracker.payload is not None:
        tracker = tracker.payload
    if type(tracker) is not kind:
        raise Break("unsupported-object", f"container method on a {describe(tracker)}")
    return tracker


def unordered(cap: Capture, tracker: Tracker) -> Tracker:
    """The receiver of a method of dict's that looks at the order: an OrderedDict has another one beside it."""
    found = payload_of(cap.realize(tracker))
    if type(found) is DictVar and issubclass(found.cls, collections.OrderedDict):
        raise Break("unsupported-object", "the order of an OrderedDict as a plain dict has it")
    return tracker


# --- list -------------------------------------------------------------------------------------------------------------------


@rule(list.append)
def _append(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    extend_list(cap, own(cap, args[0], ListVar), [args[1]])
    return NONE


@rule(list.extend)
def _extend(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    extend_from(cap, own(cap, args[0], ListVar), args[1])
    return NONE


@rule(list.__iadd__)
def _iadd(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    inplace(cap, "+", own(cap, args[0], ListVar), args[1])
    return cap.realize(args[0])


@rule(list.pop)
def _list_pop(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    target = own(cap, args[0], ListVar)
    if len(args) > 1 or not target.items:
        return run(cap, list.pop, args, kwargs)
    return cap.realize(change_list(cap, target).pop())


@rule(list.copy)
def _list_copy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ListVar(list(own(cap, args[0], ListVar).items))


@rule(collections.deque)
def _deque(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    limit = args[1] if len(args) > 1 else kwargs.get("maxlen", NONE)
    count = 0 if is_same(cap, limit, NONE) else plain_index(cap, limit)
    if count is None or count < 0:
        return refuse(cap, collections.deque, args, kwargs)
    items = TupleVar(iterate(cap, args[0])) if args else TupleVar([])  # an iterable may be endless
    limits = [cap.plain(arg) for arg in args[1:]], {name: cap.plain(arg) for name, arg in kwargs.items()}
    return run(cap, collections.deque, [items, *limits[0]], limits[1])


# --- dict -------------------------------------------------------------------------------------------------------------------


def _update(cap: Capture, target: DictVar, args: Args, kwargs: Kwargs) -> None:
    ordered = issubclass(target.cls, collections.OrderedDict)
    if args:
        source = cap.realize(args[0])
        is_mapping = type(source) is DictVar or (
            type(source) is ObjectVar and find_attr(cap, source, "keys") is not None
        )
        if is_mapping:
            for key, value in mapping_items(cap, source, by_keys=ordered):
                cap.dict_set(target, key, value)
        else:
            run(cap, collections.OrderedDict.update if ordered else dict.update, [target, source], {})
    for name, value in kwargs.items():
        cap.dict_set(target, name, value)


def _new_dict(cls: type) -> None:
    @rule(cls)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        made = DictVar({}, cls=cls)
        _update(cap, made, args, kwargs)
        return made


_new_dict(dict)
_new_dict(collections.OrderedDict)


@rule(dict.__dict__["fromkeys"], collections.OrderedDict.__dict__["fromkeys"])
def _fromkeys(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """``cls.fromkeys(keys, value)``: through the subclass's own ``__setitem__``, as CPython does."""
    if kwargs or len(args) not in (2, 3):
        raise Break("unsupported-builtin", "dict.fromkeys with keywords or a wrong number of arguments")
    made = call(cap, args[0], [], {})
    for key in iterate(cap, args[1]):
        set_item(cap, made, key, args[2] if len(args) > 2 else NONE)
    return made


@rule(dict.__init__)
def _dict_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    _update(cap, own(cap, args[0], DictVar), args[1:], kwargs)
    return NONE


@rule(collections.defaultdict.__init__)
def _defaultdict_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    factory = cap.realize(args[1]) if len(args) > 1 else NONE
    if not is_same(cap, factory, NONE) and cap.type_attr(python_type(factory), "__call__") is ABSENT:
        raise cap.raise_(TypeError, "first argument must be callable or None")
    if len(args) > 3:
        raise cap.raise_(TypeError, f"dict expected at most 1 argument, got {len(args) - 2}")
    cap.realize(args[0]).slots["default_factory"] = factory  # type: ignore[attr-defined]
    _update(cap, own(cap, args[0], DictVar), args[2:], kwargs)
    return NONE


@rule(dict.update, collections.OrderedDict.update, collections.OrderedDict.__init__)
def _dict_update(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    receiver = cap.realize(args[0])
    if type(receiver) is ObjectVar and type(receiver.payload) is DictVar:
        shadow = DictVar({}, cls=receiver.payload.cls)
        _update(cap, shadow, args[1:], kwargs)
        for key, value in shadow.known.items():
            set_item(
                cap,
                receiver if _overrides(cap, receiver, args[0]) else receiver.payload,
                key_tracker(cap, key),
                value,
            )
        return NONE
    _update(cap, own(cap, args[0], DictVar), args[1:], kwargs)
    return NONE


@rule(collections.OrderedDict.__ior__)
def _ordered_inplace_or(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if type(cap.realize(args[0])) is not ObjectVar:
        return run(cap, collections.OrderedDict.__ior__, args, kwargs)
    _dict_update(cap, args, kwargs)
    return cap.realize(args[0])


def _overrides(cap: Capture, receiver: ObjectVar, method: Tracker) -> bool:
    """OrderedDict.update is Python-like: it goes through an overridden ``__setitem__``; dict.update does not."""
    return issubclass(receiver.cls, collections.OrderedDict)


@rule(dict.get)
def _dict_get(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    found = cap.dict_get(own(cap, args[0], DictVar), cap.key_of(args[1]))
    if found is not None:
        return found
    return cap.realize(args[2]) if len(args) > 2 else NONE


@rule(collections.OrderedDict.setdefault)
def _ordered_setdefault(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if type(cap.realize(args[0])) is ObjectVar:
        return call(cap, ConstVar(polyfills.setdefault_ordered), args, kwargs)
    return _dict_setdefault(cap, args, kwargs)


@rule(dict.setdefault)
def _dict_setdefault(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    target, key = own(cap, args[0], DictVar), cap.key_of(args[1])
    found = cap.dict_get(target, key)
    if found is None:
        found = cap.realize(args[2]) if len(args) > 2 else kwargs.get("default", NONE)
        cap.dict_set(target, key, found)
    return found


@rule(dict.pop, collections.OrderedDict.pop)
def _dict_pop(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    target, key = own(cap, args[0], DictVar), cap.key_of(args[1])
    found = cap.dict_get(target, key)
    if found is None:
        if len(args) > 2 or "default" in kwargs:
            return cap.realize(args[2] if len(args) > 2 else kwargs["default"])
        if target.cls is collections.OrderedDict:
            return run(cap, collections.OrderedDict.pop, args, kwargs)
        raise key_error(cap, args[1])
    cap.dict_del(target, key)
    return found


@rule(dict.clear, collections.OrderedDict.clear)
def _dict_clear(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    cap.dict_clear(own(cap, args[0], DictVar))
    return NONE


@rule(dict.copy)
def _dict_copy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if type(cap.realize(args[0])) is ObjectVar:
        return DictVar(dict(mapping_items(cap, args[0])))
    source = own(cap, unordered(cap, args[0]), DictVar)
    return DictVar(dict(cap.complete(source).known))


@rule(collections.OrderedDict.copy)
def _ordered_copy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if python_type(cap.realize(args[0])) is not collections.OrderedDict:
        return call(cap, ConstVar(polyfills.copy_ordered), args, {})
    source = own(cap, args[0], DictVar)
    return DictVar(dict(cap.complete(source).known), cls=collections.OrderedDict)


def _ordered_union(name: str) -> None:
    """``|`` of an OrderedDict, which gives an instance of its class (CPython, Objects/odictobject.c, odict_or)."""
    method = getattr(collections.OrderedDict, name)

    @rule(method)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        left, right = map(cap.realize, args if name == "__or__" else args[::-1])
        kinds = [python_type(side) for side in (left, right)]
        cls = kinds[0] if issubclass(kinds[0], collections.OrderedDict) else kinds[1]
        if cls is collections.OrderedDict or not all(issubclass(kind, dict) for kind in kinds):
            return run(cap, method, args, kwargs)
        return call(cap, ConstVar(polyfills.join_ordered), [ConstVar(cls), left, right], {})


_ordered_union("__or__")
_ordered_union("__ror__")


def _view(kind: str) -> None:
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        return DictViewVar(own(cap, args[0], DictVar), kind)

    rule(getattr(collections.OrderedDict, kind))(handler)
    rule(getattr(dict, kind))(lambda cap, args, kwargs: handler(cap, [unordered(cap, args[0])], kwargs))
    view_type = type(getattr({}, kind)())
    rule(view_type.__iter__)(lambda cap, args, kwargs: get_iter(cap, own(cap, args[0], DictViewVar)))
    rule(view_type.__len__)(lambda cap, args, kwargs: ConstVar(length(cap, own(cap, args[0], DictViewVar))))


for _kind in ("keys", "values", "items"):
    _view(_kind)


@rule(dict.__iter__)
def _dict_iter(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return get_iter(cap, payload_of(unordered(cap, args[0])))


# --- set --------------------------------------------------------------------------------------------------------------------


@rule(set.add)
def _set_add(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    add_to_set(cap, own(cap, args[0], SetVar), args[1])
    return NONE


@rule(set.copy, frozenset.copy)
def _set_copy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    source = own(cap, args[0], SetVar)
    twin = real_set(cap, source).copy() if has_constants(source) else None
    return SetVar(dict(source.known), source.cls, twin=twin)
