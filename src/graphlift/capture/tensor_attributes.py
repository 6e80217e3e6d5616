"""Attributes that captured code sets on tensors: its own, `.grad`, `.data` and `requires_grad`.

In: assignments and reads on tensor trackers. Out: effects to replay after the graph, or nodes where autograd looks on.
Always: what was set is what is read; torch's own checks of the value are made on fakes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from ..guards import ABSENT
from .attributes import is_data_descriptor
from .breaks import Break
from .calls import BREAKING_TENSOR_METHODS, TENSOR_METHODS
from .capture import Capture, NotConst
from .graph import GraphBuilder
from .hook_rules import register_hook
from .rerun import MADE
from .residual import EFFECTS
from .trackers import ConstVar, TensorVar, Tracker


def set_data(tensor: Tensor, value: Tensor) -> None:
    """``tensor.data = value``."""
    tensor.data = value


def number_of(tensor: Tensor) -> int | float:
    """The number in a tensor, while a graph runs."""
    return tensor.item()  # type: ignore[return-value]


MADE[number_of] = ()  # it only computes


def _set_grad(cap: Capture, tensor: TensorVar, value: Tracker) -> None:
    if type(value) is not TensorVar and not (type(value) is ConstVar and value.value is None):
        raise Break("attribute-mutation", "grad of a tensor set to something other than a tensor")
    with nullcontext() if cap.is_faking else cap.fake_mode:
        try:
            tensor.fake.grad = value.fake if type(value) is TensorVar else None
        except (RuntimeError, TypeError) as error:
            raise Break("exception-raised", f"{type(error).__name__}: {error}") from error
    _remember(cap, tensor, "grad", value)


def _set_data(cap: Capture, tensor: TensorVar, value: Tracker) -> None:
    if type(value) is not TensorVar or tensor.cls is not torch.Tensor and tensor.source is None:
        raise Break("attribute-mutation", "data of a tensor")
    cap.emit("call_function", set_data, [tensor, value], {}, set_data)


def _set_requires_grad(cap: Capture, tensor: TensorVar, value: Tracker) -> None:
    requires_grad(cap, [tensor, value], {})


#: What an assignment to an attribute of the tensor's own does.
SETTERS: dict[str, Callable[[Capture, TensorVar, Tracker], None]] = {
    "grad": _set_grad,
    "data": _set_data,
    "requires_grad": _set_requires_grad,
}


def set_tensor_attr(cap: Capture, tensor: TensorVar, name: str, value: Tracker) -> None:
    """``tensor.name = value``."""
    value = cap.realize(value)
    setter = SETTERS.get(name)
    if setter is not None:
        setter(cap, tensor, value)
        return
    raw = cap.type_attr(tensor.cls, name)
    if raw is not ABSENT and is_data_descriptor(raw):
        raise Break("attribute-mutation", f"{name} of a tensor")
    _remember(cap, tensor, name, value)


def _remember(cap: Capture, tensor: TensorVar, name: str, value: Tracker) -> None:
    cap.tensor_attrs.setdefault(id(tensor), {})[name] = value
    cap.mark_changed(tensor)


EFFECTS[TensorVar] = lambda residual, tensor: residual.attributes(tensor, residual.expr(tensor))


def requires_grad(cap: Capture, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
    """``tensor.requires_grad_(wanted)``: nothing where it is so already, but that transforms of functions refuse it."""
    tensor = cap.realize(args[0])
    assert type(tensor) is TensorVar
    try:
        wanted = cap.value_of(args[1] if len(args) > 1 else kwargs.get("requires_grad", ConstVar(True)))
    except NotConst:
        raise Break("tensor-item", "requires_grad_() of a value that is not a constant") from None
    already = bool(tensor.fake.requires_grad) == wanted and (wanted or tensor.fake.is_leaf)
    if already and type(cap.builder) is GraphBuilder:
        return tensor
    return cap.emit(
        "call_method", "requires_grad_", [tensor, ConstVar(wanted)], {}, lambda t, w: t.requires_grad_(w)
    )


def _detach(cap: Capture, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
    return cap.emit("call_method", "detach_", args, kwargs, lambda t: t.detach_())


def _resizes(name: str) -> Callable[[Capture, list[Tracker], dict[str, Tracker]], Tracker]:
    """Memory for what the region made without contents, as in `x.new().resize_(2, 3)`."""

    def method(cap: Capture, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        tensor = cap.realize(args[0])
        assert type(tensor) is TensorVar
        fake = tensor.fake
        if tensor.node.op == "placeholder" or fake.home.nbytes != 0 or fake.requires_grad:
            raise Break("unsupported-call", f"Tensor.{name}", at_once=True)
        return cap.emit("call_method", name, args, kwargs, lambda t, *a, **k: getattr(t, name)(*a, **k))

    return method


for _name, _method in (
    ("resize_", _resizes("resize_")),
    ("resize_as_", _resizes("resize_as_")),
    ("requires_grad_", requires_grad),
    ("detach_", _detach),
    ("register_hook", register_hook),
):
    del BREAKING_TENSOR_METHODS[_name]
    TENSOR_METHODS[_name] = _method
