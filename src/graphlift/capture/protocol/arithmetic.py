"""Binary, in-place and unary operators, with reflection.

In: trackers. Out: trackers (or the program's own exception as `Raised`).
Always: constants are evaluated for real, tensors become graph nodes, everything else follows the special methods.
"""

from __future__ import annotations

import collections
import contextlib
import operator
import sys
from collections.abc import Callable
from typing import Any

import torch

from ...guards import ABSENT
from .. import polyfills
from ..attributes import is_python, python_type
from ..breaks import Break, Raised
from ..calls import call, call_special
from ..capture import DIRECT, Capture, Link, NotConst
from ..trackers import (
    Args,
    ConstVar,
    DequeVar,
    DictVar,
    DictViewVar,
    FloatVar,
    ListVar,
    ObjectVar,
    OpaqueVar,
    SetVar,
    SizeVar,
    TensorVar,
    Tracker,
    TupleVar,
    describe,
)
from .comparison import NUMBERS, OPERATORS, is_set, is_tuple, require_known
from .iteration import (
    change_list,
    change_set,
    evaluate,
    extend_from,
    has_constants,
    real_set,
    sequence_items,
    set_keys,
)

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
INPLACE_OPERATORS: dict[type, Callable[[Capture, str, Tracker, Tracker], Tracker]] = {}


def binary(
    cap: Capture, symbol: str, left: Tracker, right: Tracker, shown: str = "", link: Link | None = None
) -> Tracker:
    """``left <symbol> right``; ``shown``: the operator that a TypeError names; ``link``: the result of the instruction."""
    left, right = cap.realize(left), cap.realize(right)
    fn, name, reflected = BINARY[symbol]
    kinds = (type(left), type(right))
    if kinds == (ConstVar, ConstVar):
        return evaluate(cap, fn, left.value, right.value)  # type: ignore[attr-defined]
    for kind in kinds:
        if kind in OPERATORS:
            return OPERATORS[kind](cap, symbol, left, right)
    if symbol == "%" and type(left) is ConstVar and isinstance(left.value, (str, bytes)):
        return call(cap, ConstVar(type(left.value).__mod__), [left, right], {})
    if TensorVar in kinds:
        left, right = _number_inside(left), _number_inside(right)
        if ObjectVar not in (type(left), type(right)):
            return cap.emit("call_function", fn, [left, right], {}, fn)
    builtin = _container_operator(cap, symbol, left, right)
    if builtin is not None:
        return builtin
    left_type, right_type = python_type(left), python_type(right)
    order = [(left, name, right), (right, reflected, left)]
    if (
        left_type is not right_type
        and left_type in right_type.__mro__  # as Python asks, whatever a metaclass says
        and cap.type_attr(right_type, reflected) is not cap.type_attr(left_type, reflected)
    ) or (symbol in "+*" and _joins_sequences(cap.type_attr(left_type, name))):
        order.reverse()
    if left_type is right_type:
        order = [(left, name, right)]
    if symbol == "*":
        _check_count(cap, left, right)
        _check_count(cap, right, left)
    refusal = _refusal(shown or _SHOWN.get(symbol, symbol), left, right)
    while order:
        obj, method, other = order.pop(0)
        if not _may_answer(cap, obj, method, other):
            continue
        if type(obj) is TensorVar:
            raise Break("unsupported-call", f"{method} of a tensor with a {describe(other)}")
        last = link is not None and OpaqueVar not in kinds and not any(_may_answer(cap, *it) for it in order)
        finish = Link((ConstVar(polyfills.answered), ConstVar(refusal))) if last else None
        result = call_special(cap, obj, method, [other], finish)
        if not (type(result) is ConstVar and result.value is NotImplemented):
            return result
    require_known(left, right)
    raise cap.raise_(TypeError, refusal)


def _refusal(shown: str, left: Tracker, right: Tracker) -> str:
    left_type, right_type = python_type(left), python_type(right)
    return f"unsupported operand type(s) for {shown}: '{left_type.__name__}' and '{right_type.__name__}'"


#: Operators that a TypeError shows by another name.
_SHOWN = {"**": "** or pow()"}
#: Classes whose `+` and `*` join and repeat: CPython asks the other operand first.
_SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque)


def _not_a_count(cap: Capture, count: Tracker) -> Raised:
    return cap.raise_(
        TypeError, f"can't multiply sequence by non-int of type '{python_type(count).__name__}'"
    )


def _check_count(cap: Capture, sequence: Tracker, count: Tracker) -> None:
    """A sequence is repeated by an index, or by what multiplies it in its own way."""
    if _joins_sequences(cap.type_attr(python_type(sequence), "__mul__")):
        cls = python_type(count)
        own = [cap.type_attr(cls, name) for name in ("__mul__", "__rmul__")]
        if cap.type_attr(cls, "__index__") is ABSENT and all(m is ABSENT or _joins_sequences(m) for m in own):
            raise _not_a_count(cap, count)


def _joins_sequences(method: Any) -> bool:
    return getattr(method, "__objclass__", None) in _SEQUENCES


def _number_inside(operand: Tracker) -> Tracker:
    """The number of an instance of a subclass of one, as a tensor's operator takes it."""
    inside = operand.payload if type(operand) is ObjectVar else None
    return inside if type(inside) is ConstVar and not isinstance(inside.value, str) else operand


def _refuses(cap: Capture, operand: Tracker) -> bool:
    """Whether a tensor's operator returns NotImplemented for it: nothing that torch could read a tensor from."""
    if type(operand) is not ObjectVar or operand.payload is not None:
        return False
    reads = (
        "__torch_function__",
        "__array__",
        "__len__",
        "__getitem__",
        "__iter__",
        "__index__",
        "__float__",
    )
    return all(
        cap.type_attr(operand.cls, name) is ABSENT for name in (*reads, "__int__", "__complex__", "__bool__")
    )


def _may_answer(cap: Capture, obj: Tracker, method: str, other: Tracker) -> bool:
    """Whether an operand has a method that may give the result."""
    if type(obj) is TensorVar:
        return not _refuses(cap, other)
    if type(obj) is ConstVar and type(obj.value) in NUMBERS and type(other) is ObjectVar:
        return other.payload is not None
    return cap.type_attr(python_type(obj), method) is not ABSENT


def _container_operator(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker | None:
    """Operators of exact lists, tuples, dicts and sets."""
    if symbol == "+" and type(left) is ListVar and type(right) is ListVar:
        return ListVar(left.items + right.items)
    if symbol == "+" and is_tuple(left) and is_tuple(right):
        if any(type(side) is ConstVar and type(side.value) is torch.Size for side in (left, right)):
            from ..size_rules import joined

            with contextlib.suppress(NotConst):
                return evaluate(cap, operator.add, cap.value_of(left), cap.value_of(right))
            return joined(cap, left, right)
        return TupleVar(sequence_items(cap, left) + sequence_items(cap, right))
    if symbol == "*":
        if type(right) in (ListVar, TupleVar) and not _joins_sequences(
            cap.type_attr(python_type(left), "__mul__")
        ):
            left, right = right, left
        if type(left) in (ListVar, TupleVar):
            right = cap.plain(right)
        if type(left) in (ListVar, TupleVar) and type(right) is ConstVar:
            if not hasattr(type(right.value), "__index__"):
                raise _not_a_count(cap, right)
            count: int = evaluate(cap, operator.index, right.value).value  # type: ignore[attr-defined]
            if count > sys.maxsize:
                evaluate(cap, operator.mul, [], count)  # raises
            return type(left)(left.items * count)  # type: ignore[attr-defined, call-arg]
    if symbol == "|" and type(left) is DictVar and type(right) is DictVar:
        cap.complete(left)
        cap.complete(right)
        return DictVar({**left.known, **right.known}, cls=left.cls)
    if symbol in "-&|^" and is_set(left) and is_set(right):
        if type(left) is SetVar and type(right) is SetVar and has_constants(left, right):
            joined = BINARY[symbol][0](real_set(cap, left), real_set(cap, right))
            return SetVar({key: cap.from_python(key) for key in joined}, type(joined), twin=joined)
        owners = [side.owner if type(side) is DictViewVar else side for side in (left, right)]
        if has_constants(*owners):  # type: ignore[arg-type]
            from ..mirror import run

            return run(cap, BINARY[symbol][0], [left, right], {})
        first, second = set_keys(cap, left), set_keys(cap, right)
        chosen = {"-": first.keys() - second.keys(), "&": first.keys() & second.keys()}
        chosen |= {"|": first.keys() | second.keys(), "^": first.keys() ^ second.keys()}
        merged = first | {key: item for key, item in second.items() if key not in first}
        if symbol == "&" and len(second) <= len(first):  # those of the smaller one, or of the right one
            merged = second
        cls = left.cls if type(left) is SetVar else set
        return SetVar({key: merged[key] for key in merged if key in chosen[symbol]}, cls)
    return None


def inplace(cap: Capture, symbol: str, left: Tracker, right: Tracker, link: Link | None = None) -> Tracker:
    """``left <symbol>= right``: the value that the name is then bound to."""
    left, right = cap.realize(left), cap.realize(right)
    fn, name = INPLACE[symbol]
    if type(left) is TensorVar:
        return cap.emit("call_function", fn, [left, right], {}, fn)
    if type(left) in (SizeVar, FloatVar):
        return binary(cap, symbol, left, right)
    if type(left) in INPLACE_OPERATORS:
        return INPLACE_OPERATORS[type(left)](cap, symbol, left, right)
    if type(left) in OPERATORS:
        raise Break("unsupported-mutation", f"{symbol}= of a {describe(left)}")
    if type(left) is DequeVar and symbol in "+*":
        from ..mirror import run

        return run(cap, fn, [left, right], {})
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
        if type(right) is SetVar and has_constants(left, right):
            from ..mirror import run

            return run(cap, fn, [left, right], {})
        if left.real is not None and has_constants(left):
            raise Break("unsupported-mutation", f"{symbol}= of a set made outside with {describe(right)}")
        changed = _container_operator(cap, symbol, left, right)
        assert type(changed) is SetVar
        items = change_set(cap, left)
        items.clear()
        items.update(changed.known)
        return left
    if type(left) is DictVar and symbol == "|":
        call(cap, ConstVar(dict.update), [left, right], {})
        return left
    method = cap.type_attr(left.cls, name) if type(left) is ObjectVar else ABSENT
    if method is list.__imul__ and is_python(cap, left, "__mul__"):  # type: ignore[attr-defined,arg-type]
        method = ABSENT  # numbers come first, and a class that multiplies is one
    if method is not ABSENT:
        finish: Args = [ConstVar(polyfills.changed), ConstVar(BINARY[symbol][0])]
        finish += [
            ConstVar(_refusal(shown, left, right)) for shown in (_SHOWN.get(symbol, symbol), f"{symbol}=")
        ]
        way = Link((*finish, left, right)) if link is DIRECT else None
        result = call_special(cap, left, name, [right], way)
        if not (type(result) is ConstVar and result.value is NotImplemented):
            return result
    if type(left) is ConstVar and type(right) is ConstVar:
        return evaluate(cap, fn, left.value, right.value)
    return binary(cap, symbol, left, right, f"{symbol}=", link)


def unary(cap: Capture, symbol: str, operand: Tracker, link: Link | None = None) -> Tracker:
    operand = cap.realize(operand)
    fn, name = UNARY[symbol]
    if type(operand) in UNARY_OPERATORS:
        return UNARY_OPERATORS[type(operand)](cap, symbol, operand)
    if type(operand) is ConstVar:
        return evaluate(cap, fn, operand.value)
    if type(operand) is TensorVar:
        return cap.emit("call_function", fn, [operand], {}, fn)
    if cap.type_attr(python_type(operand), name) is ABSENT:
        raise cap.raise_(
            TypeError,
            f"bad operand type for {'abs()' if symbol == 'abs' else f'unary {symbol}'}: '{python_type(operand).__name__}'",
        )
    return call_special(cap, operand, name, [], link)
