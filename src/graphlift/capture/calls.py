"""Calling trackers: rules, inlined Python functions, classes, tensor functions, constants.

In: a callable tracker with argument trackers. Out: the result's tracker.
Always: a callee that is not understood is a `Break`, never a guess.
"""

from __future__ import annotations

import enum
import functools
import inspect
import operator
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .. import config
from ..fake import value_of
from ..guards import ABSENT, Const, IdIs
from ..marks import mark_of
from . import polyfills
from .arity import arrange
from .attributes import bind_descriptor, python_type, wrap_class_value
from .breaks import Break, Raised
from .capture import DIRECT, Capture, Link, NotConst
from .constants import FUNCTION_APPLY, NUMPY_SCALARS, PLAIN_CONSTANTS, exception_values
from .endings import has_finalizer
from .frame import finished, inline, resume_callee
from .overriding import LEAF_MODULES, is_modelled, is_seen
from .pure import is_pure
from .reordered import is_reorderable, put_off
from .rules import RULES
from .trackers import (
    Args,
    CalleeVar,
    ConstVar,
    DictVar,
    FunctionVar,
    Kwargs,
    ListVar,
    MethodVar,
    ObjectVar,
    OpaqueVar,
    PrivateVar,
    SetVar,
    TensorVar,
    Tracker,
    TupleVar,
)

#: Functions of these modules are never traced into: they change state that capture does not model.
OPAQUE_MODULES = (
    "torch._dynamo",
    "torch._functorch",
    "torch._inductor",
    "torch.autograd",
    "torch.distributed",
    "torch.export",
    "torch.func",
    "torch.fx",
    "torch.jit",
    "torch.library",
    "torch.onnx",
    "torch.optim.lbfgs",  # its loop is over numbers read from tensors
    "torch.profiler",
    "torch.random",
    "torch.serialization",
    "torch.utils.checkpoint",
    "torch.utils.data",
    "torch.cuda",
    "torch._vmap_internals",
    "torch._ops",
    "numpy",
    "logging.handlers",
    "multiprocessing",
    "asyncio",
    "subprocess",
    "socket",
    "threading",
    "pickle",
    "importlib",
    "random",
    "tqdm",
)
_TRACED_MODULES = (
    "torch.autograd.anomaly_mode",
    "torch.autograd.function",
    "torch.autograd.grad_mode",
    "torch.fx.graph_module",  # how modules made by torch.fx call their forward
)


def call(cap: Capture, fn: Tracker, args: Args, kwargs: Kwargs, link: Link | None = None) -> Tracker:
    """``fn(*args, **kwargs)``; ``link``: what a call instruction passes on, that the callee's frame can be resumed."""
    try:
        fn = cap.realize(fn)
        kind = type(fn)
        if kind is MethodVar and type(fn.self_var) is PrivateVar:  # type: ignore[attr-defined]
            from .mirror import run

            return run(cap, fn.func.value, [fn.self_var, *args], kwargs)  # type: ignore[attr-defined]
        if kind is MethodVar:
            return call(cap, fn.func, [fn.self_var, *args], kwargs, link)  # type: ignore[attr-defined]
        if kind is ConstVar:
            return _call_const(cap, fn, args, kwargs, link)  # type: ignore[arg-type]
        if kind is FunctionVar:
            return inline(cap, fn, args, kwargs, link)
        if kind is CalleeVar:
            return resume_callee(cap, fn, link)  # type: ignore[arg-type]
        if kind is ObjectVar:
            special = INSTANCE_CALLS.get(fn.cls)  # type: ignore[attr-defined]
            if special is not None:
                return special(cap, fn, args, kwargs, link)  # type: ignore[arg-type]
            raw = cap.type_attr(fn.cls, "__call__")  # type: ignore[attr-defined]
            if raw is ABSENT:
                raise cap.raise_(TypeError, f"'{fn.cls.__name__}' object is not callable")  # type: ignore[attr-defined]
            bound = bind_descriptor(cap, raw, fn, fn.cls, "__call__")  # type: ignore[attr-defined]
            assert bound is not None
            if (
                type(bound) is MethodVar
                and type(bound.func) is ConstVar
                and isinstance(bound.func.value, types.WrapperDescriptorType)
            ):
                raise Break("c-function", f"call of a {fn.cls.__name__} object")  # type: ignore[attr-defined]
            return call(cap, bound, args, kwargs, link)
        if kind is OpaqueVar:
            raise Break(fn.code, fn.detail)  # type: ignore[attr-defined]
        raise cap.raise_(TypeError, f"'{python_type(fn).__name__}' object is not callable")
    except Break as stop:
        if link is None:  # whoever calls may have done a part of its work
            stop.at_once = False
        raise


def call_special(cap: Capture, obj: Tracker, name: str, args: Args, link: Link | None = None) -> Tracker:
    """``type(obj).name(obj, *args)``: special methods are looked up on the type."""
    cls = python_type(obj)
    raw = cap.type_attr(cls, name)
    if raw is ABSENT:
        raise cap.raise_(TypeError, f"'{cls.__name__}' object has no {name}")
    bound = bind_descriptor(cap, raw, obj, cls, name)
    assert bound is not None
    return call(cap, bound, args, {}, link)


def hash_by_method(cap: Capture, obj: Tracker) -> int:
    """``hash(obj)`` where the class says how: what it gives is made a hash of by the interpreter."""
    from .protocol import evaluate

    given = cap.value_of(call_special(cap, obj, "__hash__", []))
    made: Any = evaluate(cap, hash, type("Hashed", (), {"__hash__": lambda self: given})())
    return made.value  # type: ignore[no-any-return]


def _call_partial(cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
    from .protocol import sequence_items

    keywords = fn.slots["keywords"]
    assert type(keywords) is DictVar
    cap.complete(keywords)
    return call(
        cap,
        fn.slots["func"],
        [*sequence_items(cap, fn.slots["args"]), *args],
        {**{str(k): v for k, v in keywords.known.items()}, **kwargs},
        link,
    )


#: Rules of functions whose modules torch loads when they are first used, by the function's full name.
LATE_RULES: dict[str, Callable[[Capture, Any, Args, Kwargs], Tracker]] = {}
#: What a call of a function means by its code: for wrappers, which are functions of their own each time.
CODE_RULES: dict[types.CodeType, Callable[[Capture, ConstVar, Args, Kwargs], Tracker]] = {}


def _call_getter(cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
    """`operator.itemgetter` and kin: known by what they were made with."""
    if "args" not in fn.slots:
        assert fn.obj is not None and fn.source is not None
        cap.guard(IdIs(fn.source, fn.obj))
        _, made_with = fn.obj.__reduce__()[:2]
        fn.slots = {"args": cap.from_python(made_with), "keywords": DictVar({})}
        if not isinstance(made_with, tuple) or fn.obj.__reduce__()[0] is not fn.cls:
            raise Break("c-function", f"call of a {fn.cls.__name__}")
    if len(args) != 1 or kwargs:
        raise Break("unsupported-call", f"{fn.cls.__name__} with {len(args)} arguments")
    polyfill = ConstVar(getattr(polyfills, fn.cls.__name__ + "_"))
    return call(cap, polyfill, [args[0], fn.slots["args"], fn.slots["keywords"]], {}, link)


#: What a call of an instance means, for classes whose ``__call__`` is not Python.
INSTANCE_CALLS: dict[type, Callable[[Capture, ObjectVar, Args, Kwargs, Link | None], Tracker]] = {
    functools.partial: _call_partial,
    operator.itemgetter: _call_getter,
    operator.attrgetter: _call_getter,
    operator.methodcaller: _call_getter,
}


def _call_const(cap: Capture, fn: ConstVar, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
    value = fn.value
    if config.reorderable_logging_functions and is_reorderable(value, args):
        return put_off(cap, value, args, kwargs)
    try:
        found = RULES.get(value)
    except TypeError:
        found = None
    if found is not None:
        answer = _seen_by_handlers(cap, value, args, kwargs)
        if answer is not None:
            return answer
        arranged = arrange(value, args, kwargs)
        if arranged is None:
            return refuse(cap, value, args, kwargs)
        led = LED.get(value) if link is DIRECT else None
        result = led(cap, *arranged) if led is not None else None
        return found(cap, *arranged) if result is None else result
    if (
        type(value) is types.MethodDescriptorType
        and value in SEARCHES
        and _meets_tensors(cap, value, args, kwargs)
    ):
        return inline(cap, ConstVar(SEARCHES[value]), args, kwargs, link)
    mark = mark_of(value)
    if mark is not None:
        return _call_marked(cap, fn, mark, args, kwargs)
    if type(value) is types.FunctionType:
        return _call_function(cap, fn, args, kwargs, link)
    if isinstance(value, type):
        return construct(cap, value, args, kwargs, link)
    of_class = CONSTANT_CALLS.get(type(value))
    if of_class is not None:
        return of_class(cap, value, args, kwargs)
    return call_c(cap, value, args, kwargs)


#: What calls of builtins mean whose result is that of a function of the program's, or is made of it: one that may be
#: left at a break. None leaves a call to its rule.
LED: dict[Any, Callable[[Capture, Args, Kwargs], Tracker | None]] = {}


def ask(
    cap: Capture, builtin: Any, obj: Tracker, args: Args, finish: Callable[[Any], tuple[Tracker, ...]]
) -> Tracker | None:
    """What a builtin gives that asks the class of ``obj``, where a function of the program's answers; else None.

    ``finish``: what is made of the answer, by the builtin of which it is the answer.
    """
    obj = cap.realize(obj)
    if type(obj) is not ObjectVar or obj.cls.__module__ == polyfills.__name__:
        return None
    for name, asks in ASKED.get(builtin, ()):
        raw = cap.type_attr(obj.cls, name)
        if isinstance(raw, types.FunctionType):
            then = finish(asks) if asks is not None else ()
            given = cap.realize(call_special(cap, obj, name, args, Link(then) if then else DIRECT))
            return given if finish is answer and _will_do(asks, given) else finished(cap, then, given)
        if raw is not ABSENT and raw is not getattr(object, name, None):
            break
    return None


def _will_do(asks: Any, given: Tracker) -> bool:
    """Whether an answer is one that the builtin gives as it is."""
    if type(given) is not ConstVar or given.is_unread:
        return False
    if asks is len:
        return type(given.value) is int and 0 <= given.value <= sys.maxsize
    return asks in (str, repr, format) and type(given.value) is str


#: By which special method a builtin asks, or by which other one where a class leaves that as it is; and the builtin that
#: sees whether the answer will do, None where anything does.
ASKED: dict[Any, tuple[tuple[str, Any], ...]] = {
    len: (("__len__", len),),
    iter: (("__iter__", iter),),
    str: (("__str__", str), ("__repr__", str)),
    repr: (("__repr__", repr),),
    format: (("__format__", format),),
    int: (("__int__", int),),
    hash: (("__hash__", hash),),
    abs: (("__abs__", None),),
    round: (("__round__", None),),
    reversed: (("__reversed__", None),),
    next: (("__next__", None),),
}


def answer(asks: Any) -> tuple[Tracker, ...]:
    return ConstVar(polyfills.asked), ConstVar(asks)


def _asking(builtin: Any, most: int) -> None:
    def led(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker | None:
        if not 1 <= len(args) <= most or kwargs:
            return None
        return ask(cap, builtin, args[0], args[1:], answer)

    LED[builtin] = led


for _builtin in ASKED:
    if _builtin is not format:
        _asking(_builtin, 2 if _builtin is round else 1)


#: What a call of a constant means, by its class.
CONSTANT_CALLS: dict[type, Callable[[Capture, Any, Args, Kwargs], Tracker]] = {}


def _seen_by_handlers(cap: Capture, value: Any, args: Args, kwargs: Kwargs) -> Tracker | None:
    """What modes and classes of arguments make of a function of torch's that has a rule."""
    if id(value) not in LEAF_BUILTINS:
        if value in _OVERRIDABLE and is_seen(cap, value, (*args, *kwargs.values())):
            raise Break("unsupported-tensor-subclass", f"{_name(value)}, which a __torch_function__ may see")
        return None
    if not is_seen(cap, value, (*args, *kwargs.values())):
        return None
    from .override_rules import handled

    return handled(cap, value, value, args, kwargs)


#: Python functions with rules whose effects a handler could see.
_OVERRIDABLE: frozenset[Any] = frozenset(
    (torch.autograd.grad, torch.utils.checkpoint.checkpoint, torch._assert, FUNCTION_APPLY)
)


#: Searches of sequences: comparing tensors gives tensors, whose truth only values tell, in the middle of the search.
SEARCHES: dict[Any, Any] = {
    list.count: polyfills.count_,
    tuple.count: polyfills.count_,
    list.index: polyfills.index_,
    tuple.index: polyfills.index_,
}


def _meets_tensors(cap: Capture, search: Any, args: Args, kwargs: Kwargs) -> bool:
    if arrange(search, args, kwargs) is None:
        return False
    sequence = cap.realize(args[0])
    if not issubclass(python_type(sequence), search.__objclass__):
        return False
    if type(sequence) is ObjectVar and type(sequence.payload) is TupleVar:
        sequence = sequence.payload
    if type(sequence) not in (ListVar, TupleVar):
        return False
    searched = [*sequence.items, *args[1:2]]  # type: ignore[union-attr]
    return any(type(cap.realize(item)) is TensorVar for item in searched)


def refuse(cap: Capture, value: Any, args: Args, kwargs: Kwargs) -> Tracker:
    """A call with arguments that the function does not take: it says so itself, before it does anything."""
    from .mirror import run

    run(cap, value, args, kwargs)
    raise Break("unsupported-call", f"{_name(value)} with {len(args)} arguments")


def _call_function(cap: Capture, fn: ConstVar, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
    value = fn.value
    special = CODE_RULES.get(value.__code__)
    if special is not None:
        return special(cap, fn, args, kwargs)
    module = value.__module__ or ""
    if module in LEAF_MODULES:
        if module == "torch._tensor" and args and type(cap.realize(args[0])) is TensorVar:
            return _call_tensor_method(cap, value.__name__, args, kwargs)
        if any(_is_program(cap, arg) for arg in (*args, *kwargs.values())):
            return inline(cap, fn, args, kwargs, link)
        try:
            return cap.emit("call_function", value, args, kwargs, value)
        except Break as stop:
            if stop.code != "tensor-item":
                raise
        return inline(cap, fn, args, kwargs, link)  # it looks at values, perhaps only to check them
    if value.__name__ == "graph_break" and module == "torch._dynamo.decorators":
        return dynamo_graph_break(cap)
    if value.__globals__.get("__name__") == "torch._dynamo.eval_frame":  # whatever it says that it wraps
        raise Break("c-function", f"{value.__qualname__}, which torch.compile compiles", at_once=True)
    if is_opaque(module):
        late = LATE_RULES.get(f"{module}.{value.__qualname__}")
        if late is not None:
            return late(cap, value, args, kwargs)
        code = "backward-call" if value is torch.autograd.backward else "unsupported-call"
        raise Break(code, f"{module}.{value.__qualname__}", at_once=True)
    return inline(cap, fn, args, kwargs, link)


@functools.cache
def is_opaque(module: str) -> bool:
    """Whether functions of a module are never traced into."""
    opaque = any(module == prefix or module.startswith(prefix + ".") for prefix in OPAQUE_MODULES)
    return opaque and not module.startswith(_TRACED_MODULES)


def _is_program(cap: Capture, tracker: Tracker) -> bool:
    """Whether it is a callable or an object with fields: what a function of torch's does with it is not one operation."""
    value = cap.realize(tracker)
    if type(value) is ConstVar:
        return type(value.value) in (types.FunctionType, types.BuiltinFunctionType)
    if type(value) is ObjectVar:
        return value.payload is None and not isinstance(value.obj, torch.Generator)
    return type(value) in (FunctionVar, MethodVar)


def dynamo_graph_break(cap: Capture) -> Tracker:
    """The user's is kept; the ones that torch's optimizers ask for are meant for torch's own compiler."""
    if cap.frames[-1].code.co_filename == inspect.getfile(torch.optim.Optimizer):
        return ConstVar(None)
    raise Break("requested-break", "torch._dynamo.graph_break", at_once=True)


def _call_marked(cap: Capture, fn: ConstVar, mark: str, args: Args, kwargs: Kwargs) -> Tracker:
    """A function that the user marked: disabled, one node of the graph, or constant."""
    value = fn.value
    if mark == "disabled":
        original: Any = getattr(value, "_torchdynamo_orig_callable", None)
        if original is not None and (original.__module__ or "").startswith("torch.optim."):
            # Not the user's mark: torch.compile, once used, keeps parts of torch's optimizers from itself.
            return call(cap, ConstVar.known(original), args, kwargs)
        raise Break("disabled-function", getattr(value, "__qualname__", repr(value)), at_once=True)
    if mark == "allow_in_graph":
        return cap.emit("call_function", value, args, kwargs, value)
    try:
        real_args = [known_object(cap, arg) for arg in args]
        real_kwargs = {name: known_object(cap, arg) for name, arg in kwargs.items()}
    except NotConst:
        raise Break(
            "unsupported-call", f"{value.__qualname__} assumed constant, with arguments that are not"
        ) from None
    result = value(*real_args, **real_kwargs)
    return cap.wrap(result, Const(result, f"result_of_{value.__name__}"))


def known_object(cap: Capture, tracker: Tracker) -> Any:
    """The real object behind a tracker: a constant, or a pre-existing object that the region has not changed."""
    tracker = cap.realize(tracker)
    if type(tracker) is ObjectVar and tracker.obj is not None:
        if (
            tracker.attrs.log
            or tracker.slots_written
            or (tracker.payload is not None and id(tracker.payload) in cap.changed)
        ):
            raise NotConst
        if tracker.source is not None and not isinstance(tracker.source, Const):
            cap.guard(IdIs(tracker.source, tracker.obj))
        return tracker.obj
    return cap.value_of(tracker)


def _leaf_builtins() -> dict[int, Any]:
    namespaces = [
        torch._C._VariableFunctions,
        torch._C._nn,
        torch._C._special,
        torch._C._linalg,
        torch._C._fft,
        torch._C._sparse,
    ]
    found = {}
    for namespace in namespaces:
        for name in dir(namespace):
            value = getattr(namespace, name)
            if isinstance(value, types.BuiltinFunctionType):
                found[id(value)] = value
                public = getattr(torch, name, None)
                if isinstance(public, types.BuiltinFunctionType):
                    found[id(public)] = public
    return found


LEAF_BUILTINS = _leaf_builtins()


def call_c(cap: Capture, value: Any, args: Args, kwargs: Kwargs) -> Tracker:
    """A C function or method without a rule of its own."""
    if id(value) in LEAF_BUILTINS:
        return cap.emit("call_function", value, args, kwargs, value)
    owner = None if isinstance(value, type) else getattr(value, "__objclass__", None)
    if owner is torch._C.TensorBase and args and type(cap.realize(args[0])) is TensorVar:
        return _call_tensor_method(cap, value.__name__, args, kwargs)
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return cap.emit("call_function", value, args, kwargs, value)
    if args and owner is not None and type(cap.realize(args[0])) is OpaqueVar:
        receiver = cap.realize(args[0])
        raise Break(receiver.code, receiver.detail)  # type: ignore[attr-defined]
    if type(value) is types.MethodWrapperType:
        from .override_rules import call_accessor

        answer = call_accessor(cap, value, args)
        if answer is not None:
            return answer
    if owner in NUMPY_SCALARS:
        return _call_on_numbers(cap, value, args, kwargs)
    if is_pure(value):
        from .mirror import run

        return run(cap, value, args, kwargs)
    raise Break("c-function", _name(value), at_once=True)


def _name(value: Any) -> str:
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or f"a {type(value).__qualname__}"
    return f"{module}.{name}" if module and module != "builtins" else name


#: Tensor methods that read data, change autograd state, or reach the storage: they run natively.
BREAKING_TENSOR_METHODS: dict[str, str] = {
    **dict.fromkeys(
        "item tolist __bool__ __int__ __float__ __index__ __complex__ __nonzero__ is_nonzero".split(),
        "tensor-item",
    ),
    **dict.fromkeys(
        "__array__ data_ptr storage untyped_storage _typed_storage storage_type __reduce_ex__ __dlpack__ "
        "share_memory_ is_shared set_ apply_ map_ map2_ resize_ resize_as_ __repr__ __str__ __format__ record_stream pin_memory "
        "register_hook register_post_accumulate_grad_hook retain_grad requires_grad_ detach_ _make_subclass as_subclass "
        "__dlpack_device__ module_load __setstate__ _set_version sparse_resize_ __delitem__ __getstate__ copy_to_host".split(),
        "unsupported-call",
    ),
    "backward": "backward-call",
    **dict.fromkeys(
        "nonzero masked_select unique unique_consecutive equal allclose argwhere".split(), "data-dependent-op"
    ),
}


def is_known(tracker: Tracker) -> bool:
    """Whether the values of a tensor are known: it was made of constants."""
    return type(tracker) is TensorVar and value_of(tracker.fake) is not None


def is_captured(cap: Capture, name: str, args: Args, kwargs: Kwargs) -> bool:
    """Whether what a method reads may be known, or a flag asks for what only the running graph knows."""
    if name in ("item", "tolist") and config.capture_scalar_outputs:
        return True
    if name in _FINDING and config.capture_dynamic_output_shape_ops:
        return True
    reads = BREAKING_TENSOR_METHODS.get(name, "tensor-item") in ("tensor-item", "data-dependent-op")
    return reads and any(is_known(cap.realize(arg)) for arg in (*args, *kwargs.values()))


_FINDING = frozenset("nonzero masked_select unique unique_consecutive argwhere".split())


def known_index(cap: Capture, tracker: Tracker) -> Tracker:
    """``operator.index`` of a tensor whose value is known; anything else as it is."""
    tracker = cap.realize(tracker)
    if is_known(tracker) and tracker.fake.dim() == 0 and not tracker.fake.dtype.is_floating_point:  # type: ignore[attr-defined]
        return cap.emit("call_function", operator.index, [tracker], {}, operator.index)
    return tracker


def plain_index(cap: Capture, tracker: Tracker) -> int | None:
    """The int that C code makes of an argument; None where the C function is to say itself what it makes of it."""
    try:
        value = cap.value_of(known_index(cap, tracker))
    except NotConst:
        return None
    return int(value) if isinstance(value, int) and abs(value) <= sys.maxsize else None


def is_callable(cap: Capture, tracker: Tracker) -> bool:
    """``callable(value)``."""
    value = cap.realize(tracker)
    if type(value) is ConstVar:
        return callable(value.value)
    return cap.type_attr(python_type(value), "__call__") is not ABSENT


def _call_tensor_method(cap: Capture, name: str, args: Args, kwargs: Kwargs) -> Tracker:
    if is_seen(cap, name, (*args, *kwargs.values())):
        from .override_rules import handled

        answer = handled(cap, name, _method_caller(name), args, kwargs)
        if answer is not None:
            return answer
    reason = BREAKING_TENSOR_METHODS.get(name)
    if reason is not None and not is_captured(cap, name, args, kwargs):
        raise Break(reason, f"Tensor.{name}", at_once=True)
    special = TENSOR_METHODS.get(name)
    if special is not None:
        return special(cap, args, kwargs)
    return cap.emit("call_method", name, args, kwargs, _method_caller(name))


def _method_caller(name: str) -> Callable[..., Any]:
    return lambda this, *rest, **named: getattr(this, name)(*rest, **named)


#: Tensor methods with a rule of their own, filled by torch_rules.py.
TENSOR_METHODS: dict[str, Any] = {}


# --- classes ---------------------------------------------------------------------------------------------------------


def _call_on_numbers(cap: Capture, method: Any, args: Args, kwargs: Kwargs) -> Tracker:
    """A method of numpy's scalars, which give numbers (and text) for constants."""
    try:
        values = [cap.value_of(arg) for arg in args]
        named = {name: cap.value_of(arg) for name, arg in kwargs.items()}
    except NotConst:
        raise Break("unsupported-builtin", f"{_name(method)} of values that are not constants") from None
    if method.__name__ in ("tofile", "dump", "setflags"):
        raise Break("c-function", _name(method))
    with np.errstate(all="raise"):  # what numpy would warn of runs natively
        try:
            result = method(*values, **named)
        except FloatingPointError as error:
            raise Break("c-function", f"{_name(method)}: {error}") from None
        except Exception as error:
            raise Raised(cap.exception_var(error)) from error
    if type(result) not in PLAIN_CONSTANTS and not isinstance(result, np.generic):
        raise Break("c-function", f"{_name(method)}, which gives a {type(result).__name__}")
    return cap.from_python(result)


def construct(cap: Capture, cls: type, args: Args, kwargs: Kwargs, link: Link | None = None) -> Tracker:
    """``cls(*args, **kwargs)`` for a class without a rule."""
    from .class_rules import enum_call

    meta_call = cap.type_attr(type(cls), "__call__")
    this = ConstVar.known(cls)
    if isinstance(meta_call, types.FunctionType):
        if isinstance(cls, enum.EnumMeta):
            return enum_call(cap, cls, args, kwargs) or _construct_constant(cap, cls, args, kwargs)
        made = ConstVar.known(meta_call)
        return inline(cap, made, [this, *args], kwargs, link)
    if meta_call is not type.__call__ and not isinstance(cls, enum.EnumMeta):
        bound = bind_descriptor(cap, meta_call, this, type(cls), "__call__")
        assert bound is not None
        return call(cap, bound, args, kwargs)
    return type_call(cap, cls, args, kwargs, link)


def _construct_constant(cap: Capture, cls: Any, args: Args, kwargs: Kwargs) -> Tracker:
    try:
        values = [cap.value_of(arg) for arg in args]
    except NotConst:
        if any(type(cap.realize(arg)) is PrivateVar for arg in args):
            from .mirror import run

            return run(cap, cls, args, kwargs)
        raise Break("unsupported-call", f"{cls.__name__} of values that are not constants") from None
    from .protocol import evaluate

    return evaluate(cap, cls, *values, **{k: cap.value_of(v) for k, v in kwargs.items()})


def type_call(cap: Capture, cls: type, args: Args, kwargs: Kwargs, link: Link | None = None) -> Tracker:
    """``type.__call__``: ``__new__`` and then ``__init__``."""
    if issubclass(cls, type):
        from .class_rules import make_class

        return make_class(cap, cls, args, kwargs)
    this = ConstVar.known(cls)
    numpy_constant = issubclass(cls, (np.generic, np.dtype, np.finfo, np.iinfo))
    if issubclass(cls, torch.Tensor) or cls in PLAIN_CONSTANTS or numpy_constant:
        if cls in PLAIN_CONSTANTS or numpy_constant:
            return _construct_constant(cap, cls, args, kwargs)
        if cls is torch.Tensor or not is_modelled(cls):
            raise Break("unsupported-object", f"a {cls.__name__} made in the captured code")
    if issubclass(cls, BaseException) and cls.__module__ == "builtins" and (exception_values(cls) or kwargs):
        return _builtin_exception(cap, cls, args, kwargs)
    new = cap.type_attr(cls, "__new__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    init = cap.type_attr(cls, "__init__")
    if isinstance(new, types.FunctionType):
        last = link if init is object.__init__ else None
        if link is DIRECT and isinstance(init, types.FunctionType):
            last = Link((ConstVar(polyfills.initialise), this, TupleVar(list(args)), DictVar(dict(kwargs))))
        result = call(cap, wrap_class_value(cap, cls, "__new__", new), [this, *args], kwargs, last)
    elif issubclass(cls, torch.Tensor):
        from .override_rules import new_tensor

        result = new_tensor(cap, cls, args, kwargs)
    else:
        if new is object.__new__:
            refuse_excess(cap, cls, args, kwargs)
        result = new_object(cap, cls, args)
    if type(result) not in (ObjectVar, TensorVar) or cls not in result.cls.__mro__:  # type: ignore[attr-defined]
        return result
    if isinstance(init, types.FunctionType):
        finish = ConstVar(polyfills.initialised), result
        made = Link(finish) if link is DIRECT else None
        given = call(cap, wrap_class_value(cap, cls, "__init__", init), [result, *args], kwargs, made)
        if not (type(given) is ConstVar and given.value is None):
            finished(cap, finish, given)
    elif init in RULES or is_pure(init):
        call(cap, ConstVar(init), [result, *args], kwargs)
    elif type(result) is TensorVar:
        pass  # torch's does nothing
    else:
        raise Break("unsupported-object", f"{cls.__name__}.__init__ is a C function")
    return result


def refuse_excess(cap: Capture, cls: type, args: Args, kwargs: Kwargs) -> None:
    """``object.__new__`` takes arguments for an ``__init__`` alone. Source: CPython, Objects/typeobject.c, object_new."""
    if not args and not kwargs:
        return
    new = cap.type_attr(cls, "__new__")
    if (new.__func__ if isinstance(new, staticmethod) else new) is not object.__new__:
        raise cap.raise_(TypeError, "object.__new__() takes exactly one argument (the type to instantiate)")
    if cap.type_attr(cls, "__init__") is object.__init__:
        raise cap.raise_(TypeError, f"{cls.__name__}() takes no arguments")


def _builtin_exception(cap: Capture, cls: type, args: Args, kwargs: Kwargs) -> Tracker:
    """An exception of the interpreter that sets fields of its own from its arguments."""
    if cls is StopIteration and not kwargs:
        result = ObjectVar(cls)
        result.slots = {"args": TupleVar(args), "value": cap.realize(args[0]) if args else ConstVar(None)}
        return result
    try:
        return _construct_constant(cap, cls, args, kwargs)
    except NotConst:
        raise Break("unsupported-object", f"a {cls.__name__} with fields") from None


_TEXT_AND_NUMBERS = (str, int, float, complex, bytes)
_IS_ABSTRACT = 1 << 20  # Py_TPFLAGS_IS_ABSTRACT


def new_object(cap: Capture, cls: type, args: Args) -> ObjectVar:
    """A fresh instance as the C-level ``__new__`` of its base makes it."""
    from .exception_rules import new_group
    from .protocol import evaluate, gather, set_of

    if cls.__flags__ & _IS_ABSTRACT:
        evaluate(cap, object.__new__, cls)  # raises the TypeError that names the abstract methods
    if has_finalizer(cls):
        raise Break(
            "unsupported-object", f"a {cls.__name__} made in the captured code, whose __del__ is to run"
        )
    if issubclass(cls, BaseExceptionGroup):
        return new_group(cap, cls, args)
    result = ObjectVar(cls)
    if issubclass(cls, BaseException):
        result.slots["args"] = TupleVar(list(args))
    elif issubclass(cls, tuple):
        result.payload = TupleVar(gather(cap, args[0]) if args else [])
    elif issubclass(cls, (dict, OrderedDict)):
        result.payload = DictVar({}, cls=OrderedDict if issubclass(cls, OrderedDict) else dict)
        if issubclass(cls, defaultdict):
            result.slots["default_factory"] = args[0] if args else ConstVar(None)
    elif issubclass(cls, list):
        result.payload = ListVar([])
    elif issubclass(cls, set):
        result.payload = SetVar({})
    elif issubclass(cls, frozenset):
        result.payload = SetVar(set_of(cap, args[0]) if args else {}, frozenset)
    elif issubclass(cls, _TEXT_AND_NUMBERS):
        base = next(base for base in cls.__mro__ if base in _TEXT_AND_NUMBERS)
        result.payload = call(cap, ConstVar(base), args, {})
    elif cls is not object and (not cls.__flags__ & (1 << 9) or not _plain_layout(cls)):
        raise Break("unsupported-object", f"a {cls.__name__} made in the captured code")
    if type(result.payload) in (ListVar, DictVar, SetVar):
        cap.holders[id(result.payload)] = result
    return result


def _plain_layout(cls: type) -> bool:
    """Whether instances are made by ``object.__new__`` (no C-level state)."""
    return cls.__new__ is object.__new__ or isinstance(cls.__new__, types.FunctionType)
