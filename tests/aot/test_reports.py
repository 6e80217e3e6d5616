"""Programs that compilers of this kind got wrong: aliasing, writes, gradients, autocast, random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from graphlift.aot import Compiled, compile_graph, interpret
from tests.aot.programs import graph_of


def compiled(f: Callable[..., Any], *inputs: Tensor) -> Compiled:
    return compile_graph(graph_of(f, len(inputs)), inputs, fw_compiler=interpret)


def fresh(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]


def same_as_eager(f: Callable[..., Any], *inputs: Tensor, falls_back: bool = False) -> tuple:
    """Run both ways; compare outputs, inputs afterwards and gradients. Gives the compiled outputs."""
    ours, theirs = fresh(inputs), fresh(inputs)
    c = compiled(f, *inputs)
    assert (c.fallback_reason is not None) == falls_back, c.fallback_reason
    torch.manual_seed(7)
    expected = f(*theirs)
    torch.manual_seed(7)
    found = c(*ours)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for a, b in zip((*expected, *theirs), (*found, *ours), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert a.stride() == b.stride()
        assert a.requires_grad == b.requires_grad
        assert a.is_leaf == b.is_leaf
        assert (a._base is None) == (b._base is None)
    wanted = [o for o in expected if o.requires_grad and not o.is_leaf]
    if wanted:
        torch.autograd.backward([o.sum() for o in wanted])
        torch.autograd.backward([o.sum() for o in found if o.requires_grad and not o.is_leaf])
        for a, b in zip(theirs, ours, strict=True):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                torch.testing.assert_close(a.grad, b.grad)
    return found


def test_write_to_base_seen_through_a_captured_view() -> None:  # pt#198095
    t = torch.arange(24.0).view(4, 6)
    ta = t[1:]
    c = compiled(lambda t, ta: (t.add_(100), ta[0])[1], t, ta)
    t2 = torch.arange(24.0).view(4, 6)
    assert c(t2, t2[1:])[0].tolist() == [106, 107, 108, 109, 110, 111]


def test_unsqueeze_in_place_then_write_outside() -> None:  # pt#90507
    x = torch.ones(3, requires_grad=True)
    (o,) = compiled(lambda x: (x * 2).unsqueeze_(0), x)(x)
    assert o._base is None
    o.mul_(2)
    assert o.tolist() == [[4, 4, 4]]
    o.sum().backward()
    assert x.grad.tolist() == [4, 4, 4]


def test_second_derivative_taken_outside() -> None:  # pt#91469
    for at, expected in ((0.5, 3.0), (1.5, 27.0)):
        x = torch.full((1,), at, requires_grad=True)
        (y,) = compiled(lambda x: (x**4).sum(), x)(x)
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        (gg,) = torch.autograd.grad(g.sum(), x)
        assert gg.item() == pytest.approx(expected)


def test_gradient_taken_inside() -> None:  # pt#183603
    def f(x: Tensor) -> Tensor:
        (g,) = torch.autograd.grad((x**4).sum(), x, create_graph=True)
        return g

    same_as_eager(f, torch.tensor([0.5, 1.5], requires_grad=True))


def test_autocast_off_inside_backward_outside() -> None:  # pt#179804
    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return x @ w

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        (y,) = compiled(f, x, w)(x, w)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(3, 5) @ w.detach().t())


def test_ambient_autocast() -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    x2, w2 = fresh((x, w))

    def f(x: Tensor, w: Tensor) -> tuple:
        return torch.relu(x @ w) + 1, torch.softmax(x @ w, -1)

    with torch.autocast("cpu", torch.bfloat16):
        found = compiled(f, x, w)(x, w)
    with torch.autocast("cpu", torch.bfloat16):
        expected = f(x2, w2)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    sum(t.float().sum() for t in found).backward()
    sum(t.float().sum() for t in expected).backward()
    torch.testing.assert_close(x.grad, x2.grad, rtol=0, atol=0)


def test_dropout_draws_eagers_mask() -> None:  # pt#113169
    drop = torch.nn.functional.dropout
    same_as_eager(
        lambda x: (drop(x, 0.1), torch.rand(3), drop(x * 2, 0.5)), torch.randn(5, 7, requires_grad=True)
    )


def test_unused_draws_still_advance_the_generator() -> None:
    def f(x: Tensor) -> Tensor:
        torch.rand(4)
        return torch.nn.functional.dropout(x, 0.5)

    same_as_eager(f, torch.randn(6, 6))


def test_write_to_a_step_of_a_non_leaf() -> None:  # pt#93363
    def f(x: Tensor) -> Tensor:
        a = x * 3
        a[0::2].mul_(2)
        return a

    (a,) = same_as_eager(f, torch.randn(5, 3, requires_grad=True))
    assert a.grad_fn is not None


def test_copy_through_a_view_of_another_dtype() -> None:  # pt#136064
    same_as_eager(
        lambda x, y: x.view(torch.float32).copy_(y), torch.zeros(4, dtype=torch.int32), torch.randn(4)
    )


def test_index_add_through_a_permuted_view() -> None:  # pt#111133
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.t().index_add_(0, torch.tensor([0, 2]), y)
        return x

    x = torch.zeros(5, 3).t().contiguous().t()
    c = compiled(f, x, torch.ones(2, 5))
    (out,) = c(x, torch.ones(2, 5))
    assert out.stride() == (1, 5)
    assert out.sum() == 10


def test_custom_operator_that_writes_two_views_of_one_tensor() -> None:  # pt#153389
    @torch.library.custom_op("graphlift_tests::two", mutates_args=("a", "b"))
    def two(a: Tensor, b: Tensor) -> None:
        a.add_(1)
        b.mul_(2)

    def f(x: Tensor) -> Tensor:
        two(x[:3], x[1:])
        return x * 1

    same_as_eager(f, torch.randn(4))


def test_complex_views_chain() -> None:  # pt#122457
    def f(x: Tensor) -> Tensor:
        torch.view_as_real(torch.view_as_complex(x).mul_(2j)).add_(1)
        return x

    same_as_eager(f, torch.randn(3, 2))


def test_write_to_an_input_then_backward() -> None:  # pt#128035
    leaf = torch.randn(4, requires_grad=True)
    x = leaf * 1
    c = compiled(lambda x: x.mul_(2).sin(), x)
    c(x)[0].sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * torch.cos(2 * leaf.detach()))


def test_write_to_a_leaf_under_no_grad() -> None:  # pt#90844
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.add_(1)
        return x * 2

    same_as_eager(f, torch.randn(3, requires_grad=True))


def test_write_to_a_leaf_is_eagers_error() -> None:
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        compiled(lambda x: x.add_(1), x)(x)


def test_enable_grad_inside_no_grad() -> None:  # pt#114338
    def f(x: Tensor) -> tuple:
        a = x * 2
        with torch.enable_grad():
            b = x * 2
        return a, b

    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        a, b = compiled(f, x)(x)
    assert (a.requires_grad, b.requires_grad) == (False, True)
    b.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_requires_grad_on_an_intermediate() -> None:  # pt#123713
    def f(x: Tensor) -> tuple:
        y = x.detach() * 2
        y.requires_grad_()
        return y, y * 3

    g = torch.fx.Graph()
    p = g.placeholder("x")
    y = g.call_function(torch.mul, (g.call_method("detach", (p,)), 2))
    y = g.call_method("requires_grad_", (y,))
    g.output((y, g.call_function(torch.mul, (y, 3))))
    x = torch.randn(3)
    c = compile_graph(torch.fx.GraphModule(torch.nn.Module(), g), [x], fw_compiler=interpret)
    assert c.fallback_reason
    y, z = c(x)
    assert y.is_leaf and y.requires_grad
    z.sum().backward()
    assert y.grad.tolist() == [3, 3, 3]


def test_detach_in_place() -> None:  # pt#176854
    def f(x: Tensor) -> tuple:
        y = x * 2
        y.detach_()
        return y, x.sin()

    same_as_eager(f, torch.randn(3, requires_grad=True))


def test_loss_and_its_detached_alias() -> None:  # pt#100348
    def f(x: Tensor) -> tuple:
        loss = (x * 2).sum()
        return loss, loss.detach()

    loss, value = same_as_eager(f, torch.randn(3, requires_grad=True))
    assert loss is not value
    assert loss.untyped_storage()._cdata == value.untyped_storage()._cdata


def test_same_tensor_twice() -> None:  # pt#183604
    x = torch.randn(3, requires_grad=True)
    c = compiled(lambda a, b: a * 2 + b.sin(), x, x)
    c(x, x)[0].sum().backward()
    torch.testing.assert_close(x.grad, 2 + x.detach().cos())


def test_write_inside_a_custom_function() -> None:  # pt#180642
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2

    (out,) = same_as_eager(lambda x: Double.apply(x * 1), torch.randn(3, requires_grad=True))
    assert out.output_nr == 0


@pytest.mark.filterwarnings("ignore:var_mean")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.var_mean(x[:0]),  # pt#197108
        lambda x: torch.empty_strided((16, 1), (1, 16)).fill_(1),  # pt#130394
        lambda x: torch.nn.functional.interpolate(x.permute(0, 3, 1, 2), scale_factor=2.0),  # pt#183771
        lambda x: x.to(memory_format=torch.channels_last).as_strided((2, 2), (3, 1)) + 1,  # pt#174963
        lambda x: x[0, 0, 0, 0].mean(0),  # pt#102546
        lambda x: (x + 1j) + (x + 1j).conj(),  # pt#148950
        lambda x: (x[0, 0] @ x[0, 1]).to(torch.bfloat16) + x[0, 0, 0].bfloat16(),  # pt#181568
        lambda x: (x * 100).to(torch.uint8),
    ],
)
def test_values_and_strides(f: Callable[[Tensor], Any]) -> None:
    same_as_eager(f, torch.randn(2, 4, 4, 4))


def test_uint8_wraps() -> None:  # pt#105264
    same_as_eager(lambda x: (x + x).to(torch.int16), torch.tensor([128], dtype=torch.uint8))


def test_half_times_float_raises() -> None:  # pt#177630
    inputs = torch.randn(2, 2).half(), torch.randn(2, 2)
    with pytest.raises(RuntimeError, match="dtype"):
        compiled(lambda a, b: a @ b, *inputs)(*inputs)


def test_argmin_of_nothing_raises() -> None:  # pt#95370
    with pytest.raises(IndexError):
        compiled(lambda a: a.argmin(0), torch.randn(0, 3))(torch.randn(0, 3))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_statistics(momentum: float | None) -> None:  # pt#194504
    torch.manual_seed(0)
    ours = torch.nn.BatchNorm2d(3, momentum=momentum)
    theirs = torch.nn.BatchNorm2d(3, momentum=momentum)
    names = [n for n, _ in (*ours.named_parameters(), *ours.named_buffers())]

    def f(x: Tensor, *state: Tensor) -> Tensor:
        return torch.func.functional_call(ours, dict(zip(names, state, strict=True)), (x,))

    if momentum is None:  # the cumulative average reads the step count as a number, which capture breaks on

        def f(x: Tensor, *state: Tensor) -> Tensor:
            weight, bias, mean, var, count = state
            count.add_(1)
            return torch.nn.functional.batch_norm(x, mean, var, weight, bias, True, 0.5)

    state = [t for _, t in (*ours.named_parameters(), *ours.named_buffers())]
    x = torch.randn(4, 3, 5, 5, requires_grad=True)
    x2 = x.detach().clone().requires_grad_()
    c = compiled(f, x, *state)
    assert c.fallback_reason is None
    for _ in range(2):
        out = c(x, *state)[0]
        if momentum is None:
            with torch.no_grad():
                theirs.num_batches_tracked.add_(1)
            args = (theirs.running_mean, theirs.running_var, theirs.weight, theirs.bias, True, 0.5)
            expected = torch.nn.functional.batch_norm(x2, *args)
        else:
            expected = theirs(x2)
        torch.testing.assert_close(out, expected, rtol=0, atol=0)
        out.square().sum().backward()
        expected.square().sum().backward()
    for a, b in zip(theirs.state_dict().values(), ours.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    torch.testing.assert_close(x.grad, x2.grad, rtol=0, atol=0)
    torch.testing.assert_close(theirs.weight.grad, ours.weight.grad, rtol=0, atol=0)
