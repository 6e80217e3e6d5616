"""Which sizes and int arguments of a function may vary: what the user marked or asked for, and what calls have shown.

In: a tensor or an int entering a capture, with its source. Out: which of its dimensions are to be symbols.
Always: a size that was once seen to change is a symbol at the next compilation, unless the program fixes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from types import CodeType
from typing import Any

import torch

from ..data import dataclass
from ..guards import Arg, Attr, DictItem, SeqItem, Source, TensorSize
from ..shapes.expr import Range
from ..shapes.table import SMALL, VARIES, SymbolTable

_LARGEST = 2**62  # what C computes with, with room for a sum
_INTS = Range(-_LARGEST, _LARGEST)


@dataclass(frozen=True, slots=True)
class Choice:
    """A dimension or an int that is to be a symbol: its range, and whether the user insists on it."""

    bounds: Range = VARIES
    strict: bool = False


@dataclass(slots=True)
class FrameHistory:
    """What the calls of one code object have shown; None in place of a size that changed."""

    shapes: dict[tuple[Source, int], tuple[int | None, ...]] = field(default_factory=dict)  # by rank
    numbers: dict[Source, int | float | None] = field(default_factory=dict)
    fixed: dict[Source, str] = field(default_factory=dict)  # sizes that the program needs as numbers, and why


class SizeHistory:
    """The histories of all frames of one compiled callable."""

    def __init__(self) -> None:
        self._frames: dict[CodeType, FrameHistory] = {}

    def of(self, code: CodeType) -> FrameHistory:
        return self._frames.setdefault(code, FrameHistory())


class SizePolicy:
    """The choices for one capture."""

    def __init__(self, history: FrameHistory, dynamic: bool | None, allowed: bool = True) -> None:
        self.history = history
        self.dynamic = dynamic
        self.allowed = allowed

    def dims(self, tensor: torch.Tensor, source: Source) -> list[Choice | None]:
        """For each dimension, how it may vary, or None where it is a number."""
        shape = tuple(tensor.shape)
        marks = tensor.__dict__
        marked = bool(marks) and "_has_dynamo_dim_marking" in marks
        if type(tensor) is torch.nn.Parameter and not marked:
            return [None] * len(shape)
        seen = self._merged(source, shape)
        everywhere = self.dynamic is True and _from_arguments(source)
        found: list[Choice | None] = []
        for dim, size in enumerate(shape):
            choice = _marked(marks, dim) if marked else None
            if choice is None and (everywhere or (self.dynamic is not False and seen[dim] is None)):
                choice = Choice()
            if marked and dim in marks.get("_dynamo_static_indices", ()):
                choice = None
            if choice is not None and size not in choice.bounds:
                choice = None  # outside of what was promised: compiled for itself
            given_up = (
                choice is not None and not choice.strict and TensorSize(source, dim) in self.history.fixed
            )
            found.append(None if size in (0, 1) or given_up or not self.allowed else choice)
        return found

    def integer(self, value: int, source: Source) -> Choice | None:
        """How an int may vary, or None where it is a constant."""
        varies = self._has_changed(value, source)
        if not self.allowed or abs(value) > _LARGEST or source in self.history.fixed:
            return None
        varies = self.dynamic is not False and varies
        asked = self.dynamic is True and value not in (0, 1) and _from_arguments(source)
        return Choice(_INTS) if varies or asked else None

    def number(self, value: float, source: Source) -> bool:
        """Whether a float is one that varies: it was seen to."""
        varies = self._has_changed(value, source)
        return self.allowed and self.dynamic is not False and varies and source not in self.history.fixed

    def _has_changed(self, value: int | float, source: Source) -> bool:
        """Whether a number was another one in some call, or one of another type; remembers this one."""
        earlier = self.history.numbers.get(source, value)
        if earlier is not None and repr(earlier) != repr(value):
            earlier = None
        self.history.numbers[source] = earlier
        return earlier is None

    def _merged(self, source: Source, shape: tuple[int, ...]) -> tuple[int | None, ...]:
        """The sizes as all calls had them."""
        earlier = self.history.shapes.get((source, len(shape)), shape)
        merged = tuple([a if a == b else None for a, b in zip(earlier, shape, strict=True)])
        self.history.shapes[source, len(shape)] = merged
        return merged

    def learn(self, table: SymbolTable) -> list[str]:
        """Remembers which sizes the program needed as numbers, so that they are not tried again; says which are new."""
        new = []
        for key, symbol in table.known.symbols.items():
            solution = table.known.solutions.get(symbol)
            if solution is not None and isinstance(solution.value, int) and solution.why not in ("", SMALL):
                source: Source = key  # type: ignore[assignment]
                if source not in self.history.fixed:
                    at = f" ({solution.where})" if solution.where else ""
                    new.append(
                        f"{source.name()} is compiled as the number {solution.value}: {solution.why}{at}"
                    )
                self.history.fixed[source] = solution.why
        for key, solution in table.known.fixed_reals.items():
            if isinstance(key, Source) and key not in self.history.fixed:
                at = f" ({solution.where})" if solution.where else ""
                new.append(f"{key.name()} is compiled as the number that it is: {solution.why}{at}")
                self.history.fixed[key] = solution.why
        return new


def _from_arguments(source: Source) -> bool:
    """Whether it is an argument, or in a container that is one, or what a frame that a break left had in its variables:
    what objects hold is configuration."""
    while True:
        if isinstance(source, (SeqItem, DictItem)):
            source = source.base
        elif isinstance(source, Attr) and isinstance(source.base, Attr) and source.base.attr == "handover":
            source = source.base.base  # of a `Callee`
        else:
            return isinstance(source, Arg)


def _marked(marks: dict[str, Any], dim: int) -> Choice | None:
    """What the marks on a tensor say of a dimension (the attributes are those of torch.compile)."""
    strict = dim in marks.get("_dynamo_dynamic_indices", ())
    if not strict and dim not in marks.get("_dynamo_weak_dynamic_indices", ()):
        return None
    bounds = VARIES
    ranges: Iterable[Any] = marks.get("_dynamo_dynamic_range", ())
    for given in ranges:
        if given.dim == dim:
            bounds = bounds & Range(given.min, given.max)
    return Choice(bounds, strict)
