"""Sizes that vary, in Python's hands: arithmetic, comparisons, slices and torch.Size of them.

In: trackers of symbolic sizes. Out: trackers; answers to questions about them are facts in the capture's table.
Always: a size stays a symbol only where a rule here says so; whatever else asks for its value fixes it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from .. import marks
from ..shapes.expr import Relation, SizeLike
from ..shapes.node import to_symint
from .attributes import TYPES, python_type
from .breaks import Break
from .calls import LATE_RULES, TENSOR_METHODS, call, call_c
from .capture import Capture
from .graph_values import GRAPH_ARGUMENTS, to_graph
from .overriding import is_customized
from .protocol import binary, compare, evaluate, iterate
from .protocol.arithmetic import BINARY, UNARY_OPERATORS
from .protocol.comparison import COMPARE, OPERATORS
from .real_rules import number_of, size_with_number
from .residual import BUILDERS, Residual
from .rules import RULES, rule
from .runtime_errors import inside_try
from .trackers import (
    NONE,
    Args,
    ConstVar,
    Kwargs,
    ListVar,
    ObjectVar,
    SizeVar,
    SliceVar,
    TensorVar,
    Tracker,
    TruthVar,
    TupleVar,
    describe,
)

TYPES[SizeVar] = int
TYPES[SliceVar] = slice
TYPES[TruthVar] = bool


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
        relation = Relation(op, b, a) if swapped else Relation(op, a, b)
        if cap.sizes.is_unknown(a, b) and cap.sizes.is_true(relation) is None:
            return TruthVar(relation)
        return ConstVar(cap.sizes.decide(relation))
    if symbol == "**" and isinstance(b, int) and 0 <= b <= 8:
        power: SizeLike = 1
        for _ in range(b):
            power = power * a
        return cap.size_var(power)
    if symbol == "**" and isinstance(b, int) and b < 0 and not cap.sizes.decide(Relation("==", a, 0)):
        return cap.real_var(operator.pow, a, b)
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


def _truth_text(residual: Residual, tracker: TruthVar) -> str:
    relation = tracker.relation
    return f"({residual.size(relation.lhs)} {relation.op} {residual.size(relation.rhs)})"


BUILDERS[SizeVar] = _size_text
BUILDERS[TruthVar] = _truth_text
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
        if type(only) is TensorVar and only.fake.dim() > 0 and not is_customized(cap, only):
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


def _items(cap: Capture, args: Args, kwargs: Kwargs) -> list[Tracker] | None:
    """The items of the only argument, if it is a sequence of ints some of which vary."""
    given = cap.realize(args[0]) if len(args) == 1 and not kwargs else NONE
    given = given.payload if type(given) is ObjectVar and given.payload is not None else given
    if type(given) not in (TupleVar, ListVar):
        return None
    items = [cap.realize(item) for item in given.items]  # type: ignore[attr-defined]
    return items if SizeVar in map(type, items) and None not in map(size_of, items) else None


@rule(math.prod)
def _prod(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    items = _items(cap, args, kwargs)
    return call_c(cap, math.prod, args, kwargs) if items is None else _shape_numel(cap, [TupleVar(items)], {})


def _of_items(target: Callable[..., Any]) -> None:
    """min() or max() of a sequence of sizes: of the sizes."""
    of_several = RULES[target]

    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        items = _items(cap, args, kwargs)
        return of_several(cap, items if items is not None and len(items) > 1 else args, kwargs)

    RULES[target] = handler


_of_items(min)
_of_items(max)


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


def joined(cap: Capture, left: Tracker, right: Tracker) -> Tracker:
    """A torch.Size and a tuple, one behind the other. Raises: Break where torch would raise."""
    exact = all(python_type(cap.realize(side)) in (tuple, torch.Size) for side in (left, right))
    items = [*iterate(cap, left), *iterate(cap, right)] if exact else None
    if items is None or not all(size_of(item) is not None for item in items):
        raise Break("exception-raised", "a torch.Size joined with what is no tuple of integers")
    return shape_var(cap, items)


@rule(torch.Size.__add__)
def _shape_add(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return joined(cap, args[0], args[1])


@rule(torch.Size.__radd__)  # type: ignore[attr-defined]
def _shape_radd(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return joined(cap, args[1], args[0])


@rule(torch.Size.__mul__, torch.Size.__rmul__)
def _shape_repeated(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    count = cap.plain(cap.realize(args[1]))
    if type(count) is not ConstVar or not isinstance(count.value, int):
        raise Break("exception-raised", "a torch.Size repeated by what is no integer")
    return shape_var(cap, iterate(cap, args[0]) * count.value)


# --- promises ---------------------------------------------------------------------------------------------------

#: torch's functions that raise unless a condition holds, and what they raise.
_CHECKS: dict[Any, type[Exception]] = {
    torch._check: RuntimeError,
    torch._check_index: IndexError,
    torch._check_value: ValueError,
    torch._check_type: TypeError,
    marks.check: RuntimeError,
}
_NO_MESSAGE = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an "
    "enhancement request to PyTorch.)"
)


def _check_rule(fn: Callable[..., Any], error: type[Exception]) -> None:
    @rule(fn)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        given = dict(zip(("cond", "message"), args)) | kwargs
        asked = cap.realize(given.get("cond", NONE))
        if type(asked) is ConstVar and asked.value is True:
            return NONE
        if type(asked) is TensorVar or (type(asked) is not TruthVar and not _is_bool(asked)):
            raise Break("data-dependent-branch", f"{fn.__name__}() of a {describe(asked)}")
        text = _message(cap, given.get("message"), fn is marks.check)
        if type(asked) is not TruthVar:
            raise cap.raise_(error, text)
        if cap.unsafe is None and inside_try(cap.frames):
            cap.unsafe = (
                cap.step,
                cap.user_stack(),
                "exception-raised",
                f"{fn.__name__}() inside a try statement",
            )
        cap.builder.check(asked.relation, error, text, cap.sizes, cap.size_sources)
        cap.sizes.promise(asked.relation)
        return NONE


def _is_bool(tracker: Tracker) -> bool:
    return type(tracker) is ConstVar and type(tracker.value) is bool


def _message(cap: Capture, given: Tracker | None, ours: bool) -> str:
    """What the error says: a text (ours), or what a function gives."""
    message = NONE if given is None else cap.realize(given)
    if type(message) is ConstVar and message.value is None:
        return "" if ours else _NO_MESSAGE
    if not (type(message) is ConstVar and isinstance(message.value, str)):
        message = call(cap, message, [], {})
    return str(cap.value_of(message))


for _fn, _error in _CHECKS.items():
    _check_rule(_fn, _error)
for _advice in ("_advise_is_size", "_advise_is_bounded"):  # which only torch.compile's sizes heed
    LATE_RULES[f"torch.fx.experimental.symbolic_shapes.{_advice}"] = lambda cap, fn, args, kwargs: NONE
