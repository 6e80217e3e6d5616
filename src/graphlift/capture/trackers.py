"""Variable trackers: what the shadow stack and the shadow locals hold.

In: Python objects met while capturing. Out: one tracker per object, with the `Source` that reloads and guards it.
Always: an object that existed before the region has a source; one made inside the region has none. Real objects are
never mutated while capturing: changes live in the tracker until the replacement replays them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import fx

from ..guards import Const, Source
from ..shapes.expr import Expr, Real, Relation


class Tracker:
    """Base of all trackers. ``source`` is None for what was made inside the region."""

    __slots__ = ("source",)
    source: Source | None


#: Of a call: what is given by place, and by name.
Args = list[Tracker]
Kwargs = dict[str, Tracker]


class ConstVar(Tracker):
    """An immutable or identity-guarded Python object whose value is known: numbers, strings, types, functions.

    The value of one made by `unread` is guarded when something first asks for it, and not while it is passed on.
    """

    __slots__ = ("_unread", "value")
    value: Any

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value = value
        self.source = source

    @classmethod
    def known(cls, value: Any, label: str | None = None) -> ConstVar:
        """One that is the same at every call: a class, a function, an object of ours."""
        if label is None:
            label = value.__name__ if isinstance(value, type) else value.__qualname__
        return cls(value, Const(value, label))

    @classmethod
    def unread(cls, value: Any, source: Source, guard: Callable[[], None]) -> ConstVar:
        made = cls.__new__(cls)
        made.source = source
        made._unread = value, guard
        return made

    def __getattr__(self, name: str) -> Any:
        if name != "value":
            raise AttributeError(name)
        self.value, guard = self._unread
        del self._unread
        guard()
        return self.value

    @property
    def is_unread(self) -> bool:
        return hasattr(self, "_unread")

    @property
    def kind(self) -> type:
        """The value's type, which is guarded from the start."""
        try:
            return type(_VALUE(self))
        except AttributeError:
            return type(self._unread[0])

    def __repr__(self) -> str:
        return f"ConstVar({self.value!r})"


#: Reads the slot alone, and so asks for no value that is unread.
_VALUE: Callable[[ConstVar], Any] = ConstVar.__dict__["value"].__get__


class LazyVar(Tracker):
    """A pre-existing object that nothing has looked at yet, hence unguarded."""

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Source) -> None:
        self.value = value
        self.source = source


class TensorVar(Tracker):
    """A tensor: its FX node and its fake value."""

    __slots__ = ("node", "fake", "cls")

    def __init__(self, node: fx.Node, fake: torch.Tensor, cls: type, source: Source | None = None) -> None:
        self.node = node
        self.fake = fake
        self.cls = cls
        self.source = source

    def __repr__(self) -> str:
        return f"TensorVar({self.node}, {tuple(self.fake.shape)}, {self.fake.dtype})"


class ArrayVar(Tracker):
    """A numpy array: the tensor on the same memory, made when first needed for one from outside (``real``) and for
    one of known ``content``.
    """

    __slots__ = ("content", "real", "tensor")

    def __init__(
        self, tensor: TensorVar | None, real: Any = None, source: Source | None = None, content: Any = None
    ) -> None:
        self.tensor = tensor
        self.real = real
        self.source = source
        self.content = content


class ItemsVar(Tracker):
    """A list or deque; ``real`` is the pre-existing object, ``mutated`` says that the region changed it.

    The items of a pre-existing one are read (and its length guarded) only when something asks for ``items``.
    """

    __slots__ = ("_items", "mutated", "read", "real")
    tail: Sequence[Tracker] = ()

    def __init__(self, items: list[Tracker] | None, source: Source | None, real: Any, read: Any) -> None:
        self._items = items
        self.source = source
        self.real = real
        self.read = read
        self.mutated = False

    @property
    def items(self) -> list[Tracker]:
        if self._items is None:
            self._items = [*self.read(), *self.tail]
            self.mutated |= bool(self.tail)
        return self._items

    @property
    def untouched(self) -> bool:
        """Whether nothing has asked for the items yet."""
        return self._items is None


class ListVar(ItemsVar):
    """A list; ``mutated`` leaves out what was appended: until something asks for the items, that waits in ``tail``."""

    __slots__ = ("tail",)

    def __init__(
        self,
        items: list[Tracker] | None,
        source: Source | None = None,
        real: list | None = None,
        read: Any = None,
    ):
        super().__init__(items, source, real, read)
        self.tail: list[Tracker] = []


class DequeVar(ItemsVar):
    """A ``collections.deque``."""

    __slots__ = ("maxlen",)

    def __init__(
        self,
        items: list[Tracker] | None,
        maxlen: int | None = None,
        source: Source | None = None,
        real: Any = None,
        read: Any = None,
    ) -> None:
        super().__init__(items, source, real, read)
        self.maxlen = maxlen


class TupleVar(Tracker):
    """A tuple of trackers."""

    __slots__ = ("items",)

    def __init__(self, items: list[Tracker], source: Source | None = None) -> None:
        self.items = items
        self.source = source


class TrackerKey:
    """A dictionary key that is not a plain constant: equal only to itself."""

    __slots__ = ("tracker",)

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker


class ValueKey(TrackerKey):
    """A key whose class says what it equals: its hash is known, and ``equal`` asks the class.

    ``read``: what the class looked at for that, and what was there; ``born``: the step at which this became a key.
    """

    __slots__ = ("born", "equal", "hash", "read")

    def __init__(
        self,
        tracker: Tracker,
        hash_: int,
        equal: Callable[[Tracker, Tracker], bool],
        read: dict[int, tuple[Tracker, Any]],
        born: int,
    ) -> None:
        super().__init__(tracker)
        self.hash = hash_
        self.equal = equal
        self.read = read
        self.born = born

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self.equal(self.tracker, other.tracker if isinstance(other, TrackerKey) else ConstVar(other))


class DictVar(Tracker):
    """A dict (or OrderedDict), read key by key and written through a log.

    ``known`` maps keys to trackers in insertion order when ``complete``; an incomplete dict still asks ``real`` for
    keys that nobody has looked up. ``log`` holds ("set", key, value), ("del", key, None) and ("clear", None, None).
    """

    __slots__ = ("absent", "cls", "complete", "known", "log", "real")

    def __init__(
        self,
        known: dict[Any, Tracker],
        source: Source | None = None,
        real: dict | None = None,
        cls: type = dict,
    ):
        self.known = known
        self.source = source
        self.real = real
        self.complete = real is None
        self.absent: set[Any] = set()
        self.log: list[tuple[str, Any, Tracker | None]] = []
        self.cls = cls


class SetVar(Tracker):
    """A set or frozenset: ``known`` maps keys (constants or TrackerKey) to trackers.

    ``twin`` is a real set that became what it is by the same steps: the order of a set is that of its history.
    """

    __slots__ = ("cls", "known", "mutated", "real", "twin")

    def __init__(
        self,
        known: dict[Any, Tracker],
        cls: type = set,
        source: Source | None = None,
        real: Any = None,
        twin: Any = None,
    ) -> None:
        self.twin = twin
        self.known = known
        self.cls = cls
        self.source = source
        self.real = real
        self.mutated = False


class ObjectVar(Tracker):
    """An instance of any class that Python code defines (modules, configs, exceptions, dataclasses, …).

    ``attrs`` is its instance dictionary, ``slots`` the slot values written or read, ``payload`` the builtin container
    that a subclass of list, dict, tuple or set carries, ``obj`` the pre-existing object if there is one.
    """

    __slots__ = ("attrs", "cls", "obj", "payload", "slots", "slots_written")

    def __init__(
        self, cls: type, obj: Any = None, source: Source | None = None, attrs: DictVar | None = None
    ) -> None:
        self.cls = cls
        self.obj = obj
        self.source = source
        self.attrs = attrs if attrs is not None else DictVar({})
        self.slots: dict[str, Tracker] = {}
        self.slots_written: list[str] = []
        self.payload: Tracker | None = None

    def __repr__(self) -> str:
        return f"ObjectVar({self.cls.__name__})"


class CellVar(Tracker):
    """A closure cell; ``content`` is None while it is empty or not read yet (``loaded`` tells which)."""

    __slots__ = ("content", "loaded", "real", "written")

    def __init__(
        self, content: Tracker | None = None, source: Source | None = None, real: Any = None
    ) -> None:
        self.content = content
        self.source = source
        self.real = real
        self.loaded = real is None
        self.written = False


class FunctionVar(Tracker):
    """A function made inside the region by MAKE_FUNCTION."""

    __slots__ = ("attrs", "closure", "code", "defaults", "globals_", "kwdefaults", "qualname", "annotations")

    def __init__(self, code: CodeType, globals_: dict[str, Any], closure: tuple[CellVar, ...]) -> None:
        self.code = code
        self.globals_ = globals_
        self.closure = closure
        self.defaults: list[Tracker] = []
        self.kwdefaults: dict[str, Tracker] = {}
        self.annotations: Tracker | None = None
        self.attrs = DictVar({})
        self.qualname = code.co_qualname
        self.source = None


class MethodVar(Tracker):
    """A callable bound to its first argument: a Python method, or a builtin one."""

    __slots__ = ("func", "self_var")

    def __init__(self, func: Tracker, self_var: Tracker, source: Source | None = None) -> None:
        self.func = func
        self.self_var = self_var
        self.source = source


class SuperVar(Tracker):
    """The result of ``super(cls, obj)``."""

    __slots__ = ("cls", "self_var")

    def __init__(self, cls: type, self_var: Tracker) -> None:
        self.cls = cls
        self.self_var = self_var
        self.source = None


class CalleeVar(Tracker):
    """A call that a break left under way (``frame.Callee``): to call it is to go on in its frame."""

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Source) -> None:
        self.value = value
        self.source = source


class OpaqueVar(Tracker):
    """A pre-existing object that capture may carry and hand back but not look into; ``code`` is the break reason."""

    __slots__ = ("code", "detail", "value")

    def __init__(self, value: Any, source: Source | None, code: str, detail: str) -> None:
        self.value = value
        self.source = source
        self.code = code
        self.detail = detail


class PrivateVar(Tracker):
    """A real object that the region made and keeps to itself; ``born``: where."""

    __slots__ = ("born", "value")

    def __init__(self, value: Any, born: int) -> None:
        self.value = value
        self.born = born
        self.source = None


class DictViewVar(Tracker):
    """``d.keys()``, ``d.values()`` or ``d.items()`` of a tracked dict."""

    __slots__ = ("kind", "owner")

    def __init__(self, owner: DictVar, kind: str) -> None:
        self.owner = owner
        self.kind = kind
        self.source = None


class IdVar(Tracker):
    """``id(obj)``: good as a dictionary key and for comparison; its number is known only at run time."""

    __slots__ = ("target",)

    def __init__(self, target: Tracker) -> None:
        self.target = target
        self.source = None


class NumberVar(Tracker):
    """A Python number that is known when the graph runs: read from a tensor there. ``born``: where.

    ``kind`` is its type (None: int or float), ``in_graph`` says that operations of the graph may take it.
    """

    __slots__ = ("born", "in_graph", "kind", "node")

    def __init__(self, node: fx.Node, born: int, kind: type | None, in_graph: bool) -> None:
        self.node = node
        self.born = born
        self.kind = kind
        self.in_graph = in_graph
        self.source = None


class SizeVar(Tracker):
    """An int that may differ from call to call: a size, or what is computed of sizes."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr) -> None:
        self.expr = expr
        self.source = None

    def __repr__(self) -> str:
        return f"SizeVar({self.expr})"


class FloatVar(Tracker):
    """A float that may differ from call to call: one from outside, or what is computed of such floats and of sizes."""

    __slots__ = ("real",)

    def __init__(self, real: Real) -> None:
        self.real = real
        self.source = None

    def __repr__(self) -> str:
        return f"FloatVar({self.real})"


class TruthVar(Tracker):
    """A relation of sizes that only the running graph can answer."""

    __slots__ = ("relation",)

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.source = None


class SliceVar(Tracker):
    """A slice with a bound that is no constant."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Tracker]) -> None:
        self.parts = parts
        self.source = None


class NullVar(Tracker):
    """A NULL slot of the interpreter's stack."""

    __slots__ = ()

    def __init__(self) -> None:
        self.source = None

    def __repr__(self) -> str:
        return "NULL"


NULL = NullVar()


NONE = ConstVar(None)


def describe(tracker: Tracker) -> str:
    """What a tracker is, for break reasons."""
    kind = type(tracker)
    if kind in (ObjectVar, DictVar, SetVar):
        return f"{tracker.cls.__name__} object"  # type: ignore[attr-defined]
    if kind is PrivateVar:
        return f"{type(tracker.value).__name__} object"  # type: ignore[attr-defined]
    if kind is ConstVar:
        value = tracker.value  # type: ignore[attr-defined]
        if issubclass(type(value), enum.Enum):  # whose text may be the program's code
            return f"{type(value).__name__} {value._name_}"
        if issubclass(type(value), ModuleType):  # whose attributes may be the program's code
            return f"{type(value).__name__} {ModuleType.__getattribute__(value, '__dict__').get('__name__')}"
        return f"{type(value).__name__} {getattr(value, '__qualname__', None) or repr(value)[:80]}"
    return kind.__name__.removesuffix("Var").lower()
