"""Attributes of tensors, as captured code reads them: torch's own, those of subclasses, those set on one tensor.

In: a tensor's tracker and a name. Out: the tracker of the attribute, or None.
Always: what the guard on a tensor's metadata leaves open is guarded where it is read.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from ..guards import (
    ABSENT,
    Call,
    DictItem,
    Equals,
    HasKey,
    IdIs,
    InstanceDict,
    Slot,
    Source,
    TensorGrad,
    gives,
)
from .attributes import C_METHODS, FINDERS, bind_descriptor, is_data_descriptor, wrap_class_value
from .breaks import Break
from .calls import TENSOR_METHODS
from .capture import Capture
from .overriding import PLAIN_TENSORS, defines, is_customized, untouched
from .reordered import put_off_warning
from .trackers import NONE, Args, ConstVar, Kwargs, MethodVar, TensorVar, Tracker

TENSOR_VALUES = frozenset(
    "shape dtype device ndim requires_grad is_leaf layout is_cuda is_cpu is_sparse is_quantized is_mkldnn is_mps is_xpu "
    "is_sparse_csr is_nested is_meta itemsize nbytes is_vulkan is_xla is_ipu is_maia retains_grad output_nr name".split()
)
#: Those of them that the guard on a tensor's metadata leaves open.
_UNGUARDED_VALUES = frozenset(("is_leaf", "retains_grad", "output_nr"))
_OF_HISTORY = _UNGUARDED_VALUES | {"requires_grad", "grad_fn"}
TENSOR_VIEWS = frozenset("T mT H mH real imag data".split())


def _tensor_attr(cap: Capture, obj: TensorVar, name: str) -> Tracker | None:
    if cap.modes or obj.cls not in PLAIN_TENSORS:
        raw = cap.type_attr(obj.cls, name)
        if isinstance(raw, types.GetSetDescriptorType) and name != "__class__":
            from .override_rules import handled

            if name not in TENSOR_VALUES or is_customized(cap, obj):
                found = handled(cap, name, getattr, [obj, ConstVar(name)], {})
                if found is not None:
                    return found
        elif raw is not ABSENT and raw is not cap.type_attr(torch.Tensor, name) and name != "__dict__":
            own = instance_attr(cap, obj, name) if not is_data_descriptor(raw) else None
            return own if own is not None else bind_descriptor(cap, raw, obj, obj.cls, name)
    return tensor_attr(cap, obj, name)


def instance_attr(cap: Capture, obj: TensorVar, name: str) -> Tracker | None:
    """What the tensor itself has under a name."""
    own = cap.tensor_attrs.get(id(obj), {}).get(name)
    real = _real_of(cap, obj)
    if own is not None or real is None or obj.source is None:
        return own
    if cap.late is not None:
        cap.late.source(DictItem(InstanceDict(obj.source), name))
    if name in real.__dict__:
        return cap.wrap(real.__dict__[name], DictItem(InstanceDict(obj.source), name))
    cap.guard(HasKey(InstanceDict(obj.source), name, False))
    return None


def tensor_attr(cap: Capture, obj: TensorVar, name: str) -> Tracker | None:
    """An attribute that torch gives tensors, where no handler is to see that it is read."""
    own = cap.tensor_attrs.get(id(obj))
    if own is not None and ("grad" if name == "_grad" else name) in own:
        return own["grad" if name == "_grad" else name]
    cap.history_asked += name in _OF_HISTORY
    if name in TENSOR_VALUES:
        if name in _UNGUARDED_VALUES and obj.source is not None:
            _require_readable(cap, obj, name)
            found = getattr(_real_of(cap, obj), name)
            cap.guard(Equals(Slot(obj.source, name), found))
            if name == "retains_grad":  # which a fake never does
                return ConstVar(found)
        if name == "nbytes":
            return cap.size_var(obj.fake.spec.numel() * obj.fake.dtype.itemsize)
        return cap.from_python(getattr(obj.fake, name))
    if name in TENSOR_VIEWS:
        return cap.emit("call_function", getattr, [obj, ConstVar(name)], {}, getattr)
    if name == "__class__":
        return ConstVar(obj.cls)
    if name in ("grad", "_grad"):
        return _tensor_grad(cap, obj)
    if name == "is_inference":
        return MethodVar(ConstVar(torch.Tensor.is_inference), obj)
    raw = cap.type_attr(obj.cls, name)
    if isinstance(raw, (types.FunctionType, *C_METHODS)):
        return MethodVar(wrap_class_value(cap, obj.cls, name, raw), obj)
    if name == "volatile":
        put_off_warning(cap, [ConstVar("volatile was removed (Variable.volatile is always False)")], {})
        return ConstVar(False)
    real, found = _real_of(cap, obj), instance_attr(cap, obj, name)
    if found is not None or raw is ABSENT:
        return found
    _require_readable(cap, obj, name)
    if name == "grad_fn" and obj.fake.grad_fn is None:
        if real is not None and obj.source is not None:
            cap.guard(IdIs(Slot(obj.source, "grad_fn"), None))
        return NONE
    if name == "grad_fn" and obj.source is None:
        raise Break("grad-fn-read", "grad_fn of a tensor made in the captured code")
    raise Break("unsupported-attribute", f"{name} of a tensor")


def _real_of(cap: Capture, obj: TensorVar) -> torch.Tensor | None:
    if obj.source is None:
        return None
    return cap.builder.input_tensors[cap.builder.input_sources.index(obj.source)]


def _require_readable(cap: Capture, obj: TensorVar, name: str) -> None:
    """Guards read it too, and are to run no code of the program's. Raises: Break where that would run some."""
    if obj.source is not None and defines(cap, obj.cls):
        raise Break("unsupported-tensor-subclass", f"{name} of a {obj.cls.__name__} made outside")


def _tensor_grad(cap: Capture, obj: TensorVar) -> Tracker:
    _require_readable(cap, obj, "grad")
    real = _real_of(cap, obj)
    if real is None or obj.source is None:
        raise Break("unsupported-attribute", "grad of a tensor made in the captured code")
    if cap.late is not None:
        cap.late.source(TensorGrad(obj.source))
    if real.grad is None:
        cap.guard(IdIs(TensorGrad(obj.source), None))
        return NONE
    return cap.wrap(real.grad, TensorGrad(obj.source))


# --- methods that tell where a tensor lies -------------------------------------------------------------------


def _storage_offset(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """Where in its storage a tensor starts: a view of an input, as far from the input's own start as captured."""
    obj = cap.realize(args[0])
    assert type(obj) is TensorVar
    for (fake, _), source, real in zip(
        cap.builder.input_versions, cap.builder.input_sources, cap.builder.input_tensors
    ):
        if fake.home is obj.fake.home:  # type: ignore[attr-defined]
            _answer(cap, cap.fakes[id(fake)], source, real, torch.Tensor.storage_offset)
    return cap.size_var(obj.fake.spec.offset)


def _is_view(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    obj = cap.realize(args[0])
    assert type(obj) is TensorVar
    real = _real_of(cap, obj)
    if real is None or obj.source is None:
        return ConstVar(obj.fake._is_view())
    return ConstVar(_answer(cap, obj, obj.source, real, torch.Tensor._is_view))


def _answer(cap: Capture, obj: Tracker, source: Source, real: torch.Tensor, method: Any) -> Any:
    """What a method of torch's says of an input, of which the metadata does not tell; guarded."""
    assert type(obj) is TensorVar
    _require_readable(cap, obj, method.__name__)
    if cap.late is not None:
        raise Break("unsupported-attribute", f"{method.__name__} in a function that autograd calls")
    with untouched(real):
        found = method(real)
    cap.guard(gives(Call(method, source), found, f"{source.name()}.{method.__name__}() == {found}"))
    return found


TENSOR_METHODS["storage_offset"] = _storage_offset
TENSOR_METHODS["_is_view"] = _is_view
FINDERS[TensorVar] = _tensor_attr
