"""Transforms of torch.func: what they are applied to is captured inside of them, on the tensors that they pass it.

In: calls of `vmap`, `grad`, `jvp` and their kin, and of functions that these made. Out: one node, which applies the
transform to the captured function. Always: the function only computes; the transform itself runs as in eager.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from ..fake import DataDependent, Unsupported
from ..guards import Const
from .breaks import Break, Raised, RunEagerly
from .calls import CODE_RULES, INSTANCE_CALLS, LATE_RULES, call
from .capture import Capture, Link, NotConst
from .frame import inline
from .graph_values import to_graph, wrap_result
from .override_rules import run_handlers, seen_by_mode
from .overriding import mode_sees, modes_aside, overrides
from .rerun import MADE, draws_since
from .residual import OBJECT_BUILDERS, Residual
from .rules import rule
from .subgraph import SubGraph, Tensors, trace
from .trackers import Args, ConstVar, DictVar, Kwargs, ListVar, ObjectVar, TensorVar, Tracker, TupleVar

Transform = Callable[[Callable[..., Any]], Callable[..., Any]]

_MAKERS = tuple(
    getattr(torch.func, name) for name in ("vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian")
)
_names = itertools.count()
#: What stacks the parameters of several modules, which torch keeps to itself.
construct_stacked_leaf = torch.func.stack_module_state.__globals__["construct_stacked_leaf"]


class Transformed:
    """``make(func, *args, **kwargs)``, to be called."""

    def __init__(
        self, make: Callable[..., Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.make, self.func, self.args, self.kwargs = make, func, args, kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.make(self.func, *self.args, **self.kwargs)(*args, **kwargs)


def _register_maker(make: Callable[..., Any]) -> None:
    @rule(make)
    def transformed(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        made = ObjectVar(Transformed)
        options = {name: value for name, value in kwargs.items() if name != "func"}
        made.attrs.known.update(
            make=ConstVar.known(make),
            func=args[0] if args else kwargs["func"],
            args=TupleVar(list(args[1:])),
            kwargs=DictVar(dict(options)),
        )
        return made


for _make in _MAKERS:
    _register_maker(_make)


def _call_transformed(cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
    parts = fn.attrs.known
    make = cap.value_of(parts["make"])
    try:
        options, named = cap.value_of(parts["args"]), cap.value_of(parts["kwargs"])
    except NotConst:
        raise Break("unsupported-call", f"{make.__name__} with options that are not constants") from None
    return apply(cap, lambda inner: make(inner, *options, **named), parts["func"], args, kwargs)


INSTANCE_CALLS[Transformed] = _call_transformed


def _register_wrapper(make: Callable[..., Any], options: tuple[str, ...]) -> None:
    """Functions made by ``make`` outside of captured code: known by their code, their parts are in its cells."""

    def call_wrapper(cap: Capture, fn: ConstVar, args: Args, kwargs: Kwargs) -> Tracker:
        cells = dict(zip(fn.value.__code__.co_freevars, fn.value.__closure__, strict=True))
        func = cells["func"].cell_contents
        named = {name: cells[name].cell_contents for name in options}
        tracker = cap.wrap(func, Const(func, "transformed"))
        return apply(cap, lambda inner: make(inner, **named), tracker, args, kwargs)

    CODE_RULES[make(lambda x: x).__code__] = call_wrapper


_register_wrapper(torch.func.vmap, ("in_dims", "out_dims", "randomness", "chunk_size"))
for _make in (torch.func.grad, torch.func.grad_and_value):
    _register_wrapper(_make, ("argnums", "has_aux"))
_register_wrapper(torch.func.jacrev, ("argnums", "has_aux", "chunk_size"))
_register_wrapper(torch.func.jacfwd, ("argnums", "has_aux", "randomness"))


@rule(torch.func.jvp)
def _jvp(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return apply(
        cap,
        lambda inner: lambda *rest, **named: torch.func.jvp(inner, *rest, **named),
        args[0],
        args[1:],
        kwargs,
    )


class Pullback:
    """What `torch.func.vjp` gives beside the outputs, to be called with their gradients."""


@rule(torch.func.vjp)
def _vjp(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    func, primals = args[0], args[1:]
    has_aux = bool(cap.value_of(kwargs.pop("has_aux", ConstVar(False))))
    if kwargs:
        raise Break("unsupported-call", "torch.func.vjp with keyword arguments")

    def outputs(inner: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: torch.func.vjp(inner, *given, has_aux=has_aux)[::2]

    start = len(cap.builder.graph.nodes)
    value = apply(cap, outputs, func, primals, {})
    assert type(value) is TupleVar
    pullback = ObjectVar(Pullback)
    parts = {"func": func, "primals": TupleVar(list(primals)), "has_aux": ConstVar(has_aux)}
    pullback.attrs.known.update(parts, moment=Moment(Tensors(cap), cap.break_step()))
    if draws_since(cap.builder, start):
        raise Break("unsupported-call", "torch.func.vjp of a function that draws random numbers")
    return TupleVar([value.items[0], pullback, *value.items[1:]])


class Moment(Tracker):
    """A moment of the capture: which tensors were written by then, and where the region could end."""

    __slots__ = ("step", "tensors")

    def __init__(self, tensors: Tensors, step: int) -> None:
        self.source, self.tensors, self.step = None, tensors, step


def _call_pullback(cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
    """The function is differentiated anew: a graph has no place for what the first time has kept."""
    parts: dict[str, Any] = fn.attrs.known
    has_aux = parts["has_aux"].value
    if parts["moment"].tensors.written():
        raise Break(
            "unsupported-call", "a function of torch.func.vjp, called after tensors were changed in place"
        )

    def pulled(inner: Callable[..., Any]) -> Callable[..., Any]:
        return lambda primals, *given, **named: torch.func.vjp(inner, *primals, has_aux=has_aux)[1](
            *given, **named
        )

    return apply(cap, pulled, parts["func"], [parts["primals"], *args], kwargs)


INSTANCE_CALLS[Pullback] = _call_pullback


def _kept_pullback(residual: Residual, fn: ObjectVar) -> str:
    step = fn.attrs.known["moment"].step  # type: ignore[attr-defined]
    raise RunEagerly("unsupported-object", "a function of torch.func.vjp, which is kept", earlier=step)


OBJECT_BUILDERS[Pullback] = _kept_pullback


def _register_plain(fn: Any) -> None:
    @rule(fn)
    def plain(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        return inline(cap, ConstVar.known(fn), args, kwargs)


#: Functions around transforms that are ordinary code.
for _plain in (functional_call, torch.func.stack_module_state, construct_stacked_leaf):
    _register_plain(_plain)


# --- indices that are tensors under a transform: what torch's masks of attention are made with -----------------------

_INDEXING = "torch._dynamo._trace_wrapped_higher_order_op"


def _get_item(cap: Capture, handler: Any, args: Args, kwargs: Kwargs) -> Tracker:
    return inline(cap, ConstVar.known(handler), args, kwargs)


def _index(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Tracker:
    """`ModIndex.apply`: an index whose backward adds up; where nothing needs a gradient, an index."""
    tensor = cap.realize(args[1])
    if type(tensor) is TensorVar and torch.is_grad_enabled() and tensor.fake.requires_grad:
        raise Break("unsupported-call", "ModIndex.apply of a tensor that needs a gradient")
    return cap.emit("call_function", torch.ops.aten.index, args[1:], kwargs, torch.ops.aten.index)


LATE_RULES[f"{_INDEXING}.TransformGetItemToIndex.__torch_function__"] = _get_item
LATE_RULES[f"{_INDEXING}.ModIndex.apply"] = _index


# --- applying a transform ------------------------------------------------------------------------------------------


def leaves(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)


def rebuilt(cap: Capture, value: Any, tensors: Iterator[Tracker]) -> Tracker:
    """The tracker of a nested value whose tensors are the given trackers, in order."""
    if isinstance(value, Tensor):
        return next(tensors)
    if type(value) is tuple:
        return TupleVar([rebuilt(cap, item, tensors) for item in value])
    if type(value) is list:
        return ListVar([rebuilt(cap, item, tensors) for item in value])
    if type(value) is dict:
        return DictVar({key: rebuilt(cap, item, tensors) for key, item in value.items()})
    if isinstance(value, (tuple, list, dict)):
        raise Break("unsupported-call", f"a {type(value).__name__} under a transform of torch.func")
    return cap.from_python(value)


class _Asking(TorchFunctionMode):
    """In the place of the program's modes while a transform runs: they see what it asks of its arguments, the sizes."""

    def __init__(self, cap: Capture) -> None:
        super().__init__()
        self.cap, self.depth = cap, torch._C._len_torch_dispatch_stack()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if torch._C._len_torch_dispatch_stack() < self.depth:
            return found  # fake tensors compute
        seen = seen_by_mode(self.cap, func, types, args, kwargs)
        if (
            next(leaves(found), None) is not None
            or to_graph(self.cap, run_handlers(self.cap, seen))[1] != found
        ):
            raise Break(
                "unsupported-tensor-subclass",
                f"a mode that sees {func.__name__} in a transform of torch.func",
            )
        return found


def apply(cap: Capture, transform: Transform, func: Tracker, args: Args, kwargs: Kwargs) -> Tracker:
    """``transform(func)(*args, **kwargs)`` as a node."""
    if not cap.functions_off and any(overrides(cap, arg) for arg in args):
        raise Break(
            "unsupported-tensor-subclass", "a transform of torch.func that a __torch_function__ may see"
        )
    pairs = [to_graph(cap, arg) for arg in args]
    kw_pairs = {name: to_graph(cap, arg) for name, arg in kwargs.items()}
    graphs: list[SubGraph] = []
    seen = mode_sees(cap, None)

    def inner(*given: Any, **named: Any) -> Any:
        if graphs:  # once more: for the next chunk
            taken = [to_graph(cap, outside)[1] for outside in graphs[0].lifted]
            return graphs[0].module.forward(*taken, *leaves((given, named)))

        def body(tensors: Any) -> Tracker:
            passed = iter(tensors)
            positional = [rebuilt(cap, value, passed) for value in given]
            return call(cap, func, positional, {k: rebuilt(cap, value, passed) for k, value in named.items()})

        what = "a function under a transform of torch.func"
        with modes_aside() if seen else nullcontext():
            looked_at = [func, *args, *cap.modes]
            graphs.append(trace(cap, what, body, list(leaves((given, named))), looked_at, nested=True))
        return graphs[0].value

    was_faking = cap.is_faking
    try:
        with nullcontext() if was_faking else cap.fake_mode:
            cap.is_faking = True
            with _Asking(cap) if seen else nullcontext():
                value = transform(inner)(
                    *[p[1] for p in pairs], **{name: p[1] for name, p in kw_pairs.items()}
                )
    except (Break, Raised):
        raise
    except (DataDependent, Unsupported) as error:
        raise Break("unsupported-fake-op", str(error)) from None
    except Exception as error:
        raise Break("exception-raised", f"{type(error).__name__}: {error}") from error
    finally:
        cap.is_faking = was_faking
    if not graphs:
        raise Break("unsupported-call", "a transform of torch.func that does not call its function")
    run = _runner(transform, graphs[0].module.forward)
    MADE[run] = (graphs[0].module.graph,)
    lifted = tuple(to_graph(cap, outside)[0] for outside in graphs[0].lifted)
    flat, where = tuple(leaves(value)), cap.user_stack()
    named = {name: p[0] for name, p in kw_pairs.items()}
    node = cap.builder.add_op("call_function", run, (lifted, *[p[0] for p in pairs]), named, flat, where)
    results = wrap_result(cap, node, flat, where)
    assert type(results) is TupleVar
    return rebuilt(cap, value, iter(results.items))


def _runner(transform: Transform, forward: Callable[..., Any]) -> Callable[..., tuple[Tensor, ...]]:
    def run(lifted: tuple[Tensor, ...], *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        def captured(*given: Any, **named: Any) -> Any:
            return forward(*lifted, *leaves((given, named)))

        return tuple(leaves(transform(captured)(*args, **kwargs)))

    run.__name__ = run.__qualname__ = f"transformed_{next(_names)}"
    return run
