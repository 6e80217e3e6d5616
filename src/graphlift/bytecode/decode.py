"""From a code object to canonical instructions.

In: a code object of the running interpreter. Out: CodeInfo. Always: the canonical stack is, slot for slot,
the interpreter's stack at the same place, NULLs included.
"""

from __future__ import annotations

import opcode as _opcode
from types import CodeType

from graphlift.bytecode.identity import WeakIdentityMap
from graphlift.bytecode.inlined import Raw, separate
from graphlift.bytecode.instr import JUMP, SHADOW, CodeInfo, Handler, Instr, Phys
from graphlift.bytecode.rules import KWNAMES_BEFORE, PREFIX, View, make_view
from graphlift.bytecode.version import CACHES, RULES, TABLE

_EXTENDED_ARG = _opcode.EXTENDED_ARG
_CACHED: WeakIdentityMap[CodeInfo] = WeakIdentityMap()


class DecodeError(ValueError):
    """The code object holds something that no compiler of this Python version makes."""


def decode(code: CodeType) -> CodeInfo:
    """Canonical instructions of a code object, cached while it lives."""
    info = _CACHED.get(code)
    if info is None:
        info = _decode(code)
        _CACHED.set(code, info)
    return info


def _decode(code: CodeType) -> CodeInfo:
    view = make_view(code)
    raw, index_of = _split(code, view)
    resolved = [_resolve(part, index_of) for part in raw]
    handlers = _handlers(code, index_of, resolved)
    if TABLE.inlines_comprehensions:
        resolved = separate(resolved, view.is_cell, handlers)
    positions = list(code.co_positions())
    data = code.co_code
    instrs, entry = [], 0
    for index, (op, arg, _, offset) in enumerate(resolved):
        where = positions[offset // 2]
        instrs.append(Instr(index, op, arg, where[0], where, offset, handlers[index]))
        if not entry and data[offset] == _RESUME:
            entry = index + 1
    units = tuple(part[2] for part in resolved)
    cells = code.co_cellvars + code.co_freevars
    return CodeInfo(code.co_name, tuple(instrs), units, entry, _plain_locals(view, units), cells)


def _plain_locals(view: View, units: tuple[tuple[Phys, ...], ...]) -> tuple[str, ...]:
    shadows = {phys.arg for unit in units for phys in unit if phys.kind == SHADOW}
    return tuple(
        name for slot, name in enumerate(view.local_names) if slot in shadows or not view.is_cell[slot]
    )


_RESUME = _opcode.opmap["RESUME"]


def _split(code: CodeType, view: View) -> tuple[list[Raw], dict[int, int]]:
    """The canonical parts with jump targets still as offsets, and the canonical index of each offset."""
    data = code.co_code
    out: list[Raw] = []
    index_of: dict[int, int] = {}
    held: tuple[Phys, ...] = ()
    kwnames: tuple[str, ...] = ()
    position = extended = 0
    while position < len(data):
        opcode, arg = data[position], data[position + 1] | extended
        index_of[position] = len(out)
        if opcode == _EXTENDED_ARG:
            extended = arg << 8
            position += 2
            continue
        extended = 0
        after = position + 2 + 2 * CACHES[opcode]
        rule = RULES[opcode]
        if rule is None:
            raise DecodeError(f"{code.co_qualname}: no row for {_opcode.opname[opcode]} at offset {position}")
        for op, value, phys in rule(view, arg, after):
            if op is PREFIX:
                held += phys
                kwnames = value or kwnames
                continue
            if op == "CALL":
                value, phys = _finish_call(value, phys, kwnames, out, index_of, position)
                kwnames = ()
            out.append((op, value, held + phys, position))
            held = ()
        position = after
    return out, index_of


def _finish_call(
    call: tuple[int, object],
    phys: tuple[Phys, ...],
    kwnames: tuple[str, ...],
    out: list[Raw],
    index_of: dict[int, int],
    position: int,
) -> tuple[tuple[int, tuple[str, ...]], tuple[Phys, ...]]:
    """Gives a CALL its keyword names; 3.13's are the constant before, which then belongs to the call."""
    argc, where = call
    if where is not KWNAMES_BEFORE:
        return (argc, kwnames), phys
    if not out or out[-1][0] != "LOAD_CONST":
        raise DecodeError(f"CALL_KW at offset {position} does not follow the constant of its names")
    _, names, load, _ = out.pop()
    index_of[position] = len(out)
    return (argc, names), load + phys


def _resolve(part: Raw, index_of: dict[int, int]) -> Raw:
    op, arg, phys, offset = part
    if phys[-1].kind != JUMP:
        return part
    target = index_of[arg]
    lands = target - (TABLE.for_iter_skip if op == "FOR_ITER" else 0)
    return op, target, (*phys[:-1], Phys(phys[-1].opcode, lands, JUMP)), offset


def _handlers(code: CodeType, index_of: dict[int, int], raw: list[Raw]) -> list[Handler | None]:
    """The handler of every instruction; entries are sorted and do not overlap."""
    found: list[Handler | None] = []
    entries = iter(exception_entries(code.co_exceptiontable))
    start, end, handler = 0, 0, None
    for *_, offset in raw:
        while offset >= end:
            entry = next(entries, None)
            if entry is None:
                start = end = 1 << 62
                break
            start, end, target, depth, lasti = entry
            handler = Handler(index_of[target], depth, lasti)
        found.append(handler if start <= offset else None)
    return found


def exception_entries(table: bytes) -> list[tuple[int, int, int, int, bool]]:
    """(start, end, target) byte offsets, depth and push-lasti of each entry (Objects/exception_handling_notes.txt)."""
    found, position = [], 0
    while position < len(table):
        fields = []
        for _ in range(4):
            byte = table[position]
            value = byte & 63
            while byte & 64:
                position += 1
                byte = table[position]
                value = value << 6 | byte & 63
            position += 1
            fields.append(value)
        start, length, target, packed = fields
        found.append((2 * start, 2 * (start + length), 2 * target, packed >> 1, bool(packed & 1)))
    return found
