"""How a kernel is run: which axis the vector lanes lie along, what is a parallel task, how far bodies are unrolled.

In: a simplified `Kernel` and a `Target`. Out: a `Schedule`.
Always: tasks are independent; together they cover every outer point exactly once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from graphlift.codegen.llvm.affine import Indices, axis_node, is_pointwise
from graphlift.codegen.llvm.target import Target
from graphlift.codegen.llvm.tiles import lies_across
from graphlift.codegen.llvm.vmath import INLINE_FLOAT, SLEEF
from graphlift.data import dataclass
from graphlift.lower.ir import Kernel, Loop, Node, Store
from graphlift.shapes.expr import Expr, SizeLike


@dataclass(frozen=True, slots=True)
class Schedule:
    """``vector`` axis in steps of ``lanes * unroll``; ``tasks`` (axes) and blocks of the vector axis run in parallel.

    ``block`` is how many elements of an outer vector axis make one task (0: the vector axis is an inner one, or
    there is none); ``scalar`` are outer axes looped over inside a task. ``columns`` says that lanes hold separate
    outer points with whole reductions each, so that nothing is folded across lanes. ``masked``: every step of the
    vector axis is taken under a mask, so that there is one body only. ``tile``: an axis that some accesses lie along,
    taken in steps of ``lanes`` with a loop over them inside each step of the vector axis: an outer one, of which a task
    has one step, or an inner one of columns. What is chosen by sizes goes by the hints of those that vary.
    """

    lanes: int
    vector: int | None
    tasks: tuple[int, ...]
    scalar: tuple[int, ...] = ()
    block: int = 0
    unroll: int = 1
    columns: bool = False
    masked: bool = False
    tile: int | None = None
    task_count: SizeLike = 1
    cycles_per_point: float = 0.0
    cycles_per_row: float = 0.0  # of outer points


def walk(kernel: Kernel) -> Iterator[tuple[Node, bool]]:
    """Every distinct node with whether it belongs to a loop (rather than to the epilogue alone)."""
    seen: set[Node] = set()

    def visit(root: Node, in_loop: bool) -> Iterator[tuple[Node, bool]]:
        stack = [root]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                yield node, in_loop
                stack.extend(node.args)

    for loop in kernel.loops:
        for reduction in loop.reductions:
            yield from visit(reduction.value, True)
        for store in loop.stores:
            yield from visit(store.value, True)
            yield from visit(store.index, True)
    for store in kernel.epilogue:
        yield from visit(store.value, False)
        yield from visit(store.index, False)


def stores_of(kernel: Kernel) -> Iterator[tuple[Store, bool]]:
    for loop in kernel.loops:
        for store in loop.stores:
            yield store, True
    for store in kernel.epilogue:
        yield store, False


def axis_stride(index: Node, axis: int) -> SizeLike | None:
    """How far the index moves per step of ``axis``; None where that is not constant."""
    if index.op == "axis":
        return int(index.attr == axis)
    if index.op == "const":
        return 0
    if index.op in ("add", "sub", "mul", "neg") and index.dtype == torch.int64:
        found = [axis_stride(arg, axis) for arg in index.args]
        strides = [stride for stride in found if stride is not None]
        if len(strides) < len(found):
            return None
        if index.op == "neg":
            return -strides[0]
        if index.op == "mul":
            for this, other in (index.args, index.args[::-1]):
                if this.op in ("const", "size") and (stride := axis_stride(other, axis)) is not None:
                    return stride * (int(this.attr) if this.op == "const" else this.attr)
            return 0 if strides == [0, 0] else None
        return strides[0] + strides[1] * (-1 if index.op == "sub" else 1)
    return 0 if not uses_axis(index, axis) else None


def uses_axis(node: Node, axis: int) -> bool:
    target = axis_node(axis)
    stack, seen = [node], {node}
    while stack:
        current = stack.pop()
        if current is target:
            return True
        for arg in current.args:
            if arg not in seen:
                seen.add(arg)
                stack.append(arg)
    return False


# Cycles per full vector, roughly, on a recent core with data in its caches.
_CYCLES = {"load": 1.5, "div": 8.0, "sqrt": 9.0, "rsqrt": 14.0, "reciprocal": 8.0, "sigmoid": 25.0}
_CYCLES |= {op: 45.0 for op in SLEEF} | {op: 16.0 for op in INLINE_FLOAT}


def node_cycles(node: Node) -> float:
    return _CYCLES.get(node.op, 0.5)


def _lanes(kernel: Kernel, target: Target) -> int:
    """As many lanes as fill a vector of the widest type that carries most of the work."""
    wide = narrow = 0
    for node, _ in walk(kernel):
        if node.dtype == torch.float64 or (node.dtype == torch.int64 and node.op == "load"):
            wide += 1
        elif node.dtype.is_floating_point:
            narrow += 1
    return target.lanes // 2 if wide and not narrow else target.lanes


def choose(kernel: Kernel, target: Target, indices: Indices) -> Schedule:
    """The schedule for ``kernel``."""
    lanes = _lanes(kernel, target)
    sizes = [kernel.hint(size) for size in kernel.outer + kernel.inner]
    pointwise = is_pointwise(kernel) and not kernel.inner
    accesses = [(node.args[0], 1.0) for node, in_loop in walk(kernel) if node.op == "load" and in_loop]
    accesses += [(store.index, 2.0) for store, in_loop in stores_of(kernel) if in_loop]
    if pointwise or not accesses:
        accesses += [(store.index, 2.0) for store, _ in stores_of(kernel)]
        accesses += [(node.args[0], 1.0) for node, _ in walk(kernel) if node.op == "load"]

    def score(axis: int) -> float:
        size = sizes[axis]
        used = size / (math.ceil(size / lanes) * lanes or 1)
        total = 0.0
        for index, weight in accesses:
            stride = axis_stride(index, axis)
            total += weight * (used if stride == 1 else used * 0.9 if stride == 0 else used * 0.1)
        return total

    if not sizes:
        return _finish(kernel, target, Schedule(lanes, None, (), columns=True))
    outer = range(len(kernel.outer))
    inner = range(len(kernel.outer), len(sizes))
    if pointwise:
        best = max(reversed(outer), key=score)
        return _finish(kernel, target, _pointwise(kernel, lanes, best))
    best_inner = max(reversed(inner), key=score, default=None)
    best_outer = max(reversed(outer), key=score, default=None)
    if (chosen := _tiled_columns(kernel, lanes, accesses, score)) is not None:
        return _finish(kernel, target, chosen)
    columns = best_inner is None or (best_outer is not None and score(best_outer) > score(best_inner) * 1.05)
    if columns and best_outer is not None:
        tasks = tuple(k for k in outer if k != best_outer)
        unroll, masked = _unroll(kernel, best_outer, lanes, _body_limit(kernel))
        chosen = Schedule(
            lanes, best_outer, tasks, block=unroll * lanes, unroll=unroll, columns=True, masked=masked
        )
        return _finish(kernel, target, chosen)
    assert best_inner is not None
    unroll, masked = _unroll(kernel, best_inner, lanes, _body_limit(kernel))
    return _finish(kernel, target, Schedule(lanes, best_inner, tuple(outer), unroll=unroll, masked=masked))


def _tiled_columns(
    kernel: Kernel, lanes: int, accesses: list[tuple[Node, float]], score: Callable[[int], float]
) -> Schedule | None:
    """Columns that go through an inner axis a tile at a time: where some accesses lie along the one, some along the
    other, and no single axis serves both."""
    sizes = [kernel.hint(size) for size in kernel.outer + kernel.inner]
    split = len(kernel.outer)
    long = [k for k, size in enumerate(sizes) if size >= lanes]
    best, most = None, 1.1 * max(map(score, range(len(sizes))), default=0.0)
    for vector in [k for k in long if k < split]:
        for tile in [k for k in long if k >= split]:
            across = sum(
                weight
                for index, weight in accesses
                if lies_across(axis_stride(index, vector), axis_stride(index, tile))
            )
            if across and score(vector) + 0.9 * across > most:
                best, most = (vector, tile), score(vector) + 0.9 * across
    if best is None or math.prod(sizes[:split]) < 4 * lanes:
        return None
    tasks = tuple(k for k in range(split) if k != best[0])
    return Schedule(lanes, best[0], tasks, block=lanes, columns=True, tile=best[1])


def _body_limit(kernel: Kernel) -> int:
    """How many copies of a loop body are worth their code size."""
    cycles = max((sum(node_cycles(n) for n in loop_nodes(loop)) for loop in kernel.loops), default=1.0)
    return 4 if cycles <= 12 else 2 if cycles <= 60 else 1


def loop_nodes(loop: Loop) -> set[Node]:
    """What a loop computes, but for the indices of its stores."""
    seen: set[Node] = set()
    stack = [r.value for r in loop.reductions] + [s.value for s in loop.stores]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.args)
    return seen


def _unroll(kernel: Kernel, axis: int, lanes: int, limit: int) -> tuple[int, bool]:
    """Copies of the body, and whether all of it runs under masks."""
    size = (kernel.outer + kernel.inner)[axis]
    if not isinstance(size, Expr):
        return _exact_unroll(size, lanes, limit), False
    exact = next((u for u in range(limit, 0, -1) if size % (u * lanes) == 0), 0)
    if exact:
        return exact, False
    # What is left over is unknown: a dear body is not worth writing twice, short axes not worth unrolling.
    if limit <= 2 or kernel.hint(size) < 2 * lanes:
        return 1, True
    return (limit if kernel.hint(size) >= 2 * limit * lanes else 2), False


def _exact_unroll(size: int, lanes: int, limit: int) -> int:
    """The most copies up to ``limit`` that leave less than one vector over, or ``limit`` itself on long axes."""
    vectors = size // lanes
    if vectors >= 8 * limit and vectors % limit and limit > 1:
        exact = max((u for u in range(limit, 1, -1) if vectors % u == 0), default=0)
        return exact or limit
    return max((u for u in range(limit, 1, -1) if vectors and vectors % u == 0), default=1)


def _tile_axis(kernel: Kernel, lanes: int, vector: int) -> int | None:
    """The axis along which most loads lie that do not lie along ``vector``, if a tile has room along both."""
    only_sets = all(store.mode == "set" for store, _ in stores_of(kernel))
    if (
        len(kernel.loops) != 1
        or kernel.epilogue
        or not only_sets
        or kernel.hint(kernel.outer[vector]) < lanes
    ):
        return None
    long = [k for k, size in enumerate(kernel.outer) if k != vector and kernel.hint(size) >= lanes]
    found: Counter[int] = Counter()
    for node, _ in walk(kernel):
        if node.op == "load" and len(node.args) == 1:
            along = axis_stride(node.args[0], vector)
            found.update(k for k in long if lies_across(along, axis_stride(node.args[0], k)))
    return found.most_common(1)[0][0] if found else None


def _pointwise(kernel: Kernel, lanes: int, vector: int) -> Schedule:
    size = kernel.outer[vector]
    tile = _tile_axis(kernel, lanes, vector)
    if tile is not None:
        others = tuple(k for k in range(len(kernel.outer)) if k not in (vector, tile))
        return Schedule(lanes, vector, others, block=16 * lanes, tile=tile)
    unroll, masked = _unroll(kernel, vector, lanes, min(2, _body_limit(kernel)))
    step = lanes * unroll
    whole = isinstance(size, int) and size <= 4096
    block = size if whole and isinstance(size, int) else max(step, 2048 // step * step)
    sizes = [kernel.hint(n) for n in kernel.outer]
    tasks = [k for k in range(len(kernel.outer)) if k != vector]
    # Small rows: loop over some outer axes inside the task, as long as enough tasks are left to share out.
    scalar: list[int] = []
    work = min(sizes[vector], block)
    count = math.prod(sizes[k] for k in tasks)
    while tasks and work < 2048 and count // sizes[tasks[-1]] >= 32:
        count //= sizes[tasks[-1]]
        work *= sizes[tasks[-1]]
        scalar.insert(0, tasks.pop())
    return Schedule(lanes, vector, tuple(tasks), tuple(scalar), block, unroll, masked=masked)


def _finish(kernel: Kernel, target: Target, schedule: Schedule) -> Schedule:
    sizes = kernel.outer + kernel.inner
    count = math.prod([sizes[k] for k in schedule.tasks])
    if schedule.block and schedule.vector is not None:
        count = count * block_count(sizes[schedule.vector], schedule.block)
    if schedule.tile is not None and not schedule.columns:
        count = count * block_count(sizes[schedule.tile], schedule.lanes)
    per_point = sum(node_cycles(node) for node, in_loop in walk(kernel) if in_loop)
    per_row = sum(node_cycles(node) for node, in_loop in walk(kernel) if not in_loop)
    factor = 1.0 / schedule.lanes if schedule.vector is not None else 1.0
    per_point = (per_point + 2.0) * factor
    return replace(schedule, task_count=count, cycles_per_point=per_point, cycles_per_row=per_row)


def block_count(size: SizeLike, block: int) -> SizeLike:
    """How many blocks cover an axis."""
    return (size + block - 1) // block
