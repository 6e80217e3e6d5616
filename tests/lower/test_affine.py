"""Index algebra against plain enumeration."""

from __future__ import annotations

import itertools
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from graphlift.lower import affine as ix
from graphlift.shapes.expr import contiguous_strides

factors = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def value(affine: ix.Affine, point: tuple[int, ...]) -> int:
    assert ix.is_plain(affine)
    return affine[0] + sum(c * point[a] for a, c in affine[1])  # type: ignore[index]


@settings(max_examples=60, deadline=None)
@given(factors, st.data())
def test_reshape_finds_the_same_element(sizes: list[int], data: st.DataObject) -> None:
    total = prod(sizes)
    new = []
    while total > 1:
        size = data.draw(st.sampled_from([d for d in range(2, total + 1) if total % d == 0]))
        new.append(size)
        total //= size
    old_shape, new_shape = tuple(sizes), tuple(new)
    axes = list(new_shape)
    index = [ix.axis(k) for k in range(len(axes))]
    while True:
        try:
            found = ix.reshaped(index, old_shape, new_shape, axes)
            break
        except ix.NeedsSplit as split:
            assert axes[split.axis] % split.size == 0
            moved = [ix.axis(j if j < split.axis else j + 1) for j in range(len(axes))]
            moved[split.axis] = (0, ((split.axis, split.size), (split.axis + 1, 1)))
            index = [ix.substitute(a, moved) for a in index]
            axes[split.axis : split.axis + 1] = [axes[split.axis] // split.size, split.size]
    if not all(map(ix.is_plain, found)):
        return  # sizes that do not divide each other: computed by division at run time
    strides = contiguous_strides(old_shape)
    for flat, point in enumerate(itertools.product(*map(range, axes))):
        assert sum(value(a, point) * s for a, s in zip(found, strides, strict=True)) == flat


@settings(max_examples=60, deadline=None)
@given(factors, factors)
def test_common_refinement(a: list[int], b: list[int]) -> None:
    found = ix.common_refinement(tuple(a), tuple(b))
    if found is None:
        return
    sizes, of_a, of_b = found
    assert prod(sizes) == prod(a) == prod(b)
    for sizes_given, axes in ((a, of_a), (b, of_b)):
        strides = contiguous_strides(sizes_given)
        for flat, point in enumerate(itertools.product(*map(range, sizes))):
            got = [value(x, point) for x in axes]
            assert sum(g * s for g, s in zip(got, strides, strict=True)) == flat
            assert all(0 <= g < s for g, s in zip(got, sizes_given, strict=True))


def test_terms_are_canonical() -> None:
    assert ix.total([(ix.axis(1), 2), (ix.axis(0), 3), (ix.axis(1), -2)]) == (0, ((0, 3),))
    assert ix.total([(ix.axis(1), 2), (ix.axis(0), 3)]) == ix.total([(ix.axis(0), 3), (ix.axis(1), 2)])
