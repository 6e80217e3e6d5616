"""Version counters: how often each tensor was written, which programs can read and autograd does.

In: the traced tensors and what is done around the graph. Out: in `Surroundings`, what is to be added or set besides.
Always: tensors that share a counter in eager share it here; what the compiled graph makes has written nothing yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..fake import FakeTensor
from .plan import FromInput, FromSlot, Surroundings
from .views import Path


def version_of(t: Tensor) -> int | None:
    return None if t.is_inference() else t._version


def set_version(t: Tensor, version: int) -> None:
    torch._C._autograd._unsafe_set_version_counter((t,), (version,))


def count_versions(
    around: Surroundings,
    inputs: Mapping[int, FakeTensor],
    before: Sequence[int | None],
    outs: Sequence[object],
) -> None:
    """Fills in what counters need besides the writes. `before`: those of the inputs.

    What owns a result's memory may have another counter: factories give a detached alias of what they filled.
    """
    written = [0] * len(before)
    for m in around.mutations:
        written[m.input] += not m.hidden
    for change in around.metadata:
        written[change.input] += len(change.path)
    made: dict[int, int] = {}
    for k, (out, plan) in enumerate(zip(outs, around.outputs, strict=True)):
        if not isinstance(plan, (FromInput, FromSlot)) or type(out) is not FakeTensor or out.is_inference():
            continue
        path = plan.path
        if isinstance(plan, FromSlot) and plan.geometry is not None:
            path = plan.geometry.aliases
        restrided, own = _in_place(path), any(step.data for step in path)
        if isinstance(plan, FromInput):
            written[plan.input] += restrided
            restrided = 0
        elif not own:
            made[plan.slot] = max(made.get(plan.slot, 0), out._version)
        if (own and out._version) or restrided:
            around.written_outputs[k] = out._version
    for i, fake in inputs.items():
        now, start = version_of(fake), before[i]
        if now is not None and start is not None and now != start:
            around.touched[i] = now - start - written[i]
    around.written_slots.update((slot, version) for slot, version in made.items() if version)


def _in_place(path: Path) -> int:
    """How often making such a view counts as a write of what it views."""
    shared = next((n for n, step in enumerate(path) if step.data), len(path))
    return sum(step.in_place for step in path[:shared])


def written(run: Callable[[list], Sequence], around: Surroundings) -> Callable[[list], Sequence]:
    """The compiled graph, whose results have been written as often as in eager."""
    if not around.written_slots:
        return run
    slots, versions = tuple(around.written_slots), tuple(around.written_slots.values())

    def counted(args: list) -> Sequence:
        out = run(args)
        torch._C._autograd._unsafe_set_version_counter(tuple([out[k] for k in slots]), versions)
        return out

    return counted
