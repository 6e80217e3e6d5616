"""Sizes that vary, in Python's hands: arithmetic, comparisons, slices and torch.Size of them.

In: trackers of symbolic sizes. Out: trackers; answers to questions about them are facts in the capture's table.
Always: a size stays a symbol only where a rule here says so; whatever else asks for its value fixes it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from ..shapes.expr import Relation, SizeLike
from ..shapes.node import to_symint
from .attributes import TYPES
from .calls import TENSOR_METHODS, call_c
from .capture import Capture
from .graph_values import GRAPH_ARGUMENTS, to_graph
from .protocol import binary, compare, evaluate, iterate
from .protocol.arithmetic import BINARY, UNARY_OPERATORS
from .protocol.comparison import COMPARE, OPERATORS
from .real_rules import number_of, size_with_number
from .residual import BUILDERS, Residual
from .rules import RULES, rule
from .trackers import ConstVar, ObjectVar, SizeVar, SliceVar, TensorVar, Tracker, TupleVar

Args = list[Tracker]
Kwargs = dict[str, Tracker]

TYPES[SizeVar] = int
TYPES[SliceVar] = slice


def size_of(tracker: Tracker) -> SizeLike | None:
    """The size that a tracker of an int stands for; None for other trackers."""
    if type(tracker) is SizeVar:
        return tracker.expr
    if type(tracker) is ConstVar and type(tracker.value) in (int, bool):
        return int(tracker.value)
    return None


# --- operators ------------------------------------------------------------------------------------------------

_ARITHMETIC: dict[str, Callable[[SizeLike, SizeLike], SizeLike]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
#: Comparison -> (relation, whether its sides are swapped).
_RELATIONS: dict[str, tuple[str, bool]] = {
    "==": ("==", False),
    "!=": ("!=", False),
    "<": ("<", False),
    "<=": ("<=", False),
    ">": ("<", True),
    ">=": ("<=", True),
}


def _operate(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    """``left <symbol> right``, arithmetic or comparison, where one of them is a symbolic size."""
    a, b = size_of(left), size_of(right)
    if a is None or b is None:
        numbers = number_of(cap, left), number_of(cap, right)
        if None not in numbers:
            return size_with_number(cap, symbol, *numbers)
        return _with_other(cap, symbol, left, right)
    if symbol in _RELATIONS:
        op, swapped = _RELATIONS[symbol]
        return ConstVar(cap.sizes.decide(Relation(op, b, a) if swapped else Relation(op, a, b)))
    if symbol == "**" and isinstance(b, int) and 0 <= b <= 8:
        power: SizeLike = 1
        for _ in range(b):
            power = power * a
        return cap.size_var(power)
    if symbol == "/":
        return cap.real_var(operator.truediv, a, b)
    compute = _ARITHMETIC.get(symbol)
    if compute is None:
        found = _by_bits(symbol, a, b)
        return (
            cap.size_var(found)
            if found is not None
            else evaluate(cap, BINARY[symbol][0], cap.value_of(left), cap.value_of(right))
        )
    if symbol in "//%" and (b == 0 or cap.sizes.decide(Relation("==", b, 0))):
        raise cap.raise_(ZeroDivisionError, _division_by_zero(symbol))
    return cap.size_var(compute(a, b))


def _by_bits(symbol: str, a: SizeLike, b: SizeLike) -> SizeLike | None:
    """Shifts, and masks of low bits, as arithmetic."""
    if isinstance(b, int) and 0 <= b < 63 and symbol in ("<<", ">>"):
        return a * (1 << b) if symbol == "<<" else a // (1 << b)
    if symbol == "&" and isinstance(a, int):
        a, b = b, a
    if symbol == "&" and isinstance(b, int) and b >= 0 and (b + 1) & b == 0:
        return a % (b + 1)
    return None


def _division_by_zero(symbol: str) -> str:
    try:
        BINARY[symbol][0](1, 0)
    except ZeroDivisionError as error:
        return str(error)
    raise AssertionError(symbol)


def _with_other(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    """A size with a tensor is a tensor operation; with anything else it is the number that it is."""
    fn = (BINARY.get(symbol) or COMPARE[symbol])[0]
    kinds = (type(left), type(right))
    if TensorVar in kinds:
        return cap.emit("call_function", fn, [left, right], {}, fn)
    if symbol in ("==", "!=") and not _may_equal_an_int(left, right):
        return ConstVar(symbol == "!=")
    ask = compare if symbol in COMPARE else binary
    return ask(cap, symbol, cap.plain(left), cap.plain(right))


def _may_equal_an_int(left: Tracker, right: Tracker) -> bool:
    other = right if type(left) is SizeVar else left
    return not (type(other) is ConstVar and isinstance(other.value, (str, bytes, type(None), tuple)))


OPERATORS[SizeVar] = _operate


def negated(cap: Capture, symbol: str, operand: SizeVar) -> Tracker:
    """A unary operator on a symbolic size."""
    if symbol == "-":
        return cap.size_var(-operand.expr)
    if symbol == "~":
        return cap.size_var(-1 - operand.expr)
    if symbol == "abs" and cap.sizes.decide(Relation("<", operand.expr, 0)):
        return cap.size_var(-operand.expr)
    return operand


UNARY_OPERATORS[SizeVar] = negated


# --- into the graph and out of it -----------------------------------------------------------------------------


def _size_argument(cap: Capture, tracker: SizeVar) -> tuple[Any, Any]:
    return cap.size_node(tracker.expr), to_symint(tracker.expr, cap.sizes)


def _slice_argument(cap: Capture, tracker: SliceVar) -> tuple[Any, Any]:
    pairs = [to_graph(cap, part) for part in tracker.parts]
    return slice(*[p[0] for p in pairs]), slice(*[p[1] for p in pairs])


GRAPH_ARGUMENTS[SizeVar] = _size_argument
GRAPH_ARGUMENTS[SliceVar] = _slice_argument


def _size_text(residual: Residual, tracker: SizeVar) -> str:
    return residual.size(tracker.expr)


def _slice_text(residual: Residual, tracker: SliceVar) -> str:
    return f"slice({residual.exprs(tracker.parts)})"


BUILDERS[SizeVar] = _size_text
BUILDERS[SliceVar] = _slice_text


# --- rules of callables ---------------------------------------------------------------------------------------


def _keeping(target: Any, keep: Callable[[Capture, SizeVar], Tracker]) -> None:
    """A rule for one symbolic size as the only argument; the rule or meaning that ``target`` has stays for the rest."""
    earlier = RULES.get(target)

    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        if len(args) == 1 and not kwargs:
            only = cap.realize(args[0])
            if type(only) is SizeVar:
                return keep(cap, only)
        if earlier is not None:
            return earlier(cap, args, kwargs)
        return call_c(cap, target, args, kwargs)

    RULES[target] = handler


for _target in (int, round, operator.index):
    _keeping(_target, lambda cap, size: size)
_keeping(abs, lambda cap, size: negated(cap, "abs", size))


_keeping_length = RULES[len]


def _len(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if len(args) == 1 and not kwargs:
        only = cap.realize(args[0])
        if type(only) is TensorVar and only.fake.dim() > 0:
            return cap.size_var(only.fake.spec.shape[0])
    return _keeping_length(cap, args, kwargs)


RULES[len] = TENSOR_METHODS["__len__"] = _len


def _divmod(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if len(args) == 2 and not kwargs and SizeVar in (type(cap.realize(args[0])), type(cap.realize(args[1]))):
        return TupleVar([binary(cap, "//", *args), binary(cap, "%", *args)])
    return call_c(cap, divmod, args, kwargs)


RULES[divmod] = _divmod


@rule(torch.Size.numel)
def _shape_numel(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    total: SizeLike = 1
    for item in iterate(cap, args[0]):
        size = size_of(item)
        assert size is not None
        total = total * size
    return cap.size_var(total)


def shape_var(cap: Capture, items: list[Tracker]) -> Tracker:
    """A torch.Size of these ints."""
    if all(type(item) is ConstVar for item in items):
        return ConstVar(torch.Size([cap.value_of(item) for item in items]))
    made = ObjectVar(torch.Size)
    made.payload = TupleVar(items)
    return made


@rule(torch.Size)
def _make_shape(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    items = iterate(cap, args[0]) if args else []
    if not kwargs and len(args) <= 1 and all(size_of(item) is not None for item in items):
        return shape_var(cap, items)
    return evaluate(cap, torch.Size, *[cap.value_of(TupleVar(iterate(cap, a))) for a in args])


@rule(torch.Size.__add__)
def _shape_add(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    left, right = iterate(cap, args[0]), iterate(cap, args[1])
    joined = left + right
    probe = torch.Size([1]) + (1,)
    return shape_var(cap, joined) if type(probe) is torch.Size else TupleVar(joined)
