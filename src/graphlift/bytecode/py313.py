"""CPython 3.13's opcodes in the canonical dialect.

In: nothing. Out: TABLE. Always: every opcode of 3.13 has a row or a reason in `never`.
"""

from __future__ import annotations

import opcode as _opcode

from graphlift.bytecode.py312 import RENAMED_1, RENAMED_2
from graphlift.bytecode.rules import (
    VersionTable,
    call,
    call_kw,
    compare_bool,
    fast_or_cell,
    fast_pair,
    intrinsic,
    jump,
    load_attr,
    load_global,
    load_super_attr,
    local,
    name,
    number,
    plain,
    return_const,
)
from graphlift.bytecode.table_common import COMMON, END_FOR

_PSEUDO = """
JUMP JUMP_NO_INTERRUPT LOAD_CLOSURE LOAD_METHOD LOAD_SUPER_METHOD LOAD_ZERO_SUPER_ATTR LOAD_ZERO_SUPER_METHOD
POP_BLOCK SETUP_CLEANUP SETUP_FINALLY SETUP_WITH STORE_FAST_MAYBE_NULL
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
        "TO_BOOL": plain(),
        "YIELD_VALUE": number(),
        "RETURN_CONST": return_const,
        "LOAD_FAST": fast_or_cell,
        "LOAD_FAST_CHECK": fast_or_cell,
        "LOAD_FAST_AND_CLEAR": local(),
        "LOAD_FAST_LOAD_FAST": fast_pair("load", "load"),
        "STORE_FAST_LOAD_FAST": fast_pair("store", "load"),
        "STORE_FAST_STORE_FAST": fast_pair("store", "store"),
        "LOAD_FROM_DICT_OR_GLOBALS": name,
        "LOAD_FROM_DICT_OR_DEREF": local(),
        "LOAD_ATTR": load_attr,
        "LOAD_SUPER_ATTR": load_super_attr,
        "LOAD_GLOBAL": load_global(null_first=False),
        "COMPARE_OP": compare_bool,
        "CONVERT_VALUE": number(),
        "FORMAT_SIMPLE": number("FORMAT_VALUE", read=lambda arg: (0, False)),
        "FORMAT_WITH_SPEC": number("FORMAT_VALUE", read=lambda arg: (0, True)),
        "MAKE_FUNCTION": number(read=lambda arg: 0),
        "SET_FUNCTION_ATTRIBUTE": number(),
        "FOR_ITER": jump("FOR_ITER", skip=2),
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
        "CALL": call,
        "CALL_KW": call_kw,
    },
    never={
        "CACHE": "inline cache, skipped with its instruction",
        "EXTENDED_ARG": "folded into the argument",
        "RESERVED": "no instruction",
        "INTERPRETER_EXIT": "only in the interpreter's own entry code",
        "EXIT_INIT_CHECK": "only in the interpreter's own code after __init__",
        "ENTER_EXECUTOR": "co_code shows the instruction it replaced",
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
    for_iter_skip=2,
    null_first=False,
    call=("CALL",),
    load_cell="LOAD_FAST",
    load_fast="LOAD_FAST_CHECK",
    take_fast=("LOAD_FAST_AND_CLEAR",),
    inlines_comprehensions=True,
    unwinds_from_before=True,
    attr_shift=1,
)
