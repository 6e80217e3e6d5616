"""The compiled region at run time: repeated backward, hooks, saved tensors, storage of figures, whole models."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import graphlift
from graphlift.aot import Compiled, compile_graph, interpret
from tests.aot.programs import graph_of

F = torch.nn.functional


def compiled(f: Callable[..., Any], *inputs: Tensor, **options: Any) -> Compiled:
    return compile_graph(graph_of(f, len(inputs)), inputs, fw_compiler=interpret, **options)


def gelu_mlp(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.gelu(x @ w) @ v


def weights() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        torch.randn(3, 4, requires_grad=True),
        torch.randn(4, 5, requires_grad=True),
        torch.randn(5, 2, requires_grad=True),
    )


def test_graphs_are_functional_aten() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y[0].add_(1)
        return y.relu_().view(-1)

    c = compiled(f, torch.randn(3, 4, requires_grad=True))
    assert set(c.forms) == {"captured", "joint", "forward", "backward"}
    for name in ("joint", "forward", "backward"):
        for node in c.forms[name].graph.nodes:
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                assert not node.target._schema.is_mutable
                assert node.meta["val"] is not None
        c.forms[name].graph.lint()
    assert "forward" in c.print_readable()


def test_the_backward_is_compiled_when_first_called() -> None:
    made = []

    def bw(gm: fx.GraphModule, fakes: list) -> Any:
        made.append([f.shape for f in fakes])
        return interpret(gm, fakes)

    x, w, v = weights()
    c = compiled(gelu_mlp, x, w, v, bw_compiler=bw)
    (y,) = c(x, w, v)
    assert not made
    y.sum().backward()
    c(x, w, v)[0].sum().backward()
    assert len(made) == 1


def test_retained_graph_runs_backward_twice_and_a_freed_one_raises() -> None:
    x, w, v = weights()
    (y,) = compiled(gelu_mlp, x, w, v)(x, w, v)
    y.sum().backward(retain_graph=True)
    once = w.grad.clone()
    y.sum().backward()
    torch.testing.assert_close(w.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_saved_tensors_are_seen_by_hooks_and_version_checks() -> None:
    x, w, v = weights()
    c = compiled(gelu_mlp, x, w, v)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
        c(x, w, v)
    assert packed
    (y,) = c(x, w, v)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_save_on_cpu_and_tensor_hooks() -> None:
    x, w, v = weights()
    seen = []
    w.register_hook(lambda g: seen.append("hook") or g * 2)
    w.register_post_accumulate_grad_hook(lambda p: seen.append("post"))
    c = compiled(gelu_mlp, x, w, v)
    with torch.autograd.graph.save_on_cpu():
        (y,) = c(x, w, v)
    y.sum().backward()
    (expected,) = torch.autograd.grad(gelu_mlp(x, w.detach().requires_grad_(), v).sum(), [x])
    torch.testing.assert_close(x.grad, expected)
    assert seen == ["hook", "post"]


def test_partial_gradients_and_unused_outputs() -> None:
    def f(x: Tensor, w: Tensor, k: Tensor) -> tuple:
        y = x @ w
        return y.sum(), y, k + 1, (x * 3).argmax(), None, 5

    x, w = torch.randn(2, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    k = torch.arange(3)
    loss, y, ints, index, none, five = compiled(f, x, w, k)(x, w, k)
    assert none is None and five == 5
    assert not ints.requires_grad and not index.requires_grad
    (gx,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(gx, torch.ones(2, 2) @ w.detach().t())
    assert y.requires_grad


def test_what_no_gradient_reaches_gets_none() -> None:
    def f(x: Tensor, w: Tensor, v: Tensor, u: Tensor) -> tuple:
        h = (x @ w).sin()
        return h @ v, (h * u).sum(), h

    def fresh() -> list[Tensor]:
        torch.manual_seed(0)
        return [torch.randn(3, 3, requires_grad=True) for _ in range(4)]

    c = compiled(f, *fresh())
    for which in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
        ours, theirs = fresh(), fresh()
        for run, inputs in ((c, ours), (f, theirs)):
            outs = run(*inputs)
            sum(outs[k].square().sum() for k in which).backward()
        for a, b in zip(theirs, ours, strict=True):
            assert (a.grad is None) == (b.grad is None), which
            if a.grad is not None:
                torch.testing.assert_close(a.grad, b.grad)


def test_expanded_and_permuted_incoming_gradients() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    c = compiled(lambda x: x.sin(), x)
    c(x)[0].sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    x.grad = None
    g = torch.randn(4, 3).t()
    c(x)[0].backward(g)
    torch.testing.assert_close(x.grad, x.detach().cos() * g)


def test_double_backward_is_right_or_refused() -> None:
    x, w, v = weights()
    (y,) = compiled(gelu_mlp, x, w, v)(x, w, v)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    found = torch.autograd.grad(g.square().sum(), [x, w, v])
    (g,) = torch.autograd.grad(gelu_mlp(x, w, v).square().sum(), x, create_graph=True)
    expected = torch.autograd.grad(g.square().sum(), [x, w, v])
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b)
    (z,) = compiled(lambda x: F.dropout(x, 0.5) ** 2, x)(x)
    with pytest.raises(RuntimeError, match="random"):
        torch.autograd.grad(z.sum(), x, create_graph=True)


def test_a_graph_that_ends_in_another_grad_mode() -> None:
    g = fx.Graph()
    p = g.placeholder("x")
    g.call_function(torch._C._set_grad_enabled, (False,))
    g.output((g.call_function(torch.mul, (p, 2)),))
    x = torch.randn(3, requires_grad=True)
    c = compile_graph(fx.GraphModule(torch.nn.Module(), g), [x], fw_compiler=interpret)
    assert torch.is_grad_enabled()
    try:
        (y,) = c(x)
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
    assert not y.requires_grad


def test_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.randn(3)
        c = compiled(lambda x: (x.add_(1), x * 2)[1], x)
        before = x.clone()
        (y,) = c(x)
        assert y.is_inference()
        torch.testing.assert_close(x, before + 1)


def test_a_function_that_enters_inference_mode_is_left_to_eager() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = x * 2
        return x + y

    x = torch.randn(3)
    c = compiled(f, x)
    assert c.fallback_reason is not None and c.fallback_reason.startswith("inference-part")
    torch.testing.assert_close(c(x), (f(x),))


def test_an_inference_tensor_is_not_kept_for_the_backward() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(x > 0, x, y)

    with torch.inference_mode():
        x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    y = torch.full((3,), -4.0, requires_grad=True)
    (out,) = compiled(f, x, y)(x, y)
    out.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 0, 1]
    assert y.grad is not None and y.grad.tolist() == [0, 1, 0]


def test_a_conjugate_of_what_changed_its_shape() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y.t_()
        return y, y.adjoint()

    x = torch.randn(3, 4, dtype=torch.complex64)
    for found, expected in zip(compiled(f, x)(x), f(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_constants_and_attributes() -> None:
    table = torch.randn(10, 3)
    module = torch.nn.Module()
    module.register_buffer("table", table)
    g = fx.Graph()
    p = g.placeholder("i")
    row = g.call_function(F.embedding, (p, g.get_attr("table")))
    g.output((g.call_function(torch.add, (row, g.call_function(torch.tensor, ([1.0, 2.0, 3.0],)))),))
    i = torch.tensor([1, 5])
    c = compile_graph(fx.GraphModule(module, g), [i], fw_compiler=interpret)
    torch.testing.assert_close(c(i)[0], table[i] + torch.tensor([1.0, 2.0, 3.0]))
    assert not any(n.op == "get_attr" for n in c.forms["inference"].graph.nodes)


def test_a_generator_of_its_own() -> None:
    gen = torch.Generator()

    def f(x: Tensor) -> Tensor:
        return x + torch.rand(3, generator=gen)

    x = torch.zeros(3)
    c = compiled(f, x)
    gen.manual_seed(5)
    (a,) = c(x)
    gen.manual_seed(5)
    torch.testing.assert_close(a, f(x), rtol=0, atol=0)


def test_optimizer_step_as_a_region() -> None:
    def step(p: Tensor, q: Tensor, gp: Tensor, gq: Tensor) -> None:
        with torch.no_grad():
            torch._foreach_mul_([p, q], 0.9)
            torch._foreach_add_([p, q], [gp, gq], alpha=-0.1)
            p.addcdiv_(gp, gq.abs() + 1)

    ours = [
        torch.randn(4, requires_grad=True),
        torch.randn(4, requires_grad=True),
        torch.randn(4),
        torch.randn(4),
    ]
    theirs = [t.detach().clone().requires_grad_(t.requires_grad) for t in ours]
    c = compiled(lambda *t: step(*t) or (), *ours)
    assert c.fallback_reason is None and c.mutated_inputs == (0, 1)
    c(*ours)
    step(*theirs)
    for a, b in zip(theirs, ours, strict=True):
        torch.testing.assert_close(a, b)
        assert b.is_leaf


def test_checkpointed_part() -> None:
    from torch.utils.checkpoint import checkpoint

    def f(x: Tensor, w: Tensor) -> Tensor:
        inner = checkpoint(
            lambda a: torch.tanh(a @ w).exp(), x, use_reentrant=False, preserve_rng_state=False
        )
        return inner.sum()

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    c = compiled(f, x, w)
    found = torch.autograd.grad(c(x, w)[0], [x, w])
    for a, b in zip(torch.autograd.grad(f(x, w), [x, w]), found, strict=True):
        torch.testing.assert_close(a, b)


def test_dropout_keeps_a_byte_per_element() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    c = compiled(lambda x: F.dropout(x.sin(), 0.3).exp().sum(), x)
    assert c.saved_bytes <= 64 * 64 * (1 + 4)


def test_cheap_operators_are_run_again_and_costly_ones_kept() -> None:
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    c = compiled(lambda x, w: ((x @ w) * 2 + 1).sin().cos().tanh().sum(), x, w)
    assert c.saved_bytes == 64 * 64 * 4
    assert c.recomputed >= 3
    assert not any(n.target is torch.ops.aten.mm.default for n in _recomputed(c))


def _recomputed(c: Compiled) -> list[fx.Node]:
    forward = {
        (n.target, str(n.meta.get("val"))) for n in c.forms["forward"].graph.nodes if n.op == "call_function"
    }
    backward = c.forms["backward"].graph.nodes
    mm = torch.ops.aten.mm.default
    return [n for n in backward if n.target is mm and (n.target, str(n.meta["val"])) not in forward]


def test_saved_result_that_the_caller_holds_under_another_shape() -> None:
    def f(x: Tensor, w: Tensor) -> tuple:
        y = F.linear(x, w)  # a matrix product of flattened rows, shaped again
        return y, F.gelu(y).sum()

    x, w = torch.randn(2, 3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    c = compiled(f, x, w)
    y, s = c(x, w)
    s.backward()
    gx = x.grad.clone()
    x.grad = None
    f(x, w)[1].backward()
    torch.testing.assert_close(gx, x.grad)
    y, s = c(x, w)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        s.backward()


def test_errors_name_the_operator_that_has_no_rule() -> None:
    c = compiled(lambda x: torch.geqrf(x)[0], torch.randn(3, 3))
    assert "geqrf" in c.fallback_reason
    x = torch.randn(3, 3)
    torch.testing.assert_close(c(x)[0], torch.geqrf(x)[0])


def test_dropping_the_region_frees_everything() -> None:
    x, w, v = weights()
    c = compiled(gelu_mlp, x, w, v)
    c(x, w, v)[0].sum().backward()
    refs = [weakref.ref(c), weakref.ref(w)]
    del c, w
    gc.collect()
    assert [r() for r in refs] == [None, None]


def test_overhead_of_a_call() -> None:
    out = torch.randn(1)
    x = torch.randn(1)
    c = compile_graph(graph_of(lambda x: x * 2, 1), [x], fw_compiler=lambda gm, fakes: lambda args: [out])
    best = min(_time(c.run, x) for _ in range(5))
    assert best < 2e-6


def _time(f: Callable[..., Any], *args: Any) -> float:
    """Seconds of processor time a call, so that a busy machine does not count."""
    start = time.thread_time()
    for _ in range(2000):
        f(*args)
    return (time.thread_time() - start) / 2000


def test_bert_forward_and_backward_bit_for_bit() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=500
    )
    model = transformers.BertModel(config).train()
    named = [*model.named_parameters(), *model.named_buffers()]
    names, tensors = [n for n, _ in named], [t for _, t in named]

    def f(ids: Tensor, *state: Tensor) -> tuple:
        out = torch.func.functional_call(model, dict(zip(names, state, strict=True)), (ids,))
        return out.last_hidden_state, out.pooler_output

    ids = torch.randint(0, 500, (2, 16))
    c = compile_graph(graph_of(f, 1 + len(tensors)), [ids, *tensors], fw_compiler=interpret)
    assert c.fallback_reason is None

    def step(run: Callable[..., tuple]) -> tuple[list, list]:
        for t in tensors:
            t.grad = None
        torch.manual_seed(3)
        outs = run(ids, *tensors)
        (outs[0].sum() + outs[1].square().sum()).backward()
        return list(outs), [t.grad for t in tensors]

    expected, found = step(f), step(c)
    for a, b in zip(expected[0] + expected[1], found[0] + found[1], strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


def _cast_thrice(w: Tensor) -> Tensor:
    a, b = torch.linspace(0, 1, 36).view(6, 6), torch.linspace(1, 3, 36).view(6, 6)
    return (torch.mm(a, w) + torch.mm(b, w).sin() * torch.mm(w, a)).float()


_WEIGHTS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {  # what is given, and the leaf behind it
    "leaf": lambda t: ((w := t.clone().requires_grad_()), w),
    "parameter": lambda t: ((w := torch.nn.Parameter(torch.stack([t, t])[0])), w),
    "leaf that is a view": lambda t: ((w := torch.stack([t, t])[0].requires_grad_()), w),
    "no leaf": lambda t: ((w := t.clone().requires_grad_()) * 1, w),
}


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("first", _WEIGHTS)
def test_autocast_keeps_what_it_casts_of_leaves_that_are_no_views(first: str, outside: bool) -> None:
    """Gradients of several uses are summed in the low precision there, and elsewhere after the casts."""

    def run(f: Callable[[Tensor], Tensor], kind: str) -> Tensor | None:
        given, leaf = _WEIGHTS[kind](torch.linspace(-2, 2, 36).view(6, 6).sin())
        f(given).sum().backward()
        return leaf.grad

    def inside(w: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return _cast_thrice(w)

    compiled = graphlift.compile(_cast_thrice if outside else inside, backend="aot_eager")

    def ours(w: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=outside):
            return compiled(w)

    for kind in (first, *_WEIGHTS):
        found, expected = run(ours, kind), run(inside, kind)
        assert found is not None and expected is not None and torch.equal(found, expected), kind


def test_products_have_no_write_counted() -> None:
    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    compiled = graphlift.compile(lambda x: layer(x), backend="auto")
    with torch.no_grad():
        assert compiled(x)._version == layer(x)._version == 0


_NEGATIVE: dict[str, Callable[[Tensor], Any]] = {
    "product": lambda z: z.conj().imag * 2 + 1,
    "copy": lambda z: (z.conj().imag.clone(), z.conj().imag),
    "sum": lambda z: z.conj().t().imag.exp().sum(0),
    "matrix product": lambda z: z.conj().imag @ torch.ones(3, 2),
    "joined": lambda z: torch.cat([z.conj().imag, z.real]),
}


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
@pytest.mark.parametrize("name", _NEGATIVE)
def test_tensors_that_are_the_negative_of_their_memory(name: str, backend: str) -> None:
    def run(f: Callable[[Tensor], Any]) -> list[Tensor | None]:
        z = torch.complex(torch.arange(6.0).view(2, 3), torch.ones(2, 3)).requires_grad_()
        made = f(z)
        outs = made if isinstance(made, tuple) else (made,)
        sum((t * t).sum() for t in outs).backward()  # type: ignore[union-attr]
        return [*(t.detach().resolve_neg() for t in outs), z.grad]

    torch.testing.assert_close(run(graphlift.compile(_NEGATIVE[name], backend=backend)), run(_NEGATIVE[name]))


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_inputs_that_are_the_negative_of_their_memory(backend: str) -> None:
    compiled = graphlift.compile(lambda x: x * 2 + 1, backend=backend)
    for x in (torch.ones(3), torch._neg_view(torch.ones(3))):
        assert torch.equal(compiled(x), x * 2 + 1)
    written = torch.ones(3)
    graphlift.compile(lambda x: x.mul_(2), backend=backend)(torch._neg_view(written))
    assert torch.equal(written, torch.full((3,), 2.0))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float64])
def test_complex_numbers_that_the_backward_conjugates(dtype: torch.dtype) -> None:
    def f(z: Tensor) -> Tensor:
        made = (z * (0.1 + 2j) / (0.3 - 1j)).conj()
        made.mul_(2j)
        return (made + z.pow(2 + 1j)).abs().sum()

    def run(f: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
        z = torch.linspace(0.1, 1, 6).to(dtype).requires_grad_()
        loss = f(z)
        loss.backward()
        return [loss.detach(), z.grad]

    torch.testing.assert_close(run(graphlift.compile(f, backend="aot_eager")), run(f))


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_zeros_without_memory_and_sparse_gradients(backend: str) -> None:
    compiled = graphlift.compile(lambda x: x.sin() * x + 1, backend=backend)
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward(torch._efficientzerotensor((3,)))
    assert x.grad is not None and not x.grad.any()
    x.grad = None
    compiled(x).backward(torch.ones(3).to_sparse())
    assert x.grad is not None
    torch.testing.assert_close(x.grad.to_dense(), x.detach().sin() + x.detach().cos())
    assert torch.equal(compiled(torch._efficientzerotensor((3,))), torch.ones(3))


def test_a_write_that_reads_the_conjugate_of_what_it_writes() -> None:
    """Rows are written one after another, as in eager, of which one is read as its conjugate."""

    def f(x: Tensor) -> Tensor:
        row = x.conj().select(0, 1)
        x[..., :1] = row[..., :1]
        return x * 1

    given = torch.tensor([[1 + 2j, 3], [4 + 5j, 6], [7 - 8j, 9]])
    for backend in ("aot_eager", "auto"):
        ours, theirs = given.clone(), given.clone()
        assert torch.equal(graphlift.compile(f, backend=backend)(ours), f(theirs))
        assert torch.equal(ours, theirs)
