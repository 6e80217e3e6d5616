"""A captured graph that runs in parts, with Python between them.

In: a torch-level graph, and what compiles one. Out: a callable that runs compiled parts and single nodes in order.
Always: the steps do together what the graph does. Numbers that come of floats and of tensors' contents are made
between the parts, by the nodes that the program's own operations are; each part takes them as inputs. Each part is in
inference mode or not as a whole, and so it is with settings that say which kernels run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import Tensor, fx

from . import logs
from .capture.checkpoint_rules import (
    REGIONS,
    Region,
    is_reentrant,
    region_of,
    regions_of,
    run_checkpoint,
    with_checkpoints,
)
from .capture.torch_contexts import enter_inference, enter_label, leave_context
from .capture.torch_state import AUTOCAST_SETTERS, KERNEL_SETTERS, casts
from .data import dataclass
from .frame import call_disabled
from .record import Fallback, new_record
from .shapes.expr import Expr, Real, Relation, Symbol, free, holds
from .shapes.node import expr_of, table_of, to_symint
from .shapes.table import Solved, SymbolTable, Undecided

Compile = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]


@dataclass(slots=True)
class Part:
    """A graph of its own: compiled when its inputs are first there."""

    gm: fx.GraphModule
    inputs: list[str]
    results: list[str]
    drop: list[str] = field(default_factory=list)  # values that nothing needs after this step
    run: Callable[..., Sequence[Any]] | None = None
    terms: Terms | None = None  # None: nothing varies that guards do not see

    def __call__(self, given: Sequence[Any], compile_one: Compile) -> Sequence[Any]:
        terms = self.terms
        if self.run is None and (terms is None or terms.hold(given)):
            self.run = (
                compile_one(self.gm, given) if terms is None else terms.compile(self.gm, given, compile_one)
            )
        if self.run is None or (terms is not None and not terms.hold(given)):
            return self.gm.forward(*given)  # type: ignore[no-any-return]
        return self.run(*given)


class Terms:
    """What a part that is compiled while the program runs takes for granted of its numbers.

    Such numbers are hints to its compilation as sizes are to a capture; what it asks of them is asked again in each
    call, and where the answer differs, or a size is 0 or 1, the part runs as the program wrote it.
    """

    def __init__(self, gm: fx.GraphModule, table: SymbolTable) -> None:
        nodes = list(gm.graph.nodes)
        places = [n for n in nodes if n.op == "placeholder"]
        self.table = table
        numbers = [(k, expr_of(n.meta["val"])) for k, n in enumerate(places) if _is_number(n)]
        self.places = [(k, symbol) for k, symbol in numbers if isinstance(symbol, Symbol)]
        self.sizes = {s for n in nodes if not _is_number(n) for s in _free(n.meta.get("val"))} & table.unknown
        self.facts: list[Relation] = []
        self.attempts = 0

    def are_of_each_call(self) -> bool:
        return any(symbol in self.table.unknown for _, symbol in self.places)

    def hold(self, given: Sequence[Any]) -> bool:
        if any(symbol in self.sizes and given[k] < 2 for k, symbol in self.places):
            return False
        if not self.facts:
            return True
        env = {symbol: given[k] for k, symbol in self.places}
        return all(free(fact.distance) <= env.keys() and holds(fact, env) for fact in self.facts)

    def compile(
        self, gm: fx.GraphModule, given: Sequence[Any], compile_one: Compile
    ) -> Callable[..., Sequence[Any]] | None:
        """The compiled part; None where these values are no hints for others."""
        values = {symbol: given[k] for k, symbol in self.places}
        floats = {s: v for s, v in values.items() if isinstance(s, Real)}
        table = self.table.fork({s: v for s, v in values.items() if s not in floats}, floats, self.sizes)
        for node in gm.graph.nodes:
            if _is_number(node):
                node.meta["val"] = to_symint(expr_of(node.meta["val"]), table)
        self.attempts += 1
        try:
            run = compile_one(gm, given)
        except (Solved, Undecided) as problem:
            if self.attempts < _ATTEMPTS:
                return None
            why = str(problem) or "it works for one size only of those that the running graph finds out"
            new_record(0).fallbacks.append(Fallback("aot", "part", why))
            logs.warning(f"a part of a graph runs eagerly as captured: {why}")
            return gm.forward  # type: ignore[no-any-return]
        self.facts = [fact for fact in table.facts() if fact not in self.table.facts_by_relation]
        table.freeze()
        return run


_ATTEMPTS = 3


@dataclass(slots=True)
class Single:
    """One node, run as it is."""

    node: fx.Node
    inputs: list[str]
    drop: list[str] = field(default_factory=list)

    def run(self, values: dict[str, Any]) -> Any:
        args, kwargs = fx.map_arg((self.node.args, self.node.kwargs), lambda n: values[n.name])
        if self.node.op == "call_method":
            return getattr(args[0], str(self.node.target))(*args[1:], **kwargs)
        return self.node.target(*args, **kwargs)


@dataclass(slots=True)
class Checkpointed:
    """A checkpoint that is a function of its arguments to autograd: torch's own, around a program for each grad mode.

    Its forward runs without a history, and its backward is a backward of its own, as in eager.
    """

    part: Part
    region: Region
    inputs: list[str]
    results: list[str]
    drop: list[str] = field(default_factory=list)
    programs: dict[bool, Callable[..., Sequence[Any]]] = field(default_factory=dict)

    def __call__(self, given: Sequence[Any], compile_one: Compile) -> Sequence[Any]:
        found = dict(zip(self.inputs, given, strict=True))
        names = [name for name in dict.fromkeys(self.region.arguments) if name in found]

        def run(*args: Any) -> Sequence[Any]:
            now = found | dict(zip(names, args, strict=True))
            return self._program(compile_one)(*[now[name] for name in self.inputs])

        results: Sequence[Any] = run_checkpoint(self.region, run, [found[name] for name in names])
        return results

    def _program(self, compile_one: Compile) -> Callable[..., Sequence[Any]]:
        mode, gm = torch.is_grad_enabled(), self.part.gm
        if not self.region.options[
            "use_reentrant"
        ]:  # another one is inside: torch counts what the outer one keeps
            self.programs[mode] = with_checkpoints(gm).forward
        if mode not in self.programs:
            calls = [n for n in gm.graph.nodes if n.op.startswith("call_")]
            steps = split(gm) or [part_of(gm, calls, set())]

            def compile_here(gm: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Sequence[Any]]:
                return call_disabled(compile_one, gm, given)

            self.programs[mode] = Program(gm, steps, compile_here)
        return self.programs[mode]


Step = Part | Single | Checkpointed


class Program:
    """Runs the steps."""

    def __init__(self, gm: fx.GraphModule, steps: Sequence[Step], compile_one: Compile) -> None:
        self.names = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
        self.result = next(n for n in reversed(gm.graph.nodes) if n.op == "output")
        self.compile_one = compile_one
        self.steps = steps
        needed = {n.name for n in self.result.all_input_nodes}
        for step in reversed(steps):
            step.drop = [name for name in dict.fromkeys(step.inputs) if name not in needed]
            needed.update(step.inputs)

    def prepare(self, examples: Sequence[Any]) -> None:
        """Compile the first part now, if nothing but numbers come before it: what it asks of sizes is guarded then."""
        values = dict(zip(self.names, examples, strict=True))
        for step in self.steps:
            if isinstance(step, Part):
                if step.terms is not None and step.terms.are_of_each_call():
                    return
                step.run = self.compile_one(step.gm, [values[name] for name in step.inputs])
                step.terms = None
                return
            if isinstance(step, Checkpointed) or step.node.target in _CONTEXTS | AUTOCAST_SETTERS:
                return
            if any(isinstance(values[n], Tensor) for n in step.inputs):
                return
            values[step.node.name] = step.run(values)

    def __call__(self, *args: Any) -> Sequence[Any]:
        values = dict(zip(self.names, args, strict=True))
        for step in self.steps:
            if isinstance(step, Single):
                values[step.node.name] = step.run(values)
            else:
                outs = step([values[name] for name in step.inputs], self.compile_one)
                values.update(zip(step.results, outs, strict=True))
            for name in step.drop:
                del values[name]
        result: Sequence[Any] = fx.map_arg(self.result.args[0], lambda n: values[n.name])
        return result


# -- the parts of a graph ----------------------------------------------------------------------------------------


def part_of(gm: fx.GraphModule, calls: list[fx.Node], after: set[fx.Node]) -> Part:
    """A graph of these calls. Its inputs and outputs are named as the nodes of the whole graph that they stand for."""
    graph = fx.Graph()
    calls = _with_sizes(calls)
    mine = set(calls)
    copies: dict[fx.Node, fx.Node] = {}
    needed = dict.fromkeys(n for c in calls for n in c.all_input_nodes if n not in mine)
    needed.update(dict.fromkeys(_symbols_of(gm, [*needed, *calls])))
    places = [n for n in needed if n.op != "get_attr"]
    places.sort(key=lambda n: not isinstance(n.meta.get("val"), Tensor))
    for node in places:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = {key: value for key, value in node.meta.items() if key != REGIONS}
    for node in needed:
        if node.op == "get_attr":
            copies[node] = graph.node_copy(node)
    for node in calls:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
        if _is_number(node):
            copies[node].meta.pop(REGIONS, None)
    after = {*after, next(n for n in reversed(gm.graph.nodes) if n.op == "output")}
    kept = [n for n in calls if not _is_number(n) and any(u in after for u in n.users)]
    graph.output(tuple(copies[n] for n in kept))
    tables = [table for n in places if (table := table_of(n.meta.get("val"))) is not None]
    # A name of the user's may be another one in a new graph.
    part = Part(fx.GraphModule(gm, graph), [n.name for n in places], [n.name for n in kept])
    if tables:
        part.terms = Terms(part.gm, tables[0])
    return part


def _is_number(node: fx.Node) -> bool:
    return table_of(node.meta.get("val")) is not None


def _computes_size(node: fx.Node) -> bool:
    """Whether the node is arithmetic on sizes that each part can do for itself."""
    return node.op == "call_function" and _is_number(node) and type(node.meta["val"]) is torch.SymInt


def _with_sizes(calls: list[fx.Node]) -> list[fx.Node]:
    """The calls, with the arithmetic on sizes that they need before them."""
    found: dict[fx.Node, None] = {}

    def visit(node: fx.Node) -> None:
        for arg in node.all_input_nodes:
            if arg not in found and _computes_size(arg):
                visit(arg)
        found[node] = None

    for node in calls:
        visit(node)
    return list(found)


def _symbols_of(gm: fx.GraphModule, nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """The nodes that are the symbols of what these nodes give."""
    by_symbol = {expr_of(n.meta["val"]): n for n in gm.graph.nodes if _is_number(n)}
    symbols = {s: None for node in nodes for s in _free(node.meta.get("val"))}
    return [by_symbol[s] for s in symbols if s in by_symbol]


def _free(value: Any) -> list[Symbol]:
    if isinstance(value, (tuple, list)):
        return [s for item in value for s in _free(item)]
    if isinstance(value, Tensor):
        spec = getattr(value, "spec", None)
        sizes = (*spec.shape, *spec.stride, spec.offset) if spec is not None and spec.symbolic else ()
        return [s for size in sizes for s in sorted(free(size), key=lambda s: s.key)]
    if table_of(value) is not None:
        size = expr_of(value)
        return sorted(free(size), key=lambda s: s.key) if isinstance(size, Expr) else []
    return []


def _is_single(node: fx.Node) -> bool:
    """Whether the node gives a number that no part computes: of floats, or read from a tensor; or is left to eager."""
    return _is_between(node) or (_is_number(node) and not _computes_size(node))


def _is_between(node: fx.Node) -> bool:
    """Whether the node's effect is seen by what runs before or after it."""
    return "between_parts" in node.meta or node.target in _CONTEXTS


_CONTEXTS = KERNEL_SETTERS | {enter_inference, enter_label, leave_context}


def split(gm: fx.GraphModule) -> list[Step] | None:
    """The steps of the graph; None where it is one part."""
    nodes = [n for n in gm.graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    apart = {region_of(n) for n in nodes if is_reentrant(n)}
    drawn = any("drawn" in n.meta for n in gm.graph.nodes)  # numbers of each call, which no guard sees
    marked = any(_is_single(n) and n.target not in (enter_label, leave_context) for n in nodes)
    if not (apart or drawn or marked) or (apart and _casts_again(gm, nodes)):
        return None
    steps: list[Step] = []
    pending: list[fx.Node] = []

    def close(position: int) -> None:
        if pending:
            steps.append(part_of(gm, pending, set(nodes[position:])))
            pending.clear()

    for region, group in itertools.groupby(enumerate(nodes), lambda item: region_of(item[1])):
        numbered = list(group)
        if region is not None and region in apart:
            close(numbered[0][0])
            calls = [n for _, n in numbered]
            steps.append(_checkpointed(region, part_of(gm, calls, set(nodes[numbered[-1][0] + 1 :]))))
            continue
        for position, node in numbered:
            if _is_single(node) or (apart and node.target in AUTOCAST_SETTERS):
                if not _is_number(node) or _is_between(node):
                    close(position)
                for one in _with_sizes([node]):  # sizes that it is computed of
                    steps.append(Single(one, [n.name for n in one.all_input_nodes]))
            elif not _computes_size(node):
                pending.append(node)
    close(len(nodes))
    return steps


def _casts_again(gm: fx.GraphModule, nodes: list[fx.Node]) -> bool:
    """Whether autocast may cast an input in several steps, where eager keeps what it cast first."""
    step_of = {n: k for k, (_, group) in enumerate(itertools.groupby(nodes, region_of)) for n in group}
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return casts(gm.graph) and any(len({step_of.get(user) for user in n.users}) > 1 for n in places)


def _checkpointed(region: Region, part: Part) -> Checkpointed:
    for node in part.gm.graph.nodes:
        node.meta[REGIONS] = tuple([r for r in regions_of(node) if r is not region])
    return Checkpointed(part, region, part.inputs, part.results)


# -- floats inside a graph of operators ----------------------------------------------------------------------------


def without_floats(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[fx.Node]] | None:
    """The graph with the floats that it makes of its inputs as inputs behind them, and the nodes that make them."""
    made = [n for n in graph.graph.nodes if n.op == "call_function" and _is_single(n)]
    if not made:
        return None
    inner = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    needed = _with_sizes(made)
    nodes = [n for n in graph.graph.nodes if n not in made]
    for node in (*[n for n in nodes if n.op == "placeholder"], *made):
        copies[node] = inner.placeholder(node.name)
        copies[node].meta = node.meta
    for node in nodes:
        if node.op != "placeholder":
            copies[node] = inner.node_copy(node, lambda n: copies[n])
    return fx.GraphModule(graph, inner), needed


def with_floats(graph: fx.GraphModule, made: list[fx.Node], run: Callable[..., Any]) -> Callable[..., Any]:
    """Runs what `without_floats` gave as the graph that it came from; takes a list of inputs."""
    places = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    steps = [Single(n, []) for n in made]
    floats = [n.name for n in made if not _computes_size(n)]

    def call(inputs: Sequence[Any]) -> Any:
        values = dict(zip(places, inputs, strict=True))
        for step in steps:
            values[step.node.name] = step.run(values)
        return run([*inputs, *[values[name] for name in floats]])

    return call
