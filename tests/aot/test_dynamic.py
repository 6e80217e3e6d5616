"""Sizes that vary, through AOT and through generated code: effects, aliases and gradients are eager's for every size.

Each program runs for several sizes, the first compiled for itself and the second for all; nothing is compiled after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphlift
from graphlift import pipeline

SIZES = (5, 8, 13, 6)
Make = Callable[[int], list[Any]]
PROGRAMS: dict[str, tuple[Callable[..., Any], Make]] = {}


def program(make: Make) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[fn.__name__] = (fn, make)
        return fn

    return register


def rows(n: int) -> list[Any]:
    return [torch.randn(n, 3)]


def differentiable(n: int) -> list[Any]:
    return [torch.randn(n, 3).requires_grad_()]


@program(rows)
def inputs_written(x: Tensor) -> Any:
    x[: x.shape[0] // 2].zero_()
    x.add_(x.shape[0])
    return x * 2


@program(differentiable)
def views_of_an_input(x: Tensor) -> Any:
    return x[: x.shape[0] // 2], x.view(-1), x.t(), x[1:, None], x.unfold(0, 2, 1), x[-2]


@program(differentiable)
def views_of_a_result(x: Tensor) -> Any:
    y = x * 2
    return y, y[1:], y.view(-1), y.t()[:, : x.shape[0] - 1], y.chunk(3, 1)[1]


@program(lambda n: (lambda t: [t, t])(torch.randn(n, 3)))
def the_same_input_twice(x: Tensor, y: Tensor) -> Any:
    return x + y


@program(lambda n: [torch.randn(3, n).t(), torch.randn(1, 3).expand(n, 3).clone()])
def permuted_inputs(x: Tensor, y: Tensor) -> Any:
    return x + 1, (x @ y.t()).contiguous(), x.contiguous(), x.reshape(-1), x + y


@program(lambda n: [torch.randn(n, 3, 8, 8).contiguous(memory_format=torch.channels_last)])
def channels_last_batches(x: Tensor) -> Any:
    return F.conv2d(x, torch.ones(4, 3, 3, 3)), x * 2, F.avg_pool2d(x, 2), x.contiguous()


@program(lambda n: [torch.randn(2, 3, n, n + 1).contiguous(memory_format=torch.channels_last)])
def channels_last_images(x: Tensor) -> Any:
    return F.conv2d(x, torch.ones(4, 3, 3, 3), padding=1), x * 2, F.max_pool2d(x, 2), x.flatten(1)


@program(differentiable)
def under_autocast(x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ x.t()).float().softmax(-1)


@program(differentiable)
def partly_without_grad(x: Tensor) -> Any:
    with torch.no_grad():
        y = x * x.shape[0]
    return y + x


@program(differentiable)
def losses(x: Tensor) -> Any:
    target = torch.arange(x.shape[0]) % 3
    none = F.nll_loss(F.log_softmax(x, -1), target, reduction="none")
    pairs = F.mse_loss(x, x.detach() * 2), F.smooth_l1_loss(x, x.detach() + 1), F.l1_loss(x, x.detach() + 2)
    return F.cross_entropy(x, target), none, *pairs, F.binary_cross_entropy_with_logits(x, torch.ones_like(x))


@program(differentiable)
def reductions(x: Tensor) -> Any:
    return x.amax(0), x.logsumexp(0), x.norm(dim=0), x.prod(1), x.var(1), x.max(0).values, x.sort(0).values


@program(differentiable)
def a_variance_over_many_sizes(x: Tensor) -> Any:
    return (x[:, None, :, None] * x[:, :, None]).unsqueeze(0).expand(x.shape[0] - 2, -1, -1, -1, -1).var()


@program(differentiable)
def indexing(x: Tensor) -> Any:
    i = torch.arange(x.shape[0] - 1)
    wide = i[:, None].expand(-1, 3)
    scattered = torch.zeros_like(x).scatter(0, wide, x[1:])
    return (
        x[i],
        x.index_select(0, i),
        x.gather(0, wide),
        x[i, 0],
        torch.zeros_like(x).index_add(0, i, x[1:]),
        scattered,
    )


@program(differentiable)
def masks(x: Tensor) -> Any:
    mask = (torch.arange(x.shape[0]) < 2)[:, None]
    return x * mask, x.masked_fill(~mask, -1), torch.where(mask, x, 0), x.tril()


@program(rows)
def writes_through_views(x: Tensor) -> Any:
    y = torch.zeros(x.shape[0] + 2, 3)
    y[1:-1] = x
    y[0] = x.shape[0]
    y[:, 1] += 1
    y.t()[2] = 5
    y[x.shape[0]] *= 2
    return y


@program(rows)
def random_numbers(x: Tensor) -> Any:
    n = x.shape[0]
    return torch.randn(n, 2), torch.rand(n), torch.randint(0, 9, (n,)), F.dropout(x, 0.3), torch.randperm(n)


@program(rows)
def sizes_as_operands(x: Tensor) -> Any:
    n = x.shape[0]
    return (
        x.clamp(max=n),
        x == n,
        x % n,
        torch.where(x > n, x, n),
        torch.add(x, x, alpha=n),
        x / n,
        n - x,
        n / x,
    )


@program(lambda n: [torch.randn(n, 4).requires_grad_(), torch.randn(n, 4), torch.randn(n + 1, 4)])
def three_inputs(a: Tensor, b: Tensor, c: Tensor) -> Any:
    return (a + b).sum() + c[1:].sum(), torch.cat([a, c]), a @ c.t()


@program(rows)
def python_around(x: Tensor) -> Any:
    counted = {"n": x.shape[0]}
    shape = (*x.shape, 1)
    return (
        x * counted["n"] + sum([x.shape[0]] * 2),
        shape,
        x.shape[0] in (2, 3),
        -x.shape[0] % 4,
        x.shape[0] ** 2,
    )


CONVOLUTIONS = nn.Sequential(
    *(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3)),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
)
ENCODER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)


@program(lambda n: [torch.randn(n, 3, 16, 16)])
def convolutional_network(x: Tensor) -> Any:
    return CONVOLUTIONS(x)


@program(lambda n: [torch.randn(2, 3, n + 8, 2 * n + 8)])
def convolutional_network_on_sizes_of_images(x: Tensor) -> Any:
    return CONVOLUTIONS(x)


@program(lambda n: [torch.randn(2, n, 8)])
def encoder_layer(x: Tensor) -> Any:
    return ENCODER(x)


def copied(args: list[Any]) -> list[Any]:
    """The same arguments anew, layouts and identities kept."""
    made: dict[int, Any] = {}
    for a in args:
        if isinstance(a, Tensor):
            copy = torch.empty_strided(a.shape, a.stride(), dtype=a.dtype).copy_(a.detach())
            made.setdefault(id(a), copy.requires_grad_(a.requires_grad))
    return [made.get(id(a), a) for a in args]


def shares(tensor: Tensor, args: list[Any]) -> list[bool]:
    home = tensor.untyped_storage().data_ptr()
    return [a.untyped_storage().data_ptr() == home for a in args if isinstance(a, Tensor)]


def compare(found: Any, wanted: Any, mine: list[Any], theirs: list[Any]) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, tuple):
        for a, b in zip(found, wanted, strict=True):
            compare(a, b, mine, theirs)
    elif isinstance(wanted, Tensor):
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)
        assert (found.stride(), found.requires_grad) == (wanted.stride(), wanted.requires_grad)
        assert shares(found, mine) == shares(wanted, theirs)
    else:
        assert found == wanted


def backward(outs: Any) -> None:
    outs = outs if isinstance(outs, tuple) else (outs,)
    terms = [o.square().sum() for o in outs if isinstance(o, Tensor) and o.requires_grad]
    if terms:
        sum(terms).backward()  # type: ignore[union-attr]


@pytest.mark.parametrize("compiler", ["compile_aten", "compile_native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, compiler: str) -> None:
    fn, make = PROGRAMS[name]
    graphs: list[Any] = []

    def backend(gm: Any, example_inputs: Any) -> Any:
        graphs.append(gm)
        return getattr(pipeline, compiler)(gm, example_inputs)

    compiled = graphlift.compile(fn, backend=backend, fullgraph=True)
    for n in SIZES:
        theirs = make(n)
        mine = copied(theirs)
        torch.manual_seed(1)
        wanted = fn(*theirs)
        torch.manual_seed(1)
        found = compiled(*mine)
        compare(found, wanted, mine, theirs)
        compare(tuple(mine), tuple(theirs), mine, theirs)
        backward(found)
        backward(wanted)
        for a, b in zip(mine, theirs, strict=True):
            if isinstance(b, Tensor) and b.grad is not None:
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)
    assert len(graphs) == 2


def test_the_backward_takes_sizes_as_ints() -> None:
    graphs: dict[str, Any] = {}

    def backend(gm: Any, example_inputs: Any) -> Any:
        compiled = pipeline.aot.compile_graph(gm, example_inputs, fw_compiler=pipeline.aot.interpret)  # type: ignore[arg-type]
        graphs.update(compiled.forms)
        return compiled.run

    x = torch.randn(6, 4, requires_grad=True)
    graphlift.mark_dynamic(x, 0)
    compiled = graphlift.compile(lambda x: (x * x.shape[0]).mean(), backend=backend)
    for n in (6, 9):
        x = x if n == 6 else torch.randn(n, 4, requires_grad=True)
        (grad,) = torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(grad, torch.full((n, 4), n / (n * 4)))
    for form in ("forward", "backward"):
        sizes = [
            p
            for p in graphs[form].graph.find_nodes(op="placeholder")
            if isinstance(p.meta["val"], torch.SymInt)
        ]
        assert len(sizes) == 1


def test_second_derivative_where_sizes_vary() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.reshape(-1).sin() * x.shape[0]).sum()

    def penalty(fn: Callable[[torch.Tensor], torch.Tensor], rows: int) -> torch.Tensor:
        x = torch.linspace(0, 1, rows * 2).reshape(rows, 2).requires_grad_()
        (grad,) = torch.autograd.grad(fn(x), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)[0]

    compiled = graphlift.compile(f, backend="aot_eager", dynamic=True)
    for rows in (3, 5):
        torch.testing.assert_close(penalty(compiled, rows), penalty(f, rows))
