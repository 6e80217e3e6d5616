"""What is known only when the graph has run: text that shows tensors or numbers that vary, and calls put off until then.

In: tensors, sizes and floats formatted by the program; warnings; calls of `config.reorderable_logging_functions`. Out: text that a region
passes on without looking at it; the calls, in their order, behind the graph. Always: both show tensors as they were when the
program came by: where a tensor is changed later in the region, the region ends before.
"""

from __future__ import annotations

import builtins
import types
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch._tensor_str import PRINT_OPTS

from .. import config
from ..data import dataclass
from ..frame import set_skip
from .breaks import Break, RunEagerly
from .graph import GraphBuilder
from .trackers import (
    NONE,
    ConstVar,
    DictVar,
    FloatVar,
    ListVar,
    ObjectVar,
    OpaqueVar,
    SetVar,
    SizeVar,
    TensorVar,
    Tracker,
    TrackerKey,
    TupleVar,
    describe,
)

if TYPE_CHECKING:
    from .capture import Capture
    from .residual import Residual


# --- tensors as they were --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A tensor as it was at a step."""

    tensor: TensorVar
    version: int
    step: int

    def check(self) -> None:
        """Raises: RunEagerly where it has been changed since."""
        if self.tensor.fake._version != self.version:
            raise RunEagerly(
                "print-or-io", "a tensor that is shown, and changed afterwards", earlier=self.step
            )


def seen(cap: Capture, tensor: TensorVar) -> Seen:
    if type(cap.builder) is not GraphBuilder or tensor.fake.is_inference():
        raise Break("print-or-io", "a tensor shown in an inner function, or in inference mode")
    options = cap.memo.get(id(PRINT_OPTS))
    if type(options) is ObjectVar and options.attrs.log:
        raise Break("print-or-io", "a tensor shown after a change of how tensors are shown")
    return Seen(tensor, tensor.fake._version, cap.break_step())


LATE_TEXT = "tensor-item"  # the reason of breaks where a program looks into such a text

# --- text ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """``fn(shown, *args)``: text; `seen`: the tensor that is shown, as it was."""

    fn: Any
    shown: Tracker
    seen: Seen | None
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class LateText:
    """Text known when the graph has run."""

    tracker: OpaqueVar
    parts: tuple[str | Shown | OpaqueVar, ...]


def show(cap: Capture, fn: Any, tensor: TensorVar, *args: str) -> Tracker:
    """The text of a tensor."""
    return _late(cap, (Shown(fn, tensor, seen(cap, tensor), args),))


def varies(cap: Capture, tracker: Tracker) -> bool:
    """Whether it is a number that varies, or a plain tuple or `torch.Size` with one, whose text can be made late."""
    if type(tracker) is ObjectVar and tracker.cls is torch.Size and tracker.payload is not None:
        tracker = tracker.payload
    if type(tracker) is TupleVar:
        items = [cap.realize(item) for item in tracker.items]
        return any(varies(cap, i) for i in items) and all(
            type(i) is ConstVar or varies(cap, i) for i in items
        )
    return type(tracker) in (SizeVar, FloatVar) and type(cap.builder) is GraphBuilder


def show_number(cap: Capture, fn: Any, number: Tracker, *args: str) -> Tracker:
    """The text of what `varies`."""
    return _late(cap, (Shown(fn, number, None, args),))


def know_numbers(cap: Capture) -> None:
    """The program looks into a text: the numbers that texts show become the ones of this call, but those that only each
    call knows. Raises: Solved."""
    for late in cap.texts.values():
        for part in late.parts:
            if type(part) is Shown and part.seen is None:
                with suppress(Break):
                    cap.value_of(part.shown)


def _late(cap: Capture, parts: tuple[str | Shown | OpaqueVar, ...]) -> OpaqueVar:
    made = OpaqueVar("", None, LATE_TEXT, "what the text of a tensor says")
    cap.texts[id(made)] = LateText(made, parts)
    return made


def is_late(cap: Capture, tracker: Tracker) -> bool:
    """Whether it is text that capture does not know: made behind the graph, or one that varies and is passed on."""
    return id(tracker) in cap.texts or is_passed_on(tracker)


def is_passed_on(tracker: Tracker) -> bool:
    return type(tracker) is OpaqueVar and type(tracker.value) is str and tracker.source is not None


def join(cap: Capture, pieces: list[Tracker]) -> Tracker:
    """The pieces of an f-string as one."""
    parts: list[str | Shown | OpaqueVar] = []
    for piece in map(cap.realize, pieces):
        late = cap.texts.get(id(piece))
        if late is not None:
            parts += late.parts
        else:
            parts.append(piece if is_passed_on(piece) else cap.value_of(piece))  # type: ignore[arg-type]
    if all(type(part) is str for part in parts):
        return ConstVar("".join(parts))  # type: ignore[arg-type]
    return _late(cap, tuple(parts))


def text(residual: Residual, late: LateText) -> str:
    """The expression that makes the text."""
    found = []
    for part in late.parts:
        if isinstance(part, str):
            found.append(repr(part))
            continue
        if isinstance(part, OpaqueVar):
            found.append(residual.expr(part))
            continue
        if part.seen is not None:
            part.seen.check()
        given = ", ".join([residual.expr(part.shown), *map(repr, part.args)])
        found.append(f"{residual.constant(part.fn)}({given})")
    return f"({' + '.join(found)})"


# --- calls put off ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PutOff:
    """A call behind the graph. `places`: file, name, line and globals of the frames that lead to it, the root first."""

    fn: Any
    args: tuple[Tracker, ...]
    kwargs: dict[str, Tracker]
    tensors: tuple[Seen, ...]
    places: tuple[tuple[str, str, str, int, dict[str, Any]], ...]

    def line(self, residual: Residual) -> str:
        for tensor in self.tensors:
            tensor.check()
        args = "".join(f"{residual.expr(arg)}, " for arg in self.args)
        kwargs = ", ".join(f"{name!r}: {residual.expr(arg)}" for name, arg in self.kwargs.items())
        fn, args, kwargs = residual.constant(self.fn), f"({args})", f"{{{kwargs}}}"
        for place in reversed(self.places):
            name = residual.constant(_passing(place), "passing")
            fn, args, kwargs = name, f"({fn}, {args}, {kwargs})", "{}"
        return f"{fn}(*{args})"


def _passing(place: tuple[str, str, str, int, dict[str, Any]]) -> types.FunctionType:
    """A function that only calls, and that looks to warnings and loggers like the user's at this line."""
    filename, name, qualname, line, globals_ = place
    code = (lambda fn, args, kwargs: fn(*args, **kwargs)).__code__
    there = code.replace(co_filename=filename, co_name=name, co_qualname=qualname, co_firstlineno=line)
    set_skip(there)  # it looks like the user's, but is none of what is captured
    return types.FunctionType(there, globals_)


def is_reorderable(value: Any, args: list[Tracker]) -> bool:
    """Whether a call is one that the user lets be put off."""
    for allowed in config.reorderable_logging_functions:
        if allowed is value:
            return True
        if isinstance(allowed, types.MethodType) and allowed.__func__ is value and args:
            receiver = args[0]
            if getattr(receiver, "obj", getattr(receiver, "value", None)) is allowed.__self__:
                return True
    return False


def put_off(cap: Capture, value: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
    """Note the call for after the graph."""
    if type(cap.builder) is not GraphBuilder:
        raise Break("print-or-io", f"call of {value.__qualname__} in an inner function")
    if value is not builtins.print and cap.handled() is not None:
        raise Break(
            "print-or-io", f"call of {value.__qualname__} where an exception is handled, which it may show"
        )
    level = kwargs.get("stacklevel") or (args[2] if value is warnings.warn and len(args) > 2 else ConstVar(1))
    if cap.value_of(level) > len(cap.frames):
        raise Break("print-or-io", f"call of {value.__qualname__} that names a caller outside of the region")
    tensors: list[Seen] = []
    given = tuple(_as_it_is(cap, arg, tensors, value is builtins.print) for arg in args)
    named = {name: _as_it_is(cap, arg, tensors, False) for name, arg in kwargs.items()}
    places = tuple(
        (f.code.co_filename, f.code.co_name, f.code.co_qualname, f.line, f.globals_var.real)
        for f in cap.frames
        if not f.is_stand_in
    )
    cap.put_off.append(PutOff(value, given, named, tuple(tensors), places))
    return NONE


def put_off_warning(cap: Capture, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
    """A warning behind the graph: calls where more may come of it than that it is shown run eagerly."""
    category = cap.realize(args[1] if len(args) > 1 else kwargs.get("category", NONE))
    kind = UserWarning if category is NONE else getattr(category, "value", None)
    if not isinstance(kind, type) or not issubclass(kind, Warning):
        raise Break("print-or-io", "call of warn with a category that is not known", at_once=True)
    registries = [f.globals_var.real.get("__warningregistry__") for f in cap.frames]
    for settings in (warnings, vars(warnings), warnings.filters, *registries):
        tracker = cap.memo.get(id(settings))
        if any(id(part) in cap.changed for part in (tracker, getattr(tracker, "attrs", None))):
            raise Break("print-or-io", "call of warn after a change of what is shown")
    where = cap.user_stack()
    put_off(cap, warnings.warn, args, kwargs)
    if cap.unsafe is None:
        cap.unsafe = cap.step, where, "print-or-io", "call of warn before operators that cannot run again"
    if (check := MayAct(kind)) not in cap.repeated:
        cap.repeated.append(check)
    return NONE


@dataclass(frozen=True, slots=True)
class MayAct:
    """Before the graph: whether a warning of this kind may do more than be shown in this call."""

    kind: type[Warning]

    def before(self, residual: Residual, eagerly: str) -> str:
        return f"if {residual.constant(may_act)}({residual.constant(self.kind)}): return {eagerly}"

    def after(self, residual: Residual) -> str:
        return ""


def may_act(kind: type[Warning]) -> bool:
    """Whether a filter could make an exception of a warning, or something other than stderr gets it."""
    shows, writes = warnings.showwarning, warnings._showwarnmsg_impl  # type: ignore[attr-defined]
    if shows is not warnings._showwarning_orig or type(writes) is not types.FunctionType:  # type: ignore[attr-defined]
        return True
    for action, message, of, module, line in warnings.filters:
        if issubclass(kind, of):
            if action == "error":
                return True
            if message is None and module is None and line == 0:
                return False
    return warnings.defaultaction == "error"  # type: ignore[attr-defined]


def _as_it_is(cap: Capture, tracker: Tracker, tensors: list[Seen], is_printed: bool) -> Tracker:
    """A tracker of the value as it is now, which later changes of containers do not reach."""
    tracker = cap.realize(tracker)
    kind = type(tracker)
    if kind is TensorVar:
        tensors.append(seen(cap, tracker))  # type: ignore[arg-type]
        return tracker
    if kind in (ConstVar, SizeVar, FloatVar) or is_late(cap, tracker):
        return tracker
    if kind in (ListVar, TupleVar):
        items = [_as_it_is(cap, item, tensors, False) for item in tracker.items]  # type: ignore[attr-defined]
        return kind(items)
    if kind is DictVar:
        known = cap.complete(tracker).known  # type: ignore[arg-type]
        if not any(isinstance(key, TrackerKey) for key in known):
            held = {key: _as_it_is(cap, item, tensors, False) for key, item in known.items()}
            return DictVar(held, cls=tracker.cls)  # type: ignore[attr-defined]
    if kind is SetVar and not any(isinstance(key, TrackerKey) for key in tracker.known):  # type: ignore[attr-defined]
        return SetVar(dict(tracker.known), tracker.cls)  # type: ignore[attr-defined]
    if kind is ObjectVar and tracker.source is not None and not is_printed:
        return tracker  # such as a logger
    if is_printed:
        from .calls import call

        return call(cap, ConstVar(str), [tracker], {})
    raise Break("print-or-io", f"a {describe(tracker)} given to a call that is to be put off")
