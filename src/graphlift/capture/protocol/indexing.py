"""Subscripts of tensors by sizes that vary, which torch's own indexing takes for numbers only.

In: a tensor and an index with symbolic ints in it. Out: the same view, made by ``select``.
Always: the view's shape, strides and offset are those of the subscript; an index out of range is the program's error.
"""

from __future__ import annotations

import operator

from ..capture import Capture
from ..trackers import ConstVar, SizeVar, SliceVar, TensorVar, Tracker, TupleVar


def has_size(index: Tracker) -> bool:
    """Whether an int of the index is a symbolic size."""
    items = index.items if type(index) is TupleVar else [index]
    return any(type(item) is SizeVar for item in items)


def view_at(cap: Capture, tensor: TensorVar, index: Tracker) -> TensorVar:
    """``tensor[index]`` for an index of ints, slices, None and Ellipsis; other kinds fix the sizes in it."""
    items = [cap.realize(item) for item in (index.items if type(index) is TupleVar else [index])]
    if not all(_is_basic(item) for item in items):
        fixed: list[Tracker] = [cap.plain(item) if type(item) is SizeVar else item for item in items]
        return _subscript(cap, tensor, fixed)
    given = sum(not _is(item, None) and not _is(item, ...) for item in items)
    rank = len(tensor.fake.spec.shape)  # type: ignore[attr-defined]
    position = 0
    selects: list[tuple[int, SizeVar]] = []
    for item in items:
        if type(item) is SizeVar:
            selects.append((position, item))
            position += 1
        elif _is(item, ...):
            position += max(rank - given, 0)
        elif not (type(item) is ConstVar and type(item.value) is int):
            position += 1
    whole = [ConstVar(slice(None)) if type(item) is SizeVar else item for item in items]
    if not all(_is(item, slice(None)) for item in whole):
        tensor = _subscript(cap, tensor, whole)
    for place, size in reversed(selects):
        found = cap.emit(
            "call_method", "select", [tensor, ConstVar(place), size], {}, lambda t, d, i: t.select(d, i)
        )
        assert type(found) is TensorVar
        tensor = found
    return tensor


def _subscript(cap: Capture, tensor: TensorVar, items: list[Tracker]) -> TensorVar:
    index = items[0] if len(items) == 1 else TupleVar(items)
    found = cap.emit("call_function", operator.getitem, [tensor, index], {}, operator.getitem)
    assert type(found) is TensorVar
    return found


def _is(item: Tracker, value: object) -> bool:
    if type(item) is not ConstVar or type(item.value) is not type(value):
        return False
    return item.value is value or (isinstance(value, slice) and item.value == value)


def _is_basic(item: Tracker) -> bool:
    if type(item) in (SizeVar, SliceVar):
        return True
    return type(item) is ConstVar and (
        item.value is None or item.value is ... or type(item.value) in (int, slice)
    )
