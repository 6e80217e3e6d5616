"""Layouts of views of tensors whose sizes are symbolic.

In: a view operator's arguments. Out: the `Layout` of each result: shape, strides and offset in the table's symbols.
Always: what a layout takes for granted has been decided in the table; one row per operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..data import dataclass
from ..shapes.expr import Expr, Relation, SizeLike, contiguous_strides
from ..shapes.table import SymbolTable
from .ops import aten
from .spec import Spec

Shape = tuple[SizeLike, ...]
_NO_END = 1 << 62  # slices without an end come as the largest int


@dataclass(frozen=True, slots=True)
class Layout:
    shape: Shape
    stride: Shape
    offset: SizeLike = 0


ViewRule = Callable[[SymbolTable, tuple, dict], Any]
VIEWS: dict[Any, ViewRule] = {}


def _row(*funcs: Any) -> Callable[[ViewRule], ViewRule]:
    def register(rule: ViewRule) -> ViewRule:
        for func in funcs:
            VIEWS[func] = rule
        return rule

    return register


def argument(args: tuple, kwargs: dict, position: int, name: str, default: Any = None) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def require_equal(table: SymbolTable | None, a: SizeLike, b: SizeLike) -> bool:
    """Makes it a fact that two sizes are equal; false where they are not in this call. No table: numbers."""
    return a == b or (table is not None and table.decide(Relation("==", a, b)))


def product(sizes: Sequence[SizeLike]) -> SizeLike:
    n: SizeLike = 1
    for size in sizes:
        n = n * size
    return n


def _same(
    spec: Spec, shape: Sequence[SizeLike] | None = None, stride: Any = None, offset: Any = None
) -> Layout:
    return Layout(
        tuple(spec.shape if shape is None else shape),
        tuple(spec.stride if stride is None else stride),
        spec.offset if offset is None else offset,
    )


@_row(
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh.default,
    aten._conj.default,
    aten._neg_view.default,
)
def _alias(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    return _same(args[0].spec)


def full_shape(table: SymbolTable, numel: SizeLike, sizes: Sequence[SizeLike]) -> Shape:
    """The sizes with the -1 among them worked out."""
    sizes = [table.settle(s) for s in sizes]
    if -1 not in sizes:
        require_equal(table, product(sizes), numel)
        return tuple(sizes)
    rest = product([s for s in sizes if s != -1])
    missing = numel // rest
    require_equal(table, missing * rest, numel)
    return tuple(missing if s == -1 else s for s in sizes)


def view_strides(table: SymbolTable, spec: Spec, shape: Shape) -> Shape | None:
    """Strides of the same memory as another shape: hints say how dimensions go together, facts that they do."""
    hint = table.hint
    strides: list[SizeLike] = [0] * len(shape)
    place = len(shape) - 1
    base: SizeLike = spec.stride[-1] if spec.stride else 1
    numel: SizeLike = 1
    seen: SizeLike = 1
    for d in range(len(spec.shape) - 1, -1, -1):
        numel = numel * spec.shape[d]
        chunk_ends = d == 0 or (
            spec.shape[d - 1] != 1 and not _is_equal(table, spec.stride[d - 1], numel * base)
        )
        if not chunk_ends:
            continue
        while place >= 0 and (hint(seen) < hint(numel) or shape[place] == 1):
            strides[place] = seen * base
            seen = seen * shape[place]
            place -= 1
        if hint(seen) != hint(numel) or not require_equal(table, seen, numel):
            return None
        if d > 0:
            base, numel, seen = spec.stride[d - 1], 1, 1
    if not spec.shape:
        strides, place = [1] * len(shape), -1
    return tuple(strides) if place == -1 else None


def _is_equal(table: SymbolTable, a: SizeLike, b: SizeLike) -> bool:
    """Equal for certain, or decided so where this call's sizes say so."""
    return a == b or (table.hint(a) == table.hint(b) and table.decide(Relation("==", a, b)))


@_row(aten.view.default)
def _view(table: SymbolTable, args: tuple, kwargs: dict) -> Layout | None:
    spec = args[0].spec
    shape = full_shape(table, spec.numel(), args[1])
    contiguous = spec.stride == contiguous_strides(spec.shape)
    strides = contiguous_strides(shape) if contiguous else view_strides(table, spec, shape)
    return None if strides is None else Layout(shape, strides, spec.offset)


@_row(aten._reshape_alias.default)
def _reshape_alias(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    return Layout(tuple(args[1]), tuple(args[2]), args[0].spec.offset)


@_row(aten.as_strided.default)
def _as_strided(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    offset = argument(args, kwargs, 3, "storage_offset")
    return Layout(tuple(args[1]), tuple(args[2]), args[0].spec.offset if offset is None else offset)


@_row(aten.expand.default)
def _expand(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    spec, sizes = args[0].spec, list(args[1])
    new = len(sizes) - len(spec.shape)
    shape: list[SizeLike] = []
    stride: list[SizeLike] = []
    for i, size in reversed(list(enumerate(sizes))):
        if i >= new:
            old, step = spec.shape[i - new], spec.stride[i - new]
        else:
            old, step = 1, shape[0] * stride[0] if shape else 0
        if size == -1 or size == old:
            size = old
        elif old == 1:
            step = 0
        else:
            require_equal(table, old, size)
        shape.insert(0, size)
        stride.insert(0, step)
    return Layout(tuple(shape), tuple(stride), spec.offset)


@_row(aten.permute.default)
def _permute(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    spec = args[0].spec
    dims = [d % len(spec.shape) for d in args[1]]
    return _same(spec, [spec.shape[d] for d in dims], [spec.stride[d] for d in dims])


def _swapped(values: Sequence[Any], a: int, b: int) -> list[Any]:
    result = list(values)
    if result:
        result[a], result[b] = result[b], result[a]
    return result


@_row(aten.transpose.int)
def _transpose(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    spec, a, b = args[0].spec, args[1], args[2]
    return _same(spec, _swapped(spec.shape, a, b), _swapped(spec.stride, a, b))


@_row(aten.t.default)
def _t(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    return _same(args[0].spec, args[0].spec.shape[::-1], args[0].spec.stride[::-1])


@_row(aten.unsqueeze.default)
def _unsqueeze(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    spec = args[0].spec
    d = args[1] % (len(spec.shape) + 1)
    step = spec.shape[d] * spec.stride[d] if d < len(spec.shape) else 1
    return _same(spec, (*spec.shape[:d], 1, *spec.shape[d:]), (*spec.stride[:d], step, *spec.stride[d:]))


@_row(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    spec = args[0].spec
    dims = argument(args, kwargs, 1, "dim")
    rank = len(spec.shape)
    chosen = range(rank) if dims is None else [d % rank for d in ([dims] if isinstance(dims, int) else dims)]
    kept = [d for d in range(rank) if d not in chosen or spec.shape[d] != 1]
    return _same(spec, [spec.shape[d] for d in kept], [spec.stride[d] for d in kept])


def _below(table: SymbolTable, a: SizeLike, b: SizeLike) -> bool:
    return table.decide(Relation("<", a, b))


@_row(aten.select.int)
def _select(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    spec, index = args[0].spec, args[2]
    d = args[1] % len(spec.shape)
    if _below(table, index, 0):
        index = index + spec.shape[d]
    if _below(table, index, 0) or not _below(table, index, spec.shape[d]):
        raise IndexError("select(): index out of range")  # the call with this call's sizes has said it better
    offset = spec.offset + index * spec.stride[d]
    return _same(spec, spec.shape[:d] + spec.shape[d + 1 :], spec.stride[:d] + spec.stride[d + 1 :], offset)


def slice_bounds(
    table: SymbolTable, size: SizeLike, start: SizeLike | None, end: SizeLike | None
) -> tuple[SizeLike, SizeLike]:
    """Start and end as Python's slices clamp them."""

    def clamped(value: SizeLike) -> SizeLike:
        if isinstance(value, int) and value >= _NO_END:
            return size
        if _below(table, value, 0):
            value = value + size
            if _below(table, value, 0):
                return 0
        return size if _below(table, size, value) else value

    first = 0 if start is None else clamped(start)
    last = size if end is None else clamped(end)
    return first, first if _below(table, last, first) else last


@_row(aten.slice.Tensor)
def _slice(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    spec = args[0].spec
    d = argument(args, kwargs, 1, "dim", 0) % len(spec.shape)
    step = argument(args, kwargs, 4, "step", 1)
    first, last = slice_bounds(
        table, spec.shape[d], argument(args, kwargs, 2, "start"), argument(args, kwargs, 3, "end")
    )
    shape, stride = list(spec.shape), list(spec.stride)
    shape[d] = (last - first + step - 1) // step
    stride[d] = stride[d] * step
    return _same(spec, shape, stride, spec.offset + first * spec.stride[d])


@_row(aten.split.Tensor)
def _split(table: SymbolTable, args: tuple, kwargs: dict) -> list[Layout]:
    d = argument(args, kwargs, 2, "dim", 0) % len(args[0].spec.shape)
    size, whole = args[1], args[0].spec.shape[d]
    count = max(table.specialize((whole + size - 1) // size, "the number of pieces of a split"), 1)
    return _pieces(args[0].spec, d, [size] * (count - 1) + [whole - size * (count - 1)])


@_row(aten.split_with_sizes.default)
def _split_with_sizes(table: SymbolTable, args: tuple, kwargs: dict) -> list[Layout]:
    d = argument(args, kwargs, 2, "dim", 0) % len(args[0].spec.shape)
    total: SizeLike = 0
    for size in args[1]:
        total = total + size
    require_equal(table, total, args[0].spec.shape[d])
    return _pieces(args[0].spec, d, args[1])


def _split_needs(args: tuple, kwargs: dict) -> list[Relation]:
    whole = args[0].spec.shape[argument(args, kwargs, 2, "dim", 0) % len(args[0].spec.shape)]
    total: SizeLike = 0
    for size in args[1]:
        total = total + size
    return [*(Relation("<=", 0, size) for size in args[1]), Relation("==", total, whole)]


#: What an operator raises without, which the graph checks where only it knows the sizes.
REQUIREMENTS: dict[Any, Callable[[tuple, dict], list[Relation]]] = {
    aten.split_with_sizes.default: _split_needs
}


def _pieces(spec: Spec, d: int, sizes: Sequence[SizeLike]) -> list[Layout]:
    found: list[Layout] = []
    start: SizeLike = 0
    for size in sizes:
        shape = (*spec.shape[:d], size, *spec.shape[d + 1 :])
        found.append(Layout(shape, spec.stride, spec.offset + start * spec.stride[d]))
        start = start + size
    return found


@_row(aten.unbind.int)
def _unbind(table: SymbolTable, args: tuple, kwargs: dict) -> list[Layout]:
    spec = args[0].spec
    d = argument(args, kwargs, 1, "dim", 0) % len(spec.shape)
    count = table.specialize(spec.shape[d], "the number of slices that unbind (or a loop) gives")
    shape, stride = spec.shape[:d] + spec.shape[d + 1 :], spec.stride[:d] + spec.stride[d + 1 :]
    return [Layout(shape, stride, spec.offset + i * spec.stride[d]) for i in range(count)]


@_row(aten.diagonal.default)
def _diagonal(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    spec = args[0].spec
    offset = argument(args, kwargs, 1, "offset", 0)
    rank = len(spec.shape)
    a = argument(args, kwargs, 2, "dim1", 0) % rank
    b = argument(args, kwargs, 3, "dim2", 1) % rank
    rows, columns, start = spec.shape[a], spec.shape[b], spec.offset
    if _below(table, offset, 0):
        rows, start = rows + offset, start - offset * spec.stride[a]
    else:
        columns, start = columns - offset, start + offset * spec.stride[b]
    size = rows if rows == columns or _below(table, rows, columns) else columns
    kept = [d for d in range(rank) if d not in (a, b)]
    return Layout(
        (*[spec.shape[d] for d in kept], size),
        (*[spec.stride[d] for d in kept], spec.stride[a] + spec.stride[b]),
        start,
    )


@_row(aten.unfold.default)
def _unfold(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    spec, size, step = args[0].spec, args[2], args[3]
    d = args[1] % len(spec.shape)
    shape, stride = list(spec.shape), list(spec.stride)
    shape[d] = (shape[d] - size) // step + 1
    stride[d] = stride[d] * step
    return _same(spec, (*shape, size), (*stride, spec.stride[d]))


@_row(aten.view_as_real.default)
def _view_as_real(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    spec = args[0].spec
    return _same(spec, (*spec.shape, 2), (*[s * 2 for s in spec.stride], 1), spec.offset * 2)


@_row(aten.view_as_complex.default)
def _view_as_complex(table: SymbolTable, args: tuple, kwargs: dict) -> Layout | None:
    spec = args[0].spec
    halves = [s // 2 for s in spec.stride[:-1]]
    if any(h * 2 != s for h, s in zip(halves, spec.stride, strict=False)) or isinstance(spec.offset, Expr):
        return None
    return _same(spec, spec.shape[:-1], halves, spec.offset // 2)


@_row(aten.view.dtype)
def _view_dtype(table: SymbolTable, args: tuple, kwargs: dict) -> Layout | None:
    same = args[0].spec.dtype.itemsize == args[1].itemsize
    return _same(args[0].spec) if same else None
