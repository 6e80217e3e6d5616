"""Loop nests: strides, tails, reductions along either axis, several loops, masks, gathers; and random ones."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlift.codegen.llvm import Target, host_target, kernel_ir
from graphlift.codegen.llvm.affine import Indices
from graphlift.codegen.llvm.kernel import prepare
from graphlift.codegen.llvm.schedule import choose
from graphlift.codegen.llvm.split import split
from graphlift.lower.interpret import interpret
from graphlift.lower.ir import BufferSpec, Kernel, Loop, Node, Reduction, Store
from tests.codegen.building import (
    axis,
    const,
    f32,
    i64,
    index,
    load,
    op,
    pointwise,
    reduced,
    reduction,
    row_major,
    run_native,
    same,
)

TARGETS = [Target("avx2")] + [Target("avx512")] * (host_target().isa == "avx512")
both = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.isa)


def floats(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@both
@pytest.mark.parametrize("n", [1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100, 768, 1000, 4096, 5000, 8200])
def test_pointwise_sizes(n: int, target: Target) -> None:
    value = op("add", op("mul", load(0, axis(0)), load(1, axis(0))), const(1.5, f32))
    same(pointwise((n,), value, [(f32, n), (f32, n)]), [floats(n), floats(n, 1)], target)


@both
@pytest.mark.parametrize("shape", [(3, 5), (8, 64), (5, 3, 40), (2, 3, 4, 5), (7, 1, 33), (40, 3)])
def test_broadcast_and_transpose(shape: tuple[int, ...], target: Target) -> None:
    rank = len(shape)
    dense, size = row_major(shape), math.prod(shape)
    reverse = tuple(math.prod(shape[:k]) for k in range(rank))
    bias = index([0] * (rank - 1) + [1])
    value = op("add", op("sub", load(0, index(dense)), load(1, index(reverse))), load(2, bias))
    inputs = [floats(size), floats(size, 1), floats(shape[-1], 2)]
    same(pointwise(shape, value, [(f32, x.numel()) for x in inputs]), inputs, target)


@both
@pytest.mark.parametrize(
    ("outer", "inner"), [((3,), (5,)), ((4,), (768,)), ((), (1000,)), ((9,), (33, 7)), ((2, 3), (100,))]
)
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_reductions(
    outer: tuple[int, ...], inner: tuple[int, ...], name: str, layout: str, target: Target
) -> None:
    shape = outer + inner
    strides = (
        row_major(shape)
        if layout == "rows"
        else (*row_major(outer), *[math.prod(outer) * s for s in row_major(inner)])
    )
    x = floats(math.prod(shape)).mul(0.3).add(1.0)
    x[::11] = x[3]  # ties
    if len(outer):
        x[0 if layout == "rows" else math.prod(outer) * (math.prod(inner) - 1)] = math.nan
    dtype = i64 if name.startswith("arg") else f32
    kernel = reduction(outer, inner, name, load(0, index(strides)), dtype, [(f32, x.numel())])
    same(kernel, [x], target, loose=50.0)


@both
@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float64, torch.bfloat16]
)
@pytest.mark.parametrize("name", ["sum", "max", "argmax", "any"])
def test_reductions_of_other_types(dtype: torch.dtype, name: str, target: Target) -> None:
    if (name == "any") != (dtype == torch.bool):
        pytest.skip("any is for bools, the others for numbers")
    x = (floats(5 * 77) * 20).to(dtype)
    value = load(0, index((77, 1)), dtype)
    result = {"sum": dtype, "max": dtype, "argmax": i64, "any": torch.bool}[name]
    same(reduction((5,), (77,), name, value, result, [(dtype, x.numel())]), [x], target, loose=2.0)


def softmax(rows: int, cols: int) -> Kernel:
    x = load(0, index((cols, 1)))
    e = op("exp", op("sub", x, reduced(0, 0)))
    loops = (
        Loop((Reduction("max", x, f32),)),
        Loop((Reduction("sum", e, f32),)),
        Loop((), (Store(1, index((cols, 1)), op("div", e, reduced(1, 0))),)),
    )
    return Kernel(
        (rows,), (cols,), loops, (), (BufferSpec(f32, rows * cols, "in"), BufferSpec(f32, rows * cols, "out"))
    )


@both
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (5, 7), (4, 128), (3, 100), (2, 768)])
def test_softmax(rows: int, cols: int, target: Target) -> None:
    same(softmax(rows, cols), [floats(rows * cols)], target, loose=4.0)


@both
@pytest.mark.parametrize("name", ["sum", "max", "any"])
@pytest.mark.parametrize(
    ("outer", "inner"), [((), (1 << 19,)), ((4,), (1 << 17,)), ((), (600, 1000)), ((3, 2), (1 << 16, 3))]
)
def test_long_reductions_are_split(
    outer: tuple[int, ...], inner: tuple[int, ...], name: str, target: Target
) -> None:
    shape = outer + inner
    x = floats(math.prod(shape))
    value = load(0, index(row_major(shape)))
    if name == "any":
        value = op("gt", value, const(4.9, f32), dtype=torch.bool)
    kernel = reduction(outer, inner, name, value, value.dtype, [(f32, x.numel())])
    assert len(split(prepare(kernel)).kernels) == 2
    same(kernel, [x], target, loose=500.0)


@both
def test_long_softmax_is_split(target: Target) -> None:
    kernel = softmax(2, 1 << 18)
    assert len(split(prepare(kernel)).kernels) == 3
    same(kernel, [floats(1 << 19)], target, loose=20.0)


@both
def test_dear_values_are_kept_for_later_loops(target: Target) -> None:
    """exp is computed in the loop that sums it, and only loaded in the loop that divides."""
    # A declaration, two unrolled copies and the tail: of one loop, not of two.
    assert kernel_ir(softmax(8, 100), target).count("llvm.roundeven.v") == 4
    where = index((50, 5, 1))
    e = op("exp", load(0, where))
    loops = (Loop((Reduction("sum", e, f32),)), Loop((), (Store(1, where, op("div", e, reduced(0, 0))),)))
    specs = (BufferSpec(f32, 35 * 50, "in"), BufferSpec(f32, 35 * 50, "out"))
    same(Kernel((35,), (10, 5), loops, (), specs), [floats(35 * 50)], target, loose=4.0)
    strided = index((50, 1, 10))
    e = op("exp", load(0, strided))
    loops = (Loop((Reduction("sum", e, f32),)), Loop((), (Store(1, strided, op("div", e, reduced(0, 0))),)))
    same(Kernel((35,), (10, 5), loops, (), specs), [floats(35 * 50)], target, loose=4.0)


@both
def test_column_softmax(target: Target) -> None:
    x = load(0, index((1, 40)))
    e = op("exp", op("sub", x, reduced(0, 0)))
    loops = (
        Loop((Reduction("max", x, f32),)),
        Loop((Reduction("sum", e, f32),)),
        Loop((), (Store(1, index((1, 40)), op("div", e, reduced(1, 0))),)),
    )
    kernel = Kernel((40,), (9,), loops, (), (BufferSpec(f32, 360, "in"), BufferSpec(f32, 360, "out")))
    same(kernel, [floats(360)], target, loose=4.0)


@both
def test_later_loop_reads_what_an_earlier_one_stored(target: Target) -> None:
    where = index((50, 1))
    x = load(0, where)
    loops = (
        Loop((Reduction("sum", x, f32),), (Store(1, where, op("mul", x, x)),)),
        Loop(
            (Reduction("max", load(1, where), f32),),
            (Store(2, where, op("sub", load(1, where), reduced(0, 0))),),
        ),
    )
    epilogue = (Store(3, axis(0), reduced(1, 0)),)
    buffers = (
        BufferSpec(f32, 200, "in"),
        BufferSpec(f32, 200, "out"),
        BufferSpec(f32, 200, "out"),
        BufferSpec(f32, 4, "out"),
    )
    same(Kernel((4,), (50,), loops, epilogue, buffers), [floats(200)], target, loose=10.0)


@both
def test_in_place(target: Target) -> None:
    store = Store(0, axis(0), op("add", load(0, axis(0)), const(1.0, f32)))
    other = Store(1, axis(0), op("mul", load(0, axis(0)), const(2.0, f32)))
    kernel = Kernel(
        (70,), (), (Loop((), (store, other)),), (), (BufferSpec(f32, 70, "inout"), BufferSpec(f32, 70, "out"))
    )
    same(kernel, [floats(70)], target)


@both
def test_masked_load_as_in_padding_and_cat(target: Target) -> None:
    inside = op(
        "and", op("ge", axis(1), const(3), dtype=torch.bool), op("lt", axis(1), const(40), dtype=torch.bool)
    )
    where = op("add", op("mul", axis(0), const(37)), op("sub", axis(1), const(3)))
    padded = Node("load", f32, (where, inside, const(-1.0, f32)), 0)
    same(pointwise((6, 45), padded, [(f32, 6 * 37)]), [floats(6 * 37)], target)


@both
def test_causal_mask(target: Target) -> None:
    keep = op("le", axis(1), axis(0), dtype=torch.bool)
    value = op("where", keep, load(0, index((50, 1))), const(-math.inf, f32))
    same(pointwise((50, 50), value, [(f32, 2500)]), [floats(2500)], target)


@both
def test_embedding_and_gather(target: Target) -> None:
    ids = torch.randint(0, 30, (17,), generator=torch.Generator().manual_seed(1))
    rows = op("add", op("mul", load(1, axis(0), i64), const(24)), axis(1))
    same(pointwise((17, 24), load(0, rows), [(f32, 720), (i64, 17)]), [floats(720), ids], target)
    picks = torch.randint(0, 720, (100,), generator=torch.Generator().manual_seed(2))
    single = load(0, load(1, axis(0), i64))
    same(pointwise((100,), single, [(f32, 720), (i64, 100)]), [floats(720), picks], target)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_strided_loads_and_stores_of_every_width(dtype: torch.dtype, target: Target) -> None:
    x = (floats(20 * 35) * 20).to(dtype)
    store = Store(1, index((1, 20)), load(0, index((35, 1)), dtype))
    kernel = Kernel(
        (20, 35), (), (Loop((), (store,)),), (), (BufferSpec(dtype, 700, "in"), BufferSpec(dtype, 700, "out"))
    )
    same(kernel, [x], target)


@both
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool]
)
@pytest.mark.parametrize("n", [1, 15, 16, 17, 19, 33])
def test_nothing_beyond_the_last_element_is_written(dtype: torch.dtype, n: int, target: Target) -> None:
    for wide in (torch.int64, torch.int32, torch.float32):
        given = torch.arange(4, dtype=wide)
        value = op("add", load(0, axis(0), wide), op("cast", axis(1), dtype=wide))
        kernel = pointwise((4, n), op("cast", value, dtype=dtype), [(wide, 4)])
        memory = torch.ones(4 * n + 64, dtype=dtype)
        run_native(kernel, [given, memory], target)
        assert torch.equal(memory[: 4 * n].view(4, n), (given[:, None] + torch.arange(n)).to(dtype))
        assert torch.equal(memory[4 * n :], torch.ones(64, dtype=dtype))


@both
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize(
    "shape", [(16, 16), (17, 33), (40, 50), (300, 70), (15, 100), (2, 32, 48), (3, 100, 15)]
)
def test_loads_that_lie_along_another_axis(
    dtype: torch.dtype, shape: tuple[int, ...], target: Target
) -> None:
    *batch, rows, columns = shape
    given = (torch.arange(math.prod(shape)) % 251).reshape(shape).to(dtype)
    strides = (*row_major(shape)[:-2], 1, columns)  # of its transpose
    turned = load(0, index(strides), dtype)
    both = op("where", op("eq", turned, load(1, index(row_major((*batch, columns, rows))), dtype), dtype=torch.bool),
              turned, const(1, dtype))  # fmt: skip
    other = given.mT.contiguous()
    other[..., ::3, :] = 0
    for value, expected in (
        (turned, given.mT),
        (both, torch.where(given.mT == other, given.mT, torch.ones((), dtype=dtype))),
    ):
        kernel = pointwise((*batch, columns, rows), value, [(dtype, given.numel()), (dtype, given.numel())])
        out = torch.zeros(*batch, columns, rows, dtype=dtype)
        run_native(kernel, [given, other, out], target)
        assert torch.equal(out, expected)


def columns_in_two_layouts(images: int, points: int, channels: int, dtype: torch.dtype) -> Kernel:
    """Over the channels of each point: a sum, where the largest difference is, and what remains, last layout first.

    Buffers: a picture in either layout, what remains in the second layout, the sums and positions of each point.
    """
    size = images * points * channels
    first = index((points * channels, 1, points))
    last = index((points * channels, channels, 1))
    x, y = load(0, first, dtype), load(1, last, dtype)
    loops = (
        Loop((Reduction("sum", op("add", x, y), dtype), Reduction("argmax", op("sub", x, y), i64))),
        Loop((), (Store(2, last, op("sub", op("add", x, y), reduced(0, 0, dtype))),)),
    )
    at = index((points, 1))
    epilogue = (Store(3, at, reduced(0, 0, dtype)), Store(4, at, reduced(0, 1, i64)))
    buffers = [BufferSpec(dtype, size, "in")] * 2 + [BufferSpec(dtype, size, "out")]
    buffers += [BufferSpec(dtype, images * points, "out"), BufferSpec(i64, images * points, "out")]
    return Kernel((images, points), (channels,), loops, epilogue, tuple(buffers))


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("points", "channels"), [(16, 16), (48, 32), (33, 17), (17, 100), (100, 40), (3, 64), (64, 5)]
)
def test_columns_of_pictures_in_two_layouts(
    points: int, channels: int, dtype: torch.dtype, target: Target
) -> None:
    shape = (2, points, channels)
    x = (torch.arange(2 * points * channels) * 7 % 13).view(shape).to(dtype)  # sums are exact
    y = (torch.arange(2 * points * channels) * 5 % 11).view(shape).to(dtype)
    rest, total, place = (
        torch.zeros_like(x),
        torch.zeros(2, points, dtype=dtype),
        torch.zeros(2, points, dtype=i64),
    )
    kernel = columns_in_two_layouts(*shape, dtype)
    run_native(kernel, [x.mT.contiguous(), y, rest, total, place], target)
    wide = x.double() + y
    expected = wide.sum(-1).to(dtype)
    assert torch.equal(total, expected) and torch.equal(place, (x - y).argmax(-1))
    assert torch.equal(rest, (wide - expected.double()[..., None]).to(dtype))


def test_columns_of_pictures_in_two_layouts_go_by_tiles() -> None:
    kernel = prepare(columns_in_two_layouts(2, 48, 32, f32))
    schedule = choose(kernel, Target("avx2"), Indices(kernel.outer + kernel.inner))
    assert schedule.columns and (schedule.vector, schedule.tile) == (1, 2)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("n", [3, 16, 17, 64, 100])
def test_backwards_and_every_other_element(dtype: torch.dtype, n: int, target: Target) -> None:
    given = torch.arange(2 * n).to(dtype)
    for strides, offset, expected in (((-1,), 2 * n - 1, given.flip(0)[:n]), ((2,), 1, given[1::2])):
        kernel = pointwise((n,), load(0, index(strides, offset), dtype), [(dtype, 2 * n)])
        out = torch.zeros(n, dtype=dtype)
        run_native(kernel, [given, out], target)
        assert torch.equal(out, expected)


@both
def test_scatter_add(target: Target) -> None:
    ids = torch.randint(0, 6, (33,), generator=torch.Generator().manual_seed(1))
    rows = op("add", op("mul", load(1, axis(0), i64), const(20)), axis(1))
    buffers = (BufferSpec(f32, 33 * 20, "in"), BufferSpec(i64, 33, "in"), BufferSpec(f32, 120, "inout"))
    store = Store(2, rows, load(0, index((20, 1))), "add")
    kernel = Kernel((33, 20), (), (Loop((), (store,)),), (), buffers)
    same(kernel, [floats(660), ids, floats(120, 3)], target, loose=10.0)
    single = Store(2, load(1, axis(0), i64), load(0, axis(0)), "add")
    buffers = (BufferSpec(f32, 33, "in"), BufferSpec(i64, 33, "in"), BufferSpec(f32, 6, "inout"))
    same(
        Kernel((33,), (), (Loop((), (single,)),), (), buffers),
        [floats(33), ids, floats(6, 3)],
        target,
        loose=10.0,
    )


@both
def test_views_that_split_an_axis(target: Target) -> None:
    """Heads moved out: (12, 4*16) read as (4, 12, 16)."""
    where = op("add", op("mul", axis(1), const(64)), op("add", op("mul", axis(0), const(16)), axis(2)))
    same(pointwise((4, 12, 16), load(0, where), [(f32, 768)]), [floats(768)], target)
    flat = op("add", op("mul", op("floordiv", axis(0), const(32)), const(64)), op("mod", axis(0), const(32)))
    same(pointwise((320,), load(0, flat), [(f32, 640)]), [floats(640)], target)
    odd = op("add", op("mul", op("floordiv", axis(0), const(5)), const(7)), op("mod", axis(0), const(5)))
    same(pointwise((50,), load(0, odd), [(f32, 70)]), [floats(70)], target)


def test_neighbouring_axes_merge() -> None:
    kernel = prepare(pointwise((8, 1, 16, 64), load(0, index((1024, 9, 64, 1))), [(f32, 8192)]))
    assert kernel.outer == (8192,)
    kept = prepare(pointwise((8, 16, 64), load(0, index((64, 512, 1))), [(f32, 8192)]))
    assert kept.outer == (8, 16, 64)


@both
def test_empty(target: Target) -> None:
    same(pointwise((0, 5), load(0, index((5, 1))), [(f32, 0)]), [floats(0)], target)
    same(reduction((4,), (0,), "sum", load(0, index((0, 1))), f32, [(f32, 0)]), [floats(0)], target)


def test_ir_text_is_readable() -> None:
    text = kernel_ir(softmax(4, 64))
    assert "define void @kernel_0(ptr %buffers)" in text and "fdiv <" in text


# --- random kernels ----------------------------------------------------------------------------------------------

DTYPES = [
    torch.float32,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@st.composite
def accesses(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Node, int]:
    """An index over ``shape`` with random strides, and the extent it needs."""
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for k in order:
        if draw(st.integers(0, 4)) == 0:
            continue  # broadcast
        strides[k] = step
        step *= shape[k] + draw(st.sampled_from([0, 0, 0, 1]))
    offset = draw(st.sampled_from([0, 0, 3]))
    extent = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return index(strides, offset), extent


@st.composite
def expressions(
    draw: st.DrawFn, shape: tuple[int, ...], specs: list[tuple[torch.dtype, int]], depth: int
) -> Node:
    """A float32 expression over loads of random dtypes."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        kind = draw(st.integers(0, 6))
        if kind == 0:
            return const(draw(st.sampled_from([0.0, 1.0, -2.5, 0.125])), f32)
        if kind == 1 and shape:
            return op("cast", axis(draw(st.integers(0, len(shape) - 1))), dtype=f32)
        dtype = draw(st.sampled_from(DTYPES))
        where, extent = draw(accesses(shape))
        specs.append((dtype, extent))
        loaded = load(len(specs) - 1, where, dtype)
        return loaded if dtype == f32 else op("cast", loaded, dtype=f32)

    def sub() -> Node:
        return draw(expressions(shape, specs, depth - 1))

    match draw(st.integers(0, 6)):
        case 0 | 1:
            return op(draw(st.sampled_from(["add", "sub", "mul", "min", "max"])), sub(), sub())
        case 2:
            return op(draw(st.sampled_from(["neg", "abs", "tanh", "sigmoid", "relu", "erf", "sin"])), sub())
        case 3:
            compared = op(draw(st.sampled_from(["lt", "ge", "eq", "ne"])), sub(), sub(), dtype=torch.bool)
            return op("where", compared, sub(), sub())
        case 4:
            return op(
                "cast",
                op("cast", sub(), dtype=draw(st.sampled_from([torch.bfloat16, torch.float64]))),
                dtype=f32,
            )
        case 5:
            return op("div", sub(), op("add", op("abs", sub()), const(1.0, f32)))
        case _:
            return op("cast", op("gt", sub(), const(0.5, f32), dtype=torch.bool), dtype=f32)


sizes = st.sampled_from([1, 2, 3, 5, 8, 16, 17, 33, 40])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_kernels_equal_the_interpreter(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(sizes, min_size=0, max_size=3), label="shape"))
    split = data.draw(st.integers(0, len(shape)), label="outer axes")
    outer, inner = shape[:split], shape[split:]
    specs: list[tuple[torch.dtype, int]] = []
    loops: list[Loop] = []
    stores: list[tuple[torch.dtype, int, Node, Node, int]] = []
    for position in range(data.draw(st.integers(1, 3), label="loops")):
        value = data.draw(expressions(shape, specs, 3))
        reductions = []
        for name in data.draw(st.lists(st.sampled_from(["sum", "max", "min", "argmax"]), max_size=2)):
            reductions.append(Reduction(name, value, i64 if name == "argmax" else f32))
        for earlier, loop in enumerate(loops):
            for k, r in enumerate(loop.reductions):
                if r.dtype == f32:
                    value = op("add", value, reduced(earlier, k))
        stores.append((f32, math.prod(shape), index(row_major(shape)), value, position))
        loops.append(Loop(tuple(reductions)))
    epilogue = []
    buffers = [BufferSpec(d, n, "in") for d, n in specs]
    done = []
    for position, loop in enumerate(loops):
        dtype, size, where, value, _ = stores[position]
        buffers.append(BufferSpec(dtype, size, "out"))
        done.append(Loop(loop.reductions, (Store(len(buffers) - 1, where, value),)))
        for k, r in enumerate(loop.reductions):
            buffers.append(BufferSpec(r.dtype, math.prod(outer), "out"))
            epilogue.append(Store(len(buffers) - 1, index(row_major(outer)), reduced(position, k, r.dtype)))
    kernel = Kernel(outer, inner, tuple(done), tuple(epilogue), tuple(buffers))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    inputs = []
    for dtype, size in specs:
        x = torch.randn(size, generator=generator, dtype=torch.float64)
        inputs.append(
            (x * (1 if dtype.is_floating_point else 20)).abs_().to(dtype)
            if dtype == torch.uint8
            else (x * (1 if dtype.is_floating_point else 20)).to(dtype)
        )
    target = data.draw(st.sampled_from(TARGETS), label="target")
    expected = [x.clone() for x in inputs]
    assert (
        interpret(
            kernel, [*expected, *[torch.zeros(b.numel, dtype=b.dtype) for b in kernel.buffers[len(inputs) :]]]
        )
        is None
    )
    same(kernel, inputs, target, loose=500.0)
