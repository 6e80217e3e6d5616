"""Custom functions, checkpoints and transforms where they meet: nested, inside modules, with breaks and effects."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import graphlift
from tests.capture.torch_program import real, seeded, torch_program

G = real(3, 4, grad=True)
X = real(3, 4, seed=1)
W = real(4, 4, grad=True, seed=2)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


@torch_program(G)
def test_custom_function_under_grad(x):
    y = Cube.apply(x).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return g


@torch_program(G)
def test_custom_function_inplace_after(x):
    y = x * 1
    z = Cube.apply(y)
    y.add_(1)
    return z


@torch_program(G)
def test_custom_function_in_checkpoint(x):
    return checkpoint(lambda t: Cube.apply(t).sin(), x, use_reentrant=False)


class Grl(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg() * ctx.alpha, None


class GrlNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 2)

    def forward(self, x):
        f = self.a(x)
        return self.b(f), self.b(Grl.apply(f, 0.5))


@torch_program(seeded(GrlNet), X)
def test_gradient_reversal(m, x):
    return m(x)


class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return Cube.apply(x) * 2

    @staticmethod
    def backward(ctx, g):
        return Cube.apply(g)


@torch_program(G, breaks="unsupported-call")
def test_custom_function_nested(x):
    return Outer.apply(x)


W0 = torch.full((4,), 2.0)


class UsesGlobal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * W0

    @staticmethod
    def backward(ctx, g):
        return g * W0 * 3


@torch_program(G)
def test_custom_function_global_tensor(x):
    return UsesGlobal.apply(x)


class WithParam(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        ctx.has_bias = b is not None
        y = x @ w.t()
        return y if b is None else y + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gx = g @ w if ctx.needs_input_grad[0] else None
        gw = g.t() @ x if ctx.needs_input_grad[1] else None
        gb = g.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return gx, gw, gb


class LinF(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.l = nn.Linear(4, 3, bias=bias)

    def forward(self, x):
        return WithParam.apply(x, self.l.weight, self.l.bias).relu()


@torch_program(seeded(LinF), X)
def test_custom_linear(m, x):
    return m(x)


@torch_program(seeded(lambda: LinF(False)), G)
def test_custom_linear_no_bias(m, x):
    return m(x)


class BnCk(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        return checkpoint(self.bn, x, use_reentrant=False)


@torch_program(seeded(BnCk), G, breaks="unsupported-call")
def test_checkpoint_updates_statistics(m, x):
    return m(x)


@torch_program(G)
def test_checkpoint_nested(x):
    def inner(t):
        return t.sin()

    def outer(t):
        return checkpoint(inner, t * 2, use_reentrant=False).cos()

    return checkpoint(outer, x, use_reentrant=False)


@torch_program(G)
def test_hook_sees_all_uses(x):
    y = x * 2
    z = y.sin()
    y.register_hook(lambda g: g * 10)
    return z + y.cos()


@torch_program(G)
def test_hook_closure_tensor(x):
    y = x * 2
    k = x.detach().exp()
    y.register_hook(lambda g: g * k)
    return y.sin()


@torch_program(G)
def test_hook_returns_none(x):
    y = x * 2
    y.register_hook(lambda g: None)
    return y.sin()


@torch_program(X, breaks="print-or-io")
def test_attr_seen_after_break(x):
    y = x * 2
    y.tag = 3
    print(end="")
    return y.tag * y


@torch_program(G, breaks="print-or-io")
def test_grad_visible_after_break(x):
    x.grad = torch.ones_like(x)
    print(end="")
    return x.grad * 2


@torch_program(X, breaks="context-manager")
def test_mode_left_open_at_break(x):
    with torch.autograd.profiler.record_function("a"):
        y = x * 2
        print(end="")
        z = y * 2
    return z


@torch_program(X, breaks="context-manager")
def test_inference_left_open_at_break(x):
    with torch.inference_mode():
        y = x * 2
        print(end="")
        z = y * 2
    return z, z.is_inference()


@torch_program(lambda: torch.tensor([5]), real(3, 4))
def test_state_after_error(i, x):
    try:
        with torch.no_grad():
            F.embedding(i, x)
    except IndexError:
        pass
    return x * 2, torch.is_grad_enabled()


def _sq(x):
    return (x * x).sum(-1)


_compiled = {b: graphlift.compile(_sq, backend=b) for b in ("eager", "aot_eager", "auto")}


def outer_case(transform):
    def fn(x):
        return transform(_sq)(x)

    return fn


@torch_program(X)
def test_vmap_over_module(x):
    m = nn.functional.layer_norm
    return torch.vmap(lambda r: m(r, (4,)))(x)


@torch_program(seeded(lambda: nn.Linear(4, 2)), X)
def test_functional_call_grads(m, x):
    params = {k: v.detach().clone() for k, v in m.named_parameters()}

    def loss(p):
        return torch.func.functional_call(m, p, (x,)).pow(2).sum()

    return torch.func.grad(loss)(params)


@torch_program(X, breaks="unsupported-call")
def test_vmap_side_effect(x):
    seen = []
    y = torch.vmap(lambda r: (seen.append(1), r * 2)[1])(x)
    return y, seen


@torch_program(X)
def test_vmap_closure(x):
    k = x.sum()
    return torch.vmap(lambda r: r * k)(x)


@torch_program(X, breaks="raises")
def test_vmap_data_dependent(x):
    return torch.vmap(lambda r: r if r.sum() > 0 else -r)(x)


premade = torch.vmap(lambda r: r.sin())
pregrad = torch.func.grad(lambda t: t.sin().sum())


@torch_program(X)
def test_premade_transforms(x):
    return premade(x) + pregrad(x)


@torch_program(X, breaks="unsupported-call")
def test_vmap_inplace(x):
    def f(r):
        r.add_(1)
        return r * 2

    return torch.vmap(f)(x), x


@torch_program(G)
def test_grad_of_vmap(x):
    return torch.vmap(lambda r: (r**2).sum())(x).sum()


def _manhattan(a, b):
    return (a - b).abs().sum(-1)


@torch_program(seeded(lambda: nn.PairwiseDistance()), G, X, real(3, 4, seed=3))
def test_a_loss_that_calls_the_programs_functions(distance, a, b, c):
    scale = a.sum()
    losses = [
        F.triplet_margin_with_distance_loss(a, b, c, distance_function=f)
        for f in (distance, _manhattan, lambda x, y: (x * y).sum(-1) * scale)
    ]
    return losses


if hasattr(nn, "LinearCrossEntropyOptions"):
    _options = nn.LinearCrossEntropyOptions(batch_chunk_size=2)

    @torch_program(G, real(5, 4, grad=True, seed=3), lambda: torch.tensor([0, 1, 2]))
    def test_a_loss_with_options(x, weight, target):
        return F.linear_cross_entropy(x, weight, target, options=_options)
