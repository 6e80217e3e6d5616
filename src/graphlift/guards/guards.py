"""Guards: the facts about a call's inputs under which a captured region is right.

In: sources and the values seen while capturing. Out: frozen guard records, `TensorSpec`, `GlobalState`.
Always: a guard is data that prints for a person; it holds user instances weakly and never keeps a tensor alive.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from graphlift.data import dataclass
from graphlift.guards.sources import DictItem, FunctionMode, Ref, Source, describe_object
from graphlift.shapes.expr import FloorDiv, Max, Min, Relation, SizeLike, Symbol, terms_of


class _Absent:
    """The marker for "this name is not there"."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


@dataclass(frozen=True, slots=True)
class Guard:
    """One condition; `sources` are what it looks at, `describe` states it in the user's terms."""

    @property
    def sources(self) -> tuple[Source, ...]:
        source = getattr(self, "source", None)
        return (source,) if source is not None else ()

    def describe(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self.describe()


@dataclass(frozen=True, slots=True)
class TypeIs(Guard):
    """``type(source) is cls``."""

    source: Source
    ref: Ref

    def __init__(self, source: Source, cls: type | Ref) -> None:
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "ref", cls if isinstance(cls, Ref) else Ref(cls))

    @property
    def cls(self) -> Any:
        """The class, or None if it has died."""
        return self.ref.get()

    def describe(self) -> str:
        return f"type({self.source.name()}) is {self.ref.text}"


@dataclass(frozen=True, slots=True)
class IdIs(Guard):
    """``source is obj``; a weakly held ``obj`` that has died is never matched again."""

    source: Source
    ref: Ref

    def __init__(self, source: Source, obj: object) -> None:
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "ref", obj if isinstance(obj, Ref) else Ref(obj))

    @property
    def obj(self) -> Any:
        return self.ref.get()

    def describe(self) -> str:
        return f"{self.source.name()} is {self.ref.text}"


def constant_key(value: Any) -> Any:
    """A hashable key under which values are the same constant: type included, floats by their bits.

    Raises TypeError for a value that `Equals` cannot compare.
    """
    kind = type(value)
    if kind in (int, str, bytes, bool, type(None), type(...), type(NotImplemented)):
        return (kind, value)
    if kind is float:
        return (kind, struct.pack("<d", value))
    if kind is complex:
        return (kind, struct.pack("<dd", value.real, value.imag))
    if kind is tuple:
        return (kind, tuple(constant_key(item) for item in value))
    if kind is frozenset:
        return (kind, frozenset(constant_key(item) for item in value))
    if kind is slice:
        return (kind, tuple(constant_key(item) for item in (value.start, value.stop, value.step)))
    if kind is range:
        return (kind, (value.start, value.stop, value.step))
    if kind.__module__ == "torch" and kind.__qualname__ in _TORCH_CONSTANTS:
        return (kind, tuple(map(constant_key, value)) if kind.__qualname__ == "Size" else value)
    raise TypeError(f"not a constant that can be compared without user code: {kind.__qualname__}")


# Compared in C; each is immutable and its comparison runs no Python.
_TORCH_CONSTANTS = frozenset({"device", "Size", "dtype", "layout", "memory_format"})


@dataclass(frozen=True, slots=True)
class Equals(Guard):
    """``source`` has exactly the constant's type and value (-0.0 differs from 0.0, a NaN equals the same NaN)."""

    source: Source
    const: Any = field(compare=False)
    key: Any = field(repr=False)

    def __init__(self, source: Source, const: Any) -> None:
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "const", const)
        object.__setattr__(self, "key", constant_key(const))

    def describe(self) -> str:
        return f"{self.source.name()} == {self.const!r}"


@dataclass(frozen=True, slots=True)
class Length(Guard):
    """``len(source) == n`` of a list, tuple, dict, set, str or bytes, subclasses included (their storage's length)."""

    source: Source
    n: int

    def describe(self) -> str:
        return f"len({self.source.name()}) == {self.n}"


@dataclass(frozen=True, slots=True)
class DictKeys(Guard):
    """The dict's keys are exactly these, in this order."""

    source: Source
    keys: tuple[Any, ...] = field(compare=False)
    exact: tuple[Any, ...] = field(repr=False)

    def __init__(self, source: Source, keys: Sequence[Any]) -> None:
        held = tuple(_hold_key(source, key) for key in keys)
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "keys", held)
        # 1 and True are one key to a dict, but not to the code that iterates over it.
        object.__setattr__(self, "exact", tuple(k if isinstance(k, Ref) else constant_key(k) for k in held))

    def describe(self) -> str:
        return f"list({self.source.name()}) == [{', '.join(map(repr, self.keys))}]"


@dataclass(frozen=True, slots=True)
class HasKey(Guard):
    """``(key in source) is present`` of a dict."""

    source: Source
    key: Any
    present: bool

    def __init__(self, source: Source, key: Any, present: bool) -> None:
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "key", _hold_key(source, key))
        object.__setattr__(self, "present", present)

    def describe(self) -> str:
        return f"{self.key!r} {'in' if self.present else 'not in'} {self.source.name()}"


def _hold_key(source: Source, key: Any) -> Any:
    """Keys follow `DictItem`: plain data as it is, any other object through a `Ref`."""
    return DictItem(source, key).key


@dataclass(frozen=True, slots=True)
class Follows:
    """A stride that is dimension ``dim``'s size times its stride: no gap between the two."""

    dim: int

    def __str__(self) -> str:
        return f"size[{self.dim}]*stride[{self.dim}]"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Facts about a tensor that captured code may depend on. None for a dimension, or for all strides, is "any"."""

    cls: Ref
    dtype: Any
    device: Any
    shape: tuple[int | None, ...]
    strides: tuple[int | Follows | None, ...] | None
    requires_grad: bool
    layout: Any
    dispatch_keys: int

    @staticmethod
    def of(tensor: Any) -> TensorSpec:
        """The specification that holds every fact of ``tensor``; loosen it with `dataclasses.replace`."""
        return TensorSpec(
            cls=Ref(type(tensor)),
            dtype=tensor.dtype,
            device=tensor.device,
            shape=tuple(tensor.shape),
            strides=tensor.stride() if str(tensor.layout) == "torch.strided" else None,
            requires_grad=tensor.requires_grad,
            layout=tensor.layout,
            dispatch_keys=dispatch_keys(tensor),
        )

    @property
    def rank(self) -> int:
        return len(self.shape)

    def mismatch(self, value: Any) -> str | None:
        """The first fact that does not hold of ``value``, as text, or None if all hold."""
        if type(value) is not self.cls.get():
            return f"type is {self.cls.text}, found {describe_object(type(value))}"
        import torch

        with torch._C.DisableTorchFunction():  # no code of the tensor's class
            return self._mismatch(value)

    def _mismatch(self, value: Any) -> str | None:
        keys = dispatch_keys(value)
        if keys != self.dispatch_keys:
            return f"dispatch keys are {_key_text(self.dispatch_keys)}, found {_key_text(keys)}"
        facts: list[tuple[str, Any, Any]] = [
            ("dtype", self.dtype, value.dtype),
            ("device", self.device, value.device),
            ("layout", self.layout, value.layout),
            ("requires_grad", self.requires_grad, value.requires_grad),
            ("rank", self.rank, value.dim()),
        ]
        for what, expected, found in facts:
            if expected != found:
                return f"{what} is {expected}, found {found}"
        if any(want is not None and want != got for want, got in zip(self.shape, value.shape, strict=True)):
            return f"shape is {_dims(self.shape)}, found {_dims(tuple(value.shape))}"
        if self.strides is not None and not self._strides_match(tuple(value.shape), tuple(value.stride())):
            return f"strides are {_dims(self.strides)}, found {_dims(tuple(value.stride()))}"
        return None

    def _strides_match(self, shape: tuple[int, ...], found: tuple[int, ...]) -> bool:
        assert self.strides is not None
        wanted = [
            shape[want.dim] * found[want.dim] if isinstance(want, Follows) else want for want in self.strides
        ]
        return all(want is None or want == got for want, got in zip(wanted, found, strict=True))

    def describe(self) -> str:
        parts = [self.cls.text, str(self.dtype).removeprefix("torch."), _dims(self.shape)]
        parts.append("any strides" if self.strides is None else f"strides {_dims(self.strides)}")
        parts.append(str(self.device))
        parts.append("requires grad" if self.requires_grad else "no grad")
        if str(self.layout) != "torch.strided":
            parts.append(str(self.layout))
        return ", ".join(parts)


def dispatch_keys(tensor: Any) -> int:
    """The tensor's dispatch key set as an integer (conj, neg, inference, wrapper and subclass facts live there)."""
    import torch

    return int(torch._C._dispatch_keys(tensor).raw_repr())


def _key_text(raw: int) -> str:
    import torch

    return str(torch._C.DispatchKeySet.from_raw_repr(raw)).removeprefix("DispatchKeySet")


def _dims(dims: tuple[int | Follows | None, ...]) -> str:
    return "[" + ", ".join("*" if d is None else str(d) for d in dims) + "]"


@dataclass(frozen=True, slots=True)
class TensorMeta(Guard):
    """``source`` is a tensor to which ``spec`` applies."""

    source: Source
    spec: TensorSpec

    def describe(self) -> str:
        return f"{self.source.name()}: {self.spec.describe()}"


@dataclass(frozen=True, slots=True)
class TypeAttr(Guard):
    """Looking ``attr`` up along the class's MRO gives this very object (or nothing, for ABSENT)."""

    ref: Ref
    attr: str
    expected: Ref

    def __init__(self, cls: type | Ref, attr: str, expected: object) -> None:
        object.__setattr__(self, "ref", cls if isinstance(cls, Ref) else Ref(cls))
        object.__setattr__(self, "attr", attr)
        object.__setattr__(self, "expected", expected if isinstance(expected, Ref) else Ref(expected))

    @property
    def cls(self) -> Any:
        """The class, or None if it has died."""
        return self.ref.get()

    def describe(self) -> str:
        if self.expected.get() is ABSENT:
            return f"{self.ref.text} has no attribute {self.attr!r}"
        return f"{self.ref.text}.{self.attr} is {self.expected.text}"


@dataclass(frozen=True, slots=True)
class SameObject(Guard):
    """``first is second``."""

    first: Source
    second: Source

    @property
    def sources(self) -> tuple[Source, ...]:
        return (self.first, self.second)

    def describe(self) -> str:
        return f"{self.first.name()} is {self.second.name()}"


@dataclass(frozen=True, slots=True)
class DistinctTensors(Guard):
    """No two of the sources are the same object."""

    items: tuple[Source, ...]

    @property
    def sources(self) -> tuple[Source, ...]:
        return self.items

    def describe(self) -> str:
        return f"all different objects: {', '.join(s.name() for s in self.items)}"


@dataclass(frozen=True, slots=True)
class NoOverlap(Guard):
    """No tensor of ``written`` shares memory with another tensor of ``written`` or with one of ``read``."""

    written: tuple[Source, ...]
    read: tuple[Source, ...] = ()

    @property
    def sources(self) -> tuple[Source, ...]:
        return self.written + self.read

    def describe(self) -> str:
        text = f"no shared memory among {', '.join(s.name() for s in self.written)}"
        return f"{text} or with {', '.join(s.name() for s in self.read)}" if self.read else text


@dataclass(frozen=True, slots=True)
class StorageOffset(Guard):
    """The two tensors share a storage and start ``distance`` elements apart (second minus first).

    For inputs that overlap and are mutated: the captured graph is right only for this relative position.
    """

    first: Source
    second: Source
    distance: int

    @property
    def sources(self) -> tuple[Source, ...]:
        return (self.first, self.second)

    def describe(self) -> str:
        return (
            f"{self.second.name()} starts {self.distance} elements after {self.first.name()} in one storage"
        )


@dataclass(frozen=True, slots=True)
class SizeRelation(Guard):
    """A relation between sizes and int arguments; ``symbols`` stand for the values of ``items``.

    The values must be exact ints of at most 64 bits.
    """

    relation: Relation
    symbols: tuple[Symbol, ...]
    items: tuple[Source, ...]
    where: str = field(default="", compare=False)

    @property
    def sources(self) -> tuple[Source, ...]:
        return self.items

    def describe(self) -> str:
        names = {symbol: item.name() for symbol, item in zip(self.symbols, self.items, strict=True)}
        return self.relation.render(names)


@dataclass(frozen=True, slots=True)
class Gives(Guard):
    """The last of ``calls`` gives the very object `expected`; an exception is a failure.

    Each call is a function, which has to be one written in C, and the places of its arguments: the values of `items`
    come first, then `constants`, then what the calls before it gave. Made by `gives`.
    """

    calls: tuple[tuple[Callable[..., Any], tuple[int, ...]], ...]
    items: tuple[Source, ...]
    constants: tuple[Any, ...] = field(compare=False)
    keys: tuple[Any, ...] = field(repr=False)  # what constants are compared by
    expected: Any
    text: str

    @property
    def sources(self) -> tuple[Source, ...]:
        return self.items

    def holds(self, *values: Any) -> bool:
        """The meaning, for the values of `items`."""
        known = [*values, *self.constants]
        for fn, places in self.calls:
            known.append(fn(*[known[k] for k in places]))
        return known[-1] is self.expected

    def describe(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """``fn(*args)`` of sources, constants and other calls; a call that occurs twice is made once."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]

    def __init__(self, fn: Callable[..., Any], *args: Any) -> None:
        object.__setattr__(self, "fn", fn)
        object.__setattr__(self, "args", args)


def gives(call: Call, expected: Any, text: str) -> Gives:
    """The guard that ``call`` gives `expected`."""
    order: dict[int, Call] = {}
    pending: list[tuple[Call, bool]] = [(call, False)]
    while pending:  # arguments before their calls; chains of calls can be long
        at, ready = pending.pop()
        if ready:
            order.setdefault(id(at), at)
        elif id(at) not in order:
            pending.append((at, True))
            pending += [(arg, False) for arg in at.args if type(arg) is Call]
    given = [arg for each in order.values() for arg in each.args if type(arg) is not Call]
    items = tuple(dict.fromkeys([arg for arg in given if isinstance(arg, Source)]))
    constants = {_constant_or_id(arg): arg for arg in given if not isinstance(arg, Source)}
    places: dict[Any, int] = {item: k for k, item in enumerate(items)}
    places |= {key: len(items) + k for k, key in enumerate(constants)}
    places |= {each: len(items) + len(constants) + k for k, each in enumerate(order)}

    def place(arg: Any) -> int:
        if isinstance(arg, Source):
            return places[arg]
        return places[id(arg) if type(arg) is Call else _constant_or_id(arg)]

    calls = tuple([(each.fn, tuple(map(place, each.args))) for each in order.values()])
    return Gives(calls, items, tuple(constants.values()), tuple(constants), expected, text)


def size_call(size: SizeLike, sources: Mapping[Symbol, Source]) -> Any:
    """The value of a size, as what `gives` takes."""
    total: Any = None
    for monomial, coefficient in terms_of(size):
        product: Any = coefficient if coefficient != 1 or not monomial else None
        for atom in monomial:
            value = _atom_call(atom, sources)
            product = value if product is None else Call(operator.mul, product, value)
        total = product if total is None else Call(operator.add, total, product)
    return 0 if total is None else total


_ATOM_CALLS: dict[type, Any] = {FloorDiv: operator.floordiv, Min: min, Max: max}


def _atom_call(atom: Any, sources: Mapping[Symbol, Source]) -> Any:
    if isinstance(atom, Symbol):
        return sources[atom]
    return Call(_ATOM_CALLS[type(atom)], *[size_call(arg, sources) for arg in atom.args])


def _constant_or_id(value: Any) -> Any:
    try:
        return constant_key(value)
    except TypeError:
        return _Absent, id(value)


@dataclass(frozen=True, slots=True)
class Predicate(Guard):
    """Python decides: ``fn(*values of items)`` is true. The slow path for the rare rest; an exception is a failure."""

    fn: Callable[..., bool] = field(hash=False)
    items: tuple[Source, ...]
    text: str

    def __init__(self, fn: Callable[..., bool], items: Sequence[Source], text: str) -> None:
        object.__setattr__(self, "fn", fn)
        object.__setattr__(self, "items", tuple(items))
        object.__setattr__(self, "text", text)

    @property
    def sources(self) -> tuple[Source, ...]:
        return self.items

    def describe(self) -> str:
        return self.text


def _mode_stack() -> tuple[tuple[Ref, str], ...]:
    """The types of the active torch_function modes, which are made anew each time, and a default device's device."""
    import torch
    from torch.utils._device import DeviceContext

    modes = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    return tuple((Ref(type(m)), str(m.device) if type(m) is DeviceContext else "") for m in modes)


def _default_device() -> str:
    """The innermost default-device mode's device. (torch's own getter builds a device, which user modes intercept.)"""
    devices = [device for _, device in _mode_stack() if device]
    return devices[-1] if devices else "cpu"


def _autocast_cache() -> bool | None:
    import torch

    enabled = any(on for _, on, _ in _autocast_states())
    return torch.is_autocast_cache_enabled() if enabled else None


def _autocast_states() -> tuple[tuple[str, bool, Any], ...]:
    import torch

    states = []
    for device in ("cpu", "cuda"):
        enabled = torch.is_autocast_enabled(device)
        # The dtype of a switched-off autocast decides nothing, so it is not part of the state.
        states.append((device, enabled, torch.get_autocast_dtype(device) if enabled else None))
    return tuple(states)


def _forward_ad_level() -> int:
    import torch

    return int(torch.autograd.forward_ad._current_level)


@dataclass(frozen=True, slots=True)
class GlobalState(Guard):
    """Torch's thread-local and global modes, as they are when the record is made.

    Make it on entry to the frame being captured, before capture itself enters any mode.
    """

    grad_enabled: bool
    inference_mode: bool
    forward_grad_enabled: bool
    autocast: tuple[tuple[str, bool, Any], ...]
    autocast_cache: bool | None
    default_dtype: Any
    default_device: str
    deterministic: tuple[bool, bool]
    function_modes: tuple[tuple[Ref, str], ...]
    function_state: int
    dispatch_modes: int
    forward_ad_level: int
    included_keys: int
    excluded_keys: int

    def __init__(self, **known: Any) -> None:
        for name, (_, read) in GLOBAL_FACTS.items():
            object.__setattr__(self, name, known[name] if name in known else read())

    def mismatch(self) -> str | None:
        """The first fact that does not hold now, as text, or None if all hold."""
        for name, (text, read) in GLOBAL_FACTS.items():
            expected, found = getattr(self, name), read()
            if expected != found:
                return f"{text} is {_fact(name, expected)}, found {_fact(name, found)}"
        return None

    def mode_guards(self) -> list[Guard]:
        """That the modes are of these types, and default devices these, for C."""
        import torch

        found: list[Guard] = []
        for k, (cls, device) in enumerate(self.function_modes):
            at = FunctionMode(k)
            found.append(TypeIs(at, cls))
            if device:
                same = Call(operator.eq, Call(getattr, at, "device"), torch.device(device))
                found.append(gives(same, True, f"default device {device}"))
        return found

    def describe(self) -> str:
        shown = [f"grad mode {'on' if self.grad_enabled else 'off'}", f"default dtype {self.default_dtype}"]
        shown += [f"autocast {device} {dtype}" for device, enabled, dtype in self.autocast if enabled]
        shown += ["inference mode"] if self.inference_mode else []
        shown += [f"default device {self.default_device}"] if self.default_device != "cpu" else []
        shown += [f"{len(self.function_modes)} torch_function modes"] if self.function_modes else []
        shown += ["deterministic algorithms"] if self.deterministic[0] else []
        return f"global state: {', '.join(shown)}"


def _fact(name: str, value: Any) -> str:
    return _key_text(value) if name.endswith("_keys") else str(value)


def _torch_reader(read: Callable[[Any], Any]) -> Callable[[], Any]:
    def reader() -> Any:
        import torch

        return read(torch)

    return reader


# Field of GlobalState -> (its words in a message, how to read it now).
GLOBAL_FACTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "grad_enabled": ("grad mode", _torch_reader(lambda t: t.is_grad_enabled())),
    "inference_mode": ("inference mode", _torch_reader(lambda t: t.is_inference_mode_enabled())),
    "forward_grad_enabled": ("forward grad mode", _torch_reader(lambda t: t._C._is_fwd_grad_enabled())),
    "autocast": ("autocast", _autocast_states),
    "autocast_cache": ("autocast weight cache", _autocast_cache),
    "default_dtype": ("default dtype", _torch_reader(lambda t: t.get_default_dtype())),
    "default_device": ("default device", _default_device),
    "deterministic": (
        "deterministic algorithms (enabled, warn only)",
        _torch_reader(
            lambda t: (
                t.are_deterministic_algorithms_enabled(),
                t.is_deterministic_algorithms_warn_only_enabled(),
            )
        ),
    ),
    "function_modes": ("torch_function mode stack", _mode_stack),
    "function_state": (
        "torch_function handling",
        _torch_reader(lambda t: int(t._C._get_torch_function_state())),
    ),
    "dispatch_modes": ("number of dispatch modes", _torch_reader(lambda t: t._C._len_torch_dispatch_stack())),
    "forward_ad_level": ("forward-mode AD level", _forward_ad_level),
    "included_keys": (
        "thread's included dispatch keys",
        _torch_reader(lambda t: t._C._dispatch_tls_local_include_set().raw_repr()),
    ),
    "excluded_keys": (
        "thread's excluded dispatch keys",
        _torch_reader(lambda t: t._C._dispatch_tls_local_exclude_set().raw_repr()),
    ),
}
