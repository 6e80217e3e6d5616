"""A whole code object written anew from its canonical form, for round trips.

In: a code object. Out: one that does the same. Always: goes through the same assembler as continuations.
"""

from __future__ import annotations

from types import CodeType

from graphlift.bytecode import decode
from graphlift.bytecode.assemble import Cover, Item, Label, assemble
from graphlift.bytecode.instr import JUMP


def reencode(code: CodeType) -> CodeType:
    info = decode(code)
    stream: list[Item | Label] = []
    for at, unit in zip(info.instrs, info.units, strict=True):
        stream.append(Label(at.index))
        cover = at.handler and Cover(at.handler.target, at.handler.depth, at.handler.push_lasti)
        for phys in unit:
            if phys.kind == JUMP:
                stream.append(Item(phys.opcode, 0, at.positions, cover, phys.arg))
            else:
                stream.append(Item(phys.opcode, phys.arg, at.positions, cover))
    made = assemble(stream, code.co_firstlineno)
    return code.replace(
        co_code=made.code,
        co_linetable=made.linetable,
        co_exceptiontable=made.exceptiontable,
        co_stacksize=code.co_stacksize + 1,  # RETURN_CONST needs no slot, its parts do
    )
