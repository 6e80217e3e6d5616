"""Short names for building IR nodes, with the folding that keeps them small.

In: nodes. Out: nodes. Always: a folded node has the value of the unfolded one, bit for bit.
"""

from __future__ import annotations

import torch

from graphlift.lower.ir import Node
from graphlift.shapes.expr import Expr, Real

INDEX = torch.int64
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
_INT_BITS = {torch.int8: 8, torch.uint8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}


def const(value: bool | int | float | Expr, dtype: torch.dtype) -> Node:
    """A constant, a size, or a float that comes with each call (as its bits).

    A number is converted to ``dtype``'s Python type as ATen converts scalars.
    """
    if isinstance(value, Real):
        double = Node("bitcast", torch.float64, (Node("size", INDEX, (), value),))
        return cast(cast(double, _WIDER[dtype]) if dtype in _WIDER else double, dtype)
    if isinstance(value, Expr):
        return cast(Node("size", INDEX, (), value), dtype)
    if dtype in _FLOATS:
        return Node("const", dtype, (), float(value))
    if dtype == torch.bool:
        return Node("const", dtype, (), bool(value))
    bits = _INT_BITS[dtype]
    value = int(value)
    if dtype == torch.uint8:
        return Node("const", dtype, (), value % 256)
    return Node("const", dtype, (), (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1))


def rounded(value: bool | int | float, dtype: torch.dtype) -> float:
    """``value`` rounded to a float ``dtype``."""
    return float(torch.tensor(value, dtype=dtype).item())


def cast(node: Node, dtype: torch.dtype) -> Node:
    """``node`` converted; widening a float and narrowing it back is dropped, constants are converted now."""
    if node.dtype == dtype:
        return node
    if node.op == "const":
        value = node.attr
        if node.dtype in (torch.bfloat16, torch.float16):
            value = rounded(value, node.dtype)
        elif node.dtype == torch.float32 and dtype == torch.float64:
            value = rounded(value, node.dtype)
        if isinstance(value, float) and (value != value or abs(value) >= 2**31) and dtype not in _FLOATS:
            return Node("cast", dtype, (node,))
        if dtype in (torch.bfloat16, torch.float16):
            value = rounded(value, dtype)
        return const(value, dtype)
    if node.op == "cast" and node.args[0].dtype == dtype and _WIDER.get(dtype) == node.dtype:
        return node.args[0]
    return Node("cast", dtype, (node,))


def op(name: str, *args: Node) -> Node:
    """A node of the first argument's dtype."""
    return Node(name, args[0].dtype, args)


def add(a: Node, b: Node) -> Node:
    if a.op == "const" and a.dtype == INDEX and a.attr == 0:
        return b
    if b.op == "const" and b.dtype == INDEX and b.attr == 0:
        return a
    return Node("add", a.dtype, (a, b))


def sub(a: Node, b: Node) -> Node:
    return Node("sub", a.dtype, (a, b))


def mul(a: Node, b: Node) -> Node:
    if b.op == "const" and b.attr == 1 and b.dtype != torch.bool:
        return a
    if a.op == "const" and a.attr == 1 and a.dtype != torch.bool:
        return b
    return Node("mul", a.dtype, (a, b))


def div(a: Node, b: Node) -> Node:
    if b.op == "const" and b.attr == 1:
        return a
    return Node("div", a.dtype, (a, b))


def compare(name: str, a: Node, b: Node) -> Node:
    """lt le gt ge eq ne."""
    return Node(name, torch.bool, (a, b))


def where(condition: Node, a: Node, b: Node) -> Node:
    if condition.op == "const":
        return a if condition.attr else b
    return a if a is b else Node("where", a.dtype, (condition, a, b))


def both(a: Node, b: Node) -> Node:
    if a.op == "const":
        return b if a.attr else a
    if b.op == "const":
        return a if b.attr else b
    return a if a is b else Node("and", torch.bool, (a, b))


TRUE = const(True, torch.bool)
FALSE = const(False, torch.bool)
