"""Graphs that raise while they run: the frame runs again as it is, to leave the effects and the traceback of eager.

In: a captured graph; later the exception of a run and the frame's arguments. Out: what the frame itself does.
Always: only frames whose graph has changed nothing when it raises: no random numbers, no writes to inputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ..errors import GraphliftError
from ..frame import call_disabled
from .graph import GraphBuilder

_RANDOM = re.compile(
    r"rand|dropout|bernoulli|normal(?!ize)|multinomial|poisson|uniform|exponential|cauchy|geometric|gumbel|rrelu|gamma"
    r"|dirichlet|binomial|attention|lstm|gru|rnn|fractional|sample|seed|generator|transformer|checkpoint",
    re.IGNORECASE,
)
_PLAIN = ("torch", "_operator", "math", "builtins")


def may_run_again(builder: GraphBuilder) -> bool:
    """Whether a run of the graph that raised has left no trace."""
    return not builder.written_inputs() and all(_is_pure(node) for node in builder.graph.nodes)


def _is_pure(node: fx.Node) -> bool:
    if node.op == "call_method":
        return not _RANDOM.search(node.target)  # type: ignore[arg-type]
    if node.op != "call_function":
        return True
    target = node.target
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target).startswith(("aten.", "prims.")) and not _RANDOM.search(str(target))
    module = getattr(target, "__module__", None) or "torch"
    name = getattr(target, "__name__", "")
    return module.partition(".")[0] in _PLAIN and bool(name) and not _RANDOM.search(name)


def run_again(failure: Exception, func: Callable[..., Any], *args: Any) -> Any:
    """Run the frame as Python does, after its graph raised `failure`."""
    if isinstance(failure, GraphliftError):
        raise failure
    del failure  # what the frame raises now has no other for its context
    return call_disabled(func, *args)
