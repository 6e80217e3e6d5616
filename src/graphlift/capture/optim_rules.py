"""Optimizers: what is their own about the way in which torch calls their steps.

In: calls inside `torch.optim`. Out: nodes, or what is called inside.
Always: wrappers and checks that only serve torch's own compiler are passed through.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as optim

from .breaks import Break
from .calls import CODE_RULES, call
from .capture import Capture
from .frame import inline
from .protocol import iterate
from .rules import rule
from .trackers import NONE, Args, ConstVar, DictVar, Kwargs, ListVar, TensorVar, Tracker, TupleVar

_HEALTH_CHECKS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")  # by release


@rule(*(getattr(Optimizer, name) for name in _HEALTH_CHECKS if hasattr(Optimizer, name)))
def _health_check(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if torch.accelerator.is_available():
        raise Break("c-function", "the optimizer's check for graph capture")
    return NONE


def use_grad(func: Any, args: Any, kwargs: Any) -> Any:
    """``step`` as the wrapper runs it, traced in its place."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(args[0].defaults["differentiable"])
        return func(*args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


def _use_grad(cap: Capture, fn: ConstVar, args: Args, kwargs: Kwargs) -> Tracker:
    """The wrapper that sets grad mode, without the graph breaks that it asks of torch's own compiler."""
    step = fn.value.__closure__[fn.value.__code__.co_freevars.index("func")].cell_contents
    given = [ConstVar.known(step), TupleVar(list(args)), DictVar(dict(kwargs))]
    return call(cap, ConstVar.known(use_grad, "use_grad"), given, {})


def _disabled(cap: Capture, fn: ConstVar, args: Args, kwargs: Kwargs) -> Tracker:
    """What torch keeps from its own compiler; methods of optimizers are ordinary code."""
    wrapped = fn.value.__wrapped__
    if not (wrapped.__module__ or "").startswith("torch.optim"):
        raise Break("disabled-function", wrapped.__qualname__)
    return inline(cap, ConstVar.known(wrapped), args, kwargs)


CODE_RULES[optim._use_grad_for_differentiable(lambda: None).__code__] = _use_grad
CODE_RULES[torch._disable_dynamo(lambda: None).__code__] = _disabled


@rule(torch._C._group_tensors_by_device_and_dtype)
def _group_tensors(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """Lists of tensors, the k-th of each belonging together, by device and dtype of the first list's."""
    lists = [[cap.realize(item) for item in iterate(cap, one)] for one in iterate(cap, args[0])]
    with_indices = bool(
        cap.value_of(args[1] if len(args) > 1 else kwargs.get("with_indices", ConstVar(False)))
    )
    groups: dict[Any, list[int]] = {}
    for position, tensor in enumerate(lists[0]):
        if type(tensor) is not TensorVar:
            raise Break("c-function", "tensors grouped by a list that holds something else")
        groups.setdefault((tensor.fake.device, tensor.fake.dtype), []).append(position)
    if any(len(one) not in (0, len(lists[0])) for one in lists):
        raise Break("c-function", "lists of tensors of different lengths, grouped")
    known: dict[Any, Tracker] = {}
    for key, positions in groups.items():
        picked = [ListVar([one[k] for k in positions] if one else []) for one in lists]
        indices = [ConstVar(k) for k in positions] if with_indices else []
        known[key] = TupleVar([ListVar(list(picked)), ListVar(list(indices))])
    return DictVar(known)
