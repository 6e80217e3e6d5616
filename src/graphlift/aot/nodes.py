"""A region that is several nodes in autograd's graph, over one compiled forward.

In: `Nodes`, what the nodes are and how forward and backward are called. Out: statements of the region's function.
Always: a node hands its gradients on to one that its own lead to, which runs both backwards as one, unless the program
asks for what is between them: by a hook, `retain_grad`, or a backward with respect to some tensors only.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import Tensor, fx

from ..data import dataclass
from .again import differentiate, refused, require_same, without_history
from .late import Late
from .plan import FromInput, Surroundings
from .release import EVERYTHING, Release, backward_under_way
from .segments import Cut, Watched
from .training import (
    Backwards,
    add_ports,
    hooks_of,
    pass_over,
    require_unchanged,
    runs_everything,
    wanted_of,
)
from .versions import version_of
from .wrapper import BELOW, Source, add_epilogue, keep_view

_raw_apply = torch._C._FunctionBase.__dict__["apply"]


@dataclass(frozen=True, slots=True)
class Node:
    """Its outputs as tangents, and what its backward gives gradients for: inputs, and outputs of earlier nodes."""

    tangents: tuple[int, ...]
    inputs: tuple[int, ...]
    cuts: tuple[int, ...]
    edges: tuple[int, ...]  # the same, as the bits in `watched`
    hands_on: int | None  # a node that may run this one's backward with its own
    between: tuple[int, ...]  # the cuts that are outputs of that one, or views of them
    at: int  # its tangents at which this one's gradients arrive, as bits
    watched: Watched
    saved: tuple[int, ...]  # which of what is saved its own backward reads
    release: Release  # of these, where the region has none


@dataclass(frozen=True, slots=True)
class Nodes:
    """How the compiled pair is called.

    `saved`: inputs kept for the backward; `kept`: positions of the forward's results that are.
    """

    nodes: tuple[Node, ...]
    cuts: tuple[Cut, ...]
    tensors: int  # inputs of the captured graph
    inputs: int  # of the compiled one, without sizes
    constants: tuple[Tensor, ...]
    outputs: int
    saved: tuple[int, ...]
    kept: tuple[int, ...]
    release: Release | None  # None: a backward of a node frees what it saved
    arriving: tuple[int, ...]  # for each tangent the output it belongs to
    fw: Callable[[list], Sequence]
    bw: Backwards
    gm: fx.GraphModule
    # By slot: position among gm's outputs, and whether that is a view of it.
    again: Mapping[int, tuple[int, bool]]
    refusal: str | None  # of a second derivative
    late: Late | None
    graphs: dict[int, fx.GraphModule] = field(default_factory=dict)  # by node: gm from its cuts on

    def graph_from_cuts(self, n: int) -> fx.GraphModule:
        """The captured graph that takes, behind the tensors, the cuts that a node leads to."""
        cuts = self.nodes[n].cuts
        made = self.graphs.get(n)
        if made is None and cuts:
            graph = fx.Graph()
            copies: dict[fx.Node, fx.Node] = {}
            graph.output(graph.graph_copy(self.gm.graph, copies))
            before = [node for node in graph.nodes if node.op == "placeholder"][self.tensors - 1]
            order = {node: n for n, node in enumerate(graph.nodes)}
            for c in reversed(cuts):
                cut = self.cuts[c]
                written = order[copies[cut.writer]] if cut.writer is not None else -1
                with graph.inserting_after(before):
                    given = graph.placeholder(f"cut{c}")
                for node in cut.nodes:
                    copies[node].replace_all_uses_with(
                        given, lambda user, at=written: order.get(user, at) > at
                    )
            made = self.graphs[n] = fx.GraphModule(self.gm, graph)
        return made or self.gm


class Waiting:
    """What was handed on to a node: gradients, with what their backward reads."""

    __slots__ = ("at", "behind", "came", "saved")

    def __init__(self, nodes: Nodes) -> None:
        self.came: list[Tensor | None] = [None] * len(nodes.arriving)  # by tangent
        self.at = self.behind = 0  # the tangents at which these arrive, and all of them, as bits
        self.saved: list[Tensor | None] = [None] * (len(nodes.saved) + len(nodes.kept))


class Call:
    """One call of the region, as its nodes share it."""

    def __init__(self, nodes: Nodes, given: list) -> None:
        self.nodes = nodes
        self.given, self.sizes = given, given[nodes.inputs :]
        torch._C._set_grad_enabled(False)
        try:
            with torch._C._ExcludeDispatchKeyGuard(BELOW):
                self.o = nodes.fw([*given, *nodes.constants])
        finally:
            torch._C._set_grad_enabled(True)
        o = self.o
        # An output that holds itself would never be freed.
        kept = [o[k].detach() if k < nodes.outputs else o[k] for k in nodes.kept]
        self.saved = [*[given[k] for k in nodes.saved], *kept]
        if nodes.release is not None:
            nodes.release.keep(self, self.saved)
        self.inputs = [t if t.is_leaf else weakref.ref(t) for t in given[: nodes.tensors]]
        self.read = [version_of(t) for t in given[: nodes.tensors]]
        self.outputs = [weakref.ref(o[k]) for k in nodes.arriving]
        self.versions = nodes.late.versions(given) if nodes.late is not None else []
        self.cuts: dict[int, tuple[Any, OrderedDict]] = {}
        self.waiting: dict[tuple[int, int], Waiting] = {}  # by backward under way and node

    def show(self, c: int, t: Tensor) -> None:
        """The program gets a cut."""
        self.cuts[c] = weakref.ref(t), hooks_of(t)

    def close(self) -> None:
        """The forward is over."""
        del self.o, self.given, self.saved

    def hand_on(self, to: tuple[int, int], what: Waiting) -> None:
        there = self.waiting.setdefault(to, what)
        if there is not what:
            there.at, there.behind = there.at | what.at, there.behind | what.behind
            there.came = [b if a is None else a for a, b in zip(there.came, what.came, strict=True)]
            there.saved = [b if a is None else a for a, b in zip(there.saved, what.saved, strict=True)]

    def is_asked_for(self, c: int) -> bool:
        """Whether the program sees the gradient of a cut."""
        ref, hooks = self.cuts[c]
        t = ref()
        return bool(hooks) or (t is not None and (t.retains_grad or not runs_everything()))


class GraphliftRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, n: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        nodes = call.nodes
        node = nodes.nodes[n]
        ctx.call, ctx.n = call, n
        if nodes.release is None:
            ctx.save_for_backward(*[call.saved[k] for k in node.saved])
        ctx.set_materialize_grads(False)
        named = {"i": call.given, "o": call.o}
        ctx.watched = [(weakref.ref(t), t._version) for name, k, _ in node.watched for t in (named[name][k],)]
        ctx.cuts = tensors[len(node.inputs) :] if node.hands_on is None else None
        return tuple([call.o[nodes.arriving[t]] for t in node.tangents])

    @staticmethod
    def backward(ctx: Any, *g: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, *_backward(ctx, ctx.call, ctx.n, g)


_apply = _raw_apply.__get__(None, GraphliftRegion)


def _backward(ctx: Any, call: Call, n: int, g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    nodes, task = call.nodes, backward_under_way()
    node = nodes.nodes[n]
    handed = call.waiting.pop((task, n), None) if call.waiting else None
    here = 0 if handed is None else handed.at
    if handed is None:
        if not any(gradient is not None for gradient in g):
            pass_over(ctx, node.release if nodes.release is None else None)
            return (None,) * len(node.edges)
        handed = Waiting(nodes)
    for t, gradient in zip(node.tangents, g, strict=True):
        if gradient is not None:
            handed.came[t] = gradient
            here |= 1 << t
    handed.behind |= here
    wanted = wanted_of(ctx, node.edges)
    if ctx.watched:
        require_unchanged(ctx, here, wanted, node.watched)
    if nodes.release is None:
        for k, t in zip(node.saved, node.release.unpack(ctx, here, wanted), strict=True):
            handed.saved[k] = t
    if node.hands_on is not None and wanted == EVERYTHING and not any(map(call.is_asked_for, node.between)):
        handed.at = node.at
        call.hand_on((task, node.hands_on), handed)
        return (None,) * len(node.edges)
    saved = handed.saved if nodes.release is None else nodes.release.take(call, handed.behind, wanted)
    if torch.is_grad_enabled():
        return _again(ctx, call, n, handed.came, saved)
    if nodes.late is not None and nodes.late.changed(call.versions):
        if nodes.refusal is not None:
            nodes.late.refuse(nodes.refusal)
        return without_history(_again(ctx, call, n, handed.came, saved))
    grads = nodes.bw(handed.came, saved, call.sizes, node.cuts, wanted)
    return [*[grads[k] for k in node.inputs], *grads[nodes.inputs :]]


def _again(
    ctx: Any,
    call: Call,
    n: int,
    came: Sequence[Tensor | None],
    saved: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The backward under `create_graph=True`: differentiates the captured graph itself, from the cuts on."""
    nodes = call.nodes
    node = nodes.nodes[n]
    if nodes.refusal is not None:
        raise refused(nodes.refusal)
    kept = dict(zip(nodes.saved, saved, strict=False))
    held = [t if isinstance(t, Tensor) else t() for t in call.inputs]
    given = [found for k, t in enumerate(held) if (found := kept.get(k) if t is None else t) is not None]
    if len(given) < len(held):
        raise refused("it needs its inputs, of which some are gone")
    require_same(given, call.read)
    cuts = ctx.cuts if ctx.cuts is not None else [_cut(call, c, given) for c in node.cuts]
    inputs = [t if k in node.inputs else t.detach() for k, t in enumerate(given)]
    arrived = [
        (nodes.again[slot], t, ref())
        for slot, t, ref in zip(nodes.arriving, came, call.outputs, strict=True)
        if t is not None
    ]
    found = differentiate(nodes.graph_from_cuts(n), [*inputs, *cuts], call.sizes, arrived)
    return [found.get(k) for k in (*node.inputs, *range(len(inputs), len(inputs) + len(cuts)))]


def _cut(call: Call, c: int, inputs: list[Tensor]) -> Tensor:
    """A cut; where the program let go of it, made again."""
    ref, hooks = call.cuts[c]
    t = ref()
    if t is not None:
        return t
    if hooks:
        raise refused("it needs an output with hooks on it, which is gone")
    nodes, cut = call.nodes, call.nodes.cuts[c]
    n = next((n for n, node in enumerate(nodes.nodes) if cut.tangent in node.tangents), None)
    graph = nodes.gm if n is None else nodes.graph_from_cuts(n)
    before = [] if n is None else [_cut(call, k, inputs) for k in nodes.nodes[n].cuts]
    with torch.enable_grad():
        made: Tensor = graph.forward(*inputs, *before, *call.sizes)[cut.output]
    return made


def add_nodes(src: Source, nodes: Nodes, around: Surroundings, extra: str) -> None:
    """Statements that run the region as several nodes."""
    src.names.update(begin=Call, nodes=nodes, apply=_apply)
    src.add(f"call = begin(nodes, [*i{extra}])")
    src.add("o = call.o")
    _show(src, nodes, around, (None,))
    for n, node in enumerate(nodes.nodes):
        given = [f"i[{k}]" for k in node.inputs] + [f"cut{c}" for c in node.cuts]
        src.add(f"apply({', '.join(['call', str(n), *given])})")
        add_ports(src, [nodes.arriving[t] for t in node.tangents])
        _show(src, nodes, around, node.tangents)
    src.add("call.close()")
    add_epilogue(src, around, "o")


def _show(src: Source, nodes: Nodes, around: Surroundings, tangents: tuple[int | None, ...]) -> None:
    """Statements that make the cuts of these tangents, and the views between them."""
    plans = around.outputs
    cuts = {cut.output: c for c, cut in enumerate(nodes.cuts) if cut.tangent in tangents}
    slots = {nodes.arriving[t] for t in tangents if t is not None}
    views = [
        k
        for k in around.between
        if (getattr(plans[k], "slot", None) in slots if slots else type(plans[k]) is FromInput)
    ]
    for k in sorted({*cuts, *views}, key=lambda k: len(plans[k].path)):  # type: ignore[union-attr]
        label = f"cut{cuts[k]}" if k in cuts else f"w{k}"
        keep_view(src, label, plans[k], "o", around.grad_mode)
        if k in cuts:
            src.add(f"call.show({cuts[k]}, {label})")
