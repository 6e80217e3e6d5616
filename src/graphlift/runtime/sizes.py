"""The sizes of a call: a small program on integers that runs before its steps.

In: the sizes that slots, steps and memory need. Out: registers, and the instructions that fill them from the inputs.
Always: each size is computed once; Python's floor semantics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from graphlift.runtime.memory import ALIGNMENT
from graphlift.shapes.expr import Compound, Expr, FloorDiv, Min, SizeLike, Symbol

ADD, MULTIPLY, FLOORDIV, MINIMUM, MAXIMUM = range(5)  # as in _launch.c


class SizeProgram:
    """Registers with their first values, and the instructions (op, target, a, b) on them."""

    def __init__(self, symbols: Mapping[Symbol, tuple[int, int]]) -> None:
        self.first: list[int] = []
        self.inputs: list[tuple[int, int]] = []  # (position among the inputs, register)
        self.code: list[tuple[int, int, int, int]] = []
        self.known: dict[SizeLike, int] = {}
        for symbol, (position, _) in symbols.items():
            register = self.known[symbol] = self._new(0)
            self.inputs.append((position, register))

    def _new(self, value: int) -> int:
        self.first.append(value)
        return len(self.first) - 1

    def emit(self, op: int, a: int, b: int) -> int:
        """The register of ``a op b``."""
        target = self._new(0)
        self.code.append((op, target, a, b))
        return target

    def register(self, size: SizeLike) -> int:
        """The register that holds a size."""
        found = self.known.get(size)
        if found is None:
            found = self.known[size] = self._register(size)
        return found

    def _register(self, size: SizeLike) -> int:
        if not isinstance(size, Expr):
            return self._new(size)
        if isinstance(size, Compound):
            ops = {FloorDiv: FLOORDIV, Min: MINIMUM}
            op = ops.get(type(size), MAXIMUM)
            return reduce(lambda a, b: self.emit(op, a, b), [self.register(a) for a in size.args])
        terms = []
        for monomial, coefficient in size.terms:
            factors = [self.register(atom) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.append(self.register(coefficient))
            terms.append(reduce(lambda a, b: self.emit(MULTIPLY, a, b), factors))
        return reduce(lambda a, b: self.emit(ADD, a, b), terms)

    def end_of_pool(self, start: int, sizes: Iterable[SizeLike]) -> int:
        """Where a pool of memory that begins at the register ``start`` ends: the largest size, aligned."""
        largest = reduce(
            lambda a, b: self.emit(MAXIMUM, a, b), [self.register(s) for s in sizes], self.register(0)
        )
        above = self.emit(ADD, largest, self.register(ALIGNMENT - 1))
        blocks = self.emit(FLOORDIV, above, self.register(ALIGNMENT))
        return self.emit(ADD, start, self.emit(MULTIPLY, blocks, self.register(ALIGNMENT)))
