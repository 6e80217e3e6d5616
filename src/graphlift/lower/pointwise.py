"""Rows for elementwise operators.

In: values and Python scalars. Out: point values. Always: computed in ATen's computation dtype (float32 for bf16 and
fp16) and rounded once to the result's dtype, as ATen's kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from graphlift.lower.expr import add, both, cast, compare, const, div, mul, op, rounded, sub, where
from graphlift.lower.ir import Node
from graphlift.lower.table import float_row, row
from graphlift.lower.values import OPMATH, Builder, Meta, Value, opmath
from graphlift.shapes.expr import Expr, Real

Scalar = bool | int | float
TRANSCENDENTAL = 8  # cost of an exp or tanh, in additions


def promoted(args: tuple[Any, ...]) -> torch.dtype:
    """ATen's result dtype of mixing tensors (dimensioned over zero-dim) and scalars (within a category, none)."""
    tensors = [a.dtype for a in args if isinstance(a, Value) and a.shape]
    zero_dim = [a.dtype for a in args if isinstance(a, Value) and not a.shape]
    numbers = [a for a in args if isinstance(a, (bool, int, float, Expr))]
    scalars = [0.0 if isinstance(a, Real) else 0 if isinstance(a, Expr) else a for a in numbers]
    result: torch.dtype | None = None
    for group in (tensors, zero_dim):
        merged: torch.dtype | None = None
        for dtype in group:
            merged = dtype if merged is None else torch.promote_types(merged, dtype)
        if merged is not None and (result is None or _category(merged) > _category(result)):
            result = merged
    for scalar in scalars:
        natural = torch.bool if isinstance(scalar, bool) else torch.int64 if isinstance(scalar, int) else None
        natural = torch.get_default_dtype() if natural is None else natural
        if result is None or _category(natural) > _category(result):
            result = natural
    assert result is not None
    return result


def _category(dtype: torch.dtype) -> int:
    return 0 if dtype == torch.bool else 2 if dtype.is_floating_point else 1


def elementwise(
    b: Builder,
    out: Meta,
    expression: Callable[..., Node],
    args: tuple[Any, ...],
    *,
    compute: torch.dtype | None = None,
    cost: int = 1,
    bools: tuple[int, ...] = (),
    narrow_scalars: torch.dtype | None = None,
) -> Value | None:
    """``expression(*args)`` with tensors and numbers among ``args`` turned to nodes of the computation dtype.

    ``bools``: positions that are conditions, left as bool. ``narrow_scalars``: a storage dtype that numbers are rounded
    to first (where ATen's kernel takes them as the tensor's own dtype rather than as float32).
    """
    dtype = opmath(out.dtype) if compute is None else compute
    result = out.dtype
    fixed: list[Any] = []
    slots: list[int] = []
    inputs: list[Value] = []
    for k, a in enumerate(args):
        if isinstance(a, Value):
            slots.append(k)
            inputs.append(a)
            fixed.append(None)
        elif isinstance(a, (bool, int, float, Expr)):
            fixed.append(const(a, dtype) if narrow_scalars is None else _narrowed(a, narrow_scalars, dtype))
        else:
            fixed.append(a)
    if not inputs:
        return None  # numbers alone, as in torch.div(3, 2): not worth a kernel

    def as_common(value: Value, node: Node) -> Node:
        """ATen brings integers, and tensors without dimensions where it does so with numbers, to the result's dtype."""
        rounds = not node.dtype.is_floating_point if value.shape else narrow_scalars is not None
        return cast(node, result) if rounds and result in OPMATH else node

    def of_nodes(*nodes: Node) -> Node:
        full = fixed.copy()
        for k, node in zip(slots, nodes, strict=True):
            full[k] = node if k in bools else cast(as_common(args[k], node), dtype)
        return cast(expression(*full), result)

    return b.point_at(out.shape, of_nodes, inputs, result, cost)


def _narrowed(number: Scalar | Expr, narrow: torch.dtype, dtype: torch.dtype) -> Node:
    if narrow not in OPMATH:
        return const(number, dtype)
    if isinstance(number, Expr):
        return cast(const(number, narrow), dtype)
    return const(rounded(float(number), narrow), dtype)


# --- arithmetic -----------------------------------------------------------------------------------------------------


def _fits(factor: Scalar, out: Meta) -> bool:
    """ATen raises for a float that multiplies integers on the way."""
    return out.dtype.is_floating_point or not isinstance(factor, (float, Real))


def _plus(a: Node, b: Node) -> Node:
    return op("or", a, b) if a.dtype == torch.bool else add(a, b)


def _times(a: Node, b: Node) -> Node:
    return op("and", a, b) if a.dtype == torch.bool else mul(a, b)


@row("add.Tensor", "add.Scalar")
def add_(b: Builder, out: Meta, x: Any, y: Any, alpha: Scalar = 1) -> Value | None:
    if alpha == 1:
        return elementwise(b, out, _plus, (x, y), narrow_scalars=out.dtype)
    if not _fits(alpha, out):
        return None
    added = (x, y, alpha)
    return elementwise(
        b, out, lambda p, q, k: _plus(p, _times(q, k)), added, cost=2, narrow_scalars=out.dtype
    )


@row("sub.Tensor", "sub.Scalar")
def sub_(b: Builder, out: Meta, x: Any, y: Any, alpha: Scalar = 1) -> Value | None:
    if alpha == 1:
        return elementwise(b, out, sub, (x, y), narrow_scalars=out.dtype)
    if not _fits(alpha, out):
        return None
    taken = (x, y, alpha)
    return elementwise(b, out, lambda p, q, k: sub(p, mul(q, k)), taken, cost=2, narrow_scalars=out.dtype)


@row("rsub.Tensor", "rsub.Scalar")
def rsub(b: Builder, out: Meta, x: Any, y: Any, alpha: Scalar = 1) -> Value | None:
    return sub_(b, out, y, x, alpha)


@row("mul.Tensor", "mul.Scalar")
def mul_(b: Builder, out: Meta, x: Any, y: Any) -> Value | None:
    return elementwise(b, out, _times, (x, y))


def _nonzero_constant(y: Any) -> bool:
    """Whether integers may be divided by ``y`` in a loop: ATen raises on 0, and lowest / -1 traps the processor."""
    return isinstance(y, (int, float)) and int(y) not in (0, -1)


@row("div.Tensor", "div.Scalar")
def div_(b: Builder, out: Meta, x: Any, y: Any) -> Value | None:
    return elementwise(b, out, div, (x, y), cost=3)


@row("div.Tensor_mode", "div.Scalar_mode")
def div_mode(b: Builder, out: Meta, x: Any, y: Any, rounding_mode: str | None = None) -> Value | None:
    if rounding_mode is None:
        return div_(b, out, x, y)
    floating = out.dtype.is_floating_point
    if not floating and not _nonzero_constant(y):
        return None
    if rounding_mode == "floor":
        if out.dtype in OPMATH and isinstance(y, Value) and y.numel != 1:
            return elementwise(b, out, lambda p, q: _floor_in_steps(p, q, out.dtype), (x, y), cost=20)
        return elementwise(b, out, lambda p, q: op("floordiv", p, q), (x, y), cost=8)
    if floating:
        # ATen rounds the quotient to the tensors' dtype before it truncates.
        return elementwise(
            b, out, lambda p, q: op("trunc", cast(cast(div(p, q), out.dtype), p.dtype)), (x, y), cost=4
        )
    return elementwise(b, out, lambda p, q: op("truncdiv", p, q), (x, y), cost=8)


def _floor_in_steps(p: Node, q: Node, low: torch.dtype) -> Node:
    """c10::div_floor_floating with each step rounded to `low`, as ATen divides by tensors of low precision."""

    def step(node: Node) -> Node:
        return cast(cast(node, low), q.dtype)

    p, q = step(p), step(q)
    zero, one = const(0, q.dtype), const(1, q.dtype)
    full, mod, infinite = div(p, q), step(op("fmod", p, q)), const(math.inf, q.dtype)
    # fmod may be NaN where the quotient overflows; the remainder does not matter there.
    overflow = both(compare("eq", op("abs", full), infinite), compare("ne", op("abs", p), infinite))
    quotient, exact = step(full), step(div(where(overflow, p, step(sub(p, mod))), q))
    apart = compare("ne", compare("lt", q, zero), compare("lt", mod, zero))
    exact = where(both(apart, compare("ne", mod, zero)), step(sub(exact, one)), exact)
    floor = op("floor", exact)
    above = compare("gt", step(sub(exact, floor)), const(0.5, q.dtype))
    floor = where(above, step(add(floor, one)), floor)
    floor = where(compare("eq", exact, zero), op("copysign", zero, quotient), floor)
    return where(compare("eq", q, zero), quotient, floor)


@row("floor_divide", "floor_divide.Scalar")
def floor_divide(b: Builder, out: Meta, x: Any, y: Any) -> Value | None:
    return div_mode(b, out, x, y, "floor")


def _modular(name: str) -> Callable[..., Value | None]:
    def lower(b: Builder, out: Meta, x: Any, y: Any) -> Value | None:
        if not out.dtype.is_floating_point and not _nonzero_constant(y):
            return None
        return elementwise(b, out, lambda p, q: op(name, p, q), (x, y), cost=8, narrow_scalars=out.dtype)

    return lower


row("remainder.Tensor", "remainder.Scalar")(_modular("mod"))
row("fmod.Tensor", "fmod.Scalar")(_modular("fmod"))


def _multiplied(x: Node, times: int) -> Node:
    result = x
    for _ in range(times - 1):
        result = mul(result, x)
    return result


@row("pow.Tensor_Scalar")
def pow_scalar(b: Builder, out: Meta, x: Value, exponent: Scalar) -> Value | None:
    dtype = opmath(out.dtype)
    if not dtype.is_floating_point:
        if isinstance(exponent, int) and 1 <= exponent <= 4 and dtype != torch.bool:
            return elementwise(b, out, lambda p: _multiplied(p, int(exponent)), (x,), cost=2)
        return None
    one = const(1, dtype)

    def square(
        p: Node,
    ) -> Node:  # ATen's bfloat16 kernel multiplies bfloat16 vectors, each rounded; half ones are not
        squared = mul(p, p)
        return cast(cast(squared, out.dtype), dtype) if out.dtype == torch.bfloat16 else squared

    special: dict[float, Callable[[Node], Node]] = {
        0.5: lambda p: op("sqrt", p),
        1.0: lambda p: p,
        2.0: lambda p: mul(p, p),
        3.0: lambda p: mul(square(p), p),
        -0.5: lambda p: op("rsqrt", p),
        -1.0: lambda p: div(one, p),
        -2.0: lambda p: div(one, square(p)),
    }
    if out.dtype == torch.float16:  # ATen's half kernel calls pow, whose answer for -inf and -0.0 is another
        del special[0.5], special[-0.5]
    found = special.get(float(exponent))
    if found is not None:
        return elementwise(b, out, found, (x,), cost=3)
    return _power(b, out, x, float(exponent))


def _power(b: Builder, out: Meta, x: Any, y: Any) -> Value | None:
    """ATen converts a scalar to the dtype of the tensor first, also where it then computes in a wider one."""
    narrow = out.dtype if out.dtype in (torch.bfloat16, torch.float16) else None
    cost = 4 * TRANSCENDENTAL
    return elementwise(b, out, lambda p, q: op("pow", p, q), (x, y), cost=cost, narrow_scalars=narrow)


@row("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(b: Builder, out: Meta, x: Any, y: Any) -> Value | None:
    if not out.dtype.is_floating_point:
        return None
    return _power(b, out, x, y)


def _binary(name: str, cost: int = 1, floats: bool = False) -> Callable[..., Value | None]:
    def lower(b: Builder, out: Meta, x: Any, y: Any) -> Value | None:
        if floats and not out.dtype.is_floating_point or out.dtype == torch.bool:
            return None
        return elementwise(b, out, lambda p, q: op(name, p, q), (x, y), cost=cost, narrow_scalars=out.dtype)

    return lower


row("maximum")(_binary("max"))
row("minimum")(_binary("min"))
row("atan2")(_binary("atan2", 4 * TRANSCENDENTAL, floats=True))
row("hypot")(_binary("hypot", 4, floats=True))
row("copysign.Tensor", "copysign.Scalar")(_binary("copysign", floats=True))
row("fmax")(_binary("fmax", floats=True))
row("fmin")(_binary("fmin", floats=True))


# --- one argument ---------------------------------------------------------------------------------------------------


def _unary(name: str, cost: int = 1, on: str = "floats") -> Callable[..., Value | None]:
    """``on``: "floats" only, "numbers", or "rounding" (integers are already round)."""

    def lower(b: Builder, out: Meta, x: Value) -> Value | None:
        if not out.dtype.is_floating_point and (on == "floats" or out.dtype == torch.bool):
            return None
        if not out.dtype.is_floating_point and on == "rounding":
            return b.copy(x)
        return elementwise(b, out, lambda p: op(name, p), (x,), cost=cost)

    return lower


for _name in ("exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf "
              "erfc lgamma sigmoid").split():  # fmt: skip
    row(_name)(_unary(_name, TRANSCENDENTAL))
for _name in ("sqrt", "rsqrt", "reciprocal"):
    row(_name)(_unary(_name, 4))
for _name in ("floor", "ceil", "round", "trunc"):
    row(_name)(_unary(_name, on="rounding"))
row("frac")(_unary("frac"))
for _name in ("neg", "abs", "sign"):
    row(_name)(_unary(_name, on="numbers"))
row("sgn")(_unary("sign", on="numbers"))


@row("square")
def square(b: Builder, out: Meta, x: Value) -> Value | None:
    return pow_scalar(b, out, x, 2)


@row("relu")
def relu(b: Builder, out: Meta, x: Value) -> Value | None:
    return None if out.dtype == torch.bool else elementwise(b, out, lambda p: op("relu", p), (x,))


@row("positive")
def positive(b: Builder, out: Meta, x: Value) -> Value:
    return x


# --- comparison, logic, bits ----------------------------------------------------------------------------------------


def _comparison(name: str) -> Callable[..., Value | None]:
    def lower(b: Builder, out: Meta, x: Any, y: Any) -> Value | None:
        common = promoted((x, y))
        return elementwise(
            b, out, lambda p, q: compare(name, p, q), (x, y), compute=opmath(common), narrow_scalars=common
        )

    return lower


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    row(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_name))


def _logical(expression: Callable[..., Node]) -> Callable[..., Value | None]:
    return lambda b, out, *args: elementwise(b, out, expression, args, compute=torch.bool)


row("logical_and")(_logical(lambda p, q: op("and", p, q)))
row("logical_or")(_logical(lambda p, q: op("or", p, q)))
row("logical_xor")(_logical(lambda p, q: op("xor", p, q)))
row("logical_not")(_logical(lambda p: op("not", p)))


def _bitwise(name: str) -> Callable[..., Value | None]:
    return lambda b, out, *args: elementwise(b, out, lambda *nodes: op(name, *nodes), args)


for _name in ("and", "or", "xor"):
    row(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar", f"bitwise_{_name}.Scalar_Tensor")(
        _bitwise(_name)
    )
row("bitwise_not")(_bitwise("not"))


def _shift(name: str) -> Callable[..., Value | None]:
    def lower(b: Builder, out: Meta, x: Any, y: Any) -> Value | None:
        if out.dtype.is_floating_point or out.dtype == torch.bool:
            return None
        bits = out.dtype.itemsize * 8 - (name == "shr" and out.dtype.is_signed)

        def guarded(p: Node, q: Node) -> Node:
            """Counts outside the width give what a shift by all of it gives."""
            if q.op == "const":
                inside = const(0 <= q.attr < bits, torch.bool)
            else:
                inside = both(compare("ge", q, const(0, q.dtype)), compare("lt", q, const(bits, q.dtype)))
            if name == "shl" or not out.dtype.is_signed:
                return where(inside, op(name, p, q), const(0, p.dtype))
            return where(inside, op(name, p, q), op(name, p, const(bits, p.dtype)))

        return elementwise(b, out, guarded, (x, y), cost=3)

    return lower


row("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar")(_shift("shl"))
row("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Scalar")(_shift("shr"))


def _test(expression: Callable[[Node], Node], integers: bool) -> Callable[..., Value | None]:
    def lower(b: Builder, out: Meta, x: Value) -> Value | None:
        if not x.dtype.is_floating_point:
            return b.full(out.shape, integers, torch.bool, out.device)
        return elementwise(b, out, expression, (x,), compute=opmath(x.dtype))

    return lower


row("isnan")(_test(lambda p: compare("ne", p, p), False))
row("isinf")(_test(lambda p: compare("eq", op("abs", p), const(math.inf, p.dtype)), False))
row("isfinite")(_test(lambda p: compare("lt", op("abs", p), const(math.inf, p.dtype)), True))
row("isposinf")(_test(lambda p: compare("eq", p, const(math.inf, p.dtype)), False))
row("isneginf")(_test(lambda p: compare("eq", p, const(-math.inf, p.dtype)), False))


# --- selection ------------------------------------------------------------------------------------------------------


@row("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where_(b: Builder, out: Meta, condition: Value, x: Any, y: Any) -> Value | None:
    return elementwise(b, out, where, (condition, x, y), compute=out.dtype, bools=(0,)) if (
        condition.dtype == torch.bool
    ) else None  # fmt: skip


@row("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b: Builder, out: Meta, x: Value, mask: Value, number: Any) -> Value | None:
    if mask.dtype != torch.bool:
        return None
    return elementwise(
        b,
        out,
        lambda p, m, v: where(m, v, p),
        (x, mask, number),
        compute=out.dtype,
        bools=(1,),
        narrow_scalars=out.dtype,
    )


@row("clamp", "clamp.Tensor")
def clamp(b: Builder, out: Meta, x: Value, low: Any = None, high: Any = None) -> Value | None:
    def expression(p: Node, a: Node | None, z: Node | None) -> Node:
        if a is not None:
            p = op("max", p, a)
        return p if z is None else op("min", p, z)

    return elementwise(b, out, expression, (x, low, high), cost=2, narrow_scalars=out.dtype)


@row("clamp_min", "clamp_min.Tensor")
def clamp_min(b: Builder, out: Meta, x: Value, low: Any) -> Value | None:
    return clamp(b, out, x, low, None)


@row("clamp_max", "clamp_max.Tensor")
def clamp_max(b: Builder, out: Meta, x: Value, high: Any) -> Value | None:
    return clamp(b, out, x, None, high)


@row("nan_to_num")
def nan_to_num(
    b: Builder,
    out: Meta,
    x: Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Value | None:
    if not out.dtype.is_floating_point:
        return b.copy(x)
    limits = torch.finfo(out.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf

    def expression(p: Node) -> Node:
        dtype = p.dtype
        p = where(compare("ne", p, p), const(nan or 0.0, dtype), where(
            compare("eq", p, const(math.inf, dtype)), const(high, dtype), where(
                compare("eq", p, const(-math.inf, dtype)), const(low, dtype), p)))  # fmt: skip
        return p

    return elementwise(b, out, expression, (x,), cost=4)


# --- copies, casts, constants ---------------------------------------------------------------------------------------


@row("clone", "contiguous")
def clone(b: Builder, out: Meta, x: Value, memory_format: Any = None) -> Value:
    return b.copy(x, out.stride)


@row("_to_copy", "to.dtype", "prims_convert")
def to_copy(b: Builder, out: Meta, x: Value | int | float | Expr, *_: Any, **__: Any) -> Value | None:
    if not isinstance(x, Value):  # a number, which `vmap` casts like a tensor
        return b.full(out.shape, x, out.dtype, out.device)
    if x.device != out.device:
        return None
    return b.cast(x, out.dtype) if x.dtype != out.dtype else b.copy(x)


@row("copy")
def copy(b: Builder, out: Meta, x: Value, source: Value, non_blocking: bool = False) -> Value | None:
    if source.device != out.device:
        return None
    return b.copy(b.expand(b.cast(source, out.dtype), out.shape))


@row("full", "new_full", "full_like", "fill.Scalar")
def full(b: Builder, out: Meta, *args: Any, **kwargs: Any) -> Value | None:
    number = kwargs.get("fill_value", args[-1] if args else None)
    return (
        b.full(out.shape, number, out.dtype, out.device)
        if isinstance(number, (bool, int, float, Expr))
        else None
    )


@row("fill.Tensor")
def fill(b: Builder, out: Meta, x: Value, source: Value) -> Value:
    return b.copy(b.expand(b.cast(source, out.dtype), out.shape))


@row("zeros", "new_zeros", "zeros_like", "zero")
def zeros(b: Builder, out: Meta, *_: Any, **__: Any) -> Value:
    return b.full(out.shape, 0, out.dtype, out.device)


@row("ones", "new_ones", "ones_like")
def ones(b: Builder, out: Meta, *_: Any, **__: Any) -> Value:
    return b.full(out.shape, 1, out.dtype, out.device)


@row("empty_like", "new_empty", "empty.memory_format", "empty_strided", "new_empty_strided")
def empty(b: Builder, out: Meta, *_: Any, **__: Any) -> Value:
    """Memory of the result's geometry; a tensor given for its geometry is not computed for it."""
    target = torch.ops.aten.empty_strided.default
    value: Value = b.call(target, (out.shape, out.stride), out, dtype=out.dtype, device=out.device)
    return value


@row("scalar_tensor")
def scalar_tensor(b: Builder, out: Meta, number: Any, **_: Any) -> Value | None:
    if not isinstance(number, (bool, int, float, Expr)):
        return None
    return b.full((), number, out.dtype, out.device)


# --- several arguments ----------------------------------------------------------------------------------------------


@row("lerp.Scalar", "lerp.Tensor")
def lerp(b: Builder, out: Meta, start: Value, end: Value, weight: Any) -> Value | None:
    def expression(s: Node, e: Node, w: Node) -> Node:
        half, one = const(0.5, s.dtype), const(1, s.dtype)
        distance = sub(e, s)
        near = add(s, mul(w, distance))
        far = sub(e, mul(distance, sub(one, w)))
        return where(compare("lt", op("abs", w), half), near, far)

    if not out.dtype.is_floating_point:
        return None  # ATen raises
    return elementwise(b, out, expression, (start, end, weight), cost=5)


@row("addcmul")
def addcmul(b: Builder, out: Meta, x: Value, first: Value, second: Value, value: Scalar = 1) -> Value | None:
    if out.dtype == torch.bool or not _fits(value, out):
        return None
    return elementwise(
        b, out, lambda p, q, r, k: add(p, mul(mul(q, k), r)), (x, first, second, value), cost=3
    )


@float_row("addcdiv")
def addcdiv(b: Builder, out: Meta, x: Value, first: Value, second: Value, value: Scalar = 1) -> Value | None:
    return elementwise(
        b, out, lambda p, q, r, k: add(p, div(mul(q, k), r)), (x, first, second, value), cost=5
    )


@row("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
def xlogy(b: Builder, out: Meta, x: Any, y: Any) -> Value | None:
    def expression(p: Node, q: Node) -> Node:
        zero = const(0, p.dtype)
        return where(compare("ne", q, q), q, where(compare("eq", p, zero), zero, mul(p, op("log", q))))

    return elementwise(b, out, expression, (x, y), cost=TRANSCENDENTAL)


@float_row("logaddexp")
def logaddexp(b: Builder, out: Meta, x: Value, y: Value) -> Value | None:
    def expression(p: Node, q: Node) -> Node:
        same = both(compare("eq", op("abs", p), const(math.inf, p.dtype)), compare("eq", p, q))
        return where(same, p, add(op("max", p, q), op("log1p", op("exp", op("neg", op("abs", sub(p, q)))))))

    return elementwise(b, out, expression, (x, y), cost=2 * TRANSCENDENTAL)
