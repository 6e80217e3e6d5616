"""Backwards of outputs one after another: what of the graph each of them frees, as in eager.

In: which tangents need which saved values, and the parts of eager's graph behind each output. Out: the saved values of
one backward, and errors in eager's words.
Always: used only where eager lets one output go backward after another did; elsewhere autograd's own release does.
"""

from __future__ import annotations

import functools
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


def changed_in_place(t: Tensor, version: int) -> RuntimeError:
    """Eager's error where a backward needs a tensor as it was."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{t.type()} {list(t.shape)}] is at version {t._version}; expected version {version} instead. Hint: "
        "enable anomaly detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True)."
    )


Group = tuple[tuple[int, Tensor, int], ...]  # the place of each tensor, and the version it must have


class Kept:
    """What of one call is kept, those needed by the same tangents together, and which parts are freed, as bits."""

    __slots__ = ("freed", "freeing", "groups", "task", "went")

    def __init__(self, groups: dict[int, Group]) -> None:
        self.groups = groups
        self.freed = self.freeing = 0  # parts that are, and those freed by the backward under way
        self.went, self.task = 0, None  # the tangents of that


@functools.cache
def _by_need(needs: tuple[int, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple(
        [(need, tuple([k for k, n in enumerate(needs) if n == need])) for need in dict.fromkeys(needs)]
    )


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
        groups = {
            need: tuple([(k, t := saved[k], t._version) for k in group])
            for need, group in _by_need(self.needs)
        }
        holder.kept = Kept(groups)

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
        for need, group in kept.groups.items():
            if need & here:
                for k, t, version in group:
                    if t._version != version:
                        raise changed_in_place(t, version)
                    saved[k] = t
        if not keeps_graph():
            kept.freeing |= through
            if wanted == EVERYTHING:
                kept.went |= here
            over = kept.freed if self.nodes else kept.freed | kept.freeing
            left = union(mask for k, (mask, _) in enumerate(self.parts) if not over >> k & 1)
            spent = union(mask for mask, _ in self.parts) & ~left | kept.went
            kept.groups = {need: group for need, group in kept.groups.items() if need & ~spent}
        return saved
