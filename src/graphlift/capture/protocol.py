"""The object protocol of Python on trackers: operators, truth, iteration, containment, items, comparison.

In: trackers. Out: trackers (or the program's own exception as `Raised`).
Always: constants are evaluated for real, tensors become graph nodes, everything else follows the special methods.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from ..guards import ABSENT, Const, DistinctTensors, IdIs, Predicate
from .attributes import python_type
from .breaks import Break, Exhausted, Raised
from .calls import call, call_special
from .capture import Capture, NotConst, describe
from .frame import DictIter, IteratorVar, RangeIter, SeqIter, SetIter
from .trackers import (
    ConstVar,
    DictVar,
    DictViewVar,
    IdVar,
    LazyVar,
    ListVar,
    MethodVar,
    ObjectVar,
    OpaqueVar,
    SetVar,
    TensorVar,
    Tracker,
    TrackerKey,
    TupleVar,
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
COMPARE: dict[str, tuple[Callable[..., Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
}
UNARY: dict[str, tuple[Callable[..., Any], str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
    "abs": (abs, "__abs__"),
}
_SYMBOLS = {row[0]: symbol for symbol, row in BINARY.items()}


def evaluate(cap: Capture, fn: Callable[..., Any], *values: Any, **kwargs: Any) -> Tracker:
    """Call ``fn`` for real on constants; what it raises, the program raises."""
    try:
        result = fn(*values, **kwargs)
    except Exception as error:
        raise Raised(cap.exception_var(error)) from error
    return cap.from_python(result)


# --- arithmetic --------------------------------------------------------------------------------------------------------


def binary(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    """``left <symbol> right``."""
    left, right = cap.realize(left), cap.realize(right)
    fn, name, reflected = BINARY[symbol]
    kinds = (type(left), type(right))
    if kinds == (ConstVar, ConstVar):
        return evaluate(cap, fn, left.value, right.value)  # type: ignore[attr-defined]
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
    if symbol == "+" and _is_tuple(left) and _is_tuple(right):
        return TupleVar(sequence_items(cap, left) + sequence_items(cap, right))
    if symbol == "*":
        if type(right) in (ListVar, TupleVar):
            left, right = right, left
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
    if symbol in "-&|^" and _is_set(left) and _is_set(right):
        first, second = set_keys(cap, left), set_keys(cap, right)
        chosen = {"-": first.keys() - second.keys(), "&": first.keys() & second.keys()}
        chosen |= {"|": first.keys() | second.keys(), "^": first.keys() ^ second.keys()}
        merged = {**second, **first}
        cls = left.cls if type(left) is SetVar else set
        return SetVar({key: merged[key] for key in merged if key in chosen[symbol]}, cls)
    return None


def _is_tuple(tracker: Tracker) -> bool:
    return type(tracker) is TupleVar or (
        type(tracker) is ConstVar and type(tracker.value) in (tuple, torch.Size)
    )


def _is_set(tracker: Tracker) -> bool:
    return type(tracker) is SetVar or (type(tracker) is DictViewVar and tracker.kind == "keys")


def set_keys(cap: Capture, tracker: Tracker) -> dict[Any, Tracker]:
    if type(tracker) is SetVar:
        return tracker.known
    return {cap.key_of(item): item for item in iterate(cap, tracker)}


def inplace(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    """``left <symbol>= right``: the value that the name is then bound to."""
    left, right = cap.realize(left), cap.realize(right)
    fn, name = INPLACE[symbol]
    if type(left) is TensorVar:
        return cap.emit("call_function", fn, [left, right], {}, fn)
    if type(left) is ListVar and symbol == "+":
        extend_list(cap, left, iterate(cap, right))
        return left
    if (
        type(left) is ListVar
        and symbol == "*"
        and type(right) is ConstVar
        and hasattr(type(right.value), "__index__")
    ):
        change_list(cap, left)[:] = left.items * right.value
        return left
    if type(left) is SetVar and left.cls is set and symbol in "-&|^" and _is_set(right):
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
    if type(operand) is ConstVar:
        return evaluate(cap, fn, operand.value)
    if type(operand) is TensorVar:
        return cap.emit("call_function", fn, [operand], {}, fn)
    if cap.type_attr(python_type(operand), name) is ABSENT:
        raise cap.raise_(TypeError, f"bad operand type for unary {symbol}: '{python_type(operand).__name__}'")
    return call_special(cap, operand, name, [])


# --- truth, identity, comparison -----------------------------------------------------------------------------------------


def truth(cap: Capture, value: Tracker) -> bool:
    """``bool(value)``."""
    value = cap.realize(value)
    kind = type(value)
    if kind is ConstVar:
        return bool(value.value)  # type: ignore[attr-defined]
    if kind is TensorVar:
        if value.fake.numel() != 1:  # type: ignore[attr-defined]
            raise Break("data-dependent-branch", f"truth of a tensor of shape {tuple(value.fake.shape)}")  # type: ignore
        raise Break("data-dependent-branch", "truth of a tensor")
    if kind in (TupleVar, ListVar):
        return bool(value.items)  # type: ignore[attr-defined]
    if kind in (DictVar, SetVar, DictViewVar):
        return length(cap, value) > 0
    if kind is OpaqueVar:
        raise Break(value.code, value.detail)  # type: ignore[attr-defined]
    if kind is ObjectVar:
        cls = value.cls  # type: ignore[attr-defined]
        if cap.type_attr(cls, "__bool__") is not ABSENT:
            return truth(cap, call_special(cap, value, "__bool__", []))
        if cap.type_attr(cls, "__len__") is not ABSENT:
            return length(cap, value) > 0
    return True


def is_same(cap: Capture, left: Tracker, right: Tracker) -> bool:
    """``left is right``."""
    left, right = cap.realize(left), cap.realize(right)
    if left is right:
        return True
    if type(left) is ConstVar and type(right) is ConstVar:
        if left.value is right.value or type(left.value) is type(right.value):
            for side in (left, right):
                if side.source is not None and type(side.value) in _EQUAL_NOT_SAME:
                    cap.guard(IdIs(side.source, side.value))
        return left.value is right.value
    if type(left) is TensorVar and type(right) is TensorVar:
        return left.fake is right.fake
    for one, other in ((left, right), (right, left)):
        if type(one) is OpaqueVar and not (type(other) is ConstVar and other.value is None):
            raise Break(one.code, one.detail)
    if left.source is not None and right.source is not None and python_type(left) is python_type(right):
        cap.guard(DistinctTensors((left.source, right.source)))
    return False


def compare(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    """``left <symbol> right`` for the six rich comparisons."""
    left, right = cap.realize(left), cap.realize(right)
    fn, name, reflected = COMPARE[symbol]
    if type(left) is ConstVar and type(right) is ConstVar:
        return evaluate(cap, fn, left.value, right.value)
    if TensorVar in (type(left), type(right)) and ObjectVar not in (type(left), type(right)):
        for one in (left, right):
            if type(one) is ConstVar and not isinstance(one.value, (int, float, complex, bool)):
                if symbol in ("==", "!="):
                    return ConstVar(symbol == "!=")
        return cap.emit("call_function", fn, [left, right], {}, fn)
    structural = _compare_containers(cap, symbol, left, right)
    if structural is not None:
        return ConstVar(structural)
    order = [(left, name, right), (right, reflected, left)]
    left_type, right_type = python_type(left), python_type(right)
    if left_type is not right_type and issubclass(right_type, left_type):
        order.reverse()
    negated = False
    for obj, method, other in order:
        if type(obj) is not ObjectVar:
            continue
        raw = cap.type_attr(obj.cls, method)
        if isinstance(raw, types.FunctionType):
            result = call_special(cap, obj, method, [other])
            if not (type(result) is ConstVar and result.value is NotImplemented):
                return result
        elif method == "__ne__" and isinstance(cap.type_attr(obj.cls, "__eq__"), types.FunctionType):
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
    left_payload, right_payload = payload_of(left), payload_of(right)
    if left_payload is not left or right_payload is not right:
        return compare(cap, symbol, left_payload, right_payload)
    if symbol in ("==", "!="):
        return ConstVar(_identity_equal(cap, left, right) == (symbol == "=="))
    raise cap.raise_(
        TypeError,
        f"'{symbol}' not supported between instances of '{python_type(left).__name__}' and '{python_type(right).__name__}'",
    )


def _identity_equal(cap: Capture, left: Tracker, right: Tracker) -> bool:
    if type(left) is IdVar and type(right) is IdVar:
        return is_same(cap, left.target, right.target)
    if type(left) is MethodVar and type(right) is MethodVar:
        return is_same(cap, left.self_var, right.self_var) and _identity_equal(cap, left.func, right.func)
    return is_same(cap, left, right)


#: Types whose values may be equal without being the same object, so that `is` needs the very object.
_EQUAL_NOT_SAME = frozenset(
    {int, float, str, bytes, complex, range, slice, torch.Size, torch.device, types.FunctionType}
)


def payload_of(tracker: Tracker) -> Tracker:
    """The builtin container inside an instance of a subclass of one, or the tracker itself."""
    if type(tracker) is ObjectVar and tracker.payload is not None:
        return tracker.payload
    return tracker


def _compare_containers(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> bool | None:
    sequences = (_is_tuple(left) and _is_tuple(right)) or (type(left) is ListVar and type(right) is ListVar)
    if sequences:
        first, second = sequence_items(cap, left), sequence_items(cap, right)
        for a, b in zip(first, second):
            if not items_equal(cap, a, b):
                if symbol in ("==", "!="):
                    return symbol == "!="
                return truth(cap, compare(cap, symbol, a, b))
        return COMPARE[symbol][0](len(first), len(second))
    if symbol not in ("==", "!="):
        if _is_set(left) and _is_set(right):
            return COMPARE[symbol][0](set_keys(cap, left).keys(), set_keys(cap, right).keys())
        return None
    if type(left) is DictVar and type(right) is DictVar:
        cap.complete(left)
        cap.complete(right)
        equal = left.known.keys() == right.known.keys() and all(
            items_equal(cap, left.known[key], right.known[key]) for key in left.known
        )
        return equal == (symbol == "==")
    if _is_set(left) and _is_set(right):
        return (set_keys(cap, left).keys() == set_keys(cap, right).keys()) == (symbol == "==")
    return None


def items_equal(cap: Capture, left: Tracker, right: Tracker) -> bool:
    """``left is right or left == right``, as containers compare their items."""
    return is_same(cap, left, right) or truth(cap, compare(cap, "==", left, right))


# --- containers ------------------------------------------------------------------------------------------------------------


def sequence_items(cap: Capture, tracker: Tracker) -> list[Tracker]:
    """The items of a tuple or list (not of other iterables)."""
    tracker = payload_of(cap.realize(tracker))
    if type(tracker) in (TupleVar, ListVar):
        return tracker.items  # type: ignore[attr-defined]
    if type(tracker) is ConstVar and isinstance(tracker.value, (tuple, torch.Size, range)):
        return [cap.from_python(item) for item in tracker.value]
    raise Break("unsupported-object", f"{describe(tracker)} as a sequence")


def extend_list(cap: Capture, target: ListVar, items: list[Tracker]) -> None:
    """Append to a list without looking at what it holds."""
    if target.untouched:
        cap.mark_changed(target)
        target.tail.extend(items)
    else:
        change_list(cap, target).extend(items)


def change_list(cap: Capture, target: ListVar) -> list[Tracker]:
    """The items, to be changed in place."""
    if target.real is not None:
        target.mutated = True
        cap.mark_changed(target)
    return target.items


def change_set(cap: Capture, target: SetVar) -> dict[Any, Tracker]:
    if target.real is not None:
        target.mutated = True
        cap.mark_changed(target)
    return target.known


def length(cap: Capture, value: Tracker) -> int:
    """``len(value)``."""
    value = cap.realize(value)
    kind = type(value)
    if kind in (TupleVar, ListVar):
        return len(value.items)  # type: ignore[attr-defined]
    if kind is DictVar:
        cap.complete(value)  # type: ignore[arg-type]
        return len(value.known)  # type: ignore[attr-defined]
    if kind is SetVar:
        return len(value.known)  # type: ignore[attr-defined]
    if kind is DictViewVar:
        return length(cap, value.owner)  # type: ignore[attr-defined]
    if kind is ConstVar:
        result = evaluate(cap, len, value.value)  # type: ignore[attr-defined]
        return result.value  # type: ignore[attr-defined, no-any-return]
    if kind is TensorVar:
        if value.fake.dim() == 0:  # type: ignore[attr-defined]
            raise cap.raise_(TypeError, "len() of a 0-d tensor")
        return value.fake.shape[0]  # type: ignore[attr-defined, no-any-return]
    if kind is OpaqueVar:
        raise Break(value.code, value.detail)  # type: ignore[attr-defined]
    if cap.type_attr(python_type(value), "__len__") is ABSENT:
        raise cap.raise_(TypeError, f"object of type '{python_type(value).__name__}' has no len()")
    result = call_special(cap, value, "__len__", [])
    return cap.value_of(result)  # type: ignore[no-any-return]


def get_iter(cap: Capture, value: Tracker) -> Tracker:
    """``iter(value)``."""
    value = cap.realize(value)
    kind = type(value)
    if isinstance(value, IteratorVar):
        return value
    if kind in (TupleVar, ListVar):
        return SeqIter(value.items, value)  # type: ignore[attr-defined]
    if kind is ConstVar:
        if isinstance(value.value, range):  # type: ignore[attr-defined]
            return RangeIter(value.value)  # type: ignore[attr-defined]
        try:
            items = [cap.from_python(item) for item in value.value]  # type: ignore[attr-defined]
        except TypeError as error:
            raise Raised(cap.exception_var(error)) from None
        return SeqIter(items, TupleVar(items))
    if kind is TensorVar:
        from .torch_rules import unbind

        return get_iter(cap, unbind(cap, value))  # type: ignore[arg-type]
    if kind is SetVar:
        return SetIter(_set_items(cap, value), value)  # type: ignore[arg-type]
    if kind in (DictVar, DictViewVar):
        owner, view = (value.owner, value.kind) if kind is DictViewVar else (value, "keys")  # type: ignore[attr-defined]
        return DictIter(cap.complete(owner), view)
    if kind is ObjectVar:
        raw = cap.type_attr(value.cls, "__iter__")  # type: ignore[attr-defined]
        if isinstance(raw, types.FunctionType):
            return call_special(cap, value, "__iter__", [])
        if value.payload is not None:  # type: ignore[attr-defined]
            return get_iter(cap, value.payload)  # type: ignore[attr-defined]
        if raw is ABSENT and cap.type_attr(value.cls, "__getitem__") is not ABSENT:  # type: ignore[attr-defined]
            from . import polyfills

            return call(cap, ConstVar(polyfills.iterate_by_index), [value], {})
        if raw is not ABSENT and raw is not None:
            raise Break("unsupported-object", f"iteration over a {value.cls.__name__}")  # type: ignore[attr-defined]
    if kind is OpaqueVar:
        raise Break(value.code, value.detail)  # type: ignore[attr-defined]
    if kind is ConstVar or cap.type_attr(python_type(value), "__iter__") is ABSENT:
        raise cap.raise_(TypeError, f"'{python_type(value).__name__}' object is not iterable")
    raise Break("unsupported-object", f"iteration over {describe(value)}")


def _set_items(cap: Capture, value: SetVar) -> list[Tracker]:
    """The items of a set in the order of its iteration."""
    if any(isinstance(key, TrackerKey) for key in value.known):
        return list(value.known.values())
    if value.real is None or value.mutated:
        return [value.known[key] for key in value.cls(value.known)]
    ordered = list(value.real)
    if len(ordered) > 1 and value.source is not None and not isinstance(value.source, Const):
        cap.guard(
            Predicate(
                lambda found: list(found) == ordered,
                (value.source,),
                f"list({value.source.name()}) == {ordered!r}",
            )
        )
    return [value.known[key] for key in ordered]


def next_item(cap: Capture, iterator: Tracker) -> Tracker:
    """``next(iterator)``; raises Exhausted at the end."""
    iterator = cap.realize(iterator)
    if isinstance(iterator, IteratorVar):
        return iterator.next(cap)
    if type(iterator) is ObjectVar and isinstance(
        cap.type_attr(iterator.cls, "__next__"), types.FunctionType
    ):
        try:
            return call_special(cap, iterator, "__next__", [])
        except Raised as raised:
            if issubclass(python_type(raised.value), StopIteration):
                args = raised.value.slots.get("args")  # type: ignore[attr-defined]
                raise Exhausted(args.items[0] if type(args) is TupleVar and args.items else None) from None
            raise
    raise Break("unsupported-object", f"an iterator made outside ({describe(iterator)})")


def iterate(cap: Capture, value: Tracker) -> list[Tracker]:
    """All items of an iterable."""
    value = cap.realize(value)
    if type(value) in (TupleVar, ListVar):
        return [cap.realize(item) for item in value.items]  # type: ignore[attr-defined]
    iterator = get_iter(cap, value)
    items = []
    while True:
        try:
            items.append(next_item(cap, iterator))
        except Exhausted:
            return items


def contains(cap: Capture, container: Tracker, item: Tracker) -> bool:
    """``item in container``."""
    container, item = cap.realize(container), cap.realize(item)
    kind = type(container)
    if kind is ConstVar and type(item) is ConstVar:
        result = evaluate(cap, operator.contains, container.value, item.value)  # type: ignore[attr-defined]
        return result.value  # type: ignore[attr-defined, no-any-return]
    if kind is DictVar:
        return cap.dict_has(container, cap.key_of(item))  # type: ignore[arg-type]
    if kind is SetVar:
        return cap.key_of(item) in container.known  # type: ignore[attr-defined]
    if kind is DictViewVar and container.kind == "keys":  # type: ignore[attr-defined]
        return cap.dict_has(container.owner, cap.key_of(item))  # type: ignore[attr-defined]
    if kind is TensorVar:
        raise Break("data-dependent-branch", "`in` on a tensor")
    if kind is ObjectVar:
        raw = cap.type_attr(container.cls, "__contains__")  # type: ignore[attr-defined]
        if isinstance(raw, types.FunctionType):
            return truth(cap, call_special(cap, container, "__contains__", [item]))
        if container.payload is not None:  # type: ignore[attr-defined]
            return contains(cap, container.payload, item)  # type: ignore[attr-defined]
    return any(items_equal(cap, item, found) for found in iterate(cap, container))


def get_item(cap: Capture, container: Tracker, index: Tracker) -> Tracker:
    """``container[index]``."""
    container, index = cap.realize(container), cap.realize(index)
    kind = type(container)
    if kind is TensorVar or (type(index) is TensorVar and kind in (ListVar, TupleVar)):
        return cap.emit("call_function", operator.getitem, [container, index], {}, operator.getitem)
    if kind in (ListVar, TupleVar):
        return _sequence_item(cap, container, index)
    if kind is DictVar:
        found = cap.dict_get(container, cap.key_of(index))  # type: ignore[arg-type]
        if found is None:
            raise cap.raise_(KeyError, _plain(cap, index))
        return found
    if kind is ConstVar:
        if isinstance(container.value, type) or not hasattr(type(container.value), "__getitem__"):  # type: ignore
            return _subscript_class(cap, container, index)  # type: ignore[arg-type]
        try:
            return evaluate(cap, operator.getitem, container.value, cap.value_of(index))  # type: ignore[attr-defined]
        except NotConst:
            raise Break("unsupported-object", f"index {describe(index)}") from None
    if kind is ObjectVar:
        raw = cap.type_attr(container.cls, "__getitem__")  # type: ignore[attr-defined]
        if isinstance(raw, types.FunctionType):
            return call_special(cap, container, "__getitem__", [index])
        if container.payload is not None:  # type: ignore[attr-defined]
            return _payload_item(cap, container, index)  # type: ignore[arg-type]
    if kind is OpaqueVar:
        raise Break(container.code, container.detail)  # type: ignore[attr-defined]
    raise Break("unsupported-object", f"indexing a {describe(container)}")


def _payload_item(cap: Capture, container: ObjectVar, index: Tracker) -> Tracker:
    missing = cap.type_attr(container.cls, "__missing__")
    payload = container.payload
    if type(payload) is DictVar and missing is not ABSENT:
        found = cap.dict_get(payload, cap.key_of(index))
        if found is not None:
            return found
        if isinstance(missing, types.FunctionType):
            return call_special(cap, container, "__missing__", [index])
        factory = container.slots.get("default_factory")
        if factory is None and container.obj is not None:
            raise Break("unsupported-object", f"a missing key of a {container.cls.__name__}")
        if factory is None or (type(factory) is ConstVar and factory.value is None):
            raise cap.raise_(KeyError, _plain(cap, index))
        value = call(cap, factory, [], {})
        cap.dict_set(payload, cap.key_of(index), value)
        return value
    assert payload is not None
    return get_item(cap, payload, index)


def _subscript_class(cap: Capture, container: ConstVar, index: Tracker) -> Tracker:
    try:
        return evaluate(cap, operator.getitem, container.value, cap.value_of(index))
    except NotConst:
        raise Break("unsupported-object", f"indexing {describe(container)}") from None


def _plain(cap: Capture, tracker: Tracker) -> Any:
    try:
        return cap.value_of(tracker)
    except NotConst:
        return describe(tracker)


def _sequence_item(cap: Capture, container: Tracker, index: Tracker) -> Tracker:
    items: list[Tracker] = container.items  # type: ignore[attr-defined]
    if type(index) is not ConstVar:
        raise Break("unsupported-object", f"index {describe(index)}")
    if isinstance(index.value, slice):
        try:
            picked = items[index.value]
        except (TypeError, ValueError) as error:
            raise Raised(cap.exception_var(error)) from None
        return ListVar(picked) if type(container) is ListVar else TupleVar(picked)
    try:
        position = operator.index(index.value)
        found = items[position]
    except (IndexError, TypeError) as error:
        name = "list" if type(container) is ListVar else "tuple"
        text = (
            f"{name} index out of range"
            if isinstance(error, IndexError)
            else (f"{name} indices must be integers or slices, not {type(index.value).__name__}")
        )
        raise cap.raise_(type(error), text) from None
    if type(found) is LazyVar:
        found = items[position] = cap.realize(found)
    return found


def set_item(cap: Capture, container: Tracker, index: Tracker, value: Tracker) -> None:
    """``container[index] = value``."""
    container, index = cap.realize(container), cap.realize(index)
    kind = type(container)
    if kind is TensorVar:
        cap.emit("call_function", operator.setitem, [container, index, value], {}, operator.setitem)
    elif kind is DictVar:
        cap.dict_set(container, cap.key_of(index), value)  # type: ignore[arg-type]
    elif kind is ListVar and type(index) is ConstVar:
        items = change_list(cap, container)  # type: ignore[arg-type]
        try:
            if isinstance(index.value, slice):
                items[index.value] = iterate(cap, value)
            else:
                items[index.value] = value
        except (IndexError, TypeError, ValueError) as error:
            raise Raised(cap.exception_var(error)) from None
    elif kind is ObjectVar:
        raw = cap.type_attr(container.cls, "__setitem__")  # type: ignore[attr-defined]
        if isinstance(raw, types.FunctionType):
            call_special(cap, container, "__setitem__", [index, value])
        elif container.payload is not None and raw is not ABSENT:  # type: ignore[attr-defined]
            set_item(cap, container.payload, index, value)  # type: ignore[attr-defined]
        else:
            raise cap.raise_(TypeError, f"'{container.cls.__name__}' object does not support item assignment")  # type: ignore
    elif kind is OpaqueVar:
        raise Break(container.code, container.detail)  # type: ignore[attr-defined]
    elif kind in (TupleVar, ConstVar):
        raise cap.raise_(
            TypeError, f"'{python_type(container).__name__}' object does not support item assignment"
        )
    else:
        raise Break("unsupported-mutation", f"item assignment to {describe(container)}")


def del_item(cap: Capture, container: Tracker, index: Tracker) -> None:
    """``del container[index]``."""
    container, index = cap.realize(container), cap.realize(index)
    kind = type(container)
    if kind is DictVar:
        if not cap.dict_del(container, cap.key_of(index)):  # type: ignore[arg-type]
            raise cap.raise_(KeyError, _plain(cap, index))
    elif kind is ListVar and type(index) is ConstVar:
        try:
            del change_list(cap, container)[index.value]  # type: ignore[arg-type]
        except (IndexError, TypeError) as error:
            raise Raised(cap.exception_var(error)) from None
    elif kind is ObjectVar:
        raw = cap.type_attr(container.cls, "__delitem__")  # type: ignore[attr-defined]
        if isinstance(raw, types.FunctionType):
            call_special(cap, container, "__delitem__", [index])
        elif container.payload is not None:  # type: ignore[attr-defined]
            del_item(cap, container.payload, index)  # type: ignore[attr-defined]
        else:
            raise cap.raise_(TypeError, f"'{container.cls.__name__}' object doesn't support item deletion")  # type: ignore
    else:
        raise Break("unsupported-mutation", f"item deletion from {describe(container)}")
