"""Graphs of functions that torch calls itself: a custom backward, a gradient hook, what a transform is applied to.

In: a function on trackers and fakes of its arguments. Out: a `SubGraph`: a GraphModule, and what it takes from outside.
Always: the function only computes: one that changes anything outside of itself, tensors included, is a break.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from ..data import dataclass
from ..guards import Source
from ..shapes.expr import Real, SizeLike, Symbol
from ..shapes.node import to_symint
from ..shapes.table import SymbolTable
from .breaks import Break, Raised
from .capture import Capture
from .endings import parts
from .frame import Frame, GeneratorVar, IteratorVar
from .graph import GraphBuilder
from .graph_values import to_graph
from .late_reads import LateCheck, LateReads, leads_on
from .trackers import (
    CellVar,
    ConstVar,
    DequeVar,
    DictVar,
    FloatVar,
    ListVar,
    ObjectVar,
    SetVar,
    SizeVar,
    TensorVar,
    Tracker,
    TupleVar,
)


@dataclass(frozen=True, slots=True)
class SubGraph:
    """``module(*lifted, *arguments)`` gives the tensors of the result, in order; ``result`` has its structure.

    A nested one gives the result itself; ``value`` is that on fakes.
    """

    module: fx.GraphModule
    lifted: tuple[Tracker, ...]  # tensors, and sizes and floats that vary
    result: Tracker
    value: Any = None
    late: LateCheck | None = None  # of what it looked at, where torch calls it later


class SubBuilder(GraphBuilder):
    """Appends to a graph of its own; tensors of the enclosing graph become further placeholders."""

    def __init__(self, cap: Capture) -> None:
        super().__init__()
        self.cap = cap
        self.outer = cap.builder
        self.inner: dict[int, TensorVar] = {}
        self.lifted: dict[Any, tuple[Tracker, fx.Node]] = {}
        self.input_sources = self.outer.input_sources
        self.input_tensors = self.outer.input_tensors
        self.input_versions = self.outer.input_versions
        self.arrays = self.outer.arrays

    def add_input(
        self, source: Source, real: torch.Tensor, fake: torch.Tensor, array: bool = False
    ) -> fx.Node:
        return self.outer.add_input(source, real, fake, array)

    def constant(self, value: Any) -> fx.Node:
        raise Break("unsupported-call", f"a {type(value).__name__} used in an inner function")

    def lift(self, tensor: TensorVar) -> TensorVar:
        if id(tensor) not in self.inner:
            if tensor.node.graph is not self.outer.graph:
                tensor_outside = self.outer.lift(tensor)
            else:
                tensor_outside = tensor
            inner = self.placeholder(f"outer_{len(self.lifted)}", tensor.fake, tensor.cls)
            self.inner[id(tensor)] = inner
            self.lifted[id(tensor)] = tensor_outside, inner.node
        return self.inner[id(tensor)]

    def size_node(self, size: SizeLike, table: SymbolTable, sources: dict[Symbol, Source]) -> fx.Node:
        """A size of the enclosing graph comes with each call, as its tensors do."""
        found = self.lifted.get(size)
        if found is None:
            outside = FloatVar(size) if isinstance(size, Real) else SizeVar(size)  # type: ignore[arg-type]
            value: Any = to_symint(size, table)
            inner = self.placeholder(f"outer_{len(self.lifted)}", value).node
            found = self.lifted[size] = outside, inner
        return found[1]

    def placeholder(self, name: str, fake: torch.Tensor, cls: type = torch.Tensor) -> TensorVar:
        """A new placeholder behind the others."""
        nodes = [node for node in self.graph.nodes if node.op == "placeholder"]
        with self.graph.inserting_after(nodes[-1]) if nodes else self.graph.inserting_before(None):
            node = self.graph.create_node("placeholder", name, name=name)
        node.meta["example_value"] = node.meta["val"] = fake
        return TensorVar(node, fake, cls)


def tensors_of(tracker: Tracker) -> Iterator[TensorVar]:
    """The tensors of a result. Raises: Break for anything but tensors, constants, and tuples and lists of them."""
    if type(tracker) is TensorVar:
        yield tracker
    elif type(tracker) in (TupleVar, ListVar):
        for item in tracker.items:  # type: ignore[attr-defined]
            yield from tensors_of(item)
    elif type(tracker) is DictVar and tracker.complete:
        for item in tracker.known.values():
            yield from tensors_of(item)
    elif type(tracker) is not ConstVar:
        raise Break("unsupported-call", f"an inner function that returns a {type(tracker).__name__}")


def trace(
    cap: Capture,
    what: str,
    body: Callable[[list[TensorVar]], Tracker],
    fakes: Iterable[torch.Tensor],
    reachable: Iterable[Tracker],
    nested: bool = False,
    later: Sequence[Tracker] = (),
) -> SubGraph:
    """The graph of ``body``, called with a tensor for each of ``fakes``; ``reachable``: what it may look at.

    ``nested``: the graph gives the result with its structure, rather than the tensors in it. ``later``: torch calls
    the function, with these, after this step; what it looks at must still be so then.

    Raises: Break where it does more than compute, or raises.
    """
    outer, known, changed = cap.builder, cap.fakes, cap.changed
    logged = len(cap.state_log)
    builder = SubBuilder(cap)
    reachable = list(reachable)
    before = Contents(cap, reachable)
    cap.builder, cap.fakes, cap.changed = builder, dict(known), {}
    enclosing = cap.late
    if later and enclosing is None:
        cap.late = LateReads(cap)
    reads = cap.late
    tensors = Tensors(cap)
    try:
        arguments = [builder.placeholder(f"argument_{k}", fake) for k, fake in enumerate(fakes)]
        cap.fakes.update((id(argument.fake), argument) for argument in arguments)
        result = body(arguments)
        outputs, value = to_graph(cap, result) if nested else (None, None)
        if not nested:
            outputs = tuple(to_graph(cap, tensor)[0] for tensor in tensors_of(result))
        forget_restored(cap, changed)
        if cap.changed or before.changed() or tensors.written():
            raise Break("unsupported-call", f"{what} changes what is outside of it")
    except Raised as raised:
        raise Break("unsupported-call", f"{what} raises {raised.value!r}") from None
    finally:
        met = {key: t for key, t in cap.fakes.items() if key not in known and t.node.graph is outer.graph}
        cap.builder, cap.fakes, cap.changed, cap.late = outer, {**known, **met}, changed, enclosing
        del cap.state_log[logged:]
    late = None
    if later and reads is not None:
        late = reads.check(what, later)
        if reads.beyond:
            raise Break(
                "unsupported-call", f"{what} looks at {reads.beyond[0]}, which may change before it is called"
            )
        cap.looked_at.append((what, Contents(cap, reachable, reads).keep_inside(), cap.break_step()))
    graph = builder.graph
    graph.output(outputs)
    _placeholders_in_order(graph, [inner for _, inner in builder.lifted.values()])
    module = fx.GraphModule(torch.nn.Module(), graph, class_name="InnerGraph")
    return SubGraph(module, tuple(outside for outside, _ in builder.lifted.values()), result, value, late)


def _placeholders_in_order(graph: fx.Graph, first: list[fx.Node]) -> None:
    """Move the placeholders ``first`` before all others."""
    for node in reversed(first):
        head = next(iter(graph.nodes))
        if head is not node:
            head.prepend(node)


def forget_restored(cap: Capture, before: dict[int, Tracker]) -> None:
    """Drop the changes of dictionaries that hold again what they held: parameters swapped for a call."""
    for key, var in list(cap.changed.items()):
        if type(var) is not DictVar or key in before or var.real is None:
            continue
        if all(op == "set" and _is_original(cap, var, name, value) for op, name, value in _last(var.log)):
            var.log.clear()
            del cap.changed[key]


def _last(log: list[tuple[str, Any, Tracker | None]]) -> list[tuple[str, Any, Tracker | None]]:
    return list({name: (op, name, value) for op, name, value in log}.values())


def _is_original(cap: Capture, var: DictVar, name: Any, value: Tracker | None) -> bool:
    assert var.real is not None
    return name in var.real and value is not None and cap.memo.get(id(var.real[name])) is value


class Tensors:
    """How often each tensor that the capture knows was written, up to a moment."""

    def __init__(self, cap: Capture) -> None:
        self.cap = cap
        self.versions = [(t.fake, _version(t.fake)) for t in cap.fakes.values()]
        self.inputs = len(cap.builder.input_versions)
        self.nodes = len(cap.builder.graph.nodes)

    def written(self) -> bool:
        """Whether any of them, or an input met since, was written since."""
        builder = self.cap.builder
        since = itertools.islice(builder.graph.nodes, self.nodes, None)
        return (
            any(_version(fake) != before for fake, before in self.versions)
            or any(_version(fake) != before for fake, before in builder.input_versions[self.inputs :])
            or any(_updates_statistics(node) for node in since)
        )


def _version(fake: torch.Tensor) -> int | None:
    return None if fake.is_inference() else fake._version


#: Functions that write their second and third argument in training, and do not count it as a write.
_NORMS = frozenset(
    (F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm, torch.native_batch_norm)
)


def _updates_statistics(node: fx.Node) -> bool:
    return node.target in _NORMS and isinstance(
        node.args[1] if len(node.args) > 1 else node.kwargs.get("running_mean"), fx.Node
    )


class Contents:
    """What the containers, objects and cells reachable from some trackers hold at a moment.

    ``reads``: of what comes from outside, only what was looked at; else whatever a function may come to.
    """

    def __init__(self, cap: Capture, roots: Iterable[Tracker], reads: LateReads | None = None) -> None:
        self.cap = cap
        self.held: list[tuple[Any, Any]] = []
        seen: set[int] = set()
        queue = [*roots, *(t for _, t, _ in cap.made.values() if t is not None)]
        queue += cap.globals_memo.values() if reads is None else reads.met()
        if reads is not None:
            self.held += [
                (owner, held) for owner in reads.owners.values() if (held := _contents(owner)) is not None
            ]
        self.classes = [(c, dict(vars(c))) for c, _, _ in cap.made.values() if isinstance(c, type)]
        while queue:
            tracker = queue.pop()
            if id(tracker) in seen:
                continue
            seen.add(id(tracker))
            if isinstance(tracker, IteratorVar):
                if not isinstance(tracker, GeneratorVar) or tracker.started:
                    raise Break("unsupported-call", "an inner function that can reach an iterator under way")
            held = _contents(tracker)
            if held is not None:
                self.held.append((tracker, held))
            queue += parts(tracker) if reads is None else leads_on(tracker)
            if type(tracker) is ConstVar and tracker.source is not None:
                queue += [cap.memo[id(cell)] for cell in _cells_of(tracker.value) if id(cell) in cap.memo]

    def changed(self) -> bool:
        """Whether any of them holds something else now."""
        return any(not _same(_contents(tracker), held) for tracker, held in self.held) or any(
            vars(cls) != held for cls, held in self.classes
        )

    def keep_inside(self) -> Contents:
        """What the region made ends with it, so that nothing changes it unseen."""
        for tracker, _ in self.held:
            if tracker.source is None and getattr(tracker, "real", None) is None:
                self.cap.stays_inside(tracker)
        return self

    def has_cell(self, frames: Iterable[Frame]) -> bool:
        """Whether a variable of a frame is among them, which the frame may change when it goes on."""
        cells = {id(cell) for frame in frames for cell in frame.cells.values()}
        return any(id(tracker) in cells for tracker, _ in self.held)


def _cells_of(value: Any) -> Iterator[types.CellType]:
    """The cells of a function, or of the methods of a class."""
    members = list(vars(value).values()) if isinstance(value, type) else [value]
    for member in members:
        yield from getattr(getattr(member, "__func__", member), "__closure__", None) or ()


def _contents(tracker: Tracker) -> Any:
    kind = type(tracker)
    if kind in (ListVar, DequeVar):
        return None if tracker.untouched else list(tracker.items)  # type: ignore[attr-defined]
    if kind is DictVar:
        if tracker.real is not None:  # type: ignore[attr-defined]
            return [None] * len(tracker.log)  # type: ignore[attr-defined]
        return dict(tracker.known)  # type: ignore[attr-defined]
    if kind is SetVar:
        return dict(tracker.known)  # type: ignore[attr-defined]
    if kind is CellVar and tracker.loaded:  # type: ignore[attr-defined]
        return [tracker.content]  # type: ignore[attr-defined]
    if kind is ObjectVar and tracker.obj is None:  # type: ignore[attr-defined]
        return dict(tracker.slots)  # type: ignore[attr-defined]
    return None


def _same(now: Any, before: Any) -> bool:
    if isinstance(before, dict):
        return now.keys() == before.keys() and all(_loaded_same(now[key], before[key]) for key in before)
    return len(now) == len(before) and all(map(_loaded_same, now, before))


def _loaded_same(now: Any, before: Any) -> bool:
    """Whether it is the same tracker, or what the same lazy one became."""
    return now is before or (before is not None and before.source is not None and before.source == now.source)
