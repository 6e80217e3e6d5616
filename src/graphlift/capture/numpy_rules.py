"""numpy on arrays that share memory with tensors: by the torch operation that gives the very same numbers, else a break.

In: arrays from outside or from ``Tensor.numpy()``, numpy's functions and array methods. Out: arrays and tensors of the graph.
Always: only what both libraries compute bit for bit alike has a row; dtypes follow numpy's own promotion; arrays are not
changed in place. Numpy's warnings of floating-point errors are not given.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..fake.known import know
from ..guards import Call, Const, IdIs, Source, TypeIs, gives
from .arrays import known_array, memory_of
from .attributes import C_METHODS, FINDERS, TYPES
from .breaks import Break
from .calls import INSTANCE_CALLS, TENSOR_METHODS
from .capture import Capture, Link, NotConst
from .constants import NUMPY_SCALARS
from .numpy_constants import METHODS, compute, is_constant
from .protocol.comparison import OPERATORS
from .protocol.items import ITEM_READERS, TENSOR_INDICES
from .rules import RULES, rule
from .torch_rules import tensor_of_items
from .trackers import (
    NONE,
    Args,
    ArrayVar,
    ConstVar,
    Kwargs,
    MethodVar,
    ObjectVar,
    TensorVar,
    Tracker,
    TupleVar,
    describe,
)
from .wrapping import WRAPPERS

#: Dtypes with the same arithmetic in both libraries (numpy rounds halves differently).
DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(name): getattr(torch, name)
    for name in "bool uint8 int8 int16 int32 int64 float32 float64 complex64 complex128".split()
}
NUMPY_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}
_FLOATS = frozenset((torch.float32, torch.float64))
_REAL = frozenset(dtype for dtype in NUMPY_DTYPES if not dtype.is_complex)

#: Universal functions, and for which dtypes of their loop torch gives the same numbers.
UFUNCS: dict[np.ufunc, tuple[Callable[..., Tensor], frozenset[torch.dtype]]] = {
    np.add: (torch.add, _REAL),
    np.subtract: (torch.sub, _REAL),
    np.multiply: (torch.mul, _REAL),
    np.true_divide: (torch.div, _FLOATS),
    np.negative: (torch.neg, _REAL),
    np.absolute: (torch.abs, _FLOATS | {torch.int32, torch.int64}),
    np.square: (torch.square, _FLOATS),
    np.sqrt: (torch.sqrt, _FLOATS),
    np.floor: (torch.floor, _FLOATS),
    np.ceil: (torch.ceil, _FLOATS),
    np.trunc: (torch.trunc, _FLOATS),
    np.rint: (torch.round, _FLOATS),
    np.isnan: (torch.isnan, _FLOATS),
    np.isinf: (torch.isinf, _FLOATS),
    np.isfinite: (torch.isfinite, _FLOATS),
    np.equal: (torch.eq, _REAL),
    np.not_equal: (torch.ne, _REAL),
    np.less: (torch.lt, _REAL),
    np.less_equal: (torch.le, _REAL),
    np.greater: (torch.gt, _REAL),
    np.greater_equal: (torch.ge, _REAL),
    np.logical_and: (torch.logical_and, _REAL),
    np.logical_or: (torch.logical_or, _REAL),
    np.logical_not: (torch.logical_not, _REAL),
    np.bitwise_and: (torch.bitwise_and, _REAL),
    np.bitwise_or: (torch.bitwise_or, _REAL),
    np.bitwise_xor: (torch.bitwise_xor, _REAL),
    np.invert: (torch.bitwise_not, _REAL),
}
_SYMBOLS: dict[str, np.ufunc] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
}


# --- arrays entering and leaving --------------------------------------------------------------------------------------


def wrap_array(cap: Capture, value: np.ndarray, source: Source) -> Tracker:
    cap.guard(TypeIs(source, np.ndarray))
    return ArrayVar(None, value, source)


_layout = operator.attrgetter("dtype", "shape", "strides", "flags.writeable", "flags.aligned")


def tensor_of(cap: Capture, array: ArrayVar) -> TensorVar:
    """The tensor on the array's memory; for an array from outside, an input of the graph."""
    if array.tensor is None and array.content is not None:
        array.tensor = _tensor_of_content(cap, array.content)
    if array.tensor is None:
        value, source = array.real, array.source
        assert value is not None and source is not None
        step = value.itemsize
        plain = value.dtype in DTYPES and value.flags.writeable and value.flags.aligned
        if not plain or value.ndim == 0 or any(s < 0 or s % step for s in value.strides):
            raise Break("unsupported-object", f"a numpy array of {value.dtype} that no tensor can share")
        layout = _layout(value)
        text = f"{source.name()} is a {value.dtype} array of shape {value.shape}, strides {value.strides}"
        cap.guard(gives(Call(operator.eq, Call(_layout, source), layout), True, text))
        real = torch.from_numpy(value)
        fake = cap.fake_mode.from_real(real)
        node = cap.builder.add_input(source, real, fake, array=True)
        array.tensor = cap.fakes[id(fake)] = TensorVar(node, fake, Tensor)
    return array.tensor


def _tensor_of_content(cap: Capture, content: np.ndarray) -> TensorVar:
    """A copy that is made anew in each call; of a view, the view of the copy of the array that it is a view of."""
    root, offset = memory_of(content)
    if content.dtype not in DTYPES or content.dtype != root.dtype or any(s < 0 for s in content.strides):
        raise Break("unsupported-object", f"a numpy array of {content.dtype} that no tensor can share")
    if content is root:
        real = torch.from_numpy(content)
        fake = cap.fake_mode.from_real(real)
        node = cap.builder.constant(real)
        node.meta["example_value"] = node.meta["val"] = fake
        made = cap.emit("call_method", "clone", [TensorVar(node, fake, Tensor)], {}, Tensor.clone)
        know(made.fake, real)  # type: ignore[attr-defined]
    else:
        size = content.itemsize
        layout = (content.shape, tuple(s // size for s in content.strides), offset // size)
        base = tensor_of(cap, known_array(cap, root))
        made = cap.emit(
            "call_method", "as_strided", [base, *map(cap.from_python, layout)], {}, Tensor.as_strided
        )
    assert type(made) is TensorVar
    return made


def array_on(tensor: Tracker) -> ArrayVar:
    """The array that numpy makes: one of no dimensions would be a number, which only its value tells."""
    assert type(tensor) is TensorVar
    if tensor.fake.dim() == 0:
        raise Break("tensor-item", "a numpy scalar computed from arrays")
    return ArrayVar(tensor)


def wrap_scalar(cap: Capture, value: np.generic, source: Source) -> Tracker:
    """A number is known by its bits: each operation of numpy makes a new object."""
    if not isinstance(source, Const):
        bits = value.tobytes()
        cap.guard(TypeIs(source, type(value)))
        read = Call(type(value).tobytes, source)
        cap.guard(gives(Call(operator.eq, read, bits), True, f"{source.name()} == {value!r}"))
    return ConstVar(value, source)


WRAPPERS[np.ndarray] = wrap_array
WRAPPERS |= dict.fromkeys(NUMPY_SCALARS, wrap_scalar)
TYPES[ArrayVar] = np.ndarray


def _tensor_numpy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    tensor = cap.realize(args[0])
    assert type(tensor) is TensorVar
    fake = tensor.fake
    if kwargs or len(args) > 1 or tensor.cls is not Tensor or fake.is_inference():
        raise Break("unsupported-call", "Tensor.numpy with arguments, or of a Parameter")
    if (
        fake.spec.symbolic
        or fake.requires_grad
        or fake.is_conj()
        or fake.is_neg()
        or fake.device.type != "cpu"
    ):
        raise Break("unsupported-call", "Tensor.numpy of a tensor that needs detaching, resolving or copying")
    if fake.dtype not in NUMPY_DTYPES:
        raise Break("unsupported-call", f"Tensor.numpy of {fake.dtype}")
    return ArrayVar(tensor)


TENSOR_METHODS["numpy"] = _tensor_numpy


@rule(torch.from_numpy)
def _from_numpy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    array = cap.realize(args[0])
    if kwargs or len(args) != 1 or type(array) is not ArrayVar:
        raise Break("unsupported-call", f"torch.from_numpy of a {describe(array)}")
    return cap.emit("call_method", "detach", [tensor_of(cap, array)], {}, Tensor.detach)


@rule(torch.as_tensor)
def _as_tensor(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    array = cap.realize(args[0]) if len(args) == 1 else NONE
    if type(array) is not ArrayVar:
        stacked = tensor_of_items(cap, array, kwargs)
        return stacked or cap.emit("call_function", torch.as_tensor, args, kwargs, torch.as_tensor)
    if kwargs.keys() - {"dtype"}:
        raise Break("unsupported-call", "torch.as_tensor of an array with other arguments than dtype")
    shared = _from_numpy(cap, [array], {})
    return shared if not kwargs else cap.emit("call_method", "to", [shared], kwargs, Tensor.to)


def copied_tensor(cap: Capture, array: ArrayVar, kwargs: Kwargs) -> Tracker:
    """``torch.tensor(array)``: a contiguous copy of the array's dtype, or of the one asked for."""
    if kwargs.keys() - {"dtype"}:
        raise Break("unsupported-call", "torch.tensor of an array with other arguments than dtype")
    wanted = {"dtype": kwargs.get("dtype", NONE), "copy": ConstVar(True)}
    wanted["memory_format"] = ConstVar(torch.contiguous_format)
    if cap.value_of(wanted["dtype"]) is None:
        wanted["dtype"] = ConstVar(tensor_of(cap, array).fake.dtype)
    return cap.emit("call_method", "to", [tensor_of(cap, array)], wanted, Tensor.to)


@rule(torch.tensor)
def _tensor(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if len(args) == 1 and type(cap.realize(args[0])) is ArrayVar:
        return copied_tensor(cap, cap.realize(args[0]), kwargs)  # type: ignore[arg-type]
    stacked = tensor_of_items(cap, args[0], kwargs) if len(args) == 1 else None
    return stacked or cap.emit("call_function", torch.tensor, args, kwargs, torch.tensor)


# --- universal functions ------------------------------------------------------------------------------------------------


def call_ufunc(cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs, link: Link | None = None) -> Tracker:
    assert fn.source is not None
    cap.guard(IdIs(fn.source, fn.obj))
    return apply(cap, fn.obj, args, kwargs)


def apply(cap: Capture, ufunc: np.ufunc, args: Args, kwargs: Kwargs) -> Tracker:
    """``ufunc(*args)``."""
    operands = [cap.realize(arg) for arg in args]
    if any(type(x) is ArrayVar for x in operands) and is_constant(cap, *operands, *kwargs.values()):
        return compute(cap, ufunc, operands, kwargs)
    if kwargs or len(operands) != ufunc.nin or ufunc.nout != 1:
        raise Break("c-function", f"numpy.{ufunc.__name__} with these arguments")
    if all(type(x) is ConstVar for x in operands):
        return _of_numbers(cap, ufunc, operands)
    row = UFUNCS.get(ufunc)
    if row is None or not all(type(x) is ArrayVar or _is_number(x) for x in operands):
        raise Break("c-function", f"numpy.{ufunc.__name__}")
    torch_function, supported = row
    kinds = [_kind_for_promotion(cap, x) for x in operands]
    try:
        loop = ufunc.resolve_dtypes((*kinds, None))
        values = [_operand(cap, x, dtype) for x, dtype in zip(operands, loop)]
    except (TypeError, ValueError, OverflowError, KeyError):
        raise Break("c-function", f"numpy.{ufunc.__name__} of these dtypes") from None
    if any(DTYPES[dtype] not in supported for dtype in loop[:-1]):
        raise Break("c-function", f"numpy.{ufunc.__name__} of {loop[0]}")
    result = cap.emit("call_function", torch_function, values, {}, torch_function)
    if type(result) is not TensorVar or result.fake.dtype != DTYPES.get(loop[-1]):
        raise Break("c-function", f"numpy.{ufunc.__name__} of {loop[0]}")
    return array_on(result)


def _is_number(tracker: Tracker) -> bool:
    return type(tracker) is ConstVar and isinstance(tracker.value, (bool, int, float, complex, np.generic))


def _kind_for_promotion(cap: Capture, operand: Tracker) -> Any:
    """What numpy's promotion goes by: an array's dtype, a numpy scalar's, or the class of a Python number."""
    if type(operand) is ArrayVar:
        return NUMPY_DTYPES[contiguous(cap, operand).fake.dtype]
    value = operand.value  # type: ignore[attr-defined]
    if isinstance(value, np.generic):
        return value.dtype
    return np.dtype(bool) if type(value) is bool else type(value)


def _operand(cap: Capture, operand: Tracker, dtype: np.dtype[Any]) -> Tracker:
    wanted = DTYPES[dtype]
    if type(operand) is not ArrayVar:
        number: Tracker = ConstVar(dtype.type(operand.value).item())  # type: ignore[attr-defined]
        return cap.emit("call_function", torch.tensor, [number], {"dtype": ConstVar(wanted)}, torch.tensor)
    tensor = tensor_of(cap, operand)
    if tensor.fake.dtype == wanted:
        return tensor
    return cap.emit("call_method", "to", [tensor, ConstVar(wanted)], {}, Tensor.to)


def contiguous(cap: Capture, array: ArrayVar) -> TensorVar:
    """The array's tensor. The order in memory of what numpy makes of other arrays is not modelled."""
    tensor = tensor_of(cap, array)
    if not tensor.fake.is_contiguous():
        raise Break("unsupported-object", "a numpy array that is not contiguous in memory")
    return tensor


def _of_numbers(cap: Capture, ufunc: np.ufunc, operands: list[Tracker]) -> Tracker:
    if not all(map(_is_number, operands)):
        raise Break("c-function", f"numpy.{ufunc.__name__} of values that are no numbers")
    try:
        with np.errstate(all="raise"):  # what numpy would warn of runs natively
            result = ufunc(*[operand.value for operand in operands])  # type: ignore[attr-defined]
    except (FloatingPointError, TypeError, ValueError, OverflowError):
        raise Break("c-function", f"numpy.{ufunc.__name__} of these numbers") from None
    return cap.from_python(result)


INSTANCE_CALLS[np.ufunc] = call_ufunc


def operate(cap: Capture, symbol: str, left: Tracker, right: Tracker) -> Tracker:
    """An operator with an array on one side. With a tensor on the other, it is numpy that computes, or refuses."""
    if symbol not in _SYMBOLS or TensorVar in (type(left), type(right)):
        raise Break("c-function", f"{symbol} of a {describe(left)} and a {describe(right)}")
    return apply(cap, _SYMBOLS[symbol], [left, right], {})


OPERATORS[ArrayVar] = operate


def _unary(method: Any, ufunc: np.ufunc) -> None:
    rule(method)(lambda cap, args, kwargs: apply(cap, ufunc, args, kwargs))


_unary(np.ndarray.__neg__, np.negative)
_unary(np.ndarray.__abs__, np.absolute)
_unary(np.ndarray.__invert__, np.invert)


# --- attributes, items, methods -------------------------------------------------------------------------------------------


def _attribute(cap: Capture, array: ArrayVar, name: str) -> Tracker | None:
    if array.content is not None and name in _CONTENT:
        return compute(cap, operator.attrgetter(name), [array], {})
    if name in ("shape", "ndim", "size", "itemsize", "nbytes", "dtype"):
        fake = tensor_of(cap, array).fake
        dtype = NUMPY_DTYPES[fake.dtype]
        found = {"shape": tuple(fake.shape), "ndim": fake.dim(), "size": fake.numel(), "dtype": dtype}
        found |= {"itemsize": dtype.itemsize, "nbytes": fake.numel() * dtype.itemsize}
        return ConstVar(dtype) if name == "dtype" else cap.from_python(found[name])
    if name == "__class__":
        return ConstVar(np.ndarray)
    if name == "T":
        tensor = tensor_of(cap, array)
        order = cap.from_python(tuple(reversed(range(tensor.fake.dim()))))
        return array_on(cap.emit("call_method", "permute", [tensor, order], {}, Tensor.permute))
    raw = getattr(np.ndarray, name, None)
    if raw is None:
        return None
    if not isinstance(raw, C_METHODS):
        raise Break("unsupported-attribute", f"{name} of a numpy array")
    return MethodVar(ConstVar(raw), array)


_CONTENT = frozenset(("shape", "ndim", "size", "itemsize", "nbytes", "dtype", "T", "strides"))
FINDERS[ArrayVar] = _attribute


def _item(cap: Capture, array: Tracker, index: Tracker) -> Tracker:
    """Basic indexing, which gives a view; what would be a number breaks."""
    if is_constant(cap, array, index):
        return compute(cap, operator.getitem, [array, index], {})
    parts = index.items if type(index) is TupleVar else [index]
    for part in map(cap.realize, parts):
        simple = type(part) is ConstVar and (part.value is None or part.value is ...)
        if type(part) is ConstVar and type(part.value) is slice:
            simple = part.value.step is None or part.value.step > 0
        elif type(part) is ConstVar and type(part.value) is int:
            simple = True
        if not simple:
            raise Break("unsupported-object", f"a numpy array indexed by a {describe(part)}")
    assert type(array) is ArrayVar
    return array_on(
        cap.emit("call_function", operator.getitem, [tensor_of(cap, array), index], {}, operator.getitem)
    )


ITEM_READERS[ArrayVar] = _item


def index_of_tensor(cap: Capture, array: Tracker) -> Tracker:
    """An array of positions as a tensor's index: torch takes it as the tensor of its content."""
    assert type(array) is ArrayVar
    tensor = tensor_of(cap, array)
    if tensor.fake.dtype is not torch.int64:
        raise Break("unsupported-object", f"a tensor indexed by an array of {tensor.fake.dtype}")
    return tensor


TENSOR_INDICES[ArrayVar] = index_of_tensor


def array_method(name: str) -> Callable[[Any], Any]:
    """Registers a rule for an array's method; it gets the array's tensor and the constant arguments."""

    def register(handler: Callable[..., Tracker]) -> Any:
        @rule(getattr(np.ndarray, name))
        def method(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
            array = cap.realize(args[0])
            if type(array) is not ArrayVar:
                raise Break("c-function", f"ndarray.{name} of a {describe(array)}")
            if array.content is not None:
                return compute(cap, getattr(np.ndarray, name), args, kwargs)
            try:
                values = [cap.value_of(arg) for arg in args[1:]]
                named = {key: cap.value_of(arg) for key, arg in kwargs.items()}
            except NotConst:
                raise Break("c-function", f"ndarray.{name} of values that are not constants") from None
            try:
                return handler(cap, array, *values, **named)
            except TypeError:
                raise Break("c-function", f"ndarray.{name} with these arguments") from None

        return method

    return register


@array_method("__len__")
def _len(cap: Capture, array: ArrayVar) -> Tracker:
    return ConstVar(tensor_of(cap, array).fake.shape[0])


@array_method("copy")
def _copy(cap: Capture, array: ArrayVar) -> Tracker:
    return array_on(cap.emit("call_method", "clone", [contiguous(cap, array)], {}, Tensor.clone))


@array_method("astype")
def _astype(cap: Capture, array: ArrayVar, dtype: Any) -> Tracker:
    """Between dtypes where every value has its place; the rest depends on the processor."""
    wanted = np.dtype(dtype)
    tensor = contiguous(cap, array)
    if wanted not in DTYPES or not np.can_cast(NUMPY_DTYPES[tensor.fake.dtype], wanted, "same_kind"):
        raise Break("c-function", f"ndarray.astype from {tensor.fake.dtype} to {wanted}")
    copy: Kwargs = {"dtype": ConstVar(DTYPES[wanted]), "copy": ConstVar(True)}
    return array_on(cap.emit("call_method", "to", [tensor], copy, Tensor.to))


@array_method("reshape")
def _reshape(cap: Capture, array: ArrayVar, *shape: Any) -> Tracker:
    sizes = shape[0] if len(shape) == 1 and type(shape[0]) in (tuple, list) else shape
    return array_on(
        cap.emit(
            "call_method", "view", [contiguous(cap, array), cap.from_python(tuple(sizes))], {}, Tensor.view
        )
    )


@array_method("transpose")
def _transpose(cap: Capture, array: ArrayVar, *axes: Any) -> Tracker:
    tensor = tensor_of(cap, array)
    order = axes[0] if len(axes) == 1 and type(axes[0]) in (tuple, list) else axes
    order = tuple(order) or tuple(reversed(range(tensor.fake.dim())))
    return array_on(cap.emit("call_method", "permute", [tensor, cap.from_python(order)], {}, Tensor.permute))


@array_method("flatten")
def _flatten(cap: Capture, array: ArrayVar) -> Tracker:
    tensor = contiguous(cap, array)
    flat = cap.emit("call_method", "view", [tensor, ConstVar(-1)], {}, Tensor.view)
    return array_on(cap.emit("call_method", "clone", [flat], {}, Tensor.clone))


@array_method("ravel")
def _ravel(cap: Capture, array: ArrayVar) -> Tracker:
    return array_on(cap.emit("call_method", "view", [contiguous(cap, array), ConstVar(-1)], {}, Tensor.view))


def _constants_only(name: str) -> None:
    @array_method(name)
    def refused(cap: Capture, array: ArrayVar, *args: Any, **kwargs: Any) -> Tracker:
        raise Break("c-function", f"ndarray.{name}")


for _name in METHODS:
    if getattr(np.ndarray, _name) not in RULES:
        _constants_only(_name)
