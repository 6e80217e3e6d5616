"""One handler per canonical instruction.

In: the capture, the frame, the instruction's resolved argument. Out: None (go on), a jump target, RETURN or YIELD.
Always: a handler leaves exactly the stack that the interpreter would leave.
"""

from __future__ import annotations

import collections.abc
import sys
import types
from collections.abc import Callable
from typing import Any

from ..bytecode import NULL_FIRST
from ..guards import ABSENT, Const
from .attributes import (
    bind_descriptor,
    del_attr,
    find_attr,
    get_attr,
    has_attr,
    python_type,
    set_attr,
    write_cell,
)
from .breaks import Break, Exhausted, Raised
from .calls import call
from .capture import Capture, NotConst, describe
from .frame import RETURN, YIELD, Frame, GeneratorVar, finish_send
from .protocol import (
    binary,
    change_set,
    compare,
    contains,
    del_item,
    extend_list,
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
from .trackers import (
    NONE,
    NULL,
    CellVar,
    ConstVar,
    DictVar,
    FunctionVar,
    LazyVar,
    ListVar,
    ObjectVar,
    SetVar,
    SuperVar,
    TensorVar,
    Tracker,
    TupleVar,
)

Handler = Callable[[Capture, Frame, Any], Any]
HANDLERS: dict[str, Handler] = {}
#: Canonical instructions that always run natively, and why.
UNSUPPORTED: dict[str, str] = {
    "IMPORT_STAR": "imports every name of a module",
    "LOAD_BUILD_CLASS": "defines a class inside the captured function",
    "SETUP_ANNOTATIONS": "only in module and class bodies",
    "LOAD_CLASSDEREF": "only in class bodies",
    "LOAD_LOCALS": "only in class bodies",
    "LOAD_FROM_DICT_OR_DEREF": "only in class bodies",
    "LOAD_FROM_DICT_OR_GLOBALS": "only in class bodies",
    "LOAD_NAME": "only in module and class bodies",
    "STORE_NAME": "only in module and class bodies",
    "DELETE_NAME": "only in module and class bodies",
    "GET_AWAITABLE": "coroutines run natively",
    "GET_AITER": "coroutines run natively",
    "GET_ANEXT": "coroutines run natively",
    "BEFORE_ASYNC_WITH": "coroutines run natively",
    "END_ASYNC_FOR": "coroutines run natively",
    "ASYNC_GEN_WRAP": "coroutines run natively",
    "CLEANUP_THROW": "generators with throw() in a delegated generator run natively",
    "CHECK_EG_MATCH": "except* runs natively",
    "PREP_RERAISE_STAR": "except* runs natively",
    "PRINT_EXPR": "only in interactive code",
    "INTERPRETER_EXIT": "internal to the interpreter",
    "EXIT_INIT_CHECK": "internal to the interpreter",
}


def op(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            if name in HANDLERS:
                raise ValueError(f"two handlers for {name}")
            HANDLERS[name] = handler
        return handler

    return register


# --- names --------------------------------------------------------------------------------------------------------------


@op("NOP", "COPY_FREE_VARS", "RESUME")
def _nop(cap: Capture, frame: Frame, arg: Any) -> None:
    return None


@op("LOAD_CONST")
def _load_const(cap: Capture, frame: Frame, arg: Any) -> None:
    if type(arg) is tuple or type(arg) is frozenset:
        frame.stack.append(cap.from_python(arg))
    else:
        frame.stack.append(ConstVar(arg))


@op("LOAD_FAST")
def _load_fast(cap: Capture, frame: Frame, name: str) -> None:
    value = frame.locals.get(name)
    if value is None:
        if name in frame.cells:
            frame.stack.append(frame.cells[name])
            return
        raise cap.raise_(
            UnboundLocalError,
            f"cannot access local variable '{name}' where it is not associated with a value",
        )
    if type(value) is LazyVar:
        value = frame.locals[name] = cap.realize(value)
    frame.stack.append(value)


@op("STORE_FAST")
def _store_fast(cap: Capture, frame: Frame, name: str) -> None:
    frame.locals[name] = frame.stack.pop()


@op("DELETE_FAST")
def _delete_fast(cap: Capture, frame: Frame, name: str) -> None:
    if frame.locals.pop(name, None) is None:
        raise cap.raise_(
            UnboundLocalError,
            f"cannot access local variable '{name}' where it is not associated with a value",
        )


@op("LOAD_FAST_AND_CLEAR")
def _load_fast_and_clear(cap: Capture, frame: Frame, name: str) -> None:
    frame.stack.append(frame.locals.pop(name, NULL))


@op("MAKE_CELL")
def _make_cell(cap: Capture, frame: Frame, name: str) -> None:
    if name not in frame.cells:
        frame.cells[name] = CellVar(frame.locals.pop(name, None))


@op("LOAD_CLOSURE")
def _load_closure(cap: Capture, frame: Frame, name: str) -> None:
    frame.stack.append(frame.cells[name])


@op("LOAD_DEREF")
def _load_deref(cap: Capture, frame: Frame, name: str) -> None:
    value = cap.read_cell(frame.cells[name])
    if value is None:
        if name in frame.code.co_cellvars:
            raise cap.raise_(
                UnboundLocalError,
                f"cannot access local variable '{name}' where it is not associated with a value",
            )
        raise cap.raise_(
            NameError,
            f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope",
        )
    frame.stack.append(value)


@op("STORE_DEREF")
def _store_deref(cap: Capture, frame: Frame, name: str) -> None:
    write_cell(cap, frame.cells[name], frame.stack.pop())


@op("DELETE_DEREF")
def _delete_deref(cap: Capture, frame: Frame, name: str) -> None:
    if frame.cells[name].real is not None:
        raise Break("unsupported-mutation", f"del of the closure variable {name}")
    write_cell(cap, frame.cells[name], None)


@op("LOAD_GLOBAL")
def _load_global(cap: Capture, frame: Frame, name: str) -> None:
    value = cap.dict_get(frame.globals_var, name)
    if value is None:
        value = cap.dict_get(cap.builtins_var, name)
        if value is None:
            raise cap.raise_(NameError, f"name '{name}' is not defined")
    frame.stack.append(value)


@op("STORE_GLOBAL")
def _store_global(cap: Capture, frame: Frame, name: str) -> None:
    cap.dict_set(frame.globals_var, name, frame.stack.pop())


@op("DELETE_GLOBAL")
def _delete_global(cap: Capture, frame: Frame, name: str) -> None:
    if not cap.dict_del(frame.globals_var, name):
        raise cap.raise_(NameError, f"name '{name}' is not defined")


@op("IMPORT_NAME")
def _import_name(cap: Capture, frame: Frame, name: str) -> None:
    fromlist, level = frame.popn(2)[::-1]
    package = frame.globals_var.real.get("__package__") if frame.globals_var.real else None
    level_value, from_value = cap.value_of(level), cap.value_of(fromlist)
    full = name
    if level_value:
        if not package:
            raise Break("dynamic-import", name)
        base = package.rsplit(".", level_value - 1)[0]
        full = f"{base}.{name}" if name else base
    if full not in sys.modules:
        raise Break("dynamic-import", full)
    module = sys.modules[full if from_value else full.split(".")[0]]
    frame.stack.append(cap.wrap(module, Const(module, module.__name__.replace(".", "_"))))


@op("IMPORT_FROM")
def _import_from(cap: Capture, frame: Frame, name: str) -> None:
    module = frame.stack[-1]
    found = find_attr(cap, module, name)
    if found is None:
        raise Break("dynamic-import", f"{name} of {describe(module)}")
    frame.stack.append(found)


# --- stack ----------------------------------------------------------------------------------------------------------------


@op("POP_TOP")
def _pop_top(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.pop()


@op("PUSH_NULL")
def _push_null(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(NULL)


@op("COPY")
def _copy(cap: Capture, frame: Frame, n: int) -> None:
    frame.stack.append(frame.stack[-n])


@op("SWAP")
def _swap(cap: Capture, frame: Frame, n: int) -> None:
    stack = frame.stack
    stack[-1], stack[-n] = stack[-n], stack[-1]


# --- attributes and items ---------------------------------------------------------------------------------------------------


@op("LOAD_ATTR")
def _load_attr(cap: Capture, frame: Frame, name: str) -> None:
    stack = frame.stack
    stack[-1] = get_attr(cap, stack[-1], name)


@op("LOAD_METHOD")
def _load_method(cap: Capture, frame: Frame, name: str) -> None:
    # The attribute is bound already, so the second slot stays NULL; a stub restores the same two slots.
    bound = get_attr(cap, frame.stack[-1], name)
    frame.stack.pop()
    frame.stack += [NULL, bound] if NULL_FIRST else [bound, NULL]


@op("LOAD_SUPER_ATTR")
def _load_super_attr(cap: Capture, frame: Frame, arg: tuple[str, bool, bool]) -> None:
    name, is_method, _two = arg
    _super, cls, obj = frame.popn(3)
    bound = get_attr(cap, SuperVar(cap.value_of(cls), cap.realize(obj)), name)
    if is_method:
        frame.stack += [NULL, bound] if NULL_FIRST else [bound, NULL]
    else:
        frame.stack.append(bound)


@op("STORE_ATTR")
def _store_attr(cap: Capture, frame: Frame, name: str) -> None:
    value, obj = frame.popn(2)
    set_attr(cap, obj, name, value)


@op("DELETE_ATTR")
def _delete_attr(cap: Capture, frame: Frame, name: str) -> None:
    del_attr(cap, frame.stack.pop(), name)


@op("BINARY_SUBSCR")
def _binary_subscr(cap: Capture, frame: Frame, arg: Any) -> None:
    container, index = frame.popn(2)
    frame.stack.append(get_item(cap, container, index))


@op("STORE_SUBSCR")
def _store_subscr(cap: Capture, frame: Frame, arg: Any) -> None:
    value, container, index = frame.popn(3)
    set_item(cap, container, index, value)


@op("DELETE_SUBSCR")
def _delete_subscr(cap: Capture, frame: Frame, arg: Any) -> None:
    container, index = frame.popn(2)
    del_item(cap, container, index)


@op("BINARY_SLICE")
def _binary_slice(cap: Capture, frame: Frame, arg: Any) -> None:
    container, start, stop = frame.popn(3)
    frame.stack.append(get_item(cap, container, make_slice(cap, [start, stop])))


@op("STORE_SLICE")
def _store_slice(cap: Capture, frame: Frame, arg: Any) -> None:
    value, container, start, stop = frame.popn(4)
    set_item(cap, container, make_slice(cap, [start, stop]), value)


def make_slice(cap: Capture, parts: list[Tracker]) -> Tracker:
    try:
        return ConstVar(slice(*[cap.value_of(part) for part in parts]))
    except NotConst:
        raise Break("tensor-item", "a slice with a bound that is not a constant") from None


# --- operators --------------------------------------------------------------------------------------------------------------


@op("BINARY_OP")
def _binary_op(cap: Capture, frame: Frame, symbol: str) -> None:
    left, right = frame.popn(2)
    if symbol.endswith("=") and symbol not in ("==", "<=", ">=", "!="):
        frame.stack.append(inplace(cap, symbol[:-1], left, right))
    else:
        frame.stack.append(binary(cap, symbol, left, right))


def _unary_handler(symbol: str) -> Handler:
    def handler(cap: Capture, frame: Frame, arg: Any) -> None:
        frame.stack[-1] = unary(cap, symbol, frame.stack[-1])

    return handler


op("UNARY_NEGATIVE")(_unary_handler("-"))
op("UNARY_POSITIVE")(_unary_handler("+"))
op("UNARY_INVERT")(_unary_handler("~"))


@op("UNARY_NOT")
def _unary_not(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = ConstVar(not truth(cap, frame.stack[-1]))


@op("TO_BOOL")
def _to_bool(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = ConstVar(truth(cap, frame.stack[-1]))


@op("COMPARE_OP")
def _compare_op(cap: Capture, frame: Frame, symbol: str) -> None:
    left, right = frame.popn(2)
    frame.stack.append(compare(cap, symbol, left, right))


@op("IS_OP")
def _is_op(cap: Capture, frame: Frame, invert: bool) -> None:
    left, right = frame.popn(2)
    frame.stack.append(ConstVar(is_same(cap, left, right) != bool(invert)))


@op("CONTAINS_OP")
def _contains_op(cap: Capture, frame: Frame, invert: bool) -> None:
    item, container = frame.popn(2)
    frame.stack.append(ConstVar(contains(cap, container, item) != bool(invert)))


# --- jumps ------------------------------------------------------------------------------------------------------------------


@op("JUMP")
def _jump(cap: Capture, frame: Frame, target: int) -> int:
    return target


@op("POP_JUMP_IF_TRUE")
def _pop_jump_if_true(cap: Capture, frame: Frame, target: int) -> int | None:
    return target if truth(cap, frame.stack.pop()) else None


@op("POP_JUMP_IF_FALSE")
def _pop_jump_if_false(cap: Capture, frame: Frame, target: int) -> int | None:
    return None if truth(cap, frame.stack.pop()) else target


def _is_none(cap: Capture, value: Tracker) -> bool:
    return is_same(cap, value, NONE)


@op("POP_JUMP_IF_NONE")
def _pop_jump_if_none(cap: Capture, frame: Frame, target: int) -> int | None:
    return target if _is_none(cap, frame.stack.pop()) else None


@op("POP_JUMP_IF_NOT_NONE")
def _pop_jump_if_not_none(cap: Capture, frame: Frame, target: int) -> int | None:
    return None if _is_none(cap, frame.stack.pop()) else target


@op("JUMP_IF_TRUE_OR_POP")
def _jump_if_true_or_pop(cap: Capture, frame: Frame, target: int) -> int | None:
    if truth(cap, frame.stack[-1]):
        return target
    frame.stack.pop()
    return None


@op("JUMP_IF_FALSE_OR_POP")
def _jump_if_false_or_pop(cap: Capture, frame: Frame, target: int) -> int | None:
    if not truth(cap, frame.stack[-1]):
        return target
    frame.stack.pop()
    return None


@op("GET_ITER")
def _get_iter(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = get_iter(cap, frame.stack[-1])


@op("FOR_ITER")
def _for_iter(cap: Capture, frame: Frame, target: int) -> int | None:
    try:
        item = next_item(cap, frame.stack[-1])
    except Exhausted:
        frame.stack.pop()
        return target
    frame.stack.append(item)
    return None


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
    frame.stack[-1] = call(cap, ConstVar(CONVERSIONS[conversion]), [frame.stack[-1]], {})


@op("BUILD_CONST_KEY_MAP")
def _build_const_key_map(cap: Capture, frame: Frame, n: int) -> None:
    keys = cap.value_of(frame.stack.pop())
    frame.stack.append(DictVar(dict(zip(keys, frame.popn(n)))))


@op("BUILD_STRING")
def _build_string(cap: Capture, frame: Frame, n: int) -> None:
    frame.stack.append(ConstVar("".join(cap.value_of(part) for part in frame.popn(n))))


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
    change_set(cap, frame.stack[-n]).setdefault(cap.key_of(item), item)  # type: ignore[arg-type]


@op("MAP_ADD")
def _map_add(cap: Capture, frame: Frame, n: int) -> None:
    key, value = frame.popn(2)
    cap.dict_set(frame.stack[-n], cap.key_of(key), value)  # type: ignore[arg-type]


@op("LIST_EXTEND")
def _list_extend(cap: Capture, frame: Frame, n: int) -> None:
    items = iterate(cap, frame.stack.pop())
    extend_list(cap, frame.stack[-n], items)  # type: ignore[arg-type]


@op("SET_UPDATE")
def _set_update(cap: Capture, frame: Frame, n: int) -> None:
    for item in iterate(cap, frame.stack.pop()):
        change_set(cap, frame.stack[-n]).setdefault(cap.key_of(item), item)  # type: ignore[arg-type]


@op("DICT_UPDATE")
def _dict_update(cap: Capture, frame: Frame, n: int) -> None:
    for key, value in mapping_items(cap, frame.stack.pop()):
        cap.dict_set(frame.stack[-n], key, value)  # type: ignore[arg-type]


@op("DICT_MERGE")
def _dict_merge(cap: Capture, frame: Frame, n: int) -> None:
    source = frame.stack.pop()
    target = frame.stack[-n]
    for key, value in mapping_items(cap, source):
        if cap.dict_has(target, key):  # type: ignore[arg-type]
            raise cap.raise_(TypeError, f"got multiple values for keyword argument '{key}'")
        cap.dict_set(target, key, value)  # type: ignore[arg-type]


def mapping_items(cap: Capture, mapping: Tracker) -> list[tuple[Any, Tracker]]:
    """(key, value) pairs of any mapping, as ``**mapping`` and ``dict(mapping)`` see them."""
    mapping = cap.realize(mapping)
    if type(mapping) is DictVar:
        cap.complete(mapping)
        return list(mapping.known.items())
    if (
        type(mapping) is ObjectVar
        and type(mapping.payload) is DictVar
        and not isinstance(cap.type_attr(mapping.cls, "keys"), types.FunctionType)
    ):
        return mapping_items(cap, mapping.payload)
    if type(mapping) in (ConstVar, TensorVar, ListVar, TupleVar) or find_attr(cap, mapping, "keys") is None:
        raise cap.raise_(TypeError, f"'{python_type(mapping).__name__}' object is not a mapping")
    keys = iterate(cap, call(cap, get_attr(cap, mapping, "keys"), [], {}))
    return [(cap.key_of(key), get_item(cap, mapping, key)) for key in keys]


@op("LIST_TO_TUPLE")
def _list_to_tuple(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = TupleVar(list(frame.stack[-1].items))  # type: ignore[attr-defined]


@op("UNPACK_SEQUENCE")
def _unpack_sequence(cap: Capture, frame: Frame, n: int) -> None:
    value = cap.realize(frame.stack.pop())
    items = value.items if type(value) in (TupleVar, ListVar) else iterate(cap, value)  # type: ignore[attr-defined]
    if len(items) != n:
        many = len(items) > n
        raise cap.raise_(
            ValueError,
            f"too many values to unpack (expected {n})"
            if many
            else f"not enough values to unpack (expected {n}, got {len(items)})",
        )
    frame.stack.extend(reversed(items))


@op("UNPACK_EX")
def _unpack_ex(cap: Capture, frame: Frame, arg: tuple[int, int]) -> None:
    before, after = arg
    items = iterate(cap, frame.stack.pop())
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
        value = call(cap, ConstVar(CONVERSIONS[conversion]), [value], {})
    frame.stack.append(call(cap, ConstVar(format), [value, spec], {}))


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
        kwdefaults = frame.stack.pop()
        function.kwdefaults = {str(k): v for k, v in kwdefaults.known.items()}  # type: ignore[attr-defined]
    if flags & 1:
        function.defaults = list(iterate(cap, frame.stack.pop()))
    frame.stack.append(function)


def _annotations(cap: Capture, packed: Tracker) -> DictVar:
    """Names and annotations in turn, as MAKE_FUNCTION takes them, as a dict."""
    flat = iterate(cap, packed)
    return DictVar({cap.value_of(name): value for name, value in zip(flat[::2], flat[1::2])})


@op("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(cap: Capture, frame: Frame, flag: int) -> None:
    value, function = frame.popn(2)
    assert type(function) is FunctionVar
    if flag & 8:
        function.closure = tuple(value.items)  # type: ignore[attr-defined]
    elif flag & 4:
        function.annotations = _annotations(cap, value)
    elif flag & 2:
        function.kwdefaults = {str(k): v for k, v in value.known.items()}  # type: ignore[attr-defined]
    else:
        function.defaults = list(iterate(cap, value))
    frame.stack.append(function)


# --- calls --------------------------------------------------------------------------------------------------------------------


@op("CALL")
def _call(cap: Capture, frame: Frame, arg: tuple[int, tuple[str, ...]]) -> None:
    argc, names = arg
    args = frame.popn(argc)
    first, second = frame.popn(2)
    if first is NULL:
        fn = second
    elif second is NULL:
        fn = first
    else:
        fn, args = first, [second, *args]
    kwargs: dict[str, Tracker] = {}
    if names:
        kwargs = dict(zip(names, args[-len(names) :]))
        args = args[: -len(names)]
    frame.stack.append(call(cap, fn, args, kwargs))


@op("CALL_FUNCTION_EX")
def _call_function_ex(cap: Capture, frame: Frame, has_kwargs: bool) -> None:
    kwargs: dict[str, Tracker] = {}
    if has_kwargs:
        for key, value in mapping_items(cap, frame.stack.pop()):
            if type(key) is not str:
                raise cap.raise_(TypeError, "keywords must be strings")
            kwargs[key] = value
    packed = cap.realize(frame.stack.pop())
    args = list(packed.items) if type(packed) is TupleVar else iterate(cap, packed)
    first, second = frame.popn(2)
    fn = second if first is NULL else first
    frame.stack.append(call(cap, fn, args, kwargs))


@op("RETURN_VALUE")
def _return_value(cap: Capture, frame: Frame, arg: Any) -> str:
    return RETURN


@op("RETURN_GENERATOR")
def _return_generator(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(NONE)  # the value "sent" by the first next(), popped by the following POP_TOP


@op("YIELD_VALUE")
def _yield_value(cap: Capture, frame: Frame, arg: Any) -> str:
    if frame.is_root:
        raise Break("generator", "yield in the frame being captured")
    return YIELD


@op("GET_YIELD_FROM_ITER")
def _get_yield_from_iter(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = get_iter(cap, frame.stack[-1])


@op("SEND")
def _send(cap: Capture, frame: Frame, target: int) -> int | None:
    """Stack [iterator, sent] becomes [iterator, yielded], or [iterator-or-nothing, result] at ``target``."""
    sent, receiver = frame.stack[-1], frame.stack[-2]
    frame.delegate = receiver, frame.pc
    try:
        if type(receiver) is GeneratorVar:
            item = receiver.resume(cap, sent)
        elif is_same(cap, sent, NONE):
            item = next_item(cap, receiver)
        else:
            item = call(cap, get_attr(cap, receiver, "send"), [sent], {})
    except Exhausted as end:
        return finish_send(frame, frame.pc, end)
    except Raised:
        frame.delegate = None
        raise
    frame.stack[-1] = item
    return None


@op("END_SEND")
def _end_send(cap: Capture, frame: Frame, arg: Any) -> None:
    value = frame.stack.pop()
    frame.stack[-1] = value


# --- exceptions -----------------------------------------------------------------------------------------------------------------


@op("LOAD_ASSERTION_ERROR")
def _load_assertion_error(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(ConstVar(AssertionError))


@op("RAISE_VARARGS")
def _raise_varargs(cap: Capture, frame: Frame, n: int) -> None:
    if n == 0:
        handled = cap.handled()
        if handled is None:
            raise cap.raise_(RuntimeError, "No active exception to reraise")
        raise Raised(handled)
    cause = frame.stack.pop() if n == 2 else None
    error = _exception_of(cap, frame.stack.pop(), "exceptions must derive from BaseException")
    if cause is not None:
        if not is_same(cap, cause, NONE):
            cause = _exception_of(cap, cause, "exception causes must derive from BaseException")
        error.slots["__cause__"] = cap.realize(cause)
        error.slots["__suppress_context__"] = ConstVar(True)
    raise Raised(error)


def _exception_of(cap: Capture, value: Tracker, message: str) -> ObjectVar:
    """The exception that ``raise value`` raises: an instance, or a class to be instantiated."""
    value = cap.realize(value)
    if type(value) is ConstVar and isinstance(value.value, type) and issubclass(value.value, BaseException):
        value = call(cap, value, [], {})
    if type(value) is not ObjectVar or not issubclass(value.cls, BaseException):
        raise cap.raise_(TypeError, message)
    return value


@op("PUSH_EXC_INFO")
def _push_exc_info(cap: Capture, frame: Frame, arg: Any) -> None:
    error = frame.stack.pop()
    frame.stack.append(frame.handled[-1] if frame.handled else NONE)
    frame.stack.append(error)
    frame.handled.append(error)


@op("POP_EXCEPT")
def _pop_except(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.pop()
    if frame.handled:
        frame.handled.pop()


@op("RERAISE")
def _reraise(cap: Capture, frame: Frame, arg: Any) -> None:
    error = frame.stack.pop()
    raise Raised(error)


@op("CHECK_EXC_MATCH")
def _check_exc_match(cap: Capture, frame: Frame, arg: Any) -> None:
    wanted = cap.value_of(frame.stack.pop())
    for cls in wanted if isinstance(wanted, tuple) else (wanted,):
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise cap.raise_(
                TypeError, "catching classes that do not inherit from BaseException is not allowed"
            )
    frame.stack.append(ConstVar(issubclass(python_type(frame.stack[-1]), wanted)))


@op("BEFORE_WITH")
def _before_with(cap: Capture, frame: Frame, arg: Any) -> None:
    manager = cap.realize(frame.stack.pop())
    cls = python_type(manager)
    methods = []
    for name in ("__enter__", "__exit__"):
        raw = cap.type_attr(cls, name)
        if raw is ABSENT:
            missed = " (missed __exit__ method)" if name == "__exit__" else ""
            raise cap.raise_(
                TypeError, f"'{cls.__name__}' object does not support the context manager protocol{missed}"
            )
        methods.append(bind_descriptor(cap, raw, manager, cls, name))
    enter, leave = methods
    assert enter is not None and leave is not None
    frame.stack.append(leave)
    frame.stack.append(call(cap, enter, [], {}))


@op("WITH_EXCEPT_START")
def _with_except_start(cap: Capture, frame: Frame, arg: Any) -> None:
    # stack: exit function, last instruction, previous exception, exception
    error, leave = frame.stack[-1], frame.stack[-4]
    frame.stack.append(call(cap, leave, [ConstVar(python_type(error)), error, NONE], {}))


# --- the rest -------------------------------------------------------------------------------------------------------------------


@op("GET_LEN")
def _get_len(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(ConstVar(length(cap, frame.stack[-1])))


@op("MATCH_SEQUENCE")
def _match_sequence(cap: Capture, frame: Frame, arg: Any) -> None:
    cls = python_type(frame.stack[-1])
    matches = issubclass(cls, collections.abc.Sequence) and not issubclass(cls, (str, bytes, bytearray))
    frame.stack.append(ConstVar(matches))


@op("MATCH_MAPPING")
def _match_mapping(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(ConstVar(issubclass(python_type(frame.stack[-1]), collections.abc.Mapping)))


@op("MATCH_KEYS")
def _match_keys(cap: Capture, frame: Frame, arg: Any) -> None:
    subject, keys = frame.stack[-2:]
    found: list[Tracker] = []
    for key in iterate(cap, keys):
        missing = ConstVar(_NO_VALUE)
        value = call(cap, get_attr(cap, subject, "get"), [key, missing], {})
        if value is missing:
            frame.stack.append(NONE)
            return
        found.append(value)
    frame.stack.append(TupleVar(found))


_NO_VALUE = object()
#: Classes whose positional pattern is the subject itself.
_SELF_MATCHING = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


@op("MATCH_CLASS")
def _match_class(cap: Capture, frame: Frame, count: int) -> None:
    subject, cls_var, keyword_names = frame.popn(3)
    cls = cap.value_of(cls_var)
    if not isinstance(cls, type):
        raise cap.raise_(TypeError, "called match pattern must be a class")
    matched = call(cap, ConstVar(isinstance), [subject, cls_var], {})
    frame.stack.append(
        _class_pattern(cap, subject, cls, count, cap.value_of(keyword_names)) if truth(cap, matched) else NONE
    )


def _class_pattern(
    cap: Capture, subject: Tracker, cls: type, count: int, keyword_names: tuple[str, ...]
) -> Tracker:
    """The attributes that a class pattern with ``count`` positional sub-patterns looks at, or None."""
    names: tuple[str, ...] = ()
    found: list[Tracker] = []
    if count:
        declared = cap.type_attr(cls, "__match_args__")
        if declared is ABSENT and issubclass(cls, _SELF_MATCHING):
            found, count = [cap.realize(subject)], count - 1
        names = () if declared is ABSENT else declared
        if count > len(names):
            allowed = len(names) + len(found)
            plural = "" if allowed == 1 else "s"
            given = count + len(found)
            raise cap.raise_(
                TypeError,
                f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({given} given)",
            )
    for name in (*names[:count], *keyword_names):
        if not has_attr(cap, subject, name):
            return NONE
        found.append(get_attr(cap, subject, name))
    return TupleVar(found)


@op("SAVE_CELL")
def _save_cell(cap: Capture, frame: Frame, name: str) -> None:
    frame.stack.append(frame.cells.pop(name))


@op("RESTORE_CELL")
def _restore_cell(cap: Capture, frame: Frame, name: str) -> None:
    frame.cells[name] = frame.stack.pop()  # type: ignore[assignment]


@op("CALL_INTRINSIC_1")
def _call_intrinsic_1(cap: Capture, frame: Frame, name: str) -> None:
    value = frame.stack.pop()
    if name == "INTRINSIC_LIST_TO_TUPLE":
        frame.stack.append(TupleVar(list(value.items)))  # type: ignore[attr-defined]
    elif name == "INTRINSIC_UNARY_POSITIVE":
        frame.stack.append(unary(cap, "+", value))
    elif name == "INTRINSIC_STOPITERATION_ERROR":
        if issubclass(python_type(value), StopIteration):
            raise cap.raise_(RuntimeError, "generator raised StopIteration")
        frame.stack.append(value)
    else:
        frame.stack.append(value)
        raise Break("unsupported-opcode", f"CALL_INTRINSIC_1 {name}")


@op("CALL_INTRINSIC_2")
def _call_intrinsic_2(cap: Capture, frame: Frame, name: str) -> None:
    raise Break("unsupported-opcode", f"CALL_INTRINSIC_2 {name}")


def _unsupported_handler(name: str, why: str) -> Handler:
    def handler(cap: Capture, frame: Frame, arg: Any) -> None:
        raise Break("unsupported-opcode", f"{name}: {why}")

    return handler


for _name, _why in UNSUPPORTED.items():
    op(_name)(_unsupported_handler(_name, _why))
