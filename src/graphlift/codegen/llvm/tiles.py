"""Loads that lie along another axis than the lanes do: turned in registers, a tile of the grid at a time.

In: a pointwise kernel and the axis of its lanes. Out: the axis along which some loads lie; the code that reads such a
load's tile and keeps it turned, a vector for each value of that axis.
Always: a tile has as many values of either axis as there are lanes, and all of them are points of the grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from graphlift.codegen.llvm.affine import axis_node
from graphlift.codegen.llvm.text import Builder, Value
from graphlift.lower.ir import Kernel, Node
from graphlift.shapes.expr import Expr, SizeLike

#: How far an index moves per step of an axis; None where that is not constant.
Stride = Callable[[Node, int], "SizeLike | None"]


def tile_axis(kernel: Kernel, loads: Iterable[Node], vector: int, lanes: int, stride: Stride) -> int | None:
    """The axis along which most loads lie that do not lie along ``vector``, if a tile has room along both."""
    long = [k for k, size in enumerate(kernel.outer) if kernel.hint(size) >= lanes]
    found: Counter[int] = Counter()
    for load in set(loads):
        along = stride(load.args[0], vector)
        if vector in long and (isinstance(along, Expr) or (along is not None and abs(along) > 2)):
            found.update(k for k in long if k != vector and stride(load.args[0], k) == 1)
    return found.most_common(1)[0][0] if found else None


def without_axis(index: Node, axis: int) -> Node:
    """``index`` where ``axis`` is 0."""
    if index is axis_node(axis):
        return index.replace(op="const", attr=0)
    args = tuple([without_axis(arg, axis) for arg in index.args])
    return index if args == index.args else index.replace(args=args)


def turned(b: Builder, rows: list[Value]) -> list[Value]:
    """The columns of a square of vectors: a transposition in log2(lanes) steps of shuffles."""
    lanes, rows, apart = len(rows), list(rows), 1
    while apart < lanes:
        low = [lanes + k - apart if k & apart else k for k in range(lanes)]
        high = [lanes + k if k & apart else k + apart for k in range(lanes)]
        for k in range(lanes):
            if not k & apart:
                one, other = rows[k], rows[k + apart]
                rows[k], rows[k + apart] = b.shuffle(one, other, low), b.shuffle(one, other, high)
        apart *= 2
    return rows
