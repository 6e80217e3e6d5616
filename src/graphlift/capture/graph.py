"""The FX graph under construction, at torch level.

In: callables with trackers as arguments. Out: nodes with fake values, and a `GraphModule` in the end.
Always: every tensor operation runs exactly once on fakes; placeholders come first and stand for real input tensors.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx

from ..guards import Source
from ..shapes.expr import Expr, Real, Relation, Symbol, free
from ..shapes.node import size_nodes, to_symint
from ..shapes.table import SymbolTable
from .breaks import Break
from .trackers import FloatVar, ListVar, SizeVar, TensorVar, Tracker, TupleVar

# numpy's scalars print as np.float64(0.5) in the code of a graph.
fx.graph._register_custom_builtin("np", "import numpy as np", np)


#: The functions that ask a relation of sizes.
ASKED: dict[str, Callable[..., Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
}


def _requiring(error: type[Exception]) -> Callable[[bool, str], None]:
    def require(condition: bool, message: str) -> None:
        """`graphlift.check` or `torch._check`, while a graph runs."""
        if not condition:
            raise error(message)

    return require


REQUIRE: dict[type[Exception], Callable[[bool, str], None]] = {
    error: _requiring(error) for error in (RuntimeError, IndexError, ValueError, TypeError)
}


class GraphBuilder:
    """Appends nodes and remembers which real tensor each placeholder stands for."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.input_sources: list[Source] = []
        self.input_tensors: list[torch.Tensor] = []
        self.input_versions: list[tuple[torch.Tensor, int | None]] = []
        self.arrays: set[int] = set()
        self.size_sources: list[Source] = []
        self.size_hints: list[int | float] = []
        self.drawn: dict[Symbol, fx.Node] = {}  # inputs that each call draws, which stand behind all others
        self.drawn_hints: list[int | float] = []
        self._sizes: dict[Expr, fx.Node] = {}
        self.op_count = 0
        self.constants: dict[int, tuple[str, Any]] = {}
        self._marker: fx.Node | None = None

    def add_input(
        self, source: Source, real: torch.Tensor, fake: torch.Tensor, array: bool = False
    ) -> fx.Node:
        """A placeholder; ``array``: its source gives a numpy array, on whose memory the tensor is."""
        name = "l_" + re.sub(r"\W+", "_", source.name()).strip("_")
        if self._marker is None:
            context = self.graph.inserting_before(next(iter(self.graph.nodes), None))
        else:
            context = self.graph.inserting_after(self._marker)
        with context:
            node = self._new_placeholder(name)
        self._marker = node
        node.meta["example_value"] = node.meta["val"] = fake
        node.meta["source"] = source.name()
        if array:
            self.arrays.add(len(self.input_sources))
        self.input_sources.append(source)
        self.input_tensors.append(real)
        self.input_versions.append((fake, None if fake.is_inference() else fake._version))
        return node

    def constant(self, value: Any) -> fx.Node:
        """A node that gives this very object."""
        name, _ = self.constants.setdefault(id(value), (f"constant_{len(self.constants)}", value))
        return self.graph.create_node("get_attr", name)

    def size_node(self, size: Expr, table: SymbolTable, sources: dict[Symbol, Source]) -> fx.Node:
        """The node of a size: operators on placeholders of its symbols, which stand behind those of tensors."""
        found = self._sizes.get(size)
        if found is None:
            value = to_symint(size, table)
            made = table.reals.made.get(size) if isinstance(size, Real) else None
            if made is not None:
                parts = [self.size_node(a, table, sources) if isinstance(a, Expr) else a for a in made.args]
                found = self._size_op(made.fn, *parts)
            elif isinstance(size, Symbol):
                hint = table.reals.values[size] if isinstance(size, Real) else table.hints[size]
                source = sources.get(size)
                found = self._size_placeholder(size, source, hint) if source else self._drawn(size, hint)
            else:
                found = size_nodes(size, lambda e: self.size_node(e, table, sources), self._size_step)
            found.meta["example_value"] = found.meta["val"] = value
            self._sizes[size] = found
        return found

    def found_out(self, node: fx.Node, table: SymbolTable, result: Tracker) -> Tracker:
        """What only the running graph knows came out of ``node``: which node gives it. Parts of the graph end there."""
        node.meta["between_parts"] = True
        if type(result) in (SizeVar, FloatVar):
            self._sizes[result.expr if type(result) is SizeVar else result.real] = node  # type: ignore[attr-defined]
            return result
        for tensor in result.items if type(result) in (TupleVar, ListVar) else [result]:  # type: ignore[attr-defined]
            if type(tensor) is not TensorVar:
                raise Break("data-dependent-op", f"the results of {node.target}")
            tensor.node.meta["between_parts"] = True
            for dim, size in enumerate(tensor.fake.spec.shape):  # type: ignore[attr-defined]
                if size in table.unknown and size not in self._sizes:
                    found = self.graph.create_node("call_method", "size", (tensor.node, dim), {})
                    found.meta["example_value"] = found.meta["val"] = to_symint(size, table)
                    found.meta["between_parts"] = True
                    self._sizes[size] = found
        return result

    def check(
        self,
        relation: Relation,
        error: type[Exception],
        message: str,
        table: SymbolTable,
        sources: dict[Symbol, Source],
    ) -> None:
        """The relation is asked when the graph runs, which raises where it does not hold."""
        sides = [
            self.size_node(s, table, sources) if isinstance(s, Expr) else s
            for s in (relation.lhs, relation.rhs)
        ]
        asked = self.graph.create_node("call_function", ASKED[relation.op], tuple(sides), {})
        done = self.graph.create_node("call_function", REQUIRE[error], (asked, message), {})
        asked.meta["between_parts"] = done.meta["between_parts"] = True
        self.op_count += 1

    def place_sizes(self, table: SymbolTable, sources: dict[Symbol, Source]) -> None:
        """Make every symbol in the inputs' metadata an input of its own."""
        specs = [fake.spec for fake, _ in self.input_versions]
        sizes = [n for spec in specs if spec.symbolic for n in (*spec.shape, *spec.stride)]
        for symbol in dict.fromkeys(s for n in sizes for s in sorted(free(n), key=lambda s: s.name)):
            self.size_node(symbol, table, sources)

    def _size_op(self, fn: Callable[..., Any], *args: Any) -> fx.Node:
        return self.graph.create_node("call_function", fn, args, {})

    def _size_step(self, fn: Callable[..., Any], *args: Any) -> fx.Node:
        """An operator on sizes whose result is a size too, also where it is a part of a longer sum or product."""
        node = self._size_op(fn, *args)
        value = fn(*[arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args])
        node.meta["example_value"] = node.meta["val"] = value
        return node

    def _new_placeholder(self, name: str) -> fx.Node:
        node = self.graph.create_node("placeholder", name, name=name)
        node.target = node.name  # the parameter's name: variables of two frames may be called the same
        return node

    def _size_placeholder(self, symbol: Symbol, source: Source, hint: int | float) -> fx.Node:
        name = f"{symbol.name}_" + re.sub(r"\W+", "_", source.name()).strip("_")
        node = self._number_placeholder(name, behind_drawn=False)
        node.meta["source"] = source.name()
        self.size_sources.append(source)
        self.size_hints.append(hint)
        return node

    def _drawn(self, symbol: Symbol, hint: int | float) -> fx.Node:
        node = self.drawn[symbol] = self._number_placeholder(f"drawn_{symbol.name}", behind_drawn=True)
        node.meta["drawn"] = True
        self.drawn_hints.append(hint)
        return node

    def _number_placeholder(self, name: str, behind_drawn: bool) -> fx.Node:
        nodes = list(self.graph.nodes)
        earlier = [n for n in nodes if n.op == "placeholder" and (behind_drawn or "drawn" not in n.meta)]
        after, before = self.graph.inserting_after, self.graph.inserting_before
        with after(earlier[-1]) if earlier else before(nodes[0] if nodes else None):
            return self._new_placeholder(name)

    def lift(self, tensor: TensorVar) -> TensorVar:
        """The tensor of another graph as one of this one. Raises: Break, since here only inner graphs take tensors."""
        raise Break("unsupported-call", "a tensor of an inner function that is used outside of it")

    def written_inputs(self) -> list[int]:
        """The inputs changed in place. Tensors made in inference mode have no version counter: they may all be."""
        versions = enumerate(self.input_versions)
        return [i for i, (fake, version) in versions if version is None or fake._version != version]

    def check_arrays(self) -> None:
        """Raises: Break where an input is changed beside arrays, whose memory no guard tells from it."""
        if self.written_inputs():
            raise Break(
                "unsupported-mutation",
                "an input changed in place in code that reads numpy arrays from outside",
            )

    def add_op(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any, where: str
    ) -> fx.Node:
        node = self.graph.create_node(kind, target, args, kwargs)
        node.meta["example_value"] = node.meta["val"] = value
        node.meta["stack_trace"] = where
        if kind != "get_attr":
            self.op_count += 1
        return node

    def add_item(self, node: fx.Node, index: int, value: Any, where: str) -> fx.Node:
        item = self.graph.create_node("call_function", operator.getitem, (node, index), {})
        item.meta["example_value"] = item.meta["val"] = value
        item.meta["stack_trace"] = where
        return item

    def finish(
        self, outputs: list[TensorVar], state_calls: list[tuple[Callable[..., Any], tuple[Any, ...]]]
    ) -> fx.GraphModule:
        """Close the graph; ``state_calls`` put global state back to what it was at entry."""
        for fn, args in state_calls:
            self.graph.create_node("call_function", fn, args, {})
        for node in reversed(self.graph.nodes):
            if node.meta.get("number") and not node.users:  # which was only asked for (questions.py)
                self.graph.erase_node(node)
        self.graph.output(tuple(tensor.node for tensor in outputs))
        root = torch.nn.Module()
        for name, value in self.constants.values():
            setattr(root, name, value)
        module = fx.GraphModule(root, self.graph, class_name="CapturedGraph")
        return module
