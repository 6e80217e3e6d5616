"""The operator table: one row per ATen overload that has a meaning in the loop IR.

In: `row(...)` decorations in the operator files. Out: `ROWS`.
Always: every target exists in this torch or is skipped by name, and none has two rows. A row may decline (None).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

# row(builder, meta of the output(s), *args, **kwargs) -> Value, tuple of Value, or None: leave it to ATen
Row = Callable[..., Any]
ROWS: dict[Any, Row] = {}


def overload(name: str) -> Any:
    """The ATen overload called ``name`` ("add.Tensor"), or None where this torch has none."""
    packet, _, variant = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return found and getattr(found, variant or "default", None)


F = TypeVar("F", bound=Row)


def row(*names: str) -> Callable[[F], F]:
    """Register a row for the named overloads."""

    def register(function: F) -> F:
        for name in names:
            target = overload(name)
            if target is None:
                continue
            if target in ROWS:
                raise ValueError(f"aten::{name} has two rows")
            ROWS[target] = function
        return function

    return register


def float_row(*names: str) -> Callable[[F], F]:
    """Register a row that leaves results of other dtypes to ATen, whose kernels raise for most of them."""

    def register(function: F) -> F:
        @functools.wraps(function)
        def guarded(b: Any, out: Any, *args: Any, **kwargs: Any) -> Any:
            first = out[0] if isinstance(out, tuple) else out
            return function(b, out, *args, **kwargs) if first.dtype.is_floating_point else None

        row(*names)(guarded)
        return function

    return register
