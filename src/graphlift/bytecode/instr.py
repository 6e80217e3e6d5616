"""The records of the canonical dialect: one instruction, its exception handler, one decoded code object.

In: nothing. Out: plain frozen records. Always: jump arguments and handler targets are canonical indices.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, NamedTuple

from graphlift.data import dataclass

Positions = tuple[int | None, int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Handler:
    """The exception-table entry that covers an instruction."""

    target: int
    depth: int
    push_lasti: bool


@dataclass(frozen=True, slots=True)
class Instr:
    """One canonical instruction; `offset` is the byte offset of the physical instruction it came from."""

    index: int
    op: str
    arg: Any
    line: int | None
    positions: Positions
    offset: int
    handler: Handler | None

    def __str__(self) -> str:
        shown = "" if self.arg is None and self.op != "LOAD_CONST" else f" {self.arg!r}"
        where = f"  ; handler {self.handler.target}" if self.handler else ""
        return f"{self.index:4} {self.op}{shown}{where}"


class Phys(NamedTuple):
    """One physical instruction of a canonical one: `kind` says what the argument means when code is moved."""

    opcode: int
    arg: int
    kind: int


#: Phys.kind: the argument is copied; is a localsplus index; is the canonical index jumped to; is the
#: localsplus index of a cell whose slot serves a plain variable of the same name here (see inlined.py).
RAW, LOCAL, JUMP, SHADOW = range(4)


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """A decoded code object. `units[i]` are the physical instructions of `instrs[i]`.

    `entry` is the first index after the prefix that the interpreter runs before the user's code
    (COPY_FREE_VARS, MAKE_CELL, RETURN_GENERATOR, RESUME). A name can be in `locals` and in `cells`: an
    inlined comprehension has a plain variable of the name of an enclosing cell; they are two variables.
    """

    name: str
    instrs: tuple[Instr, ...]
    units: tuple[tuple[Phys, ...], ...] = field(repr=False)
    entry: int
    locals: tuple[str, ...]
    cells: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.instrs))
