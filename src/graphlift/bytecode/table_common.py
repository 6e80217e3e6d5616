"""Rows that are the same in every supported CPython, to which each version's table adds its own.

In: nothing. Out: COMMON rows. Always: a row stands here only if argument and effect never changed.
"""

from __future__ import annotations

from graphlift.bytecode.rules import Row, binary_symbol, const, local, name, nop, number, plain

_PLAIN = """
POP_TOP PUSH_NULL NOP UNARY_NEGATIVE UNARY_NOT UNARY_INVERT BINARY_SUBSCR GET_LEN MATCH_MAPPING MATCH_SEQUENCE
MATCH_KEYS PUSH_EXC_INFO CHECK_EXC_MATCH CHECK_EG_MATCH WITH_EXCEPT_START GET_AITER GET_ANEXT BEFORE_ASYNC_WITH
BEFORE_WITH END_ASYNC_FOR STORE_SUBSCR DELETE_SUBSCR GET_ITER GET_YIELD_FROM_ITER LOAD_BUILD_CLASS
LOAD_ASSERTION_ERROR RETURN_GENERATOR RETURN_VALUE SETUP_ANNOTATIONS POP_EXCEPT
""".split()
_NUMBER = """
SWAP COPY BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP BUILD_SLICE BUILD_STRING BUILD_CONST_KEY_MAP UNPACK_SEQUENCE
LIST_APPEND SET_ADD MAP_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE RAISE_VARARGS RERAISE MATCH_CLASS
COPY_FREE_VARS GET_AWAITABLE
""".split()
_NAME = """
STORE_NAME DELETE_NAME STORE_ATTR DELETE_ATTR STORE_GLOBAL DELETE_GLOBAL LOAD_NAME IMPORT_NAME IMPORT_FROM
""".split()
_LOCAL = "STORE_FAST DELETE_FAST MAKE_CELL LOAD_DEREF STORE_DEREF DELETE_DEREF".split()

COMMON: dict[str, Row] = {
    **{op: plain() for op in _PLAIN},
    **{op: number() for op in _NUMBER},
    **{op: name for op in _NAME},
    **{op: local() for op in _LOCAL},
    "LOAD_CONST": const,
    "RESUME": nop,
    "IS_OP": number(read=bool),
    "CONTAINS_OP": number(read=bool),
    "BINARY_OP": number(read=binary_symbol),
    "UNPACK_EX": number(read=lambda arg: (arg & 0xFF, arg >> 8)),
    "CALL_FUNCTION_EX": number(read=lambda arg: bool(arg & 1)),
}

#: FORMAT_VALUE as 3.11 and 3.12 encode it.
FORMAT_VALUE: Row = number(read=lambda arg: (arg & 3, bool(arg & 4)))

END_FOR: Row = nop
