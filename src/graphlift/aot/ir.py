"""The trace: a straight line of functional operators over values, lighter than FX and cheap to rewrite.

In: what the recorder saw. Out: a `Trace` the passes transform and `emit` turns into FX graphs.
Always: SSA (each Value has one producer, which comes before its uses), no operator writes anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..fake import Spec
from ..fake.ops import Kind, aten, op_info

FORWARD, BACKWARD = 0, 1

# Results share memory with the first argument although the schema says they are fresh.
_HIDDEN_ALIASES = frozenset((aten._unsafe_view.default, aten._reshape_alias.default, aten.lift_fresh.default))


class Value:
    """A tensor in the trace. `op` is None for inputs; `index` is the path of tuple positions in the op's result."""

    __slots__ = ("spec", "op", "index")

    def __init__(self, spec: Spec, op: Op | None = None, index: tuple[int, ...] = ()) -> None:
        self.spec = spec
        self.op = op
        self.index = index


class Op:
    """One operator call; `args`/`kwargs` hold Values in nested lists and tuples."""

    __slots__ = ("func", "args", "kwargs", "outs", "stage", "source", "random", "view", "info")

    def __init__(self, func: Any, args: tuple, kwargs: dict, stage: int, source: Any) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.outs: list[Value] = []
        self.stage = stage
        self.source = source
        info = self.info = op_info(func)
        self.random = info.random
        self.view = info.kind is Kind.VIEW or func in _HIDDEN_ALIASES

    @property
    def acts(self) -> bool:
        """Whether running it is seen although nothing uses its result: it draws numbers, or may raise."""
        if self.random or self.info.checks_values or self.info.kind is Kind.HIGHER_ORDER:
            return True
        return self.info.divides and not any(v.spec.dtype.is_floating_point for v in self.outs)


class Trace:
    """Inputs, operators in order, and where results go."""

    __slots__ = ("inputs", "tangents", "ops", "outputs", "grads", "marks", "remade", "borrowed")

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.tangents: list[Value] = []
        self.ops: list[Op] = []
        self.outputs: list[Value] = []  # of the forward
        self.grads: list[Value | None] = []  # of the backward, one per input, then the marks
        # The gradients of outputs that others are computed from, complete.
        self.marks: list[Value | None] = []
        # Values of the forward, and equal ones that the backward computes at less cost.
        self.remade: dict[Value, Value] = {}
        # Inputs that eager's backward does not keep, which may change before it runs: to keep one takes a copy.
        self.borrowed: set[Value] = set()


def values_in(args: Iterable[Any], into: list[Value]) -> list[Value]:
    for a in args:
        cls = type(a)
        if cls is Value:
            into.append(a)
        elif cls is list or cls is tuple:
            values_in(a, into)
        elif cls is dict:
            values_in(a.values(), into)
    return into


def inputs_of(op: Op) -> list[Value]:
    found = values_in(op.args, [])
    if op.kwargs:
        values_in(op.kwargs.values(), found)
    return found


def rewritten(op: Op, env: dict[Value, Any]) -> Op:
    """`op` with other arguments; its results stay the same Values."""
    copy = Op(op.func, substitute(op.args, env), substitute(op.kwargs, env), op.stage, op.source)
    copy.outs, copy.random = op.outs, op.random
    return copy


def substitute(arg: Any, env: dict[Value, Any]) -> Any:
    """Replace the Values in nested `arg` that `env` knows."""
    cls = type(arg)
    if cls is Value:
        return env.get(arg, arg)
    if cls is list:
        return [substitute(a, env) for a in arg]
    if cls is tuple:
        return tuple([substitute(a, env) for a in arg])
    if cls is dict:
        return {k: substitute(a, env) for k, a in arg.items()}
    return arg


def memory_root(value: Value) -> Value:
    """The value whose memory `value` occupies: through views, back to an input or a computed tensor."""
    while value.op is not None and value.op.view:
        value = value.op.args[0]
    return value
