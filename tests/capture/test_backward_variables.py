"""What backwards and hooks look at when autograd calls them, which may have changed since; and functions made inside.

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


ONE_GRAPH = (made_inside, made_inside_and_not_used, through_defaults)
OTHERS = (
    *(returned_too, of_a_class, of_a_class_attribute, counted, of_a_context, of_a_hook, of_hooks_in_a_loop),
    behind_a_break,
)


def _outcome(program: Callable[[Tensor], Any]) -> Any:
    x = torch.arange(1.0, 4.0, requires_grad=True)
    result = program(x)
    y, *rest = result if isinstance(result, tuple) else (result,)
    (grad,) = torch.autograd.grad(y.sum(), x)
    return y.tolist(), grad.tolist(), [item() if callable(item) else item for item in rest]


@pytest.mark.parametrize("backend", ("eager", "auto"))
@pytest.mark.parametrize("program", (*ONE_GRAPH, *OTHERS), ids=lambda p: p.__name__)
def test_backward(program: Callable[[Tensor], Any], backend: str) -> None:
    compiled = graphlift.compile(program, backend=backend, fullgraph=program in ONE_GRAPH)
    for _ in range(2):
        assert _outcome(compiled) == _outcome(program)
