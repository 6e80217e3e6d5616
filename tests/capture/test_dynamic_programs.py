"""Programs of varying sizes and floats, each over several values: equal to eager, in as few compilations as they need.

The values come one per call: the first is compiled as it is, the second makes it vary, and the others are not compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import graphlift
from graphlift.frame import entries
from graphlift.guards import Predicate

from .test_dynamic import Counting, compiles, same

SIZES = (4, 6, 9, 13)
FLOATS = (0.5, 0.25, 0.7, 0.9)


def learning_rate(w, lr):
    return (w * 2).add_(w, alpha=-lr)


def adam_step(w, lr):
    return w.addcdiv(w * 0.1, (w * w).sqrt().add_(1e-8), value=-lr)


FLOAT_PROGRAMS: dict[str, Callable[[Tensor, float], Any]] = {
    "pow": lambda x, f: x.abs() ** f,
    "power of": lambda x, f: f**x,
    "clamp": lambda x, f: x.clamp(-f, f),
    "alpha": lambda x, f: torch.add(x, x, alpha=f),
    "learning rate": learning_rate,
    "adam": adam_step,
    "lerp": lambda x, f: torch.lerp(x, x * 2, f),
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "hardtanh": lambda x, f: F.hardtanh(x, -f, f),
    "temperature": lambda x, f: F.softmax(x / f, -1),
    "masked_fill": lambda x, f: x.masked_fill(x > 0, f),
    "where": lambda x, f: torch.where(x > 0, x, f),
    "full": lambda x, f: torch.full((5,), f) + x,
    "threshold": lambda x, f: F.threshold(x, f, 0.0),
    "tensor": lambda x, f: x[:, :2] * torch.tensor([f, 2 * f]),
    "remainder": lambda x, f: x % f,
    "branch": lambda x, f: x * 2 if f > 0.1 else x,
    "computed branch": lambda x, f: x * 2 if math.sqrt(f) * x.shape[0] > 0.1 + f else x,
    "round": lambda x, f: x * round(f, 1),
    "min": lambda x, f: x * min(f, 1.0),
    "exp": lambda x, f: x * math.exp(-f),
}


@pytest.mark.parametrize("aot", [False, True])
@pytest.mark.parametrize("name", FLOAT_PROGRAMS)
def test_floats_that_vary_compile_twice(name: str, aot: bool) -> None:
    x = torch.linspace(-2, 2, 20).reshape(4, 5)
    assert compiles(FLOAT_PROGRAMS[name], [(x, f) for f in FLOATS], aot) == 2


def test_a_comparison_of_floats_is_asked_in_every_call_by_c_code() -> None:
    def fn(x, f):
        return x * 2 if f * 2 > 1.0 else x - 1

    x = torch.ones(3)
    backend = Counting()
    compiled = graphlift.compile(fn, backend=backend)
    for f in (0.9, 0.8, 0.7, 0.1, 0.2, 0.95, math.nan, math.inf):
        same(compiled(x, f), fn(x, f))
    assert len(backend.graphs) == 3, "as a number, above, and not above"
    guards = [guard for check, _ in entries(fn.__code__) for guard in check.guards]
    assert any("((f * 2) > 1.0) is True" in str(guard) for guard in guards)
    assert not any(isinstance(guard, Predicate) for guard in guards)


def test_long_chains_of_floats() -> None:
    def fn(x, f):
        for _ in range(40):
            f = f * f + 0.01
        return x + 1 if f < 0.5 else x

    assert compiles(fn, [(torch.ones(3), f) for f in FLOATS], aot=True) <= 3


# --- sizes and floats in functions that torch calls ------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, f: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.f = f
        return x * x * x.shape[0] * f

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * g * x * x.shape[0] * ctx.f, None


def hooked(x: Tensor, f: float) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * f * x.shape[0])
    return (y * y).sum()


def nested(x: Tensor, f: float) -> Tensor:
    n = x.shape[0]
    per_row = torch.func.vmap(torch.func.grad(lambda r: (r * r).sum() * n * f))
    return per_row(x).sin().sum()


def chunked(x: Tensor, f: float) -> Tensor:
    return torch.func.vmap(lambda r: r * x.shape[0] * f, chunk_size=2)(x).sum()


INNER: dict[str, Callable[[Tensor, float], Tensor]] = {
    "custom function": lambda x, f: Scaled.apply(x, f).sum(),
    "custom function twice": lambda x, f: Scaled.apply(Scaled.apply(x, f), f + 1).sum(),
    "hook": hooked,
    "vmap of grad": nested,
    "vmap in chunks": chunked,
    "jacobian": lambda x, f: torch.func.jacrev(lambda r: r.sum(0) * f * x.shape[0])(x).sum() + x.sum(),
}


@pytest.mark.parametrize("aot", [False, True])
@pytest.mark.parametrize("name", INNER)
def test_sizes_and_floats_reach_inner_functions(name: str, aot: bool) -> None:
    fn = INNER[name]
    backend = Counting(aot)
    compiled = graphlift.compile(fn, backend=backend)
    for n, f in zip(SIZES, FLOATS, strict=True):
        values = torch.randn(n, 5)
        got, want = (values.clone().requires_grad_() for _ in range(2))
        found, wanted = compiled(got, f), fn(want, f)
        same(found.detach(), wanted.detach())
        found.backward()
        wanted.backward()
        same(got.grad, want.grad)
    # Batching rules of torch read some sizes as numbers, and so does the count of chunks.
    assert len(backend.graphs) <= (4 if name.startswith("vmap") else 2)


def test_numbers_under_vmap_reach_kernels() -> None:
    def fn(x, f):
        return torch.func.vmap(lambda r: (r * r).sum() * x.shape[0] * f)(x)

    compiled = graphlift.compile(fn)
    for n, f in zip(SIZES, FLOATS, strict=True):
        x = torch.randn(n, 5)
        torch.testing.assert_close(compiled(x, f), fn(x, f))


# --- sizes ---------------------------------------------------------------------------------------------------------

CELLS = {"lstm": nn.LSTMCell(5, 5), "gru": nn.GRUCell(5, 5), "rnn": nn.RNNCell(5, 5, bias=False)}
SIZE_PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "kthvalue": lambda x: x.t().kthvalue(2)[0],
    "kthvalue of a varying k": lambda x: x.kthvalue(x.shape[0] // 4, 0)[0],
    "mode": lambda x: x.t().mode()[0],
    "chunk": lambda x: [piece * 2 for piece in x.chunk(2)],
    "pad": lambda x: F.pad(x, (0, 0, 0, 16 - x.shape[0])),
    "lists": lambda x: torch.stack([x, x * 2]).mean(1),
    "lstm cell": lambda x: CELLS["lstm"](x, CELLS["lstm"](x)),
    "gru cell": lambda x: CELLS["gru"](x, CELLS["gru"](x)),
    "rnn cell": lambda x: CELLS["rnn"](x, torch.zeros(x.shape[0], 5)),
    "pad_sequence": lambda x: [
        nn.utils.rnn.pad_sequence([x, x[:2], x[1:]], padding_side=side) for side in ("left", "right")
    ],
    "a negative power": lambda x: x * x.shape[0] ** -1,
    "rounded halves and one": lambda x: x[: round(x.shape[0] / 2 + 1)] * round(x.shape[0] * 3 / 4 - 2.0),
    "rounded halves": lambda x: x[: round(x.shape[0] / 2)] * round(x.shape[0] * 3 / 4),
    "nbytes": lambda x: x * (x.nbytes + x[1:].storage_offset()),
    "in place, twice": lambda x: (x + 1).relu_().add_(x).relu_().add_(x),
}


@pytest.mark.parametrize("aot", [False, True])
@pytest.mark.parametrize("name", SIZE_PROGRAMS)
def test_sizes_that_vary_compile_twice(name: str, aot: bool) -> None:
    assert compiles(SIZE_PROGRAMS[name], [(torch.randn(n, 5),) for n in SIZES], aot) == 2


#: name -> (program, how often it is compiled): text that is only passed on varies, text that is looked into does not.
TEXTS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "f-string": (lambda x: (f"n={x.shape[0]:>4}|{x.shape[0]!r}", x + 1), 2),
    "of a shape": (lambda x: (str(x.shape), f"{x.shape}", repr(x.size()), x + 1), 2),
    "of a float": (lambda x: (f"{x.shape[0] / 7:.3f}", str(x.shape[0] * 0.5), x + 1), 2),
    "format": (lambda x: (str.format("{}-{:04d} {n}", x.size(0), x.size(0) * 2, n=x.shape[0]), x + 1), 2),
    "of an exception": (lambda x: (str(ValueError(f"bad {x.shape[0]}")), x + 1), 2),
    "printed": (lambda x: (print(f"shape {x.shape[0]}"), x + 1), 2),
    "a key": (lambda x: list({f"k{x.shape[0]}": x + 1}.items()), 4),
    "compared": (lambda x: x * 2 if f"{x.shape[0]}" == "13" else x + 1, 4),
    "its length": (lambda x: x * len(str(x.shape[0])), 4),
    "in an inner function": (lambda x: torch.func.vmap(lambda r: r * len(f"{x.shape[0]}"))(x), 4),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_sizes(name: str) -> None:
    fn, count = TEXTS[name]
    graphlift.reset()
    compiled = graphlift.compile(fn, backend="eager")
    for n in SIZES:
        x = torch.randn(n, 5)
        same(compiled(x), fn(x))
    assert len(entries(fn.__code__)) == count


def _network(cls: Any, **options: Any) -> Callable[..., Any]:
    net = cls(5, 7, **options)
    return lambda x: (net(x.sin())[0] * 2, net(x)[1])


NETWORKS: dict[str, Callable[..., Any]] = {
    "lstm": _network(nn.LSTM, batch_first=True),
    "lstm of two layers both ways": _network(nn.LSTM, num_layers=2, bidirectional=True),
    "lstm without biases": _network(nn.LSTM, bias=False),
    "gru": _network(nn.GRU, batch_first=True),
    "gru both ways": _network(nn.GRU, bidirectional=True),
    "tanh": _network(nn.RNN, batch_first=True),
    "relu": _network(nn.RNN, nonlinearity="relu"),
}


@pytest.mark.parametrize("shape", [(None, 3, 5), (3, None, 5)], ids=["first", "second"])
@pytest.mark.parametrize("name", NETWORKS)
def test_recurrent_networks_over_sizes_that_vary(name: str, shape: tuple[int | None, ...]) -> None:
    """One graph for all sizes, which runs in parts: the network itself is run as it is."""
    fn, backend = NETWORKS[name], Counting()
    compiled = graphlift.compile(fn, backend=backend, fullgraph=True)
    for n in (*SIZES, 17, 20):
        x = torch.randn([n if size is None else size for size in shape])
        same(compiled(x), fn(x))
    assert len(backend.graphs) == 2


@pytest.mark.parametrize("backend", ["auto", "aot_eager"])
def test_training_a_recurrent_network_over_sizes_that_vary(backend: str) -> None:
    net, head = nn.GRU(5, 7, batch_first=True), nn.Linear(7, 3)

    def fn(x):
        out, last = net(x.sin())
        return head(out * 2).square().mean() + last.sum()

    parameters = [*net.parameters(), *head.parameters()]
    compiled = graphlift.compile(fn, backend=backend, fullgraph=True)
    for n in SIZES:
        x = torch.randn(n, n + 1, 5)
        loss, expected = compiled(x), fn(x)
        same(loss, expected)
        same(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters))


def test_a_recurrent_network_in_an_inner_function_over_sizes_that_vary() -> None:
    net, backend = nn.GRU(5, 7), Counting()

    def fn(x):
        return checkpoint(lambda y: net(y)[0], x, use_reentrant=False) * 2

    compiled = graphlift.compile(fn, backend=backend)
    for n in SIZES:
        x = torch.randn(n, 3, 5)
        same(compiled(x), fn(x))


def test_in_place_operators_on_shared_memory_are_refused_as_in_eager() -> None:
    def fn(x):
        y = x.clone()
        y[1:].add_(x[1:])
        return y[1:].add_(y[:-1])

    compiled = graphlift.compile(fn, backend=Counting())
    for n in SIZES:
        x = torch.randn(n)
        for run in (compiled, fn):
            with pytest.raises(
                RuntimeError, match="some elements of the input tensor and the written-to tensor"
            ):
                run(x)


@pytest.mark.parametrize("cell", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_over_other_batches(cell: Any) -> None:
    layer = cell(5, 7, batch_first=True)
    with torch.no_grad():
        compiled = graphlift.compile(lambda x: layer(x)[0], backend=Counting())
        for n in SIZES:
            x = torch.randn(n, 3, 5)
            same(compiled(x), layer(x)[0])
