"""Truth, identity and the six comparisons.

In: trackers. Out: trackers (or the program's own exception as `Raised`).
Always: constants are evaluated for real, tensors become graph nodes, everything else follows the special methods.
"""

from __future__ import annotations

import collections
import operator
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from ...fake import value_of
from ...guards import ABSENT, DistinctTensors, IdIs
from ...shapes.expr import Relation
from .. import polyfills
from ..attributes import is_python, python_type, says_itself
from ..breaks import Break
from ..calls import call_special
from ..capture import Capture, Link
from ..constants import NUMPY_SCALARS, is_number
from ..overriding import is_customized
from ..rules import RULES
from ..trackers import (
    ArrayVar,
    ConstVar,
    DequeVar,
    DictVar,
    DictViewVar,
    FloatVar,
    FunctionVar,
    IdVar,
    ListVar,
    MethodVar,
    NumberVar,
    ObjectVar,
    OpaqueVar,
    SetVar,
    SizeVar,
    TensorVar,
    Tracker,
    TruthVar,
    TupleVar,
    describe,
)
from .iteration import evaluate, length, payload_of, sequence_items, set_keys

COMPARE: dict[str, tuple[Callable[..., Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
}


#: Operators and comparisons (by symbol) of kinds of trackers that have rules of their own.
OPERATORS: dict[type, Callable[[Capture, str, Tracker, Tracker], Tracker]] = {}


#: Truth of kinds of trackers that have rules of their own.
TRUTHS: dict[type, Callable[[Capture, Any], bool]] = {}


#: What the value of a ``__bool__`` or ``__len__`` is made of, for the instruction that asked to act on.
_TRUTH, _SIZE = (ConstVar(cls) for cls in (polyfills.Truth, polyfills.Answer))


def _asked(link: Link | None, answer: Tracker) -> Link | None:
    return link and Link((*link.finish, answer))


def truth(cap: Capture, value: Tracker, link: Link | None = None) -> bool:
    """``bool(value)``; ``link``: for the instruction to act on, or whose ``finish`` is given the class to ask by."""
    value = cap.realize(value)
    kind = type(value)
    if kind in TRUTHS:
        return TRUTHS[kind](cap, value)
    if kind is ConstVar:
        if says_itself(cap, value, "__bool__", "__len__"):
            raise Break("unsupported-object", f"truth of {describe(value)}, of which its class says it")
        return bool(value.value)  # type: ignore[attr-defined]
    if kind is TensorVar:
        if value.fake.numel() != 1:  # type: ignore[attr-defined]
            raise Break("data-dependent-branch", f"truth of a tensor of shape {tuple(value.fake.shape)}")  # type: ignore
        if is_customized(cap, value):  # type: ignore[arg-type]
            raise Break("data-dependent-branch", "truth of a tensor")
        known = value_of(value.fake)  # type: ignore[attr-defined]
        answer = cap.questions.ask(cap, bool, value.node) if known is None else bool(known)  # type: ignore[attr-defined]
        if answer is None:
            raise Break("data-dependent-branch", "truth of a tensor")
        return answer
    if kind is TruthVar:
        return cap.sizes.decide(value.relation)  # type: ignore[attr-defined]
    if kind is FloatVar:
        return bool(truth(cap, compare(cap, "!=", value, ConstVar(0.0))))
    if kind is SizeVar:
        return cap.sizes.decide(Relation("!=", value.expr, 0))  # type: ignore[attr-defined]
    if kind in (TupleVar, ListVar, DequeVar):
        return bool(value.items)  # type: ignore[attr-defined]
    if kind in (DictVar, SetVar, DictViewVar):
        return length(cap, value) > 0
    if kind is OpaqueVar:
        raise Break(value.code, value.detail)  # type: ignore[attr-defined]
    if kind is ArrayVar:
        raise Break("data-dependent-branch", "truth of a numpy array")
    if kind is ObjectVar:
        cls = value.cls  # type: ignore[attr-defined]
        if cap.type_attr(cls, "__bool__") is not ABSENT:
            given = cap.realize(call_special(cap, value, "__bool__", [], _asked(link, _TRUTH)))
            if python_type(given) is not bool:
                text = f"__bool__ should return bool, returned {python_type(given).__name__}"
                raise cap.raise_(TypeError, text)
            return truth(cap, given)
        if cap.type_attr(cls, "__len__") is not ABSENT:
            return length(cap, value, _asked(link, _SIZE)) > 0
    return True


def is_same(cap: Capture, left: Tracker, right: Tracker) -> bool:
    """``left is right``."""
    left, right = cap.realize(left), cap.realize(right)
    if left is right:
        return True
    if type(left) is ConstVar and type(right) is ConstVar:
        if left.kind is not right.kind:
            return False
        for side in (left, right):
            if side.source is not None and side.kind in _EQUAL_NOT_SAME:
                cap.guard(IdIs(side.source, side.value))
        return left.value is right.value
    if type(left) is TensorVar and type(right) is TensorVar:
        return left.fake is right.fake
    if _varies(left) and _is_number(right) or _varies(right) and _is_number(left):
        raise Break("unsupported-object", "whether two numbers that vary are one object")
    for one, other in ((left, right), (right, left)):
        if type(one) is OpaqueVar and not (type(other) is ConstVar and other.value is None):
            raise Break(one.code, one.detail)
    if left.source is not None and right.source is not None and python_type(left) is python_type(right):
        cap.guard(DistinctTensors((left.source, right.source)))
    elif type(left) is ObjectVar and type(right) is ObjectVar and left.cls is right.cls is weakref.ref:
        raise Break("weak-reference", "whether two of them are one")
    return False


def _varies(tracker: Tracker) -> bool:
    return type(tracker) in (SizeVar, FloatVar, TruthVar, NumberVar)


def _is_number(tracker: Tracker) -> bool:
    return _varies(tracker) or type(tracker) is ConstVar and is_number(tracker.value)


def compare(cap: Capture, symbol: str, left: Tracker, right: Tracker, link: Link | None = None) -> Tracker:
    """``left <symbol> right`` for the six rich comparisons; ``link``: the result of the instruction."""
    left, right = cap.realize(left), cap.realize(right)
    fn, name, reflected = COMPARE[symbol]
    if type(left) is ConstVar and type(right) is ConstVar:
        return evaluate(cap, fn, left.value, right.value)
    if IdVar in (type(left), type(right)):
        return _compare_ids(cap, symbol, left, right)
    for kind in (type(left), type(right)):
        if kind in OPERATORS:
            return OPERATORS[kind](cap, symbol, left, right)
    if TensorVar in (type(left), type(right)) and ObjectVar not in (type(left), type(right)):
        for one in (left, right):
            if type(one) is ConstVar and not is_number(one.value):
                if symbol in ("==", "!="):
                    return ConstVar(symbol == "!=")
            elif type(one) in _NEVER_TENSORS and symbol in ("==", "!="):
                return ConstVar(symbol == "!=")
        return cap.emit("call_function", fn, [left, right], {}, fn)
    structural = _compare_containers(cap, symbol, left, right)
    if structural is not None:
        return ConstVar(structural)
    order = [(left, name, right), (right, reflected, left)]
    left_type, right_type = python_type(left), python_type(right)
    if left_type is not right_type and left_type in right_type.__mro__:
        order.reverse()
    negated, refused = False, 0
    names = f"'{left_type.__name__}' and '{right_type.__name__}'"
    refusal: Any = f"'{symbol}' not supported between instances of {names}"
    if symbol in ("==", "!="):
        refusal = symbol == "!="
    for obj, method, other in order:
        if type(obj) is not ObjectVar:
            continue
        raw = cap.type_attr(obj.cls, method)
        refused += isinstance(raw, types.FunctionType)
        if isinstance(raw, types.FunctionType) or (type(raw) is types.WrapperDescriptorType and raw in RULES):
            last = link and _refuses(cap, obj, other, reflected if obj is left else name)
            finish = Link((ConstVar(polyfills.answered), ConstVar(refusal))) if last else None
            result = call_special(cap, obj, method, [other], finish)
            if not (type(result) is ConstVar and result.value is NotImplemented):
                return result
        elif raw is object.__ne__ and is_python(cap, obj, "__eq__"):
            negated = True  # object.__ne__ asks __eq__
        elif (
            obj.payload is None
            and raw is not ABSENT
            and raw is not None
            and raw is not getattr(object, method)
        ):
            raise Break("c-function", f"{method} of a {obj.cls.__name__}")
    if negated:
        return ConstVar(not truth(cap, compare(cap, "==", left, right)))
    inside = payload_of(left), payload_of(right)
    if (left, right) != inside and any(_varies(side) or type(side) is TensorVar for side in inside):
        return compare(cap, symbol, *inside)
    answer = _compare_inside(cap, symbol, *inside) if refused < 2 else None
    if answer is not None:
        return answer
    if symbol in ("==", "!="):
        return ConstVar(_identity_equal(cap, left, right) == (symbol == "=="))
    require_known(left, right)
    raise cap.raise_(TypeError, refusal)


#: Their comparisons, and their operators on numbers, know nothing of instances of other classes.
NUMBERS = frozenset((int, bool, float, complex, type(None)))


def _refuses(cap: Capture, asked: ObjectVar, other: Tracker, method: str) -> bool:
    """Whether ``other`` surely does not answer a comparison that ``asked`` did not, and is not the same object."""
    if asked.payload is not None:
        return False
    if type(other) is ConstVar:
        return type(other.value) in NUMBERS or type(other.value) is str
    ordered = method not in ("__eq__", "__ne__")
    plain = type(other) is ObjectVar and other.payload is None
    return plain and ordered and cap.type_attr(python_type(other), method) is getattr(object, method)


def _compare_ids(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    """The numbers are not known, only whether two are of one object and that nothing but a number equals them."""
    if symbol in ("==", "!="):
        if type(left) is IdVar and type(right) is IdVar:
            return ConstVar(is_same(cap, left.target, right.target) == (symbol == "=="))
        other = right if type(left) is IdVar else left
        if type(other) is ConstVar and not is_number(other.value):
            return ConstVar(symbol == "!=")
    raise Break("unsupported-object", "id() of an object compared with another value")


def _compare_inside(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker | None:
    """What the builtin classes say of their values, also of those inside of subclasses; None where they refuse."""
    fn, name, reflected = COMPARE[symbol]
    if type(left) is ConstVar and type(right) is ConstVar:
        a, b = left.value, right.value
        refused = getattr(type(a), name)(a, b) is getattr(type(b), reflected)(b, a) is NotImplemented
        return None if refused else evaluate(cap, fn, a, b)
    if type(left) is DequeVar and type(right) is DequeVar:
        from ..mirror import run

        return run(cap, getattr(collections.deque, name), [left, right], {})
    structural = _compare_containers(cap, symbol, left, right)
    return None if structural is None else ConstVar(structural)


def require_known(*operands: Tracker) -> None:
    """Raises: Break where nothing is known of an operand, and so neither that the operator refuses it."""
    for operand in operands:
        if type(operand) is OpaqueVar:
            raise Break(operand.code, operand.detail)


def _identity_equal(cap: Capture, left: Tracker, right: Tracker) -> bool:
    if type(left) is MethodVar and type(right) is MethodVar:
        return is_same(cap, left.self_var, right.self_var) and _identity_equal(cap, left.func, right.func)
    return is_same(cap, left, right)


#: What a tensor does not compare itself with.
_NEVER_TENSORS = (ListVar, TupleVar, DictVar, DictViewVar, SetVar, FunctionVar, MethodVar)
#: Types whose values may be equal without being the same object, so that `is` needs the very object.
_EQUAL_NOT_SAME = NUMPY_SCALARS | frozenset(
    {int, float, str, bytes, complex, range, slice, torch.Size, torch.device, types.FunctionType}
)


def is_tuple(tracker: Tracker) -> bool:
    return type(tracker) is TupleVar or (
        type(tracker) is ConstVar and type(tracker.value) in (tuple, torch.Size)
    )


def is_set(tracker: Tracker) -> bool:
    return type(tracker) is SetVar or (type(tracker) is DictViewVar and tracker.kind == "keys")


def _compare_containers(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> bool | None:
    pair = id(left), id(right)
    if pair in cap.compared:
        raise Break("unsupported-object", "comparison of containers that contain themselves")
    cap.compared.add(pair)
    try:
        return _compare_content(cap, symbol, left, right)
    finally:
        cap.compared.discard(pair)


def _compare_content(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> bool | None:
    sequences = (is_tuple(left) and is_tuple(right)) or (type(left) is ListVar and type(right) is ListVar)
    if sequences:
        first, second = sequence_items(cap, left), sequence_items(cap, right)
        for a, b in zip(first, second):
            if not items_equal(cap, a, b):
                if symbol in ("==", "!="):
                    return symbol == "!="
                return truth(cap, compare(cap, symbol, a, b))
        return COMPARE[symbol][0](len(first), len(second))
    if symbol not in ("==", "!="):
        if is_set(left) and is_set(right):
            return COMPARE[symbol][0](set_keys(cap, left).keys(), set_keys(cap, right).keys())
        return None
    if type(left) is DictVar and type(right) is DictVar:
        cap.complete(left)
        cap.complete(right)
        equal = left.known.keys() == right.known.keys() and all(
            items_equal(cap, left.known[key], right.known[key]) for key in left.known
        )
        if left.cls is right.cls is OrderedDict:
            equal = equal and list(left.known) == list(right.known)
        return equal == (symbol == "==")
    if is_set(left) and is_set(right):
        return (set_keys(cap, left).keys() == set_keys(cap, right).keys()) == (symbol == "==")
    return None


def items_equal(cap: Capture, left: Tracker, right: Tracker) -> bool:
    """``left is right or left == right``, as containers compare their items."""
    return is_same_item(cap, left, right) or truth(cap, compare(cap, "==", left, right))


def is_same_item(cap: Capture, left: Tracker, right: Tracker) -> bool:
    """``left is right`` where they are asked next whether they are equal, as numbers that are one object are."""
    left, right = cap.realize(left), cap.realize(right)
    sides = (left, right)
    if not (any(type(side) in _EQUAL_THEMSELVES for side in sides) and all(map(_is_number, sides))):
        return is_same(cap, left, right)
    if type(left) is FloatVar and truth(cap, compare(cap, "!=", left, left)):
        raise Break("unsupported-object", "whether two numbers that vary are one object")
    return False


#: Numbers that vary; of floats, all but NaN equal themselves.
_EQUAL_THEMSELVES = (SizeVar, TruthVar, FloatVar)
