"""Autograd in captured code: custom functions with their own backward, gradients taken inside, hooks.

In: calls of `torch.autograd`. Out: graph nodes whose backward is a graph of its own.
Always: what autograd does at run time is what it does in eager; where that cannot be known, a break.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, FunctionCtx, _SingleLevelFunction, once_differentiable

from ..data import dataclass
from .attributes import get_attr
from .breaks import Break
from .calls import call
from .capture import Capture
from .constants import FUNCTION_APPLY, PLAIN_CONSTANTS
from .graph import GraphBuilder
from .late_reads import LateCheck
from .protocol import iterate
from .rerun import MADE
from .rules import rule
from .subgraph import SubGraph, trace
from .trackers import (
    NONE,
    Args,
    ConstVar,
    DictVar,
    FloatVar,
    Kwargs,
    ListVar,
    ObjectVar,
    SizeVar,
    TensorVar,
    Tracker,
    TupleVar,
)

# --- custom functions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """A custom function's backward as a graph; ``saved`` and ``extra`` are what it takes before the gradients."""

    name: str
    backward: Callable[..., tuple[Tensor, ...]]
    order: tuple[
        tuple[bool, int], ...
    ]  # per lifted tensor or size: whether it is saved for the backward, and its position
    grads: tuple[int | None, ...]  # per tensor input: which result of the backward is its gradient
    gradient_slots: tuple[int, ...]  # per gradient that the backward takes: the output it belongs to
    dirty: tuple[int, ...]  # positions among the tensor inputs
    non_differentiable: tuple[int, ...]  # positions among the outputs
    single: bool  # whether the forward returns a tensor rather than a tuple
    once: bool  # whether the backward refuses to be differentiated
    late: LateCheck | None  # of what the backward looks at
    python: PythonBackward | None  # None: what the context holds is known to the capture alone


@dataclass(frozen=True, slots=True)
class PythonBackward:
    """The backward of the program itself, called where what it looks at has changed since."""

    function: weakref.ref[Any]
    tensors: tuple[int, ...]  # positions of the tensors among the inputs of the forward

    def __call__(
        self, saved: tuple[Any, ...], attributes: dict[str, Any], grads: tuple[Any, ...]
    ) -> list[Any]:
        context = FunctionCtx()
        vars(context).update(attributes, saved_tensors=saved, saved_variables=saved)
        function: Any = self.function()
        result = function.backward(context, *grads)
        found = result if isinstance(result, tuple) else (result,)
        return [found[k] for k in self.tensors]


_names = itertools.count()
#: The custom functions of graphs, as long as a graph holds them.
FUNCTIONS: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
#: With the hooks of graphs: what the backward looks at, and the places of arguments that it reads as they are then.
CALLED_LATER: weakref.WeakKeyDictionary[Callable[..., Any], tuple[LateCheck | None, tuple[int, ...]]] = (
    weakref.WeakKeyDictionary()
)


def make_function(plan: Plan) -> Callable[..., Any]:
    """``run(outputs, saved, extra, attributes, *inputs)``: gives the outputs, computed already, the plan's backward."""

    def forward(
        ctx: Any, outputs: Sequence[Any], saved: Any, extra: Any, attributes: Any, *inputs: Tensor
    ) -> Any:
        if plan.dirty:
            ctx.mark_dirty(*[inputs[k] for k in plan.dirty])
        if plan.non_differentiable:
            ctx.mark_non_differentiable(*[outputs[k] for k in plan.non_differentiable])
        ctx.save_for_backward(*saved)
        ctx.extra, ctx.attributes = extra, attributes
        return outputs[0] if plan.single else tuple(outputs)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        if plan.late is not None and not plan.late.holds():
            if plan.python is None or plan.python.function() is None:
                plan.late.refuse()
            assert plan.python is not None
            return (None,) * 4 + tuple(plan.python(ctx.saved_tensors, ctx.attributes, grads))
        kept = (ctx.saved_tensors if any(saved for saved, _ in plan.order) else (), ctx.extra)
        lifted = [kept[not saved][position] for saved, position in plan.order]
        found = plan.backward(*lifted, *[grads[k] for k in plan.gradient_slots])
        return (None, None, None, None, *(None if k is None else found[k] for k in plan.grads))

    if plan.once:
        backward = once_differentiable(backward)
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made = type(plan.name, (Function,), {"__module__": __name__, **methods})

    def run(*args: Any) -> Any:
        return made.apply(*args)

    run.__name__ = run.__qualname__ = f"function_{plan.name}_{next(_names)}"
    FUNCTIONS.add(run)
    CALLED_LATER[run] = plan.late, (2, 3)
    MADE[run] = ()  # the outputs are computed already
    return run


_ONCE = once_differentiable(lambda: None).__code__


@rule(FUNCTION_APPLY)
def _function_apply(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """A custom function: its forward in no-grad mode, and where something needs a gradient, its backward."""
    cls = cap.value_of(args[0])
    inputs = [cap.realize(arg) for arg in args[1:]]
    tensors = [arg for arg in inputs if type(arg) is TensorVar]
    if kwargs:
        raise Break("unsupported-call", f"{cls.__name__}.apply with keyword arguments")
    if type(cap.builder) is not GraphBuilder:
        # A transform asks it for a rule, or autograd differentiates it again.
        raise Break("unsupported-call", f"{cls.__name__}.apply in an inner function")
    grad = torch.is_grad_enabled()
    needs = tuple(grad and type(arg) is TensorVar and arg.fake.requires_grad for arg in inputs)
    context = ObjectVar(FunctionCtx)
    context.attrs.known["needs_input_grad"] = cap.from_python(needs)
    split = cap.type_attr(cls, "setup_context") is not vars(_SingleLevelFunction)["setup_context"]
    if grad:
        cap.set_state(torch._C._set_grad_enabled, (False,))
    try:
        result = call(cap, get_attr(cap, args[0], "forward"), inputs if split else [context, *inputs], {})
        if split:
            call(cap, get_attr(cap, args[0], "setup_context"), [context, TupleVar(inputs), result], {})
    finally:
        if grad:
            cap.set_state(torch._C._set_grad_enabled, (True,))
    result = cap.realize(result)
    if any(needs):
        return _with_backward(cap, args[0], cls, context, inputs, result)
    if "dirty_tensors" in context.attrs.known:
        raise Break("unsupported-call", f"{cls.__name__} marks inputs as changed in place")

    def leave(value: Tracker) -> Tracker:
        value = cap.realize(value)
        if any(value is tensor for tensor in tensors):
            return cap.emit("call_method", "view_as", [value, value], {}, lambda t, o: t.view_as(o))
        if type(value) is TensorVar and value.source is not None:
            raise Break("unsupported-call", f"{cls.__name__} returns a tensor made outside")
        return value

    return TupleVar([leave(item) for item in result.items]) if type(result) is TupleVar else leave(result)


def _marked(cap: Capture, context: ObjectVar, name: str) -> list[Tracker]:
    """The tensors that the forward passed to ``ctx.save_for_backward`` and the like."""
    found = context.attrs.known.get(name)
    if found is None or (type(found) is ConstVar and found.value is None):
        return []
    if type(found) is not TupleVar:
        raise Break("unsupported-call", f"ctx.{name} is set by hand")
    return [cap.realize(item) for item in found.items]


def _with_backward(
    cap: Capture, function: Tracker, cls: type, context: ObjectVar, inputs: list[Tracker], result: Tracker
) -> Tracker:
    name = cls.__name__
    outputs = [cap.realize(item) for item in result.items] if type(result) is TupleVar else [result]
    if not all(type(out) is TensorVar or (type(out) is ConstVar and out.value is None) for out in outputs):
        raise Break("unsupported-call", f"{name} returns something other than tensors")
    materialize = context.attrs.known.get("materialize_grads")
    if materialize is not None and not cap.value_of(materialize):
        raise Break("unsupported-call", f"{name}, whose backward takes None for gradients")
    if cls.vjp is not Function.vjp or cls.backward is Function.backward:  # type: ignore[attr-defined]
        raise Break("unsupported-call", f"{name}, which defines no backward")
    saved, dirty = _marked(cap, context, "to_save"), _marked(cap, context, "dirty_tensors")
    apart = _marked(cap, context, "non_differentiable")
    graph = _trace_backward(cap, function, name, context, saved, outputs)
    order, extra = _where_kept(graph, saved)
    tensors = [arg for arg in inputs if type(arg) is TensorVar]
    attributes = _attributes(cap, context) if graph.late is not None else None
    if attributes is None and graph.late is not None and graph.late.values:
        detail = f"the backward of {name} looks at variables, which may change before it is called"
        raise Break("unsupported-call", detail)
    plan = Plan(
        name=name,
        backward=graph.module.forward,
        order=order,
        grads=_gradients(name, inputs, graph.result),
        gradient_slots=tuple(k for k, out in enumerate(outputs) if type(out) is TensorVar),
        dirty=tuple(k for k, tensor in enumerate(tensors) if any(tensor is d for d in dirty)),
        non_differentiable=tuple(k for k, out in enumerate(outputs) if any(out is a for a in apart)),
        single=type(result) is not TupleVar,
        once=getattr(cls.backward, "__code__", None) is _ONCE,  # type: ignore[attr-defined]
        late=graph.late,
        python=None
        if attributes is None or id(cls) in cap.made
        else PythonBackward(
            weakref.ref(cls), tuple(k for k, arg in enumerate(inputs) if type(arg) is TensorVar)
        ),
    )
    if len(plan.dirty) != len(dirty) or len(plan.non_differentiable) != len(apart):
        raise Break("unsupported-call", f"{name} marks tensors that are neither inputs nor outputs")
    run = make_function(plan)
    kept = [item if type(item) is TensorVar else NONE for item in saved]
    given = [TupleVar(outputs), TupleVar(kept), TupleVar(list(extra)), attributes or NONE, *tensors]
    return cap.emit("call_function", run, given, {}, run)


def _attributes(cap: Capture, context: ObjectVar) -> Tracker | None:
    """What the forward put on its context, as an argument of the graph; None where there is no such."""
    given = {name: cap.realize(value) for name, value in context.attrs.known.items() if name not in _OF_TORCH}
    return DictVar(given) if all(_is_plain(cap, value) for value in given.values()) else None  # type: ignore[arg-type]


def _is_plain(cap: Capture, value: Tracker) -> bool:
    value = cap.realize(value)
    if type(value) in (TupleVar, ListVar):
        return all(_is_plain(cap, item) for item in value.items)  # type: ignore[attr-defined]
    return type(value) in (TensorVar, SizeVar, FloatVar) or (
        type(value) is ConstVar and type(value.value) in PLAIN_CONSTANTS
    )


_OF_TORCH = ("to_save", "dirty_tensors", "non_differentiable", "materialize_grads")


def _trace_backward(
    cap: Capture,
    function: Tracker,
    name: str,
    context: ObjectVar,
    saved: list[Tracker],
    outputs: list[Tracker],
) -> SubGraph:
    mine = ObjectVar(context.cls)
    mine.attrs.known.update(context.attrs.known)
    mine.attrs.known["saved_tensors"] = mine.attrs.known["saved_variables"] = TupleVar(saved)
    fakes = [gradient_of(cap, out) for out in outputs if type(out) is TensorVar]

    def body(gradients: list[TensorVar]) -> Tracker:
        given = iter(gradients)
        passed = [next(given) if type(out) is TensorVar else NONE for out in outputs]
        return cap.realize(call(cap, get_attr(cap, function, "backward"), [mine, *passed], {}))

    grad = torch.is_grad_enabled()
    autocast = {d: torch.is_autocast_enabled(d) for d in ("cpu", "cuda")}
    torch._C._set_grad_enabled(False)  # as the engine does; autocast is the caller's, most often off
    for device in autocast:
        torch.set_autocast_enabled(device, False)
    try:
        return trace(cap, f"the backward of {name}", body, fakes, [context, function], later=[mine])
    finally:
        torch._C._set_grad_enabled(grad)
        for device, enabled in autocast.items():
            torch.set_autocast_enabled(device, enabled)


def gradient_of(cap: Capture, tensor: TensorVar) -> Tensor:
    """A fake of a gradient of the tensor."""
    with nullcontext() if cap.is_faking else cap.fake_mode, torch.no_grad():
        return torch.empty_like(tensor.fake, memory_format=torch.preserve_format)


def _where_kept(graph: SubGraph, saved: list[Tracker]) -> tuple[tuple[tuple[bool, int], ...], list[Tracker]]:
    """For each tensor or size that the backward takes, where it is kept: among the saved tensors, or beside them."""
    order: list[tuple[bool, int]] = []
    extra: list[Tracker] = []
    for outside in graph.lifted:
        position = next((k for k, item in enumerate(saved) if item is outside), None)
        order.append((True, position) if position is not None else (False, len(extra)))
        if position is None:
            extra.append(outside)
    return tuple(order), extra


def _gradients(name: str, inputs: list[Tracker], result: Tracker) -> tuple[int | None, ...]:
    """For each tensor input, which of the tensors that the backward gives is its gradient."""
    items = result.items if type(result) is TupleVar else [result]
    if len(items) < len(inputs) or any(type(extra) is TensorVar for extra in items[len(inputs) :]):
        raise Break("unsupported-call", f"the backward of {name} gives {len(items)} gradients")
    count = itertools.count()
    found: list[int | None] = []
    for arg, item in zip(inputs, items, strict=False):
        position = next(count) if type(item) is TensorVar else None
        if position is None and not (type(item) is ConstVar and item.value is None):
            raise Break("unsupported-call", f"the backward of {name} gives something other than tensors")
        if type(arg) is TensorVar:
            found.append(position)
        elif position is not None:
            raise Break("unsupported-call", f"the backward of {name} gives a gradient of what is no tensor")
    return tuple(found)


# --- gradients taken inside ----------------------------------------------------------------------------------------


@rule(torch.autograd.grad)
def _grad(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    wanted = cap.realize(args[1] if len(args) > 1 else kwargs["inputs"])
    if type(wanted) not in (TupleVar, ListVar, TensorVar):  # torch makes a tuple of what is no tensor
        wanted = TupleVar(iterate(cap, wanted))
        if len(args) > 1:
            args = [args[0], wanted, *args[2:]]
        else:
            kwargs = {**kwargs, "inputs": wanted}
    tensors = wanted.items if type(wanted) in (TupleVar, ListVar) else [wanted]
    asked = {id(cap.realize(tensor)) for tensor in tensors}
    builder = cap.builder
    given = [cap.fakes.get(id(fake)) for fake, _ in builder.input_versions if fake.requires_grad]
    inputs = [t for t in given if t is not None]
    if len(inputs) < len(given):
        raise Break("unsupported-call", "torch.autograd.grad where an inner function first used an input")
    through_inputs = any(not t.fake.is_leaf and id(t) not in asked for t in inputs)
    if through_inputs and any(id(t) in asked for t in inputs):
        raise Break(
            "unsupported-call", "torch.autograd.grad of what may depend on an input by way of another"
        )
    if hooked_inputs(cap):
        raise Break("unsupported-call", "torch.autograd.grad beside tensors with hooks")
    return cap.emit("call_function", torch.autograd.grad, args, kwargs, torch.autograd.grad)


def hooked_inputs(cap: Capture) -> bool:
    """Whether hooks of the program's are called when gradients reach an input."""
    with torch._C.DisableTorchFunction():
        return any(
            real._backward_hooks or getattr(real, "_post_accumulate_grad_hooks", None)
            for real in cap.builder.input_tensors
        )
