"""Fake tensors report what eager's tensors report, and refuse what needs values."""

from __future__ import annotations

import itertools
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from graphlift.fake import DataDependent, FakeMode, FakeTensor, Unsupported

F = torch.nn.functional


def meta(t: Tensor) -> tuple:
    return (
        tuple(t.shape),
        t.stride(),
        t.storage_offset(),
        t.dtype,
        t.device,
        t.requires_grad,
        t.is_leaf,
        t.is_conj(),
        t._is_view(),
        t.grad_fn is not None,
    )


def fakes(mode: FakeMode, value: Any) -> Any:
    return tree_map(lambda v: mode.from_real(v) if isinstance(v, Tensor) else v, value)


def assert_same_metadata(f: Callable[..., Any], *args: Any) -> None:
    mode = FakeMode()
    with mode:
        found = f(*fakes(mode, args))
    expected = f(*args)
    for a, b in zip(tree_flatten(expected)[0], tree_flatten(found)[0], strict=True):
        if isinstance(a, Tensor):
            assert isinstance(b, FakeTensor)
            assert meta(a) == meta(b)
        else:
            assert a == b


X = torch.randn(3, 4)
G = torch.randn(3, 4, requires_grad=True)
IMAGE = torch.randn(2, 3, 8, 8)
SQUARES = torch.randn(2, 4, 6, 8).to(memory_format=torch.channels_last)
VOLUME = torch.randn(2, 4, 3, 6, 8).to(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (torch.relu, (X,)),
        (lambda a: a.t()[1:].unsqueeze(0), (G,)),
        (lambda a, b: F.linear(a, b), (G, torch.randn(5, 4))),
        (lambda a: (a * 2).view(-1).add_(1), (G,)),
        (lambda a: a.expand(2, 3, 4).sum((0, 1)), (X,)),
        (lambda a: F.layer_norm(a, (4,)), (G,)),
        (lambda a: torch.native_layer_norm(a, (4,), None, None, 1e-5), (X.bfloat16(),)),
        (lambda a: F.conv2d(a, torch.ones(5, 3, 3, 3)), (IMAGE.to(memory_format=torch.channels_last),)),
        (lambda a: F.pad(a, (1, 1, 1, 1), mode="reflect"), (IMAGE.to(memory_format=torch.channels_last),)),
        (lambda a: F.pad(a, (1, 1, 1, 1), mode="replicate"), (IMAGE.to(memory_format=torch.channels_last),)),
        (lambda a: F.pad(a, (1, 1) * 3, mode="replicate"), (VOLUME,)),
        (lambda a: F.pad(a, (1, 1) * 3, mode="reflect"), (VOLUME,)),
        (lambda a: F.channel_shuffle(a, 3), (IMAGE.to(memory_format=torch.channels_last),)),
        (lambda a: F.pixel_unshuffle(a, 2), (IMAGE.to(memory_format=torch.channels_last),)),
        (lambda a: F.max_unpool2d(a, torch.zeros_like(a, dtype=torch.int64), 2), (SQUARES,)),
        (lambda a: torch.ops.aten.glu_backward(a[:, :2], a, 1), (SQUARES,)),
        (lambda a: F.interpolate(a, scale_factor=2.0, mode="bilinear"), (IMAGE,)),
        (lambda a: F.scaled_dot_product_attention(a, a, a), (torch.randn(2, 4, 8, 16),)),
        (lambda a: torch.fft.rfftn(a), (torch.randn(5, 6, 7),)),
        (lambda a: torch.linalg.svd(a), (X,)),
        (lambda a: torch.linalg.svd(a), (torch.empty(3, 0, 5),)),
        (lambda a: torch.linalg.svd(a, full_matrices=False), (torch.empty(2, 0, 5),)),
        (lambda a: torch.linalg.eig(a), (torch.empty(0, 2, 2),)),
        (lambda a: a.to(torch.complex64).conj(), (X,)),
        (lambda a: torch.zeros(2, 3, dtype=torch.int32), (X,)),
        (lambda a: torch.empty_strided((16, 1), (1, 16)), (X,)),
        (lambda a: torch.ops.aten.native_dropout_backward(a.mT, a.mT > 0, 2.0), (X,)),
        (lambda a: a.split(2, 1), (G,)),
        (lambda a: torch.tensor([1.0, 2.0]), (X,)),
        (lambda a: a.new_zeros(2).resize_(7), (X,)),
        (lambda a: a.clone().t_().unsqueeze_(0), (X,)),
        (lambda a: torch.add(a, 1, out=torch.empty(0)), (X,)),
        (lambda a: a.detach(), (G,)),
        (lambda a: a.data, (G,)),
        (lambda a: F.dropout(a, 0.5), (G,)),
        (lambda a: torch.where(a > 0, a, 0), (G,)),
        (lambda a: a[torch.tensor([0, 2])], (G,)),
        (lambda a: a.is_contiguous(), (X.t(),)),
        (lambda a: torch.nn.LSTM(4, 5)(a)[0].shape, (torch.randn(3, 2, 4),)),
        (lambda a, w: torch.histogram(a, 5, weight=w), (X, torch.rand(3, 4))),
        (lambda a, bins: torch.histogram(a, bins), (X, torch.linspace(0, 1, 4))),
        (lambda a: torch.histogramdd(a, [2, 3]), (torch.randn(5, 2),)),
    ],
)
def test_metadata_is_eagers(f: Callable[..., Any], args: tuple) -> None:
    assert_same_metadata(f, *args)


@pytest.mark.parametrize(
    "f",
    [
        lambda a: a.sum().item(),
        lambda a: bool(a.sum() > 0),
        lambda a: float(a.sum()),
        lambda a: a.nonzero(),
        lambda a: a[a > 0],
        lambda a: torch.unique(a),
        lambda a: torch.equal(a, a + 1),
        lambda a: a.tolist(),
        lambda a: a.numpy(),
        lambda a: f"{a.sum():.3f}",
        lambda a: a.data_ptr(),
        lambda a: torch.masked_select(a, a > 0),
    ],
)
def test_what_needs_values_is_refused(f: Callable[[Tensor], Any]) -> None:
    mode = FakeMode()
    with mode, pytest.raises(DataDependent):
        f(mode.from_real(X))


def test_literals_keep_their_value_until_written() -> None:
    with FakeMode():
        t = torch.tensor(3.5)
        assert t.item() == 3.5
        t.add_(1)
        assert t.item() == 4.5
        t.add_(torch.rand(()))
        with pytest.raises(DataDependent):
            t.item()


@pytest.mark.parametrize(
    "f",
    [
        lambda a: a @ torch.randn(5, 5),
        lambda a: a.view(5),
        lambda a: a[7],
        lambda a: a.squeeze(9),
        lambda a: a.half() @ torch.randn(4, 4),
        lambda a: F.linear(a.double(), torch.randn(5, 4)),
        lambda a: a & a,
        lambda a: a.expand(2, 3, 4).add_(1),
        lambda a: a.view(-1)[1:].mul_(a.view(-1)[:-1]),
        lambda a: a.copy_(a.view(4, 3).t()),
        lambda a: torch.cat([a, torch.randn(2, 5)]),
        lambda a: a.amax(1) if a.numel() == 0 else torch.zeros(0, 3).argmin(0),
        lambda a: F.layer_norm(a, (5,)),
        lambda a: G.add_(1) if type(a) is Tensor else a.requires_grad_().add_(1),
        lambda a: a.reshape(2, 2).foo,
        lambda a: torch.select_scatter(a, a[0], 0, 9),
        lambda a: torch.select_scatter(a, a[0][:1], 0, 1),
        lambda a: torch.slice_scatter(a, a[:1], 0, 0, 3),
        lambda a: torch.slice_scatter(a, a[:2], 0, 0, 3, -1),
        lambda a: torch.ops.aten.select_backward(a[0], (3, 4), 0, 9),
        lambda a: torch.ops.aten.slice_backward(a[:2], (3, 4), 0, 0, 3, 1),
        lambda a: a.index_select(0, torch.tensor([[1]])),
        lambda a: a.softmax(3),
        lambda a: a.log_softmax(-3),
        lambda a: F.smooth_l1_loss(a, a, beta=-1.0),
        lambda a: F.linear(a, a[:1], a[0, :2]),
    ],
)
def test_errors_are_eagers(f: Callable[[Tensor], Any]) -> None:
    with pytest.raises(Exception) as eager:
        f(X.clone())
    mode = FakeMode()
    with mode, pytest.raises(type(eager.value)):
        f(mode.from_real(X.clone()))


@pytest.mark.parametrize(
    "f",
    [
        lambda a: F.conv1d(a[None], torch.randn(1, 3, 2), torch.randn(2)),
        lambda a: torch.addmv(a[0, :2], a[:1], a[0]),
        lambda a: F.nll_loss(a.view(1, 3, 2, 2), torch.zeros(1, 2, 1, dtype=torch.long)),
        lambda a: F.nll_loss(a.view(1, 3, 2, 2), torch.zeros(1, 2, 2, dtype=torch.long), torch.ones(1)),
        lambda a: F.batch_norm(a, a[:1], a[:1], training=True),
        lambda a: torch.ops.aten._softmax_backward_data(a, a[:1], 0, torch.float32),
    ],
)
def test_what_eager_refuses_is_left_to_it(f: Callable[[Tensor], Any]) -> None:
    with pytest.raises(RuntimeError):
        f(X.clone())
    mode = FakeMode()
    with mode, pytest.raises(Unsupported):
        f(mode.from_real(X.clone()))


def test_group_norm_takes_the_layouts_that_eagers_takes() -> None:
    def f(a: Tensor) -> Any:
        return torch.native_group_norm(a.view(1, 4, 3).mT, None, None, 1, 3, 4, 3, 1e-5)

    mode = FakeMode()
    try:
        expected = f(X)
    except RuntimeError as error:
        with mode, pytest.raises(RuntimeError) as found:
            f(mode.from_real(X))
        assert str(found.value) == str(error)
    else:  # from torch 2.14 on
        with mode:
            found = f(mode.from_real(X))
        assert [(t.shape, t.stride()) for t in found] == [(t.shape, t.stride()) for t in expected]


def test_the_same_tensor_is_the_same_fake_and_aliases_alias() -> None:
    mode = FakeMode()
    p = torch.nn.Parameter(torch.randn(4, 5))
    view = p.detach()[1:]
    fake, fake_view = mode.from_real(p), mode.from_real(view)
    assert mode.from_real(p) is fake
    assert isinstance(fake, torch.nn.Parameter)
    assert fake.home is fake_view.home
    assert fake.home is not mode.from_real(torch.randn(2)).home


def test_a_non_leaf_stays_one() -> None:
    mode = FakeMode()
    fake = mode.from_real((G * 2).t())
    assert meta(fake)[:3] == ((4, 3), (1, 4), 0)
    assert fake.requires_grad and not fake.is_leaf
    with mode:
        fake.add_(1)  # which a leaf would refuse


def test_real_tensors_do_not_live_longer_for_having_fakes() -> None:
    import weakref

    mode = FakeMode()
    t = torch.randn(3)
    fake, ref = mode.from_real(t), weakref.ref(t)
    del t
    assert ref() is None
    assert fake.shape == (3,)


def test_devices_this_machine_does_not_have() -> None:
    mode = FakeMode()
    a = mode.make((3, 4), torch.float32, "cuda")
    with mode:
        b = torch.relu(a @ mode.make((4, 5), torch.float32, "cuda:0"))
        assert b.device == torch.device("cuda", 0)
        assert a.to("cpu").device.type == "cpu"
        assert (a + torch.tensor(1.0)).device.type == "cuda"
        with pytest.raises(RuntimeError, match="same device"):
            a + torch.zeros(3, 4)


def test_sparse_has_no_fake() -> None:
    with pytest.raises(Unsupported):
        FakeMode().from_real(torch.eye(3).to_sparse())


def test_data_of_a_fake_can_be_replaced() -> None:
    mode = FakeMode()
    fake = mode.from_real(torch.zeros(2, 3))
    with mode:
        view = fake[:]
        fake.data = torch.ones(3, 4)
    assert fake.shape == fake.spec.shape == (3, 4)
    assert view.shape == (2, 3)
    assert view.home is not fake.home


def test_default_dtype_is_part_of_what_is_remembered() -> None:
    mode = FakeMode()
    ints = mode.from_real(torch.arange(3))
    with mode:
        assert (ints / 2).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert (ints / 2).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


def test_autocast_acts_on_fakes() -> None:
    mode = FakeMode()
    with mode, torch.autocast("cpu", torch.bfloat16):
        assert (mode.from_real(X) @ mode.from_real(X).t()).dtype == torch.bfloat16


_OF_THE_SAME_SHAPE: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.zeros_like,
    torch.rand_like,
    lambda t: torch.full_like(t, 2),
    lambda t: torch.native_dropout(t, 0.5, True)[1],
    lambda t: t.flip(0),
    lambda t: t.roll(1),
    lambda t: t.sort()[0],
    lambda t: t.argsort(stable=True),
    lambda t: torch.ones_like(t, memory_format=torch.contiguous_format),
)


@pytest.mark.parametrize("k", range(len(_OF_THE_SAME_SHAPE)))
def test_strides_of_what_has_the_shape_of_an_empty_tensor(k: int) -> None:
    transposed, gaps = torch.empty(2, 0, 3).transpose(0, 2), torch.empty(1, 4)[:, ::2][1:]
    for real in (torch.empty(0)[::2], gaps, transposed, torch.empty(0, 3).t()):
        mode = FakeMode()
        fake = mode.from_real(real)
        with mode:
            found = _OF_THE_SAME_SHAPE[k](fake).stride()
        assert found == _OF_THE_SAME_SHAPE[k](real).stride()


@pytest.mark.parametrize(
    "f", [torch.ones_like, torch.rand_like, lambda t: torch.full_like(t, 2), lambda t: t.flip(0)]
)
def test_what_is_like_a_dense_tensor_has_its_strides_of_dimensions_of_size_1_too(f: Callable) -> None:
    slices = torch.empty(6, 5)[:, :1], torch.empty(4, 3).t()[None, ..., None], torch.empty(3, 4)[:1].t()
    for real in slices:
        mode = FakeMode()
        with mode:
            found = f(mode.from_real(real)).stride()
        assert found == f(real).stride()


def test_a_hundred_random_chains_of_views() -> None:
    ops = (
        lambda t: t.transpose(0, -1),
        lambda t: t[..., 1:],
        lambda t: t[::2],
        lambda t: t.unsqueeze(1),
        lambda t: t.reshape(-1, t.shape[-1]),
        lambda t: t * 2,
        lambda t: t.expand(2, *t.shape),
        lambda t: t.contiguous(),
        lambda t: t.sum(0, keepdim=True),
        lambda t: torch.cat([t, t]),
        lambda t: t.permute(*reversed(range(t.dim()))),
    )
    for seed in range(100):
        r = random.Random(seed)
        chosen = [r.choice(ops) for _ in range(6)]

        def run(t: Tensor, chosen: list = chosen) -> Tensor:
            for f in chosen:
                t = f(t)
            return t

        assert_same_metadata(run, torch.randn(6, 5, 4))


def test_metadata_is_remembered_and_fast() -> None:
    mode = FakeMode()
    fake = mode.from_real(torch.randn(64, 64))
    with mode:
        torch.relu(fake @ fake)
        best = math.inf
        for _ in range(5):
            start = time.thread_time()
            for _ in range(200):
                torch.relu(fake @ fake)
            best = min(best, time.thread_time() - start)
    assert best < 0.1  # some 10 µs an operator; processor time, so that a busy machine does not count


def test_nothing_of_dynamo_is_imported() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import graphlift.fake, graphlift.aot\n"
        "m = graphlift.fake.FakeMode()\n"
        "with m: torch.zeros(3).relu()\n"
        "assert not [n for n in set(sys.modules) - before if n.startswith(('torch._dynamo', 'torch._inductor'))]"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.parametrize(
    "f",
    [
        *(
            torch.copysign,
            torch.xlogy,
            torch.special.xlog1py,
            torch.floor_divide,
            torch.heaviside,
            torch.logaddexp,
        ),
        *(torch.add, torch.logical_and, torch.atan2, torch.hypot, torch.maximum),
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
    ],
)
def test_layouts_of_two_arguments(f: Callable[..., torch.Tensor]) -> None:
    plain, turned = torch.rand(6, 5) + 1, (torch.rand(5, 6) + 1).mT
    deep = torch.rand(5, 4, 6).permute(1, 2, 0) + 1
    pairs = itertools.permutations((plain, turned, plain[:1], turned[:, :1], deep, deep[:, :1]), 2)
    for a, b in pairs:
        assert_same_metadata(f, a, b)


#: Shapes and strides of operands, in which sizes of one and missing dimensions decide.
_ODD_OPERANDS: tuple[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], ...] = (
    (((10, 10), (1, 10)), ((1, 10, 1), (10, 1, 1))),
    (((1, 2), (2, 1)), ((1, 1, 2), (1, 2, 1))),
    (((2, 1, 1, 1), (1, 2, 2, 2)), ((2, 1, 1, 1), (1, 1, 1, 1))),
    (((1, 3, 1, 2), (2, 2, 6, 1)), ((3, 1, 2), (2, 2, 1))),
    (((2, 3, 4, 5), (60, 1, 15, 3)), ((3, 1, 1), (1, 1, 1))),
    (((3, 0, 1), (1, 3, 3)), ((), ())),
    (((1, 2, 1), (1, 1, 1)), ((2, 1), (0, 1))),
)
_ELEMENTWISE: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add,
    torch.atan2,
    torch.eq,
    torch.logical_or,
    lambda a, b: torch.where(a > 0, b, 2.0),
    lambda a, b: torch.add(a.to(torch.int32), b),
    lambda a, b: torch.lerp(b, a, 0.5),
    lambda a, b: a.tanh(),
    lambda a, b: a * 2,
    lambda a, b: a.to(torch.int64).isinf(),
    lambda a, b: 2**a,
    lambda a, b: torch.nn.functional.hardtanh(a),
    lambda a, b: torch.ops.aten.threshold_backward(a, b, 0.5),
)


@pytest.mark.parametrize("k", range(len(_ELEMENTWISE)))
def test_strides_of_elementwise_results(k: int) -> None:
    f = _ELEMENTWISE[k]
    for operands in _ODD_OPERANDS:
        mode, reals = FakeMode(), [torch.empty_strided(*operand).zero_() for operand in operands]
        for a, b in (reals, reals[::-1]):
            with mode:
                found = f(mode.from_real(a), mode.from_real(b)).stride()
            assert found == f(a, b).stride()
