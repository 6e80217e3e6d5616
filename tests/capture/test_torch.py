"""Torch's Python side inside captured code: custom functions, legacy constructors, attributes of tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.capture.program import CountingBackend, program


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x.clamp(min=2) * k

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.k, None


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


@program()
def test_custom_function_without_gradients(x: Tensor):
    same = Same.apply(x)
    return Clamp.apply(x + 1, 3) + same, same is x, torch.is_grad_enabled()


def test_custom_function_with_gradients(compiler):
    def fn(x):
        return Clamp.apply(x * 2, 3) + 1

    x = torch.ones(3, requires_grad=True)
    compiler.compile(fn, backend="eager")(x).sum().backward()
    assert x.grad.tolist() == [6, 6, 6]


@program()
def test_legacy_constructors(x: Tensor):
    y = torch.autograd.Variable(x + 1)
    shape = torch.Tensor(2, 3).shape
    return y + torch.FloatTensor([1, 2, 2.5]) + torch.LongTensor([1, 2, 3]), torch.Tensor([[1, 2]]), shape


@program()
def test_tensor_attributes(x: Tensor):
    return x.data + 1, x.grad_fn, x.is_leaf, x.grad, hasattr(x, "own"), x.shape[0], x.ndim, x.device.type


def test_own_attribute_of_a_tensor(compiler):
    def fn(x):
        return x + (x.scale if hasattr(x, "scale") else 0)

    compiled = compiler.compile(fn, backend="eager")
    x = torch.ones(1)
    assert compiled(x).item() == 1
    x.scale = 4
    assert compiled(x).item() == 5


def test_leafness_is_guarded(compiler):
    def fn(x):
        return x * (2 if x.is_leaf else 3)

    compiled = compiler.compile(fn, backend="eager")
    leaf = torch.ones(1, requires_grad=True)
    assert compiled(leaf).item() == 2
    assert compiled(leaf * 1).item() == 3


def test_lstm_is_one_graph(compiler):
    model = nn.LSTM(3, 4).eval()
    backend = CountingBackend()
    compiled = compiler.compile(model, backend=backend)
    x = torch.randn(5, 2, 3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x)[0], model(x)[0])
    if compiler.name != "eager":
        assert len(backend.graphs) == 1


@program()
def test_new_of_a_size(x: Tensor):
    return x.new(x.shape).fill_(1) + x, x.new(2, 3).shape, x.new().shape


@program()
def test_custom_function_that_makes_noise(x: Tensor):
    return Clamp.apply(x.new(x.size()).zero_(), 2) + x


@program()
def test_type_by_legacy_name(x: Tensor):
    return x.type(torch.DoubleTensor) + 1, x.gt(1).type("torch.FloatTensor"), x.type(torch.int64), x.type()


@program()
def test_distributions(x: Tensor):
    normal = torch.distributions.Normal(x, x.exp(), validate_args=False)
    categorical = torch.distributions.Categorical(logits=x, validate_args=False)
    return normal.log_prob(x + 1), categorical.entropy(), categorical.probs, normal.rsample().shape
