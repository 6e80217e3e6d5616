"""The door of this stage: a functional ATen graph in, a plan out.

In: an fx GraphModule of ATen overloads whose nodes carry fakes. Out: `Plan`.
Always: running the plan equals running the graph, to rounding, with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from graphlift.collector import collector_paused
from graphlift.lower import batchnorm, pooling, resizing  # noqa: F401 (they fill the table)
from graphlift.lower.build import build
from graphlift.lower.emit import emit
from graphlift.lower.ir import Plan
from graphlift.lower.schedule import schedule
from graphlift.lower.sizes import knowing, table_of


def lower_graph(gm: torch.fx.GraphModule, example_fakes: Sequence[torch.Tensor] = ()) -> Plan:
    """Lower ``gm`` to kernels, extern calls and views."""
    table = table_of([node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"])
    with collector_paused(), knowing(table):
        graph = build(gm)
        return emit(graph, schedule(graph))
