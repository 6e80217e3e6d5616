"""Operators that may raise when the graph runs, which is after the block of code that would catch it has been left.

In: the call about to be captured, and the frames it is in. Out: whether its exception would meet a handler.
Always: such a graph raises only if its frame can run again as it is (rerun.py); else the operator is a break.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

#: Functions and methods, by name, whose errors depend on the values of tensors, or that fakes do not raise.
_NAMES = frozenset(
    "embedding embedding_bag index_select gather scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ "
    "take take_along_dim put put_ index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_put index_put_ "
    "multinomial one_hot cross_entropy nll_loss multi_margin_loss multilabel_margin_loss binary_cross_entropy bernoulli "
    "bernoulli_ poisson _assert_async inverse cholesky cholesky_inverse cholesky_solve lu lu_solve linalg_inv linalg_solve "
    "linalg_cholesky linalg_eigh linalg_eig linalg_svd linalg_qr linalg_lstsq linalg_lu linalg_matrix_power linalg_det svd "
    "max_unpool1d max_unpool2d max_unpool3d ctc_loss normal repeat_interleave uniform_ random_ index_reduce index_reduce_ "
    "masked_scatter masked_scatter_ embedding_renorm_".split()
)
_INDEXING = frozenset(("getitem", "setitem", "__getitem__", "__setitem__"))
_TORCH = str(Path(torch.__file__).parent)


def may_raise(kind: str, target: Any, args: list[Any]) -> bool:
    """Whether the call's errors depend on values; ``args``: fakes and constants."""
    name = target if kind == "call_method" else getattr(target, "__name__", "")
    return name in _NAMES or (name in _INDEXING and _has_tensor(args[1]))


def _has_tensor(index: Any) -> bool:
    if isinstance(index, (tuple, list)):
        return any(map(_has_tensor, index))
    return isinstance(index, torch.Tensor) and index.dtype is not torch.bool


def inside_try(frames: list[Any]) -> bool:
    """Whether an exception at this point would meet an ``except`` or ``finally`` of the user's."""
    for frame in frames:
        instrs = frame.info.instrs
        handler = None if frame.code.co_filename.startswith(_TORCH) else instrs[frame.pc].handler
        while handler is not None:
            first, then = instrs[handler.target], instrs[min(handler.target + 1, len(instrs) - 1)]
            if first.op == "PUSH_EXC_INFO" and then.op != "WITH_EXCEPT_START":
                return True
            handler = first.handler
    return False
