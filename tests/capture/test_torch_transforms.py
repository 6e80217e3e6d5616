"""Transforms, TorchScript, custom operators, subclasses and modes in captured code."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

import graphlift
from tests.capture.torch_program import BACKENDS, real, seeded, torch_program

G = real(3, 4, grad=True)
X = real(3, 4, seed=1)
W = real(4, 4, grad=True, seed=2)


# torch.func
@torch_program(X)
def test_vmap(x):
    return torch.vmap(lambda r: r * 2 + r.sum())(x)


@torch_program(X, X)
def test_vmap_dims(x, y):
    return torch.vmap(torch.dot, in_dims=(1, 1))(x, y), torch.func.vmap(
        lambda a, b: a + b, in_dims=(0, None), out_dims=1
    )(x, y[0])


@torch_program(G)
def test_vmap_grad(x):
    return torch.vmap(lambda r: r.sin().sum())(x)


@torch_program(X)
def test_vmap_random(x):
    return torch.vmap(lambda r: r + torch.rand(4), randomness="different")(x)


@torch_program(X)
def test_vmap_chunk(x):
    return torch.vmap(lambda r: r * 2, chunk_size=2)(x)


@torch_program(X)
def test_func_grad(x):
    return torch.func.grad(lambda t: (t**2).sum())(x)


@torch_program(X)
def test_func_grad_aux(x):
    return torch.func.grad(lambda t: ((t**2).sum(), t + 1), has_aux=True)(x)


@torch_program(X)
def test_func_gav(x):
    return torch.func.grad_and_value(lambda t: (t**2).sum())(x)


@torch_program(X)
def test_func_grad_argnums(x):
    return torch.func.grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, x + 1)


@torch_program(X)
def test_vmap_of_grad(x):
    return torch.vmap(torch.func.grad(lambda r: r.pow(3).sum()))(x)


@torch_program(X)
def test_jvp(x):
    return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))


@torch_program(X)
def test_jacrev(x):
    return torch.func.jacrev(lambda t: t.sin().sum(0))(x)


@torch_program(X)
def test_jacfwd(x):
    return torch.func.jacfwd(lambda t: t.sin().sum(0))(x)


@torch_program(X)
def test_hessian(x):
    return torch.func.hessian(lambda t: (t**3).sum())(x[0])


@torch_program(seeded(lambda: nn.Linear(4, 4)), X)
def test_functional_call(m, x):
    return torch.func.functional_call(m, {"weight": torch.ones(4, 4)}, (x,))


@torch_program(seeded(lambda: nn.Linear(4, 4)), X)
def test_functional_call_all(m, x):
    return torch.func.functional_call(m, dict(m.named_parameters()), x)


@torch_program(seeded(lambda: nn.Linear(4, 4)), X)
def test_per_sample_grads(m, x):
    p = {k: v.detach() for k, v in m.named_parameters()}

    def loss(p, r):
        return torch.func.functional_call(m, p, (r,)).sum()

    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(p, x)


@torch_program(lambda: [seeded(lambda: nn.Linear(4, 4))(), seeded(lambda: nn.Linear(4, 4))()])
def test_stack_state(ms):
    p, b = torch.func.stack_module_state(ms)
    return p["weight"].shape


def inner(r):
    return r.sin() * 2


# outer transforms around compiled
def outer(transform):
    def test(x):
        return transform(x)

    return test


_c = {}


def comp():
    return graphlift.compile(inner, backend="eager")


# jit
@torch.jit.script
def scripted(x, k: int):
    if x.sum() > 0:
        return x * k
    return x - k


traced = torch.jit.trace(lambda x: x * 2 + 1, torch.ones(3, 4))


@torch_program(G, breaks="exception-raised")
def test_jit_script(x):
    return scripted(x + 1, 2) * 2


@torch_program(G)
def test_jit_trace(x):
    return traced(x + 1) * 2


class J(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        return self.l(x).relu()


@torch_program(seeded(lambda: torch.jit.script(J())), X, breaks="c-function")
def test_jit_module(m, x):
    return m(x + 1) * 2


@torch_program(seeded(lambda: torch.jit.trace(J(), torch.ones(3, 4))), X, breaks="c-function")
def test_jit_traced_module(m, x):
    return m(x + 1) * 2


@torch.jit.ignore
def ign(x):
    return x * 2


@torch.jit.unused
def unu(x):
    return x * 2


@torch.jit.export
def exp(x):
    return x * 2


@torch_program(X)
def test_jit_marks(x):
    return ign(x) + unu(x) + exp(x)


@torch_program(X, breaks="unsupported-call")
def test_jit_annotate(x):
    return torch.jit.annotate(Tensor, x) * 2, torch.jit.isinstance(x, Tensor)


# custom ops
@torch.library.custom_op("gltest::scale", mutates_args=())
def scale_op(x: torch.Tensor, k: float) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * np.float32(k))


@scale_op.register_fake
def _(x, k):
    return torch.empty_like(x)


scale_op.register_autograd(
    lambda ctx, g: (g * ctx.k, None), setup_context=lambda ctx, inputs, output: setattr(ctx, "k", inputs[1])
)


@torch.library.custom_op("gltest::nofake", mutates_args=())
def nofake(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@torch.library.custom_op("gltest::inc_", mutates_args={"x"})
def inc_(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("gltest::two", mutates_args=())
def two(x: torch.Tensor, ys: list[torch.Tensor], k: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return x * k, sum(ys)


@two.register_fake
def _(x, ys, k=2):
    return torch.empty_like(x), torch.empty_like(ys[0])


LIB = torch.library.Library("gltest2", "DEF")
LIB.define("dbl(Tensor x) -> Tensor")
LIB.impl("dbl", lambda x: x * 2, "CompositeExplicitAutograd")
LIB.define("cpuonly(Tensor x) -> Tensor")
LIB.impl("cpuonly", lambda x: x * 2, "CPU")
LIB.define("implicit(Tensor x) -> Tensor")
LIB.impl("implicit", lambda x: x.sin() * 2, "CompositeImplicitAutograd")
LIB.define("metaimpl(Tensor x) -> Tensor")
LIB.impl("metaimpl", lambda x: x * 2, "CPU")
LIB.impl("metaimpl", lambda x: torch.empty_like(x), "Meta")
LIB.define("addto_(Tensor(a!) x, Tensor[] ys, Tensor(b!)? total, SymInt k) -> ()")


def _addto(x, ys, total, k):
    for y in ys:
        x.add_(y, alpha=k)
    if total is not None:
        total.add_(x.sum())


LIB.impl("addto_", _addto, "CPU")


@torch.library.register_fake("gltest2::cpuonly2", lib=LIB) if False else (lambda f: f)
def _u(x):
    return x


@torch_program(G)
def test_custom_op(x):
    return scale_op(x + 1, 2.0) * 2


@torch_program(G)
def test_custom_op_ns(x):
    return torch.ops.gltest.scale(x + 1, 2.0) * 2, torch.ops.gltest.scale.default(x, 3.0)


@torch_program(X, breaks="unsupported-fake-op")
def test_custom_op_nofake(x):
    return nofake(x + 1) * 2


@torch_program(X)
def test_custom_op_that_only_mutates_needs_no_fake(x):
    y, total = x * 1, torch.zeros(())
    torch.ops.gltest2.addto_(y[1:], [x[1:], y[:-1].clone()], total, 2)
    torch.ops.gltest2.addto_(x, [y], None, k=1)
    return y.sin(), total


@torch_program(X)
def test_custom_op_mutates(x):
    inc_(x)
    return x * 2


@torch_program(X)
def test_custom_op_two(x):
    return two(x, [x, x + 1]), two(x, [x], k=3)


@torch_program(X)
def test_lib_dbl(x):
    return torch.ops.gltest2.dbl(x + 1) * 2


@torch_program(X, breaks="unsupported-fake-op")
def test_lib_cpu(x):
    return torch.ops.gltest2.cpuonly(x + 1) * 2


@torch_program(G)
def test_lib_implicit(x):
    return torch.ops.gltest2.implicit(x + 1) * 2


@torch_program(X)
def test_lib_meta(x):
    return torch.ops.gltest2.metaimpl(x + 1) * 2


@torch_program(X)
def test_aten_ops(x):
    return (
        torch.ops.aten.relu(x),
        torch.ops.aten.add.Tensor(x, x),
        torch.ops.aten.sum.dim_IntList(x, [0]),
        torch.ops.aten.view(x, [-1]),
    )


@torch.library.triton_op("gltest::tri", mutates_args=()) if False else (lambda f: f)
def tri(x):
    return x


# subclasses
class Sub(torch.Tensor):
    pass


class Log(torch.Tensor):
    calls = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        r = super().__torch_function__(func, types, args, kwargs or {})
        return r


class Wrap:
    def __init__(self, t):
        self.t = t

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [a.t if isinstance(a, Wrap) else a for a in args]
        return Wrap(func(*args, **(kwargs or {})))


class Double(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.add or func is torch.add:
            return super().__torch_function__(torch.mul, types, (args[0], 2), {})
        return super().__torch_function__(func, types, args, kwargs or {})


@torch_program(lambda: X().as_subclass(Sub))
def test_subclass(x):
    return type(x * 2).__name__, (x * 2).sum().as_subclass(Tensor), x + 1, isinstance(x, Sub)


@torch_program(lambda: X().as_subclass(Log))
def test_subclass_tf(x):
    return x * 2 + 1


@torch_program(lambda: X().as_subclass(Double))
def test_subclass_override(x):
    return torch.add(x, 5), x.add(3), x * 3


@torch_program(X)
def test_subclass_made(x):
    y = x.as_subclass(Sub)
    return type(y).__name__, (y * 2).as_subclass(Tensor)


@torch_program(lambda: Wrap(X()))
def test_wrap_tf(w):
    return torch.sin(w).t, torch.add(w, 1).t


@torch_program(lambda: nn.Parameter(X().as_subclass(Sub)), X)
def test_subclass_param(p, x):
    return (x * p).as_subclass(Tensor)


class AddMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.sin:
            func = torch.cos
        return func(*args, **(kwargs or {}))


class Count(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.n += 1
        return func(*args, **(kwargs or {}))


@torch_program(X)
def test_tf_mode(x):
    with AddMode():
        return torch.sin(x) + 1


@torch_program(X)
def test_tf_disable(x):
    with torch._C.DisableTorchFunctionSubclass():
        return x * 2


class DM(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += 1
        return func(*args, **(kwargs or {}))


@torch_program(X, breaks="c-function")
def test_dispatch_mode(x):
    with DM() as d:
        y = torch.sin(x) + 1
    return y, d.n


class WrapD(torch.Tensor):
    @staticmethod
    def __new__(cls, t):
        return torch.Tensor._make_wrapper_subclass(cls, t.shape, dtype=t.dtype)

    def __init__(self, t):
        self.inner = t

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*[a.inner if isinstance(a, WrapD) else a for a in args], **(kwargs or {}))


@torch_program(X)
def test_has_tf(x):
    return (
        has_torch_function((x,)),
        torch.overrides.is_tensor_like(x),
        torch.overrides.has_torch_function_unary(x)
        if hasattr(torch.overrides, "has_torch_function_unary")
        else 0,
        x * 2,
    )


# misc wrappers
@torch_program(X)
def test_dist(x):
    d = torch.distributions.Normal(x, x.abs() + 1, validate_args=False)
    return d.sample(), d.log_prob(x), d.rsample((2,)), d.entropy()


@torch_program(X)
def test_dist_cat(x):
    d = torch.distributions.Categorical(logits=x, validate_args=False)
    s = d.sample()
    return s, d.log_prob(s), torch.distributions.kl_divergence(d, d)


def squares(x):
    return (x * x).sum(-1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms_around_a_compiled_function(backend):
    graphlift.reset()
    compiled = graphlift.compile(squares, backend=backend)
    x = X()
    for _ in range(2):
        torch.testing.assert_close(compiled(x), squares(x))
        torch.testing.assert_close(torch.vmap(compiled)(x), squares(x))
        torch.testing.assert_close(torch.func.grad(lambda t: compiled(t).sum())(x), 2 * x)
        torch.testing.assert_close(torch.func.jvp(compiled, (x,), (x,))[1], 2 * squares(x))
        torch.testing.assert_close(torch.func.hessian(compiled)(x[0]), 2 * torch.eye(4))


def varying_sizes(x):
    y = torch.vmap(lambda r: r * 2 + r.sum())(x)
    y.register_hook(lambda g: g * y.shape[0])
    return y.sin().sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_inner_functions_at_several_sizes(backend):
    graphlift.reset()
    compiled = graphlift.compile(varying_sizes, backend=backend)
    for rows in (3, 5, 7, 5):
        x, reference = real(rows, 4, grad=True)(), real(rows, 4, grad=True)()
        compiled(x).backward()
        varying_sizes(reference).backward()
        torch.testing.assert_close(x.grad, reference.grad)


# --- pulling gradients back -------------------------------------------------------------------------------------


@torch_program(X)
def test_vjp(x):
    y, pull = torch.func.vjp(lambda a: a.sin() * 2, x)
    return y, pull(torch.ones(3, 4)), pull(y)[0] + 1


@torch_program(X, real(4, 4, seed=2))
def test_vjp_of_two(x, w):
    (y, z), pull, aux = torch.func.vjp(lambda a, b: ((a @ b, a * 2), b + 1), x, w, has_aux=True)
    return y, z, pull((y, z)), aux


@torch_program(real(3, 4, grad=True))
def test_vjp_is_differentiable(x):
    y, pull = torch.func.vjp(torch.sin, x)
    return pull(y)[0].sum()


@torch_program(X, breaks="unsupported-call")
def test_vjp_of_random_numbers(x):
    y, pull = torch.func.vjp(lambda a: nn.functional.dropout(a, 0.5), x)
    return y, pull(y)


@torch_program(X, breaks="unsupported-object")
def test_vjp_after_a_write(x):
    y, pull = torch.func.vjp(lambda a: a * 2, x)
    x.add_(1)
    return y, pull(y)


@torch_program(X, breaks="unsupported-object")
def test_vjp_kept_over_a_break(x):
    y, pull = torch.func.vjp(torch.sin, x)
    print("", end="")
    return y, pull(y)


@torch_program(lambda: [seeded(lambda: nn.Linear(4, 4))(), seeded(lambda: nn.Linear(4, 4))()], X)
def test_stacked_modules(models, x):
    params, buffers = torch.func.stack_module_state(models)

    def run(p, b, a):
        return torch.func.functional_call(models[0], (p, b), (a,))

    return torch.func.vmap(run, (0, 0, None))(params, buffers, x)


# --- callees of torch.compile -----------------------------------------------------------------------------------


@functools.cache
def compiled_by_torch():
    return torch.compile(lambda x: x * 2 + 1, backend="eager")


def mask_by_indices(mask, rows, columns):
    """As masks of attention are made: a mode of torch's lets tensors index under vmap."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    def allowed(row, column):
        return mask[row, column] & mask[row, 0] | (row > column)

    with TransformGetItemToIndex():
        return torch.vmap(torch.vmap(allowed, in_dims=(None, 0)), in_dims=(0, None))(rows, columns)


@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_by_indices_at_several_sizes(backend):
    mask = real(6, 9)() > 0
    compiled = graphlift.compile(mask_by_indices, backend=backend, fullgraph=True)
    for n in (2, 3, 4):
        given = mask, torch.arange(n), torch.arange(n + 2)
        assert torch.equal(compiled(*given), mask_by_indices(*given))


@functools.cache
def module_compiled_by_torch():
    return torch.compile(nn.ReLU(), backend="eager")


@torch_program(compiled_by_torch, X, breaks="c-function")
def test_callee_of_torch_compile(callee, x):
    return callee(x + 1) * 2, callee(x)


@torch_program(module_compiled_by_torch, X, breaks="c-function")
def test_module_of_torch_compile(callee, x):
    return callee(x + 1) * 2


@torch_program(compiled_by_torch, X)
def test_modules_made_after_torch_compile(callee, x):
    """torch.compile puts a note of its own around ``Module.__init__``."""
    return nn.Sequential(nn.ReLU(), nn.Softplus())(x)


@torch_program(real(3), breaks="raises")
def test_requires_grad_inside_a_gradient(x):
    return torch.func.grad(lambda a: a.requires_grad_().sin().sum())(x)


@torch_program(real(4, 3), real(3, grad=True, seed=1), breaks="unsupported-call")
def test_gradient_of_what_only_an_inner_jacobian_uses(x, w):
    y = torch.func.vmap(torch.func.jacrev(lambda a: (a * w).sin().sum()))(x)
    return torch.autograd.grad(y.sum(), [w])
