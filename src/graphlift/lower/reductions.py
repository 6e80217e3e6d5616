"""Rows for reductions and for the operators made of them: softmax, norms, normalisations, losses.

In: values. Out: point and reduce values. Always: bf16/fp16 are folded in float32 and rounded once, at the end, where
ATen's kernel rounds once; int sums fold in int64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphlift.lower.affine import to_node
from graphlift.lower.expr import add, both, cast, compare, const, div, mul, op, sub, where
from graphlift.lower.ir import Node
from graphlift.lower.pointwise import TRANSCENDENTAL, elementwise
from graphlift.lower.table import float_row, row
from graphlift.lower.values import Builder, Meta, Value, broadcast_shapes, opmath
from graphlift.shapes.expr import Expr, SizeLike


def all_dims(x: Value, dims: int | Sequence[int] | None) -> tuple[int, ...]:
    """``dims`` counted from the front; all of them for None and the empty list."""
    rank = len(x.shape)
    if isinstance(dims, int):
        dims = (dims,)
    if not dims:
        return tuple(range(rank))
    return tuple([d % rank for d in dims]) if rank else ()


def _count(x: Value, dims: Sequence[int]) -> SizeLike:
    return math.prod([x.shape[d] for d in dims])


def wide(b: Builder, x: Value) -> Value:
    """``x`` in its computation dtype."""
    return b.cast(x, opmath(x.dtype))


def scaled(b: Builder, x: Value, factor: float, dtype: torch.dtype | None = None) -> Value:
    """``x * factor``, then cast."""
    out = x.dtype if dtype is None else dtype
    return b.point(lambda p: cast(mul(p, const(factor, p.dtype)), out), x, dtype=out)


def divided(b: Builder, x: Value, by: float | Expr, dtype: torch.dtype, less: float = 0.0) -> Value:
    """``x / (by - less)``, never by less than zero; then cast."""

    def count(kind: torch.dtype) -> Node:
        if not isinstance(by, Expr):
            return const(max(by - less, 0.0) if less else by, kind)
        if not less:
            return const(by, kind)
        return op("max", sub(const(by, kind), const(less, kind)), const(0, kind))

    return b.point(lambda p: cast(div(p, count(p.dtype)), dtype), x, dtype=dtype, cost=3)


# --- plain reductions -----------------------------------------------------------------------------------------------


def _summed(b: Builder, x: Value, dims: Sequence[int], keepdim: bool, dtype: torch.dtype) -> Value:
    """The sum in the accumulation dtype of ``dtype``."""
    return b.reduce("sum", b.cast(x, opmath(dtype)), dims, keepdim)


@row("sum", "sum.dim_IntList")
def sum_(b: Builder, out: Meta, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return b.cast(_summed(b, x, all_dims(x, dim), keepdim, out.dtype), out.dtype)


@row("mean", "mean.dim")
def mean(b: Builder, out: Meta, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    dims = all_dims(x, dim)
    return divided(b, _summed(b, x, dims, keepdim, out.dtype), _count(x, dims), out.dtype)


@row("prod", "prod.dim_int")
def prod(b: Builder, out: Meta, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return b.cast(b.reduce("prod", b.cast(x, opmath(out.dtype)), all_dims(x, dim), keepdim), out.dtype)


def _extreme(fold: str) -> Callable[..., Value | None]:
    def lower(b: Builder, out: Meta, x: Value, dim: Any = None, keepdim: bool = False) -> Value | None:
        dims = all_dims(x, dim)
        if x.dtype == torch.bool:
            fold_bool = {"max": "any", "min": "all"}[fold]
            return b.reduce(fold_bool, x, dims, keepdim)
        return b.cast(b.reduce(fold, x, dims, keepdim), out.dtype)

    return lower


row("amax", "max")(_extreme("max"))
row("amin", "min")(_extreme("min"))


def _extreme_with_index(fold: str) -> Callable[..., Any]:
    def lower(b: Builder, out: tuple[Meta, Meta], x: Value, dim: int, keepdim: bool = False) -> Any:
        if x.dtype == torch.bool or not x.shape:
            return None
        dims = all_dims(x, dim)
        wide_x = wide(b, x)
        values = b.cast(b.reduce(fold, wide_x, dims, keepdim), x.dtype)
        return values, b.reduce(f"arg{fold}", wide_x, dims, keepdim, torch.int64)

    return lower


row("max.dim")(_extreme_with_index("max"))
row("min.dim")(_extreme_with_index("min"))


def _position(fold: str) -> Callable[..., Value | None]:
    def lower(b: Builder, out: Meta, x: Value, dim: int | None = None, keepdim: bool = False) -> Value | None:
        if x.dtype == torch.bool:
            return None
        return b.reduce(fold, wide(b, x), all_dims(x, dim), keepdim, torch.int64)

    return lower


row("argmax")(_position("argmax"))
row("argmin")(_position("argmin"))


def _logical(fold: str) -> Callable[..., Value | None]:
    def lower(b: Builder, out: Meta, x: Value, dim: Any = None, keepdim: bool = False) -> Value | None:
        if x.dtype == torch.uint8:
            return None  # ATen keeps uint8 for uint8
        return b.reduce(fold, b.cast(x, torch.bool), all_dims(x, dim), keepdim)

    return lower


row("any", "any.dim", "any.dims")(_logical("any"))
row("all", "all.dim", "all.dims")(_logical("all"))


def moments(b: Builder, x: Value, dims: Sequence[int], correction: float) -> tuple[Value, Value]:
    """Mean and variance over ``dims`` (kept), in the computation dtype, by two passes."""
    x = wide(b, x)
    count = _count(x, dims)
    average = divided(b, b.reduce("sum", x, dims, True), count, x.dtype)
    squares = b.point(lambda p, m: mul(sub(p, m), sub(p, m)), x, average, dtype=x.dtype, cost=2)
    total = b.reduce("sum", squares, dims, True)
    return average, divided(b, total, count, x.dtype, correction)


def _variance(b: Builder, x: Value, dim: Any, correction: Any) -> tuple[Value, Value]:
    return moments(b, x, all_dims(x, dim), 1.0 if correction is None else float(correction))


def _shaped(b: Builder, x: Value, out: Meta) -> Value:
    return b.cast(b.reshape(x, out.shape), out.dtype)


@float_row("var.correction")
def var(
    b: Builder, out: Meta, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Value:
    return _shaped(b, _variance(b, x, dim, correction)[1], out)


@float_row("std.correction")
def std(
    b: Builder, out: Meta, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Value:
    spread = _variance(b, x, dim, correction)[1]
    return _shaped(b, b.point(lambda v: op("sqrt", v), spread, dtype=spread.dtype, cost=4), out)


@float_row("var_mean.correction")
def var_mean(
    b: Builder, out: Any, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    average, spread = _variance(b, x, dim, correction)
    return _shaped(b, spread, out[0]), _shaped(b, average, out[1])


@float_row("std_mean.correction")
def std_mean(
    b: Builder, out: Any, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    average, spread = _variance(b, x, dim, correction)
    root = b.point(lambda v: op("sqrt", v), spread, dtype=spread.dtype, cost=4)
    return _shaped(b, root, out[0]), _shaped(b, average, out[1])


@row("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar", "norm.ScalarOpt_dim_dtype")
def vector_norm(
    b: Builder, out: Meta, x: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value | None:
    order = 2.0 if ord is None else float(ord)
    if not x.dtype.is_floating_point:
        return None
    dims = all_dims(x, dim)
    x = b.cast(x, opmath(out.dtype))

    def fold(how: str, expression: Callable[[Node], Node]) -> Value:
        return b.reduce(how, b.point(expression, x, dtype=x.dtype), dims, keepdim)

    if order == 2.0:
        result = fold("sum", lambda p: mul(p, p))
        result = b.point(lambda p: op("sqrt", p), result, dtype=result.dtype, cost=4)
    elif order == 1.0:
        result = fold("sum", lambda p: op("abs", p))
    elif math.isinf(order):
        result = fold("max" if order > 0 else "min", lambda p: op("abs", p))
    else:
        return None
    return b.cast(result, out.dtype)


@row("logsumexp")
def logsumexp(b: Builder, out: Meta, x: Value, dim: Any, keepdim: bool = False) -> Value | None:
    if not x.dtype.is_floating_point:
        return None
    dims = all_dims(x, dim)
    x = wide(b, x)

    def finite(p: Node) -> Node:
        return where(compare("eq", op("abs", p), const(math.inf, p.dtype)), const(0, p.dtype), p)

    top = b.point(finite, b.reduce("max", x, dims, True), dtype=x.dtype, cost=2)
    powers = b.point(lambda p, m: op("exp", sub(p, m)), x, top, dtype=x.dtype, cost=TRANSCENDENTAL)
    total = b.reduce("sum", powers, dims, True)
    result = b.point(lambda s, m: add(op("log", s), m), total, top, dtype=x.dtype, cost=TRANSCENDENTAL)
    return _shaped(b, result, out)


# --- softmax --------------------------------------------------------------------------------------------------------


@row("_softmax", "_safe_softmax")
def softmax(b: Builder, out: Meta, x: Value, dim: int, half_to_float: Any = False) -> Value | None:
    if not x.shape or not x.dtype.is_floating_point:
        return None
    safe = b.origin is not None and "safe" in str(b.origin.target)
    dims = all_dims(x, dim)
    x = b.cast(x, opmath(out.dtype))
    top = b.reduce("max", x, dims, True)
    powers = b.point(lambda p, m: op("exp", sub(p, m)), x, top, dtype=x.dtype, cost=TRANSCENDENTAL)
    total = b.reduce("sum", powers, dims, True)
    if safe:  # a row of -inf gives zeros
        nothing = const(-math.inf, x.dtype)
        return b.point(
            lambda e, s, m: cast(where(compare("eq", m, nothing), const(0, e.dtype), div(e, s)), out.dtype),
            powers, total, top, dtype=out.dtype, cost=5,
        )  # fmt: skip
    return b.point(lambda e, s: cast(div(e, s), out.dtype), powers, total, dtype=out.dtype, cost=3)


@row("_log_softmax")
def log_softmax(b: Builder, out: Meta, x: Value, dim: int, half_to_float: bool = False) -> Value | None:
    if not x.shape or not x.dtype.is_floating_point:
        return None
    dims = all_dims(x, dim)
    x = b.cast(x, opmath(out.dtype))
    top = b.reduce("max", x, dims, True)
    powers = b.point(lambda p, m: op("exp", sub(p, m)), x, top, dtype=x.dtype, cost=TRANSCENDENTAL)
    total = b.reduce("sum", powers, dims, True)
    log = b.point(lambda s: op("log", s), total, dtype=x.dtype, cost=TRANSCENDENTAL)
    return b.point(lambda p, m, s: cast(sub(sub(p, m), s), out.dtype), x, top, log, dtype=out.dtype, cost=2)


@row("_softmax_backward_data")
def softmax_backward(
    b: Builder, out: Meta, grad: Value, y: Value, dim: int, input_dtype: Any = None
) -> Value | None:
    if not y.shape:
        return None
    dims = all_dims(y, dim)
    grad, y = wide(b, grad), wide(b, y)
    product = b.point(mul, grad, y, dtype=y.dtype)
    total = b.reduce("sum", product, dims, True)
    return b.point(
        lambda g, p, s: cast(mul(sub(g, s), p), out.dtype), grad, y, total, dtype=out.dtype, cost=2
    )


@row("_log_softmax_backward_data")
def log_softmax_backward(
    b: Builder, out: Meta, grad: Value, y: Value, dim: int, input_dtype: Any = None
) -> Value | None:
    if not y.shape:
        return None
    dims = all_dims(y, dim)
    grad, y = wide(b, grad), wide(b, y)
    total = b.reduce("sum", grad, dims, True)
    return b.point(
        lambda g, p, s: cast(sub(g, mul(op("exp", p), s)), out.dtype),
        grad, y, total, dtype=out.dtype, cost=TRANSCENDENTAL,
    )  # fmt: skip


# --- normalisation --------------------------------------------------------------------------------------------------


def _inverse_root(b: Builder, spread: Value, eps: float) -> Value:
    return b.point(
        lambda v: div(const(1, v.dtype), op("sqrt", add(v, const(eps, v.dtype)))),
        spread,
        dtype=spread.dtype,
        cost=8,
    )


def _affine(b: Builder, x: Value, weight: Value | None, bias: Value | None, dtype: torch.dtype) -> Value:
    """``x * weight + bias`` in x's dtype, then cast."""
    inputs = [w for w in (weight, bias) if w is not None]
    inputs = [b.cast(w, x.dtype) for w in inputs]

    def expression(p: Node, *rest: Node) -> Node:
        values = iter(rest)
        if weight is not None:
            p = mul(p, next(values))
        if bias is not None:
            p = add(p, next(values))
        return cast(p, dtype)

    return b.point(expression, x, *inputs, dtype=dtype, cost=1 + len(inputs))


def _normalised(b: Builder, x: Value, mean: Value, rstd: Value) -> Value:
    return b.point(lambda p, m, r: mul(sub(p, m), r), x, mean, rstd, dtype=x.dtype, cost=2)


@row("native_layer_norm")
def layer_norm(
    b: Builder, out: Any, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> Any:
    dims = range(len(x.shape) - len(shape), len(x.shape))
    x = wide(b, x)
    average, spread = moments(b, x, dims, 0)
    rstd = _inverse_root(b, spread, eps)
    result = _affine(b, _normalised(b, x, average, rstd), weight, bias, out[0].dtype)
    return result, _shaped(b, average, out[1]), _shaped(b, rstd, out[2])


@row("native_layer_norm_backward")
def layer_norm_backward(
    b: Builder, out: Any, grad: Value, x: Value, shape: Sequence[int], mean: Value, rstd: Value, weight: Value | None,
    bias: Value | None, mask: Sequence[bool],
) -> Any:  # fmt: skip
    rank, inner = len(x.shape), range(len(x.shape) - len(shape), len(x.shape))
    outer = range(rank - len(shape))
    grad, x = wide(b, grad), wide(b, x)
    mean, rstd = b.cast(mean, x.dtype), b.cast(rstd, x.dtype)
    normal = _normalised(b, x, mean, rstd)
    results: list[Value | None] = [None, None, None]
    if mask[0]:
        scaled_grad = grad if weight is None else b.point(mul, grad, b.cast(weight, x.dtype), dtype=x.dtype)
        results[0] = _normalised_backward(b, scaled_grad, normal, rstd, inner, out[0].dtype)
    if mask[1]:
        product = b.point(mul, grad, normal, dtype=x.dtype)
        results[1] = b.cast(b.reduce("sum", product, outer, False), out[1].dtype) if outer else None
    if mask[2]:
        results[2] = b.cast(b.reduce("sum", grad, outer, False), out[2].dtype) if outer else None
    return None if not outer and (mask[1] or mask[2]) else tuple(results[: len(out)])


def _normalised_backward(
    b: Builder, grad: Value, normal: Value, rstd: Value, dims: Sequence[int], dtype: torch.dtype
) -> Value:
    """The derivative of ``(x - mean) * rstd`` with respect to x: rstd * (g - mean(g) - n * mean(g * n))."""
    count = _count(normal, dims)
    first = b.reduce("sum", grad, dims, True)
    second = b.reduce("sum", b.point(mul, grad, normal, dtype=grad.dtype), dims, True)

    def expression(g: Node, n: Node, r: Node, s: Node, t: Node) -> Node:
        return cast(mul(r, sub(g, div(add(s, mul(n, t)), const(count, g.dtype)))), dtype)

    return b.point(expression, grad, normal, rstd, first, second, dtype=dtype, cost=6)


def _grouped(b: Builder, x: Value, groups: int) -> Value:
    n, c = x.shape[:2]
    return b.reshape(x, (n, groups, c // groups, math.prod(x.shape[2:])))


def _per_channel(b: Builder, w: Value | None, groups: int, dtype: torch.dtype) -> Value | None:
    return None if w is None else b.cast(b.reshape(w, (1, groups, w.numel // groups, 1)), dtype)


@row("native_group_norm")
def group_norm(
    b: Builder, out: Any, x: Value, weight: Value | None, bias: Value | None, n: int, c: int, hxw: int, group: int,
    eps: float,
) -> Any:  # fmt: skip
    if len(x.shape) < 2:
        return None
    parts = wide(b, _grouped(b, x, group))
    average, spread = moments(b, parts, (2, 3), 0)
    rstd = _inverse_root(b, spread, eps)
    weight, bias = _per_channel(b, weight, group, parts.dtype), _per_channel(b, bias, group, parts.dtype)
    result = _affine(b, _normalised(b, parts, average, rstd), weight, bias, out[0].dtype)
    return b.reshape(result, x.shape), _shaped(b, average, out[1]), _shaped(b, rstd, out[2])


@row("native_group_norm_backward")
def group_norm_backward(
    b: Builder, out: Any, grad: Value, x: Value, mean: Value, rstd: Value, weight: Value | None, n: int, c: int,
    hxw: int, group: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    parts, grads = wide(b, _grouped(b, x, group)), wide(b, _grouped(b, grad, group))
    kept = (n, group, 1, 1)
    mean = b.cast(b.reshape(mean, kept), parts.dtype)
    rstd = b.cast(b.reshape(rstd, kept), parts.dtype)
    normal = _normalised(b, parts, mean, rstd)
    channels = _per_channel(b, weight, group, parts.dtype)
    results: list[Value | None] = [None, None, None]
    if mask[0]:
        scaled_grad = grads if channels is None else b.point(mul, grads, channels, dtype=parts.dtype)
        results[0] = b.reshape(
            _normalised_backward(b, scaled_grad, normal, rstd, (2, 3), out[0].dtype), x.shape
        )
    if mask[1]:
        total = b.reduce("sum", b.point(mul, grads, normal, dtype=parts.dtype), (0, 3), False)
        results[1] = _shaped(b, total, out[1])
    if mask[2]:
        results[2] = _shaped(b, b.reduce("sum", grads, (0, 3), False), out[2])
    return tuple(results[: len(out)])  # the fake has no place for absent gradients at the end


# --- losses ---------------------------------------------------------------------------------------------------------


def reduce_loss(
    b: Builder, out: Meta, expression: Callable[..., Node], inputs: tuple[Value, ...], reduction: int
) -> Value | None:
    """An elementwise loss reduced as asked: 0 none, 1 mean, 2 sum."""
    if not out.dtype.is_floating_point:
        return None
    shape = broadcast_shapes([x.shape for x in inputs])
    element = Meta(shape, out.dtype, (), out.device)
    value = elementwise(b, element, expression, inputs, cost=2 * TRANSCENDENTAL)
    if value is None or reduction == 0:
        return value
    total = b.reduce("sum", value, range(len(shape)), False)
    return divided(b, total, value.numel, out.dtype) if reduction == 1 else b.cast(total, out.dtype)


@row("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    b: Builder, out: Meta, grad: Value, x: Value, target: Value, weight: Value | None, reduction: int,
    ignore_index: int, total_weight: Value,
) -> Value | None:  # fmt: skip
    """Classes are dimension 1 (0 for a vector). The forward has checked that targets are in range."""
    if not x.shape:
        return None
    axis = 1 if len(x.shape) > 1 else 0
    classes = x.shape[axis]
    spread_shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    target = b.reshape(target, spread_shape)
    if reduction == 0:
        grad = b.reshape(grad, spread_shape)
    shape: list[SizeLike] = [1] * len(x.shape)
    shape[axis] = classes
    position = iota(b, shape, axis, out.device)
    inputs = [grad, target, position, total_weight]
    if weight is not None:
        inputs.append(b.reshape(weight, position.shape))

    def expression(g: Node, t: Node, j: Node, total: Node, *w: Node) -> Node:
        g, total = cast(g, opmath(out.dtype)), cast(total, opmath(out.dtype))
        hit = both(compare("eq", t, j), compare("ne", t, const(ignore_index, t.dtype)))
        value = op("neg", mul(cast(w[0], g.dtype), g) if w else g)
        if reduction == 1:
            value = div(value, total)
        return cast(where(hit, value, const(0, g.dtype)), out.dtype)

    return b.point_at(out.shape, expression, inputs, out.dtype, 4)


def iota(b: Builder, shape: Sequence[SizeLike], dim: int, device: torch.device) -> Value:
    """int64 positions along ``dim``."""
    return b.compute(tuple(shape), torch.int64, device, lambda _, index: to_node(index[dim]), (), 0)
