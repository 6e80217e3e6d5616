"""Sizes that vary, as values inside a kernel: read from the array given with each call, derived once at its start.

In: `SizeLike`s over a kernel's symbols. Out: i64 `Value`s of the outermost region.
Always: Python's floor semantics.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from graphlift.codegen.llvm.text import Builder, Value
from graphlift.shapes.expr import Compound, Expr, FloorDiv, Min, SizeLike, Symbol


class Sizes:
    """The sizes of one function; the array of the symbols' values follows the kernel's base pointers."""

    def __init__(self, b: Builder, symbols: Sequence[Symbol], buffers: int) -> None:
        self.b = b
        self.position = {symbol: k for k, symbol in enumerate(symbols)}
        self.buffers = buffers
        self.known: dict[SizeLike, Value] = {}

    def value(self, size: SizeLike) -> Value:
        """The size as an i64."""
        if not isinstance(size, Expr):
            return self.b.constant(size, "i64")
        found = self.known.get(size)
        if found is None:
            found = self.known[size] = self._value(size)
        return found

    def _value(self, size: Expr) -> Value:
        b = self.b
        if isinstance(size, Symbol):
            return self._symbol(self.position[size])
        if isinstance(size, FloorDiv):
            above, below = size.args
            if isinstance(below, int) and below > 0:
                return self._floor_by(self.value(above), below)
            return self._floor(self.value(above), self.value(below))
        if isinstance(size, Compound):
            name = "smin" if isinstance(size, Min) else "smax"
            return reduce(lambda x, y: b.intrinsic(name, x, y), [self.value(a) for a in size.args])
        total: Value | None = None
        for monomial, coefficient in size.terms:
            factors = [self.value(atom) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.append(b.constant(coefficient, "i64"))
            term = reduce(lambda x, y: b.inst("mul", x, y), factors)
            total = term if total is None else b.inst("add", total, term)
        assert total is not None
        return total

    def _symbol(self, position: int) -> Value:
        b = self.b
        slot = b.emit("ptr", 0, f"getelementptr ptr, ptr %buffers, i64 {self.buffers}")
        array = b.emit("ptr", 0, "load ptr, ptr {0}, align 8", slot)
        place = b.emit("ptr", 0, f"getelementptr i64, ptr {{0}}, i64 {position}", array)
        return b.emit("i64", 0, "load i64, ptr {0}, align 8", place)

    def _floor_by(self, above: Value, below: int) -> Value:
        """The quotient by a positive number: a shift where it is a power of two, else less one for a negative rest."""
        b = self.b
        if below & (below - 1) == 0:
            return b.inst("ashr", above, b.constant(below.bit_length() - 1, "i64"))
        quotient, rest = [b.inst(op, above, b.constant(below, "i64")) for op in ("sdiv", "srem")]
        return b.inst("add", quotient, b.inst("ashr", rest, b.constant(63, "i64")))

    def _floor(self, above: Value, below: Value) -> Value:
        b = self.b
        quotient, rest = b.inst("sdiv", above, below), b.inst("srem", above, below)
        zero = b.constant(0, "i64")
        inexact = b.inst("icmp ne", rest, zero, kind="i1")
        opposite = b.inst("icmp slt", b.inst("xor", above, below), zero, kind="i1")
        down = b.inst("and", inexact, opposite)
        return b.select(down, b.inst("sub", quotient, b.constant(1, "i64")), quotient)
