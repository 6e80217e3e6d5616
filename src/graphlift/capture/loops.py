"""Loops across graph breaks: the iterators that a region leaves in a frame's stack, and takes up from there.

In: trackers of iterators that only the stack holds; `LoopIter` objects of earlier regions. Out: expressions that make
a `LoopIter`; trackers that look ahead in one. Always: the iterator moves when the region's effects are replayed, by as
many items as the region took; what is iterated over is the program's own object, so that it sees what happens to it.
"""

from __future__ import annotations

from typing import Any

from ..frame import LoopIter
from ..guards import Attr, Equals, IdIs, SeqItem, Source, TypeIs
from .breaks import Break, Exhausted
from .called_iterators import CalledIter, ReversedIter
from .capture import Capture
from .frame import STORES, CallIter, DictIter, IteratorVar, RangeIter, SeqIter
from .trackers import LazyVar, ListVar, Tracker, TupleVar
from .wrapping import WRAPPERS, as_builtin

ITEMS, ENUMERATE, ZIP, DICT = range(4)
_PLAIN = (list, tuple, range, str)


def iterator_at(sequence: Any, position: int) -> Any:
    """An iterator over ``sequence`` that has already given ``position`` items."""
    iterator = as_builtin(sequence, "__iter__")
    if position:
        put_at(iterator, sequence, position)
    return iterator


def put_at(iterator: Any, sequence: Any, position: int) -> None:
    """Place an iterator, also behind the end of a list that is shorter by now, where `__setstate__` does not go."""
    length = list.__len__(sequence) if isinstance(sequence, list) else position + 1
    if position < length:
        iterator.__setstate__(position)
        return
    list.extend(sequence, [None] * (position + 1 - length))
    iterator.__setstate__(position)
    list.__delitem__(sequence, slice(length, None))


def advanced(iterator: Any, count: int) -> Any:
    """``iterator`` after ``count`` steps, the last of which may have found its end."""
    for _ in range(count):
        next(iterator, None)
    return iterator


def loop_over(sequence: Any, position: int) -> Any:
    """An iterator over ``sequence`` that has already given ``position`` items."""
    if type(sequence) in _PLAIN:
        return LoopIter(ITEMS, sequence, position)
    return iterator_at(sequence, position)


def loop_over_dict(owner: Any, iterator: Any, position: int) -> Any:
    """``iterator``, of the dict ``owner`` or a view of it, after ``position`` items."""
    advanced(iterator, position)
    return LoopIter(DICT, owner, 0, iterator) if type(owner) is dict else iterator


def loop_expr(residual: Any, tracker: Tracker) -> str | None:
    """An expression that makes the iterator anew where nothing but a loop holds it; None where it must be itself."""
    if id(tracker) in residual.memo or tracker.source is not None:
        return None
    if type(tracker) is SeqIter and not tracker.done:
        return f"{residual.constant(loop_over)}({residual.expr(tracker.owner)}, {tracker.position})"
    if type(tracker) is ReversedIter and type(tracker.owner) is TupleVar and not tracker.done:
        backwards, given = f"{residual.expr(tracker.owner)}[::-1]", len(tracker.items) - 1 - tracker.position
        return f"{residual.constant(loop_over)}({backwards}, {given})"
    if type(tracker) is CalledIter and tracker.pooled and type(tracker.inner) is SeqIter:
        return loop_expr(residual, tracker.inner)
    if type(tracker) is RangeIter:
        rest = tracker.values[tracker.position :]
        return f"{residual.constant(LoopIter)}({ITEMS}, range({rest.start}, {rest.stop}, {rest.step}))"
    if type(tracker) is DictIter and not tracker.done and _is_loop(residual.cap, tracker):
        owner = residual.expr(tracker.owner)
        iterator = f"iter({owner}.{tracker.kind}())"
        return f"{residual.constant(loop_over_dict)}({owner}, {iterator}, {tracker.position})"
    if type(tracker) is CallIter and _is_loop(residual.cap, tracker):
        return _call_expr(residual, tracker)
    return None


def _call_expr(residual: Any, tracker: CallIter) -> str | None:
    parts = [loop_expr(residual, part) for part in tracker.parts]
    if None in parts:
        return None
    make = residual.constant(LoopIter)
    if tracker.builtin is zip:
        return f"{make}({ZIP}, ({', '.join(map(str, parts))},))"
    return f"{make}({ENUMERATE}, {parts[0]}, {tracker.extra['count']})"


def _is_loop(cap: Capture, part: Tracker) -> bool:
    """Whether `loop_expr` makes a LoopIter of it: a subclass of list or tuple may come as its payload."""
    if id(getattr(part, "owner", None)) in cap.holders:
        return False
    if type(part) is CallIter:
        known = part.builtin is enumerate or (part.builtin is zip and not part.extra.get("strict"))
        return known and bool(part.parts) and all(_is_loop(cap, inner) for inner in part.parts)
    if type(part) is SeqIter:
        source = part.owner.source
        return source is None or any(TypeIs(source, kind) in cap.guards for kind in _PLAIN)
    if type(part) is DictIter:
        source = part.owner.source
        return part.owner.cls is dict if source is None else TypeIs(source, dict) in cap.guards
    return type(part) is RangeIter


class LoopIterVar(IteratorVar):
    """A LoopIter that an earlier region left; ``steps`` items of it are taken."""

    __slots__ = ("ended", "real", "steps", "watched")

    def __init__(self, real: Any, source: Source, watched: list[Tracker]) -> None:
        self.real = real
        self.source = source
        self.watched = watched
        self.steps = 0
        self.ended = False

    def next(self, cap: Capture) -> Tracker:
        if self.ended:
            raise Exhausted
        for owner in self.watched:
            if (type(owner) is ListVar and (owner.mutated or owner.tail)) or id(owner) in cap.changed:
                raise Break("unsupported-object", "an iterator over what the region has changed")
        source: Source = self.source  # type: ignore[assignment]
        try:
            ended = getattr(self.real, f"ended{self.steps}")
        except RuntimeError as error:
            raise Break("unsupported-object", f"an iterator whose next step is an error: {error}") from None
        cap.guard(IdIs(Attr(source, f"ended{self.steps}"), ended))
        if ended:
            self.ended = True
            raise Exhausted
        name = f"upcoming{self.steps}"
        item = LazyVar(getattr(self.real, name), Attr(source, name))
        self.steps += 1
        cap.mark_changed(self)
        return item if _only_stored(cap) else cap.realize(item)


def _only_stored(cap: Capture) -> bool:
    """Whether the item goes from FOR_ITER straight into a variable: then it is not looked at, hence not guarded."""
    frame = cap.frames[-1]
    instrs, pc = frame.info.instrs, frame.pc
    return instrs[pc].op == "FOR_ITER" and instrs[pc + 1].op in STORES


def wrap_loop(cap: Capture, value: Any, source: Source) -> Tracker:
    watched: list[Tracker] = []
    _watch(cap, value, source, watched)
    return LoopIterVar(value, source, watched)


def _watch(cap: Capture, value: Any, source: Source, watched: list[Tracker]) -> None:
    """Guards what kind of loop it is, and notes the containers whose change the region must not miss."""
    cap.guard(TypeIs(source, LoopIter))
    cap.guard(Equals(Attr(source, "kind"), value.kind))
    over, at = value.over, Attr(source, "over")
    if value.kind == ENUMERATE:
        _watch(cap, over, at, watched)
    elif value.kind == ZIP:
        cap.wrap(over, at)
        for index, part in enumerate(over):
            _watch(cap, part, SeqItem(at, index), watched)
    elif type(over) in (list, dict):
        watched.append(cap.wrap(over, at))
    else:
        cap.guard(TypeIs(at, type(over)))


WRAPPERS[LoopIter] = wrap_loop  # type: ignore[assignment]
