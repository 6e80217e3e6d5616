"""Rows for activation functions, losses and their derivatives, each one expression as ATen's kernels compute them.

In: values. Out: point values. Always: the formula and the order of operations are those of ATen's CPU kernel.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from graphlift.lower.expr import add, compare, const, div, mul, op, sub, where
from graphlift.lower.ir import Node
from graphlift.lower.pointwise import TRANSCENDENTAL, Scalar, elementwise
from graphlift.lower.reductions import reduce_loss
from graphlift.lower.table import float_row, row
from graphlift.lower.values import OPMATH, Builder, Meta, Value
from graphlift.shapes.expr import Expr, SizeLike


def k(number: Scalar | Expr, like: Node) -> Node:
    """A constant of ``like``'s dtype."""
    return const(number, like.dtype)


def _sigmoid(x: Node) -> Node:
    return op("sigmoid", x)


@float_row("gelu")
def gelu(b: Builder, out: Meta, x: Value, approximate: str = "none") -> Value | None:
    def exact(p: Node) -> Node:
        return mul(mul(p, k(0.5, p)), add(op("erf", mul(p, k(math.sqrt(0.5), p))), k(1, p)))

    def tanh(p: Node) -> Node:
        return mul(mul(k(0.5, p), p), add(k(1, p), op("tanh", _gelu_inner(p))))

    return elementwise(b, out, exact if approximate == "none" else tanh, (x,), cost=2 * TRANSCENDENTAL)


_GELU_BETA = math.sqrt(2) * (2 / math.sqrt(math.pi)) * 0.5
_GELU_KAPPA = 0.044715


def _gelu_inner(p: Node) -> Node:
    cube = mul(mul(p, p), p)
    return mul(k(_GELU_BETA, p), add(p, mul(k(_GELU_KAPPA, p), cube)))


@float_row("gelu_backward")
def gelu_backward(b: Builder, out: Meta, grad: Value, x: Value, approximate: str = "none") -> Value | None:
    def exact(g: Node, p: Node) -> Node:
        cdf = mul(k(0.5, p), add(k(1, p), op("erf", mul(p, k(math.sqrt(0.5), p)))))
        pdf = mul(op("exp", mul(mul(p, p), k(-0.5, p))), k(1 / math.sqrt(2 * math.pi), p))
        return mul(g, add(cdf, mul(p, pdf)))

    def tanh(g: Node, p: Node) -> Node:
        t = op("tanh", _gelu_inner(p))
        left, right = mul(k(0.5, p), p), add(k(1, p), t)
        inner = mul(k(_GELU_BETA, p), add(k(1, p), mul(k(3 * _GELU_KAPPA, p), mul(p, p))))
        return mul(g, add(mul(k(0.5, p), right), mul(mul(left, sub(k(1, p), mul(t, t))), inner)))

    return elementwise(b, out, exact if approximate == "none" else tanh, (grad, x), cost=3 * TRANSCENDENTAL)


@float_row("silu")
def silu(b: Builder, out: Meta, x: Value) -> Value | None:
    return elementwise(b, out, lambda p: mul(p, _sigmoid(p)), (x,), cost=TRANSCENDENTAL)


@float_row("silu_backward")
def silu_backward(b: Builder, out: Meta, grad: Value, x: Value) -> Value | None:
    def expression(g: Node, p: Node) -> Node:
        s = _sigmoid(p)
        return mul(mul(g, s), add(k(1, p), mul(p, sub(k(1, p), s))))

    return elementwise(b, out, expression, (grad, x), cost=TRANSCENDENTAL + 4)


@float_row("mish")
def mish(b: Builder, out: Meta, x: Value) -> Value | None:
    return elementwise(
        b, out, lambda p: mul(p, op("tanh", op("log1p", op("exp", p)))), (x,), cost=3 * TRANSCENDENTAL
    )


@float_row("mish_backward")
def mish_backward(b: Builder, out: Meta, grad: Value, x: Value) -> Value | None:
    def expression(g: Node, p: Node) -> Node:
        t = op("tanh", op("log1p", op("exp", p)))
        return mul(g, add(t, mul(mul(p, _sigmoid(p)), sub(k(1, p), mul(t, t)))))

    return elementwise(b, out, expression, (grad, x), cost=4 * TRANSCENDENTAL)


@float_row("softplus")
def softplus(b: Builder, out: Meta, x: Value, beta: Scalar = 1, threshold: Scalar = 20) -> Value | None:
    def expression(p: Node, s: Node, limit: Node) -> Node:
        scaled = mul(p, s)
        return where(compare("gt", scaled, limit), p, div(op("log1p", op("exp", scaled)), s))

    return elementwise(b, out, expression, (x, beta, threshold), cost=2 * TRANSCENDENTAL)


@float_row("softplus_backward")
def softplus_backward(
    b: Builder, out: Meta, grad: Value, x: Value, beta: Scalar, threshold: Scalar
) -> Value | None:
    def expression(g: Node, p: Node, s: Node, limit: Node) -> Node:
        scaled = mul(p, s)
        z = op("exp", scaled)
        return where(compare("gt", scaled, limit), g, div(mul(g, z), add(z, k(1, p))))

    return elementwise(b, out, expression, (grad, x, beta, threshold), cost=TRANSCENDENTAL + 4)


@float_row("elu")
def elu(
    b: Builder, out: Meta, x: Value, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1
) -> Value | None:
    def expression(p: Node) -> Node:
        negative = mul(op("expm1", mul(p, k(input_scale, p))), k(alpha * scale, p))
        return where(compare("lt", p, k(0, p)), negative, mul(p, k(scale, p)))

    return elementwise(b, out, expression, (x,), cost=TRANSCENDENTAL + 2)


@float_row("elu_backward")
def elu_backward(
    b: Builder,
    out: Meta,
    grad: Value,
    alpha: Scalar,
    scale: Scalar,
    input_scale: Scalar,
    is_result: bool,
    x: Value,
) -> Value | None:
    def expression(g: Node, p: Node) -> Node:
        coefficient, inner = k(alpha * scale, p), k(input_scale, p)
        if is_result:
            negative = mul(mul(g, inner), add(p, coefficient))
        else:
            negative = mul(mul(mul(g, inner), coefficient), op("exp", mul(p, inner)))
        return where(compare("le", p, k(0, p)), negative, mul(g, k(scale, p)))

    return elementwise(b, out, expression, (grad, x), cost=TRANSCENDENTAL + 3)


@float_row("leaky_relu")
def leaky_relu(b: Builder, out: Meta, x: Value, negative_slope: Value | Scalar = 0.01) -> Value | None:
    return elementwise(
        b, out, lambda p, s: where(compare("gt", p, k(0, p)), p, mul(p, s)), (x, negative_slope), cost=2
    )


@float_row("leaky_relu_backward")
def leaky_relu_backward(
    b: Builder, out: Meta, grad: Value, x: Value, negative_slope: Value | Scalar, is_result: bool
) -> Value | None:
    return elementwise(
        b,
        out,
        lambda g, p, s: where(compare("gt", p, k(0, p)), g, mul(g, s)),
        (grad, x, negative_slope),
        cost=2,
    )


@float_row("_prelu_kernel")
def prelu(b: Builder, out: Meta, x: Value, weight: Value) -> Value | None:
    return leaky_relu(b, out, x, weight)


@float_row("_prelu_kernel_backward")
def prelu_backward(b: Builder, out: tuple[Meta, Meta], grad: Value, x: Value, weight: Value) -> Any:
    of_weight = elementwise(
        b, out[1], lambda g, p: where(compare("gt", p, k(0, p)), k(0, p), mul(p, g)), (grad, x), cost=2
    )
    return leaky_relu_backward(b, out[0], grad, x, weight, False), of_weight


@row("hardtanh", "relu6")
def hardtanh(b: Builder, out: Meta, x: Value, low: Scalar = -1, high: Scalar = 1) -> Value | None:
    return elementwise(
        b,
        out,
        lambda p, a, z: op("min", op("max", p, a), z),
        (x, low, high),
        cost=2,
        narrow_scalars=out.dtype,
    )


@row("hardtanh_backward")
def hardtanh_backward(
    b: Builder, out: Meta, grad: Value, x: Value, low: Scalar, high: Scalar
) -> Value | None:
    def expression(g: Node, p: Node, a: Node, z: Node) -> Node:
        outside = op("or", compare("le", p, a), compare("ge", p, z))
        return where(outside, k(0, p), g)

    return elementwise(b, out, expression, (grad, x, low, high), cost=3)


def _relu6(p: Node) -> Node:
    return op("min", op("max", add(p, k(3, p)), k(0, p)), k(6, p))


@float_row("hardswish")
def hardswish(b: Builder, out: Meta, x: Value) -> Value | None:
    return elementwise(b, out, lambda p: div(mul(p, _relu6(p)), k(6, p)), (x,), cost=5)


@float_row("hardswish_backward")
def hardswish_backward(b: Builder, out: Meta, grad: Value, x: Value) -> Value | None:
    def expression(g: Node, p: Node) -> Node:
        middle = mul(g, add(div(p, k(3, p)), k(0.5, p)))
        upper = where(compare("lt", p, k(3, p)), middle, g)
        return where(compare("le", p, k(-3, p)), k(0, p), upper)

    return elementwise(b, out, expression, (grad, x), cost=6)


@float_row("hardsigmoid")
def hardsigmoid(b: Builder, out: Meta, x: Value) -> Value | None:
    return elementwise(b, out, lambda p: div(_relu6(p), k(6, p)), (x,), cost=5)


@float_row("hardsigmoid_backward")
def hardsigmoid_backward(b: Builder, out: Meta, grad: Value, x: Value) -> Value | None:
    def expression(g: Node, p: Node) -> Node:
        inside = op("and", compare("gt", p, k(-3, p)), compare("lt", p, k(3, p)))
        return where(inside, mul(g, k(1 / 6, p)), k(0, p))

    return elementwise(b, out, expression, (grad, x), cost=3)


@row("threshold")
def threshold(b: Builder, out: Meta, x: Value, limit: Scalar, number: Scalar) -> Value | None:
    if out.dtype == torch.bool:
        return None
    return elementwise(
        b, out, lambda p, t, v: where(compare("le", p, t), v, p), (x, limit, number), narrow_scalars=out.dtype
    )


@row("threshold_backward")
def threshold_backward(b: Builder, out: Meta, grad: Value, x: Value, limit: Scalar) -> Value | None:
    return elementwise(
        b,
        out,
        lambda g, p, t: where(compare("le", p, t), k(0, p), g),
        (grad, x, limit),
        narrow_scalars=out.dtype,
    )


@float_row("sigmoid_backward")
def sigmoid_backward(b: Builder, out: Meta, grad: Value, y: Value) -> Value | None:
    return elementwise(b, out, lambda g, p: mul(mul(g, sub(k(1, p), p)), p), (grad, y), cost=3)


@float_row("tanh_backward")
def tanh_backward(b: Builder, out: Meta, grad: Value, y: Value) -> Value | None:
    return elementwise(b, out, lambda g, p: mul(g, sub(k(1, p), mul(p, p))), (grad, y), cost=3)


@float_row("log_sigmoid_forward")
def log_sigmoid_forward(b: Builder, out: tuple[Meta, Meta], x: Value) -> Any:
    result, buffer = out

    def inner(p: Node) -> Node:
        return op("exp", op("neg", op("abs", p)))

    first = elementwise(
        b, result, lambda p: sub(op("min", k(0, p), p), op("log1p", inner(p))), (x,), cost=2 * TRANSCENDENTAL
    )
    return first, elementwise(b, buffer, inner, (x,), cost=TRANSCENDENTAL)


@float_row("log_sigmoid_backward")
def log_sigmoid_backward(b: Builder, out: Meta, grad: Value, x: Value, buffer: Value) -> Value | None:
    def expression(g: Node, p: Node, z: Node) -> Node:
        negative = compare("lt", p, k(0, p))
        slope, sign = where(negative, k(1, p), k(0, p)), where(negative, k(1, p), k(-1, p))
        return mul(g, sub(slope, mul(sign, div(z, add(z, k(1, p))))))

    return elementwise(b, out, expression, (grad, x, buffer), cost=6)


@float_row("native_dropout_backward")
def native_dropout_backward(b: Builder, out: Meta, grad: Value, mask: Value, scale: float) -> Value | None:
    return elementwise(b, out, lambda g, m, s: mul(mul(g, m), s), (grad, mask, scale), cost=2)


@float_row("logit")
def logit(b: Builder, out: Meta, x: Value, eps: float | None = None) -> Value | None:
    def expression(p: Node) -> Node:
        if eps is not None:
            low, high = k(eps, p), k(1 - eps, p)
            p = where(compare("lt", p, low), low, where(compare("gt", p, high), high, p))
        return op("log", div(p, sub(k(1, p), p)))

    return elementwise(b, out, expression, (x,), cost=TRANSCENDENTAL + 4)


# --- losses (reduction: 0 none, 1 mean, 2 sum) ----------------------------------------------------------------------


def _scale(reduction: int, numel: SizeLike) -> float:
    return 1.0 / numel if reduction == 1 else 1.0


@float_row("mse_loss")
def mse_loss(b: Builder, out: Meta, x: Value, y: Value, reduction: int = 1) -> Value | None:
    def squared(p: Node, q: Node) -> Node:
        return mul(sub(p, q), sub(p, q))

    return reduce_loss(b, out, squared, (x, y), reduction)


@float_row("mse_loss_backward")
def mse_loss_backward(b: Builder, out: Meta, grad: Value, x: Value, y: Value, reduction: int) -> Value | None:
    if reduction == 1 and isinstance(x.numel, Expr):
        return elementwise(
            b,
            out,
            lambda g, p, q, n: mul(mul(div(k(2.0, n), n), sub(p, q)), g),
            (grad, x, y, x.numel),
            cost=6,
        )
    scale = 2.0 * _scale(reduction, x.numel)
    return elementwise(b, out, lambda g, p, q, s: mul(mul(s, sub(p, q)), g), (grad, x, y, scale), cost=3)


@float_row("smooth_l1_loss")
def smooth_l1_loss(
    b: Builder, out: Meta, x: Value, y: Value, reduction: int = 1, beta: float = 1.0
) -> Value | None:
    def expression(p: Node, q: Node) -> Node:
        z = op("abs", sub(p, q))
        near = div(mul(mul(k(0.5, z), z), z), k(beta, z))
        return where(compare("lt", z, k(beta, z)), near, sub(z, k(0.5 * beta, z)))

    return reduce_loss(b, out, expression, (x, y), reduction) if beta else None


@float_row("huber_loss")
def huber_loss(
    b: Builder, out: Meta, x: Value, y: Value, reduction: int = 1, delta: float = 1.0
) -> Value | None:
    def expression(p: Node, q: Node) -> Node:
        z = op("abs", sub(p, q))
        near, far = mul(mul(k(0.5, z), z), z), mul(k(delta, z), sub(z, k(0.5 * delta, z)))
        return where(compare("le", z, k(delta, z)), near, far)

    return reduce_loss(b, out, expression, (x, y), reduction)


@float_row("binary_cross_entropy_with_logits")
def bce_with_logits(
    b: Builder, out: Meta, x: Value, y: Value, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Value | None:
    if weight is not None or pos_weight is not None or x.dtype in OPMATH:
        return None  # ATen computes it operator by operator, rounding after each

    def expression(p: Node, q: Node) -> Node:
        softplus = op("log1p", op("exp", op("neg", op("abs", p))))
        log_sigmoid = sub(op("min", k(0, p), p), softplus)
        return sub(mul(sub(k(1, p), q), p), log_sigmoid)

    return reduce_loss(b, out, expression, (x, y), reduction)
