"""Reported programs about autograd: grad modes, hooks, custom functions, second derivatives, functional transforms."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.cases.case import Compile, case


class ZeroGradient(torch.autograd.Function):
    """The identity, whose gradient is declared to be zero."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


@case("pt#193279")
def test_functional_gradient_of_a_custom_function(compile: Compile):
    region = compile(lambda x: torch.func.grad(lambda v: ZeroGradient.apply(v).sum())(x))
    out = region(torch.tensor([1.0, 2.0]))
    assert out.tolist() == [0, 0]
    return out


@case("pt#193279")
def test_gradient_of_a_custom_function(compile: Compile):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    region = compile(lambda x: ZeroGradient.apply(x) + x)
    out = region(x)
    out.sum().backward()
    assert x.grad.tolist() == [1, 1]
    return out, x.grad


@case("pt#91469", "pt#183603")
def test_second_derivative_outside_first_inside(compile: Compile):
    x = torch.tensor([0.5, 1.5], requires_grad=True)

    @compile
    def region(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad((x**4).sum(), x, create_graph=True)
        return gradient

    gradient = region(x)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, torch.tensor([3.0, 27.0]))
    return gradient, second.clone()


class Identity(nn.Module):
    """A linear layer that changes nothing, one level down."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def input_gradient(module: nn.Module) -> Tensor:
    x = torch.ones(1, 2, requires_grad=True)
    module(x).sum().backward()
    return x.grad


@case("pt#117265")
def test_backward_hook_added_after_the_first_call(compile: Compile):
    module = Identity()
    compiled = compile(module)
    before = input_gradient(compiled)
    handle = module.linear.register_full_backward_hook(lambda m, grad_in, grad_out: (grad_in[0] * 2,))
    hooked = input_gradient(compiled)
    handle.remove()
    after = input_gradient(compiled)
    assert [g.flatten().tolist() for g in (before, hooked, after)] == [[1, 1], [2, 2], [1, 1]]
    return before, hooked, after, module.linear.weight.grad


@case("pt#115750")
def test_backward_pre_hook_added_after_the_first_call(compile: Compile):
    module = Identity()
    compiled = compile(module)
    before = input_gradient(compiled)
    module.linear.register_full_backward_pre_hook(lambda m, grad_out: (grad_out[0] * 2,))
    hooked = input_gradient(compiled)
    assert [g.flatten().tolist() for g in (before, hooked)] == [[1, 1], [2, 2]]
    return before, hooked, module.linear.weight.grad


@case("pt#115750")
def test_backward_hook_on_the_compiled_module(compile: Compile):
    module = nn.Linear(2, 2, bias=False)
    nn.init.eye_(module.weight)
    compiled = compile(module)
    before = input_gradient(compiled)
    module.register_full_backward_hook(lambda m, grad_in, grad_out: (grad_in[0] * 2,))
    hooked = input_gradient(compiled)
    assert [g.flatten().tolist() for g in (before, hooked)] == [[1, 1], [2, 2]]
    return before, hooked


@case("pt#117758")
def test_forward_hook_added_after_the_first_call(compile: Compile):
    module, calls = Identity(), []
    compiled = compile(module)
    x = torch.ones(1, 2)
    first = compiled(x)

    def hook(m: nn.Module, args: tuple, output: Tensor) -> Tensor:
        calls.append(1)
        return output * 3

    module.linear.register_forward_hook(hook)
    second, third = compiled(x), compiled(x)
    assert len(calls) == 2 and third.tolist() == [[3, 3]]
    return first, second, third, calls


@case("pt#117758")
def test_every_kind_of_forward_hook(compile: Compile):
    module = Identity()
    compiled = compile(module)
    x, log = torch.ones(1, 2), []
    results = [compiled(x)]
    handles = [
        module.linear.register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
        module.register_forward_hook(lambda m, args, out: out * 2),
        module.register_forward_pre_hook(lambda m, args, kwargs: log.append(len(kwargs)), with_kwargs=True),
        torch.nn.modules.module.register_module_forward_hook(
            lambda m, args, out: log.append(type(m).__name__)
        ),
    ]
    for handle in handles:
        results.append(compiled(x))
        handle.remove()
    results.append(compiled(x))
    return results, log


@case("pt#114338")
def test_equal_expressions_in_different_grad_modes(compile: Compile):
    x = torch.ones(2, requires_grad=True)

    @compile
    def region(x: Tensor) -> tuple[Tensor, Tensor]:
        plain = x * 2
        with torch.enable_grad():
            tracked = x * 2
        return tracked, plain

    with torch.no_grad():
        tracked, plain = region(x)
    assert (tracked.requires_grad, plain.requires_grad) == (True, False)
    tracked.sum().backward()
    return tracked, plain, x.grad


@case("pt#114338")
def test_grad_mode_changes_of_every_kind(compile: Compile):
    x = torch.ones(2, requires_grad=True)

    @torch.no_grad()
    def helper(x: Tensor) -> Tensor:
        return x * 3

    @compile
    def region(x: Tensor) -> list[Tensor]:
        outs = [x + 1, helper(x)]
        with torch.set_grad_enabled(False):
            outs.append(x + 2)
            with torch.enable_grad():
                outs.append(x + 3)
        torch.set_grad_enabled(False)
        outs.append(x + 4)
        torch.set_grad_enabled(True)
        outs.append(x + 5)
        return outs

    outs = region(x)
    return outs, torch.is_grad_enabled()


@case("pt#123713")
def test_requires_grad_on_an_intermediate(compile: Compile):
    @compile
    def region(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y.requires_grad_()
        return y, y * 3

    y, z = region(torch.ones(2))
    assert y.is_leaf and y.requires_grad and z.requires_grad
    z.sum().backward()
    return y, z, y.grad


@case("pt#176854")
def test_detach_in_place(compile: Compile):
    x = torch.ones(2, requires_grad=True)

    @compile
    def region(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y.detach_()
        return y, y * x

    y, z = region(x)
    assert not y.requires_grad
    z.sum().backward()
    assert x.grad.tolist() == [2, 2]
    return y, z, x.grad


class DoubleInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient * 2


@case("pt#180642")
def test_in_place_inside_a_custom_function(compile: Compile):
    x = torch.ones(3, requires_grad=True)

    @compile
    def region(x: Tensor) -> Tensor:
        return DoubleInPlace.apply(x * 1)

    out = region(x)
    assert out.output_nr == 0 and out.tolist() == [2, 2, 2]
    out.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    return out, x.grad


@case("pt#136662")
def test_repeated_column_updates_under_functional_grad(compile: Compile):
    def loss(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y[:, 0] += x[:, 0]
        y[:, 0] += x[:, 0]
        y[:, 1] -= x[:, 1]
        y[:, 1] -= x[:, 1]
        return y.sum()

    region = compile(lambda x: torch.func.grad(loss)(x))
    out = region(torch.ones(2, 2))
    assert out.tolist() == [[2, -2], [2, -2]]
    return out


@case("pt#136662")
def test_repeated_column_updates(compile: Compile):
    x = torch.ones(2, 2, requires_grad=True)

    @compile
    def region(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for _ in range(2):
            y[:, 0] += x[:, 0]
            y[:, 1] -= x[:, 1] * x[:, 0]
        return y

    y = region(x)
    y.sum().backward()
    return y, x.grad


@case("pt#179804")
def test_autocast_off_inside_autocast(compile: Compile):
    x = torch.randn(4, 8)
    w1, w2 = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)

    @compile
    def region(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        hidden = x @ w1
        with torch.autocast("cpu", enabled=False):
            return hidden.float() @ w2

    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = region(x, w1, w2)
    out.square().sum().backward()
    assert out.dtype == w1.grad.dtype == w2.grad.dtype == torch.float32
    return out, w1.grad, w2.grad


LIBRARY = torch.library.Library("graphlift_gradients", "FRAGMENT")
LIBRARY.define("tripled(Tensor x) -> Tensor")
LIBRARY.impl("tripled", lambda x: 3 * x, "CPU")
LIBRARY.impl("tripled", torch.empty_like, "Meta")


@case("operators without an autograd kernel")
def test_what_the_kernel_of_an_operator_does_is_differentiated(compile: Compile):
    x, plain = torch.randn(4, requires_grad=True), torch.randn(4)
    region = compile(lambda x: torch.ops.graphlift_gradients.tripled(x.sin()).cos())
    out = region(x)
    out.sum().backward()
    return out, x.grad, region(plain)
