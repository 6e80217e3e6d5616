"""Which values the forward keeps for the backward: a minimum cut over the joint trace.

In: a Trace with gradients. Out: a `Split`: forward operators, backward operators and the values saved between them.
Always: random operators run once; costly ones too unless a memory budget or a checkpoint asks for less; views are never
saved, only the memory they view.
"""

from __future__ import annotations

from collections import deque

from ..capture.checkpoint_rules import region_of, regions_of
from ..data import dataclass
from ..fake.ops import aten
from .costs import cost_ns, recomputable, repeatable
from .cut import INFINITE, Network, min_cut
from .ir import BACKWARD, FORWARD, Op, Trace, Value, inputs_of, memory_root, rewritten
from .passes import drop_dead

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


_BISECTIONS = 12  # of the price of time, over the range in which it decides anything


@dataclass(frozen=True, slots=True)
class Split:
    forward: list[Op]
    backward: list[Op]
    saved: list[Value]
    saved_bytes: int
    recomputed: int  # operators run again in the backward


def partition(trace: Trace, free: set[Value] = frozenset(), *, budget: float = 1.0) -> Split:
    """Split at the minimum cut. `free`: inputs that outlive the step (parameters), which cost nothing to keep.

    `budget` moves the bytes saved from all that is fastest (1) to the least that repeating operators allows (0). Each
    operator that may run again has a price, its time; the price of a nanosecond in bytes is lowered until the cut of
    least bytes and time keeps within the budget (the Lagrangian of the problem with a bound on the bytes).
    """
    problem = _Problem(trace, free)
    most = problem.cut(INFINITE)
    if budget >= 1.0:
        return problem.split(most)
    least = problem.cut(0.0)
    limit = _bytes(trace, least) + budget * (_bytes(trace, most) - _bytes(trace, least))
    low, high, best = -20.0, 20.0, least  # as powers of two
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        found = problem.cut(2.0**middle)
        if _bytes(trace, found) > limit:
            high = middle
        else:
            low, best = middle, found
    return problem.split(most if _bytes(trace, most) <= limit else best)


def _bytes(trace: Trace, saved: list[Value]) -> int:
    return sum(v.spec.size_bytes() for v in saved if v.op is not None or v in trace.borrowed)


def save_all(trace: Trace, free: set[Value] = frozenset()) -> Split:
    """Split so that the backward repeats nothing but views: what it reads of the forward is saved."""
    problem = _Problem(trace, free)
    return problem.split(problem.needed)


class _Problem:
    """The trace as a cut problem; solved for several prices of time."""

    def __init__(self, trace: Trace, free: set[Value]) -> None:
        self.trace = trace
        self.free = free
        self.after = _after_tangents(trace)
        self.position = {op: k for k, op in enumerate(trace.ops)}
        self.costs: dict[Op, float] = {}
        self.again = {op for op in trace.ops if _is_to_repeat(op)}
        # Results of checkpoints that the backward needs for what is outside of them.
        self.left: set[Value] = set()
        needed: dict[Value, None] = {}
        for op in trace.ops:
            if op in self.after:
                for v in inputs_of(op):
                    if not self._depends(v):
                        root = memory_root(v)
                        needed[root] = None
                        if self._leaves(root, op):
                            self.left.add(root)
        for g in trace.grads:
            if g is not None and not self._depends(g):
                needed[memory_root(g)] = None
        self.needed = list(needed)
        written = {memory_root(v) for op in trace.ops if op.func in _READS_MEMORY for v in inputs_of(op)}
        written.update(memory_root(v) for v in trace.outputs)
        written.update(memory_root(v) for op in self.again for v in inputs_of(op))  # repeated one by one
        self.written = written  # values that are in memory whether they are kept or not

    def _depends(self, v: Value) -> bool:
        return v.op in self.after if v.op is not None else v in self.trace.tangents

    def _leaves(self, v: Value, user: Op) -> bool:
        """Whether `v` is computed in a checkpoint, and used outside of it."""
        return v.op in self.again and region_of(user.source) is not region_of(v.op.source)

    def cut(self, bytes_per_ns: float) -> list[Value]:
        """What to save for the fewest bytes, where running an operator again costs its time at this price."""
        return min_cut(self._network(bytes_per_ns))

    def _network(self, bytes_per_ns: float) -> Network:
        net = Network()
        pending = deque(self.needed)
        seen = set(self.needed)
        for v in self.needed:
            net.edge(net.vertex(v) + 1, 1, INFINITE)
        while pending:
            v = pending.popleft()
            enter = net.vertex(v)
            net.edge(enter, enter + 1, self._cost_to_keep(v, bytes_per_ns))
            again = self._cost_to_repeat(v, bytes_per_ns)
            if again:
                net.edge(0, enter, again)
            if v.op is None or again == INFINITE:
                continue
            remade = self.trace.remade.get(v)
            for d in {memory_root(d): None for d in (inputs_of(v.op) if remade is None else (remade,))}:
                net.edge(net.vertex(d) + 1, enter, INFINITE)
                if self._leaves(d, v.op):
                    net.edge(0, net.vertex(d), INFINITE)
                if d not in seen:
                    seen.add(d)
                    pending.append(d)
        return net

    def _cost_to_keep(self, v: Value, bytes_per_ns: float) -> float:
        if v in self.free:
            return 0.0
        if v.op is None:
            extra = v in self.trace.borrowed
        else:
            extra = v not in self.written and recomputable(v.op) and bytes_per_ns == INFINITE
        return max(v.spec.size_bytes(), 1) * (_EXTRA_WRITE if extra else 1)

    def _cost_to_repeat(self, v: Value, bytes_per_ns: float) -> float:
        op = v.op
        if op is None:
            return INFINITE
        if v in self.trace.remade:
            return 0.0
        if op in self.again:
            return INFINITE if v in self.left else 0.0
        if recomputable(op) or bytes_per_ns == INFINITE:
            return 0.0 if recomputable(op) else INFINITE
        if not repeatable(op):
            return INFINITE
        # Early operators are the better ones to repeat: the backward is about to end, little else is in memory then.
        # It also tells the equal layers of a model apart, so that the price decides between them one by one.
        cost = self.costs.get(op)
        if cost is None:
            cost = self.costs[op] = cost_ns(op) * (1.0 + self.position[op] / len(self.trace.ops))
        return cost * bytes_per_ns

    def split(self, saved: list[Value]) -> Split:
        trace, saved_set = self.trace, set(saved)
        remade = {v: other for v, other in trace.remade.items() if v not in saved_set}
        backward = _backward_ops(trace, self.after, saved_set, remade)
        if remade:
            backward = [rewritten(op, remade) for op in backward]
            trace.grads = [remade.get(g, g) if g is not None else None for g in trace.grads]
        forward = drop_dead([op for op in trace.ops if op not in self.after], [*trace.outputs, *saved])
        used = {v for op in backward for v in inputs_of(op)} | {g for g in trace.grads if g is not None}
        kept = [v for v in saved if v in used]
        return Split(
            forward=forward,
            backward=backward,
            saved=kept,
            saved_bytes=_bytes(trace, kept),
            recomputed=sum(1 for op in backward if op not in self.after and not op.view),
        )


def _is_to_repeat(op: Op) -> bool:
    """Whether the operator is in a checkpoint, and may run twice."""
    if op.stage != FORWARD or op.source is None or not repeatable(op):
        return False
    regions = regions_of(op.source)
    return bool(regions) and not any(op.func in region.kept for region in regions)


def _after_tangents(trace: Trace) -> set[Op]:
    """Operators that depend on incoming gradients, or are random and belong to the backward."""
    tangents = set(trace.tangents)
    after: set[Op] = set()
    for op in trace.ops:
        if (op.random and op.stage == BACKWARD) or any(v in tangents or v.op in after for v in inputs_of(op)):
            after.add(op)
    return after


def _backward_ops(trace: Trace, after: set[Op], saved: set[Value], remade: dict[Value, Value]) -> list[Op]:
    """What the gradients need, in order; what is run again comes right before its first use."""
    kept: list[Op] = []
    placed: set[Op] = set()

    def place(op: Op) -> None:
        """The operators that `op` needs, then `op`."""
        stack = [(op, False)]
        while stack:
            current, ready = stack.pop()
            if current in placed:
                continue
            if ready:
                placed.add(current)
                kept.append(current)
                continue
            stack.append((current, True))
            stack.extend(
                (v.op, False)
                for v in (remade.get(v, v) for v in reversed(inputs_of(current)))
                if v.op is not None and v not in saved and v.op not in placed
            )

    live = _live(trace, saved)
    for op in trace.ops:
        if op in live and op in after:
            place(op)
    for g in (remade.get(g, g) for g in trace.grads if g is not None):
        if g.op is not None and g not in saved:
            place(g.op)
    return kept


def _live(trace: Trace, saved: set[Value]) -> set[Op]:
    live: set[Op] = {g.op for g in trace.grads if g is not None and g.op is not None and g not in saved}
    for op in reversed(trace.ops):
        if op in live:
            live.update(v.op for v in inputs_of(op) if v.op is not None and v not in saved)
    return live
