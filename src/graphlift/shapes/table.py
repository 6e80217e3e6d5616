"""What one capture knows of its sizes: which are symbols, their ranges, and the facts that the program relied on.

In: sizes that may vary, and the questions the program asks about them. Out: answers; the facts become guards.
Always: an answer is proven, or a recorded fact; a fact that fixes a symbol starts the capture again with it known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field

from graphlift.data import dataclass
from graphlift.errors import ConstraintError

from .expr import (
    Expr,
    Range,
    Real,
    Relation,
    SizeLike,
    Symbol,
    evaluate,
    free,
    holds,
    provable,
    render,
    substitute,
)
from .reals import Reals

Env = dict[Symbol, int]
_WITNESS_TRIES = 400
SMALL = "sizes of 0 and 1 are compiled for themselves"
VARIES = Range(2, None)  # what a symbol may be: 0 and 1 behave otherwise, and are compiled for themselves


#: The values that symbols had last, for estimates only: tables share the names of symbols.
recent_hints: Env = {}


class Solved(BaseException):
    """A symbol turned out to be fixed by others: capture starts again with that known. No fault of the program's."""


class Refused(BaseException):
    """What the user insisted on does not hold; carries the error. No Exception: no stage takes it for its own."""

    def __init__(self, error: ConstraintError) -> None:
        super().__init__(str(error))
        self.error = error


class Undecided(Exception):
    """A question about sizes that came after the guards were made."""


@dataclass(frozen=True, slots=True)
class Solution:
    """What a symbol is, and the user's line that made it so."""

    value: SizeLike
    where: str
    why: str = ""


@dataclass(slots=True)
class Known:
    """What earlier attempts of one capture found out; kept while it starts again."""

    symbols: dict[Hashable, Symbol] = field(default_factory=dict)
    solutions: dict[Symbol, Solution] = field(default_factory=dict)
    reals: dict[Hashable, Real] = field(default_factory=dict)
    fixed_reals: dict[Hashable, Solution] = field(default_factory=dict)  # floats that have to be numbers


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a symbol comes from: the key of its source, its name for people, and whether the user insists on it."""

    key: Hashable
    name: str
    bounds: Range
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Fact:
    """A relation that the captured program relies on, and the line that asked."""

    relation: Relation
    where: str


def _nowhere() -> str:
    return ""


class SymbolTable:
    """The symbols of one capture; see the module's head."""

    def __init__(self, known: Known | None = None) -> None:
        self.known = known if known is not None else Known()
        self.hints: Env = {}
        self.ranges: dict[Symbol, Range] = {}
        self.origins: dict[Symbol, Origin] = {}
        self.facts_by_relation: dict[Relation, Fact] = {}
        self.frozen = False
        self.where: Callable[[], str] = _nowhere
        self._witness: Env | None = None
        self._hopeless: object = None  # what was known when none was found
        self._proven: dict[Relation, bool] = {}
        self.relied_on: set[Symbol] = set()  # whose ranges answered a question
        self.unknown: set[Symbol] = set()  # that only the running graph knows: their hints answer nothing
        self.required: list[Relation] = []  # promises that the graph does not check yet
        self.asked = 0  # how often an operator was captured that finds such out
        self.refuse: Callable[[str], Exception] = Undecided  # what to raise where one would have to
        self._open: set[Relation] = set()  # what nothing proved, as long as no fact is added
        self.recipes: dict[object, object] = {}  # what operators give for sizes of this table
        self.reals = Reals(self)

    def freeze(self) -> None:
        """The guards are made: nothing open is decided any more, and what captured them is let go."""
        self.frozen = True
        self.where = _nowhere

    def again(self) -> SymbolTable:
        """An empty table for another attempt with the same knowledge."""
        return SymbolTable(self.known)

    # -- symbols -----------------------------------------------------------------------------------------------

    def symbol(
        self,
        key: Hashable,
        name: str,
        hint: int,
        bounds: Range = VARIES,
        strict: bool = False,
    ) -> SizeLike:
        """The size that comes from `key`: a symbol, or what an earlier attempt found it to be."""
        symbol = self.known.symbols.get(key)
        if symbol is None:
            symbol = self.known.symbols[key] = Symbol(f"s{len(self.known.symbols)}")
        if symbol in self.hints:
            return self.resolve(symbol)
        value = self.resolve(symbol)
        if isinstance(value, int) and value == hint:
            return hint
        if value is not symbol and (isinstance(value, int) or not all(s in self.hints for s in free(value))):
            self.known.solutions.pop(symbol, None)  # found in an attempt that went another way
            value = symbol
        self.origins[symbol] = Origin(key, name, bounds, strict)
        self._witness = None
        self._open.clear()
        self.hints[symbol] = recent_hints[symbol] = hint
        self.ranges[symbol] = bounds
        if value is not symbol:
            if evaluate(value, self.hints) != hint:
                del self.known.solutions[symbol]
                return symbol
            solution = self.known.solutions[symbol]
            relation = Relation("==", symbol, value)
            self.facts_by_relation[relation] = Fact(relation, solution.where)
        return value

    def unknown_size(self, key: Hashable, name: str, bounds: Range) -> Symbol:
        """A symbol for what the graph finds out; some hint stands for it where operators are tried."""
        symbol = Symbol(f"u{len(self.unknown)}")
        self.origins[symbol] = Origin(key, name, bounds)
        self.hints[symbol], self.ranges[symbol] = 1009 + 2 * len(self.unknown), bounds
        self.unknown.add(symbol)
        self._witness = None
        self._open.clear()
        return symbol

    def is_unknown(self, *sizes: SizeLike) -> bool:
        """Whether only the running graph knows one of them."""
        return bool(self.unknown) and any(not self.unknown.isdisjoint(self._of(size)) for size in sizes)

    def _of(self, size: SizeLike) -> Iterable[Symbol]:
        return self.reals.symbols(size) if isinstance(size, Real) else free(size)

    def promise(self, relation: Relation) -> None:
        """Take for granted what the graph checks. Raises: what `refuse` makes, where nothing satisfies it."""
        self._record(relation)
        if not self._all_hold(self.hints):
            self.hints.update(self._satisfying(relation))
            self.recipes.clear()

    def require(self, relation: Relation) -> None:
        """An operator raises where this does not hold: a promise that the graph is to check, if it alone can tell."""
        if self.is_unknown(relation.lhs, relation.rhs) and not self.frozen and self.is_true(relation) is None:
            self.required.append(relation)
            self.promise(relation)

    def _satisfying(self, relation: Relation) -> Env:
        """Other hints of the unknown sizes, for which the facts hold."""
        rng = random.Random(0)
        for attempt in range(_WITNESS_TRIES):
            unknown = sorted((s for s in self.unknown if not isinstance(s, Real)), key=lambda s: s.name)
            env = {**self.hints, **{s: rng.randint(2, 8 + attempt * 4) for s in unknown}}
            self._balance(env, unknown)
            if self._all_hold(env):
                return {s: env[s] for s in unknown}
        raise self.refuse(f"no sizes were found for which {relation.render(self.names)}")

    def fork(self, values: Env, floats: Mapping[Real, float], sizes: Iterable[Symbol]) -> SymbolTable:
        """A table in which what was unknown has these values; `sizes` of them are sizes, none of them 0 or 1."""
        known = Known(
            dict(self.known.symbols),
            dict(self.known.solutions),
            dict(self.known.reals),
            dict(self.known.fixed_reals),
        )
        made = SymbolTable(known)
        made.hints = {**self.hints, **values}
        recent_hints.update(values)
        made.ranges = {**self.ranges, **dict.fromkeys(sizes, VARIES)}
        made.origins, made.facts_by_relation = dict(self.origins), dict(self.facts_by_relation)
        made.reals.take(self.reals, floats)
        return made

    def resolve(self, size: SizeLike) -> SizeLike:
        """`size` in terms of symbols that nothing fixes."""
        while isinstance(size, Expr):
            solved = {s: self.known.solutions[s].value for s in free(size) if s in self.known.solutions}
            if not solved:
                break
            size = substitute(size, solved)
        return size

    def hint(self, size: SizeLike) -> int:
        """The value in the call being captured."""
        return evaluate(size, self.hints)

    @property
    def names(self) -> dict[Symbol, str]:
        return {symbol: origin.name for symbol, origin in self.origins.items()}

    def text(self, size: SizeLike) -> str:
        """A size in the user's expressions."""
        return render(size, self.names)

    # -- questions ---------------------------------------------------------------------------------------------

    def facts(self) -> Iterable[Relation]:
        return self.facts_by_relation

    def is_true(self, relation: Relation) -> bool | None:
        """Whether the relation is proven true or false; None where it is open. Records nothing."""
        if relation.constant is not None:
            return relation.constant
        known = self._proven.get(relation)
        if known is None and relation not in self._open:
            known = provable(relation, self.ranges, self.facts_by_relation)
            if known is None:
                self._open.add(relation)
            else:
                self._proven[relation] = known
                self.relied_on.update(free(relation.distance))
        return known

    def decide(self, relation: Relation) -> bool:
        """The answer, which holds from now on: what cannot be proven becomes a fact, answered by the hints.

        Raises: Solved where the fact fixes a symbol; Undecided once the guards are made.
        """
        answer = self.is_true(relation)
        if answer is not None:
            return answer
        if self.frozen:
            raise Undecided(f"{relation.render(self.names)} was not asked while the graph was captured")
        if self.is_unknown(relation.lhs, relation.rhs):
            raise self.refuse(f"whether {relation.render(self.names)}")
        answer = holds(relation, self.hints)
        fact = relation if answer else relation.negated()
        if fact.op == "==":
            self._solve(fact)
        self._record(fact)
        return answer

    def specialize(self, size: SizeLike, why: str = "") -> int:
        """The size as the plain int that it is in this call, which it must then be in every call."""
        if isinstance(size, int):
            return size
        if isinstance(size, Real):
            return self.reals.fixed(size, why)  # type: ignore[no-any-return]
        value = self.hint(size)
        if self.is_true(Relation("==", size, value)) is not True:
            if self.frozen:
                raise Undecided(f"{self.text(size)} is needed as a number after the guards were made")
            if self.is_unknown(size):
                raise self.refuse(f"{self.text(size)} as a number ({why})")
            fact = Relation("==", size, value)
            self._solve(fact, why)
            self._record(fact)
        return value

    def settle(self, size: SizeLike) -> SizeLike:
        """A dimension's size, made certain to be 0, 1 or more than that: broadcasting and strides depend on it."""
        if isinstance(size, int) or self.is_true(Relation("<=", 2, size)):
            return size
        if self.is_unknown(size):
            return size  # where it is less, the graph runs as the program wrote it
        if self.hint(size) in (0, 1):
            return self.specialize(size, SMALL)
        self.decide(Relation("<=", 2, size))
        return size

    def fix(self, sizes: Iterable[SizeLike], why: str, failing: bool = False) -> None:
        """Give up that these sizes vary: every symbol in them becomes the int that it is. Raises: Solved.

        `failing`: the program raises for them, whatever was promised.
        """
        parts = {
            part for size in sizes for part in (self.reals.parts(size) if isinstance(size, Real) else (size,))
        }
        if self.frozen:
            raise Undecided(f"a size is needed as a number after the guards were made: {why}")
        if self.is_unknown(*parts):
            raise self.refuse(f"a number in place of {', '.join(sorted(map(str, parts)))}: {why}")
        symbols = sorted({s for part in parts for s in free(part)}, key=lambda s: (len(s.name), s.name))
        for symbol in symbols:
            if isinstance(symbol, Real):
                self.known.fixed_reals[self.reals.keys[symbol]] = Solution(0, self.where(), why)
            else:
                self._settle(symbol, self.hints[symbol], why, failing)
        if symbols:
            raise Solved

    def merge(self, sizes: Iterable[SizeLike], why: str) -> None:
        """Make symbols in these sizes that have one hint the same symbol. Raises: Solved where there are such."""
        symbols = {s for size in sizes for s in free(size) if not isinstance(s, Real)}
        first: dict[int, Symbol] = {}
        for symbol in [s for s in self.hints if s in symbols]:
            earlier = first.setdefault(self.hints[symbol], symbol)
            if earlier is not symbol:
                self._settle(symbol, earlier, why)
        if len(first) < len(symbols):
            raise Solved

    def _record(self, fact: Relation) -> None:
        self.facts_by_relation[fact] = Fact(fact, self.where())
        self._open.clear()
        if self._witness is not None and not self._all_hold(self._witness):
            self._witness = None
        symbols = free(fact.lhs - fact.rhs)
        if len(symbols) == 1 and fact.op in ("<", "<="):
            (symbol,) = symbols
            self._tighten(symbol, fact.distance)

    def _tighten(self, symbol: Symbol, distance: SizeLike) -> None:
        """Takes a bound from `distance <= 0` where it is linear in the symbol."""
        line = _linear(distance, symbol)
        if line is None or not isinstance(line[1], int):
            return
        slope, rest = line[0], line[1]
        limit = -rest // slope if slope > 0 else -(rest // slope)
        bound = Range(None, limit) if slope > 0 else Range(limit, None)
        self.ranges[symbol] = self.ranges[symbol] & bound

    def _solve(self, fact: Relation, why: str = "") -> None:
        """Raises Solved where the equality gives one symbol in terms of earlier ones."""
        distance = fact.lhs - fact.rhs
        order = list(self.hints)
        for symbol in sorted(free(distance), key=order.index, reverse=True):
            line = _linear(distance, symbol)
            if line is None:
                continue
            slope, rest = line
            if isinstance(rest, int) and rest % slope == 0:
                value: SizeLike = -rest // slope
            elif abs(slope) == 1 and all(order.index(s) < order.index(symbol) for s in free(rest)):
                value = -rest if slope == 1 else rest
            else:
                continue
            self._settle(symbol, value, why)
            raise Solved

    def _settle(self, symbol: Symbol, value: SizeLike, why: str, failing: bool = False) -> None:
        where = self.where()
        origin = self.origins[symbol]
        if origin.strict and isinstance(value, int) and not failing:
            raise Refused(
                ConstraintError(
                    f"{origin.name} was marked dynamic, and the program works for one size only",
                    found=f"{origin.name} == {value}" + (f": {why}" if why else ""),
                    expected="a program that is right for every size in the marked range",
                    where=where or None,
                    hint="remove mark_dynamic (or use maybe_mark_dynamic), or keep this line from fixing the size",
                )
            )
        self.known.solutions[symbol] = Solution(value, where, why)

    # -- other sizes -------------------------------------------------------------------------------------------

    def witness(self, kept: Symbol | None = None) -> Env | None:
        """Other sizes than this call's for which every fact holds: a second case to check answers with.

        `kept`: one that is to be as in this call.
        """
        if kept is None and self._witness is not None:
            return self._witness
        state = kept, len(self.facts_by_relation), len(self.known.solutions), *self.ranges.values()
        if state == self._hopeless:
            return None
        found = self._find_witness(kept)
        if found is None:
            self._hopeless = state
        elif kept is None:
            self._witness = found
        return found

    def _find_witness(self, kept: Symbol | None = None) -> Env | None:
        roots = [s for s in self.hints if s not in self.known.solutions]
        rng = random.Random(len(roots))
        for attempt in range(_WITNESS_TRIES):
            env: Env = {}
            for symbol in roots:
                hint, limits = self.hints[symbol], self.ranges[symbol]
                step = rng.choice((1, 1, 3, 8, 16, 64, hint)) * rng.randint(1, 3 + attempt // 40)
                value = hint + step if rng.random() < 0.7 else hint - step
                low, high = (2, limits.hi) if symbol in self.unknown else (limits.lo, limits.hi)
                value = max(value, low) if low is not None else value
                value = min(value, high) if high is not None else value
                env[symbol] = hint if symbol is kept else value
            if all(env[s] == self.hints[s] for s in roots if self.ranges[s].lo != self.ranges[s].hi):
                continue
            for symbol in self.hints:
                if symbol not in env:
                    env[symbol] = evaluate(self.resolve(symbol), env)
            self._balance(env, self.unknown)
            if self._all_hold(env):
                return env
        return None

    def _balance(self, env: Env, movable: Iterable[Symbol]) -> None:
        """Gives one of the movable symbols of each equality the value that the others leave it, where it has one."""
        free_to_move = set(movable)
        for fact in self.facts_by_relation:
            distance = fact.lhs - fact.rhs
            if fact.op != "==" or not (inside := free_to_move.intersection(free(distance))):
                continue
            for symbol in sorted(inside, key=lambda s: s.name, reverse=True):
                line = _linear(distance, symbol)
                if line is not None and evaluate(line[1], env) % line[0] == 0:
                    env[symbol] = -evaluate(line[1], env) // line[0]
                    free_to_move.discard(symbol)
                    break

    def _all_hold(self, env: Env) -> bool:
        try:
            return all(holds(fact, env) for fact in self.facts_by_relation)
        except ZeroDivisionError:
            return False


def in_range(symbol: Symbol, bounds: Range) -> list[Relation]:
    """The bounds as relations."""
    low = [Relation("<=", bounds.lo, symbol)] if bounds.lo is not None else []
    return low + ([Relation("<=", symbol, bounds.hi)] if bounds.hi is not None else [])


def _linear(size: SizeLike, symbol: Symbol) -> tuple[int, SizeLike] | None:
    """(a, b) with ``size == a*symbol + b`` and b free of the symbol, or None."""
    try:
        rest = substitute(size, {symbol: 0})
        slope = substitute(size, {symbol: 1}) - rest
    except ZeroDivisionError:  # the symbol is inside of a divisor
        return None
    if not isinstance(slope, int) or slope == 0 or symbol in free(rest):
        return None
    return (slope, rest) if size == slope * symbol + rest else None
