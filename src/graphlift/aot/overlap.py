"""Whether strided views of one storage share memory.

In: metadata of views on the same storage. Out: yes or no; yes where it would take long to know.
Always: "no" is certain.
"""

from __future__ import annotations

from typing import cast

from ..fake import Spec

_COUNTED = 1 << 22  # elements that are looked at one by one, when strides alone do not tell


def overlaps_itself(spec: Spec) -> bool:
    """Whether two elements may be the same place in memory."""
    spec = spec.concrete()
    reach = 0
    for stride, size in sorted((s, n) for n, s in zip(spec.shape, spec.stride, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def share_memory(a: Spec, b: Spec) -> bool:
    """Whether an element of `a` lies where an element of `b` does."""
    a, b = a.concrete(), b.concrete()
    if 0 in a.shape or 0 in b.shape:
        return False
    if a.dtype.itemsize != b.dtype.itemsize:
        width = a.dtype.itemsize, b.dtype.itemsize
        return a.offset * width[0] < b.span() * width[1] and b.offset * width[1] < a.span() * width[0]
    if a.offset >= b.span() or b.offset >= a.span():
        return False
    if a.shape == b.shape and a.stride == b.stride and not overlaps_itself(a):
        return _reachable(a, cast(int, b.offset - a.offset))
    if a.numel() + b.numel() > _COUNTED:
        return True
    return not _places(a).isdisjoint(_places(b))


def _reachable(spec: Spec, delta: int) -> bool:
    """Whether `delta` is the distance between two elements, strides being nested."""
    dims = sorted(((s, n) for n, s in zip(spec.shape, spec.stride, strict=True) if n > 1), reverse=True)
    left = {delta}
    for stride, size in dims:
        # Rounding either way: the inner dimensions together reach less than one step of this one.
        left = {d - k * stride for d in left for k in (d // stride, d // stride + 1) if abs(k) < size}
    return 0 in left


def _places(spec: Spec) -> set[int]:
    places = [cast(int, spec.offset)]
    for size, stride in zip(spec.shape, spec.stride, strict=True):
        steps = range(0, size * stride, stride) if stride else (0,)
        places = [p + s for p in places for s in steps]
    return set(places)


def overlaps_partly(target: Spec, other: Spec) -> bool:
    """Whether `other` reads, elsewhere, memory that is written as `target`."""
    if other is target or not share_memory(target, other):
        return False
    return (other.shape, other.stride, other.offset) != (target.shape, target.stride, target.offset)
