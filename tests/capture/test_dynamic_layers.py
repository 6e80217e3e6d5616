"""Layers, losses and operators on matrices over sizes that vary: one compilation, with its backward, for all of them.

Each is called as part of a training step with all its sizes marked dynamic; results and gradients equal eager's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, randn

import graphlift

from .test_dynamic import Counting, same

SIZES = ((4, 6), (6, 9), (9, 12), (13, 10))
WINDOW = torch.hann_window(16)
torch.manual_seed(0)
BAG = nn.EmbeddingBag(50, 8)
LARGEST_OF_BAG = nn.EmbeddingBag(50, 8, mode="max")
SCALED_BAG = nn.EmbeddingBag(50, 8, mode="sum")
BILINEAR = nn.Bilinear(8, 8, 5)
ATTENTION = nn.MultiheadAttention(8, 2, batch_first=True).eval()
NORMED = nn.Embedding(50, 8, max_norm=1.0)


def indices(*shape: int) -> Tensor:
    return torch.randint(0, 50, shape)


@torch.no_grad()
def attention(x):
    output, weights = ATTENTION(x, x, x, need_weights=False)
    return output, weights is None


def unpooled(x):
    return F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)


def activations(x):
    first = F.hardshrink(x) + F.softshrink(x) + F.celu(x) + F.elu(x) + F.leaky_relu(x) + F.softplus(x)
    return first + F.relu6(x) + F.hardsigmoid(x) + F.logsigmoid(x)


def matrix(b: int, n: int) -> tuple[Tensor]:
    return (randn(n, n),)


def matrices(b: int, n: int) -> tuple[Tensor]:
    return (randn(b, n, n) + 5 * torch.eye(n),)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[Tensor, ...]]]] = {
    "bags": (lambda i, w: BAG(i) * w, lambda b, n: (indices(b, n), randn(b, 1))),
    "bags by offsets": (
        lambda i, o, w: BAG(i, o) * w,
        lambda b, n: (indices(b * n), torch.arange(0, b * n, n), randn(b, 1)),
    ),
    "largest of bags": (lambda i, w: LARGEST_OF_BAG(i) * w, lambda b, n: (indices(b, n), randn(b, 1))),
    "scaled bags": (
        lambda i, w: SCALED_BAG(i, per_sample_weights=w),
        lambda b, n: (indices(b, n), randn(b, n)),
    ),
    "embedding with a norm": (lambda i, w: NORMED(i) * w, lambda b, n: (indices(b, n), randn(b, n, 1))),
    "bilinear": (BILINEAR, lambda b, n: (randn(b, n, 8), randn(b, n, 8))),
    "attention, fast": (attention, lambda b, n: (randn(b, n, 8),)),
    "stft": (
        lambda x: torch.stft(x, 16, 4, window=WINDOW, return_complex=True).abs(),
        lambda b, n: (randn(b, 16 * n),),
    ),
    "stft of one signal": (
        lambda x: torch.view_as_real(
            x.stft(16, window=WINDOW, center=False, normalized=True, return_complex=True)
        ),
        lambda b, n: (randn(16 * n),),
    ),
    "windows": (lambda x: x.unfold(1, 3, 1) * 2, lambda b, n: (randn(b, 2 * n),)),
    "unpool": (unpooled, lambda b, n: (randn(2, 3, 2 * b, 2 * n),)),
    "activations": (activations, lambda b, n: (randn(b, n),)),
    "margin loss": (lambda x, y: F.multi_margin_loss(x, y), lambda b, n: (randn(b, 8), indices(b) % 8)),
    "soft margins": (
        lambda x, y: F.multilabel_soft_margin_loss(x, y),
        lambda b, n: (randn(b, n), torch.ones(b, n, dtype=torch.long)),
    ),
    "masked scatter": (lambda x: x.masked_scatter(x > 0, x.flip(0)), lambda b, n: (randn(b, n),)),
    "put": (
        lambda x: x.clone().put_(torch.tensor([0, 1]), torch.tensor([1.0, 2.0])),
        lambda b, n: (randn(b, n),),
    ),
    "covariance": (lambda x: x.cov() + x.corrcoef(), lambda b, n: (randn(b, n),)),
    "kron": (lambda x, y: torch.kron(x, y), lambda b, n: (randn(b, n), randn(2, b))),
    "addr": (lambda x, a, b: torch.addr(x, a, b), lambda b, n: (randn(b, n), randn(b), randn(n))),
    "addbmm": (
        lambda x, y: torch.addbmm(torch.zeros(1), x, y),
        lambda b, n: (randn(b, n, 3), randn(b, 3, n)),
    ),
    "distances": (F.pdist, lambda b, n: (randn(b, n),)),
    "blocks": (
        lambda x, y: [torch.block_diag(x.detach(), y.detach())],
        lambda b, n: (randn(b, n), randn(2, b)),
    ),
    "singular values": (torch.linalg.svdvals, lambda b, n: (randn(b + n, n),)),
    "diag": (lambda x: torch.diag(x) + x[0], matrix),
    "qr": (lambda x: torch.linalg.qr(x)[1].abs(), lambda b, n: (randn(b + n, n),)),
    "pinv": (torch.linalg.pinv, lambda b, n: (randn(b + n, n),)),
    "lu": (
        lambda x: [torch.linalg.lu(x.detach())[2], torch.linalg.eigvals(x.detach()).abs().sum(-1)],
        matrices,
    ),
    "log-probability": (
        lambda x: torch.distributions.Normal(x, x.abs() + 1).log_prob(x * 2),
        lambda b, n: (randn(b, n),),
    ),
}


def step(fn: Callable[..., Any], args: tuple[Tensor, ...]) -> Any:
    """Result and gradients."""
    given = [x.detach().requires_grad_() if x.is_floating_point() else x for x in args]
    result = fn(*given)
    if not isinstance(result, Tensor):
        return result
    floats = [x for x in given if x.is_floating_point()]
    return result.detach(), [g.clone() for g in torch.autograd.grad((result * result).sum(), floats)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compilation_with_its_backward(name: str) -> None:
    fn, inputs = PROGRAMS[name]
    backend = Counting(aot=True)
    compiled = graphlift.compile(fn, backend=backend, dynamic=True)
    for size in SIZES:
        args = inputs(*size)
        same(step(compiled, args), step(fn, args))
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_spectra_are_no_views(dynamic: bool | None) -> None:
    """`torch.stft` turns what it made in place: the result is a tensor of its own, as in eager."""
    window = torch.hann_window(16)

    def spectrum(x: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 16, window=window, return_complex=True)

    compiled = graphlift.compile(spectrum, backend="aot_eager", dynamic=dynamic)
    for shape in ((100,), (2, 100), (3, 120), (130,)):
        x = torch.linspace(0, 1, 390).sin()[: math.prod(shape)].view(shape).requires_grad_()
        ours, theirs = compiled(x), spectrum(x)
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride() and not ours._is_view() and not theirs._is_view()
