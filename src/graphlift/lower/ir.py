"""The loop-level IR: what `lower/` produces from a functional ATen graph and `codegen/` turns into machine code.

In: nothing (this file only defines data). Out: `Node`, `Kernel`, `Plan` and their parts.
Always: every form is frozen and hashable, so that structurally equal kernels are equal and compile once.
"""

from __future__ import annotations

from dataclasses import field
from functools import reduce
from operator import getitem
from typing import Any
from weakref import WeakValueDictionary

import torch

from graphlift.data import dataclass
from graphlift.shapes.expr import Expr, SizeLike, Symbol, evaluate


class Node:
    """One scalar value inside a loop nest.

    ``op`` is one of:

    - ``const`` (attr: Python number), ``axis`` (attr: axis number; int64), ``size`` (attr: `Expr`; int64),
    - ``load`` (attr: buffer position in ``Kernel.buffers``; args: flat element index[, mask, other]),
      where a false mask gives ``other`` and does not touch memory. A load may read what an *earlier loop* of the
      same kernel stored for the same outer point,
    - ``reduced`` (attr: (loop, position) of an earlier loop's reduction result),
    - ``cast`` (to ``dtype``, with ATen's conversion rules), ``bitcast``,
    - arithmetic, comparison, logic and math by name: the rows of ``lower.interpret.OPS``, which define them.

    All args of an arithmetic node have the node's dtype (comparisons: equal dtypes, result bool; ``where``: a bool
    and two values); casts are explicit. bf16/fp16 occur only in load, store, const, cast, where and bit operations:
    arithmetic on them is float32 between casts. Integer divisors are never 0; shift counts are within the width.
    Index nodes are sums of ``mul(axis, const or size)`` terms (coefficient 1 and offset 0 omitted), axes ascending,
    then the terms that are no axes (indirect loads, floordiv/mod of axes), then the constant or size.

    Nodes are interned: structurally equal nodes are one object, so equality and hashing are by identity and cheap on
    graphs with much sharing. Immutable; ``replace`` gives a changed node.
    """

    __slots__ = ("__weakref__", "args", "attr", "dtype", "op")
    __match_args__ = ("op", "dtype", "args", "attr")

    op: str
    dtype: torch.dtype
    args: tuple[Node, ...]
    attr: Any

    def __new__(cls, op: str, dtype: torch.dtype, args: tuple[Node, ...] = (), attr: Any = None) -> Node:
        # 0.0 == -0.0, 1 == True and nan != nan would confuse constants: numbers go by type and text.
        key = (op, dtype, args, (type(attr), repr(attr)) if op == "const" else attr)
        # The dictionary below the WeakValueDictionary: much faster.
        reference = _NODES.data.get(key)  # type: ignore[attr-defined]
        found: Node | None = reference and reference()
        if found is None:
            found = object.__new__(cls)
            _set_op(found, op)
            _set_dtype(found, dtype)
            _set_args(found, args)
            _set_attr(found, attr)
            found = _NODES.setdefault(key, found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Node is immutable: cannot set {name}; use replace()")

    def replace(self, **changes: Any) -> Node:
        """This node with some of op, dtype, args, attr changed."""
        return Node(**{"op": self.op, "dtype": self.dtype, "args": self.args, "attr": self.attr, **changes})

    def __reduce__(self) -> tuple[Any, ...]:
        return Node, (self.op, self.dtype, self.args, self.attr)

    def __repr__(self) -> str:
        attr = "" if self.attr is None else repr(self.attr)
        inner = ", ".join([attr] * bool(attr) + [repr(arg) for arg in self.args])
        return f"{self.op}.{str(self.dtype).removeprefix('torch.')}({inner})"


_NODES: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()
_set_op, _set_dtype = Node.op.__set__, Node.dtype.__set__  # type: ignore[attr-defined,misc]
_set_args, _set_attr = Node.args.__set__, Node.attr.__set__  # type: ignore[attr-defined,misc]


@dataclass(frozen=True, slots=True)
class Store:
    """``buffer[index] = value`` (buffer: position in ``Kernel.buffers``); ``mode`` "set" or "add" (atomic)."""

    buffer: int
    index: Node
    value: Node
    mode: str = "set"


@dataclass(frozen=True, slots=True)
class Reduction:
    """A value folded over one sweep of the inner axes: sum prod max min any all argmax argmin.

    ``value.dtype`` is what is folded, ``dtype`` what the result has (accumulation dtype for sum/prod).
    argmax/argmin give the flat position within the inner axes (first occurrence; NaN wins, as ATen).
    """

    op: str
    value: Node
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Loop:
    """One sweep over the inner axes: fold ``reductions``, perform ``stores`` at every inner point."""

    reductions: tuple[Reduction, ...] = ()
    stores: tuple[Store, ...] = ()


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """A kernel parameter: a base pointer to ``numel`` elements of ``dtype``; ``role`` is "in", "out" or "inout".

    "out" is written before it is read, if it is read at all; "inout" has contents that matter on entry.
    """

    dtype: torch.dtype
    numel: SizeLike
    role: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """For every point of ``outer`` (independent, may run in parallel): run ``loops`` in order, then ``epilogue``.

    Axes are numbered outer first: axis k < len(outer) is an outer axis, the rest are inner axes.
    Softmax is outer=(rows,), inner=(cols,), three loops (max; sum of exp; store). A pointwise kernel has one loop
    without reductions and no inner axes. ``epilogue`` stores happen once per outer point and see only outer axes and
    reduced values.

    Sizes may be expressions over ``symbols``, whose values are given with each call (``hints``: in an example call,
    for choosing how the code is made). No size is negative.
    """

    outer: tuple[SizeLike, ...]
    inner: tuple[SizeLike, ...]
    loops: tuple[Loop, ...]
    epilogue: tuple[Store, ...]
    buffers: tuple[BufferSpec, ...]
    symbols: tuple[Symbol, ...] = ()
    hints: tuple[int, ...] = ()

    def hint(self, size: SizeLike) -> int:
        """A size in the example call."""
        if not isinstance(size, Expr):
            return size
        return evaluate(size, dict(zip(self.symbols, self.hints, strict=True)))


# --- the plan of a whole graph -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor value of the plan: geometry over a storage. ``storage`` names the allocation it lives in."""

    name: str
    dtype: torch.dtype
    device: torch.device
    shape: tuple[SizeLike, ...]
    stride: tuple[SizeLike, ...]
    offset: SizeLike
    storage: str


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Run ``kernel`` on the tensors named, in ``Kernel.buffers`` order (base pointers include the spec's offset)."""

    kernel: Kernel
    buffers: tuple[str, ...]
    origins: tuple[str, ...] = ()  # ATen ops (with user lines) this kernel came from, for the report


@dataclass(frozen=True, slots=True)
class ExternCall:
    """Call an ATen overload. args/kwargs are pytrees holding ``Ref(name)`` for tensors, and expressions for sizes that
    vary; results bind ``outputs``.

    An output name may be None (unused). Outputs are fresh tensors with the geometry of their TensorSpec, unless the
    spec's ``storage`` is that of an input: then the call returns a view of it.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[str | None, ...]
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flattened:
    """An overload that gives lists of tensors, as one that gives the tensors at these index paths in a row."""

    op: Any
    paths: tuple[tuple[int, ...], ...]

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        result = self.op(*args, **kwargs)
        return tuple([reduce(getitem, path, result) for path in self.paths])

    def __str__(self) -> str:
        return str(self.op)

    @property
    def _schema(self) -> Any:
        return self.op._schema


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of the plan, inside an ExternCall's arguments."""

    name: str


@dataclass(frozen=True, slots=True)
class ViewCall:
    """``output`` is an as_strided alias of ``base`` with the geometry of its TensorSpec (no data moves)."""

    output: str
    base: str


@dataclass(frozen=True, slots=True)
class CheckCall:
    """If the one-element bool tensor ``flag`` is true, some element of ``index`` is outside [low, high) (and is not
    ``ignore``): raise the builtin exception named ``error`` with ``message``, where ``{value}`` is the first such
    element (a message without it may name any tensor as ``index``) and ``{high}`` the limit, where that varies.
    Placed before every kernel that loads through the index; the flag is computed by a kernel.
    """

    flag: str
    index: str
    low: SizeLike
    high: SizeLike
    ignore: int | None
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole graph: ``steps`` in order over ``tensors``.

    ``inputs`` names the tensor of each argument (None: not a tensor). An output is a ``Ref``, or what is not a tensor
    as it is (None, a number, a size). Storages that belong to no input or constant are the plan's own, to be planned.
    ``symbols`` gives each symbol's position among the inputs and its value in the example call; a static plan has none.
    """

    tensors: dict[str, TensorSpec]
    constants: dict[str, torch.Tensor]
    inputs: tuple[str | None, ...]
    outputs: tuple[Any, ...]
    steps: tuple[KernelCall | ExternCall | ViewCall | CheckCall, ...]
    symbols: dict[Symbol, tuple[int, int]] = field(default_factory=dict)

    def hint(self, size: SizeLike) -> int:
        """A size in the example call."""
        if not isinstance(size, Expr):
            return size
        return evaluate(size, {symbol: value for symbol, (_, value) in self.symbols.items()})
