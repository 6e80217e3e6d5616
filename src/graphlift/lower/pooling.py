"""Rows for pooling over windows that unroll: each result is one expression of the window's elements.

In: values. Out: point values that read every position of the window, outside ones under masks.
Always: as ATen's kernel: the first of equal elements wins, NaN wins over all, positions are flat within the plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphlift.lower import affine as ix
from graphlift.lower.affine import to_node
from graphlift.lower.expr import INDEX, TRUE, add, both, compare, const, mul, op, where
from graphlift.lower.ir import Node
from graphlift.lower.table import row
from graphlift.lower.values import Builder, Instance, Meta, Value

WINDOW_LIMIT = 9  # elements; larger windows go to ATen
_DTYPES = (torch.float32, torch.float64)


def _pair(given: Sequence[int], default: tuple[int, int]) -> tuple[int, int]:
    return default if not given else (given[0], given[-1])


@row("max_pool2d_with_indices")
def max_pool2d(
    b: Builder, out: Any, x: Value, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0), dilation: Sequence[int] = (1, 1), ceil_mode: bool = False,
) -> Any:  # fmt: skip
    size = _pair(kernel, (1, 1))
    if size[0] * size[1] > WINDOW_LIMIT or x.dtype not in _DTYPES:
        return None
    geometry = (_pair(stride, size), _pair(padding, (0, 0)), _pair(dilation, (1, 1)))
    meta: Meta = out[0]
    offsets = [(i, j) for i in range(size[0]) for j in range(size[1])]
    height, width = x.shape[-2:]

    def elements(instance: Instance, at: Any) -> list[tuple[Node, Node, Node]]:
        """Per element of the window: whether it is inside, its value (-inf outside), its position in the plane."""
        found = []
        for offset in offsets:
            mask, place = TRUE, []
            for d, limit in ((0, height), (1, width)):
                step, before, spread = (g[d] for g in geometry)
                start = offset[d] * spread - before
                position = ix.scaled(at[d - 2], step, start)
                lowest, highest = start, start + step * (meta.shape[d - 2] - 1)
                if not ix.at_least(lowest, 0):
                    mask = both(mask, compare("ge", to_node(position), const(0, INDEX)))
                if not ix.at_least(limit - highest, 1):
                    mask = both(mask, compare("lt", to_node(position), const(limit, INDEX)))
                place.append(position)
            value = instance.read_if(mask, x, (*at[:-2], *place), const(float("-inf"), x.dtype))
            flat = add(mul(to_node(place[0]), const(width, INDEX)), to_node(place[1]))
            found.append((mask, value, flat))
        return found

    def largest(instance: Instance, at: Any) -> Node:
        values = [value for _, value, _ in elements(instance, at)]
        result = values[0]
        for value in values[1:]:
            result = op("max", result, value)
        return result

    def position(instance: Instance, at: Any) -> Node:
        best: tuple[Node, Node] | None = None
        for mask, value, flat in elements(instance, at):
            if best is None:
                best = value, flat
                first_outside = mask
                continue
            better = op("or", compare("gt", value, best[0]), compare("ne", value, value))
            if first_outside is not TRUE:  # nothing inside seen yet: -inf inside wins over what is outside
                better = op("or", better, both(mask, op("not", first_outside)))
                first_outside = op("or", first_outside, mask) if mask is not TRUE else TRUE
            better = both(mask, better)
            best = where(better, value, best[0]), where(better, flat, best[1])
        assert best is not None
        return best[1]

    cost = 2 * len(offsets)
    values = b.compute(meta.shape, x.dtype, x.device, largest, (x,), cost)
    return values, b.compute(meta.shape, INDEX, x.device, position, (x,), 2 * cost)
