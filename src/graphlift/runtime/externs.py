"""ATen calls of a plan as Python functions of their tensors, and which of them can write into memory of ours.

In: an `ExternCall`. Out: a callable of the referenced tensors, or an `OutForm` for a native ``out=`` call.
Always: the callable does exactly what calling the overload with the step's arguments does.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphlift.data import dataclass
from graphlift.lower.ir import ExternCall, KernelCall, Plan, Ref, TensorSpec, ViewCall
from graphlift.shapes.expr import Expr, contiguous_strides

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class OutForm:
    """A matrix product with an ``out=`` form: the C symbol, its step kind and the same call in Python."""

    symbol: str
    scaled: bool  # takes beta and alpha
    python: Callable[..., Any]
    cost_axes: int


OUT_FORMS: dict[Any, OutForm] = {
    aten.mm.default: OutForm("aoti_torch_cpu_mm_out", False, torch.mm, 2),
    aten.bmm.default: OutForm("aoti_torch_cpu_bmm_out", False, torch.bmm, 3),
    aten.addmm.default: OutForm("aoti_torch_cpu_addmm_out", True, torch.addmm, 2),
    aten.baddbmm.default: OutForm("aoti_torch_cpu_baddbmm_out", True, torch.baddbmm, 3),
}


def _as_strided_scatter(t: torch.Tensor, *args: Any) -> torch.Tensor:
    """Its kernel refuses what requires grad, which is of no meaning here, and is not contiguous."""
    return torch.as_strided_scatter(t.detach(), *args)


# Ways into the same operator that are faster than an OpOverload's Python call; tensors and arguments in schema order.
DIRECT: dict[Any, Callable[..., Any]] = {
    aten.mm.default: torch.mm,
    aten.bmm.default: torch.bmm,
    aten.convolution.default: torch.convolution,
    aten.index_select.default: torch.index_select,
    aten.cumsum.default: torch.cumsum,
    aten.gather.default: torch.gather,
    aten.as_strided_scatter.default: _as_strided_scatter,
}


def arguments(tree: object) -> list[str | Expr]:
    """Names of the tensors and the sizes that vary inside an argument pytree, in order."""
    leaves = pytree.tree_leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Ref))
    return [leaf.name if isinstance(leaf, Ref) else leaf for leaf in leaves if isinstance(leaf, (Ref, Expr))]


def scales(step: ExternCall) -> tuple[float, float]:
    """(beta, alpha) of an addmm or baddbmm."""
    kwargs = dict(step.kwargs)
    return float(kwargs.get("beta", 1)), float(kwargs.get("alpha", 1))


def out_form(plan: Plan, step: ExternCall) -> OutForm | None:
    """The ``out=`` form of a call where using it means the same: plain floats, row-major result of known place."""
    form = OUT_FORMS.get(step.target)
    if form is None or len(step.outputs) != 1 or step.outputs[0] is None:
        return None
    spec = plan.tensors[step.outputs[0]]
    if spec.offset or 0 in spec.shape or spec.stride != contiguous_strides(spec.shape):
        return None
    if not all(isinstance(arg, Ref) for arg in step.args) or len(step.args) != (3 if form.scaled else 2):
        return None
    if any(key not in ("beta", "alpha") or isinstance(value, Expr) for key, value in step.kwargs):
        return None
    dtypes = {plan.tensors[arg.name].dtype for arg in step.args} | {spec.dtype}
    if len(dtypes) != 1 or not spec.dtype.is_floating_point:
        return None
    if any(plan.tensors[other.name].storage == spec.storage for other in step.args):
        return None
    return form


def conforming(plan: Plan, step: ExternCall) -> tuple[Callable[..., Any], list[str | Expr]]:
    """`caller`, with results in the strides of the plan where kernels or views of the plan read them.

    ATen's kernels do not always give the strides that their meta kernels promise; reading by the promise would mix up
    the elements.
    """
    function, names = caller(step)
    read = {n for s in plan.steps if isinstance(s, KernelCall) for n in s.buffers}
    read |= {s.base for s in plan.steps if isinstance(s, ViewCall)}
    specs = [plan.tensors[n] if n in read else None for n in step.outputs]
    if not any(spec is not None and len(spec.shape) > 1 for spec in specs):
        return function, names
    if plan.symbols:
        return _conforming_at(specs, function, names)

    def call(*tensors: torch.Tensor) -> Any:
        result = function(*tensors)
        if isinstance(result, torch.Tensor):
            return _conform(result, _stride(specs[0]))
        return [_conform(r, _stride(spec)) for r, spec in zip_longest(result, specs)]

    return call, names


def _stride(spec: TensorSpec | None) -> tuple[Any, ...] | None:
    return None if spec is None else spec.stride


def _conform(result: Any, stride: tuple[Any, ...] | None) -> Any:
    if stride is None or not isinstance(result, torch.Tensor) or result.stride() == stride:
        return result
    if all(a == b or n == 1 for a, b, n in zip(result.stride(), stride, result.shape, strict=True)):
        return result
    made = torch.empty_strided(result.shape, stride, dtype=result.dtype, device=result.device)
    return made.copy_(result)


def _conforming_at(
    specs: list[TensorSpec | None], function: Callable[..., Any], names: list[str | Expr]
) -> tuple[Callable[..., Any], list[str | Expr]]:
    """`conforming` where strides vary: those of the call come as further arguments."""
    strides: list[str | Expr] = [
        s for spec in specs if spec is not None for s in spec.stride if isinstance(s, Expr)
    ]
    count = len(names)

    def call(*given: Any) -> Any:
        varying = iter(given[count:])
        wanted = [
            None
            if spec is None
            else tuple([next(varying) if isinstance(s, Expr) else s for s in spec.stride])
            for spec in specs
        ]
        result = function(*given[:count])
        if isinstance(result, torch.Tensor):
            return _conform(result, wanted[0])
        return [_conform(r, stride) for r, stride in zip_longest(result, wanted)]

    return call, [*names, *strides]


def caller(step: ExternCall) -> tuple[Callable[..., Any], list[str | Expr]]:
    """A function of the step's distinct tensors and varying sizes, and these in order (tensors by name)."""
    names: list[str | Expr] = list(dict.fromkeys(arguments((step.args, step.kwargs))))
    where = {name: k for k, name in enumerate(names)}
    target = DIRECT.get(step.target) or getattr(step.target, "_op", step.target)
    if all(isinstance(arg, Ref) for arg in step.args) and not step.kwargs:
        if [arg.name for arg in step.args] == names:
            return target, names
    lines = ", ".join(f"t{k}" for k in range(len(names)))
    constants: dict[str, Any] = {"_target": target}
    body = ", ".join(
        [_expression(arg, where, constants) for arg in step.args]
        + [f"{key}={_expression(value, where, constants)}" for key, value in step.kwargs]
    )
    source = f"lambda {lines}: _target({body})"
    return eval(source, constants), names  # our own text, over names we made


def _expression(value: Any, where: dict[str | Expr, int], constants: dict[str, Any]) -> str:
    """Python text of an argument; what has no exact text becomes a named constant."""
    if isinstance(value, Ref):
        return f"t{where[value.name]}"
    if isinstance(value, Expr):
        return f"t{where[value]}"
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):  # fx lists are subclasses of list
        items = ", ".join(_expression(v, where, constants) for v in value)
        return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(value) == 1 else ''})"
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if any(isinstance(leaf, Ref) for leaf in pytree.tree_leaves(value, is_leaf=lambda x: isinstance(x, Ref))):
        raise TypeError(f"a tensor inside {type(value).__name__} cannot be passed to an ATen call")
    name = f"_c{len(constants)}"
    constants[name] = value
    return name


def describe(step: ExternCall) -> str:
    """The call as text: ``aten.addmm.default(bias, x, w)``."""

    def show(value: Any) -> str:
        if isinstance(value, Ref):
            return value.name
        if isinstance(value, (list, tuple)):
            inner = ", ".join(show(v) for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        return repr(value)

    parts = [show(arg) for arg in step.args] + [f"{key}={show(value)}" for key, value in step.kwargs]
    return f"{step.target}({', '.join(parts)})"
