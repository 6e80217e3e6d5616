"""Forms that training and inference code on GitHub is full of: eager's results over several calls, in few regions.

In: each form as a module or function with state of its own. Always: results, state and random numbers are eager's in
each call; nothing breaks, and there are as many regions as the form has kinds of calls.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import graphlift
from graphlift.api import Settings
from tests.equality import assert_equal

Form = Callable[[int], Any]
FORMS: dict[str, tuple[Callable[[], Any], int]] = {}


def form(regions: int = 1) -> Callable[[Any], Any]:
    """A class whose instances are called with the number of the call, or a function that is."""

    def register(made: Any) -> Any:
        FORMS[made.__name__] = (made if isinstance(made, type) else lambda: made, regions)
        return made

    return register


def ramp(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, math.prod(shape)).reshape(shape)


class State:
    """What is compared after each call beside the result."""

    model: nn.Module

    def state(self) -> Any:
        return [t.detach().clone() for t in self.model.state_dict().values()]


@form(regions=2)
class ExponentialAverage(State):
    def __init__(self) -> None:
        self.source = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.model = copy.deepcopy(self.source).eval()
        self.updates = 0
        for p in self.model.parameters():
            p.requires_grad_(False)

    def __call__(self, call: int) -> None:
        with torch.no_grad():
            self.updates += 1
            d = 0.9 * (1 - math.exp(-self.updates / 20))
            state = self.source.state_dict()
            for k, v in self.model.state_dict().items():
                if v.dtype.is_floating_point:
                    v *= d
                    v += (1 - d) * state[k].detach()


@form(regions=2)
class Cache(State):
    def __init__(self) -> None:
        self.model = nn.Module()
        self.model.register_buffer("k", torch.zeros(1, 8, 4))
        self.model.register_buffer("v", torch.zeros(1, 8, 4))
        self.position = 0

    def __call__(self, call: int) -> Tensor:
        x, k, v = ramp(1, 1, 4), self.model.k, self.model.v
        end = self.position + x.shape[1]
        k[:, self.position : end] = x
        v.index_copy_(1, torch.arange(self.position, end), x * 2)
        self.position = end
        return F.scaled_dot_product_attention(x, k[:, :end], v[:, :end])


@form(regions=2)
class Rotary(State):
    def __init__(self) -> None:
        self.model = nn.Module()
        self.model.register_buffer("inverse", 1 / (10000 ** (torch.arange(0, 4, 2).float() / 4)))
        self.cached = 0
        self.cos = self.sin = torch.zeros(0)

    def __call__(self, call: int) -> Tensor:
        x = ramp(2, 3, 4)
        n = x.shape[1]
        if n > self.cached:
            t = torch.arange(n, device=x.device, dtype=self.model.inverse.dtype)
            angles = torch.einsum("i,j->ij", t, self.model.inverse)
            angles = torch.cat((angles, angles), dim=-1)
            self.cos, self.sin, self.cached = angles.cos()[None], angles.sin()[None], n
        first, second = x.chunk(2, dim=-1)
        return x * self.cos[:, :n] + torch.cat((-second, first), dim=-1) * self.sin[:, :n]


@form(regions=2)
class BufferMadeInForward(State):
    def __init__(self) -> None:
        self.model = nn.Module()

    def __call__(self, call: int) -> Tensor:
        if not hasattr(self.model, "scale"):
            self.model.register_buffer("scale", torch.arange(3.0).cos(), persistent=call == 0)
        return ramp(3, 4) * self.model.scale[:, None]


@form(regions=3)
class ActNorm(State):
    def __init__(self) -> None:
        self.model = nn.BatchNorm1d(4)
        self.model.register_buffer("ready", torch.tensor(0, dtype=torch.uint8))

    def __call__(self, call: int) -> Tensor:
        if self.model.ready.item() == 0:
            with torch.no_grad():
                self.model.weight.copy_(ramp(3, 4).std(0))
                self.model.ready.fill_(1)
        return self.model(ramp(3, 4)) * (2 if self.model.num_batches_tracked > 2 else 1)


@form()
class Codebook(State):
    def __init__(self) -> None:
        self.model = nn.Module()
        for name, value in (("embed", ramp(4, 5)), ("count", torch.zeros(5)), ("mean", ramp(4, 5))):
            self.model.register_buffer(name, value)

    def __call__(self, call: int) -> Any:
        x, m = ramp(2, 3, 4), self.model
        flat = x.reshape(-1, 4)
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ m.embed + m.embed.pow(2).sum(0, keepdim=True)
        _, index = (-distance).max(1)
        one_hot = F.one_hot(index, 5).type(flat.dtype)
        quantized = F.embedding(index.view(*x.shape[:-1]), m.embed.T)
        m.count.data.mul_(0.9).add_(one_hot.sum(0), alpha=0.1)
        m.mean.data.mul_(0.9).add_(flat.T @ one_hot, alpha=0.1)
        m.embed.data.copy_(m.mean / (m.count + 1e-5).unsqueeze(0))
        return x + (quantized - x).detach(), (quantized.detach() - x).pow(2).mean(), index


@form()
class Lookups(State):
    def __init__(self) -> None:
        self.model = nn.Module()
        self.model.blocks = nn.ModuleDict({"in": nn.Linear(4, 4), "act": nn.ReLU(), "out": nn.Linear(4, 2)})
        self.model.layer0, self.model.layer1 = nn.Linear(2, 2), nn.Linear(2, 2)
        self.model.weights = nn.ParameterDict({"w": nn.Parameter(torch.ones(2))})

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def __call__(self, call: int) -> Any:
        x = ramp(3, 4)
        for name in ("in", "act", "none", "out"):
            if name in self.model.blocks:
                x = self.model.blocks[name](x)
        for i in range(2):
            x = getattr(self.model, f"layer{i}")(x)
        count = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        return x.to(self.device) * self.model.weights["w"], list(self.model.blocks), count


@form()
class Toggles(State):
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4))

    def __call__(self, call: int) -> Any:
        was = self.model.training
        self.model.eval()
        quiet = self.model(ramp(3, 4))
        self.model.train(was)
        return quiet, self.model(ramp(3, 4))


@form()
def losses(call: int) -> Any:
    logits, target = ramp(3, 4), torch.tensor([0, 1, 2])
    log_probabilities = F.log_softmax(logits, dim=-1)
    smooth = -log_probabilities.sum(dim=-1).mean() * 0.1 / logits.size()[-1]
    smooth = smooth + 0.9 * F.nll_loss(log_probabilities, target)
    hot = F.one_hot(target, 4).float()
    p = torch.sigmoid(logits)
    focal = F.binary_cross_entropy_with_logits(logits, hot, reduction="none")
    focal = focal * (1 - (p * hot + (1 - p) * (1 - hot))) ** 2.0
    return (
        smooth,
        (0.25 * hot + 0.75 * (1 - hot)) * focal,
        F.cross_entropy(logits, target, label_smoothing=0.1),
    )


@form()
def beams(call: int) -> Any:
    scores = torch.zeros(2)[:, None] + F.log_softmax(ramp(2, 5), -1)
    values, index = scores.view(-1).topk(2)
    beam = torch.div(index, 5, rounding_mode="floor")
    return values, torch.cat([torch.zeros(2, 1, dtype=torch.long)[beam], (index % 5)[:, None]], -1)


@form()
def sampling(call: int) -> Any:
    logits = ramp(2, 6)
    best, _ = torch.topk(logits, min(3, logits.size(-1)))
    logits[logits < best[:, [-1]]] = -float("inf")
    ordered, order = torch.sort(logits, descending=True)
    removed = torch.cumsum(F.softmax(ordered, -1), -1) > 0.6
    removed[..., 1:] = removed[..., :-1].clone()
    removed[..., 0] = 0
    logits = logits.masked_fill(removed.scatter(1, order, removed), -1e9)
    return torch.multinomial(F.softmax(logits, -1), 1), F.gumbel_softmax(ramp(2, 3), hard=True)


@form()
def windows(call: int) -> Any:
    x = ramp(1, 4, 4, 2)
    b, h, w, c = x.shape
    parts = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 2, 2, c)
    grid = torch.stack(torch.meshgrid([torch.arange(3), torch.arange(3)], indexing="ij")).flatten(1)
    relative = (grid[:, :, None] - grid[:, None, :]).permute(1, 2, 0).contiguous()
    relative[:, :, 0] += 2
    relative[:, :, 0] *= 5
    return torch.roll(parts, (-1, -1), (1, 2)), relative.sum(-1)


@form()
def padded_as_tensorflow(call: int) -> Any:
    x = ramp(1, 2, 5, 6)
    height, width = x.size()[-2:]
    ph = max((math.ceil(height / 2) - 1) * 2 + 3 - height, 0)
    pw = max((math.ceil(width / 2) - 1) * 2 + 3 - width, 0)
    return F.pad(x, [pw // 2, pw - pw // 2, ph // 2, ph - ph // 2]) if ph > 0 or pw > 0 else x


@form()
def checked(call: int) -> Any:
    x = ramp(2, 3)
    assert x.dim() == 2, f"found {x.shape}"
    if torch.jit.is_scripting() or torch.jit.is_tracing() or torch.onnx.is_in_onnx_export():
        return x
    if x.isnan().any():
        raise ValueError("not a number")
    return x * 2


def observed(fn: Form, made: Any) -> Any:
    torch.manual_seed(1)
    seen = []
    for call in range(5):
        result = fn(call)
        seen.append((result, made.state() if isinstance(made, State) else None, torch.get_rng_state()))
    return seen


def make(name: str) -> Any:
    torch.manual_seed(0)
    return FORMS[name][0]()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "auto"])
@pytest.mark.parametrize("name", FORMS)
def test_form(name: str, backend: str) -> None:
    graphlift.reset()
    regions: list[Any] = []
    eager, made = make(name), make(name)
    compiled = Settings(backend=backend).callable(made, on_region=(regions.append,))
    assert_equal(observed(compiled, made), observed(eager, eager))
    assert [str(region.break_reason) for region in regions if region.break_reason is not None] == []
    assert len(regions) == FORMS[name][1]
