"""Rows for views: index maps, nothing computed.

In: a value and the view's parameters. Out: a view value. Always: sizes are the fake's, so -1 and the like are resolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphlift.lower import affine as ix
from graphlift.lower.table import row
from graphlift.lower.values import Builder, Meta, Value
from graphlift.shapes.expr import SizeLike


@row("view", "reshape", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims",
     "view_copy", "unsqueeze_copy", "squeeze_copy", "flatten.using_ints")  # fmt: skip
def reshape(b: Builder, out: Meta, x: Value, *_: Any, **__: Any) -> Value:
    return b.reshape(x, out.shape)


@row("alias", "detach", "lift_fresh", "alias_copy", "detach_copy", "lift_fresh_copy")
def alias(b: Builder, out: Meta, x: Value) -> Value:
    return x


@row("permute", "permute_copy")
def permute(b: Builder, out: Meta, x: Value, dims: Sequence[int]) -> Value:
    return b.permute(x, [d % len(x.shape) for d in dims])


@row("transpose.int", "transpose_copy.int")
def transpose(b: Builder, out: Meta, x: Value, first: int, second: int) -> Value:
    order = list(range(len(x.shape)))
    if order:
        order[first], order[second] = order[second], order[first]
    return b.permute(x, order)


@row("t", "t_copy")
def t(b: Builder, out: Meta, x: Value) -> Value:
    return b.permute(x, range(len(x.shape))[::-1])


@row("expand", "expand_copy")
def expand(b: Builder, out: Meta, x: Value, size: Sequence[int], implicit: bool = False) -> Value:
    return b.expand(x, out.shape)


def _start(start: SizeLike | None, size: SizeLike) -> SizeLike:
    return 0 if start is None else ix.within(ix.from_end(start, size), size)


@row("slice.Tensor", "slice_copy.Tensor")
def slice_(
    b: Builder,
    out: Meta,
    x: Value,
    dim: int = 0,
    start: SizeLike | None = None,
    end: SizeLike | None = None,
    step: int = 1,
) -> Value:
    dim %= len(x.shape)
    first = _start(start, x.shape[dim])
    if out.shape == x.shape and step == 1:
        return x

    def index_map(index: Any, _: Any) -> Any:
        return (*index[:dim], ix.scaled(index[dim], step, first), *index[dim + 1 :])

    return b.view(x, out.shape, index_map)


@row("select.int", "select_copy.int")
def select(b: Builder, out: Meta, x: Value, dim: int, position: SizeLike) -> Value:
    dim %= len(x.shape)
    at = ix.constant(ix.from_end(position, x.shape[dim]))
    return b.view(x, out.shape, lambda index, _: (*index[:dim], at, *index[dim:]))


def pieces(b: Builder, x: Value, sizes: Sequence[SizeLike], dim: int) -> tuple[Value, ...]:
    dim %= len(x.shape)
    result = []
    first: SizeLike = 0
    for size in sizes:
        shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])

        def index_map(index: Any, _: Any, first: SizeLike = first) -> Any:
            return (*index[:dim], ix.scaled(index[dim], 1, first), *index[dim + 1 :])

        result.append(b.view(x, shape, index_map))
        first = first + size
    return tuple(result)


@row("split.Tensor", "chunk", "unsafe_split.Tensor", "unsafe_chunk", "split_copy.Tensor")
def split(b: Builder, out: Sequence[Meta], x: Value, size: int, dim: int = 0) -> tuple[Value, ...]:
    return pieces(b, x, [m.shape[dim] for m in out], dim)


@row("split_with_sizes", "unsafe_split_with_sizes", "split.sizes", "split_with_sizes_copy")
def split_with_sizes(
    b: Builder, out: Sequence[Meta], x: Value, sizes: Sequence[int], dim: int = 0
) -> tuple[Value, ...]:
    return pieces(b, x, sizes, dim)


@row("unbind.int", "unbind_copy.int")
def unbind(b: Builder, out: Sequence[Meta], x: Value, dim: int = 0) -> tuple[Value, ...]:
    return tuple([select(b, m, x, dim, k) for k, m in enumerate(out)])


@row("diagonal", "diagonal_copy")
def diagonal(b: Builder, out: Meta, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    rank = len(x.shape)
    dim1, dim2 = dim1 % rank, dim2 % rank
    rows, columns = max(-offset, 0), max(offset, 0)

    def index_map(index: Any, _: Any) -> Any:
        rest = list(index[:-1])
        full = []
        for d in range(rank):
            if d == dim1:
                full.append(ix.scaled(index[-1], 1, rows))
            elif d == dim2:
                full.append(ix.scaled(index[-1], 1, columns))
            else:
                full.append(rest.pop(0))
        return tuple(full)

    return b.view(x, out.shape, index_map)


@row("unfold")
def unfold(b: Builder, out: Meta, x: Value, dim: int, size: int, step: int) -> Value | None:
    if not x.shape:
        return None
    dim %= len(x.shape)

    def index_map(index: Any, _: Any) -> Any:
        inside = ix.total([(index[dim], step), (index[-1], 1)])
        return (*index[:dim], inside, *index[dim + 1 : -1])

    return b.view(x, out.shape, index_map)


@row("view_as_real", "view.dtype", "as_strided", "as_strided_copy")
def opaque_view(*_: Any, **__: Any) -> None:
    return None  # looks at memory, not at elements: ATen makes the view of the tensor in memory


@row("flip")
def flip(b: Builder, out: Meta, x: Value, dims: Sequence[int]) -> Value:
    flipped = {d % len(x.shape) for d in dims} if x.shape else set()

    def index_map(index: Any, _: Any) -> Any:
        return tuple([ix.scaled(i, -1, x.shape[d] - 1) if d in flipped else i for d, i in enumerate(index)])

    return b.copy(b.view(x, x.shape, index_map))


@row("repeat")
def repeat(b: Builder, out: Meta, x: Value, repeats: Sequence[int]) -> Value:
    lead = len(repeats) - len(x.shape)
    inner = (1,) * lead + x.shape
    shape = [s for r, n in zip(repeats, inner, strict=True) for s in (r, n)]
    tiled = b.expand(b.reshape(x, [s for n in inner for s in (1, n)]), shape)
    return b.copy(b.reshape(tiled, out.shape))


@row("movedim.int")
def movedim(b: Builder, out: Meta, x: Value, source: int, destination: int) -> Value:
    order = list(range(len(x.shape)))
    source, destination = source % len(order), destination % len(order)
    order.insert(destination, order.pop(source))
    return b.permute(x, order)
