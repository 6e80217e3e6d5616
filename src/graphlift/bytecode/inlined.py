"""Slots that serve two variables: a cell, and the plain variable of an inlined comprehension (3.12+).

In: raw canonical instructions of one code object. Out: the same, the two variables told apart. Always:
`LOAD_FAST_AND_CLEAR x ... STORE_FAST x` around a comprehension that captures its own x is SAVE_CELL and
RESTORE_CELL; around one that does not, x is a plain variable beside the cell, and what is saved is NULL.
"""

from __future__ import annotations

import opcode as _opcode
from typing import Any

from graphlift.bytecode.dialect import effect, successors
from graphlift.bytecode.instr import LOCAL, SHADOW, Handler, Phys
from graphlift.data import dataclass

#: op, argument, physical instructions, offset of the last of them
Raw = tuple[str, Any, tuple[Phys, ...], int]

_SLOT_OPS = frozenset(("LOAD_FAST", "LOAD_CLOSURE", "STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"))


@dataclass(frozen=True, slots=True)
class _Saved:
    """What LOAD_FAST_AND_CLEAR left on the stack; `plain`: whether the slot held the plain variable then."""

    slot: int
    plain: bool
    cell: bool


@dataclass(frozen=True, slots=True)
class _State:
    stack: tuple[_Saved | None, ...]
    plain: frozenset[int]


def separate(raw: list[Raw], is_cell: tuple[bool, ...], handlers: list[Handler | None]) -> list[Raw]:
    """`raw` with jumps resolved; returns it unchanged where no slot is shared."""
    shared = {phys[-1].arg for op, _, phys, _ in raw if op == "LOAD_FAST_AND_CLEAR" and is_cell[phys[-1].arg]}
    if not shared:
        return raw
    out = list(raw)
    seen: set[int] = set()
    todo = [(0, _State((), frozenset()))]
    while todo:
        index, state = todo.pop()
        if index in seen:
            continue
        seen.add(index)
        part, state, after = _step(raw, index, state, shared)
        out[index] = part
        handler = handlers[index]
        if handler is not None:
            kept = state.stack[: handler.depth] + (None,) * (1 + handler.push_lasti)
            todo.append((handler.target, _State(kept, state.plain)))
        todo += [(target, after[jumped]) for target, jumped in successors(part[0], part[1], index)]
    return out


def _step(
    raw: list[Raw], index: int, state: _State, shared: set[int]
) -> tuple[Raw, _State, tuple[_State, _State]]:
    """The instruction told apart, the state before it, and after it (going on, jumping)."""
    op, arg, phys, offset = raw[index]
    slot = phys[-1].arg
    if op not in _SLOT_OPS or slot not in shared:
        return raw[index], state, (_move(op, arg, state, False), _move(op, arg, state, True))
    stack, plain = state.stack, state.plain
    if op == "LOAD_FAST_AND_CLEAR":
        follow = raw[index + 1]
        cell = follow[0] == "MAKE_CELL" and follow[2][-1].arg == slot
        stack = (*stack, _Saved(slot, slot in plain, cell))
        after = _State(stack, plain - {slot} if cell else plain | {slot})
        part = ("SAVE_CELL", arg, phys, offset) if cell else (op, arg, _shadow(phys), offset)
        return part, state, (after, after)
    if op == "STORE_FAST" and isinstance(saved := stack[-1], _Saved) and saved.slot == slot:
        after = _State(stack[:-1], plain | {slot} if saved.plain else plain - {slot})
        part = ("RESTORE_CELL", arg, phys, offset) if saved.cell else (op, arg, _shadow(phys), offset)
        return part, state, (after, after)
    if slot in plain:
        op = "LOAD_FAST" if op == "LOAD_CLOSURE" else op
        after = _move(op, arg, state, False)
        return (op, arg, _shadow(phys), offset), state, (after, after)
    after = _move(op, arg, state, False)
    return raw[index], state, (after, after)


def _shadow(phys: tuple[Phys, ...]) -> tuple[Phys, ...]:
    last = phys[-1]
    assert last.kind == LOCAL
    opcode = last.opcode
    if opcode == _opcode.opmap["LOAD_FAST"]:  # a plain variable may be unbound where a cell is not
        opcode = _opcode.opmap["LOAD_FAST_CHECK"]
    return (*phys[:-1], Phys(opcode, last.arg, SHADOW))


def _move(op: str, arg: Any, state: _State, jumped: bool) -> _State:
    stack = state.stack
    if op == "COPY":
        return _State((*stack, stack[-arg]), state.plain)
    if op == "SWAP":
        slots = list(stack)
        slots[-1], slots[-arg] = slots[-arg], slots[-1]
        return _State(tuple(slots), state.plain)
    popped, pushed = effect(op, arg, jumped=jumped)
    return _State(stack[: len(stack) - popped] + (None,) * pushed, state.plain)
