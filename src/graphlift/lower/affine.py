"""Index algebra: sums of constant multiples of axes, the form in which every element index is kept.

In: axis numbers and integers. Out: `Affine` tuples, and `Node`s when the index is emitted.
Always: exact; what cannot be divided exactly raises `NeedsSplit` or becomes an opaque term (a `Node`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch

from graphlift.lower.ir import Node

# (constant, ((axis number or opaque Node, coefficient), ...)): axes ascending, then opaque terms; no zero coefficient.
Affine = tuple[int, tuple[tuple["int | Node", int], ...]]

ZERO: Affine = (0, ())


class NeedsSplit(Exception):
    """An index is divided inside an axis: the axis must become two, the inner one of ``size`` points."""

    def __init__(self, axis: int, size: int) -> None:
        super().__init__(axis, size)
        self.axis = axis
        self.size = size


def axis(number: int) -> Affine:
    """The index that is axis ``number`` itself."""
    return (0, ((number, 1),))


def constant(value: int) -> Affine:
    """An index that does not vary."""
    return (value, ())


def opaque(node: Node) -> Affine:
    """An index computed by ``node`` (an indirect load, a division of axes)."""
    return (0, ((node, 1),))


def _order(term: tuple[int | Node, int]) -> tuple[int, int]:
    atom = term[0]
    return (0, atom) if isinstance(atom, int) else (1, 0)


def total(parts: Sequence[tuple[Affine, int]]) -> Affine:
    """The sum of ``affine * factor`` over ``parts``."""
    const = 0
    terms: dict[int | Node, int] = {}
    for (offset, inner), factor in parts:
        const += offset * factor
        for atom, coefficient in inner:
            terms[atom] = terms.get(atom, 0) + coefficient * factor
    items = [(a, c) for a, c in terms.items() if c]
    if len(items) > 1:
        items.sort(key=_order)
    return (const, tuple(items))


def scaled(affine: Affine, factor: int, offset: int = 0) -> Affine:
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


def linear(index: Sequence[Affine], strides: Sequence[int]) -> Affine:
    """The flat index of a tuple of indices under ``strides``."""
    if len(index) == 1 and strides[0] == 1:
        return index[0]
    return total(list(zip(index, strides, strict=True)))


def bounds(affine: Affine, sizes: Sequence[int]) -> tuple[int, int] | None:
    """Smallest and largest value over the axes' points; None if an opaque term makes it unknown."""
    low = high = affine[0]
    for atom, coefficient in affine[1]:
        if not isinstance(atom, int):
            return None
        reach = coefficient * (sizes[atom] - 1)
        if reach > 0:
            high += reach
        else:
            low += reach
    return low, high


def divmod_by(affine: Affine, divisor: int, sizes: Sequence[int]) -> tuple[Affine, Affine]:
    """Quotient and remainder of an index known to be >= 0.

    Raises:
        NeedsSplit: the division cuts through an axis that can be split there.
    """
    const, terms = affine
    whole = [(a, c // divisor) for a, c in terms if c % divisor == 0]
    rest = tuple([(a, c) for a, c in terms if c % divisor])
    quotient, remainder = divmod(const, divisor)
    reach = bounds((remainder, rest), sizes)
    if reach is not None and reach[0] >= 0 and reach[1] < divisor:
        return (quotient, tuple(whole)), (remainder, rest)
    for atom, coefficient in rest:
        if not isinstance(atom, int) or coefficient <= 0 or divisor % coefficient:
            continue
        inner = divisor // coefficient
        if inner < sizes[atom] and sizes[atom] % inner == 0:
            raise NeedsSplit(atom, inner)
    node, by = to_node((remainder, rest)), Node("const", torch.int64, (), divisor)
    divided = total([((quotient, tuple(whole)), 1), (opaque(Node("floordiv", torch.int64, (node, by))), 1)])
    return divided, opaque(Node("mod", torch.int64, (node, by)))


@lru_cache(maxsize=65536)
def to_node(affine: Affine) -> Node:
    """The int64 node that computes an index, in the canonical order `Node` documents."""
    const, terms = affine
    result: Node | None = None
    for atom, coefficient in terms:
        term = Node("axis", torch.int64, (), atom) if isinstance(atom, int) else atom
        if coefficient != 1:
            term = Node("mul", torch.int64, (term, Node("const", torch.int64, (), coefficient)))
        result = term if result is None else Node("add", torch.int64, (result, term))
    if result is None:
        return Node("const", torch.int64, (), const)
    if const:
        result = Node("add", torch.int64, (result, Node("const", torch.int64, (), const)))
    return result


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=4096)
def reshape_groups(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[tuple[range, range], ...]:
    """Smallest runs of dimensions of ``old`` and ``new`` that hold the same elements, in order (no zero sizes)."""
    groups = []
    i = j = 0
    while i < len(old) or j < len(new):
        first_i, first_j = i, j
        a = b = 1
        if i < len(old):
            a, i = old[i], i + 1
        if j < len(new):
            b, j = new[j], j + 1
        while a != b:
            if a < b:
                a, i = a * old[i], i + 1
            else:
                b, j = b * new[j], j + 1
        groups.append((range(first_i, i), range(first_j, j)))
    return tuple(groups)


def reshaped(
    index: Sequence[Affine], old: tuple[int, ...], new: tuple[int, ...], sizes: Sequence[int]
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
def view_strides(
    old: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides over ``new`` of memory that has ``strides`` over ``old``; None where a reshape is no view of it."""
    result = [0] * len(new)
    for olds, news in reshape_groups(old, new):
        dims = [d for d in olds if old[d] != 1]
        if any(strides[a] != strides[b] * old[b] for a, b in zip(dims, dims[1:], strict=False)):
            return None
        step = strides[dims[-1]] if dims else 0
        for d in reversed(news):
            result[d] = step
            step *= new[d]
    return tuple(result)


@lru_cache(maxsize=8192)
def common_refinement(
    a: tuple[int, ...], b: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[Affine, ...], tuple[Affine, ...]] | None:
    """The coarsest axes that refine two row-major factorisations of one space, and each one's axes over them.

    None if the two cut the space at places that do not divide each other (6 x 4 against 4 x 6).
    """
    cuts = sorted({prod(a[k:]) for k in range(len(a) + 1)} | {prod(b[k:]) for k in range(len(b) + 1)})
    if prod(a) != prod(b) or any(high % low for low, high in zip(cuts, cuts[1:], strict=False)):
        return None
    sizes = tuple(high // low for low, high in zip(reversed(cuts[:-1]), reversed(cuts[1:]), strict=True))
    strides = contiguous_strides(sizes)

    def over(factors: tuple[int, ...]) -> tuple[Affine, ...]:
        result = []
        for k, size in enumerate(factors):
            low = prod(factors[k + 1 :])
            inside = [(n, s // low) for n, s in enumerate(strides) if low <= s < low * size]
            result.append((0, tuple(inside)))
        return tuple(result)

    return sizes, over(a), over(b)
