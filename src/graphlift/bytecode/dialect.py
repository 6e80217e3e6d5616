"""The canonical operations and what each does to the stack.

In: a canonical operation with its argument. Out: slots popped and pushed, on the way to the next instruction
and on the way to the jump target. Always: one row per operation; values are never looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Effect = tuple[int, int]
_Row = Effect | Callable[[Any], Effect]


def _rows(effect: Effect, names: str) -> dict[str, _Row]:
    return {name: effect for name in names.split()}


#: (popped, pushed) when control goes on to the next instruction.
EFFECTS: dict[str, _Row] = {
    **_rows((0, 0), "NOP MAKE_CELL COPY_FREE_VARS DELETE_FAST DELETE_DEREF DELETE_GLOBAL DELETE_NAME JUMP"),
    **_rows((0, 0), "SETUP_ANNOTATIONS"),
    **_rows(
        (0, 1), "LOAD_CONST LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_DEREF LOAD_CLASSDEREF LOAD_CLOSURE LOAD_GLOBAL"
    ),
    **_rows((0, 1), "SAVE_CELL"),
    **_rows((1, 0), "RESTORE_CELL"),
    **_rows((0, 1), "LOAD_NAME LOAD_LOCALS PUSH_NULL LOAD_ASSERTION_ERROR LOAD_BUILD_CLASS RETURN_GENERATOR"),
    **_rows(
        (1, 0), "STORE_FAST STORE_DEREF STORE_GLOBAL STORE_NAME POP_TOP RETURN_VALUE POP_EXCEPT PRINT_EXPR"
    ),
    **_rows((1, 0), "POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE DELETE_ATTR"),
    **_rows((1, 0), "JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP IMPORT_STAR"),
    **_rows((1, 0), "LIST_APPEND SET_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE"),
    **_rows(
        (1, 1),
        "LOAD_ATTR UNARY_NEGATIVE UNARY_POSITIVE UNARY_NOT UNARY_INVERT TO_BOOL GET_ITER LIST_TO_TUPLE",
    ),
    **_rows((1, 1), "GET_YIELD_FROM_ITER GET_AITER GET_AWAITABLE CONVERT_VALUE YIELD_VALUE ASYNC_GEN_WRAP"),
    **_rows((1, 1), "CALL_INTRINSIC_1 LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS"),
    **_rows((1, 2), "LOAD_METHOD BEFORE_WITH BEFORE_ASYNC_WITH IMPORT_FROM GET_LEN GET_ANEXT PUSH_EXC_INFO"),
    **_rows((1, 2), "MATCH_MAPPING MATCH_SEQUENCE FOR_ITER"),
    **_rows((2, 0), "STORE_ATTR DELETE_SUBSCR MAP_ADD END_ASYNC_FOR"),
    **_rows(
        (2, 1),
        "BINARY_OP BINARY_SUBSCR COMPARE_OP IS_OP CONTAINS_OP IMPORT_NAME SET_FUNCTION_ATTRIBUTE END_SEND",
    ),
    **_rows((2, 1), "CALL_INTRINSIC_2 PREP_RERAISE_STAR"),
    **_rows((2, 2), "CHECK_EXC_MATCH CHECK_EG_MATCH SEND"),
    **_rows((2, 3), "MATCH_KEYS"),
    **_rows((3, 0), "STORE_SUBSCR"),
    **_rows((3, 1), "BINARY_SLICE MATCH_CLASS"),
    **_rows((3, 2), "CLEANUP_THROW"),
    **_rows((4, 0), "STORE_SLICE"),
    **_rows((4, 5), "WITH_EXCEPT_START"),
    "BUILD_TUPLE": lambda n: (n, 1),
    "BUILD_LIST": lambda n: (n, 1),
    "BUILD_SET": lambda n: (n, 1),
    "BUILD_STRING": lambda n: (n, 1),
    "BUILD_SLICE": lambda n: (n, 1),
    "BUILD_MAP": lambda n: (2 * n, 1),
    "BUILD_CONST_KEY_MAP": lambda n: (n + 1, 1),
    "UNPACK_SEQUENCE": lambda n: (1, n),
    "UNPACK_EX": lambda sides: (1, sides[0] + 1 + sides[1]),
    "FORMAT_VALUE": lambda form: (1 + form[1], 1),
    "MAKE_FUNCTION": lambda flags: (1 + flags.bit_count(), 1),
    "LOAD_SUPER_ATTR": lambda attr: (3, 1 + attr[1]),
    "CALL": lambda call: (call[0] + 2, 1),
    "CALL_FUNCTION_EX": lambda has_kwargs: (3 + has_kwargs, 1),
    "RAISE_VARARGS": lambda n: (n, 0),
    "RERAISE": lambda n: (1, 0),
    "COPY": lambda n: (0, 1),
    "SWAP": lambda n: (0, 0),
}

#: (popped, pushed) when control goes to the jump target, where that differs.
JUMP_EFFECTS: dict[str, Effect] = {
    "FOR_ITER": (1, 0),
    "JUMP_IF_TRUE_OR_POP": (0, 0),
    "JUMP_IF_FALSE_OR_POP": (0, 0),
}

#: Operations whose argument is a canonical index to which control may go.
JUMPS = frozenset(
    "JUMP POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE JUMP_IF_TRUE_OR_POP "
    "JUMP_IF_FALSE_OR_POP FOR_ITER SEND".split()
)
#: Operations after which control does not reach the next instruction.
NO_FALLTHROUGH = frozenset("JUMP RETURN_VALUE RAISE_VARARGS RERAISE".split())


def effect(op: str, arg: Any, *, jumped: bool = False) -> Effect:
    """Slots popped and pushed by an operation."""
    row = JUMP_EFFECTS.get(op, EFFECTS[op]) if jumped else EFFECTS[op]
    return row(arg) if callable(row) else row


def successors(op: str, arg: Any, index: int) -> tuple[tuple[int, bool], ...]:
    """(index, whether by the jump) of every place to which control may go without an exception."""
    onward = () if op in NO_FALLTHROUGH else ((index + 1, False),)
    return (*onward, (arg, True)) if op in JUMPS else onward
