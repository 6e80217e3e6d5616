"""The table of opcode handlers: what each canonical instruction does to a symbolic frame.

In: handlers, registered by the modules beside this one. Out: `HANDLERS` by instruction, `UNSUPPORTED` with reasons.
Always: one handler per instruction; what runs natively breaks with a registered reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..capture import Capture
from ..frame import Frame

Handler = Callable[[Capture, Frame, Any], Any]
HANDLERS: dict[str, Handler] = {}
#: Canonical instructions that always run natively, and why.
UNSUPPORTED: dict[str, str] = {
    "IMPORT_STAR": "imports every name of a module",
    "GET_AWAITABLE": "coroutines run natively",
    "GET_AITER": "coroutines run natively",
    "GET_ANEXT": "coroutines run natively",
    "BEFORE_ASYNC_WITH": "coroutines run natively",
    "END_ASYNC_FOR": "coroutines run natively",
    "ASYNC_GEN_WRAP": "coroutines run natively",
    "PRINT_EXPR": "only in interactive code",
    "INTERPRETER_EXIT": "internal to the interpreter",
    "EXIT_INIT_CHECK": "internal to the interpreter",
}


def op(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            if name in HANDLERS:
                raise ValueError(f"two handlers for {name}")
            HANDLERS[name] = handler
        return handler

    return register
