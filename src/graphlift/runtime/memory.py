"""Where every tensor of a plan lives: inputs, results of ATen, fresh allocations, or a place in the call's arena.

In: a `Plan`. Out: `Memory`: each storage's kind, arena offset and last use.
Always: two storages share arena bytes only if one is dead before the other is first written; outputs never do.
Where sizes vary, storages share pools: which one is planned, where it lies is computed for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

from torch.utils import _pytree as pytree

from graphlift.data import dataclass
from graphlift.lower.interpret import extent_of
from graphlift.lower.ir import CheckCall, ExternCall, KernelCall, Plan, Ref, ViewCall
from graphlift.shapes.expr import SizeLike, smax

ALIGNMENT = 64


@dataclass(slots=True)
class Storage:
    """``kind``: "input", "constant", "result" (of an ATen call), "fresh" (ours, leaves the call), "arena"."""

    name: str
    kind: str
    size_bytes: SizeLike = 0
    first: int = -1
    last: int = -1
    offset: int = 0  # in bytes; in a plan with pools, the pool's number


@dataclass(frozen=True, slots=True)
class Memory:
    """The storages of a plan and the arena's size; ``pools``: the sizes of the storages that share each."""

    storages: dict[str, Storage]
    arena_bytes: int
    pools: tuple[tuple[SizeLike, ...], ...] = ()
    written: frozenset[str] = field(default_factory=frozenset)  # tensors that kernels or out= calls write

    def freed_after(self, step: int) -> list[Storage]:
        """Results and allocations whose last use is ``step``."""
        return [s for s in self.storages.values() if s.last == step and s.kind in ("result", "fresh")]


def refs(tree: object) -> list[str]:
    """Names of the tensors inside an argument pytree, in order."""
    leaves = pytree.tree_leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Ref))
    return [leaf.name for leaf in leaves if isinstance(leaf, Ref)]


def uses(step: object) -> Iterator[str]:
    """Names of all tensors a step reads or writes."""
    match step:
        case KernelCall():
            yield from step.buffers
        case ExternCall():
            yield from refs((step.args, step.kwargs))
            yield from (name for name in step.outputs if name is not None)
        case ViewCall():
            yield step.output
            yield step.base
        case CheckCall():
            yield step.flag
            yield step.index


def output_names(plan: Plan) -> list[str]:
    """Tensors among the plan's outputs."""
    return [o.name if isinstance(o, Ref) else o for o in plan.outputs if isinstance(o, (Ref, str))]


def plan_memory(plan: Plan, out_calls: set[int]) -> Memory:
    """Assign storages. ``out_calls``: positions of ATen calls that write into memory of ours (``out=``)."""
    storages: dict[str, Storage] = {}
    written: set[str] = set()

    def define(name: str, kind: str) -> None:
        storage = plan.tensors[name].storage
        storages.setdefault(storage, Storage(storage, kind))

    for name in plan.inputs:
        if name is not None:
            define(name, "input")
    for name in plan.constants:
        define(name, "constant")
    for position, step in enumerate(plan.steps):
        match step:
            case KernelCall(kernel, names):
                made = [n for n, b in zip(names, kernel.buffers, strict=True) if b.role != "in"]
                written.update(made)
                for name in made:
                    define(name, "arena")
            case ExternCall():
                for name in step.outputs:
                    if name is not None:
                        define(name, "arena" if position in out_calls else "result")
                        if position in out_calls:
                            written.add(name)
    _measure(plan, storages)
    leaving = {plan.tensors[name].storage for name in output_names(plan)}
    for storage in storages.values():
        if storage.name in leaving:
            storage.last = len(plan.steps)
            if storage.kind == "arena":
                storage.kind = "fresh"
    shared = [s for s in storages.values() if s.kind == "arena"]
    if plan.symbols:
        return Memory(storages, 0, _pooled(shared, plan.hint), frozenset(written))
    return Memory(storages, _place(shared), (), frozenset(written))


def _measure(plan: Plan, storages: dict[str, Storage]) -> None:
    for position, step in enumerate(plan.steps):
        for name in uses(step):
            storage = storages[plan.tensors[name].storage]
            storage.last = position
            if storage.first < 0:
                storage.first = position
    for spec in plan.tensors.values():
        if spec.storage in storages:
            end = (spec.offset + extent_of(spec.shape, spec.stride)) * spec.dtype.itemsize
            size = storages[spec.storage].size_bytes
            static = isinstance(size, int) and isinstance(end, int)
            storages[spec.storage].size_bytes = max(size, end) if static else smax(size, end) if size else end


def _pooled(storages: list[Storage], hint: Callable[[SizeLike], int]) -> tuple[tuple[SizeLike, ...], ...]:
    """Gives each storage a pool that is free while it lives: one of its size, else the nearest in the example call."""
    pools: list[list[SizeLike]] = []
    busy: list[int] = []  # the last step that uses what is in the pool
    for storage in sorted(storages, key=lambda s: (s.first, s.last)):
        wanted = hint(storage.size_bytes)

        def distance(pool: int, storage: Storage = storage, wanted: int = wanted) -> tuple[bool, int]:
            return storage.size_bytes not in pools[pool], abs(max(map(hint, pools[pool])) - wanted)

        best = min((k for k in range(len(pools)) if busy[k] < storage.first), key=distance, default=None)
        if best is None:
            best = len(pools)
            pools.append([])
            busy.append(-1)
        if storage.size_bytes not in pools[best]:
            pools[best].append(storage.size_bytes)
        busy[best] = storage.last
        storage.offset = best
    return tuple(map(tuple, pools))


def _place(storages: list[Any]) -> int:
    """Offsets by best fit, largest first, among those whose lifetimes overlap; returns the arena's size."""
    placed: list[Any] = []
    total = 0
    for storage in sorted(storages, key=lambda s: (-s.size_bytes, s.first)):
        rivals = sorted(
            (p for p in placed if p.first <= storage.last and storage.first <= p.last), key=lambda p: p.offset
        )
        best, best_gap, position = None, None, 0
        for rival in rivals:
            gap = rival.offset - position
            if gap >= storage.size_bytes and (best_gap is None or gap < best_gap):
                best, best_gap = position, gap
            position = max(position, _aligned(rival.offset + rival.size_bytes))
        storage.offset = position if best is None else best
        total = max(total, _aligned(storage.offset + storage.size_bytes))
        placed.append(storage)
    return total


def _aligned(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
