"""Instructions that make things: containers, text, functions; and those that take containers apart.

In: the capture, the frame, the instruction's resolved argument. Out: None (go on), a jump target, RETURN or YIELD.
Always: a handler leaves exactly the stack that the interpreter would leave.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ...guards import ABSENT
from .. import polyfills
from ..attributes import python_type
from ..breaks import Break, Exhausted
from ..calls import ask, call
from ..capture import DIRECT, Capture
from ..frame import Frame
from ..protocol import (
    add_to_set,
    extend_list,
    gather,
    get_iter,
    is_iterable,
    iterate,
    make_slice,
    mapping_items,
    next_item,
    update_set,
)
from ..reordered import join
from ..trackers import (
    ConstVar,
    DictVar,
    FunctionVar,
    ListVar,
    MethodVar,
    SetVar,
    Tracker,
    TupleVar,
    describe,
)
from .table import op

# --- building -----------------------------------------------------------------------------------------------------------------


@op("BUILD_TUPLE")
def _build_tuple(cap: Capture, frame: Frame, n: int) -> None:
    frame.stack.append(TupleVar(frame.popn(n)))


@op("BUILD_LIST")
def _build_list(cap: Capture, frame: Frame, n: int) -> None:
    frame.stack.append(ListVar(frame.popn(n)))


@op("BUILD_SET")
def _build_set(cap: Capture, frame: Frame, n: int) -> None:
    made: dict[Any, Tracker] = {}
    for item in frame.popn(n):
        made.setdefault(cap.key_of(item), item)
    frame.stack.append(SetVar(made))


@op("BUILD_MAP")
def _build_map(cap: Capture, frame: Frame, n: int) -> None:
    items = frame.popn(2 * n)
    frame.stack.append(DictVar({cap.key_of(items[i]): items[i + 1] for i in range(0, 2 * n, 2)}))


@op("CONVERT_VALUE")
def _convert_value(cap: Capture, frame: Frame, conversion: int) -> None:
    frame.stack.append(call(cap, ConstVar(CONVERSIONS[conversion]), [frame.stack.pop()], {}, DIRECT))


@op("BUILD_CONST_KEY_MAP")
def _build_const_key_map(cap: Capture, frame: Frame, n: int) -> None:
    keys = cap.value_of(frame.stack.pop())
    frame.stack.append(DictVar(dict(zip(keys, frame.popn(n)))))


@op("BUILD_STRING")
def _build_string(cap: Capture, frame: Frame, n: int) -> None:
    frame.stack.append(join(cap, frame.popn(n)))


@op("BUILD_SLICE")
def _build_slice(cap: Capture, frame: Frame, n: int) -> None:
    frame.stack.append(make_slice(cap, frame.popn(n)))


@op("LIST_APPEND")
def _list_append(cap: Capture, frame: Frame, n: int) -> None:
    item = frame.stack.pop()
    extend_list(cap, frame.stack[-n], [item])  # type: ignore[arg-type]


@op("SET_ADD")
def _set_add(cap: Capture, frame: Frame, n: int) -> None:
    item = frame.stack.pop()
    add_to_set(cap, frame.stack[-n], item)  # type: ignore[arg-type]


@op("MAP_ADD")
def _map_add(cap: Capture, frame: Frame, n: int) -> None:
    key, value = frame.popn(2)
    cap.dict_set(frame.stack[-n], cap.key_of(key), value)  # type: ignore[arg-type]


@op("LIST_EXTEND")
def _list_extend(cap: Capture, frame: Frame, n: int) -> None:
    packed = cap.realize(frame.stack.pop())
    if not is_iterable(cap, packed):
        raise cap.raise_(TypeError, f"Value after * must be an iterable, not {python_type(packed).__name__}")
    extend_list(cap, frame.stack[-n], gather(cap, packed))  # type: ignore[arg-type]


@op("SET_UPDATE")
def _set_update(cap: Capture, frame: Frame, n: int) -> None:
    source = frame.stack.pop()
    update_set(cap, frame.stack[-n], source)  # type: ignore[arg-type]


@op("DICT_UPDATE")
def _dict_update(cap: Capture, frame: Frame, n: int) -> None:
    for key, value in mapping_items(cap, frame.stack.pop()):
        cap.dict_set(frame.stack[-n], key, value)  # type: ignore[arg-type]


@op("DICT_MERGE")
def _dict_merge(cap: Capture, frame: Frame, n: int) -> None:
    source = frame.stack.pop()
    target, callee = frame.stack[-n], frame.stack[-n - 2]
    message = ""
    if type(cap.realize(source)) is not DictVar:
        message = f"{shown_callee(cap, callee)} argument after ** must be a mapping, not {{}}"
    for key, value in mapping_items(cap, source, message):
        if cap.dict_has(target, key):  # type: ignore[arg-type]
            raise cap.raise_(
                TypeError, f"{shown_callee(cap, callee)} got multiple values for keyword argument '{key}'"
            )
        cap.dict_set(target, key, value)  # type: ignore[arg-type]


def shown_callee(cap: Capture, callee: Tracker) -> str:
    """A callable as the messages about its arguments show it."""
    callee = cap.realize(callee)
    value = getattr(callee, "value", callee)
    if type(callee) is MethodVar:
        value = getattr(callee.func, "value", callee.func)
    qualname = value.qualname if type(value) is FunctionVar else getattr(value, "__qualname__", None)
    if qualname is None:
        raise Break("unsupported-call", f"arguments that {describe(callee)} does not take")
    module = (
        value.globals_.get("__name__") if type(value) is FunctionVar else getattr(value, "__module__", None)
    )
    return f"{module}.{qualname}()" if module not in (None, "builtins") else f"{qualname}()"


@op("LIST_TO_TUPLE")
def _list_to_tuple(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = TupleVar(list(frame.stack[-1].items))  # type: ignore[attr-defined]


@op("UNPACK_SEQUENCE")
def _unpack_sequence(cap: Capture, frame: Frame, n: int) -> None:
    value = cap.realize(frame.stack.pop())
    if type(value) in (TupleVar, ListVar):
        items = value.items  # type: ignore[attr-defined]
    else:
        items = _taken(cap, _unpacked(cap, value), n + 1)
    if len(items) != n:
        many = len(items) > n
        raise cap.raise_(
            ValueError,
            f"too many values to unpack (expected {n})"
            if many
            else f"not enough values to unpack (expected {n}, got {len(items)})",
        )
    frame.stack.extend(reversed(items))


def _unpacked(cap: Capture, value: Tracker) -> Tracker:
    """The iterator over what is unpacked."""
    cls = python_type(cap.realize(value))
    if cap.type_attr(cls, "__iter__") is ABSENT and cap.type_attr(cls, "__getitem__") is ABSENT:
        raise cap.raise_(TypeError, f"cannot unpack non-iterable {cls.__name__} object")
    return get_iter(cap, value)


def _taken(cap: Capture, iterator: Tracker, most: int) -> list[Tracker]:
    """As many items as unpacking takes; one more than wanted tells that there are too many."""
    items: list[Tracker] = []
    with contextlib.suppress(Exhausted):
        while len(items) < most:
            items.append(next_item(cap, iterator))
    return items


@op("UNPACK_EX")
def _unpack_ex(cap: Capture, frame: Frame, arg: tuple[int, int]) -> None:
    before, after = arg
    iterator = _unpacked(cap, frame.stack.pop())
    items = _taken(cap, iterator, before)
    if len(items) < before:
        text = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        raise cap.raise_(ValueError, text)
    items += gather(cap, iterator)
    if len(items) < before + after:
        raise cap.raise_(
            ValueError, f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    middle = items[before : len(items) - after]
    frame.stack.extend(reversed([*items[:before], ListVar(middle), *items[len(items) - after :]]))


@op("FORMAT_VALUE")
def _format_value(cap: Capture, frame: Frame, arg: tuple[int, bool]) -> None:
    conversion, has_spec = arg
    spec = frame.stack.pop() if has_spec else ConstVar("")
    value = cap.realize(frame.stack.pop())
    if conversion:
        made = ask(cap, CONVERSIONS[conversion], value, [], lambda asks: _converted(asks, spec))
        if made is not None:
            frame.stack.append(made)
            return
        value = call(cap, ConstVar(CONVERSIONS[conversion]), [value], {})
    frame.stack.append(call(cap, ConstVar(format), [value, spec], {}, DIRECT))


def _converted(asks: Any, spec: Tracker) -> tuple[Tracker, ...]:
    return ConstVar(polyfills.converted), ConstVar(asks), spec


#: What the conversions of an f-string call: ``!s``, ``!r``, ``!a``.
CONVERSIONS: dict[int, Callable[[Any], str]] = {1: str, 2: repr, 3: ascii}


@op("MAKE_FUNCTION")
def _make_function(cap: Capture, frame: Frame, flags: int) -> None:
    code = frame.stack.pop().value  # type: ignore[attr-defined]
    closure = frame.stack.pop().items if flags & 8 else ()  # type: ignore[attr-defined]
    function = FunctionVar(code, frame.globals_var.real or {}, tuple(closure))
    if flags & 4:
        function.annotations = _annotations(cap, frame.stack.pop())
    if flags & 2:
        function.kwdefaults = _keyword_defaults(cap, frame.stack.pop())
    if flags & 1:
        function.defaults = list(iterate(cap, frame.stack.pop()))
    frame.stack.append(function)


def _annotations(cap: Capture, packed: Tracker) -> DictVar:
    """Names and annotations in turn, as MAKE_FUNCTION takes them, as a dict."""
    flat = iterate(cap, packed)
    return DictVar({cap.value_of(name): value for name, value in zip(flat[::2], flat[1::2])})


def _keyword_defaults(cap: Capture, given: Tracker) -> dict[str, Tracker]:
    """Of a dict that may have been made before the region: in front of a break, or by who calls for type parameters."""
    known = cap.complete(cap.realize(given)).known  # type: ignore[arg-type]
    return {str(name): value for name, value in known.items()}


@op("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(cap: Capture, frame: Frame, flag: int) -> None:
    value, function = frame.popn(2)
    assert type(function) is FunctionVar
    if flag & 8:
        function.closure = tuple(value.items)  # type: ignore[attr-defined]
    elif flag & 4:
        function.annotations = _annotations(cap, value)
    elif flag & 2:
        function.kwdefaults = _keyword_defaults(cap, value)
    else:
        function.defaults = list(iterate(cap, value))
    frame.stack.append(function)
