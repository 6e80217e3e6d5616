"""A map keyed by the identity of code objects, whose entries go when the code object goes.

In: code objects (which compare by value, at a cost). Out: one value each. Always: holds no key alive.
"""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Generic, TypeVar

V = TypeVar("V")


class WeakIdentityMap(Generic[V]):
    """code -> value by identity."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[CodeType], V]] = {}

    def get(self, code: CodeType) -> V | None:
        entry = self._entries.get(id(code))
        return None if entry is None else entry[1]

    def set(self, code: CodeType, value: V) -> None:
        key, entries = id(code), self._entries
        entries[key] = (weakref.ref(code, lambda ref: entries.pop(key, None)), value)

    def __len__(self) -> int:
        return len(self._entries)
