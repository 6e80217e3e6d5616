"""Which values the forward keeps for the backward: a minimum cut over the joint trace.

In: a Trace with gradients. Out: a `Split`: forward operators, backward operators and the values saved between them.
Always: random and costly operators run once; views are never saved, only the memory they view.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch

from ..fake.ops import Kind, aten, op_info
from .ir import BACKWARD, Op, Trace, Value, inputs_of, memory_root
from .passes import drop_dead

_INFINITE = 2**30
_LIMIT = 2**28  # capacities are scaled so that their sum stays within 32-bit integers

# Cheap to do again besides pointwise operators: memory is written, hardly anything is computed.
_CHEAP = frozenset(
    (
        aten.clone.default,
        aten._to_copy.default,
        aten.full.default,
        aten.full_like.default,
        aten.zeros.default,
        aten.zeros_like.default,
        aten.ones.default,
        aten.ones_like.default,
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.scalar_tensor.default,
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.new_full.default,
        aten.where.self,
        aten.masked_fill.Scalar,
        aten.masked_fill.Tensor,
        aten.fill.Scalar,
        aten.zero.default,
        aten.copy.default,
        aten.empty_strided.default,
        aten.empty.memory_format,
        aten.constant_pad_nd.default,
        aten.slice_scatter.default,
        aten.select_scatter.default,
        aten.tril.default,
        aten.triu.default,
    )
)


# Products of matrices and their like: their arguments are tensors in memory whatever is fused around them.
_READS_MEMORY = frozenset(
    (
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten.max_pool2d_with_indices.default,
    )
)
_EXTRA_WRITE = 2  # keeping what would only pass through registers costs the forward a write as well


@dataclass(frozen=True, slots=True)
class Split:
    forward: list[Op]
    backward: list[Op]
    saved: list[Value]
    saved_bytes: int
    recomputed: int  # operators run again in the backward


def recomputable(op: Op) -> bool:
    if op.random:
        return False
    if op.view or op.func in _CHEAP:
        return True
    info = op_info(op.func)
    return info.kind is Kind.PURE and torch.Tag.pointwise in op.func.tags


def partition(trace: Trace, free: set[Value] = frozenset()) -> Split:
    """Split at the minimum cut. `free`: inputs that outlive the step (parameters), which cost nothing to keep."""
    after = _after_tangents(trace)
    needed: dict[Value, None] = {}
    for op in trace.ops:
        if op in after:
            for v in inputs_of(op):
                if not _depends(v, after, trace):
                    needed[memory_root(v)] = None
    for g in trace.grads:
        if g is not None and not _depends(g, after, trace):
            needed[memory_root(g)] = None
    written = {memory_root(v) for op in trace.ops if op.func in _READS_MEMORY for v in inputs_of(op)}
    written.update(memory_root(v) for v in trace.outputs)
    saved = _cut(list(needed), free, written)
    saved_set = set(saved)
    backward = _backward_ops(trace, after, saved_set)
    forward = drop_dead([op for op in trace.ops if op not in after], [*trace.outputs, *saved])
    used = {v for op in backward for v in inputs_of(op)} | {g for g in trace.grads if g is not None}
    kept = [v for v in saved if v in used]
    return Split(
        forward=forward,
        backward=backward,
        saved=kept,
        saved_bytes=sum(v.spec.nbytes for v in kept if v.op is not None),
        recomputed=sum(1 for op in backward if op not in after and not op.view),
    )


def _after_tangents(trace: Trace) -> set[Op]:
    """Operators that depend on incoming gradients, or are random and belong to the backward."""
    tangents = set(trace.tangents)
    after: set[Op] = set()
    for op in trace.ops:
        if (op.random and op.stage == BACKWARD) or any(v in tangents or v.op in after for v in inputs_of(op)):
            after.add(op)
    return after


def _depends(v: Value, after: set[Op], trace: Trace) -> bool:
    return v.op in after if v.op is not None else v in trace.tangents


def _backward_ops(trace: Trace, after: set[Op], saved: set[Value]) -> list[Op]:
    live: set[Op] = {g.op for g in trace.grads if g is not None and g.op is not None and g not in saved}
    kept: list[Op] = []
    for op in reversed(trace.ops):
        if op in live:
            kept.append(op)
            live.update(v.op for v in inputs_of(op) if v.op is not None and v not in saved)
    kept.reverse()
    return kept


class _Network:
    """Vertices in pairs: 2k enters value k, 2k+1 leaves it; 0 is the source and 1 the sink."""

    def __init__(self) -> None:
        self.index: dict[Value, int] = {}
        self.values: list[Value] = []
        self.edges: list[tuple[int, int, float]] = []

    def vertex(self, v: Value) -> int:
        k = self.index.get(v)
        if k is None:
            k = self.index[v] = len(self.values) + 1
            self.values.append(v)
        return 2 * k


def _cut(needed: list[Value], free: set[Value], written: set[Value]) -> list[Value]:
    """The cheapest set of values from which everything in `needed` follows without costly operators.

    `written`: values that are in memory whether they are kept or not.
    """
    net = _Network()
    pending = deque(needed)
    seen = set(needed)
    for v in needed:
        net.edges.append((net.vertex(v) + 1, 1, _INFINITE))
    while pending:
        v = pending.popleft()
        enter = net.vertex(v)
        cost = 0 if v in free else max(v.spec.nbytes, 1)
        if v.op is not None and v not in written and recomputable(v.op):
            cost *= _EXTRA_WRITE
        net.edges.append((enter, enter + 1, cost))
        if v.op is None or not recomputable(v.op):
            net.edges.append((0, enter, _INFINITE))
            continue
        for d in {memory_root(d): None for d in inputs_of(v.op)}:
            net.edges.append((net.vertex(d) + 1, enter, _INFINITE))
            if d not in seen:
                seen.add(d)
                pending.append(d)
    return _min_cut(net)


def _min_cut(net: _Network) -> list[Value]:
    if not net.values:
        return []
    total = sum(c for _, _, c in net.edges if c < _INFINITE)
    scale = max(1.0, total / _LIMIT)
    edges = [
        (a, b, _INFINITE if c >= _INFINITE else (max(1, int(c / scale)) if c else 0)) for a, b, c in net.edges
    ]
    below = _reaches_sink(edges, 2 * len(net.values) + 2)
    saved = []
    for k, v in enumerate(net.values, start=1):
        if 2 * k + 1 in below and 2 * k not in below:
            saved.append(v)
    return saved


def _reaches_sink(edges: list[tuple[int, int, int]], n: int) -> set[int]:
    """Vertices that still reach the sink once the flow is maximal: the cut nearest the sink recomputes least."""
    import numpy as np
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_flow

    capacity: dict[tuple[int, int], int] = {}
    for a, b, c in edges:
        capacity[a, b] = min(_INFINITE, capacity.get((a, b), 0) + c)
    rows, cols = np.array(list(capacity), dtype=np.int32).T
    values = np.array(list(capacity.values()), dtype=np.int32)
    graph = csr_matrix((values, (rows, cols)), shape=(n, n))
    flow = maximum_flow(graph, 0, 1).flow
    residual = (graph - flow).tocsc()
    residual.eliminate_zeros()
    indptr, indices, data = residual.indptr, residual.indices, residual.data
    reached, stack = {1}, [1]
    while stack:
        b = stack.pop()
        for j in range(indptr[b], indptr[b + 1]):
            a = int(indices[j])
            if data[j] > 0 and a not in reached:
                reached.add(a)
                stack.append(a)
    return reached
