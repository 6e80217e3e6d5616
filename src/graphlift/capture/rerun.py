"""Graphs that raise while they run: the frame runs again as it is, to leave the effects and the traceback of eager.

In: a captured graph; later the exception of a run and the frame's arguments. Out: what the frame itself does.
Always: only frames whose graph has left no trace when it raises: no writes, and random numbers that can be drawn again.
"""

from __future__ import annotations

import itertools
import re
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from ..errors import GraphliftError
from ..frame import call_disabled
from .graph import REQUIRE, GraphBuilder

_RANDOM = re.compile(
    r"rand|dropout|bernoulli|normal(?!ize)|multinomial|poisson|uniform|exponential|cauchy|geometric|gumbel|rrelu|gamma"
    r"|dirichlet|binomial|attention|lstm|gru|rnn|fractional|sample|seed|generator|transformer|checkpoint",
    re.IGNORECASE,
)
_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
# What draws only where an argument is true: its place, its name, and what it is taken for where it is not given.
_ON_DEMAND: dict[Any, tuple[int, str, Any]] = {
    **dict.fromkeys(_DROPOUTS, (2, "training", True)),
    F.scaled_dot_product_attention: (4, "dropout_p", 0.0),
}
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_PLAIN = ("torch", "_operator", "math", "builtins")
#: Functions that capture made as nodes, with the graphs that a call of them runs; besides those they only compute.
MADE: weakref.WeakKeyDictionary[Callable[..., Any], tuple[fx.Graph, ...]] = weakref.WeakKeyDictionary()
MADE.update(dict.fromkeys(REQUIRE.values(), ()))


def may_run_again(builder: GraphBuilder, writes_last: bool) -> bool:
    """Whether a run of the graph that raised leaves no trace; ``writes_last``: it writes its inputs at its end only."""
    nodes = list(_nodes(builder.graph))
    if builder.written_inputs() and not writes_last:
        return False
    return all(map(is_plain, nodes)) and (not draws(builder) or all(map(_on_cpu, nodes)))


def draws(builder: GraphBuilder) -> bool:
    """Whether the graph may draw random numbers; an operator of another library may."""
    return draws_since(builder, 0)


def draws_since(builder: GraphBuilder, start: int) -> bool:
    """Whether what was appended to the graph when it had ``start`` nodes may draw random numbers."""
    return may_draw(itertools.islice(builder.graph.nodes, start, None))


def may_draw(nodes: Iterable[fx.Node]) -> bool:
    """Whether one of the nodes, or of the graphs inside them, may draw random numbers."""
    return any(_may_draw(node) for outer in nodes for node in (outer, *inside(outer)))


def _nodes(graph: fx.Graph) -> Iterator[fx.Node]:
    """The nodes of a graph and of those inside it."""
    for node in graph.nodes:
        yield node
        yield from inside(node)


def inside(node: fx.Node) -> Iterator[fx.Node]:
    for graph in _made(node.target) or ():
        yield from _nodes(graph)


def _made(target: Any) -> Iterable[fx.Graph] | None:
    return MADE.get(target) if isinstance(target, types.FunctionType) else None


def _may_draw(node: fx.Node) -> bool:
    """Whether the call may draw random numbers."""
    if node.target in _ON_DEMAND:
        place, name, default = _ON_DEMAND[node.target]
        given = node.args[place] if len(node.args) > place else node.kwargs.get(name, default)
        return bool(given)  # a node, which stands for a number of the call, is true
    return bool(_RANDOM.search(_name(node))) or _is_of_a_library(node.target)


def _name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    target = node.target
    if isinstance(target, _OPERATORS):
        return str(target)
    return getattr(target, "__name__", "")


def is_plain(node: fx.Node) -> bool:
    """Whether the call is of an operator that does no more than compute: torch's own, or one declared to write nothing."""
    if node.op != "call_function":
        return True
    target = node.target
    if _is_of_a_library(target):
        return not any(overload._schema.is_mutable for overload in _overloads(target))
    if isinstance(target, _OPERATORS) or _made(target) is not None:
        return True
    module = getattr(target, "__module__", None) or "torch"
    return module.partition(".")[0] in _PLAIN and bool(_name(node))


def _is_of_a_library(target: Any) -> bool:
    return isinstance(target, _OPERATORS) and not str(target).startswith(("aten.", "prims."))


def _overloads(target: Any) -> list[torch._ops.OpOverload]:
    if isinstance(target, torch._ops.OpOverload):
        return [target]
    return [getattr(target, name) for name in target.overloads()]


def _on_cpu(node: fx.Node) -> bool:
    """Whether it works on the CPU with the default generator, whose state is put back."""
    value = node.meta.get("val")
    return node.op != "get_attr" and (not isinstance(value, torch.Tensor) or value.device.type == "cpu")


def run_again(
    failure: Exception,
    random_states: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...],
    func: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run the frame as Python does, after its graph raised `failure`; `random_states`: calls that put generators back."""
    if isinstance(failure, GraphliftError):
        raise failure
    del failure  # what the frame raises now has no other for its context
    for put_back, state in random_states:
        put_back(*state)
    return call_disabled(func, *args, **kwargs)
