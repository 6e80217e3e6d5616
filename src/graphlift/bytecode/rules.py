"""Row constructors of the version tables: how one physical opcode becomes canonical instructions.

In: the name of a physical opcode. Out: a rule (view, argument, next offset) -> parts. Always: the parts,
executed one after the other by the interpreter, have exactly the effect of the physical instruction.
"""

from __future__ import annotations

import opcode as _opcode
from collections.abc import Callable
from types import CodeType
from typing import Any

from graphlift.bytecode.instr import JUMP, LOCAL, RAW, Phys
from graphlift.data import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """What rules read from a code object; names and kinds of variables are by localsplus index."""

    consts: tuple[Any, ...]
    names: tuple[str, ...]
    local_names: tuple[str, ...]
    is_cell: tuple[bool, ...]


#: (canonical op, canonical argument, physical instructions)
Part = tuple[str, Any, tuple[Phys, ...]]
Rule = Callable[[View, int, int], tuple[Part, ...]]
Row = Callable[[str], Rule]

OPMAP = _opcode.opmap
#: Canonical op of a physical instruction that belongs to the one after it (PRECALL, KW_NAMES).
PREFIX = "<prefix>"
#: Canonical argument saying that the keyword names are the constant loaded just before.
KWNAMES_BEFORE = object()


@dataclass(frozen=True, slots=True)
class VersionTable:
    """All that differs between CPython versions, for one version.

    `rows`: physical opcode -> row. `never`: opcodes that co_code never shows, with the reason.
    `jumps`: canonical jump -> (forward opcode, backward opcode or None). `for_iter_skip`: how many
    instructions FOR_ITER skips at its physical target. `null_first`: whether the NULL of a plain call lies
    below the callable. `call`: opcodes that make a call, all with the argument count. `take_fast`: opcodes
    that move a local to the stack. `unwinds_from_before`: an exception that leaves a callee is looked up in
    the exception table at the code unit before the call, which must therefore be in the same range.
    """

    rows: dict[str, Row]
    never: dict[str, str]
    jumps: dict[str, tuple[str, str | None]]
    for_iter_skip: int
    null_first: bool
    call: tuple[str, ...]
    load_cell: str
    load_fast: str
    take_fast: tuple[str, ...]
    inlines_comprehensions: bool
    unwinds_from_before: bool
    attr_shift: int


def make_view(code: CodeType) -> View:
    own, cells = set(code.co_varnames), set(code.co_cellvars)
    rest = tuple(name for name in code.co_cellvars if name not in own) + code.co_freevars
    is_cell = tuple(name in cells for name in code.co_varnames) + (True,) * len(rest)
    return View(code.co_consts, code.co_names, code.co_varnames + rest, is_cell)


def plain(op: str = "") -> Row:
    """No argument."""

    def row(phys: str) -> Rule:
        parts = ((op or phys, None, (Phys(OPMAP[phys], 0, RAW),)),)
        return lambda view, arg, after: parts

    return row


def nop(phys: str) -> Rule:
    """Nothing that a symbolic execution sees (RESUME; END_FOR, which it never reaches); kept physically."""
    opcode = OPMAP[phys]
    return lambda view, arg, after: (("NOP", None, (Phys(opcode, arg, RAW),)),)


def number(op: str = "", read: Callable[[int], Any] | None = None) -> Row:
    """A number, or what `read` makes of it."""

    def row(phys: str) -> Rule:
        opcode, canonical = OPMAP[phys], op or phys
        if read is None:
            return lambda view, arg, after: ((canonical, arg, (Phys(opcode, arg, RAW),)),)
        return lambda view, arg, after: ((canonical, read(arg), (Phys(opcode, arg, RAW),)),)

    return row


def const(phys: str) -> Rule:
    opcode = OPMAP[phys]
    return lambda view, arg, after: (("LOAD_CONST", view.consts[arg], (Phys(opcode, arg, RAW),)),)


def name(phys: str) -> Rule:
    opcode = OPMAP[phys]
    return lambda view, arg, after: ((phys, view.names[arg], (Phys(opcode, arg, RAW),)),)


def local(op: str = "") -> Row:
    """A slot of localsplus, by name."""

    def row(phys: str) -> Rule:
        opcode, canonical = OPMAP[phys], op or phys
        return lambda view, arg, after: ((canonical, view.local_names[arg], (Phys(opcode, arg, LOCAL),)),)

    return row


def fast_or_cell(phys: str) -> Rule:
    """A LOAD_FAST that loads the cell itself where the slot is a cell (3.13 has no LOAD_CLOSURE)."""
    return lambda view, arg, after: (_load_fast(view, arg),)


def _load_fast(view: View, index: int) -> Part:
    name = view.local_names[index]
    if view.is_cell[index]:
        return ("LOAD_CLOSURE", name, (Phys(OPMAP["LOAD_FAST"], index, LOCAL),))
    return ("LOAD_FAST", name, (Phys(OPMAP["LOAD_FAST_CHECK"], index, LOCAL),))


def _store_fast(view: View, index: int) -> Part:
    return ("STORE_FAST", view.local_names[index], (Phys(OPMAP["STORE_FAST"], index, LOCAL),))


def checked_fast(phys: str) -> Rule:
    """3.12's LOAD_FAST, written back with the check for an unbound name, which moved code must not miss."""
    opcode = OPMAP["LOAD_FAST_CHECK"]
    return lambda view, arg, after: (("LOAD_FAST", view.local_names[arg], (Phys(opcode, arg, LOCAL),)),)


def fast_pair(first: str, second: str) -> Row:
    """Two locals packed in one argument."""
    make = {"load": _load_fast, "store": _store_fast}
    one, two = make[first], make[second]
    return lambda phys: lambda view, arg, after: (one(view, arg >> 4), two(view, arg & 15))


def jump(op: str, *, backward: bool = False, skip: int = 0) -> Row:
    """A relative jump; the canonical argument is the target's byte offset until the decoder resolves it."""
    sign = -2 if backward else 2
    land = 2 * skip

    def row(phys: str) -> Rule:
        opcode = OPMAP[phys]
        return lambda view, arg, after: ((op, after + sign * arg + land, (Phys(opcode, 0, JUMP),)),)

    return row


def load_global(null_first: bool) -> Row:
    """LOAD_GLOBAL with its PUSH_NULL made an instruction of its own, in the version's order."""

    def row(phys: str) -> Rule:
        null: Part = ("PUSH_NULL", None, (Phys(OPMAP["PUSH_NULL"], 0, RAW),))
        opcode = OPMAP[phys]

        def rule(view: View, arg: int, after: int) -> tuple[Part, ...]:
            load = ("LOAD_GLOBAL", view.names[arg >> 1], (Phys(opcode, arg & ~1, RAW),))
            if not arg & 1:
                return (load,)
            return (null, load) if null_first else (load, null)

        return rule

    return row


def load_attr(phys: str) -> Rule:
    """LOAD_ATTR, or LOAD_METHOD where its low bit says so (3.12+)."""
    opcode = OPMAP[phys]
    return lambda view, arg, after: (
        ("LOAD_METHOD" if arg & 1 else "LOAD_ATTR", view.names[arg >> 1], (Phys(opcode, arg, RAW),)),
    )


def load_super_attr(phys: str) -> Rule:
    opcode = OPMAP[phys]
    return lambda view, arg, after: (
        ("LOAD_SUPER_ATTR", (view.names[arg >> 2], bool(arg & 1), bool(arg & 2)), (Phys(opcode, arg, RAW),)),
    )


def return_const(phys: str) -> Rule:
    load, ret = OPMAP["LOAD_CONST"], OPMAP["RETURN_VALUE"]
    return lambda view, arg, after: (
        ("LOAD_CONST", view.consts[arg], (Phys(load, arg, RAW),)),
        ("RETURN_VALUE", None, (Phys(ret, 0, RAW),)),
    )


def compare_bool(phys: str) -> Rule:
    """3.13's COMPARE_OP, whose bit 4 asks for a TO_BOOL of the result."""
    opcode, to_bool = OPMAP[phys], OPMAP["TO_BOOL"]

    def rule(view: View, arg: int, after: int) -> tuple[Part, ...]:
        compare = ("COMPARE_OP", _opcode.cmp_op[arg >> 5], (Phys(opcode, arg & ~16, RAW),))
        return (compare, ("TO_BOOL", None, (Phys(to_bool, 0, RAW),))) if arg & 16 else (compare,)

    return rule


def prefix(phys: str) -> Rule:
    """Part of the instruction that follows; KW_NAMES carries its names."""
    opcode = OPMAP[phys]
    named = phys == "KW_NAMES"
    return lambda view, arg, after: (
        (PREFIX, view.consts[arg] if named else None, (Phys(opcode, arg, RAW),)),
    )


def call(phys: str) -> Rule:
    opcode = OPMAP[phys]
    return lambda view, arg, after: (("CALL", (arg, ()), (Phys(opcode, arg, RAW),)),)


def call_kw(phys: str) -> Rule:
    """3.13's CALL_KW: the names are on the stack there, but not in the dialect."""
    opcode = OPMAP[phys]
    return lambda view, arg, after: (("CALL", (arg, KWNAMES_BEFORE), (Phys(opcode, arg, RAW),)),)


def intrinsic(op: str, table: list[str], renamed: dict[str, str]) -> Row:
    """CALL_INTRINSIC_n by the intrinsic's name; those that were opcodes before keep that name."""

    def row(phys: str) -> Rule:
        opcode = OPMAP[phys]

        def rule(view: View, arg: int, after: int) -> tuple[Part, ...]:
            name = table[arg]
            own = renamed.get(name)
            return ((own or op, None if own else name, (Phys(opcode, arg, RAW),)),)

        return rule

    return row


def binary_symbol(arg: int) -> str:
    return _opcode._nb_ops[arg][1]  # type: ignore[attr-defined,no-any-return]
