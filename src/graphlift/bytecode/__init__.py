"""CPython bytecode in one dialect: decode a function, and make code that goes on in its middle."""

from __future__ import annotations

from graphlift.bytecode.continuation import (
    AGAIN,
    DROP,
    LEADING,
    ContinuationUnsupported,
    FrameLayout,
    ResumePoint,
    break_stub,
    call_stub,
    can_continue,
    code_after,
    layout_after,
    leaves_null,
    origin,
    placeholders,
    read_after,
    rest_code,
    resume_code,
    under_way,
)
from graphlift.bytecode.decode import DecodeError, decode
from graphlift.bytecode.dialect import JUMPS
from graphlift.bytecode.instr import CodeInfo, Handler, Instr
from graphlift.bytecode.version import NULL_FIRST

__all__ = [
    "AGAIN",
    "DROP",
    "JUMPS",
    "LEADING",
    "NULL_FIRST",
    "CodeInfo",
    "ContinuationUnsupported",
    "DecodeError",
    "FrameLayout",
    "Handler",
    "Instr",
    "ResumePoint",
    "break_stub",
    "call_stub",
    "can_continue",
    "code_after",
    "decode",
    "layout_after",
    "leaves_null",
    "origin",
    "placeholders",
    "read_after",
    "rest_code",
    "resume_code",
    "under_way",
]
