"""The program as autograd calls it, before anything is made functional.

In: the operators a recorder is given, with their fakes. Out: an FX graph with the mutations and views as they were.
Always: for reading; the graph that runs is made from the recorder's trace.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ..fake import FakeTensor
from .record import Decompositions, Recorder


class ListingRecorder(Recorder):
    """A recorder that also lists every operator it is given."""

    def __init__(self, decompositions: Decompositions | None = None) -> None:
        super().__init__(decompositions)
        self.listing = _Listing()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.listing.add(func, args, kwargs or {}, result)
        return result

    def release(self) -> None:
        self.listing.forget()
        super().release()


class _Listing:
    def __init__(self) -> None:
        self._graph = fx.Graph()
        self._nodes: dict[
            int, tuple[Any, fx.Node]
        ] = {}  # by id; the tensor is kept so that the id stays its own

    def add(self, func: Any, args: tuple, kwargs: dict, result: Any) -> None:
        node = self._graph.create_node("call_function", func, self._load(args), self._load(kwargs))
        self._store(node, result)

    def forget(self) -> None:
        self._nodes.clear()

    def module(self) -> fx.GraphModule:
        if not any(n.op == "output" for n in self._graph.nodes):
            self._graph.output(())
        return fx.GraphModule(torch.nn.Module(), self._graph, "traced")

    def _load(self, a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            return self._node_of(a)
        if isinstance(a, (tuple, list)):
            return type(a)(self._load(v) for v in a)
        if isinstance(a, dict):
            return {k: self._load(v) for k, v in a.items()}
        return a

    def _node_of(self, t: torch.Tensor) -> fx.Node:
        known = self._nodes.get(id(t))
        if known is None:  # an input, or a constant: met here for the first time
            places = [n for n in self._graph.nodes if n.op == "placeholder"]
            first = next((n for n in self._graph.nodes if n.op != "placeholder"), None)
            with self._graph.inserting_before(first):
                node = self._graph.placeholder(f"input{len(places)}")
            known = self._nodes[id(t)] = (t, node)
        return known[1]

    def _store(self, node: fx.Node, result: Any) -> None:
        if type(result) is FakeTensor:
            self._nodes[id(result)] = (result, node)
        elif isinstance(result, (tuple, list)):
            for i, part in enumerate(result):
                if type(part) is FakeTensor or isinstance(part, (tuple, list)):
                    self._store(self._graph.call_function(operator.getitem, (node, i)), part)
