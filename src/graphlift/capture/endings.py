"""Objects whose end the program notices: by a finalizer, a callback of a weak reference, or a `try` around a `yield`.

In: objects and trackers that a region lets go. Out: whether code of the program's may run then.
Always: classes, functions and objects of libraries are not looked into: others hold what is in them; nor are modules,
except those that the program lets go itself.
"""

from __future__ import annotations

import builtins
import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..bytecode import CodeInfo, decode
from ..frame import LoopIter
from ..guards._guards import Check
from .constants import raw_attribute
from .trackers import CellVar, DequeVar, LazyVar, ListVar, ObjectVar, TrackerKey

if TYPE_CHECKING:
    from .capture import Capture

REFERENCES = (weakref.ref, weakref.KeyedRef)
_CONTAINERS = (
    *(list, tuple, dict, set, frozenset, deque, types.GeneratorType, types.CellType, LoopIter),
    *(BaseException, types.TracebackType, types.FrameType),  # a frame that runs leads nowhere
)
_CLOSED = (type, types.FunctionType, types.ModuleType, torch.nn.Module, torch.Tensor)
LIBRARIES = sys.stdlib_module_names | {"torch", "graphlift", "numpy"}
#: Whoever leads to more objects than this is taken to lead to one that is noticed.
_LOOKED_AT_MOST = 2000


# --- real objects -----------------------------------------------------------------------------------------------------


def has_finalizer(cls: type) -> bool:
    """Whether instances run code of the program's when they end."""
    return isinstance(raw_attribute(cls, "__del__"), types.FunctionType)


def is_noticed(value: Any, modules: bool = False) -> bool:
    """Whether code of the program's may run when nothing holds an object any more, nor what it leads to.

    ``modules``: also what modules hold.
    """
    queue, seen = [value], {id(value)}
    while queue:
        each = queue.pop()
        if has_finalizer(type(each)) or _is_watched(each) or _cleans_up(each):
            return True
        if len(seen) > _LOOKED_AT_MOST:
            return True
        if _leads_on(each) or (modules and issubclass(type(each), torch.nn.Module)):
            for part in gc.get_referents(each):
                if id(part) not in seen and (gc.is_tracked(part) or has_finalizer(type(part))):
                    seen.add(id(part))
                    queue.append(part)
    return False


def _leads_on(value: Any) -> bool:
    if issubclass(type(value), (*_CONTAINERS, *_CLOSED)):
        return not issubclass(type(value), _CLOSED)
    root = str(type(value).__module__).partition(".")[0]
    return hasattr(type(value), "__next__") if root in LIBRARIES else True


def _is_watched(value: Any) -> bool:
    """Whether the end of an object is told to callbacks of weak references, as those of a `weakref.finalize`.

    The callbacks of guards, ours and those of torch.compile, are nobody's business."""
    if issubclass(type(value), type):  # they are in the caches of their abstract bases
        return False
    told: list[Any] = [ref.__callback__ for ref in weakref.getweakrefs(value) if ref.__callback__ is not None]
    return not all(
        type(getattr(call, "__self__", None)).__module__ == Check.__module__
        or (getattr(call, "__module__", None) or "").startswith("torch._")
        for call in told
    )


def _cleans_up(value: Any) -> bool:
    frame = value.gi_frame if type(value) is types.GeneratorType else None
    if frame is None or frame.f_lasti < 0 or value.gi_running:
        return False
    info = decode(frame.f_code)
    at = max((i.index for i in info.instrs if i.offset <= frame.f_lasti), default=0)
    return catches_exit(info, at, frame.f_globals)


def catches_exit(info: CodeInfo, at: int, globals_: dict[str, Any]) -> bool:
    """Whether code suspended in this instruction is inside a `try` or `with`, whose end runs when it is dropped."""
    instrs = info.instrs
    handler = instrs[at].handler
    while handler is not None:
        at = handler.target
        if instrs[at].op == "CALL_INTRINSIC_1" and instrs[at].arg == "INTRINSIC_STOPITERATION_ERROR":
            return False  # that of every generator (3.12+), which converts a StopIteration (PEP 479)
        # Of every `yield from` (3.12+), which raises again; or of an `except` that has ended.
        ends = instrs[at].op == "CLEANUP_THROW" or (
            [i.op for i in instrs[at : at + 3]] == ["COPY", "POP_EXCEPT", "RERAISE"]
        )
        if not ends and _handles_exit(info, at, globals_):
            return True
        handler = instrs[at].handler
    return False


def _handles_exit(info: CodeInfo, at: int, globals_: dict[str, Any]) -> bool:
    """Whether a handler does anything about a GeneratorExit; `except IndexError`, say, lets it pass."""
    instrs = info.instrs
    if instrs[at].op != "PUSH_EXC_INFO":
        return True
    at += 1
    while instrs[at].op != "RERAISE":
        load, match, jump = instrs[at : at + 3]
        if (load.op, match.op, jump.op) != ("LOAD_GLOBAL", "CHECK_EXC_MATCH", "POP_JUMP_IF_FALSE"):
            return True
        cls = vars(builtins).get(load.arg)
        known = isinstance(cls, type) and load.arg not in globals_
        if not known or issubclass(GeneratorExit, cls):
            return True
        at = jump.arg
    return False


# --- trackers ---------------------------------------------------------------------------------------------------------


def parts(tracker: Any) -> Iterator[Any]:
    """What a tracked object, or a frame, holds, as far as the region knows it."""
    if type(tracker) is ObjectVar:
        if tracker.cls in (*REFERENCES, *weakref.ProxyTypes):
            return
        yield from (tracker.attrs, tracker.payload, *tracker.slots.values())
    elif type(tracker) is CellVar:
        yield tracker.content
    for name in ("func", "self_var", "owner", "frame", "watched"):
        yield getattr(tracker, name, None)
    for name in ("closure", "defaults", "parts", "tail", "stack", "handled"):
        yield from getattr(tracker, name, None) or ()
    lazy = type(tracker) in (ListVar, DequeVar)
    items = tracker._items if lazy else getattr(tracker, "items", None)
    yield from items if isinstance(items, list) else ()
    for name in ("known", "kwdefaults", "locals", "cells"):
        found = getattr(tracker, name, None)
        if isinstance(found, dict):
            yield from found.values()
            yield from (key.tracker for key in found if isinstance(key, TrackerKey))


def reached(cap: Capture, roots: Iterable[Any], without: Any = None) -> tuple[set[int], set[int]]:
    """Ids of the trackers, and of the real objects, that trackers and frames lead to, other than through one of them."""
    queue = list(roots)
    trackers: set[int] = {id(without)}
    real: set[int] = set()
    while queue:
        each = queue.pop()
        if each is None or id(each) in trackers:
            continue
        trackers.add(id(each))
        if type(each) is LazyVar:
            real.add(id(each.value))
            each = cap.memo.get(id(each.value))
            if each is None or id(each) in trackers:
                continue
            trackers.add(id(each))
        queue.extend(parts(each))
    real.update(key for key, tracker in cap.memo.items() if id(tracker) in trackers)
    return trackers, real


def held(cap: Capture, *more: Any, without: Any = None) -> tuple[set[int], set[int]]:
    """What the live frames, their globals and ``more`` lead to."""
    return reached(cap, (*cap.frames, *cap.globals_memo.values(), *more), without)
