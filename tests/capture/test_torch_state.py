"""Torch's global state in captured code: modes, contexts, flags, random streams."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import graphlift
from graphlift.capture.torch_state import StateSnapshot
from graphlift.fake.ops import quietly
from tests.capture.torch_program import real, seeded, torch_program

G = real(3, 4, grad=True)
X = real(3, 4, seed=1)
W = real(4, 4, grad=True, seed=2)


@torch_program(G)
def test_no_grad(x):
    with torch.no_grad():
        y = x * 2
    return y, x * 3


@torch_program(G)
def test_no_grad_decorator(x):
    @torch.no_grad()
    def f(a):
        return a * 2

    return f(x), torch.is_grad_enabled()


@torch.no_grad()
def ng(a):
    return a * 2, torch.is_grad_enabled()


@torch_program(G)
def test_no_grad_decorated_global(x):
    return ng(x), x + 1


@torch.inference_mode()
def im(a):
    return a * 2


@torch_program(G)
def test_inference_decorated(x):
    y = im(x)
    return y.is_inference(), x + 1


@torch_program(X)
def test_inference_ctx(x):
    with torch.inference_mode():
        y = x * 2
        a = torch.is_inference_mode_enabled()
    return y, a, y.is_inference()


@torch_program(X)
def test_inference_false(x):
    with torch.inference_mode(False):
        y = x * 2
    return y


@torch_program(G)
def test_set_grad_call(x):
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y, x * 3


@torch_program(G, breaks="raises")
def test_set_grad_of_an_int(x):
    y = x * 2
    torch.set_grad_enabled(1)
    return y


@torch_program(G, breaks="raises")
def test_set_grad_ctx_of_an_int(x):
    with torch.set_grad_enabled(0):
        return x * 2


@torch_program(G)
def test_set_grad_leaks(x):
    torch.set_grad_enabled(False)
    return x * 2


@torch_program(G)
def test_set_grad_ctx(x):
    with torch.set_grad_enabled(x.shape[0] == 2):
        y = x * 2
    return y, x * 3


@torch_program(G)
def test_set_grad_dec(x):
    @torch.set_grad_enabled(False)
    def f(a):
        return a * 2

    return f(x), x * 3


@torch_program(G)
def test_enable_grad(x):
    with torch.no_grad():
        with torch.enable_grad():
            y = x * 2
        z = x * 3
    return y, z


@torch_program(G)
def test_no_grad_exc(x):
    try:
        with torch.no_grad():
            raise ValueError
    except ValueError:
        pass
    return x * 2, torch.is_grad_enabled()


@torch_program(G, breaks="print-or-io")
def test_no_grad_break(x):
    with torch.no_grad():
        y = x * 2
        print(end="")
        z = y * 3
    return z, x * 2


@torch_program(G)
def test_no_grad_obj_reuse(x):
    c = torch.no_grad()
    with c:
        y = x * 2
    with c:
        z = x * 3
    return y, z


@torch_program(X, W)
def test_autocast_cpu(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    return y, x @ w


@torch_program(X, W)
def test_autocast_cpu_default(x, w):
    with torch.autocast("cpu"):
        y = x @ w
        d = torch.is_autocast_enabled("cpu")
    return y, d


@torch_program(X, W)
def test_autocast_nested(x, w):
    with torch.autocast("cpu"):
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            z = y.float() @ w
        u = z @ w
    return y, z, u


@torch_program(X, W)
def test_autocast_cuda(x, w):
    with torch.autocast("cuda", dtype=torch.float16):
        y = x @ w
    return y


@torch_program(X, W)
def test_autocast_dec(x, w):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def f(a):
        return a @ w

    return f(x)


@torch_program(X)
def test_device_ctx(x):
    with torch.device("cpu"):
        y = torch.ones(3, 4)
    return x + y


@torch_program(X)
def test_device_meta(x):
    with torch.device("meta"):
        y = torch.ones(3, 4)
    return x, y.device.type, y.shape


@torch_program(X)
def test_default_dtype(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(3, 4)
    torch.set_default_dtype(torch.float32)
    return x + y, torch.get_default_dtype()


@torch_program(X)
def test_default_dtype_leaks(x):
    torch.set_default_dtype(torch.float64)
    return x + torch.ones(4)


@torch_program(X, breaks="unsupported-call")
def test_default_device(x):
    torch.set_default_device("cpu")
    y = torch.ones(3, 4)
    torch.set_default_device(None)
    return x + y


@torch_program(X, breaks="unsupported-call")
def test_default_device_leaks(x):
    torch.set_default_device("meta")
    y = torch.ones(3, 4)
    return x, y.device


@torch_program(X)
def test_deterministic(x):
    torch.use_deterministic_algorithms(True)
    y = x * 2
    torch.use_deterministic_algorithms(False)
    return y, torch.are_deterministic_algorithms_enabled()


@torch_program(X)
def test_deterministic_leaks(x):
    torch.use_deterministic_algorithms(True, warn_only=True)
    return x * 2


@torch_program(G)
def test_anomaly(x):
    with torch.autograd.detect_anomaly(check_nan=False):
        y = x * 2
    return y


@torch_program(G)
def test_anomaly_set(x):
    with torch.autograd.set_detect_anomaly(False):
        y = x * 2
    return y, torch.is_anomaly_enabled()


@torch_program(G)
def test_record_function(x):
    with torch.profiler.record_function("a"):
        y = x * 2
    with torch.autograd.profiler.record_function("b"):
        z = y * 2
    return z


@torch_program(G)
def test_record_function_dec(x):
    @torch.profiler.record_function("a")
    def f(a):
        return a * 2

    return f(x)


Q = real(2, 2, 8, 16)


@torch_program(Q)
def test_sdpa_kernel(q):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, q, q)
    return y


@torch_program(Q)
def test_sdpa_kernel_list(q):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        y = F.scaled_dot_product_attention(q, q, q)
    return y


@torch_program(X)
def test_backend_flags(x):
    a = (
        torch.backends.cudnn.enabled,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.mkldnn.is_available(),
        torch.backends.cudnn.is_available(),
    )
    return (
        x * 2,
        a,
        torch.backends.mps.is_available(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.version(),
    )


@torch_program(X)
def test_cudnn_flags(x):
    with torch.backends.cudnn.flags(enabled=False):
        y = x * 2
    return y, torch.backends.cudnn.enabled


def _attention_by_one_kernel(q, w):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.tanh(q * w)
    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        y = F.scaled_dot_product_attention(q, q, q)
    return (y * 2).sin()


def test_parts_between_settings_of_kernels_are_compiled() -> None:
    q, w, other = Q(), real(16, grad=True)(), real(16, grad=True)()
    compiled = graphlift.compile(_attention_by_one_kernel, fullgraph=True)
    assert graphlift.explain(_attention_by_one_kernel)(q, w).fallbacks == ()
    for _ in range(2):
        wanted, found = _attention_by_one_kernel(q, w), compiled(q, other)
        torch.testing.assert_close(found, wanted)
        wanted.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(other.grad, w.grad)
    assert torch.backends.cuda.flash_sdp_enabled() and torch.backends.cudnn.enabled


def _read_in_another_mode(x):
    with torch.no_grad():
        return x + torch.backends.cudnn.enabled


def _precision_of_all(x):
    with torch.backends.cudnn.flags(enabled=False):
        y = x * 2
    return y, torch._C._get_fp32_precision_getter("cuda", "all")


def test_settings_are_looked_at_again() -> None:
    """Whatever the region has set of other things before; what it sets itself is put back as it was."""
    x, torch_c = X(), torch._C
    read = graphlift.compile(_read_in_another_mode, backend="eager")
    precise = graphlift.compile(_precision_of_all, backend="eager")
    try:
        for enabled, precision, everywhere in (
            (True, "none", "none"),
            (False, "ieee", "none"),
            (True, "ieee", "tf32"),
        ):
            torch_c._set_cudnn_enabled(enabled)
            torch_c._set_fp32_precision_setter("generic", "all", everywhere)
            torch_c._set_fp32_precision_setter("cuda", "all", precision)
            assert torch.equal(read(x), _read_in_another_mode(x))
            found = precise(x)
            assert found[1] == precision == torch_c._get_fp32_precision_getter("cuda", "all")
            assert torch.equal(found[0], x * 2)
    finally:
        for backend in ("generic", "cuda"):
            torch_c._set_fp32_precision_setter(backend, "all", "none")
        torch_c._set_cudnn_enabled(True)


def test_settings_that_torch_does_not_say() -> None:
    """Set in part by a newer way, the older getter raises."""
    compiled = graphlift.compile(lambda x: torch.relu(x) + 1, backend="eager", fullgraph=True)
    asking = graphlift.compile(lambda x: (x + 1, torch._C._get_cudnn_allow_tf32()), backend="eager")
    x, convolutions = X(), torch._C._get_fp32_precision_getter("cuda", "conv")
    torch._C._set_fp32_precision_setter("cuda", "conv", "ieee")
    try:
        assert torch.equal(compiled(x), torch.relu(x) + 1)
        with pytest.raises(RuntimeError, match="allow_tf32"):
            asking(x)
    finally:
        torch._C._set_fp32_precision_setter("cuda", "conv", convolutions)
    assert asking(x)[1] == torch._C._get_cudnn_allow_tf32()


@torch_program(X, breaks="unsupported-call")
def test_fork_rng(x):
    with torch.random.fork_rng(devices=[]):
        y = torch.rand(3, 4)
    return x + y, torch.rand(2)


@torch_program(X, breaks="unsupported-call")
def test_manual_seed(x):
    torch.manual_seed(3)
    return x + torch.rand(3, 4)


@torch_program(X, breaks="unsupported-call")
def test_rng_state(x):
    s = torch.get_rng_state()
    a = torch.rand(2)
    torch.set_rng_state(s)
    return a, torch.rand(2)


@torch_program(X, breaks="unsupported-call")
def test_initial_seed(x):
    return x * 2, torch.initial_seed()


def gen():
    return torch.Generator().manual_seed(7)


@torch_program(X, gen)
def test_generator(x, g):
    return x + torch.rand(3, 4, generator=g), torch.randn(2, generator=g), g


@torch_program(X, gen)
def test_generator_dropin(x, g):
    return (
        x.clone().normal_(generator=g),
        torch.randperm(5, generator=g),
        torch.bernoulli(torch.full((3,), 0.5), generator=g),
        g,
    )


@torch_program(X, breaks="unsupported-object")
def test_generator_made(x):
    g = torch.Generator()
    g.manual_seed(3)
    return x + torch.rand(3, 4, generator=g)


@torch_program(X, breaks="unsupported-object")
def test_generator_made_chain(x):
    return x + torch.rand(3, 4, generator=torch.Generator().manual_seed(3))


@torch_program(X)
def test_generator_default(x):
    return x + torch.rand(3, 4, generator=torch.default_generator), torch.rand(2)


@torch_program(X)
def test_random_stream(x):
    return (
        F.dropout(x, 0.5),
        torch.rand(3),
        torch.randn_like(x),
        torch.randint(0, 10, (3,)),
        torch.randperm(4),
        torch.rand(2),
    )


@torch_program(G)
def test_dropout_train(x):
    return F.dropout(x, 0.5) * 2, F.alpha_dropout(x, 0.1), F.feature_alpha_dropout(x, 0.1)


@torch_program(X)
def test_inplace_random(x):
    return (
        x.clone().uniform_(),
        x.clone().normal_(0, 2),
        x.clone().bernoulli_(),
        x.clone().exponential_(),
        torch.empty(3).random_(5),
    )


@torch_program(X)
def test_multinomial(x):
    return torch.multinomial(x.softmax(-1), 2), torch.poisson(x.abs()), torch.normal(x, x.abs())


@torch_program(G)
def test_exitstack(x):
    with contextlib.ExitStack() as s:
        s.enter_context(torch.no_grad())
        s.enter_context(torch.autocast("cpu"))
        y = x @ x.t()
    return y, torch.is_grad_enabled()


@torch_program(G)
def test_nullcontext(x):
    with contextlib.nullcontext() as c:
        y = x * 2
    return y, c


@torch_program(G)
def test_ctx_maybe(x):
    with torch.no_grad() if x.requires_grad else contextlib.nullcontext():
        y = x * 2
    return y


@contextlib.contextmanager
def own(k):
    old = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        yield k
    finally:
        torch.set_grad_enabled(old)


@torch_program(G)
def test_own_ctx(x):
    with own(3) as k:
        y = x * k
    return y, x * 2


@torch_program(G)
def test_autograd_mode_cls(x):

    with torch.autograd.set_grad_enabled(False):
        y = x * 2
    with torch.autograd.no_grad():
        z = x * 2
    return y, z


@torch_program(X)
def test_clone_isclose(x):
    return (
        torch.isclose(x, x),
        torch.is_floating_point(x),
        torch.is_complex(x),
        torch.is_nonzero(torch.ones(1)),
        torch.is_tensor(x),
        torch.is_storage(x),
    )


@torch_program(X)
def test_finfo(x):
    return (
        x.clamp(min=torch.finfo(x.dtype).min),
        torch.finfo(torch.float32).eps,
        torch.iinfo(torch.int8).max,
        torch.finfo(x.dtype).bits,
    )


@torch_program(X)
def test_warn_always(x):
    torch.set_warn_always(False)
    return x * 2


@torch_program(X)
def test_tf32(x):
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    return x @ x.t(), torch.get_float32_matmul_precision()


@torch_program(G, breaks="unsupported-call")
def test_saved_disable(x):
    with torch.autograd.graph.disable_saved_tensors_hooks("no"):
        y = x * x
    return y


@torch_program(G)
def test_multithreading(x):
    with torch.autograd.set_multithreading_enabled(True):
        y = x * x
    return y


@torch_program(G, breaks="unsupported-call")
def test_fwad(x):
    import torch.autograd.forward_ad as fwAD

    with fwAD.dual_level():
        d = fwAD.make_dual(x.detach(), torch.ones_like(x))
        y = d.sin()
        return fwAD.unpack_dual(y).tangent


@torch_program(X)
def test_cuda_queries(x):
    return (
        x * 2,
        torch.cuda.is_available(),
        torch.cuda.device_count(),
        torch.version.cuda,
        torch.distributed.is_available(),
        torch.distributed.is_initialized(),
    )


@torch_program(X)
def test_sync(x):
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return x * 2


@torch_program(X)
def test_compiler_flags(x):
    return x * 2, torch.jit.is_scripting(), torch.jit.is_tracing(), torch.onnx.is_in_onnx_export()


@torch_program(X, breaks="data-dependent-branch")
def test_init(x):
    w = torch.empty(4, 4)
    nn.init.xavier_uniform_(w)
    nn.init.kaiming_normal_(w)
    nn.init.constant_(w, 2)
    nn.init.zeros_(w)
    nn.init.normal_(w, 0, 1)
    nn.init.trunc_normal_(w)
    nn.init.eye_(w)
    return x @ w


@torch_program(X)
def test_init_orthogonal(x):
    w = torch.empty(4, 4)
    nn.init.orthogonal_(w)
    return x @ w


@torch_program(X)
def test_inference_mode_mutates(x):
    with torch.inference_mode():
        x.add_(1)
        y = x.sin()
    return y


class Inferring(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @torch.inference_mode()
    def forward(self, x):
        return torch.relu(self.linear(x)).softmax(-1)


@torch_program(seeded(Inferring), X)
def test_inference_mode_forward(m, x):
    return m(x)


def test_another_threads_capture_changes_nothing_that_is_seen() -> None:
    inside, go_on = threading.Event(), threading.Event()
    before = StateSnapshot().values

    def slow() -> None:
        inside.set()
        go_on.wait(0.2)

    other = threading.Thread(target=lambda: quietly(slow, (), {}))
    other.start()
    assert inside.wait(20)
    assert torch.is_warn_always_enabled(), "so the other thread is in the middle of it"
    assert StateSnapshot().values == before
    quietly(lambda: None, (), {})
    other.join()
    assert not torch.is_warn_always_enabled()
