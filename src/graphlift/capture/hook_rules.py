"""Hooks that captured code registers, on tensors of its graph and on modules, and the handles that take them off.

In: calls of `register_hook`, of a module's methods for hooks, and of handles. Out: nodes of the graph, and changes of the
module's tables. Always: a handle that is to outlive the region is made by torch: the region ends where the hook is added.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.hooks import RemovableHandle

from .attributes import FINDERS, builtin_attr
from .autograd_rules import CALLED_LATER, gradient_of
from .breaks import Break, RunEagerly
from .calls import call
from .capture import Capture
from .protocol import iterate
from .residual import BUILDERS, Residual
from .rules import rule
from .subgraph import trace
from .trackers import (
    NONE,
    Args,
    ConstVar,
    DictVar,
    IdVar,
    Kwargs,
    MethodVar,
    ObjectVar,
    OpaqueVar,
    TensorVar,
    Tracker,
    TupleVar,
)

_names = itertools.count()
_TORCH = str(Path(torch.__file__).parent)


# --- on tensors -------------------------------------------------------------------------------------------------------


class HandleVar(Tracker):
    """The handle of a hook of the graph: nothing but the graph can take it off.

    ``born``: where it was made; ``node``, ``on_fake``: what gives the handle, in the graph and while capturing.
    """

    __slots__ = ("born", "node", "on_fake")

    def __init__(self, born: int, node: fx.Node, on_fake: RemovableHandle) -> None:
        self.source = None
        self.born = born
        self.node = node
        self.on_fake = on_fake


def register_hook(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """``tensor.register_hook(fn)`` on a tensor of the graph, where ``fn`` only computes and the handle is not kept."""
    tensor, hook = cap.realize(args[0]), args[1] if len(args) > 1 else kwargs["hook"]
    assert type(tensor) is TensorVar
    if tensor.source is not None or not tensor.fake.requires_grad:
        raise Break("unsupported-call", "Tensor.register_hook on a tensor made outside")

    def body(grads: list[TensorVar]) -> Tracker:
        return cap.realize(call(cap, hook, [grads[0]], {}))

    grad = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        graph = trace(cap, "a hook", body, [gradient_of(cap, tensor)], [hook], later=[hook])
    finally:
        torch._C._set_grad_enabled(grad)
    keeps = type(graph.result) is ConstVar and graph.result.value is None
    if not keeps and type(graph.result) is not TensorVar:
        raise Break("unsupported-call", "a hook that returns something other than a tensor")
    inner, late = graph.module.forward, graph.late
    if late is not None and late.values:
        detail = "a hook that looks at variables, which may change before it is called"
        raise Break("unsupported-call", detail)

    def run(*given: Any) -> Any:
        if late is not None and not late.holds():
            late.refuse()
        return None if keeps else inner(*given)[0]

    def attach(lifted: Any, target: Tensor) -> RemovableHandle:
        return target.register_hook(lambda gradient: run(*lifted, gradient))

    on_fake: list[RemovableHandle] = []
    CALLED_LATER[attach] = late, (0,)
    attach.__name__ = attach.__qualname__ = f"attach_hook_{next(_names)}"
    given = [TupleVar(list(graph.lifted)), tensor]
    cap.emit("call_function", attach, given, {}, lambda *values: on_fake.append(attach(*values)))
    return HandleVar(cap.break_step(), next(reversed(cap.builder.graph.nodes)), on_fake[0])


def take_off(handle: RemovableHandle) -> None:
    """The node that takes a hook of the graph off."""
    handle.remove()


def _handle_attr(cap: Capture, handle: HandleVar, name: str) -> Tracker | None:
    return MethodVar(ConstVar(take_off), handle) if name == "remove" else builtin_attr(cap, handle, name)


@rule(take_off)
def _take_off(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    handle: Any = args[0]
    if handle.node.graph is not cap.builder.graph:
        raise Break("unsupported-call", "a hook taken off in an inner function")
    take_off(handle.on_fake)
    cap.builder.add_op("call_function", take_off, (handle.node,), {}, None, cap.user_stack())
    return NONE


def _kept(residual: Residual, handle: HandleVar) -> str:
    raise RunEagerly("unsupported-object", "the handle of a hook, which is kept", earlier=handle.born)


FINDERS[HandleVar] = _handle_attr
BUILDERS[HandleVar] = _kept


# --- on modules -------------------------------------------------------------------------------------------------------


@rule(RemovableHandle)
def _make(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """A handle of entries in tables of a module, under a key that only the region knows."""
    tables = [args[0]]
    extra = cap.realize(kwargs.get("extra_dict", NONE))
    if extra is not NONE:
        tables += [extra] if type(extra) is DictVar else iterate(cap, extra)
    if not all(type(cap.realize(table)) is DictVar for table in tables):
        raise Break("unsupported-call", "a handle of hooks in something other than dictionaries")
    made = ObjectVar(RemovableHandle)
    made.attrs.known["id"] = IdVar(made)
    for name in ("hooks_dict_ref", "extra_dict_ref"):
        made.attrs.known[name] = OpaqueVar(None, None, "weak-reference", f"{name} of a handle of a hook")
    made.slots["tables"] = TupleVar(tables)
    # Made natively, it is by the method of the module as a whole, none of whose other steps depend on its number then.
    caller = next((f for f in reversed(cap.frames) if not f.code.co_filename.startswith(_TORCH)), None)
    cap.stays_inside(made, min(cap.break_step(), caller.step) if caller is not None else 0)
    return made


@rule(RemovableHandle.remove)
def _remove(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    handle = cap.realize(args[0])
    if type(handle) is not ObjectVar or handle.obj is not None:
        raise Break("unsupported-call", "RemovableHandle.remove of a hook that was registered outside")
    key = cap.identity_key(handle.attrs.known["id"])
    for table in handle.slots["tables"].items:  # type: ignore[attr-defined]
        table = cap.realize(table)
        if table.known.pop(key, None) is not None:  # no table from outside has had the key
            table.log[:] = [entry for entry in table.log if entry[1] is not key]
    return NONE
