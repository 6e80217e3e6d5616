"""The value graph: what each tensor of an ATen graph means, as a function from an element's index to an expression.

In: table rows build `Value`s through a `Builder`. Out: a graph of values; `Instance` evaluates one at an index.
Always: a value is a buffer (exists in memory), a view (an index map), a point (computed per element) or a reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from graphlift.data import dataclass
from graphlift.lower import affine as ix
from graphlift.lower.affine import ZERO, Affine, Shape
from graphlift.lower.expr import both, cast, const, where
from graphlift.lower.ir import Node
from graphlift.lower.sizes import hint, sizes_of
from graphlift.shapes.expr import SizeLike, contiguous_strides

BUFFER, VIEW, POINT, REDUCE = "buffer", "view", "point", "reduce"
Index = tuple[Affine, ...]

SPLIT_COUNT = 1 << 16  # a whole-tensor reduction of more elements is done in two stages

OPMATH = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
SUPPORTED = frozenset(
    {torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool}
    | {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}
)


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype ATen computes in for values stored as ``dtype``."""
    return OPMATH.get(dtype, dtype)


@dataclass(frozen=True, slots=True)
class Meta:
    """Geometry of a tensor, read once from a fake."""

    shape: Shape
    dtype: torch.dtype
    stride: Shape
    device: torch.device

    @property
    def numel(self) -> SizeLike:
        return prod(self.shape)

    @staticmethod
    def of(tensor: torch.Tensor) -> Meta:
        return Meta(sizes_of(tensor.shape), tensor.dtype, sizes_of(tensor.stride()), tensor.device)


def dense_order(shape: Sequence[SizeLike], stride: Sequence[SizeLike]) -> tuple[int, ...] | None:
    """Dimensions of size > 1 from outermost to innermost in memory; None unless the memory is dense, no overlap."""
    dims = sorted((d for d in range(len(shape)) if shape[d] != 1), key=lambda d: (-hint(stride[d]), d))
    step: SizeLike = 1
    for d in reversed(dims):
        if stride[d] != step:
            return None
        step = step * shape[d]
    return tuple(dims)


class Value:
    """A tensor of the graph. Mutable while the graph is built and classified; see `schedule` for the later fields."""

    __slots__ = (
        "base", "checks", "cost", "dense", "device", "dims", "dtype", "evaluate", "fold", "id", "inputs", "is_item",
        "kind", "limits", "loads", "map", "name", "needed", "numel", "origin", "points", "shape", "stride", "unit",
        "users",
    )  # fmt: skip

    def __init__(
        self, kind: str, shape: Shape, dtype: torch.dtype, device: torch.device, number: int
    ) -> None:
        self.kind = kind
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.id = number
        self.numel = prod(shape)
        self.points = hint(self.numel)  # elements in the example call, for costs
        self.stride: Shape = ()
        self.dense: tuple[int, ...] | None = None  # memory order of dimensions, where dense
        self.inputs: tuple[Value, ...] = ()
        self.base: Any = None  # view: the value looked at; reduction: the value folded
        self.map: Any = None  # view: (index, axis sizes) -> index of base
        self.evaluate: Any = None  # point: (instance, index) -> Node
        self.fold = ""  # reduction: its op; view: "reshape" for row-major reshapes
        self.dims: tuple[int, ...] = ()  # reduction: dimensions of base that are folded
        self.cost = 0  # point: operations per element, own ones only until classified
        self.loads = 0  # point: full-size loads per element once inlined
        self.is_item = False  # computed where it is defined, not inlined into its users
        self.needed = False  # must exist in memory
        self.users: list[
            Value | None
        ] = []  # values reading it, views looked through; None: an extern call or output
        self.unit = -1  # the scheduled unit that produces it
        self.origin: Any = None  # the fx node it came from
        self.name = ""
        self.checks: tuple[Bounds, ...] = ()  # must have passed before it is computed
        self.limits: tuple[SizeLike, SizeLike] | None = (
            None  # smallest and largest element of integers, where known
        )

    def __repr__(self) -> str:
        return f"{self.kind}%{self.id}[{self.name}]({self.dtype}, {list(self.shape)})"


@dataclass(slots=True, eq=False)
class Bounds:
    """A check that ``index`` lies in [low, high) or equals ``ignore``; ``flag`` is true where it does not.

    Both are places in memory (`build.Place`).
    """

    flag: Any
    index: Any
    low: SizeLike
    high: SizeLike
    ignore: int | None
    error: str
    message: str
    live: bool = False
    unit: int = -1


class Builder:
    """Makes values; rows of the operator tables use it. ``origin`` is the fx node being lowered."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.origin: Any = None
        self.bounds: dict[Any, Bounds] = {}
        self.checks: list[tuple[int, Bounds]] = []  # with the number of values that were there before
        # Set by the graph builder: a value's place in memory; a call of ATen (target, args, meta, **kwargs).
        self.place_of: Any = None
        self.call: Any = None

    def check(self, bounds: Bounds) -> Bounds:
        """Register a bounds check."""
        self.checks.append((len(self.values), bounds))
        return bounds

    def _new(self, kind: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> Value:
        value = Value(kind, shape, dtype, device, len(self.values))
        value.origin = self.origin
        self.values.append(value)
        return value

    def buffer(self, meta: Meta, name: str) -> Value:
        """A tensor that exists in memory: an input, a constant, the result of an extern call."""
        value = self._new(BUFFER, meta.shape, meta.dtype, meta.device)
        value.stride = meta.stride
        value.name = name
        return value

    def view(
        self, base: Value, shape: Sequence[SizeLike], index_map: Callable[[Index, Sequence[SizeLike]], Index]
    ) -> Value:
        """``base`` looked at through an index map."""
        value = self._new(VIEW, tuple(shape), base.dtype, base.device)
        value.base = base
        value.map = index_map
        value.inputs = (base,)
        return value

    def reshape(self, base: Value, shape: Sequence[SizeLike]) -> Value:
        """The row-major reshape of ``base``."""
        old, new = base.shape, tuple(shape)
        if old == new:
            return base
        value = self.view(base, new, lambda index, sizes: ix.reshaped(index, old, new, sizes))
        value.fold = "reshape"
        return value

    def expand(self, base: Value, shape: Sequence[SizeLike]) -> Value:
        """``base`` broadcast to ``shape``."""
        pick = broadcast_dims(base.shape, tuple(shape))
        if pick is None:
            return base
        return self.view(base, shape, lambda index, _: tuple([ZERO if d < 0 else index[d] for d in pick]))

    def permute(self, base: Value, order: Sequence[int]) -> Value:
        """Dimension k of the result is dimension ``order[k]`` of ``base``."""
        inverse = sorted(range(len(order)), key=lambda k: order[k])
        shape = tuple([base.shape[d] for d in order])
        return self.view(base, shape, lambda index, _: tuple([index[k] for k in inverse]))

    def compute(
        self,
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
        evaluate: Callable[[Instance, Index], Node],
        inputs: Sequence[Value],
        cost: int = 1,
    ) -> Value:
        """A value computed element by element by ``evaluate(instance, index)``, which may read ``inputs`` anywhere."""
        value = self._new(POINT, shape, dtype, device)
        value.evaluate = evaluate
        value.inputs = tuple(inputs)
        value.cost = cost
        value.stride = contiguous_strides(shape)
        value.dense = tuple([d for d, size in enumerate(shape) if size != 1])
        return value

    def point(
        self, expression: Callable[..., Node], *inputs: Value, dtype: torch.dtype, cost: int = 1
    ) -> Value:
        """``expression`` of the broadcast inputs' elements."""
        shape = inputs[0].shape
        for x in inputs[1:]:
            if x.shape != shape:
                shape = broadcast_shapes([x.shape for x in inputs])
                break
        return self.point_at(shape, expression, inputs, dtype, cost)

    def point_at(
        self,
        shape: Shape,
        expression: Callable[..., Node],
        inputs: Sequence[Value],
        dtype: torch.dtype,
        cost: int,
    ) -> Value:
        """As `point`, with the result shape given."""
        picks = [broadcast_dims(x.shape, shape) for x in inputs]
        if not any(picks) and all(x.shape == shape for x in inputs):

            def evaluate(instance: Instance, index: Index) -> Node:
                return expression(*[instance.read(x, index) for x in inputs])

        else:

            def evaluate(instance: Instance, index: Index) -> Node:
                nodes = []
                for x, pick in zip(inputs, picks, strict=True):
                    inner = index if pick is None else tuple([ZERO if d < 0 else index[d] for d in pick])
                    nodes.append(instance.read(x, inner))
                return expression(*nodes)

        return self.compute(shape, dtype, inputs[0].device, evaluate, inputs, cost)

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        """``x`` converted."""
        if x.dtype == dtype:
            return x
        return self.point_at(x.shape, lambda a: cast(a, dtype), (x,), dtype, 1)

    def copy(self, x: Value, stride: Sequence[SizeLike] | None = None) -> Value:
        """``x`` as a value of its own, with strides of its own."""
        value = self.point_at(x.shape, lambda a: a, (x,), x.dtype, 0)
        if stride is not None:
            place(value, tuple(stride))
        return value

    def full(self, shape: Sequence[SizeLike], number: Any, dtype: torch.dtype, device: torch.device) -> Value:
        """A constant everywhere."""
        node = const(number, dtype)
        return self.compute(tuple(shape), dtype, device, lambda _, __: node, (), 0)

    def reduce(
        self, op: str, x: Value, dims: Sequence[int], keepdim: bool, dtype: torch.dtype | None = None
    ) -> Value:
        """``x`` folded over ``dims``; bf16/fp16 are folded and returned as float32."""
        wide = OPMATH.get(x.dtype)
        if wide is not None:
            x = self.cast(x, wide)
        folded = set(dims)
        if keepdim:
            shape = tuple([1 if d in folded else s for d, s in enumerate(x.shape)])
        else:
            shape = tuple([s for d, s in enumerate(x.shape) if d not in folded])
        if dtype is None:
            dtype = x.dtype
        if prod([x.shape[d] for d in folded]) == 1:  # nothing to fold
            if op in ("argmax", "argmin"):
                return self.full(shape, 0, dtype, x.device)
            return self.cast(self.reshape(x, shape), dtype)
        count = prod([x.shape[d] for d in folded])
        if len(folded) == len(x.shape) and hint(count) >= SPLIT_COUNT and op not in ("argmax", "argmin"):
            staged = self._in_two_stages(op, x, count, dtype)
            if staged is not None:
                return self.reshape(staged, shape)
        value = self._new(REDUCE, shape, dtype, x.device)
        value.fold = op
        value.base = x
        value.dims = tuple(sorted(folded))
        value.inputs = (x,)
        value.stride = contiguous_strides(shape)
        value.dense = tuple([d for d, size in enumerate(shape) if size != 1])
        return value

    def _in_two_stages(self, op: str, x: Value, count: SizeLike, dtype: torch.dtype) -> Value | None:
        """A long reduction to one element, so that threads can share the first stage; None where nothing divides it."""
        chunks = next((k for k in range(64, 15, -1) if count % k == 0), 1)
        if chunks > 1:
            partial = self.reduce(op, self.reshape(x, (chunks, count // chunks)), (1,), False, dtype)
            return self.reduce(op, partial, (0,), False, dtype)
        if isinstance(count, int):
            return None
        rank = len(x.shape)
        lead = next((k for k in range(1, rank) if hint(prod(x.shape[:k])) >= 16), rank)
        if hint(prod(x.shape[lead:])) < 64:
            return None
        partial = self.reduce(op, x, range(lead, rank), False, dtype)
        return self.reduce(op, partial, range(lead), False, dtype)


def place(value: Value, stride: Shape) -> None:
    """Give a computed value ``stride`` in memory if that is dense; else it stays row-major."""
    if value.kind in (POINT, REDUCE) and stride != value.stride:
        order = dense_order(value.shape, stride)
        if order is not None:
            value.stride = stride
            value.dense = order


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """The shape that shapes known to be compatible broadcast to."""
    rank = max(map(len, shapes))
    padded: list[Shape] = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple([next((s for s in sizes if s != 1), 1) for sizes in zip(*padded, strict=True)])


def broadcast_dims(shape: Shape, to: Shape) -> tuple[int, ...] | None:
    """For each dimension of ``shape`` the dimension of ``to`` that indexes it, -1 for none; None: shapes are equal."""
    if shape == to:
        return None
    lead = len(to) - len(shape)
    # Sizes that vary may be equal without being the same expression: only a 1 is repeated.
    return tuple([d + lead if size != 1 or to[d + lead] == 1 else -1 for d, size in enumerate(shape)])


class Instance:
    """One evaluation of values over a space of axes. Reads of what is computed elsewhere become ``read`` leaves.

    A leaf is ``Node("read", dtype, () or (mask, other), (value id, memory-flat affine index))``.
    """

    def __init__(self, sizes: Sequence[SizeLike], root: Value) -> None:
        self.sizes = sizes
        self.root = root
        self.mask: Node | None = None
        self.reads: list[tuple[Value, Affine, Node | None]] = []
        self.memo: dict[Any, Node] = {}
        self.origins: dict[Any, None] = {root.origin: None}  # fx nodes evaluated here, in order
        self.checks: set[Bounds] = set(root.checks)

    def read(self, value: Value, index: Index) -> Node:
        """The element of ``value`` at ``index``."""
        while value.kind == VIEW:
            base = value.base
            if value.fold and (base.kind in (BUFFER, REDUCE) or base.is_item and base is not self.root):
                strides = ix.view_strides(base.shape, base.stride, value.shape)
                if strides is not None:  # the flat index needs no division
                    return self._leaf(base, ix.linear(index, strides))
            index = value.map(index, self.sizes)
            value = base
        key = (value.id, index, self.mask)
        node = self.memo.get(key)
        if node is None:
            if value.kind == POINT and not value.is_item:
                node = value.evaluate(self, index)
                self.origins[value.origin] = None
                if value.checks:
                    self.checks.update(value.checks)
            else:
                node = self._leaf(value, ix.linear(index, value.stride))
            self.memo[key] = node
        return node

    def read_if(self, mask: Node, value: Value, index: Index, other: Node) -> Node:
        """The element at ``index`` where ``mask`` holds (only there must the index be valid), else ``other``."""
        if mask.op == "const":
            return self.read(value, index) if mask.attr else other
        return where(mask, self.read_under(mask, value, index), other)

    def read_under(self, mask: Node, value: Value, index: Index) -> Node:
        """The element at ``index`` where ``mask`` holds (only there must the index be valid), else anything."""
        if mask.op == "const" and mask.attr:
            return self.read(value, index)
        saved = self.mask
        self.mask = mask if saved is None else both(saved, mask)
        node = self.read(value, index)
        self.mask = saved
        return node

    def _leaf(self, value: Value, flat: Affine) -> Node:
        self.reads.append((value, flat, self.mask))
        args = () if self.mask is None else (self.mask, const(0, value.dtype))
        return Node("read", value.dtype, args, (value.id, flat))
