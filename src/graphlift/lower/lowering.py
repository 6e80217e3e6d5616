"""The door of this stage: a functional ATen graph in, a plan out.

In: an fx GraphModule of ATen overloads whose nodes carry fakes. Out: `Plan`.
Always: running the plan equals running the graph, to rounding, with the same random numbers.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.fx

from graphlift.lower import batchnorm, pooling  # noqa: F401 (they fill the table)
from graphlift.lower.build import build
from graphlift.lower.emit import emit
from graphlift.lower.ir import Plan
from graphlift.lower.schedule import schedule


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Lowering makes many small objects and no cycles: walking the heap meanwhile would take longer than lowering."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def lower_graph(gm: torch.fx.GraphModule, example_fakes: Sequence[torch.Tensor] = ()) -> Plan:
    """Lower ``gm`` to kernels, extern calls and views."""
    with _collector_paused():
        graph = build(gm)
        return emit(graph, schedule(graph))
