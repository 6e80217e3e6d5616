"""Backwards of outputs one after another: what of the graph each of them frees, as in eager.

In: which tangents need which saved values, and the parts of eager's graph behind each output. Out: the saved values of
one backward, and errors in eager's words.
Always: used only where eager lets one output go backward after another did; elsewhere autograd's own release does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..data import dataclass
from .ir import Op, Value, inputs_of
from .saved import bits, members, union

_FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)
keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph
backward_under_way: Callable[[], int] = torch._C._current_graph_task_id


def freed_as_one(parts: Iterable[int], outputs: int) -> bool:
    """Whether a backward of any output leaves none that could still go backward."""
    pairs = [0] * outputs
    for part in parts:
        for k in range(outputs):
            if part >> k & 1:
                pairs[k] |= part
    return all(met == (1 << outputs) - 1 for met in pairs)


def tangents_that_need(
    saved: Sequence[Value], backward: Sequence[Op], tangents: Sequence[Value], marks: Mapping[Value, int]
) -> tuple[int, ...]:
    """For each saved value, the tangents whose backward reads it; sets are written as bits.

    `marks`: where one node's backward ends, and the tangent for which another's begins.
    """
    reached = {t: 1 << n for n, t in enumerate(tangents)}
    found: dict[Op, int] = {}
    for op in backward:
        found[op] = mask = union(reached.get(v, 0) for v in inputs_of(op))
        if mask:
            reached.update((out, marks.get(out, mask)) for out in op.outs)
    needs: dict[Value, int] = {}
    for op in reversed(backward):  # what is computed again is for those that read it
        mask = found[op] or union(needs.get(v, 0) for v in op.outs)
        for v in inputs_of(op):
            needs[v] = needs.get(v, 0) | mask
    everybody = (1 << len(tangents)) - 1
    return tuple(needs.get(v) or everybody for v in saved)


class _Keeper(torch.autograd.Function):
    """A node that only keeps tensors: unpacking them notices what was changed in place since."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.detach()


_ANCHOR = torch.empty(0, requires_grad=True)


def keeper(tensors: Iterable[Tensor]) -> Tensor:
    """A tensor whose `grad_fn.saved_tensors` are these, as they are now."""
    with torch.enable_grad():
        return _Keeper.apply(_ANCHOR, *tensors)


@dataclass(frozen=True, slots=True)
class Release:
    """`parts`: the outputs behind which each part of eager's graph lies; `needs`: per saved value. Sets as bits.

    `nodes`: there are several, of which one backward may come to more than one.
    """

    parts: tuple[int, ...]
    needs: tuple[int, ...]
    nodes: bool = False

    def keep(self, ctx: Any, saved: Sequence[Tensor]) -> None:
        """Called by the forward: keeps the saved tensors, those needed by the same tangents together."""
        groups: dict[int, list[int]] = {}
        for k, need in enumerate(self.needs):
            groups.setdefault(need, []).append(k)
        ctx.freed = ctx.freeing = 0  # parts that are, and those freed by the backward under way
        ctx.went, ctx.task = 0, None  # the tangents of that
        ctx.kept = {need: (keeper([saved[k] for k in group]), group) for need, group in groups.items()}

    def take(self, ctx: Any, wanted: int) -> list[Tensor | None]:
        """Called by the backward of some tangents: what they need, else None. Raises: as eager, if freed."""
        task = backward_under_way()
        if ctx.task != task:
            ctx.freed, ctx.freeing, ctx.went, ctx.task = ctx.freed | ctx.freeing, 0, 0, task
        through = bits(part & wanted != 0 for part in self.parts)
        if through & ctx.freed:
            raise RuntimeError(_FREED)
        saved: list[Tensor | None] = [None] * len(self.needs)
        for need, (held, group) in ctx.kept.items():
            if need & wanted:
                for k, tensor in zip(group, held.grad_fn.saved_tensors, strict=True):
                    saved[k] = tensor
        if not keeps_graph():
            ctx.freeing |= through
            ctx.went |= wanted
            over = ctx.freed if self.nodes else ctx.freed | ctx.freeing
            spent = union(self.parts[k] for k in members(over)) | ctx.went
            ctx.kept = {need: kept for need, kept in ctx.kept.items() if need & ~spent}
        return saved
