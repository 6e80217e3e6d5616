"""What it takes to compute an operator again, and which operators may be.

In: operators of a trace. Out: whether an operator may run twice, and an estimate of its time.
Always: operators that draw random numbers, and those that are not ATen's own, never run twice.
"""

from __future__ import annotations

import math
from typing import cast

import torch

from ..fake.ops import Kind, aten, op_info
from .ir import Op, Value, inputs_of

# Cheap to do again besides pointwise operators: memory is written, hardly anything is computed.
_CHEAP = frozenset(
    (
        aten.clone.default,
        aten._to_copy.default,
        aten.full.default,
        aten.full_like.default,
        aten.zeros.default,
        aten.zeros_like.default,
        aten.ones.default,
        aten.ones_like.default,
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.scalar_tensor.default,
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.new_full.default,
        aten.where.self,
        aten.masked_fill.Scalar,
        aten.masked_fill.Tensor,
        aten.fill.Scalar,
        aten.zero.default,
        aten.copy.default,
        aten.empty_strided.default,
        aten.empty.memory_format,
        aten.constant_pad_nd.default,
        aten.slice_scatter.default,
        aten.select_scatter.default,
        aten.cat.default,
        aten._native_batch_norm_legit_no_training.default,
        aten.tril.default,
        aten.triu.default,
    )
)

_PRODUCTS = frozenset((aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default))
_ATTENTION = frozenset((aten._scaled_dot_product_flash_attention_for_cpu.default,))
# The contents of fresh memory are nothing's value: two of them differ.
_UNREPEATABLE = frozenset((aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default))

# Of one core of a present-day server, to an order of magnitude; only their ratio decides anything.
_FLOP_PER_NS = 50.0
_BYTES_PER_NS = 10.0
_SLOW = 4.0  # scans, sorts and other operators that do more than stream memory


def recomputable(op: Op) -> bool:
    """Whether repeating it costs next to nothing: views, fills, and what fuses into its consumers."""
    if op.random:
        return False
    if op.view or op.func in _CHEAP:
        return True
    info = op_info(op.func)
    return info.kind is Kind.PURE and torch.Tag.pointwise in op.func.tags


def repeatable(op: Op) -> bool:
    """Whether running it twice gives the same values, at whatever cost."""
    if recomputable(op):
        return True
    if op.random or op.func in _UNREPEATABLE or not isinstance(op.func, torch._ops.OpOverload):
        return False
    return op.func.namespace in ("aten", "prims") and op_info(op.func).kind is Kind.PURE


def cost_ns(op: Op) -> float:
    """Estimated time of running the operator once."""
    moved = sum(v.spec.size_bytes() for v in (*inputs_of(op), *op.outs))
    streamed = moved / _BYTES_PER_NS
    if recomputable(op):
        return 0.0 if op.view else streamed
    flop = _flop(op)
    return streamed * _SLOW if flop is None else max(streamed, flop / _FLOP_PER_NS)


def _numel(v: Value) -> int:
    return cast(int, v.spec.concrete().numel())


def _flop(op: Op) -> float | None:
    if op.func in _PRODUCTS:
        a = op.args[0] if len(op.args) == 2 else op.args[1]
        return 2.0 * _numel(op.outs[0]) * a.spec.concrete().shape[-1]
    if op.func is aten.convolution.default:
        return 2.0 * _numel(op.outs[0]) * math.prod(op.args[1].spec.concrete().shape[1:])
    if op.func in _ATTENTION:
        return 4.0 * _numel(op.args[0]) * op.args[1].spec.concrete().shape[-2]
    return None
