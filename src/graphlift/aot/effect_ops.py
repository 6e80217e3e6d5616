"""Operators that only check values and raise, as operators with a result, so that a graph keeps them.

In: the ATen check as eager calls it while tracing. Out: the operator that the emitted graph calls instead.
Always: raises what ATen raises, in the same order as other effects: tagged as random operators are, which no pass
drops, shares or moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..fake.composite import ON_FAKES, one_hot_of_size
from ..fake.size_rules import SIZES
from .plan import FallBack

aten = torch.ops.aten
_LIBRARY = torch.library.Library("graphlift", "FRAGMENT")


def _checking(schema: str, check: Callable[..., None]) -> Any:
    """Define `graphlift::<schema>`: runs `check`, gives an empty tensor."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.nondeterministic_seeded,))

    def run(tensor: Tensor, *args: Any) -> Tensor:
        check(tensor, *args)
        return torch.empty(0)

    _LIBRARY.impl(name, run, "CPU")
    _LIBRARY.impl(name, run, "CUDA")
    _LIBRARY.impl(name, lambda tensor, *args: torch.empty(0, device="meta"), "Meta")
    operator = getattr(torch.ops.graphlift, name).default
    SIZES[operator] = lambda table, args, kwargs: (0,)
    return operator


check_linalg = _checking(
    "check_linalg(Tensor info, str api_name, bool is_matrix) -> Tensor",
    lambda info, name, is_matrix: aten._linalg_check_errors.default(info, name, is_matrix=is_matrix),
)
check_flag = _checking("check_flag(Tensor flag, str message) -> Tensor", aten._assert_async.msg)


def _linalg(rec: Any, func: Any, args: tuple, kwargs: dict) -> None:
    rec.dispatch(check_linalg, (args[0], args[1], kwargs["is_matrix"]), {})


def _assertion(rec: Any, func: Any, args: tuple, kwargs: dict) -> None:
    message = args[1] if len(args) > 1 else kwargs.get("assert_msg", "Assertion is failed")
    rec.dispatch(check_flag, (args[0], message), {})


def _checked_backward(rec: Any, func: Any, args: tuple, kwargs: dict) -> Any:
    if args[0].requires_grad and (func is aten.linalg_eig.default or args[0].spec.dtype.is_complex):
        raise FallBack("phase-check", func.name())
    return NotImplemented


def _zeros(rec: Any, func: Any, args: tuple, kwargs: dict) -> Any:
    """Zeros without memory, which forward-mode differentiation makes, as zeros: kernels read memory."""
    return rec.dispatch(aten.zeros.default, args, kwargs)


EFFECTS: dict[Any, Callable[..., Any]] = {
    aten._efficientzerotensor.default: _zeros,
    aten.linalg_eig.default: _checked_backward,
    aten._linalg_eigh.default: _checked_backward,
    aten._linalg_svd.default: _checked_backward,
    aten._linalg_check_errors.default: _linalg,
    aten._assert_async.default: _assertion,
    aten._assert_async.msg: _assertion,
}


def _one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """`one_hot` on fakes leaves out the checks that it makes on real tensors."""
    if isinstance(num_classes, torch.SymInt):
        return one_hot_of_size(x, num_classes)
    if x.dtype != torch.int64:
        return torch._C._nn.one_hot(x, num_classes)
    if num_classes <= 0 and not (num_classes == -1 and x.numel()):
        raise RuntimeError(f"one_hot: {num_classes} classes are fewer than the values need")
    if x.numel() and num_classes > 0:
        torch._assert_async((x >= 0).all(), "Class values must be non-negative.")
        torch._assert_async((x < num_classes).all(), "Class values must be smaller than num_classes.")
    return torch._C._nn.one_hot(x, num_classes)


def _matrix_rank(*args: Any, **kwargs: Any) -> Tensor:
    """With `out`, the composite kernel writes nothing: it makes the caller's tensor another one."""
    if kwargs.get("out") is not None:
        raise FallBack("out-replaced", "matrix_rank")
    return torch.linalg.matrix_rank(*args, **kwargs)


# Functions whose composite kernel makes other calls on fakes than on real tensors.
REPLACED: dict[Any, Callable[..., Any]] = {
    torch.linalg.matrix_rank: _matrix_rank,
    **ON_FAKES,
    torch._C._nn.one_hot: _one_hot,
}
