"""CPython 3.12's opcodes in the canonical dialect.

In: nothing. Out: TABLE. Always: every opcode of 3.12 has a row or a reason in `never`.
"""

from __future__ import annotations

import opcode as _opcode

from graphlift.bytecode.rules import (
    VersionTable,
    call,
    checked_fast,
    intrinsic,
    jump,
    load_attr,
    load_global,
    load_super_attr,
    local,
    name,
    number,
    plain,
    prefix,
    return_const,
)
from graphlift.bytecode.table_common import COMMON, END_FOR, FORMAT_VALUE

#: Intrinsics that are the opcodes of 3.11 under another name, with the same effect.
RENAMED_1 = {"INTRINSIC_UNARY_POSITIVE": "UNARY_POSITIVE", "INTRINSIC_LIST_TO_TUPLE": "LIST_TO_TUPLE"}
RENAMED_2 = {"INTRINSIC_PREP_RERAISE_STAR": "PREP_RERAISE_STAR"}

_PSEUDO = """
SETUP_FINALLY SETUP_CLEANUP SETUP_WITH POP_BLOCK JUMP JUMP_NO_INTERRUPT LOAD_METHOD LOAD_SUPER_METHOD
LOAD_ZERO_SUPER_METHOD LOAD_ZERO_SUPER_ATTR STORE_FAST_MAYBE_NULL
""".split()

TABLE = VersionTable(
    rows={
        **COMMON,
        "END_FOR": END_FOR,
        "END_SEND": plain(),
        "CLEANUP_THROW": plain(),
        "BINARY_SLICE": plain(),
        "STORE_SLICE": plain(),
        "LOAD_LOCALS": plain(),
        "YIELD_VALUE": number(),
        "RETURN_CONST": return_const,
        "LOAD_FAST": checked_fast,
        "LOAD_FAST_CHECK": local("LOAD_FAST"),
        "LOAD_FAST_AND_CLEAR": local(),
        "LOAD_CLOSURE": local(),
        "LOAD_FROM_DICT_OR_GLOBALS": name,
        "LOAD_FROM_DICT_OR_DEREF": local(),
        "LOAD_ATTR": load_attr,
        "LOAD_SUPER_ATTR": load_super_attr,
        "LOAD_GLOBAL": load_global(null_first=True),
        "COMPARE_OP": number(read=lambda arg: _opcode.cmp_op[arg >> 4]),
        "FORMAT_VALUE": FORMAT_VALUE,
        "MAKE_FUNCTION": number(),
        "FOR_ITER": jump("FOR_ITER", skip=1),
        "SEND": jump("SEND"),
        "JUMP_FORWARD": jump("JUMP"),
        "JUMP_BACKWARD": jump("JUMP", backward=True),
        "JUMP_BACKWARD_NO_INTERRUPT": jump("JUMP", backward=True),
        "POP_JUMP_IF_FALSE": jump("POP_JUMP_IF_FALSE"),
        "POP_JUMP_IF_TRUE": jump("POP_JUMP_IF_TRUE"),
        "POP_JUMP_IF_NONE": jump("POP_JUMP_IF_NONE"),
        "POP_JUMP_IF_NOT_NONE": jump("POP_JUMP_IF_NOT_NONE"),
        "CALL_INTRINSIC_1": intrinsic(
            "CALL_INTRINSIC_1", getattr(_opcode, "_intrinsic_1_descs", []), RENAMED_1
        ),
        "CALL_INTRINSIC_2": intrinsic(
            "CALL_INTRINSIC_2", getattr(_opcode, "_intrinsic_2_descs", []), RENAMED_2
        ),
        "KW_NAMES": prefix,
        "CALL": call,
    },
    never={
        "CACHE": "inline cache, skipped with its instruction",
        "EXTENDED_ARG": "folded into the argument",
        "RESERVED": "no instruction",
        "INTERPRETER_EXIT": "only in the interpreter's own entry code",
        **{op: "pseudo instruction of the compiler" for op in _PSEUDO},
    },
    jumps={
        "JUMP": ("JUMP_FORWARD", "JUMP_BACKWARD"),
        "FOR_ITER": ("FOR_ITER", None),
        "POP_JUMP_IF_FALSE": ("POP_JUMP_IF_FALSE", None),
        "POP_JUMP_IF_TRUE": ("POP_JUMP_IF_TRUE", None),
        "POP_JUMP_IF_NONE": ("POP_JUMP_IF_NONE", None),
        "POP_JUMP_IF_NOT_NONE": ("POP_JUMP_IF_NOT_NONE", None),
    },
    for_iter_skip=1,
    null_first=True,
    call=("CALL",),
    load_cell="LOAD_CLOSURE",
    load_fast="LOAD_FAST_CHECK",
    take_fast=("LOAD_FAST_AND_CLEAR",),
    inlines_comprehensions=True,
    unwinds_from_before=False,
    attr_shift=1,
)
