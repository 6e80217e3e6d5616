"""Rules of builtins, operator, functools, itertools and object's own methods.

In: calls of the builtins named. Out: trackers with the builtins' meaning.
Always: what needs a loop over user values is a polyfill in Python, traced like user code.
"""

from __future__ import annotations

import builtins
import collections
import copyreg
import functools
import inspect
import itertools
import operator
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import torch

from ..guards import Const
from . import polyfills
from .attributes import (
    del_attr,
    find_attr,
    get_attr,
    has_attr,
    object_attr,
    object_del_attr,
    object_set_attr,
    python_type,
    set_attr,
)
from .breaks import Break, Exhausted, Raised
from .calls import call, call_special, construct, known_object, new_object, type_call
from .capture import Capture, NotConst, describe
from .frame import CallIter, GeneratorVar, SeqIter
from .protocol import (
    BINARY,
    COMPARE,
    INPLACE,
    UNARY,
    binary,
    compare,
    contains,
    del_item,
    evaluate,
    get_item,
    get_iter,
    inplace,
    is_same,
    iterate,
    length,
    next_item,
    set_item,
    truth,
    unary,
)
from .rules import rule
from .trackers import (
    NONE,
    CellVar,
    ConstVar,
    DictVar,
    FunctionVar,
    IdVar,
    ListVar,
    MethodVar,
    ObjectVar,
    OpaqueVar,
    SetVar,
    SuperVar,
    TensorVar,
    Tracker,
    TupleVar,
)

Args = list[Tracker]
Kwargs = dict[str, Tracker]


def text(cap: Capture, tracker: Tracker) -> str:
    value = cap.value_of(tracker)
    if not isinstance(value, str):
        raise cap.raise_(TypeError, "attribute name must be string")
    return value


# --- attributes and types -------------------------------------------------------------------------------------------------


@rule(getattr)
def _getattr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    name = text(cap, args[1])
    if len(args) < 3:
        return get_attr(cap, args[0], name)
    try:
        found = find_attr(cap, args[0], name)
    except Raised as raised:
        if not issubclass(python_type(raised.value), AttributeError):
            raise
        found = None
    return found if found is not None else cap.realize(args[2])


@rule(hasattr)
def _hasattr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(has_attr(cap, args[0], text(cap, args[1])))


@rule(setattr)
def _setattr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    set_attr(cap, args[0], text(cap, args[1]), args[2])
    return NONE


@rule(delattr)
def _delattr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    del_attr(cap, args[0], text(cap, args[1]))
    return NONE


def _own_object(cap: Capture, tracker: Tracker) -> ObjectVar:
    tracker = cap.realize(tracker)
    if type(tracker) is not ObjectVar:
        raise Break("attribute-mutation", f"object method on a {describe(tracker)}")
    return tracker


@rule(object.__setattr__)
def _object_setattr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    object_set_attr(cap, _own_object(cap, args[0]), text(cap, args[1]), args[2])
    return NONE


@rule(object.__delattr__)
def _object_delattr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    object_del_attr(cap, _own_object(cap, args[0]), text(cap, args[1]))
    return NONE


@rule(object.__getattribute__)
def _object_getattribute(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    obj, name = cap.realize(args[0]), text(cap, args[1])
    if type(obj) is not ObjectVar:
        return get_attr(cap, obj, name)
    found = object_attr(cap, obj, name)
    if found is None:
        raise cap.raise_(AttributeError, f"'{obj.cls.__name__}' object has no attribute '{name}'")
    return found


@rule(object.__init__)
def _object_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return NONE


@rule(object.__init_subclass__)
def _object_init_subclass(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return NONE


@rule(BaseException.__init__)
def _exception_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    _own_object(cap, args[0]).slots["args"] = TupleVar(args[1:])
    return NONE


@rule(object.__new__)
def _object_new(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return new_object(cap, cap.value_of(args[0]), [])


@rule(tuple.__new__, dict.__new__, list.__new__, BaseException.__new__)
def _container_new(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    cls = cap.value_of(args[0])
    if cls is tuple:
        return TupleVar(iterate(cap, args[1])) if len(args) > 1 else TupleVar([])
    return new_object(cap, cls, args[1:])


@rule(type.__call__)
def _type_call(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return type_call(cap, cap.value_of(args[0]), args[1:], kwargs)


@rule(type)
def _type(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if len(args) != 1:
        raise Break("unsupported-call", "a class made in the captured code")
    return (
        get_attr(cap, args[0], "__class__")
        if type(cap.realize(args[0])) is ConstVar
        else cap.from_python(python_type(cap.realize(args[0])))
    )


@rule(isinstance)
def _isinstance(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(_instance_of(cap, cap.realize(args[0]), known_object(cap, args[1])))


def _instance_of(cap: Capture, value: Tracker, cls: Any) -> bool:
    if isinstance(cls, tuple):
        return any(_instance_of(cap, value, c) for c in cls)
    if isinstance(cls, types.UnionType) or typing.get_origin(cls) is typing.Union:
        return any(_instance_of(cap, value, c) for c in typing.get_args(cls))
    if type(value) is ConstVar:
        return isinstance(value.value, cls)
    if type(value) is TensorVar:
        if cls in (torch.nn.Parameter, torch.nn.Buffer):
            return value.cls is cls
        return issubclass(value.cls, cls) or (cls in _TENSOR_TYPES and isinstance(value.fake, cls))
    if type(value) is OpaqueVar:
        return isinstance(value.value, cls)
    found = python_type(value)
    check = cap.type_attr(type(cls), "__instancecheck__")
    if isinstance(check, types.FunctionType) and not check.__module__.startswith(("abc", "typing", "torch")):
        return truth(
            cap, call_special(cap, ConstVar(cls, Const(cls, cls.__name__)), "__instancecheck__", [value])
        )
    if type(value) is ObjectVar and value.obj is not None and check is not type.__instancecheck__:
        return isinstance(value.obj, cls)
    if issubclass(found, cls):
        return True
    if type(value) is not ObjectVar or cap.type_attr(found, "__class__") is object.__dict__["__class__"]:
        return False
    claimed = cap.value_of(get_attr(cap, value, "__class__"))
    return isinstance(claimed, type) and issubclass(claimed, cls)


_TENSOR_TYPES = tuple(
    t
    for t in vars(torch).values()
    if isinstance(t, type) and t.__module__ == "torch" and t.__name__.endswith("Tensor")
)


@rule(issubclass)
def _issubclass(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return evaluate(cap, issubclass, cap.value_of(args[0]), cap.value_of(args[1]))


@rule(callable)
def _callable(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    value = cap.realize(args[0])
    if type(value) is ConstVar:
        return ConstVar(callable(value.value))
    return ConstVar(callable(python_type(value)) and hasattr(python_type(value), "__call__"))


@rule(super)
def _super(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if args:
        return SuperVar(cap.value_of(args[0]), cap.realize(args[1]))
    frame = cap.frames[-1]
    cls = cap.read_cell(frame.cells["__class__"])
    first = frame.code.co_varnames[0]
    self_var = frame.locals.get(first)
    if self_var is None:
        self_var = cap.read_cell(frame.cells[first])
    return SuperVar(cap.value_of(cls), cap.realize(self_var))  # type: ignore[arg-type]


@rule(super.__init__)
def _super_init(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    raise Break("unsupported-call", "super().__init__ called as a function")


@rule(sys.exc_info)
def _exc_info(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    error = cap.handled()
    if error is None:
        raise Break("frame-introspection", "sys.exc_info() outside of the captured handlers")
    return TupleVar([cap.from_python(python_type(error)), error, NONE])


@rule(BaseException.with_traceback)
def _with_traceback(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return _own_object(cap, args[0])


@rule(id)
def _id(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return IdVar(cap.realize(args[0]))


@rule(object.__reduce_ex__)
def _reduce_ex(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """What ``copy`` and ``pickle`` ask of a plain object: how to make it again."""
    obj = cap.realize(args[0])
    plain = type(obj) is ObjectVar and obj.payload is None and not obj.slots
    if not plain or cap.type_attr(obj.cls, "__reduce__") is not object.__reduce__:  # type: ignore[attr-defined]
        raise Break("unsupported-call", f"copy of a {describe(obj)}")
    assert type(obj) is ObjectVar
    get_state = cap.type_attr(obj.cls, "__getstate__")
    if isinstance(get_state, types.FunctionType):
        state = call_special(cap, obj, "__getstate__", [])
    else:
        cap.complete(obj.attrs)
        state = DictVar(dict(obj.attrs.known)) if obj.attrs.known else NONE
    new = ConstVar(copyreg.__newobj__, Const(copyreg.__newobj__, "copyreg_newobj"))
    return TupleVar([new, TupleVar([ConstVar(obj.cls, Const(obj.cls, obj.cls.__name__))]), state, NONE, NONE])


@rule(vars)
def _vars(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if not args:
        raise Break("frame-introspection", "vars()")
    return get_attr(cap, args[0], "__dict__")


def _breaking(code: str, *targets: Any) -> None:
    for target in targets:
        name = getattr(target, "__qualname__", str(target))

        @rule(target)
        def handler(cap: Capture, args: Args, kwargs: Kwargs, name: str = name) -> Tracker:
            raise Break(code, f"call of {name}")


_breaking("print-or-io", print, input, open)
_breaking("frame-introspection", locals, globals, dir, eval, exec, compile)
_breaking("dynamic-import", builtins.__import__)


# --- operator -----------------------------------------------------------------------------------------------------------------


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
        rule(cls.__len__)(lambda cap, args, kwargs: ConstVar(length(cap, _payload(args[0]))))
        rule(cls.__getitem__)(lambda cap, args, kwargs: get_item(cap, _payload(args[0]), args[1]))
        rule(cls.__contains__)(lambda cap, args, kwargs: ConstVar(contains(cap, _payload(args[0]), args[1])))
        rule(cls.__iter__)(lambda cap, args, kwargs: get_iter(cap, _payload(args[0])))
        rule(cls.__eq__)(lambda cap, args, kwargs: compare(cap, "==", _payload(args[0]), _payload(args[1])))
        rule(cls.__ne__)(lambda cap, args, kwargs: compare(cap, "!=", _payload(args[0]), _payload(args[1])))
    for cls in (list, dict):
        rule(cls.__setitem__)(
            lambda cap, args, kwargs: set_item(cap, _payload(args[0]), args[1], args[2]) or NONE
        )
        rule(cls.__delitem__)(lambda cap, args, kwargs: del_item(cap, _payload(args[0]), args[1]) or NONE)
    for method in ("__iter__", "__eq__", "__ne__", "__setitem__", "__delitem__"):
        descriptor = getattr(collections.OrderedDict, method)
        if descriptor not in _registered():
            rule(descriptor)(_registered()[getattr(dict, method)])
    rule(object.__eq__)(
        lambda cap, args, kwargs: (
            ConstVar(True) if is_same(cap, args[0], args[1]) else ConstVar(NotImplemented)
        )
    )
    rule(object.__ne__)(
        lambda cap, args, kwargs: ConstVar(not truth(cap, compare(cap, "==", args[0], args[1])))
    )
    rule(set.__contains__)(lambda cap, args, kwargs: ConstVar(contains(cap, _payload(args[0]), args[1])))
    rule(set.__len__)(lambda cap, args, kwargs: ConstVar(length(cap, _payload(args[0]))))
    rule(set.__iter__)(lambda cap, args, kwargs: get_iter(cap, _payload(args[0])))


def _registered() -> dict[Any, Any]:
    from .rules import RULES

    return RULES


def _payload(tracker: Tracker) -> Tracker:
    if type(tracker) is ObjectVar and tracker.payload is not None:
        return tracker.payload
    return tracker


_special_method_rules()


# --- numbers and text -------------------------------------------------------------------------------------------------------


@rule(round)
def _round(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    value = cap.realize(args[0])
    if type(value) is TensorVar:
        return cap.emit("call_method", "round", args, kwargs, lambda t, *a, **k: t.round(*a, **k))
    if type(value) is ConstVar:
        return evaluate(
            cap, round, *[cap.value_of(a) for a in args], **{k: cap.value_of(v) for k, v in kwargs.items()}
        )
    return call_special(cap, value, "__round__", args[1:])


@rule(len)
def _len(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(length(cap, args[0]))


@rule(bool)
def _bool(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(truth(cap, args[0]) if args else False)


def _number(cls: type, special: str) -> None:
    @rule(cls)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        if args and type(cap.realize(args[0])) is TensorVar:
            raise Break("tensor-item", f"{cls.__name__}() of a tensor")
        if args and type(cap.realize(args[0])) is ObjectVar:
            return call_special(cap, cap.realize(args[0]), special, [])
        try:
            return evaluate(
                cap, cls, *[cap.value_of(a) for a in args], **{k: cap.value_of(v) for k, v in kwargs.items()}
            )
        except NotConst:
            raise Break(
                "unsupported-builtin", f"{cls.__name__}() of a value that is not a constant"
            ) from None


for _cls, _special in ((int, "__int__"), (float, "__float__"), (complex, "__complex__")):
    _number(_cls, _special)


# --- iterators -----------------------------------------------------------------------------------------------------------------


@rule(iter)
def _iter(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if len(args) == 2:
        raise Break("unsupported-builtin", "iter(callable, sentinel)")
    return get_iter(cap, args[0])


@rule(next)
def _next(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    try:
        return next_item(cap, args[0])
    except Exhausted as end:
        if len(args) > 1:
            return cap.realize(args[1])
        raise _stop_iteration(cap, end) from None


def _stop_iteration(cap: Capture, end: Exhausted) -> Raised:
    """The StopIteration that carries what a generator returned."""
    raised = cap.raise_(StopIteration)
    if end.value is not None:
        error = raised.value
        assert type(error) is ObjectVar
        error.slots["value"] = end.value
        if not is_same(cap, end.value, NONE):
            error.slots["args"] = TupleVar([end.value])
    return raised


@rule(range)
def _range(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    try:
        return evaluate(cap, range, *[cap.value_of(a) for a in args])
    except NotConst:
        raise Break("tensor-item", "range() of a value that is not a constant") from None


@rule(enumerate)
def _enumerate(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    start = kwargs.get("start") or (args[1] if len(args) > 1 else ConstVar(0))

    def step(cap: Capture, this: CallIter) -> Tracker:
        item = next_item(cap, this.parts[0])
        count = this.extra["count"]
        this.extra["count"] += 1
        return TupleVar([ConstVar(count), item])

    return CallIter(enumerate, [get_iter(cap, args[0])], step, {"count": cap.value_of(start)})


@rule(zip)
def _zip(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    strict = "strict" in kwargs and truth(cap, kwargs["strict"])

    def step(cap: Capture, this: CallIter) -> Tracker:
        items: Args = []
        for index, part in enumerate(this.parts):
            try:
                items.append(next_item(cap, part))
            except Exhausted:
                if strict:
                    _check_strict(cap, this.parts, index)
                raise
        if not items:
            raise Exhausted
        return TupleVar(items)

    return CallIter(zip, [get_iter(cap, arg) for arg in args], step, {"strict": strict})


def _check_strict(cap: Capture, parts: Args, index: int) -> None:
    if index > 0:
        plural = "s 1-" if index > 1 else " "
        raise cap.raise_(ValueError, f"zip() argument {index + 1} is shorter than argument{plural}{index}")
    for later, part in enumerate(parts[1:], 1):
        try:
            next_item(cap, part)
        except Exhausted:
            continue
        plural = "s 1-" if later > 1 else " "
        raise cap.raise_(ValueError, f"zip() argument {later + 1} is longer than argument{plural}{later}")


@rule(map)
def _map(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    def step(cap: Capture, this: CallIter) -> Tracker:
        return call(cap, this.parts[0], [next_item(cap, part) for part in this.parts[1:]], {})

    return CallIter(map, [args[0], *[get_iter(cap, arg) for arg in args[1:]]], step)


@rule(filter)
def _filter(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    def step(cap: Capture, this: CallIter) -> Tracker:
        fn = this.parts[0]
        while True:
            item = next_item(cap, this.parts[1])
            keep = item if type(fn) is ConstVar and fn.value is None else call(cap, fn, [item], {})
            if truth(cap, keep):
                return item

    return CallIter(filter, [cap.realize(args[0]), get_iter(cap, args[1])], step)


@rule(reversed)
def _reversed(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    value = cap.realize(args[0])
    if type(value) is ObjectVar and isinstance(cap.type_attr(value.cls, "__reversed__"), types.FunctionType):
        return call_special(cap, value, "__reversed__", [])
    items = iterate(cap, value)[::-1]
    return SeqIter(items, TupleVar(items))


@rule(sorted)
def _sorted(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ListVar(sort_items(cap, iterate(cap, args[0]), kwargs))


def sort_items(cap: Capture, items: Args, kwargs: Kwargs) -> Args:
    """The items in sorted order, as ``list.sort(key=, reverse=)`` puts them."""
    key = cap.realize(kwargs.get("key", NONE))
    reverse = "reverse" in kwargs and truth(cap, kwargs["reverse"])
    ranks = items if is_same(cap, key, NONE) else [call(cap, key, [item], {}) for item in items]
    try:
        values = [cap.value_of(rank) for rank in ranks]
    except NotConst:
        result = call(cap, ConstVar(polyfills.sort_), [ListVar(list(items)), key, ConstVar(reverse)], {})
        return result.items  # type: ignore[attr-defined, no-any-return]
    try:
        order = sorted(range(len(items)), key=values.__getitem__, reverse=reverse)
    except Exception as error:
        raise Raised(cap.exception_var(error)) from error
    return [items[i] for i in order]


def _polyfilled(target: Any, replacement: Callable[..., Any]) -> None:
    @rule(target)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        return call(cap, ConstVar(replacement), args, kwargs)


for _target, _replacement in (
    (any, polyfills.any_),
    (all, polyfills.all_),
    (sum, polyfills.sum_),
    (functools.reduce, polyfills.reduce_),
    (itertools.chain, polyfills.chain_),
    (itertools.product, polyfills.product_),
    (itertools.islice, polyfills.islice_),
    (itertools.accumulate, polyfills.accumulate_),
    (itertools.zip_longest, polyfills.zip_longest_),
    (itertools.starmap, polyfills.starmap_),
    (itertools.pairwise, polyfills.pairwise_),
):
    _polyfilled(_target, _replacement)


@rule(itertools.chain.__dict__["from_iterable"])
def _chain_from_iterable(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return call(cap, ConstVar(polyfills.chain_from_iterable), args[1:], kwargs)


@rule(itertools.repeat)
def _repeat(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if len(args) == 2 or "times" in kwargs:
        return call(
            cap, ConstVar(polyfills.repeat_), [args[0], args[1] if len(args) == 2 else kwargs["times"]], {}
        )
    return CallIter(itertools.repeat, [args[0]], lambda cap, this: this.parts[0])


@rule(itertools.count)
def _count(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    def step(cap: Capture, this: CallIter) -> Tracker:
        value = this.extra["count"]
        this.extra["count"] = value + this.extra["step"]
        return ConstVar(value)

    start = kwargs.get("start") or (args[0] if args else ConstVar(0))
    stride = kwargs.get("step") or (args[1] if len(args) > 1 else ConstVar(1))
    return CallIter(itertools.count, [], step, {"count": cap.value_of(start), "step": cap.value_of(stride)})


def _extreme(target: Any, replacement: Callable[..., Any]) -> None:
    @rule(target)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        items = args[0] if len(args) == 1 else TupleVar(list(args))
        key = cap.realize(kwargs.get("key", NONE))
        missing = ConstVar(polyfills._MISSING)
        found = TupleVar(iterate(cap, items))
        if is_same(cap, key, NONE) and found.items and all(type(item) is ConstVar for item in found.items):
            values = [cap.value_of(item) for item in found.items]
            best = cap.value_of(evaluate(cap, lambda: target(range(len(values)), key=values.__getitem__)))
            return found.items[best]
        return call(cap, ConstVar(replacement), [found, key, kwargs.get("default", missing), missing], {})


_extreme(min, polyfills.min_of)
_extreme(max, polyfills.max_of)


# --- containers made by their classes ---------------------------------------------------------------------------------------


@rule(list)
def _list(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ListVar(list(iterate(cap, args[0])) if args else [])


@rule(tuple)
def _tuple(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return TupleVar(list(iterate(cap, args[0])) if args else [])


@rule(set)
def _set(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return SetVar({cap.key_of(item): item for item in (iterate(cap, args[0]) if args else [])})


@rule(frozenset)
def _frozenset(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return SetVar({cap.key_of(item): item for item in (iterate(cap, args[0]) if args else [])}, frozenset)


@rule(slice)
def _slice(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    from .opcodes import make_slice

    return make_slice(cap, args)


@rule(torch.Size)
def _size(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    try:
        return evaluate(cap, torch.Size, *[cap.value_of(TupleVar(iterate(cap, a))) for a in args])
    except NotConst:
        raise Break("tensor-item", "torch.Size of values that are not constants") from None


@rule(types.CellType)
def _cell(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return CellVar(args[0] if args else None)


@rule(functools.partial)
def _partial(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    made = ObjectVar(functools.partial)
    made.slots = {"func": cap.realize(args[0]), "args": TupleVar(args[1:]), "keywords": DictVar(dict(kwargs))}
    return made


@rule(types.MethodType)
def _method_type(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return MethodVar(cap.realize(args[0]), cap.realize(args[1]))


@rule(types.FunctionType.__get__)
def _function_get(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    obj = cap.realize(args[1])
    return args[0] if is_same(cap, obj, NONE) else MethodVar(args[0], obj)


@rule(functools.update_wrapper)
def _update_wrapper(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    wrapper, wrapped = cap.realize(args[0]), cap.realize(args[1])
    if type(wrapper) is FunctionVar and len(args) == 2 and not kwargs:
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            found = find_attr(cap, wrapped, name)
            if found is not None:
                wrapper.attrs.known[name] = found
        own = find_attr(cap, wrapped, "__dict__")
        if type(own) is DictVar:
            wrapper.attrs.known.update(cap.complete(own).known)
        wrapper.attrs.known["__wrapped__"] = wrapped
        return wrapper
    raise Break("unsupported-call", "functools.update_wrapper")


@rule(inspect.signature)
def _signature(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    target = cap.realize(args[0])
    bound = type(target) is MethodVar
    function = target.func if bound else target  # type: ignore[attr-defined]
    if type(function) is not ConstVar or not isinstance(function.value, types.FunctionType):
        raise Break("unsupported-call", f"inspect.signature of a {describe(target)}")
    real = inspect.signature(types.MethodType(function.value, object()) if bound else function.value)
    made = ObjectVar(inspect.Signature)
    parameters = {name: cap.wrap(p, Const(p, f"parameter_{name}")) for name, p in real.parameters.items()}
    made.slots = {
        "_parameters": DictVar(parameters, cls=collections.OrderedDict),
        "_return_annotation": cap.from_python(real.return_annotation),
    }
    return made


@rule(types.MappingProxyType)
def _mapping_proxy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return cap.realize(args[0])


# --- generators -----------------------------------------------------------------------------------------------------------------


@rule(types.GeneratorType.__next__, types.GeneratorType.send)
def _generator_send(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    generator = cap.realize(args[0])
    if type(generator) is not GeneratorVar:
        raise Break("generator", f"a generator made outside ({describe(generator)})")
    try:
        return generator.resume(cap, cap.realize(args[1]) if len(args) > 1 else NONE)
    except Exhausted as end:
        raise _stop_iteration(cap, end) from None


@rule(types.GeneratorType.throw)
def _generator_throw(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    generator = cap.realize(args[0])
    if type(generator) is not GeneratorVar:
        raise Break("generator", f"a generator made outside ({describe(generator)})")
    error = cap.realize(args[2] if len(args) > 2 and not is_same(cap, args[2], NONE) else args[1])
    if type(error) is ConstVar:
        error = construct(cap, error.value, [], {})
    try:
        return generator.throw(cap, error)
    except Exhausted as end:
        raise _stop_iteration(cap, end) from None


@rule(types.GeneratorType.close)
def _generator_close(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    generator = cap.realize(args[0])
    if type(generator) is not GeneratorVar:
        raise Break("generator", f"a generator made outside ({describe(generator)})")
    generator.close(cap, cap.exception_var(GeneratorExit()))
    return NONE
