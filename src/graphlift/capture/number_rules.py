"""Numbers read from tensors: a Python number that is known when the graph runs.

In: `.item()` and kin, of tensors in optimizers and of those of one element that are made of such. Out: `NumberVar`s.
Always: arithmetic on them is Python's own, in the graph; what is asked of them is a question (questions.py) or a
break, and so is every other use. Only the numbers of optimizers are arguments of the graph's operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer as optim

from .breaks import Break, RunEagerly
from .calls import BREAKING_TENSOR_METHODS, TENSOR_METHODS, call_c, is_captured, is_known
from .capture import Capture
from .graph_values import GRAPH_ARGUMENTS, to_graph
from .overriding import PLAIN_TENSORS
from .protocol.arithmetic import BINARY, UNARY, UNARY_OPERATORS
from .protocol.comparison import COMPARE, OPERATORS, TRUTHS
from .residual import BUILDERS, Residual
from .rules import RULES, rule
from .tensor_attributes import number_of
from .trackers import NONE, Args, ConstVar, FloatVar, Kwargs, ListVar, NumberVar, TensorVar, Tracker

_OPTIMIZERS = str(Path(optim.__file__).parent)


def read(cap: Capture, tensor: TensorVar) -> Tracker | None:
    """The number in a tensor; None where it cannot be said what becomes of it."""
    dtype = tensor.fake.dtype
    if tensor.cls not in PLAIN_TENSORS or tensor.fake.numel() != 1 or dtype.is_complex:
        return None
    if dtype.is_floating_point and cap.frames[-1].code.co_filename.startswith(_OPTIMIZERS):
        return _number(cap, number_of, [tensor], float, in_graph=True)
    if not cap.questions.can_ask(cap, tensor.node):
        return None
    if dtype is torch.bool:
        answer = cap.questions.ask(cap, bool, tensor.node)
        return None if answer is None else ConstVar(answer)
    return _number(cap, number_of, [tensor], float if dtype.is_floating_point else int, in_graph=False)


def with_numbers(cap: Capture, kwargs: Kwargs) -> Kwargs | None:
    """Keyword arguments for which torch wants a number, with the number in the tensor; None where there is none such."""
    tensors = {n: t for n in ("alpha", "value") if type(t := cap.realize(kwargs.get(n, NONE))) is TensorVar}
    numbers = {name: read(cap, tensor) for name, tensor in tensors.items()}
    known = numbers and all(type(n) is NumberVar and n.in_graph for n in numbers.values())
    return {**kwargs, **numbers} if known else None  # type: ignore[dict-item]


def _number(cap: Capture, fn: Callable[..., Any], args: Args, kind: type | None, in_graph: bool) -> NumberVar:
    """``fn(*args)``, a number known when the graph runs."""
    nodes = tuple(_node(cap, arg) for arg in args)
    hint = 1 if kind is int else 1.0
    node = cap.builder.add_op("call_function", fn, nodes, {}, hint, cap.user_stack())
    node.meta["number"] = True
    return NumberVar(node, cap.break_step(), kind, in_graph)


def _node(cap: Capture, arg: Tracker) -> Any:
    if type(arg) is FloatVar:
        return cap.size_node(arg.real)
    return arg.node if type(arg) is NumberVar else to_graph(cap, arg)[0]


def _kinds(cap: Capture, args: Args) -> list[type | None]:
    """The types of numbers that stand together. Raises: Break where one is something else."""
    kinds: list[type | None] = []
    for arg in args:
        if type(arg) is NumberVar and arg.node.graph is cap.builder.graph:
            kinds.append(arg.kind)
        elif type(arg) is ConstVar and type(arg.value) in (int, float):
            kinds.append(type(arg.value))
        elif type(arg) is FloatVar and any(type(one) is NumberVar and one.in_graph for one in args):
            kinds.append(float)  # such as a learning rate, which changes from step to step
        else:
            raise Break("tensor-item", "a number read from a tensor with something other than a number")
    return kinds


def _computed(cap: Capture, fn: Callable[..., Any], args: Args, kind: type | None) -> NumberVar:
    return _number(cap, fn, args, kind, all(arg.in_graph for arg in args if type(arg) is NumberVar))


def _operate(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    if symbol in COMPARE:
        _kinds(cap, [left, right])
        return ConstVar(_ask(cap, COMPARE[symbol][0], left, right))
    fn = BINARY[symbol][0]
    if TensorVar in (type(left), type(right)):
        return cap.emit("call_function", fn, [left, right], {}, fn)
    kinds = _kinds(cap, [left, right])
    if symbol == "/" or float in kinds and symbol in _ARITHMETIC | {"**"}:
        return _computed(cap, fn, [left, right], float)
    if kinds == [int, int] and symbol in _ARITHMETIC:
        return _computed(cap, fn, [left, right], int)
    raise Break("tensor-item", f"a number read from a tensor, in {symbol}")


_ARITHMETIC = frozenset(("+", "-", "*", "//", "%"))


def _ask(cap: Capture, fn: Callable[..., Any], *args: Tracker) -> bool:
    nodes = [_node(cap, arg) for arg in args]
    answer = cap.questions.ask(cap, fn, *nodes)
    if answer is None:
        raise Break("data-dependent-branch", "a decision on a number read from a tensor")
    return answer


def _unary(cap: Capture, symbol: str, operand: NumberVar) -> Tracker:
    if symbol not in ("-", "+", "abs") or operand.kind is None:
        raise Break("tensor-item", f"a number read from a tensor, in {symbol}")
    return _computed(cap, UNARY[symbol][0], [operand], operand.kind)


def _argument(cap: Capture, number: NumberVar) -> tuple[Any, Any]:
    if not number.in_graph or number.kind is not float or number.node.graph is not cap.builder.graph:
        raise Break("tensor-item", "a number read from a tensor in an operation")
    return number.node, 1.0


def _text(residual: Residual, number: NumberVar) -> str:
    raise RunEagerly("tensor-item", "a number read from a tensor, which is kept", earlier=number.born)


TRUTHS[NumberVar] = lambda cap, number: _ask(cap, bool, number)
OPERATORS[NumberVar] = _operate
UNARY_OPERATORS[NumberVar] = _unary
GRAPH_ARGUMENTS[NumberVar] = _argument
BUILDERS[NumberVar] = _text


@rule(optim._get_value)
def _get_value(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    value = cap.realize(args[0])
    return value if type(value) is not TensorVar else _item(cap, args, kwargs)


def _item(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    tensor = cap.realize(args[0])
    assert type(tensor) is TensorVar
    known = is_captured(cap, "item", args, kwargs)
    number = None if known or len(args) > 1 or kwargs else read(cap, tensor)
    if number is None and not known:
        raise Break("tensor-item", "Tensor.item", at_once=True)
    return number or cap.emit("call_method", "item", args, kwargs, lambda t, *a, **k: t.item(*a, **k))


del BREAKING_TENSOR_METHODS["item"]
TENSOR_METHODS["item"] = _item


_MOST_NUMBERS = 64  # that a list of one tensor's may have: each is a node


def _tolist(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """The numbers of a tensor, one by one."""
    tensor = cap.realize(args[0])
    assert type(tensor) is TensorVar
    if is_known(tensor):
        return cap.emit("call_method", "tolist", args, kwargs, lambda t: t.tolist())
    dtype, sizes = tensor.fake.dtype, tensor.fake.spec.shape  # type: ignore[attr-defined]
    alike = tensor.cls in PLAIN_TENSORS and dtype is not torch.bool and not dtype.is_complex
    if not alike or not all(type(n) is int for n in sizes) or tensor.fake.numel() > _MOST_NUMBERS:
        raise Break("tensor-item", "Tensor.tolist", at_once=True)
    return _listed(cap, tensor)


def _listed(cap: Capture, tensor: Tracker) -> Tracker:
    if tensor.fake.dim() == 0:  # type: ignore[attr-defined]
        return _item(cap, [tensor], {})
    parts = cap.emit("call_method", "unbind", [tensor], {}, lambda t: t.unbind())
    return ListVar([_listed(cap, part) for part in parts.items])  # type: ignore[attr-defined]


TENSOR_METHODS["tolist"] = _tolist


def _of_numbers(target: Callable[..., Any], kind_of: Callable[[list[type | None]], type | None]) -> None:
    """Functions that Python calls on such numbers when the graph runs."""
    others = RULES.get(target)

    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        given = [cap.realize(arg) for arg in args]
        if kwargs or not any(type(arg) is NumberVar for arg in given):
            return others(cap, args, kwargs) if others is not None else call_c(cap, target, args, kwargs)
        return _computed(cap, target, given, kind_of(_kinds(cap, given)))

    RULES[target] = handler


def _common(kinds: list[type | None]) -> type | None:
    """Of one of several numbers: their type, None where it depends on which it is."""
    return kinds[0] if len(set(kinds)) == 1 else None


_of_numbers(int, lambda kinds: int)
_of_numbers(float, lambda kinds: float)
_of_numbers(math.sqrt, lambda kinds: float)
_of_numbers(max, _common)
_of_numbers(min, _common)
