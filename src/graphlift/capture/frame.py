"""Symbolic frames: the run loop, exception unwinding, argument binding, inlined calls and generators.

In: code objects (decoded to the canonical instructions) and trackers for their arguments. Out: the returned tracker.
Always: the shadow stack has exactly the slots that the interpreter's stack would have.
"""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any

from ..bytecode import CodeInfo, decode
from .breaks import Break, Exhausted, Raised
from .capture import Capture, describe
from .trackers import NONE, NULL, CellVar, ConstVar, DictVar, FunctionVar, LazyVar, Tracker, TupleVar

RETURN, YIELD, STOP = "return", "yield", "stop"
INLINE_DEPTH_LIMIT = 200
_GENERATOR_FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Frame:
    """One Python frame being executed symbolically."""

    __slots__ = ("cells", "code", "func", "globals_var", "handled", "info", "is_root", "locals", "pc", "stack")

    def __init__(self, code: CodeType, globals_var: DictVar, func: Tracker | None) -> None:
        self.code = code
        self.info: CodeInfo = decode(code)
        self.globals_var = globals_var
        self.func = func
        self.locals: dict[str, Tracker] = {}
        self.cells: dict[str, CellVar] = {}
        self.stack: list[Tracker] = []
        self.handled: list[Tracker] = []
        self.pc = 0
        self.is_root = False

    def push(self, value: Tracker) -> None:
        self.stack.append(value)

    def pop(self) -> Tracker:
        return self.stack.pop()

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

    def trace_line(self) -> str:
        return f'  File "{self.code.co_filename}", line {self.line}, in {self.code.co_qualname}\n'

    def run(self, cap: Capture) -> tuple[str, Tracker | None]:
        """Execute until a return or a yield (or, in the root frame, until the planned break)."""
        from .opcodes import HANDLERS

        instrs = self.info.instrs
        stop_at = cap.break_at if self.is_root else None
        cap.frames.append(self)
        try:
            while True:
                pc = self.pc
                if pc == stop_at:
                    return STOP, None
                instr = instrs[pc]
                handler = HANDLERS.get(instr.op)
                if handler is None:
                    raise Break("unsupported-opcode", instr.op)
                try:
                    signal = handler(cap, self, instr.arg)
                except Raised as raised:
                    self.unwind(raised, instr)
                    continue
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
            if not stop.stack:
                stop.stack = cap.user_stack()
            raise
        finally:
            cap.frames.pop()

    def unwind(self, raised: Raised, instr: Any) -> None:
        """Enter the handler that covers ``instr``, or let the exception leave the frame."""
        handler = instr.handler
        if handler is None:
            raise raised
        del self.stack[handler.depth :]
        if handler.push_lasti:
            self.push(ConstVar(instr.offset))
        self.push(raised.value)
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
    elif len(args) > positional:
        raise cap.raise_(TypeError, f"{name}() takes {positional} positional arguments but {len(args)} were given")
    accepted = set(names[code.co_posonlyargcount : positional]) | set(keyword_only)
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
        raise cap.raise_(TypeError, f"{name}() got an unexpected keyword argument '{next(iter(extra))}'")
    first_default = positional - len(defaults)
    missing = []
    for index, parameter in enumerate(names[:positional]):
        if parameter not in bound:
            if index >= first_default:
                bound[parameter] = defaults[index - first_default]
            else:
                missing.append(parameter)
    for parameter in keyword_only:
        if parameter not in bound:
            if parameter in kwdefaults:
                bound[parameter] = kwdefaults[parameter]
            else:
                missing.append(parameter)
    if missing:
        plural = "s" if len(missing) > 1 else ""
        listed = " and ".join(repr(m) for m in missing)
        raise cap.raise_(TypeError, f"{name}() missing {len(missing)} required positional argument{plural}: {listed}")
    return bound


def call_code(
    cap: Capture, func: Tracker, code: CodeType, globals_var: DictVar, closure: list[CellVar], bound: dict[str, Tracker]
) -> Tracker:
    """Run an inlined Python function to its end (or wrap it up as a generator)."""
    if len(cap.frames) >= INLINE_DEPTH_LIMIT:
        raise Break("inline-limit", f"{code.co_qualname} at depth {len(cap.frames)}")
    frame = Frame(code, globals_var, func)
    frame.locals = bound
    for name, cell in zip(code.co_freevars, closure):
        frame.cells[name] = cell
    if code.co_flags & _GENERATOR_FLAGS:
        if not code.co_flags & inspect.CO_GENERATOR:
            raise Break("generator", f"{code.co_qualname} is a coroutine or an asynchronous generator")
        return GeneratorVar(frame)
    _, result = frame.run(cap)
    assert result is not None
    return result


class IteratorVar(Tracker):
    """An iterator made inside the region. Subclasses define `next` (raises Exhausted)."""

    __slots__ = ()

    def next(self, cap: Capture) -> Tracker:
        raise NotImplementedError


class GeneratorVar(IteratorVar):
    """A generator object: a frame that is resumed at each `next`."""

    __slots__ = ("done", "frame", "result", "started")

    def __init__(self, frame: Frame) -> None:
        self.source = None
        self.frame = frame
        self.started = False
        self.done = False
        self.result: Tracker = NONE

    def next(self, cap: Capture) -> Tracker:
        return self.resume(cap, NONE)

    def resume(self, cap: Capture, sent: Tracker) -> Tracker:
        if self.done:
            raise Exhausted
        if self.started:
            self.frame.push(sent)
        self.started = True
        try:
            signal, value = self.frame.run(cap)
        except Raised:
            self.done = True
            raise
        assert value is not None
        if signal is YIELD:
            return value
        self.done = True
        self.result = value
        raise Exhausted

    def throw(self, cap: Capture, error: Tracker) -> Tracker:
        """Raise ``error`` inside the generator at its suspended yield."""
        if self.done or not self.started:
            self.done = True
            raise Raised(error)
        frame = self.frame
        cap.frames.append(frame)
        frame.pc -= 1
        instr = frame.info.instrs[frame.pc]
        try:
            frame.unwind(Raised(error), instr)
        except Raised:
            self.done = True
            raise
        finally:
            cap.frames.pop()
        return self._continue(cap)

    def _continue(self, cap: Capture) -> Tracker:
        try:
            signal, value = self.frame.run(cap)
        except Raised:
            self.done = True
            raise
        assert value is not None
        if signal is YIELD:
            return value
        self.done = True
        self.result = value
        raise Exhausted


class SeqIter(IteratorVar):
    """Iterator over a tuple or (live) over a list."""

    __slots__ = ("items", "owner", "position", "step")

    def __init__(self, items: list[Tracker], owner: Tracker, position: int = 0) -> None:
        self.source = None
        self.items = items
        self.owner = owner
        self.position = position

    def next(self, cap: Capture) -> Tracker:
        if self.position >= len(self.items):
            raise Exhausted
        item = self.items[self.position]
        if type(item) is LazyVar:
            item = self.items[self.position] = cap.realize(item)
        self.position += 1
        return item


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

    def __init__(self, builtin: Any, parts: list[Tracker], step: Any, extra: dict[str, Any] | None = None) -> None:
        self.source = None
        self.builtin = builtin
        self.parts = parts
        self.step = step
        self.extra = extra or {}

    def next(self, cap: Capture) -> Tracker:
        return self.step(cap, self)


def function_parts(cap: Capture, fn: Tracker) -> tuple[CodeType, DictVar, list[CellVar], list[Tracker], dict[str, Tracker]]:
    """(code, globals, closure, defaults, keyword defaults) of a Python function tracker."""
    from ..guards import Attr, Const, DictItem, SeqItem

    if type(fn) is FunctionVar:
        return fn.code, cap.globals_var(fn.globals_), list(fn.closure), fn.defaults, fn.kwdefaults
    if type(fn) is not ConstVar:
        raise Break("unsupported-call", describe(fn))
    real = fn.value
    source = fn.source or Const(real, real.__qualname__)
    closure = [cap.wrap_cell_of(real, source, i) for i in range(len(real.__closure__ or ()))]
    defaults_source = Attr(source, "__defaults__")
    defaults: list[Tracker] = [LazyVar(v, SeqItem(defaults_source, i)) for i, v in enumerate(real.__defaults__ or ())]
    kw_source = Attr(source, "__kwdefaults__")
    kwdefaults: dict[str, Tracker] = {k: LazyVar(v, DictItem(kw_source, k)) for k, v in (real.__kwdefaults__ or {}).items()}
    return real.__code__, cap.globals_var(real.__globals__), closure, defaults, kwdefaults


def inline(cap: Capture, fn: Tracker, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
    """Call a Python function by executing its bytecode symbolically."""
    code, globals_var, closure, defaults, kwdefaults = function_parts(cap, fn)
    bound = bind(cap, code.co_qualname, code, defaults, kwdefaults, args, kwargs)
    return call_code(cap, fn, code, globals_var, closure, bound)


__all__ = ["NULL", "CallIter", "Frame", "GeneratorVar", "IteratorVar", "RangeIter", "SeqIter", "bind", "inline"]
