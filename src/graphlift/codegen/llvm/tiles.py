"""Accesses that lie along another axis than the lanes do: turned in registers, a tile of the grid at a time.

In: how an index moves; the vectors of a tile. Out: whether it is turned; the vectors of the turned tile.
Always: a tile has as many values of either axis as there are lanes, and all of them are points of the grid.
"""

from __future__ import annotations

from graphlift.codegen.llvm.affine import axis_node
from graphlift.codegen.llvm.text import Builder, Value
from graphlift.lower.ir import Node
from graphlift.shapes.expr import SizeLike


def lies_across(along_lanes: SizeLike | None, along_tile: SizeLike | None) -> bool:
    """Whether an access that moves by so much per step of either axis lies along the tile axis; the lanes of one that
    moves by less are read whole."""
    return along_tile == 1 and along_lanes is not None and along_lanes not in (-1, 0, 1, 2)


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
