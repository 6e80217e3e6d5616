"""Modules of torch in captured code: hooks, parametrisations, recurrent and attention layers, containers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import graphlift
from graphlift.api import Settings
from tests.capture.torch_program import real, seeded, torch_program
from tests.equality import assert_equal

G = real(3, 4, grad=True)
X = real(3, 4, seed=1)
S = real(5, 3, 4, seed=1)
L = seeded(lambda: nn.Linear(4, 4))


def double_grad(p):
    p.grad = p.grad * 2


class Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 2)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def mod(setup):
    def make():
        m = Seq()
        m.seen = []
        setup(m)
        return m

    return seeded(make)


@torch_program(mod(lambda m: m.a.register_forward_hook(lambda mod, i, o: o * 2)), X)
def test_forward_hook(m, x):
    return m(x)


@torch_program(mod(lambda m: m.register_forward_hook(lambda mod, i, o: mod.seen.append(len(i)))), X)
def test_forward_hook_effect(m, x):
    return m(x)


@torch_program(mod(lambda m: m.a.register_forward_pre_hook(lambda mod, i: (i[0] * 2,))), X)
def test_pre_hook(m, x):
    return m(x)


@torch_program(mod(lambda m: m.a.register_forward_pre_hook(lambda mod, i: i[0] * 2)), X)
def test_pre_hook_single(m, x):
    return m(x)


@torch_program(
    mod(lambda m: m.register_forward_pre_hook(lambda mod, i, k: (i, {"x": k["x"] * 2}), with_kwargs=True)), X
)
def test_pre_hook_kwargs(m, x):
    return m(x=x)


@torch_program(
    mod(lambda m: m.register_forward_hook(lambda mod, i, k, o: o + k["x"].sum(), with_kwargs=True)), X
)
def test_forward_hook_kwargs(m, x):
    return m(x=x)


@torch_program(mod(lambda m: m.register_forward_hook(lambda mod, i, o: o + 1, always_call=True)), X)
def test_forward_hook_always(m, x):
    return m(x)


@torch_program(
    mod(
        lambda m: m.a.register_full_backward_hook(
            lambda mod, gi, go: (gi[0] * 2,) if gi[0] is not None else None
        )
    ),
    G,
    breaks="unsupported-call",
)
def test_full_backward_hook(m, x):
    return m(x)


@torch_program(
    mod(lambda m: m.a.register_full_backward_pre_hook(lambda mod, go: (go[0] * 2,))),
    G,
    breaks="unsupported-call",
)
def test_full_backward_pre_hook(m, x):
    return m(x)


@torch_program(mod(lambda m: m.a.register_backward_hook(lambda mod, gi, go: None)), G, breaks="grad-fn-read")
def test_backward_hook_legacy(m, x):
    return m(x)


@torch_program(mod(lambda m: m.a.weight.register_hook(lambda g: g * 2)), G)
def test_param_hook(m, x):
    return m(x)


@torch_program(mod(lambda m: m.a.weight.register_post_accumulate_grad_hook(double_grad)), G)
def test_param_post_hook(m, x):
    return m(x)


@torch_program(mod(lambda m: None), X)
def test_hook_registered_inside(m, x):
    h = m.a.register_forward_hook(lambda mod, i, o: o * 3)
    y = m(x)
    h.remove()
    return y, m(x)


@torch_program(mod(lambda m: None), X)
def test_state_dict(m, x):
    sd = m.state_dict()
    return m(x), list(sd), sd["a.weight"] * 2


@torch_program(
    mod(lambda m: m.register_state_dict_post_hook(lambda mod, sd, prefix, meta: sd.update(extra=1))),
    X,
)
def test_state_dict_hook(m, x):
    return m(x), list(m.state_dict())


@torch_program(mod(lambda m: None), mod(lambda m: None), X)
def test_load_state_dict(m, n, x):
    m.load_state_dict(n.state_dict())
    return m(x)


@torch_program(mod(lambda m: None), X)
def test_global_hook(m, x):
    h = nn.modules.module.register_module_forward_hook(lambda mod, i, o: o * 2)
    try:
        return m(x)
    finally:
        h.remove()


@torch_program(mod(lambda m: None), X)
def test_global_hook_pre(m, x):
    h = nn.modules.module.register_module_forward_pre_hook(lambda mod, i: (i[0] * 2,))
    try:
        return m(x)
    finally:
        h.remove()


@torch_program(mod(lambda m: None), X)
def test_params_iter(m, x):
    return (
        sum(p.sum() for p in m.parameters()),
        [n for n, _ in m.named_parameters()],
        [type(c).__name__ for c in m.children()],
        [n for n, _ in m.named_modules()],
        len(list(m.buffers())),
        [n for n, _ in m.named_children()],
        m(x),
    )


@torch_program(mod(lambda m: None), X)
def test_train_eval(m, x):
    m.eval()
    a = m.training
    y = m(x)
    m.train()
    return y, a, m.training


@torch_program(mod(lambda m: None), X)
def test_requires_grad_module(m, x):
    m.a.requires_grad_(False)
    return m(x)


@torch_program(mod(lambda m: None), X)
def test_zero_grad(m, x):
    m.zero_grad()
    return m(x)


@torch_program(mod(lambda m: None), X)
def test_to(m, x):
    m.to(torch.float32)
    m.float()
    return m(x)


@torch_program(mod(lambda m: None), X)
def test_double(m, x):
    m.double()
    return m(x.double())


@torch_program(mod(lambda m: None), X)
def test_apply(m, x):
    def init(mod):
        if isinstance(mod, nn.Linear):
            nn.init.constant_(mod.weight, 0.5)

    m.apply(init)
    return m(x)


@torch_program(mod(lambda m: None), X)
def test_getters(m, x):
    return (
        m.get_submodule("a")(x),
        m.get_parameter("a.weight").shape,
        m.extra_repr(),
        m._get_name(),
        len(list(m.modules())),
    )


@torch_program(mod(lambda m: None), X)
def test_register_inside(m, x):
    m.register_buffer("buf", torch.ones(4))
    return m(x + m.buf)


@torch_program(mod(lambda m: None), X)
def test_setattr_module(m, x):
    m.k = 3
    m.t = x * 2
    return m(x) * m.k


@torch_program(mod(lambda m: m.register_buffer("n", torch.zeros(()))), X)
def test_buffer_update(m, x):
    m.n += 1
    y = m(x)
    m.n = m.n * 2
    return y


@torch_program(X)
def test_module_made(x):
    return (
        nn.ReLU()(x),
        nn.Identity()(x),
        nn.Dropout(0.0)(x),
        nn.Softmax(dim=1)(x),
        nn.Flatten()(x),
        nn.MSELoss()(x, x + 1),
        nn.CrossEntropyLoss()(x, torch.tensor([0, 1, 2])),
        nn.LayerNorm(4, elementwise_affine=False)(x),
    )


@torch_program(X, breaks="unsupported-call")
def test_linear_made(x):
    torch.manual_seed(0)
    return nn.Linear(4, 2)(x)


@torch_program(mod(lambda m: parametrize.register_parametrization(m.a, "weight", Sym())), X)
def test_parametrize(m, x):
    return m(x)


class Sym(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).t()


@torch_program(mod(lambda m: parametrizations.weight_norm(m.a)), X)
def test_weight_norm(m, x):
    return m(x)


@torch_program(mod(lambda m: nn.utils.weight_norm(m.a)), X)
def test_weight_norm_old(m, x):
    return m(x)


@torch_program(mod(lambda m: parametrizations.spectral_norm(m.a)), X)
def test_spectral_norm(m, x):
    return m(x)


@torch_program(mod(lambda m: parametrizations.spectral_norm(m.a).eval()), X)
def test_spectral_norm_eval(m, x):
    return m.eval()(x)


@torch_program(mod(lambda m: nn.utils.spectral_norm(m.a)), X)
def test_spectral_norm_old(m, x):
    return m(x)


@torch_program(mod(lambda m: parametrizations.orthogonal(m.a)), X)
def test_orthogonal(m, x):
    return m(x)


@torch_program(
    mod(lambda m: __import__("torch.nn.utils.prune").nn.utils.prune.l1_unstructured(m.a, "weight", 0.5)), X
)
def test_prune(m, x):
    return m(x)


@torch_program(lambda: nn.LazyLinear(3), X, breaks="unsupported-call")
def test_lazy_linear(m, x):
    return m(x).shape, type(m).__name__


class LazyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.LazyLinear(4)
        self.b = nn.Sequential(nn.LazyConv1d(3, 1), nn.Dropout(0.5), nn.LazyBatchNorm1d())

    def forward(self, x):
        return self.b(F.dropout(self.a(x)))


def test_the_call_that_makes_parameters_is_eagers():
    """All of it, so that nothing is compiled for the modules that it replaces, and nothing breaks."""
    results = []
    for compiling in (False, True):
        torch.manual_seed(0)
        net = LazyNet()
        regions = []

        def backend(gm, inputs, regions=regions):
            regions.append(gm)
            return gm.forward

        f = graphlift.compile(net, backend=backend, fullgraph=True) if compiling else net
        x = torch.linspace(0, 1, 30).view(2, 3, 5)
        results.append([f(x) for _ in range(3)] + [torch.get_rng_state(), net.b[2].running_mean])
        assert len(regions) == compiling
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_explain_says_that_the_first_call_of_a_lazy_module_is_eagers():
    found = graphlift.explain(LazyNet())(torch.ones(2, 3, 5))
    assert [reason.code for reason in found.break_reasons] == ["unsupported-call"]
    assert "lazy module" in str(found)


class LazyM(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.LazyLinear(3)
        self.bn = nn.LazyBatchNorm1d()

    def forward(self, x):
        return self.bn(self.l(x))


class Packed(nn.Module):
    """Sequences of the lengths 2 and 3."""

    def __init__(self, cls):
        super().__init__()
        self.rnn = cls(4, 3, batch_first=True)

    def forward(self, x):
        packed = pack_padded_sequence(x[None] * 2, [3], batch_first=True, enforce_sorted=False)
        y, hidden = self.rnn(packed)
        return pad_packed_sequence(y, batch_first=True)[0] * 2, hidden


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 3)
        self.l.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))

    def forward(self, x):
        return self.l((x * 2).requires_grad_()) * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "auto"])
@pytest.mark.parametrize(
    "make, breaks",
    [
        (LazyM, (0, 0)),
        (lambda: Packed(nn.LSTM), (3, 3)),
        (lambda: Packed(nn.GRU), (3, 3)),
        (Hooked, (2, 2)),
    ],
)
def test_what_runs_as_a_whole_is_one_break(make, breaks, backend):
    """`breaks`: in the first call, and after three."""
    graphlift.reset()
    found = []
    eager, module = seeded(make)(), seeded(make)()
    compiled = Settings(backend=backend).callable(module, on_region=(found.append,))
    for call in range(3):
        results = [torch.manual_seed(call) and fn(X()) for fn in (compiled, eager)]
        assert_equal(*results)
        for result in results:
            (result if isinstance(result, torch.Tensor) else result[0]).sum().backward()
        assert_equal(module.state_dict(), eager.state_dict())
        assert_equal([p.grad for p in module.parameters()], [p.grad for p in eager.parameters()])
        if call in (0, 2):
            assert sum(region.break_reason is not None for region in found) == breaks[call // 2]
    assert type(module) is type(eager) and [*map(type, module.children())] == [*map(type, eager.children())]


def rnn(cls, **kw):
    return seeded(lambda: cls(4, 6, **kw))


@torch_program(rnn(nn.RNN), S)
def test_rnn(m, x):
    return m(x)


@torch_program(rnn(nn.LSTM), S)
def test_lstm(m, x):
    return m(x)


@torch_program(rnn(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2), S)
def test_lstm_big(m, x):
    return m(x)


@torch_program(rnn(nn.LSTM, proj_size=3), S)
def test_lstm_proj(m, x):
    return m(x)


@torch_program(rnn(nn.GRU), S)
def test_gru(m, x):
    return m(x, torch.zeros(1, 3, 6))


@torch_program(rnn(nn.LSTMCell), X)
def test_lstm_cell(m, x):
    h = None
    for _ in range(2):
        h = m(x, h)
    return h


@torch_program(rnn(nn.GRUCell), X)
def test_gru_cell(m, x):
    return m(x)


@torch_program(rnn(nn.RNNCell, nonlinearity="relu"), X)
def test_rnn_cell(m, x):
    return m(x)


@torch_program(S)
def test_pad_sequence(x):
    return nn.utils.rnn.pad_sequence([x[0], x[1, :2]], batch_first=True)


@torch_program(seeded(lambda: nn.MultiheadAttention(4, 2)), S)
def test_mha(m, x):
    return m(x, x, x)


@torch_program(seeded(lambda: nn.MultiheadAttention(4, 2, batch_first=True, dropout=0.1)), S)
def test_mha_mask(m, x):
    return m(x, x, x, attn_mask=torch.triu(torch.ones(3, 3), 1).bool(), need_weights=False)


@torch_program(seeded(lambda: nn.MultiheadAttention(4, 2, batch_first=True).eval()), S)
def test_mha_eval(m, x):
    return m(x, x, x)


@torch_program(seeded(lambda: nn.MultiheadAttention(4, 2, batch_first=True).eval().requires_grad_(False)), S)
def test_mha_fast(m, x):
    return m(x, x, x, key_padding_mask=torch.zeros(5, 3, dtype=torch.bool))


@torch_program(
    seeded(lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True, kdim=4, vdim=4)), S
)
def test_mha_bias(m, x):
    return m(x, x, x, average_attn_weights=False)


@torch_program(seeded(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)), S)
def test_encoder_layer(m, x):
    return m(x)


@torch_program(
    seeded(
        lambda: (
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True, activation="gelu")
            .eval()
            .requires_grad_(False)
        )
    ),
    S,
)
def test_encoder_fast(m, x):
    return m(x)


@torch_program(
    seeded(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2).eval()), S
)
def test_encoder(m, x):
    return m(x, mask=nn.Transformer.generate_square_subsequent_mask(3), is_causal=True)


@torch_program(
    seeded(
        lambda: (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)
            .eval()
            .requires_grad_(False)
        )
    ),
    S,
    breaks="unsupported-fake-op",
)
def test_encoder_nested(m, x):
    return m(x, src_key_padding_mask=torch.tensor([[False, False, True]] * 5))


@torch_program(seeded(lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 1)), S)
def test_decoder(m, x):
    return m(x, x)


@torch_program(seeded(lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True)), S)
def test_transformer(m, x):
    return m(x, x, tgt_mask=m.generate_square_subsequent_mask(3))


@torch_program(seeded(lambda: nn.EmbeddingBag(10, 4)), lambda: torch.tensor([1, 2, 3, 4]))
def test_embedding_bag(m, i):
    return m(i, torch.tensor([0, 2])), m(i.view(2, 2))


@torch_program(seeded(lambda: nn.EmbeddingBag(10, 4, mode="max")), lambda: torch.tensor([1, 2, 3, 4]))
def test_embedding_bag_max(m, i):
    return m(i.view(2, 2))


@torch_program(
    seeded(lambda: nn.EmbeddingBag(10, 4, mode="sum", include_last_offset=True)),
    lambda: torch.tensor([1, 2, 3, 4]),
)
def test_embedding_bag_sum(m, i):
    return m(i, torch.tensor([0, 2, 4]), per_sample_weights=torch.ones(4))


@torch_program(
    seeded(lambda: nn.Embedding(10, 4, padding_idx=0, max_norm=1.0)), lambda: torch.tensor([1, 2, 3, 0])
)
def test_embedding_norm(m, i):
    return m(i)


@torch_program(seeded(lambda: nn.Embedding(10, 4, sparse=True)), lambda: torch.tensor([1, 2, 3, 0]))
def test_embedding_sparse(m, i):
    return m(i)


B4 = real(2, 4, 6, 6)


@torch_program(
    seeded(
        lambda: nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
    ),
    B4,
)
def test_conv_bn(m, x):
    return m(x)


@torch_program(
    seeded(
        lambda: nn.Sequential(
            nn.Conv2d(4, 4, 3, padding_mode="circular", padding=1),
            nn.InstanceNorm2d(4, track_running_stats=True),
            nn.PReLU(),
            nn.ConvTranspose2d(4, 2, 2),
            nn.Upsample(scale_factor=2),
            nn.GroupNorm(1, 2),
            nn.Dropout2d(0.5),
            nn.AdaptiveAvgPool2d(1),
        )
    ),
    B4,
)
def test_conv_misc(m, x):
    return m(x)


@torch_program(seeded(lambda: nn.BatchNorm1d(4, momentum=None)), X, breaks="tensor-item")
def test_bn_cumulative(m, x):
    return m(x)


@torch_program(seeded(lambda: nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])), X)
def test_module_list(m, x):
    for i, layer in enumerate(m):
        x = layer(x) * i
    return m[-1](x), len(m), m[1:][0](x), [type(k).__name__ for k in reversed(m)]


@torch_program(seeded(lambda: nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.ReLU()})), X)
def test_module_dict(m, x):
    for _, layer in m.items():
        x = layer(x)
    return m["a"](x), "a" in m, list(m.keys()), len(m)


@torch_program(seeded(lambda: nn.ParameterList([torch.ones(4), torch.zeros(4)])), X)
def test_param_list(m, x):
    return sum(p * x for p in m), m[0] + x, len(m)


@torch_program(seeded(lambda: nn.ParameterDict({"a": torch.ones(4)})), X)
def test_param_dict(m, x):
    return m["a"] * x, "a" in m, list(m.items())[0][0]


@torch_program(seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())), X)
def test_sequential(m, x):
    return m[0](x), len(m), m[:1](x), [k for k, _ in m.named_children()]


@torch_program(seeded(lambda: nn.Bilinear(4, 4, 2)), X)
def test_bilinear(m, x):
    return m(x, x)


@torch_program(seeded(lambda: nn.Linear(4, 4)), X)
def test_params_to_vector(m, x):
    v = nn.utils.parameters_to_vector(m.parameters())
    return v * 2


@torch_program(seeded(lambda: nn.Linear(4, 4)), X)
def test_weight_tied(m, x):
    return F.linear(x, m.weight) + F.linear(x, m.weight.t())


class NoForward(nn.Module):
    pass


@torch_program(lambda: NoForward(), X, breaks="raises")
def test_no_forward(m, x):
    return m(x)


class Weird(nn.Module):
    def __init__(self):
        super().__init__()
        self.fns = [nn.Linear(4, 4)]
        self.w = nn.Parameter(torch.ones(4))
        self.cfg = {"a": 2}

    def __getattr__(self, n):
        if n == "dyn":
            return 5
        return super().__getattr__(n)

    def __call__(self, *a, **k):
        return super().__call__(*a, **k) * 2

    def forward(self, x):
        return self.fns[0](x) * self.w * self.dyn * self.cfg["a"]


@torch_program(seeded(lambda: Weird()), X)
def test_weird(m, x):
    return m(x)


@torch_program(seeded(lambda: nn.Linear(4, 4)), X)
def test_swap_param(m, x):
    m.weight = nn.Parameter(torch.ones(4, 4))
    return m(x)


@torch_program(seeded(lambda: nn.Linear(4, 4)), X)
def test_param_data(m, x):
    m.weight.data.fill_(0.5)
    m.weight.data = m.weight.data * 2
    return m(x)


@torch_program(seeded(lambda: nn.Linear(4, 4)), X)
def test_param_copy(m, x):
    with torch.no_grad():
        m.weight.copy_(torch.ones(4, 4))
        m.bias.zero_()
    return m(x)


@torch_program(seeded(lambda: nn.Linear(4, 4)), X)
def test_ema(m, x):
    with torch.no_grad():
        for p in m.parameters():
            p.data.mul_(0.9).add_(p.data, alpha=0.1)
    return m(x)


# --- parameters and modules made in captured code ---------------------------------------------------------------


@torch_program(X)
def test_parameters_made(x):
    kept, plain, buffer = nn.Parameter(x * 2), nn.Parameter(x, requires_grad=False), nn.Buffer(x + 1)
    listed = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4) * 2)])
    with torch.no_grad():
        plain.add_(1)
    return kept, kept.is_leaf, plain, buffer + 1, sum(x * p for p in listed), x


@torch_program(X)
def test_modules_made(x):
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.BatchNorm1d(3))
    table = nn.Embedding.from_pretrained(x)
    with torch.device("meta"):
        empty = nn.Linear(4, 4)
    return net, net(x), table(torch.tensor([0, 1])), empty.weight.device


class MadeLate(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        if not hasattr(self, "w"):
            self.w = nn.Parameter(torch.ones(4))
            self.register_buffer("b", torch.ones(4))
        return self.a(x) * self.w + self.b


@torch_program(seeded(MadeLate), X)
def test_parameters_made_at_the_first_call(m, x):
    return m(x), [name for name, _ in m.named_parameters()]


@torch_program(X, breaks="print-or-io")
def test_parameter_kept_over_a_break(x):
    p = nn.Parameter(x * 2)
    print("", end="")
    return p * 2, type(p), isinstance(p, nn.Parameter)


@torch_program(X)
def test_gradient_of_a_parameter_made(x):
    p = nn.Parameter(x * 2)
    (grad,) = torch.autograd.grad((p * p).sum(), p)
    return grad


class _Traced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor, scale: int = 2) -> torch.Tensor:
        return self.norm(self.linear(x)).relu() * scale


def test_modules_made_by_fx():
    """A GraphModule, also as a part, is one graph; its errors are eager's."""
    expected = torch.fx.symbolic_trace(_Traced())
    traced = copy.deepcopy(expected)
    report = graphlift.explain(nn.Sequential(copy.deepcopy(traced)), backend="eager")(torch.randn(3, 4))
    assert report.graph_count == 1 and not report.break_sites
    compiled = graphlift.compile(traced, backend="aot_eager")
    for x in torch.randn(2, 3, 4):
        ours, theirs = compiled(x), expected(x)
        torch.testing.assert_close(ours, theirs)
        ours.sum().backward()
        theirs.sum().backward()
    for ours, theirs in zip(traced.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert torch.equal(traced.get_buffer("norm.running_mean"), expected.get_buffer("norm.running_mean"))
    with pytest.raises(RuntimeError) as theirs:
        expected(torch.randn(3, 5))
    with pytest.raises(RuntimeError) as ours:
        compiled(torch.randn(3, 5))
    assert str(ours.value) == str(theirs.value)
