"""Kernels whose sizes vary: compiled once, equal to the interpreter of the concrete kernel at every size."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from graphlift.codegen.llvm import Target, compile_kernels, host_target
from graphlift.lower.affine import size_node, to_node
from graphlift.lower.concrete import concrete_kernel
from graphlift.lower.interpret import interpret
from graphlift.lower.ir import BufferSpec, Kernel, Loop, Node, Reduction, Store
from graphlift.shapes.expr import Symbol
from tests.codegen.building import TOLERANCE, const, f32, i64, load, op, reduced

TARGETS = [Target("avx2")] + [Target("avx512")] * (host_target().isa == "avx512")
both = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.isa)
N, M = Symbol("n"), Symbol("m")
SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129)


def index(*strides: Any, first: int = 0, offset: Any = 0) -> Node:
    return to_node((offset, tuple((first + k, s) for k, s in enumerate(strides) if s != 0)))


def made(outer: Any, inner: Any, loops: Any, epilogue: Any, buffers: Any, hints: Sequence[int]) -> Kernel:
    return Kernel(
        tuple(outer), tuple(inner), tuple(loops), tuple(epilogue), tuple(buffers), (N, M), tuple(hints)
    )


def check(kernel: Kernel, n: int, m: int, target: Target, loose: float = 1.0) -> None:
    """Native run at (n, m) against the interpreter; nothing outside the buffers is touched."""
    (native,) = compile_kernels([kernel], target)
    static = concrete_kernel(kernel, {N: n, M: m})
    generator, guard = torch.Generator().manual_seed(n * 1000 + m), 64
    expected, padded, actual = [], [], []
    for spec in static.buffers:
        size: Any = spec.numel
        data = torch.randn(size, generator=generator).to(spec.dtype)
        whole = torch.full((size + 2 * guard,), 1, dtype=spec.dtype)
        whole[guard : guard + size] = data
        expected.append(data)
        padded.append(whole)
        actual.append(whole[guard : guard + size])
    interpret(static, expected)
    sizes = (ctypes.c_int64 * 2)(n, m)
    pointers = [b.data_ptr() for b in actual] + [ctypes.addressof(sizes)]
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(native.address)((ctypes.c_void_p * len(pointers))(*pointers))
    for want, got, whole in zip(expected, actual, padded, strict=True):
        assert (whole[:guard] == 1).all() and (whole[-guard:] == 1).all(), "wrote outside its buffer"
        rtol, atol = TOLERANCE.get(want.dtype, (0.0, 0.0))
        torch.testing.assert_close(got, want, rtol=rtol * loose, atol=atol * loose, equal_nan=True)


@both
@pytest.mark.parametrize("hint", [3, 40, 5000])
def test_flat(hint: int, target: Target) -> None:
    value = op("add", op("mul", load(0, index(1)), load(1, index(1))), op("exp", load(0, index(1))))
    buffers = [BufferSpec(f32, N, role) for role in ("in", "in", "out")]
    kernel = made([N], [], [Loop((), (Store(2, index(1), value),))], [], buffers, (hint, 1))
    for n in (0, *SIZES, 2047, 2048, 2049, 5000):
        check(kernel, n, 1, target, 4.0)


@both
@pytest.mark.parametrize("hints", [(4, 4), (40, 300), (2000, 64)])
def test_transposed_and_broadcast(hints: tuple[int, int], target: Target) -> None:
    value = op("sub", op("add", load(0, index(M, 1)), load(1, index(1, N))), load(2, index(0, 1)))
    value = op("mul", value, Node("cast", f32, (size_node(N * M + 3),)))
    sizes = (N * M, N * M, M, N * M)
    buffers = [BufferSpec(f32, s, "out" if k == 3 else "in") for k, s in enumerate(sizes)]
    kernel = made([N, M], [], [Loop((), (Store(3, index(M, 1), value),))], [], buffers, hints)
    for n, m in ((0, 3), (3, 0), (1, 1), (5, 17), (33, 64), (100, 7), (7, 300)):
        check(kernel, n, m, target)


@both
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("layout", ["rows", "columns", "both"])
def test_reductions(name: str, layout: str, target: Target) -> None:
    dtype = i64 if name.startswith("arg") else f32
    outer, inner = ([], [N, M]) if layout == "both" else ([N], [M])
    strides = (1, N) if layout == "columns" else (M, 1)
    loop = Loop((Reduction(name, load(0, index(*strides)), dtype),))
    store = Store(1, index(*([1] * len(outer))), reduced(0, 0, dtype))
    buffers = [BufferSpec(f32, N * M, "in"), BufferSpec(dtype, math.prod(outer), "out")]
    kernel = made(outer, inner, [loop], [store], buffers, (9, 40))
    for n, m in ((1, 1), (3, 2), (4, 33), (17, 64), (40, 100), (33, 7)):
        check(kernel, n, m, target, 50.0)


@both
def test_rows_kept_between_loops(target: Target) -> None:
    """Softmax; rows longer than the stack's part move to the heap."""
    x = load(0, index(M, 1))
    power = op("exp", op("sub", x, reduced(0, 0)))
    loops = [
        Loop((Reduction("max", x, f32),)),
        Loop((Reduction("sum", power, f32),)),
        Loop((), (Store(1, index(M, 1), op("div", power, reduced(1, 0))),)),
    ]
    buffers = [BufferSpec(f32, N * M, "in"), BufferSpec(f32, N * M, "out")]
    kernel = made([N], [M], loops, [], buffers, (8, 50))
    for n, m in ((1, 1), (3, 17), (4, 50), (2, 128), (3, 1000), (2, 40_000)):
        check(kernel, n, m, target, 10.0)


@both
def test_masks_guard_buffers_that_may_be_empty(target: Target) -> None:
    """A concatenation: N elements of the first, the rest of the second."""
    mine = op("lt", index(1), size_node(N), dtype=torch.bool)
    other = op("ge", index(1), size_node(N), dtype=torch.bool)
    first = Node("load", f32, (index(1), mine, const(0.0, f32)), 0)
    second = Node("load", f32, (index(1, offset=-N), other, const(0.0, f32)), 1)
    value = Node("where", f32, (mine, first, second))
    buffers = [BufferSpec(f32, N, "in"), BufferSpec(f32, M, "in"), BufferSpec(f32, N + M, "out")]
    kernel = made([N + M], [], [Loop((), (Store(2, index(1), value),))], [], buffers, (5, 9))
    for n, m in ((0, 4), (4, 0), (1, 1), (16, 16), (5, 40), (33, 7)):
        check(kernel, n, m, target)
