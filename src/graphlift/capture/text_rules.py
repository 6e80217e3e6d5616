"""Rules of the builtins that make text of objects: str, repr, ascii, format; and hash.

In: calls of these builtins. Out: the text as a constant, by the object's own methods where it has them.
Always: text that depends on values not known while capturing is a `Break`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import reprlib
import string
import types
from typing import Any

import torch

from ..guards import Const
from . import polyfills
from .attributes import get_attr, is_python, python_type, says_itself
from .breaks import Break
from .calls import CODE_RULES, LED, answer, ask, call, call_special, hash_by_method
from .capture import Capture, NotConst
from .mirror import run
from .protocol import evaluate, is_same, iterate, payload_of
from .protocol.comparison import OPERATORS
from .reordered import is_late, join, show, show_number, varies
from .rules import rule
from .trackers import (
    Args,
    ConstVar,
    DequeVar,
    DictVar,
    Kwargs,
    ListVar,
    ObjectVar,
    OpaqueVar,
    PrivateVar,
    SetVar,
    SizeVar,
    TensorVar,
    Tracker,
    TupleVar,
    describe,
)


def _operate(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    """An operator on what nothing is known of; texts are joined."""
    if symbol == "+" and python_type(left) is str and python_type(right) is str:
        with contextlib.suppress(NotConst):
            return join(cap, [left, right])
    opaque = left if type(left) is OpaqueVar else right
    assert type(opaque) is OpaqueVar
    raise Break(opaque.code, opaque.detail)


OPERATORS[OpaqueVar] = _operate


@rule(str)
def _str(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if not args:
        return ConstVar("")
    if len(args) > 1:
        return run(cap, str, args, kwargs)
    obj = cap.realize(args[0])
    if type(obj) is TensorVar:
        return show(cap, str, obj)
    if is_late(cap, obj):
        return obj
    if varies(cap, obj):
        return show_number(cap, str, obj)
    if says_itself(cap, obj, "__str__"):
        return _text_of(cap, call_special(cap, obj, "__str__", []), "__str__")
    if type(obj) is ObjectVar:
        raw = cap.type_attr(obj.cls, "__str__")
        if isinstance(raw, types.WrapperDescriptorType) and raw.__objclass__ in _PLAIN_TEXT_EXCEPTIONS:
            return _exception_text(cap, obj, raw)
        if raw is BaseExceptionGroup.__str__:
            return call(cap, ConstVar(polyfills.group_text), [obj], {})
        if isinstance(raw, types.FunctionType):
            return _text_of(cap, call_special(cap, obj, "__str__", []), "__str__")
        shown = cap.type_attr(obj.cls, "__repr__")
        if raw is object.__str__ and isinstance(shown, types.FunctionType):
            return _text_of(cap, call_special(cap, obj, "__repr__", []), "__str__")
        if raw is object.__str__ and shown in _OWN_TEXTS:
            return _repr(cap, args, kwargs)
    return _by_content(cap, str, args, "unsupported-builtin", f"str() of a {describe(args[0])}")


def _by_content(cap: Capture, fn: Any, args: Args, code: str, detail: str) -> Tracker:
    """Text made of the text of what is inside; an object that shows its address is a `Break`."""
    try:
        return evaluate(cap, fn, *[_whole_value(cap, fn, a) for a in args])
    except NotConst:
        pass
    obj = cap.realize(args[0])
    if type(obj) is ObjectVar and issubclass(obj.cls, BaseException) and obj.cls.__module__ == "builtins":
        try:
            values = [cap.value_of(item) for item in iterate(cap, get_attr(cap, obj, "args"))]
            if issubclass(obj.cls, OSError) and len(values) == 2:
                values.append(cap.value_of(get_attr(cap, obj, "filename")))
            return evaluate(cap, fn, obj.cls(*values))
        except NotConst:
            raise Break(code, detail) from None
    if type(obj) is ObjectVar and obj.payload is not None and obj.cls is not types.MappingProxyType:
        method = cap.type_attr(obj.cls, "__str__" if fn is str else "__repr__")
        if method is object.__str__:
            method = cap.type_attr(obj.cls, "__repr__")
        own = fn in (str, repr) and isinstance(method, types.WrapperDescriptorType)
        return _text_inside(cap, method if own else fn, args)
    if type(obj) in _CONTAINERS:
        return _text_inside(cap, fn, args)
    raise Break(code, detail)


def _text_inside(cap: Capture, fn: Any, args: Args) -> Tracker:
    """The text that a builtin class makes of a container; short where it is inside itself."""
    obj = cap.realize(args[0])
    key = 0, id(obj)
    if key in cap.shown:
        return ConstVar(_SHORT.get(type(payload_of(obj)), "(...)"))
    cap.shown.add(key)
    try:
        return run(cap, fn, args, {})
    finally:
        cap.shown.discard(key)


_SHORT = {ListVar: "[...]", DictVar: "{...}"}
_CONTAINERS = (ListVar, TupleVar, DictVar, SetVar, DequeVar, PrivateVar)


#: Classes whose `__str__` shows the arguments and nothing else (NameError's knows of suggestions only in tracebacks).
_PLAIN_TEXT_EXCEPTIONS = (BaseException, KeyError, NameError, AttributeError)


def _exception_text(cap: Capture, error: ObjectVar, how: Any) -> Tracker:
    """``str()`` of an exception: its only argument, or all of them as a tuple (KeyError shows the repr)."""
    items = iterate(cap, get_attr(cap, error, "args"))
    if not items:
        return ConstVar("")
    shown = items[0] if len(items) == 1 else TupleVar(items)
    return call(cap, ConstVar(repr if len(items) == 1 and how is KeyError.__str__ else str), [shown], {})


#: Text of instances of subclasses of containers that names the class.
_OWN_TEXTS: dict[Any, Any] = {
    collections.defaultdict.__repr__: polyfills.defaultdict_text,
    collections.OrderedDict.__repr__: polyfills.ordered_text,
    set.__repr__: polyfills.set_text,
    frozenset.__repr__: polyfills.set_text,
}


def _own_text(method: Any, polyfill: Any) -> None:
    @rule(method)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        known = type(cap.realize(args[0])) is ObjectVar
        return call(cap, ConstVar(polyfill), args, {}) if known else run(cap, method, args, kwargs)


for _method, _polyfill in _OWN_TEXTS.items():
    _own_text(_method, _polyfill)


@rule(object.__str__)
def _object_str(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return _repr(cap, args, kwargs)


def _format_method(cls: type) -> None:
    """``__format__`` of a builtin class, which without a specification is ``str()``, as a subclass may have it."""
    method = cls.__format__

    @rule(method)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        obj = cap.realize(args[0])
        if type(obj) is ObjectVar and is_same(cap, args[1], ConstVar("")):
            return _str(cap, [obj], {})
        if type(obj) is ObjectVar and cls is object and python_type(args[1]) is str:
            what = f"unsupported format string passed to {obj.cls.__name__}.__format__"
            raise cap.raise_(TypeError, what)
        return run(cap, method, args, kwargs)


for _cls in (object, int, float, complex, str):
    _format_method(_cls)


def _text_of(cap: Capture, result: Tracker, method: str) -> Tracker:
    if is_late(cap, result):
        return result
    if not isinstance(cap.value_of(result), str):
        raise cap.raise_(TypeError, f"{method} returned non-string (type {python_type(result).__name__})")
    return result


def _formatted(cap: Capture, result: Tracker) -> Tracker:
    if not is_late(cap, result) and not issubclass(python_type(cap.realize(result)), str):
        raise cap.raise_(
            TypeError, f"__format__ must return a str, not {python_type(cap.realize(result)).__name__}"
        )
    return result


#: What a builtin asks a constant by.
_ASKS = {
    str: ("__str__", "__repr__"),
    repr: ("__repr__",),
    format: ("__format__", "__str__"),
    hash: ("__hash__",),
}


def _whole_value(cap: Capture, fn: Any, tracker: Tracker) -> Any:
    """The value of a constant whose text does not depend on code of the user's."""
    tracker = cap.realize(tracker)
    if says_itself(cap, tracker, *_ASKS[fn]):
        raise NotConst
    if type(tracker) is ObjectVar and cap.type_attr(tracker.cls, "__repr__") is not tuple.__repr__:
        raise NotConst
    return cap.value_of(tracker)


@rule(repr)
def _repr(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    obj = cap.realize(args[0])
    if type(obj) is TensorVar:
        return show(cap, repr, obj)
    if varies(cap, obj):
        return show_number(cap, repr, obj)
    if says_itself(cap, obj, "__repr__") or (type(obj) is ObjectVar and is_python(cap, obj, "__repr__")):
        return _text_of(cap, call_special(cap, obj, "__repr__", []), "__repr__")
    own = _OWN_TEXTS.get(cap.type_attr(obj.cls, "__repr__")) if type(obj) is ObjectVar else None
    if own is not None:
        return call(cap, ConstVar(own), [obj], {})
    if type(obj) is ObjectVar and cap.type_attr(obj.cls, "__repr__") is BaseException.__repr__:
        items = iterate(cap, get_attr(cap, obj, "args"))
        values = [cap.value_of(call(cap, ConstVar(repr), [item], {})) for item in items]
        return ConstVar(f"{obj.cls.__name__}({', '.join(values)})")
    return _by_content(cap, repr, [obj], "unsupported-builtin", f"repr() of a {describe(obj)}")


def _once(cap: Capture, fn: ConstVar, args: Args, kwargs: Kwargs) -> Tracker:
    """The `__repr__` that `reprlib.recursive_repr` or `dataclass` wraps: that of an object inside itself is short."""
    wrapper, source = fn.value, fn.source or Const(fn.value, fn.value.__qualname__)
    inside = {
        name: cap.read_cell(cap.wrap_cell_of(wrapper, source, index))
        for index, name in enumerate(wrapper.__code__.co_freevars)
        if name != "repr_running"
    }
    key = id(wrapper), id(cap.realize(args[0]))
    if key in cap.shown:
        return inside.get("fillvalue") or ConstVar("...")
    cap.shown.add(key)
    try:
        return call(cap, inside["user_function"], args, kwargs)  # type: ignore[arg-type]
    finally:
        cap.shown.discard(key)


for _make in (reprlib.recursive_repr(), getattr(dataclasses, "_recursive_repr", None)):
    if _make is not None:
        CODE_RULES[_make(lambda self: "").__code__] = _once


@rule(ascii)
def _ascii(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return evaluate(
        cap,
        lambda text: text.encode("ascii", "backslashreplace").decode(),
        cap.value_of(_repr(cap, args, kwargs)),
    )


@rule(format)
def _format(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    obj = cap.realize(args[0])
    spec = cap.value_of(args[1]) if len(args) > 1 else ""
    if type(spec) is not str:
        return run(cap, format, args, kwargs)
    if type(obj) is TensorVar and _formats(obj, spec):
        return show(cap, format, obj, spec)
    if varies(cap, obj) and _formats(obj, spec):
        return show_number(cap, format, obj, spec)
    if is_late(cap, obj) and not spec:
        return obj
    if says_itself(cap, obj, "__format__"):
        return _formatted(cap, call_special(cap, obj, "__format__", [ConstVar(spec)]))
    if (
        says_itself(cap, obj, "__str__")
        and cap.type_attr(python_type(obj), "__format__") is enum.Enum.__format__
    ):
        return evaluate(cap, str.__format__, cap.value_of(_str(cap, [obj], {})), spec)
    if type(obj) is ObjectVar:
        raw = cap.type_attr(obj.cls, "__format__")
        if isinstance(raw, types.FunctionType):
            return _formatted(cap, call_special(cap, obj, "__format__", [ConstVar(spec)]))
        if raw is object.__format__:
            if spec:
                raise cap.raise_(
                    TypeError, f"unsupported format string passed to {obj.cls.__name__}.__format__"
                )
            return _str(cap, [obj], {})
    return _by_content(
        cap, format, [obj, ConstVar(spec)], "unsupported-call", f"formatting of a {describe(obj)}"
    )


def _led_format(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker | None:
    obj, spec = cap.realize(args[0]), cap.realize(args[1]) if len(args) > 1 else ConstVar("")
    if type(obj) is not ObjectVar or type(spec) is not ConstVar or type(spec.value) is not str:
        return None
    if not spec.value and cap.type_attr(obj.cls, "__format__") is object.__format__:
        return LED[str](cap, [obj], {})
    return ask(cap, format, obj, [spec], answer)


LED[format] = _led_format


def _formats(shown: Tracker, spec: str) -> bool:
    """Whether the specification is one that all such numbers take, or tensors: those of one number do, as that does."""
    if type(shown) is TupleVar or (
        type(shown) is TensorVar and (shown.cls is not torch.Tensor or shown.fake.dim())
    ):
        return spec == ""
    example: Any = 1 if type(shown) is SizeVar else 1.5
    if type(shown) is TensorVar and not shown.fake.dtype.is_floating_point:
        example = 1j if shown.fake.dtype.is_complex else shown.fake.dtype is torch.bool or 1
    try:
        format(example, spec)
    except (ValueError, OverflowError):
        return False
    return "c" not in spec  # a character, for some ints


def _pieces(text: str, args: Args, kwargs: Kwargs) -> list[tuple[str, Tracker | None, str]] | None:
    """(literal, value, specification) of a format where each field is an argument; None where one is more than that."""
    found: list[tuple[str, Tracker | None, str]] = []
    automatic = iter(args)
    try:
        for literal, name, spec, conversion in string.Formatter().parse(text):
            value: Tracker | None = None
            if name is not None:
                if conversion or "{" in (spec or "") or not (name == "" or name.isidentifier()):
                    return None
                value = next(automatic) if name == "" else kwargs[name]
            found.append((literal, value, spec or ""))
    except (ValueError, KeyError, StopIteration):
        return None
    return found


@rule(str.format)
def _str_format(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """As an f-string where a tensor or a number that varies is shown."""
    given = [cap.realize(a) for a in (*args, *kwargs.values())]
    if (
        given
        and python_type(given[0]) is str
        and type(given[0]) is ConstVar
        and any(type(a) is TensorVar or varies(cap, a) for a in given[1:])
    ):
        pieces = _pieces(given[0].value, args[1:], kwargs)
        if pieces is not None:
            texts: list[Tracker] = []
            for literal, value, spec in pieces:
                texts.append(ConstVar(literal))
                if value is not None:
                    texts.append(call(cap, ConstVar(format), [value, ConstVar(spec)], {}))
            return join(cap, texts)
    return run(cap, str.format, args, kwargs)


@rule(hash)
def _hash(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    obj = cap.realize(args[0])
    if says_itself(cap, obj, "__hash__") or (type(obj) is ObjectVar and is_python(cap, obj, "__hash__")):
        return ConstVar(hash_by_method(cap, obj))
    try:
        return evaluate(cap, hash, _whole_value(cap, hash, obj))
    except NotConst:
        raise Break("unsupported-builtin", f"hash() of a {describe(obj)}") from None
