"""Control flow over canonical instructions: what is reachable, what is inside a handler, stack shapes.

In: CodeInfo. Out: sets of indices, NULL maps of the stack. Always: purely static.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from graphlift.bytecode.decode import decode
from graphlift.bytecode.dialect import effect, successors
from graphlift.bytecode.identity import WeakIdentityMap
from graphlift.bytecode.instr import CodeInfo, Handler
from graphlift.bytecode.version import TABLE

#: The NULL map of a stack, bottom first: False for NULL.
Stack = tuple[bool, ...]
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
    """For each reachable index, how many exceptions are being handled or raised there (cached)."""
    found = _DEPTHS.get(code)
    if found is None:
        found = _exception_depths(decode(code))
        _DEPTHS.set(code, found)
    return found


def _exception_depths(info: CodeInfo) -> dict[int, int]:
    """`handled`: PUSH_EXC_INFO without their POP_EXCEPT; `raised`: an exception on the stack, not yet pushed."""
    depths: dict[int, int] = {}
    todo = [(0, 0, False)]
    handlers: list[tuple[int, int, bool]] = []
    while todo or handlers:
        # Ordinary flow first: what it reaches without a handler is outside every handler.
        index, handled, raised = todo.pop() if todo else handlers.pop()
        if index in depths:
            continue
        depths[index] = handled + raised
        at = info.instrs[index]
        if at.handler is not None:
            handlers.append((at.handler.target, handled, True))
        if at.op == "PUSH_EXC_INFO":
            handled, raised = handled + 1, False
        elif at.op == "POP_EXCEPT":
            handled -= 1
        todo += [(target, handled, raised) for target, _ in successors(at.op, at.arg, index)]
    return depths


def handler_region(
    code: CodeType, handler: Handler, stack: tuple[bool, ...]
) -> tuple[list[int], dict[int, Stack]]:
    """What runs when an exception reaches `handler` over the stack `stack`, until it has been dealt with.

    Returns the indices inside handlers, and the NULL map at each place where control leaves them. To return
    or to raise again is no leaving.
    """
    info, depths = decode(code), exception_depths(code)
    shapes: dict[int, Stack] = {handler.target: _unwound(stack, handler)}
    inside: list[int] = []
    left: dict[int, Stack] = {}
    todo = [handler.target]
    while todo:
        index = todo.pop()
        at, shape = info.instrs[index], shapes[index]
        if depths.get(index, 1) == 0 and at.op not in ("RETURN_VALUE", "RERAISE"):
            left[index] = shape
            continue
        inside.append(index)
        onward = [(target, stack_after(at.op, at.arg, shape, jumped=jumped))
                  for target, jumped in successors(at.op, at.arg, index)]  # fmt: skip
        if at.handler is not None:
            onward.append((at.handler.target, _unwound(shape, at.handler)))
        if at.op == "FOR_ITER" and TABLE.for_iter_skip:
            skipped = at.arg - TABLE.for_iter_skip
            onward.append((skipped, (*shape, True)))
        for target, after in onward:
            if target not in shapes:
                shapes[target] = after
                todo.append(target)
    return inside, left


def _unwound(stack: Stack, handler: Handler) -> Stack:
    return stack[: handler.depth] + (True,) * (1 + handler.push_lasti)


def stack_after(op: str, arg: Any, stack: Stack, *, jumped: bool = False, bound: bool = True) -> Stack:
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
