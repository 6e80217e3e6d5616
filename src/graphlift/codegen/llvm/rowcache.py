"""Dear values that several loops over a row need: computed once and kept in a buffer, on the stack where it fits.

In: a kernel scheduled by rows. Out: `RowCache`: which nodes, the loop that computes each.
Always: a cached value depends on nothing that a loop stores, so that every loop would compute the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field

import torch

from graphlift.codegen.llvm.schedule import Schedule, block_count, node_cycles
from graphlift.data import dataclass
from graphlift.lower.ir import Kernel, Node
from graphlift.shapes.expr import SizeLike

_WORTH_CYCLES = 12.0  # what recomputing must cost before a store and loads are cheaper
_LIMIT_BYTES = 64 << 10
_KEPT = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(slots=True)
class RowCache:
    """``first`` maps a cached node to the loop that computes it; ``row`` is the padded length of the vector axis."""

    first: dict[Node, int] = field(default_factory=dict)
    slots: dict[Node, str] = field(default_factory=dict)
    row: SizeLike = 0
    elements: SizeLike = 0
    room: int = 0  # elements on the stack for each node, where the length varies


def choose_cached(
    kernel: Kernel, schedule: Schedule, varies: Callable[[Node], bool], unstable: Callable[[Node], bool]
) -> RowCache:
    """The topmost nodes shared between loops whose recomputation is dear and whose row fits on the stack."""
    cache = RowCache()
    if schedule.columns or schedule.block or schedule.vector is None or len(kernel.loops) < 2:
        return cache
    inner = range(len(kernel.outer), len(kernel.outer) + len(kernel.inner))
    size = (kernel.outer + kernel.inner)[schedule.vector]
    cache.row = block_count(size, schedule.lanes) * schedule.lanes
    cache.elements = (
        math.prod([kernel.inner[k - inner[0]] for k in inner if k != schedule.vector]) * cache.row
    )
    expected = kernel.hint(cache.elements)
    if expected * 4 > _LIMIT_BYTES or not expected:
        return cache
    cache.room = min(2 * expected, _LIMIT_BYTES // 8)
    room = _LIMIT_BYTES // (expected * 8)
    seen: dict[Node, int] = {}
    costs: dict[Node, float] = {}
    for position, loop in enumerate(kernel.loops):
        new: set[Node] = set()
        stack = [r.value for r in loop.reductions] + [s.value for s in loop.stores]
        while stack:
            node = stack.pop()
            if node in new:
                continue
            new.add(node)
            shared = node in seen and node.dtype in _KEPT and varies(node) and not unstable(node)
            if shared and _cost(node, costs, varies) >= _WORTH_CYCLES and len(cache.first) < room:
                cache.first.setdefault(node, seen[node])
                continue
            stack.extend(node.args)
        for node in new:
            seen.setdefault(node, position)
    return cache


def _cost(node: Node, costs: dict[Node, float], varies: Callable[[Node], bool]) -> float:
    """Cycles of everything below a node that differs from lane to lane (shared parts count again: an upper bound)."""
    found = costs.get(node)
    if found is None:
        if not varies(node):
            return 0.0
        found = costs[node] = node_cycles(node) + sum(_cost(arg, costs, varies) for arg in node.args)
    return found
