"""Compiled regions found again by other compiled callables of the same code, so that equal blocks compile once.

In: a region's check and replacement, the code and the settings it was made for. Out: those of a region that fits.
Always: a region is used only where its own guards pass; it is held weakly, and dies with the last entry that has it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeAlias

#: What a region was compiled with, besides the code: compared by equality.
Settings: TypeAlias = tuple[Any, ...]
_Entry: TypeAlias = tuple["weakref.ref[Any]", "weakref.ref[FunctionType]"]

_regions: dict[tuple[CodeType, Settings], list[_Entry]] = {}


def publish(code: CodeType, settings: Settings, check: Any, replacement: FunctionType) -> None:
    """Let others find the region."""
    key = (code, settings)
    entry = (weakref.ref(check), weakref.ref(replacement, lambda _: _forget(key, entry)))
    _regions.setdefault(key, []).append(entry)


def _forget(key: tuple[CodeType, Settings], entry: _Entry) -> None:
    left = [e for e in _regions.get(key, ()) if e is not entry]
    if left:
        _regions[key] = left
    else:
        _regions.pop(key, None)


def find(
    code: CodeType, settings: Settings, func: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Any, FunctionType] | None:
    """The check and the replacement of a region whose guards pass for this call."""
    for check_ref, replacement_ref in list(_regions.get((code, settings), ())):
        check, replacement = check_ref(), replacement_ref()
        if check is not None and replacement is not None and check(func, *args) is not None:
            return check, replacement
    return None


def clear() -> None:
    """Forget every region."""
    _regions.clear()
