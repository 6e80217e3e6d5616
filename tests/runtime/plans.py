"""Plans built by hand for the tests of the runtime."""

from __future__ import annotations

import torch

from graphlift.lower.ir import (
    BufferSpec,
    ExternCall,
    Kernel,
    KernelCall,
    Loop,
    Plan,
    Ref,
    Store,
    TensorSpec,
    ViewCall,
)
from graphlift.shapes.expr import contiguous_strides
from tests.codegen.building import axis, f32, load, op

aten = torch.ops.aten
CPU = torch.device("cpu")


def spec(
    name: str,
    shape: tuple[int, ...],
    storage: str | None = None,
    stride: tuple[int, ...] | None = None,
    offset: int = 0,
    dtype: torch.dtype = f32,
) -> TensorSpec:
    return TensorSpec(name, dtype, CPU, shape, stride or contiguous_strides(shape), offset, storage or name)


def table(*specs: TensorSpec) -> dict[str, TensorSpec]:
    return {s.name: s for s in specs}


def unary(name: str, size: int) -> Kernel:
    """out = name(in), flat."""
    store = Store(1, axis(0), op(name, load(0, axis(0))))
    return Kernel(
        (size,), (), (Loop((), (store,)),), (), (BufferSpec(f32, size, "in"), BufferSpec(f32, size, "out"))
    )


def mlp(batch: int, wide: int, hidden: int, out: int) -> Plan:
    tensors = table(
        spec("x", (batch, wide)),
        spec("w1", (hidden, wide)),
        spec("b1", (hidden,)),
        spec("w2", (out, hidden)),
        spec("b2", (out,)),
        spec("w1.t", (wide, hidden), "w1", (1, wide)),
        spec("w2.t", (hidden, out), "w2", (1, hidden)),
        spec("h", (batch, hidden)),
        spec("r", (batch, hidden)),
        spec("y", (batch, out)),
    )
    steps = (
        ViewCall("w1.t", "w1"),
        ExternCall(aten.addmm.default, (Ref("b1"), Ref("x"), Ref("w1.t")), (), ("h",)),
        KernelCall(unary("relu", batch * hidden), ("h", "r"), ("aten.relu",)),
        ViewCall("w2.t", "w2"),
        ExternCall(aten.addmm.default, (Ref("b2"), Ref("r"), Ref("w2.t")), (), ("y",)),
    )
    return Plan(tensors, {}, ("x", "w1", "b1", "w2", "b2"), ("y",), steps)


def chain(length: int, size: int) -> Plan:
    """neg, length times: every intermediate lives for two steps."""
    names = [f"t{k}" for k in range(length + 1)]
    steps = tuple(KernelCall(unary("neg", size), (names[k], names[k + 1])) for k in range(length))
    return Plan(table(*[spec(n, (size,)) for n in names]), {}, (names[0],), (names[-1],), steps)
