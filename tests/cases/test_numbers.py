"""Reported programs about numerics, dtypes, strides, randomness and errors: eager's answer, often to the last bit."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cases.case import Compile, case, outcome


@case("pt#197108")
def test_var_mean_of_nothing(compile: Compile):
    region = compile(lambda x: torch.var_mean(x))
    out = region(torch.empty(0))
    assert all(math.isnan(value) for value in out)
    return out, region(torch.ones(3)), compile(lambda x: torch.var_mean(x, dim=1))(torch.empty(2, 0))


@case("pt#197108")
def test_reductions_of_nothing(compile: Compile):
    @compile
    def region(x: Tensor) -> list[Tensor]:
        return [x.sum(), x.mean(), x.prod(), x.sum(0), x.mean(1), x.any(), x.all(), x.std(), x.softmax(1)]

    return (
        region(torch.empty(0, 3)),
        region(torch.empty(2, 0)),
        outcome(compile(lambda x: x.amax(0)), torch.empty(0)),
    )


@case("pt#181568", exact=True)
def test_matmul_rounded_before_the_bias(compile: Compile):
    region = compile(lambda x, w, b: (x @ w).to(torch.bfloat16) + b)
    return region(torch.randn(16, 32), torch.randn(32, 64), torch.randn(64, dtype=torch.bfloat16))


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


@case("pt#182225", exact=True)
def test_rotary_embedding_in_bfloat16(compile: Compile):
    @compile
    def region(q: Tensor, positions: Tensor, inverse: Tensor) -> Tensor:
        angles = positions[:, None].float() * inverse[None, :]
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
        return q * cos + rotate_half(q) * sin

    q = torch.randn(2, 4, 16, 32, dtype=torch.bfloat16)
    inverse = 1.0 / (10000 ** (torch.arange(0, 32, 2).float() / 32))
    return region(q, torch.arange(16), inverse)


@case("pt#182225", exact=True)
def test_chains_in_low_precision(compile: Compile):
    """Every operation rounds, as in eager, however much is fused."""
    region = compile(lambda a, b, c: (a * b + c, (a + b) - a, (a * 3 - b) * c, (a - b).abs() / (c.abs() + 1)))
    return [
        region(*(torch.randn(97, dtype=dtype) for _ in range(3))) for dtype in (torch.bfloat16, torch.float16)
    ]


@case("pt#113169", exact=True)
def test_dropout_from_one_seed(compile: Compile):
    region = compile(lambda x: F.dropout(x, 0.5) + F.dropout(x * 2, 0.1))
    outs = []
    for _ in range(2):
        torch.manual_seed(7)
        outs += [region(torch.ones(64)), region(torch.ones(64)), torch.rand(2)]
    return outs


@case("pt#113169", exact=True)
def test_random_numbers_in_order(compile: Compile):
    @compile
    def region(x: Tensor) -> tuple[Tensor, ...]:
        noise = torch.randn_like(x)
        return (
            noise + x,
            torch.rand(3),
            torch.randint(0, 10, (4,)),
            torch.bernoulli(x.sigmoid()),
            torch.randperm(5),
        )

    torch.manual_seed(3)
    return region(torch.ones(8)), region(torch.zeros(8)), torch.rand(1)


@case("pt#113169")
def test_dropout_gradient_uses_the_same_mask(compile: Compile):
    x = torch.ones(64, requires_grad=True)
    region = compile(lambda x: F.dropout(x, 0.5) * 3)
    torch.manual_seed(11)
    out = region(x)
    out.sum().backward()
    torch.testing.assert_close(out.detach(), x.grad)
    return out, x.grad


@case("pt#105264")
def test_integer_overflow_before_the_cast(compile: Compile):
    region = compile(lambda a, b: (a + b).to(torch.int16))
    a = torch.full((3,), 128, dtype=torch.uint8)
    out = region(a, a)
    assert out.tolist() == [0, 0, 0]
    return out


@case("pt#105264")
def test_integer_arithmetic_wraps(compile: Compile):
    @compile
    def region(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return (a + b) // 2, a * b, a - b, -a, (a * a).sum(), a << 1, a.float() * b, a % (b.abs() + 1)

    limits = {torch.int8: 127, torch.int16: 32767, torch.int32: 2**31 - 1, torch.int64: 2**63 - 1}
    return [
        region(torch.tensor([top, 1, -top], dtype=dtype), torch.tensor([3, top, 2], dtype=dtype))
        for dtype, top in limits.items()
    ]


@case("pt#156788")
def test_negative_float_to_unsigned(compile: Compile):
    region = compile(lambda x: (x * 1).to(torch.uint8))
    values = [-1.0, -1.5, -128.0, -200.0, -255.0, 0.0, 3.7, 255.0]
    return (
        region(torch.tensor(values)),
        region(torch.tensor(values * 16)),
        region(torch.tensor(values).double()),
    )


@case("pt#148950")
def test_conjugate_view_added(compile: Compile):
    region = compile(lambda x: x + torch.conj(x))
    x = torch.tensor([1 + 2j, 3 - 1j])
    out = region(x)
    assert out.tolist() == [2, 6]
    return out, region(x.conj())


@case("pt#102546")
def test_reduction_of_a_scalar_tensor(compile: Compile):
    region = compile(lambda x: (x.mean(0), x.sum(-1), x.amax(0), x.softmax(0), x.argmax(0), x.cumsum(0)))
    return region(torch.tensor(3.0))


@case("pt#95370")
def test_argmin_of_nothing(compile: Compile):
    x = torch.empty(0, 3)
    region = compile(lambda x, dim: x.argmin(dim))
    return outcome(region, x, 1), outcome(region, x, 0), outcome(compile(lambda x: x.argmin()), x)


@case("pt#95370", exact=True)
def test_ties_and_nan_in_argument_reductions(compile: Compile):
    @compile
    def region(x: Tensor) -> tuple[Tensor, ...]:
        return x.argmin(1), x.argmax(1), x.max(1).indices, x.min(0).values, x.amax(), x.clamp(-1, 1)

    nan = float("nan")
    return region(torch.tensor([[1.0, 1.0, nan, nan], [2.0, 0.0, 0.0, 2.0], [-0.0, 0.0, -0.0, 0.0]]))


@case("pt#194976")
def test_clamp_limit_that_changes(compile: Compile):
    region = compile(lambda x, limit: x.clamp(max=limit))
    outs = [region(torch.ones(2) * 9, limit) for limit in (1.0, 2.5, 3.0, 1.0, -0.5)]
    assert [out[0].item() for out in outs] == [1, 2.5, 3, 1, -0.5]
    return outs


@case("pt#194976")
def test_numbers_that_change(compile: Compile):
    """Python numbers among the arguments, in every role, of every kind."""
    region = compile(lambda x, a, b: (x * a + b).clamp(min=b, max=a).pow(a) if a else x - b)
    numbers = [(2, 1.5), (2.0, 1.5), (True, 1), (0, 3), (3, float("inf")), (-0.0, 2), (2, 1.5)]
    return [region(torch.tensor([0.5, 2.0]), a, b) for a, b in numbers]


@case("pt#158087")
def test_integer_of_nan_raises(compile: Compile):
    region = compile(lambda x: x * int(x.sum()))
    bad = outcome(region, torch.tensor([float("nan"), 1.0]))
    assert bad[0] == "raised"
    good = outcome(region, torch.tensor([1.0, 1.0]))
    return bad, good, outcome(compile(lambda x, y: x * int(y)), torch.ones(1), float("nan"))


@case("pt#177630")
def test_half_times_float_raises(compile: Compile):
    bad = outcome(compile(lambda a, b: a @ b), torch.ones(2, 2, dtype=torch.float16), torch.ones(2, 2))
    assert bad[1] is RuntimeError
    return bad


@case("pt#177630")
def test_errors_of_operators(compile: Compile):
    """Type and message of what eager raises, whichever operator refuses."""
    programs = (
        lambda x: x @ x,
        lambda x: x.view(5),
        lambda x: torch.cat([x, x[:, :1]], dim=0),
        lambda x: x + torch.ones(4),
        lambda x: x[5],
        lambda x: x.sum(7),
        lambda x: F.linear(x, torch.ones(2, 2)),
        lambda x: x.no_such_method(),
        lambda x: x.reshape(-1, -1),
    )
    results = [outcome(compile(program), torch.ones(2, 3)) for program in programs]
    assert all(result[0] == "raised" for result in results)
    return results


@case("pt#130394")
def test_strides_of_fresh_tensors(compile: Compile):
    @compile
    def region(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.empty_strided((4, 12), (16, 1))
        y.copy_(x)
        z = torch.zeros(4, 12).t()
        return y, y * 2, torch.empty_like(y).fill_(1), z, z + x.t(), torch.zeros_like(z)

    outs = region(torch.ones(4, 12))
    assert outs[0].stride() == (16, 1)
    return outs


@case("pt#183771")
def test_strides_of_interpolate_on_a_permuted_input(compile: Compile):
    region = compile(
        lambda x: (
            F.interpolate(x, scale_factor=2.0, mode="nearest"),
            F.interpolate(x, size=(5, 7), mode="bilinear", align_corners=False),
        )
    )
    return region(torch.randn(2, 4, 4, 3).permute(0, 3, 1, 2)), region(torch.randn(2, 3, 4, 4))


@case("pt#174963")
def test_as_strided_on_channels_last(compile: Compile):
    region = compile(lambda x: torch.as_strided(x * 1, (2, 4), (1, 2)) + 1)
    region_of_input = compile(lambda x: torch.as_strided(x, (2, 4), (1, 2), 1))
    x = torch.randn(1, 4, 3, 3).to(memory_format=torch.channels_last)
    return region(x), region_of_input(x)


@case("pt#174963")
def test_memory_formats_kept(compile: Compile):
    conv, norm = nn.Conv2d(3, 8, 3, padding=1).to(memory_format=torch.channels_last), nn.BatchNorm2d(8).eval()

    @compile
    def region(x: Tensor) -> tuple[Tensor, ...]:
        y = norm(conv(x)).relu()
        return y, F.max_pool2d(y, 2), y + 1, y.mean((2, 3)), y.contiguous(), y.clone(), y.sum(1)

    with torch.no_grad():
        return region(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last))


@case("pt#194504")
def test_batch_norm_with_cumulative_statistics(compile: Compile):
    norm = nn.BatchNorm1d(3, momentum=None)
    compiled = compile(norm)
    outs = [compiled(torch.randn(8, 3) + shift) for shift in (0, 1, 5)]
    assert norm.num_batches_tracked.item() == 3
    norm.eval()
    outs.append(compiled(torch.randn(8, 3)))
    return outs, norm.running_mean, norm.running_var, norm.num_batches_tracked
