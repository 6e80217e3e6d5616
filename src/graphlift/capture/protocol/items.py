"""Subscripts and containment: `in`, `[]`, assignment and deletion of items, slices, mappings.

In: trackers. Out: trackers (or the program's own exception as `Raised`).
Always: constants are evaluated for real, tensors become graph nodes, everything else follows the special methods.
"""

from __future__ import annotations

import operator
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import torch

from ...guards import ABSENT, SeqItem
from ..attributes import find_attr, get_attr, is_python, python_type, says_itself
from ..breaks import Break, Raised
from ..calls import call, call_special, known_index
from ..capture import Capture, Link, NotConst
from ..constants import PLAIN_CONSTANTS
from ..trackers import (
    ConstVar,
    DequeVar,
    DictVar,
    DictViewVar,
    LazyVar,
    ListVar,
    ObjectVar,
    OpaqueVar,
    SetVar,
    SizeVar,
    SliceVar,
    TensorVar,
    Tracker,
    TupleVar,
    describe,
)
from .comparison import items_equal, truth
from .indexing import has_size, view_at
from .iteration import change_list, evaluate, get_iter, iterate, rest


def contains(cap: Capture, container: Tracker, item: Tracker, link: Link | None = None) -> bool:
    """``item in container``; ``link``: what the instruction makes of the value of a ``__contains__``."""
    container, item = cap.realize(container), cap.realize(item)
    kind = type(container)
    if says_itself(cap, container, "__contains__"):
        return truth(cap, call_special(cap, container, "__contains__", [item], link))
    if kind is ConstVar and type(item) is ConstVar and not says_itself(cap, container, "__iter__"):
        result = evaluate(cap, operator.contains, container.value, item.value)  # type: ignore[attr-defined]
        return result.value  # type: ignore[attr-defined, no-any-return]
    if kind is DictVar:
        return cap.dict_has(container, cap.key_of(item))  # type: ignore[arg-type]
    if kind is SetVar:
        return cap.key_of(item) in container.known  # type: ignore[attr-defined]
    if kind is DictViewVar and container.kind == "keys":  # type: ignore[attr-defined]
        return cap.dict_has(container.owner, cap.key_of(item))  # type: ignore[attr-defined]
    if kind is TensorVar:
        raise Break("data-dependent-branch", "`in` on a tensor")
    if kind is ObjectVar:
        raw = cap.type_attr(container.cls, "__contains__")  # type: ignore[attr-defined]
        if isinstance(raw, types.FunctionType):
            return truth(cap, call_special(cap, container, "__contains__", [item], link))
        if container.payload is not None and raw is not ABSENT:  # type: ignore[attr-defined]
            return contains(cap, container.payload, item)  # type: ignore[attr-defined]
    if kind is OpaqueVar:
        raise Break(container.code, container.detail)  # type: ignore[attr-defined]
    if kind is ConstVar and isinstance(container.value, (str, bytes)):  # type: ignore[attr-defined]
        return truth(cap, _mirrored(cap, type(container.value).__contains__, [container, item]))  # type: ignore[attr-defined]
    cls = python_type(container)
    if cap.type_attr(cls, "__iter__") is ABSENT and cap.type_attr(cls, "__getitem__") is ABSENT:
        raise cap.raise_(TypeError, f"argument of type '{cls.__name__}' is not iterable")
    return any(items_equal(cap, found, item) for found in rest(cap, get_iter(cap, container)))


#: What a tensor's index is taken for, of kinds of trackers that are no tensors.
TENSOR_INDICES: dict[type, Callable[[Capture, Any], Tracker]] = {}
#: Subscripts of kinds of trackers that have rules of their own.
ITEM_READERS: dict[type, Callable[[Capture, Any, Tracker], Tracker]] = {}


def tensor_index(cap: Capture, index: Tracker) -> Tracker:
    """What a tensor is subscripted with, arrays in it as tensors."""
    if type(index) in TENSOR_INDICES:
        return TENSOR_INDICES[type(index)](cap, index)
    if type(index) is TupleVar:
        parts = [cap.realize(item) for item in index.items]
        if any(type(part) in TENSOR_INDICES for part in parts):
            return TupleVar([tensor_index(cap, part) for part in parts])
    return index


def get_item(cap: Capture, container: Tracker, index: Tracker, link: Link | None = None) -> Tracker:
    """``container[index]``; ``link``: the result of the instruction."""
    container, index = cap.realize(container), cap.realize(index)
    kind = type(container)
    if kind is TensorVar and has_size(index):
        return view_at(cap, container, index)  # type: ignore[arg-type]
    if kind is TensorVar:
        index = tensor_index(cap, index)
    if kind is TensorVar or (type(index) is TensorVar and kind in (ListVar, TupleVar)):
        return cap.emit("call_function", operator.getitem, [container, index], {}, operator.getitem)
    if kind is DequeVar and (peeked := _peek(cap, container, cap.plain(index))) is not None:
        return peeked
    if kind in (ListVar, TupleVar):
        return _sequence_item(cap, container, index)
    if kind in ITEM_READERS:
        return ITEM_READERS[kind](cap, container, index)
    if kind is DictVar:
        found = cap.dict_get(container, cap.key_of(index))  # type: ignore[arg-type]
        if found is None:
            raise key_error(cap, index)
        return found
    if says_itself(cap, container, "__getitem__"):
        return call_special(cap, container, "__getitem__", [index], link)
    if kind is ConstVar:
        if isinstance(container.value, type) or not hasattr(type(container.value), "__getitem__"):  # type: ignore
            return _subscript_class(cap, container, index)  # type: ignore[arg-type]
        try:
            return evaluate(cap, operator.getitem, container.value, cap.value_of(index))  # type: ignore[attr-defined]
        except NotConst:
            raise Break("unsupported-object", f"index {describe(index)}") from None
    if kind is ObjectVar:
        raw = cap.type_attr(container.cls, "__getitem__")  # type: ignore[attr-defined]
        if isinstance(raw, types.FunctionType):
            return call_special(cap, container, "__getitem__", [index], link)
        if container.payload is not None and raw is not ABSENT:  # type: ignore[attr-defined]
            return _payload_item(cap, container, index)  # type: ignore[arg-type]
        if container.payload is not None:  # type: ignore[attr-defined]
            raise cap.raise_(TypeError, f"'{container.cls.__name__}' object is not subscriptable")  # type: ignore
    if kind is OpaqueVar:
        raise Break(container.code, container.detail)  # type: ignore[attr-defined]
    return _by_type(cap, operator.getitem, "__getitem__", [container, index])


def _payload_item(cap: Capture, container: ObjectVar, index: Tracker) -> Tracker:
    missing = cap.type_attr(container.cls, "__missing__")
    payload = container.payload
    if type(payload) is DictVar and missing is not ABSENT:
        found = cap.dict_get(payload, cap.key_of(index))
        if found is not None:
            return found
        if isinstance(missing, types.FunctionType):
            return call_special(cap, container, "__missing__", [index])
        factory = container.slots.get("default_factory")
        if factory is None and container.obj is not None:
            factory = get_attr(cap, container, "default_factory")
        if factory is None or (type(factory) is ConstVar and factory.value is None):
            raise key_error(cap, index)
        value = call(cap, factory, [], {})
        cap.dict_set(payload, cap.key_of(index), value)
        return value
    assert payload is not None
    found = get_item(cap, payload, index)
    if container.cls is torch.Size and type(found) is TupleVar:
        from ..size_rules import shape_var

        return shape_var(cap, found.items)
    return found


def _subscript_class(cap: Capture, container: ConstVar, index: Tracker) -> Tracker:
    try:
        return evaluate(cap, operator.getitem, container.value, cap.value_of(index))
    except NotConst:
        raise Break("unsupported-object", f"indexing {describe(container)}") from None


def _by_type(cap: Capture, fn: Callable[..., Any], name: str, args: list[Tracker]) -> Tracker:
    """By the type's own method; a type that has none makes ``fn`` raise."""
    if type(args[0]) is TensorVar or cap.type_attr(python_type(args[0]), name) is not ABSENT:
        return call_special(cap, args[0], name, args[1:])
    return _mirrored(cap, fn, args)


def _mirrored(cap: Capture, method: Any, args: list[Tracker]) -> Tracker:
    from ..mirror import run

    return run(cap, method, args, {})


def key_error(cap: Capture, key: Tracker) -> Raised:
    """The KeyError that carries the very key."""
    raised = cap.raise_(KeyError)
    raised.value.slots["args"] = TupleVar([cap.realize(key)])  # type: ignore[attr-defined]
    return raised


def _peek(cap: Capture, container: Tracker, index: Tracker) -> Tracker | None:
    """An item of a list or deque made outside of which nothing else was read: how long it is does not matter."""
    kind = type(container)
    if kind in (ListVar, DequeVar) and container.untouched and container.source and type(index) is ConstVar:  # type: ignore[attr-defined]
        position, real = index.value, container.real  # type: ignore[attr-defined]
        if real is not None and type(position) is int:
            cls: Any = list if kind is ListVar else deque
            first = 0 if cls is list else -len(real)  # both ends of a deque are alike
            if first <= position < cls.__len__(real):
                return cap.realize(
                    LazyVar(cls.__getitem__(real, position), SeqItem(container.source, position))
                )
    return None


def _sequence_item(cap: Capture, container: Tracker, index: Tracker) -> Tracker:
    index = cap.plain(index)
    peeked = _peek(cap, container, index)
    if peeked is not None:
        return peeked
    items: list[Tracker] = container.items  # type: ignore[attr-defined]
    if type(index) is not ConstVar:
        cls: Any = python_type(container)
        return _mirrored(cap, cls.__getitem__, [container, index])
    if isinstance(index.value, slice):
        try:
            picked = items[index.value]
        except (TypeError, ValueError) as error:
            raise Raised(cap.exception_var(error)) from None
        return ListVar(picked) if type(container) is ListVar else TupleVar(picked)
    try:
        position = operator.index(index.value)
        found = items[position]
    except (IndexError, TypeError) as error:
        name = "list" if type(container) is ListVar else "tuple"
        text = (
            f"{name} index out of range"
            if isinstance(error, IndexError) and -sys.maxsize - 1 <= index.value <= sys.maxsize
            else str(error)
            if isinstance(error, IndexError)
            else (f"{name} indices must be integers or slices, not {type(index.value).__name__}")
        )
        raise cap.raise_(type(error), text) from None
    if type(found) is LazyVar:
        found = items[position] = cap.realize(found)
    return found


def set_item(
    cap: Capture, container: Tracker, index: Tracker, value: Tracker, link: Link | None = None
) -> None:
    """``container[index] = value``; ``link``: all that the instruction does."""
    container, index = cap.realize(container), cap.realize(index)
    kind = type(container)
    if kind is ListVar:
        index = cap.plain(index)
    if kind is TensorVar and has_size(index):
        container, index = view_at(cap, container, index), ConstVar(...)  # type: ignore[arg-type]
    if kind is TensorVar:
        cap.emit("call_function", operator.setitem, [container, index, value], {}, operator.setitem)
    elif kind is DictVar:
        cap.dict_set(container, cap.key_of(index), value)  # type: ignore[arg-type]
    elif kind is ListVar and (
        type(index) is not ConstVar
        or (isinstance(index.value, slice) and type(cap.realize(value)) not in (ListVar, TupleVar))
    ):
        _mirrored(cap, list.__setitem__, [container, index, value])
    elif kind is ListVar:
        items = change_list(cap, container)  # type: ignore[arg-type]
        try:
            if isinstance(index.value, slice):
                items[index.value] = iterate(cap, value)
            else:
                items[index.value] = value
        except (IndexError, TypeError, ValueError) as error:
            raise Raised(cap.exception_var(error)) from None
    elif kind is ObjectVar:
        raw = cap.type_attr(container.cls, "__setitem__")  # type: ignore[attr-defined]
        if isinstance(raw, types.FunctionType):
            call_special(cap, container, "__setitem__", [index, value], link)
        elif container.payload is not None and raw is not ABSENT:  # type: ignore[attr-defined]
            set_item(cap, container.payload, index, value)  # type: ignore[attr-defined]
        elif raw is not ABSENT and raw is not None:
            raise Break("unsupported-mutation", f"item assignment to a {describe(container)}")
        else:
            raise cap.raise_(TypeError, f"'{container.cls.__name__}' object does not support item assignment")  # type: ignore
    elif kind is OpaqueVar:
        raise Break(container.code, container.detail)  # type: ignore[attr-defined]
    else:
        _by_type(cap, operator.setitem, "__setitem__", [container, index, value])


def del_item(cap: Capture, container: Tracker, index: Tracker, link: Link | None = None) -> None:
    """``del container[index]``; ``link``: all that the instruction does."""
    container, index = cap.realize(container), cap.realize(index)
    kind = type(container)
    if kind is DictVar:
        if not cap.dict_del(container, cap.key_of(index)):  # type: ignore[arg-type]
            raise key_error(cap, index)
    elif kind is ListVar and type(index) is not ConstVar:
        _mirrored(cap, list.__delitem__, [container, index])
    elif kind is ListVar:
        try:
            del change_list(cap, container)[index.value]  # type: ignore[arg-type]
        except (IndexError, TypeError) as error:
            raise Raised(cap.exception_var(error)) from None
    elif kind is ObjectVar:
        raw = cap.type_attr(container.cls, "__delitem__")  # type: ignore[attr-defined]
        if isinstance(raw, types.FunctionType):
            call_special(cap, container, "__delitem__", [index], link)
        elif container.payload is not None:  # type: ignore[attr-defined]
            del_item(cap, container.payload, index)  # type: ignore[attr-defined]
        elif raw is not ABSENT and raw is not None:
            raise Break("unsupported-mutation", f"item deletion from a {describe(container)}")
        else:
            raise cap.raise_(TypeError, f"'{container.cls.__name__}' object does not support item deletion")  # type: ignore
    elif kind is OpaqueVar:
        raise Break(container.code, container.detail)  # type: ignore[attr-defined]
    else:
        _by_type(cap, operator.delitem, "__delitem__", [container, index])


def make_slice(cap: Capture, parts: list[Tracker]) -> Tracker:
    parts = [cap.realize(part) for part in parts]
    if any(type(part) is SizeVar for part in parts):
        return SliceVar([ConstVar(None), *parts] if len(parts) == 1 else parts)
    try:
        values = [cap.value_of(known_index(cap, part)) for part in parts]
        if not all(value is None or type(value) in PLAIN_CONSTANTS for value in values):
            raise Break("unsupported-call", "a slice of odd bounds")
        return ConstVar(slice(*values))
    except NotConst:
        raise Break("tensor-item", "a slice with a bound that is not a constant") from None


def mapping_items(
    cap: Capture, mapping: Tracker, refusal: str = "'{}' object is not a mapping", by_keys: bool = False
) -> list[tuple[Any, Tracker]]:
    """(key, value) pairs of any mapping, as ``**mapping`` and ``dict(mapping)`` see them."""
    mapping = cap.realize(mapping)
    if type(mapping) is DictVar:
        cap.complete(mapping)
        return list(mapping.known.items())
    if type(mapping) is ObjectVar and type(mapping.payload) is DictVar:
        # CPython, Objects/dictobject.c, dict_merge.
        iterates = by_keys or issubclass(mapping.cls, OrderedDict) or is_python(cap, mapping, "__iter__")
        if not iterates or not (is_python(cap, mapping, "keys") or is_python(cap, mapping, "__getitem__")):
            return mapping_items(cap, mapping.payload)
    if type(mapping) in (ConstVar, TensorVar, ListVar, TupleVar) or find_attr(cap, mapping, "keys") is None:
        raise cap.raise_(TypeError, refusal.format(python_type(mapping).__name__))
    keys = iterate(cap, call(cap, get_attr(cap, mapping, "keys"), [], {}))
    return [(cap.key_of(key), get_item(cap, mapping, key)) for key in keys]
