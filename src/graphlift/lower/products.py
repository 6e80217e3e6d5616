"""Rows for matrix products: the product is ATen's, what is added to it may join the kernels around it.

In: values. Out: point values over an extern product. Always: declined (one call of ATen) unless a kernel reads the sum.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any

import torch
import torch.fx

from graphlift.lower.expr import add
from graphlift.lower.pointwise import Scalar
from graphlift.lower.table import ROWS, overload, row
from graphlift.lower.values import Builder, Meta, Value

GEOMETRY_ONLY = frozenset(
    overload(n)
    for n in (
        *("empty_like", "zeros_like", "ones_like", "full_like"),
        *("new_empty", "new_zeros", "new_ones", "new_full"),
    )
)


def read_by_kernels(node: torch.fx.Node) -> bool:
    """Whether some operator that becomes a kernel reads the result, and no extern call does. Outputs may."""
    found = False
    pending = [node]
    while pending:
        for user in pending.pop().users:
            if user.op == "output" or user.target in GEOMETRY_ONLY:
                continue
            if user.target is operator.getitem or _is_view(user.target):
                pending.append(user)
            elif user.target in ROWS and user.target is not torch.ops.aten.addmm.default:
                found = True
            else:
                return False
    return found


@lru_cache(maxsize=1024)
def _is_view(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


@row("addmm")
def addmm(
    b: Builder, out: Meta, bias: Value, first: Value, second: Value, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Value | None:
    """A bias over a product: added by the kernel that reads the sum, rather than copied into the result beforehand.

    float32 only: the narrow types would be rounded between the product and the sum.
    """
    if beta != 1 or alpha != 1 or out.dtype != torch.float32 or not read_by_kernels(b.origin):
        return None
    product: Value = b.call(torch.ops.aten.mm.default, (first, second), out)
    return b.point_at(out.shape, add, (product, bias), out.dtype, 1)
