"""How many nodes a region has in autograd's graph, and between which tensors.

In: the traced outputs, with autograd's own graph behind them. Out: `Segments`: the outputs of each node, what its
backward leads to, and which tensors eager's backward of that part reads.
Always: one node where a program cannot tell: where no output is computed from another one, and all lead to the same
inputs with a history. With one for others, a backward of one output would go through what eager's does not, or pass a
tensor by whose gradient the program asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from ..data import dataclass
from ..fake import FakeTensor
from ..fake.ops import aten
from .ir import Op, Value, rewritten
from .plan import FromInput, FromSlot, OutputPlan
from .saved import Edge, Needed, members, union
from .views import Path

#: Tensors that eager's backward of a part reads: "i" or "o", the position among inputs or outputs, and when.
Watched = tuple[tuple[str, int, Needed], ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """An output of the region from which others are computed: there one node ends and another begins."""

    output: int
    tangent: int | None  # of the output of the graph that it is, or is a view of
    nodes: tuple[fx.Node, ...]  # of the captured graph that give it
    writer: fx.Node | None  # of these nodes, the last that writes it in place
    mixed: bool  # written in place beside views of it


@dataclass(frozen=True, slots=True)
class Segment:
    """One node. Sets are bits: of tangents, and of inputs with the cuts after them.

    `leads`: what its backward gives gradients for. `hands_on`: an earlier segment that can run this one's backward with
    its own, as that leads to all the same.
    """

    tangents: int
    leads: int
    hands_on: int | None
    watched: Watched


@dataclass(frozen=True, slots=True)
class Segments:
    count: int  # of the inputs, after whose bits those of the cuts come
    cuts: tuple[Cut, ...] = ()
    nodes: tuple[Segment, ...] = ()

    @property
    def several(self) -> bool:
        """Whether the region is more than one node between its inputs and its outputs."""
        return len(self.nodes) > 1 or bool(self.cuts)

    def arriving_at(self, n: int) -> tuple[int, ...]:
        """The cuts that the backward of a segment leads to."""
        return members(self.nodes[n].leads >> self.count)


def find_cuts(
    outs: Sequence[Any],
    plans: Sequence[OutputPlan | None],
    tangents: Mapping[int, int],
    edges: Container[Edge],
    made: Mapping[int, tuple[fx.Node, ...]],
) -> tuple[Cut, ...]:
    """The outputs that other outputs are computed from. `tangents`: by slot; `edges`: of eager's graph behind all."""
    found = []
    for k, (out, plan) in enumerate(zip(outs, plans, strict=True)):
        if type(plan) is FromSlot and plan.geometry is None:
            tangent = tangents.get(plan.slot)
        elif type(plan) is FromInput and plan.path:
            tangent = None
        else:
            continue
        if _is_followed(plan.path) and out.requires_grad and (out.grad_fn, out.output_nr) in edges:
            found.append(Cut(k, tangent, made.get(id(out), ()), out.home.writer, out.home.mixed))
    return tuple(found)


def _is_followed(path: Path) -> bool:
    """Whether autograd has a node for each step, as it was made."""
    return not any(s.in_place or s.data or not s.grad_mode or s.func is aten.detach.default for s in path)


def views_between(outs: Sequence[Any], plans: Sequence[OutputPlan]) -> tuple[int, ...]:
    """The outputs that are views and of which others are views."""
    views = [
        (k, plan.path)
        for k, (out, plan) in enumerate(zip(outs, plans, strict=True))
        if isinstance(plan, (FromInput, FromSlot))
        and plan.path
        and out.requires_grad
        and _is_followed(plan.path)
    ]
    return tuple(
        k
        for k, path in views
        if any(len(other) > len(path) and _leads_to(outs[n], outs[k], len(other)) for n, other in views)
    )


def _leads_to(view: FakeTensor, base: FakeTensor, steps: int) -> bool:
    edge = view.grad_fn, view.output_nr
    for _ in range(steps):
        edge = edge[0].next_functions[0]
        if edge[0] is None or edge == (base.grad_fn, base.output_nr):
            break
    return edge == (base.grad_fn, base.output_nr)


def find_segments(
    roots: Sequence[FakeTensor],
    behind: Mapping[Any, int],
    leads: Mapping[Any, int],
    found: Segments,
    solid: int,
    watched: Callable[[Mapping[Any, int], Mapping[Any, int]], Watched],
) -> Segments:
    """The region's nodes, each after those it is computed from.

    `behind`: the nodes of eager's graph, each with the tangents it lies behind; `leads`: to where that goes on
    elsewhere, as bits. Tangents are told apart by those in `solid`, and by the cuts.
    """
    cuts, count = found.cuts, found.count
    solid |= (1 << count + len(cuts)) - (1 << count)
    groups: dict[int, int] = {}
    inputs: dict[int, int] = {}
    led = [leads.get(root.grad_fn, 0) for root in roots]
    every = (1 << len(roots)) - 1
    first = next((reached for reached in led if reached and not _cuts_in(reached, found, every)), 0)
    for n, reached in enumerate(led):
        reached = reached or first  # with a history that leads nowhere, it shares another's node
        groups[reached & solid] = groups.get(reached & solid, 0) | 1 << n
        inputs[reached & solid] = inputs.get(reached & solid, 0) | reached
    nodes: list[Segment] = []
    frontiers: list[int] = []
    while groups:
        waiting = union(groups.values())
        frontier = next(f for f in groups if not _cuts_in(f, found, waiting))
        tangents = groups.pop(frontier)
        part = {node: mask & tangents for node, mask in behind.items() if mask & tangents}
        to = _that_leads_on(frontier, frontiers, nodes, found)
        nodes.append(Segment(tangents, inputs[frontier], to, watched(part, leads)))
        frontiers.append(frontier)
    for n in reversed(range(len(nodes))):  # what is handed on comes with its inputs
        to = nodes[n].hands_on
        if to is not None:
            own = nodes[n].leads & (1 << count) - 1
            nodes[to] = replace(nodes[to], leads=nodes[to].leads | own)
    return Segments(count, cuts, tuple(nodes))


def _cuts_in(frontier: int, found: Segments, tangents: int) -> int:
    """The cuts in a frontier that are outputs of these tangents, as bits."""
    mine = [c for c, cut in enumerate(found.cuts) if cut.tangent is not None and tangents >> cut.tangent & 1]
    return frontier & sum(1 << found.count + c for c in mine)


def _that_leads_on(
    frontier: int, frontiers: Sequence[int], nodes: Sequence[Segment], found: Segments
) -> int | None:
    """The last segment with cuts in a frontier, if that leads to all the others in it."""
    for n in reversed(range(len(nodes))):
        own = _cuts_in(frontier, found, nodes[n].tangents)
        if own:
            return None if frontier & ~own & ~frontiers[n] else n
    return None


def mark_cut(into: list[Op], arriving: Value, stage: int) -> Value:
    """An operator that changes nothing, at the place where the gradient of a cut is complete."""
    op = Op(aten.alias.default, (arriving,), {}, stage, None)
    op.outs.append(Value(arriving.spec, op))
    into.append(op)
    return op.outs[0]


def until(
    ops: Sequence[Op],
    grads: Sequence[Value | None],
    marks: Container[Value | None],
    stops: Sequence[Value | None],
) -> tuple[list[Op], list[Value | None]]:
    """A backward without its marks, and its gradients with those that arrive at `stops`, some of the marks."""
    env: dict[Value, Value] = {}
    arriving: dict[Value | None, Value] = {}
    kept = []
    for op in ops:
        op = rewritten(op, env) if env else op
        out = op.outs[0] if op.outs else None
        if out is None or out not in marks:
            kept.append(op)
        elif out in stops:
            arriving[out] = op.args[0]
        else:
            env[out] = op.args[0]
    return kept, [*(env.get(g, g) if g is not None else None for g in grads), *map(arriving.get, stops)]
