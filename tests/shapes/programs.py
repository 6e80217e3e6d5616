"""Small programs over sizes that vary, for the tests that hold them against eager.

In: `x`, of shape (n, 6) unless a program says otherwise, for several n. Out: tensors, or plain values.
Always: deterministic, and nothing is kept between calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = Callable[[int], tuple[Any, ...]]


def rows(n: int) -> tuple[Tensor]:
    return (torch.randn(n, 6),)


def signal(n: int) -> tuple[Tensor]:
    return (torch.randn(2, 3, n),)


def image(n: int) -> tuple[Tensor]:
    return (torch.randn(2, 4, n, n + 3),)


@dataclass(frozen=True, slots=True)
class Program:
    """A function of tensors; `versions`: how often it is compiled for three sizes."""

    name: str
    run: Callable[..., Any]
    inputs: Inputs = rows
    versions: int = 1


PROGRAMS: dict[str, Program] = {}


#: Compiled for each size: the program does something that needs the number.
EACH_SIZE = 3


def program(inputs: Inputs = rows, versions: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        assert run.__name__ not in PROGRAMS
        PROGRAMS[run.__name__] = Program(run.__name__, run, inputs, versions)
        return run

    return register


# -- pictures and signals ----------------------------------------------------------------------------------------


@program(image)
def interpolate_by_two(x):
    return F.interpolate(x, scale_factor=2, mode="nearest")


@program(image)
def interpolate_by_half(x):
    return F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=False)


@program(image)
def interpolate_by_odd_factor(x):
    return F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True)


@program(image)
def interpolate_recomputed(x):
    return F.interpolate(x, scale_factor=1.5, mode="bicubic", recompute_scale_factor=True)


@program(image)
def interpolate_by_area(x):
    return F.interpolate(x, scale_factor=0.5, mode="area")


@program(image)
def interpolate_to_size_of_other(x):
    return F.interpolate(x[:, :, ::2, ::2], size=x.shape[2:], mode="bilinear")


@program(signal)
def interpolate_signal(x):
    return F.interpolate(x, scale_factor=2.0, mode="linear")


@program(signal)
def max_pool1d(x):
    return F.max_pool1d(x, 3, stride=2, padding=1)


@program(signal)
def max_pool1d_with_indices(x):
    return F.max_pool1d(x, 2, return_indices=True)


@program(signal)
def avg_pool1d(x):
    return F.avg_pool1d(x, 3, stride=1, padding=1)


@program(image)
def max_pool2d_ceil(x):
    return F.max_pool2d(x, 3, stride=2, ceil_mode=True)


@program(image)
def lp_pool2d(x):
    return F.lp_pool2d(x.abs() + 0.1, 2, 2)


@program(image)
def adaptive_avg_pool2d(x):
    return F.adaptive_avg_pool2d(x, (3, 2))


@program(image)
def adaptive_max_pool2d(x):
    return F.adaptive_max_pool2d(x, 2)


@program(signal)
def adaptive_avg_pool1d(x):
    return F.adaptive_avg_pool1d(x, 2)


@program(signal)
def adaptive_max_pool1d(x):
    return F.adaptive_max_pool1d(x, 3)


@program(image)
def global_pool(x):
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


@program(image)
def im2col(x):
    return F.unfold(x, 3, padding=1)


@program(image)
def im2col_and_back(x):
    columns = F.unfold(x, 2, stride=1)
    return F.fold(columns, x.shape[2:], 2)


@program(image)
def unfold_windows(x):
    return x.unfold(2, 2, 1).unfold(3, 2, 2).sum((-1, -2))


@program(signal)
def transposed_convolution1d(x):
    return F.conv_transpose1d(x, torch.ones(3, 2, 3) / 9, stride=2, padding=1, output_padding=1)


@program(image)
def transposed_convolution2d(x):
    return F.conv_transpose2d(x, torch.ones(4, 2, 2, 2) / 4, stride=2)


@program(image)
def convolution2d(x):
    return F.conv2d(x, torch.ones(3, 4, 3, 3) / 36, stride=2, padding=1)


@program(signal)
def convolution_same(x):
    return F.conv1d(x, torch.ones(5, 3, 3) / 9, padding="same")


@program(image)
def depthwise(x):
    return F.conv2d(x, torch.ones(4, 1, 3, 3) / 9, padding=1, groups=4)


@program(image)
def pixel_shuffle(x):
    return F.pixel_shuffle(x, 2)


@program(lambda n: (torch.randn(2, 3, 2 * n, 4),))
def pixel_unshuffle(x):
    return F.pixel_unshuffle(x, 2)


@program(image, versions=EACH_SIZE)
def grid_sample(x):
    h, w = x.shape[2:]
    ys, xs = torch.linspace(-1, 1, h), torch.linspace(-1, 1, w)
    grid = torch.stack(torch.meshgrid(ys, xs, indexing="ij")[::-1], -1).expand(x.shape[0], h, w, 2)
    return F.grid_sample(x, grid, align_corners=True)


@program(image)
def pad_reflect(x):
    return F.pad(x, (1, 1, 2, 2), mode="reflect")


@program(signal)
def pad_circular(x):
    return F.pad(x, (2, 1), mode="circular")


@program()
def pad_to_multiple(x):
    return F.pad(x, (0, 0, 0, -x.shape[0] % 8))


@program(image)
def group_norm(x):
    return F.group_norm(x, 2)


@program(image)
def instance_norm(x):
    return F.instance_norm(x)


# -- sizes that become tensors -----------------------------------------------------------------------------------


@program()
def arange_of_floats(x):
    return torch.arange(0.0, x.shape[0], 1.0)


@program()
def arange_by_half(x):
    return torch.arange(0, x.shape[0], 0.5)


@program()
def arange_of_float_dtype(x):
    return torch.arange(x.shape[0], dtype=torch.float32) / x.shape[0]


@program()
def arange_backwards(x):
    return torch.arange(x.shape[0] - 1, -1, -1)


@program(versions=EACH_SIZE)
def linspace_steps(x):
    return torch.linspace(0, 1, x.shape[0])


@program()
def linspace_end(x):
    return torch.linspace(0, x.shape[0] - 1, 5)


@program(versions=EACH_SIZE)
def logspace_steps(x):
    return torch.logspace(0, 2, x.shape[0])


@program()
def full_of_size(x):
    return torch.full((x.shape[0], 2), x.shape[0])


@program()
def tensor_of_sizes(x):
    return torch.tensor([x.shape[0], x.shape[1]])


@program()
def tensor_of_a_size(x):
    return x / torch.tensor(x.shape[0])


@program()
def eye(x):
    return torch.eye(x.shape[0]) @ x


@program()
def positions(x):
    half = 4
    steps = torch.exp(torch.arange(half) * -(math.log(100.0) / (half - 1)))
    angles = torch.arange(x.shape[0]).unsqueeze(1) * steps
    return torch.cat([angles.sin(), angles.cos()], 1)


@program()
def one_hot_of_size(x):
    return F.one_hot(torch.arange(x.shape[0]), num_classes=x.shape[0])


@program()
def fixed_parts_of_what_varies(x):
    first, second = x[:2, :3], x[1:3, 1:4]
    return (
        torch.addmm(first[0], second, first.t() @ second),
        second.logsumexp(1),
        torch.addmv(x[0, :2], first, x[0, 1:4]),
    )


@program()
def views_made_in_place(x):
    turned, wide, restrided = x * 2, (x + 1).view(-1, 2, 3), x.exp()
    turned.t_().unsqueeze_(0).transpose_(0, 1)
    wide.as_strided_((x.shape[0], 3, 2), (6, 1, 3)).add_(1)
    restrided.as_strided_((3, x.shape[0], 2), (2, 6, 1)).mul_(2)
    return turned.squeeze_(1) @ x, wide, restrided, turned.stride(), wide.is_contiguous()


@program(versions=EACH_SIZE)
def shorter_in_place(x):
    y = x * 2
    first = y.as_strided_((x.shape[0] - 1, 3), (6, 2), 1)
    return first + 1, y


@program(lambda n: (torch.randint(0, n, (7,)), n + 1))
def one_hot_of_argument(ids, classes):
    return F.one_hot(ids, classes)


@program()
def randomness(x):
    torch.manual_seed(0)
    return torch.randperm(x.shape[0]), torch.rand(x.shape[0], 3)


# -- masks -------------------------------------------------------------------------------------------------------


@program()
def causal_mask(x):
    n = x.shape[0]
    return torch.triu(torch.full((n, n), float("-inf")), diagonal=1)


@program(versions=EACH_SIZE)
def tril_indices(x):
    i, j = torch.tril_indices(x.shape[0], x.shape[0])
    return (x @ x.T)[i, j]


@program()
def length_mask(x):
    n = x.shape[0]
    lengths = torch.tensor([2, 4, 5])
    return torch.arange(n)[None, :] < lengths[:, None]


@program(lambda n: (torch.randn(2, 2, n, 8),))
def attention_causal(q):
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


@program(lambda n: (torch.randn(2, 2, n, 8),))
def attention_masked(q):
    n = q.shape[2]
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


@program(lambda n: (torch.randn(2, n, 8),))
def attention_by_hand(x):
    scores = x @ x.transpose(1, 2) / math.sqrt(x.shape[-1])
    mask = torch.ones(x.shape[1], x.shape[1]).tril() == 0
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ x


@program(lambda n: (torch.randn(1, 2, n, 8),))
def relative_bias(q):
    n = q.shape[2]
    distance = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    return (q @ q.transpose(-1, -2)) - distance.abs().clamp(max=n - 1) * 0.1


# -- moving, repeating, joining, cutting -------------------------------------------------------------------------


@program()
def roll_by_one(x):
    return torch.roll(x, 1, 0)


@program()
def roll_by_half(x):
    return torch.roll(x, x.shape[0] // 2, 0)


@program()
def repeat(x):
    return x.repeat(2, 3)


@program()
def repeat_by_size(x):
    return x[:1].repeat(x.shape[0], 1)


@program()
def tile(x):
    return torch.tile(x, (2, 1, 2))


@program()
def repeat_interleave(x):
    return x.repeat_interleave(3, dim=0)


@program()
def repeat_interleave_by_size(x):
    return x[:2].repeat_interleave(x.shape[0], dim=0)


@program()
def expand_by_size(x):
    return x[0].expand(x.shape[0], -1) + x


@program()
def expand_new_dims(x):
    """A new dim of size 1 has the stride of all that is inside it, as in the class token of a vision model."""
    b, w, s = x.shape[0], x.new_ones(5), x.new_ones(())
    return w.expand(b, 1, -1), w.expand(1, b, 1, 5), s.expand(b, 1), s.expand(1, b), x[:, :1].expand(1, b, b)


@program()
def histogram_of_bins(x):
    return torch.histc(x, bins=4, min=-2, max=2), torch.histc(x)


@torch.library.custom_op("graphlift_shapes::repeated", mutates_args=())
def repeated(x: Tensor, times: int) -> Tensor:
    return x.repeat(times, 1)


@repeated.register_fake
def _repeated_fake(x: Tensor, times: int) -> Tensor:
    assert x.dim() == 2
    return x.new_empty(x.size(0) * times, x.size(1))


repeated.register_autograd(
    lambda ctx, grad: (grad.unflatten(0, (ctx.times, -1)).sum(0), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "times", inputs[1]),
)


@program()
def operator_of_a_library(x):
    return repeated(x * 2, x.shape[0]) + 1


@program()
def stack(x):
    return torch.stack([x, x + 1, x * 2], 1)


@program()
def cat_with_zeros(x):
    return torch.cat([x, x.new_zeros(x.shape[0], 2)], 1)


@program(versions=EACH_SIZE)
def split_in_twos(x):
    return torch.split(x, 2)


@program()
def split_in_halves(x):
    half = x.shape[0] // 2
    a, b = torch.split(x, [half, x.shape[0] - half])
    return a.sum(0), b.mean(0)


@program()
def split_other_dimension(x):
    return x.split(3, dim=1)


@program(versions=2)
def chunk_rows(x):
    return torch.chunk(x, 3)


@program()
def chunk_columns(x):
    a, b = x.chunk(2, dim=1)
    return a * b.sigmoid()


@program(versions=EACH_SIZE)
def tensor_split(x):
    return torch.tensor_split(x, 3)


@program(versions=EACH_SIZE)
def unbind(x):
    total = 0
    for row in x.unbind(0):
        total = total + row
    return total


@program()
def narrow(x):
    return x.narrow(0, 1, x.shape[0] - 2)


@program()
def slice_by_half(x):
    return x[: x.shape[0] // 2], x[x.shape[0] // 2 :], x[::2], x[-3:]


@program()
def select_last(x):
    return x[x.shape[0] - 1], x[-1]


@program()
def flip(x):
    return x.flip(0)


@program()
def diagonals(x):
    return (x @ x.T).diagonal(), torch.diag(x[:, 0])


@program()
def reshape_minus_one(x):
    return x.reshape(-1, 2, 3).transpose(0, 1).flatten(1)


@program(versions=2)
def view_of_sizes(x):
    n, m = x.shape
    return x.view(n * m), x.view(1, -1), x.t().reshape(n, m)


@program()
def unflatten(x):
    return x.unflatten(1, (2, -1)).sum(1)


@program(lambda n: (torch.randn(2 * n, 6),))
def reshape_halves(x):
    return x.view(2, x.shape[0] // 2, 6).sum(0)


@program()
def window(x):
    return x.unfold(0, 3, 1).mean(-1)


@program()
def as_strided(x):
    return x.as_strided((x.shape[0] - 1, 2), (6, 1), 1)


@program()
def put_in_place(x):
    y = torch.zeros(x.shape[0] + 2, 6)
    y[1:-1] = x
    y[-1] += 1
    return y


@program()
def scatter_and_gather(x):
    index = torch.arange(x.shape[0]).unsqueeze(1) % 3
    return torch.zeros(3, 6).scatter_add(0, index.expand_as(x), x), x.gather(1, index)


@program()
def index_with_tensor(x):
    return x[torch.arange(x.shape[0] - 1, -1, -1)], x[:, [0, 2]]


@program()
def meshgrid(x):
    a, b = torch.meshgrid(torch.arange(x.shape[0]), torch.arange(3), indexing="ij")
    return a * b


@program()
def cartesian(x):
    return torch.cartesian_prod(torch.arange(x.shape[0]), torch.arange(2))


@program()
def combine_einsum(x):
    return torch.einsum("nd,md->nm", x, x), torch.outer(x[:, 0], x[:, 1]), torch.kron(x, torch.ones(1, 2))


@program()
def distances(x):
    return torch.cdist(x[:, :3], x[:, 3:])


# -- along a dimension -------------------------------------------------------------------------------------------


@program()
def cumulative(x):
    return x.cumsum(0), x.cumprod(1), x.cummax(0)


@program()
def sort(x):
    return torch.sort(x, 0), x.argsort(1)


@program()
def topk_of_size(x):
    return x.topk(x.shape[0] // 2, dim=0)


@program()
def topk_at_most(x):
    return x.topk(min(4, x.shape[0]), dim=0).values


@program(lambda n: (torch.randn(20), n))
def topk_of_argument(x, k):
    return x.topk(k)


@program()
def kth_and_median(x):
    return x.kthvalue(2, dim=0), x.median(0), x.quantile(0.5, dim=0)


@program()
def statistics(x):
    return x.mean(0), x.var(0), x.std(0, unbiased=False), x.norm(dim=0), x.logsumexp(0), x.argmax(0)


@program()
def whole_statistics(x):
    return x.mean(), x.std(), x.sum(), x.max(), x.prod()


@program()
def softmax_and_losses(x):
    target = torch.arange(x.shape[0]) % 6
    return (
        x.softmax(0),
        F.cross_entropy(x, target),
        F.mse_loss(x, x.flip(0)),
        F.nll_loss(x.log_softmax(1), target),
    )


@program()
def differences(x):
    return x.diff(dim=0), torch.trapezoid(x, dim=0)


@program()
def fourier(x):
    return torch.fft.rfft(x, dim=0).abs(), torch.fft.fft(x, dim=1).real


@program()
def bucketize(x):
    return torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), torch.searchsorted(x[0].sort().values, x)


@program(lambda n: (torch.randint(0, 10, (2, n)),))
def embedding(ids):
    weight = torch.arange(40.0).view(10, 4)
    return F.embedding(ids, weight), F.embedding(ids, weight, padding_idx=0).mean(1)


# -- layers ------------------------------------------------------------------------------------------------------

torch.manual_seed(1)
_GRU = nn.GRU(6, 4, batch_first=True)
_LSTM = nn.LSTM(6, 4)
_CELL = nn.LSTMCell(6, 4)
_ENCODER = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
_HEADS = nn.MultiheadAttention(8, 2, batch_first=True)


@program(lambda n: (torch.randn(n, 5, 6),))
def gru_over_batches(x):
    return _GRU(x)


@program(lambda n: (torch.randn(4, n, 6),))
def lstm_over_batches(x):
    return _LSTM(x)


@program()
def lstm_cell(x):
    h, c = _CELL(x)
    return _CELL(x, (h, c))


@program(lambda n: (torch.randn(2, n, 8),))
def encoder_layer(x):
    return _ENCODER(x)


@program(lambda n: (torch.randn(2, n, 8),))
def multihead(x):
    return _HEADS(x, x, x)


# -- arithmetic of sizes -----------------------------------------------------------------------------------------


@program()
def floor_division(x):
    return x[: x.shape[0] // 2] * (x.shape[0] // 3)


@program()
def remainder(x):
    return x * (x.shape[0] % 4), x + x.shape[0] % x.shape[1]


@program()
def powers(x):
    return x * x.shape[0] ** 2, x * x.shape[0] ** 0.5, x * 2 ** x.shape[1]


@program(versions=EACH_SIZE)
def power_of_two(x):
    return x * 2 ** x.shape[0]


@program()
def true_division(x):
    return x * (x.shape[0] / 2), x / (1 / x.shape[0])


@program()
def rounding(x):
    n = x.shape[0]
    return x + round(n / 3), x + math.ceil(n / 2), x + math.floor(n / 2), x + int(n * 0.75)


@program()
def extremes(x):
    n, m = x.shape
    return x * min(n, m), x * max(n, 7), x[: min(n, 4)]


@program()
def square_root(x):
    return x / math.sqrt(x.shape[0]), x * math.log(x.shape[0])


@program()
def truth(x):
    return x + 1 if x.shape[0] else x - 1


@program()
def bool_of_size(x):
    return x * bool(x.shape[0]), x * (not x.shape[0])


@program()
def float_of_size(x):
    return x * float(x.shape[0]), x.sum() / float(x.numel())


@program(versions=2)
def comparison(x):
    return x + 1 if x.shape[0] > 6 else x - 1


@program()
def chained_comparison(x):
    return x + 1 if 2 < x.shape[0] <= 100 else x - 1


@program()
def equality(x):
    return x @ x if x.shape[0] == x.shape[1] else x @ x.T


@program(versions=2)
def divisibility(x):
    return x.view(-1, 4, 6) if x.shape[0] % 4 == 0 else x


@program(versions=EACH_SIZE)
def bits(x):
    n = x.shape[0]
    return x * (n & 1), x * (n << 1), x * (n >> 1), x * (n ^ 3), x * (n | 8)


@program(versions=EACH_SIZE)
def bit_length(x):
    return x * x.shape[0].bit_length()


@program()
def divmod_of_size(x):
    q, r = divmod(x.shape[0], 4)
    return x * q + r


@program()
def negative_and_abs(x):
    n = x.shape[0]
    return x * -n, x * abs(n - 100), x * +n, x * ~n


@program(versions=EACH_SIZE)
def loop_over_size(x):
    total = torch.zeros(6)
    for i in range(x.shape[0]):
        total = total + x[i] * i
    return total


@program(versions=EACH_SIZE)
def comprehension_over_size(x):
    return torch.stack([x[i] for i in range(0, x.shape[0], 2)])


@program(versions=EACH_SIZE)
def list_of_size(x):
    weights = [1.0] * x.shape[0]
    return x * torch.tensor(weights)[:, None]


@program(versions=EACH_SIZE)
def iterate_rows(x):
    return sum(row.sum() for row in x)


@program(versions=2)
def while_over_size(x):
    step = 1
    while step < x.shape[0]:
        x = x + step
        step *= 2
    return x


@program()
def numel_and_len(x):
    return x * x.numel(), x * len(x), x * x.size(0), x * x.shape.numel(), x * x.nelement()


@program()
def sum_of_shape(x):
    return x * sum(x.shape), x * math.prod(x.shape), x * max(x.shape)


@program()
def returned_sizes(x):
    return x.shape, x.shape[0], x.size(), x.numel(), x.shape[0] * 2 + 1, x.stride()


# -- torch.Size --------------------------------------------------------------------------------------------------


@program()
def size_slices(x):
    return x.view(*x.shape[:-1], 2, 3), x.new_ones(x.shape[:-1]), x.reshape(x.shape[::-1])


@program()
def size_sums(x):
    return x.new_zeros(x.shape + (2,)), x.new_zeros((2, *x.shape)), torch.zeros(x.shape[:1] * 2)


@program()
def size_equality(x):
    y = x * 2
    return x + y if x.shape == y.shape and x.shape != (1, 2) else x


@program()
def size_unpacking(x):
    first, *rest = x.shape
    return x.view(first, *rest), list(x.shape), tuple(x.shape)


@program()
def size_index_and_membership(x):
    return x * x.shape.index(6), x * (6 in x.shape), x * len(x.shape), x * x.shape.count(6)


@program(versions=EACH_SIZE)
def size_as_key(x):
    cache = {x.shape[0]: 2.0}
    return x * cache[x.shape[0]]


@program(versions=EACH_SIZE)
def size_hash(x):
    return {x.shape: 1}[x.shape], x + 1


# -- text --------------------------------------------------------------------------------------------------------


@program()
def text_fstring(x):
    return f"rows: {x.shape[0]}", x + 1


@program(versions=EACH_SIZE)
def text_format(x):
    n = x.shape[0]
    return f"{n:>5}", f"{n:03d}", "{}".format(n), "%d rows" % n, str(n), repr(n), x * 2  # noqa: UP031, UP032


@program(versions=EACH_SIZE)
def text_of_shape(x):
    return f"{tuple(x.shape)}", str(x.shape), f"{list(x.shape)}", x + 1


@program()
def text_in_assert(x):
    assert x.shape[1] == 6, f"got {x.shape}"
    return x + 1


@program(versions=EACH_SIZE)
def text_length(x):
    return len(str(x.shape[0])), x + 1
