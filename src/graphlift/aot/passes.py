"""Rewrites of a Trace that keep its meaning.

In: a Trace. Out: the same Trace with dead operators and repeated expressions gone, and outputs that own their memory.
Always: operators of the forward that draw random numbers or may raise stay, in order, even when nothing uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..fake.ops import aten
from ..shapes.expr import Expr, SizeLike
from .ir import FORWARD, Op, Trace, Value, inputs_of, memory_root, substitute

Clone = Callable[[Value], Value]


def drop_dead(ops: list[Op], live_values: Iterable[Value]) -> list[Op]:
    """The operators that the given values need, and those of the forward that act, in order."""
    live = {v.op for v in live_values if v.op is not None}
    kept: list[Op] = []
    for op in reversed(ops):
        if op not in live and not (op.stage == FORWARD and op.acts):
            continue
        kept.append(op)
        for v in inputs_of(op):
            if v.op is not None:
                live.add(v.op)
    kept.reverse()
    return kept


def hold_copies(trace: Trace, copies: Iterable[Value], has_backward: bool) -> None:
    """Copies that the backward must not make again, since what they are made of may have changed; without one, none."""
    if has_backward:
        for value in copies:
            assert value.op is not None
            value.op.random = True
        return
    env = {value: value.op.args[0] for value in copies if value.op is not None}
    for op in trace.ops if env else ():
        op.args = substitute(op.args, env)


def share_expressions(trace: Trace) -> None:
    """Common subexpressions computed once. Raises nothing: what cannot be hashed is left alone."""
    seen: dict[Any, Op] = {}
    env: dict[Value, Value] = {}
    marks = {*trace.marks}
    kept: list[Op] = []
    for op in trace.ops:
        if env:
            op.args = substitute(op.args, env)
            if op.kwargs:
                op.kwargs = substitute(op.kwargs, env)
        if op.random or op.func in _NOT_SHARED or not marks.isdisjoint(op.outs):
            kept.append(op)
            continue
        try:
            key = (op.func, _frozen(op.args), _frozen(op.kwargs) if op.kwargs else None)
            first = seen.setdefault(key, op)
        except TypeError:
            first = op
        if first is op:
            kept.append(op)
        else:
            env.update(zip(op.outs, first.outs, strict=True))
    trace.ops = kept
    trace.outputs = [env.get(v, v) for v in trace.outputs]
    trace.grads = [env.get(v, v) if v is not None else None for v in trace.grads]


# The contents of `empty` are nothing's value; two of them must not become one output.
_NOT_SHARED = frozenset((aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default))


def _frozen(a: Any) -> Any:
    cls = type(a)
    if cls is list or cls is tuple:
        return tuple([_frozen(v) for v in a])
    if cls is dict:
        return tuple([(k, _frozen(v)) for k, v in a.items()])
    if cls is float:
        return (cls, a.hex())  # -0.0 is not 0.0
    if cls is int or cls is bool:
        return (cls, a)
    return a


def own_outputs(trace: Trace, clone: Clone, borrowed: Iterable[Value] = ()) -> None:
    """Make every forward output a tensor of its own: no output shares memory with an input or another output."""
    taken = {memory_root(v) for v in (*trace.inputs, *borrowed)}
    outputs = []
    for v in trace.outputs:
        root = memory_root(v)
        if root in taken:
            v = root = clone(v)
        taken.add(root)
        outputs.append(v)
    trace.outputs = outputs


def unused_actions(trace: Trace) -> list[Value]:
    """Results of the forward that nothing uses; its graph gives them so that no compiler drops their operators."""
    used = {v for op in trace.ops for v in inputs_of(op)} | {*trace.outputs, *trace.grads}
    return [
        op.outs[0]
        for op in trace.ops
        if op.stage == FORWARD and op.outs and op.acts and not any(v in used for v in op.outs)
    ]


def is_dense(shape: tuple[SizeLike, ...], stride: tuple[SizeLike, ...]) -> bool:
    """Whether the elements fill a block of memory, each place once, whatever the symbols in it are."""
    if any(isinstance(n, Expr) for n in (*shape, *stride)):
        return _is_dense_in_symbols(shape, stride)
    expected = 1
    for s, n in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n != 1):
        if s != expected:
            return False
        expected *= n
    return True


def _is_dense_in_symbols(shape: tuple[SizeLike, ...], stride: tuple[SizeLike, ...]) -> bool:
    expected: SizeLike = 1
    left = [d for d, n in enumerate(shape) if n != 1]
    while left:
        following = next((d for d in left if stride[d] == expected), None)
        if following is None:
            return False
        expected = expected * shape[following]
        left.remove(following)
    return True
