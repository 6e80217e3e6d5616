"""Intercepting Python frames: compiled callables, their cached entries, and the trampoline."""

from __future__ import annotations

from graphlift.frame._frame import (
    FROZEN,
    SKIP,
    Callee,
    CompiledCallable,
    Disabled,
    Handover,
    call_disabled,
    clear,
    current_owner,
    dict_version,
    entries,
    hook_active,
    hook_installed,
    invalidate,
    is_skipped,
    remove_entry,
    set_skip,
    trampoline,
    type_version,
)

__all__ = [
    "FROZEN",
    "SKIP",
    "Callee",
    "CompiledCallable",
    "Disabled",
    "Handover",
    "call_disabled",
    "clear",
    "current_owner",
    "dict_version",
    "entries",
    "hook_active",
    "hook_installed",
    "invalidate",
    "is_skipped",
    "remove_entry",
    "set_skip",
    "trampoline",
    "type_version",
]
