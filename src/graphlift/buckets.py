"""Graphs captured under DistributedDataParallel, cut where its gradient buckets end.

In: a torch-level graph and its inputs. Out: the parts, to be run one after another.
Always: the pieces do together what the graph does; each has a backward of its own, so that the gradients of one bucket
are there, and travel, while the backward of the pieces before it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .pieces import Part, part_of


def bucket_caps() -> tuple[int, int] | None:
    """Bytes of the first bucket to fill, and of the others; None outside the forward of a DistributedDataParallel."""
    module = sys.modules.get("torch.nn.parallel.distributed")
    active = module and module.DistributedDataParallel._active_ddp_module
    if not active:
        return None
    cap = int(active.bucket_bytes_cap)
    default = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
    return (min(default, cap), cap)


def split(gm: fx.GraphModule, inputs: Sequence[Any], caps: tuple[int, int]) -> list[Part] | None:
    """The pieces of the graph, or None where it is one: too few parameters, or values other than tensors between."""
    nodes = list(gm.graph.nodes)
    calls = [n for n in nodes if n.op not in ("placeholder", "get_attr", "output")]
    if not calls or not all(_is_data(n) for n in nodes if n.op in ("placeholder", *_CALLS)):
        return None
    if any("between_parts" in n.meta for n in calls):
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
    return [part_of(gm, calls[a:b], set(calls[b:])) for a, b in zip(bounds, bounds[1:], strict=False)]


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
