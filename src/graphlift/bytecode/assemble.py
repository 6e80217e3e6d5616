"""From physical instructions with labels to the bytes of a code object.

In: a list of Item and Label. Out: co_code, co_linetable, co_exceptiontable. Always: arguments as short as
their jumps allow, inline caches zeroed, exception ranges exactly the items that name a handler.
"""

from __future__ import annotations

import opcode as _opcode
from collections.abc import Iterable
from functools import lru_cache

from graphlift.bytecode.instr import Positions
from graphlift.bytecode.version import CACHES, TABLE
from graphlift.data import dataclass

_EXTENDED_ARG = _opcode.EXTENDED_ARG
_OPMAP = _opcode.opmap
#: forward or backward opcode of a jump -> both
_DIRECTIONS: dict[int, tuple[int, int | None]] = {
    _OPMAP[name]: (_OPMAP[ahead], None if back is None else _OPMAP[back])
    for ahead, back in TABLE.jumps.values()
    for name in (ahead, back)
    if name is not None
}
_DIRECTIONS[_OPMAP["JUMP_BACKWARD_NO_INTERRUPT"]] = _DIRECTIONS[_OPMAP["JUMP_BACKWARD"]]


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the code; `key` is what jumps and handlers name."""

    key: object


@dataclass(frozen=True, slots=True)
class Cover:
    """The handler of an item: the label of its target, and the exception-table fields."""

    target: object
    depth: int
    push_lasti: bool


@dataclass(slots=True)
class Item:
    """One physical instruction; a jump names the label it goes to and takes either opcode of its pair."""

    opcode: int
    arg: int = 0
    positions: Positions = (None, None, None, None)
    cover: Cover | None = None
    to: object = None


@dataclass(frozen=True, slots=True)
class Assembled:
    code: bytes
    linetable: bytes
    exceptiontable: bytes


def assemble(stream: Iterable[Item | Label], first_line: int) -> Assembled:
    """Raises: ValueError on a backward jump that this Python has no opcode for."""
    items: list[Item] = []
    index_of: dict[object, int] = {}
    for entry in stream:
        if isinstance(entry, Label):
            index_of[entry.key] = len(items)
        else:
            items.append(entry)
    units = _resolve_jumps(items, index_of)
    starts = _starts(units)
    return Assembled(
        _code(items), _linetable(items, units, first_line), _exceptiontable(items, units, starts, index_of)
    )


def _extended(arg: int) -> int:
    """How many EXTENDED_ARG an argument needs."""
    return (arg > 0xFF) + (arg > 0xFFFF) + (arg > 0xFFFFFF)


def _starts(units: list[int]) -> list[int]:
    starts, position = [], 0
    for size in units:
        starts.append(position)
        position += size
    starts.append(position)
    return starts


def _resolve_jumps(items: list[Item], index_of: dict[object, int]) -> list[int]:
    """Sets opcode and argument of every jump; returns each item's size in code units."""
    jumps = []
    for index, item in enumerate(items):
        if item.to is None:
            continue
        target = index_of[item.to]
        ahead, back = _DIRECTIONS.get(item.opcode, (item.opcode, None))
        if target > index:
            item.opcode = ahead
        elif back is not None:
            item.opcode = back
        else:
            raise ValueError(f"{_opcode.opname[item.opcode]} cannot jump backward")
        jumps.append((index, target))
    units = [1 + CACHES[item.opcode] + _extended(item.arg) for item in items]
    while True:
        starts = _starts(units)
        grown = False
        for index, target in jumps:
            item = items[index]
            item.arg = abs(starts[target] - starts[index + 1])
            size = 1 + CACHES[item.opcode] + _extended(item.arg)
            if size > units[index]:  # only ever grow, so that this ends
                units[index], grown = size, True
        if not grown:
            return _pad(items, units, jumps)


def _pad(items: list[Item], units: list[int], jumps: list[tuple[int, int]]) -> list[int]:
    """Checks that no jump shrank after its size was settled (an EXTENDED_ARG of zero would then be needed)."""
    for index, _ in jumps:
        item = items[index]
        missing = units[index] - (1 + CACHES[item.opcode] + _extended(item.arg))
        if missing:
            raise ValueError("a jump shrank while the code was laid out")
    return units


def _code(items: list[Item]) -> bytes:
    out = bytearray()
    for item in items:
        arg = item.arg
        if arg > 0xFF:
            for shift in (24, 16, 8):
                if arg >> shift:
                    out += bytes((_EXTENDED_ARG, arg >> shift & 0xFF))
        out.append(item.opcode)
        out.append(arg & 0xFF)
        out += bytes(2 * CACHES[item.opcode])
    return bytes(out)


def _linetable(items: list[Item], units: list[int], first_line: int) -> bytes:
    """Source: Objects/locations.md. Only the long, the column-free and the empty forms are used."""
    out = bytearray()
    line = first_line
    index, count = 0, len(items)
    while index < count:
        positions = items[index].positions
        size = 0
        while index < count and items[index].positions == positions:
            size += units[index]
            index += 1
        start = positions[0]
        kind, tail = _location(positions)
        while size > 0:
            length = min(size, 8)
            size -= length
            out.append(kind | length - 1)
            if start is not None:
                _signed_varint(out, start - line)
                line = start
            out += tail
    return bytes(out)


@lru_cache(maxsize=4096)
def _location(positions: Positions) -> tuple[int, bytes]:
    """The first byte of a location, its length apart, and the bytes after the line."""
    start, end, column, end_column = positions
    if start is None:
        return 0x80 | 15 << 3, b""
    if column is None or end_column is None or end is None or end < start:
        return 0x80 | 13 << 3, b""
    tail = bytearray()
    for value in (end - start, column + 1, end_column + 1):
        _varint(tail, value)
    return 0x80 | 14 << 3, bytes(tail)


def _varint(out: bytearray, value: int) -> None:
    while value >= 64:
        out.append(0x40 | value & 0x3F)
        value >>= 6
    out.append(value)


def _signed_varint(out: bytearray, value: int) -> None:
    _varint(out, -value << 1 | 1 if value < 0 else value << 1)


def _exceptiontable(
    items: list[Item], units: list[int], starts: list[int], index_of: dict[object, int]
) -> bytes:
    out = bytearray()
    index, count = 0, len(items)
    while index < count:
        cover = items[index].cover
        first = index
        while index < count and items[index].cover == cover:
            index += 1
        if cover is None:
            continue
        start, end = starts[first], starts[index]
        fields = (start, end - start, starts[index_of[cover.target]], cover.depth << 1 | cover.push_lasti)
        for position, value in enumerate(fields):
            _exception_varint(out, value, 0x80 if position == 0 else 0)
    return bytes(out)


def _exception_varint(out: bytearray, value: int, mark: int) -> None:
    """Big-endian groups of six bits; the first byte of an entry is marked."""
    groups = [value & 63]
    while value := value >> 6:
        groups.append(value & 63)
    for place in range(len(groups) - 1, -1, -1):
        out.append(groups[place] | (0x40 if place else 0) | mark)
        mark = 0
