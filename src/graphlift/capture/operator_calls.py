"""Calls of operators by name: `torch.ops.aten.relu`, custom operators of `torch.library`.

In: operator objects as callees. Out: one graph node; a break where an operator has no fake implementation.
Always: the operator itself runs on fakes, with its own autograd formula.
"""

from __future__ import annotations

from typing import Any

import torch

from ..guards import Const, IdIs
from .breaks import Break
from .calls import INSTANCE_CALLS
from .capture import Capture, Link
from .trackers import ObjectVar, Tracker

#: Operators that steer the program rather than compute.
_OPAQUE_NAMESPACES = ("profiler", "prim", "c10d", "higher_order")


def _call_operator(
    cap: Capture, fn: ObjectVar, args: list[Tracker], kwargs: dict[str, Tracker], link: Link | None
) -> Tracker:
    operator: Any = fn.obj
    if fn.source is not None and not isinstance(fn.source, Const):
        cap.guard(IdIs(fn.source, operator))
    name = str(operator)
    if name.partition(".")[0] in _OPAQUE_NAMESPACES:
        raise Break("c-function", f"operator {name}")
    try:
        return cap.emit("call_function", operator, args, kwargs, operator)
    except Break as stop:
        if stop.code == "exception-raised" and ("fake impl" in stop.detail or "meta" in stop.detail.lower()):
            raise Break("unsupported-fake-op", f"{name}: has no fake implementation") from None
        raise


for _cls in (torch._ops.OpOverload, torch._ops.OpOverloadPacket):
    INSTANCE_CALLS[_cls] = _call_operator
