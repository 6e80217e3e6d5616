"""Graphs captured under DistributedDataParallel, cut where its gradient buckets end.

In: a torch-level graph, its inputs, and what compiles one. Out: a callable that runs the pieces one after another.
Always: the pieces do together what the graph does; each has a backward of its own, so that the gradients of one bucket
are there, and travel, while the backward of the pieces before it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

Compile = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]


def bucket_caps() -> tuple[int, int] | None:
    """Bytes of the first bucket to fill, and of the others; None outside the forward of a DistributedDataParallel."""
    module = sys.modules.get("torch.nn.parallel.distributed")
    active = module and module.DistributedDataParallel._active_ddp_module
    if not active:
        return None
    cap = int(active.bucket_bytes_cap)
    default = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
    return (min(default, cap), cap)


def split(gm: fx.GraphModule, inputs: Sequence[Any], caps: tuple[int, int]) -> list[fx.GraphModule] | None:
    """The pieces of the graph, or None where it is one: too few parameters, or values other than tensors between."""
    nodes = list(gm.graph.nodes)
    calls = [n for n in nodes if n.op not in ("placeholder", "get_attr", "output")]
    if not calls or not all(_is_data(n) for n in nodes if n.op in ("placeholder", *_CALLS)):
        return None
    places = [n for n in nodes if n.op == "placeholder"]
    parameters = {
        n: t.numel() * t.element_size()
        for n, t in zip(places, inputs, strict=True)
        if isinstance(t, Tensor) and t.requires_grad and t.is_leaf
    }
    cuts = [k for k in _boundaries(calls, parameters, caps) if _can_cut(calls, k)]
    if not cuts:
        return None
    bounds = [0, *cuts, len(calls)]
    return [
        _piece(gm, calls[a:b], set(calls[b:]), k == len(cuts))
        for k, (a, b) in enumerate(zip(bounds, bounds[1:], strict=False))
    ]


_CALLS = ("call_function", "call_method", "call_module")


def _is_data(node: fx.Node) -> bool:
    return _is_tensors(node.meta.get("val"))


def _is_tensors(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_tensors(v) for v in value)
    return isinstance(value, Tensor)


def _boundaries(calls: list[fx.Node], parameters: dict[fx.Node, int], caps: tuple[int, int]) -> list[int]:
    """Positions before which a piece ends, ascending: a bucket fills from the end, as gradients come."""
    found: list[int] = []
    seen: set[fx.Node] = set()
    filled = 0
    for k in range(len(calls) - 1, 0, -1):
        new = [p for p in calls[k].all_input_nodes if p in parameters and p not in seen]
        seen.update(new)
        filled += sum(parameters[p] for p in new)
        if filled >= caps[min(len(found), 1)]:
            found.append(k)
            filled = 0
    return found[::-1]


def _can_cut(calls: list[fx.Node], k: int) -> bool:
    """Whether only tensors pass from the calls before `k` to those from it on."""
    after = set(calls[k:])
    return all(
        isinstance(n.meta.get("val"), Tensor) for n in calls[:k] if any(user in after for user in n.users)
    )


def _piece(gm: fx.GraphModule, calls: list[fx.Node], after: set[fx.Node], last: bool) -> fx.GraphModule:
    """A graph of these calls. Its inputs and outputs are named as the nodes of the whole graph that they stand for."""
    graph = fx.Graph()
    mine = set(calls)
    copies: dict[fx.Node, fx.Node] = {}
    result = next(n for n in reversed(gm.graph.nodes) if n.op == "output")
    needed = dict.fromkeys(n for c in calls for n in c.all_input_nodes if n not in mine)
    if last:
        needed.update(dict.fromkeys(n for n in result.all_input_nodes if n not in mine))
    for node in needed:
        if node.op != "get_attr":
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
    for node in needed:
        if node.op == "get_attr":
            copies[node] = graph.node_copy(node)
    for node in calls:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    if last:
        graph.output(fx.map_arg(result.args[0], lambda n: copies[n]))
    else:
        graph.output(tuple(copies[n] for n in calls if any(u in after or u is result for u in n.users)))
    piece = fx.GraphModule(gm, graph)
    piece.meta["results"] = [n.name for n in calls if any(u in after or u is result for u in n.users)]
    return piece


@dataclass(slots=True)
class _Piece:
    gm: fx.GraphModule
    inputs: list[str]
    results: list[str]
    drop: list[str]  # values that nothing needs after this piece
    run: Callable[..., Sequence[Any]] | None = None


class Chain:
    """Runs the pieces; each is compiled when its inputs are first there."""

    def __init__(self, gm: fx.GraphModule, pieces: list[fx.GraphModule], compile_one: Compile) -> None:
        self.names = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
        self.compile_one = compile_one
        self.pieces: list[_Piece] = []
        for piece in pieces:
            inputs = [n.name for n in piece.graph.nodes if n.op == "placeholder"]
            self.pieces.append(_Piece(piece, inputs, piece.meta["results"], []))
        needed: set[str] = set()
        for p in reversed(self.pieces):
            p.drop = [name for name in dict.fromkeys(p.inputs) if name not in needed]
            needed.update(p.inputs)

    def __call__(self, *args: Any) -> Sequence[Any]:
        values = dict(zip(self.names, args, strict=True))
        outs: Sequence[Any] = ()
        for piece in self.pieces:
            given = [values[name] for name in piece.inputs]
            if piece.run is None:
                piece.run = self.compile_one(piece.gm, given)
            outs = piece.run(*given)
            for name in piece.drop:
                del values[name]
            if piece is not self.pieces[-1]:
                values.update(zip(piece.results, outs, strict=True))
        return outs
