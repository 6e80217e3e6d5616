"""Rules of `operator` and of the special methods of builtin containers.

In: calls of what is named. Out: trackers with the builtins' meaning.
Always: what needs a loop over user values is a polyfill in Python, traced like user code.
"""

from __future__ import annotations

import collections
import operator

from .attributes import get_attr
from .builtin_rules import text
from .iterator_rules import reverse_iter
from .protocol import (
    BINARY,
    COMPARE,
    INPLACE,
    UNARY,
    binary,
    compare,
    contains,
    del_item,
    get_item,
    get_iter,
    inplace,
    is_same,
    length,
    payload_of,
    set_item,
    truth,
    unary,
)
from .rules import RULES, rule
from .trackers import (
    NONE,
    ConstVar,
)


def _operator_rules() -> None:
    for symbol, (fn, _, _) in BINARY.items():
        rule(fn)(lambda cap, args, kwargs, s=symbol: binary(cap, s, args[0], args[1]))
    for symbol, (fn, _) in INPLACE.items():
        rule(fn)(lambda cap, args, kwargs, s=symbol: inplace(cap, s, args[0], args[1]))
    for symbol, (fn, _, _) in COMPARE.items():
        rule(fn)(lambda cap, args, kwargs, s=symbol: compare(cap, s, args[0], args[1]))
    for symbol, (fn, _) in UNARY.items():
        rule(fn)(lambda cap, args, kwargs, s=symbol: unary(cap, s, args[0]))
    rule(operator.not_)(lambda cap, args, kwargs: ConstVar(not truth(cap, args[0])))
    rule(operator.truth)(lambda cap, args, kwargs: ConstVar(truth(cap, args[0])))
    rule(operator.getitem)(lambda cap, args, kwargs: get_item(cap, args[0], args[1]))
    rule(operator.contains)(lambda cap, args, kwargs: ConstVar(contains(cap, args[0], args[1])))
    rule(operator.is_)(lambda cap, args, kwargs: ConstVar(is_same(cap, args[0], args[1])))
    rule(operator.is_not)(lambda cap, args, kwargs: ConstVar(not is_same(cap, args[0], args[1])))
    rule(operator.setitem)(lambda cap, args, kwargs: set_item(cap, *args) or NONE)
    rule(operator.delitem)(lambda cap, args, kwargs: del_item(cap, *args) or NONE)


_operator_rules()


def _special_method_rules() -> None:
    """``list.__len__`` and kin, called as methods (for example through ``super()``)."""
    for cls in (list, tuple, dict):
        rule(cls.__len__)(lambda cap, args, kwargs: ConstVar(length(cap, payload_of(args[0]))))
        rule(cls.__getitem__)(lambda cap, args, kwargs: get_item(cap, payload_of(args[0]), args[1]))
        rule(cls.__contains__)(
            lambda cap, args, kwargs: ConstVar(contains(cap, payload_of(args[0]), args[1]))
        )
    for cls in (list, dict):
        rule(cls.__setitem__)(
            lambda cap, args, kwargs: set_item(cap, payload_of(args[0]), args[1], args[2]) or NONE
        )
        rule(cls.__delitem__)(lambda cap, args, kwargs: del_item(cap, payload_of(args[0]), args[1]) or NONE)
    for method in ("__setitem__", "__delitem__"):
        descriptor = getattr(collections.OrderedDict, method)
        if descriptor not in RULES:
            rule(descriptor)(RULES[getattr(dict, method)])
    rule(object.__eq__)(
        lambda cap, args, kwargs: (
            ConstVar(True) if is_same(cap, args[0], args[1]) else ConstVar(NotImplemented)
        )
    )
    rule(object.__ne__)(
        lambda cap, args, kwargs: ConstVar(not truth(cap, compare(cap, "==", args[0], args[1])))
    )
    rule(set.__len__)(lambda cap, args, kwargs: ConstVar(length(cap, payload_of(args[0]))))


_special_method_rules()

_BUILTIN_CLASSES: tuple[type, ...] = (
    *(str, int, float, bool, bytes, complex, list, tuple, dict, set, frozenset, range, slice),
    *(collections.OrderedDict, collections.deque, type({}.keys()), type({}.values()), type({}.items())),
)


def _methods_of_builtin_classes() -> None:
    """What hands out parts of the object itself: iterators and attributes."""
    for cls in _BUILTIN_CLASSES:
        for name, handler in (
            ("__iter__", lambda cap, args, kwargs: get_iter(cap, payload_of(args[0]))),
            ("__reversed__", lambda cap, args, kwargs: reverse_iter(cap, payload_of(args[0]))),
            ("__getattribute__", lambda cap, args, kwargs: get_attr(cap, args[0], text(cap, args[1]))),
        ):
            descriptor = cls.__dict__.get(name)
            if descriptor is not None and descriptor not in RULES:
                rule(descriptor)(handler)


_methods_of_builtin_classes()
