"""Which `out=` calls do exactly what the functional form and a copy would do.

In: an `out=` operator with its arguments. Out: nothing, or Unsupported: then the call runs in eager.
Always: a row of `OWN_RULES` was found by comparing the real kernel with its functional form over torch's OpInfos.
"""

from __future__ import annotations

from typing import Any

import torch

from .errors import Unsupported
from .ops import OpInfo, Tag
from .spec import Spec
from .tensor import FakeTensor, fakes_in

# Kernels that give the output other strides, resize it for a moment, or write past its strides; by name, because
# not every release of torch has them all.
OWN_RULES = frozenset(
    (
        "aten::_fft_c2c.out",
        "aten::_fft_c2r.out",
        "aten::_fft_r2c.out",
        "aten::avg_pool3d.out",
        "aten::cholesky.out",
        "aten::cholesky_inverse.out",
        "aten::cholesky_solve.out",
        "aten::gelu.out",
        "aten::geqrf.a",
        "aten::linalg_eig.out",
        "aten::linalg_eigvals.out",
        "aten::linalg_householder_product.out",
        "aten::linalg_lu.out",
        "aten::linear.out",
        "aten::log_sigmoid_forward.output",
        "aten::lu_unpack.out",
        "aten::narrow_copy.out",
        "aten::normal.Tensor_float_out",
        "aten::normal.float_Tensor_out",
        "aten::ormqr.out",
        "aten::triangular_solve.X",
    )
)


def require_regular_out(info: OpInfo, targets: dict[Any, Any], args: tuple, kwargs: dict) -> None:
    """Raises: Unsupported where eager's kernel may do something else, or raise."""
    if Tag.out not in info.func.tags:
        return
    if info.name in OWN_RULES:
        raise Unsupported(info.name, "writes its output by rules of its own")
    inputs = _inputs(info, args, kwargs)
    pointwise = torch.Tag.pointwise in info.func.tags
    for target in targets.values():
        if type(target) is FakeTensor:
            if _repeats(target.spec):
                raise Unsupported(info.name, "writes a tensor that overlaps itself")
            if any(_shared(target, a, pointwise) for a in inputs):
                raise Unsupported(info.name, "reads memory that it also writes")


def _inputs(info: OpInfo, args: tuple, kwargs: dict) -> list[Any]:
    names = {name for _, name in info.writes}
    return [*args, *(v for k, v in kwargs.items() if k not in names)]


def require_apart(info: OpInfo, resized: list[FakeTensor], args: tuple, kwargs: dict) -> None:
    """Raises: Unsupported where an output that would be resized is an input too: eager's kernel then raises."""
    inputs = fakes_in(_inputs(info, args, kwargs), []) if resized else []
    if any(f is a for f in resized for a in inputs):
        raise Unsupported(info.name, "resizes a tensor that it reads")


def _repeats(spec: Spec) -> bool:
    return any(s == 0 and n > 1 for s, n in zip(spec.stride, spec.shape, strict=True))


def _shared(target: FakeTensor, a: Any, pointwise: bool) -> bool:
    if type(a) is list or type(a) is tuple:
        return any(_shared(target, v, pointwise) for v in a)
    if type(a) is not FakeTensor or a.home is not target.home:
        return False
    return not (pointwise and a.spec is target.spec)


def require_casts(target: Any, result: Any) -> None:
    """Eager's refusal to write floats into integers, numbers into bools, in tensors or lists of tensors."""
    if isinstance(target, (list, tuple)):
        for t, r in zip(target, result, strict=False):
            require_casts(t, r)
    elif type(target) is FakeTensor:
        found, wanted = result.dtype, target.dtype
        if found != wanted and not torch.can_cast(found, wanted):
            texts = [str(d).removeprefix("torch.") for d in (found, wanted)]
            raise RuntimeError("result type {} can't be cast to the desired output type {}".format(*texts))


def require_dtypes(info: OpInfo, targets: dict[Any, Any], results: Any) -> None:
    """Each kernel has rules of its own for an output of another dtype than the result's. Raises: Unsupported."""
    recipes = results if isinstance(results, (tuple, list)) else (results,)
    for target, spec in zip(targets.values(), recipes, strict=False):
        if type(target) is FakeTensor and type(spec) is Spec and target.spec.dtype != spec.dtype:
            raise Unsupported(info.name, f"writes {spec.dtype} into a tensor of {target.spec.dtype}")
