"""Rows for changes of size that divide: nearest upsampling by a power of two, adaptive pooling of equal windows.

In: values. Out: point values and reductions. Always: what ATen's kernels read for each result; other ratios go to ATen.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from graphlift.lower import affine as ix
from graphlift.lower.affine import to_node
from graphlift.lower.expr import INDEX, const, op
from graphlift.lower.ir import Node
from graphlift.lower.table import row
from graphlift.lower.values import Builder, Instance, Meta, Value
from graphlift.shapes.expr import SizeLike

_FACTORS = (1, 2, 4, 8)  # whose reciprocals are exact, so that ATen's positions are these quotients
_DTYPES = (torch.float32, torch.float64)


def _factors(
    small: Sequence[SizeLike], large: Sequence[SizeLike], scales: Sequence[float | None]
) -> tuple[int, ...] | None:
    """How many times each of the sizes fits into the larger one, where that is a power of two and what is asked for."""
    found = []
    for low, high, scale in zip(small, large, scales, strict=True):
        factor = next((k for k in _FACTORS if high == low * k), None)
        if factor is None or scale not in (None, factor):
            return None
        found.append(factor)
    return tuple(found)


def _nearest(b: Builder, out: Meta, x: Value, size: Sequence[Any], *scales: float | None) -> Value | None:
    rank = len(size)
    factors = _factors(x.shape[-rank:], out.shape[-rank:], scales or (None,) * rank)
    if factors is None:
        return None

    def read(instance: Instance, at: Any) -> Node:
        places = [_quotient(at[d - rank], factor) for d, factor in enumerate(factors)]
        return instance.read(x, (*at[:-rank], *places))

    return b.compute(out.shape, x.dtype, x.device, read, (x,), 1)


def _quotient(at: Any, factor: int) -> Any:
    if factor == 1:
        return at
    return ix.opaque(Node("floordiv", INDEX, (to_node(at), const(factor, INDEX))))


def _nearest_backward(
    b: Builder, out: Meta, grad: Value, size: Sequence[Any], given: Sequence[Any], *scales: float | None
) -> Value | None:
    rank = len(size)
    factors = _factors(out.shape[-rank:], grad.shape[-rank:], scales or (None,) * rank)
    if factors is None or grad.dtype not in _DTYPES or max(factors) > 2:
        return None

    def total(instance: Instance, at: Any) -> Node:
        found = const(0.0, grad.dtype)
        for offsets in product(*map(range, factors)):
            places = [ix.scaled(at[d - rank], factors[d], offset) for d, offset in enumerate(offsets)]
            found = op("add", found, instance.read(grad, (*at[:-rank], *places)))
        return found

    return b.compute(out.shape, grad.dtype, grad.device, total, (grad,), 2 ** sum(k > 1 for k in factors))


for _rank in (1, 2, 3):
    row(f"upsample_nearest{_rank}d", f"_upsample_nearest_exact{_rank}d")(_nearest)
    row(f"upsample_nearest{_rank}d_backward", f"_upsample_nearest_exact{_rank}d_backward")(_nearest_backward)


def _windows(shape: Sequence[SizeLike], count: Sequence[SizeLike]) -> tuple[int, ...] | None:
    """The sizes of the windows that divide the last axes into so many."""
    found = []
    for n, k in zip(shape[-len(count) :], count, strict=True):
        if not isinstance(n, int) or not isinstance(k, int) or not k or n % k:
            return None
        found.append(n // k)
    return tuple(found)


@row("_adaptive_avg_pool2d")
def adaptive_avg_pool2d(b: Builder, out: Meta, x: Value, size: Sequence[Any]) -> Value | None:
    window = _windows(x.shape, out.shape[-2:])
    if window is None:
        return None
    lead, rank = x.shape[:-2], len(x.shape)
    parts = b.reshape(x, (*lead, out.shape[-2], window[0], out.shape[-1], window[1]))
    total = b.reduce("sum", parts, (rank - 1, rank + 1), False)
    return b.cast(_divided(b, total, window), x.dtype)


@row("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(b: Builder, out: Meta, grad: Value, x: Value) -> Value | None:
    window = _windows(out.shape, grad.shape[-2:])
    if window is None or grad.dtype not in _DTYPES:
        return None
    lead, (rows, columns) = out.shape[:-2], grad.shape[-2:]
    each = b.reshape(_divided(b, grad, window), (*lead, rows, 1, columns, 1))
    return b.reshape(b.expand(each, (*lead, rows, window[0], columns, window[1])), out.shape)


def _divided(b: Builder, x: Value, window: tuple[int, ...]) -> Value:
    """As ATen: by one size of the window after the other."""
    height, width = (const(float(n), x.dtype) for n in window)
    return b.point(lambda a: op("div", op("div", a, height), width), x, dtype=x.dtype, cost=4)
