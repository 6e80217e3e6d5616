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


@pytest.mark.parametrize("options", ({"use_reentrant": False}, {"use_reentrant": True}), ids=str)
def test_saved_bytes(options: dict[str, Any]) -> None:
    """The backward's partition keeps what goes into each checkpoint, and nothing in it."""
    x = torch.randn(8, 5, 16, requires_grad=True)
    plain, kept = (compiled_of(Stack(**o), x) for o in ({}, options))
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


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
@pytest.mark.parametrize("nested", [False, True])
def test_no_second_derivative_through_a_reentrant_checkpoint(backend: str, nested: bool) -> None:
    """Eager gives gradients without a graph, or with a part of it: an error comes before what is no derivative."""

    def f(x: Tensor) -> Any:
        def again(a: Tensor) -> Any:
            return checkpoint(torch.sin, a * a, use_reentrant=True)

        return checkpoint(again, x, use_reentrant=False).cos().sum() if nested else again(x).sum()

    loss = graphlift.compile(f, backend=backend, fullgraph=True)(torch.linspace(0, 1, 4).requires_grad_())
    with pytest.raises(RuntimeError, match="a second derivative through .*a reentrant checkpoint"):
        loss.backward(create_graph=True)


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
