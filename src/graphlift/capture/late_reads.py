"""What a backward or a hook looks at outside of itself, which the caller may change before autograd calls it.

In: the reads of the program's variables while a function that torch calls later is captured. Out: a check that they are
still so, made when autograd comes to it. Always: what only the caller of the region leads to (attributes of an argument,
cells of the compiled function) cannot be looked up then: a function that reads such is left to Python.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..guards import (
    ABSENT,
    CellContents,
    Check,
    Const,
    DictItem,
    DictKeys,
    Equals,
    Guard,
    HasKey,
    IdIs,
    Source,
    TypeAttr,
    compile_guards,
)
from .constants import PLAIN_CONSTANTS
from .endings import LIBRARIES, parts
from .trackers import (
    CellVar,
    DequeVar,
    DictVar,
    ListVar,
    ObjectVar,
    SetVar,
    Tracker,
    TrackerKey,
)

if TYPE_CHECKING:
    from .capture import Capture

#: Names of code: a program that gives one another meaning between a forward and its backward is told so.
_CODE = (
    *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, types.MethodType),
    *(staticmethod, classmethod, property, types.MethodDescriptorType, types.GetSetDescriptorType),
    *(types.WrapperDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType),
)


class LateCheck:
    """Whether all that a function looked at is still so. ``values``: whether anything but code is among it."""

    __slots__ = ("_check", "_guards", "values", "what")

    def __init__(self, what: str, guards: Iterable[Guard], values: bool) -> None:
        self.what = what
        self.values = values
        self._guards = tuple(guards)
        self._check: Check = compile_guards(self._guards, (), 0)

    def holds(self) -> bool:
        if self._check(_nobody) is not None:
            return True
        alive = tuple([g for g in self._guards if not (isinstance(g, TypeAttr) and g.ref.dead)])
        if len(alive) == len(self._guards):
            return False
        self._guards = alive  # a class that has ended stays as it was
        self._check = compile_guards(alive, (), 0)
        return self.holds()

    def refuse(self, why: str = "it is known to the capture alone") -> None:
        """Raises: what changed, if anything did, and why the function cannot be called as it is now."""
        if not self.holds():
            raise RuntimeError(
                f"{self.what} was called after what it looks at had changed since the forward: "
                f"{self._check.explain_failure(_nobody)}; and cannot be run as the program has it now: {why}. Change "
                "it before the forward, or leave the function out of what is compiled, by graphlift.disable"
            )


def _nobody() -> None:
    """The function of a check that looks at no arguments."""


class LateReads:
    """The reads of one function."""

    def __init__(self, cap: Capture) -> None:
        self.cap = cap
        self.guards: dict[Guard, None] = {}
        self.found: list[tuple[DictVar | CellVar, Any]] = []
        #: The dictionaries and cells from outside that it looks into.
        self.owners: dict[int, DictVar | CellVar] = {}
        self.beyond: list[str] = []  # what cannot be looked up later
        self.values = False

    def _note(self, source: Source, guard: Callable[[], Guard], value: Any, written: bool) -> None:
        root = source
        while root.parent is not None:
            root = root.parent
        if written or not isinstance(root, Const):
            self.beyond.append(source.name())
            return
        self.values |= not _is_code(value) and not _is_library(root.obj)
        self.guards[guard()] = None

    def key(self, var: DictVar, key: Any) -> None:
        """A key of a dictionary from outside is looked up."""
        source = var.source
        assert source is not None and var.real is not None
        self.owners[id(var)] = var
        if isinstance(key, TrackerKey) or id(key) in self.cap.made:
            self.beyond.append(f"keys of {source.name()}")
            return
        written = any(op == "clear" or key == name for op, name, _ in var.log)
        value = dict.get(var.real, key, ABSENT)
        if value is ABSENT:
            self._note(source, lambda: HasKey(source, key, False), value, written)
        else:
            item = DictItem(source, key)
            self._note(item, lambda: _is(item, value), value, written)
            self.found.append((var, key))

    def keys(self, var: DictVar) -> None:
        """All keys of a dictionary from outside are looked at."""
        assert var.source is not None and var.real is not None
        source, keys = var.source, tuple(dict.keys(var.real))
        self.owners[id(var)] = var
        self._note(source, lambda: DictKeys(source, keys), None, bool(var.log))
        for key in keys:
            self.key(var, key)

    def cell(self, cell: CellVar) -> None:
        """A cell from outside is read."""
        assert cell.source is not None
        self.owners[id(cell)] = cell
        contents = CellContents(cell.source)
        value = None if cell.written else cell.real.cell_contents
        self._note(contents, lambda: _is(contents, value), value, cell.written)
        self.found.append((cell, None))

    def attribute(self, cls: type, name: str, value: Any) -> None:
        """An attribute of a class is looked up."""
        self.values |= not _is_code(value)
        self.guards[TypeAttr(cls, name, value)] = None

    def source(self, source: Source) -> None:
        """What is in a slot, or a tensor itself has, is read."""
        self.beyond.append(source.name())

    def met(self) -> list[Any]:
        """What it read."""
        return [c.content if isinstance(c, CellVar) else c.known.get(key) for c, key in self.found]

    def check(self, what: str, roots: Iterable[Tracker]) -> LateCheck | None:
        """The check; None where nothing was looked at, or something that cannot be checked (in ``beyond``)."""
        queue: list[Any] = [*roots, *self.met()]
        seen: set[int] = set()
        while queue:
            tracker = queue.pop()
            if tracker is not None and id(tracker) not in seen:
                seen.add(id(tracker))
                if isinstance(tracker, Tracker) and _may_change(tracker):
                    assert tracker.source is not None
                    self.beyond.append(tracker.source.name())
                queue += leads_on(tracker)
        return None if self.beyond or not self.guards else LateCheck(what, self.guards, self.values)


def _is_code(value: Any) -> bool:
    return value is ABSENT or isinstance(value, _CODE)


def _is_library(namespace: Any) -> bool:
    """Whether it is the globals of a module of Python's or torch's: what is in there has no business to change."""
    name = namespace.get("__name__") if type(namespace) is dict else None
    return isinstance(name, str) and name.partition(".")[0] in LIBRARIES


def _is(source: Source, value: Any) -> Guard:
    if type(value) in PLAIN_CONSTANTS and value is not None:
        try:
            return Equals(source, value)
        except TypeError:
            pass
    return IdIs(source, value)


def _may_change(tracker: Any) -> bool:
    """Whether it is an object from outside whose contents are not read by key."""
    if tracker.source is None:
        return False
    kind = type(tracker)
    if kind in (ListVar, DequeVar):
        return not tracker.untouched
    if kind is ObjectVar:
        return bool(tracker.slots) or tracker.payload is not None and _may_change(tracker.payload)
    return kind is SetVar and tracker.cls is set


def leads_on(tracker: Any) -> Iterable[Any]:
    """What is reached without a read that was noted: through objects of the region, and what never changes."""
    outside = getattr(tracker, "real", None) is not None or getattr(tracker, "obj", None) is not None
    return () if outside else parts(tracker)
