"""Context managers of torch whose state has no setter: inference mode, labels for the profiler.

In: their ``__enter__`` and ``__exit__``. Out: nodes that enter and leave in the graph; while capturing, in earnest.
Always: what is open when a graph raises is closed; a break never falls inside, since the capture then ends before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.grad_mode import inference_mode
from torch.autograd.profiler import record_function

from .attributes import get_attr
from .breaks import Break
from .capture import Capture, NotConst
from .rules import rule
from .torch_state import SETTERS, Fact
from .trackers import NONE, Args, Kwargs, ObjectVar, Tracker


class _Open(threading.local):
    """What graphs running on this thread have entered: functions that leave it."""

    def __init__(self) -> None:
        self.leave: list[Callable[[], Any]] = []


_OPEN = _Open()


def enter_inference(mode: bool) -> None:
    """Enter inference mode (or leave it, for ``mode`` False), up to the matching `leave_context`."""
    guard = torch._C._InferenceMode(mode)
    guard.__enter__()
    _OPEN.leave.append(lambda: guard.__exit__(None, None, None))


def enter_label(name: str, args: str | None) -> None:
    """Open a range that the profiler shows, up to the matching `leave_context`."""
    label = torch.ops.profiler._record_function_enter_new(name, args)
    _OPEN.leave.append(lambda: torch.ops.profiler._record_function_exit._RecordFunction(label))


def leave_context() -> None:
    """Leave what was entered last."""
    _OPEN.leave.pop()()


def protected(run: Callable[..., Any], facts: tuple[Fact, ...]) -> Callable[..., Any]:
    """``run``, which changes global state on its way: where it raises, the state is as before."""

    def call(*inputs: Any) -> Any:
        depth, before = len(_OPEN.leave), [fact.read() for fact in facts]
        try:
            return run(*inputs)
        except BaseException:
            while len(_OPEN.leave) > depth:
                leave_context()
            for fact, values in zip(facts, before, strict=True):
                fact.write(*values)
            raise

    return call


def changed_facts(cap: Capture) -> tuple[Fact, ...]:
    """What of the global state the captured graph changes on its way."""
    return tuple(dict.fromkeys(fact for fn, _ in cap.state_log for fact in SETTERS.get(fn, ())))


def _enter(cap: Capture, context: Tracker, enter: Callable[..., None], args: tuple[Any, ...]) -> None:
    if type(context) is not ObjectVar or id(context) in cap.entered:
        raise Break("context-manager", f"{enter.__name__} of an object that is entered already")
    enter(*args)
    cap.closers.append(leave_context)
    cap.entered[id(context)] = cap.break_step()
    cap.builder.graph.create_node("call_function", enter, args, {})
    cap.guarded = True


def _leave(cap: Capture, context: Tracker) -> Tracker:
    if cap.entered.pop(id(context), None) is None:
        raise Break("context-manager", "the end of a context that was entered outside")
    cap.closers.pop()
    leave_context()
    cap.builder.graph.create_node("call_function", leave_context, (), {})
    return NONE


@rule(inference_mode.__enter__)
def _enter_inference(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    _enter(cap, args[0], enter_inference, (bool(cap.value_of(get_attr(cap, args[0], "mode"))),))
    return NONE


@rule(record_function.__init__)
def _init_label(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    label, name = args[0], args[1] if len(args) > 1 else kwargs["name"]
    assert type(label) is ObjectVar
    extra = args[2] if len(args) > 2 else kwargs.get("args", NONE)
    fields = {"name": name, "args": extra, "run_callbacks_on_exit": cap.from_python(True)}
    for field, value in {**fields, "record": NONE, "_cupti_monitor_external_id": NONE}.items():
        cap.dict_set(label.attrs, field, value)
    return NONE


@rule(record_function.__enter__)
def _enter_label(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    try:
        name, extra = (cap.value_of(get_attr(cap, args[0], field)) for field in ("name", "args"))
    except NotConst:
        raise Break("context-manager", "record_function with a label that is not a constant") from None
    _enter(cap, args[0], enter_label, (name, extra))
    return args[0]


@rule(inference_mode.__exit__, record_function.__exit__)
def _leave_context(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return _leave(cap, args[0])
