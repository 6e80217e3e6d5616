"""The row for batch norm in training: statistics, normalised values and the running statistics' new values.

In: values. Out: point and reduced values, so that what follows (an activation, a residual) joins the same kernel.
Always: as ATen: the variance is biased where it normalises and unbiased where it is remembered.
"""

from __future__ import annotations

from typing import Any

import torch

from graphlift.lower.affine import at_least
from graphlift.lower.expr import add, const, div, mul, op, sub
from graphlift.lower.ir import Node
from graphlift.lower.reductions import moments
from graphlift.lower.table import row
from graphlift.lower.values import Builder, Value


@row("_native_batch_norm_legit_functional")
def batch_norm_functional(
    b: Builder, out: Any, x: Value, weight: Value | None, bias: Value | None, running_mean: Value, running_var: Value,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    parameters = [running_mean, running_var, *[p for p in (weight, bias) if p is not None]]
    if not training or len(x.shape) < 2 or any(v.dtype != torch.float32 for v in (x, *parameters)):
        return None
    channels = x.shape[1]
    dims = [0, *range(2, len(x.shape))]
    count = x.numel // channels
    if not at_least(count, 2):
        return None  # ATen refuses or divides by zero
    mean, var = moments(b, x, dims, 0)

    def inverse_root(v: Node) -> Node:
        return div(const(1, v.dtype), op("sqrt", add(v, const(eps, v.dtype))))

    rstd = b.point(inverse_root, var, dtype=x.dtype, cost=8)
    wide = (1, channels, *[1] * (len(x.shape) - 2))
    # The scale first, as ATen: a backward that normalises again then rounds as this does.
    scale = rstd if weight is None else b.point(mul, rstd, b.reshape(weight, wide), dtype=x.dtype)

    def normalised(p: Node, m: Node, s: Node, *shift: Node) -> Node:
        p = mul(sub(p, m), s)
        return add(p, *shift) if shift else p

    inputs = [] if bias is None else [b.reshape(bias, wide)]
    result = b.point(normalised, x, mean, scale, *inputs, dtype=x.dtype, cost=2 + len(inputs))

    def weight_of_new(dtype: torch.dtype, unbiased: bool) -> Node:
        if not unbiased:
            return const(momentum, dtype)
        if isinstance(count, int):
            return const(momentum * (count / (count - 1)), dtype)
        return div(mul(const(momentum, dtype), const(count, dtype)), const(count - 1, dtype))

    def remembered(old: Value, new: Value, unbiased: bool) -> Value:
        def update(o: Node, n: Node) -> Node:
            return add(mul(const(1 - momentum, o.dtype), o), mul(weight_of_new(o.dtype, unbiased), n))

        return b.point(update, old, b.reshape(new, old.shape), dtype=old.dtype, cost=3)

    return (
        result,
        b.reshape(mean, out[1].shape),
        b.reshape(rstd, out[2].shape),
        remembered(running_mean, mean, False),
        remembered(running_var, var, True),
    )
