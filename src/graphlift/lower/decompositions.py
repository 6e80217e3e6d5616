"""Operators rewritten in simpler ones while a graph is traced below autograd.

In: the operator's arguments. Out: its results, by calls of other ATen operators. Always: the same values, effects on
running statistics included. Only what lowering has no row for is here: a row keeps the graph at ATen's granularity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from graphlift.lower.table import overload

aten = torch.ops.aten
decompositions: dict[Any, Callable[..., Any]] = {}

_WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


F = TypeVar("F", bound=Callable[..., Any])


def decomposition(*names: str) -> Callable[[F], F]:
    """Register a decomposition for the named overloads (those this torch has)."""

    def register(function: F) -> F:
        for name in names:
            target = overload(name)
            if target is not None:
                if target in decompositions:
                    raise ValueError(f"aten::{name} has two decompositions")
                decompositions[target] = function
        return function

    return register


def _wide(x: Tensor) -> Tensor:
    dtype = _WIDE.get(x.dtype)
    return x if dtype is None else aten._to_copy.default(x, dtype=dtype)


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else aten._to_copy.default(x, dtype=dtype)


def _channels(x: Tensor, rank: int) -> Tensor:
    """A vector over dimension 1 of a tensor of ``rank`` dimensions."""
    return aten.view.default(x, [1, x.shape[0], *[1] * (rank - 2)])


def _other_dims(rank: int) -> list[int]:
    return [0, *range(2, rank)]


# --- batch norm -----------------------------------------------------------------------------------------------------


def _normalise(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    rank = x.dim()
    scale = rstd if weight is None else aten.mul.Tensor(rstd, _as(weight, rstd.dtype))
    result = aten.mul.Tensor(aten.sub.Tensor(_wide(x), _channels(mean, rank)), _channels(scale, rank))
    if bias is not None:
        result = aten.add.Tensor(result, _channels(_as(bias, result.dtype), rank))
    return _as(result, x.dtype)


def _update(running: Tensor, value: Tensor, momentum: float) -> None:
    aten.copy_.default(
        running,
        aten.add.Tensor(
            aten.mul.Tensor(running, 1 - momentum), aten.mul.Tensor(_as(value, running.dtype), momentum)
        ),
    )


def _over(total: Tensor, count: int | torch.SymInt) -> Tensor:
    """``total / count``; a count that varies stays an integer."""
    if isinstance(count, torch.SymInt):
        return aten.div.Tensor(total, count)
    return aten.mul.Tensor(total, 1 / count)


def _unbiased(var: Tensor, count: int | torch.SymInt) -> Tensor:
    if isinstance(count, torch.SymInt):
        return aten.div.Tensor(aten.mul.Tensor(var, count), count - 1)
    return aten.mul.Tensor(var, count / max(count - 1, 1))


def _train(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    count = x.numel() // x.shape[1]
    var, mean = aten.var_mean.correction(_wide(x), _other_dims(x.dim()), correction=0)
    rstd = aten.rsqrt.default(aten.add.Tensor(var, eps))
    if running_mean is not None:
        _update(running_mean, mean, momentum)
    if running_var is not None:
        _update(running_var, _unbiased(var, count), momentum)
    saved = x.dtype if weight is None else weight.dtype
    return _normalise(x, mean, rstd, weight, bias), _as(mean, saved), _as(rstd, saved)


def _infer(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
) -> Tensor:
    rstd = aten.rsqrt.default(aten.add.Tensor(_wide(running_var), eps))
    return _normalise(x, _wide(running_mean), rstd, weight, bias)


@decomposition("native_batch_norm", "_native_batch_norm_legit")
def native_batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if training:
        return _train(x, weight, bias, running_mean, running_var, momentum, eps)
    empty = aten.new_empty.default(x, [0])
    return _infer(x, weight, bias, running_mean, running_var, eps), empty, empty


@decomposition("_native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _train(x, weight, bias, None, None, momentum, eps)


@decomposition("_native_batch_norm_legit_no_training")
def native_batch_norm_no_training(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor, momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    empty = aten.new_empty.default(x, [0])
    return _infer(x, weight, bias, running_mean, running_var, eps), empty, empty


@decomposition("_batch_norm_with_update")
def batch_norm_with_update(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor, momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    reserve = aten.new_empty.default(x, [0], dtype=torch.uint8)
    return (*_train(x, weight, bias, running_mean, running_var, momentum, eps), reserve)


@decomposition("_batch_norm_no_update")
def batch_norm_no_update(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Any, running_var: Any, momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    reserve = aten.new_empty.default(x, [0], dtype=torch.uint8)
    if running_mean is None or running_var is None:
        return (*_train(x, weight, bias, None, None, momentum, eps), reserve)
    empty = aten.new_empty.default(x, [0])
    return _infer(x, weight, bias, running_mean, running_var, eps), empty, empty, reserve


@decomposition("native_batch_norm_backward")
def native_batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, running_mean: Any, running_var: Any, mean: Any, rstd: Any,
    training: bool, eps: float, mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    rank, dims = x.dim(), _other_dims(x.dim())
    count = x.numel() // x.shape[1]
    if not training:
        mean, rstd = _wide(running_mean), aten.rsqrt.default(aten.add.Tensor(_wide(running_var), eps))
    mean, rstd = _wide(mean), _wide(rstd)
    wide, gradient = _wide(x), _wide(grad)
    scale = rstd if weight is None else aten.mul.Tensor(rstd, _as(weight, rstd.dtype))
    centred = aten.sub.Tensor(wide, _channels(mean, rank))
    total = aten.sum.dim_IntList(gradient, dims)
    dot = aten.sum.dim_IntList(aten.mul.Tensor(gradient, centred), dims)
    dx = None
    if mask[0]:
        dx = gradient
        if training:
            slope = aten.mul.Tensor(_over(dot, count), aten.mul.Tensor(rstd, rstd))
            dx = aten.sub.Tensor(dx, aten.mul.Tensor(centred, _channels(slope, rank)))
            dx = aten.sub.Tensor(dx, _channels(_over(total, count), rank))
        dx = _as(aten.mul.Tensor(dx, _channels(scale, rank)), x.dtype)
    parameter = x.dtype if weight is None else weight.dtype
    dw = _as(aten.mul.Tensor(dot, rstd), parameter) if mask[1] else None
    db = _as(total, parameter) if mask[2] else None
    return dx, dw, db


@decomposition("batch_norm_backward")
def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, running_mean: Any, running_var: Any, mean: Any, rstd: Any, update: bool,
    eps: float, mask: Sequence[bool], reserve: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    return native_batch_norm_backward(
        grad, x, weight, running_mean, running_var, mean, rstd, update, eps, mask
    )


# --- small compounds ------------------------------------------------------------------------------------------------


@decomposition("glu")
def glu(x: Tensor, dim: int = -1) -> Tensor:
    if not x.dtype.is_floating_point:
        return NotImplemented  # ATen raises
    half = x.shape[dim] // 2
    first = aten.slice.Tensor(x, dim, 0, half)
    return aten.mul.Tensor(first, aten.sigmoid.default(aten.slice.Tensor(x, dim, half, 2 * half)))


@decomposition("glu_backward")
def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    half = x.shape[dim] // 2
    first, second = aten.slice.Tensor(x, dim, 0, half), aten.slice.Tensor(x, dim, half, 2 * half)
    gate = aten.sigmoid.default(second)
    left = aten.mul.Tensor(grad, gate)
    right = aten.mul.Tensor(aten.mul.Tensor(aten.mul.Tensor(aten.rsub.Scalar(gate, 1), gate), first), grad)
    return aten.cat.default([left, right], dim)


# --- elements moved -------------------------------------------------------------------------------------------------


@decomposition("roll")
def roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if len(shifts) != len(dims) or x.numel() == 0:
        return NotImplemented  # the flattened tensor is rolled, or ATen raises
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        first = size - shift % size
        if first != size:
            last, rest = aten.slice.Tensor(x, dim, first, size), aten.slice.Tensor(x, dim, 0, first)
            x = aten.cat.default([last, rest], dim)
    return aten.clone.default(x) if not any(shifts) else x


@decomposition("pixel_shuffle")
def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    if x.numel() == 0 or not x.is_contiguous():
        return NotImplemented  # ATen chooses another format
    *batch, channels, height, width = x.shape
    split = x.reshape(*batch, channels // factor**2, factor, factor, height, width)
    k = len(batch)
    moved = split.permute(*range(k + 1), k + 3, k + 1, k + 4, k + 2)
    return moved.reshape(*batch, channels // factor**2, height * factor, width * factor)


@decomposition("pixel_unshuffle")
def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    if x.numel() == 0 or not x.is_contiguous():
        return NotImplemented  # ATen chooses another format
    *batch, channels, height, width = x.shape
    split = x.reshape(*batch, channels, height // factor, factor, width // factor, factor)
    k = len(batch)
    moved = split.permute(*range(k + 1), k + 2, k + 4, k + 1, k + 3)
    return moved.reshape(*batch, channels * factor**2, height // factor, width // factor)
