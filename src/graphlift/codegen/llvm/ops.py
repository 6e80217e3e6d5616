"""One table row per IR op: how it becomes LLVM instructions.

In: an IR node and its arguments as `Value`s. Out: a `Value` of the register type of the node's dtype.
Always: bfloat16 and float16 live in registers as float32, rounded after every op that may not be exact.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from graphlift.codegen.llvm.text import ELEMENT_BITS, Builder, Value
from graphlift.codegen.llvm.vmath import SLEEF, VectorMath, evaluate
from graphlift.errors import InternalError
from graphlift.lower.ir import Node

# dtype → type in registers, type in memory
REGISTER: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "float",
    torch.float16: "float",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.bool: "i1",
}
MEMORY: dict[torch.dtype, str] = {
    **REGISTER,
    torch.bfloat16: "i16",
    torch.float16: "half",
    torch.bool: "i8",
}
LOW_PRECISION = (torch.bfloat16, torch.float16)

# Ops whose result is exact in the arguments' precision: no rounding needed for bfloat16 and float16.
_EXACT = frozenset(
    "load reduced const where neg abs min max fmin fmax relu sign floor ceil round trunc copysign fmod".split()
)


class Emitter:
    """Turns nodes into instructions of one builder."""

    def __init__(self, builder: Builder, math: VectorMath) -> None:
        self.b = builder
        self.math = math

    def node(self, node: Node, args: list[Value]) -> Value:
        if node.op == "cast":
            return self.cast(args[0], node.args[0].dtype, node.dtype)
        if node.op == "bitcast":
            return self.bitcast(args[0], node.args[0].dtype, node.dtype)
        operand = node.args[-1].dtype
        table = FLOAT_OPS if operand.is_floating_point else BOOL_OPS if operand == torch.bool else INT_OPS
        rule = table.get(node.op)
        if rule is None:
            raise InternalError(f"no LLVM form of {node.op} on {operand}")
        result = rule(self, node, *args)
        if node.dtype in LOW_PRECISION and node.op not in _EXACT:
            result = self.round_to(result, node.dtype)
        return result

    # --- constants and rounding ------------------------------------------------------------------------------

    def num(self, value: float, like: Value) -> Value:
        constant = self.b.constant(value, like.type)
        return self.b.splat(constant, like.lanes) if like.lanes else constant

    def const(self, node: Node) -> Value:
        value = node.attr
        if node.dtype in LOW_PRECISION:
            value = torch.tensor(float(value), dtype=node.dtype).item()
        elif not node.dtype.is_floating_point:
            value = torch.full((), value, dtype=node.dtype).item()
        return self.b.constant(value, REGISTER[node.dtype])

    def round_to(self, x: Value, dtype: torch.dtype) -> Value:
        """The float32 value nearest to x that ``dtype`` holds."""
        if dtype == torch.float16:
            return self.b.cast("fpext", self.b.cast("fptrunc", x, "half"), "float")
        return self.b.cast("bitcast", self._bfloat16_bits(x, keep=True), "float")

    def _bfloat16_bits(self, x: Value, keep: bool) -> Value:
        """Round to nearest even; the result in the high half (``keep``) or the low half of an i32."""
        b = self.b
        bits = b.cast("bitcast", x, "i32")
        shifted = b.inst("lshr", bits, self.num(16, bits))
        odd = b.inst("and", shifted, self.num(1, bits))
        rounded = b.inst("add", b.inst("add", bits, self.num(0x7FFF, bits)), odd)
        # The carry could turn a NaN with a full mantissa into something else.
        nan = b.inst("fcmp uno", x, x, kind="i1")
        rounded = b.select(nan, self.num(0x7FC00000, bits), rounded)
        if keep:
            return b.inst("and", rounded, self.num(0xFFFF0000, bits))
        return b.inst("lshr", rounded, self.num(16, bits))

    # --- registers and memory --------------------------------------------------------------------------------

    def from_memory(self, raw: Value, dtype: torch.dtype) -> Value:
        b = self.b
        if dtype == torch.bfloat16:
            wide = b.cast("zext", raw, "i32")
            return b.cast("bitcast", b.inst("shl", wide, self.num(16, wide)), "float")
        if dtype == torch.float16:
            return b.cast("fpext", raw, "float")
        if dtype == torch.bool:
            return b.inst("icmp ne", raw, self.num(0, raw), kind="i1")
        return raw

    def to_memory(self, value: Value, dtype: torch.dtype) -> Value:
        b = self.b
        if dtype == torch.bfloat16:
            return b.cast("trunc", self._bfloat16_bits(value, keep=False), "i16")
        if dtype == torch.float16:
            return b.cast("fptrunc", value, "half")
        if dtype == torch.bool:
            return b.cast("zext", value, "i8")
        if dtype == torch.int64 and value.type == "i32":
            return b.cast("sext", value, "i64")
        return value

    # --- casts -----------------------------------------------------------------------------------------------

    def cast(self, x: Value, source: torch.dtype, target: torch.dtype) -> Value:
        b = self.b
        if source == target:
            return x
        kind = REGISTER[target]
        if source.is_floating_point:
            if target == torch.bool:
                return b.inst("fcmp une", x, self.num(0.0, x), kind="i1")
            if not target.is_floating_point:
                # Narrow integers go through a wide one, which is what C compilers and ATen do on x86.
                wide = "i64" if target in (torch.int64, torch.uint8) else "i32"
                integer = b.emit(wide, x.lanes, f"fptosi {x.llvm} {{0}} to {_vector(wide, x.lanes)}", x)
                integer = b.emit(wide, x.lanes, f"freeze {integer.llvm} {{0}}", integer)
                return integer if wide == kind else b.cast("trunc", integer, kind)
            if target == torch.float64:
                return b.cast("fpext", x, "double")
            x = b.cast("fptrunc", x, "float")
            return self.round_to(x, target) if target in LOW_PRECISION else x
        if target == torch.bool:
            return b.inst("icmp ne", x, self.num(0, x), kind="i1")
        unsigned = source in (torch.bool, torch.uint8)
        if target.is_floating_point:
            x = b.cast("uitofp" if unsigned else "sitofp", x, kind)
            return self.round_to(x, target) if target in LOW_PRECISION else x
        narrower = ELEMENT_BITS[kind] < ELEMENT_BITS[x.type]
        return b.cast("trunc" if narrower else "zext" if unsigned else "sext", x, kind)

    def bitcast(self, x: Value, source: torch.dtype, target: torch.dtype) -> Value:
        if source == torch.int64:
            x = self.b.cast("sext", x, "i64")
        raw = self.to_memory(x, source)
        kind = MEMORY[target]
        if raw.type != kind:
            raw = self.b.cast("bitcast", raw, kind)
        return self.from_memory(raw, target)

    # --- shapes of rules -------------------------------------------------------------------------------------

    def is_true(self, opcode: str, a: Value, b: Value) -> Value:
        return self.b.inst(opcode, a, b, kind="i1")

    def maximum(self, a: Value, b: Value, opcode: str = "fcmp ogt") -> Value:
        """The larger (or by ``fcmp olt`` the smaller) of two floats, NaN if either is."""
        if b.is_constant and not a.is_constant:
            a, b = b, a
        a, b = self.b.unify(a, b)
        best = self.b.select(self.is_true(opcode, a, b), a, b)  # b where unordered
        return best if a.is_constant else self.math.select_uno(a, best)

    def nonzero_divisor(self, a: Value, b: Value) -> tuple[Value, Value]:
        """(a, b) such that a/b cannot trap: b is never 0, and never -1 with the smallest a."""
        if b.is_constant and b.text.rstrip(")").split()[-1] not in ("0", "-1"):
            return a, b
        a, b = self.b.unify(a, b)
        zero = self.is_true("icmp eq", b, self.num(0, b))
        b = self.b.select(zero, self.num(1, b), b)
        smallest = self.num(-(1 << (ELEMENT_BITS[a.type] - 1)), a)
        overflow = self.b.inst(
            "and", self.is_true("icmp eq", b, self.num(-1, b)), self.is_true("icmp eq", a, smallest)
        )
        return a, self.b.select(overflow, self.num(1, b), b)


def _vector(kind: str, lanes: int) -> str:
    return f"<{lanes} x {kind}>" if lanes else kind


Rule = Callable[..., Value]


def _inst(opcode: str) -> Rule:
    return lambda e, node, *args: e.b.inst(opcode, *args)


def _compare(opcode: str, unsigned: str | None = None) -> Rule:
    def rule(e: Emitter, node: Node, a: Value, b: Value) -> Value:
        chosen = unsigned if unsigned and node.args[0].dtype == torch.uint8 else opcode
        return e.b.inst(chosen, a, b, kind="i1")

    return rule


def _intrinsic(name: str) -> Rule:
    return lambda e, node, *args: e.b.intrinsic(name, *args)


def _math(op: str) -> Rule:
    return lambda e, node, *args: evaluate(e.math, op, *args)


def _float_mod(e: Emitter, node: Node, a: Value, b: Value) -> Value:
    a, b = e.b.unify(a, b)
    mod = evaluate(e.math, "fmod", a, b)
    zero = e.num(0.0, mod)
    differs = e.b.inst("xor", e.is_true("fcmp olt", b, zero), e.is_true("fcmp olt", mod, zero))
    adjust = e.b.inst("and", differs, e.is_true("fcmp une", mod, zero))
    return e.b.select(adjust, e.b.inst("fadd", mod, b), mod)


def _float_floordiv(e: Emitter, node: Node, a: Value, b: Value) -> Value:
    """Python's rule as in c10::div_floor_floating: exact where a plain floor(a/b) would be off by rounding."""
    a, b = e.b.unify(a, b)
    mod = evaluate(e.math, "fmod", a, b)
    zero, one = e.num(0.0, mod), e.num(1.0, mod)
    quotient = e.b.inst("fdiv", a, b)
    infinite = e.num(float("inf"), mod)
    # Sleef's fmod is NaN where the quotient overflows; the remainder does not matter there.
    overflow = e.b.inst(
        "and",
        e.is_true("fcmp oeq", e.math.abs(quotient), infinite),
        e.is_true("fcmp une", e.math.abs(a), infinite),
    )
    div = e.b.inst("fdiv", e.b.select(overflow, a, e.b.inst("fsub", a, mod)), b)
    differs = e.b.inst("xor", e.is_true("fcmp olt", b, zero), e.is_true("fcmp olt", mod, zero))
    adjust = e.b.inst("and", differs, e.is_true("fcmp une", mod, zero))
    div = e.b.select(adjust, e.b.inst("fsub", div, one), div)
    floor = e.b.intrinsic("floor", div)
    above = e.is_true("fcmp ogt", e.b.inst("fsub", div, floor), e.num(0.5, mod))
    floor = e.b.select(above, e.b.inst("fadd", floor, one), floor)
    signed_zero = e.b.intrinsic("copysign", zero, quotient)
    floor = e.b.select(e.is_true("fcmp oeq", div, zero), signed_zero, floor)
    return e.b.select(e.is_true("fcmp oeq", b, zero), quotient, floor)


def _sign(e: Emitter, node: Node, x: Value) -> Value:
    zero, one = e.num(0.0, x), e.num(1.0, x)
    up = e.b.select(e.is_true("fcmp ogt", x, zero), one, zero)
    return e.b.select(e.is_true("fcmp olt", x, zero), e.num(-1.0, x), up)


def _sigmoid(e: Emitter, node: Node, x: Value) -> Value:
    one = e.num(1.0, x)
    exponential = evaluate(e.math, "exp", e.b.inst("fneg", x))
    return e.b.inst("fdiv", one, e.b.inst("fadd", one, exponential))


def _extreme_number(opcode: str) -> Rule:
    """fmax/fmin: the other argument where one is NaN."""

    def rule(e: Emitter, node: Node, a: Value, b: Value) -> Value:
        a, b = e.b.unify(a, b)
        best = e.b.select(e.is_true(opcode, a, b), a, b)
        return e.b.select(e.is_true("fcmp uno", b, b), a, best)

    return rule


def _signbit(e: Emitter, node: Node, x: Value) -> Value:
    bits = e.b.cast("bitcast", x, "i64" if x.type == "double" else "i32")
    return e.is_true("icmp slt", bits, e.num(0, bits))


def _relu(e: Emitter, node: Node, x: Value) -> Value:
    zero = e.num(0.0, x)
    return e.b.select(e.is_true("fcmp olt", x, zero), zero, x)


def _where(e: Emitter, node: Node, c: Value, a: Value, b: Value) -> Value:
    if c.lanes:
        a, b = e.b.splat(a, c.lanes), e.b.splat(b, c.lanes)
    elif a.lanes or b.lanes:
        a, b = e.b.unify(a, b)
    return e.b.select(c, a, b)


FLOAT_OPS: dict[str, Rule] = {
    "add": _inst("fadd"),
    "sub": _inst("fsub"),
    "mul": _inst("fmul"),
    "div": _inst("fdiv"),
    "floordiv": _float_floordiv,
    "mod": _float_mod,
    "truncdiv": lambda e, node, a, b: e.b.intrinsic("trunc", e.b.inst("fdiv", a, b)),
    "copysign": _intrinsic("copysign"),
    "min": lambda e, node, a, b: e.maximum(a, b, "fcmp olt"),
    "max": lambda e, node, a, b: e.maximum(a, b),
    "fmin": _extreme_number("fcmp olt"),
    "fmax": _extreme_number("fcmp ogt"),
    "fma": _intrinsic("fma"),
    "lt": _compare("fcmp olt"),
    "le": _compare("fcmp ole"),
    "gt": _compare("fcmp ogt"),
    "ge": _compare("fcmp oge"),
    "eq": _compare("fcmp oeq"),
    "ne": _compare("fcmp une"),
    "isnan": lambda e, node, x: e.is_true("fcmp uno", x, x),
    "isinf": lambda e, node, x: e.is_true("fcmp oeq", e.math.abs(x), e.num(float("inf"), x)),
    "isfinite": lambda e, node, x: e.is_true("fcmp olt", e.math.abs(x), e.num(float("inf"), x)),
    "signbit": _signbit,
    "where": _where,
    "neg": lambda e, node, x: e.b.inst("fneg", x),
    "abs": lambda e, node, x: e.math.abs(x),
    "sign": _sign,
    "square": lambda e, node, x: e.b.inst("fmul", x, x),
    "relu": _relu,
    "reciprocal": lambda e, node, x: e.b.inst("fdiv", e.num(1.0, x), x),
    "sqrt": _intrinsic("sqrt"),
    "rsqrt": lambda e, node, x: e.b.inst("fdiv", e.num(1.0, x), e.b.intrinsic("sqrt", x)),
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "round": _intrinsic("roundeven"),
    "trunc": _intrinsic("trunc"),
    "frac": lambda e, node, x: e.b.inst("fsub", x, e.b.intrinsic("trunc", x)),
    "sigmoid": _sigmoid,
    **{op: _math(op) for op in SLEEF},
}


def _int_floordiv(e: Emitter, node: Node, a: Value, b: Value) -> Value:
    if node.dtype == torch.uint8:
        return e.b.inst("udiv", *e.nonzero_divisor(a, b))
    a, b = e.nonzero_divisor(a, b)
    quotient, rest = e.b.inst("sdiv", a, b), e.b.inst("srem", a, b)
    return e.b.select(_wrong_side(e, rest, b), e.b.inst("sub", quotient, e.num(1, quotient)), quotient)


def _int_mod(e: Emitter, node: Node, a: Value, b: Value) -> Value:
    if node.dtype == torch.uint8:
        return e.b.inst("urem", *e.nonzero_divisor(a, b))
    a, b = e.nonzero_divisor(a, b)
    rest = e.b.inst("srem", a, b)
    return e.b.select(_wrong_side(e, rest, b), e.b.inst("add", rest, b), rest)


def _wrong_side(e: Emitter, rest: Value, b: Value) -> Value:
    """Whether a remainder is not zero and has not the divisor's sign."""
    opposite = e.is_true("icmp slt", e.b.inst("xor", rest, b), e.num(0, rest))
    return e.b.inst("and", opposite, e.is_true("icmp ne", rest, e.num(0, rest)))


def _truncating(signed: str, unsigned: str) -> Rule:
    def rule(e: Emitter, node: Node, a: Value, b: Value) -> Value:
        return e.b.inst(unsigned if node.dtype == torch.uint8 else signed, *e.nonzero_divisor(a, b))

    return rule


def _int_extreme(name: str) -> Rule:
    return lambda e, node, a, b: e.b.intrinsic(("u" if node.dtype == torch.uint8 else "s") + name, a, b)


def _shift(opcode: str) -> Rule:
    """Shifts by a count outside the width give 0 (right shifts of negatives -1), as in ATen."""

    def rule(e: Emitter, node: Node, a: Value, b: Value) -> Value:
        a, b = e.b.unify(a, b)
        chosen = "lshr" if opcode == "ashr" and node.dtype == torch.uint8 else opcode
        bits = ELEMENT_BITS[a.type]
        outside = e.is_true("icmp uge", b, e.num(bits, b))
        limit = e.b.inst("ashr", a, e.num(bits - 1, a)) if chosen == "ashr" else e.num(0, a)
        count = e.b.inst("and", b, e.num(bits - 1, b))
        return e.b.select(outside, limit, e.b.inst(chosen, a, count))

    return rule


def _int_abs(e: Emitter, node: Node, x: Value) -> Value:
    if node.dtype == torch.uint8:
        return x
    return e.b.select(e.is_true("icmp slt", x, e.num(0, x)), e.b.inst("sub", e.num(0, x), x), x)


def _int_sign(e: Emitter, node: Node, x: Value) -> Value:
    up = e.b.select(e.is_true("icmp ne", x, e.num(0, x)), e.num(1, x), e.num(0, x))
    if node.dtype == torch.uint8:
        return up
    return e.b.select(e.is_true("icmp slt", x, e.num(0, x)), e.num(-1, x), up)


INT_OPS: dict[str, Rule] = {
    "add": _inst("add"),
    "sub": _inst("sub"),
    "mul": _inst("mul"),
    "square": lambda e, node, x: e.b.inst("mul", x, x),
    "floordiv": _int_floordiv,
    "mod": _int_mod,
    "truncdiv": _truncating("sdiv", "udiv"),
    "fmod": _truncating("srem", "urem"),
    "min": _int_extreme("min"),
    "max": _int_extreme("max"),
    "fmin": _int_extreme("min"),
    "fmax": _int_extreme("max"),
    "and": _inst("and"),
    "or": _inst("or"),
    "xor": _inst("xor"),
    "not": lambda e, node, x: e.b.inst("xor", x, e.num(-1, x)),
    "shl": _shift("shl"),
    "shr": _shift("ashr"),
    "lt": _compare("icmp slt", "icmp ult"),
    "le": _compare("icmp sle", "icmp ule"),
    "gt": _compare("icmp sgt", "icmp ugt"),
    "ge": _compare("icmp sge", "icmp uge"),
    "eq": _compare("icmp eq"),
    "ne": _compare("icmp ne"),
    "where": _where,
    "neg": lambda e, node, x: e.b.inst("sub", e.num(0, x), x),
    "abs": _int_abs,
    "sign": _int_sign,
    "relu": lambda e, node, x: x if node.dtype == torch.uint8 else e.b.intrinsic("smax", x, e.num(0, x)),
    **{op: lambda e, node, x: x for op in ("floor", "ceil", "round", "trunc")},
    "isnan": lambda e, node, x: e.num(False, e.is_true("icmp ne", x, x)),
    "isinf": lambda e, node, x: e.num(False, e.is_true("icmp ne", x, x)),
    "isfinite": lambda e, node, x: e.num(True, e.is_true("icmp eq", x, x)),
}

BOOL_OPS: dict[str, Rule] = {
    "add": _inst("or"),
    "mul": _inst("and"),
    "and": _inst("and"),
    "or": _inst("or"),
    "xor": _inst("xor"),
    "min": _inst("and"),
    "max": _inst("or"),
    "not": lambda e, node, x: e.b.inst("xor", x, e.num(True, x)),
    "eq": lambda e, node, a, b: e.b.inst("xor", e.b.inst("xor", a, b), e.num(True, e.b.inst("xor", a, b))),
    "ne": _inst("xor"),
    "lt": lambda e, node, a, b: e.b.inst("and", e.b.inst("xor", a, e.num(True, a)), b),
    "gt": lambda e, node, a, b: e.b.inst("and", e.b.inst("xor", b, e.num(True, b)), a),
    "le": lambda e, node, a, b: e.b.inst("or", e.b.inst("xor", a, e.num(True, a)), b),
    "ge": lambda e, node, a, b: e.b.inst("or", e.b.inst("xor", b, e.num(True, b)), a),
    "where": _where,
    "abs": lambda e, node, x: x,
    "sign": lambda e, node, x: x,
}


def supported(op: str, dtype: torch.dtype) -> bool:
    """Whether codegen has a form of ``op`` whose (last) argument has ``dtype``; else the op stays with ATen."""
    if dtype not in REGISTER:
        return False
    if op in ("const", "axis", "load", "reduced", "cast", "bitcast"):
        return True
    return op in (FLOAT_OPS if dtype.is_floating_point else BOOL_OPS if dtype == torch.bool else INT_OPS)
