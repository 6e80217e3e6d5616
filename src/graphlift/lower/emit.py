"""From scheduled groups to kernels and a plan.

In: a `Graph` and its units in order. Out: `Plan`. Always: kernels are canonical: axes of size 1 are gone, contiguous
axes are merged, buffers are numbered by first appearance, so that equal computations are equal kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from graphlift.lower import affine as ix
from graphlift.lower.affine import ZERO, Affine, substitute, to_node
from graphlift.lower.build import Extern, Graph, Place
from graphlift.lower.ir import (
    BufferSpec,
    CheckCall,
    ExternCall,
    Kernel,
    KernelCall,
    Loop,
    Node,
    Plan,
    Reduction,
    Ref,
    Store,
    TensorSpec,
    ViewCall,
)  # fmt: skip
from graphlift.lower.schedule import Definition, Group, Unit
from graphlift.lower.sizes import hint, varying
from graphlift.lower.values import BUFFER, Bounds, Value
from graphlift.shapes.expr import SizeLike, Symbol, free


class KernelBuilder:
    """Emits one group."""

    def __init__(self, group: Group, stored: set[int]) -> None:
        self.group = group
        self.stored = stored
        self.members = list(group.members.values())
        self.outer = len(group.sizes) if group.outer is None else group.outer
        self.slots: dict[int, int] = {}
        self.values: list[Value] = []
        self.loaded: set[int] = set()
        self.results: dict[int, Node] = {}
        self.sizes, self.outer_count, self.merge = self._merged()

    def _merged(self) -> tuple[list[SizeLike], int, tuple[Affine, ...]]:
        """Axes after merging neighbours that every index walks as one."""
        sizes = self.group.sizes
        indices: set[Affine] = set()
        blocked: set[int] = set()
        for member in self.members:
            if member.item.value.id in self.stored:
                indices.add(member.label)
            for value, read, _ in member.item.reads:
                if value.id not in self.group.members:
                    indices.add(substitute(read, member.axes))
            for axis in positional_axes(member.item.expression):
                blocked.update(a for a, _ in member.axes[axis][1])  # type: ignore[misc]
        tables = [dict(terms) for _, terms in indices]
        blocks: list[list[int]] = []
        for k in range(len(sizes)):
            previous = k - 1
            joins = (
                k not in (0, self.outer)
                and not {previous, k} & blocked
                and all(t.get(previous, 0) == t.get(k, 0) * sizes[k] for t in tables)
            )
            if joins:
                blocks[-1].append(k)
            else:
                blocks.append([k])
        merge: list[Affine] = [ZERO] * len(sizes)
        for number, block in enumerate(blocks):
            merge[block[-1]] = ix.axis(number)
        merged_sizes = [prod([sizes[k] for k in block]) for block in blocks]
        outer = sum(1 for block in blocks if block[-1] < self.outer)
        return merged_sizes, outer, tuple(merge)

    def slot(self, value: Value) -> int:
        found = self.slots.get(value.id)
        if found is None:
            found = self.slots[value.id] = len(self.values)
            self.values.append(value)
        return found

    def rewritten(self, node: Node, axes: Sequence[Affine], memo: dict[Node, Node]) -> Node:
        """``node`` over the kernel's axes, its `read` leaves made loads or the values of this kernel."""
        found = memo.get(node)
        if found is None:
            found = memo[node] = self._rewrite(node, axes, memo)
        return found

    def _rewrite(self, node: Node, axes: Sequence[Affine], memo: dict[Node, Node]) -> Node:
        op = node.op
        if op in ("const", "size"):
            return node
        if op == "axis":
            return to_node(axes[node.attr])
        args = tuple([self.rewritten(a, axes, memo) for a in node.args])
        if op != "read":
            return node if args == node.args else Node(op, node.dtype, args, node.attr)
        number, (const, terms) = node.attr
        internal = self.results.get(number)
        if internal is not None:
            return internal
        terms = tuple([(a if isinstance(a, int) else self.rewritten(a, axes, memo), c) for a, c in terms])
        index = to_node(substitute((const, terms), axes))
        self.loaded.add(number)
        return Node("load", node.dtype, (index, *args), self.slot(self.sources[number]))

    def build(self) -> KernelCall:
        levels = 1 + max([m.level for m in self.members if m.item.folds or self._in_loop(m)], default=0)
        reductions: list[list[Reduction]] = [[] for _ in range(levels)]
        stores: list[list[Store]] = [[] for _ in range(levels)]
        epilogue: list[Store] = []
        for member in self.members:
            item, value = member.item, member.item.value
            self.sources = {v.id: v for v, _, _ in item.reads}
            axes = tuple([substitute(a, self.merge) for a in member.axes])
            node = self.rewritten(item.expression, axes, {})
            if item.folds:
                spot = (member.level, len(reductions[member.level]))
                reductions[member.level].append(Reduction(value.fold, node, value.dtype))
                node = Node("reduced", value.dtype, (), spot)
            self.results[value.id] = node
            if value.id in self.stored:
                index = to_node(substitute(member.label, self.merge))
                store = Store(self.slot(value), index, node)
                (stores[member.level] if self._in_loop(member) else epilogue).append(store)
        loops = tuple([Loop(tuple(r), tuple(s)) for r, s in zip(reductions, stores, strict=True)])
        kernel = Kernel(
            tuple(self.sizes[: self.outer_count]),
            tuple(self.sizes[self.outer_count :]),
            loops,
            tuple(epilogue),
            tuple(
                [BufferSpec(v.dtype, extent(v), "out" if v.id in self.results else "in") for v in self.values]
            ),
        )
        if varying():
            kernel = with_symbols(kernel)
        origins = dict.fromkeys([n for m in self.members for n in m.item.origins])
        return KernelCall(kernel, tuple([v.name for v in self.values]), tuple([describe(n) for n in origins]))

    def _in_loop(self, member: Definition) -> bool:
        """Whether a member is computed at every inner point (always, in a pointwise kernel)."""
        if member.item.folds:
            return False
        if self.group.outer is None:
            return True
        return len(self.group.sizes) == self.outer or any(
            isinstance(a, int) and a >= self.outer for _, terms in member.axes for a, _ in terms
        )


def with_symbols(kernel: Kernel) -> Kernel:
    """The kernel with the symbols that occur in it, and their values in the example call."""
    found: set[Symbol] = set()
    for size in (*kernel.outer, *kernel.inner, *[b.numel for b in kernel.buffers]):
        found |= free(size)
    stores = [*kernel.epilogue, *[s for loop in kernel.loops for s in loop.stores]]
    pending = [n for s in stores for n in (s.index, s.value)]
    pending += [r.value for loop in kernel.loops for r in loop.reductions]
    seen = set(pending)
    while pending:
        node = pending.pop()
        if node.op == "size":
            found |= free(node.attr)
        new = [a for a in node.args if a not in seen]
        seen.update(new)
        pending.extend(new)
    symbols = tuple(sorted(found, key=lambda s: s.key))
    return replace(kernel, symbols=symbols, hints=tuple([hint(s) for s in symbols]))


def positional_axes(node: Node) -> set[int]:
    """Axes whose position is used as a value, not only to address memory."""
    found: set[int] = set()
    seen: set[Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.op == "axis":
            found.add(current.attr)
        elif current.op == "read":
            pending.extend([a for a, _ in current.attr[1][1] if not isinstance(a, int)])
        pending.extend(current.args)
    return found


def describe(node: Any) -> str:
    """An fx node for people: its operator and name."""
    return "" if node is None else f"{node.name}: {node.target}"


def extent(value: Value) -> SizeLike:
    """Elements from the first to the last of a value in memory."""
    return 1 + sum([(size - 1) * step for size, step in zip(value.shape, value.stride, strict=True)])


class PlanBuilder:
    """Collects steps and tensors."""

    def __init__(self, graph: Graph, units: Iterable[Unit]) -> None:
        self.graph = graph
        self.units = list(units)
        self.tensors: dict[str, TensorSpec] = {}
        self.steps: list[KernelCall | ExternCall | ViewCall | CheckCall] = []
        self.views: dict[Any, str] = {}

    def build(self) -> Plan:
        for value in self.graph.sources:
            self._register(value)
        stored = self._stored()
        for unit in self.units:
            if isinstance(unit, Extern):
                self._extern(unit)
            elif isinstance(unit, Bounds):
                flag, index = self._located(unit.flag).name, self._located(unit.index).name
                self.steps.append(
                    CheckCall(flag, index, unit.low, unit.high, unit.ignore, unit.error, unit.message)
                )
            else:
                for member in unit.members.values():
                    if member.item.value.id in stored:
                        self._register(member.item.value)
                self.steps.append(KernelBuilder(unit, stored).build())
        outputs = tuple([self._located(o) if isinstance(o, Place) else o for o in self.graph.outputs])
        symbols = {s: (position, hint(s)) for s, position in self.graph.symbols.items()}
        return Plan(
            self.tensors, self.graph.constants, tuple(self.graph.inputs), outputs, tuple(self.steps), symbols
        )

    def _stored(self) -> set[int]:
        stored: set[int] = set()
        for unit in self.units:
            if not isinstance(unit, Group):
                continue
            for member in unit.members.values():
                if member.item.value.needed:
                    stored.add(member.item.value.id)
                stored.update(
                    [v.id for v, _, _ in member.item.reads if v.id not in unit.members and v.kind != BUFFER]
                )
        return stored

    def _register(self, value: Value) -> str:
        name = value.name
        spec = self.tensors.get(name) if name else None
        if spec is not None and spec.shape == value.shape and spec.stride == value.stride:
            return name
        if not name or spec is not None:
            name = value.name = f"{value.origin.name if value.origin is not None else 'value'}.{value.id}"
            if name in self.tensors:
                return name
        storage = name
        alias = self.graph.aliases.get(value.id)
        if alias is not None:
            storage = self.tensors[self._register(alias.root)].storage
        self.tensors[name] = TensorSpec(
            name, value.dtype, value.device, value.shape, value.stride, 0, storage
        )
        return name

    def _located(self, place: Place) -> Ref:
        """The plan's name for a value in memory, making a view where it is one."""
        root = self._register(place.root)
        if place.value is place.root:
            return Ref(root)
        key = (root, place.value.shape, place.stride, place.offset)
        name = self.views.get(key)
        if name is None:
            name = f"{root}.v{len(self.views)}"
            self.views[key] = name
            base = self.tensors[root]
            self.tensors[name] = TensorSpec(
                name,
                base.dtype,
                base.device,
                place.value.shape,
                place.stride,
                base.offset + place.offset,
                base.storage,
            )
            self.steps.append(ViewCall(name, root))
        return Ref(name)

    def _extern(self, call: Extern) -> None:
        def leaf(tree: Any) -> Any:
            if isinstance(tree, Place):
                return self._located(tree)
            if isinstance(tree, (tuple, list)):
                return type(tree)([leaf(t) for t in tree])
            if isinstance(tree, dict):
                return {k: leaf(v) for k, v in tree.items()}
            return tree

        args = tuple([leaf(a) for a in call.args])
        kwargs = tuple([(k, leaf(v)) for k, v in call.kwargs.items()])
        outputs = tuple([self._register(v) if v is not None and v.users else None for v in call.results])
        self.steps.append(ExternCall(call.target, args, kwargs, outputs, (describe(call.node),)))


def emit(graph: Graph, units: Iterable[Unit]) -> Plan:
    """The plan of ``graph`` with its ``units`` in order."""
    return PlanBuilder(graph, units).build()
