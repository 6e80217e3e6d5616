"""From traces to FX.

In: inputs, operators and outputs of (part of) a Trace. Out: a functional ATen GraphModule.
Always: nodes are OpOverload calls and getitems, each with meta["val"] a fake; the module's code is made when asked for.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

from ..fake import FakeMode, FakeStorage, FakeTensor, Spec
from ..fake.symbolic import plain_mode
from ..fake.tensor import new_fake
from ..shapes.expr import Expr, Real, SizeLike, Symbol
from ..shapes.node import size_nodes, to_symint
from ..shapes.table import SymbolTable
from .ir import Op, Value

_PLAIN = FakeMode()  # owner of the fakes in node metadata
Input = Value | Symbol  # a tensor, or a size that comes as an int


def fake_of(spec: Spec, sizes: SymbolTable | None = None) -> FakeTensor:
    mode = plain_mode(sizes) if sizes is not None else _PLAIN
    return new_fake(mode, spec, FakeStorage(spec.nbytes))


def example_of(given: Input, sizes: SymbolTable | None = None) -> Any:
    """What a compiler is told of an input: a fake tensor or a SymInt."""
    if isinstance(given, Value):
        return fake_of(given.spec, sizes)
    assert sizes is not None
    return to_symint(given, sizes)


class Emitter:
    """Builds one graph."""

    def __init__(self, sizes: SymbolTable | None) -> None:
        self.sizes = sizes
        self.size_nodes: dict[Expr, fx.Node] = {}
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.env: dict[Value, fx.Node] = {}
        self._generators: dict[int, fx.Node] = {}

    def placeholder(self, name: str, given: Input) -> None:
        node = self.graph.placeholder(name)
        node.meta["val"] = example_of(given, self.sizes)
        if isinstance(given, Value):
            self.env[given] = node
        else:
            self.size_nodes[given] = node

    def size(self, size: SizeLike) -> Any:
        """The node of a size: operators on the placeholders of its symbols."""
        if isinstance(size, int):
            return size
        node = self.size_nodes.get(size)
        if node is None:
            assert self.sizes is not None
            made = self.sizes.reals.made[size] if isinstance(size, Real) else None
            if made is not None:
                parts = tuple([self.size(a) if isinstance(a, Expr) else a for a in made.args])
                node = self.graph.call_function(made.fn, parts)
            else:
                node = size_nodes(size, self.size, lambda fn, *args: self.graph.call_function(fn, args))
            node.meta["val"] = to_symint(size, self.sizes)
            self.size_nodes[size] = node
        return node

    def op(self, op: Op) -> None:
        node = self.graph.create_node("call_function", op.func, self._args(op.args), self._args(op.kwargs))
        meta = node.meta
        source = op.source
        if source is not None:
            meta["stack_trace"] = source.meta.get("stack_trace")
            meta["source"] = source.name
        if len(op.outs) == 1 and op.outs[0].index == ():
            value = op.outs[0]
            meta["val"] = fake_of(value.spec, self.sizes)
            self.env[value] = node
            return
        meta["val"] = _nested([(v.index, fake_of(v.spec, self.sizes)) for v in op.outs])
        for v in op.outs:
            part, val = node, meta["val"]
            for i in v.index:
                part, val = self.graph.create_node("call_function", operator.getitem, (part, i)), val[i]
                part.meta["val"] = val
                if source is not None:
                    part.meta["stack_trace"] = source.meta.get("stack_trace")
            self.env[v] = part

    def _args(self, a: Any) -> Any:
        cls = type(a)
        if cls is Value:
            return self.env[a]
        if cls is list:
            return [self._args(v) for v in a]
        if cls is tuple:
            return tuple([self._args(v) for v in a])
        if cls is dict:
            return {k: self._args(v) for k, v in a.items()}
        if cls is torch.Generator:
            return self._generator(a)
        if isinstance(a, Expr):
            return self.size(a)
        return a

    def _generator(self, g: torch.Generator) -> fx.Node:
        node = self._generators.get(id(g))
        if node is None:
            name = f"_generator{len(self._generators)}"
            setattr(self.root, name, g)
            with self.graph.inserting_before(next(iter(self.graph.nodes), None)):
                node = self.graph.get_attr(name)
            self._generators[id(g)] = node
        return node

    def finish(self, outputs: list[Value | None], name: str) -> fx.GraphModule:
        out = self.graph.output(tuple(None if v is None else self.env[v] for v in outputs))
        out.meta["val"] = tuple(None if v is None else fake_of(v.spec, self.sizes) for v in outputs)
        for node in self.graph.nodes:
            if node.target is operator.getitem and not node.users:
                self.graph.erase_node(node)
        with _use_lazy_graph_module(True):
            return _make_graph_module(self.root, self.graph, name)


def _nested(parts: list[tuple[tuple[int, ...], FakeTensor]]) -> Any:
    """A tuple with the fakes at their index paths, None in the holes."""
    size = 1 + max((index[0] for index, _ in parts), default=-1)
    slots: list[Any] = [None] * size
    for i in range(size):
        inner = [(index[1:], f) for index, f in parts if index[0] == i]
        if inner:
            slots[i] = inner[0][1] if inner[0][0] == () else _nested(inner)
    return tuple(slots)


def emit(
    inputs: list[tuple[str, Input]],
    ops: list[Op],
    outputs: list[Value | None],
    name: str,
    sizes: SymbolTable | None = None,
) -> fx.GraphModule:
    """One graph from these inputs through these operators to these outputs."""
    e = Emitter(sizes)
    for label, value in inputs:
        e.placeholder(label, value)
    for op in ops:
        e.op(op)
    return e.finish(outputs, name)
