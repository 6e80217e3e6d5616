"""What a program has done, as data that two runs can be compared by.

In: any value: tensors, containers, objects, functions with cells, exceptions. Out: a flat list of observations.
Always: one object met twice is told as the same object, so that aliasing is compared; classes go by name, since each
run has its own. Nothing is changed, and no method of the program is called.
"""

from __future__ import annotations

import re
import traceback
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_PLAIN = (int, float, bool, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice)
_LIMIT = 3000


@dataclass(frozen=True, slots=True)
class Numbers:
    """The values of a tensor, compared with a tolerance where the run allows one."""

    values: torch.Tensor

    def same(self, other: object, tolerance: float) -> bool:
        if not isinstance(other, Numbers) or other.values.dtype != self.values.dtype:
            return False
        if tolerance and self.values.dtype.is_floating_point:
            return torch.allclose(self.values, other.values, rtol=tolerance, atol=tolerance, equal_nan=True)
        same = (self.values == other.values) | ((self.values != self.values) & (other.values != other.values))
        return bool(same.all())

    def __repr__(self) -> str:
        return f"{self.values.dtype} {self.values.tolist()}"


Entry = tuple[str, Any]


class Observer:
    """Walks values; `entries` is what it saw, in order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.known: dict[int, str] = {}
        self.memories: dict[int, str] = {}
        self.alive: list[Any] = []

    def tell(self, path: str, what: Any) -> None:
        self.entries.append((path, what))

    def walk(self, path: str, value: Any) -> None:
        if len(self.entries) > _LIMIT:
            return
        if type(value) in _PLAIN:
            self.tell(path, number(value))
            return
        if type(value) is not tuple:
            known = self.known.setdefault(id(value), path)
            if known != path:
                self.tell(path, ("is", known))
                return
            self.alive.append(value)
        for kind, visit in VISITORS:
            if issubclass(type(value), kind):  # isinstance() would run the program's code
                visit(self, path, value)
                return
        self.object(path, value)

    def tensor(self, path: str, value: torch.Tensor) -> None:
        memory = self.memories.setdefault(value.untyped_storage()._cdata, path)
        grad: Any
        try:
            grad = (value.requires_grad, value.is_leaf, value.grad_fn is not None, value._is_view())
        except RuntimeError as error:  # a view whose history autograd refuses to give
            grad = str(error)
        self.tell(
            path, ("tensor", type(value).__name__, str(value.dtype), tuple(value.shape), value.stride())
        )
        # A gradient may lie anywhere in memory that is its own.
        self.tell(f"{path} memory", (memory, 0 if "grad" in path else value.storage_offset()))
        self.tell(f"{path} gradient", grad)
        with torch.no_grad():
            self.tell(f"{path} values", Numbers(value.detach().clone()))
        if value.is_leaf and value.grad is not None:
            self.walk(f"{path}.grad", value.grad)

    def sequence(self, path: str, value: Any) -> None:
        items = (
            list(type(value).__mro__[-2].__iter__(value))
            if type(value) in (list, tuple)
            else list(_raw(value))
        )
        self.tell(path, (type(value).__qualname__, len(items)))
        for index, item in enumerate(items):
            self.walk(f"{path}[{index}]", item)
        self.attributes(path, value)

    def mapping(self, path: str, value: Any) -> None:
        items = list((OrderedDict if isinstance(value, OrderedDict) else dict).items(value))
        self.tell(path, (type(value).__qualname__, len(items)))
        for index, (key, item) in enumerate(items):
            self.walk(f"{path}.keys()[{index}]", key)
            self.walk(f"{path}[{key!r}]" if isinstance(key, (str, int)) else f"{path}[{index}]", item)
        self.attributes(path, value)

    def set(self, path: str, value: Any) -> None:
        in_order = all(type(item) is int for item in value)  # others may hash by their address
        shown = list(map(repr, value))
        self.tell(path, (type(value).__qualname__, shown if in_order else sorted(shown)))

    def function(self, path: str, value: types.FunctionType) -> None:
        self.tell(path, ("function", value.__name__, value.__qualname__, value.__code__.co_firstlineno))
        if "<locals>" in value.__qualname__:
            for index, item in enumerate(value.__defaults__ or ()):
                self.walk(f"{path}.__defaults__[{index}]", item)
            for name, item in (value.__kwdefaults__ or {}).items():
                self.walk(f"{path}.__kwdefaults__[{name}]", item)
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                self.walk(f"{path}.cell({name})", cell)
        for name, item in value.__dict__.items():
            self.walk(f"{path}.{name}", item)

    def cell(self, path: str, value: types.CellType) -> None:
        try:
            self.walk(f"{path}.contents", value.cell_contents)
        except ValueError:
            self.tell(path, "empty cell")

    def method(self, path: str, value: Any) -> None:
        self.tell(path, ("method", value.__name__))
        self.walk(f"{path}.__self__", value.__self__)

    def type(self, path: str, value: type) -> None:
        self.tell(path, ("class", value.__qualname__))
        if value.__module__ == "program":
            for name, item in vars(value).items():
                if not name.startswith("__") and type(item) in (*_PLAIN, list, dict, set):
                    self.walk(f"{path}.{name}", item)

    def exception(self, path: str, value: BaseException) -> None:
        self.tell(path, (type(value).__qualname__, text(str(value))))
        self.walk(f"{path}.args", value.args)
        self.tell(f"{path} suppress", value.__suppress_context__)
        for name in ("__cause__", "__context__"):
            other = getattr(value, name)
            if other is None:
                self.tell(f"{path}.{name}", None)
            else:
                self.walk(f"{path}.{name}", other)
        self.attributes(path, value)

    def generator(self, path: str, value: types.GeneratorType) -> None:
        frame = value.gi_frame
        self.tell(path, ("generator", value.__qualname__, value.gi_running))
        self.tell(f"{path} line", frame.f_lineno if frame is not None else "finished")

    def partial(self, path: str, value: Any) -> None:
        self.tell(path, "partial")
        self.walk(f"{path}.func", value.func)
        self.walk(f"{path}.args", value.args)
        self.walk(f"{path}.keywords", value.keywords)

    def iterator(self, path: str, value: Any) -> None:
        self.tell(path, type(value).__name__)

    def named(self, path: str, value: Any) -> None:
        self.tell(path, text(repr(value)))

    def object(self, path: str, value: Any) -> None:
        self.tell(path, ("object", type(value).__qualname__))
        self.attributes(path, value)

    def attributes(self, path: str, value: Any) -> None:
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            attributes = {}
        for name, item in attributes.items():
            self.walk(f"{path}.{name}", item)
        for cls in type(value).__mro__:
            for name, slot in vars(cls).items() if cls.__module__ == "program" else ():
                if isinstance(slot, types.MemberDescriptorType):
                    try:
                        self.walk(f"{path}.{name}", slot.__get__(value))
                    except AttributeError:
                        self.tell(f"{path}.{name}", "unset")


def _raw(value: Any) -> list[Any]:
    return list((list if isinstance(value, list) else tuple).__iter__(value))


def number(value: Any) -> Any:
    """A plain value with its type, such that nan equals nan and -0.0 is not 0.0."""
    return type(value).__name__, hex(value) if type(value) is int else repr(value)  # decimals may be too long


def text(value: str) -> str:
    return _ADDRESS.sub("0x", value)


VISITORS: tuple[tuple[Any, Callable[[Observer, str, Any], None]], ...] = (
    (torch.Tensor, Observer.tensor),
    ((torch.Size, torch.dtype, torch.device, types.ModuleType, types.CodeType), Observer.named),
    ((list, tuple), Observer.sequence),
    (dict, Observer.mapping),
    ((set, frozenset), Observer.set),
    (types.FunctionType, Observer.function),
    (types.CellType, Observer.cell),
    ((types.MethodType, types.BuiltinMethodType), Observer.method),
    (type, Observer.type),
    (BaseException, Observer.exception),
    (types.GeneratorType, Observer.generator),
    (__import__("functools").partial, Observer.partial),
    (Iterator, Observer.iterator),
)


def observe(**values: Any) -> list[Entry]:
    """Everything that can be seen from the values, in order."""
    observer = Observer()
    for name, value in values.items():
        observer.walk(name, value)
    return observer.entries


def user_lines(error: BaseException, filename: str) -> list[tuple[str, int]]:
    """The lines of the program that the traceback of an exception names.

    The last one of an unbound variable is left out: once CPython has joined a load with the store before it, the line
    that it names is the store's.
    """
    lines = [
        (frame.name, frame.lineno or 0)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == filename
    ]
    if type(error) is UnboundLocalError and lines:
        lines[-1] = (lines[-1][0], 0)
    return lines


def state_of(scope: dict[str, Any]) -> dict[str, Any]:
    """The program's globals that it may change."""
    return {
        name: value
        for name, value in scope.items()
        if not name.startswith("__")
        and name not in _FIXED
        and not isinstance(value, (types.ModuleType, types.FunctionType))
    }


_FIXED = frozenset(("CALLS", "DTYPE", "SEEN", "Pair", "Color", "noted", "opaque", "opaque_change"))
