"""From a functional ATen graph to the value graph.

In: an fx graph of ATen overloads with fakes in ``meta["val"]``. Out: `Graph`: values, extern calls, inputs, outputs.
Always: values and calls are in topological order; what has no row, or whose row declines, is an `Extern`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

import torch
import torch.fx

from graphlift.data import dataclass
from graphlift.lower import activations, gathers, indexing, pointwise, products, reductions  # noqa: F401 (they fill the table)
from graphlift.lower import affine as ix
from graphlift.lower.accumulate import rows_added
from graphlift.lower.affine import ZERO, Affine, NeedsSplit
from graphlift.lower.expr import compare, const
from graphlift.lower.expr import where as select
from graphlift.lower.ir import Flattened
from graphlift.lower.sizes import sizes_of, varying
from graphlift.lower.table import ROWS, overload
from graphlift.lower.values import (
    BUFFER,
    POINT,
    REDUCE,
    SUPPORTED,
    VIEW,
    Bounds,
    Builder,
    Meta,
    Value,
    dense_order,
    place,
)
from graphlift.shapes.expr import Expr, SizeLike, SizeUnknown, Symbol, contiguous_strides
from graphlift.shapes.node import expr_of


@dataclass(slots=True, eq=False)
class Extern:
    """A call left to ATen. ``args``/``kwargs`` hold `Place`s for tensors."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    node: torch.fx.Node
    results: list[Value | None] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    random: bool = False
    unit: int = -1
    live: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A value as a tensor in memory: ``root`` (a buffer or a computed value) under a stride and an offset."""

    value: Value
    root: Value
    stride: tuple[SizeLike, ...]
    offset: SizeLike


@dataclass(slots=True)
class Graph:
    """The value graph. ``order`` lists externs and computed values in program order."""

    inputs: list[str | None]
    outputs: list[Any]
    constants: dict[str, torch.Tensor]
    sources: list[Value]  # inputs and constants
    order: list[Value | Extern | Bounds]
    producers: dict[int, Extern]
    aliases: dict[int, Place]  # results of extern views: what they look at
    symbols: dict[Symbol, int] = field(default_factory=dict)  # positions among the inputs


def writes_first(target: Any) -> bool:
    """Whether a call writes its first argument, an input of the graph that nothing else reads, and gives it."""
    return getattr(target, "writes_first", False)


@lru_cache(maxsize=4096)
def _traits(target: Any) -> tuple[bool, bool]:
    """(returns views of its arguments, draws random numbers) of an overload."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return writes_first(target), False
    if schema.is_mutable:
        raise ValueError(f"{target} writes its arguments; the graph must be functional")
    aliases = any(r.alias_info is not None for r in schema.returns)
    return aliases or target in _VIEWS, torch.Tag.nondeterministic_seeded in target.tags


_VIEWS = frozenset(overload(n) for n in (
    "_unsafe_view", "reshape", "_reshape_alias", "unsafe_split.Tensor", "unsafe_chunk", "unsafe_split_with_sizes",
))  # fmt: skip


def _leaves(fakes: Sequence[Any]) -> Iterator[tuple[tuple[int, ...], Any]]:
    """What lists of results hold, with its index path. An empty place ends up in no list: None."""
    for k, fake in enumerate(fakes):
        if isinstance(fake, (tuple, list)):
            yield from (((k, *path), inner) for path, inner in _leaves(fake))
        else:
            yield (k,), fake


def _nested(fakes: Sequence[Any], results: Iterator[Any]) -> tuple[Any, ...]:
    """The results in the lists that `_leaves` took them from."""
    return tuple([_nested(f, results) if isinstance(f, (tuple, list)) else next(results) for f in fakes])


class _GraphBuilder:
    """Lowers node by node."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self.gm = gm
        self.b = Builder()
        self.b.place_of = self.place_of
        self.b.call = self.call_aten
        self.env: dict[torch.fx.Node, Any] = {}
        self.graph = Graph([], [], {}, [], [], {}, {})
        self.common: dict[Any, Any] = {}
        self.places: dict[int, Place] = {}
        self.seen = 0  # values up to here are listed in graph.order
        self.exposed = self._exposed()

    def _exposed(self) -> set[torch.fx.Node]:
        """Output nodes and what they are views of: each must stay a tensor of its own."""
        output = next(n for n in reversed(self.gm.graph.nodes) if n.op == "output")
        pending = list(output.all_input_nodes)
        found: set[torch.fx.Node] = set()
        while pending:
            node = pending.pop()
            if node in found:
                continue
            found.add(node)
            if node.op == "call_function" and (node.target is operator.getitem or _traits(node.target)[0]):
                pending.extend(node.all_input_nodes)
        return found

    def run(self) -> Graph:
        handlers = {
            "placeholder": self.placeholder,
            "get_attr": self.get_attr,
            "call_function": self.call,
            "output": self.output,
        }
        for node in self.gm.graph.nodes:
            self.b.origin = node
            handlers[node.op](node)
            self.list_new()
        return self.graph

    def list_new(self) -> None:
        values, order = self.b.values, self.graph.order
        for before, bounds in self.b.checks:
            order.extend([v for v in values[self.seen : before] if v.kind in (POINT, REDUCE)])
            order.append(bounds)
            self.seen = max(before, self.seen)
        self.b.checks.clear()
        order.extend([v for v in values[self.seen :] if v.kind in (POINT, REDUCE)])
        self.seen = len(values)

    def placeholder(self, node: torch.fx.Node) -> None:
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor):
            self.env[node] = self.b.buffer(Meta.of(fake), node.name)
            self.graph.sources.append(self.env[node])
            self.graph.inputs.append(node.name)
        elif isinstance(fake, (torch.SymInt, torch.SymFloat)):
            self.env[node] = size = expr_of(fake)
            if isinstance(size, Symbol):
                self.graph.symbols.setdefault(size, len(self.graph.inputs))
            self.graph.inputs.append(None)
        else:
            self.env[node] = fake
            self.graph.inputs.append(None)

    def get_attr(self, node: torch.fx.Node) -> None:
        found: Any = self.gm
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if isinstance(found, torch.Tensor):
            fake = node.meta.get("val")
            self.env[node] = self.b.buffer(Meta.of(found if fake is None else fake), node.name)
            self.graph.sources.append(self.env[node])
            self.graph.constants[node.name] = found
        else:
            self.env[node] = found

    def call(self, node: torch.fx.Node) -> None:
        if isinstance(
            node.meta.get("val"), (int, torch.SymInt)
        ):  # made of sizes: known from the symbols alone
            self.env[node] = expr_of(node.meta["val"])
            return
        if isinstance(node.meta.get("val"), (torch.SymFloat, torch.SymBool)):
            raise TypeError(f"{node.format_node()}: only ints may vary in a graph that is lowered")
        if node.target is operator.getitem:
            source, position = node.args
            result = self.env[source][position]
            if isinstance(result, Value) and not result.name:
                result.name = node.name
            self.env[node] = result
            return
        args = torch.fx.node.map_arg(node.args, self.env.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, self.env.__getitem__) if node.kwargs else {}
        self.env[node] = self.lowered(node, args, kwargs)

    def lowered(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        row = ROWS.get(node.target)
        fakes = node.meta.get("val")
        added = rows_added(node)
        if added is not None and (summed := self.added_in_place(*added)) is not None:
            return summed
        if row is None or fakes is None:
            return self.extern(node, args, kwargs)
        out = _metas(fakes)
        if node.target is torch.ops.aten.cat.default and out is not None:
            args = ([part for part in args[0] if part.numel], *args[1:])  # empty parts, as caches start with
        if out is None or not _lowerable(args, kwargs) or varying() and not _takes_sizes(row, args, kwargs):
            return self.extern(node, args, kwargs)
        is_view = _traits(node.target)[0]
        results = out if isinstance(out, tuple) else (out,)
        if not is_view and any(m and m.numel and dense_order(m.shape, m.stride) is None for m in results):
            return self.extern(node, args, kwargs)  # kernels write dense memory; gaps are ATen's to make
        key = None
        if node not in self.exposed:
            key = (
                node.target,
                _frozen(args),
                _frozen(kwargs),
                node.meta["val"].dtype if not isinstance(out, tuple) else 0,
            )
            try:
                found = self.common.get(key)
            except TypeError:
                key = found = None
            if found is not None:
                return found
        before = len(self.b.values)
        result = self.row_result(row, out, args, kwargs)
        if result is None:
            del self.b.values[before:]
            self.b.checks.clear()
            return self.extern(node, args, kwargs)
        if isinstance(result, Value):
            result = self.finished(result, out, is_view, before, node.name)
        else:
            result = tuple(
                [r and self.finished(r, m, is_view, before, "") for r, m in zip(result, out, strict=True)]
            )
        if key is not None:
            self.common[key] = result
        return result

    def row_result(self, row: Any, out: Any, args: Any, kwargs: Any) -> Any:
        """What the row makes of the node; None where it declines, or must know a size that varies."""
        if not varying():
            return row(self.b, out, *args, **kwargs)
        try:
            return row(self.b, out, *args, **kwargs)
        except SizeUnknown:
            return None

    def finished(self, value: Value, meta: Meta, is_view: bool, before: int, name: str) -> Value:
        """The row's result as a tensor of its own with the strides of the fake."""
        if value.dtype == meta.dtype and _equal_in_each_call(value.shape, meta.shape):
            value = self.b.view(value, meta.shape, lambda index, _: index)
        if value.shape != meta.shape or value.dtype != meta.dtype:
            origin = self.b.origin
            raise AssertionError(f"{origin.format_node()}: lowered to {value}, the fake is {meta}")
        if not is_view:
            if value.kind == VIEW or value.id < before or value.kind == BUFFER:
                value = self.b.copy(value)
            place(value, meta.stride)
        if not value.name and value.id >= before:
            value.name = name
        return value

    # --- extern calls ------------------------------------------------------------------------------------------------

    def extern(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        is_view, random = _traits(node.target)
        call = Extern(node.target, (), {}, node, random=random)
        call.args = self._placed(args, call, node.args)
        call.kwargs = self._placed(kwargs, call, node.kwargs)
        self.list_new()
        fakes = node.meta.get("val")
        single = isinstance(fakes, torch.Tensor)
        leaves = [((), fakes)] if single else list(_leaves(fakes)) if isinstance(fakes, (tuple, list)) else []
        results: list[Any] = []
        for path, fake in leaves:
            if not isinstance(fake, torch.Tensor):
                results.append(None)
                continue
            name = "_".join([node.name, *map(str, path)])
            value = self.b.buffer(Meta.of(fake), name)
            self.graph.producers[value.id] = call
            if is_view and call.places:
                self.graph.aliases[value.id] = call.places[0]
            results.append(value)
        call.results = results
        if any(len(path) > 1 for path, _ in leaves):
            call.target = Flattened(node.target, tuple([path for path, _ in leaves]))
        self.seen = len(self.b.values)
        self.graph.order.append(call)
        return results[0] if single else _nested(fakes, iter(results)) if leaves else ()

    def added_in_place(self, dense: torch.fx.Node, rows: torch.fx.Node) -> Value | None:
        """The sum of ``dense``, which is ours, and an embedding's gradient, in the memory of ``dense``."""
        base = self.env[dense]
        grad, index, _, padding = [
            self.env.get(a, a) if isinstance(a, torch.fx.Node) else a for a in rows.args[:4]
        ]
        meta = Meta.of(dense.meta["val"])
        if not (_lowerable(base, grad, index) and isinstance(base, Value)) or len(meta.shape) != 2:
            return None
        where = self.place_of(base)
        if where.root.kind != BUFFER or where.offset or where.stride != contiguous_strides(meta.shape):
            return None
        if where.root.shape == meta.shape and where.root.stride == where.stride:
            where = Place(where.root, where.root, where.stride, 0)
        index = self.b.reshape(index, (index.numel,))
        grad = self.b.reshape(grad, (index.numel, meta.shape[1]))
        if padding >= 0:
            kept = self.b.reshape(index, (index.numel, 1))
            grad = self.b.point(
                lambda i, g: select(compare("eq", i, const(padding, i.dtype)), const(0, g.dtype), g),
                kept, grad, dtype=grad.dtype, cost=2,
            )  # fmt: skip
        value = self.call_aten(torch.ops.aten.index_add_.default, (0, index, grad), meta, into=where)
        self.graph.aliases[value.id] = where
        return value

    def call_aten(
        self, target: Any, args: tuple[Any, ...], meta: Meta, into: Place | None = None, **kwargs: Any
    ) -> Value:
        """An extern call that a row makes, of one tensor; ``into``: the first argument, which it writes."""
        node = self.b.origin
        call = Extern(target, (), kwargs, node)
        call.args = self._placed(args, call)
        if into is not None:
            call.args = (into, *call.args)
            call.places.append(into)
        self.list_new()
        value = self.b.buffer(meta, f"{node.name}_{target.overloadpacket.__name__}")
        self.graph.producers[value.id] = call
        call.results = [value]
        self.seen = len(self.b.values)
        self.graph.order.append(call)
        return value

    def _placed(self, tree: Any, call: Extern, origin: Any = None) -> Any:
        """Where the arguments are; `origin`: the nodes they come from, whose strides ATen is to see."""
        if isinstance(tree, Value):
            fake = origin.meta.get("val") if isinstance(origin, torch.fx.Node) else None
            where = self.place_of(tree)
            if isinstance(fake, torch.Tensor):
                stride = sizes_of(fake.stride())
                dense = dense_order(tree.shape, stride) is not None  # a copy can have such strides
                if dense or _same_strides(tree.shape, where.stride, stride):
                    where = self.place_of(tree, stride)
            call.places.append(where)
            return where
        if isinstance(tree, (tuple, list)):
            origins = origin if isinstance(origin, (tuple, list)) else ()
            if len(origins) != len(tree):  # parts were left out
                origins = (None,) * len(tree)
            return type(tree)([self._placed(v, call, o) for v, o in zip(tree, origins, strict=True)])
        if isinstance(tree, dict):
            named = origin if isinstance(origin, dict) else {}
            return {k: self._placed(v, call, named.get(k)) for k, v in tree.items()}
        return tree

    def place_of(self, value: Value, stride: tuple[SizeLike, ...] | None = None) -> Place:
        """Where ``value`` is in memory; a copy is made if no strides describe it (or not the ``stride`` asked for)."""
        found = self.places.get(value.id)
        if found is None:
            found = self.places[value.id] = self._geometry(value, stride)
        if stride is not None and not _same_strides(value.shape, found.stride, stride):
            copied = self.b.copy(value, stride)
            return Place(copied, copied, copied.stride, 0)
        if stride is not None and stride != found.stride and found.value.kind == VIEW:
            return Place(
                found.value, found.root, stride, found.offset
            )  # strides of dimensions of size 1 show, too
        return found

    def _geometry(self, value: Value, stride: tuple[SizeLike, ...] | None) -> Place:
        if value.kind != VIEW:
            return Place(value, value, value.stride, 0)
        found = _strided(value)
        if found is None:
            copied = self.b.copy(value, stride)
            return Place(copied, copied, copied.stride, 0)
        return Place(value, *found)

    def output(self, node: torch.fx.Node) -> None:
        def leaf(entry: Any) -> Any:
            if not isinstance(entry, torch.fx.Node):
                return entry
            value = self.env[entry]
            if not isinstance(value, Value):
                return value
            fake = entry.meta.get("val")
            return self.place_of(value, None if fake is None else sizes_of(fake.stride()))

        result = node.args[0]
        entries = result if isinstance(result, (tuple, list)) else (result,)
        self.graph.outputs = [leaf(e) for e in entries]


def _strided(value: Value) -> tuple[Value, tuple[SizeLike, ...], SizeLike] | None:
    """The value behind a view, and the strides and offset that make the view of it; None where no strides do."""
    shape = value.shape
    parts = [[k] for k in range(len(shape))]  # per dimension its axes, outermost first
    sizes = list(shape)
    while True:
        index: list[Affine] = []
        for axes in parts:
            step: SizeLike = 1
            terms: list[tuple[int, SizeLike]] = []
            for a in reversed(axes):
                if sizes[a] != 1:
                    terms.append((a, step))
                step = step * sizes[a]
            index.append((0, tuple(sorted(terms, key=operator.itemgetter(0)))))
        root, at = value, tuple(index)
        try:
            while root.kind == VIEW:
                base = root.base
                steps = (
                    ix.view_strides(base.shape, base.stride, root.shape)
                    if root.fold and base.kind != VIEW
                    else None
                )
                if steps is not None:
                    at, root = (ix.linear(at, steps),), base
                    break
                at = root.map(at, sizes)
                root = base
            else:
                at = (ix.linear(at, root.stride) if at else ZERO,)
            break
        except NeedsSplit as split:
            for axes in parts:
                if split.axis in axes:
                    axes.insert(axes.index(split.axis) + 1, len(sizes))
            sizes.append(split.size)
            sizes[split.axis] = sizes[split.axis] // split.size
    offset, flat = at[0]
    coefficients = dict(flat)
    if any(not isinstance(a, int) or not ix.at_least(c, 0) for a, c in flat):
        return None
    strides: list[SizeLike] = []
    natural = contiguous_strides(shape)
    for d, axes in enumerate(parts):
        axes = [a for a in axes if sizes[a] != 1]
        for outer, inner in zip(axes, axes[1:], strict=False):
            if coefficients.get(outer, 0) != coefficients.get(inner, 0) * sizes[inner]:
                return None
        strides.append(coefficients.get(axes[-1], 0) if axes else natural[d])
    return root, tuple(strides), offset


def _equal_in_each_call(shape: Sequence[SizeLike], other: Sequence[SizeLike]) -> bool:
    """Whether two shapes of one tensor are different expressions: their values are equal nonetheless."""
    return len(shape) == len(other) and any(
        a != b and (isinstance(a, Expr) or isinstance(b, Expr)) for a, b in zip(shape, other, strict=True)
    )


def _same_strides(shape: Sequence[SizeLike], a: Sequence[SizeLike], b: Sequence[SizeLike]) -> bool:
    return all(s == 1 or x == y for s, x, y in zip(shape, a, b, strict=True)) or 0 in shape


def _metas(fakes: Any) -> Any:
    """`Meta` of each output; None if one is not something the IR computes."""
    if isinstance(fakes, torch.Tensor):
        meta = Meta.of(fakes)
        return (
            meta
            if meta.dtype in SUPPORTED and 0 not in meta.shape and fakes.layout == torch.strided
            else None
        )
    if isinstance(fakes, (tuple, list)):
        metas = tuple([_metas(f) if f is not None else None for f in fakes])
        if any(m is None and f is not None for m, f in zip(metas, fakes, strict=True)):
            return None
        return metas
    return None


def _lowerable(*trees: Any) -> bool:
    for tree in trees:
        if isinstance(tree, Value):
            if tree.dtype not in SUPPORTED or not tree.numel:
                return False
        elif isinstance(tree, (tuple, list)):
            if not _lowerable(*tree):
                return False
        elif isinstance(tree, dict):
            if not _lowerable(*tree.values()):
                return False
        elif isinstance(tree, (complex, torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return False
    return True


_WITH_SIZES = frozenset(
    f"graphlift.lower.{m}" for m in ("views", "indexing", "pointwise", "reductions", "gathers")
)


def _takes_sizes(row: Any, *trees: Any) -> bool:
    """Whether sizes that vary among the arguments are what the row expects."""
    return row.__module__ in _WITH_SIZES or not _varies(trees)


def _varies(tree: Any) -> bool:
    if isinstance(tree, (tuple, list)):
        return any([_varies(t) for t in tree])
    if isinstance(tree, dict):
        return any([_varies(t) for t in tree.values()])
    return isinstance(tree, Expr)


def _frozen(tree: Any) -> Any:
    """A hashable key of arguments; numbers of different type differ."""
    if isinstance(tree, (tuple, list)):
        return tuple([_frozen(t) for t in tree])
    if isinstance(tree, dict):
        return tuple([(k, _frozen(v)) for k, v in tree.items()])
    if isinstance(tree, (bool, int, float)):
        return (type(tree), repr(tree))
    return tree


def build(gm: torch.fx.GraphModule) -> Graph:
    """The value graph of ``gm``."""
    return _GraphBuilder(gm).run()
