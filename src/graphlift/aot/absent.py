"""The backward for gradients that did not come: what autograd leaves undefined is neither computed nor zero.

In: backward operators, and which tangents are defined. Out: the operators still needed, and gradients with None.
Always: an input that only absent tangents reach gets None, as in eager (an optimizer then leaves it alone).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..fake import Spec
from ..fake.ops import aten
from ..fake.spec import make_spec
from ..shapes.expr import contiguous_strides
from .ir import BACKWARD, Op, Value, inputs_of, rewritten
from .views import same_layout


def without(
    ops: Sequence[Op], tangents: Sequence[Value], grads: Sequence[Value | None], defined: Sequence[bool]
) -> tuple[list[Op], list[Value | None]]:
    """The backward when only some tangents are defined. The given operators are left as they are."""
    absent: set[Value] = {t for t, d in zip(tangents, defined, strict=True) if not d}
    reached: set[Value] = {t for t, d in zip(tangents, defined, strict=True) if d}
    env: dict[Value, Value] = {}
    kept: list[Op] = []
    for op in ops:
        inputs = inputs_of(op)
        missing = [v for v in inputs if v in absent]
        present = any(env.get(v, v) in reached for v in inputs)
        if missing and not present:
            absent.update(op.outs)
            continue
        if present:
            reached.update(op.outs)
        if missing and op.func is aten.add.Tensor:
            (other,) = (env.get(v, v) for v in inputs if v not in absent)
            if same_layout(other.spec, op.outs[0].spec) and not op.kwargs:
                env[op.outs[0]] = other
                continue
        for v in dict.fromkeys(missing):
            zeros = _zeros(v.spec)
            kept.extend(zeros)
            env[v] = zeros[-1].outs[0]
        kept.append(rewritten(op, env))
    found = [None if g is None or g in absent else env.get(g, g) for g in grads]
    return _needed(kept, found), found


def _zeros(spec: Spec) -> list[Op]:
    """Zeros in the given strides, which later operators may rely on."""
    shape, stride, offset = spec.shape, spec.stride, spec.offset
    if stride == contiguous_strides(shape) and offset == 0:
        return [_full(spec)]
    memory = _full(make_spec((spec.span(),), (1,), 0, spec.dtype, spec.device))
    view = Op(aten.as_strided.default, (memory.outs[0], shape, stride, offset), {}, BACKWARD, None)
    view.outs.append(Value(make_spec(shape, stride, offset, spec.dtype, spec.device), view))
    return [memory, view]


def _full(spec: Spec) -> Op:
    kwargs = {"dtype": spec.dtype, "device": spec.device}
    op = Op(aten.full.default, (list(spec.shape), 0), kwargs, BACKWARD, None)
    op.outs.append(Value(spec, op))
    return op


def _needed(ops: list[Op], grads: Sequence[Value | None]) -> list[Op]:
    live = {g for g in grads if g is not None}
    kept = []
    for op in reversed(ops):
        if op.random or not live.isdisjoint(op.outs):
            kept.append(op)
            live.update(inputs_of(op))
    kept.reverse()
    return kept
