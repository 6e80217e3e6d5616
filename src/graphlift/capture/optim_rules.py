"""Optimizers: their steps in the graph, with the numbers that they read from tensors as numbers of the graph.

In: calls inside `torch.optim`. Out: nodes; wrappers that only serve torch's own compiler are passed through.
Always: a number read from a tensor takes part in arithmetic only; whoever asks what it is makes a break.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as optim

from ..guards import Const
from .attributes import TYPES
from .breaks import Break, RunEagerly
from .calls import CODE_RULES, call, call_c
from .capture import Capture
from .frame import inline
from .graph_values import GRAPH_ARGUMENTS, to_graph
from .protocol import iterate
from .protocol.arithmetic import BINARY, UNARY, UNARY_OPERATORS
from .protocol.comparison import COMPARE, OPERATORS, TRUTHS
from .rerun import MADE
from .residual import BUILDERS, Residual
from .rules import rule
from .trackers import NONE, Args, ConstVar, DictVar, Kwargs, ListVar, NumberVar, TensorVar, Tracker, TupleVar

TYPES[NumberVar] = float


def number_of(tensor: Tensor) -> float:
    """The number in a tensor, while a graph runs."""
    return tensor.item()  # type: ignore[return-value]


def _number(cap: Capture, fn: Callable[..., Any], args: Args) -> NumberVar:
    """``fn(*args)``, a number known when the graph runs."""
    nodes = tuple(to_graph(cap, arg)[0] for arg in args)
    where = cap.user_stack()
    return NumberVar(cap.builder.add_op("call_function", fn, nodes, {}, 1.0, where), cap.break_step())


def _operate(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    if symbol not in BINARY:
        return ConstVar(_ask(cap, COMPARE[symbol][0], left, right))
    fn = BINARY[symbol][0]
    if TensorVar in (type(left), type(right)):
        return cap.emit("call_function", fn, [left, right], {}, fn)
    for side in (left, right):
        if type(side) is not NumberVar and not (type(side) is ConstVar and type(side.value) in (int, float)):
            raise Break("tensor-item", "a number read from a tensor with something other than a number")
    return _number(cap, fn, [left, right])


def _ask(cap: Capture, fn: Callable[..., Any], *args: Tracker) -> bool:
    answer = cap.questions.ask(cap, fn, *[to_graph(cap, arg)[0] for arg in args])
    if answer is None:
        raise Break("data-dependent-branch", "a decision on a number read from a tensor")
    return answer


def _unary(cap: Capture, symbol: str, operand: NumberVar) -> Tracker:
    return _number(cap, UNARY[symbol][0], [operand])


def _argument(cap: Capture, number: NumberVar) -> tuple[Any, Any]:
    if number.node.graph is not cap.builder.graph:
        raise Break("tensor-item", "a number read from a tensor in an inner function")
    return number.node, 1.0


def _text(residual: Residual, number: NumberVar) -> str:
    raise RunEagerly("tensor-item", "a number read from a tensor, which is kept", earlier=number.born)


MADE[number_of] = ()
TRUTHS[NumberVar] = lambda cap, number: _ask(cap, bool, number)
OPERATORS[NumberVar] = _operate
UNARY_OPERATORS[NumberVar] = _unary
GRAPH_ARGUMENTS[NumberVar] = _argument
BUILDERS[NumberVar] = _text


@rule(optim._get_value)
def _get_value(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    value = cap.realize(args[0])
    if type(value) is not TensorVar:
        return value
    if not value.fake.dtype.is_floating_point or value.fake.numel() != 1:
        raise Break("tensor-item", "the value of a tensor")
    return _number(cap, number_of, [value])


@rule(math.sqrt)
def _sqrt(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    value = cap.realize(args[0])
    if type(value) is NumberVar:
        return _number(cap, math.sqrt, [value])
    return call_c(cap, math.sqrt, args, kwargs)


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
    given = [ConstVar(step, Const(step, step.__qualname__)), TupleVar(list(args)), DictVar(dict(kwargs))]
    return call(cap, ConstVar(use_grad, Const(use_grad, "use_grad")), given, {})


def _disabled(cap: Capture, fn: ConstVar, args: Args, kwargs: Kwargs) -> Tracker:
    """What torch keeps from its own compiler; methods of optimizers are ordinary code."""
    wrapped = fn.value.__wrapped__
    if not (wrapped.__module__ or "").startswith("torch.optim"):
        raise Break("disabled-function", wrapped.__qualname__)
    return inline(cap, ConstVar(wrapped, Const(wrapped, wrapped.__qualname__)), args, kwargs)


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
