"""What differs between a call and a compiled entry that it does not fit, in the user's terms.

In: a Check and a call's arguments. Out: `Change`s: which value, what it was when compiled, what it is now, the remedy.
Always: derived from the guards alone, in Python, after the C evaluator has said no.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..data import dataclass
from . import guards as g
from .explain import Unloadable, failure, load
from .sources import describe_object

_DYNAMIC = (
    "make it dynamic (graphlift.mark_dynamic, dynamic=True), or pad to a few sizes (graphlift.pad_to_buckets)"
)
_PER_VALUE = (
    "each value is compiled once: hoist the choice out of the function, or raise config.cache_size_limit"
)


@dataclass(frozen=True, slots=True)
class Change:
    """`old` and `new` are numbers where the value is one, else text."""

    subject: str
    old: int | float | str
    new: int | float | str
    remedy: str

    def __str__(self) -> str:
        return f"{self.subject} was {self.old}, is {self.new}; {self.remedy}"


def changes(check: Any, func: Any, args: tuple[Any, ...]) -> list[Change]:
    """Every value whose guard fails in this call; what is only reached through such a value is left out."""
    found: list[Change] = []
    for guard in check.guards:
        try:
            values = [load(source, func, args) for source in guard.sources]
        except Unloadable as error:
            if not found:
                found.append(Change(str(error), "there", "missing", _STRUCTURE))
            continue
        if found and len(values) != 1:
            continue  # a relation between values, one of which is not what it was
        why = failure(guard, func, args)
        if why is not None:
            found.extend(_CHANGES.get(type(guard), _other)(guard, why, *values))
    return found


_STRUCTURE = "each structure is compiled once: pass containers of one structure"


def _tensor(guard: g.TensorMeta, why: str, value: Any) -> list[Change]:
    name, spec = guard.source.name(), guard.spec
    facts: list[tuple[str, int | str, int | str, str]] = [
        ("", spec.cls.text, describe_object(type(value)), "pass tensors of one class"),
        (".dtype", str(spec.dtype), str(getattr(value, "dtype", "")), "convert to one dtype before the call"),
        (
            ".device",
            str(spec.device),
            str(getattr(value, "device", "")),
            "move to one device before the call",
        ),
        (
            ".requires_grad",
            str(spec.requires_grad),
            str(getattr(value, "requires_grad", "")),
            "one version for training and one for inference is normal",
        ),
        (".dim()", spec.rank, value.dim() if hasattr(value, "dim") else "", "pass tensors of one rank"),
    ]
    for attribute, old, new, remedy in facts:
        if old != new:
            return [Change(name + attribute, old, new, remedy)]
    sizes = [
        Change(f"{name}.shape[{d}]", want, got, _DYNAMIC)
        for d, (want, got) in enumerate(zip(spec.shape, value.shape, strict=True))
        if want is not None and want != got
    ]
    if sizes:
        return sizes
    if "strides" in why:
        return [
            Change(
                f"{name}.stride()",
                str(spec.strides),
                str(value.stride()),
                "call .contiguous() before the call",
            )
        ]
    return [Change(name, "as compiled", why, _PER_VALUE)]


def _equals(guard: g.Equals, why: str, value: Any) -> list[Change]:
    number = type(value) in (int, float) and type(guard.const) is type(value)
    remedy = _NUMBER if number else _PER_VALUE
    old = guard.const if number else describe_object(guard.const)
    return [Change(guard.source.name(), old, value if number else describe_object(value), remedy)]


_NUMBER = "pass it as a tensor, or let it become dynamic (dynamic=True) where only sizes are computed from it"


def _type(guard: g.TypeIs, why: str, value: Any) -> list[Change]:
    return [Change(f"type({guard.source.name()})", guard.ref.text, describe_object(type(value)), _PER_TYPE)]


_PER_TYPE = "each class is compiled once: pass values of one class"


def _identity(guard: g.IdIs, why: str, value: Any) -> list[Change]:
    return [Change(guard.source.name(), guard.ref.text, describe_object(value), _REBOUND)]


_REBOUND = "keep one object under this name, or pass it as an argument"


def _structure(guard: Any, why: str, value: Any) -> list[Change]:
    old, _, new = why.removeprefix("expected ").partition(", found ")
    return [Change(guard.source.name(), old, new or why, _STRUCTURE)]


def _sizes(guard: g.SizeRelation, why: str, *values: Any) -> list[Change]:
    return [
        Change(
            guard.describe(),
            "true",
            f"false: {why}",
            "it is a condition that the code itself asks about a size",
        )
    ]


def _state(guard: g.GlobalState, why: str) -> list[Change]:
    what, _, facts = why.partition(" is ")
    old, _, new = facts.partition(", found ")
    return [Change(what, old, new, "each combination of modes is compiled once")]


def _other(guard: g.Guard, why: str, *values: Any) -> list[Change]:
    return [Change(guard.describe(), "true", f"false: {why}", _PER_VALUE)]


_CHANGES: dict[type[g.Guard], Callable[..., list[Change]]] = {
    g.TensorMeta: _tensor,
    g.Equals: _equals,
    g.TypeIs: _type,
    g.IdIs: _identity,
    g.Length: _structure,
    g.DictKeys: _structure,
    g.HasKey: _structure,
    g.SizeRelation: _sizes,
    g.GlobalState: _state,
}
