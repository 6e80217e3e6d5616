"""Shapes of the results of operators that compute on tensors whose sizes are symbolic.

In: an operator's arguments. Out: the shape of each result (a tuple of them for several), in the table's symbols.
Always: what a shape takes for granted has been decided in the table. Strides, dtype and device are not said here: they
follow from the operator's own answer for this call's sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..shapes.expr import Expr, Real, Relation, SizeLike, contiguous_strides
from ..shapes.table import SymbolTable
from .ops import aten
from .spec import Spec
from .tensor import FakeTensor
from .view_rules import VIEWS, Layout, Shape, argument, full_shape, require_equal

SizeRule = Callable[[SymbolTable, tuple, dict], Any]
SIZES: dict[Any, SizeRule] = {}
#: In place of a shape: the result has the same shape whatever the symbols are.
FIXED = "fixed"


def row(names: str) -> Callable[[SizeRule], SizeRule]:
    """Registers a rule for ATen overloads, written ``name`` (the default overload) or ``name.overload``."""

    def register(rule: SizeRule) -> SizeRule:
        for name in names.split():
            packet, _, overload = name.partition(".")
            found = getattr(aten, packet, None)
            if found is not None and (overload or "default") in found.overloads():
                SIZES[getattr(found, overload or "default")] = rule
        return rule

    return register


def rule_of(func: Any) -> SizeRule | None:
    rule = SIZES.get(func)
    if rule is None and isinstance(func, torch._ops.OpOverload) and torch.Tag.pointwise in func.tags:
        return _pointwise
    return rule


def broadcast(table: SymbolTable | None, shapes: Iterable[Sequence[SizeLike]]) -> Shape:
    result: list[SizeLike] = []
    for shape in shapes:
        result[:0] = [1] * (len(shape) - len(result))
        for place, size in enumerate(reversed(shape), 1):
            known = result[-place]
            if size == 1 or size == known:
                continue
            if known != 1:
                require_equal(table, known, size)
            if known == 1 or isinstance(size, int):
                result[-place] = size
    return tuple(result)


def _tensors(args: tuple, kwargs: dict) -> list[FakeTensor]:
    return [a for a in (*args, *kwargs.values()) if type(a) is FakeTensor]


def _pointwise(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    specs = [t.spec for t in _tensors(args, kwargs)]
    for spec in specs:
        if len(set(spec.stride)) < len(spec.stride):
            _order_of_equal_strides(table, spec)
    return broadcast(table, [spec.shape for spec in specs])


def _order_of_equal_strides(table: SymbolTable, spec: Spec) -> None:
    """Dimensions with one stride, as windows have them, lie in the result in the order of their sizes."""
    steps = [(n, s) for n, s in zip(spec.shape, spec.stride, strict=True) if n != 1 and s != 0]
    for k, (size, stride) in enumerate(steps):
        for other, of_other in steps[:k]:
            if stride == of_other:
                table.decide(Relation("<=", size, other))


# -- results shaped as an argument ------------------------------------------------------------------------------


def shaped_as(*positions: int) -> SizeRule:
    def rule(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
        shapes = tuple(args[p].spec.shape for p in positions)
        return shapes[0] if len(shapes) == 1 else shapes

    return rule


row(
    "clone _to_copy zeros_like ones_like empty_like full_like rand_like randn_like randint_like randint_like.low_dtype "
    "bernoulli bernoulli.p cumsum cumprod logcumsumexp _softmax _log_softmax _safe_softmax flip roll tril triu "
    "renorm fill.Scalar fill.Tensor "
    "index_put _unsafe_index_put index_add index_copy index_fill.int_Scalar index_fill.int_Tensor scatter.src "
    "scatter.value scatter_add scatter_reduce.two uniform normal_functional zero "
    "native_dropout_backward exponential poisson put index_reduce embedding_renorm lift "
    "alias detach bernoulli.Tensor hardswish "
    "channel_shuffle linalg_matrix_exp _transformer_encoder_layer_fwd"
)(shaped_as(0))


@row("slice_scatter select_scatter diagonal_scatter as_strided_scatter")
def _placed(table: SymbolTable, args: tuple, kwargs: dict) -> Shape | Layout:
    """A copy of the base as it lies in memory, its offset too, unless elements of it are the same memory."""
    base = args[0].spec
    return base.shape if 0 in base.stride else Layout(base.shape, base.stride, base.offset)


@row("copy masked_scatter")
def _written(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    broadcast(table, [t.spec.shape for t in args[:2]])
    return args[0].spec.shape


row(
    "masked_fill.Scalar masked_fill.Tensor floor_divide floor_divide.Scalar complex polar heaviside isclose gcd lcm "
    "normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor "
    "float_power.Tensor_Tensor float_power.Tensor_Scalar copysign.Tensor copysign.Scalar _prelu_kernel linalg_cross "
    "rsub.Tensor elu_backward leaky_relu_backward hardtanh_backward hardsigmoid_backward hardshrink_backward "
    "softshrink_backward softplus_backward rrelu_with_noise_backward"
)(_pointwise)
row("native_dropout sort sort.stable cummax cummin frexp.Tensor")(shaped_as(0, 0))
row("_prelu_kernel_backward")(shaped_as(1, 1))
row(
    "_softmax_backward_data _log_softmax_backward_data max_pool2d_with_indices_backward avg_pool2d_backward "
    "_adaptive_avg_pool2d_backward adaptive_max_pool2d_backward nll_loss_backward nll_loss2d_backward "
    "max_pool3d_with_indices_backward adaptive_max_pool3d_backward "
    "avg_pool3d_backward _adaptive_avg_pool3d_backward hardswish_backward "
    "linalg_solve_triangular log_sigmoid_backward soft_margin_loss_backward"
)(shaped_as(1))


@row("log_sigmoid_forward")
def _log_sigmoid(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    return args[0].spec.shape, args[0].spec.shape


# -- reductions --------------------------------------------------------------------------------------------------


def _without_dims(shape: Shape, dims: Any, keepdim: bool) -> Shape:
    rank = len(shape)
    if isinstance(dims, int):
        dims = [dims]
    chosen = range(rank) if not dims else {d % rank for d in dims} if rank else ()
    if keepdim:
        return tuple(1 if d in chosen else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in chosen)


def _reduction(dim: int, keepdim: int, results: int = 1, default: int | None = None) -> SizeRule:
    def rule(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
        dims = argument(args, kwargs, dim, "dim", default)
        kept = argument(args, kwargs, keepdim, "keepdim", False)
        shape = _without_dims(args[0].spec.shape, dims, bool(kept))
        return shape if results == 1 else (shape,) * results

    return rule


row(
    "sum.dim_IntList mean.dim amax amin any.dim any.dims all.dim all.dims prod.dim_int logsumexp nansum var.correction "
    "std.correction argmax argmin count_nonzero.dim_IntList"
)(_reduction(1, 2))
row("var_mean.correction std_mean.correction max.dim min.dim median.dim mode nanmedian.dim")(
    _reduction(1, 2, 2, -1)
)
row("linalg_vector_norm norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype")(_reduction(2, 3))
row("aminmax")(_reduction(1, 2, 2))
_smallest = _reduction(2, 3, 2, -1)


@row("kthvalue")
def _kthvalue(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    shape = args[0].spec.shape
    if shape:
        size = shape[argument(args, kwargs, 2, "dim", -1) % len(shape)]
        table.decide(Relation("<=", 1, args[1]))
        table.decide(Relation("<=", args[1], size))
    return _smallest(table, args, kwargs)


row(
    "sum mean prod max min median any all _is_all_true _is_any_true norm.Scalar count_nonzero scalar_tensor dist "
    "local_scalar_dense nanmedian linalg_det"
)(lambda table, args, kwargs: ())


@row("_has_same_storage_numel")
def _has_same_storage(table: SymbolTable, args: tuple, kwargs: dict) -> str:
    require_equal(table, *(t.home.nbytes // t.spec.dtype.itemsize for t in args))
    return FIXED


@row("is_same_size")
def _is_same_size(table: SymbolTable, args: tuple, kwargs: dict) -> str:
    for a, b in zip(args[0].spec.shape, args[1].spec.shape, strict=False):
        require_equal(table, a, b)
    return FIXED


row("histogram.bin_ct")(lambda table, args, kwargs: (FIXED, FIXED))
row("histc")(lambda table, args, kwargs: (argument(args, kwargs, 1, "bins", 100),))


@row("topk")
def _topk(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    shape = list(args[0].spec.shape)
    if shape:
        d = argument(args, kwargs, 2, "dim", -1) % len(shape)
        table.decide(Relation("<=", args[1], shape[d]))
        shape[d] = args[1]
    return tuple(shape), tuple(shape)


# -- convolutions and pools --------------------------------------------------------------------------------------


def _each(values: Any, count: int) -> list[Any]:
    values = [values] if isinstance(values, (int, Expr)) else list(values)
    return values * count if len(values) == 1 else values


@row("convolution")
def _convolution(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    source, weight, _, stride, padding, dilation, transposed, output_padding, groups = args
    shape, kernel = source.spec.shape, weight.spec.shape
    count = len(kernel) - 2
    channels = kernel[1] * groups if not transposed else kernel[0]
    require_equal(table, shape[1], channels)
    strides, pads = _each(stride, count), _each(padding, count)
    dilations, extra = _each(dilation, count), _each(output_padding or 0, count)
    space: list[SizeLike] = []
    for n, k, s, p, d, o in zip(shape[2:], kernel[2:], strides, pads, dilations, extra, strict=True):
        reach = d * (k - 1)
        space.append((n - 1) * s - 2 * p + reach + o + 1 if transposed else (n + 2 * p - reach - 1) // s + 1)
    return (shape[0], kernel[1] * groups if transposed else kernel[0], *space)


@row("convolution_backward")
def _convolution_backward(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    shapes = (args[1].spec.shape, args[2].spec.shape, tuple(args[3] or (args[2].spec.shape[0],)))
    return tuple(shape if wanted else None for shape, wanted in zip(shapes, args[10], strict=True))


def _pooled(
    table: SymbolTable,
    shape: Shape,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil: bool,
    count: int,
) -> Shape:
    kernel, padding, dilation = _each(kernel, count), _each(padding, count), _each(dilation, count)
    stride = _each(stride, count) if stride else kernel
    space: list[SizeLike] = []
    for n, k, s, p, d in zip(shape[-count:], kernel, stride, padding, dilation, strict=True):
        out = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil else 0)) // s + 1
        if ceil and table.decide(Relation("<=", n + p, (out - 1) * s)):
            out = out - 1
        space.append(out)
    return (*shape[:-count], *space)


def _max_pool(count: int) -> SizeRule:
    def rule(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
        stride, padding = argument(args, kwargs, 2, "stride", []), argument(args, kwargs, 3, "padding", 0)
        dilation, ceil = (
            argument(args, kwargs, 4, "dilation", 1),
            argument(args, kwargs, 5, "ceil_mode", False),
        )
        shape = _pooled(table, args[0].spec.shape, args[1], stride, padding, dilation, ceil, count)
        return shape, shape

    return rule


row("max_pool2d_with_indices")(_max_pool(2))
row("max_pool3d_with_indices")(_max_pool(3))


def _avg_pool(count: int) -> SizeRule:
    def rule(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
        stride, padding = argument(args, kwargs, 2, "stride", []), argument(args, kwargs, 3, "padding", 0)
        ceil = argument(args, kwargs, 4, "ceil_mode", False)
        return _pooled(table, args[0].spec.shape, args[1], stride, padding, 1, ceil, count)

    return rule


row("avg_pool2d")(_avg_pool(2))
row("avg_pool3d")(_avg_pool(3))


@row(
    "_adaptive_avg_pool2d _adaptive_avg_pool3d upsample_nearest1d upsample_nearest2d upsample_bilinear2d "
    "upsample_linear1d upsample_bicubic2d _upsample_bilinear2d_aa upsample_nearest3d upsample_trilinear3d "
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bicubic2d_aa"
)
def _resized(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    size = tuple(args[1])
    return (*args[0].spec.shape[: -len(size)], *size)


@row(
    "upsample_nearest1d_backward upsample_nearest2d_backward upsample_bilinear2d_backward upsample_linear1d_backward "
    "upsample_bicubic2d_backward upsample_nearest3d_backward upsample_trilinear3d_backward "
    "_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward _upsample_nearest_exact1d_backward "
    "_upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward"
)
def _resized_backward(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return tuple(args[2])


@row("adaptive_max_pool2d adaptive_max_pool3d")
def _adaptive_max(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    shape = _resized(table, args, kwargs)
    return shape, shape


@row("im2col")
def _im2col(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    *batch, channels, rows, columns = args[0].spec.shape
    kernel, dilation, padding, stride = (_each(args[k], 2) for k in (1, 2, 3, 4))
    places = _pooled(table, (rows, columns), kernel, stride, padding, dilation, False, 2)
    return (*batch, channels * kernel[0] * kernel[1], places[0] * places[1])


@row("col2im")
def _col2im(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    *batch, channels, _ = args[0].spec.shape
    kernel = _each(args[2], 2)
    return (*batch, channels // (kernel[0] * kernel[1]), *args[1])


@row("grid_sampler_2d grid_sampler_3d")
def _grid_sampler(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    source, grid = args[0].spec.shape, args[1].spec.shape
    require_equal(table, source[0], grid[0])
    return (*source[:2], *grid[1:-1])


@row("grid_sampler_2d_backward grid_sampler_3d_backward")
def _grid_sampler_backward(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    return masked((args[1].spec.shape, args[2].spec.shape), (args[6][0], True))


# -- normalisations ----------------------------------------------------------------------------------------------


def _tail_is(table: SymbolTable, shape: Shape, tail: Sequence[SizeLike]) -> Shape:
    for a, b in zip(shape[len(shape) - len(tail) :], tail, strict=True):
        require_equal(table, a, b)
    return shape[: len(shape) - len(tail)] + (1,) * len(tail)


@row("native_layer_norm")
def _layer_norm(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    reduced = _tail_is(table, args[0].spec.shape, args[1])
    return args[0].spec.shape, reduced, reduced


@row("_fused_rms_norm")
def _rms_norm(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    return args[0].spec.shape, _tail_is(table, args[0].spec.shape, args[1])


def masked(shapes: Sequence[Shape], mask: Sequence[bool]) -> Any:
    return tuple(shape if wanted else None for shape, wanted in zip(shapes, mask, strict=True))


@row("native_layer_norm_backward")
def _layer_norm_backward(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    tail = tuple(args[2])
    return masked((args[1].spec.shape, tail, tail), args[7])


@row("_fused_rms_norm_backward")
def _rms_norm_backward(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    return masked((args[1].spec.shape, tuple(args[2])), args[5])


@row("native_group_norm")
def _group_norm(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    return args[0].spec.shape, (args[3], args[6]), (args[3], args[6])


@row("native_group_norm_backward")
def _group_norm_backward(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    return masked((args[1].spec.shape, (args[6],), (args[6],)), args[9])


@row("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats")
def _batch_norm(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    shape = args[0].spec.shape
    trains = args[-3]
    if isinstance(shape[1], int) or not trains:
        return shape, FIXED, FIXED
    return shape, shape[1:2], shape[1:2]


@row("_native_batch_norm_legit_functional")
def _batch_norm_functional(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    return args[0].spec.shape, FIXED, FIXED, FIXED, FIXED


@row("native_batch_norm_backward batch_norm_backward")
def _batch_norm_backward(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    return args[1].spec.shape, FIXED, FIXED


# -- attention ---------------------------------------------------------------------------------------------------


@row("_scaled_dot_product_flash_attention_for_cpu")
def _attention(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    query, key, value = (args[k].spec.shape for k in range(3))
    for a, b in (
        (query[0], key[0]),
        (key[0], value[0]),
        (key[1], value[1]),
        (key[2], value[2]),
        (query[3], key[3]),
    ):
        require_equal(table, a, b)  # several heads of the query may share one of the keys
    mask = kwargs.get("attn_mask")
    if mask is not None:
        broadcast(table, [(*query[:3], key[2]), mask.spec.shape])
    return (*query[:3], value[3]), query[:3]


@row("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    return tuple(args[k].spec.shape for k in (1, 2, 3))


# -- losses, embeddings, indexing --------------------------------------------------------------------------------


@row("nll_loss_forward")
def _nll_loss(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    shape, target = args[0].spec.shape, args[1].spec.shape
    if len(shape) == 2:
        require_equal(table, shape[0], target[0])
    return (shape[:1] if args[3] == 0 and len(shape) == 2 else ()), ()


@row("nll_loss2d_forward")
def _nll_loss2d(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    shape, target = args[0].spec.shape, args[1].spec.shape
    for a, b in zip((shape[0], *shape[2:]), target, strict=True):
        require_equal(table, a, b)
    return (target if args[3] == 0 else ()), ()


@row(
    "mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss"
)
def _loss(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shape = _pointwise(table, args, kwargs)
    numbers = [a for a in (*args[2:], *kwargs.values()) if isinstance(a, int)]
    return shape if numbers and numbers[0] == 0 else ()


@row("mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward")
def _loss_backward(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return _pointwise(table, args, kwargs)


@row("embedding")
def _embedding(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return (*args[1].spec.shape, *args[0].spec.shape[1:])


@row("embedding_dense_backward")
def _embedding_backward(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return (args[2], args[0].spec.shape[-1])


@row("index_select")
def _index_select(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shape, d = args[0].spec.shape, args[1]
    if not shape:
        return ()
    d %= len(shape)
    return (*shape[:d], (args[2].spec.shape or (1,))[0], *shape[d + 1 :])


@row("gather")
def _gather(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shape, index = args[0].spec.shape, args[2].spec.shape
    d = args[1] % max(len(shape), 1)
    for k, (n, m) in enumerate(zip(shape, index, strict=False)):
        if k != d and n != m:
            table.decide(Relation("<=", m, n))
    return index


row("take")(shaped_as(1))
row("bucketize.Tensor isin.Tensor_Tensor isin.Tensor_Scalar")(shaped_as(0))


@row("searchsorted.Tensor")
def _searchsorted(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    where, values = args[0].spec.shape, args[1].spec.shape
    if len(where) > 1:
        for a, b in zip(where[:-1], values[:-1], strict=True):
            require_equal(table, a, b)
    return values


@row("diag_embed")
def _diag_embed(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    *batch, size = args[0].spec.shape
    rank = len(batch) + 2
    size = size + abs(argument(args, kwargs, 1, "offset", 0))
    dims = [argument(args, kwargs, 2, "dim1", -2) % rank, argument(args, kwargs, 3, "dim2", -1) % rank]
    rest = iter(batch)
    return tuple(size if d in dims else next(rest) for d in range(rank))


@row("index.Tensor _unsafe_index.Tensor")
def _index(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shape, indices = args[0].spec.shape, args[1]
    places = [k for k, i in enumerate(indices) if i is not None]
    picked = broadcast(table, [indices[k].spec.shape for k in places])
    rest = [n for k, n in enumerate(shape) if k not in places]
    together = places == list(range(places[0], places[-1] + 1))
    at = places[0] if together else 0
    return (*rest[:at], *picked, *rest[at:])


row("masked_scatter_backward")(lambda table, args, kwargs: tuple(args[2]))


@row("slice_backward")
def _slice_backward(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return tuple(args[1])


row("select_backward diagonal_backward unfold_backward")(_slice_backward)


# -- joining and repeating ---------------------------------------------------------------------------------------


@row("cat")
def _cat(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shapes = [t.spec.shape for t in args[0] if t.spec.shape != (0,)] or [args[0][0].spec.shape]
    d = argument(args, kwargs, 1, "dim", 0) % len(shapes[0])
    total: SizeLike = 0
    for shape in shapes:
        total = total + shape[d]
    rest = _all_equal(table, [(*shape[:d], *shape[d + 1 :]) for shape in shapes])
    return (*rest[:d], total, *rest[d:])


def _all_equal(table: SymbolTable, shapes: Sequence[Shape]) -> Shape:
    result = list(shapes[0])
    for shape in shapes[1:]:
        for k, (a, b) in enumerate(zip(result, shape, strict=True)):
            require_equal(table, a, b)
            result[k] = b if isinstance(b, int) else a
    return tuple(result)


@row("stack")
def _stack(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shape = _all_equal(table, [t.spec.shape for t in args[0]])
    d = argument(args, kwargs, 1, "dim", 0) % (len(shape) + 1)
    return (*shape[:d], len(args[0]), *shape[d:])


@row("constant_pad_nd")
def _pad(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shape = list(args[0].spec.shape)
    pads = args[1]
    for k in range(len(pads) // 2):
        shape[-1 - k] = shape[-1 - k] + pads[2 * k] + pads[2 * k + 1]
    return tuple(shape)


@row(
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"
)
def _border(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    pads = args[1]
    for k in range(len(pads) // 2):  # a reflection reaches no further than the tensor does
        size = args[0].spec.shape[-1 - k]
        for pad in pads[2 * k : 2 * k + 2]:
            table.decide(Relation("<", pad, size))
    return _pad(table, args, kwargs)


row(
    "reflection_pad1d_backward reflection_pad2d_backward replication_pad1d_backward replication_pad2d_backward "
    "reflection_pad3d_backward replication_pad3d_backward glu_backward"
)(shaped_as(1))


@row("glu")
def _glu(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shape = list(args[0].spec.shape)
    d = argument(args, kwargs, 1, "dim", -1) % len(shape)
    require_equal(table, shape[d] % 2, 0)
    shape[d] = shape[d] // 2
    return tuple(shape)


@row("pixel_shuffle")
def _pixel_shuffle(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    *batch, channels, rows, columns = args[0].spec.shape
    factor = args[1]
    require_equal(table, channels % (factor * factor), 0)
    return (*batch, channels // (factor * factor), rows * factor, columns * factor)


@row("pixel_unshuffle")
def _pixel_unshuffle(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    *batch, channels, rows, columns = args[0].spec.shape
    factor = args[1]
    require_equal(table, rows % factor, 0)
    require_equal(table, columns % factor, 0)
    return (*batch, channels * factor * factor, rows // factor, columns // factor)


@row("repeat")
def _repeat(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shape = (1,) * (len(args[1]) - len(args[0].spec.shape)) + args[0].spec.shape
    return tuple(n * m for n, m in zip(shape, args[1], strict=True))


# -- tensors out of sizes ----------------------------------------------------------------------------------------


@row(
    "_efficientzerotensor empty.memory_format full zeros ones rand randn empty_permuted rand.generator randn.generator"
)
def _factory(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return tuple(args[0])


@row("new_empty new_zeros new_ones new_full")
def _new(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return tuple(args[1])


@row("randint")
def _randint(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return tuple(args[1])


@row("randint.low normal.float_float")
def _randint_low(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return tuple(args[2])


@row("empty_strided")
def _empty_strided(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    return Layout(tuple(args[0]), tuple(args[1]))


@row("new_empty_strided")
def _new_empty_strided(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    return Layout(tuple(args[1]), tuple(args[2]))


@row("eye")
def _eye(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return (args[0], args[0])


@row("eye.m")
def _eye_m(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return (args[0], args[1])


@row("arange arange.start arange.start_step")
def _arange(table: SymbolTable, args: tuple, kwargs: dict) -> Shape | None:
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    parts = [_fraction(n) for n in (start, end, step)]
    if None in parts or (isinstance(step, int) and not step):
        return None
    (a, p), (b, q), (c, r) = parts  # type: ignore[misc]
    # (b/q - a/p) / (c/r), rounded up
    above, below = (b * p - a * q) * r, c * p * q
    if table.decide(Relation("<", below, 0)):
        above, below = -above, -below
    return (-(-above // below),)


def _fraction(n: Any) -> tuple[SizeLike, int] | None:
    """(a, b) with ``n == a/b``, small enough for doubles to compute with exactly."""
    if isinstance(n, float):
        a, b = n.as_integer_ratio() if math.isfinite(n) else (0, _LARGE)
        return (a, b) if max(abs(a), b) < _LARGE else None
    return (n, 1) if isinstance(n, (int, Expr)) and not isinstance(n, Real) else None


_LARGE = 2**16


@row("multinomial")
def _multinomial(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return (*args[0].spec.shape[:-1], args[1])


@row("affine_grid_generator")
def _grid(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    size = args[1]
    return (size[0], *size[2:], len(size) - 2)


@row("rot90")
def _rotated(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shape = list(args[0].spec.shape)
    a, b = argument(args, kwargs, 2, "dims", (0, 1))
    if argument(args, kwargs, 1, "k", 1) % 2:
        shape[a], shape[b] = shape[b], shape[a]
    return tuple(shape)


@row("randperm")
def _randperm(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return (args[0],)


@row("_fft_c2c")
def _fft(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return args[0].spec.shape


@row("_fft_r2c")
def _fft_real(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shape = list(args[0].spec.shape)
    if args[3]:
        shape[args[1][-1]] = shape[args[1][-1]] // 2 + 1
    return tuple(shape)


@row("_fft_c2r")
def _fft_back(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shape = list(args[0].spec.shape)
    shape[args[1][-1]] = args[3]
    return tuple(shape)


@row(
    "linspace linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor logspace logspace.Tensor_Tensor "
    "logspace.Tensor_Scalar logspace.Scalar_Tensor"
)
def _linspace(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    return (args[2],)


# -- copies that are views in disguise ---------------------------------------------------------------------------


@row("_unsafe_view")
def _unsafe_view(table: SymbolTable, args: tuple, kwargs: dict) -> Layout:
    shape = full_shape(table, args[0].spec.numel(), args[1])
    return Layout(shape, contiguous_strides(shape))


def _shapes(layouts: Any) -> Any:
    return layouts.shape if type(layouts) is Layout else type(layouts)(map(_shapes, layouts))


def _copied(rule: SizeRule) -> SizeRule:
    return lambda table, args, kwargs: _shapes(rule(table, args, kwargs))


for _view, _rule in VIEWS.items():
    _packet, _, _overload = _view.name().removeprefix("aten::").partition(".")
    row(f"{_packet}_copy.{_overload}" if _overload else f"{_packet}_copy")(_copied(_rule))
