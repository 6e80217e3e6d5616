"""The strides that element-wise operators of the CPU give their results, those of dimensions of size one included.

In: an operator's operands, none of them symbolic. Out: the strides of its result, or None where they are no question.
Always: what ATen's TensorIterator does when it allocates an output. Kernels for meta tensors, written in Python, take
an operand of fewer dimensions for one with more of size one, which the iterator does not.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ..shapes.expr import contiguous_strides
from .ops import aten
from .spec import META, Spec
from .tensor import FakeTensor

Operand = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides
_TENSORS = frozenset(("Tensor", "Optional[Tensor]"))
_LAST_FIRST = frozenset((aten.threshold_backward.default,))  # the iterator is given the last operand first
_UNCAST = {aten.where.self: 1}  # how many operands keep their dtype, whatever the others have
#: Tagged as element-wise, and of several such operators, or with a result that is made before the iterator runs.
_OTHERS = frozenset(
    (
        aten.clone.default,
        aten.conj_physical.default,
        aten.ldexp.Tensor,
        aten.masked_fill.Scalar,
        aten.mvlgamma.default,
        aten.positive.default,
        aten.relu6.default,
    )
)
_NUMBERS_APART = frozenset((aten.pow.Tensor_Scalar,))  # whose number is no operand


def elementwise_strides(func: Any, made: Spec, args: tuple, kwargs: dict) -> tuple[int, ...] | None:
    """The strides of `made`, the result of an element-wise operator; None for other operators."""
    if torch.Tag.pointwise not in func.tags or func._schema.is_mutable or func in _OTHERS or not made.shape:
        return None
    tensors = [
        args[k] if k < len(args) else kwargs.get(a.name)
        for k, a in enumerate(func._schema.arguments)
        if str(a.type) in _TENSORS
    ]
    given: list[Any] = [a for a in tensors if a is not None]
    if not given or any(type(a) is FakeTensor and a.spec.symbolic for a in given):
        return None
    if len(given) == 1 and "calar" in func._overloadname and func not in _NUMBERS_APART:
        given.append(1)
    kept = _UNCAST.get(func, 0)
    dtype = _common_dtype(given[kept:], made)
    operands = [_operand(a, a.spec.dtype if k < kept else dtype) for k, a in enumerate(given)]
    return result_strides(made.shape, operands[::-1] if func in _LAST_FIRST else operands)  # type: ignore[arg-type]


def _common_dtype(given: Sequence[Any], made: Spec) -> torch.dtype:
    """The dtype that the kernel computes in."""
    tensors = [a for a in given if type(a) is FakeTensor and a.spec.shape]
    if not tensors:
        return made.dtype
    dtype = functools.reduce(torch.promote_types, [t.spec.dtype for t in tensors])
    for a in given:
        if type(a) is not FakeTensor or not a.spec.shape:
            other = torch.empty((), dtype=a.spec.dtype, device=META) if type(a) is FakeTensor else a
            dtype = torch.result_type(torch.empty(1, dtype=dtype, device=META), other)
    return made.dtype if made.dtype.is_floating_point and not dtype.is_floating_point else dtype


def _operand(a: Any, dtype: torch.dtype) -> Operand:
    """A number is an operand without dimensions; one of another dtype is cast first, which packs it."""
    if type(a) is not FakeTensor:
        return (), ()
    spec = a.spec
    if spec.dtype == dtype or _is_dense(spec.shape, spec.stride):
        return spec.shape, spec.stride  # type: ignore[return-value]
    return spec.shape, result_strides(spec.shape, [(spec.shape, spec.stride)])  # type: ignore[arg-type, list-item, return-value]


def result_strides(shape: tuple[int, ...], operands: Sequence[Operand]) -> tuple[int, ...]:
    """Of a new tensor for the results: as the operands are where they agree, else by the first that tells."""
    if 0 not in shape and all(strides == contiguous_strides(sizes) for sizes, strides in operands):
        return contiguous_strides(shape)  # type: ignore[return-value]
    if all(sizes == shape for sizes, _ in operands):
        like = [torch.empty_strided(*operand, device=META) for operand in operands]
        if all(t.is_contiguous() for t in like):
            return contiguous_strides(shape)  # type: ignore[return-value]
        if len(shape) == 4 and all(t.is_contiguous(memory_format=torch.channels_last) for t in like):
            return torch.empty(shape, device=META, memory_format=torch.channels_last).stride()
        first = operands[0][1]
        if all(strides == first for _, strides in operands) and _is_dense(*operands[0]):
            return first
    places = [_places(shape, operand) for operand in operands]
    innermost_first = list(range(len(shape) - 1, -1, -1))
    order = innermost_first.copy()
    for start in range(1, len(order)):
        at = start
        for before in range(start - 1, -1, -1):
            found = _compare(order[before], order[at], shape, places)
            if found > 0:
                order[before], order[at], at = order[at], order[before], before
            elif found < 0:
                break
    if order == innermost_first:
        return contiguous_strides(shape)  # type: ignore[return-value]
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim], step = step, step * shape[dim]
    return tuple(strides)


def _is_dense(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether ATen says that the elements fill a block of memory, each place once."""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _places(shape: tuple[int, ...], operand: Operand) -> list[int]:
    """The operand's strides along the dimensions of the result: 0 where it has no such dimension, or repeats."""
    sizes, strides = operand
    own = [
        0 if n == 1 and wide != 1 else s
        for n, wide, s in zip(sizes, shape[len(shape) - len(sizes) :], strides, strict=True)
    ]
    return [0] * (len(shape) - len(sizes)) + own


def _compare(a: int, b: int, shape: tuple[int, ...], places: list[list[int]]) -> int:
    """Whether dimension `a` is to lie outside (1) or inside (-1) `b`; 0: no operand tells."""
    for strides in places:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return 1 if strides[a] > strides[b] else -1
        if shape[a] > shape[b]:
            return 1
    return 0
