"""Sources: how a value seen while capturing can be loaded again from the arguments of a later call.

In: nothing (data types only). Out: `Source` and its kinds, `Ref`.
Always: frozen, hashable with a cached hash, loadable in C without running user code; user instances are held weakly.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any

from graphlift.data import dataclass, values_of

_PLAIN_KEYS = (str, int, float, bool, complex, bytes, type(None), tuple, frozenset)
_HELD_STRONGLY = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
)


class Ref:
    """An object compared by identity, held weakly where its type allows it (``strong=True``: instances only).

    A weak referent that has died never equals anything again; `get` then returns None and `dead` is true.
    """

    __slots__ = ("_id", "_strong", "_weak", "text")

    def __init__(self, obj: object, *, strong: bool = False) -> None:
        self._id = id(obj)
        self._weak: weakref.ref[Any] | None = None
        self._strong: object = None
        self.text = describe_object(obj)
        if not (strong and isinstance(obj, _HELD_STRONGLY)):
            try:
                # A basic reference (no callback) is shared by CPython between all holders of one object.
                self._weak = weakref.ref(obj)
            except TypeError:
                pass
        if self._weak is None:
            self._strong = obj

    def get(self) -> Any:
        return self._strong if self._weak is None else self._weak()

    @property
    def dead(self) -> bool:
        return self._weak is not None and self._weak() is None

    @property
    def holder(self) -> object:
        """The weak reference if there is one, else the object (what the C evaluator keeps)."""
        return self._weak if self._weak is not None else self._strong

    @property
    def is_weak(self) -> bool:
        return self._weak is not None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Ref) and self._id == other._id and not self.dead and not other.dead

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"<{self.text}{' (dead)' if self.dead else ''}>"


def describe_object(obj: object) -> str:
    """A short name for an object that runs no code of its class (no ``repr``)."""
    if isinstance(obj, type):
        return f"{obj.__module__}.{obj.__qualname__}" if obj.__module__ != "builtins" else obj.__qualname__
    if isinstance(obj, types.FunctionType):
        return f"function {obj.__qualname__}"
    if isinstance(obj, types.BuiltinFunctionType):
        return f"builtin {obj.__name__}"
    if isinstance(obj, types.ModuleType):
        return f"module {obj.__dict__.get('__name__', '?')}"
    if obj is None or type(obj) in (bool, int, float, complex, str, bytes, type(...), type(NotImplemented)):
        return _short(repr(obj))
    if type(obj) is slice and _is_plain((obj.start, obj.stop, obj.step)):
        return _short(repr(obj))
    if type(obj) is tuple or (isinstance(obj, tuple) and type(obj).__module__ == "torch"):  # a torch.Size
        return _short(repr(obj)) if _is_plain(tuple(obj)) else f"a {type(obj).__name__} of {len(obj)}"
    if type(obj).__module__ == "torch" and type(obj).__name__ in _TORCH_CONSTANTS:
        return repr(obj)
    return f"{type(obj).__qualname__} object at {id(obj):#x}"


_TORCH_CONSTANTS = frozenset(("dtype", "device", "layout", "memory_format"))


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _is_plain(key: object) -> bool:
    if type(key) in (tuple, frozenset):
        return all(_is_plain(item) for item in key)  # type: ignore[attr-defined]
    return type(key) in _PLAIN_KEYS


# Source class -> what tells two sources apart (found once: models have tens of thousands of sources).
_KEYS: dict[type, Callable[[Any], Any]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """How to load one value. `name()` reads as the user's expression; `code()` is a Python expression."""

    _hash: int = field(init=False, repr=False, default=0)

    def _key(self) -> Any:
        key = _KEYS.get(type(self))
        if key is None:
            names = [f.name for f in fields(self) if f.compare and f.name != "_hash"]
            key = _KEYS[type(self)] = values_of(names)
        return key(self)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((type(self).__name__, self._key())))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or self._hash != other._hash:
            return False
        return bool(self._key() == other._key())

    def __hash__(self) -> int:
        return self._hash

    @property
    def parent(self) -> Source | None:
        """The source this one is loaded from, or None at a root."""
        return getattr(self, "base", None)

    def name(self) -> str:
        raise NotImplementedError

    def code(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self.name()


@dataclass(frozen=True, slots=True, eq=False)
class Arg(Source):
    """The frame's argument at position ``index`` of its localsplus."""

    index: int
    arg_name: str = field(compare=False)

    def name(self) -> str:
        return self.arg_name

    code = name


@dataclass(frozen=True, slots=True, eq=False)
class Func(Source):
    """The frame's function object."""

    def name(self) -> str:
        return "<function>"

    def code(self) -> str:
        return "__func"


@dataclass(frozen=True, slots=True, eq=False)
class Const(Source):
    """A given object, the same at every call. ``label`` names it in messages and in code."""

    ref: Ref
    label: str = field(compare=False)

    def __init__(self, obj: object, label: str) -> None:
        object.__setattr__(self, "ref", obj if isinstance(obj, Ref) else Ref(obj, strong=True))
        object.__setattr__(self, "label", label)
        self.__post_init__()

    @property
    def obj(self) -> Any:
        return self.ref.get()

    def name(self) -> str:
        return self.label

    code = name


@dataclass(frozen=True, slots=True, eq=False)
class FunctionMode(Source):
    """The mode at a place of torch's stack of torch_function modes; the outermost is the first."""

    index: int

    def name(self) -> str:
        return f"<torch_function mode {self.index}>"

    def code(self) -> str:
        return f"torch._C._get_function_stack_at({self.index})"


@functools.cache
def function_stack_at() -> Ref:
    """torch's C function that gives the mode at a place."""
    import torch

    return Ref(torch._C._get_function_stack_at, strong=True)


@dataclass(frozen=True, slots=True, eq=False)
class InstanceDict(Source):
    """The instance dictionary, found without user code (no ``__getattribute__``)."""

    base: Source

    def name(self) -> str:
        return f"{self.base.name()}.__dict__"

    def code(self) -> str:
        return f"object.__getattribute__({self.base.code()}, '__dict__')"


_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True, slots=True, eq=False)
class DictItem(Source):
    """``dict[key]`` of a dict or OrderedDict: the stored value, never ``__missing__``.

    A key that is not plain data is held as a `Ref` (an optimizer's state is keyed by parameters).
    """

    base: Source
    key: Any

    def __init__(self, base: Source, key: Any) -> None:
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "key", key if _is_plain(key) or isinstance(key, Ref) else Ref(key))
        self.__post_init__()

    def name(self) -> str:
        base, key = self.base, self.key
        if isinstance(base, InstanceDict) and isinstance(key, str):
            return f"{base.base.name()}.{key}"
        owner = _module_table_owner(base)
        if owner is not None and isinstance(key, str):
            return f"{owner.name()}[{key}]" if key.isdigit() else f"{owner.name()}.{key}"
        if _is_globals(base) and isinstance(key, str):
            return key
        return f"{base.name()}[{key!r}]"

    def code(self) -> str:
        if isinstance(self.key, Ref):
            raise ValueError(f"{self.name()} has no expression: its key is an object")
        return f"{self.base.code()}[{self.key!r}]"


def _module_table_owner(source: Source) -> Source | None:
    """The module whose ``_parameters``/``_buffers``/``_modules`` this is, if it is one."""
    if (
        isinstance(source, DictItem)
        and isinstance(source.base, InstanceDict)
        and source.key in _MODULE_TABLES
    ):
        return source.base.base
    return None


def _is_globals(source: Source) -> bool:
    if isinstance(source, Const):
        return type(source.obj) is dict
    return isinstance(source, Attr) and source.attr == "__globals__"


@dataclass(frozen=True, slots=True, eq=False)
class SeqItem(Source):
    """Item ``index`` of a list, a tuple (subclasses too) or a deque, read from its storage; negative: from the end.

    ``label`` is what it is to the user, where the sequence is graphlift's own.
    """

    base: Source
    index: int
    label: str = field(default="", compare=False)

    def name(self) -> str:
        return self.label or f"{self.base.name()}[{self.index}]"

    def code(self) -> str:
        return f"{self.base.code()}[{self.index}]"


@dataclass(frozen=True, slots=True, eq=False)
class DictKey(Source):
    """The ``index``-th key of a dict, in iteration order."""

    base: Source
    index: int

    def name(self) -> str:
        return f"list({self.base.name()})[{self.index}]"

    def code(self) -> str:
        return f"list({self.base.code()})[{self.index}]"


@dataclass(frozen=True, slots=True, eq=False)
class TypeOf(Source):
    """``type(base)``."""

    base: Source

    def name(self) -> str:
        return f"type({self.base.name()})"

    def code(self) -> str:
        return f"type({self.base.code()})"


@dataclass(frozen=True, slots=True, eq=False)
class Slot(Source):
    """The value of a member or getset descriptor found on the type (``__slots__`` and C-level attributes)."""

    base: Source
    slot_name: str

    def name(self) -> str:
        return f"{self.base.name()}.{self.slot_name}"

    def code(self) -> str:
        return f"{self.base.code()}.{self.slot_name}"


@dataclass(frozen=True, slots=True, eq=False)
class Attr(Source):
    """Plain attribute of an object of a C type known to run no user code (function, method, partial, property)."""

    base: Source
    attr: str

    def name(self) -> str:
        return f"{self.base.name()}.{self.attr}"

    def code(self) -> str:
        return f"{self.base.code()}.{self.attr}"


@dataclass(frozen=True, slots=True, eq=False)
class ClosureCell(Source):
    """Cell ``index`` of a function's closure; ``var`` is the variable's name, for messages."""

    base: Source
    index: int
    var: str = field(default="", compare=False)

    def name(self) -> str:
        return f"{self.base.name()}.__closure__[{self.index}]"

    def code(self) -> str:
        return f"{self.base.code()}.__closure__[{self.index}]"


@dataclass(frozen=True, slots=True, eq=False)
class CellContents(Source):
    """What a cell holds; loading an empty cell fails."""

    base: Source

    def name(self) -> str:
        if isinstance(self.base, ClosureCell) and self.base.var:
            return self.base.var
        return f"{self.base.name()}.cell_contents"

    def code(self) -> str:
        return f"{self.base.code()}.cell_contents"


@dataclass(frozen=True, slots=True, eq=False)
class TensorGrad(Source):
    """``tensor.grad`` (None where there is none)."""

    base: Source

    def name(self) -> str:
        return f"{self.base.name()}.grad"

    def code(self) -> str:
        return f"{self.base.code()}.grad"


@dataclass(frozen=True, slots=True, eq=False)
class WeakTarget(Source):
    """What a weak reference or proxy refers to; loading fails where that has ended."""

    base: Source

    def name(self) -> str:
        return f"{self.base.name()}()"

    def code(self) -> str:
        return f"{self.base.code()}()"


@dataclass(frozen=True, slots=True, eq=False)
class TensorSize(Source):
    """``tensor.shape[index]``, as an int."""

    base: Source
    index: int

    def name(self) -> str:
        return f"{self.base.name()}.shape[{self.index}]"

    def code(self) -> str:
        return f"{self.base.code()}.shape[{self.index}]"
