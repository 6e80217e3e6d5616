"""Keeps torch's own metadata kernels from importing TorchDynamo.

In: torch's tables of decompositions and reference kernels. Out: nothing; a cached attribute on their inner functions.
Always: torch wraps many of them in `torch._disable_dynamo`, which imports torch._dynamo (about a second) at its first
call only to mark the function for tracing. The mark is what is cached here: the function itself.
"""

from __future__ import annotations

import types
from typing import Any

import torch
import torch._decomp
import torch._meta_registrations


def _wrapper_code() -> types.CodeType | None:
    constants = torch._compile._disable_dynamo.__code__.co_consts
    return next((c for c in constants if isinstance(c, types.CodeType) and c.co_name == "inner"), None)


def keep_dynamo_out() -> int:
    """Fills the cache of every wrapped kernel, also inside other decorators; returns how many there were."""
    code = _wrapper_code()
    if code is None:
        return 0
    seen: set[int] = set()
    count = 0
    stack = [
        kernel for table in torch._decomp.global_decomposition_table.values() for kernel in table.values()
    ]
    while stack:
        fn = stack.pop()
        if type(fn) is not types.FunctionType or fn.__closure__ is None or id(fn) in seen:
            continue
        seen.add(id(fn))
        held = dict(zip(fn.__code__.co_freevars, map(_content, fn.__closure__), strict=True))
        stack += held.values()
        inner = held.get("fn") if fn.__code__ is code else None
        if isinstance(inner, types.FunctionType) and not hasattr(inner, "__dynamo_disable"):
            setattr(inner, "__dynamo_disable", inner)
            count += 1
    return count


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
