"""Functions whose composite kernel makes other calls on fakes than on real tensors.

In: the function as a program calls it. Out: what to call on fakes instead.
Always: gives, or raises, what the function does on real tensors, views included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


def _by_rows(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """As C++ does where it asks nothing of the sizes: a picture of one row."""

    def one(value: Any) -> Any:
        return value[0] if isinstance(value, (tuple, list)) else value

    steps = (1, one(kernel_size if stride in (None, (), []) else stride))
    return F.max_pool2d(
        x.unsqueeze(-2), (1, one(kernel_size)), steps, (0, one(padding)), (1, one(dilation)), ceil_mode
    ).squeeze(-2)


def _max_pool1d(function: Callable[..., Any]) -> Callable[..., Any]:
    """Without grad on the CPU, a kernel of its own, for floats, whose result is no view."""

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        by_rows = _varies(x.shape[-1]) and not kwargs.get("return_indices")
        result = (_by_rows if by_rows else function)(x, *args, **kwargs)
        if not isinstance(result, Tensor) or result.device.type != "cpu":
            return result
        if x.requires_grad and torch.is_grad_enabled():
            return result
        if not x.dtype.is_floating_point:
            raise NotImplementedError(f"max_pool1d of {x.dtype}")
        return result.clone(memory_format=torch.contiguous_format)

    return call


def _varies(*sizes: Any) -> bool:
    return any(isinstance(n, (torch.SymInt, torch.SymFloat)) for n in sizes)


#: (mode, whether antialiased, dimensions) -> the operator that takes sizes and scales.
_RESIZERS: dict[tuple[str, bool, int], Any] = {
    **{("nearest", False, d): getattr(aten, f"upsample_nearest{d}d").default for d in (1, 2, 3)},
    **{("nearest-exact", False, d): getattr(aten, f"_upsample_nearest_exact{d}d").default for d in (1, 2, 3)},
    ("linear", False, 1): aten.upsample_linear1d.default,
    ("bilinear", False, 2): aten.upsample_bilinear2d.default,
    ("trilinear", False, 3): aten.upsample_trilinear3d.default,
    ("bicubic", False, 2): aten.upsample_bicubic2d.default,
    ("bilinear", True, 2): aten._upsample_bilinear2d_aa.default,
    ("bicubic", True, 2): aten._upsample_bicubic2d_aa.default,
}


def _interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """By factors: C++ computes the sizes in plain numbers."""
    rest = (mode, align_corners, recompute_scale_factor, antialias)
    dims = input.dim() - 2
    resize = _RESIZERS.get((mode, antialias, dims))
    exact = mode.startswith("nearest")
    if size is not None or recompute_scale_factor or resize is None or not _varies(*input.shape[2:]):
        return F.interpolate(input, size, scale_factor, *rest)
    scales = list(scale_factor) if isinstance(scale_factor, (tuple, list)) else [scale_factor] * dims
    if (
        len(scales) != dims
        or (exact and align_corners is not None)
        or not all(type(s) in (int, float) for s in scales)
    ):
        return F.interpolate(input, size, scale_factor, *rest)
    scales = [float(s) for s in scales]
    sizes = [torch.sym_int(n * s) for n, s in zip(input.shape[2:], scales, strict=True)]
    result: Tensor = resize(input, sizes, *(() if exact else (bool(align_corners),)), *scales)
    return result


def _tensor_of(data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
    """Of sizes: C++ reads them as plain numbers."""
    items = data if isinstance(data, (tuple, list)) else [data]
    numbers = all(type(n) in (int, float, torch.SymInt, torch.SymFloat) for n in items)
    if kwargs or not numbers or not _varies(*items):
        return torch.tensor(data, dtype=dtype, device=device, **kwargs)
    if dtype is None:
        whole = all(type(n) in (int, torch.SymInt) for n in items)
        dtype = torch.int64 if whole else torch.get_default_dtype()
    made = [torch.full((), n, dtype=dtype, device=device) for n in items]
    return torch.stack(made) if isinstance(data, (tuple, list)) else made[0]


def one_hot_of_size(x: Tensor, num_classes: Any = -1) -> Tensor:
    """The number of classes as a size; out of range it raises, as the original does with a text of its own."""
    if not isinstance(num_classes, torch.SymInt) or x.dtype != torch.int64:
        return torch._C._nn.one_hot(x, num_classes)
    return x.new_zeros((*x.shape, num_classes)).scatter_(-1, x.unsqueeze(-1), 1)


ON_FAKES: dict[Any, Callable[..., Any]] = {
    **{function: _max_pool1d(function) for function in (torch.max_pool1d, F.max_pool1d)},
    F.interpolate: _interpolate,
    torch.tensor: _tensor_of,
    torch._C._nn.one_hot: one_hot_of_size,
}
