"""Floats that vary, in Python's hands: arithmetic, comparisons, functions of `math`, and the way into the graph.

In: trackers of such floats (`FloatVar`), and of sizes where a program makes floats of them. Out: trackers.
Always: computed by the function that the program calls; an answer to a comparison is a guard, as the program asked it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

from ..guards import Call, Gives, gives
from ..guards.guards import size_call
from ..shapes.expr import Expr, Real, Relation, SizeLike, smax, smin
from ..shapes.node import to_symint
from ..shapes.reals import CEIL, FLOOR, NEAREST, TRUNC, Reals
from .attributes import TYPES
from .calls import call_c
from .capture import Capture
from .graph_values import GRAPH_ARGUMENTS
from .protocol import binary, compare, unary
from .protocol.arithmetic import BINARY, UNARY, UNARY_OPERATORS
from .protocol.comparison import COMPARE, OPERATORS
from .residual import BUILDERS, Residual
from .rules import RULES
from .trackers import Args, ConstVar, FloatVar, Kwargs, NumberVar, SizeVar, TensorVar, Tracker

TYPES[FloatVar] = float


def number_of(cap: Capture, tracker: Tracker) -> Any:
    """The float, size or number that a tracker stands for; None for other trackers."""
    if type(tracker) is FloatVar:
        return tracker.real
    if type(tracker) is SizeVar:
        return tracker.expr
    if type(tracker) is ConstVar and type(tracker.value) in (int, float, bool):
        return tracker.value
    return None


def _operate(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    """``left <symbol> right`` where one of them is such a float."""
    fn = (BINARY.get(symbol) or COMPARE[symbol])[0]
    if TensorVar in (type(left), type(right)):
        return cap.emit("call_function", fn, [left, right], {}, fn)
    if NumberVar in (type(left), type(right)):
        return OPERATORS[NumberVar](cap, symbol, left, right)
    a, b = number_of(cap, left), number_of(cap, right)
    if a is None or b is None:
        ask = compare if symbol in COMPARE else binary
        return ask(cap, symbol, cap.plain(left), cap.plain(right))
    if symbol in COMPARE:
        return ConstVar(cap.sizes.reals.compare(COMPARE[symbol][0], a, b))
    return cap.real_var(fn, a, b)


def real_guards(cap: Capture) -> list[Gives]:
    """That the comparisons of floats have the answers that they had while capturing."""
    reals = cap.sizes.reals
    calls: dict[Real, Call] = {}
    return [
        gives(
            Call(fn, _in_guard(cap, a, calls), _in_guard(cap, b, calls)),
            answer,
            f"({reals.asked(fn, a, b)}) is {answer}",
        )
        for (fn, a, b), answer in reals.answers.items()
    ]


def _in_guard(cap: Capture, a: Any, calls: dict[Real, Call]) -> Any:
    """The value of a float, size or number as a guard computes it."""
    if not isinstance(a, Real):
        return size_call(a, cap.size_sources) if isinstance(a, Expr) else a
    made = cap.sizes.reals.made.get(a)
    if made is None:
        return cap.size_sources[a]
    if a not in calls:
        calls[a] = Call(made.fn, *[_in_guard(cap, arg, calls) for arg in made.args])
    return calls[a]


def _unary(cap: Capture, symbol: str, operand: FloatVar) -> Tracker:
    if symbol == "~":  # which floats do not have: the number raises
        return unary(cap, symbol, cap.plain(operand))
    return cap.real_var(UNARY[symbol][0], operand.real)


OPERATORS[FloatVar] = _operate
UNARY_OPERATORS[FloatVar] = _unary


# --- into the graph and out of it -----------------------------------------------------------------------------


def _argument(cap: Capture, tracker: FloatVar) -> tuple[Any, Any]:
    return cap.size_node(tracker.real), to_symint(tracker.real, cap.sizes)


def _text(residual: Residual, tracker: FloatVar) -> str:
    return residual.size(tracker.real)


GRAPH_ARGUMENTS[FloatVar] = _argument
BUILDERS[FloatVar] = _text


# --- functions ------------------------------------------------------------------------------------------------

_FUNCTIONS = (
    *(
        math.sqrt,
        math.log,
        math.log2,
        math.log10,
        math.log1p,
        math.exp,
        math.expm1,
        math.pow,
        math.sin,
        math.cos,
    ),
    *(math.tanh, math.fabs, math.cbrt, math.exp2),
)
_ROUNDED: dict[Any, int] = {math.floor: FLOOR, math.ceil: CEIL, math.trunc: TRUNC, int: TRUNC}


def _with_reals(target: Any, handle: Callable[[Capture, list[Any]], Tracker | None]) -> None:
    """A rule for arguments some of which vary; the rule or meaning that ``target`` has stays for the rest."""
    earlier = RULES.get(target)

    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        given = [cap.realize(a) for a in args]
        if not kwargs and any(type(a) in (FloatVar, SizeVar) for a in given):
            numbers = [number_of(cap, a) for a in given]
            result = handle(cap, numbers) if None not in numbers else None
            if result is not None:
                return result
        return earlier(cap, args, kwargs) if earlier is not None else call_c(cap, target, args, kwargs)

    RULES[target] = handler


def _called(target: Any) -> Callable[[Capture, list[Any]], Tracker]:
    return lambda cap, numbers: cap.real_var(target, *numbers)


def _rounded(direction: int) -> Callable[[Capture, list[Any]], Tracker | None]:
    def handle(cap: Capture, numbers: list[Any]) -> Tracker | None:
        if len(numbers) != 1:
            return None
        if not isinstance(numbers[0], Real):
            return cap.size_var(numbers[0])
        size = cap.sizes.reals.whole(numbers[0], direction)
        return None if size is None else cap.size_var(size)

    return handle


def _as_float(cap: Capture, numbers: list[Any]) -> Tracker | None:
    if len(numbers) != 1:
        return None
    return FloatVar(numbers[0]) if isinstance(numbers[0], Real) else cap.real_var(float, numbers[0])


for _target in _FUNCTIONS:
    _with_reals(_target, _called(_target))
for _target, _direction in _ROUNDED.items():
    _with_reals(_target, _rounded(_direction))
_with_reals(float, _as_float)


def _rounded_to_even(cap: Capture, numbers: list[Any]) -> Tracker | None:
    if not isinstance(numbers[0], Real):
        return None
    if len(numbers) == 2 and type(numbers[1]) is int:
        return cap.real_var(round, *numbers)
    size = cap.sizes.reals.whole(numbers[0], NEAREST)
    return None if size is None else cap.size_var(size)


def _extreme(of_sizes: Callable[..., SizeLike], less: bool) -> Callable[[Capture, list[Any]], Tracker | None]:
    """min or max of several sizes, where none is known to be it; or of floats."""

    def handle(cap: Capture, numbers: list[Any]) -> Tracker | None:
        if len(numbers) > 1 and all(isinstance(n, (float, Real)) for n in numbers):
            return cap.real_var(min if less else max, *numbers)
        if len(numbers) < 2 or not all(
            isinstance(n, (int, Expr)) and not isinstance(n, Real) for n in numbers
        ):
            return None
        best: SizeLike = numbers[0]
        for n in numbers[1:]:
            known = cap.sizes.is_true(Relation("<=", best, n))
            best = of_sizes(best, n) if known is None else best if known is less else n
        return cap.size_var(best)

    return handle


#: Questions about one float, as comparisons of what is made of it.
_QUESTIONS: dict[Any, Callable[[Reals, Any], bool]] = {
    math.isnan: lambda reals, a: reals.compare(operator.ne, a, a),
    math.isinf: lambda reals, a: reals.compare(operator.eq, reals.call(abs, a), math.inf),
    math.isfinite: lambda reals, a: reals.compare(operator.lt, reals.call(abs, a), math.inf),
}


def _answered(cap: Capture, numbers: list[Any], question: Callable[[Reals, Any], bool]) -> Tracker | None:
    one_float = len(numbers) == 1 and isinstance(numbers[0], Real)
    return ConstVar(question(cap.sizes.reals, numbers[0])) if one_float else None


for _target, _question in _QUESTIONS.items():
    _with_reals(_target, functools.partial(_answered, question=_question))
_with_reals(round, _rounded_to_even)
_with_reals(min, _extreme(smin, True))
_with_reals(max, _extreme(smax, False))
_with_reals(abs, lambda cap, numbers: cap.real_var(abs, *numbers) if isinstance(numbers[0], Real) else None)


# --- sizes that become floats ---------------------------------------------------------------------------------


def size_with_number(cap: Capture, symbol: str, a: Any, b: Any) -> Tracker:
    """An operator on a size and a float, or one that makes a float of sizes."""
    if symbol not in COMPARE:
        return cap.real_var(BINARY[symbol][0], a, b)
    size, limit, turned = (a, b, False) if isinstance(a, Expr) else (b, a, True)
    if isinstance(size, Real) or not isinstance(limit, float) or not math.isfinite(limit):
        return ConstVar(cap.sizes.reals.compare(COMPARE[symbol][0], a, b))
    op = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(symbol, symbol) if turned else symbol
    return ConstVar(_against(cap, op, size, limit))


def _against(cap: Capture, op: str, size: SizeLike, limit: float) -> bool:
    """Python compares an int and a float exactly."""
    below, above = math.floor(limit), math.ceil(limit)
    decide = cap.sizes.decide
    if op in ("==", "!="):
        equal = below == above and decide(Relation("==", size, below))
        return equal == (op == "==")
    if op in ("<", ">="):
        return decide(Relation("<", size, above)) == (op == "<")
    return decide(Relation("<=", size, below)) == (op == "<=")
