"""Binary, in-place and unary operators, with reflection.

In: trackers. Out: trackers (or the program's own exception as `Raised`).
Always: constants are evaluated for real, tensors become graph nodes, everything else follows the special methods.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import torch

from ...guards import ABSENT
from ..attributes import python_type
from ..breaks import Break
from ..calls import call_special
from ..capture import Capture, NotConst, describe
from ..trackers import (
    ConstVar,
    DictVar,
    ListVar,
    ObjectVar,
    SetVar,
    SizeVar,
    TensorVar,
    Tracker,
    TupleVar,
)
from .comparison import OPERATORS, is_set, is_tuple
from .items import get_item
from .iteration import change_list, change_set, evaluate, extend_from, iterate, sequence_items, set_keys

BINARY: dict[str, tuple[Callable[..., Any], str, str]] = {
    "+": (operator.add, "__add__", "__radd__"),
    "-": (operator.sub, "__sub__", "__rsub__"),
    "*": (operator.mul, "__mul__", "__rmul__"),
    "/": (operator.truediv, "__truediv__", "__rtruediv__"),
    "//": (operator.floordiv, "__floordiv__", "__rfloordiv__"),
    "%": (operator.mod, "__mod__", "__rmod__"),
    "**": (operator.pow, "__pow__", "__rpow__"),
    "@": (operator.matmul, "__matmul__", "__rmatmul__"),
    "<<": (operator.lshift, "__lshift__", "__rlshift__"),
    ">>": (operator.rshift, "__rshift__", "__rrshift__"),
    "&": (operator.and_, "__and__", "__rand__"),
    "|": (operator.or_, "__or__", "__ror__"),
    "^": (operator.xor, "__xor__", "__rxor__"),
}


INPLACE: dict[str, tuple[Callable[..., Any], str]] = {
    "+": (operator.iadd, "__iadd__"),
    "-": (operator.isub, "__isub__"),
    "*": (operator.imul, "__imul__"),
    "/": (operator.itruediv, "__itruediv__"),
    "//": (operator.ifloordiv, "__ifloordiv__"),
    "%": (operator.imod, "__imod__"),
    "**": (operator.ipow, "__ipow__"),
    "@": (operator.imatmul, "__imatmul__"),
    "<<": (operator.ilshift, "__ilshift__"),
    ">>": (operator.irshift, "__irshift__"),
    "&": (operator.iand, "__iand__"),
    "|": (operator.ior, "__ior__"),
    "^": (operator.ixor, "__ixor__"),
}


UNARY: dict[str, tuple[Callable[..., Any], str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
    "abs": (abs, "__abs__"),
}


#: Unary operators (by symbol) of kinds of trackers that have rules of their own.
UNARY_OPERATORS: dict[type, Callable[[Capture, str, Any], Tracker]] = {}


def binary(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    """``left <symbol> right``."""
    left, right = cap.realize(left), cap.realize(right)
    fn, name, reflected = BINARY[symbol]
    kinds = (type(left), type(right))
    if kinds == (ConstVar, ConstVar):
        return evaluate(cap, fn, left.value, right.value)  # type: ignore[attr-defined]
    for kind in kinds:
        if kind in OPERATORS:
            return OPERATORS[kind](cap, symbol, left, right)
    if TensorVar in kinds and ObjectVar not in kinds:
        return cap.emit("call_function", fn, [left, right], {}, fn)
    builtin = _container_operator(cap, symbol, left, right)
    if builtin is not None:
        return builtin
    left_type, right_type = python_type(left), python_type(right)
    order = [(left, name, right), (right, reflected, left)]
    if (
        left_type is not right_type
        and issubclass(right_type, left_type)
        and cap.type_attr(right_type, reflected) is not cap.type_attr(left_type, reflected)
    ):
        order.reverse()
    if left_type is right_type:
        order.pop()
    for obj, method, other in order:
        result = _try_special(cap, obj, method, other)
        if result is not None:
            return result
    raise cap.raise_(
        TypeError,
        f"unsupported operand type(s) for {symbol}: '{left_type.__name__}' and '{right_type.__name__}'",
    )


def _try_special(cap: Capture, obj: Tracker, method: str, other: Tracker) -> Tracker | None:
    if type(obj) is TensorVar:
        raise Break("unsupported-call", f"{method} of a tensor with a {describe(other)}")
    if cap.type_attr(python_type(obj), method) is ABSENT:
        return None
    result = call_special(cap, obj, method, [other])
    return None if type(result) is ConstVar and result.value is NotImplemented else result


def _container_operator(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker | None:
    """Operators of exact lists, tuples, dicts and sets."""
    if symbol == "+" and type(left) is ListVar and type(right) is ListVar:
        return ListVar(left.items + right.items)
    if symbol == "+" and is_tuple(left) and is_tuple(right):
        if any(type(side) is ConstVar and type(side.value) is torch.Size for side in (left, right)):
            with contextlib.suppress(NotConst):
                return evaluate(cap, operator.add, cap.value_of(left), cap.value_of(right))
        return TupleVar(sequence_items(cap, left) + sequence_items(cap, right))
    if symbol == "*":
        if type(right) in (ListVar, TupleVar):
            left, right = right, left
        if type(left) in (ListVar, TupleVar):
            right = cap.plain(right)
        if type(left) in (ListVar, TupleVar) and type(right) is ConstVar:
            if not hasattr(type(right.value), "__index__"):
                raise cap.raise_(
                    TypeError, f"can't multiply sequence by non-int of type '{type(right.value).__name__}'"
                )
            return type(left)(left.items * operator.index(right.value))  # type: ignore[attr-defined, call-arg]
    if symbol == "|" and type(left) is DictVar and type(right) is DictVar:
        cap.complete(left)
        cap.complete(right)
        return DictVar({**left.known, **right.known}, cls=left.cls)
    if symbol == "%" and type(left) is ConstVar and isinstance(left.value, str):
        try:
            return evaluate(cap, operator.mod, left.value, cap.value_of(right))
        except NotConst:
            raise Break("unsupported-call", "formatting of a value that is not a constant") from None
    if symbol in "-&|^" and is_set(left) and is_set(right):
        first, second = set_keys(cap, left), set_keys(cap, right)
        chosen = {"-": first.keys() - second.keys(), "&": first.keys() & second.keys()}
        chosen |= {"|": first.keys() | second.keys(), "^": first.keys() ^ second.keys()}
        merged = {**second, **first}
        cls = left.cls if type(left) is SetVar else set
        return SetVar({key: merged[key] for key in merged if key in chosen[symbol]}, cls)
    return None


def inplace(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    """``left <symbol>= right``: the value that the name is then bound to."""
    left, right = cap.realize(left), cap.realize(right)
    fn, name = INPLACE[symbol]
    if type(left) is TensorVar:
        return cap.emit("call_function", fn, [left, right], {}, fn)
    if type(left) is SizeVar:
        return binary(cap, symbol, left, right)
    if type(left) in OPERATORS:
        raise Break("unsupported-mutation", f"{symbol}= of a {describe(left)}")
    if type(left) is ListVar and symbol == "+":
        extend_from(cap, left, right)
        return left
    if (
        type(left) is ListVar
        and symbol == "*"
        and type(right) is ConstVar
        and hasattr(type(right.value), "__index__")
    ):
        change_list(cap, left)[:] = left.items * right.value
        return left
    if type(left) is SetVar and left.cls is set and symbol in "-&|^" and is_set(right):
        changed = _container_operator(cap, symbol, left, right)
        assert type(changed) is SetVar
        items = change_set(cap, left)
        items.clear()
        items.update(changed.known)
        return left
    if type(left) is DictVar and symbol == "|":
        for key in iterate(cap, right):
            dict_key = cap.key_of(key)
            cap.dict_set(left, dict_key, get_item(cap, right, key))
        return left
    if type(left) is ObjectVar and cap.type_attr(left.cls, name) is not ABSENT:
        result = call_special(cap, left, name, [right])
        if not (type(result) is ConstVar and result.value is NotImplemented):
            return result
    return binary(cap, symbol, left, right)


def unary(cap: Capture, symbol: str, operand: Tracker) -> Tracker:
    operand = cap.realize(operand)
    fn, name = UNARY[symbol]
    if type(operand) in UNARY_OPERATORS:
        return UNARY_OPERATORS[type(operand)](cap, symbol, operand)
    if type(operand) is ConstVar:
        return evaluate(cap, fn, operand.value)
    if type(operand) is TensorVar:
        return cap.emit("call_function", fn, [operand], {}, fn)
    if cap.type_attr(python_type(operand), name) is ABSENT:
        raise cap.raise_(TypeError, f"bad operand type for unary {symbol}: '{python_type(operand).__name__}'")
    return call_special(cap, operand, name, [])
