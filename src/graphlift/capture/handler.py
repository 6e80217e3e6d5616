"""The frame handler: decides what is captured, runs a capture to a region, and is the boundary for our own faults.

In: a function, its arguments, how many entries it has already. Out: (check, replacement), SKIP, FROZEN or None.
Always: whatever goes wrong inside, the frame runs eagerly and the reason is reported (strict mode raises).
"""

from __future__ import annotations

import gc
import inspect
import itertools
import operator
import re
import sysconfig
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .. import config
from ..bytecode import (
    ContinuationUnsupported,
    FrameLayout,
    break_stub,
    call_stub,
    code_after,
    decode,
    origin,
    placeholders,
    read_after,
)
from ..collector import collector_paused
from ..errors import GraphBreakError, GraphliftError
from ..fake import is_view_of_leaf
from ..frame import (
    FROZEN,
    SKIP,
    Callee,
    Disabled,
    Handover,
    call_disabled,
    current_owner,
    entries,
    entry_count,
)
from ..frame.headroom import deep_recursion
from ..guards import (
    Arg,
    Call,
    Const,
    DistinctTensors,
    Func,
    NoOverlap,
    SizeRelation,
    Source,
    StorageOffset,
    TensorSize,
    compile_guards,
    gives,
)
from ..guards.changes import Change, changes
from ..options import CompileEvent, CompileOptions
from ..shapes.expr import Real, free
from ..shapes.table import Known, Refused, Solved, SymbolTable, in_range
from ..timing import stage
from ..uncompiled import LAZY, before_lazy
from . import (  # noqa: F401  (they fill the table of rules)
    autograd_rules,
    builtin_rules,
    cached_functions,
    checkpoint_rules,
    class_rules,
    container_rules,
    exception_rules,
    function_rules,
    iterator_rules,
    itertools_rules,
    library_rules,
    nested_rules,
    number_rules,
    numpy_rules,
    operator_calls,
    operator_rules,
    optim_rules,
    override_rules,
    private,
    script_rules,
    size_rules,
    tensor_attributes,
    text_rules,
    torch_rules,
    transform_rules,
    weak_rules,
)
from .attributes import python_type
from .breaks import Break, Raised, RunEagerly, Stopped
from .calls import is_opaque
from .capture import Capture
from .draws import saved_states
from .dynamic import FrameHistory, SizeHistory, SizePolicy
from .frame import LOOKS_AT_ITSELF, Frame, enter, needs_its_frame
from .overriding import handlers_act, handlers_off, modes_aside, plain_tensor, unseen, untouched
from .real_rules import real_guards
from .reasons import BreakReason, StackFrame
from .region import Region
from .reordered import LATE_TEXT, know_numbers
from .rerun import draws, may_run_again, run_again
from .residual import Residual, build_function
from .torch_contexts import changed_facts, protected
from .torch_state import StateSnapshot, casts, foreign_mode
from .trackers import NULL, CellVar, DequeVar, DictVar, LazyVar, ListVar, ObjectVar, SetVar, Tracker
from .varying import varying_values

_PACKAGE = str(Path(__file__).resolve().parents[1])
_TORCH = str(Path(torch.__file__).resolve().parent)
_NUMPY = str(Path(np.__file__).resolve().parent)
_STDLIB = sysconfig.get_paths()["stdlib"]
_SKIPPED_DIRS = (_PACKAGE + "/", _TORCH + "/", _STDLIB + "/")
_CAPTURED_TORCH = ("/nn/modules/", "/nn/utils/", "/optim/")
_NEVER_ROOTS = ("/nn/modules/module.py", "/nn/modules/lazy.py")
MAX_RESTARTS = 1000


def is_skipped_file(filename: str) -> bool:
    """Whether frames of a file always run as they are."""
    if filename.startswith("<") and not filename.startswith(("<ipython", "<stdin", "<doctest", "<captured")):
        return True
    if filename.startswith(_NUMPY + "/"):
        return True
    if not filename.startswith(_SKIPPED_DIRS):
        return False
    if filename.startswith(_STDLIB + "/site-packages") or filename.startswith(_STDLIB + "/dist-packages"):
        pass
    elif not filename.startswith((_PACKAGE + "/", _TORCH + "/")):
        return True
    if filename.startswith(_TORCH + "/"):
        rest = filename[len(_TORCH) :]
        return not rest.startswith(_CAPTURED_TORCH) or rest.startswith(_NEVER_ROOTS)
    return filename.startswith(_PACKAGE + "/")


def _called_at_any_time(func: types.FunctionType) -> bool:
    """Whether the garbage collector calls it, from wherever it happens to run: no part of what the user compiles."""
    return func.__name__ == "__del__" or any(getattr(each, "__func__", each) is func for each in gc.callbacks)


def argument_names(code: types.CodeType) -> list[str]:
    """Names of the arguments in the order of the frame's local variables."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return list(code.co_varnames[:count])


def make_handler(options: CompileOptions) -> Callable[[types.FunctionType, tuple[Any, ...], int], Any]:
    """The handler of one compiled callable."""
    fruitless: dict[types.CodeType, int] = {}
    sizes = SizeHistory()

    def handler(func: types.FunctionType, args: tuple[Any, ...], recompiles: int) -> Any:
        code = func.__code__
        point = origin(code)
        if (
            point is None
            and (is_skipped_file(code.co_filename) or is_opaque(func.__globals__.get("__name__", "")))
            and getattr(current_owner(), "__wrapped__", None) is not func
        ):
            return SKIP
        if point is None and _called_at_any_time(func):
            return SKIP
        if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or of a class
            return SKIP
        mode = foreign_mode()
        if mode is not None:
            reason = BreakReason("unsupported-tensor-subclass", mode, code.co_filename, code.co_firstlineno)
            _event(options, "skip", func, str(reason), reason)
            return None
        lazy = before_lazy(func)
        if lazy is not None:
            reason = BreakReason("unsupported-call", LAZY, code.co_filename, code.co_firstlineno)
            _event(options, "skip", func, str(reason), reason)
            return lazy
        for flag, versions in (
            ("cache_size_limit", recompiles),
            ("accumulated_cache_size_limit", entry_count(code)),
        ):
            if versions >= getattr(config, flag):
                return _at_limit(options, func, args, versions, flag)
        if recompiles:
            _report_recompile(options, func, args, recompiles)
        try:
            with collector_paused(), deep_recursion(), handlers_off():
                varying = varying_values(func, args) if recompiles else frozenset()
                region = capture_region(func, args, options, varying, sizes.of(code))
        except _Eager as eager:
            _event(options, "skip", func, str(eager.reason), eager.reason)
            return SKIP if eager.permanent else None
        except GraphliftError:
            raise
        except Exception as error:
            if config.strict:
                raise
            reason = BreakReason(
                "internal-error", f"{type(error).__name__}: {error}", code.co_filename, code.co_firstlineno
            )
            _event(options, "internal_error", func, str(reason), reason)
            return SKIP  # tried again, it would fail and say so at every call
        if region.op_count == 0 and region.break_reason is None:
            fruitless[code] = fruitless.get(code, 0) + 1
            if fruitless[code] > 2 and region.kind != "resume":
                return SKIP
        options.region(region)
        if config.strict and region.check(func, *args) is None:
            failed = region.check.explain_failure(func, *args)
            raise AssertionError(f"{region.fn_name}: guards fail for the call they were made for: {failed}")
        return region.check, region.replacement

    return handler


class _Eager(Exception):
    """The frame runs eagerly; ``permanent`` says that it always will."""

    def __init__(self, reason: BreakReason, permanent: bool) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.permanent = permanent


def _event(
    options: CompileOptions,
    kind: Any,
    func: types.FunctionType,
    message: str,
    reason: BreakReason | None = None,
    changes: tuple[Change, ...] = (),
) -> None:
    code = func.__code__
    options.event(
        CompileEvent(kind, code.co_qualname, code.co_filename, code.co_firstlineno, message, reason, changes)
    )


def _failure(func: types.FunctionType, args: tuple[Any, ...]) -> tuple[str, tuple[Change, ...]]:
    """Why the entry of the function that was used last does not fit this call."""
    for check, _ in entries(func.__code__):
        return check.explain_failure(func, *args), tuple(changes(check, func, args))
    return "", ()


def _report_recompile(
    options: CompileOptions, func: types.FunctionType, args: tuple[Any, ...], recompiles: int
) -> None:
    failure, changed = _failure(func, args)
    remedy = f"; {changed[0].remedy}" if changed else ""
    _event(options, "recompile", func, f"{failure}{remedy}" or "no entry's guards hold", changes=changed)


def _at_limit(
    options: CompileOptions, func: types.FunctionType, args: tuple[Any, ...], versions: int, flag: str
) -> Any:
    code = func.__code__
    failure, changed = _failure(func, args)
    detail = failure or "its guards keep failing"
    reason = BreakReason("cache-limit", detail, code.co_filename, code.co_firstlineno)
    text = (
        f"graphlift: {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) has {versions} compiled versions, the limit "
        f"(graphlift.config.{flag}); further calls that fit none run eagerly. Last failed guard: {detail}"
        + (f". Remedy: {changed[0].remedy}" if changed else "")
    )
    # Shown at the user's function, like the warnings of its own code.
    module = func.__globals__.get("__name__")
    warnings.warn_explicit(
        text,
        RuntimeWarning,
        code.co_filename,
        code.co_firstlineno,
        module if isinstance(module, str) else None,
    )
    _event(options, "cache_limit", func, str(reason), reason, changed)
    return FROZEN


# --- one region -----------------------------------------------------------------------------------------------------------


def capture_region(
    func: types.FunctionType,
    args: tuple[Any, ...],
    options: CompileOptions,
    varying: frozenset[Source] = frozenset(),
    history: FrameHistory | None = None,
) -> Region:
    """Capture a frame up to its end or its first break, compile the graph, write the replacement.

    Where the program fixes a size that was to vary, the capture is made again with that known.
    """
    static = history is None or getattr(options.backend, "static_sizes", False)
    policy = None if static else SizePolicy(history, options.dynamic)
    known = Known()
    for _ in range(MAX_RESTARTS):
        try:
            sizes = SymbolTable(known)
            region = _capture_with(func, args, options, varying, sizes, policy)
        except Solved:
            continue
        except Refused as refused:
            raise refused.error from None
        except (GraphliftError, _Eager):
            raise
        except Exception as error:
            if config.strict or policy is None or not policy.allowed or not known.symbols:
                raise
            text = f"compiled for these sizes only: with sizes that vary, {type(error).__name__}: {error}"
            _event(options, "fallback", func, text)
            policy.allowed, known = False, Known()
            continue
        finally:
            for fixed in policy.learn(sizes) if policy is not None else ():
                _event(options, "fixed_size", func, fixed)
        return region
    raise RuntimeError(f"capture of {func.__qualname__} restarted {MAX_RESTARTS} times over its sizes")


def _capture_with(
    func: types.FunctionType,
    args: tuple[Any, ...],
    options: CompileOptions,
    varying: frozenset[Source],
    sizes: SymbolTable,
    policy: SizePolicy | None,
) -> Region:
    """One attempt, with what is known of the sizes. Raises: Solved."""
    attempts: list[Capture] = []
    try:
        return _captured(func, args, options, varying, sizes, policy, attempts)
    finally:
        for cap in attempts:
            cap.release()


def _captured(
    func: types.FunctionType,
    args: tuple[Any, ...],
    options: CompileOptions,
    varying: frozenset[Source],
    sizes: SymbolTable,
    policy: SizePolicy | None,
    attempts: list[Capture],
) -> Region:
    start = time.perf_counter()
    stop_at: int | None = None
    reason: BreakReason | None = None
    for _ in range(MAX_RESTARTS):
        try:
            cap, end, broke = _execute(func, args, stop_at, varying, sizes.again(), policy, attempts)
            if broke is not None:
                stop_at, reason = cap.step, broke
                if options.fullgraph:
                    raise _Restart(stop_at, reason)
            if cap.size_sources:
                cap.builder.place_sizes(cap.sizes, cap.size_sources)
            residual = Residual(cap)
            try:
                _require_unchanged(cap, end)
                tail = _tail(residual, end)
            except (RunEagerly, ContinuationUnsupported) as problem:
                raise _further_out(problem, func, end, reason, stop_at) from None
            why = None if isinstance(end, Tracker) else reason
            return _finish(func, args, options, residual, tail, why, time.perf_counter() - start)
        except _Restart as restart:
            stop_at, reason = restart.step, restart.reason
            if options.fullgraph:
                raise GraphBreakError.from_reason(reason) from None
    raise RuntimeError(f"capture of {func.__qualname__} restarted {MAX_RESTARTS} times")


def _require_unchanged(cap: Capture, end: _End) -> None:
    """Raises: RunEagerly where a backward or a hook will meet other variables than when it was captured."""
    for what, contents, step in cap.looked_at:
        if contents.changed() or (isinstance(end, list) and contents.has_cell(end)):
            detail = f"{what} looks at variables that change before it is called"
            raise RunEagerly("unsupported-call", detail, earlier=step)


class _Restart(Exception):
    """The capture is to be made again and to end at ``step``."""

    def __init__(self, step: int, reason: BreakReason) -> None:
        super().__init__(step)
        self.step = step
        self.reason = reason


def _further_out(
    problem: RunEagerly | ContinuationUnsupported,
    func: types.FunctionType,
    end: _End,
    reason: BreakReason | None,
    stop_at: int | None,
) -> Exception:
    """What follows when the frames cannot be left where the capture ended: it ends earlier, or the frame runs eagerly."""
    frames = end if isinstance(end, list) else []
    earlier = getattr(problem, "earlier", None)
    if (earlier is None or earlier == stop_at) and len(frames) > 1:
        return _Restart(frames[-2].step, reason)  # type: ignore[arg-type]
    why = _eager_reason(problem, func, reason if frames else None)
    if earlier is None or earlier == stop_at:
        return _Eager(why, permanent=True)
    return _Restart(earlier, why)


#: How a capture ended: with what the root frame returns, or with live frames, the root first.
_End: TypeAlias = "Tracker | list[Frame]"


def _execute(
    func: types.FunctionType,
    args: tuple[Any, ...],
    stop_at: int | None,
    varying: frozenset[Source],
    sizes: SymbolTable,
    policy: SizePolicy | None,
    attempts: list[Capture],
) -> tuple[Capture, _End, BreakReason | None]:
    """Runs the frame to its end, to the planned one, or to a break that needs no new run (then with its reason)."""
    cap = Capture(func, stop_at, varying, sizes, policy)
    attempts.append(cap)
    snapshot = StateSnapshot()
    frame = _root_frame(cap, func, args)
    rng = torch.get_rng_state()
    end: _End
    reason: BreakReason | None = None
    try:
        try:
            with modes_aside():
                _, end = frame.run(cap)  # type: ignore[assignment]
        except Stopped as stopped:
            end = stopped.frames
        except Break as stop:
            if not stop.frames or stop.step != cap.step:
                raise
            if stop.code == LATE_TEXT:
                know_numbers(cap)
            end, reason = stop.frames, _reason(stop.code, stop.detail, stop.stack, frame)
        cap.restore_calls = snapshot.restoring_calls(cap.state_log)
        return cap, end, reason
    except Break as stop:
        if stop.code == LATE_TEXT:
            know_numbers(cap)
        raise _Restart(stop.step, _reason(stop.code, stop.detail, stop.stack, frame)) from None
    except Raised as raised:
        detail = f"{python_type(raised.value).__name__} leaves the function"
        step, stack, _ = cap.raise_points[id(raised.value)]
        raise _Restart(step, _reason("exception-raised", detail, stack, frame)) from None
    finally:
        while cap.closers:
            cap.closers.pop()()
        for fn, call_args in snapshot.restoring_calls(cap.state_log):
            fn(*call_args)
        torch.set_rng_state(rng)


_STACK_LINE = re.compile(r'  File "(.*)", line (\d+), in (.*)')


def _reason(code: str, detail: str, stack: str, frame: Frame | None) -> BreakReason:
    frames = tuple(StackFrame(m[1], int(m[2]), m[3]) for m in map(_STACK_LINE.match, stack.splitlines()) if m)
    if not frames and frame is not None:
        frames = (StackFrame(frame.code.co_filename, frame.line, frame.code.co_qualname),)
    user = [
        f for f in frames if not f.filename.startswith((_TORCH + "/", _STDLIB + "/lib", _PACKAGE + "/"))
    ] or list(frames)
    return BreakReason(code, detail, user[-1].filename, user[-1].lineno, frames)


def _root_frame(cap: Capture, func: types.FunctionType, args: tuple[Any, ...]) -> Frame:
    code = func.__code__
    point = origin(code)
    if point is None and needs_its_frame(code):
        detail = f"{code.co_qualname} {LOOKS_AT_ITSELF}"
        raise _Eager(
            BreakReason("frame-introspection", detail, code.co_filename, code.co_firstlineno), permanent=True
        )
    names = argument_names(code)
    values: list[Tracker] = [
        LazyVar(value, Arg(i, name.lstrip("."))) for i, (name, value) in enumerate(zip(names, args))
    ]
    globals_var = cap.globals_var(func.__globals__)
    frame = Frame(point.code if point else code, globals_var, None)
    frame.is_root = True
    cap.enter_with(args)
    cells: list[CellVar] = [cap.wrap_cell_of(func, Func(), i) for i in range(len(func.__closure__ or ()))]
    if point is None:
        frame.locals = dict(zip(names, values))
        frame.cells = dict(zip(code.co_freevars, cells))
        return frame
    enter(frame, point, values, cells, cap)
    return frame


def _finish(
    func: types.FunctionType,
    args: tuple[Any, ...],
    options: CompileOptions,
    residual: Residual,
    tail: str,
    reason: BreakReason | None,
    capture_seconds: float,
) -> Region:
    """From a finished capture to a region: replacement, graph, backend, guards."""
    code, cap = func.__code__, residual.cap
    gm = None
    compiled = None
    timings = {"capture": capture_seconds}
    head: list[str] = []
    params = [f"a{i}_{re.sub(r'[^0-9a-zA-Z_]', '_', name)}" for i, name in enumerate(argument_names(code))]
    drawn = [draw.line(residual) for draw in cap.draws.values()]
    before: list[str] = []
    after: list[str] = []
    if cap.repeated:  # what they load comes behind the graph's inputs
        eagerly = f"{residual.constant(call_disabled)}({', '.join(('__func', *_as_arguments(code, params)))})"
        before = [text for call in cap.repeated if (text := call.before(residual, eagerly))]
        after = [text for call in cap.repeated if (text := call.after(residual))]
    if cap.builder.op_count or residual.outputs:
        gm = cap.builder.finish(residual.outputs, cap.restore_calls)
        # Compiled, it would have one node in autograd's graph; the program is about to look at eager's.
        gm.meta["history_read"] = reason is not None and reason.code == "grad-fn-read"
        start = time.perf_counter()
        examples = [plain_tensor(t) for t in cap.builder.input_tensors]
        compiled = options.backend(gm, [*examples, *cap.builder.size_hints, *cap.builder.drawn_hints])
        timings["backend"] = time.perf_counter() - start
        again = may_run_again(cap.builder, getattr(compiled, "writes_last", False))
        if cap.unsafe is not None and not again:
            step, stack, why, detail = cap.unsafe
            raise _Restart(step, _reason(why, detail, stack, None))
        if cap.state_log or cap.guarded:
            compiled = protected(compiled, changed_facts(cap))
        if cap.disguised or handlers_act():
            compiled = unseen(compiled)
        residual.names["__graph"] = Disabled(compiled)
        inputs = "__in" if len(residual.fetch) == residual.graph_inputs else f"__in[:{residual.graph_inputs}]"
        if cap.builder.arrays:
            shared = residual.constant(torch.from_numpy)
            parts = [
                f"{shared}(__in[{i}])" if i in cap.builder.arrays else f"__in[{i}]"
                for i in range(residual.graph_inputs)
            ]
            inputs = f"({', '.join(parts)},)"
        inputs = ", ".join([f"*{inputs}", *map(residual.symbol, cap.builder.drawn)])
        names = "".join(f"g{i}, " for i in range(len(residual.outputs)))
        head.append(f"{names}= __graph({inputs})" if names else f"__graph({inputs})")
        if again:
            head = _running_again([*drawn, *head], residual, _as_arguments(code, params))
            drawn = []
        head += residual.retyped
    head = [*before, *drawn, *head, *after]
    state: list[str] = []
    if cap.restore_calls:
        state = [
            f"{residual.constant(fn)}({', '.join(residual.constant(a) for a in call_args)})"
            for fn, call_args in cap.state_log
        ]
    body = [*head, *residual.lines, *state, tail]
    name = re.sub(r"\W+", "_", code.co_name) + ("_resumed" if origin(code) else "") + "_compiled"
    replacement, text = build_function(name, params, residual, body)
    with stage("guards"), torch._C.DisableTorchFunction():
        start = time.perf_counter()
        guards = _all_guards(cap) + _size_guards(cap, residual)
        check = compile_guards(guards, residual.fetch, len(args))
        timings["guards"] = time.perf_counter() - start
    return Region(
        fn_name=code.co_qualname,
        filename=code.co_filename,
        lineno=_first_line(code),
        kind="resume" if origin(code) else "root",
        graph=gm,
        guards=tuple(guards),
        check=check,
        replacement=replacement,
        source_text=text,
        break_reason=reason,
        timings=timings,
        op_count=cap.builder.op_count,
        compiled=compiled,
    )


def _as_arguments(code: types.CodeType, params: list[str]) -> list[str]:
    """The frame's arguments as a call passes them, of the replacement's parameters."""
    positional, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    keywords = zip(code.co_varnames[positional:named], params[positional:named], strict=True)
    stars = (
        "*" if code.co_flags & inspect.CO_VARARGS else "",
        "**" if code.co_flags & inspect.CO_VARKEYWORDS else "",
    )
    rest = zip(filter(None, stars), params[named:], strict=True)
    return [*params[:positional], *(f"{name}={p}" for name, p in keywords), *(star + p for star, p in rest)]


def _running_again(run: list[str], residual: Residual, arguments: list[str]) -> list[str]:
    residual.names["__run_again"] = run_again
    put_back = saved_states(residual)
    if draws(residual.cap.builder):
        put_back.append(
            f"({residual.constant(torch.set_rng_state)}, ({residual.constant(torch.get_rng_state)}(),))"
        )
    return [
        f"failure, random_states = None, ({''.join(f'{state}, ' for state in put_back)})",
        "try:",
        *(f"    {line}" for line in run),
        "except Exception as error:",
        "    failure = error",
        f"if failure is not None: return __run_again(failure, random_states, __func, {', '.join(arguments)})",
    ]


def _eager_reason(problem: Exception, func: types.FunctionType, reason: BreakReason | None) -> BreakReason:
    if isinstance(problem, RunEagerly):
        code, detail = problem.code, problem.detail
    else:
        code = "internal-error"  # breaks are placed where a frame can be entered again
        detail = str(problem)
    if reason is None:
        return BreakReason(code, detail, func.__code__.co_filename, func.__code__.co_firstlineno)
    return BreakReason(code, f"{detail}; the break: {reason.headline()}", reason.filename, reason.lineno)


def _first_line(code: types.CodeType) -> int:
    """The user's line that a region starts at: that of the definition, or the one where a resume function goes on."""
    point = origin(code)
    return (
        code.co_firstlineno
        if point is None
        else decode(point.code).instrs[point.index].line or code.co_firstlineno
    )


def _all_guards(cap: Capture) -> list[Any]:
    guards: list[Any] = [cap.global_state, *cap.guards, *real_guards(cap)]
    if cap.questions.steps:
        guards.append(cap.questions.guard(cap))
    sources = tuple(cap.builder.input_sources)
    if len(sources) > 1:
        guards.append(DistinctTensors(sources))
    return guards + _alias_guards(cap) + _memory_guards(cap) + _writable_guards(cap) + _cast_guards(cap)


def _size_guards(cap: Capture, residual: Residual) -> list[Any]:
    """What the region takes for granted of the sizes that vary: the facts, and the ranges of those it uses."""
    table = cap.sizes
    facts = [
        (fact.relation, fact.where)
        for fact in table.facts_by_relation.values()
        if not table.is_unknown(fact.relation.lhs, fact.relation.rhs)  # which the graph checks
    ]
    used = {symbol for relation, _ in facts for symbol in free(relation.distance)} | table.relied_on
    fetched = set(residual.fetch)
    guards = []
    for symbol, source in cap.size_sources.items():
        if isinstance(symbol, Real):
            continue
        if symbol in used or source in fetched or type(source) is TensorSize:
            origin = table.origins[symbol]
            guards += [(relation, "") for relation in in_range(symbol, origin.bounds)]
    table.freeze()
    return [
        SizeRelation(relation, symbols, tuple(cap.size_sources[s] for s in symbols), where)
        for relation, where in (*guards, *facts)
        for symbols in [tuple(sorted(free(relation.distance), key=lambda s: s.name))]
    ]


def _memory_guards(cap: Capture) -> list[Any]:
    """Inputs changed in place keep their relation to the memory of all other inputs: the same distance, or none shared.

    Tensors made in inference mode have no version counter: they may all have been changed.
    """
    builder = cap.builder
    written = builder.written_inputs()
    if not written:
        return []
    homes = [tensor.untyped_storage()._cdata for tensor in builder.input_tensors]
    together = {homes[i] for i in written if homes.count(homes[i]) > 1}
    guards: list[Any] = []
    for home in together:
        first, *rest = [i for i, h in enumerate(homes) if h == home]
        offset = builder.input_tensors[first].storage_offset()
        for other in rest:
            distance = builder.input_tensors[other].storage_offset() - offset
            guards.append(StorageOffset(builder.input_sources[first], builder.input_sources[other], distance))
    alone = tuple(builder.input_sources[i] for i in written if homes[i] not in together)
    others = tuple(s for i, s in enumerate(builder.input_sources) if i not in written or homes[i] in together)
    if alone and (others or len(alone) > 1):
        guards.append(NoOverlap(alone, others))
    return guards


def _writable_guards(cap: Capture) -> list[Any]:
    """Inputs changed in place may be so again: leaves that require grad and their views refuse it, at the user's line."""
    builder = cap.builder
    guards: list[Any] = []
    for source, tensor, (fake, version) in zip(
        builder.input_sources, builder.input_tensors, builder.input_versions
    ):
        changed = version is not None and fake._version != version
        if fake.requires_grad and changed and _may_be_written(tensor):
            with untouched(tensor):
                base = tensor._base
            of_none = Call(operator.is_, Call(_BASE, source), None)
            view = (
                of_none
                if base is None
                else Call(operator.and_, *[Call(f, Call(_BASE, source)) for f in _LEAF])
            )
            text = f"{source.name()} is no leaf and no view of one"
            guards.append(gives(view, base is None, text))
            if tensor.requires_grad:
                guards.append(gives(Call(_LEAF[0], source), False, text))
        elif changed and tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter):
            # Views of a leaf that is a view lead to its base's history once they were written.
            with untouched(tensor):
                whole = tensor._base is None
            guards.append(_has_base(source, not whole))
    return guards


def _has_base(source: Any, has: bool) -> Any:
    """Whether a tensor is a view."""
    of_none = Call(operator.is_, Call(_BASE, source), None)
    return gives(of_none, not has, f"({source.name()}._base is None) is {not has}")


def _cast_guards(cap: Capture) -> list[Any]:
    """Autocast keeps what it made of a leaf that is no view, with one gradient for all its uses; others it casts anew."""
    if not casts(cap.builder.graph):
        return []
    guards: list[Any] = []
    for source, tensor in zip(cap.builder.input_sources, cap.builder.input_tensors):
        with untouched(tensor):
            if not tensor.requires_grad or isinstance(tensor, torch.nn.Parameter):
                continue
            leaf, whole = tensor.is_leaf, tensor._base is None
        guards.append(gives(Call(_LEAF[0], source), leaf, f"{source.name()}.is_leaf is {leaf}"))
        if leaf:
            guards.append(_has_base(source, not whole))
    return guards


#: What torch's own descriptors read.
_BASE: Any = Tensor._base.__get__  # type: ignore[attr-defined]
_LEAF: tuple[Any, Any] = Tensor.is_leaf.__get__, Tensor.requires_grad.__get__  # type: ignore[attr-defined]


def _may_be_written(tensor: torch.Tensor) -> bool:
    with untouched(tensor):
        return not (tensor.requires_grad and (tensor.is_leaf or is_view_of_leaf(tensor)))


def _alias_guards(cap: Capture) -> list[Any]:
    """What the region changed is none of the other objects of its type that it looked at."""
    if not cap.changed:
        return []
    seen: dict[type, list[Any]] = {}
    changed: set[type] = set()
    for tracker in {id(tracker): tracker for tracker in cap.memo.values()}.values():  # some stand for two
        if (
            type(tracker) not in (ListVar, DequeVar, DictVar, SetVar, ObjectVar)
            or tracker.source is None
            or isinstance(tracker.source, Const)
        ):
            continue
        cls = python_type(tracker)
        seen.setdefault(cls, []).append(tracker.source)
        parts = (tracker, tracker.attrs, tracker.payload) if type(tracker) is ObjectVar else (tracker,)
        if any(id(part) in cap.changed for part in parts):
            changed.add(cls)
    return [
        DistinctTensors(tuple(sources))
        for cls, sources in seen.items()
        if cls in changed and len(sources) > 1
    ]


def _tail(residual: Residual, end: _End) -> str:
    """The last line of the replacement, after all that it needs: return the result or hand over."""
    for generator in residual.cap.generators:
        if generator.cleans_up:
            name = generator.frame.code.co_qualname
            detail = f"generator {name} is left inside a try or with, which ends when it is dropped"
            raise RunEagerly("generator", detail, earlier=generator.born)
    result = residual.expr(end) if isinstance(end, Tracker) else _handover(residual, end)
    residual.lines += [call.line(residual) for call in residual.cap.put_off]
    residual.effects()
    residual.finish_loops()
    return f"return {result}"  # the hook calls the stub that is handed over once this frame is gone


def _handover(residual: Residual, frames: list[Frame]) -> str:
    """The live frames as a Handover to the root's stub: each is in the middle of what leads to the next one.

    The innermost one's stub runs the breaking instruction natively; under it, the other stubs run the rest of their
    calls, so that the interpreter's frames are the user's, and so are their exception handlers. Frames of polyfills
    stand for loops of C: they have no stub, but go on with the value of what they called.
    """
    frame = frames[-1]
    if frame.is_polyfill:
        raise ContinuationUnsupported(f"{frame.code.co_qualname} is no frame of the program's")
    values: list[Any] = [slot for slot in frame.stack if slot is not NULL]
    if frame.entering:
        frame.popn(2)
    made = _frame_handover(residual, frame, call_stub if frame.entering else break_stub, values)
    steps: list[str] = []
    attribute: tuple[Tracker, ...] = ()
    for inner, frame in zip(frames[:0:-1], frames[-2::-1], strict=True):
        if inner.link is None or (steps and inner.link.attribute):
            raise ContinuationUnsupported(
                f"what leads to {inner.code.co_qualname} cannot go on with its value"
            )
        attribute = attribute or inner.link.attribute
        steps += [_packed(residual, part) for part in (inner.link.finish,) if part]
        steps += [residual.expr(step) for step in inner.link.steps]
        if frame.info.instrs[frame.pc].op == "FOR_ITER" and not frame.entering:
            frame.pop()  # what it looks at
        if frame.is_polyfill:
            steps.append(_step(residual, frame))
            continue
        finish = f"({', '.join(steps)},)" if steps else "()"
        callee = f"{residual.constant(Callee)}({made}, {finish}, {_packed(residual, attribute)}, True)"
        values = [slot for slot in frame.stack if slot is not NULL]
        values += [callee, *map(repr, placeholders(frame.code, frame.pc))]
        made = _frame_handover(residual, frame, call_stub, values)
        steps, attribute = [], ()
    return made


def _packed(residual: Residual, parts: tuple[Tracker, ...]) -> str:
    return f"({residual.exprs([*parts])},)" if parts else "()"


def _step(residual: Residual, frame: Frame) -> str:
    """The rest of a polyfill that is in the middle of what leads to a callee, as a step of that one's Callee."""
    kept = read_after(frame.code, frame.pc)
    frame.locals = {name: value for name, value in frame.locals.items() if name in kept}
    layout = _layout(frame)
    code = code_after(frame.code, frame.pc, layout)
    state = _live_state(residual, frame, layout.locals, [slot for slot in frame.stack if slot is not NULL])
    globals_ = residual.constant(frame.globals_var.real, "globals")
    return f"({', '.join((residual.constant(code, 'rest'), globals_, *state))},)"


def _layout(frame: Frame) -> FrameLayout:
    bound = tuple(name for name in decode(frame.code).locals if name in frame.locals)
    return FrameLayout(tuple(slot is not NULL for slot in frame.stack), bound)


def _live_state(residual: Residual, frame: Frame, bound: tuple[str, ...], values: list[Any]) -> list[str]:
    """Expressions for the locals, and for the stack, of which some of ``values`` are expressions already."""
    state = [
        residual.live_expr(frame.locals[name]) if name[0] == "." else residual.expr(frame.locals[name])
        for name in bound
    ]
    looped = [frame.is_looped(depth) for depth, slot in enumerate(frame.stack) if slot is not NULL]
    for value, is_looped in itertools.zip_longest(values, looped):
        if isinstance(value, str):
            state.append(value)
        else:
            state.append(residual.live_expr(value) if is_looped else residual.expr(value))
    return state


def _frame_handover(
    residual: Residual,
    frame: Frame,
    make: Callable[[types.CodeType, int, FrameLayout], types.CodeType],
    values: list[Any],
) -> str:
    """A Handover of one frame to what ``make`` makes for it; ``values``: trackers, or expressions, of its stack."""
    code = frame.code
    layout = _layout(frame)
    stub = make(code, frame.pc, layout)
    cells = []
    for name in (*code.co_cellvars, *code.co_freevars):
        cell = frame.cells.get(name)
        if cell is None:  # MAKE_CELL has not run yet
            cell = frame.cells[name] = CellVar(frame.locals.get(name))
        cells.append(residual.expr(cell))
    state = _live_state(residual, frame, layout.locals, values)
    closure = f"({', '.join(cells)},)" if cells else "None"
    given = f"({', '.join(state)},)" if state else "()"
    globals_ = residual.constant(frame.globals_var.real, "globals")
    return f"{residual.constant(Handover)}({residual.constant(stub, 'stub')}, {globals_}, {closure}, {given})"
