"""What backwards and hooks look at when autograd calls them, which may have changed since; and functions made or called in odd places.

In: programs whose backward uses variables of theirs. Out: results and gradients, as eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import graphlift


class Mapped(Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return Fivefold.apply(grad)

    @staticmethod
    def vmap(info, in_dims, x):
        return x * 3, 0


class Fivefold(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * 5

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, scales):
        ctx.scales = scales
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scales[0], None


def made_inside(x):
    def scale(t):
        return t * 3

    class Tripled(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return scale(x)

        @staticmethod
        def backward(ctx, grad):
            return scale(grad) + ctx.saved_tensors[0]

    return Tripled.apply(x) + 1


def made_inside_and_not_used(x):
    return torch.masked.norm(x, 2.0, 0, mask=x > 0)


def returned_too(x):
    class Doubled(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 5

    return Doubled.apply(x), Doubled._backward_cls._forward_cls is Doubled


def of_a_class(x):
    k = 2

    class Late(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * k

    y = Late.apply(x)
    k = 5
    return y


def of_a_class_attribute(x):
    class Late(Function):
        scale = 2

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * Late.scale

    y = Late.apply(x)
    Late.scale = 5
    return y


def counted(x):
    count = 0

    class Counted(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            nonlocal count
            count += 1
            return grad * count

    y = Counted.apply(x)
    return y, lambda: count


def of_a_context(x):
    scales = [3]
    y = Scaled.apply(x, scales)
    scales[0] = 9
    return y


def of_a_hook(x):
    k = 2
    y = x * 1
    y.register_hook(lambda grad: grad * k)
    k = 5
    return y


def of_hooks_in_a_loop(x):
    for i in range(3):
        x = x * 1
        x.register_hook(lambda grad: grad * (i + 1))
    return x


def behind_a_break(x):
    k = 2
    y = x * 1
    y.register_hook(lambda grad: grad * k)
    graphlift.graph_break()
    z = y * 3
    k = 5
    return z


def through_defaults(x):
    for i in range(3):
        x = x * 1
        x.register_hook(lambda grad, i=i: grad * (i + 1))
    return x


def under_vmap(x):
    return torch.vmap(Mapped.apply)(x)


def under_vmap_and_grad(x):
    return torch.func.grad(lambda t: torch.vmap(Mapped.apply)(t).sum())(x) * x


def with_hooks_under_grad(x):
    def loss(t):
        y = t * 2
        y.register_hook(lambda grad: grad * 3)
        return y.sum()

    return torch.func.grad(loss)(x) * x


def in_a_backward(x):
    return Mapped.apply(x) * x


ONE_GRAPH = (made_inside, made_inside_and_not_used, through_defaults)
OTHERS = (
    *(returned_too, of_a_class, of_a_class_attribute, counted, of_a_context, of_a_hook, of_hooks_in_a_loop),
    *(behind_a_break, under_vmap, under_vmap_and_grad, with_hooks_under_grad, in_a_backward),
)


def _outcome(program: Callable[[Tensor], Any], twice: bool) -> Any:
    x = torch.arange(1.0, 4.0, requires_grad=True)
    result = program(x)
    y, *rest = result if isinstance(result, tuple) else (result,)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=twice)
    again = torch.autograd.grad(grad.sum(), x)[0].tolist() if grad.requires_grad else None
    return y.tolist(), grad.tolist(), again, [item() if callable(item) else item for item in rest]


@pytest.mark.parametrize("backend", ("eager", "auto"))
@pytest.mark.parametrize("program", (*ONE_GRAPH, *OTHERS), ids=lambda p: p.__name__)
def test_backward(program: Callable[[Tensor], Any], backend: str) -> None:
    compiled = graphlift.compile(program, backend=backend, fullgraph=program in ONE_GRAPH)
    for _ in range(2):
        assert _outcome(compiled, backend == "eager") == _outcome(program, backend == "eager")
