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
from .saved import Part, bits, union

_FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)
keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph
backward_under_way: Callable[[], int] = torch._C._current_graph_task_id
EVERYTHING = -1  # as a set: a backward that goes on to all that it can come to


def freed_as_one(parts: Iterable[int], outputs: int) -> bool:
    """Whether a backward of any output leaves none that could still go backward. `parts`: the outputs of each."""
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


class Kept:
    """What of one call is kept, those needed by the same tangents together, and which parts are freed, as bits."""

    __slots__ = ("freed", "freeing", "groups", "task", "went")

    def __init__(self, groups: dict[int, tuple[Tensor, list[int]]]) -> None:
        self.groups = groups
        self.freed = self.freeing = 0  # parts that are, and those freed by the backward under way
        self.went, self.task = 0, None  # the tangents of that


@dataclass(frozen=True, slots=True)
class Release:
    """Which parts of eager's graph a backward frees.

    `parts`: the outputs behind which each lies, and what a backward comes to from there. `needs`: of each saved value,
    the outputs. Sets are bits. `nodes`: there are several, of which one backward may come to more than one.
    """

    parts: tuple[Part, ...]
    needs: tuple[int, ...]
    nodes: bool = False

    def keep(self, holder: Any, saved: Sequence[Tensor]) -> None:
        """Keeps the saved tensors in place of autograd."""
        groups: dict[int, list[int]] = {}
        for k, need in enumerate(self.needs):
            groups.setdefault(need, []).append(k)
        kept = {need: (keeper([saved[k] for k in group]), group) for need, group in groups.items()}
        holder.kept = Kept(kept)

    def take_over(self, ctx: Any) -> None:
        """Keeps what autograd does, and is about to free. Raises: where that is done."""
        # An output that holds itself would never be freed.
        self.keep(ctx, [t.detach() if t.grad_fn is ctx else t for t in ctx.saved_tensors])

    def unpack(self, ctx: Any, here: int, wanted: int) -> Sequence[Tensor | None]:
        """As `take`, of what autograd keeps, which frees all at once."""
        if getattr(ctx, "kept", None) is None:
            try:
                if wanted == EVERYTHING or keeps_graph():
                    return ctx.saved_tensors
                self.take_over(ctx)
            except RuntimeError:
                if wanted == EVERYTHING or self._through(here, wanted):
                    raise
                return [None] * len(self.needs)  # freed, and not needed
        return self.take(ctx, here, wanted)

    def _through(self, here: int, wanted: int) -> int:
        """The parts that a backward comes to."""
        return bits(
            mask & here != 0 and (wanted == EVERYTHING or leads & wanted != 0) for mask, leads in self.parts
        )

    def take(self, holder: Any, here: int, wanted: int) -> Sequence[Tensor | None]:
        """What the backward of tangents that goes on to some inputs needs, else None. Raises: as eager, if freed."""
        kept: Kept = holder.kept
        task = backward_under_way()
        if kept.task != task:
            kept.freed, kept.freeing, kept.went, kept.task = kept.freed | kept.freeing, 0, 0, task
        through = self._through(here, wanted)
        if through & kept.freed:
            raise RuntimeError(_FREED)
        saved: list[Tensor | None] = [None] * len(self.needs)
        for need, (held, group) in kept.groups.items():
            if need & here:
                for k, tensor in zip(group, held.grad_fn.saved_tensors, strict=True):
                    saved[k] = tensor
        if not keeps_graph():
            kept.freeing |= through
            if wanted == EVERYTHING:
                kept.went |= here
            over = kept.freed if self.nodes else kept.freed | kept.freeing
            left = union(mask for k, (mask, _) in enumerate(self.parts) if not over >> k & 1)
            spent = union(mask for mask, _ in self.parts) & ~left | kept.went
            kept.groups = {need: group for need, group in kept.groups.items() if need & ~spent}
        return saved
