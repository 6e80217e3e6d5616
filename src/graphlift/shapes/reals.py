"""The floats of one capture that come with each call, and what is computed of them and of sizes.

In: values, each with the key of its source; Python functions of them. Out: `Real`s, or numbers where all is known.
Always: a computed float is computed by the very function that the program calls, so that it is eager's bit for bit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..data import dataclass
from .expr import Expr, Real, Relation, SizeLike, Symbol, free

if TYPE_CHECKING:
    from .table import SymbolTable

_EXACT = (
    2**52
)  # up to here a float holds every integer, and a quotient of them is on the right side of the next one
_LARGEST_FACTOR = 2**20
FLOOR, CEIL, TRUNC, NEAREST = range(4)


@dataclass(frozen=True, slots=True)
class Call:
    """``fn(*args)``, of floats, sizes and numbers."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]

    @property
    def key(self) -> Hashable:
        return self.fn, tuple([(type(a), repr(a)) for a in self.args])


class Reals:
    """Those of one table."""

    def __init__(self, table: SymbolTable) -> None:
        self.table = table
        self.values: dict[Real, float] = {}  # in this call
        self.made: dict[Real, Call] = {}
        self.keys: dict[Real, Hashable] = {}
        self.names: dict[Real, str] = {}
        self.answers: dict[tuple[Callable[..., bool], Any, Any], bool] = {}  # to comparisons that were asked

    def given(self, key: Hashable, name: str, value: float) -> Real | None:
        """The float that comes from `key`; None where an earlier attempt found that it has to be a number."""
        if key in self.table.known.fixed_reals:
            return None
        real = self._real(key, value)
        self.names[real] = name
        return real

    def unknown(self, key: Hashable, name: str) -> Real:
        """A float that only the running graph knows."""
        real = self._real(key, 1.625)
        self.names[real] = name
        self.table.unknown.add(real)
        return real

    def take(self, other: Reals, values: Mapping[Real, float]) -> None:
        """What another table's floats are, with these values."""
        self.values, self.keys = {**other.values, **values}, dict(other.keys)
        self.made, self.names = dict(other.made), dict(other.names)

    def _real(self, key: Hashable, value: float) -> Real:
        known = self.table.known.reals
        real = known.get(key)
        if real is None:
            real = known[key] = Real(f"f{len(known)}")
        self.values[real], self.keys[real] = value, key
        return real

    def value(self, a: Any) -> Any:
        """A float, size or number in the call being captured."""
        if isinstance(a, Real):
            return self.values[a]
        return self.table.hint(a) if isinstance(a, Expr) else a

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """``fn(*args)``: a Real where it gives a float that may vary, else what it gives in this call, for good.

        Raises: what `fn` raises in this call, with what it was called with fixed.
        """
        if not any(isinstance(a, Expr) for a in args):
            return fn(*args)
        made = Call(fn, args)
        total = fn in _TOTAL or (
            fn is operator.truediv and isinstance(args[1], (int, float)) and args[1] != 0
        )
        if not total and self.table.is_unknown(*args):
            raise self.table.refuse(
                f"{getattr(fn, '__name__', fn)}() of a number that the graph reads from a tensor"
            )
        try:
            result = fn(*[self.value(a) for a in args])
        except Exception:
            return fn(*[self.fixed(a, "an operation on it raises") for a in args])
        if type(result) is not float:
            return fn(*[self.fixed(a, f"used by {getattr(fn, '__name__', fn)}()") for a in args])
        real = self._real(made.key, result)
        self.made[real] = made
        return real

    def compare(self, fn: Callable[..., bool], a: Any, b: Any) -> bool:
        """``fn(a, b)`` in this call; the guards see to it that every call has this answer."""
        found = self.answers.get((fn, a, b))
        if found is None:
            if not isinstance(a, Expr) and not isinstance(b, Expr):
                return fn(a, b)
            if self.table.frozen:
                return fn(self.fixed(a, "compared"), self.fixed(b, "compared"))  # raises
            if self.table.is_unknown(*[x for x in (a, b) if isinstance(x, Expr)]):
                raise self.table.refuse(f"whether {self.asked(fn, a, b)}")
            found = self.answers[fn, a, b] = fn(self.value(a), self.value(b))
        return found

    def asked(self, fn: Callable[..., bool], a: Any, b: Any) -> str:
        """A comparison in the user's expressions."""
        return f"{self.text(a)} {_SYMBOLS[fn]} {self.text(b)}"

    def fixed(self, a: Any, why: str) -> Any:
        """The number that it is in this call, which it must then be in every call. Raises: Solved."""
        if isinstance(a, Real):
            self.table.fix([a], why)
        return self.table.specialize(a, why) if isinstance(a, Expr) else a

    def parts(self, a: Any) -> list[Expr]:
        """What a float is computed of: those that come from outside, and sizes; each once."""
        found: dict[Expr, None] = {}
        seen: set[Expr] = set()
        pending = [a]
        while pending:
            at = pending.pop()
            if not isinstance(at, Expr) or at in seen:
                continue
            seen.add(at)
            made = self.made.get(at) if isinstance(at, Real) else None
            if made is None:
                found[at] = None
            else:
                pending += reversed(made.args)
        return list(found)

    def symbols(self, *numbers: Any) -> list[Symbol]:
        """What they are computed of, each once."""
        found = {
            s: None
            for a in numbers
            for part in self.parts(a)
            for s in sorted(free(part), key=lambda s: s.key)
        }
        return list(found)

    def text(self, a: Any, depth: int = 6) -> str:
        """In the user's expressions, as far as a person would read them."""
        if not isinstance(a, Real):
            return self.table.text(a) if isinstance(a, Expr) else repr(a)
        made = self.made.get(a)
        if made is None:
            return self.names.get(a, a.name)
        if depth == 0:
            return "..."
        parts = [self.text(arg, depth - 1) for arg in made.args]
        symbol = _SYMBOLS.get(made.fn)
        if symbol is not None and len(parts) == 2:
            return f"({parts[0]} {symbol} {parts[1]})"
        return f"{getattr(made.fn, '__name__', made.fn)}({', '.join(parts)})"

    def whole(self, a: Any, rounding: int) -> SizeLike | None:
        """The float rounded to an integer, as a size; None where there is no such size."""
        found = self._fraction(a)
        if found is None:
            return self._whole_of_near(a, rounding)
        above, below = found
        table = self.table
        if rounding == NEAREST:
            up = (above // below) % 2 if below % 2 == 0 else 1  # halves go to the even one
            above, below = 2 * above + below - 1 + up, 2 * below
        if not table.decide(Relation("<=", above, _EXACT)) or not table.decide(
            Relation("<=", -_EXACT, above)
        ):
            return None
        if rounding == CEIL or (rounding == TRUNC and table.decide(Relation("<", above, 0))):
            return -((-above) // below)
        return above // below

    def _whole_of_near(self, a: Any, rounding: int) -> SizeLike | None:
        """The size by fractions as they are written (0.8 of n: 4n//5), which guards compare with the float."""
        found = self._fraction(a, as_written=True)
        if found is None or rounding == NEAREST or self.table.frozen or self.table.is_unknown(a):
            return None
        above, below = found
        up = rounding == CEIL or (rounding == TRUNC and self.values[a] < 0)
        size = -((-above) // below) if up else above // below
        lt, le = operator.lt, operator.le
        bounds = [(lt, size - 1, a), (le, a, size)] if up else [(le, size, a), (lt, a, size + 1)]
        if rounding == TRUNC:
            bounds.append((le, a, 0) if up else (le, 0, a))
        if not all(fn(self.value(low), self.value(high)) for fn, low, high in bounds):
            return None
        for bound in bounds:
            self.compare(*bound)
        return size

    def _fraction(self, a: Any, as_written: bool = False) -> tuple[SizeLike, int] | None:
        """(n, d) where the float is n/d, or the nearest to it; `as_written`: or not far from it."""
        made = self.made.get(a) if isinstance(a, Real) else None
        if made is None:
            return None
        if made.fn is float:
            return (
                (made.args[0], 1)
                if not isinstance(made.args[0], Real)
                else self._fraction(made.args[0], as_written)
            )
        if len(made.args) != 2:
            return None
        left, right = made.args
        if made.fn is operator.truediv and type(right) is int and right > 0 and not isinstance(left, Real):
            return left, right
        if made.fn is operator.truediv and as_written and type(right) is float and not isinstance(left, Real):
            by, factor = _ratio(right) if math.isfinite(right) else (0, 1)
            return (left * factor, by) if 0 < by <= _LARGEST_FACTOR else None
        if made.fn is operator.mul:
            if isinstance(left, (int, float)):
                left, right = right, left
            base = self._fraction(left, as_written) if isinstance(left, Real) else (left, 1)
            if (
                base is None
                or base[1] != 1
                or not isinstance(right, (int, float))
                or not math.isfinite(right)
            ):
                return None
            factor, by = _ratio(right) if as_written else float(right).as_integer_ratio()
            return (base[0] * factor, by) if 0 < factor <= _LARGEST_FACTOR else None
        if (
            made.fn in (operator.add, operator.sub)
            and isinstance(left, Real)
            and isinstance(right, (int, float))
        ):
            return self._moved(left, made.fn(0, right), as_written)
        return None

    def _moved(self, a: Real, by: float, as_written: bool) -> tuple[SizeLike, int] | None:
        """`a` and a whole number, where floats add them without an error: `a` is a number of halves, quarters, ..."""
        base = self._fraction(a, as_written)
        whole = abs(by) <= _LARGEST_FACTOR and by == int(by)
        if base is None or not whole or base[1] > _LARGEST_FACTOR or base[1] & (base[1] - 1):
            return None
        return base[0] + int(by) * base[1], base[1]


def _ratio(number: float) -> tuple[int, int]:
    """The simple fraction that a number was written for, if any, else its own."""
    simple = Fraction(number).limit_denominator(1000)
    return (simple if float(simple) == number else Fraction(number)).as_integer_ratio()


#: Functions that give a float, and raise for none.
_TOTAL = frozenset((float, operator.add, operator.sub, operator.mul, operator.neg, abs, min, max))

_SYMBOLS: dict[Any, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
