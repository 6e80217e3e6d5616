"""Instructions that move values: names, the stack, attributes and items.

In: the capture, the frame, the instruction's resolved argument. Out: None (go on), a jump target, RETURN or YIELD.
Always: a handler leaves exactly the stack that the interpreter would leave.
"""

from __future__ import annotations

import sys
from typing import Any

from ...bytecode import NULL_FIRST
from ...guards import Const
from ..attribute_writes import del_attr, set_attr, write_cell
from ..attributes import find_attr, get_attr
from ..breaks import Break, Raised
from ..capture import DIRECT, Capture
from ..frame import Frame
from ..protocol import (
    del_item,
    get_item,
    make_slice,
    set_item,
)
from ..trackers import (
    NULL,
    CellVar,
    ConstVar,
    LazyVar,
    SuperVar,
    Tracker,
    describe,
)
from .table import op

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
    old, value = frame.locals.get(name), frame.stack.pop()
    if value is NULL:  # the name is unbound again, as it was before a comprehension
        frame.locals.pop(name, None)
    else:
        frame.locals[name] = value
    if cap.mortal and old is not None:
        cap.drop(old)


@op("DELETE_FAST")
def _delete_fast(cap: Capture, frame: Frame, name: str) -> None:
    old = frame.locals.pop(name, None)
    if cap.mortal and old is not None:
        cap.drop(old)
    if old is None:
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
    frame.stack.append(load_cell(cap, frame, name))


def load_cell(cap: Capture, frame: Frame, name: str) -> Tracker:
    value = cap.read_cell(frame.cells[name])
    if value is None:
        if name in frame.code.co_cellvars:
            raise cap.raise_(
                UnboundLocalError,
                f"cannot access local variable '{name}' where it is not associated with a value",
            )
        text = "cannot access free variable '{}' where it is not associated with a value in enclosing scope"
        raise undefined(cap, name, text)
    return value


@op("STORE_DEREF")
def _store_deref(cap: Capture, frame: Frame, name: str) -> None:
    write_cell(cap, frame.cells[name], frame.stack.pop())


@op("DELETE_DEREF")
def _delete_deref(cap: Capture, frame: Frame, name: str) -> None:
    if frame.cells[name].real is not None:
        raise Break("unsupported-mutation", f"del of the closure variable {name}")
    load_cell(cap, frame, name)  # raises where it is empty
    write_cell(cap, frame.cells[name], None)


@op("LOAD_GLOBAL")
def _load_global(cap: Capture, frame: Frame, name: str) -> None:
    frame.stack.append(global_value(cap, frame, name))


def global_value(cap: Capture, frame: Frame, name: str) -> Tracker:
    value = cap.dict_get(frame.globals_var, name)
    if value is None:
        value = cap.dict_get(cap.builtins_var, name)
        if value is None:
            raise undefined(cap, name)
    return value


def undefined(cap: Capture, name: str, text: str = "name '{}' is not defined") -> Raised:
    """The NameError about a name."""
    raised = cap.raise_(NameError, text.format(name))
    raised.value.slots["name"] = ConstVar(name)  # type: ignore[attr-defined]
    return raised


@op("STORE_GLOBAL")
def _store_global(cap: Capture, frame: Frame, name: str) -> None:
    cap.dict_set(frame.globals_var, name, frame.stack.pop())


@op("DELETE_GLOBAL")
def _delete_global(cap: Capture, frame: Frame, name: str) -> None:
    if not cap.dict_del(frame.globals_var, name):
        raise undefined(cap, name)


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
    modules: Any = cap.wrap(sys.modules, Const(sys.modules, "sys_modules"))
    found = cap.dict_get(modules, full)
    if found is not None and not from_value and "." in full:
        found = cap.dict_get(modules, full.split(".")[0])
    if found is None or (type(found) is ConstVar and found.value is None):
        raise Break("dynamic-import", full)
    for attr in from_value or ():
        # A package's modules are imported by this step, where it has no such attribute yet.
        if find_attr(cap, found, attr) is None and find_attr(cap, found, "__path__") is not None:
            raise Break("dynamic-import", f"{full}.{attr}")
    frame.stack.append(found)


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
    top = frame.stack.pop()
    if cap.mortal:
        cap.drop(top)


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
    obj = frame.stack.pop()
    frame.stack.append(get_attr(cap, obj, name, DIRECT))


@op("LOAD_METHOD")
def _load_method(cap: Capture, frame: Frame, name: str) -> None:
    # The attribute is bound already, so the second slot stays NULL; a stub restores the same two slots.
    bound = get_attr(cap, frame.stack.pop(), name, DIRECT)
    frame.stack += [NULL, bound] if NULL_FIRST else [bound, NULL]


@op("LOAD_SUPER_ATTR")
def _load_super_attr(cap: Capture, frame: Frame, arg: tuple[str, bool, bool]) -> None:
    name, is_method, _two = arg
    _super, cls, obj = frame.popn(3)
    bound = get_attr(cap, SuperVar(cap.value_of(cls), cap.realize(obj)), name, DIRECT)
    if is_method:
        frame.stack += [NULL, bound] if NULL_FIRST else [bound, NULL]
    else:
        frame.stack.append(bound)


@op("STORE_ATTR")
def _store_attr(cap: Capture, frame: Frame, name: str) -> None:
    value, obj = frame.popn(2)
    set_attr(cap, obj, name, value, DIRECT)


@op("DELETE_ATTR")
def _delete_attr(cap: Capture, frame: Frame, name: str) -> None:
    del_attr(cap, frame.stack.pop(), name, DIRECT)


@op("BINARY_SUBSCR")
def _binary_subscr(cap: Capture, frame: Frame, arg: Any) -> None:
    container, index = frame.popn(2)
    frame.stack.append(get_item(cap, container, index, DIRECT))


@op("STORE_SUBSCR")
def _store_subscr(cap: Capture, frame: Frame, arg: Any) -> None:
    value, container, index = frame.popn(3)
    set_item(cap, container, index, value, DIRECT)


@op("DELETE_SUBSCR")
def _delete_subscr(cap: Capture, frame: Frame, arg: Any) -> None:
    container, index = frame.popn(2)
    del_item(cap, container, index, DIRECT)


@op("BINARY_SLICE")
def _binary_slice(cap: Capture, frame: Frame, arg: Any) -> None:
    container, start, stop = frame.popn(3)
    frame.stack.append(get_item(cap, container, make_slice(cap, [start, stop]), DIRECT))


@op("STORE_SLICE")
def _store_slice(cap: Capture, frame: Frame, arg: Any) -> None:
    value, container, start, stop = frame.popn(4)
    set_item(cap, container, make_slice(cap, [start, stop]), value, DIRECT)
