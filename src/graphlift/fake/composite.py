"""Functions whose composite kernel makes other calls on fakes than on real tensors.

In: the function as a program calls it. Out: what to call on fakes instead.
Always: gives, or raises, what the function does on real tensors, views included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _max_pool1d(function: Callable[..., Any]) -> Callable[..., Any]:
    """Without grad on the CPU, a kernel of its own, for floats, whose result is no view."""

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = function(x, *args, **kwargs)
        if not isinstance(result, Tensor) or result.device.type != "cpu":
            return result
        if x.requires_grad and torch.is_grad_enabled():
            return result
        if not x.dtype.is_floating_point:
            raise NotImplementedError(f"max_pool1d of {x.dtype}")
        return result.clone(memory_format=torch.contiguous_format)

    return call


ON_FAKES: dict[Any, Callable[..., Any]] = {
    function: _max_pool1d(function) for function in (torch.max_pool1d, torch.nn.functional.max_pool1d)
}
