"""The table of the running interpreter, and what the interpreter says about its own opcodes.

In: sys.version_info. Out: TABLE, RULES by opcode number, CACHES by opcode number. Always: decided at import.
"""

from __future__ import annotations

import opcode as _opcode
import sys

from graphlift.bytecode import py311, py312, py313
from graphlift.bytecode.rules import Rule, VersionTable

TABLES: dict[tuple[int, int], VersionTable] = {
    (3, 11): py311.TABLE,
    (3, 12): py312.TABLE,
    (3, 13): py313.TABLE,
}


def _select() -> VersionTable:
    table = TABLES.get(sys.version_info[:2])
    if table is None:
        known = ", ".join(f"{a}.{b}" for a, b in TABLES)
        raise ImportError(f"graphlift runs on CPython {known}; this is {sys.version.split()[0]}")
    return table


def _caches() -> list[int]:
    found = _opcode._inline_cache_entries  # type: ignore[attr-defined]
    if isinstance(found, dict):  # 3.13 keys them by name
        return [found.get(_opcode.opname[number], 0) for number in range(256)]
    return list(found)


def _rules(table: VersionTable) -> list[Rule | None]:
    rules: list[Rule | None] = [None] * 256
    for phys, row in table.rows.items():
        rules[_opcode.opmap[phys]] = row(phys)
    return rules


TABLE = _select()
CACHES = _caches()
RULES = _rules(TABLE)
#: Whether the NULL of a plain call lies below the callable (3.11, 3.12) or above it (3.13).
NULL_FIRST = TABLE.null_first
