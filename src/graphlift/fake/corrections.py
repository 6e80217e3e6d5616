"""Where an operator's meta kernel and its CPU kernel disagree about metadata, the CPU's answer.

In: the recipe a meta kernel gave, and the call. Out: the recipe of the CPU kernel.
Always: one row per operator; each row was found, and is kept, by comparing with the real kernel over torch's OpInfos.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..shapes.expr import SizeLike, contiguous_strides
from .checks import is_dense
from .iteration import elementwise_strides, result_strides
from .ops import aten
from .spec import Spec, make_spec

Rule = Callable[[Any, tuple, dict], Any]
_LOW = (torch.bfloat16, torch.float16)


def _with_dtype(spec: Spec, dtype: torch.dtype) -> Spec:
    return make_spec(spec.shape, spec.stride, spec.offset, dtype, spec.device)


def _contiguous(shape: Sequence[SizeLike], like: Spec) -> Spec:
    return make_spec(tuple(shape), contiguous_strides(shape), 0, like.dtype, like.device)


def _columns_first(spec: Spec) -> Spec:
    """The same shape with every matrix stored by columns."""
    if len(spec.shape) < 2:
        return spec
    *batch, rows, cols = spec.shape
    *outer, across, down = contiguous_strides((*batch, cols, rows))
    return make_spec(spec.shape, (*outer, down, across), 0, spec.dtype, spec.device)


def _argument(args: tuple, kwargs: dict, position: int, name: str, default: Any = None) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def _statistics_dtype(tensors: Sequence[Any]) -> torch.dtype:
    """CPU normalisations keep statistics in the input's low precision unless a parameter is float32."""
    dtype = tensors[0].spec.dtype
    if dtype in _LOW and any(t is not None and t.spec.dtype == torch.float32 for t in tensors[1:]):
        return torch.float32
    return dtype


def _layer_norm(recipe: Any, args: tuple, kwargs: dict) -> Any:
    out, mean, rstd = recipe
    dtype = _statistics_dtype(
        (args[0], _argument(args, kwargs, 2, "weight"), _argument(args, kwargs, 3, "bias"))
    )
    return (out, _with_dtype(mean, dtype), _with_dtype(rstd, dtype))


def _is_channels_last(spec: Spec) -> bool:
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(spec.shape))
    if memory_format is None:
        return False
    x = torch.empty_strided(spec.shape, spec.stride, device="meta")
    return x.is_contiguous(memory_format=memory_format)


def _batch_norm(training: int | bool, statistics: int | None, functional: bool = False) -> Rule:
    """`training`: whether, or the position of the flag; `statistics`: the position of the running ones."""

    def rule(recipe: Any, args: tuple, kwargs: dict) -> Any:
        out, mean, invstd, *rest = recipe
        if not _is_channels_last(args[0].spec):
            out = _contiguous(out.shape, out)
        tensors = [args[0], _argument(args, kwargs, 1, "weight"), _argument(args, kwargs, 2, "bias")]
        if statistics is not None:
            tensors += [args[statistics], args[statistics + 1]]
        dtype = _statistics_dtype(tensors)
        mean, invstd = _with_dtype(mean, dtype), _with_dtype(invstd, dtype)
        if not (training if type(training) is bool else args[training]):
            mean = invstd = _contiguous((0,), mean)
        if functional and statistics is not None:  # its last two results are the new running statistics
            rest[-2:] = [_with_dtype(r, args[statistics].spec.dtype) for r in rest[-2:]]
        return (out, mean, invstd, *rest)

    return rule


def _svd(recipe: Any, args: tuple, kwargs: dict) -> Any:
    u, s, vh = recipe
    return (_columns_first(u), s, _columns_first(vh))


def _eig(recipe: Any, args: tuple, kwargs: dict) -> Any:
    values, vectors = recipe
    return (values, _columns_first(vectors))


def _attention(recipe: Any, args: tuple, kwargs: dict) -> Any:
    """Weights that nobody asked for are no tensor."""
    output, weights = recipe
    return (output, weights if _argument(args, kwargs, 10, "need_weights", True) else None)


def sums_bags_fast(args: tuple, kwargs: dict) -> bool:
    """Whether `_embedding_bag` sums by a kernel that does not say which bag an index is in."""
    weight, scale = args[0].spec, _argument(args, kwargs, 6, "per_sample_weights")
    return (
        _argument(args, kwargs, 4, "mode", 0) == 0
        and weight.dtype in (torch.float32, *_LOW)
        and weight.stride[1] == 1
        and _argument(args, kwargs, 8, "padding_idx", -1) < 0
        and (scale is None or scale.spec.stride[0] == 1)
    )


def _embedding_bag(forward_only: bool) -> Rule:
    def rule(recipe: Any, args: tuple, kwargs: dict) -> Any:
        out, offset2bag, bag_size, max_indices = recipe
        indices, offsets = args[1].spec, args[2].spec
        mode = _argument(args, kwargs, 4, "mode", 0)
        last = _argument(args, kwargs, 7, "include_last_offset", False)
        whole = not last or (mode == 0 and forward_only)
        bags = offsets.shape[0] - (0 if whole else 1)
        offset2bag = _contiguous((0,) if sums_bags_fast(args, kwargs) else indices.shape, offset2bag)
        bag_size = _contiguous((bags,), bag_size)
        if mode != 2:
            max_indices = _contiguous((bags,), max_indices)
        return (out, offset2bag, bag_size, max_indices)

    return rule


# -- convolutions: ATen itself says which kernel runs, and in which memory format --------------------------


def _memory_format(args: tuple, bias_sizes: Any) -> torch.memory_format | None:
    """The format of a convolution's results, asked of ATen on the fakes, which have the real device."""
    source, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
    if len(weight.spec.shape) == 3 or 0 in source.spec.shape:
        return None
    with torch._C._DisableTorchDispatch():
        kernel = torch._C._select_conv_backend(
            source, weight, bias, stride, padding, dilation, transposed, output_padding, groups, bias_sizes
        )
        return torch._C._conv_determine_backend_memory_format(source, weight, kernel)


def _in_format(spec: Any, memory_format: torch.memory_format | None) -> Any:
    if memory_format is None or not isinstance(spec, Spec):
        return spec
    strides = torch.empty(spec.shape, memory_format=memory_format, device="meta").stride()
    return make_spec(spec.shape, strides, 0, spec.dtype, spec.device)


def _convolution(recipe: Any, args: tuple, kwargs: dict) -> Any:
    return _in_format(recipe, _memory_format(args, None))


def _convolution_backward(recipe: Any, args: tuple, kwargs: dict) -> Any:
    _, source, weight, bias_sizes, *rest = args
    memory_format = _memory_format((source, weight, None, *rest[:6]), bias_sizes)
    grad_input, grad_weight, grad_bias = recipe
    return (_in_format(grad_input, memory_format), _in_format(grad_weight, memory_format), grad_bias)


# -- Fourier transforms by MKL: batch dimensions outside by stride, transformed ones inside ------------------


def _transformed(spec: Spec, dims: Sequence[int], last_size: int | None) -> Spec:
    n = len(spec.shape)
    sizes = list(spec.shape)
    if last_size is not None:
        sizes[dims[-1]] = last_size
    batch = sorted((d for d in range(n) if d not in dims), key=lambda d: -spec.stride[d])
    strides: list[SizeLike] = [0] * n
    inner: SizeLike = 1
    for d in (*reversed(dims), *reversed(batch)):
        strides[d] = inner
        inner *= sizes[d]
    return make_spec(tuple(sizes), tuple(strides), 0, spec.dtype, spec.device)


def _outer_first(spec: Spec, dims: Sequence[int]) -> list[int]:
    return sorted(dims, key=lambda d: -spec.stride[d])


def _real_to_complex(recipe: Any, args: tuple, kwargs: dict) -> Any:
    source, dims = args[0].spec, [d % len(args[0].spec.shape) for d in args[1]]
    order = [*_outer_first(source, dims[:-1]), dims[-1]]
    found = _transformed(source, order, recipe.shape[dims[-1]])
    return make_spec(recipe.shape, found.stride, 0, recipe.dtype, recipe.device)


def _complex_to_real(recipe: Any, args: tuple, kwargs: dict) -> Any:
    source, dims = args[0].spec, [d % len(args[0].spec.shape) for d in args[1]]
    if len(dims) > 1:
        source = _transformed(source, _outer_first(source, dims[:-1]), None)
    found = _transformed(source, dims[-1:], recipe.shape[dims[-1]])
    return make_spec(recipe.shape, found.stride, 0, recipe.dtype, recipe.device)


# -- results in another memory format than the meta kernel says ----------------------------------------------


def _all_contiguous(recipe: Any, args: tuple, kwargs: dict) -> Any:
    if isinstance(recipe, Spec):
        return _contiguous(recipe.shape, recipe)
    return tuple([_contiguous(r.shape, r) for r in recipe])


def _suggested(recipe: Any, args: tuple, kwargs: dict) -> Any:
    """The result is made in the format that the argument suggests."""
    if 0 in args[0].spec.shape:
        return recipe
    return _in_format(recipe, torch._prims_common.suggest_memory_format(args[0]))


def _roll(recipe: Any, args: tuple, kwargs: dict) -> Any:
    """The CPU kernel concatenates two pieces for each dimension, and ``cat`` chooses the format."""
    spec, shifts, dims = args[0].spec, args[1], _argument(args, kwargs, 2, "dims", ())
    empty = 0 in spec.shape
    if not dims and not (empty and len(spec.shape) == 1):
        return _contiguous(spec.shape, recipe)
    if empty:
        return recipe
    x = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")
    with torch._C._DisableTorchDispatch():
        for shift, dim in zip(shifts, dims, strict=True):
            size = x.shape[dim]
            start = (size - shift) % size
            x = torch.cat([x.narrow(dim, start, size - start), x.narrow(dim, 0, start)], dim)
    return make_spec(spec.shape, x.stride(), 0, spec.dtype, spec.device)


def _iterated(recipe: Any, *operands: tuple[Any, Any]) -> Any:
    strides = result_strides(recipe.shape, operands)
    return make_spec(recipe.shape, strides, 0, recipe.dtype, recipe.device)


def _quotient(recipe: Any, args: tuple, kwargs: dict) -> Any:
    specs = [a.spec for a in args if hasattr(a, "spec")]
    plain = len(specs) == 2 and not any(spec.symbolic for spec in specs)
    return _iterated(recipe, *[(spec.shape, spec.stride) for spec in specs]) if plain else recipe


def _two_products(recipe: Any, args: tuple, kwargs: dict) -> Any:
    """By a mask, and by a number."""
    made = _quotient(recipe, args, kwargs)
    return made if made.symbolic else _iterated(made, (made.shape, made.stride), ((), ()))


def _into_like(recipe: Any, args: tuple, kwargs: dict) -> Any:
    like = args[0].spec
    if like.symbolic:
        return recipe
    if 0 in like.shape or is_dense(like):
        return _with_strides_of(like, recipe, {})
    return _iterated(recipe, (like.shape, like.stride))


def _isinf(recipe: Any, args: tuple, kwargs: dict) -> Any:
    """Of integers, zeros like them."""
    spec = args[0].spec
    whole = not (spec.dtype.is_floating_point or spec.dtype.is_complex)
    return _into_like(recipe, args, kwargs) if whole else recipe


def _strides_of_empty(recipe: Any, args: tuple, kwargs: dict) -> Any:
    """Results of the shape of an empty tensor have its strides."""
    return _with_strides_of(args[0].spec, recipe, kwargs) if 0 in args[0].spec.shape else recipe


def _strides_of_dense(recipe: Any, args: tuple, kwargs: dict) -> Any:
    """Those of the shape of a dense tensor have its strides too, those of dimensions of size 1 with them."""
    like = args[0].spec
    kept = 0 in like.shape or (not like.symbolic and is_dense(like))
    return _with_strides_of(like, recipe, kwargs) if kept else recipe


def _with_strides_of(like: Spec, recipe: Any, kwargs: dict) -> Any:
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return recipe
    if isinstance(recipe, Spec):
        if recipe.shape != like.shape:
            return recipe
        return make_spec(like.shape, like.stride, 0, recipe.dtype, recipe.device)
    return tuple([_with_strides_of(like, r, kwargs) for r in recipe])


_LIKE = (
    aten.empty_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.randint_like.default,
    aten.randint_like.low_dtype,
    aten.fill.Scalar,
    aten.fill.Tensor,
    aten.flip.default,
    aten.sort.default,
    aten.sort.stable,
)

#: Element-wise, into a result that is made like the input before.
_INTO_LIKE = (
    aten.deg2rad.default,
    aten.hardtanh.default,
    aten.nan_to_num.default,
    aten.rad2deg.default,
)

_SUGGESTED = (
    aten.pixel_shuffle.default,
    aten.pixel_unshuffle.default,
    aten.channel_shuffle.default,
    aten.native_channel_shuffle.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
    aten.max_unpool2d.default,
)

CPU_CORRECTIONS: dict[Any, Rule] = {
    **dict.fromkeys(_LIKE, _strides_of_dense),
    aten.native_dropout.default: _strides_of_empty,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_batch_norm.default: _batch_norm(5, 3),
    aten._native_batch_norm_legit.default: _batch_norm(5, 3),
    aten._native_batch_norm_legit_functional.default: _batch_norm(5, 3, True),
    aten._native_batch_norm_legit.no_stats: _batch_norm(True, None),
    aten._native_batch_norm_legit_no_training.default: _batch_norm(False, 3),
    aten._batch_norm_with_update.default: _batch_norm(True, 3),
    aten._batch_norm_with_update_functional.default: _batch_norm(True, 3, True),
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.log_sigmoid_forward.default: _all_contiguous,
    aten.isinf.default: _isinf,
    aten.pow.Scalar: _all_contiguous,
    **dict.fromkeys(_INTO_LIKE, _into_like),
    aten.floor_divide.default: _quotient,
    aten.native_dropout_backward.default: _two_products,
    aten.nll_loss2d_forward.default: _all_contiguous,
    aten.nll_loss2d_backward.default: _all_contiguous,
    aten.glu_backward.default: _all_contiguous,
    aten.rrelu_with_noise.default: _all_contiguous,
    **dict.fromkeys(_SUGGESTED, _suggested),
    aten.roll.default: _roll,
    aten._linalg_svd.default: _svd,
    aten.linalg_eig.default: _eig,
    aten._native_multi_head_attention.default: _attention,
    aten._embedding_bag.default: _embedding_bag(False),
    aten._embedding_bag_forward_only.default: _embedding_bag(True),
}
if torch.backends.mkl.is_available():
    CPU_CORRECTIONS[aten._fft_r2c.default] = _real_to_complex
    CPU_CORRECTIONS[aten._fft_c2r.default] = _complex_to_real


def correct(func: Any, recipe: Any, args: tuple, kwargs: dict, device: torch.device) -> Any:
    if device.type != "cpu":
        return recipe
    if type(recipe) is Spec and (stride := elementwise_strides(func, recipe, args, kwargs)) is not None:
        recipe = make_spec(recipe.shape, stride, recipe.offset, recipe.dtype, recipe.device)
    rule = CPU_CORRECTIONS.get(func)
    return recipe if rule is None else rule(recipe, args, kwargs)
