"""Sizes and ints that vary: programs over sequences of sizes equal eager and compile as often as they must, no more.

Each program runs with the captured graph as it is and through AOT; gradients are compared where it has any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import graphlift
from graphlift import pipeline
from graphlift.errors import ConstraintError

SIZES = (4, 6, 9, 12, 24, 7)


class Counting:
    """A backend that counts the graphs it is given; ``aot``: through AOT, else as they are."""

    def __init__(self, aot: bool = False) -> None:
        self.aot = aot
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        self.graphs.append(gm)
        return pipeline.compile_aten(gm, example_inputs) if self.aot else gm.forward


def same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert found.stride() == wanted.stride() and found.dtype == wanted.dtype
    elif isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            same(a, b)
    else:
        assert found == wanted


def compiles(fn: Callable[..., Any], calls: Any, aot: bool = False, **options: Any) -> int:
    """How many graphs the calls compile; every result is compared with eager's."""
    backend = Counting(aot)
    compiled = graphlift.compile(fn, backend=backend, **options)
    for args in calls:
        same(compiled(*args), fn(*args))
    return len(backend.graphs)


# --- programs ---------------------------------------------------------------------------------------------------


def shape_in_arithmetic(x):
    return x * x.shape[0] + x.size(1) - len(x) * 2 + x.numel()


def half(x):
    return x[: x.shape[0] // 2]


def reshapes(x):
    return x.reshape(-1).view(x.shape[0], -1).t().reshape(3, -1).flatten()


def branch_on_size(x):
    return x * 2 if x.shape[0] > 3 else x * 3


def chained_comparison(x):
    return x + 1 if 2 <= x.shape[0] < 100 and x.shape[0] != 50 else x


def shapes_returned(x):
    y = x * 2
    return y, x.shape, x.size(0) + 1, x.shape[0] % 4, [int(s) for s in x.shape], x.shape[0] == 3


def causal_mask(x):
    n = x.shape[0]
    mask = torch.arange(n)[None, :] <= torch.arange(n)[:, None]
    return torch.where(mask, x @ x.t(), 0).sum(-1)


def concatenated(x):
    return torch.cat([x, x[1:], torch.zeros(x.shape[0], x.shape[1])])


def stacked(x):
    return torch.stack([x, x * 2], 1).sum((0, 1))


def split_columns(x):
    a, b = x.split([1, 2], 1)
    return sum(t.sum() for t in x.chunk(2, 1)) + a.mean() * b.mean()


def expanded(x):
    return x[None].expand(x.shape[0], -1, -1).sum(0)


def made_from_sizes(x):
    return x.new_zeros(x.shape[0] + 2).add_(1), torch.full((x.shape[0], 2), 3.0), torch.eye(x.shape[0])


def size_arithmetic(x):
    shape = x.shape + (1,)
    return x.reshape(shape).reshape(x.shape[:1] + (-1,)).view(torch.Size((x.shape.numel(),)))


def unpacked_shape(x):
    rows, columns = x.shape
    return x.view(columns, rows)


def shape_compared(x):
    return x * 2 if x.shape == (x.size(0), x.size(1)) else x


def extremes(x):
    return x[: min(x.shape[0], 4)] * max(x.shape[0], 2)


def attention(x):
    q = x.view(1, x.shape[0], 1, 3).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).reshape(x.shape)


def softmax_attention(x):
    return F.softmax(x @ x.t() / math.sqrt(x.size(-1)), -1) @ x


def written_in_place(x):
    y = x.clone()
    y[1:] += 1
    y[: x.shape[0] - 1] *= 2
    y[x.shape[0] - 2] = 5
    return y


def items_by_size(x):
    return x[-1] + x[x.shape[0] - 2] + x.t()[:, x.shape[0] - 1]


def padded(x):
    return F.pad(x, (0, 0, 0, 16 - x.shape[0] % 16))


def pooled(x):
    return F.max_pool2d(x[None, None], (2, 1)), F.avg_pool2d(x[None, None], 3, 2, 1, ceil_mode=True)


def convolved(x):
    return F.conv1d(x[None, None].flatten(2), torch.ones(1, 1, 3), padding=1, stride=2)


def normalised(x):
    return F.layer_norm(x - x.mean(0), x.shape[1:]) * F.normalize(x, dim=0)


def rolled(x):
    return x.cumsum(0).flip(0).roll(1, 0).triu(1)


def windows(x):
    return x.unfold(0, 2, 1).sum(-1) * divmod(x.shape[0], 3)[1]


def negative_sizes(x):
    return x.narrow(0, 0, -(-x.shape[0] // 2)) * abs(2 - x.shape[0])


def one_hot(x):
    return F.one_hot(torch.arange(x.shape[0]) % 3, 3).float().t() @ x


def resized(x):
    return F.interpolate(x[None, None], size=(x.shape[0] * 2, 6))


def loss(x):
    return F.cross_entropy(x, torch.arange(x.shape[0]) % 3)


def python_types(x):
    assert isinstance(x.shape[0], int) and type(x.shape[0]) is int and type(x.shape) is torch.Size
    return x * 2 if x.shape[0] and not x.shape[0] == 7 else x * 3


GENERAL = (
    *(shape_in_arithmetic, half, reshapes, branch_on_size, chained_comparison, shapes_returned, causal_mask),
    *(concatenated, stacked, split_columns, expanded, made_from_sizes, size_arithmetic, unpacked_shape),
    *(
        shape_compared,
        extremes,
        attention,
        softmax_attention,
        written_in_place,
        items_by_size,
        padded,
        pooled,
    ),
    *(convolved, normalised, rolled, negative_sizes, one_hot, resized, loss),
)


@pytest.mark.parametrize("aot", [False, True], ids=["captured", "aot"])
@pytest.mark.parametrize("fn", GENERAL, ids=lambda fn: fn.__name__)
def test_one_compilation_for_all_sizes(fn: Any, aot: bool) -> None:
    """The first for the first size, the second for all others."""
    assert compiles(fn, [(torch.randn(n, 3),) for n in SIZES], aot) == 2


@pytest.mark.parametrize("fn", GENERAL, ids=lambda fn: fn.__name__)
def test_gradients_for_all_sizes(fn: Any) -> None:
    backend = Counting(aot=True)
    compiled = graphlift.compile(fn, backend=backend)
    for n in (5, 8, 13, 6):
        x = torch.randn(n, 3, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        for run, at in ((compiled, x), (fn, y)):
            outs = run(at)
            outs = outs if isinstance(outs, tuple) else (outs,)
            total = sum(o.square().sum() for o in outs if isinstance(o, torch.Tensor) and o.requires_grad)
            if isinstance(total, torch.Tensor):
                total.backward()
        if y.grad is None:
            assert x.grad is None
        else:
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    assert len(backend.graphs) == 2


def test_a_size_that_becomes_a_float_is_one_still() -> None:
    """The backward of std counts in floats."""
    backend = Counting(aot=True)
    compiled = graphlift.compile(lambda x: x.std(0), backend=backend)
    for n in (5, 8, 13):
        x = torch.randn(n, 3, requires_grad=True)
        (grad,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(grad, torch.autograd.grad(x.std(0).sum(), x)[0])
    assert len(backend.graphs) == 2


# --- what must and what must not be compiled again ------------------------------------------------------------------


def marked(n: int, *dims: int, width: int = 3, **promise: Any) -> torch.Tensor:
    x = torch.randn(n, width)
    graphlift.mark_dynamic(x, dims or 0, **promise)
    return x


def double(x):
    return (x * 2).sum(0)


def test_a_marked_size_is_compiled_once() -> None:
    assert compiles(double, [(marked(n),) for n in SIZES]) == 1


def test_sizes_of_zero_and_one_are_compiled_for_themselves() -> None:
    assert (
        compiles(double, [(marked(4),), (torch.randn(1, 3),), (torch.randn(0, 3),), (torch.randn(9, 3),)])
        == 3
    )


def test_another_rank_or_dtype_is_compiled_again() -> None:
    calls = [
        (marked(4),),
        (torch.randn(5),),
        (torch.randn(5, 3).double(),),
        (torch.randn(5, 3).t(),),
        (torch.randn(8, 3),),
    ]
    assert compiles(double, calls) == 4


def test_rows_with_gaps_are_compiled_again() -> None:
    x, y = torch.randn(8, 4), torch.randn(8, 8)[:, :4]
    graphlift.mark_dynamic(x, [0, 1])
    assert compiles(double, [(x,), (y,), (torch.randn(5, 7),)]) == 2


def test_a_marked_size_outside_its_range_is_compiled_again() -> None:
    calls = [(marked(8, min=4, max=16),), (torch.randn(16, 3),), (torch.randn(4, 3),), (torch.randn(17, 3),)]
    assert compiles(double, calls) == 2
    assert compiles(double, [(marked(8, max=16),), (marked(20, max=16),), (marked(9, max=16),)]) == 2


def test_a_decision_on_the_size_is_a_guard() -> None:
    def fn(x):
        return x * 2 if x.shape[0] % 4 == 0 else x * 3

    calls = [(marked(8),), (marked(12),), (marked(9),), (marked(10),), (marked(16),)]
    assert compiles(fn, calls) == 2


def test_equal_sizes_are_not_taken_to_be_the_same() -> None:
    def fn(x, y):
        return x.sum() + y.sum()

    assert compiles(fn, [(marked(4), marked(4)), (torch.randn(5, 3), torch.randn(6, 3))]) == 1


def test_sizes_that_the_program_needs_to_be_equal() -> None:
    def fn(x, y):
        return x + y

    pairs = [(5, 5), (9, 9), (4, 4)]
    assert compiles(fn, [(marked(a), marked(b)) for a, b in pairs]) == 1
    compiled = graphlift.compile(fn, backend="eager")
    compiled(marked(5), marked(5))
    with pytest.raises(RuntimeError, match="must match"):
        compiled(marked(5), marked(6))


def test_sizes_related_by_arithmetic() -> None:
    def fn(x, y):
        return x[1:] * y

    assert compiles(fn, [(marked(n), marked(n - 1)) for n in (5, 9, 4)]) == 1


def test_dynamic_true_and_false() -> None:
    calls = [(torch.randn(n, 3),) for n in SIZES]
    assert compiles(double, calls, dynamic=True) == 1
    assert compiles(double, calls, dynamic=False) == len(SIZES)
    assert compiles(double, [(marked(n),) for n in SIZES], dynamic=False) == 1


def test_static_marks_hold_against_everything_else() -> None:
    def static(n: int) -> torch.Tensor:
        x = torch.randn(n, 3)
        graphlift.mark_static(x, 0)
        return x

    assert compiles(double, [(static(n),) for n in SIZES], dynamic=True) == len(SIZES)


def test_dynamo_marks_mean_the_same() -> None:
    import torch._dynamo

    x = torch.randn(4, 3)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=100)
    assert compiles(double, [(x,), (torch.randn(9, 3),)]) == 1


def test_two_dimensions_that_vary() -> None:
    calls = [(torch.randn(a, b),) for a, b in ((4, 5), (6, 5), (6, 9), (7, 8), (12, 3))]
    assert compiles(double, calls) == 3


def test_ints_vary_as_sizes_do() -> None:
    def fn(x, n):
        return x * n + torch.arange(n).sum()

    assert compiles(fn, [(torch.ones(3), n) for n in (4, 5, 9, 2, 100)]) == 2
    assert compiles(fn, [(torch.ones(3), n) for n in (4, 5, 9, 2, 100)], dynamic=True) == 1
    assert compiles(fn, [(torch.ones(3), n) for n in (4, 1, 9, 0)], dynamic=True) == 3


def test_ints_that_are_no_sizes_have_no_bounds() -> None:
    def fn(x, n):
        return x * n + (2 - n) // 3 * (x if n % 2 == 0 else 1)

    assert compiles(fn, [(torch.ones(3), n) for n in (4, 6, 0, -8, 100, 2)]) == 2
    assert compiles(fn, [(torch.ones(3), n) for n in (-3, 1, -7, 9)], dynamic=True) == 1


def test_bools_and_large_ints_are_not_taken_for_sizes() -> None:
    def fn(x, n):
        return x * n

    calls = [(torch.ones(3, dtype=torch.float64), n) for n in (4, 5, True, 2**63, 7)]
    assert compiles(fn, calls) == 4


def test_a_loop_over_a_size_is_compiled_per_size() -> None:
    def fn(x):
        total = x[0] * 0
        for i in range(x.shape[0]):
            total = total + x[i] * i
        return total

    assert compiles(fn, [(torch.randn(n, 3),) for n in (3, 4, 5, 4, 3)]) == 3


def test_what_fixes_a_size_is_told() -> None:
    def fn(x):
        return x * sum(range(x.shape[0]))  # here

    explanation = graphlift.explain(fn, backend="eager", dynamic=True)(torch.randn(4, 3))
    (event,) = [e for e in explanation.events if e.kind == "fixed_size"]
    line = fn.__code__.co_firstlineno + 1
    assert event.message.startswith("x.shape[0] is compiled as the number 4: used as a number in Python")
    assert event.message.endswith(f"test_dynamic.py:{line})")


def test_asked_for_sizes_vary_in_a_frame_that_a_break_left() -> None:
    def inner(x):
        y = x * 2
        print(end="")
        return y + 1

    assert compiles(lambda x: inner(x) * 3, [(torch.rand(n, 3),) for n in SIZES], dynamic=True) == 2


def test_sizes_across_a_break() -> None:
    def fn(x):
        n = x.shape[0] + 1
        y = x * n
        graphlift.graph_break()
        return y[: n // 2] * n

    assert compiles(fn, [(torch.randn(n, 3),) for n in SIZES]) == 4


# --- errors and explanations ------------------------------------------------------------------------------------------


def test_a_marked_size_that_the_program_fixes_is_an_error_that_names_the_line() -> None:
    def fn(x):
        y = x + 1
        return y * torch.ones(4, 1)  # the line

    compiled = graphlift.compile(fn, backend="eager")
    with pytest.raises(ConstraintError, match=r"x\.shape\[0\] was marked dynamic") as caught:
        compiled(marked(4))
    line = fn.__code__.co_firstlineno + 2
    assert caught.value.where is not None and caught.value.where.endswith(f"test_dynamic.py:{line}")
    x = torch.randn(4, 3)
    graphlift.maybe_mark_dynamic(x, 0)
    same(compiled(x), fn(x))


def test_guards_show_the_users_expressions() -> None:
    def fn(x, y):
        return x * 2 if (x.shape[0] + y.shape[0]) % 8 == 0 else x

    explanation = graphlift.explain(fn, backend="eager")(marked(3), marked(5))
    assert "(x.shape[0] + y.shape[0]) % 8 == 0" in str(explanation) or any(
        "(x.shape[0] + y.shape[0]) % 8 == 0" in str(guard) for guard in explanation.regions[0].guards
    )


def test_an_index_out_of_range_is_the_programs_error() -> None:
    def fn(x):
        return x[x.shape[0] - 1 + x.shape[1] - 3]

    compiled = graphlift.compile(fn, backend="eager")
    x = marked(5)
    same(compiled(x), fn(x))
    x = torch.randn(6, 4)
    graphlift.mark_dynamic(x, 0)
    with pytest.raises(IndexError):
        compiled(x)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 3
        self.norm = torch.nn.LayerNorm(3)

    def forward(self, x, sizes):
        return self.norm(x) * self.factor + sizes["n"][0]


def test_what_objects_hold_is_configuration() -> None:
    """With ``dynamic=True`` the arguments vary, and what is in them; attributes of modules do not."""
    model = Scaled()
    backend = Counting()
    compiled = graphlift.compile(model, backend=backend, dynamic=True)
    for n in (4, 7):
        x = torch.randn(n, 3)
        same(compiled(x, {"n": [n]}), model(x, {"n": [n]}))
    assert len(backend.graphs) == 1
    model.factor = 5
    same(compiled(x, {"n": [9]}), model(x, {"n": [9]}))
    assert len(backend.graphs) == 2


@pytest.fixture
def scaled():
    """An operator of the user's whose schema takes a float and an int, and no symbols."""
    library = torch.library.Library("graphlift_numbers", "FRAGMENT")
    library.define("scaled(Tensor x, float factor, int k) -> Tensor")
    library.impl("scaled", lambda x, factor, k: x * factor + k, "CompositeExplicitAutograd")
    fake = torch.library.register_fake("graphlift_numbers::scaled", lib=library)
    fake(lambda x, factor, k: torch.empty_like(x))
    yield torch.ops.graphlift_numbers.scaled
    library._destroy()


def test_operators_that_take_numbers_only_are_compiled_for_them(scaled: Any) -> None:
    """What the schema, or a C++ kernel of its own, wants as a number is no reason for a break."""
    x = torch.randn(3, 4, 4)
    numbers = [(x[:n], 0.5 + n, 5 + n) for n in (2, 3)]
    assert compiles(lambda x, factor, k: scaled(x, factor, k) + 1, numbers, fullgraph=True) == 2
    assert compiles(lambda x, k: scaled(x, 1.5, k) + 1, [(x, 7), (x, 8), (x, 9)], fullgraph=True) == 3
    nearest = torch._C._nn.upsample_nearest2d
    sizes = [(x, 7), (x, 8), (x, 9)]
    assert compiles(lambda x, k: nearest(x[None], [k, k], None), sizes, fullgraph=True) == 3


def test_operators_that_only_write_take_any_size() -> None:
    library = torch.library.Library("graphlift_written", "FRAGMENT")
    library.define("add_all_(Tensor(a!) x, Tensor[] ys, Tensor(b!) total, SymInt k) -> ()")
    library.define("scale_(Tensor(a!) x, int k) -> ()")

    def add_all(x: Tensor, ys: list[Tensor], total: Tensor, k: int) -> None:
        for y in ys:
            x.add_(y, alpha=k)
        total.add_(x.sum())

    library.impl("add_all_", add_all, "CPU")

    def scale(x: Tensor, k: int) -> None:
        x.mul_(k)

    library.impl("scale_", scale, "CPU")
    ops = torch.ops.graphlift_written

    def program(x: Tensor) -> Any:
        y, total = x * 1, torch.zeros(())
        ops.add_all_(y[1:], [x[1:], x[:-1]], total, x.shape[0])
        z = y.sin()
        ops.scale_(z.view(-1)[1:], 3)
        return y, z, z[:-1], total

    def numbered(x: Tensor) -> Tensor:
        y = x * 1
        ops.scale_(y, x.shape[0])
        return y

    calls = [(torch.randn(n, 2),) for n in (3, 4, 5, 6)]
    try:
        for aot in (False, True):
            assert compiles(program, calls, aot=aot, fullgraph=True) == 2
            assert compiles(numbered, calls[:3], aot=aot, fullgraph=True) == 3
    finally:
        library._destroy()


RESIZERS = (
    {"mode": "nearest"},
    {"mode": "bilinear", "align_corners": False},
    {"mode": "bicubic", "align_corners": True},
    {"mode": "bilinear", "antialias": True},
    {"mode": "bicubic", "antialias": True},
    {"mode": "nearest-exact"},
    {"mode": "area"},
)


@pytest.mark.parametrize("options", RESIZERS, ids=str)
def test_images_resized_to_sizes_that_vary(options: dict[str, Any]) -> None:
    image, sizes = torch.randn(2, 3, 8, 8), (4, 5, 7)
    programs = {
        "batch": (
            lambda x, _: F.interpolate(x, (6, 7), **options),
            [(image[:1].expand(n, 3, 8, 8), 1) for n in sizes],
        ),
        "factor": (
            lambda x, _: F.interpolate(x, scale_factor=1.5, **options),
            [(image[:, :, :n], 1) for n in sizes],
        ),
        "factor for sizes": (
            lambda x, _: F.interpolate(x, scale_factor=1.3, recompute_scale_factor=True, **options),
            [(image[:, :, :n], 1) for n in sizes],
        ),
        "size": (lambda x, n: F.interpolate(x, (n, 2 * n), **options), [(image, n) for n in sizes]),
        "like": (
            lambda x, y: F.interpolate(x, y.shape[2:], **options),
            [(image, image[:, :, :n]) for n in sizes],
        ),
        "plain": (lambda x, n: F.interpolate(x, n, **options) + n, [(image[..., :n], n) for n in sizes]),
    }
    for name, (program, calls) in programs.items():
        assert compiles(program, calls, fullgraph=True) == 2, name
    training = [(image[:, :, :n].clone().requires_grad_(), n) for n in sizes]
    assert compiles(programs["plain"][0], training, aot=True, fullgraph=True) == 2


BATCHED: dict[str, Callable[[torch.Tensor], Any]] = {
    "hardswish": F.hardswish,
    "prelu": lambda x: F.prelu(x, x.new_full((4,), 0.1)),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "cross": lambda x: torch.linalg.cross(x[..., :3], x[..., 1:]),
    "frexp": lambda x: torch.frexp(x.detach()),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "rot90": lambda x: torch.rot90(x, 1, (0, 1)),
    "affine_grid": lambda x: F.affine_grid(x[:, :2, :3], (x.shape[0], 1, 5, 6), align_corners=False),
    "matrix_exp": torch.matrix_exp,
    "distances": lambda x: torch.cdist(x.flatten(0, 1).repeat(9, 1), x[0] + 1),
    "inv": torch.linalg.inv,
    "det": torch.linalg.det,
    "slogdet": lambda x: torch.linalg.slogdet(x)[1],
    "solve": lambda x: torch.linalg.solve(x, x.sin()),
    "solve_vectors": lambda x: torch.linalg.solve(x, x[:, 0]),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT),
    "eigh": lambda x: torch.linalg.eigh(x + x.mT)[0],
    "qr": torch.linalg.qr,
    "svd": lambda x: torch.linalg.svd(x[:, :3])[1],
}


@pytest.mark.parametrize("aot", [False, True], ids=["captured", "aot"])
@pytest.mark.parametrize("name", BATCHED)
def test_batches_that_vary(name: str, aot: bool) -> None:
    matrix = torch.tensor([[4.0, 1, 0.5, 0], [1, 3, -0.5, 0.25], [-0.5, 0.5, 5, 1], [0.25, 0, 1, 2]])
    calls = [(matrix + torch.arange(n)[:, None, None] * torch.eye(4),) for n in (3, 4, 6, 5)]
    assert compiles(BATCHED[name], calls, aot, fullgraph=True) == 2
    for x in (calls[0][0], calls[2][0]):
        given = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, wanted = (
            graphlift.compile(BATCHED[name], backend=Counting(aot))(given[0]),
            BATCHED[name](given[1]),
        )
        for a, b in zip(*[r if isinstance(r, tuple) else (r,) for r in (found, wanted)], strict=True):
            if b.requires_grad:
                gradients = [
                    torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y, x in zip((a, b), given)
                ]
                torch.testing.assert_close(*gradients)


def test_borders_that_vary() -> None:
    image = torch.randn(2, 3, 8, 8)
    for mode in ("reflect", "replicate", "constant", "circular"):
        calls = [(image, 3, 1), (image, 4, 2), (image, 2, 5), (image, 5, 5)]
        program = lambda x, n, m: F.pad(x, (n, 1, m, n), mode=mode)  # noqa: E731
        assert compiles(program, calls, fullgraph=True) <= 3, mode


def test_nothing_of_the_users_is_kept_alive() -> None:
    import gc
    import weakref

    class Doubled(torch.nn.Module):
        def forward(self, x):
            return x * x.shape[0]

    model = Doubled()
    compiled = graphlift.compile(model.forward, backend=Counting(aot=True))
    held = []
    for n in SIZES:
        x = torch.randn(n, 3)
        held.append(weakref.ref(x))
        compiled(x)
    del x
    gc.collect()
    assert [ref() for ref in held] == [None] * len(SIZES)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "auto"])
def test_names_with_capitals_beside_floats_that_vary(backend: str) -> None:
    """Graphs in parts: a part knows its inputs by the names that the whole graph has for them."""
    graphlift.reset()

    def f(W: torch.Tensor, Scale: float) -> torch.Tensor:
        return (W @ W.T) * math.sqrt(Scale) + W.sum()

    compiled = graphlift.compile(f, backend=backend)
    W = torch.linspace(-1, 1, 12).reshape(3, 4)
    for scale in (1.5, 2.5, 3.5):
        torch.testing.assert_close(compiled(W, scale), f(W, scale))


def parts_of_shapes(x):
    """A part of a torch.Size is one, and so is what one is joined with, on either side."""
    shape = x.shape
    made = [
        shape[1:],
        shape[::-1],
        (2, 4) + shape,
        (shape[0],) + shape[:1],
        shape[1:] + (shape[0],),
        shape * 2,
    ]
    return x[None, None].expand(made[2]) + shape[1:].numel(), made, [type(part) for part in made]


def test_parts_of_shapes() -> None:
    calls = [(torch.randn(n, n + 2),) for n in (3, 5, 7)]
    assert compiles(parts_of_shapes, calls) == 2
    assert compiles(parts_of_shapes, calls, dynamic=True) == 1


@pytest.mark.parametrize("other", [[1], ("a",), (2.5,), (torch.ones(2),)])
def test_shapes_are_joined_with_tuples_of_integers(other) -> None:
    def join(x, other, left):
        y = x + 1
        return y, (other + x.shape[:1] if left else x.shape[:1] + other)

    for left in (False, True):
        compiled = graphlift.compile(join, backend="eager", dynamic=True)
        for fn in (join, compiled, compiled):
            with pytest.raises(TypeError, match="can only concatenate|Size"):
                fn(torch.ones(3, 4), other, left)


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (lambda x: torch.cross(x, x * 2, dim=1), lambda n: [torch.rand(n, 3)]),
        (lambda x: F.channel_shuffle(x, 3), lambda n: [torch.rand(2, 3, n, n + 1)]),
        (lambda x, grid: F.grid_sample(x, grid, align_corners=True), lambda n: [torch.rand(2, 3, n, 5), torch.zeros(2, n, 4, 2)]),
        (lambda x: torch.zeros(len(x), 8).scatter_add(0, torch.zeros(len(x), 8, dtype=torch.long), x), lambda n: [torch.rand(n, 8)]),
    ],
    ids=["cross", "channel_shuffle", "grid_sample", "scatter_add"],
)  # fmt: skip
def test_a_size_that_an_operator_needs_is_fixed_alone(fn: Any, inputs: Callable[[int], Any]) -> None:
    """The other sizes that it sees vary on."""
    assert compiles(fn, [inputs(n) for n in SIZES], dynamic=True) == 1


def shared_heads(q, k):
    return torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)


def test_attention_with_shared_heads() -> None:
    calls = [(torch.randn(b, 4, n, 8), torch.randn(b, 2, n + 1, 8)) for b, n in ((2, 5), (3, 6), (4, 9))]
    assert compiles(shared_heads, calls) == 2
    assert compiles(shared_heads, calls, dynamic=True) == 1


def test_a_float_of_numpy_that_varies() -> None:
    """To a tensor's operators it is a float; what shows that it is one of numpy's is compiled for it."""
    x = torch.arange(4.0, requires_grad=True)
    given = [(x, np.float64(value)) for value in (0.5, 2.5, -3.0, 4.0)]
    assert compiles(lambda x, k: ((x - k) * (k / (x + 9)), k), given, fullgraph=True) == 2
    assert compiles(lambda x, k: (x + torch.tensor(k)) * k, given, fullgraph=True) == 4
    assert compiles(lambda x, k: (x * k, type(k), k * 2), given, fullgraph=True) == 4
    assert compiles(lambda x, k: x * k, [*given[:2], (x, 3.0), (x, np.float32(3.0))], fullgraph=True) == 4
