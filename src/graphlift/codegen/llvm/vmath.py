"""Elementary functions of float32 and float64 vectors: inlined where a short polynomial is exact enough, else Sleef.

In: `Value`s of type float or double. Out: `Value`s.
Always: float32 results are within about one unit in the last place of the true value; special values as in C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphlift.codegen.llvm.target import Target, bind
from graphlift.codegen.llvm.text import Builder, Value
from graphlift.errors import InternalError

# Minimax fits (Lawson's algorithm on Chebyshev points, then rounded to float32); lowest order first.
_EXP = (
    0.500000009533051,
    0.16666518680664658,
    0.041666205340584565,
    0.008368908422644941,
    0.0013950521841087121,
)
_TANH = (
    -0.3333328392358787,
    0.1333149124844852,
    -0.053743495256530875,
    0.02065057898949303,
    -0.005717036546833005,
)
_ERF_SMALL = (0.12837915003693437, -0.3761249431678153, 0.11281802772307119, -0.026765566999475757,
              0.004990980252475037, -0.0005976893795580598)  # fmt: skip
_ERF_LARGE = (-0.12864849206474838, -0.6351513086503766, -0.10623689111558995, 0.023762075055695175,
              -0.00364246502040186, 0.00032280539242035203, -1.1231465466503006e-05)  # fmt: skip
_LOG = (0.3333331253623831, -0.2500000946206025, 0.2000212371555592, -0.1666800837105514, 0.1421945104451878,
        -0.12405279413557467, 0.11888645557160045, -0.11677876509181971, 0.0674830858116192)  # fmt: skip

_LOG2E = 1.4426950408889634
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.42860682030941723212e-6


class VectorMath:
    """Math functions for one builder and target."""

    def __init__(self, builder: Builder, target: Target) -> None:
        self.b = builder
        self.target = target

    # --- helpers ---------------------------------------------------------------------------------------------

    def num(self, value: float, like: Value) -> Value:
        return (
            self.b.splat(self.b.constant(value, like.type), like.lanes)
            if like.lanes
            else self.b.constant(value, like.type)
        )

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.b.intrinsic("fma", a, b, c)

    def poly(self, x: Value, coefficients: Sequence[float]) -> Value:
        result = self.num(coefficients[-1], x)
        for c in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.num(c, x))
        return result

    def abs(self, x: Value) -> Value:
        return self.b.intrinsic("fabs", x)

    def select_uno(self, x: Value, otherwise: Value) -> Value:
        """x where it is NaN."""
        return self.b.select(self.b.inst("fcmp uno", x, x, kind="i1"), x, otherwise)

    # --- inlined float32 functions ---------------------------------------------------------------------------

    def exp_float(self, x: Value) -> Value:
        """exp by 2^n * exp(r), |r| <= ln(2)/2; overflow gives inf, underflow passes through the subnormals to 0."""
        b = self.b
        # Bounds beyond which the result is inf or 0 anyway, so that n stays a small integer. NaN passes by order.
        x = self._clamp(x, -110.0, 100.0)
        n = b.intrinsic("roundeven", b.inst("fmul", x, self.num(_LOG2E, x)))
        r = self.fma(n, self.num(-_LN2_HIGH, x), x)
        r = self.fma(n, self.num(-_LN2_LOW, x), r)
        q = self.poly(r, _EXP)
        p = self.fma(b.inst("fmul", r, r), q, r)
        y = b.inst("fadd", p, self.num(1.0, x))
        return self._scale(y, n)

    def _clamp(self, x: Value, low: float, high: float) -> Value:
        b = self.b
        lo, hi = self.num(low, x), self.num(high, x)
        x = b.select(b.inst("fcmp ogt", lo, x, kind="i1"), lo, x)
        return b.select(b.inst("fcmp olt", hi, x, kind="i1"), hi, x)

    def _scale(self, y: Value, n: Value) -> Value:
        """y * 2^n for integral n."""
        b = self.b
        if self.target.isa == "avx512" and y.lanes == 16:
            name = "llvm.x86.avx512.mask.scalef.ps.512"
            vector = "<16 x float>"
            b.declarations.add(f"declare {vector} @{name}({vector}, {vector}, {vector}, i16, i32)")
            arguments = f"{vector} {{0}}, {vector} {{1}}, {vector} zeroinitializer, i16 -1, i32 4"
            template = f"call {vector} @{name}({arguments})"
            return b.emit("float", 16, template, y, n)
        # In two halves, each of which is a normal power of two.
        k = b.cast("fptosi", n, "i32")
        half = b.inst("ashr", k, self._int(1, k))
        for part in (half, b.inst("sub", k, half)):
            bits = b.inst("shl", b.inst("add", part, self._int(127, k)), self._int(23, k))
            y = b.inst("fmul", y, b.cast("bitcast", bits, "float"))
        return y

    def _int(self, value: int, like: Value) -> Value:
        constant = self.b.constant(value, like.type)
        return self.b.splat(constant, like.lanes) if like.lanes else constant

    def expm1_negated_tail(self, t: Value) -> Value:
        """1 - 2/(exp(2t)+1) for t >= 0: tanh away from zero."""
        b = self.b
        e = self.exp_float(b.inst("fadd", t, t))
        quotient = b.inst("fdiv", self.num(2.0, t), b.inst("fadd", e, self.num(1.0, t)))
        return b.inst("fsub", self.num(1.0, t), quotient)

    def tanh_float(self, x: Value) -> Value:
        b = self.b
        t = self.abs(x)
        s = b.inst("fmul", x, x)
        small = self.fma(b.inst("fmul", s, self.poly(s, _TANH)), x, x)
        large = b.intrinsic("copysign", self.expm1_negated_tail(t), x)
        return b.select(b.inst("fcmp olt", t, self.num(0.625, x), kind="i1"), small, large)

    def erf_float(self, x: Value) -> Value:
        b = self.b
        t = self.abs(x)
        small = self.fma(self.poly(b.inst("fmul", x, x), _ERF_SMALL), x, x)
        capped = b.select(b.inst("fcmp olt", self.num(4.0, t), t, kind="i1"), self.num(4.0, t), t)
        exponent = self.fma(self.poly(capped, _ERF_LARGE), capped, b.inst("fsub", self.num(-0.0, t), capped))
        tail = b.inst("fsub", self.num(1.0, t), self.exp_float(exponent))
        large = b.intrinsic("copysign", tail, x)
        return b.select(b.inst("fcmp ult", t, self.num(0.927734375, x), kind="i1"), small, large)

    def log_float(self, x: Value) -> Value:
        """log of m * 2^e with m in [sqrt(1/2), sqrt(2)): e*ln2 + log1p(m-1)."""
        b = self.b
        tiny = b.inst("fcmp olt", x, self.num(1.17549435e-38, x), kind="i1")
        scaled = b.select(tiny, b.inst("fmul", x, self.num(8388608.0, x)), x)
        bits = b.cast("bitcast", scaled, "i32")
        offset = b.inst("sub", bits, self._int(0x3F3504F3, bits))
        e = b.inst("ashr", offset, self._int(23, bits))
        m = b.cast("bitcast", b.inst("sub", bits, b.inst("shl", e, self._int(23, bits))), "float")
        e = b.inst("sub", e, b.select(tiny, self._int(23, bits), self._int(0, bits)))
        n = b.cast("sitofp", e, "float")
        f = b.inst("fsub", m, self.num(1.0, x))
        s = b.inst("fmul", f, f)
        y = b.inst("fmul", b.inst("fmul", s, f), self.poly(f, _LOG))
        y = self.fma(n, self.num(_LN2_LOW, x), y)
        y = self.fma(s, self.num(-0.5, x), y)
        y = b.inst("fadd", f, y)
        y = self.fma(n, self.num(_LN2_HIGH, x), y)
        infinite = self.num(float("inf"), x)
        y = b.select(b.inst("fcmp oeq", x, infinite, kind="i1"), infinite, y)
        y = b.select(b.inst("fcmp oeq", x, self.num(0.0, x), kind="i1"), self.num(float("-inf"), x), y)
        return b.select(b.inst("fcmp ult", x, self.num(0.0, x), kind="i1"), self.num(float("nan"), x), y)

    # --- Sleef -----------------------------------------------------------------------------------------------

    def sleef(self, name: str, accuracy: str, *args: Value) -> Value:
        """A Sleef function over vectors of any length (split into full vectors) or scalars (one lane of a vector)."""
        b = self.b
        args = b.unify(*args)
        double = args[0].type == "double"
        width = self.target.lanes // 2 if double else self.target.lanes
        symbol = self.target.sleef(name, double, accuracy)
        if not bind(symbol):
            raise InternalError(f"libtorch_cpu does not export {symbol}")
        lanes = args[0].lanes
        if not lanes:
            full = b.call(symbol, args[0].type, width, *[b.splat(a, width) for a in args])
            return b.extract(full, 0)
        if lanes == width:
            return b.call(symbol, args[0].type, width, *args)
        if lanes < width:
            grow = [k % lanes for k in range(width)]
            full = b.call(symbol, args[0].type, width, *[b.shuffle(a, a, grow) for a in args])
            return b.shuffle(full, full, list(range(lanes)))
        half = lanes // 2
        parts = [
            self.sleef(name, accuracy, *[b.shuffle(a, a, list(range(k, k + half))) for a in args])
            for k in (0, half)
        ]
        return b.shuffle(parts[0], parts[1], list(range(lanes)))


INLINE_FLOAT: dict[str, Callable[[VectorMath, Value], Value]] = {
    "exp": VectorMath.exp_float,
    "tanh": VectorMath.tanh_float,
    "erf": VectorMath.erf_float,
    "log": VectorMath.log_float,
}

# IR op → (Sleef function, accuracy); the variants that ATen's own vector code calls.
SLEEF: dict[str, tuple[str, str]] = {
    "exp": ("exp", "u10"),
    "exp2": ("exp2", "u10"),
    "expm1": ("expm1", "u10"),
    "log": ("log", "u10"),
    "log2": ("log2", "u10"),
    "log10": ("log10", "u10"),
    "log1p": ("log1p", "u10"),
    "tanh": ("tanh", "u10"),
    "erf": ("erf", "u10"),
    "erfc": ("erfc", "u15"),
    "lgamma": ("lgamma", "u10"),
    "sin": ("sin", "u10"),
    "cos": ("cos", "u10"),
    "tan": ("tan", "u10"),
    "asin": ("asin", "u10"),
    "acos": ("acos", "u10"),
    "atan": ("atan", "u10"),
    "sinh": ("sinh", "u10"),
    "cosh": ("cosh", "u10"),
    "asinh": ("asinh", "u10"),
    "acosh": ("acosh", "u10"),
    "atanh": ("atanh", "u10"),
    "pow": ("pow", "u10"),
    "atan2": ("atan2", "u10"),
    "hypot": ("hypot", "u05"),
    "fmod": ("fmod", ""),
    "nextafter": ("nextafter", ""),
}

# Sleef's float32 versions overflow (or lose subnormals) well inside the range where the result is finite.
BY_DOUBLE = frozenset({"sinh", "cosh", "asinh", "acosh"})


def evaluate(math: VectorMath, op: str, *args: Value) -> Value:
    """The value of math function ``op``: inlined for float32 where there is a polynomial, else from Sleef."""
    inline = INLINE_FLOAT.get(op)
    if inline is not None and args[0].type == "float":
        return inline(math, args[0])
    name, accuracy = SLEEF[op]
    if op in BY_DOUBLE and args[0].type == "float":
        wide = math.sleef(name, accuracy, *[math.b.cast("fpext", a, "double") for a in args])
        return math.b.cast("fptrunc", wide, "float")
    return math.sleef(name, accuracy, *args)
