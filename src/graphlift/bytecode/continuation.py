"""Code objects that enter a user's function in the middle: break stubs and resume functions.

In: an origin code object, a canonical index, the layout of the live frame. Out: a code object with the same
name, file, lines and exception handlers that restores the frame and goes on at that index. Always: cell
variables of the origin are free variables here; made once per (origin, index, layout).
"""

from __future__ import annotations

import opcode as _opcode
import weakref
from collections.abc import Iterator
from types import CodeType

from graphlift.bytecode.assemble import Cover, Item, Label, assemble
from graphlift.bytecode.decode import decode
from graphlift.bytecode.dialect import JUMPS, NO_FALLTHROUGH, effect, successors
from graphlift.bytecode.flow import Stack, exception_depths, handler_region, reachable, stack_after
from graphlift.bytecode.identity import WeakIdentityMap
from graphlift.bytecode.instr import JUMP, LOCAL, RAW, SHADOW, CodeInfo, Instr, Phys
from graphlift.bytecode.rules import make_view
from graphlift.bytecode.version import TABLE
from graphlift.data import dataclass
from graphlift.frame import _frame

_OP = _opcode.opmap
_CO_VARARGS, _CO_VARKEYWORDS = 0x4, 0x8
_CO_OPTIMIZED, _CO_GENERATOR, _CO_COROUTINES = 0x1, 0x20, 0x80 | 0x200
#: Set for stubs of generators alone: a StopIteration that leaves one becomes a RuntimeError.
_CO_GENERATOR_STOP = 0x800000


class ContinuationUnsupported(Exception):
    """No continuation can be made at this place; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """What is live: stack slots, bottom first, False for NULL; names of the bound plain locals."""

    stack: tuple[bool, ...]
    locals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a resume function stands in its origin."""

    code: CodeType
    index: int
    layout: FrameLayout


_Made = dict[tuple[str, int, FrameLayout], CodeType]
_MADE: WeakIdentityMap[_Made] = WeakIdentityMap()
#: Inner code -> outer code -> what rest_code made; gone with either.
_RESTS: WeakIdentityMap[WeakIdentityMap[dict[tuple[int, FrameLayout], CodeType]]] = WeakIdentityMap()
_ORIGIN: WeakIdentityMap[tuple[object, int, FrameLayout]] = WeakIdentityMap()


def origin(code: CodeType) -> ResumePoint | None:
    """The place where a resume function made by `resume_code` starts, or None for any other code object."""
    found = _ORIGIN.get(code)
    if found is None:
        return None
    alive = found[0]()  # type: ignore[operator]
    return None if alive is None else ResumePoint(alive, found[1], found[2])


def resume_code(code: CodeType, index: int, layout: FrameLayout) -> CodeType:
    """A code object that restores the frame and runs from `index` to the end.

    Raises: ContinuationUnsupported.
    """
    return _cached("resume", code, index, layout)


def break_stub(code: CodeType, index: int, layout: FrameLayout) -> CodeType:
    """A code object that restores the frame, runs the instruction at `index`, and hands over at its successor.

    Raises: ContinuationUnsupported.
    """
    return _cached("stub", code, index, layout)


def can_continue(code: CodeType, index: int) -> bool:
    """Whether a frame of `code` can be left at `index` and entered again, for all that the code itself shows."""
    try:
        _check(code, index, FrameLayout((), ()))
    except ContinuationUnsupported:
        return False
    return True


def call_stub(code: CodeType, index: int, layout: FrameLayout) -> CodeType:
    """A code object that goes on in the middle of the instruction at `index`, whose callee was left at a break.

    `layout` is the frame's, without what the instruction takes; its operands are then those of `under_way`: a Callee
    that returns its rest. When the call is over, the stub hands over where `_after` says; when it broke again, at the
    same instruction, to the code of `rest_code`.

    Raises: ContinuationUnsupported.
    """
    return _cached("call", code, index, under_way(code, index, layout))


def under_way(code: CodeType, index: int, layout: FrameLayout) -> FrameLayout:
    """The layout of a frame whose callee at `index` has begun: a Callee, and `placeholders` for the arguments."""
    callee = (False, True) if TABLE.null_first else (True, False)
    return FrameLayout((*layout.stack, *callee, *(True for _ in placeholders(code, index))), layout.locals)


def placeholders(code: CodeType, index: int) -> tuple[object, ...]:
    """What stands for the arguments of the call at `index`, which its Callee does not look at."""
    at = decode(code).instrs[index]
    if at.op == "CALL":
        return tuple([None] * at.arg[0])
    if at.op == "CALL_FUNCTION_EX":
        return ((), {}) if at.arg else ((),)
    if at.op in LEADING:
        return ()
    raise ContinuationUnsupported(f"{at.op} is no call")


#: What an instruction that leads to a Python function makes of its value: to PUSH or DROP it, or, where the value is in
#: the place of the operand, to act on it (AGAIN). A Callee is called in its stead. Beside them are the plain calls.
PUSH, DROP, AGAIN = "push", "drop", "again"
LEADING: dict[str, str] = {
    **dict.fromkeys(
        "LOAD_ATTR LOAD_METHOD LOAD_SUPER_ATTR BINARY_OP BINARY_SUBSCR BINARY_SLICE COMPARE_OP CONTAINS_OP "
        "UNARY_NEGATIVE UNARY_POSITIVE UNARY_INVERT BEFORE_WITH GET_ITER FORMAT_VALUE CONVERT_VALUE".split(),
        PUSH,
    ),
    **dict.fromkeys("STORE_ATTR STORE_SUBSCR STORE_SLICE DELETE_ATTR DELETE_SUBSCR".split(), DROP),
    **dict.fromkeys("UNARY_NOT TO_BOOL POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE FOR_ITER".split(), AGAIN),
}


def leaves_null(at: Instr) -> bool:
    """Whether a NULL stands beside what it loads: a method, here a bound one."""
    return at.op == "LOAD_METHOD" or (at.op == "LOAD_SUPER_ATTR" and at.arg[1])


def _after(info: CodeInfo, at: Instr, layout: FrameLayout) -> tuple[int, FrameLayout]:
    """Where a frame goes on when the callee that `at` led to is done; `layout`: as `under_way` gives it."""
    way = LEADING.get(at.op)
    if way is None:
        return at.index + 1, _layout_after(info, at, layout, False)
    below = layout.stack[:-2]
    if way == DROP:
        return at.index + 1, FrameLayout(below, layout.locals)
    if way == AGAIN:
        return at.index, FrameLayout((*below, True), layout.locals)
    operands = effect(at.op, at.arg)[0] - (at.op == "BEFORE_WITH")  # whose __exit__ is on the stack by then
    before = FrameLayout(below + (True,) * operands, layout.locals)
    return at.index + 1, _layout_after(info, at, before, False)


def code_after(code: CodeType, index: int, layout: FrameLayout) -> CodeType:
    """The resume function of a frame whose callee at `index` is done; the last parameter is the callee's value.

    `layout`: the frame's, without what the instruction takes. Raises: ContinuationUnsupported.
    """
    info = decode(code)
    at = info.instrs[index]
    own = at.handler is not None and info.instrs[at.handler.target].op != "CALL_INTRINSIC_1"
    if LEADING.get(at.op) is DROP or own or info.cells:
        raise ContinuationUnsupported(f"{at.op} of {code.co_qualname} cannot go on with a value")
    return resume_code(code, *_after(info, at, under_way(code, index, layout)))


def read_after(code: CodeType, index: int) -> frozenset[str]:
    """The locals that may be read by what follows the instruction at `index`."""
    info = decode(code)
    at = info.instrs[index]
    ahead = reachable(info, tuple(target for target, _ in successors(at.op, at.arg, index)))
    return frozenset(at.arg for at in map(info.instrs.__getitem__, ahead) if at.op.startswith("LOAD_FAST"))


def rest_code(code: CodeType, index: int, layout: FrameLayout, inner: CodeType) -> CodeType:
    """The resume function at the call under way at `index`, one for each code `inner` that its Callee goes on with.

    They differ in nothing but that each has compiled entries of its own.
    """
    by_outer = _RESTS.get(inner)
    if by_outer is None:
        by_outer = WeakIdentityMap()
        _RESTS.set(inner, by_outer)
    found = by_outer.get(code)
    if found is None:
        found = {}
        by_outer.set(code, found)
    made = found.get((index, layout))
    if made is None:
        _check(code, index, layout)
        made = found[index, layout] = _make_rest(code, index, layout)
        _ORIGIN.set(made, (weakref.ref(code), index, layout))
    return made


def _cached(kind: str, code: CodeType, index: int, layout: FrameLayout) -> CodeType:
    made = _MADE.get(code)
    if made is None:
        made = {}
        _MADE.set(code, made)
    key = (kind, index, layout)
    found = made.get(key)
    if found is None:
        _check(code, index, layout)
        found = _make(kind, code, index, layout)
        made[key] = found
    return found


def _check(code: CodeType, index: int, layout: FrameLayout) -> None:
    info = decode(code)
    if code.co_flags & _CO_COROUTINES:
        raise ContinuationUnsupported("a coroutine cannot be entered in the middle")
    if not code.co_flags & _CO_OPTIMIZED:
        raise ContinuationUnsupported("module and class bodies keep their names in a dictionary")
    if not 0 <= index < len(info.instrs):
        raise ValueError(f"{code.co_qualname} has no instruction {index}")
    if info.instrs[index].op == "SEND":
        raise ContinuationUnsupported("inside a yield from")
    if code.co_flags & _CO_GENERATOR and info.instrs[index].op in _LEAVES_GENERATOR:
        raise ContinuationUnsupported("where a generator is left")
    unknown = set(layout.locals) - set(info.locals)
    if unknown:
        raise ValueError(f"{code.co_qualname} has no plain local {', '.join(sorted(unknown))}")
    depth = exception_depths(code).get(index)
    if depth is None:
        raise ContinuationUnsupported("the instruction is never reached")
    if depth:
        raise ContinuationUnsupported("inside an exception handler")


class _Frame:
    """The variables of a continuation: its parameters, and where each slot of the origin went."""

    def __init__(self, code: CodeType, layout: FrameLayout, temps: int) -> None:
        info = decode(code)
        self.cells = info.cells
        own = tuple(f".stack{slot}" for slot, live in enumerate(layout.stack) if live)
        self.params = layout.locals + own
        self.displaced = self._displaced_first(code, layout)
        names = list(self.params)
        if self.displaced:
            names[0] = ".first"
        names += [f".stack{slot}" for slot in range(temps) if f".stack{slot}" not in own]
        known = set(names)
        names += [n for n in info.locals if n not in known]
        if self.displaced and self.params[0] not in names:
            names.append(self.params[0])
        self.varnames = tuple(names)
        self.plain = {name: slot for slot, name in enumerate(names)}
        # All cells come by the closure. Those of the origin's own move to slots of their own kind, by which the
        # interpreter tells an unbound local variable from an unbound free one; a name that is a plain local as well
        # (of an inlined comprehension) would share that one's slot, and stays where it is.
        self.own_cells = tuple(name for name in code.co_cellvars if name not in names)
        given = len(names) + len(self.own_cells)
        self.given = {name: given + place for place, name in enumerate(self.cells)}
        self.cell = self.given | {name: len(names) + place for place, name in enumerate(self.own_cells)}
        view = make_view(code)
        self.moved = tuple(
            (self.cell if is_cell else self.plain)[name]
            for name, is_cell in zip(view.local_names, view.is_cell, strict=True)
        )
        self.shadow = tuple(self.plain.get(name, -1) for name in view.local_names)

    def _displaced_first(self, code: CodeType, layout: FrameLayout) -> bool:
        """super() without arguments reads the first slot: it must hold the function's first argument."""
        if "__class__" not in code.co_freevars or "super" not in code.co_names or not code.co_argcount:
            return False
        first = code.co_varnames[0]
        if self.params and self.params[0] == first:
            return False
        if not self.params:
            raise ContinuationUnsupported("super() needs the first argument, and nothing is passed on")
        return first in self.cells or first in layout.locals


def _cover(at: Instr) -> Cover | None:
    handler = at.handler
    return None if handler is None else Cover(handler.target, handler.depth, handler.push_lasti)


class _Writer:
    """The stream of a continuation under construction."""

    def __init__(self, code: CodeType, info: CodeInfo, frame: _Frame, *, is_stub: bool = False) -> None:
        self.code, self.info, self.frame = code, info, frame
        self.flags = code.co_flags & ~(_CO_VARARGS | _CO_VARKEYWORDS | _CO_GENERATOR_STOP)
        if is_stub and self.flags & _CO_GENERATOR:  # a plain function, which ends before the next `yield`
            self.flags = self.flags & ~_CO_GENERATOR | _CO_GENERATOR_STOP
        self.stream: list[Item | Label] = []
        self.consts = list(code.co_consts)
        self.stack_size = code.co_stacksize

    def put(self, op: str, arg: int, at: Instr) -> None:
        self.stream.append(Item(_OP[op], arg, at.positions))

    def put_const(self, value: object, at: Instr) -> None:
        self.put("LOAD_CONST", len(self.consts), at)
        self.consts.append(value)

    def jump(self, to: object, at: Instr) -> None:
        self.stream.append(Item(_OP["JUMP_FORWARD"], 0, at.positions, to=to))

    def physical(self, phys: Phys, at: Instr, to: object = None) -> None:
        """A physical instruction of the origin at its new place; `to` overrides where it jumps."""
        arg = phys.arg
        if phys.kind == LOCAL:
            arg = self.frame.moved[arg]
        elif phys.kind == SHADOW:
            arg = self.frame.shadow[arg]
        target = (phys.arg if to is None else to) if phys.kind == JUMP else None
        self.stream.append(
            Item(phys.opcode, 0 if target is not None else arg, at.positions, _cover(at), target)
        )

    def _open_range(self, at: Instr) -> None:
        """A NOP at the start of an exception range, where a call must not be first in it."""
        cover = _cover(at)
        if (
            cover is None
            or not TABLE.unwinds_from_before
            or self.info.units[at.index][0].opcode == _OP["END_FOR"]
        ):
            return  # FOR_ITER counts the instructions that it skips, of which END_FOR is the first
        before = next((item for item in reversed(self.stream) if isinstance(item, Item)), None)
        if before is None or before.cover != cover:
            self.stream.append(Item(_OP["NOP"], 0, at.positions, cover))

    def prologue(self, layout: FrameLayout, at: Instr) -> None:
        frame = self.frame
        if frame.cells:
            self.put("COPY_FREE_VARS", len(frame.cells), at)
        for name in frame.own_cells:
            self.put("MAKE_CELL", frame.cell[name], at)
            self.put(TABLE.load_cell, frame.given[name], at)
            self.put("STORE_FAST", frame.cell[name], at)
        if self.flags & _CO_GENERATOR:
            self.put("RETURN_GENERATOR", 0, at)
            self.put("POP_TOP", 0, at)
        self.put("RESUME", 0, at)
        if frame.displaced:
            first = self.code.co_varnames[0]
            self.put("LOAD_FAST", 0, at)
            self.put("STORE_FAST", frame.plain[frame.params[0]], at)
            if first in frame.cells:
                self.put("LOAD_DEREF", frame.cell[first], at)
            else:
                self.put("LOAD_FAST", frame.plain[first], at)
            self.put("STORE_FAST", 0, at)
        for slot, live in enumerate(layout.stack):
            if not live:
                self.put("PUSH_NULL", 0, at)
                continue
            for op in TABLE.take_fast:  # the frame's stack alone must keep the value alive
                self.put(op, frame.plain[f".stack{slot}"], at)

    def body(self, kept: frozenset[int]) -> None:
        """The instructions of the origin in `kept`, in their order, labelled by index."""
        for index in sorted(kept):
            self._own(index)

    def handlers(self, inside: list[int], left: dict[int, Stack]) -> None:
        """The handlers that an exception reaches; where they are left, the frame is handed over as it is."""
        for index in sorted([*inside, *left]):
            if self.flags & _CO_GENERATOR_STOP and self.info.instrs[index].op in _LEAVES_GENERATOR:
                raise ContinuationUnsupported("inside a handler in which the generator is left")
            if index in left:
                self.stream.append(Label(index))
                self._hand_over_live(index, left[index])
            else:
                self._own(index)

    def _own(self, index: int) -> None:
        at = self.info.instrs[index]
        self.stream.append(Label(index))
        if index < self.info.entry:
            return  # the prefix has been run: cells exist, free variables are copied
        self._open_range(at)
        for phys in self.info.units[index]:
            self.physical(phys, at)

    def instruction(self, index: int, at: Instr, jump_label: object) -> None:
        """The instruction at which the frame broke, in a form whose NULLs are known beforehand."""
        unit = self.info.units[index]
        self._open_range(at)
        if at.op == "LOAD_METHOD":
            name = unit[-1].arg >> TABLE.attr_shift
            self.physical(Phys(_OP["LOAD_ATTR"], name << TABLE.attr_shift, 0), at)
            self._null_beside(at)
            return
        if at.op == "LOAD_SUPER_ATTR" and at.arg[1]:
            self.physical(Phys(unit[0].opcode, unit[0].arg & ~1, 0), at)
            self._null_beside(at)
            return
        if at.op == "JUMP":
            self.jump(jump_label, at)
            return
        for phys in unit:
            self.physical(phys, at, jump_label if phys.kind == JUMP else None)

    def callee(self, index: int, at: Instr) -> None:
        """The instruction under way: its Callee is called, at the same place."""
        if at.op not in LEADING:
            self.instruction(index, at, None)
            return
        self._open_range(at)
        for op in TABLE.call:
            self.physical(Phys(_OP[op], 0, RAW), at)

    def callee_done(self, at: Instr) -> None:
        """What the instruction under way does with the value on the stack, for control to go where `_after` says."""
        if LEADING.get(at.op) == DROP:
            self.physical(Phys(_OP["POP_TOP"], 0, RAW), at)
        elif leaves_null(at):
            self._null_beside(at)

    def _null_beside(self, at: Instr) -> None:
        self.physical(Phys(_OP["PUSH_NULL"], 0, 0), at)
        if TABLE.null_first:
            self.physical(Phys(_OP["SWAP"], 2, 0), at)

    def hand_over(self, resume: CodeType, layout: FrameLayout, at: Instr) -> None:
        """Returns Handover(resume, globals, closure, locals and stack) to the trampoline."""
        self._store_stack(len(layout.stack), at)
        self._return_call(_frame.hand_over, (resume,), self._live_values(layout), at)

    def hand_over_call(self, way: _Exit, rest: CallRest, at: Instr) -> None:
        """As hand_over, after a call that may have broken again: its value, the last one, says so."""
        if leaves_null(at):
            self._null_beside(at)
        kept = way.layout
        if LEADING.get(at.op) == DROP:
            kept = FrameLayout((*kept.stack, True), kept.locals)
        self._store_stack(len(kept.stack), at)
        ends = LEADING.get(at.op, PUSH) == PUSH and not self.code.co_flags & _CO_GENERATOR
        returned = _returned(self.info, rest.index) if ends else None
        follow = (returned or None) if returned is not None else way.resume
        self._return_call(_frame.hand_over_call, (follow, rest), self._live_values(kept), at)

    def _hand_over_live(self, index: int, stack: Stack) -> None:
        """As hand_over, but which locals are bound is seen when control gets here."""
        at, frame = self.info.instrs[index], self.frame
        self._store_stack(len(stack), at)
        names = self.info.locals
        constants = (
            LiveHandOver(weakref.ref(self.code), index, stack, names),
            tuple(frame.plain[name] for name in names),
            tuple(frame.plain[f".stack{slot}"] for slot, live in enumerate(stack) if live),
            tuple(frame.cell[name] for name in frame.cells),
        )
        self._return_call(_frame.hand_over_live, constants, [], at)
        self.stack_size = max(self.stack_size, len(constants) + 2 + len(stack))

    def _store_stack(self, depth: int, at: Instr) -> None:
        """Puts the values on the stack into the variables that stand for its slots."""
        for slot in reversed(range(depth)):
            self.put("STORE_FAST", self.frame.plain[f".stack{slot}"], at)

    def _live_values(self, layout: FrameLayout) -> list[tuple[str, int]]:
        """The instructions that take all cells, and the locals and stack slots that are live; a traceback may hold
        the frame, and must not hold by it the exception that it belongs to."""
        names = layout.locals + tuple(f".stack{slot}" for slot, live in enumerate(layout.stack) if live)
        loads = [(TABLE.load_cell, self.frame.cell[name]) for name in self.frame.cells]
        return loads + [(op, self.frame.plain[name]) for name in names for op in TABLE.take_fast]

    def _return_call(
        self, function: object, constants: tuple[object, ...], loads: list[tuple[str, int]], at: Instr
    ) -> None:
        """Returns what the function gives for the constants and the loaded values."""
        if TABLE.null_first:
            self.put("PUSH_NULL", 0, at)
        self.put_const(function, at)
        if not TABLE.null_first:
            self.put("PUSH_NULL", 0, at)
        for constant in constants:
            self.put_const(constant, at)
        for op, slot in loads:
            self.put(op, slot, at)
        count = len(constants) + sum(op != "DELETE_FAST" for op, _ in loads)
        for op in TABLE.call:
            self.put(op, count, at)
        self.put("RETURN_VALUE", 0, at)
        self.stack_size = max(self.stack_size, count + 2)

    def finish(self) -> CodeType:
        code, frame = self.code, self.frame
        assembled = assemble(self.stream, code.co_firstlineno)
        return code.replace(
            co_argcount=len(frame.params),
            co_posonlyargcount=len(frame.params),
            co_kwonlyargcount=0,
            co_nlocals=len(frame.varnames),
            co_varnames=frame.varnames,
            co_cellvars=frame.own_cells,
            co_freevars=frame.cells,
            co_flags=self.flags,
            co_consts=tuple(self.consts),
            co_stacksize=self.stack_size + 1,
            co_code=assembled.code,
            co_linetable=assembled.linetable,
            co_exceptiontable=assembled.exceptiontable,
        )


@dataclass(frozen=True, slots=True)
class LiveHandOver:
    """Finds the resume function for a place once it is known which of `names` are bound."""

    code: weakref.ref[CodeType]
    index: int
    stack: Stack
    names: tuple[str, ...]

    def __call__(self, *bound: bool) -> CodeType:
        code = self.code()
        if code is None:
            raise RuntimeError("a function's code was freed while the function ran")
        kept = tuple(name for name, there in zip(self.names, bound, strict=True) if there)
        return resume_code(code, self.index, FrameLayout(self.stack, kept))


@dataclass(frozen=True, slots=True)
class CallRest:
    """Finds, for a call that broke again, the code to go on with and what stands for the call's arguments."""

    code: weakref.ref[CodeType]
    index: int
    layout: FrameLayout
    extra: tuple[object, ...]

    def __call__(self, inner: CodeType) -> tuple[CodeType, tuple[object, ...]]:
        code = self.code()
        if code is None:
            raise RuntimeError("a function's code was freed while the function ran")
        return rest_code(code, self.index, self.layout, inner), self.extra


def _make(kind: str, code: CodeType, index: int, layout: FrameLayout) -> CodeType:
    if kind == "resume":
        return _make_resume(code, index, layout)
    return (_make_call_stub if kind == "call" else _make_stub)(code, index, layout)


def _make_resume(code: CodeType, index: int, layout: FrameLayout) -> CodeType:
    info = decode(code)
    writer = _Writer(code, info, _Frame(code, layout, len(layout.stack)))
    at = info.instrs[index]
    writer.prologue(layout, at)
    kept = reachable(info, (index,))
    if min(kept) < index:
        writer.jump(index, at)
    writer.body(kept)
    made = writer.finish()
    _ORIGIN.set(made, (weakref.ref(code), index, layout))
    return made


def _make_rest(code: CodeType, index: int, layout: FrameLayout) -> CodeType:
    """As _make_resume, where the stack holds a Callee in the place of the operands."""
    info = decode(code)
    writer = _Writer(code, info, _Frame(code, layout, len(layout.stack)))
    at = info.instrs[index]
    writer.prologue(layout, at)
    writer.callee(index, at)
    writer.callee_done(at)
    onward, _ = _after(info, at, layout)
    kept = reachable(info, (onward,) if at.handler is None else (onward, at.handler.target))
    writer.jump(onward, at)
    writer.body(kept)
    return writer.finish()


@dataclass(frozen=True, slots=True)
class _Exit:
    """A successor of the instruction at which the frame broke."""

    jumped: bool
    resume: CodeType
    layout: FrameLayout


def _make_stub(code: CodeType, index: int, layout: FrameLayout) -> CodeType:
    info = decode(code)
    at = info.instrs[index]
    run = _native_run(info, index, bool(code.co_flags & _CO_GENERATOR))
    exits = list(_exits(code, info, run, layout))
    inside, left = handler_region(code, at.handler, layout.stack) if at.handler else ([], {})
    shapes = [layout.stack, *(way.layout.stack for way in exits), *left.values()]
    temps = max(len(shape) for shape in shapes)
    writer = _Writer(code, info, _Frame(code, layout, temps), is_stub=True)
    writer.prologue(layout, at)
    for step in run:
        if step >= info.entry:
            writer.instruction(step, info.instrs[step], "jumped")
    for way in sorted(exits, key=lambda way: way.jumped):
        if way.jumped:
            writer.stream.append(Label("jumped"))
            if at.op == "FOR_ITER":  # skipped by FOR_ITER, needed by its form for generators
                for step in range(at.arg - TABLE.for_iter_skip, at.arg):
                    writer.stream.append(Item(info.units[step][0].opcode, info.units[step][0].arg))
        writer.hand_over(way.resume, way.layout, at)
    writer.handlers(inside, left)
    made = writer.finish()
    _frame.set_skip(made)
    return made


def _make_call_stub(code: CodeType, index: int, layout: FrameLayout) -> CodeType:
    info = decode(code)
    at = info.instrs[index]
    onward, after = _after(info, at, layout)
    inside, left = handler_region(code, at.handler, layout.stack) if at.handler else ([], {})
    temps = max(len(shape) for shape in (layout.stack, after.stack, *left.values())) + 1
    writer = _Writer(code, info, _Frame(code, layout, temps), is_stub=True)
    writer.prologue(layout, at)
    writer.callee(index, at)
    rest = CallRest(weakref.ref(code), index, layout, placeholders(code, index))
    writer.hand_over_call(_Exit(False, resume_code(code, onward, after), after), rest, at)
    writer.handlers(inside, left)
    made = writer.finish()
    _frame.set_skip(made)
    return made


#: What a stub of a generator cannot do in its stead.
_LEAVES_GENERATOR = frozenset(("RETURN_VALUE", "YIELD_VALUE"))
#: What may stand between the instruction at which a frame broke and its return, for the stub to run it all.
_TRIVIAL = frozenset(("NOP", "POP_TOP", "LOAD_CONST", "LOAD_FAST", "STORE_FAST"))


def _native_run(info: CodeInfo, index: int, generates: bool) -> range:
    """The instructions run natively: one, and after it MAKE_CELL where a cell's slot was just emptied.

    A frame that has nothing more to do than to return does that too.
    """
    at = info.instrs[index]
    if at.op == "SAVE_CELL":
        return range(index, index + 2)
    if at.op not in JUMPS and at.op not in NO_FALLTHROUGH and not generates:
        end = index + 1
        while info.instrs[end].op in _TRIVIAL:
            end += 1
        tail = info.instrs[index + 1 : end + 1]
        if tail[-1].op == "RETURN_VALUE" and all(step.handler in (None, at.handler) for step in tail):
            return range(index, end + 1)
    return range(index, index + 1)


def _returned(info: CodeInfo, index: int) -> tuple[object, ...] | None:
    """For a frame that only returns after the call at `index`: (the constant,), or () for the call's value."""
    ahead = [at for at in info.instrs[index + 1 : index + 4] if at.op != "NOP"]
    ops = [at.op for at in ahead]
    if ops[:1] == ["RETURN_VALUE"]:
        return ()
    if ops == ["POP_TOP", "LOAD_CONST", "RETURN_VALUE"]:
        return (ahead[1].arg,)
    return None


def _exits(code: CodeType, info: CodeInfo, run: range, layout: FrameLayout) -> Iterator[_Exit]:
    last = info.instrs[run[-1]]
    for step in run[:-1]:
        layout = _layout_after(info, info.instrs[step], layout, False)
    for target, jumped in successors(last.op, last.arg, last.index):
        after = _layout_after(info, last, layout, jumped)
        yield _Exit(jumped, resume_code(code, target, after), after)


def layout_after(code: CodeType, index: int, layout: FrameLayout, *, jumped: bool = False) -> FrameLayout:
    """The layout once the instruction at `index` has run, on the way on or by its jump.

    LOAD_METHOD and a method's LOAD_SUPER_ATTR leave a NULL and the bound method, as they do in a break stub.
    """
    info = decode(code)
    return _layout_after(info, info.instrs[index], layout, jumped)


def _layout_after(info: CodeInfo, at: Instr, layout: FrameLayout, jumped: bool) -> FrameLayout:
    bound = set(layout.locals)
    stack = stack_after(
        at.op, at.arg, layout.stack, jumped=jumped, bound=at.op == "LOAD_FAST_AND_CLEAR" and at.arg in bound
    )
    if at.op == "STORE_FAST":
        (bound.add if layout.stack[-1] else bound.discard)(at.arg)
    elif at.op in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR"):
        bound.discard(at.arg)
    kept = tuple(name for name in layout.locals if name in bound)
    return FrameLayout(stack, kept + tuple(sorted(bound.difference(kept), key=info.locals.index)))
