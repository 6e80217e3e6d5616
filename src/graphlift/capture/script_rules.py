"""Calls of TorchScript: a scripted or traced function is one node of the graph, run by TorchScript's interpreter.

In: calls of `torch.jit.ScriptFunction` objects. Out: the node's result; a break where the script does more than compute.
Always: TorchScript runs on fakes as on real tensors, so that what it gives is what it would give in eager.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..guards import IdIs
from .breaks import Break, Raised
from .calls import INSTANCE_CALLS
from .capture import Capture, Link
from .rules import rule
from .trackers import NONE, ObjectVar, Tracker

#: Operators of TorchScript that show outside of its results. Random ones count: from its second run on, TorchScript
#: may draw other numbers for the same seed.
_EFFECTS = frozenset(("prim::Print", "aten::warn", "aten::manual_seed", "aten::save", "prim::SetAttr"))
#: One Python function per script function: the code of a graph calls functions by their names.
_CALLERS: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()


def _operators(block: Any) -> Iterator[str]:
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from _operators(inner)


def _is_effect(operator: str) -> bool:
    if operator in _EFFECTS:
        return True
    namespace, _, name = operator.partition("::")
    packet = getattr(torch.ops.aten, name, None) if namespace == "aten" else None
    return packet is not None and any(
        torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags for overload in packet.overloads()
    )


def _caller(script: Any) -> Callable[..., Any]:
    found = _CALLERS.get(script)
    if found is None:
        reference = weakref.ref(
            script
        )  # the graph's code must not keep the user's function alive through this table

        def run_script(*args: Any, **kwargs: Any) -> Any:
            return reference()(*args, **kwargs)  # type: ignore[misc]

        run_script.__name__ = run_script.__qualname__ = f"script_{script.name}"
        found = _CALLERS[script] = run_script
    return found


def call_script(
    cap: Capture, fn: ObjectVar, args: list[Tracker], kwargs: dict[str, Tracker], link: Link | None
) -> Tracker:
    script = fn.obj
    assert fn.source is not None
    cap.guard(IdIs(fn.source, script))
    effect = next(filter(_is_effect, _operators(script.inlined_graph)), None)
    if effect:
        raise Break("c-function", f"the script function {script.name}, which calls {effect}")
    caller = _caller(script)
    try:
        return cap.emit("call_function", caller, args, kwargs, caller)
    except Raised:  # perhaps only for want of values
        raise Break("c-function", f"the script function {script.name}, which fails without values") from None


INSTANCE_CALLS[torch.jit.ScriptFunction] = call_script


def _call_script_module(
    cap: Capture, fn: ObjectVar, args: list[Tracker], kwargs: dict[str, Tracker], link: Link | None
) -> Tracker:
    """Its parameters are TorchScript's own, which no graph gets as inputs."""
    raise Break("c-function", f"call of a module of TorchScript ({fn.cls.__name__})", at_once=True)


for _cls in (torch.jit.RecursiveScriptModule, torch.jit.TopLevelTracedModule, torch.jit.TracedModule):
    INSTANCE_CALLS[_cls] = _call_script_module


@rule(torch.jit.annotate)
def _annotate(cap: Capture, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
    return args[1] if len(args) > 1 else kwargs.get("the_value", NONE)
