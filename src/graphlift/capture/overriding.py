"""Who gets to see calls of torch's functions: classes that define `__torch_function__`, and the modes on the stack.

In: trackers that a call of torch gets. Out: whether something is to see it before it runs.
Always: plain tensors outside of any mode are told apart without a lookup.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._device import DeviceContext, _device_constructors

from ..guards import ABSENT, FunctionMode, GlobalState
from .trackers import NONE, ConstVar, DictVar, ListVar, ObjectVar, TensorVar, Tracker, TupleVar

if TYPE_CHECKING:
    from .capture import Capture

#: Python functions of these modules are single graph nodes, called on fakes as they are.
LEAF_MODULES = frozenset(
    {"torch.nn.functional", "torch.functional", "torch._tensor", "torch._refs", "torch.special"}
)
#: Classes of tensors that torch itself treats as plain ones.
PLAIN_TENSORS: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_DISABLED = torch._C._disabled_torch_function_impl
_DEFAULT = torch.Tensor.__dict__["__torch_function__"]
_DISPATCH = torch.Tensor.__dict__["__torch_dispatch__"]
#: What classes of tensors may define and capture still knows how they behave.
_HARMLESS = frozenset(
    "__module__ __doc__ __init__ __new__ __torch_function__ __torch_dispatch__ __repr__ __str__ __format__ __dict__ "
    "__weakref__ __annotations__ __init_subclass__ __reduce__ __reduce_ex__ __setstate__ __getstate__ __deepcopy__ "
    "__copy__ __qualname__ __firstlineno__ __static_attributes__ __orig_bases__ __parameters__ __slotnames__".split()
)


def is_modelled(cls: type) -> bool:
    """Whether tensors of a class are tensors of torch's as far as operators go, and special methods are torch's own."""
    if cls in PLAIN_TENSORS:
        return True
    if issubclass(cls, torch.nn.parameter.UninitializedTensorMixin):
        return False
    for base in cls.__mro__:
        if base in (torch.Tensor, torch.nn.Parameter):
            return True
        names = vars(base)
        if names.get("__torch_dispatch__", _DISPATCH) is not _DISPATCH or "__slots__" in names:
            return False
        if any(name.startswith("__") and name.endswith("__") and name not in _HARMLESS for name in names):
            return False
    return False


def defines(cap: Capture, cls: type) -> bool:
    """Whether calls that get an instance of the class go to its ``__torch_function__``."""
    if cls in PLAIN_TENSORS:
        return False
    raw = cap.type_attr(cls, "__torch_function__")
    return raw is not ABSENT and raw is not _DISABLED


def overrides(cap: Capture, value: Tracker) -> bool:
    """Whether a value, or one inside it, has a say in calls that get it."""
    value = cap.realize(value)
    kind = type(value)
    if kind is TensorVar:
        return value.cls not in PLAIN_TENSORS and defines(cap, value.cls)  # type: ignore[attr-defined]
    if kind in (TupleVar, ListVar):
        return any(overrides(cap, item) for item in value.items)  # type: ignore[attr-defined]
    if kind is DictVar:
        return any(overrides(cap, item) for item in value.known.values())  # type: ignore[attr-defined]
    if kind is ObjectVar:
        payload = value.payload  # type: ignore[attr-defined]
        return overrides(cap, payload) if payload is not None else defines(cap, value.cls)  # type: ignore[attr-defined]
    return False


def mode_sees(cap: Capture, target: Any) -> bool:
    """Whether an active mode has something to do with a call of ``target``; a device only has with factories."""
    if not cap.modes or cap.functions_off == 2:
        return False
    if any(type(mode) is not ObjectVar or mode.cls is not DeviceContext for mode in cap.modes):
        return True
    if isinstance(target, types.FunctionType):
        return target.__module__ in LEAF_MODULES
    try:
        return target in _device_constructors()
    except TypeError:
        return False


def is_seen(cap: Capture, target: Any, args: Iterable[Tracker]) -> bool:
    """Whether a call of torch with these arguments goes to a mode, or to one of the arguments' classes, first."""
    if cap.modes and mode_sees(cap, target):
        return True
    return not cap.functions_off and any([overrides(cap, arg) for arg in args])


def is_customized(cap: Capture, tensor: TensorVar) -> bool:
    """Whether what Python's own protocols do with the tensor is seen by code of the program's."""
    if cap.modes and mode_sees(cap, None):
        return True
    if cap.functions_off or tensor.cls in PLAIN_TENSORS or not defines(cap, tensor.cls):
        return False
    return cap.type_attr(tensor.cls, "__torch_function__") is not _DEFAULT


def active_modes() -> list[Any]:
    """The modes that are active for real, the innermost last."""
    return [torch._C._get_function_stack_at(k) for k in range(torch._C._len_torch_function_stack())]


def handlers_act() -> bool:
    """Whether modes are active that are more than a default device."""
    return any(type(mode) is not DeviceContext for mode in active_modes())


class _Outside(threading.local):
    """How torch handled `__torch_function__` where `handlers_off` was entered."""

    state: Any = None


_outside = _Outside()


@contextlib.contextmanager
def handlers_off() -> Iterator[None]:
    """A context in which no mode that is active for real, but for a default device, sees what is done."""
    if not handlers_act():
        yield
        return
    before, _outside.state = _outside.state, torch._C._get_torch_function_state()
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        _outside.state = before


def state_at_entry() -> GlobalState:
    """The global state of the program, outside of `handlers_off`."""
    return GlobalState() if _outside.state is None else GlobalState(function_state=int(_outside.state))


@contextlib.contextmanager
def modes_aside() -> Iterator[None]:
    """A context in which no mode is active for real."""
    modes = active_modes()
    for _ in modes:
        torch._C._pop_torch_function_stack()
    try:
        yield
    finally:
        for mode in modes:
            torch._C._push_on_torch_function_stack(mode)


def mode_tracker(cap: Capture, mode: Any, place: int) -> Tracker:
    """A mode that was entered outside, often one made for that; a default device is known by its device."""
    if type(mode) is not DeviceContext:
        return cap.wrap(mode, FunctionMode(place))
    return device_mode(ConstVar(mode.device))


def device_mode(device: Tracker) -> ObjectVar:
    made = ObjectVar(DeviceContext)
    made.attrs.known.update(device=device, prev_mode=NONE)
    return made


def plain_tensor(value: Any) -> Any:
    """The tensor as an instance of Tensor where its own class has a say in what is done with it."""
    cls = type(value)
    if not issubclass(cls, torch.Tensor) or cls in PLAIN_TENSORS:
        return value
    if cls.__torch_function__ is _DISABLED:
        return value
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        return value.as_subclass(torch.Tensor)


def unseen(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, a graph, on plain tensors and without any handler: those were asked when it was captured."""

    def call(*inputs: Any) -> Any:
        plain = [plain_tensor(value) for value in inputs]
        with torch._C.DisableTorchFunction():
            return run(*plain)

    return call


def untouched(tensor: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which reading the tensor runs no code of its class."""
    return contextlib.nullcontext() if type(tensor) in PLAIN_TENSORS else torch._C.DisableTorchFunction()
