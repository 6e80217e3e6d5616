"""Keeps torch's own metadata kernels from importing TorchDynamo.

In: torch's tables of decompositions and reference kernels. Out: nothing; a cached attribute on their inner functions.
Always: torch wraps many of them in `torch._disable_dynamo`, which imports torch._dynamo (about a second) at its first
call only to mark the function for tracing. The mark is what is cached here: the function itself.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
import torch._decomp
import torch._meta_registrations


def _wrapper_code() -> types.CodeType | None:
    constants = torch._compile._disable_dynamo.__code__.co_consts
    return next((c for c in constants if isinstance(c, types.CodeType) and c.co_name == "inner"), None)


def _inside(fn: Any, seen: set[int]) -> Iterator[types.FunctionType]:
    """The Python functions that a decorated function is made of, itself included."""
    stack = [fn]
    while stack:
        one = stack.pop()
        if not isinstance(one, types.FunctionType) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        for cell in one.__closure__ or ():
            try:
                stack.append(cell.cell_contents)
            except ValueError:
                continue


def keep_dynamo_out() -> int:
    """Fills the cache of every wrapped kernel; returns how many there were."""
    code = _wrapper_code()
    if code is None:
        return 0
    seen: set[int] = set()
    count = 0
    for table in torch._decomp.global_decomposition_table.values():
        for kernel in table.values():
            for fn in _inside(kernel, seen):
                if fn.__code__ is code:
                    cells = dict(
                        zip(code.co_freevars, (c.cell_contents for c in fn.__closure__ or ()), strict=False)
                    )
                    inner = cells.get("fn")
                    if isinstance(inner, types.FunctionType) and not hasattr(inner, "__dynamo_disable"):
                        setattr(inner, "__dynamo_disable", inner)
                        count += 1
    return count
