"""Autograd in captured code: custom functions, gradients taken inside, hooks, checkpoints, attributes of tensors."""

from __future__ import annotations

import functools
import traceback
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    noop_context_fn,
    set_checkpoint_early_stop,
)

import graphlift
from tests.capture.torch_program import real, seeded, torch_program
from tests.equality import assert_equal

G = real(3, 4, grad=True)
X = real(3, 4, seed=1)
W = real(4, 4, grad=True, seed=2)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.k * 3 + 0 * x, None


class STE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x.exp(), x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y = inputs
        e, _ = output
        ctx.save_for_backward(x, y, e)

    @staticmethod
    def backward(ctx, ge, gp):
        x, y, e = ctx.saved_tensors
        gx = gy = None
        if ctx.needs_input_grad[0]:
            gx = ge * e + gp * y
        if ctx.needs_input_grad[1]:
            gy = gp * x * 2
        return gx, gy


class NonDiff(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s, i = x.sort(-1)
        ctx.mark_non_differentiable(i)
        ctx.save_for_backward(i)
        return s, i

    @staticmethod
    def backward(ctx, gs, gi):
        (i,) = ctx.saved_tensors
        return torch.zeros_like(gs).scatter(-1, i, gs) * 2


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 5


class NoneGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, g):
        return g, None


class NoMaterialize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        if a is None:
            return b * 30
        if b is None:
            return a * 20
        return a * 2 + b * 3


class Ident(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return -g


class ViewF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, g):
        return g.view(3, 4) * 2


class ModArg(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, act=None):
        ctx.save_for_backward(x, w)
        ctx.act = act
        return act(x @ w) if act else x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g, None


class GradMode(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        assert not torch.is_grad_enabled()
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            z = (y * y).sum()
        (g,) = torch.autograd.grad(z, y)
        ctx.save_for_backward(g)
        return z.detach()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g


class WithAttrTensor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.detach() * 2
        ctx.shape = x.shape
        return x.sum(0)

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape) * ctx.y


class OnceDiff(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class BackPrint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        if g.sum() > 0:
            return g * 7
        return g * 2


class ListOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *xs):
        return tuple(x * 2 for x in xs)

    @staticmethod
    def backward(ctx, *gs):
        return tuple(g * 5 for g in gs)


class AmpF(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0]


class Inherit(Scale):
    pass


class Jvp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos() * 2


@torch_program(G)
def test_fn_scale(x):
    return Scale.apply(x + 1, 3) * 2


@torch_program(G)
def test_fn_inherit(x):
    return Inherit.apply(x + 1, 3) * 2


@torch_program(G)
def test_fn_leaf(x):
    return Scale.apply(x, 3)


@torch_program(X)
def test_fn_no_grad_input(x):
    return Scale.apply(x, 3)


@torch_program(G)
def test_fn_under_no_grad(x):
    with torch.no_grad():
        y = Scale.apply(x, 3)
    return y, y.requires_grad


@torch_program(G)
def test_fn_ste(x):
    return STE.apply(x * 3).sum(), x * 2


@torch_program(G, W)
def test_fn_split(x, w):
    return Split.apply(x @ w, x)


@torch_program(G, X)
def test_fn_split_const(x, y):
    return Split.apply(x, y)[1]


@torch_program(G)
def test_fn_nondiff(x):
    s, i = NonDiff.apply(x * 2)
    return s, i, i.requires_grad


@torch_program(G)
def test_fn_dirty(x):
    y = x * 2
    z = Dirty.apply(y)
    return z, z is y, y * 2


@torch_program(G, W)
def test_fn_none_grad(x, y):
    return NoneGrad.apply(x[:, :3], y[:3, :3])


@torch_program(G, breaks="unsupported-call")
def test_fn_nomat(x):
    return NoMaterialize.apply(x)[0]


@torch_program(G, breaks="unsupported-call")
def test_fn_nomat2(x):
    return NoMaterialize.apply(x)[1] + 1


@torch_program(G)
def test_fn_ident(x):
    y = Ident.apply(x)
    return y, y is x


@torch_program(G)
def test_fn_view(x):
    return ViewF.apply(x * 2)


@torch_program(G)
def test_fn_view_leaf(x):
    return ViewF.apply(x) * 1


@torch_program(G, W)
def test_fn_callable_arg(x, w):
    return ModArg.apply(x, w, torch.relu)


@torch_program(G, W)
def test_fn_none_arg(x, w):
    return ModArg.apply(x, w)


@torch_program(G)
def test_fn_grad_inside(x):
    return GradMode.apply(x * 2)


@torch_program(G)
def test_fn_attr_tensor(x):
    return WithAttrTensor.apply(x * 2)


@torch_program(G)
def test_fn_once(x):
    return OnceDiff.apply(x * 2)


@torch_program(G, breaks="data-dependent-branch")
def test_fn_back_branch(x):
    return BackPrint.apply(x * 2)


@torch_program(G, W)
def test_fn_list(x, w):
    return ListOut.apply(x * 2, w + 1)


@torch_program(G, X)
def test_fn_list_mixed(x, w):
    return ListOut.apply(x * 2, w + 1)


@torch_program(G)
def test_fn_amp(x):
    return AmpF.apply(x * 2)


@torch_program(G)
def test_fn_jvp(x):
    return Jvp.apply(x * 2)


@torch_program(G)
def test_fn_twice(x):
    for _ in range(3):
        x = Scale.apply(x, 2)
    return x


@torch_program(G)
def test_fn_alias_apply(x):
    f = Scale.apply
    return f(x, 2)


class FnMod(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return STE.apply(self.lin(x)).relu()


@torch_program(seeded(FnMod), G)
def test_fn_module(m, x):
    return m(x)


@torch_program(G, breaks="print-or-io")
def test_fn_print_break(x):
    y = Scale.apply(x, 2)
    print(end="")
    return Scale.apply(y, 3)


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ValueError("no")


@torch_program(G, breaks="unsupported-call")
def test_fn_back_raises(x):
    return Raises.apply(x)


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


@torch_program(G, breaks="unsupported-call")
def test_fn_no_backward(x):
    return NoBackward.apply(x)


class WrongCount(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        return g


@torch_program(G, X, breaks="unsupported-call")
def test_fn_wrong_count(x, y):
    return WrongCount.apply(x, y)


class BackSide(torch.autograd.Function):
    calls = []

    @staticmethod
    def forward(ctx, x):
        BackSide.calls.append("f")
        return x * 2

    @staticmethod
    def backward(ctx, g):
        BackSide.calls.append("b")
        return g


@torch_program(G, breaks="unsupported-call")
def test_fn_side_effects(x):
    BackSide.calls.clear()
    y = BackSide.apply(x)
    n = len(BackSide.calls)
    BackSide.calls.clear()
    return y, n


# grads
@torch_program(G)
def test_autograd_grad(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x)
    return g


@torch_program(G)
def test_autograd_grad_create(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return g.pow(2).sum()


@torch_program(G, W)
def test_autograd_grad_many(x, w):
    y = torch.tanh(x @ w)
    gx, gw = torch.autograd.grad(y, (x, w), grad_outputs=torch.ones_like(y), retain_graph=True)
    return gx, gw, y


@torch_program(G, W)
def test_autograd_grad_unused(x, w):
    return torch.autograd.grad((x * 2).sum(), [x, w], allow_unused=True)


@torch_program(X)
def test_autograd_grad_local(x):
    x = x.detach().clone().requires_grad_(True)
    y = x.sin().sum()
    return torch.autograd.grad(y, x)[0], x.requires_grad


@torch_program(G, breaks="backward-call")
def test_backward_inside(x):
    y = (x * 2).sum()
    y.backward()
    return y.detach()


@torch_program(G, breaks="backward-call")
def test_backward_inside_grad(x):
    (x * 2).sum().backward()
    return x.grad * 2


@torch_program(X, breaks="backward-call")
def test_backward_local(x):
    p = x.clone().requires_grad_()
    (p**2).sum().backward()
    return p.grad


@torch_program(G, W, breaks="backward-call")
def test_torch_autograd_backward(x, w):
    torch.autograd.backward([(x @ w).sum(), x.sum()])
    return x.grad


@torch_program(X)
def test_requires_grad_(x):
    y = (x * 2).requires_grad_()
    return y * 3, y.is_leaf


@torch_program(X)
def test_requires_grad_input(x):
    x.requires_grad_()
    return x * 3


@torch_program(G)
def test_requires_grad_false(x):
    y = x.detach()
    y.requires_grad_(False)
    return y * 3


@torch_program(G)
def test_requires_grad_already(x):
    x.requires_grad_()
    return x * 3


@torch_program(X)
def test_requires_grad_set(x):
    y = x * 2
    y.requires_grad = True
    return y * 3


@torch_program(G, breaks="raises")
def test_requires_grad_nonleaf_error(x):
    y = x * 2
    y.requires_grad_(False)
    return y


@torch_program(G)
def test_detach_(x):
    y = x * 2
    y.detach_()
    return y * 3, y.requires_grad


@torch_program(G)
def test_detach(x):
    return x.detach() * 2 + x


@torch_program(G)
def test_data_read(x):
    return x.data * 2, x.data.requires_grad


@torch_program(G)
def test_data_write(x):
    x.data = x.data * 2
    return x * 3


@torch_program(X)
def test_data_write_plain(x):
    x.data = torch.ones(2, 5)
    return x * 3


@torch_program(G)
def test_data_inplace(x):
    x.data.mul_(2)
    return x * 3


@torch_program(G)
def test_data_fresh(x):
    y = x * 2
    y.data = torch.zeros(3, 4)
    return y + 1


@torch_program(X)
def test_data_to_other(x):
    y = torch.empty(0)
    y.data = x
    y.add_(1)
    return y, x


@torch_program(G)
def test_register_hook(x):
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y.sin()


@torch_program(G, breaks="unsupported-call")
def test_register_hook_input(x):
    x.register_hook(lambda g: g * 10)
    return x.sin()


@torch_program(G)
def test_register_hook_remove(x):
    y = x * 2
    h = y.register_hook(lambda g: g * 10)
    h.remove()
    return y.sin()


@torch_program(G, breaks="unsupported-call")
def test_retain_grad(x):
    y = x * 2
    y.retain_grad()
    return y.sin(), y


@torch_program(G)
def test_grad_read(x):
    if x.grad is None:
        return x * 2
    return x * 3


def with_grad():
    x = G()
    x.grad = torch.ones(3, 4)
    return x


@torch_program(with_grad)
def test_grad_read_present(x):
    return x.grad * 2, x * 2


@torch_program(with_grad)
def test_grad_set_none(x):
    x.grad = None
    return x * 2


@torch_program(with_grad)
def test_grad_zero(x):
    x.grad.zero_()
    return x * 2


@torch_program(G)
def test_grad_set(x):
    x.grad = torch.ones_like(x) * 2
    return x * 2


@torch_program(G)
def test_grad_set_accum(x):
    x.grad = x.detach() * 2
    x.grad.add_(1)
    y = x.grad
    return y * 2


@torch_program(G, breaks="unsupported-call")
def test_post_accumulate(x):
    x.register_post_accumulate_grad_hook(lambda p: None)
    return x * 2


# checkpoint
def body(x, w):
    return torch.tanh(x @ w).sin()


@torch_program(G, W)
def test_checkpoint(x, w):
    return checkpoint(body, x, w, use_reentrant=False) + 1


@torch_program(G, W)
def test_checkpoint_reentrant(x, w):
    return checkpoint(body, x, w, use_reentrant=True) + 1


@pytest.mark.parametrize("action", ["always", "ignore", "error"])
def test_checkpoint_that_torch_warns_of(action):
    steps, graphs = [], []

    def run(x, w):
        steps.append("before")
        return checkpoint(body, x * 2, w) + checkpoint(body, x, w)

    def outcome(fn):
        steps.clear()
        x, w = G(), W()
        lines = []
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter(action)
            try:
                fn(x, w).sum().backward()
            except UserWarning as error:
                lines = [
                    f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__
                ][-1:]
        return x.grad, w.grad, lines, list(steps), [(str(s.message), s.filename, s.lineno) for s in seen]

    compiled = graphlift.compile(run, backend=lambda gm, _: graphs.append(gm) or gm.forward, fullgraph=True)
    for _ in range(2):
        assert_equal(outcome(compiled), outcome(run))
    assert len(graphs) == 1


def dropbody(x, w):
    return F.dropout(x @ w, 0.5).sin()


@torch_program(G, W)
def test_checkpoint_dropout(x, w):
    return checkpoint(dropbody, x, w, use_reentrant=False) * 2


@torch_program(G, W)
def test_checkpoint_no_preserve(x, w):
    return checkpoint(body, x, w, use_reentrant=False, preserve_rng_state=False)


@torch_program(G, W, breaks="unsupported-call")
def test_checkpoint_draws_again(x, w):
    return checkpoint(dropbody, x, w, use_reentrant=False, preserve_rng_state=False)


@torch_program(G, W)
def test_checkpoint_reentrant_of_reentrant(x, w):
    return checkpoint(
        lambda a: checkpoint(dropbody, a, w, use_reentrant=True) * 2, x, use_reentrant=True
    ), x * 2


@torch_program(G, W)
def test_checkpoint_reentrant_results(x, w):
    return checkpoint(lambda a: (a @ w, a * 2, 3, (a > 0)), x, use_reentrant=True)


@torch_program(X, W, breaks="unsupported-call")
def test_checkpoint_reentrant_without_gradients(x, w):
    return checkpoint(lambda a: a @ w, x, use_reentrant=True)


@torch_program(G, X, breaks="unsupported-call")
def test_checkpoint_reentrant_result_without_gradient(x, y):
    return checkpoint(lambda a, b: (a * 2, b * 2), x, y, use_reentrant=True)


@torch_program(G, breaks="unsupported-call")
def test_checkpoint_reentrant_view(x):
    return checkpoint(lambda a: (a * 2).view(-1), x, use_reentrant=True)


@torch_program(G, W)
def test_checkpoint_contexts(x, w):
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    return checkpoint(body, x, w, use_reentrant=False, context_fn=contexts), checkpoint(
        body, x, w, use_reentrant=False, context_fn=noop_context_fn
    )


@torch_program(G, W)
def test_checkpoint_early_stop(x, w):
    with set_checkpoint_early_stop(False):
        return checkpoint(body, x, w, use_reentrant=False)


@torch_program(G)
def test_checkpoint_closure(x):
    k = 3

    def f(a):
        return (a * k).sin()

    return checkpoint(f, x, use_reentrant=False)


class CkptMod(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.d = nn.Dropout(0.3)
        self.b = nn.Linear(4, 4)

    def block(self, x):
        return self.d(torch.relu(self.a(x)))

    def forward(self, x):
        x = checkpoint(self.block, x, use_reentrant=False)
        return self.b(x)


@torch_program(seeded(CkptMod), X)
def test_checkpoint_module(m, x):
    return m(x)


@torch_program(seeded(CkptMod), X)
def test_checkpoint_no_grad(m, x):
    with torch.no_grad():
        return m(x)


@torch_program(seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh())), X)
def test_checkpoint_sequential(m, x):
    return checkpoint_sequential(m, 2, x, use_reentrant=False)


@torch_program(seeded(CkptMod), X)
def test_checkpoint_submodule(m, x):
    return checkpoint(m.a, x, use_reentrant=False)


@torch_program(G, W)
def test_checkpoint_kwargs(x, w):
    return checkpoint(body, x=x, w=w, use_reentrant=False)


@torch_program(G, W)
def test_checkpoint_tuple(x, w):
    a, b = checkpoint(lambda x, w: (x @ w, x + 1), x, w, use_reentrant=False)
    return a.sum() + b.sum()


# higher
@torch_program(G)
def test_hessian_like(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    return h


@torch_program(G)
def test_functional_jacobian(x):
    return torch.autograd.functional.jacobian(lambda t: (t**2).sum(0), x)


@torch_program(G, breaks="unsupported-call")
def test_saved_hooks(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t * 2):
        return (x * x).sum()


@torch_program(G, breaks="unsupported-call")
def test_save_on_cpu(x):
    with torch.autograd.graph.save_on_cpu():
        return (x * x).sum()


@torch_program(G, breaks="grad-fn-read")
def test_grad_fn(x):
    y = x * 2
    return y.grad_fn is not None, y.is_leaf


@torch_program(G)
def test_is_grad(x):
    return torch.is_grad_enabled(), x.requires_grad, (x * 2).requires_grad, x.detach().is_leaf


@torch_program(X, breaks="unsupported-attribute")
def test_version(x):
    a = x._version
    x.add_(1)
    return x, x._version - a


@torch_program(G, breaks="raises")
def test_inplace_leaf_error(x):
    x.add_(1)
    return x


@torch_program(G)
def test_no_grad_param_update(x):
    with torch.no_grad():
        x.add_(1).mul_(2)
        x -= 0.1 * x
    return x * 2


@torch_program(G)
def test_gradient_scale(x):
    return x.detach() + (x - x.detach()) * 0.1


@torch_program(G)
def test_variable(x):
    return torch.autograd.Variable(x) * 2


@torch_program(X)
def test_variable_rg(x):
    return torch.autograd.Variable(x, requires_grad=True) * 2


@torch_program(X)
def test_tensor_factory_rg(x):
    w = torch.ones(4, requires_grad=True)
    return x * w


@torch_program(X, breaks="backward-call")
def test_tensor_factory_rg_backward(x):
    w = torch.ones(4, requires_grad=True)
    (x * w).sum().backward()
    return w.grad


@torch_program(X)
def test_parameter_made(x):
    p = nn.Parameter(torch.ones(4))
    return x * p, type(p).__name__


@torch_program(G)
def test_clone_preserve(x):
    return x.clone(memory_format=torch.contiguous_format) * 2


@torch_program(G)
def test_grad_of_grad_penalty(x):
    out = (x.sin() * 2).sum()
    g = torch.autograd.grad(
        outputs=out,
        inputs=x,
        grad_outputs=torch.ones_like(out),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    return ((g.norm(2, dim=1) - 1) ** 2).mean()


@torch_program(G, breaks="backward-call")
def test_set_materialize(x):
    return x.sum().backward(), x.grad


@torch_program(G)
def test_unbind_views(x):
    a, b, c = x.unbind(0)
    return a * b + c


@torch_program(seeded(lambda: nn.Linear(4, 4)), X)
def test_inner_steps_on_weights_in_a_dict(m, x):
    """The gradients of what a view of a dictionary gives, of parameters and then of tensors computed of them."""
    weights = dict(m.named_parameters())
    for _ in range(2):
        loss = F.linear(x, weights["weight"], weights["bias"]).pow(2).mean()
        grads = torch.autograd.grad(loss, weights.values(), create_graph=True)
        weights = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), grads, strict=True)}
    (again,) = torch.autograd.grad(outputs=loss, inputs=iter([m.bias]), retain_graph=True)
    return F.linear(x, weights["weight"], weights["bias"]).mean(), again
