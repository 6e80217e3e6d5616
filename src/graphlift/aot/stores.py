"""Writes to part of an input: what of them is computed, and which are done in the input's own memory.

In: a trace, an input and its value after the region. Out: the part that changes; or the same trace, in which an
operator writes the input. Always: elements that eager does not write are not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from ..fake.ops import aten
from .ir import Op, Trace, Value, inputs_of
from .plan import View
from .views import same_layout

# Operators that give their first argument with a part of it replaced by the second, and the view that is that part.
_PARTS: dict[Any, Any] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}
# Operators that give their first argument with elements of it replaced, and those that replace them in place.
_ELEMENTS: dict[Any, Any] = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
}


def written_part(whole: Value, written: Value) -> tuple[Value, tuple[View, ...]]:
    """What replaces a part of ``whole`` in ``written``, and the views that lead to that part: none, if all of it.

    Of several writes to one part, each of what the one before it gave, the last counts.
    """
    result: tuple[Value, tuple[View, ...]] = written, ()
    at = written
    while at is not whole:
        part, views, *_ = _last_write(at)
        if not views or (result[1] and views != result[1]):
            return written, ()
        if at is written:
            result = part, views
        assert at.op is not None
        at = at.op.args[0]
    return result


def _last_write(written: Value) -> tuple[Value, tuple[View, ...], set[Op], Value]:
    """What was stored last, the views that lead there from what it was stored into, the operators of both, and what
    the last of the views is a view of."""
    views: list[View] = []
    ops: set[Op] = set()
    at = written
    while (op := written.op) is not None and op.func in _PARTS:
        base, part, *args = op.args
        if views:
            if not _is_view(base, at, views[-1]):
                break
            ops.add(base.op)
        at, written = base, part
        ops.add(op)
        views.append((_PARTS[op.func], tuple(args), op.kwargs))
    return written, tuple(views), ops, at


def _is_view(value: Value, at: Value, view: View) -> bool:
    op = value.op
    return op is not None and op.args[0] is at and (op.func, op.args[1:], op.kwargs) == view


class Store:
    """``store(whole, *values, *places)`` writes into a part of ``whole`` and gives it: the part is reached by views,
    each of which takes so many of the places."""

    __name__ = "store"
    writes_first = True  # for lowering: the result is the first argument

    def __init__(self, func: Any, values: int, views: tuple[tuple[Any, int], ...] = ()) -> None:
        self.func, self.values, self.views = func, values, views

    def __call__(self, whole: Any, *given: Any) -> Any:
        part, places = whole, iter(given[self.values :])
        for view, count in self.views:
            part = view(part, *islice(places, count))
        self.func(part, *given[: self.values])
        return whole

    def __str__(self) -> str:
        return "store"


def users_of(ops: list[Op]) -> dict[Value, list[Op]]:
    """The operators that read each value."""
    found: dict[Value, list[Op]] = {}
    for op in ops:
        for v in inputs_of(op):
            found.setdefault(v, []).append(op)
    return found


def store_in_place(trace: Trace, users: Mapping[Value, list[Op]], whole: Value, written: Value) -> None:
    """Writes an input in its own memory where only that write reads it, and the region goes on to read the result.

    Done twice, as where the region raises later and runs again in eager, it leaves what it left once. What comes before
    it and may raise has to run before it.
    """
    found = _store(whole, written)
    if found is None:
        return
    store, given, ops = found
    between = [whole, *(v for op in ops for v in op.outs if v is not written)]
    apart = any(user not in ops for v in between for user in users.get(v, ()))
    if apart or whole in trace.outputs or trace.outputs.count(written) != 1:
        return
    if written not in users and store.func is aten.copy_.default:
        return  # the part alone is computed, and stored behind the region
    assert written.op is not None
    made = Op(store, (whole, *given), {}, written.op.stage, written.op.source)
    made.outs = written.op.outs
    trace.ops[trace.ops.index(written.op)] = made
    written.op = made


def _store(whole: Value, written: Value) -> tuple[Store, tuple[Any, ...], set[Op]] | None:
    """The write in place that a value of an input amounts to, with its arguments, and the operators it replaces."""
    op = written.op
    if op is None or not same_layout(whole.spec, written.spec) or op.args[0] is not whole:
        return None
    part, views, ops, at = _last_write(written)
    if any(kwargs for _, _, kwargs in views):
        return None
    func, given = aten.copy_.default, (part,)
    inner = part.op
    if inner is not None and inner.func in _ELEMENTS and not inner.kwargs:
        old_part = inner.args[0]
        if old_part is whole if not views else _is_view(old_part, at, views[-1]):
            if inner.func is aten.index_put.default and len(inner.args) > 3 and inner.args[3]:
                return None  # adds to what is there
            func, given = _ELEMENTS[inner.func], inner.args[1:]
            ops |= {inner, old_part.op} if views else {inner}
    if func is aten.copy_.default and not views:
        return None
    places = [place for _, args, _ in views for place in args]
    store = Store(func, len(given), tuple([(view, len(args)) for view, args, _ in views]))
    return store, (*given, *places), ops
