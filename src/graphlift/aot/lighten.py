"""Rewrites of a joint trace that leave the backward less to ask for.

In: a Trace with gradients. Out: the same Trace; its backward reads smaller tensors, or ones that are kept anyway.
Always: every value is computed as before, bit for bit; only static sizes and contiguous tensors are touched.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from ..data import dataclass
from ..fake import Spec
from ..fake.ops import aten
from ..shapes.expr import contiguous_strides
from .ir import BACKWARD, FORWARD, Op, Trace, Value, inputs_of, substitute
from .record import Recorder

# Backward operators that look only at the shape of an argument: its position.
_SHAPE_ONLY: Mapping[Any, int] = MappingProxyType(
    {
        aten.max_pool2d_with_indices_backward.default: 1,
        aten.max_pool3d_with_indices_backward.default: 1,
        aten.adaptive_max_pool2d_backward.default: 1,
        aten.adaptive_max_pool3d_backward.default: 1,
        aten.avg_pool2d_backward.default: 1,
        aten.avg_pool3d_backward.default: 1,
        aten._adaptive_avg_pool2d_backward.default: 1,
        aten._adaptive_avg_pool3d_backward.default: 1,
        aten.nll_loss_backward.default: 1,
        aten.nll_loss2d_backward.default: 1,
        aten.reflection_pad1d_backward.default: 1,
        aten.reflection_pad2d_backward.default: 1,
        aten.replication_pad1d_backward.default: 1,
        aten.replication_pad2d_backward.default: 1,
    }
)
# Operators whose second result are positions within a plane: how many trailing axes of the input are one.
_PLANE_INDICES: Mapping[Any, int] = MappingProxyType(
    {
        aten.max_pool2d_with_indices.default: 2,
        aten.max_pool3d_with_indices.default: 3,
        aten.adaptive_max_pool2d.default: 2,
        aten.adaptive_max_pool3d.default: 3,
    }
)
_NORMALISE = aten._native_batch_norm_legit_no_training.default
_BATCH_NORMS = frozenset((aten.native_batch_norm.default, aten._native_batch_norm_legit_functional.default))
_NARROW = ((2**7, torch.int8), (2**15, torch.int16), (2**31, torch.int32))


def lighten(trace: Trace, rec: Recorder) -> None:
    """Apply the rewrites; call it before dead operators are dropped."""
    _running_statistics(trace)
    _stand_ins(trace, rec)
    _narrow_indices(trace, rec)
    _normalised_again(trace, rec)


@contextlib.contextmanager
def _recording(rec: Recorder, into: list[Op], like: Op) -> Iterator[None]:
    """What is recorded meanwhile goes to the end of `into`, as part of what `like` belongs to."""
    before, rec.trace.ops = rec.trace.ops, into
    stage, source, rec.stage, rec.source = rec.stage, rec.source, like.stage, like.source
    try:
        yield
    finally:
        rec.trace.ops, rec.stage, rec.source = before, stage, source


def _is_plain(spec: Spec) -> bool:
    """Static, strided and contiguous."""
    if spec.layout is not torch.strided or any(type(n) is not int for n in spec.shape):
        return False
    return spec.stride == contiguous_strides(spec.shape) and not (spec.conj or spec.neg)


# -- arguments of which only the shape counts ----------------------------------------------------------------


def _stand_ins(trace: Trace, rec: Recorder) -> None:
    kept: list[Op] = []
    for op in trace.ops:
        at = _SHAPE_ONLY.get(op.func)
        if at is not None and op.stage == BACKWARD and len(op.args) > at and _is_plain(op.args[at].spec):
            like = op.args[at].spec
            with _recording(rec, kept, op):
                zero = rec.call(aten.full.default, [], 0, dtype=like.dtype, device=like.device)
                shape = rec.call(aten.expand.default, zero, list(like.shape))
            op.args = (*op.args[:at], shape, *op.args[at + 1 :])
        kept.append(op)
    trace.ops = kept


def _running_statistics(trace: Trace) -> None:
    """The backward of batch norm in training reads the statistics of the batch, not the running ones."""
    for op in trace.ops:
        if op.func is aten.native_batch_norm_backward.default and len(op.args) > 7 and op.args[7] is True:
            op.args = (*op.args[:3], None, None, *op.args[5:])


# -- positions within a plane --------------------------------------------------------------------------------


def _narrow_indices(trace: Trace, rec: Recorder) -> None:
    kept: list[Op] = []
    wide: dict[Value, Any] = {}
    visible = {*trace.outputs, *(v for op in trace.ops if op.stage == FORWARD for v in inputs_of(op))}
    for op in trace.ops:
        if wide and op.stage == BACKWARD:
            op.args = substitute(op.args, wide)
        kept.append(op)
        axes = _PLANE_INDICES.get(op.func)
        if axes is None or op.stage != FORWARD or len(op.outs) < 2:
            continue
        indices, plane = op.outs[1], op.args[0].spec.shape[-axes:]
        static = all(type(n) is int for n in (*plane, *indices.spec.shape))
        if indices in visible or not static or not _is_plain(indices.spec):
            continue
        offsets = _window(op, plane)
        with _recording(rec, kept, op):
            if offsets is not None:
                wide[indices] = offsets.restored(rec, offsets.narrowed(rec, indices))
            else:
                wide[indices] = _by_plane(rec, indices, math.prod(plane))
    trace.ops = kept


def _by_plane(rec: Recorder, indices: Value, plane: int) -> Value:
    """The indices by way of the narrowest dtype that holds a position within the plane."""
    dtype = next((dtype for limit, dtype in _NARROW if plane <= limit), torch.int64)
    small = rec.call(aten._to_copy.default, indices, dtype=dtype)
    return rec.call(aten._to_copy.default, small, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class _Window:
    """A pooling window: positions are kept as a byte, counted from the window's corner, rows end to end."""

    width: int  # of the plane
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def narrowed(self, rec: Recorder, indices: Value) -> Value:
        distance = rec.call(aten.sub.Tensor, indices, self._corner(rec, indices.spec))
        skipped = self._rows(rec, distance, self.width)
        byte = rec.call(aten.sub.Tensor, distance, rec.call(aten.mul.Tensor, skipped, self._gap()))
        return rec.call(aten._to_copy.default, byte, dtype=torch.int8)

    def restored(self, rec: Recorder, byte: Value) -> Value:
        place = rec.call(aten._to_copy.default, byte, dtype=torch.int64)
        skipped = self._rows(rec, place, self.kernel[1])
        distance = rec.call(aten.add.Tensor, place, rec.call(aten.mul.Tensor, skipped, self._gap()))
        return rec.call(aten.add.Tensor, distance, self._corner(rec, byte.spec))

    def _gap(self) -> int:
        return self.width - self.kernel[1]

    def _rows(self, rec: Recorder, place: Value, length: int) -> Value:
        """Whole rows of this length before `place`; compares, since dividing integers is slow."""
        reached = [rec.call(aten.ge.Scalar, place, length * k) for k in range(1, self.kernel[0])]
        counts = [rec.call(aten._to_copy.default, r, dtype=torch.int64) for r in reached]
        if not counts:
            return rec.call(aten.zeros_like.default, place)
        return functools.reduce(lambda a, b: rec.call(aten.add.Tensor, a, b), counts)

    def _corner(self, rec: Recorder, spec: Spec) -> Value:
        """Position of each window's first element, which padding may put outside the plane."""
        across = self._starts(rec, spec, 1)
        down = rec.call(aten.mul.Tensor, self._starts(rec, spec, 0), self.width)
        return rec.call(aten.add.Tensor, rec.call(aten.unsqueeze.default, down, 1), across)

    def _starts(self, rec: Recorder, spec: Spec, axis: int) -> Value:
        count = rec.call(aten.arange.default, spec.shape[axis - 2], dtype=torch.int64, device=spec.device)
        moved = rec.call(aten.mul.Tensor, count, self.stride[axis])
        return rec.call(aten.sub.Tensor, moved, self.padding[axis])


def _window(op: Op, plane: tuple[int, ...]) -> _Window | None:
    """The pooling's window, if a byte tells every position in it from the others."""
    if op.func is not aten.max_pool2d_with_indices.default:
        return None
    args = [*op.args, *([], 0, 1, False)[len(op.args) - 2 :]]
    kernel, padding, dilation = (_pair(a) for a in (args[1], *args[3:5]))
    if dilation != (1, 1) or math.prod(kernel) > 2**7 or kernel[1] > plane[1]:
        return None
    return _Window(plane[1], kernel, _pair(args[2]) if args[2] else kernel, padding)


def _pair(a: Any) -> tuple[int, int]:
    first, *more = (a,) if isinstance(a, int) else a
    return first, more[0] if more else first


# -- what batch norm gives, again from its statistics ---------------------------------------------------------


def _normalised_again(trace: Trace, rec: Recorder) -> None:
    """The backward may have a batch norm's result from its input and the statistics, which are kept anyway.

    Inference's operator does it with the same rounding: with a variance of one, all the scale is in its weight.
    """
    kept: list[Op] = []
    for op in trace.ops:
        kept.append(op)
        if op.func not in _BATCH_NORMS or op.stage != FORWARD or op.args[5] is not True:
            continue
        x, weight, bias = op.args[:3]
        mean, invstd = op.outs[1:3]
        tensors = [v for v in (x, weight, bias, mean) if v is not None]
        if not _is_plain(x.spec) or any(v.spec.dtype != torch.float32 for v in tensors):
            continue
        with _recording(rec, kept, op):
            scale = invstd if weight is None else rec.call(aten.mul.Tensor, invstd, weight)
            one = rec.call(aten.ones_like.default, mean)
            trace.remade[op.outs[0]] = rec.call(_NORMALISE, x, scale, bias, mean, one, 0.0, 0.0)
    trace.ops = kept
