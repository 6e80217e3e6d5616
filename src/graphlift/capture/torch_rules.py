"""Rules of torch functions that are more than one graph node: state, queries, tensor methods with Python results.

In: calls of the torch functions named. Out: trackers; changes of global state go into the graph and the state log.
Always: global state that is only read is read for real (the guards hold it); state that is set is set for real while
capturing, put back at the end, and replayed by the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import marks
from .breaks import Break
from .calls import TENSOR_METHODS, call, is_captured
from .capture import Capture
from .graph import GraphBuilder
from .graph_values import CLASS_DTYPES
from .protocol import (
    binary,
    compare,
    contains,
    evaluate,
    get_item,
    get_iter,
    inplace,
    length,
    set_item,
    unary,
)
from .rules import RULES, rule
from .torch_state import constants
from .trackers import (
    NONE,
    Args,
    ArrayVar,
    ConstVar,
    Kwargs,
    ListVar,
    ObjectVar,
    TensorVar,
    Tracker,
    TupleVar,
)


def _constant(value: Any, *targets: Any) -> None:
    for target in targets:
        if target not in RULES:
            rule(target)(lambda cap, args, kwargs: ConstVar(value))


_constant(
    False,
    torch.jit.is_scripting,
    torch.jit.is_tracing,
    torch._jit_internal.is_scripting,
)
_constant(
    True,
    torch._utils_internal.justknobs_check,
)
_constant(False, torch.compiler.is_exporting)


_constant(True, marks.is_compiling)

#: Torch's own code takes the path that it takes in eager, but for this, which is made for compilers.
_COMPILED_TORCH = ("/nn/attention/flex_attention.py",)


@rule(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
def _is_compiling(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    filename = cap.frames[-1].code.co_filename
    return ConstVar(not filename.startswith(_TORCH) or filename.endswith(_COMPILED_TORCH))


_TORCH = str(Path(torch.__file__).parent)


@rule(marks.graph_break)
def _graph_break(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    message = args[0] if args else kwargs.get("msg", ConstVar(""))
    raise Break("requested-break", str(cap.value_of(message)), at_once=True)


# --- factories and constructors evaluated for real -----------------------------------------------------------------------


def _construct_for_real(cls: type) -> None:
    """Classes whose constructors only look at constants: the attributes of a real instance are what ours has."""

    @rule(cls)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        values, named = constants(cap, args, kwargs)
        made = ObjectVar(cls)
        for name, value in vars(cls(*values, **named)).items():
            made.attrs.known[name] = cap.from_python(value)
        return made


for _cls in (torch.autocast, torch.cpu.amp.autocast, torch.cuda.amp.autocast):
    if _cls not in RULES:
        _construct_for_real(_cls)


@rule(torch.autograd.Variable)
def _variable(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if len(args) != 1 or kwargs.keys() - {"requires_grad"} or type(cap.realize(args[0])) is not TensorVar:
        raise Break("unsupported-object", "a Variable made in the captured code")
    return cap.emit("call_function", torch.autograd.Variable, args, kwargs, torch.autograd.Variable)


def _legacy_constructor(cls: Any, dtype: torch.dtype | None) -> None:
    """``torch.FloatTensor(...)``: of sizes, an uninitialised tensor; of a list of numbers, their tensor."""

    @rule(cls)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        kind: Kwargs = {"dtype": ConstVar(dtype or torch.get_default_dtype())}
        if len(args) == 1 and not kwargs and type(cap.realize(args[0])) is ArrayVar:
            return call(cap, ConstVar(torch.as_tensor), args, kind)
        values, named = constants(cap, args, kwargs)
        if not named and len(values) == 1 and type(values[0]) in (list, tuple):
            numbers = evaluate(cap, lambda listed: cls(listed).tolist(), values[0])
            return cap.emit("call_function", torch.tensor, [numbers], kind, torch.tensor)
        sizes = values[0] if len(values) == 1 and type(values[0]) is torch.Size else values
        if not named and all(type(size) is int for size in sizes):
            return cap.emit("call_function", torch.empty, args or [ConstVar(0)], kind, torch.empty)
        raise Break("unsupported-object", f"a {cls.__name__} made in the captured code")


for _legacy, _dtype in (
    (torch.Tensor, None),
    (torch.FloatTensor, torch.float32),
    (torch.DoubleTensor, torch.float64),
    (torch.LongTensor, torch.int64),
    (torch.IntTensor, torch.int32),
    (torch.ShortTensor, torch.int16),
    (torch.CharTensor, torch.int8),
    (torch.ByteTensor, torch.uint8),
    (torch.BoolTensor, torch.bool),
    (torch.HalfTensor, torch.float16),
    (torch.BFloat16Tensor, torch.bfloat16),
):
    _legacy_constructor(_legacy, _dtype)


def tensor_of_items(cap: Capture, items: Tracker, kwargs: Kwargs) -> Tracker | None:
    """``torch.tensor`` of nested lists of numbers and tensors of no dimensions, as their stack; None of anything else.

    Torch reads each tensor's value, so the result has no history. Its dtype is the common one of the items' dtypes, in
    which a tensor of no dimensions counts like any other. Values go through the Python number that eager makes of them.
    """
    sizes: list[int] = []
    leaves = [cap.realize(items)]
    while leaves and all(type(leaf) in (ListVar, TupleVar) for leaf in leaves):
        sizes.append(len(leaves[0].items))  # type: ignore[attr-defined]
        if any(len(leaf.items) != sizes[-1] for leaf in leaves):  # type: ignore[attr-defined]
            return None
        leaves = [cap.realize(item) for leaf in leaves for item in leaf.items]  # type: ignore[attr-defined]
    dtypes = [dtype for leaf in leaves if (dtype := _item_dtype(leaf)) is not None]
    if cap.modes or kwargs.keys() - {"dtype"} or not sizes or not dtypes or len(dtypes) < len(leaves):
        return None
    tensors = [leaf for leaf in leaves if type(leaf) is TensorVar]
    if all(tensor.fake.home.constant is not None for tensor in tensors):
        return None
    wanted = cap.value_of(kwargs["dtype"]) if "dtype" in kwargs else None
    if wanted is None:
        wanted = functools.reduce(torch.promote_types, dtypes)
    wanted = CLASS_DTYPES.get(wanted, wanted)
    if any(not (wanted.is_floating_point or wanted in (dtype, torch.int64)) for dtype in dtypes) or (
        not wanted.is_floating_point and any(dtype.is_floating_point for dtype in dtypes)
    ):
        return None  # a conversion that eager refuses, or wraps

    def cast(leaf: Tracker, dtype: torch.dtype) -> Tracker:
        if type(leaf) is not TensorVar:
            return cap.emit("call_function", torch.tensor, [leaf], {"dtype": ConstVar(wanted)}, torch.tensor)
        leaf = cap.emit("call_method", "detach", [leaf], {}, Tensor.detach)
        steps = [torch.float64] if wanted.is_floating_point and not dtype.is_floating_point else []
        for step in (*steps, wanted):
            leaf = cap.emit("call_method", "to", [leaf, ConstVar(step)], {}, Tensor.to)
        return leaf

    parts = [cast(leaf, dtype) for leaf, dtype in zip(leaves, dtypes)]
    for size in reversed(sizes):
        groups = [ListVar(parts[i : i + size]) for i in range(0, len(parts), size)]
        parts = [cap.emit("call_function", torch.stack, [group], {}, torch.stack) for group in groups]
    return parts[0]


def _item_dtype(leaf: Tracker) -> torch.dtype | None:
    """The dtype that ``torch.tensor`` sees in an item of its lists; None for what is not taken from lists here."""
    if type(leaf) is ConstVar:
        return {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}.get(type(leaf.value))
    if type(leaf) is not TensorVar or leaf.cls is not Tensor or leaf.fake.dim() or leaf.fake.requires_grad:
        return None  # eager warns of the numbers of what requires grad
    spec = leaf.fake.spec
    plain = spec.device.type == "cpu" and not spec.dtype.is_complex and spec.layout is torch.strided
    return spec.dtype if plain else None


@rule(torch._assert)
def _assert(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    from .protocol import truth

    if not truth(cap, args[0]):
        raise cap.raise_(AssertionError, cap.value_of(args[1]))
    return NONE


@rule(torch._C._log_api_usage_once)
def _log_api_usage(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return NONE


@rule(torch.distributions.utils._lazy_property_and_property)
def _lazy_property(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """What a distribution's class shows for a parameter that is computed when first asked for."""
    return evaluate(cap, torch.distributions.utils._lazy_property_and_property, cap.value_of(args[0]))


@rule(torch.is_tensor)
def _is_tensor(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(type(cap.realize(args[0])) is TensorVar)


for (
    _name
) in "manual_seed seed initial_seed get_rng_state set_rng_state save load compile set_default_device".split():
    _target = getattr(torch, _name)

    @rule(_target)
    def _not_captured(cap: Capture, args: Args, kwargs: Kwargs, name: str = _name) -> Tracker:
        raise Break("unsupported-call", f"torch.{name}")


for _name in "nonzero masked_select unique unique_consecutive equal allclose argwhere".split():
    _target = getattr(torch, _name)

    @rule(_target)
    def _data_dependent(cap: Capture, args: Args, kwargs: Kwargs, name: str = _name) -> Tracker:
        if not is_captured(cap, name, args, kwargs):
            raise Break("data-dependent-op", f"torch.{name}")
        fn = getattr(torch, name)
        return cap.emit("call_function", fn, args, kwargs, fn)


for _name in "rnn_tanh rnn_relu lstm gru".split():
    _target = getattr(torch, _name)

    @rule(_target)
    def _recurrent(cap: Capture, args: Args, kwargs: Kwargs, name: str = _name) -> Tracker:
        x = cap.realize(args[0]) if args else NONE
        if type(x) is TensorVar and x.fake.spec.symbolic and type(cap.builder) is not GraphBuilder:
            cap.sizes.fix(x.fake.spec.shape, f"torch.{name} in an inner function")
        fn = getattr(torch, name)
        return cap.emit("call_function", fn, args, kwargs, fn)


@rule(torch.where)
def _where(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if len(args) + len(kwargs) == 1 and not is_captured(cap, "nonzero", args, kwargs):
        raise Break("data-dependent-op", "torch.where with one argument")
    return cap.emit("call_function", torch.where, args, kwargs, torch.where)


@rule(torch._C.Generator)
def _generator(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    raise Break("unsupported-object", "torch.Generator made in the captured code")


# --- tensor methods -----------------------------------------------------------------------------------------------------------


def unbind(cap: Capture, tensor: TensorVar) -> Tracker:
    """The slices along the first dimension, as iteration over a tensor gives them."""
    if tensor.fake.dim() == 0:
        raise cap.raise_(TypeError, "iteration over a 0-d tensor")
    return cap.emit("call_method", "unbind", [tensor, ConstVar(0)], {}, lambda t, d: t.unbind(d))


def method(*names: str) -> Callable[[Any], Any]:
    def register(handler: Any) -> Any:
        for name in names:
            TENSOR_METHODS[name] = handler
        return handler

    return register


@method("size")
def _tensor_size(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    tensor = cap.realize(args[0])
    return evaluate(
        cap,
        tensor.fake.size,
        *[cap.value_of(a) for a in args[1:]],
        **{k: cap.value_of(v) for k, v in kwargs.items()},
    )  # type: ignore


def _as_function(function: Callable[..., Any]) -> None:
    """A method that capture knows as a function."""
    method(function.__name__)(
        lambda cap, args, kwargs: cap.emit("call_function", function, args, kwargs, function)
    )


for _function in (torch.cov, torch.corrcoef, torch.kron, torch.stft):
    _as_function(_function)


@method("new")
def _tensor_new(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """The legacy factory: of sizes, an uninitialised tensor. (Of a list it would be that data; a graph shows both alike.)"""
    values, named = constants(cap, args[1:], kwargs)
    if len(values) == 1 and type(values[0]) is torch.Size:
        values = list(values[0])
    if named or not all(type(size) is int for size in values):
        raise Break("unsupported-call", "Tensor.new of other than sizes")
    sizes = cap.from_python(tuple(values) or (0,))
    return cap.emit("call_method", "new_empty", [args[0], sizes], {}, lambda t, s: t.new_empty(s))


@method("type")
def _tensor_type(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    tensor = cap.realize(args[0])
    assert type(tensor) is TensorVar
    wanted = cap.value_of(args[1]) if len(args) == 2 and not kwargs else None
    if isinstance(wanted, (type, str)) and tensor.fake.device.type == "cpu":
        # the legacy names of dtypes: torch.FloatTensor
        dtype = evaluate(cap, lambda name: torch.empty(0).type(name).dtype, wanted)
        return cap.emit("call_method", "type", [tensor, dtype], {}, lambda t, d: t.type(d))
    return cap.emit("call_method", "type", args, kwargs, lambda t, *a, **k: t.type(*a, **k))


@method("__len__")
def _tensor_len(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(length(cap, args[0]))


@method("__getitem__")
def _tensor_getitem(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return get_item(cap, args[0], args[1])


@method("__setitem__")
def _tensor_setitem(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    set_item(cap, args[0], args[1], args[2])
    return NONE


@method("__contains__")
def _tensor_contains(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return ConstVar(contains(cap, args[0], args[1]))


@method("__iter__")
def _tensor_iter(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return get_iter(cap, args[0])


@method("new_tensor")
def _new_tensor(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return cap.emit("call_method", "new_tensor", args, kwargs, lambda t, *a, **k: t.new_tensor(*a, **k))


def _operator_methods() -> None:
    from .protocol import BINARY, COMPARE, INPLACE, UNARY

    for symbol, (_, name, reflected) in BINARY.items():
        TENSOR_METHODS[name] = lambda cap, args, kwargs, s=symbol: binary(cap, s, args[0], args[1])
        TENSOR_METHODS[reflected] = lambda cap, args, kwargs, s=symbol: binary(cap, s, args[1], args[0])
    for symbol, (_, name) in INPLACE.items():
        TENSOR_METHODS[name] = lambda cap, args, kwargs, s=symbol: inplace(cap, s, args[0], args[1])
    for symbol, (_, name, _reflected) in COMPARE.items():
        TENSOR_METHODS[name] = lambda cap, args, kwargs, s=symbol: compare(cap, s, args[0], args[1])
    for symbol, (_, name) in UNARY.items():
        TENSOR_METHODS[name] = lambda cap, args, kwargs, s=symbol: unary(cap, s, args[0])


_operator_methods()
