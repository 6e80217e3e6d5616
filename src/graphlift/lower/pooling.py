"""Rows for pooling over windows that unroll: each result is one expression of the window's elements.

In: values. Out: point values that read every position of the window, outside ones under masks.
Always: as ATen's kernel: the first of equal elements wins, NaN wins over all, positions are flat within the plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from graphlift.data import dataclass
from graphlift.lower import affine as ix
from graphlift.lower.affine import to_node
from graphlift.lower.expr import INDEX, TRUE, add, both, cast, compare, const, mul, op, where
from graphlift.lower.ir import Node
from graphlift.lower.table import row
from graphlift.lower.values import Builder, Instance, Meta, Value
from graphlift.shapes.expr import SizeLike

WINDOW_LIMIT = 9  # elements; larger windows go to ATen
_DTYPES = (torch.float32, torch.float64)


def _pair(given: Sequence[int], default: tuple[int, int]) -> tuple[int, int]:
    return default if not given else (given[0], given[-1])


@dataclass(frozen=True, slots=True)
class Window:
    """A window over the last two axes: ``size``, ``stride``, ``padding`` and ``spread`` of its elements, per axis."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    spread: tuple[int, int] = (1, 1)

    def elements(self, x: Value, shape: Sequence[SizeLike], at: Any) -> list[tuple[Node, list[Any]]]:
        """Per element of the window of the result ``at``: whether it is inside of ``x``, and its place in the plane."""
        found = []
        for offset in product(*map(range, self.size)):
            mask, place = TRUE, []
            for d in (0, 1):
                limit, step = x.shape[d - 2], self.stride[d]
                start = offset[d] * self.spread[d] - self.padding[d]
                position = ix.scaled(at[d - 2], step, start)
                highest = start + step * (shape[d - 2] - 1)
                if not ix.at_least(start, 0):
                    mask = both(mask, compare("ge", to_node(position), const(0, INDEX)))
                if not ix.at_least(limit - highest, 1):
                    mask = both(mask, compare("lt", to_node(position), const(limit, INDEX)))
                place.append(position)
            found.append((mask, place))
        return found


@row("avg_pool2d")
def avg_pool2d(
    b: Builder, out: Meta, x: Value, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0), ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value | None:  # fmt: skip
    size = _pair(kernel, (1, 1))
    if size[0] * size[1] > WINDOW_LIMIT or x.dtype not in _DTYPES:
        return None
    window = Window(size, _pair(stride, size), _pair(padding, (0, 0)))

    def covered(at: Any, d: int) -> Node:
        """How many places of the window count along an axis."""
        step, before, limit = window.stride[d], window.padding[d], x.shape[d - 2]
        last = limit + before if count_include_pad else limit
        below = before and not count_include_pad
        beyond = not ix.at_least(last + before - size[d] - step * (out.shape[d - 2] - 1), 0)
        if not below and not beyond:
            return const(size[d], INDEX)
        low, high = (to_node(ix.scaled(at[d - 2], step, k - before)) for k in (0, size[d]))
        if beyond:
            high = op("min", high, const(last, INDEX))
        return op("sub", high, op("max", low, const(0, INDEX)) if below else low)

    def mean(instance: Instance, at: Any) -> Node:
        total = const(0.0, x.dtype)
        for mask, place in window.elements(x, out.shape, at):
            total = op("add", total, instance.read_if(mask, x, (*at[:-2], *place), const(0.0, x.dtype)))
        if divisor_override is not None:
            return op("div", total, const(float(divisor_override), x.dtype))
        rows, columns = (cast(covered(at, d), x.dtype) for d in (0, 1))
        return op("div", total, op("mul", rows, columns))

    return b.compute(out.shape, x.dtype, x.device, mean, (x,), 2 * size[0] * size[1])


@row("max_pool2d_with_indices")
def max_pool2d(
    b: Builder, out: Any, x: Value, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0), dilation: Sequence[int] = (1, 1), ceil_mode: bool = False,
) -> Any:  # fmt: skip
    size = _pair(kernel, (1, 1))
    if size[0] * size[1] > WINDOW_LIMIT or x.dtype not in _DTYPES:
        return None
    window = Window(size, _pair(stride, size), _pair(padding, (0, 0)), _pair(dilation, (1, 1)))
    meta: Meta = out[0]
    lowest = const(float("-inf"), x.dtype)

    def elements(instance: Instance, at: Any) -> list[tuple[Node, Node, Node]]:
        """Per element of the window: whether it is inside, its value (-inf outside), its position in the plane."""
        found = []
        for mask, place in window.elements(x, meta.shape, at):
            flat = add(mul(to_node(place[0]), const(x.shape[-1], INDEX)), to_node(place[1]))
            found.append((mask, instance.read_if(mask, x, (*at[:-2], *place), lowest), flat))
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

    cost = 2 * size[0] * size[1]
    values = b.compute(meta.shape, x.dtype, x.device, largest, (x,), cost)
    return values, b.compute(meta.shape, INDEX, x.device, position, (x,), 2 * cost)
