"""Iterators of C classes: those whose items a generator in Python gives, and those that go backwards.

In: trackers of what is iterated over. Out: iterator trackers.
Always: the program sees the C class; what could not be made again as it is leaves no region: the region ends before it.
"""

from __future__ import annotations

from typing import Any

from .breaks import Break, Exhausted, Raised
from .capture import Capture
from .frame import IteratorVar, SeqIter
from .trackers import DictVar, SetVar, Tracker


class CalledIter(IteratorVar):
    """An iterator that `maker` makes of `args`; `inner` gives its items. `pooled`: it has taken all its input."""

    __slots__ = ("args", "born", "builtin", "failed", "inner", "kwargs", "maker", "pooled", "taken")

    def __init__(
        self,
        cap: Capture,
        maker: Any,
        args: list[Tracker],
        kwargs: dict[str, Tracker],
        inner: IteratorVar,
        pooled: bool = False,
    ) -> None:
        self.source = None
        self.maker = maker
        self.builtin: type = maker if isinstance(maker, type) else maker.__self__
        self.args = args
        self.kwargs = kwargs
        self.inner = inner
        self.pooled = pooled
        self.born = cap.step
        self.taken = 0
        self.failed = False

    def next(self, cap: Capture) -> Tracker:
        name = self.builtin.__name__
        if self.failed:
            raise Break("generator", f"{name} goes on after an exception")
        self.taken += 1
        try:
            return self.inner.next(cap)
        except Exhausted:
            raise Exhausted from None
        except Raised as raised:
            self.failed = True
            if issubclass(raised.value.cls, (RuntimeError, StopIteration)):  # type: ignore[attr-defined]
                raise Break("generator", f"an exception like StopIteration inside {name}") from None
            raise


class Ahead(IteratorVar):
    """What a loop goes on with that a break left while an iterator was asked for an item: the item, then the iterator."""

    __slots__ = ("iterator", "item")

    def __init__(self, iterator: Tracker, item: Tracker) -> None:
        self.source = None
        self.iterator = iterator
        self.item = item

    def next(self, cap: Capture) -> Tracker:
        return self.item


class ReversedIter(SeqIter):
    """``reversed(owner)`` of a tuple or (live) of a list; ``position``: of the next item, -1 at the end."""

    __slots__ = ()

    def __init__(self, items: list[Tracker], owner: Tracker) -> None:
        super().__init__(items, owner, len(items) - 1)

    def next(self, cap: Capture) -> Tracker:
        if self.done or not 0 <= self.position < len(self.items):
            self.done = True
            raise Exhausted
        item = self.items[self.position] = cap.realize(self.items[self.position])
        self.position -= 1
        return item


class FixedIter(SeqIter):
    """An iterator of class ``builtin`` over ``items``, taken when it was made, as long as ``owner`` stays as it is."""

    __slots__ = ("born", "builtin", "length")

    def __init__(self, cap: Capture, builtin: type, items: list[Tracker], owner: Any) -> None:
        super().__init__(items, owner)
        self.builtin = builtin
        self.born = cap.step
        self.length = self.measure()

    def measure(self) -> int:
        owner: Any = self.owner
        return len(owner.known if type(owner) in (DictVar, SetVar) else getattr(owner, "items", ()))

    def next(self, cap: Capture) -> Tracker:
        if self.measure() != self.length:
            raise Break("unsupported-object", f"a {self.builtin.__name__} over what has changed")
        return super().next(cap)


class TeeIter(IteratorVar):
    """One of the iterators that `itertools.tee` makes: they share what was `seen` of the inner one."""

    __slots__ = ("born", "builtin", "inner", "position", "seen")

    def __init__(
        self, cap: Capture, builtin: type, inner: Tracker, seen: list[Tracker], position: int = 0
    ) -> None:
        self.source = None
        self.builtin = builtin
        self.born = cap.step
        self.inner = inner
        self.seen = seen
        self.position = position

    def next(self, cap: Capture) -> Tracker:
        from .protocol import next_item

        if self.position == len(self.seen):
            self.seen.append(next_item(cap, self.inner))
        self.position += 1
        return self.seen[self.position - 1]
