"""Index algebra: sums of constant multiples of axes, the form in which every element index is kept.

In: axis numbers and sizes. Out: `Affine` tuples, and `Node`s when the index is emitted.
Always: exact; what cannot be divided exactly raises `NeedsSplit` or becomes an opaque term (a `Node`). Constants,
coefficients and extents may be expressions: what is not proven of them counts as false.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch

from graphlift.lower.ir import Node
from graphlift.lower.sizes import hint, proven
from graphlift.shapes.expr import Expr, SizeLike, SizeUnknown, contiguous_strides, smax, smin

# (constant, ((axis number or opaque Node, coefficient), ...)): axes ascending, then opaque terms; no zero coefficient.
Affine = tuple[SizeLike, tuple[tuple["int | Node", SizeLike], ...]]
Shape = tuple[SizeLike, ...]

ZERO: Affine = (0, ())


class NeedsSplit(Exception):
    """An index is divided inside an axis: the axis must become two, the inner one of ``size`` points."""

    def __init__(self, axis: int, size: SizeLike) -> None:
        super().__init__(axis, size)
        self.axis = axis
        self.size = size


def axis(number: int) -> Affine:
    """The index that is axis ``number`` itself."""
    return (0, ((number, 1),))


def constant(value: SizeLike) -> Affine:
    """An index that does not vary."""
    return (value, ())


def opaque(node: Node) -> Affine:
    """An index computed by ``node`` (an indirect load, a division of axes)."""
    return (0, ((node, 1),))


def _order(term: tuple[int | Node, SizeLike]) -> tuple[int, int]:
    atom = term[0]
    return (0, atom) if isinstance(atom, int) else (1, 0)


def total(parts: Sequence[tuple[Affine, SizeLike]]) -> Affine:
    """The sum of ``affine * factor`` over ``parts``."""
    const: SizeLike = 0
    terms: dict[int | Node, SizeLike] = {}
    for (offset, inner), factor in parts:
        const += offset * factor
        for atom, coefficient in inner:
            terms[atom] = terms.get(atom, 0) + coefficient * factor
    items = [(a, c) for a, c in terms.items() if c]
    if len(items) > 1:
        items.sort(key=_order)
    return (const, tuple(items))


def scaled(affine: Affine, factor: SizeLike, offset: SizeLike = 0) -> Affine:
    """``affine * factor + offset``."""
    const, terms = affine
    if factor == 1:
        return (const + offset, terms)
    if factor == 0:
        return (offset, ())
    return (const * factor + offset, tuple([(a, c * factor) for a, c in terms]))


def substitute(affine: Affine, axes: Sequence[Affine]) -> Affine:
    """``affine`` with every axis k replaced by ``axes[k]``; opaque terms must have been rewritten already."""
    const, terms = affine
    if not terms:
        return affine
    if len(terms) == 1:
        atom, coefficient = terms[0]
        if isinstance(atom, int):
            return scaled(axes[atom], coefficient, const)
        return affine
    parts = [(axes[a], c) if isinstance(a, int) else (opaque(a), c) for a, c in terms]
    parts.append(((const, ()), 1))
    return total(parts)


def is_plain(affine: Affine) -> bool:
    """Whether the index has axes only, no opaque terms."""
    return all(isinstance(a, int) for a, _ in affine[1])


def linear(index: Sequence[Affine], strides: Sequence[SizeLike]) -> Affine:
    """The flat index of a tuple of indices under ``strides``."""
    if len(index) == 1 and strides[0] == 1:
        return index[0]
    return total(list(zip(index, strides, strict=True)))


def bounds(affine: Affine, sizes: Sequence[SizeLike]) -> tuple[SizeLike, SizeLike] | None:
    """Smallest and largest value over the axes' points; None if that is unknown (an opaque term, a sign)."""
    low = high = affine[0]
    for atom, coefficient in affine[1]:
        if not isinstance(atom, int):
            return None
        reach = coefficient * (sizes[atom] - 1)
        if at_least(reach, 0):
            high = high + reach
        elif isinstance(reach, int) or proven("<=", reach, 0):
            low = low + reach
        else:
            return None
    return low, high


def at_least(size: SizeLike, least: int) -> bool:
    """Whether ``size >= least`` is certain."""
    return size >= least if isinstance(size, int) else proven("<=", least, size)


def from_end(position: SizeLike, size: SizeLike) -> SizeLike:
    """A position in a dimension, counted from its end where negative. Raises: SizeUnknown if the sign is open."""
    if at_least(position, 0):
        return position
    if not isinstance(position, int) and not proven("<", position, 0):
        raise SizeUnknown(f"whether {position} counts from the end is not known before the graph runs")
    return position + size


def within(position: SizeLike, size: SizeLike) -> SizeLike:
    """A position brought into [0, size]."""
    if isinstance(position, int) and isinstance(size, int):
        return min(max(position, 0), size)
    if not at_least(position, 0):
        position = smax(position, 0)
    return position if at_least(size - position, 0) else smin(position, size)


def _below(size: SizeLike, limit: SizeLike) -> bool:
    if isinstance(size, int) and isinstance(limit, int):
        return size < limit
    return proven("<", size, limit)


def divmod_by(affine: Affine, divisor: SizeLike, sizes: Sequence[SizeLike]) -> tuple[Affine, Affine]:
    """Quotient and remainder of an index known to be >= 0.

    Raises:
        NeedsSplit: the division cuts through an axis that can be split there.
    """
    const, terms = affine
    whole = [(a, c // divisor) for a, c in terms if c % divisor == 0]
    rest = tuple([(a, c) for a, c in terms if c % divisor])
    quotient, remainder = const // divisor, const % divisor
    if not isinstance(divisor, int) and remainder:
        quotient, remainder = 0, const
    reach = bounds((remainder, rest), sizes)
    if reach is not None and at_least(reach[0], 0) and _below(reach[1], divisor):
        return (quotient, tuple(whole)), (remainder, rest)
    for atom, coefficient in rest:
        if not isinstance(atom, int) or not at_least(coefficient, 1) or divisor % coefficient:
            continue
        inner = divisor // coefficient
        if _below(inner, sizes[atom]) and sizes[atom] % inner == 0:
            raise NeedsSplit(atom, inner)
    node, by = to_node((remainder, rest)), size_node(divisor)
    divided = total([((quotient, tuple(whole)), 1), (opaque(Node("floordiv", torch.int64, (node, by))), 1)])
    return divided, opaque(Node("mod", torch.int64, (node, by)))


def size_node(size: SizeLike) -> Node:
    """The int64 node of a size."""
    return Node("size" if isinstance(size, Expr) else "const", torch.int64, (), size)


@lru_cache(maxsize=65536)
def to_node(affine: Affine) -> Node:
    """The int64 node that computes an index, in the canonical order `Node` documents."""
    const, terms = affine
    result: Node | None = None
    for atom, coefficient in terms:
        term = Node("axis", torch.int64, (), atom) if isinstance(atom, int) else atom
        if coefficient != 1:
            term = Node("mul", torch.int64, (term, size_node(coefficient)))
        result = term if result is None else Node("add", torch.int64, (result, term))
    if result is None:
        return size_node(const)
    if const:
        result = Node("add", torch.int64, (result, size_node(const)))
    return result


@lru_cache(maxsize=4096)
def reshape_groups(old: Shape, new: Shape) -> tuple[tuple[range, range], ...]:
    """Smallest runs of dimensions of ``old`` and ``new`` that hold the same elements, in order (no zero sizes).

    Sizes that vary close a run only where both sides are the same expression; else the run takes all that is left.
    """
    groups = []
    i = j = 0
    while i < len(old) or j < len(new):
        first_i, first_j = i, j
        a: SizeLike = 1
        b: SizeLike = 1
        if i < len(old):
            a, i = old[i], i + 1
        if j < len(new):
            b, j = new[j], j + 1
        while a != b:
            if isinstance(a, int) and isinstance(b, int):
                more_old = a < b
            elif i == len(old) and j == len(new):
                break
            else:
                more_old = i < len(old) and (j == len(new) or hint(a) <= hint(b))
            if more_old:
                a, i = a * old[i], i + 1
            else:
                b, j = b * new[j], j + 1
        groups.append((range(first_i, i), range(first_j, j)))
    return tuple(groups)


def reshaped(
    index: Sequence[Affine], old: Shape, new: Shape, sizes: Sequence[SizeLike]
) -> tuple[Affine, ...]:
    """The index into shape ``old`` of the element that shape ``new`` has at ``index`` (row-major reshape)."""
    result: list[Affine] = [ZERO] * len(old)
    for olds, news in reshape_groups(old, new):
        inner = [d for d in news if new[d] != 1]
        outer = [d for d in olds if old[d] != 1]
        if not outer:
            continue
        if len(outer) == 1 and len(inner) == 1:
            result[outer[0]] = index[inner[0]]
            continue
        flat = linear([index[d] for d in inner], contiguous_strides([new[d] for d in inner]))
        for d in reversed(outer[1:]):
            flat, result[d] = divmod_by(flat, old[d], sizes)
        result[outer[0]] = flat
    return tuple(result)


@lru_cache(maxsize=4096)
def view_strides(old: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides over ``new`` of memory that has ``strides`` over ``old``; None where a reshape is no view of it."""
    result: list[SizeLike] = [0] * len(new)
    for olds, news in reshape_groups(old, new):
        dims = [d for d in olds if old[d] != 1]
        if any(strides[a] != strides[b] * old[b] for a, b in zip(dims, dims[1:], strict=False)):
            return None
        step = strides[dims[-1]] if dims else 0
        for d in reversed(news):
            result[d] = step
            step = step * new[d]
    return tuple(result)


@lru_cache(maxsize=8192)
def common_refinement(a: Shape, b: Shape) -> tuple[Shape, tuple[Affine, ...], tuple[Affine, ...]] | None:
    """The coarsest axes that refine two row-major factorisations of one space, and each one's axes over them.

    None if the two cut the space at places that do not divide each other (6 x 4 against 4 x 6).
    """
    places = {prod(a[k:]) for k in range(len(a) + 1)} | {prod(b[k:]) for k in range(len(b) + 1)}
    cuts = sorted(places, key=hint)
    if prod(a) != prod(b) or any(high % low for low, high in zip(cuts, cuts[1:], strict=False)):
        return None
    sizes = tuple([high // low for low, high in zip(reversed(cuts[:-1]), reversed(cuts[1:]), strict=True)])
    order = {cut: k for k, cut in enumerate(reversed(cuts))}  # axis k steps by cut k + 1

    def over(factors: Shape) -> tuple[Affine, ...]:
        result: list[Affine] = []
        for k, size in enumerate(factors):
            low = prod(factors[k + 1 :])
            inside = range(order[low * size], order[low])
            result.append((0, tuple([(n, cuts[-2 - n] // low) for n in inside])))
        return tuple(result)

    return sizes, over(a), over(b)
