"""Rows for reads at computed positions: embedding, gather, index_select, indexing by tensors, negative log likelihood.

In: values and index values. Out: point values whose reads are indirect. Always: an index that eager would refuse is
found by a `Check` that runs before anything reads through it, and raises what eager raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphlift.lower import affine as ix
from graphlift.lower.expr import INDEX, add, both, cast, compare, const, div, mul, op, where
from graphlift.lower.ir import Node
from graphlift.lower.table import row
from graphlift.lower.values import (
    VIEW,
    Bounds,
    Builder,
    Instance,
    Meta,
    Value,
    broadcast_dims,
    broadcast_shapes,
    opmath,
)
from graphlift.shapes.expr import SizeLike

INTEGERS = (torch.int64, torch.int32)


def limits(index: Value) -> tuple[SizeLike, SizeLike] | None:
    """Smallest and largest element where the graph tells (ranges, seen through views)."""
    while index.kind == VIEW:
        index = index.base
    return index.limits


def checked(
    b: Builder,
    index: Value,
    low: SizeLike,
    high: SizeLike,
    error: str,
    message: str,
    ignore: int | None = None,
) -> tuple[Bounds, ...]:
    """The check that ``index`` lies in [low, high); none where that is known. ``{high}`` in the message is ``high``."""
    known = limits(index)
    if known is not None and ix.at_least(known[0] - low, 0) and ix.at_least(high - known[1], 1):
        return ()
    if isinstance(high, int):
        message = message.replace("{high}", str(high))

    def outside(i: Node) -> Node:
        i = cast(i, INDEX)
        bad = op("or", compare("lt", i, const(low, INDEX)), compare("ge", i, const(high, INDEX)))
        return bad if ignore is None else both(bad, compare("ne", i, const(ignore, INDEX)))

    key = (index.id, low, high, error, message, ignore)
    found = b.bounds.get(key)
    if found is None:
        flag = b.reduce(
            "any", b.point(outside, index, dtype=torch.bool, cost=2), range(len(index.shape)), False
        )
        flag_place = b.place_of(flag)
        index_place = b.place_of(index) if "{value}" in message else flag_place
        found = b.bounds[key] = b.check(Bounds(flag_place, index_place, low, high, ignore, error, message))
    return (found,)


def wrapped(node: Node, size: SizeLike, negative: bool) -> ix.Affine:
    """An index node as an index of a dimension of ``size``, counted from the end where negative."""
    node = cast(node, INDEX)
    if negative:
        node = where(compare("lt", node, const(0, INDEX)), add(node, const(size, INDEX)), node)
    return ix.opaque(node)


OUT_OF_RANGE = "index out of range in self"


@row("embedding")
def embedding(
    b: Builder, out: Meta, weight: Value, index: Value, padding_idx: int = -1, scale_grad: bool = False,
    sparse: bool = False,
) -> Value | None:  # fmt: skip
    if index.dtype not in INTEGERS:
        return None
    rows = weight.shape[0]
    rank = len(index.shape)

    def evaluate(instance: Instance, at: Any) -> Node:
        position = wrapped(instance.read(index, at[:rank]), rows, False)
        return instance.read(weight, (position, *at[rank:]))

    checks = checked(b, index, 0, rows, "IndexError", OUT_OF_RANGE)
    value = b.compute(out.shape, out.dtype, out.device, evaluate, (weight, index), 1)
    value.checks = checks
    return value


@row("index_select")
def index_select(b: Builder, out: Meta, x: Value, dim: int, index: Value) -> Value | None:
    if index.dtype not in INTEGERS or not x.shape:
        return None
    dim %= len(x.shape)
    size = x.shape[dim]

    def evaluate(instance: Instance, at: Any) -> Node:
        position = instance.read(index, (at[dim],) if index.shape else ())
        return instance.read(x, (*at[:dim], wrapped(position, size, False), *at[dim + 1 :]))

    error, message = "IndexError", OUT_OF_RANGE
    if dim:
        error, message = (
            "RuntimeError",
            "INDICES element is out of DATA bounds, id={value} axis_dim={high}",
        )
    checks = checked(b, index, 0, size, error, message)
    value = b.compute(out.shape, out.dtype, out.device, evaluate, (x, index), 1)
    value.checks = checks
    return value


@row("gather")
def gather(
    b: Builder, out: Meta, x: Value, dim: int, index: Value, sparse_grad: bool = False
) -> Value | None:
    if index.dtype not in INTEGERS or not x.shape:
        return None
    dim %= len(x.shape)
    size = x.shape[dim]

    def evaluate(instance: Instance, at: Any) -> Node:
        position = wrapped(instance.read(index, at), size, False)
        return instance.read(x, (*at[:dim], position, *at[dim + 1 :]))

    message = f"index {{value}} is out of bounds for dimension {dim} with size {{high}}"
    checks = checked(b, index, 0, size, "RuntimeError", message)
    value = b.compute(out.shape, out.dtype, out.device, evaluate, (x, index), 1)
    value.checks = checks
    return value


@row("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(b: Builder, out: Meta, x: Value, indices: Sequence[Value | None]) -> Value | None:
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(i.dtype not in INTEGERS for _, i in given):
        return None
    shape = broadcast_shapes([i.shape for _, i in given])
    dims = [d for d, _ in given]
    first = (
        dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    )  # scattered: indexed dims come first
    rank = len(shape)
    picks = [broadcast_dims(i.shape, shape) for _, i in given]

    def evaluate(instance: Instance, at: Any) -> Node:
        inner = at[first : first + rank]
        rest = iter((*at[:first], *at[first + rank :]))
        positions = {}
        for (d, i), pick in zip(given, picks, strict=True):
            where_read = inner if pick is None else tuple([ix.ZERO if k < 0 else inner[k] for k in pick])
            known = limits(i)
            negative = known is None or not ix.at_least(known[0], 0)
            positions[d] = wrapped(instance.read(i, where_read), x.shape[d], negative)
        return instance.read(
            x, tuple([positions[d] if d in positions else next(rest) for d in range(len(x.shape))])
        )

    checks: tuple[Bounds, ...] = ()
    for position, (d, i) in enumerate(given):  # ATen counts the indexed dimensions alone
        size = x.shape[d]
        message = f"index {{value}} is out of bounds for dimension {position} with size {{high}}"
        checks += checked(b, i, -size, size, "IndexError", message)
    value = b.compute(out.shape, out.dtype, out.device, evaluate, (x, *[i for _, i in given]), 2)
    value.checks = checks
    return value


@row("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(
    b: Builder, out: Any, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> Any:
    """Classes are dimension 1 (0 for a vector)."""
    if not x.shape or target.dtype != torch.int64 or not x.dtype.is_floating_point:
        return None
    axis = 1 if len(x.shape) > 1 else 0
    classes, wide_dtype = x.shape[axis], opmath(x.dtype)

    def counted(t: Node) -> Node:
        return compare("ne", t, const(ignore_index, INDEX))

    def weight_of(instance: Instance, t: Node) -> Node:
        if weight is None:
            return const(1, wide_dtype)
        return cast(instance.read_under(counted(t), weight, (ix.opaque(t),)), wide_dtype)

    def loss_at(instance: Instance, at: Any) -> Node:
        t = instance.read(target, at)
        picked = instance.read_under(counted(t), x, (*at[:axis], ix.opaque(t), *at[axis:]))
        value = op("neg", cast(picked, wide_dtype))
        if weight is not None:
            value = mul(value, weight_of(instance, t))
        return cast(where(counted(t), value, const(0, wide_dtype)), x.dtype)

    def weight_at(instance: Instance, at: Any) -> Node:
        t = instance.read(target, at)
        return where(counted(t), weight_of(instance, t), const(0, wide_dtype))

    inputs = (x, target) if weight is None else (x, target, weight)
    checks = checked(b, target, 0, classes, "IndexError", "Target {value} is out of bounds.", ignore_index)
    loss = b.compute(target.shape, x.dtype, x.device, loss_at, inputs, 3)
    loss.checks = checks
    if reduction == 0:
        return loss, b.full((), 0, out[1].dtype, x.device)
    dims = range(len(target.shape))
    weights = b.compute(target.shape, wide_dtype, x.device, weight_at, inputs[1:], 3)
    weights.checks = checks
    total, total_weight = b.reduce("sum", loss, dims, False), b.reduce("sum", weights, dims, False)
    if reduction == 1:
        total = b.point(div, total, total_weight, dtype=wide_dtype, cost=3)
    return b.cast(total, out[0].dtype), b.cast(total_weight, out[1].dtype)
