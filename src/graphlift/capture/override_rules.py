"""`__torch_function__` in captured code: classes that define it (subclasses of Tensor or not), and modes.

In: calls of torch's functions that something is to see first. Out: what the handler, captured like any code, gives.
Always: torch itself says which function a call is to its handlers and with what arguments: it runs on stand-ins, under
a mode that notes the first call that it sees and stops there.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.overrides import (
    TorchFunctionMode,
    _get_overloaded_args,
    get_default_nowrap_functions,
    handle_torch_function,
)
from torch.utils._device import DeviceContext, _device_constructors

from .attributes import bind_descriptor, get_attr, python_type
from .breaks import Break
from .calls import BREAKING_TENSOR_METHODS, LEAF_MODULES, TENSOR_METHODS, call
from .capture import Capture, NotConst
from .frame import inline
from .graph_values import to_graph
from .overriding import PLAIN_TENSORS, defines, device_mode, is_modelled, is_seen, mode_sees, overrides
from .protocol import sequence_items
from .residual import EFFECTS, OBJECT_BUILDERS, Residual
from .rules import rule
from .tensor_reads import tensor_attr
from .trackers import (
    NONE,
    Args,
    ConstVar,
    DictVar,
    Kwargs,
    ListVar,
    ObjectVar,
    TensorVar,
    Tracker,
    TupleVar,
)

# --- what torch would tell a handler --------------------------------------------------------------------------------


class _Noted(BaseException):
    """The first call that a mode sees."""

    def __init__(self, func: Any, classes: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.func, self.classes, self.args_, self.kwargs = func, classes, args, kwargs


class _Watch(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise _Noted(func, types, args, kwargs)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a handler is called with."""

    func: Any
    classes: tuple[type, ...]
    args: Tracker
    kwargs: Tracker | None


class _StandIns:
    """Values that torch takes for the trackers', and the way back."""

    def __init__(self, cap: Capture) -> None:
        self.cap = cap
        self.trackers: dict[int, tuple[Any, Tracker]] = {}
        self.made = False

    def of(self, tracker: Tracker) -> Any:
        tracker = self.cap.realize(tracker)
        value = self._value(tracker)
        if type(tracker) is not ConstVar:
            self.trackers[id(value)] = value, tracker
        return value

    def _value(self, tracker: Tracker) -> Any:
        kind = type(tracker)
        if kind is ConstVar and isinstance(tracker.value, type):  # type: ignore[attr-defined]
            return tracker.value  # type: ignore[attr-defined]
        if kind is TupleVar:
            return tuple([self.of(item) for item in tracker.items])  # type: ignore[attr-defined]
        if kind is ListVar:
            return [self.of(item) for item in tracker.items]  # type: ignore[attr-defined]
        if kind is TensorVar and tracker.cls not in PLAIN_TENSORS:  # type: ignore[attr-defined]
            self.made = True
            fake = tracker.fake  # type: ignore[attr-defined]
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                return torch.empty((1,) * fake.dim(), dtype=fake.dtype).as_subclass(tracker.cls)  # type: ignore[attr-defined]
        if kind is ObjectVar and tracker.payload is None and defines(self.cap, tracker.cls):  # type: ignore[attr-defined]
            self.made = True
            try:
                return object.__new__(tracker.cls)  # type: ignore[attr-defined]
            except TypeError:
                detail = f"a {tracker.cls.__name__} with a __torch_function__"  # type: ignore[attr-defined]
                raise Break("unsupported-object", detail) from None
        return to_graph(self.cap, tracker)[1]

    def back(self, value: Any) -> Tracker:
        known = self.trackers.get(id(value))
        if known is not None:
            return known[1]
        if type(value) is tuple:
            return TupleVar([self.back(item) for item in value])
        if type(value) is list:
            return ListVar([self.back(item) for item in value])
        if type(value) is dict:
            return DictVar({key: self.back(item) for key, item in value.items()})
        if isinstance(value, torch.Tensor):
            known_fake = self.cap.fakes.get(id(value))
            if known_fake is None:
                raise Break("unsupported-tensor-subclass", "a tensor that torch made before its handlers ran")
            return known_fake
        return self.cap.from_python(value)


def seen_by_mode(cap: Capture, func: Any, classes: Any, args: Any, kwargs: Any) -> Seen:
    """What a mode is called with in a call on fakes that the capture knows."""
    back = _StandIns(cap).back
    return Seen(func, tuple(classes), back(tuple(args)), None if kwargs is None else back(kwargs))


def _note(cap: Capture, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Seen | None:
    """What the first handler would be called with in ``fn(*args, **kwargs)``; None where none would be called."""
    stand_ins = _StandIns(cap)
    given = [stand_ins.of(arg) for arg in args]
    named = {name: stand_ins.of(arg) for name, arg in kwargs.items()}
    off = torch._C.DisableTorchFunctionSubclass if cap.functions_off == 1 else nullcontext
    faking = nullcontext() if cap.is_faking else cap.fake_mode
    try:
        with faking, torch._C._EnableTorchFunction(), off(), _Watch():
            fn(*given, **named)
    except _Noted as noted:
        kwargs_seen = None if noted.kwargs is None else stand_ins.back(noted.kwargs)
        return Seen(noted.func, tuple(noted.classes), stand_ins.back(tuple(noted.args_)), kwargs_seen)
    except Exception:  # without a handler; what it means is found out on fakes alone
        return None
    if not stand_ins.made and any(isinstance(value, torch.Tensor) for value in given):
        raise Break(
            "unsupported-tensor-subclass", f"{getattr(fn, '__name__', fn)} under a mode that does not see it"
        )
    return None


def handled(cap: Capture, target: Any, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Tracker | None:
    """What the handlers of ``fn(*args, **kwargs)`` give; None where it runs as it is. ``target``: what is called."""
    if not is_seen(cap, target, (*args, *kwargs.values())):
        return None
    seen = _note(cap, fn, args, kwargs)
    if seen is None:
        return None
    whole = getattr(torch.Tensor, target, None) if isinstance(target, str) else target
    if isinstance(whole, types.FunctionType) and seen.func is not whole:  # what it calls is seen, it is not
        if whole.__module__ not in LEAF_MODULES:
            raise Break(
                "unsupported-tensor-subclass", f"{whole.__qualname__}, parts of which a handler may see"
            )
        return inline(cap, ConstVar.known(whole), args, kwargs)
    return run_handlers(cap, seen)


def run_handlers(cap: Capture, seen: Seen) -> Tracker:
    """The innermost mode's answer, or that of the first class that has one."""
    func = ConstVar.known(seen.func, getattr(seen.func, "__name__", "function"))
    classes = TupleVar([ConstVar.known(cls) for cls in seen.classes])
    given: Args = [func, classes, seen.args, *([seen.kwargs] if seen.kwargs is not None else [])]
    if cap.modes and cap.functions_off != 2:
        mode = cap.modes.pop()
        try:
            answer = call(cap, get_attr(cap, mode, "__torch_function__"), given, {})
        finally:
            cap.modes.append(mode)
        if not _declines(answer):
            return answer
        raise Break("unsupported-tensor-subclass", "a mode that answers NotImplemented")
    for cls in seen.classes:
        holder = _first_of(cap, cls, [seen.args, *([seen.kwargs] if seen.kwargs is not None else [])])
        if holder is None or not defines(cap, cls):
            continue
        bound = bind_descriptor(
            cap, cap.type_attr(cls, "__torch_function__"), holder, cls, "__torch_function__"
        )
        assert bound is not None
        answer = call(cap, bound, given, {})
        if not _declines(answer):
            return answer
    raise Break("unsupported-tensor-subclass", "every __torch_function__ answers NotImplemented")


def _declines(answer: Tracker) -> bool:
    return type(answer) is ConstVar and answer.value is NotImplemented


def _first_of(cap: Capture, cls: type, values: Args) -> Tracker | None:
    for value in map(cap.realize, values):
        if type(value) in (TupleVar, ListVar):
            found = _first_of(cap, cls, value.items)  # type: ignore[attr-defined]
        elif type(value) is DictVar:
            found = _first_of(cap, cls, list(value.known.values()))
        else:
            found = value if type(value) in (TensorVar, ObjectVar) and python_type(value) is cls else None
        if found is not None:
            return found
    return None


# --- torch's own handlers -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _off(cap: Capture, state: int) -> Iterator[None]:
    before, cap.functions_off = cap.functions_off, max(state, cap.functions_off)
    try:
        yield
    finally:
        cap.functions_off = before


def retyped(cap: Capture, tensor: TensorVar, cls: type) -> TensorVar:
    """``tensor.as_subclass(cls)``."""
    if not is_modelled(cls):
        raise Break("unsupported-tensor-subclass", f"a {cls.__name__} made in the captured code")
    alias = torch.ops.aten.alias.default
    with _off(cap, 2):
        made = cap.emit("call_function", alias, [tensor], {}, alias)
    assert type(made) is TensorVar
    made.cls = cls
    return made


def _converted(cap: Capture, value: Tracker, cls: type) -> Tracker:
    """``torch._tensor._convert``."""
    value = cap.realize(value)
    kind = type(value)
    if kind is TensorVar:
        return value if issubclass(value.cls, cls) else retyped(cap, value, cls)  # type: ignore[attr-defined, arg-type]
    if kind in (TupleVar, ListVar):
        return kind([_converted(cap, item, cls) for item in value.items])  # type: ignore[attr-defined, call-arg]
    if kind is ObjectVar and type(value.payload) is TupleVar:  # type: ignore[attr-defined]
        made = ObjectVar(value.cls)  # type: ignore[attr-defined]
        made.payload = _converted(cap, value.payload, cls)  # type: ignore[attr-defined]
        return made
    return value


def _optional(cap: Capture, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments and keyword arguments that a handler was passed as its last two."""
    passed = cap.realize(args[3] if len(args) > 3 else kwargs.get("args", TupleVar([])))
    named = cap.realize(args[4] if len(args) > 4 else kwargs.get("kwargs", NONE))
    if type(named) is DictVar:
        cap.complete(named)
        return sequence_items(cap, passed), {str(name): value for name, value in named.known.items()}
    return sequence_items(cap, passed), {}


@rule(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]
def _default_handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    cls, classes = cap.value_of(args[0]), cap.value_of(args[2])
    if not all(issubclass(cls, other) for other in classes):
        return ConstVar(NotImplemented)
    passed, named = _optional(cap, args, kwargs)
    func = cap.realize(args[1])
    with _off(cap, 1):
        result = call(cap, func, passed, named)
    if type(func) is ConstVar and func.value in get_default_nowrap_functions():
        return result
    return result if cls is torch.Tensor else _converted(cap, result, cls)


@rule(DeviceContext.__torch_function__)
def _device_handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    passed, named = _optional(cap, args, kwargs)
    func = cap.realize(args[1])
    given = cap.realize(named.get("device", NONE))
    if type(func) is ConstVar and func.value in _device_constructors() and _is_none(given):
        named["device"] = get_attr(cap, args[0], "device")
    return call(cap, func, passed, named)


def _is_none(value: Tracker) -> bool:
    return type(value) is ConstVar and value.value is None


# --- helpers of torch.overrides -------------------------------------------------------------------------------------


@rule(torch._C._has_torch_function)
def _has_torch_function(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(is_seen(cap, torch.relu, args))


@rule(torch._C._has_torch_function_unary, torch._C._has_torch_function_variadic)
def _has_torch_function_of(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    seen = mode_sees(cap, torch.relu) or (
        not cap.functions_off and any(_defines_itself(cap, arg) for arg in args)
    )
    return ConstVar(seen)


def _defines_itself(cap: Capture, value: Tracker) -> bool:
    value = cap.realize(value)
    return type(value) in (TensorVar, ObjectVar) and overrides(cap, value)


@rule(handle_torch_function)
def _handle(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    stand_ins = _StandIns(cap)
    with torch._C._EnableTorchFunction():
        relevant = _get_overloaded_args(stand_ins.of(args[1]))
    classes = tuple(map(type, relevant))
    seen = Seen(cap.value_of(args[0]), classes, TupleVar(list(args[2:])), DictVar(dict(kwargs)))
    return run_handlers(cap, seen)


# --- the stack of modes ---------------------------------------------------------------------------------------------


class ModeStack(Tracker):
    """Stands for torch's stack of modes where the region leaves it changed: ``before`` is what it was."""

    __slots__ = ("before",)

    def __init__(self, before: Args) -> None:
        self.before = before
        self.source = None


def _changing(cap: Capture) -> None:
    if cap.mode_stack is None:
        cap.mode_stack = ModeStack(list(cap.modes))


def _changed(cap: Capture) -> None:
    stack = cap.mode_stack
    same = len(stack.before) == len(cap.modes) and all(a is b for a, b in zip(stack.before, cap.modes))
    if same:
        cap.changed.pop(id(stack), None)
    else:
        cap.mark_changed(stack)


def push_mode(cap: Capture, mode: Tracker) -> None:
    _changing(cap)
    cap.modes.append(mode)
    _changed(cap)


def pop_mode(cap: Capture) -> Tracker:
    if not cap.modes:
        raise Break("context-manager", "a mode is left, and none is active")
    _changing(cap)
    mode = cap.modes.pop()
    _changed(cap)
    return mode


def _mode_effect(residual: Residual, stack: ModeStack) -> list[str]:
    now, before = residual.cap.modes, stack.before
    kept = 0
    while kept < min(len(now), len(before)) and now[kept] is before[kept]:
        kept += 1
    pop, push = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack
    lines = [f"{residual.constant(pop)}()"] * (len(before) - kept)
    return lines + [f"{residual.constant(push)}({residual.expr(mode)})" for mode in now[kept:]]


EFFECTS[ModeStack] = _mode_effect


@rule(torch._C._push_on_torch_function_stack)
def _push(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    mode = cap.realize(args[0])
    if type(mode) is not ObjectVar:
        raise Break("context-manager", "a mode that capture does not know")
    push_mode(cap, mode)
    return NONE


@rule(torch._C._pop_torch_function_stack)
def _pop(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return pop_mode(cap)


@rule(torch._C._len_torch_function_stack)
def _length(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(len(cap.modes))


@rule(torch._C._get_function_stack_at)
def _at(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return cap.modes[cap.value_of(args[0])]


@rule(torch._C._is_torch_function_mode_enabled)
def _enabled(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(bool(cap.modes) and cap.functions_off != 2)


@rule(torch.device.__enter__)
def _enter_device(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    push_mode(cap, device_mode(args[0]))
    return args[0]


@rule(torch.device.__exit__)
def _leave_device(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    pop_mode(cap)
    return NONE


# --- handlers switched off ------------------------------------------------------------------------------------------

_STATES = {torch._C.DisableTorchFunctionSubclass: 1, torch._C.DisableTorchFunction: 2}


def _register_switch(cls: Any, state: int) -> None:
    OBJECT_BUILDERS[cls] = lambda residual, switch: f"{residual.constant(cls)}()"

    @rule(cls)
    def make(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        return ObjectVar(cls)

    @rule(cls.__enter__)
    def enter(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        switch = args[0]
        if type(switch) is not ObjectVar or id(switch) in cap.entered:
            raise Break("context-manager", f"{cls.__name__} that is entered already")
        switch.slots["before"] = ConstVar(cap.functions_off)
        cap.entered[id(switch)] = cap.break_step()
        cap.functions_off = max(state, cap.functions_off)
        return NONE

    @rule(cls.__exit__)
    def leave(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        if cap.entered.pop(id(args[0]), None) is None:
            raise Break("context-manager", "the end of a context that was entered outside")
        cap.functions_off = cap.value_of(args[0].slots.pop("before"))  # type: ignore[attr-defined]
        return NONE


for _switch, _state in _STATES.items():
    _register_switch(_switch, _state)


# --- tensors of other classes made in captured code -----------------------------------------------------------------


def _class_of(cap: Capture, value: Tracker) -> Any:
    try:
        return cap.value_of(value)
    except NotConst:
        raise Break("unsupported-tensor-subclass", "a class that is not a constant") from None


def _as_subclass(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    tensor = cap.realize(args[0])
    assert type(tensor) is TensorVar
    return retyped(cap, tensor, _class_of(cap, args[1] if len(args) > 1 else kwargs["cls"]))


del BREAKING_TENSOR_METHODS["as_subclass"]
TENSOR_METHODS["as_subclass"] = _as_subclass


@rule(torch.Tensor._make_subclass)
def _make_subclass(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    cls, data = _class_of(cap, args[0]), cap.realize(args[1])
    wanted = cap.realize(args[2] if len(args) > 2 else kwargs.get("require_grad", ConstVar(False)))
    if (
        not is_modelled(cls)
        or type(data) is not TensorVar
        or kwargs.keys() - {"require_grad"}
        or len(args) > 3
    ):
        raise Break("unsupported-tensor-subclass", f"a {cls.__name__} made in the captured code")
    with _off(cap, 2):
        made = cap.emit("call_method", "detach", [data], {}, lambda t: t.detach())
        assert type(made) is TensorVar
        if cap.value_of(wanted):
            cap.emit("call_method", "requires_grad_", [made], {}, lambda t: t.requires_grad_())
    made.cls = cls
    return made


def new_tensor(cap: Capture, cls: type, args: Args, kwargs: Kwargs) -> Tracker:
    """``torch.Tensor.__new__(cls, tensor)``."""
    data = cap.realize(args[0]) if len(args) == 1 and not kwargs else None
    if type(data) is not TensorVar or issubclass(cls, torch.nn.Parameter):
        raise Break("unsupported-object", f"a {cls.__name__} made in the captured code")
    return retyped(cap, data, cls)


@rule(torch._C.TensorBase.__new__)
def _new(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return new_tensor(cap, _class_of(cap, args[0]), args[1:], kwargs)


# --- accessors of attributes ----------------------------------------------------------------------------------------


def call_accessor(cap: Capture, accessor: types.MethodWrapperType, args: Args) -> Tracker | None:
    """``torch.Tensor.shape.__get__(x)`` and the like: how a handler reads and sets what it was asked for."""
    from .attribute_writes import set_attr

    owner = accessor.__self__
    if getattr(owner, "__objclass__", None) is not torch._C.TensorBase or not args:
        return None
    tensor, name = cap.realize(args[0]), owner.__name__  # type: ignore[attr-defined]
    if type(tensor) is not TensorVar:
        raise Break("unsupported-tensor-subclass", f"{name} of something other than a tensor")
    found = handled(cap, accessor, accessor, args, {})
    if found is not None:
        return found
    if accessor.__name__ == "__get__":
        return tensor_attr(cap, tensor, name)
    if accessor.__name__ == "__set__":
        set_attr(cap, tensor, name, args[1])
        return NONE
    return None
