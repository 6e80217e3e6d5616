"""Kernels and plans for given sizes: what an expression over symbols means.

In: a `Kernel` or `Plan` whose sizes vary, and values of its symbols. Out: the static one they stand for.
Always: running a kernel or plan with sizes is running its concrete form.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphlift.lower.ir import (
    BufferSpec,
    CheckCall,
    ExternCall,
    Kernel,
    KernelCall,
    Loop,
    Node,
    Plan,
    Reduction,
    Store,
    TensorSpec,
)
from graphlift.shapes.expr import Expr, Real, Symbol, evaluate

Env = Mapping[Symbol, int]


def concrete_kernel(kernel: Kernel, env: Env) -> Kernel:
    """``kernel`` for these sizes."""
    if not kernel.symbols:
        return kernel
    memo: dict[Node, Node] = {}

    def node(n: Node) -> Node:
        found = memo.get(n)
        if found is None:
            if n.op == "size":
                real = isinstance(n.attr, Real)
                found = Node("const", n.dtype, (), bits_of(env[n.attr]) if real else evaluate(n.attr, env))
            else:
                found = n.replace(args=tuple([node(a) for a in n.args])) if n.args else n
            memo[n] = found
        return found

    def stores(items: tuple[Store, ...]) -> tuple[Store, ...]:
        return tuple([replace(s, index=node(s.index), value=node(s.value)) for s in items])

    loops = [
        Loop(tuple([Reduction(r.op, node(r.value), r.dtype) for r in loop.reductions]), stores(loop.stores))
        for loop in kernel.loops
    ]
    buffers = [BufferSpec(b.dtype, evaluate(b.numel, env), b.role) for b in kernel.buffers]
    sizes = (concrete(kernel.outer, env), concrete(kernel.inner, env))
    return Kernel(*sizes, tuple(loops), stores(kernel.epilogue), tuple(buffers))


def bits_of(number: float) -> int:
    """The bits of a double, as a 64-bit integer."""
    return int.from_bytes(struct.pack("<d", number), "little", signed=True)


def concrete(tree: Any, env: Env) -> Any:
    """A tree of arguments with its sizes as ints."""
    if isinstance(tree, Real):
        return env[tree]
    if isinstance(tree, Expr):
        return evaluate(tree, env)
    if isinstance(tree, (tuple, list)) and not hasattr(tree, "_fields"):
        return type(tree)([concrete(t, env) for t in tree])
    if isinstance(tree, dict):
        return {k: concrete(v, env) for k, v in tree.items()}
    return tree


def concrete_plan(plan: Plan, env: Env) -> Plan:
    """``plan`` for these sizes; it takes the same inputs."""

    def spec(t: TensorSpec) -> TensorSpec:
        shape, stride, offset = concrete((t.shape, t.stride, t.offset), env)
        return replace(t, shape=shape, stride=stride, offset=offset)

    def step(s: Any) -> Any:
        match s:
            case KernelCall():
                return replace(s, kernel=concrete_kernel(s.kernel, env))
            case ExternCall():
                return replace(s, args=concrete(s.args, env), kwargs=concrete(s.kwargs, env))
            case CheckCall():
                return replace(s, low=evaluate(s.low, env), high=evaluate(s.high, env))
        return s

    return Plan(
        {name: spec(t) for name, t in plan.tensors.items()},
        plan.constants,
        plan.inputs,
        concrete(plan.outputs, env),
        tuple([step(s) for s in plan.steps]),
    )


def env_of(plan: Plan, inputs: Any) -> dict[Symbol, int]:
    """The values of a plan's symbols, from its inputs."""
    return {symbol: inputs[position] for symbol, (position, _) in plan.symbols.items()}
