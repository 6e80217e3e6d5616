"""Rows for values that depend on positions: ranges, triangles, padding, concatenation, slices put into larger tensors.

In: values. Out: point values that read their inputs at other indices, under masks. Always: masked reads stay in bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphlift.lower import affine as ix
from graphlift.lower.affine import Affine, Shape, to_node
from graphlift.lower.expr import INDEX, TRUE, add, both, cast, compare, const, mul, where
from graphlift.lower.ir import Node
from graphlift.lower.table import row
from graphlift.lower.values import Builder, Instance, Meta, Value
from graphlift.lower.views import pieces
from graphlift.shapes.expr import Expr, SizeLike

CAT_LIMIT = 8  # concatenations of more tensors go to ATen


def in_range(position: Affine, low: SizeLike, high: SizeLike, size: SizeLike) -> Node:
    """Whether an index in [0, size) lies in [low, high)."""
    node = to_node(position)
    result = TRUE
    if not ix.at_least(-low, 0):
        result = compare("ge", node, const(low, INDEX))
    if not ix.at_least(high - size, 0):
        result = both(result, compare("lt", node, const(high, INDEX)))
    return result


@row("arange", "arange.start", "arange.start_step")
def arange(b: Builder, out: Meta, *args: Any, **_: Any) -> Value | None:
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1) if len(args) == 2 else args
    if not all(isinstance(v, (bool, int, float, Expr)) for v in (start, end, step)):
        return None
    exact = all(isinstance(v, (int, Expr)) for v in (start, end, step))
    if not exact and out.dtype != torch.float32:
        return None
    compute = INDEX if exact else torch.float32

    def evaluate(_: Instance, index: Any) -> Node:
        position = cast(to_node(index[0]), compute)
        return cast(add(mul(position, const(step, compute)), const(start, compute)), out.dtype)

    value = b.compute(out.shape, out.dtype, out.device, evaluate, (), 1)
    if exact and out.dtype == INDEX:
        last = start + step * (out.shape[0] - 1)
        if ix.at_least(last - start, 0):
            value.limits = (start, last)
        elif ix.at_least(start - last, 0):
            value.limits = (last, start)
    return value


@row("eye", "eye.m")
def eye(b: Builder, out: Meta, *_: Any, **__: Any) -> Value:
    def evaluate(_: Instance, index: Any) -> Node:
        return cast(compare("eq", to_node(index[0]), to_node(index[1])), out.dtype)

    return b.compute(out.shape, out.dtype, out.device, evaluate, (), 1)


def _triangle(keep: str) -> Callable[..., Value]:
    def lower(b: Builder, out: Meta, x: Value, diagonal: int = 0) -> Value:
        zero = const(0, x.dtype)

        def evaluate(instance: Instance, index: Any) -> Node:
            distance = to_node(ix.total([(index[-1], 1), (index[-2], -1)]))
            return where(compare(keep, distance, const(diagonal, INDEX)), instance.read(x, index), zero)

        return b.compute(x.shape, x.dtype, x.device, evaluate, (x,), 2)

    return lower


row("tril")(_triangle("le"))
row("triu")(_triangle("ge"))


@row("constant_pad_nd")
def constant_pad(b: Builder, out: Meta, x: Value, pad: Sequence[int], number: Any = 0) -> Value | None:
    other = const(number, x.dtype)
    rank = len(x.shape)
    before: list[SizeLike] = [0] * rank
    for k in range(len(pad) // 2):
        before[rank - 1 - k] = pad[2 * k]

    def evaluate(instance: Instance, index: Any) -> Node:
        mask, inner = TRUE, []
        for d in range(rank):
            low, high = before[d], before[d] + x.shape[d]
            mask = both(mask, in_range(index[d], low, high, out.shape[d]))
            inner.append(ix.scaled(index[d], 1, -low))
        return instance.read_if(mask, x, tuple(inner), other)

    return b.compute(out.shape, out.dtype, out.device, evaluate, (x,), 3)


def concatenate(b: Builder, parts: Sequence[Value], dim: int, shape: Shape, dtype: torch.dtype) -> Value:
    """``parts`` one after the other along ``dim``, as nested selections of masked reads."""
    starts: list[SizeLike] = [0]
    for p in parts:
        starts.append(starts[-1] + p.shape[dim])

    def evaluate(instance: Instance, index: Any) -> Node:
        result: Node | None = None
        for part, first in reversed(list(zip(parts, starts, strict=False))):
            inner = (*index[:dim], ix.scaled(index[dim], 1, -first), *index[dim + 1 :])
            mask = in_range(index[dim], first, first + part.shape[dim], shape[dim])
            value = cast(instance.read_under(mask, part, inner), dtype)
            if result is None:
                result = value
            else:  # earlier parts win below their end
                result = where(in_range(index[dim], 0, first + part.shape[dim], shape[dim]), value, result)
        assert result is not None
        return result

    return b.compute(shape, dtype, parts[0].device, evaluate, parts, 2 * len(parts))


@row("cat")
def cat(b: Builder, out: Meta, parts: Sequence[Value], dim: int = 0) -> Value | None:
    rank = len(out.shape)
    parts = [p for p in parts if p.numel or len(p.shape) == rank]
    parts = [p for p in parts if p.numel]
    if not 1 <= len(parts) <= CAT_LIMIT:
        return None
    return concatenate(b, parts, dim % rank, out.shape, out.dtype)


@row("stack")
def stack(b: Builder, out: Meta, parts: Sequence[Value], dim: int = 0) -> Value | None:
    if not 1 <= len(parts) <= CAT_LIMIT:
        return None
    dim %= len(out.shape)
    parts = [b.reshape(p, (*p.shape[:dim], 1, *p.shape[dim:])) for p in parts]
    return concatenate(b, parts, dim, out.shape, out.dtype)


@row("roll")
def roll(b: Builder, out: Meta, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value | None:
    if len(dims) != 1 or not x.shape:
        return None
    dim = dims[0] % len(x.shape)
    shift = shifts[0] % x.shape[dim]
    if shift == 0:
        return b.copy(x)
    head, tail = pieces(b, x, [x.shape[dim] - shift, shift], dim)
    return concatenate(b, [tail, head], dim, out.shape, x.dtype)


def _placed(
    b: Builder, out: Meta, base: Value | None, source: Value, dim: int, first: SizeLike, end: SizeLike,
    step: int,
) -> Value:  # fmt: skip
    """``base`` (zeros for None) with ``source`` over ``[first:end:step]`` of ``dim``."""
    size = out.shape[dim]

    def evaluate(instance: Instance, index: Any) -> Node:
        distance = ix.scaled(index[dim], 1, -first)
        mask = in_range(index[dim], first, end, size)
        if step != 1:
            node, by = to_node(distance), const(step, INDEX)
            mask = both(mask, compare("eq", Node("mod", INDEX, (node, by)), const(0, INDEX)))
            distance = ix.opaque(Node("floordiv", INDEX, (node, by)))
        other = const(0, source.dtype) if base is None else cast(instance.read(base, index), source.dtype)
        return cast(
            instance.read_if(mask, source, (*index[:dim], distance, *index[dim + 1 :]), other), out.dtype
        )

    inputs = (source,) if base is None else (source, base)
    return b.compute(out.shape, out.dtype, out.device, evaluate, inputs, 3)


def _bounds(size: SizeLike, start: SizeLike | None, end: SizeLike | None) -> tuple[SizeLike, SizeLike]:
    def clip(value: SizeLike | None, default: SizeLike) -> SizeLike:
        return default if value is None else ix.within(ix.from_end(value, size), size)

    return clip(start, 0), clip(end, size)


@row("slice_scatter")
def slice_scatter(
    b: Builder,
    out: Meta,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    dim %= len(x.shape)
    first, last = _bounds(x.shape[dim], start, end)
    return _placed(b, out, x, b.cast(source, out.dtype), dim, first, last, step)


@row("slice_backward")
def slice_backward(
    b: Builder, out: Meta, grad: Value, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Value:
    dim %= len(sizes)
    first, last = _bounds(sizes[dim], start, end)
    return _placed(b, out, None, grad, dim, first, last, step)


def _as_slice(b: Builder, x: Value, dim: int) -> Value:
    return b.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))


@row("select_scatter")
def select_scatter(b: Builder, out: Meta, x: Value, source: Value, dim: int, position: int) -> Value:
    dim %= len(x.shape)
    at = ix.from_end(position, x.shape[dim])
    return _placed(b, out, x, _as_slice(b, b.cast(source, out.dtype), dim), dim, at, at + 1, 1)


@row("select_backward")
def select_backward(
    b: Builder, out: Meta, grad: Value, sizes: Sequence[int], dim: int, position: int
) -> Value:
    dim %= len(sizes)
    at = ix.from_end(position, sizes[dim])
    return _placed(b, out, None, _as_slice(b, grad, dim), dim, at, at + 1, 1)
