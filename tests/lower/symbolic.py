"""ATen graphs with sizes that vary, by the conventions lowering expects, from torch's own tracer (tests only)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

from graphlift.lower.ir import Plan
from graphlift.lower.lowering import lower_graph
from graphlift.shapes.expr import Range, SizeLike, Symbol, smax, smin
from graphlift.shapes.node import to_symint
from graphlift.shapes.table import SymbolTable

_FUNCTIONS: dict[str, Callable[..., SizeLike]] = {
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "Max": smax,
    "Min": smin,
}


def converted(expression: Any) -> SizeLike:
    """A sympy expression as one of ours."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return Symbol(str(expression))
    args = [converted(a) for a in expression.args]
    if isinstance(expression, sympy.Add):
        return sum(args[1:], args[0])
    if isinstance(expression, sympy.Mul):
        result: SizeLike = 1
        for a in args:
            result = result * a
        return result
    if isinstance(expression, sympy.Pow):
        assert isinstance(args[1], int)
        result = 1
        for _ in range(args[1]):
            result = result * args[0]
        return result
    return _FUNCTIONS[type(expression).__name__](*args)


class Stub(torch.Tensor):
    """A fake with sizes of ours."""

    @staticmethod
    def make(fake: torch.Tensor, shape: Sequence[Any], stride: Sequence[Any]) -> Stub:
        result = torch.Tensor._make_subclass(Stub, torch.empty(0, dtype=fake.dtype))
        result.__dict__["sizes"] = tuple(shape), tuple(stride)
        return result

    @property
    def shape(self) -> Any:  # type: ignore[override]
        return self.__dict__["sizes"][0]

    def stride(self, dim: int | None = None) -> Any:  # type: ignore[override]
        strides = self.__dict__["sizes"][1]
        return strides if dim is None else strides[dim]


class Traced:
    """A graph whose first inputs are its symbols, then the tensors; ``env_inputs`` gives the former for tensors."""

    def __init__(
        self, function: Callable[..., Any], inputs: Sequence[torch.Tensor], dynamic: Sequence[Sequence[int]]
    ) -> None:
        shapes = ShapeEnv(duck_shape=False)
        mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
        fakes = []
        for position, (tensor, dims) in enumerate(zip(inputs, dynamic, strict=True)):
            sizes = [DimDynamic.DYNAMIC if d in dims else DimDynamic.STATIC for d in range(tensor.ndim)]
            context = StatelessSymbolicContext(dynamic_sizes=sizes)
            source = torch._dynamo.source.ConstantSource(f"x{position}")
            fakes.append(mode.from_tensor(tensor, symbolic_context=context, source=source))

        def flat(*args: torch.Tensor) -> list[Any]:
            return pytree.tree_leaves(function(*args))

        gm = make_fx(flat, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*fakes)
        gm.graph.eliminate_dead_code()
        self.shapes = shapes
        self.table = SymbolTable()
        symbols = [s for s in shapes.backed_var_to_val if not isinstance(shapes.replace(s), sympy.Integer)]
        self.symbols = [s for s in symbols if shapes.replace(s) == s]
        for s in self.symbols:
            symbol = Symbol(str(s))
            limits = shapes.var_to_range[s]
            high = int(limits.upper) if limits.upper.is_Integer and limits.upper < 2**40 else None
            self.table.hints[symbol] = int(shapes.backed_var_to_val[s])
            self.table.ranges[symbol] = Range(int(limits.lower), high)
        self.where = {}
        for position, fake in enumerate(fakes):
            for d, size in enumerate(fake.shape):
                if isinstance(size, torch.SymInt) and size.node.expr in self.symbols:
                    self.where.setdefault(size.node.expr, (position, d))
        self.gm = self._converted(gm)

    def _size(self, size: Any) -> Any:
        if not isinstance(size, torch.SymInt):
            return size
        return to_symint(converted(self.shapes.replace(size.node.expr)), self.table)

    def _meta(self, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            return self._size(value)
        if isinstance(value, torch.Tensor):
            shape, stride = [self._size(s) for s in value.shape], [self._size(s) for s in value.stride()]
            return Stub.make(value, shape, stride)
        if isinstance(value, (tuple, list)):
            return type(value)([self._meta(v) for v in value])
        return value

    def _converted(self, gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        for node in gm.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = self._meta(node.meta["val"])
        first = next(iter(gm.graph.nodes))
        for symbol in self.symbols:
            with gm.graph.inserting_before(first):
                placeholder = gm.graph.placeholder(str(symbol))
            placeholder.meta["val"] = to_symint(Symbol(str(symbol)), self.table)
        gm.recompile()
        return gm

    def arguments(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The inputs of the graph for these tensors: its symbols' values first."""
        sizes = [tensors[p].shape[d] for p, d in (self.where[s] for s in self.symbols)]
        return [*sizes, *tensors]

    def lowered(self) -> Plan:
        return lower_graph(self.gm)
