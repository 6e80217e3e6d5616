"""Which values are computed where: from the value graph to groups, each of which becomes one kernel.

In: a `Graph`. Out: units (groups of items, extern calls) with their dependencies, acyclic.
Always: an item reads another item of its group only at its own point (or at its own outer point, a reduction's result).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import field
from math import prod
from typing import Any

from graphlift.data import dataclass
from graphlift.lower import affine as ix
from graphlift.lower.affine import ZERO, Affine, NeedsSplit, common_refinement, substitute
from graphlift.lower.build import Extern, Graph, Place, writes_first
from graphlift.lower.ir import Node
from graphlift.lower.sizes import hint, hinted
from graphlift.lower.values import BUFFER, POINT, REDUCE, VIEW, Bounds, Instance, Value
from graphlift.shapes.expr import SizeLike

CHEAP_COST = 4  # a value this cheap with at most one full-size load is recomputed rather than stored
LARGEST_COST = 160  # inlined operations beyond which a value becomes an item
LARGEST_GROUP = 48  # items in one kernel
LARGEST_GROUP_COST = 800  # operations in one kernel: longer ones gain nothing and compile slowly
SERIAL_REDUCTION = (
    1 << 15
)  # inner points from which a reduction with few outer points fuses nothing but reductions


@dataclass(slots=True, eq=False)
class Item:
    """A value computed by a kernel, in axes of its own: its dimensions of size > 1, outermost in memory first."""

    value: Value
    sizes: tuple[SizeLike, ...]
    outer: int  # axes that are kept; all of them unless the value is a reduction
    expression: Node  # what is stored (or folded); loads are `read` leaves
    label: Affine  # memory-flat index of the value, over the (kept) axes
    reads: list[tuple[Value, Affine, Node | None]]
    origins: tuple[Any, ...]
    checks: frozenset[Bounds]

    @property
    def folds(self) -> bool:
        return self.value.kind == REDUCE


@dataclass(slots=True, eq=False)
class Definition:
    """An item inside a group: ``axes[k]`` is its axis k over the group's axes; ``level`` the loop that computes it."""

    item: Item
    axes: tuple[Affine, ...]
    label: Affine
    level: int


@dataclass(slots=True, eq=False)
class Group:
    """Items that share an iteration space; ``outer`` None: pointwise, all axes are outer."""

    number: int
    sizes: tuple[SizeLike, ...]
    outer: int | None
    members: dict[int, Definition] = field(default_factory=dict)  # by value id
    reads: dict[int, set[Affine]] = field(
        default_factory=dict
    )  # what is read from outside, where, by value id
    position: int = 0  # of the last member in program order
    cost: int = 0  # of all members

    @property
    def outer_points(self) -> SizeLike:
        return prod(self.sizes if self.outer is None else self.sizes[: self.outer])


Unit = Group | Extern | Bounds
Entry = Value | Extern | Bounds


def root_of(value: Value) -> Value:
    """The buffer or computed value behind views."""
    while value.kind == VIEW:
        value = value.base
    return value


# --- liveness and classification ------------------------------------------------------------------------------------


def mark_live(graph: Graph) -> list[Entry]:
    """What the outputs and the random state need, in program order; fills ``users`` and ``needed``."""
    for entry in graph.outputs:
        if isinstance(entry, Place):
            _need(graph, entry)
    live: list[Entry] = []
    for entry in reversed(graph.order):
        if isinstance(entry, Extern):
            if entry.live or entry.random:
                entry.live = True
                live.append(entry)
                for place in entry.places:
                    _need(graph, place)
        elif isinstance(entry, Bounds):
            if entry.live:
                live.append(entry)
                _need(graph, entry.flag)
                _need(graph, entry.index)
        elif entry.users:
            live.append(entry)
            for bounds in entry.checks:
                bounds.live = True
            for source in entry.inputs:
                _use(graph, root_of(source), entry)
    live.reverse()
    return live


def _use(graph: Graph, root: Value, user: Value | None) -> None:
    if not root.users or root.users[-1] is not user:
        root.users.append(user)
    producer = graph.producers.get(root.id)
    if producer is not None:
        producer.live = True


def _need(graph: Graph, place: Place) -> None:
    _use(graph, place.root, None)
    if place.root.kind != BUFFER:
        place.root.needed = place.root.is_item = True


def classify(live: Sequence[Entry]) -> None:
    """Decide which computed values are items; the others are inlined into each of their users."""
    leaves: dict[int, frozenset[Value]] = {}
    for value in live:
        if not isinstance(value, Value):
            continue
        if value.kind == REDUCE:
            value.is_item = True
            continue
        cost, full, half = value.cost, set(), value.points // 2
        for source in value.inputs:
            root = root_of(source)
            if root.kind == POINT and not root.is_item:
                cost += root.cost
                full.update([leaf for leaf in leaves[root.id] if leaf.points >= half])
            elif root.points >= half:
                full.add(root)
        value.cost = cost
        leaves[value.id] = frozenset(full)
        if value.is_item:
            continue
        cheap = cost <= CHEAP_COST and len(full) <= 1
        several = len({id(u) for u in value.users}) > 1
        widest = max(
            [u.base.points if u.kind == REDUCE else u.points for u in value.users if u is not None], default=0
        )
        spread = widest > 2 * value.points and cost > 1
        value.is_item = (several and not cheap) or spread or cost > LARGEST_COST


# --- items ----------------------------------------------------------------------------------------------------------


def make_item(value: Value) -> Item:
    """Evaluate ``value`` over axes of its own, splitting axes where the views it reads through cut them."""
    if value.kind == REDUCE:
        base = value.base
        kept = _kept_dims(value)
        inner = _inner_order(value)
        dims, shape, count = [*kept, *inner], base.shape, len(kept)
    else:
        dims, shape, count = list(value.dense or ()), value.shape, len(value.dense or ())
    sizes = [shape[d] for d in dims]
    axes: list[Affine] = [ix.axis(k) for k in range(len(dims))]
    while True:
        index = [ZERO] * len(shape)
        for d, a in zip(dims, axes, strict=True):
            index[d] = a
        instance = Instance(sizes, value)
        try:
            if value.kind == REDUCE:
                expression = instance.read(value.base, tuple(index))
            else:
                expression = value.evaluate(instance, tuple(index))
            break
        except NeedsSplit as split:
            k, size = split.axis, split.size
            moved = [ix.axis(j if j < k else j + 1) for j in range(len(sizes))]
            moved[k] = (0, ((k, size), (k + 1, 1)))
            axes = [substitute(a, moved) for a in axes]
            count += k < count
            sizes[k : k + 1] = [sizes[k] // size, size]
    label = ix.linear(_label_index(value, dims, axes), value.stride) if value.shape else ZERO
    return Item(
        value,
        tuple(sizes),
        count,
        expression,
        label,
        instance.reads,
        tuple(instance.origins),
        frozenset(instance.checks),
    )


def _label_index(value: Value, dims: Sequence[int], axes: Sequence[Affine]) -> list[Affine]:
    """Index of the value's own element, per dimension of the value."""
    by_dim = dict(zip(dims, axes, strict=True))
    if value.kind != REDUCE:
        return [by_dim.get(d, ZERO) for d in range(len(value.shape))]
    base_rank = len(value.base.shape)
    if len(value.shape) == base_rank:
        return [ZERO if d in value.dims else by_dim.get(d, ZERO) for d in range(base_rank)]
    return [by_dim.get(d, ZERO) for d in range(base_rank) if d not in value.dims]


def _kept_dims(value: Value) -> list[int]:
    """Kept dimensions of the base of size > 1, outermost in the result's memory first."""
    rank = len(value.base.shape)
    if len(value.shape) == rank:
        return list(value.dense or ())
    kept = [d for d in range(rank) if d not in value.dims]
    return [kept[d] for d in value.dense or ()]


def _inner_order(value: Value) -> list[int]:
    """Folded dimensions of size > 1: in order, or outermost in memory first where the order is free."""
    base = value.base
    inner = [d for d in value.dims if base.shape[d] != 1]
    if value.fold.startswith("arg") or base.kind == VIEW:
        return inner
    return sorted(inner, key=lambda d: -hint(base.stride[d]))


# --- alignment ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alignment:
    """How an item enters a group: the group's new axes, its old axes over them, the item's axes over them."""

    sizes: tuple[SizeLike, ...]
    outer: int | None
    old: tuple[Affine, ...]
    item: tuple[Affine, ...]


def _boundary(sizes: Sequence[SizeLike], outer_points: SizeLike) -> int | None:
    """How many of the axes make up the outer points; None where they do not."""
    count = 0
    points: SizeLike = 1
    while points != outer_points:
        if count == len(sizes):
            return None
        points = points * sizes[count]
        count += 1
    return count


def _shifted(axes: Sequence[Affine], by: int) -> tuple[Affine, ...]:
    return tuple([(c, tuple([(a + by, k) for a, k in terms])) for c, terms in axes])  # type: ignore[operator]


def candidates(item: Item, group: Group) -> list[Alignment]:
    """Alignments that keep row-major order: on all of the space, or on its outer part."""
    result = []
    item_outer = prod(item.sizes[: item.outer]) if item.folds else None
    if group.outer is not None and item_outer is not None and item_outer != group.outer_points:
        return []
    whole = common_refinement(group.sizes, item.sizes)
    if whole is not None:
        sizes, old, new = whole
        points = (
            item_outer if item_outer is not None else group.outer_points if group.outer is not None else None
        )
        if points is None:
            result.append(Alignment(sizes, None, old, new))
        else:
            cut = _boundary(sizes, points)
            if cut is not None:
                result.append(Alignment(sizes, cut, old, new))
    if group.outer is not None and not item.folds:
        part = common_refinement(group.sizes[: group.outer], item.sizes)
        if part is not None:
            sizes, old, new = part
            inner = group.sizes[group.outer :]
            kept = _shifted([ix.axis(k) for k in range(len(inner))], len(sizes))
            result.append(Alignment((*sizes, *inner), len(sizes), (*old, *kept), new))
    if group.outer is None and item.folds:
        part = common_refinement(group.sizes, item.sizes[: item.outer])
        if part is not None:
            sizes, old, new = part
            inner = item.sizes[item.outer :]
            kept = _shifted([ix.axis(k) for k in range(len(inner))], len(sizes))
            result.append(Alignment((*sizes, *inner), len(sizes), old, (*new, *kept)))
    return result


def solved(item: Item, group: Group, read: Affine, label: Affine) -> Alignment | None:
    """The alignment that makes ``read`` (over the item's axes) equal ``label`` (over the group's), axis by axis."""
    ours = sorted(read[1], key=lambda t: -hint(t[1]))
    theirs = sorted(label[1], key=lambda t: -hint(t[1]))
    if (
        read[0] != label[0]
        or [c for _, c in ours] != [c for _, c in theirs]
        or not (ix.is_plain(read) and ix.is_plain(label))
    ):
        return None
    pairs: dict[int, int] = {}
    for (a, _), (g, _) in zip(ours, theirs, strict=True):
        if item.sizes[a] != group.sizes[g]:  # type: ignore[index]
            return None
        pairs[a] = g  # type: ignore[index, assignment]
    free = [g for g in range(len(group.sizes)) if g not in pairs.values()]
    for a, size in enumerate(item.sizes):
        if a not in pairs:
            match = next((g for g in free if group.sizes[g] == size), None)
            if match is None:
                return None
            free.remove(match)
            pairs[a] = match
    if free or (item.folds and item.value.fold.startswith("arg")):
        return None
    axes = tuple([ix.axis(pairs[a]) for a in range(len(item.sizes))])
    if not item.folds:
        return Alignment(group.sizes, group.outer, _identity(group), axes)
    outer = [pairs[a] for a in range(item.outer)]
    inner = [pairs[a] for a in range(item.outer, len(item.sizes))]
    if group.outer is not None:
        same = set(outer) == set(range(group.outer))
        return Alignment(group.sizes, group.outer, _identity(group), axes) if same else None
    order = [*outer, *inner]
    if order[-1] != len(group.sizes) - 1:
        return None  # the contiguous axis must stay innermost
    place = {g: k for k, g in enumerate(order)}
    old = tuple([ix.axis(place[g]) for g in range(len(order))])
    new = tuple([ix.axis(place[pairs[a]]) for a in range(len(item.sizes))])
    return Alignment(tuple([group.sizes[g] for g in order]), len(outer), old, new)


def _identity(group: Group) -> tuple[Affine, ...]:
    return tuple([ix.axis(k) for k in range(len(group.sizes))])


def agrees(item: Item, group: Group, alignment: Alignment) -> bool:
    """Whether every read of a member of the group is of the element the group has at hand; there must be one such
    read, or one that the group makes too, of the same element.
    """
    shared = False
    for value, read, mask in item.reads:
        member = group.members.get(value.id)
        if member is None:
            theirs = group.reads.get(value.id)
            if not shared and theirs is not None and ix.is_plain(read):
                ours = substitute(read, alignment.item)
                shared = any(substitute(r, alignment.old) == ours for r in theirs)
            continue
        shared = True
        if mask is not None or not ix.is_plain(read):
            return False
        if substitute(read, alignment.item) != substitute(member.label, alignment.old):
            return False
    return shared


def fits(item: Item, group: Group, alignment: Alignment) -> bool:
    """Whether the kernel would still run well: threads enough, and stores along the axis that loads run along."""
    if alignment.outer is not None:
        outer = hinted(alignment.sizes[: alignment.outer])
        if outer < 8 and hinted(alignment.sizes[alignment.outer :]) >= SERIAL_REDUCTION:
            full = [m for m in group.members.values() if not m.item.folds] if item.folds else [item]
            return not full
    return True


# --- grouping -------------------------------------------------------------------------------------------------------


class Scheduler:
    """Greedy grouping in program order: each item joins the latest group it can, else opens one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.units: list[Unit] = []
        self.ancestors: list[int] = []  # per unit: bit set of units
        self.children: list[set[int]] = []
        self.readers: dict[int, list[int]] = {}  # value id -> groups reading it
        self.last_random = -1

    def run(self, live: Sequence[Entry]) -> list[Unit]:
        for position, entry in enumerate(live):
            if isinstance(entry, Extern):
                self._add_extern(entry)
            elif isinstance(entry, Bounds):
                deps = {entry.flag.root.unit, entry.index.root.unit} - {-1}
                entry.unit = self._new_unit(entry, deps)
            elif entry.is_item:
                self._add_item(make_item(entry), position)
        return self.units

    def _new_unit(self, unit: Unit, deps: set[int]) -> int:
        number = len(self.units)
        self.units.append(unit)
        self.ancestors.append(0)
        self.children.append(set())
        self._depend(number, deps)
        return number

    def _depend(self, number: int, deps: set[int]) -> None:
        bits = 0
        for d in deps:
            bits |= self.ancestors[d] | 1 << d
            self.children[d].add(number)
        pending = [number]
        while pending:
            unit = pending.pop()
            if bits & ~self.ancestors[unit]:
                self.ancestors[unit] |= bits
                pending.extend(self.children[unit])

    def _add_extern(self, call: Extern) -> None:
        deps = {place.root.unit for place in call.places} - {-1}
        if writes_first(call.target):  # what may raise comes first, as in eager
            deps.update([number for number, unit in enumerate(self.units) if not isinstance(unit, Group)])
        if call.random:
            if self.last_random >= 0:
                deps.add(self.last_random)
        call.unit = self._new_unit(call, deps)
        if call.random:
            self.last_random = call.unit
        for value in call.results:
            if value is not None:
                value.unit = call.unit

    def _add_item(self, item: Item, position: int) -> None:
        deps = {value.unit for value, _, _ in item.reads} | {bounds.unit for bounds in item.checks}
        deps.discard(-1)
        group = self._home(item, deps)
        if group is None:
            outer = item.outer if item.folds else None
            group = Group(len(self.units), item.sizes, outer)
            self._new_unit(group, deps)
            alignment = Alignment(item.sizes, outer, _identity(group), _identity(group))
        else:
            group, alignment = group
            self._depend(group.number, deps - {group.number})
            if alignment.sizes != group.sizes or alignment.old != _identity(group):
                for member in group.members.values():
                    member.axes = tuple([substitute(a, alignment.old) for a in member.axes])
                    member.label = substitute(member.label, alignment.old)
                group.reads = {
                    v: {substitute(r, alignment.old) for r in reads} for v, reads in group.reads.items()
                }
                group.sizes = alignment.sizes
            group.outer = alignment.outer
        level = 0
        for value, _, _ in item.reads:
            member = group.members.get(value.id)
            if member is not None:
                level = max(level, member.level + member.item.folds)
        label = substitute(item.label, alignment.item)
        group.members[item.value.id] = Definition(item, alignment.item, label, level)
        group.position = position
        group.cost += item.value.cost
        item.value.unit = group.number
        for value, read, _ in item.reads:
            if value.id not in group.members and ix.is_plain(read):
                group.reads.setdefault(value.id, set()).add(substitute(read, alignment.item))
            known = self.readers.setdefault(value.id, [])
            if not known or known[-1] != group.number:
                known.append(group.number)

    def _home(self, item: Item, deps: set[int]) -> Any:
        """The group to join and how, or None."""
        seen: set[int] = set()
        direct = sorted((d for d in deps if isinstance(self.units[d], Group)), reverse=True)
        siblings: list[int] = []
        for value, _, _ in sorted(item.reads, key=lambda r: -r[0].points):
            siblings.extend(reversed(self.readers.get(value.id, ())[-3:]))
        for number in [*direct, *siblings]:
            if number in seen:
                continue
            seen.add(number)
            group = self.units[number]
            assert isinstance(group, Group)
            full = len(group.members) >= LARGEST_GROUP or group.cost + item.value.cost > LARGEST_GROUP_COST
            if full or not self._acyclic(number, deps):
                continue
            alignment = self._aligned(item, group)
            if alignment is not None:
                return group, alignment
        return None

    def _acyclic(self, number: int, deps: set[int]) -> bool:
        bit = 1 << number
        return not any(self.ancestors[d] & bit for d in deps if d != number)

    def _aligned(self, item: Item, group: Group) -> Alignment | None:
        if next(iter(group.members.values())).item.value.device != item.value.device:
            return None
        for alignment in candidates(item, group):
            if agrees(item, group, alignment) and fits(item, group, alignment):
                return alignment
        if len(item.sizes) != len(group.sizes):
            return None
        for value, read, _ in item.reads:
            member = group.members.get(value.id)
            for label in group.reads.get(value.id, ()) if member is None else (member.label,):
                found = solved(item, group, read, label)
                if found is None or not agrees(item, group, found):
                    continue
                if fits(item, group, found) and _streams(item, found):
                    return found
        return None


def _streams(item: Item, alignment: Alignment) -> bool:
    """Whether the item's stores run along the group's innermost axis."""
    if item.folds:
        return True
    label = substitute(item.label, alignment.item)
    last = len(alignment.sizes) - 1
    return any(a == last and c == 1 for a, c in label[1])


def schedule(graph: Graph) -> list[Unit]:
    """The units of ``graph``: what becomes kernels, and extern calls; in no particular order."""
    live = mark_live(graph)
    classify(live)
    scheduler = Scheduler(graph)
    return _ordered(scheduler, scheduler.run(live), live)


def _ordered(scheduler: Scheduler, units: list[Unit], live: Sequence[Entry]) -> list[Unit]:
    """Dependencies first; among the ready, program order of the last member. What is computed from inputs alone waits
    for its first reader: it can be made at any time, and would only occupy memory until then.
    """
    positions = {id(e): k for k, e in enumerate(live)}
    parents: list[list[int]] = [[] for _ in units]
    for number, children in enumerate(scheduler.children):
        for child in children:
            parents[child].append(number)
    shown = {p.root.unit for p in scheduler.graph.outputs if isinstance(p, Place)}
    order = _topological(parents, scheduler.children, list(range(len(units))))
    waits: set[int] = set()
    for number in order:
        if isinstance(units[number], Group) and number not in shown and waits.issuperset(parents[number]):
            waits.add(number)
    keys = [unit.position if isinstance(unit, Group) else positions[id(unit)] for unit in units]
    for number in reversed(order):
        if number in waits:
            keys[number] = min([keys[child] for child in scheduler.children[number]], default=keys[number])
    return [units[number] for number in _topological(parents, scheduler.children, keys)]


def _topological(parents: list[list[int]], children: list[set[int]], keys: list[int]) -> list[int]:
    """All numbers, parents first; the smallest key among the ready next."""
    missing = [len(p) for p in parents]
    ready = [(keys[n], n) for n in range(len(parents)) if not missing[n]]
    heapq.heapify(ready)
    result = []
    while ready:
        _, number = heapq.heappop(ready)
        result.append(number)
        for child in children[number]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, (keys[child], child))
    assert len(result) == len(parents), "fusion made a cycle"
    return result
