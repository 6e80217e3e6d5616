"""Errors that eager's kernels raise and meta kernels do not: mismatched and unsupported dtypes.

In: an operator and its arguments, once per new metadata. Out: nothing, or eager's exception.
Always: one row per operator; rows were found by comparing with eager over torch's OpInfos and their error inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..shapes.expr import SizeLike
from .errors import Unsupported
from .ops import aten
from .spec import META, Spec, meta_tensor
from .tensor import FakeTensor

_SCALAR = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}
_CPP = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.int64: "long int",
    torch.int32: "int",
    torch.bool: "bool",
}
_LOW = (torch.bfloat16, torch.float16)


def _scalar(dtype: torch.dtype) -> str:
    return _SCALAR.get(dtype, str(dtype).removeprefix("torch."))


def _dtypes(args: tuple, kwargs: dict, names: tuple[int | str, ...]) -> list[torch.dtype]:
    found = []
    for n in names:
        a = kwargs.get(n) if isinstance(n, str) else args[n] if n < len(args) else None
        if type(a) is FakeTensor:
            found.append(a.spec.dtype)
    return found


def _same(
    *names: int | str, message: str = "expected scalar type {0} but found {1}", cpp: bool = False
) -> Any:
    """All of these arguments must have one dtype."""

    def check(args: tuple, kwargs: dict) -> None:
        dtypes = _dtypes(args, kwargs, names)
        for d in dtypes[1:]:
            if d != dtypes[0]:
                texts = [_CPP.get(t, _scalar(t)) if cpp else _scalar(t) for t in (dtypes[0], d)]
                raise RuntimeError(message.format(*texts))

    return check


def _addmm(args: tuple, kwargs: dict) -> None:
    bias, a, b = (args[k].spec.dtype for k in range(3))
    if a != b:
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {_scalar(a)} and {_scalar(b)}")
    if bias != b:
        raise RuntimeError(
            f"self and mat2 must have the same dtype, but got {_scalar(bias)} and {_scalar(b)}"
        )
    rows, columns = args[1].spec.shape[-2], args[2].spec.shape[-1]
    torch.empty(args[0].spec.shape, device=META).expand(rows, columns)


def _addmv(args: tuple, kwargs: dict) -> None:
    if args[0].spec.shape not in ((), (1,), (args[1].spec.shape[0],)):
        raise _unfit("addmv", args)


def _unfit(name: str, args: tuple) -> Unsupported:
    """For arguments that eager refuses in words that depend on its path."""
    shapes = ", ".join(str(list(a.spec.shape)) for a in args if type(a) is FakeTensor)
    return Unsupported(name, f"does not take tensors of shapes {shapes}")


def _convolution(args: tuple, kwargs: dict) -> None:
    source, weight = args[0].spec.dtype, args[1].spec.dtype
    if source != weight:
        raise RuntimeError(
            f"Input type ({_CPP.get(source)}) and weight type ({_CPP.get(weight)}) should be the same"
        )
    bias, width = args[2], args[1].spec.shape[1 if args[6] else 0] * (args[8] if args[6] else 1)
    if bias is not None and bias.spec.shape != (width,):
        raise _unfit("convolution", args)
    if any(p < 0 for p in args[4]):
        raise RuntimeError("negative padding is not supported")
    if any(d <= 0 for d in args[5]):
        raise RuntimeError("dilation should be greater than zero")


def _parameters(*names: int) -> Any:
    """Normalisations take parameters of the input's dtype, or float32 ones for low-precision inputs."""

    def check(args: tuple, kwargs: dict) -> None:
        source = args[0].spec.dtype
        dtypes = _dtypes(args, kwargs, names)
        for d in dtypes:
            if d != dtypes[0]:
                raise RuntimeError(f"expected scalar type {_scalar(dtypes[0])} but found {_scalar(d)}")
            if d != source and not (source in _LOW and d == torch.float32):
                if d in _LOW or source in _LOW:
                    raise RuntimeError("mixed dtype (CPU): expect parameter to have scalar type of Float")
                raise RuntimeError(f"expected scalar type {_scalar(source)} but found {_scalar(d)}")

    return check


def _refuses_layouts() -> bool:
    """Whether the kernel of group_norm takes contiguous inputs alone, as it did before torch 2.14."""
    try:
        torch.native_group_norm(torch.zeros(1, 2, 2).mT, None, None, 1, 2, 2, 1, 1e-5)
    except RuntimeError:
        return True
    return False


_REFUSES_LAYOUTS = _refuses_layouts()


def _group_norm(args: tuple, kwargs: dict) -> None:
    _parameters(1, 2)(args, kwargs)
    if not _REFUSES_LAYOUTS:
        return
    spec = args[0].spec
    x = torch.empty_strided(spec.shape, spec.stride, device="meta")
    other = {4: torch.channels_last, 5: torch.channels_last_3d}.get(
        x.dim() if spec.device.type == "cpu" else 0
    )
    if not x.is_contiguous() and (other is None or not x.is_contiguous(memory_format=other)):
        raise RuntimeError(
            "Expected X.is_contiguous(memory_format) to be true, but got false.  (Could this error message be improved?"
            "  If so, please report an enhancement request to PyTorch.)"
        )


def _no_floats(kernel: str) -> Any:
    def check(args: tuple, kwargs: dict) -> None:
        for a in args[:2]:
            floating = (
                a.spec.dtype if type(a) is FakeTensor else torch.float32 if isinstance(a, float) else None
            )
            if floating is not None and (floating.is_floating_point or floating.is_complex):
                raise NotImplementedError(f"\"{kernel}\" not implemented for '{_scalar(floating)}'")

    return check


def _cat(args: tuple, kwargs: dict) -> None:
    for k, t in enumerate(args[0]):
        if type(t) is FakeTensor and not t.spec.shape:
            raise RuntimeError(f"zero-dimensional tensor (at position {k}) cannot be concatenated")


def _dimension(position: int) -> Any:
    """The argument there is a dimension of the first one's."""

    def check(args: tuple, kwargs: dict) -> None:
        rank, dim = max(len(args[0].spec.shape), 1), args[position]
        if not -rank <= dim < rank:
            text = f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
            raise IndexError(text)

    return check


def _vector(args: tuple, kwargs: dict) -> None:
    if len(args[2].spec.shape) > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")


def _stored(view: Any) -> Any:
    """A tensor with another stored in a view of it: of what the view refuses, and of another shape."""

    def check(args: tuple, kwargs: dict) -> None:
        into, source, *where = args
        part = view(meta_tensor(into.spec, into.home), *where, **kwargs)
        if tuple(part.shape) != source.spec.shape:
            raise RuntimeError(
                f"expected src to have a size equal to the slice of self. src size = {list(source.spec.shape)}, "
                f"slice size = {list(part.shape)}"
            )

    return check


def _gradient_of(view: Any) -> Any:
    """The same of zeros of a shape, where the gradient is expanded."""

    def check(args: tuple, kwargs: dict) -> None:
        grad, sizes, *where = args
        part = view(torch.empty(sizes, device=META), *where)
        part.copy_(torch.empty(grad.spec.shape, device=META))

    return check


def _smooth_l1(args: tuple, kwargs: dict) -> None:
    beta = kwargs.get("beta", args[3] if len(args) > 3 else 1.0)
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")


def _nll_loss2d(args: tuple, kwargs: dict) -> None:
    _same(0, 2)(args, kwargs)
    (batch, classes, *places), weight = args[0].spec.shape, args[2]
    fits = args[1].spec.shape == (batch, *places) and len(places) == 2
    if not fits or (weight is not None and weight.spec.shape != (classes,)):
        raise _unfit("nll_loss2d", args)


def _same_shapes(args: tuple, kwargs: dict) -> None:
    _same(0, 1)(args, kwargs)
    if args[0].spec.shape != args[1].spec.shape:
        raise _unfit("softmax_backward", args)


def _batch_norm_parameters(args: tuple, kwargs: dict) -> None:
    _parameters(1, 2, 3, 4)(args, kwargs)
    if any(type(a) is FakeTensor and len(a.spec.shape) != 1 for a in args[3:5]):
        raise _unfit("batch_norm", args)


_MM = _same(0, 1, message="expected m1 and m2 to have the same dtype, but got: {0} != {1}", cpp=True)


def _subtraction(args: tuple, kwargs: dict) -> None:
    bools = [a.spec.dtype is torch.bool if type(a) is FakeTensor else isinstance(a, bool) for a in args[:2]]
    if all(bools):
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or "
            "`logical_xor()` operator instead."
        )
    if any(bools):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a "
            "mask, use the `~` or `logical_not()` operator instead."
        )


def _alpha(args: tuple, kwargs: dict) -> None:
    """What multiplies the second operand must be a number such as the result's dtype has."""
    alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
    if type(alpha) not in (bool, float, complex):
        return
    dtype = torch.result_type(*(_like(a) for a in args[:2]))
    if type(alpha) is bool and dtype is not torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if type(alpha) is not bool and not (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
    if type(alpha) is complex and not dtype.is_complex:
        raise RuntimeError("For non-complex input tensors, argument alpha must not be a complex number.")


def _like(operand: Any) -> Any:
    """An operand for the sake of its dtype, and of whether it has dimensions."""
    if type(operand) is not FakeTensor:
        if isinstance(operand, (int, float, complex)):
            return operand
        raise Unsupported("alpha", "scales a number that varies")
    return torch.empty((1,) * len(operand.spec.shape), dtype=operand.spec.dtype, device=META)


def _scaled_subtraction(args: tuple, kwargs: dict) -> None:
    _subtraction(args, kwargs)
    _alpha(args, kwargs)


def _each(check: Callable[[tuple, dict], None]) -> Any:
    """For operators on lists; left to eager where an operand is refused, since those before it may be written."""

    def checks(args: tuple, kwargs: dict) -> None:
        others = args[1] if isinstance(args[1], (list, tuple)) else [args[1]] * len(args[0])
        for pair in zip(args[0], others, strict=False):
            try:
                check(pair, kwargs)
            except RuntimeError as error:
                raise Unsupported("an operator on lists", str(error)) from None

    return checks


CHECKS: dict[Any, Callable[[tuple, dict], None]] = {
    aten.add.Tensor: _alpha,
    aten.add.Scalar: _alpha,
    aten.sub.Tensor: _scaled_subtraction,
    aten.sub.Scalar: _scaled_subtraction,
    aten.rsub.Tensor: _scaled_subtraction,
    aten.rsub.Scalar: _scaled_subtraction,
    aten._foreach_add.List: _each(_alpha),
    aten._foreach_add.Tensor: _each(_alpha),
    aten._foreach_sub.List: _each(_scaled_subtraction),
    aten.mm.default: _MM,
    aten.bmm.default: _same(0, 1),
    aten.addmm.default: _addmm,
    aten.addbmm.default: _addmm,
    aten.baddbmm.default: _same(1, 2),
    aten.addmv.default: _addmv,
    aten.mv.default: _same(
        0, 1, message="addmv input tensors must have the same dtype, but got {0}, {1}, and {0}"
    ),
    aten.dot.default: _same(
        0, 1, message="dot : expected both vectors to have same dtype, but found {0} and {1}"
    ),
    aten.convolution.default: _convolution,
    aten.native_layer_norm.default: _parameters(2, 3),
    aten.native_group_norm.default: _group_norm,
    aten.native_batch_norm.default: _batch_norm_parameters,
    aten._native_batch_norm_legit.default: _batch_norm_parameters,
    aten._native_batch_norm_legit_functional.default: _batch_norm_parameters,
    aten._batch_norm_with_update.default: _batch_norm_parameters,
    aten._cdist_forward.default: _same(0, 1),
    aten.linalg_cross.default: _same(0, 1),
    aten.heaviside.default: _same(
        0, 1, message="heaviside is not yet implemented for tensors with different dtypes."
    ),
    aten._softmax_backward_data.default: _same_shapes,
    aten._log_softmax_backward_data.default: _same_shapes,
    aten.binary_cross_entropy.default: _same(0, 1, message="Found dtype {1} but expected {0}"),
    aten.complex.default: _same(
        0, 1, message="Expected object of scalar type {0} but got scalar type {1} for second argument"
    ),
    aten.polar.default: _same(
        0, 1, message="Expected object of scalar type {0} but got scalar type {1} for second argument"
    ),
    aten.index_copy.default: _same(
        0,
        3,
        message="index_copy_(): self and source expected to have the same dtype, but got (self) {0} and "
        "(source) {1}",
    ),
    aten.index_add.default: _same(
        0, 3, message="index_add_(): self ({0}) and source ({1}) must have the same scalar type"
    ),
    aten.index_reduce.default: _same(
        0, 3, message="index_reduce_(): self ({0}) and source ({1}) must have the same scalar type"
    ),
    aten.index_put.default: _same(
        0,
        2,
        message="Index put requires the source and destination dtypes match, got {0} for the destination and {1} "
        "for the source.",
    ),
    aten.put.default: _same(
        0,
        2,
        message="put_(): self and source expected to have the same dtype, but got self.dtype = {0} and "
        "source.dtype = {1}",
    ),
    aten.grid_sampler_2d.default: _same(0, 1),
    aten.grid_sampler_3d.default: _same(0, 1),
    aten.nll_loss_forward.default: _same(0, 2),
    aten.nll_loss2d_forward.default: _nll_loss2d,
    aten.bitwise_not.default: _no_floats("bitwise_not_cpu"),
    aten.bitwise_and.Tensor: _no_floats("bitwise_and_cpu"),
    aten.bitwise_and.Scalar: _no_floats("bitwise_and_cpu"),
    aten.bitwise_or.Tensor: _no_floats("bitwise_or_cpu"),
    aten.bitwise_or.Scalar: _no_floats("bitwise_or_cpu"),
    aten.bitwise_xor.Tensor: _no_floats("bitwise_xor_cpu"),
    aten.bitwise_xor.Scalar: _no_floats("bitwise_xor_cpu"),
    aten.bitwise_left_shift.Tensor: _no_floats("lshift_cpu"),
    aten.bitwise_right_shift.Tensor: _no_floats("rshift_cpu"),
    aten.gcd.default: _no_floats("gcd_cpu"),
    aten.lcm.default: _no_floats("lcm_cpu"),
    aten.cat.default: _cat,
    aten._softmax.default: _dimension(1),
    aten._log_softmax.default: _dimension(1),
    aten.index_select.default: _vector,
    aten.select_scatter.default: _stored(aten.select.int),
    aten.slice_scatter.default: _stored(aten.slice.Tensor),
    aten.select_backward.default: _gradient_of(aten.select.int),
    aten.slice_backward.default: _gradient_of(aten.slice.Tensor),
    aten.smooth_l1_loss.default: _smooth_l1,
}


def _with_in_place_forms() -> None:
    """An in-place operator refuses what its functional form refuses."""
    for func, check in list(CHECKS.items()):
        namespace, _, base = func._schema.name.partition("::")
        packet = getattr(aten, base + "_", None)
        if packet is not None and func._overloadname in packet.overloads():
            CHECKS.setdefault(getattr(packet, func._overloadname), check)


_with_in_place_forms()


def check_arguments(func: Any, args: tuple, kwargs: dict) -> None:
    check = CHECKS.get(func)
    if check is not None:
        check(args, kwargs)


# Errors of meta kernels whose type differs from eager's: (operator, its type there, text) -> eager's type.
_RETYPED = {
    aten.amax.default: (RuntimeError, "zero-size dimension", IndexError),
    aten.amin.default: (RuntimeError, "zero-size dimension", IndexError),
    aten.aminmax.default: (RuntimeError, "zero-size dimension", IndexError),
    **dict.fromkeys(
        (aten.index.Tensor, aten.index_put.default, aten.index_put_.default),
        (RuntimeError, "tensors used as indices", IndexError),
    ),
}


def as_eager(func: Any, args: tuple, error: Exception) -> Exception:
    """The exception eager raises where a meta kernel raised this one."""
    if isinstance(error, AssertionError):  # a Python meta kernel's way of refusing
        return RuntimeError(str(error))
    row = _RETYPED.get(func)
    if row is not None and len(args) > 1 and args[1] and isinstance(error, row[0]) and row[1] in str(error):
        return row[2](str(error))
    return error


# -- memory overlap ----------------------------------------------------------------------------------------

# Filling is idempotent, and these only warn: they may write a tensor that overlaps itself.
_MAY_OVERLAP_ITSELF = frozenset(
    (
        aten.fill_.Scalar,
        aten.fill_.Tensor,
        aten.zero_.default,
        aten.index_put_.default,
        aten._index_put_impl_.default,
        aten.masked_fill_.Scalar,
        aten.masked_fill_.Tensor,
        aten.masked_scatter_.default,
    )
)


def check_overlap(func: Any, args: tuple) -> None:
    """Eager's refusals of in-place operators whose memory overlaps, which no meta kernel can see."""
    target = args[0]
    spec = target.spec
    if func is aten.copy_.default and type(args[1]) is FakeTensor:
        if args[1].home is target.home and args[1].spec is spec:
            return  # a copy onto itself does nothing
    if 0 in spec.stride and func not in _MAY_OVERLAP_ITSELF:
        if (
            any(s == 0 and n > 1 for s, n in zip(spec.stride, spec.shape, strict=True))
            and 0 not in spec.shape
        ):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a single memory "
                "location. Please clone() the tensor before performing the operation."
            )
    if func in _INDEX_PUT:
        _check_index_put(target, args[1], args[2])
    for a in args[1:]:
        if type(a) is FakeTensor and a.home is target.home and a.spec is not spec and _partly(spec, a.spec):
            if torch.Tag.pointwise in func.tags or func is aten.copy_.default:
                raise RuntimeError(_OVERLAP)


_INDEX_PUT = frozenset((aten.index_put_.default, aten._index_put_impl_.default))
_OVERLAP = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
    "single memory location. Please clone() the tensor before performing the operation."
)


def _check_index_put(target: FakeTensor, places: list, value: FakeTensor) -> None:
    """What ``target[places] = value`` refuses; how many elements a mask picks is known only to the kernel."""
    indices = [a for a in places if type(a) is FakeTensor]
    masks = [a for a in indices if a.spec.dtype in (torch.bool, torch.uint8)]
    dim = 0
    for index in places:
        sizes = tuple(index.shape) if any(index is mask for mask in masks) else ()
        for j, size in enumerate(sizes):
            if dim + j >= target.dim() or size != target.shape[dim + j]:
                raise IndexError(
                    f"The shape of the mask {list(sizes)} at index {j} does not match the shape of the indexed "
                    f"tensor {list(target.shape)} at index {dim + j}"
                )
        dim += len(sizes) or 1
    if not masks and all(a.spec.dtype in _INDEX_DTYPES for a in indices):
        shape = _indexed_shape(target, places)
        if list(torch.broadcast_shapes(value.shape, shape)) != shape:
            raise RuntimeError(
                f"shape mismatch: value tensor of shape {list(value.shape)} cannot be broadcast"
            )
    if len(masks) == len(indices) == 1 and value.numel() == 1:
        return  # filled through the mask
    read = [a.spec for a in (value, *indices) if a.home is target.home]
    if any(spec is target.spec or _share(target.spec, spec) for spec in read):
        raise RuntimeError(_OVERLAP)
    if any(a.spec.dtype not in _INDEX_DTYPES for a in indices):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")


def _indexed_shape(target: FakeTensor, places: list) -> list[int]:
    """The shape of ``target[places]`` where no index is a mask."""
    shape = torch.broadcast_shapes(*(a.shape for a in places if a is not None))
    where = [i for i, a in enumerate(places) if a is not None]
    rest = [size for i, size in enumerate(target.shape) if i >= len(places) or places[i] is None]
    start = where[0] if where[-1] - where[0] + 1 == len(where) else 0
    return [*rest[:start], *shape, *rest[start:]]


_INDEX_DTYPES = (torch.int64, torch.int32, torch.uint8, torch.bool)


def _share(a: Spec, b: Spec) -> bool:
    """Whether two dense tensors on one storage share memory, partly or as the same view of it."""
    return _partly(a, b) or (a.offset == b.offset and a.stride == b.stride and a.shape == b.shape)


def _partly(a: Spec, b: Spec) -> bool:
    """Whether two dense tensors on one storage share some memory without being the same view of it."""
    if 0 in a.shape or 0 in b.shape or not (is_dense(a) and is_dense(b)):
        return False
    width_a, width_b = a.dtype.itemsize, b.dtype.itemsize
    begin_a, end_a = a.offset * width_a, (a.offset + a.numel()) * width_a
    begin_b, end_b = b.offset * width_b, (b.offset + b.numel()) * width_b
    if (begin_a, end_a) == (begin_b, end_b):
        return a.stride != b.stride
    return begin_a < end_b and begin_b < end_a


def is_dense(spec: Spec) -> bool:
    """Whether the elements fill a block of memory, each place once."""
    expected: SizeLike = 1
    for stride, size in sorted((s, n) for n, s in zip(spec.shape, spec.stride, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True
