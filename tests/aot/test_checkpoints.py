"""Checkpoints in compiled code keep what eager's checkpoints keep, and compute the rest again with the same numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import graphlift
from graphlift import record

BACKENDS = ("eager", "aot_eager", "auto")


class Block(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(torch.tanh(self.up(self.norm(x))).sin()))


class Stack(nn.Module):
    def __init__(self, p: float = 0.0, **options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(p) for _ in range(3))
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, **self.options) if self.options else block(x)
        return x.square().mean()


def saved_bytes(run: Callable[[], Any], known: list[Tensor]) -> int:
    """Memory that a backward of what `run` gives keeps, besides the known tensors, as hooks on saved tensors see it."""
    seen = {t.untyped_storage().data_ptr() for t in known}
    total = 0

    def pack(t: Tensor) -> Tensor:
        nonlocal total
        storage = t.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        kept = run()
    del kept
    return total


def compiled_of(model: nn.Module, x: Tensor) -> Any:
    """What AOT made of the model's only graph."""
    graphlift.reset()
    with record.recording() as records:
        graphlift.compile(model, backend="aot_eager", fullgraph=True)(x)
    (made,) = records
    return made.compiled


def train(model: Callable[..., Tensor], parameters: list[Tensor], x: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    for p in parameters:
        p.grad = None
    loss = model(x)
    before = torch.get_rng_state()
    loss.backward()
    assert torch.equal(before, torch.get_rng_state())
    return [loss.detach(), torch.rand(1), *(p.grad for p in parameters)]  # type: ignore[list-item]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reentrant", (False, True))
def test_gradients_and_random_numbers(backend: str, reentrant: bool) -> None:
    torch.manual_seed(0)
    model = Stack(0.3, use_reentrant=reentrant).double()
    x = torch.randn(4, 5, 16, dtype=torch.float64, requires_grad=True)
    parameters = [x, *model.parameters()]
    expected = train(model, parameters, x)
    compiled = graphlift.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        got = train(compiled, parameters, x)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_saved_bytes() -> None:
    """The backward's partition keeps what goes into each checkpoint, and nothing in it."""
    x = torch.randn(8, 5, 16, requires_grad=True)
    plain, kept = (compiled_of(Stack(**o), x) for o in ({}, {"use_reentrant": False}))
    between = 2 * x.numel() * x.element_size()  # the second and third block's input
    last = between // 2  # what is squared
    assert kept.saved_bytes == between + last
    assert kept.eager_saved_bytes == between + last and plain.saved_bytes > 5 * kept.saved_bytes
    assert kept.recomputed > plain.recomputed


def test_memory_of_the_graph_as_captured() -> None:
    """Backend "eager": torch's own checkpoint around the same nodes."""
    torch.manual_seed(0)
    model = Stack(use_reentrant=False)
    x = torch.randn(8, 5, 16, requires_grad=True)
    known = [x, *model.parameters()]
    compiled = graphlift.compile(model, backend="eager")
    compiled(x)
    assert saved_bytes(lambda: compiled(x), known) == saved_bytes(lambda: model(x), known)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_and_sequential(backend: str) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2)) for _ in range(4)))

    def f(x: Tensor) -> Tensor:
        def outer(a: Tensor) -> Tensor:
            b = checkpoint(layers[0], a, use_reentrant=False)
            assert isinstance(b, Tensor)
            return b.sin() * a

        y = checkpoint(outer, x, use_reentrant=False)
        z: Tensor = checkpoint_sequential(layers, 2, y, use_reentrant=False)
        return z.sum()

    x = torch.randn(3, 8, requires_grad=True)
    parameters = [x, *layers.parameters()]
    expected = train(f, parameters, x)
    got = train(graphlift.compile(f, backend=backend, fullgraph=True), parameters, x)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_that_are_kept(backend: str) -> None:
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])

    def f(x: Tensor, w: Tensor) -> Tensor:
        y: Tensor = checkpoint(
            lambda a, b: torch.tanh(a @ b).sin().exp(), x, w, use_reentrant=False, context_fn=contexts
        )
        return y.sum()

    x, w = (torch.randn(6, 6, requires_grad=True) for _ in range(2))
    expected = torch.autograd.grad(f(x, w), (x, w))
    got = torch.autograd.grad(graphlift.compile(f, backend=backend, fullgraph=True)(x, w), (x, w))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_generator_is_not_put_back(backend: str) -> None:
    """A checkpoint puts back torch's own state alone: another generator draws other numbers in the backward."""
    generator = torch.Generator()

    def f(x: Tensor) -> Tensor:
        y: Tensor = checkpoint(
            lambda a: (a * torch.rand(a.shape, generator=generator)).sin(), x, use_reentrant=False
        )
        return y.sum()

    def gradient(fn: Callable[[Tensor], Tensor]) -> Tensor:
        generator.manual_seed(0)
        x = torch.arange(4.0, requires_grad=True)
        return torch.autograd.grad(fn(x), x)[0]

    assert torch.equal(gradient(graphlift.compile(f, backend=backend)), gradient(f))


@pytest.mark.parametrize("backend", BACKENDS)
def test_reentrant_gives_no_gradients_of_some_inputs(backend: str) -> None:
    """`torch.autograd.grad` through a reentrant checkpoint raises; beside it, it does not."""

    def f(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        y = checkpoint(lambda a, w: torch.tanh(a * w), x, w, use_reentrant=True)
        assert isinstance(y, Tensor)
        return (y + b * 2).sum(), b.sin().sum()

    def tried(fn: Callable[..., Any], output: int, inputs: str, of_results: bool) -> Any:
        leaves = [torch.linspace(0, 1, 4).requires_grad_() for _ in range(3)]
        given = [t * 1 for t in leaves] if of_results else leaves
        named = dict(zip("xwb", given, strict=True))
        try:
            return torch.autograd.grad(fn(*given)[output], [named[k] for k in inputs], allow_unused=True)
        except RuntimeError as error:
            return str(error)

    compiled = graphlift.compile(f, backend=backend, fullgraph=True)
    for case in ((0, "x"), (0, "b"), (0, "xb"), (1, "b"), (1, "x"), (0, "w")):
        for of_results in (False, True):
            expected, got = tried(f, *case, of_results), tried(compiled, *case, of_results)
            if isinstance(expected, str):
                assert got == expected, case
            else:
                torch.testing.assert_close(got, expected)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("nested", [False, True])
def test_gradients_with_a_graph_through_a_reentrant_checkpoint(backend: str, nested: bool) -> None:
    """Eager gives gradients without a graph, or with a part of it."""

    def f(x: Tensor) -> Any:
        def again(a: Tensor) -> Any:
            return checkpoint(torch.sin, a * a, use_reentrant=True)

        return (checkpoint(again, x, use_reentrant=False) if nested else again(x)).cos().sum()

    def ran(f: Callable[[Tensor], Any]) -> list[Any]:
        x = torch.linspace(0, 1, 4).requires_grad_()
        f(x).backward(create_graph=True)
        assert x.grad is not None
        return [x.grad.detach(), x.grad.requires_grad]

    torch.testing.assert_close(ran(graphlift.compile(f, backend=backend, fullgraph=True)), ran(f))


_linear, _other = nn.Linear(4, 4), nn.Linear(4, 4)


def _autocast(x: Tensor) -> Any:
    with torch.autocast("cpu"):
        y = checkpoint(_linear, _other(x), use_reentrant=True)
        return _other(y).float()


REENTRANT: dict[str, Callable[[Tensor], Any]] = {
    "module": lambda x: checkpoint(_linear, x, use_reentrant=True),
    "closure": lambda x: checkpoint(lambda a: torch.tanh(a @ _linear.weight), x, use_reentrant=True),
    "two": lambda x: checkpoint(
        _other, checkpoint(_linear, x * 2, use_reentrant=True).sin(), use_reentrant=True
    ),
    "after another": lambda x: checkpoint(_linear, _other(x), use_reentrant=True),
    "nested": lambda x: checkpoint(
        lambda a: checkpoint(lambda b: _linear(b).sin(), a * 2, use_reentrant=True).cos(),
        x,
        use_reentrant=True,
    ),
    "in one that is not": lambda x: checkpoint(
        lambda a: checkpoint(lambda b: _linear(b).sin(), a * 2, use_reentrant=True).cos(),
        x,
        use_reentrant=False,
    ),
    "sizes": lambda x: checkpoint(lambda a: (a * a.shape[0]).view(-1, 2).exp(), x, use_reentrant=True),
    "several": lambda x: torch.stack(checkpoint(lambda a: (a * 2, a.sin(), 3), x, use_reentrant=True)[:2]),
    "maximum": lambda x: checkpoint(lambda a: torch.max(a * 2, 0), x, use_reentrant=True)[0],
    "fields": lambda x: x * len(type(checkpoint(lambda a: torch.topk(a, 2), x, use_reentrant=True)).__name__),
    "asks": lambda x: checkpoint(
        lambda a: a * 2 if torch.is_grad_enabled() else a * 3, x, use_reentrant=True
    ),
    "asks a tensor": lambda x: checkpoint(
        lambda a: a * 2 if (a * a).requires_grad else a * 3, x, use_reentrant=True
    ),
    "a list": lambda x: x + checkpoint(lambda a: [a * 2], x, use_reentrant=True)[0],
    "autocast": _autocast,
}


def _backward(x: Tensor, loss: Tensor) -> Any:
    loss.backward()


def _of_weight(x: Tensor, loss: Tensor) -> Any:
    loss.backward(inputs=[_linear.weight])


def _of_x(x: Tensor, loss: Tensor) -> Any:
    return torch.autograd.grad(loss, x)


def _hooked(x: Tensor, loss: Tensor) -> Any:
    seen: list[Any] = []
    handle = torch.autograd.graph.register_multi_grad_hook((x, _linear.weight), seen.append)
    loss.backward()
    handle.remove()
    return seen


def _after_a_step(x: Tensor, loss: Tensor) -> Any:
    with torch.no_grad():
        _linear.weight.mul_(2)
    try:
        loss.backward()
    finally:
        with torch.no_grad():
            _linear.weight.div_(2)


@pytest.mark.filterwarnings("ignore:None of the inputs")  # the inner one's, which runs without a history
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ask", (_backward, _of_weight, _of_x, _hooked, _after_a_step))
@pytest.mark.parametrize("name", REENTRANT)
def test_reentrant_is_a_backward_of_its_own(
    name: str, ask: Callable[[Tensor, Tensor], Any], backend: str
) -> None:
    """To autograd it is a function of its arguments alone, run without a history, and once more in the backward."""

    def ran(f: Callable[[Tensor], Any], rows: int) -> list[Any]:
        x = torch.linspace(0, 1, 4 * rows).view(rows, 4).requires_grad_()
        parameters = (*_linear.parameters(), *_other.parameters())
        for p in parameters:
            p.grad = None
        y = f(x)
        try:
            found: Any = ask(x, y.sum())
        except RuntimeError as error:
            found = str(error).partition(":")[0]
        return [y.detach(), y.requires_grad, y._version, found, *(t.grad for t in (x, *parameters))]

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor):
            return isinstance(b, Tensor) and torch.allclose(a, b, rtol=1e-5, atol=1e-6)
        if isinstance(a, (list, tuple)):
            return len(a) == len(b) and all(map(same, a, b))
        return bool(a == b)

    compiled = graphlift.compile(REENTRANT[name], backend=backend)
    for rows in (2, 2, 3):
        assert same(ran(compiled, rows), ran(REENTRANT[name], rows))


def test_what_is_around_reentrant_checkpoints_is_compiled() -> None:
    def f(x: Tensor) -> Any:
        y = checkpoint(_linear, x * 2, use_reentrant=True)
        return y.sin().sum()

    graphlift.reset()
    with record.recording() as records:
        graphlift.compile(f, backend="aot_eager", fullgraph=True)(
            torch.ones(2, 4, requires_grad=True)
        ).backward()
    assert [r.fallbacks for r in records] == [[]] * 4  # before, the linear layer twice, after


@pytest.mark.parametrize("backend", BACKENDS)
def test_raises_where_hooks_on_saved_tensors_are_disabled(backend: str) -> None:
    """Eager's checkpoint is a pair of such hooks."""
    compiled = graphlift.compile(
        lambda x: checkpoint(torch.sin, x * 2, use_reentrant=False), backend=backend, fullgraph=True
    )
    x = torch.ones(3, requires_grad=True)
    compiled(x)
    with (
        torch.autograd.graph.disable_saved_tensors_hooks("none here"),
        pytest.raises(RuntimeError, match="none here"),
    ):
        compiled(x)
