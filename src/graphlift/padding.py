"""Static shapes for batches of varying length: padding to a few sizes, with the mask that makes up for it.

In: a tensor or a mapping of tensors. Out: the same, padded along one dimension to the next bucket, and a mask.
Always: the padding's cost is counted, so that the advice can show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphlift.data import dataclass
from graphlift.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class Cost:
    """Positions along the padded dimension, and how many of them were added."""

    total: int = 0
    added: int = 0

    def __str__(self) -> str:
        share = self.added / self.total if self.total else 0.0
        return (
            f"Padding to buckets: {self.added} of {self.total} positions computed are padding ({share:.0%})."
        )


_cost = Cost()


def cost() -> Cost:
    """What padding has added so far in this process."""
    return _cost


def bucket_of(size: int, buckets: Sequence[int] | None = None) -> int:
    """The least bucket of at least `size`; without `buckets`, the powers of two from 16.

    Raises: InvalidOption if every bucket is smaller.
    """
    if buckets is None:
        return max(16, 1 << (size - 1).bit_length()) if size else 16
    fitting = [b for b in buckets if b >= size]
    if not fitting:
        raise InvalidOption(
            "no bucket is large enough",
            found=f"a size of {size}",
            expected=f"at most {max(buckets, default=0)}, the largest of the buckets {list(buckets)}",
            hint="add a larger bucket, or cut the batch",
        )
    return min(fitting)


def pad_to_buckets(
    batch: Tensor | Mapping[str, Any],
    dim: int = 1,
    *,
    buckets: Sequence[int] | None = None,
    value: float = 0,
    values: Mapping[str, float] | None = None,
    mask_name: str = "attention_mask",
) -> Any:
    """Pad along `dim` to the next bucket, so that few shapes, and few compiled versions, occur.

    A tensor of shape [batch, length, ...] gives `(padded, mask)`; `mask` is bool of shape [batch, bucket], or [bucket]
    for `dim` 0, and true where `padded` holds real data. A mapping gives a dict: each tensor whose size along `dim` is
    that of the first is padded, with `values[name]` or else `value`; the mask under `mask_name`, of dtype int64, is
    padded with 0, or made if there is none. Losses over padded positions need a value that they ignore, such as
    `values={"labels": -100}`.

    Raises: InvalidOption if no bucket is large enough, or there is no tensor with that dimension.
    """
    if isinstance(batch, Tensor):
        size = _size(batch, dim, "the tensor")
        bucket = _counted(size, buckets)
        return _pad(batch, dim, bucket, value), _mask(batch, dim, size, bucket, torch.bool)
    first = next((t for t in batch.values() if isinstance(t, Tensor) and t.dim() > dim), None)
    if first is None:
        raise InvalidOption(
            "nothing to pad", found=f"{sorted(batch)}", expected=f"a tensor with dimension {dim}"
        )
    size = _size(first, dim, "the first tensor")
    bucket = _counted(size, buckets)
    fill = {mask_name: 0.0, **(values or {})}
    padded = {
        name: _pad(t, dim, bucket, fill.get(name, value))
        if isinstance(t, Tensor) and t.dim() > dim and t.shape[dim] == size
        else t
        for name, t in batch.items()
    }
    if mask_name not in padded:
        padded[mask_name] = _mask(first, dim, size, bucket, torch.int64)
    return padded


def _size(tensor: Tensor, dim: int, what: str) -> int:
    if not 0 <= dim < tensor.dim():
        raise InvalidOption(
            f"{what} has no dimension {dim}",
            found=f"shape {list(tensor.shape)}",
            expected="0 <= dim < its rank",
        )
    size: int = tensor.shape[dim]
    return size


def _counted(size: int, buckets: Sequence[int] | None) -> int:
    global _cost
    bucket = bucket_of(size, buckets)
    _cost = Cost(_cost.total + bucket, _cost.added + bucket - size)
    return bucket


def _pad(tensor: Tensor, dim: int, bucket: int, value: float) -> Tensor:
    missing = bucket - tensor.shape[dim]
    after = [0, 0] * (tensor.dim() - dim - 1) + [0, missing]
    return torch.nn.functional.pad(tensor, after, value=value)


def _mask(tensor: Tensor, dim: int, size: int, bucket: int, dtype: torch.dtype) -> Tensor:
    real = (torch.arange(bucket, device=tensor.device) < size).to(dtype)
    return real if dim == 0 else real.expand(tensor.shape[0], bucket).clone()
