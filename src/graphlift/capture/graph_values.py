"""What the graph's operations take and give, for trackers.

In: a tracker, or a node with its fake. Out: the argument for FX and the one for fakes, or the result's tracker.
Always: one tracker per fake; what is not known to an operation breaks, naming it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..fake import FakeTensor
from ..guards import Const, IdIs
from .breaks import Break
from .trackers import (
    NONE,
    ConstVar,
    DictVar,
    ListVar,
    ObjectVar,
    OpaqueVar,
    TensorVar,
    Tracker,
    TupleVar,
    describe,
)

if TYPE_CHECKING:
    from .capture import Capture

#: Classes that torch takes for a dtype.
CLASS_DTYPES: dict[Any, torch.dtype] = {
    cls: torch.empty(0, dtype=cls).dtype  # type: ignore[arg-type]
    for cls in (bool, int, float, complex)
}
#: (FX argument, fake argument) of kinds of trackers that have rules of their own.
GRAPH_ARGUMENTS: dict[type, Callable[[Capture, Any], tuple[Any, Any]]] = {}


def to_graph(cap: Capture, tracker: Tracker) -> tuple[Any, Any]:
    """(FX argument, fake argument) for a tracker passed to a tensor operation."""
    tracker = cap.realize(tracker)
    kind = type(tracker)
    if kind is TensorVar:
        if tracker.node.graph is not cap.builder.graph:  # type: ignore[attr-defined]
            tracker = cap.builder.lift(tracker)  # type: ignore[arg-type]
        return tracker.node, tracker.fake  # type: ignore[attr-defined]
    if kind is ConstVar:
        cap.pin(tracker)  # type: ignore[arg-type]
        value = tracker.value  # type: ignore[attr-defined]
        if isinstance(value, type):
            if value in CLASS_DTYPES:
                return CLASS_DTYPES[value], value
            raise Break("unsupported-call", f"class {value.__qualname__} passed to a tensor operation")
        return (tuple(value) if type(value) is torch.Size else value), value
    if kind in (TupleVar, ListVar):
        pairs = [to_graph(cap, item) for item in tracker.items]  # type: ignore[attr-defined]
        make: Callable[[Iterable[Any]], Any] = tuple if kind is TupleVar else list
        return make(p[0] for p in pairs), make(p[1] for p in pairs)
    if kind is DictVar:
        cap.complete(tracker)  # type: ignore[arg-type]
        items = {key: to_graph(cap, item) for key, item in tracker.known.items()}  # type: ignore[attr-defined]
        return {k: p[0] for k, p in items.items()}, {k: p[1] for k, p in items.items()}
    if kind is ObjectVar and type(tracker.payload) is TupleVar:  # type: ignore[attr-defined]
        return to_graph(cap, tracker.payload)  # type: ignore[attr-defined]
    if kind is OpaqueVar:
        raise Break(tracker.code, tracker.detail)  # type: ignore[attr-defined]
    if kind is ObjectVar and isinstance(tracker.obj, torch.Generator):  # type: ignore[attr-defined]
        return constant_argument(cap, tracker)  # type: ignore[arg-type]
    special = GRAPH_ARGUMENTS.get(kind)
    if special is not None:
        return special(cap, tracker)
    raise Break("unsupported-call", f"a {describe(tracker)} passed to a tensor operation")


def constant_argument(cap: Capture, tracker: ObjectVar) -> tuple[Any, Any]:
    """A pre-existing object as an attribute of the graph."""
    if tracker.source in cap.varying:
        raise Break("unsupported-object", "a torch.Generator that is another one in each call")
    if tracker.source is not None and not isinstance(tracker.source, Const):
        cap.guard(IdIs(tracker.source, tracker.obj))
    return cap.builder.constant(tracker.obj), tracker.obj


def wrap_result(cap: Capture, node: Any, value: Any, where: str) -> Tracker:
    if isinstance(value, torch.Tensor):
        known = cap.fakes.get(id(value))
        if known is not None:
            return known
        tracker = TensorVar(node, value, torch.Tensor if type(value) is FakeTensor else type(value))
        cap.fakes[id(value)] = tracker
        return tracker
    if value is None:
        return NONE
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = []
        for index, item in enumerate(value):
            needs_node = contains_tensor(item) and id(item) not in cap.fakes
            items.append(
                wrap_result(
                    cap, cap.builder.add_item(node, index, item, where) if needs_node else node, item, where
                )
            )
        if type(value) is list:
            return ListVar(items)
        payload = TupleVar(items)
        if type(value) is tuple:
            return payload
        result = ObjectVar(type(value))
        result.payload = payload
        return result
    return cap.from_python(value)


def contains_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, (tuple, list)) and any(contains_tensor(item) for item in value)
