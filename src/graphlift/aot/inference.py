"""Graphs that run in inference mode from end to end, as a decorated forward is captured.

In: a captured graph. Out: the same without entering the mode, for the caller to compile and run inside of it.
Always: no operation of the graph is outside of the mode.
"""

from __future__ import annotations

from torch import fx

from ..capture.torch_contexts import enter_inference, leave_context


def without_inference_mode(gm: fx.GraphModule) -> fx.GraphModule | None:
    """The graph between its entering inference mode and its leaving it; None if that is not all of it."""
    nodes = [node for node in gm.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    if len(nodes) < 3 or nodes[0].target is not enter_inference or nodes[0].args != (True,):
        return None
    switches = [node for node in nodes if node.target in (enter_inference, leave_context)]
    if switches != [nodes[0], nodes[-1]]:
        return None
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node not in switches:
            made[node] = graph.node_copy(node, lambda n: made[n])
    return fx.GraphModule(gm, graph, class_name="CapturedGraph")
