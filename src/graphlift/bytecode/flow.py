"""Control flow over canonical instructions: what is reachable, what is inside a handler, stack shapes.

In: CodeInfo. Out: sets of indices, NULL maps of the stack. Always: purely static.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from graphlift.bytecode.decode import decode
from graphlift.bytecode.dialect import effect, successors
from graphlift.bytecode.identity import WeakIdentityMap
from graphlift.bytecode.instr import CodeInfo
from graphlift.bytecode.version import TABLE

_DEPTHS: WeakIdentityMap[dict[int, int]] = WeakIdentityMap()


def reachable(info: CodeInfo, starts: tuple[int, ...]) -> frozenset[int]:
    """Every index that control can reach from `starts`, by exceptions too."""
    instrs = info.instrs
    seen: set[int] = set()
    todo = list(starts)
    while todo:
        index = todo.pop()
        while index not in seen:
            seen.add(index)
            at = instrs[index]
            if at.handler is not None and at.handler.target not in seen:
                todo.append(at.handler.target)
            onward = -1
            for target, jumped in successors(at.op, at.arg, index):
                if jumped:
                    todo.append(target)
                    if at.op == "FOR_ITER" and TABLE.for_iter_skip:
                        todo.append(target - TABLE.for_iter_skip)
                else:
                    onward = target
            if onward < 0:
                break
            index = onward
    return frozenset(seen)


def exception_depths(code: CodeType) -> dict[int, int]:
    """For each reachable index, how many exceptions are being handled there (cached)."""
    found = _DEPTHS.get(code)
    if found is None:
        found = _exception_depths(decode(code))
        _DEPTHS.set(code, found)
    return found


def _exception_depths(info: CodeInfo) -> dict[int, int]:
    depths: dict[int, int] = {}
    todo = [(0, 0)]
    handlers: list[tuple[int, int]] = []
    while todo or handlers:
        # Ordinary flow first: what it reaches at depth 0 is outside every handler.
        index, depth = todo.pop() if todo else handlers.pop()
        if index in depths:
            continue
        depths[index] = depth
        at = info.instrs[index]
        if at.handler is not None:
            handlers.append((at.handler.target, depth + 1))
        after = depth - 1 if at.op == "POP_EXCEPT" else depth
        todo += [(target, after) for target, _ in successors(at.op, at.arg, index)]
    return depths


def stack_after(
    op: str, arg: Any, stack: tuple[bool, ...], *, jumped: bool = False, bound: bool = True
) -> tuple[bool, ...]:
    """The NULL map of the stack after an operation (LOAD_METHOD taken as its plain-attribute form).

    `bound`: whether LOAD_FAST_AND_CLEAR finds a value.
    """
    if op == "COPY":
        return (*stack, stack[-arg])
    if op == "SWAP":
        slots = list(stack)
        slots[-1], slots[-arg] = slots[-arg], slots[-1]
        return tuple(slots)
    if op == "PUSH_NULL":
        return (*stack, False)
    if op == "LOAD_FAST_AND_CLEAR":
        return (*stack, bound)
    popped, pushed = effect(op, arg, jumped=jumped)
    if popped > len(stack):
        raise ValueError(f"{op} pops {popped} slots of a stack of {len(stack)}")
    kept = stack[: len(stack) - popped]
    if op == "LOAD_METHOD" or (op == "LOAD_SUPER_ATTR" and arg[1]):
        return (*kept, False, True) if TABLE.null_first else (*kept, True, False)
    return kept + (True,) * pushed
