"""Short names for building kernels by hand, and running one natively beside the reference interpreter."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch

from graphlift.codegen.llvm import Target, compile_kernels
from graphlift.lower.interpret import interpret
from graphlift.lower.ir import BufferSpec, Kernel, Loop, Node, Reduction, Store

i64, f32 = torch.int64, torch.float32


def const(value: float | int | bool, dtype: torch.dtype = i64) -> Node:
    return Node("const", dtype, (), value)


def axis(k: int) -> Node:
    return Node("axis", i64, (), k)


def op(name: str, *args: Node, dtype: torch.dtype | None = None) -> Node:
    return Node(name, dtype or args[-1].dtype, args)


def load(buffer: int, index: Node, dtype: torch.dtype = f32) -> Node:
    return Node("load", dtype, (index,), buffer)


def reduced(loop: int, position: int, dtype: torch.dtype = f32) -> Node:
    return Node("reduced", dtype, (), (loop, position))


def index(strides: Sequence[int], offset: int = 0, first: int = 0) -> Node:
    """offset + sum(axis(first + k) * strides[k])."""
    total = const(offset)
    for k, stride in enumerate(strides):
        total = op("add", total, op("mul", axis(first + k), const(stride)))
    return total


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def pointwise(shape: Sequence[int], value: Node, inputs: Sequence[tuple[torch.dtype, int]]) -> Kernel:
    """One row-major store of ``value``; the output buffer is the last one."""
    size = math.prod(shape)
    specs = [BufferSpec(d, n, "in") for d, n in inputs] + [BufferSpec(value.dtype, size, "out")]
    store = Store(len(inputs), index(row_major(shape)), value)
    return Kernel(tuple(shape), (), (Loop((), (store,)),), (), tuple(specs))


def reduction(outer: Sequence[int], inner: Sequence[int], op_name: str, value: Node, dtype: torch.dtype,
              inputs: Sequence[tuple[torch.dtype, int]]) -> Kernel:  # fmt: skip
    """One reduction stored row-major over the outer axes."""
    specs = [BufferSpec(d, n, "in") for d, n in inputs] + [BufferSpec(dtype, math.prod(outer), "out")]
    loop = Loop((Reduction(op_name, value, dtype),))
    store = Store(len(inputs), index(row_major(outer)), reduced(0, 0, dtype))
    return Kernel(tuple(outer), tuple(inner), (loop,), (store,), tuple(specs))


def run_native(kernel: Kernel, buffers: Sequence[torch.Tensor], target: Target | None = None) -> None:
    (native,) = compile_kernels([kernel], target)
    array = (ctypes.c_void_p * max(len(buffers), 1))(*[b.data_ptr() for b in buffers])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(native.address)(ctypes.addressof(array))


TOLERANCE = {
    torch.float32: (2e-6, 1e-6),
    torch.float64: (1e-13, 1e-13),
    torch.bfloat16: (8e-3, 1e-3),
    torch.float16: (1e-3, 1e-4),
}


def same(
    kernel: Kernel, inputs: Sequence[torch.Tensor], target: Target | None = None, loose: float = 1.0
) -> None:
    """Native and interpreted runs of ``kernel`` leave the same buffers; nothing outside them is touched."""
    guard = 64
    expected, padded, actual = [], [], []
    for k, spec in enumerate(kernel.buffers):
        data = inputs[k] if k < len(inputs) else torch.zeros(spec.numel, dtype=spec.dtype)
        assert data.numel() == spec.numel and data.dtype == spec.dtype
        expected.append(data.clone())
        whole = torch.full((spec.numel + 2 * guard,), 1, dtype=spec.dtype)
        whole[guard : guard + spec.numel] = data
        padded.append(whole)
        actual.append(whole[guard : guard + spec.numel])
    interpret(kernel, expected)
    run_native(kernel, actual, target)
    for want, got, whole in zip(expected, actual, padded, strict=True):
        assert (whole[:guard] == 1).all() and (whole[-guard:] == 1).all(), "wrote outside its buffer"
        rtol, atol = TOLERANCE.get(want.dtype, (0.0, 0.0))
        torch.testing.assert_close(got, want, rtol=rtol * loose, atol=atol * loose, equal_nan=True)
