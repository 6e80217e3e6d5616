"""CPython 3.11's opcodes in the canonical dialect.

In: nothing. Out: TABLE. Always: every opcode of 3.11 has a row or a reason in `never`.
"""

from __future__ import annotations

import opcode as _opcode

from graphlift.bytecode.rules import (
    VersionTable,
    call,
    jump,
    load_global,
    local,
    name,
    number,
    plain,
    prefix,
)
from graphlift.bytecode.table_common import COMMON, FORMAT_VALUE

TABLE = VersionTable(
    rows={
        **COMMON,
        "UNARY_POSITIVE": plain(),
        "PRINT_EXPR": plain(),
        "LIST_TO_TUPLE": plain(),
        "IMPORT_STAR": plain(),
        "YIELD_VALUE": plain(),
        "ASYNC_GEN_WRAP": plain(),
        "PREP_RERAISE_STAR": plain(),
        "LOAD_FAST": local(),
        "LOAD_CLOSURE": local(),
        "LOAD_CLASSDEREF": local(),
        "LOAD_ATTR": name,
        "LOAD_METHOD": name,
        "LOAD_GLOBAL": load_global(null_first=True),
        "COMPARE_OP": number(read=lambda arg: _opcode.cmp_op[arg]),
        "FORMAT_VALUE": FORMAT_VALUE,
        "MAKE_FUNCTION": number(),
        "FOR_ITER": jump("FOR_ITER"),
        "SEND": jump("SEND"),
        "JUMP_FORWARD": jump("JUMP"),
        "JUMP_BACKWARD": jump("JUMP", backward=True),
        "JUMP_BACKWARD_NO_INTERRUPT": jump("JUMP", backward=True),
        "JUMP_IF_FALSE_OR_POP": jump("JUMP_IF_FALSE_OR_POP"),
        "JUMP_IF_TRUE_OR_POP": jump("JUMP_IF_TRUE_OR_POP"),
        "POP_JUMP_FORWARD_IF_FALSE": jump("POP_JUMP_IF_FALSE"),
        "POP_JUMP_FORWARD_IF_TRUE": jump("POP_JUMP_IF_TRUE"),
        "POP_JUMP_FORWARD_IF_NONE": jump("POP_JUMP_IF_NONE"),
        "POP_JUMP_FORWARD_IF_NOT_NONE": jump("POP_JUMP_IF_NOT_NONE"),
        "POP_JUMP_BACKWARD_IF_FALSE": jump("POP_JUMP_IF_FALSE", backward=True),
        "POP_JUMP_BACKWARD_IF_TRUE": jump("POP_JUMP_IF_TRUE", backward=True),
        "POP_JUMP_BACKWARD_IF_NONE": jump("POP_JUMP_IF_NONE", backward=True),
        "POP_JUMP_BACKWARD_IF_NOT_NONE": jump("POP_JUMP_IF_NOT_NONE", backward=True),
        "PRECALL": prefix,
        "KW_NAMES": prefix,
        "CALL": call,
    },
    never={
        "CACHE": "inline cache, skipped with its instruction",
        "EXTENDED_ARG": "folded into the argument",
    },
    jumps={
        "JUMP": ("JUMP_FORWARD", "JUMP_BACKWARD"),
        "FOR_ITER": ("FOR_ITER", None),
        "JUMP_IF_FALSE_OR_POP": ("JUMP_IF_FALSE_OR_POP", None),
        "JUMP_IF_TRUE_OR_POP": ("JUMP_IF_TRUE_OR_POP", None),
        "POP_JUMP_IF_FALSE": ("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE"),
        "POP_JUMP_IF_TRUE": ("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE"),
        "POP_JUMP_IF_NONE": ("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE"),
        "POP_JUMP_IF_NOT_NONE": ("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE"),
    },
    for_iter_skip=0,
    null_first=True,
    call=("PRECALL", "CALL"),
    load_cell="LOAD_CLOSURE",
    load_fast="LOAD_FAST",
    take_fast=("LOAD_FAST", "DELETE_FAST"),
    inlines_comprehensions=False,
    unwinds_from_before=False,
    attr_shift=0,
)
