"""Rules of the methods of list, dict, OrderedDict and set.

In: method descriptors called with a tracked container first. Out: the methods' results and changes, in the shadow.
Always: real containers are not touched; `change_list`, `dict_set` and kin remember what the replacement must replay.
"""

from __future__ import annotations

import collections
import operator
from typing import Any

from .attributes import find_attr, python_type
from .breaks import Break, Raised
from .calls import call
from .capture import Capture, NotConst, describe
from .frame import key_tracker
from .iterator_rules import sort_items
from .protocol import (
    change_list,
    change_set,
    extend_from,
    extend_list,
    get_iter,
    inplace,
    items_equal,
    iterate,
    length,
    mapping_items,
    set_item,
    set_keys,
)
from .rules import rule
from .trackers import (
    NONE,
    ConstVar,
    DictVar,
    DictViewVar,
    ListVar,
    ObjectVar,
    SetVar,
    Tracker,
    TupleVar,
)

Args = list[Tracker]
Kwargs = dict[str, Tracker]


def own(cap: Capture, tracker: Tracker, kind: type) -> Any:
    """The container tracker of the given kind behind a receiver."""
    tracker = cap.realize(tracker)
    if type(tracker) is ObjectVar and tracker.payload is not None:
        tracker = tracker.payload
    if type(tracker) is not kind:
        raise Break("unsupported-object", f"container method on a {describe(tracker)}")
    return tracker


def _index(cap: Capture, tracker: Tracker) -> int:
    try:
        return operator.index(cap.value_of(tracker))
    except NotConst:
        raise Break("tensor-item", "an index that is not a constant") from None


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


@rule(list.insert)
def _insert(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    change_list(cap, own(cap, args[0], ListVar)).insert(_index(cap, args[1]), args[2])
    return NONE


@rule(list.pop)
def _list_pop(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    items = change_list(cap, own(cap, args[0], ListVar))
    if not items:
        raise cap.raise_(IndexError, "pop from empty list")
    try:
        return cap.realize(items.pop(_index(cap, args[1]) if len(args) > 1 else -1))
    except IndexError:
        raise cap.raise_(IndexError, "pop index out of range") from None


@rule(list.clear)
def _list_clear(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    change_list(cap, own(cap, args[0], ListVar)).clear()
    return NONE


@rule(list.reverse)
def _list_reverse(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    change_list(cap, own(cap, args[0], ListVar)).reverse()
    return NONE


@rule(list.copy)
def _list_copy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ListVar(list(own(cap, args[0], ListVar).items))


@rule(list.sort)
def _list_sort(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    target = own(cap, args[0], ListVar)
    ordered = sort_items(cap, iterate(cap, target), kwargs)
    change_list(cap, target)[:] = ordered
    return NONE


def _position(cap: Capture, items: Args, wanted: Tracker) -> int | None:
    for index, item in enumerate(items):
        if items_equal(cap, cap.realize(item), wanted):
            return index
    return None


@rule(list.remove)
def _list_remove(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    target = own(cap, args[0], ListVar)
    found = _position(cap, target.items, cap.realize(args[1]))
    if found is None:
        raise cap.raise_(ValueError, "list.remove(x): x not in list")
    del change_list(cap, target)[found]
    return NONE


def _sequence(cap: Capture, tracker: Tracker) -> Args:
    tracker = cap.realize(tracker)
    if type(tracker) is ObjectVar and tracker.payload is not None:
        tracker = tracker.payload
    return iterate(cap, tracker)


@rule(list.index, tuple.index)
def _list_index(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    items = _sequence(cap, args[0])
    start = _index(cap, args[2]) if len(args) > 2 else 0
    stop = _index(cap, args[3]) if len(args) > 3 else len(items)
    for index in range(len(items))[start:stop]:
        if items_equal(cap, items[index], cap.realize(args[1])):
            return ConstVar(index)
    if python_type(cap.realize(args[0])) is not list:
        raise cap.raise_(ValueError, "tuple.index(x): x not in tuple")
    raise cap.raise_(ValueError, f"{cap.value_of(args[1])!r} is not in list")


@rule(list.count, tuple.count)
def _list_count(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(sum(items_equal(cap, item, cap.realize(args[1])) for item in _sequence(cap, args[0])))


@rule(list.__init__)
def _list_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    change_list(cap, own(cap, args[0], ListVar))[:] = iterate(cap, args[1]) if len(args) > 1 else []
    return NONE


# --- dict -------------------------------------------------------------------------------------------------------------------


def _update(cap: Capture, target: DictVar, args: Args, kwargs: Kwargs) -> None:
    if args:
        source = cap.realize(args[0])
        is_mapping = type(source) is DictVar or (
            type(source) is ObjectVar and find_attr(cap, source, "keys") is not None
        )
        if is_mapping:
            for key, value in mapping_items(cap, source):
                cap.dict_set(target, key, value)
        else:
            for pair in iterate(cap, source):
                key_var, value_var = iterate(cap, pair)
                cap.dict_set(target, cap.key_of(key_var), value_var)
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


@rule(dict.__init__, collections.OrderedDict.__init__)
def _dict_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    _update(cap, own(cap, args[0], DictVar), args[1:], kwargs)
    return NONE


@rule(dict.update, collections.OrderedDict.update)
def _dict_update(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    receiver = cap.realize(args[0])
    if type(receiver) is ObjectVar and type(receiver.payload) is DictVar:
        shadow = DictVar({})
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


def _overrides(cap: Capture, receiver: ObjectVar, method: Tracker) -> bool:
    """OrderedDict.update is Python-like: it goes through an overridden ``__setitem__``; dict.update does not."""
    return issubclass(receiver.cls, collections.OrderedDict)


@rule(dict.get)
def _dict_get(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    found = cap.dict_get(own(cap, args[0], DictVar), cap.key_of(args[1]))
    if found is not None:
        return found
    return cap.realize(args[2]) if len(args) > 2 else NONE


@rule(dict.setdefault, collections.OrderedDict.setdefault)
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
        raise cap.raise_(KeyError, key)
    cap.dict_del(target, key)
    return found


@rule(dict.popitem, collections.OrderedDict.popitem)
def _dict_popitem(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    target = own(cap, args[0], DictVar)
    cap.complete(target)
    if not target.known:
        raise cap.raise_(
            KeyError,
            "dictionary is empty"
            if target.cls is collections.OrderedDict
            else "popitem(): dictionary is empty",
        )
    last = kwargs.get("last") or (args[1] if len(args) > 1 else ConstVar(True))
    key = list(target.known)[-1 if cap.value_of(last) else 0]
    value = cap.dict_get(target, key)
    cap.dict_del(target, key)
    assert value is not None
    return TupleVar([key_tracker(cap, key), value])


@rule(dict.clear, collections.OrderedDict.clear)
def _dict_clear(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    cap.dict_clear(own(cap, args[0], DictVar))
    return NONE


@rule(dict.copy, collections.OrderedDict.copy)
def _dict_copy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    source = own(cap, args[0], DictVar)
    cap.complete(source)
    return DictVar(dict(source.known), cls=source.cls)


@rule(collections.OrderedDict.move_to_end)
def _move_to_end(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    target, key = own(cap, args[0], DictVar), cap.key_of(args[1])
    last = kwargs.get("last") or (args[2] if len(args) > 2 else ConstVar(True))
    cap.complete(target)
    value = cap.dict_get(target, key)
    if value is None:
        raise cap.raise_(KeyError, key)
    items = {k: v for k, v in target.known.items() if k != key}
    ordered = {**items, key: value} if cap.value_of(last) else {key: value, **items}
    cap.dict_clear(target)
    for k, v in ordered.items():
        cap.dict_set(target, k, v)
    return NONE


def _view(kind: str) -> None:
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        return DictViewVar(own(cap, args[0], DictVar), kind)

    rule(getattr(dict, kind), getattr(collections.OrderedDict, kind))(handler)
    view_type = type(getattr({}, kind)())
    rule(view_type.__iter__)(lambda cap, args, kwargs: get_iter(cap, args[0]))
    rule(view_type.__len__)(lambda cap, args, kwargs: ConstVar(length(cap, args[0])))


for _kind in ("keys", "values", "items"):
    _view(_kind)


# --- set --------------------------------------------------------------------------------------------------------------------


@rule(set.add)
def _set_add(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    change_set(cap, own(cap, args[0], SetVar)).setdefault(cap.key_of(args[1]), args[1])
    return NONE


@rule(set.discard)
def _set_discard(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    change_set(cap, own(cap, args[0], SetVar)).pop(cap.key_of(args[1]), None)
    return NONE


@rule(set.remove)
def _set_remove(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if change_set(cap, own(cap, args[0], SetVar)).pop(cap.key_of(args[1]), None) is None:
        raise cap.raise_(KeyError, cap.value_of(args[1]))
    return NONE


@rule(set.clear)
def _set_clear(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    change_set(cap, own(cap, args[0], SetVar)).clear()
    return NONE


@rule(set.update)
def _set_update(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    target = change_set(cap, own(cap, args[0], SetVar))
    for arg in args[1:]:
        for item in iterate(cap, arg):
            target.setdefault(cap.key_of(item), item)
    return NONE


@rule(set.copy, frozenset.copy)
def _set_copy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    source = own(cap, args[0], SetVar)
    return SetVar(dict(source.known), source.cls)


def _set_method(name: str) -> None:
    def keys(cap: Capture, args: Args) -> tuple[SetVar, dict[Any, Tracker], dict[Any, Tracker]]:
        receiver = own(cap, args[0], SetVar)
        others: dict[Any, Tracker] = {}
        for arg in args[1:]:
            others.update(set_keys(cap, cap.realize(arg)))
        return receiver, receiver.known, others

    def combine(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        receiver, mine, others = keys(cap, args)
        if name == "union":
            return SetVar({**others, **mine}, receiver.cls)
        if name == "intersection":
            return SetVar({k: v for k, v in mine.items() if k in others}, receiver.cls)
        if name == "difference":
            return SetVar({k: v for k, v in mine.items() if k not in others}, receiver.cls)
        if name == "symmetric_difference":
            merged = {**others, **mine}
            return SetVar({k: merged[k] for k in merged if (k in mine) != (k in others)}, receiver.cls)
        tests = {"issubset": mine.keys() <= others.keys(), "issuperset": mine.keys() >= others.keys()}
        tests["isdisjoint"] = not (mine.keys() & others.keys())
        return ConstVar(tests[name])

    rule(getattr(set, name), getattr(frozenset, name))(combine)


for _name in "union intersection difference symmetric_difference issubset issuperset isdisjoint".split():
    _set_method(_name)


@rule(set.pop)
def _set_pop(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    target = own(cap, args[0], SetVar)
    if not target.known:
        raise cap.raise_(KeyError, "pop from an empty set")
    raise Break("unsupported-builtin", "set.pop takes an arbitrary item")


@rule(str.join)
def _str_join(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    try:
        return ConstVar(cap.value_of(args[0]).join(cap.value_of(item) for item in iterate(cap, args[1])))
    except NotConst:
        raise Break("unsupported-builtin", "str.join of values that are not constants") from None
    except TypeError as error:
        raise Raised(cap.exception_var(error)) from None
