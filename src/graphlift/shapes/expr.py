"""Sizes that are known only when a graph runs: integer polynomials over symbols, always in canonical form.

In: symbols and ints under + - * // %, min and max. Out: `SizeLike`: an int where nothing varies, else an `Expr`.
Always: exact (Python's floor semantics); equal forms are one object, so ``==`` is structural and never a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import gcd
from typing import Any, ClassVar, Union

from graphlift.data import dataclass

SizeLike = Union[int, "Expr"]
Monomial = tuple["Expr", ...]  # atoms in order, repeated for powers; () is the constant
Term = tuple[Monomial, int]


class SizeUnknown(TypeError):
    """A size that varies is used where only a number will do."""


def _unknown(self: Expr, *_: Any) -> Any:
    raise SizeUnknown(f"the size {self} is not known before the graph runs")


def _foreign(self: Expr, other: object) -> Any:
    """An operand that is no size."""
    return _unknown(self) if isinstance(other, float) else NotImplemented


class Expr:
    """A sum of ``coefficient * product of atoms``, largest monomial first; never a constant.

    Interned: build with operators only. Dividing assumes that the divisor is not zero.
    """

    __slots__ = ("__weakref__", "_text", "terms")
    terms: tuple[Term, ...]

    def __add__(self, other: SizeLike) -> SizeLike:
        return _sum(((self, 1), (other, 1))) if isinstance(other, (int, Expr)) else _foreign(self, other)

    __radd__ = __add__

    def __sub__(self, other: SizeLike) -> SizeLike:
        return _sum(((self, 1), (other, -1))) if isinstance(other, (int, Expr)) else _foreign(self, other)

    def __rsub__(self, other: SizeLike) -> SizeLike:
        return _sum(((other, 1), (self, -1))) if isinstance(other, (int, Expr)) else _foreign(self, other)

    def __neg__(self) -> SizeLike:
        return _sum(((self, -1),))

    def __mul__(self, other: SizeLike) -> SizeLike:
        return _product(self, other) if isinstance(other, (int, Expr)) else _foreign(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: SizeLike) -> SizeLike:
        return _floordiv(self, other) if isinstance(other, (int, Expr)) else _foreign(self, other)

    def __rfloordiv__(self, other: SizeLike) -> SizeLike:
        return _floordiv(other, self) if isinstance(other, (int, Expr)) else _foreign(self, other)

    def __mod__(self, other: SizeLike) -> SizeLike:
        return _mod(self, other) if isinstance(other, (int, Expr)) else _foreign(self, other)

    def __rmod__(self, other: SizeLike) -> SizeLike:
        return _mod(other, self) if isinstance(other, (int, Expr)) else _foreign(self, other)

    # What asks for the number itself. Comparing is asking, too: relations are asked of what knows the symbols.
    __lt__ = __le__ = __gt__ = __ge__ = __int__ = __index__ = __float__ = _unknown
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __abs__ = __round__ = _unknown

    def __str__(self) -> str:
        text: str | None = getattr(self, "_text", None)
        if text is None:
            text = self._text = render(self, {})
        return text

    __repr__ = __str__

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, _: Any) -> Expr:
        return self

    def __reduce__(self) -> Any:
        return _from_terms, (self.terms,)


class Symbol(Expr):
    """An unknown size. One object per name."""

    __slots__ = ("key", "name")
    name: str
    key: tuple[int, int, str]
    _known: ClassVar[dict[str, Symbol]] = {}

    def __new__(cls, name: str) -> Symbol:
        found = cls._known.get(name)
        if found is None:
            found = object.__new__(cls)
            found.name = name
            found.key = (0, len(name), name)
            found.terms = (((found,), 1),)
            cls._known[name] = found
        return found

    def __reduce__(self) -> Any:
        return type(self), (self.name,)


class Real(Symbol):
    """A float that comes with each call, such as a learning rate. It travels where sizes do, but is none: arithmetic on
    it is the table's (`shapes/reals.py`), and where sizes are 64-bit integers it is its bits."""

    __slots__ = ()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _unknown
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _unknown


class Compound(Expr):
    """An atom made by a function that is no polynomial; ``args`` are canonical."""

    __slots__ = ("args", "key")
    args: tuple[SizeLike, ...]
    key: tuple[int, int, str]
    _known: ClassVar[dict[Any, Compound]] = {}

    def __new__(cls, *args: SizeLike) -> Compound:
        found = cls._known.get((cls, args))
        if found is None:
            found = object.__new__(cls)
            found.args = args
            found.terms = (((found,), 1),)
            text = f"{cls.__name__}{args}"
            found.key = (1, len(text), text)
            cls._known[cls, args] = found
        return found

    def __reduce__(self) -> Any:
        return type(self), self.args


class FloorDiv(Compound):
    """``args[0] // args[1]``. A remainder ``a % b`` is kept as ``a - b * (a // b)``."""

    __slots__ = ()


class Min(Compound):
    """The smallest of ``args``."""

    __slots__ = ()


class Max(Compound):
    """The largest of ``args``."""

    __slots__ = ()


_polynomials: dict[tuple[Term, ...], Expr] = {}


def _order(term: Term) -> Any:
    """Graded lexicographic order, largest first."""
    monomial = term[0]
    return -len(monomial), [a.key for a in monomial]  # type: ignore[attr-defined]


def _made(terms: Mapping[Monomial, int]) -> SizeLike:
    """The canonical form of a sum of terms."""
    kept = [t for t in terms.items() if t[1]]
    if not kept:
        return 0
    if len(kept) == 1:
        monomial, coefficient = kept[0]
        if not monomial:
            return coefficient
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    else:
        kept.sort(key=_order)
    return _from_terms(tuple(kept))


def _from_terms(terms: tuple[Term, ...]) -> Expr:
    if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
        return terms[0][0][0]
    found = _polynomials.get(terms)
    if found is None:
        found = object.__new__(Expr)
        found.terms = terms
        _polynomials[terms] = found
    return found


def terms_of(e: SizeLike) -> tuple[Term, ...]:
    """The terms of a size, those of an int included."""
    return e.terms if isinstance(e, Expr) else (((), int(e)),) if e else ()


@lru_cache(maxsize=16384)
def _sum(parts: tuple[tuple[SizeLike, int], ...]) -> SizeLike:
    terms: dict[Monomial, int] = {}
    for part, factor in parts:
        for monomial, coefficient in terms_of(part):
            terms[monomial] = terms.get(monomial, 0) + coefficient * factor
    return _made(terms)


def _merged(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    return tuple(sorted(a + b, key=lambda atom: atom.key))  # type: ignore[attr-defined]


@lru_cache(maxsize=16384)
def _product(a: SizeLike, b: SizeLike) -> SizeLike:
    terms: dict[Monomial, int] = {}
    for first, c in terms_of(a):
        for second, d in terms_of(b):
            monomial = _merged(first, second)
            terms[monomial] = terms.get(monomial, 0) + c * d
    return _made(terms)


# --- division ---------------------------------------------------------------------------------------------------------


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """``monomial / factor``; None where it is not divided."""
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _truncated(a: int, b: int) -> int:
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def _long_division(a: SizeLike, b: SizeLike) -> tuple[SizeLike, SizeLike]:
    """(q, r) with ``a == q*b + r``; coefficients of r are brought below b's leading one where they can be."""
    (lead, lead_coefficient), *_ = terms_of(b)
    pending = dict(terms_of(a))
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    while pending:
        monomial = min(pending.items(), key=_order)[0]
        coefficient = pending.pop(monomial)
        left = _without(monomial, lead)
        # The constant is brought to [0, b); other coefficients keep their sign.
        divide = _floor if not monomial else _truncated
        factor = 0 if left is None else divide(coefficient, lead_coefficient)
        if factor and left is not None:
            quotient[left] = quotient.get(left, 0) + factor
            for other, c in terms_of(b)[1:]:
                target = _merged(left, other)
                pending[target] = pending.get(target, 0) - factor * c
                if not pending[target]:
                    del pending[target]
            coefficient -= factor * lead_coefficient
        if coefficient:
            rest[monomial] = coefficient
    return _made(quotient), _made(rest)


def _floor(a: int, b: int) -> int:
    return a // b


@lru_cache(maxsize=16384)
def _floordiv(a: SizeLike, b: SizeLike) -> SizeLike:
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError("integer division or modulo by zero")
        if isinstance(a, int):
            return a // b
        return _divided_by(a, b) if b > 0 else _divided_by(-a, -b)
    if terms_of(b)[0][1] < 0:
        a, b = -a, -b
    quotient, rest = _long_division(a, b)
    if not rest:
        return quotient
    rest, b = _reduced(rest, b)
    return quotient + (rest // b if isinstance(b, int) else FloorDiv(rest, b))


def _divided_by(a: SizeLike, b: int) -> SizeLike:
    """``a // b`` for a positive constant: whole multiples come out, common factors and nested divisions go."""
    quotient, rest = _long_division(a, b)
    if isinstance(rest, int):
        return quotient + rest // b
    constant = rest.terms[-1][1] if not rest.terms[-1][0] else 0
    common = gcd(b, *[c for m, c in rest.terms if m])
    if common > 1:  # n // (g*d) is (n // g) // d
        return quotient + _divided_by(_made({m: c // common for m, c in rest.terms}), b // common)
    if b == 1:
        return quotient + rest
    inner = rest - constant
    if isinstance(inner, FloorDiv) and isinstance(inner.args[1], int) and inner.args[1] > 0:
        by = inner.args[1]
        return quotient + _floordiv(inner.args[0] + constant * by, by * b)
    if rest.terms[0][1] < 0:  # n // d is -((d - 1 - n) // d)
        return quotient - _divided_by(b - 1 - rest, b)
    return quotient + FloorDiv(rest, b)


def _reduced(a: SizeLike, b: SizeLike) -> tuple[SizeLike, SizeLike]:
    """Both without the factors common to all their terms."""
    terms = (*terms_of(a), *terms_of(b))
    common = gcd(*[c for _, c in terms])
    shared: list[Expr] = list(terms[0][0])
    for monomial, _ in terms[1:]:
        left = list(monomial)
        kept = []
        for atom in shared:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        shared = kept
    if common == 1 and not shared:
        return a, b
    factor = tuple(shared)

    def over(e: SizeLike) -> SizeLike:
        return _made({_without(m, factor) or (): c // common for m, c in terms_of(e)})

    return over(a), over(b)


@lru_cache(maxsize=16384)
def _mod(a: SizeLike, b: SizeLike) -> SizeLike:
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return a - b * _floordiv(a, b)


# --- minimum and maximum ----------------------------------------------------------------------------------------------


def _extreme(kind: type[Compound], pick: Callable[[int, int], int], values: Iterable[SizeLike]) -> SizeLike:
    kept: list[SizeLike] = []
    pending = list(values)
    while pending:
        value = pending.pop(0)
        if isinstance(value, kind):
            pending[:0] = value.args
            continue
        for k, other in enumerate(kept):
            distance = value - other
            if isinstance(distance, int):  # one of the two always wins
                kept[k] = other if pick(distance, 0) == 0 else value
                break
        else:
            kept.append(value)
    if len(kept) == 1:
        return kept[0]
    kept.sort(key=lambda e: [(_order(t), t[1]) for t in terms_of(e)])
    return kind(*kept)


def smin(*values: SizeLike) -> SizeLike:
    """The smallest of sizes."""
    return _extreme(Min, min, values)


def smax(*values: SizeLike) -> SizeLike:
    """The largest of sizes."""
    return _extreme(Max, max, values)


# --- reading ----------------------------------------------------------------------------------------------------------

_REBUILD: dict[type[Compound], Callable[..., SizeLike]] = {
    FloorDiv: lambda a, b: a // b,
    Min: smin,
    Max: smax,
}


@lru_cache(maxsize=16384)
def free(e: SizeLike) -> frozenset[Symbol]:
    """The symbols of a size."""
    found: set[Symbol] = set()
    for monomial, _ in terms_of(e):
        for atom in monomial:
            if isinstance(atom, Symbol):
                found.add(atom)
            else:
                assert isinstance(atom, Compound)
                for arg in atom.args:
                    found |= free(arg)
    return frozenset(found)


def _atom_value(atom: Expr, of: Callable[[Symbol], Any]) -> Any:
    if isinstance(atom, Symbol):
        return of(atom)
    assert isinstance(atom, Compound)
    return _REBUILD[type(atom)](*[_computed(arg, of) for arg in atom.args])


def _computed(e: SizeLike, of: Callable[[Symbol], Any]) -> Any:
    if isinstance(e, int):
        return e
    total: Any = 0
    for monomial, coefficient in e.terms:
        value: Any = coefficient
        for atom in monomial:
            value = value * _atom_value(atom, of)
        total = total + value
    return total


def evaluate(e: SizeLike, env: Mapping[Symbol, int]) -> int:
    """The value of a size where each symbol has the value ``env`` gives it."""
    return e if isinstance(e, int) else int(_computed(e, env.__getitem__))


def substitute(e: SizeLike, mapping: Mapping[Symbol, SizeLike]) -> SizeLike:
    """``e`` with symbols replaced, canonical again."""
    if isinstance(e, int) or not any(s in mapping for s in free(e)):
        return e
    result: SizeLike = _computed(e, lambda s: mapping.get(s, s))
    return result


def _with_remainders(e: SizeLike) -> tuple[dict[Monomial, int], list[tuple[int, SizeLike, int]]]:
    """``e`` as plain terms plus ``factor * (a % b)`` for each remainder by a constant found in it."""
    terms = dict(terms_of(e))
    found: list[tuple[int, SizeLike, int]] = []
    divisions = [
        (m[0], m[0].args[0], m[0].args[1])
        for m in terms
        if len(m) == 1 and isinstance(m[0], FloorDiv) and isinstance(m[0].args[1], int)
    ]
    steps = sorted({1, *[whole for _, _, whole in divisions]}) if divisions else ()
    for division, numerator, whole in divisions:
        for step in steps:
            # n // (s*b) is (n // s) // b: the quotient of a remainder of n // s by b.
            if whole == step or whole % step:
                continue
            above, by = _floordiv(numerator, step), whole // step
            coefficient = terms.get((division,), 0)
            if not coefficient or coefficient % by:
                continue
            factor = -coefficient // by
            # A remainder needs each varying term of what is divided; its constant may be outside.
            if all(terms.get(m, 0) == factor * c for m, c in terms_of(above) if m):
                for m, c in terms_of(above):
                    terms[m] = terms.get(m, 0) - factor * c
                del terms[division,]
                found.append((factor, above, by))
                break
    return {m: c for m, c in terms.items() if c}, found


def render(e: SizeLike, names: Mapping[Symbol, str]) -> str:
    """Python text of a size; symbols without a name in ``names`` show as themselves."""
    if isinstance(e, int):
        return str(e)
    terms, remainders = _with_remainders(e)
    pieces: list[tuple[int, list[str]]] = []
    for factor, above, by in remainders:
        pieces.append((factor, [f"{_operand(above, names)} % {by}"]))
    if len(terms) + len(pieces) > 1 or any(f != 1 for f, _ in pieces):
        pieces = [(f, [f"({texts[0]})"]) for f, texts in pieces]
    for monomial, coefficient in sorted(terms.items(), key=_order):
        bare = len(monomial) == 1 and (coefficient == 1 or (coefficient == -1 and bool(pieces)))
        pieces.append((coefficient, [_atom_text(a, names, bare) for a in monomial]))
    text = ""
    for factor, factors in pieces:
        size = abs(factor)
        shown = "*".join(factors if size == 1 and factors else [str(size), *factors])
        text += (" - " if text else "-") if factor < 0 else (" + " if text else "")
        text += shown
    return text


def _operand(e: SizeLike, names: Mapping[Symbol, str]) -> str:
    text = render(e, names)
    simple = isinstance(e, (int, Symbol, Min, Max)) and not text.startswith("-")
    return text if simple and " " not in text.split("(")[0] else f"({text})"


def _atom_text(atom: Expr, names: Mapping[Symbol, str], bare: bool) -> str:
    if isinstance(atom, Symbol):
        return names.get(atom, atom.name)
    assert isinstance(atom, Compound)
    if isinstance(atom, FloorDiv):
        text = f"{_operand(atom.args[0], names)}//{_operand(atom.args[1], names)}"
        return text if bare else f"({text})"
    return f"{type(atom).__name__.lower()}({', '.join(render(a, names) for a in atom.args)})"


# --- ranges -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Range:
    """Integers from ``lo`` to ``hi``, both included; None: no bound."""

    lo: int | None
    hi: int | None

    def __contains__(self, n: int) -> bool:
        return (self.lo is None or self.lo <= n) and (self.hi is None or n <= self.hi)

    def __and__(self, other: Range) -> Range:
        lows = [v for v in (self.lo, other.lo) if v is not None]
        highs = [v for v in (self.hi, other.hi) if v is not None]
        return Range(max(lows, default=None), min(highs, default=None))


ANY = Range(None, None)
ONE = Range(1, 1)


def _add_ranges(a: Range, b: Range) -> Range:
    return Range(
        None if a.lo is None or b.lo is None else a.lo + b.lo,
        None if a.hi is None or b.hi is None else a.hi + b.hi,
    )


def _scale_range(a: Range, factor: int) -> Range:
    lo, hi = (None if v is None else v * factor for v in (a.lo, a.hi))
    return Range(lo, hi) if factor >= 0 else Range(hi, lo)


def _multiply_ranges(a: Range, b: Range) -> Range:
    if a.lo is not None and b.lo is not None and a.lo >= 0 and b.lo >= 0:
        return Range(a.lo * b.lo, None if a.hi is None or b.hi is None else a.hi * b.hi)
    if a.lo is None or a.hi is None or b.lo is None or b.hi is None:
        return ANY
    corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return Range(min(corners), max(corners))


def _divide_ranges(a: Range, b: Range) -> Range:
    if b.lo is None or b.lo <= 0:
        return ANY

    def end(value: int | None, grows: bool) -> int | None:
        """The quotient that is farthest from zero (``grows``), or nearest to it."""
        if value is None:
            return None
        by = b.lo if grows else b.hi
        return (0 if value >= 0 else -1) if by is None else value // by

    return Range(end(a.lo, a.lo is not None and a.lo < 0), end(a.hi, a.hi is not None and a.hi >= 0))


def _atom_range(atom: Expr, ranges: Mapping[Symbol, Range]) -> Range:
    if isinstance(atom, Symbol):
        return ranges.get(atom, ANY)
    assert isinstance(atom, Compound)
    parts = [bounds(arg, ranges) for arg in atom.args]
    if isinstance(atom, FloorDiv):
        return _divide_ranges(*parts)
    lows, highs = [p.lo for p in parts], [p.hi for p in parts]
    known_lows, known_highs = [v for v in lows if v is not None], [v for v in highs if v is not None]
    if isinstance(atom, Min):
        return Range(None if None in lows else min(known_lows), min(known_highs, default=None))
    return Range(max(known_lows, default=None), None if None in highs else max(known_highs))


def _sum_range(terms: Iterable[Term], of: Callable[[Expr], Range]) -> Range:
    total = Range(0, 0)
    for monomial, coefficient in terms:
        part = ONE
        for atom in monomial:
            part = _multiply_ranges(part, of(atom))
        total = _add_ranges(total, _scale_range(part, coefficient))
    return total


def bounds(e: SizeLike, ranges: Mapping[Symbol, Range]) -> Range:
    """A range that holds every value of ``e``; symbols without a range are unbounded."""
    if isinstance(e, int):
        return Range(e, e)
    if len(e.terms) == 1:
        return _sum_range(e.terms, lambda atom: _atom_range(atom, ranges))
    known: dict[Expr, Range] = {}

    def of(atom: Expr) -> Range:
        found = known.get(atom)
        if found is None:
            found = known[atom] = _atom_range(atom, ranges)
        return found

    result = _sum_range(e.terms, of)
    if any(c < 0 for _, c in e.terms) and any(c > 0 and m for m, c in e.terms):
        result &= _shifted_range(e, of)
        terms, remainders = _with_remainders(e)
        if remainders:
            part = _sum_range(terms.items(), of)
            for factor, _, by in remainders:
                part = _add_ranges(part, _scale_range(Range(0, by - 1), factor))
            result &= part
    return result


def _shifted_range(e: Expr, of: Callable[[Expr], Range]) -> Range:
    """The range found by counting every atom from its lower bound: products with their own parts cancel."""
    shifted: dict[Monomial, int] = {}
    for monomial, coefficient in e.terms:
        partial: dict[Monomial, int] = {(): coefficient}
        for atom in monomial:
            low = of(atom).lo
            grown: dict[Monomial, int] = {}
            for m, c in partial.items():
                key = _merged(m, (atom,))
                grown[key] = grown.get(key, 0) + c
                if low:
                    grown[m] = grown.get(m, 0) + c * low
            partial = grown
        for m, c in partial.items():
            shifted[m] = shifted.get(m, 0) + c

    def above(atom: Expr) -> Range:
        found = of(atom)
        if found.lo is None:
            return found
        return Range(0, None if found.hi is None else found.hi - found.lo)

    return _sum_range([t for t in shifted.items() if t[1]], above)


# --- relations --------------------------------------------------------------------------------------------------------

_NEGATED = {"==": "!=", "!=": "=="}
_HOLDS: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}


@dataclass(frozen=True, slots=True, init=False)
class Relation:
    """``lhs op rhs`` over sizes, op one of == != < <=; canonical, so that equal relations are equal objects.

    What is true or false whatever the symbols is ``0 == 0`` or ``0 == 1``.
    """

    op: str
    lhs: SizeLike
    rhs: SizeLike

    def __init__(self, op: str, lhs: SizeLike, rhs: SizeLike) -> None:
        op, lhs, rhs = _canonical(op, lhs - rhs)
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "lhs", lhs)
        object.__setattr__(self, "rhs", rhs)

    @property
    def distance(self) -> SizeLike:
        """``lhs - rhs``; for "<" one more, so that it is <= 0 where the relation holds."""
        return self.lhs - self.rhs + (self.op == "<")

    @property
    def constant(self) -> bool | None:
        """The answer where no symbol is left."""
        both = isinstance(self.lhs, int) and isinstance(self.rhs, int)
        return self.lhs == self.rhs if both else None

    def negated(self) -> Relation:
        """The relation that holds where this one does not."""
        if self.op in _NEGATED:
            return Relation(_NEGATED[self.op], self.lhs, self.rhs)
        return Relation("<=", 1 - self.distance, 0)

    def render(self, names: Mapping[Symbol, str]) -> str:
        """Python text."""
        return f"{render(self.lhs, names)} {self.op} {render(self.rhs, names)}"

    def __str__(self) -> str:
        return self.render({})


@lru_cache(maxsize=16384)
def _canonical(op: str, distance: SizeLike) -> tuple[str, SizeLike, SizeLike]:
    if op not in _HOLDS:
        raise ValueError(f"a relation is ==, !=, < or <=, not {op!r}")
    if isinstance(distance, int):
        return "==", 0, int(not _HOLDS[op](distance, 0))
    if op == "<":
        op, distance = "<=", distance + 1
    terms = dict(terms_of(distance))
    constant = terms.pop((), 0)
    common = gcd(*terms.values())
    if op == "<=":  # g*m + c <= 0 is m <= -c // g
        constant = -(-constant // common)
    elif constant % common:
        return "==", 0, int(op == "==")
    else:
        sign = -1 if terms_of(distance)[0][1] < 0 else 1
        constant, common = constant // (common * sign), common * sign
    terms = {m: c // common for m, c in terms.items()}
    whole = _made({**terms, (): constant})
    if op != "<=" and _with_remainders(whole)[1]:
        return op, whole - constant, -constant
    left = _made({m: c for m, c in terms.items() if c > 0})
    right = _made({m: -c for m, c in terms.items() if c < 0})
    if not isinstance(left, int) and not isinstance(right, int) and constant == 1 and op == "<=":
        return "<", left, right
    if isinstance(left, int) or (constant > 0 and not isinstance(right, int)):
        return op, left + constant, right
    return op, left, right - constant


def holds(relation: Relation, env: Mapping[Symbol, int]) -> bool:
    """Whether the relation is true where each symbol has the value ``env`` gives it."""
    return _HOLDS[relation.op](evaluate(relation.lhs, env), evaluate(relation.rhs, env))


def _solved(fact: Relation) -> tuple[Symbol, SizeLike] | None:
    """The last symbol that an equality gives as a polynomial of the rest (which may divide the symbol itself)."""
    if fact.op != "==":
        return None
    for monomial, coefficient in reversed(terms_of(fact.lhs - fact.rhs)):
        if len(monomial) == 1 and isinstance(monomial[0], Symbol) and abs(coefficient) == 1:
            symbol = monomial[0]
            rest = symbol - coefficient * (fact.lhs - fact.rhs)
            if all(symbol not in m for m, _ in terms_of(rest)):
                return symbol, rest
    return None


def _rewritten(e: SizeLike, symbol: Symbol, by: SizeLike) -> SizeLike:
    """``e`` with a symbol of its terms (not inside atoms) replaced."""
    if isinstance(e, int) or not any(symbol in m for m, _ in e.terms):
        return e
    total: SizeLike = 0
    for monomial, coefficient in e.terms:
        value: SizeLike = coefficient
        for atom in monomial:
            value = value * (by if atom is symbol else atom)
        total = total + value
    return total


def _forms(e: SizeLike, facts: Iterable[Relation]) -> list[SizeLike]:
    """``e``, and what it equals by each equality among the facts and by all of them one after the other."""
    result, last = [e], e
    for solved in filter(None, map(_solved, facts)):
        result.append(_rewritten(e, *solved))
        symbol, by = solved
        last = substitute(last, {symbol: by}) if symbol not in free(by) else _rewritten(last, symbol, by)
        result.append(last)
    return list(dict.fromkeys(result))


def divisible(e: SizeLike, n: int, facts: Iterable[Relation] = ()) -> bool:
    """Whether ``e % n == 0`` is certain."""
    facts = tuple(facts)
    if Relation("==", e % n, 0) in facts:
        return True
    return any(all(c % n == 0 for _, c in terms_of(form)) for form in _forms(e, facts))


def provable(
    relation: Relation, ranges: Mapping[Symbol, Range], facts: Iterable[Relation] = ()
) -> bool | None:
    """Whether the ranges and facts make the relation true or false; None where they leave it open."""
    if relation.constant is not None:
        return relation.constant
    facts = tuple(facts)
    if relation in facts:
        return True
    if relation.negated() in facts:
        return False
    limits = [fact.distance for fact in facts if fact.op in ("<", "<=")]
    apart = [fact.distance for fact in facts if fact.op == "!="]
    for form in _forms(relation.distance, facts):
        if (answer := _decided(relation.op, form, ranges, limits, apart)) is not None:
            return answer
    return None


def _decided(
    op: str,
    distance: SizeLike,
    ranges: Mapping[Symbol, Range],
    limits: Sequence[SizeLike],
    apart: Sequence[SizeLike],
) -> bool | None:
    """The answer from the bounds of the distance, each fact ``limit <= 0`` being added once."""
    found = bounds(distance, ranges)
    if (answer := _answer(op, found)) is not None:
        return answer
    if op in ("==", "!=") and (distance in apart or -distance in apart):
        return op == "!="
    symbols = free(distance)
    for limit in limits:
        if symbols.isdisjoint(free(limit)):
            continue  # nothing cancels
        found &= Range(bounds(distance + limit, ranges).lo, bounds(distance - limit, ranges).hi)
        if (answer := _answer(op, found)) is not None:
            return answer
    return None


def _answer(op: str, distance: Range) -> bool | None:
    """Whether ``distance op 0``, as far as the range tells."""
    above = distance.lo is not None and distance.lo > 0
    if op in ("<", "<="):
        return True if distance.hi is not None and distance.hi <= 0 else False if above else None
    never = above or (distance.hi is not None and distance.hi < 0)
    if never or distance == Range(0, 0):
        return never == (op == "!=")
    return None


def contiguous_strides(shape: Sequence[SizeLike]) -> tuple[SizeLike, ...]:
    """Row-major strides; a size of 0 counts as 1."""
    strides: list[SizeLike] = []
    step: SizeLike = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (1 if size == 0 else size)
    return tuple(reversed(strides))
