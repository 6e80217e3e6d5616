"""What the program sees of autograd's graph: nodes, hooks and errors are eager's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphlift

pytestmark = pytest.mark.filterwarnings("ignore")


def test_hooks_on_a_node_see_the_operator_that_made_the_tensor() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act = nn.Linear(3, 3), nn.ReLU()
            self.seen: list[tuple[Tensor, ...]] = []
            self.act.register_backward_hook(lambda m, inputs, outputs: self.seen.append((*inputs, *outputs)))

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.act(y).sum() + y.exp().sum()

    model, x = Model(), torch.randn(2, 3, requires_grad=True)
    model(x).backward()
    graphlift.compile(model, backend="aot_eager")(x).backward()
    expected, found = model.seen
    assert len(expected) == len(found) == 2
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@torch.library.custom_op("graphlift_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("graphlift_test::small", mutates_args=())
def small(grad: Tensor) -> Tensor:
    if (grad.abs() > 5).any():
        raise ValueError("gradient too large")
    return grad * 2


@small.register_fake
def _(grad: Tensor) -> Tensor:
    return torch.empty_like(grad)


twice.register_autograd(lambda ctx, grad: small(grad))


def raises_in_python(x: Tensor) -> Tensor:
    y = x.sin()
    z = twice(y)  # here
    return z.cos() * 100


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        return x.sin()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad.index_select(0, *ctx.saved_tensors), None


def raises_in_aten(x: Tensor, index: Tensor) -> Tensor:
    y = x * 2
    z = Gather.apply(y, index)  # here
    return z.cos()


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
@pytest.mark.parametrize(
    ("f", "more", "message"),
    [(raises_in_python, (), "too large"), (raises_in_aten, (torch.tensor([0, 1, 7]),), "index out of range")],
)
def test_an_error_in_the_backward_names_the_line_of_the_forward(f, more, message: str, backend: str) -> None:
    x = torch.full((3,), 0.6, requires_grad=True)
    with pytest.raises((ValueError, IndexError, RuntimeError), match=message) as expected:
        f(x, *more).sum().backward()
    with pytest.raises(expected.type, match=message) as found:
        graphlift.compile(f, backend=backend, fullgraph=True)(x, *more).sum().backward()
    assert str(found.value) == str(expected.value)
    (note,) = found.value.__notes__
    lines, start = inspect.getsourcelines(f)
    here = start + next(k for k, line in enumerate(lines) if line.rstrip().endswith("# here"))
    assert f'{__file__}", line {here}' in note


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_a_batch_of_gradients(backend: str) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ x.t()).relu().sum(1), x.softmax(1).t()

    def batches(f) -> tuple:
        y, z = f(x)
        rows = torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True, retain_graph=True)
        return rows, torch.autograd.grad((y, z), x, (torch.eye(3), transposed), is_grads_batched=True)

    x, transposed = torch.randn(3, 4, requires_grad=True), torch.randn(3, 3, 4).transpose(1, 2)
    compiled = graphlift.compile(f, backend=backend, fullgraph=True)
    torch.testing.assert_close(batches(compiled), batches(f))
    plain = torch.autograd.grad(compiled(x)[0].sum(), x)
    torch.testing.assert_close(plain, torch.autograd.grad(f(x)[0].sum(), x))


@pytest.mark.parametrize("before", [True, False])
def test_anomaly_detection_sees_every_gradient(before: bool) -> None:
    compiled = graphlift.compile(lambda x: x.sqrt().sum(), backend="aot_eager", fullgraph=True)
    if before:
        compiled(torch.ones(3, requires_grad=True)).backward()
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan"):
        compiled(-torch.ones(3, requires_grad=True)).backward()
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 0.5))


def test_a_view_of_what_changed_its_shape_without_grad_has_a_history() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        with torch.no_grad():
            y.unsqueeze_(0)
        return y.swapaxes(0, -1)

    def run(fn: Callable[[Tensor], Tensor]) -> Tensor | None:
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        y = fn(x)
        assert not y.is_leaf
        (y * torch.arange(6.0).view(3, 2, 1)).sum().backward()
        return x.grad

    torch.testing.assert_close(run(graphlift.compile(f, backend="aot_eager")), run(f))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_view_that_autograd_refuses_to_follow_is_computed_with_where_nothing_is_followed(
    backend: str,
) -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            return x.cumsum(0)

    x = torch.arange(6.0, requires_grad=True) * 1
    with torch.no_grad():
        view = x[::2]
    x.mul_(2)
    torch.testing.assert_close(graphlift.compile(f, backend=backend)(view), f(view))


def test_an_input_made_without_grad_has_eagers_error_beside_a_base_that_changes_its_shape() -> None:
    def f(x: Tensor, view: Tensor) -> Tensor:
        made = view.expand(2, 2, 4)
        x.transpose_(0, 1)
        return made

    for fn in (f, graphlift.compile(f, backend="aot_eager")):
        x = torch.ones(4, 4, requires_grad=True) * 1
        with torch.no_grad():
            view = x[::2]
        made = fn(x, view)
        with pytest.raises(RuntimeError, match="created in no_grad mode"):
            _ = made.grad_fn


def test_a_leaf_that_is_detached_in_place_may_be_written() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.detach_()
        return x.mul_(y)

    for fn in (f, graphlift.compile(f, backend="aot_eager")):
        x, y = (torch.full((3,), 2.0, requires_grad=True) for _ in range(2))
        assert fn(x, y) is x
        x.sum().backward()
        assert x.tolist() == [4, 4, 4] and y.grad is not None and y.grad.tolist() == [2, 2, 2]


def test_pieces_of_what_shares_a_counter_with_a_tensor_that_changes_its_shape_have_eagers_error() -> None:
    def f(x: Tensor, alias: Tensor) -> Tensor:
        piece = x.chunk(2, -1)[0]
        alias.t_()
        return piece

    for fn in (f, graphlift.compile(f, backend="aot_eager")):
        x = nn.Parameter(torch.ones(3, 4))
        piece = fn(x, x.detach()[1:])
        with pytest.raises(RuntimeError, match="base has been modified inplace"):
            _ = piece.grad_fn


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_gradients_that_arrive_conjugated_or_negated(backend: str) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.complex(x * 2, x * 3), x * x

    weight = torch.complex(torch.arange(4.0), torch.ones(4))
    found = []
    for fn in (f, graphlift.compile(f, backend=backend)):
        x = torch.arange(4.0).requires_grad_()
        torch.autograd.backward(fn(x), (weight.conj(), weight.conj().imag))
        found.append(x.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
@pytest.mark.parametrize(
    "turn, write",
    [
        (lambda b: b.t().t_(), lambda h: h.tril_()),
        (lambda b: b.t().transpose_(0, 1), lambda h: h[0].fill_(3)),
        (lambda b: b[None].squeeze_(0), lambda h: h.index_fill_(0, torch.tensor([0]), 2.0)),
        (lambda b: b.t().swapaxes_(0, 1), lambda h: h.copy_(h[0] * 2)),
    ],
)
def test_a_view_that_is_written_after_its_shape_changed_in_place(turn, write, backend: str) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        base = x * 2
        view = turn(base)
        write(view)
        return base, view

    gradients = []
    for fn in (f, graphlift.compile(f, backend=backend)):
        x = torch.ones(3, 4, requires_grad=True)
        base, view = fn(x)
        (base.sum() + view.sum() * 3).backward()
        gradients.append(x.grad)
    expected, found = gradients
    assert expected.count_nonzero() > 0 and torch.equal(found, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_an_input_made_in_inference_mode_that_requires_grad(backend: str) -> None:
    with torch.inference_mode():
        leaf = torch.ones(3, 4, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return x.double()  # whose copy autograd records, as the tensor cannot be saved

    expected, found = f(leaf), graphlift.compile(f, backend=backend)(leaf)
    assert expected.requires_grad and found.requires_grad
    assert found.grad_fn is not None and found.grad_fn.name() == expected.grad_fn.name()


def _copied(x):
    z = torch.zeros(2, 4)
    z.copy_(x[:, -4:] * 2)
    return z


def _filled(x):
    z = torch.zeros_like(x)
    for k in range(9):
        z[:, k] = x[:, k] * k
    return z, z.t()


def _detached_first(x):
    z = x.new_ones(2, 9)
    d = z.detach()
    z.mul_(x)
    return z, d


def _drawn(x):
    z = torch.rand(2, 9)
    z.sub_(x)
    return z, z.data


@pytest.mark.parametrize("program", [_copied, _filled, _detached_first, _drawn])
@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_tensors_made_inside_are_written_with_a_history(program, backend):
    """torch's factories give a detached alias of what their operator made, which is the tensor itself to everyone."""
    x, other = (torch.linspace(-1, 1, 18).view(2, 9).requires_grad_() for _ in range(2))
    assert graphlift.explain(program, backend=backend)(x).fallbacks == ()
    compiled = graphlift.compile(program, backend=backend)
    torch.manual_seed(0)
    wanted = program(x)
    torch.manual_seed(0)
    found = compiled(other)
    pairs = list(zip(*[r if isinstance(r, tuple) else (r,) for r in (wanted, found)], strict=True))
    for a, b in pairs:
        torch.testing.assert_close(b, a)
        facts = [(t.requires_grad, t.is_leaf, t._is_view(), t._version, t.stride()) for t in (a, b)]
        assert facts[0] == facts[1]
    for side in zip(*pairs, strict=True):
        assert len({t.untyped_storage().data_ptr() for t in side}) == 1
        sum((t * t).sum() for t in side).backward()
    torch.testing.assert_close(other.grad, x.grad)


_into, _onto = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()


def _critic(x: Tensor) -> Tensor:
    h = torch.tanh(_into(x))
    print(end="")
    h = torch.nn.functional.layer_norm(_onto(h), (4,))
    print(end="")
    return (torch.relu(h) * h).sum()


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_a_gradient_penalty_across_breaks(backend: str) -> None:
    """What eager's backward keeps of a region's inputs is there for the second derivative too."""

    def ran(f: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
        parameters = (*_into.parameters(), *_onto.parameters())
        for p in parameters:
            p.grad = None
        x = torch.linspace(0, 1, 8, dtype=torch.float64).view(2, 4).requires_grad_()
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        ((g.norm(dim=1) - 1) ** 2).sum().backward()
        return [g.detach(), x.grad, *(p.grad for p in parameters)]

    compiled = graphlift.compile(_critic, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(ran(compiled), ran(_critic))


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
@pytest.mark.parametrize("several", [False, True])
def test_no_second_derivative_of_what_was_changed_since(backend: str, several: bool) -> None:
    """Eager has kept results; computing again would start from other values, also for the first derivative."""

    def f(h: Tensor) -> Any:
        y = h.exp()
        return (y, y * 2) if several else y

    def ask(f: Callable[[Tensor], Any]) -> Tensor:
        h = torch.linspace(0, 1, 4).requires_grad_() * 1
        y = f(h)
        with torch.no_grad():
            h.add_(1)
        (g,) = torch.autograd.grad((y[1] if several else y).sum(), h, create_graph=True)
        return g.detach()

    assert ask(f)[0] == (2 if several else 1)
    with pytest.raises(RuntimeError, match="second derivative .* changed in place"):
        ask(graphlift.compile(f, backend=backend))


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_views_of_a_leaf_that_is_a_view_and_is_written(backend: str) -> None:
    """To autograd they are views of the leaf's base, whose history they have once the memory was written."""

    def f(x: Tensor) -> Tensor:
        v = x[0]
        with torch.no_grad():
            x.mul_(2)
        return torch.stack([v, x.sin()[0]])

    def ran(f: Callable[[Tensor], Tensor], view: bool) -> Tensor | None:
        x = torch.ones(6).view(2, 3) if view else torch.ones(2, 3)
        x.requires_grad_()
        f(x).sum().backward()
        return x.grad

    compiled = graphlift.compile(f, backend=backend)
    for view in (False, True, False):
        torch.testing.assert_close(ran(compiled, view), ran(f, view))
