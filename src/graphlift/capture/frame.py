"""Symbolic frames: the run loop, exception unwinding, argument binding, inlined calls and generators.

In: code objects (decoded to the canonical instructions) and trackers for their arguments. Out: the returned tracker.
Always: the shadow stack has exactly the slots that the interpreter's stack would have.
"""

from __future__ import annotations

import inspect
import sys
from itertools import pairwise
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from ..bytecode import JUMPS, LEADING, CodeInfo, ResumePoint, decode, origin
from ..data import dataclass
from ..frame import Callee
from ..guards import Attr, Const, DictItem, IdIs, SeqItem, Source
from . import polyfills
from .breaks import Break, Exhausted, Raised, Stopped
from .capture import DIRECT, Capture, Link, NotConst
from .endings import catches_exit
from .trackers import (
    NONE,
    NULL,
    CalleeVar,
    CellVar,
    ConstVar,
    DequeVar,
    DictVar,
    FunctionVar,
    LazyVar,
    SetVar,
    Tracker,
    TrackerKey,
    TupleVar,
    describe,
)

RETURN, YIELD = "return", "yield"
#: Whether SEND pops the exhausted iterator (3.11) or leaves that to END_SEND.
SEND_POPS = sys.version_info < (3, 12)
#: Whether closing a generator gives what it then returns.
CLOSE_GIVES_VALUE = sys.version_info >= (3, 13)
_LIBRARIES = tuple(
    f"{folder}/"
    for folder in (Path(torch.__file__).parent, Path(inspect.__file__).parent, Path(__file__).parents[1])
)
INLINE_DEPTH_LIMIT = 200
_GENERATOR_FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Frame:
    """One Python frame being executed symbolically."""

    __slots__ = (
        "cells",
        "code",
        "delegate",
        "entering",
        "func",
        "globals_var",
        "handled",
        "info",
        "is_root",
        "link",
        "locals",
        "loops",
        "namespace",
        "pc",
        "stack",
        "step",
        "traced",
    )

    def __init__(self, code: CodeType, globals_var: DictVar, func: Tracker | None) -> None:
        self.code = code
        self.info: CodeInfo = decode(code)
        self.globals_var = globals_var
        self.func = func
        self.locals: dict[str, Tracker] = {}
        self.namespace: Tracker | None = None  # of the body of a class
        self.cells: dict[str, CellVar] = {}
        self.loops: dict[
            int, tuple[Tracker, int, int]
        ] = {}  # by depth in the stack: what is looped over, and where
        self.stack: list[Tracker] = []
        self.handled: list[Tracker] = []
        self.delegate: tuple[Tracker, int] | None = (
            None  # the iterator and the SEND of the `yield from` it is in
        )
        self.pc = 0
        self.step = 0
        self.traced = -1, ""
        self.is_root = False
        self.link: Link | None = None  # how the frame below got here, if it can go on with the result
        self.entering = False  # at an operation whose callee was left under way, and not yet in it

    def push(self, value: Tracker) -> None:
        self.stack.append(value)

    def pop(self) -> Tracker:
        return self.stack.pop()

    def is_looped(self, depth: int) -> bool:
        """Whether what is at this depth in the stack is the iterator of a loop, and not an operand."""
        tracker = self.stack[depth]
        if getattr(tracker, "hidden", False):
            return True
        known, start, end = self.loops.get(depth, (None, 0, 0))
        return known is tracker and start <= self.pc < end

    def popn(self, count: int) -> list[Tracker]:
        if count == 0:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    @property
    def line(self) -> int:
        """The user's line being executed."""
        instrs = self.info.instrs
        return instrs[min(self.pc, len(instrs) - 1)].line or self.code.co_firstlineno

    @property
    def is_stand_in(self) -> bool:
        """Whether it is the function that stands for a compiled module, method or object: no code of the user's."""
        real = self.globals_var.real
        return self.is_root and real is not None and real.get("__name__") == "graphlift.api"

    @property
    def is_polyfill(self) -> bool:
        """Whether it stands for a loop of C: it is no frame of the program's."""
        return not self.is_root and self.code.co_filename == polyfills.__file__

    def trace_line(self) -> str:
        """Its line of a traceback; kept until the frame moves on, as each operation of a callee asks for it."""
        pc, text = self.traced
        if pc != self.pc:
            text = f'  File "{self.code.co_filename}", line {self.line}, in {self.code.co_qualname}\n'
            self.traced = self.pc, text
        return text

    def run(self, cap: Capture) -> tuple[str, Tracker | None]:
        """Execute until a return or a yield, or until the capture's planned end."""
        from .opcodes import HANDLERS
        from .opcodes.calls import go_on_in_callee

        instrs = self.info.instrs
        stop_at = cap.stop_at
        cap.frames.append(self)
        try:
            while True:
                pc = self.pc
                step = self.step = cap.step = cap.step + 1
                if step == stop_at:
                    raise Stopped(list(cap.frames))
                instr = instrs[pc]
                handler = go_on_in_callee if self.entering else HANDLERS.get(instr.op)
                if handler is None:
                    raise Break("unsupported-opcode", instr.op)
                try:
                    signal = handler(cap, self, instr.arg)
                except Raised as raised:
                    self.unwind(cap, raised, instr)
                    continue
                except NotConst:
                    raise Break("unsupported-call", f"{instr.op} of a value that is not a constant") from None
                if cap.on_stack:
                    cap.require_taken()
                if signal is None:
                    self.pc = pc + 1
                elif signal is RETURN:
                    return RETURN, self.pop()
                elif signal is YIELD:
                    self.pc = pc + 1
                    return YIELD, self.pop()
                else:
                    self.pc = signal  # a jump target
        except Break as stop:
            cap.signals.append(stop)
            if not stop.stack:
                stop.stack, stop.step = cap.user_stack(), cap.break_step()
            raise
        finally:
            cap.frames.pop()

    def unwind(self, cap: Capture, raised: Raised, instr: Any) -> None:
        """Enter the handler that covers ``instr``, or let the exception leave the frame."""
        cap.signals.append(raised)
        again = instr.op == "RERAISE" or (instr.op == "RAISE_VARARGS" and instr.arg == 0)
        cap.note_raised(raised.value, self, again, not raised.is_placed)
        raised.is_placed = True
        handler = instr.handler
        self.entering = False
        if handler is None:
            raise raised
        del self.stack[handler.depth :]
        if handler.push_lasti:
            self.push(ConstVar(instr.offset))
        self.push(raised.value)
        if cap.mortal:
            cap.require_held()
        self.pc = handler.target


def bind(
    cap: Capture,
    name: str,
    code: CodeType,
    defaults: list[Tracker],
    kwdefaults: dict[str, Tracker],
    args: list[Tracker],
    kwargs: dict[str, Tracker],
) -> dict[str, Tracker]:
    """Bind arguments to parameters as CPython does; raises the TypeError that it would raise."""
    names = code.co_varnames
    positional = code.co_argcount
    keyword_only = names[positional : positional + code.co_kwonlyargcount]
    bound: dict[str, Tracker] = dict(zip(names[:positional], args))
    next_name = positional + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[next_name]] = TupleVar(args[positional:])
        next_name += 1
    if kwargs or code.co_flags & inspect.CO_VARKEYWORDS:
        accepted = {*names[code.co_posonlyargcount : positional], *keyword_only}
        extra: dict[Any, Tracker] = {}
        for key, value in kwargs.items():
            if key not in accepted:
                extra[key] = value
            elif key in bound:
                raise cap.raise_(TypeError, f"{name}() got multiple values for argument '{key}'")
            else:
                bound[key] = value
        if code.co_flags & inspect.CO_VARKEYWORDS:
            bound[names[next_name]] = DictVar(extra)
        elif extra:
            raise cap.raise_(TypeError, _unexpected_keywords(name, code, extra))
    if len(args) > positional and not code.co_flags & inspect.CO_VARARGS:
        raise cap.raise_(TypeError, _too_many_positional(name, code, len(args), len(defaults), bound))
    first_default = positional - len(defaults)
    missing = []
    for index, parameter in enumerate(names[:positional]):
        if parameter not in bound:
            if index >= first_default:
                bound[parameter] = defaults[index - first_default]
            else:
                missing.append(parameter)
    if missing:
        raise cap.raise_(TypeError, _missing_arguments(name, "positional", missing))
    for parameter in keyword_only:
        if parameter not in bound:
            if parameter in kwdefaults:
                bound[parameter] = kwdefaults[parameter]
            else:
                missing.append(parameter)
    if missing:
        raise cap.raise_(TypeError, _missing_arguments(name, "keyword-only", missing))
    return bound


def _unexpected_keywords(name: str, code: CodeType, extra: dict[Any, Tracker]) -> str:
    """The message for keywords that no parameter takes."""
    positional_only = [p for p in code.co_varnames[: code.co_posonlyargcount] if p in extra]
    if positional_only:
        listed = ", ".join(positional_only)
        return f"{name}() got some positional-only arguments passed as keyword arguments: '{listed}'"
    key = next(iter(extra))
    return f"{name}() got an unexpected keyword argument '{key}'{_did_you_mean(code, key)}"


def _did_you_mean(code: CodeType, key: str) -> str:
    """What CPython 3.13 adds where a parameter has a similar name: asked of a function with these parameters."""
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    parameters = ", ".join(name for name in names if name.isidentifier())
    try:
        eval(f"lambda *, {parameters}: 0" if parameters else "lambda: 0")(**{key: None})
    except TypeError as error:
        return str(error).partition(f"'{key}'")[2]
    return ""


def _too_many_positional(
    name: str, code: CodeType, given: int, defaults: int, bound: dict[str, Tracker]
) -> str:
    positional = code.co_argcount
    plural = "s" if defaults or positional != 1 else ""
    takes = f"from {positional - defaults} to {positional}" if defaults else str(positional)
    keyword_only = code.co_varnames[positional : positional + code.co_kwonlyargcount]
    named = sum(parameter in bound for parameter in keyword_only)
    more = ""
    if named:
        more = f" positional argument{'s' if given != 1 else ''} (and {named} keyword-only argument{'s' if named != 1 else ''})"
    return f"{name}() takes {takes} positional argument{plural} but {given}{more} {'was' if given == 1 and not named else 'were'} given"


def _missing_arguments(name: str, kind: str, missing: list[str]) -> str:
    quoted = [repr(parameter) for parameter in missing]
    if len(quoted) > 2:
        listed = f"{', '.join(quoted[:-1])}, and {quoted[-1]}"
    else:
        listed = " and ".join(quoted)
    return (
        f"{name}() missing {len(missing)} required {kind} argument{'s' if len(missing) > 1 else ''}: {listed}"
    )


def call_code(
    cap: Capture,
    func: Tracker,
    code: CodeType,
    globals_var: DictVar,
    closure: list[CellVar],
    bound: dict[str, Tracker],
    link: Link | None = None,
) -> Tracker:
    """Run an inlined Python function to its end (or wrap it up as a generator)."""
    if len(cap.frames) >= INLINE_DEPTH_LIMIT:
        raise Break("inline-limit", f"{code.co_qualname} at depth {len(cap.frames)}")
    if needs_its_frame(code):
        raise Break("frame-introspection", f"{code.co_qualname} {LOOKS_AT_ITSELF}")
    frame = Frame(code, globals_var, func)
    frame.locals = bound
    for name, cell in zip(code.co_freevars, closure):
        frame.cells[name] = cell
    if code.co_flags & _GENERATOR_FLAGS:
        if not code.co_flags & inspect.CO_GENERATOR:
            raise Break("generator", f"{code.co_qualname} is a coroutine or an asynchronous generator")
        made = GeneratorVar(frame, cap.break_step())
        cap.generators.append(made)
        return made
    frame.link = link
    _, result = frame.run(cap)
    assert result is not None
    return result


class IteratorVar(Tracker):
    """An iterator made inside the region. Subclasses define `next` (raises Exhausted).

    ``hidden``: GET_ITER made it, so that the program has no name for it.
    """

    __slots__ = ("hidden",)

    def next(self, cap: Capture) -> Tracker:
        raise NotImplementedError


class GeneratorVar(IteratorVar):
    """A generator object: a frame that is resumed at each `next`; ``born``: the step that made it.

    ``midway``: a break left it running, and the next step goes on from there.
    """

    __slots__ = ("born", "done", "frame", "midway", "running", "started")

    def __init__(self, frame: Frame, born: int) -> None:
        self.source = None
        self.frame = frame
        self.born = born
        self.started = False
        self.running = self.midway = False
        self.done = False

    def next(self, cap: Capture) -> Tracker:
        return self.resume(cap, NONE)

    def resume(self, cap: Capture, sent: Tracker, link: Link | None = None) -> Tracker:
        """Go on with ``sent`` as the value of the suspended yield; raises Exhausted when the generator returns.

        ``link``: whoever resumes it takes the generator itself, where a break leaves it running.
        """
        self.frame.link = link
        if self.running:
            raise cap.raise_(ValueError, "generator already executing")
        if self.done:
            raise Exhausted
        if self.midway:
            self.midway = False
        elif self.started:
            self.frame.push(sent)
        elif not (type(sent) is ConstVar and sent.value is None):
            raise cap.raise_(TypeError, "can't send non-None value to a just-started generator")
        self.started = True
        return self._go_on(cap)

    def throw(self, cap: Capture, error: Tracker) -> Tracker:
        """Raise ``error`` inside the generator at its suspended yield (or in the generator it delegates to)."""
        self.frame.link = None
        if self.running:
            raise cap.raise_(ValueError, "generator already executing")
        if self.done or not self.started:
            self.started = self.done = True
            raise Raised(error)
        frame = self.frame
        if frame.delegate is not None:
            receiver, send_pc = frame.delegate
            if type(receiver) is GeneratorVar:
                try:
                    if issubclass(error.cls, GeneratorExit):  # type: ignore[attr-defined]
                        receiver.close(cap, error)
                    else:
                        return receiver.throw(cap, error)
                except Exhausted as end:
                    frame.push(NONE)  # the value that SEND would have sent
                    frame.pc = finish_send(frame, send_pc, end)
                    return self._go_on(cap)
                except Raised as raised:
                    error = raised.value
            elif not isinstance(receiver, IteratorVar):  # those of C cannot be thrown into
                raise Break(
                    "generator", f"exception thrown into a generator that delegates to {describe(receiver)}"
                )
            frame.delegate = None
        frame.pc -= 1
        try:
            thrown = Raised(error)
            thrown.is_placed = True
            if (
                frame.handled and frame.handled[-1] is not error
            ):  # what the caller handles is no context of it
                error.slots["__context__"] = frame.handled[-1]  # type: ignore[attr-defined]
            frame.push(NONE)  # the value sent: from 3.12 on, what handles a `yield from` finds it there
            frame.unwind(cap, thrown, frame.info.instrs[frame.pc])
        except Raised as raised:
            self.done = True
            raise self._converted(cap, raised) from None
        return self._go_on(cap)

    @property
    def cleans_up(self) -> bool:
        """Whether it is suspended inside a `try` or `with`, whose end the interpreter runs when it drops the generator."""
        if not self.started or self.done or self.running:
            return False
        frame = self.frame
        if (
            frame.delegate is not None
            and type(frame.delegate[0]) is GeneratorVar
            and frame.delegate[0].cleans_up
        ):
            return True
        return catches_exit(frame.info, frame.pc - 1, frame.globals_var.real or {})

    def close(self, cap: Capture, error: Tracker) -> Tracker:
        """``generator.close()``; ``error`` is the GeneratorExit to throw. It gives what the generator returns (3.13+)."""
        if self.done or not self.started:
            self.started = self.done = True
            return NONE
        try:
            self.throw(cap, error)
        except Exhausted as end:
            return end.value if CLOSE_GIVES_VALUE and end.value is not None else NONE
        except Raised as raised:
            if issubclass(raised.value.cls, GeneratorExit):  # type: ignore[attr-defined]
                return NONE
            raise
        raise cap.raise_(RuntimeError, "generator ignored GeneratorExit")

    def _go_on(self, cap: Capture) -> Tracker:
        self.running = True
        try:
            signal, value = self.frame.run(cap)
        except Raised as raised:
            self.done = True
            raise self._converted(cap, raised) from None
        finally:
            self.running = False
        assert value is not None
        if signal is YIELD:
            return value
        self.done = True
        raise Exhausted(value)

    def _converted(self, cap: Capture, raised: Raised) -> Raised:
        error: Any = raised.value
        return stopped_inside(cap, error) if issubclass(error.cls, StopIteration) else raised


def stopped_inside(cap: Capture, error: Tracker) -> Raised:
    """PEP 479: a StopIteration that leaves a generator becomes a RuntimeError."""
    converted = cap.raise_(RuntimeError, "generator raised StopIteration")
    fields = {"__cause__": error, "__context__": error, "__suppress_context__": ConstVar(True)}
    converted.value.slots.update(fields)  # type: ignore[attr-defined]
    return converted


def finish_send(frame: Frame, send_pc: int, end: Exhausted) -> int:
    """The end of the ``yield from`` whose SEND is at ``send_pc``; its receiver and the value sent are on the stack."""
    frame.pop()
    if SEND_POPS:
        frame.pop()
    frame.push(NONE if end.value is None else end.value)
    frame.delegate = None
    return frame.info.instrs[send_pc].arg  # type: ignore[no-any-return]


class SeqIter(IteratorVar):
    """Iterator over a tuple or (live) over a list; once at the end it stays there, whatever is appended."""

    __slots__ = ("done", "items", "owner", "position")

    def __init__(self, items: list[Tracker], owner: Tracker, position: int = 0) -> None:
        self.source = None
        self.items = items
        self.owner = owner
        self.position = position
        self.done = False

    def next(self, cap: Capture) -> Tracker:
        if self.done or self.position >= len(self.items):
            self.done = True
            raise Exhausted
        item = self.items[self.position]
        if type(item) is LazyVar:
            item = self.items[self.position] = cap.realize(item)
        self.position += 1
        return item


@dataclass(frozen=True, slots=True)
class Birth:
    """When an iterator that notices changes was made: the step, and whether the region had changed its container."""

    step: int
    unchanged: bool

    @staticmethod
    def of(cap: Capture, owner: Tracker) -> Birth:
        return Birth(cap.break_step(), id(owner) not in cap.changed)


class SetIter(SeqIter):
    """Iterator over a set; it notices when the set changes its size."""

    __slots__ = ("birth", "watched")

    def __init__(self, cap: Capture, items: list[Tracker], watched: SetVar) -> None:
        super().__init__(items, TupleVar(items))
        self.watched = watched
        self.birth = Birth.of(cap, watched)

    @property
    def as_at_birth(self) -> bool:
        return list(self.watched.known.values()) == self.items

    def next(self, cap: Capture) -> Tracker:
        if not self.done and len(self.watched.known) != len(self.items):
            self.position = len(self.items)
            raise cap.raise_(RuntimeError, "Set changed size during iteration")
        return super().next(cap)


class DequeIter(SeqIter):
    """Iterator over a deque; it notices any change."""

    __slots__ = ("birth", "seen")

    def __init__(self, cap: Capture, owner: DequeVar) -> None:
        super().__init__(owner.items, owner)
        self.seen = list(owner.items)
        self.birth = Birth.of(cap, owner)

    @property
    def as_at_birth(self) -> bool:
        return self.items == self.seen

    def next(self, cap: Capture) -> Tracker:
        now = self.items
        if len(now) != len(self.seen) or any(
            not (a is b or (type(b) is LazyVar and a.source == b.source))
            for a, b in zip(now, self.seen, strict=True)
        ):
            raise cap.raise_(RuntimeError, "deque mutated during iteration")
        return super().next(cap)


class DictIter(IteratorVar):
    """Iterator over a dict or a view of one; it sees new values of old keys, and notices a change of size."""

    __slots__ = ("birth", "done", "keys", "kind", "owner", "position")

    def __init__(self, cap: Capture, owner: DictVar, kind: str) -> None:
        self.source = None
        self.birth = Birth.of(cap, owner)
        self.owner = owner
        self.kind = kind
        self.keys = list(owner.known)
        self.position = 0
        self.done = False

    @property
    def as_at_birth(self) -> bool:
        return list(self.owner.known) == self.keys

    def next(self, cap: Capture) -> Tracker:
        if self.done:
            raise Exhausted
        known = self.owner.known
        if len(known) != len(self.keys):
            self.done = True
            raise cap.raise_(RuntimeError, "dictionary changed size during iteration")
        if self.position >= len(self.keys):
            self.done = True
            raise Exhausted
        key = self.keys[self.position]
        if key not in known:
            raise Break("unsupported-object", "a dictionary whose keys change during iteration")
        self.position += 1
        if self.kind == "keys":
            return key_tracker(cap, key)
        value = known[key]
        if type(value) is LazyVar:
            value = known[key] = cap.realize(value)
        return value if self.kind == "values" else TupleVar([key_tracker(cap, key), value])


def key_tracker(cap: Capture, key: Any) -> Tracker:
    """The tracker of a key of a tracked dictionary or set."""
    return key.tracker if isinstance(key, TrackerKey) else cap.from_python(key)


class RangeIter(IteratorVar):
    """Iterator over a range."""

    __slots__ = ("position", "values")

    def __init__(self, values: range) -> None:
        self.source = None
        self.values = values
        self.position = 0

    def next(self, cap: Capture) -> Tracker:
        if self.position >= len(self.values):
            raise Exhausted
        self.position += 1
        return ConstVar(self.values[self.position - 1])


class CallIter(IteratorVar):
    """zip, map, filter, enumerate, reversed…: items computed by ``step(cap)``; ``rebuild`` names how to make it again."""

    __slots__ = ("builtin", "extra", "parts", "step")

    def __init__(
        self, builtin: Any, parts: list[Tracker], step: Any, extra: dict[str, Any] | None = None
    ) -> None:
        self.source = None
        self.builtin = builtin
        self.parts = parts
        self.step = step
        self.extra = extra or {}

    def next(self, cap: Capture) -> Tracker:
        try:
            return self.step(cap, self)
        except Raised as raised:
            raise (at_end(raised) or raised) from None


def at_end(raised: Raised) -> Exhausted | None:
    """The end that whoever iterates sees in a StopIteration, wherever it was raised."""
    if not issubclass(raised.value.cls, StopIteration):  # type: ignore[attr-defined]
        return None
    args = raised.value.slots.get("args")  # type: ignore[attr-defined]
    return Exhausted(args.items[0] if type(args) is TupleVar and args.items else None)


def is_library_code(code: CodeType) -> bool:
    """Whether the code is torch's, the standard library's or ours: functions whose code nobody replaces."""
    return code.co_filename.startswith(_LIBRARIES) and (
        "-packages/" not in code.co_filename or code.co_filename.startswith(_LIBRARIES[0])
    )


#: Builtins that see the dictionary of a frame's variables, and those of them after which others see a change.
_SEE_VARIABLES = frozenset(("locals", "vars", "dir", "eval", "exec"))
_CHANGE_VARIABLES = frozenset(("locals", "vars", "exec"))
#: Functions that give a frame, whose variables are to be read and (from 3.13 on) written from then on.
_GIVE_FRAMES = frozenset(("_getframe", "currentframe"))
LOOKS_AT_ITSELF = "looks at frames, or several times at the dictionary of its variables"


def needs_its_frame(code: CodeType) -> bool:
    """Whether the code is to run in one frame: it looks at frames, or calls have the dictionary of its variables in common.

    From CPython 3.13 on they have not: each call makes another (PEP 667).
    """
    if not _GIVE_FRAMES.isdisjoint(code.co_names) and not is_library_code(code):
        return True
    if sys.version_info >= (3, 13) or _SEE_VARIABLES.isdisjoint(code.co_names):
        return False
    instrs = decode(code).instrs
    backward = [(at.arg, at.index) for at in instrs if at.op in JUMPS and at.arg < at.index]
    seen: list[str] = []
    for at, after in pairwise(instrs):
        if at.op == "LOAD_GLOBAL" and at.arg in _SEE_VARIABLES:
            if at.arg in ("eval", "exec") or (after.op == "CALL" and not after.arg[0]):
                seen += [at.arg] * (2 if any(to <= at.index < back for to, back in backward) else 1)
    return len(seen) > 1 and not _CHANGE_VARIABLES.isdisjoint(seen)


def function_parts(
    cap: Capture, fn: Tracker
) -> tuple[CodeType, DictVar, list[CellVar], list[Tracker], dict[str, Tracker]]:
    """(code, globals, closure, defaults, keyword defaults) of a Python function tracker."""
    if type(fn) is ConstVar and (made := cap.made.get(id(fn.value))) is not None and made[1] is not None:
        fn = made[1]  # it stands for a function of a class that the region made
    if type(fn) is FunctionVar:
        return fn.code, cap.globals_var(fn.globals_), list(fn.closure), fn.defaults, fn.kwdefaults
    if type(fn) is not ConstVar:
        raise Break("unsupported-call", describe(fn))
    real = fn.value
    source = fn.source or Const(real, real.__qualname__)
    if not is_library_code(real.__code__):
        cap.guard(IdIs(Attr(source, "__code__"), real.__code__))
    closure = [cap.wrap_cell_of(real, source, i) for i in range(len(real.__closure__ or ()))]
    defaults_source = Attr(source, "__defaults__")
    defaults: list[Tracker] = [
        LazyVar(v, SeqItem(defaults_source, i)) for i, v in enumerate(real.__defaults__ or ())
    ]
    kw_source = Attr(source, "__kwdefaults__")
    seen = cap.memo.get(id(real.__kwdefaults__))
    kwdefaults: dict[str, Tracker]
    if type(seen) is DictVar:  # looked at, and perhaps changed
        kwdefaults = {str(k): v for k, v in cap.complete(seen).known.items()}
    else:
        given = real.__kwdefaults__ or {}
        kwdefaults = {k: LazyVar(v, DictItem(kw_source, k)) for k, v in given.items()}
    return real.__code__, cap.globals_var(real.__globals__), closure, defaults, kwdefaults


def enter(
    frame: Frame, point: ResumePoint, values: list[Tracker], cells: list[CellVar], cap: Capture
) -> None:
    """Put a frame where a resume function starts: its parameters are the bound locals and then the live stack."""
    frame.cells = dict(zip((*point.code.co_cellvars, *point.code.co_freevars), cells))
    count = len(point.layout.locals)
    frame.locals = dict(zip(point.layout.locals, values))
    live = iter(values[count:])
    frame.stack = [next(live) if filled else NULL for filled in point.layout.stack]
    frame.pc = point.index
    frame.entering = frame.info.instrs[point.index].op in LEADING and any(
        type(value) is LazyVar and type(value.value) is Callee for value in frame.stack[-2:]
    )
    # What is only stored away, such as a loop's variable, is not looked at, hence not guarded.
    looked_at = len(frame.stack) - (frame.info.instrs[point.index].op in STORES)
    frame.stack[:looked_at] = [
        slot if slot is NULL else cap.realize(slot) for slot in frame.stack[:looked_at]
    ]
    if cap.mortal:
        cap.on_stack |= {key for key in cap.mortal if any(cap.stands_for(slot, key) for slot in frame.stack)}


STORES = frozenset(("STORE_FAST", "STORE_DEREF", "POP_TOP"))


def resume_callee(cap: Capture, callee: CalleeVar, link: Link | None) -> Tracker:
    """Go on in the frame of a call that a break left under way."""
    handover = callee.value.handover
    base = Attr(callee.source, "handover")  # type: ignore[arg-type]
    args, closure = Attr(base, "args"), Attr(base, "closure")
    point, frame = _frame_at(cap, handover.code, handover.globals)
    names = (*point.layout.locals, *(f"stack{i}" for i, filled in enumerate(point.layout.stack) if filled))
    labels = [f"{point.code.co_name}:{name}" for name in names]
    values: list[Tracker] = [
        LazyVar(value, SeqItem(args, i, label))
        for i, (value, label) in enumerate(zip(handover.args, labels, strict=True))
    ]
    cells: list[Any] = [cap.wrap(cell, SeqItem(closure, i)) for i, cell in enumerate(handover.closure or ())]
    steps, attribute = (
        _parts(getattr(callee.value, part) or (), Attr(callee.source, part))  # type: ignore[arg-type]
        for part in ("finish", "attribute")
    )
    frame.link = Link((), attribute, steps) if link is DIRECT else None
    cap.enter_with(handover.args)
    enter(frame, point, values, cells, cap)
    value: Tracker | None
    try:
        value = _left_generator(cap, frame) or frame.run(cap)[1]
    except Raised as raised:
        if not attribute:
            raise
        if len(attribute) == 1:
            if at_end(raised) is None:
                raise
            value, steps = SeqIter([], TupleVar([])), steps[1:]
        else:
            value = _missed(cap, raised, *attribute)
    for index, step in enumerate(steps):
        assert value is not None
        value = _go_on(cap, step, value, steps[index + 1 :], link)
    assert value is not None
    return value


def _left_generator(cap: Capture, frame: Frame) -> GeneratorVar | None:
    """The generator whose frame a break left running: whoever iterated over it asks it again."""
    if not frame.code.co_flags & inspect.CO_GENERATOR:
        return None
    made = GeneratorVar(frame, cap.break_step())
    made.started = made.midway = True
    cap.generators.append(made)
    return made


def _go_on(
    cap: Capture, step: LazyVar, value: Tracker, later: tuple[Tracker, ...], link: Link | None
) -> Tracker:
    """A step that is left to do when a callee is done: a function makes something of the value, or code takes it up."""
    first, *operands = _parts(step.value, step.source)
    if type(first.value) is not CodeType:
        return finished(cap, (first, *operands), value)
    point, frame = _frame_at(cap, first.value, operands[0].value)
    frame.link = Link(steps=later) if link is DIRECT else None
    enter(frame, point, [*operands[1:], value], [], cap)
    made = _left_generator(cap, frame) or frame.run(cap)[1]
    assert made is not None
    return made


def _frame_at(cap: Capture, code: CodeType, globals_: dict[str, Any]) -> tuple[ResumePoint, Frame]:
    point = origin(code)
    if point is None:
        raise Break("unsupported-call", "a call under way in code that is not captured")
    return point, Frame(point.code, cap.globals_var(globals_), None)


def _parts(values: tuple[Any, ...], source: Source) -> tuple[LazyVar, ...]:
    return tuple(LazyVar(part, SeqItem(source, i)) for i, part in enumerate(values))


def finished(cap: Capture, finish: tuple[Tracker, ...], value: Tracker) -> Tracker:
    """What a `Link` makes of the value of its frame."""
    if not finish:
        return value
    from .calls import call

    function, *operands = finish
    return call(cap, function, [*operands, value], {})


def _missed(cap: Capture, raised: Raised, obj: Tracker, name: Tracker, hook: Tracker) -> Tracker:
    """A lookup under way raised; `attribute_missed` in ``frame/_callee.h`` is the same for one that runs natively."""
    from .attributes import get_missed

    return get_missed(cap, raised, cap.realize(obj), cap.value_of(name), cap.value_of(hook))


def _function_name(fn: Tracker, code: CodeType) -> str:
    """The name that CPython's messages about arguments use."""
    if type(fn) is FunctionVar:
        return fn.qualname
    return getattr(getattr(fn, "value", None), "__qualname__", None) or code.co_qualname


def inline(
    cap: Capture,
    fn: Tracker,
    args: list[Tracker],
    kwargs: dict[str, Tracker],
    link: Link | None = None,
) -> Tracker:
    """Call a Python function by executing its bytecode symbolically; ``link``: the instruction can go on with its result."""
    code, globals_var, closure, defaults, kwdefaults = function_parts(cap, fn)
    bound = bind(cap, _function_name(fn, code), code, defaults, kwdefaults, args, kwargs)
    return call_code(cap, fn, code, globals_var, closure, bound, link)
