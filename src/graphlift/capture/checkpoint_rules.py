"""Checkpoints in captured code: the function in the graph, its nodes marked as what the backward computes again.

In: calls of `torch.utils.checkpoint`. Out: nodes with a `Region` in their meta; `with_checkpoints` runs them by torch's own.
Always: the function runs alike both times, since it only computes; where that cannot be known, a break.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import checkpoint

from ..data import dataclass
from ..frame import call_disabled
from .autograd_rules import hooked_inputs
from .breaks import Break
from .calls import call, known_object
from .capture import Capture, NotConst
from .frame import inline
from .graph import GraphBuilder
from .reordered import MayAct
from .rerun import may_draw
from .rules import rule
from .subgraph import Contents, Tensors
from .trackers import Args, ConstVar, Kwargs, ListVar, ObjectVar, TensorVar, Tracker, TupleVar

if TYPE_CHECKING:
    from .residual import Residual


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """One call of a checkpoint. ``kept``: operators whose results are not computed again.

    ``arguments``: the names of the nodes that are its arguments, rather than what the function finds by itself.
    """

    options: dict[str, Any]
    kept: tuple[Any, ...] = ()
    arguments: tuple[str, ...] = ()


#: In a node's meta: the regions that it is in, the outermost first.
REGIONS = "checkpoints"


def regions_of(node: fx.Node) -> tuple[Region, ...]:
    found: tuple[Region, ...] = node.meta.get(REGIONS, ())
    return found


def region_of(node: fx.Node | None) -> Region | None:
    """The outermost region that the node is in."""
    return next(iter(regions_of(node)), None) if node is not None else None


def is_reentrant(node: fx.Node | None) -> bool:
    """Whether the node is in a region that is a function of its arguments to autograd."""
    return node is not None and any(region.options["use_reentrant"] for region in regions_of(node))


# --- capturing -----------------------------------------------------------------------------------------------------

_OPTIONS: dict[str, Any] = {
    "use_reentrant": None,
    "preserve_rng_state": True,
    "context_fn": checkpoint.noop_context_fn,
    "determinism_check": checkpoint._DEFAULT_DETERMINISM_MODE,
    "debug": False,
    "early_stop": True,
}


@rule(checkpoint.checkpoint)
def _checkpoint(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """The function itself, in the graph: what it would compute again in the backward is what it computed.

    Only a function without effects is that: one that updates statistics does so once more in eager's backward.
    """
    given = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
    kept = _kept_operators(cap, given.get("context_fn"))
    if kept is not None:
        del given["context_fn"]
    try:
        options = _OPTIONS | {name: cap.value_of(option) for name, option in given.items()}
    except NotConst:
        raise Break("unsupported-call", "a checkpoint with options that are not constants") from None
    differentiates = torch.is_grad_enabled()
    _check_options(options, differentiates)
    if options["use_reentrant"] is None:
        options["use_reentrant"] = True
        cap.repeated.append(Warned(UserWarning))
    before, changed, tensors = Contents(cap, args), cap.changed, Tensors(cap)
    last = next(iter(reversed(cap.builder.graph.nodes)), None)
    known = {t.fake.home for t in cap.fakes.values()}
    drawn, asked = len(cap.draws), cap.history_asked
    cap.changed = {}
    result = call(cap, args[0], args[1:], kwargs)
    effects = bool(cap.changed) or before.changed() or tensors.written()
    cap.changed = changed
    if effects:
        raise Break("unsupported-call", "a checkpoint of a function that changes what is outside of it")
    if not differentiates:
        return result
    inside = list(_nodes_behind(cap.builder, last))
    put_back = options["preserve_rng_state"] and not _uses_generator(cap.builder, inside)
    if not put_back and may_draw(inside) or len(cap.draws) != drawn:
        raise Break("unsupported-call", "a checkpoint that draws other random numbers in the backward")
    if options["use_reentrant"]:
        _check_reentrant(cap, args[1:], kwargs, result, known)
        if cap.history_asked != asked or any("between_parts" in node.meta for node in inside):
            raise Break(
                "unsupported-call",
                "a reentrant checkpoint of what asks whether gradients are recorded, or what is in tensors",
            )
    arguments = tuple(t.node.name for t in map(cap.realize, args[1:]) if type(t) is TensorVar)
    region = Region({name: options[name] for name in _PASSED}, kept or (), arguments)
    for node in inside:
        node.meta[REGIONS] = (region, *regions_of(node))
    return result


#: Options that are passed on to torch; the others have one value here.
_PASSED = ("use_reentrant", "preserve_rng_state", "determinism_check", "early_stop")


class Warned(MayAct):
    """A checkpoint that does not say whether it is reentrant: it is, and torch warns."""

    def after(self, residual: Residual) -> str:
        return f"{residual.constant(call_disabled)}({residual.constant(warn_of_reentrance)})"


def warn_of_reentrance() -> None:
    """What torch does first in such a checkpoint; this one it refuses right after it."""
    with contextlib.suppress(ValueError):
        checkpoint.checkpoint(warn_of_reentrance, debug=True)


def _check_options(options: dict[str, Any], differentiates: bool) -> None:
    """Raises: Break for options that do more than choose how the backward computes again, or that torch refuses."""
    if options["determinism_check"] not in checkpoint._allowed_determinism_checks_to_fns:
        raise Break("unsupported-call", "a checkpoint with an unknown determinism_check")
    debug = checkpoint._checkpoint_debug_enabled
    if differentiates and (
        options["context_fn"] is not checkpoint.noop_context_fn
        or (options["debug"] if debug is None else debug)
    ):
        raise Break("unsupported-call", "a checkpoint with options of its own")


def _nodes_behind(builder: GraphBuilder, last: fx.Node | None) -> Iterator[fx.Node]:
    """The calls that the graph has behind ``last``; None: behind its start."""
    for node in reversed(builder.graph.nodes):
        if node is last:
            return
        if node.op != "placeholder":
            yield node


def _uses_generator(builder: GraphBuilder, nodes: list[fx.Node]) -> bool:
    """Whether the nodes have a generator of the program's, whose state no checkpoint puts back."""
    generators = {name for name, value in builder.constants.values() if isinstance(value, torch.Generator)}
    return any(arg.op == "get_attr" and arg.target in generators for n in nodes for arg in n.all_input_nodes)


def _kept_operators(cap: Capture, option: Tracker | None) -> tuple[Any, ...] | None:
    """The operators that contexts keep the results of, where they are a list, so that no code of the program's runs."""
    option = cap.realize(option) if option is not None else None
    if type(option) is not ObjectVar or option.cls is not functools.partial:
        return None
    func, given = cap.realize(option.slots["func"]), cap.realize(option.slots["args"])
    if type(func) is not ConstVar or func.value is not checkpoint.create_selective_checkpoint_contexts:
        return None
    listed = cap.realize(given.items[0]) if type(given) is TupleVar and len(given.items) == 1 else None
    return tuple(_operator(cap, item) for item in listed.items) if type(listed) is ListVar else None


def _operator(cap: Capture, item: Tracker) -> Any:
    op = known_object(cap, item)
    if not isinstance(op, torch._ops.OpOverload):
        raise Break("unsupported-call", "a checkpoint that keeps the results of what is no operator")
    return op


def _check_reentrant(cap: Capture, args: Args, kwargs: Kwargs, result: Tracker, known: set[Any]) -> None:
    """A reentrant checkpoint is a function of its tensors to autograd. Raises: Break where that shows."""
    tensors = [t for t in map(cap.realize, args) if type(t) is TensorVar]
    outputs = result.items if type(result) is TupleVar else [result]
    if kwargs or not any(t.fake.requires_grad for t in tensors):
        raise Break("unsupported-call", "a reentrant checkpoint, none of whose tensors requires a gradient")
    if hooked_inputs(cap):
        raise Break("unsupported-call", "a reentrant checkpoint beside tensors with hooks")
    for out in map(cap.realize, outputs):
        if type(out) is ConstVar and type(result) is TupleVar:
            continue
        if type(out) is not TensorVar:
            raise Break("unsupported-call", "a reentrant checkpoint that returns what is no tuple of tensors")
        differentiable = out.fake.dtype.is_floating_point or out.fake.dtype.is_complex
        if out.fake.requires_grad != differentiable or out.fake.home in known or out.fake._is_view():
            raise Break(
                "unsupported-call", "a reentrant checkpoint that returns a view, or what has no gradient"
            )


def _register_plain(fn: Any) -> None:
    @rule(fn)
    def plain(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        return inline(cap, ConstVar.known(fn), args, kwargs)


_early_stop: Any = checkpoint.set_checkpoint_early_stop
for _plain in (checkpoint.checkpoint_sequential, _early_stop, _early_stop.__wrapped__):
    _register_plain(_plain)


# --- running -------------------------------------------------------------------------------------------------------

_numbers = itertools.count()


def with_checkpoints(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with each region as one call of torch's own checkpoint; ``gm`` itself where it has no region."""
    if not any(map(regions_of, gm.graph.nodes)):
        return gm
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for region, run in itertools.groupby(list(gm.graph.nodes), region_of):
        nodes = list(run)
        inner = _inner_graph(gm, nodes, region) if region is not None else None
        if inner is None:
            for node in nodes:
                copies[node] = graph.node_copy(node, copies.__getitem__)
            continue
        call, inputs, outputs = inner
        made = graph.call_function(call, tuple(copies[node] for node in inputs))
        for k, node in enumerate(outputs):
            copies[node] = graph.call_function(operator.getitem, (made, k))
        for node in nodes:
            if node.op == "get_attr":
                copies[node] = graph.node_copy(node)
    return fx.GraphModule(gm, graph, class_name="CapturedGraph")


def run_checkpoint(region: Region, run: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Torch's own checkpoint, as the program called it."""
    options = dict(region.options)
    if region.kept:
        options["context_fn"] = functools.partial(
            checkpoint.create_selective_checkpoint_contexts, list(region.kept)
        )
    return checkpoint.checkpoint(run, *args, **options)


def _inner_graph(
    gm: fx.GraphModule, nodes: list[fx.Node], region: Region
) -> tuple[Callable[..., Any], list[fx.Node], list[fx.Node]] | None:
    """A function that calls the nodes under a checkpoint, what it takes and what it gives; None: it is no checkpoint."""
    mine = set(nodes)
    needed = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in mine)
    inputs = sorted((n for n in needed if n.op != "get_attr"), key=lambda n: n.name not in region.arguments)
    count = sum(n.name in region.arguments for n in inputs)
    if region.options["use_reentrant"] and not count:
        return None
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    copies.update((node, graph.node_copy(node)) for node in needed if node.op == "get_attr")
    for node in nodes:
        copy = copies[node] = graph.node_copy(node, copies.__getitem__)
        copy.meta[REGIONS] = regions_of(node)[1:]
    outputs = [n for n in nodes if n.op != "get_attr" and any(user not in mine for user in n.users)]
    graph.output(tuple(copies[n] for n in outputs))
    forward = with_checkpoints(fx.GraphModule(gm, graph, class_name="Checkpointed")).forward

    def call(*given: Any) -> Any:
        found = given[count:]
        return run_checkpoint(region, lambda *args: forward(*args, *found), given[:count])

    call.__name__ = call.__qualname__ = f"checkpoint_{next(_numbers)}"
    return call, inputs, outputs
