"""Errors in a compiled backward: a note that names the line of the forward whose gradient was computed.

In: the error, the backward graph and its arguments. Out: the error with a note (PEP 678), otherwise as it was.
Always: operators that are not ATen's own never run a second time; random numbers are as if nothing had run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx


def note_forward_line(error: Exception, graph: fx.GraphModule, args: Sequence[Any]) -> None:
    """Add to `error`, raised by this graph on these arguments, where the forward called what its gradient is of."""
    calls = [n for n in graph.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    foreign = [n for n in calls if n.target.namespace not in ("aten", "prims")]
    # What is not ATen's own runs Python and may do anything; nearly always it is what raised.
    places = _lines(foreign if foreign else [_failing(graph, args)])
    if places:
        text = "the gradient was of what the compiled forward computed at:\n"
        error.add_note(text + "\nor at:\n".join(places))


def _lines(nodes: Iterable[fx.Node | None]) -> list[str]:
    traces = (n.meta.get("stack_trace") for n in nodes if n is not None)
    return list(dict.fromkeys(t.rstrip() for t in traces if t))


class _Stepping(fx.Interpreter):
    """Runs a graph and remembers where it is."""

    node: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.node = n
        return super().run_node(n)


def _failing(graph: fx.GraphModule, args: Sequence[Any]) -> fx.Node | None:
    stepping = _Stepping(graph)
    stepping.extra_traceback = False
    with torch.random.fork_rng(devices=[]):
        try:
            stepping.run(*args, enable_io_processing=False)
        except Exception:
            return stepping.node
    return None
