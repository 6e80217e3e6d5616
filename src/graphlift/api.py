"""`compile` and `explain`.

In: a function, method, class, nn.Module or any callable, with options. Out: the same kind of thing, compiled.
Always: bad arguments raise here, before anything runs; nothing of the compiler is loaded until the first call.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import sys
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn

from graphlift import backends, config, control, extension, logs, sharing, stance, uncompiled
from graphlift.data import dataclass
from graphlift.errors import InvalidOption, NotCallable, RecompileError
from graphlift.extension import frame
from graphlift.marks import graph_break, is_compiling, keep_from_torch_compile
from graphlift.modules import CompiledModule, share_module
from graphlift.options import CompileEvent, CompileOptions
from graphlift.timing import importing, stage

if TYPE_CHECKING:
    from graphlift.report.advice import Advice
    from graphlift.report.explain import Explanation

__all__ = ["Settings", "compile", "explain", "graph_break", "is_compiling"]


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "auto",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compiles `model`, or returns a decorator if called without it.

    - model: a function, method, nn.Module (the result shares everything with it), class (calls of its instances are
      compiled), or any callable.
    - fullgraph: raise GraphBreakError where the function cannot be captured as one graph.
    - dynamic: None (default) compiles a size for all values once it has changed; True does so at once for the sizes and
      ints of the arguments; False never, but for what is marked dynamic. Sizes 0 and 1 are compiled for themselves.
    - backend: a name from `list_backends()`, or a callable `(GraphModule, example_inputs) -> callable`.
    - mode, options: passed to the backend.
    - disable: return `model` unchanged.

    What compiled code calls is captured with it, also where that was compiled for itself: of its settings, only
    `fullgraph` counts there.

    Raises NotCallable, UnknownBackend, InvalidOption, NotBuilt, UnsupportedCPU, MissingExtension.
    """
    settings = Settings(
        backend=backend,
        fullgraph=_typed("fullgraph", fullgraph, (bool,)),
        dynamic=_typed("dynamic", dynamic, (bool, type(None))),
        mode=mode,
        options=dict(_typed("options", options, (Mapping, type(None))) or {}),
    )
    if _typed("disable", disable, (bool,)) or config.disable:
        return (lambda model: model) if model is None else model
    settings.resolved()
    frame()
    return settings.compile if model is None else settings.compile(model)


def _typed(name: str, value: Any, types: tuple[type, ...]) -> Any:
    if not isinstance(value, types):
        expected = " or ".join("None" if t is type(None) else t.__name__ for t in types)
        raise InvalidOption(f"compile: {name} has the wrong type", found=repr(value)[:100], expected=expected)
    return value


@dataclass(frozen=True)
class Settings:
    """The arguments of one `compile`; what a compiled object needs to be made again (copies, pickles)."""

    backend: Any = "auto"
    fullgraph: bool = False
    dynamic: bool | None = None
    mode: str | None = None
    options: Any = None

    def resolved(self) -> backends.ResolvedBackend:
        """The backend; raises what `backends.resolve` raises."""
        return backends.resolve(self.backend, self.mode, self.options)

    def compile(self, model: Any) -> Any:
        """`model`, compiled; see `graphlift.compile`."""
        if isinstance(model, CompiledModule) and model._graphlift_original is not None:
            model = model._graphlift_original
        model = _without_compiled(model)
        if isinstance(model, nn.Module):
            return self.compile_module(model)
        if isinstance(model, staticmethod | classmethod):
            return type(model)(self.compile(model.__func__))
        if isinstance(model, type):
            return self._compile_class(model)
        if not callable(model):
            raise NotCallable(
                "graphlift.compile takes something that can be called",
                found=f"{model!r:.100} of type {type(model).__name__}",
                expected="a function, method, class, nn.Module or callable object",
                hint=_NOT_CALLABLE_HINTS.get(type(model), "pass the function itself, not its result"),
            )
        return self.callable(model)

    def compile_module(self, module: nn.Module) -> CompiledModule:
        """A module that shares everything with `module` and whose call is compiled."""
        label = type(module).__name__
        return share_module(module, self._wrap(_root(module, label), module, label), self)

    def compile_forward(self, module: nn.Module) -> Any:
        """The method `module.forward`, compiled; whatever replaces it later may call this one."""
        return self.callable(module.forward)

    def callable(self, fn: Callable[..., Any], **listeners: Any) -> Any:
        """A CompiledCallable for any callable."""
        label = _label(fn)
        root = fn if isinstance(fn, FunctionType) else _root(fn, label)
        return self._wrap(root, fn, label, **listeners)

    def _compile_class(self, cls: type) -> type:
        """Compiles the calls of the instances of `cls`, in place, as torch.compile does."""
        if not any("__call__" in vars(base) for base in cls.__mro__):
            raise NotCallable(
                f"instances of class {cls.__name__} cannot be called",
                found=f"class {cls.__name__} without __call__",
                expected="a class whose instances can be called",
                hint="compile one of its methods or a function instead",
            )
        call = _without_compiled(cls.__call__)
        label = f"{cls.__name__}.__call__"
        root = call if isinstance(call, FunctionType) and "__call__" in vars(cls) else _root(call, label)
        cls.__call__ = self._wrap(root, call, label)  # type: ignore[method-assign]
        return cls

    def _wrap(self, root: FunctionType, target: Any, label: str, **listeners: Any) -> Any:
        backend = self.resolved()
        history: deque[CompileEvent] = deque(maxlen=_REMEMBERED)
        options = CompileOptions(
            backend=backend.compile,
            backend_name=backend.name,
            fullgraph=self.fullgraph,
            dynamic=self.dynamic,
            mode=self.mode,
            options=dict(self.options or {}),
            owner=label,
            shared_by=None if listeners else _identity(self.backend),
            on_region=(*listeners.get("on_region", ()), logs.log_region),
            on_event=(*listeners.get("on_event", ()), logs.log_event, history.append),
        )
        _register_reducer()
        compiled = frame().CompiledCallable(root, Handler(options, history))
        if root is not target:
            for name in functools.WRAPPER_ASSIGNMENTS:
                with contextlib.suppress(AttributeError):
                    setattr(compiled, name, getattr(target, name))
            root.__wrapped__ = target  # type: ignore[attr-defined]
        compiled._graphlift_original = target
        compiled._graphlift_settings = self
        return compiled


_REMEMBERED = 10_000  # events kept for `advise`


class Handler:
    """What the frame hook calls when no entry of a code object fits: obeys the stance, then asks capture."""

    __slots__ = ("__weakref__", "_capture", "history", "options")

    def __init__(self, options: CompileOptions, history: deque[CompileEvent]) -> None:
        self.options = options
        self.history = history
        self._capture: Callable[[Any, tuple[Any, ...], int], Any] | None = None
        control.handlers.add(self)

    def forget(self) -> None:
        """Drops what capture remembers of earlier compilations."""
        self._capture = None

    def __call__(self, func: Any, args: tuple[Any, ...], recompiles: int) -> Any:
        now = stance.current()
        if now != "default" or stance.suspended():
            if now == "fail_on_recompile":
                raise _recompile_error(func, self.options.owner, recompiles)
            return None
        plain = uncompiled.answer(func.__code__, args)
        if plain is not None:
            return plain
        control.saw(func.__code__)
        capture = self._capture  # another thread may reset meanwhile
        if capture is None:
            capture = self._capture = _load_capture(self.options)
        settings = self._shared_settings() if recompiles < config.cache_size_limit else None
        if settings is not None:
            found = sharing.find(func.__code__, settings, func, args)
            if found is not None:
                self.options.event(_reuse(func))
                return found
        with stage("capture"):
            answer = capture(func, args, recompiles)
        if (
            settings is not None and type(answer) is tuple and len(answer) == 2
        ):  # a region, not what runs as it is
            sharing.publish(func.__code__, settings, *answer)
        return answer

    def _shared_settings(self) -> sharing.Settings | None:
        """What a region must have been compiled with to serve here; None where every region is wanted anew."""
        o = self.options
        if o.shared_by is None:
            return None
        flags = tuple(config.snapshot().items())
        return (o.shared_by, o.fullgraph, o.dynamic, o.mode, repr(sorted(o.options.items())), flags)


keep_from_torch_compile(Handler.__call__.__code__)


def _load_capture(options: CompileOptions) -> Callable[[Any, tuple[Any, ...], int], Any]:
    try:
        with importing():
            from graphlift.capture.handler import make_handler
    except ImportError as error:
        if extension.is_ours(error):
            raise extension.missing(error) from error
        raise
    return make_handler(options)


class _Same:
    """A backend compared by identity, whatever its own equality."""

    __slots__ = ("backend",)

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and other.backend is self.backend

    def __hash__(self) -> int:
        return id(self.backend)


def _identity(backend: Any) -> Hashable:
    return backend if isinstance(backend, str) else _Same(backend)


def _reuse(func: Any) -> CompileEvent:
    code = func.__code__
    message = "a region compiled for another callable of the same code fits"
    return CompileEvent("reuse", code.co_qualname, code.co_filename, code.co_firstlineno, message)


def _recompile_error(func: Any, owner: str, recompiles: int) -> RecompileError:
    code = func.__code__
    return RecompileError(
        f"{code.co_qualname} would be compiled, and the stance is fail_on_recompile",
        found="no compiled entry"
        if recompiles == 0
        else f"{recompiles} compiled entries, none with passing guards",
        where=f"{code.co_filename}:{code.co_firstlineno} (called from compiled {owner})",
        hint='warm up with the inputs you need first, or use graphlift.set_stance("eager_on_recompile")',
    )


# --- roots ----------------------------------------------------------------------------------------------------
# A callable that is no plain function gets a root of its own: a function with a code object of its own. Those of equal
# modules are equal, by which their regions are shared. The code is placed on the line where what it calls is defined,
# so that tracebacks and break reasons stay in the user's files; capture knows a root by its module, graphlift.api.


def _fresh(template: Any, target: Any, label: str) -> FunctionType:
    name = label.rpartition(".")[2]
    filename, lineno = _place(target, name)
    # what a module holds is named as its methods name it
    free = ("self",) if isinstance(target, nn.Module) else template.__code__.co_freevars
    code = template.__code__.replace(
        co_name=name, co_qualname=label, co_filename=filename, co_firstlineno=lineno, co_freevars=free
    )
    root = FunctionType(code, template.__globals__, name, template.__defaults__, template.__closure__)
    root.__qualname__ = label
    return root


def _root(target: Callable[..., Any], label: str) -> FunctionType:
    return _fresh(lambda *args, **kwargs: target(*args, **kwargs), target, label)


def _place(target: Any, name: str) -> tuple[str, int]:
    """The file and line of the function that a call of `target` ends in."""
    target = target.func if isinstance(target, functools.partial) else target
    if isinstance(target, nn.Module):
        target = getattr(type(target), "forward", None)
    elif not hasattr(target, "__code__"):
        target = next(
            (vars(cls)["__call__"] for cls in type(target).__mro__ if "__call__" in vars(cls)), None
        )
    code = getattr(target, "__code__", None)
    if isinstance(code, CodeType):
        return code.co_filename, code.co_firstlineno
    return f"<captured {name}>", 1


def _label(fn: Any) -> str:
    """A name for logs and reports."""
    fn = fn.func if isinstance(fn, functools.partial) else fn
    if isinstance(fn, MethodType):
        return f"{type(fn.__self__).__name__}.{fn.__name__}"
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def _without_compiled(fn: Any) -> Any:
    """The innermost original: compiling a compiled callable compiles what it was made from."""
    while isinstance(fn, frame().CompiledCallable):
        fn = fn._graphlift_original
    return fn


_NOT_CALLABLE_HINTS: dict[type, str] = {
    str: "the first argument is the model; pass the backend as backend=...",
    ModuleType: "pass a function of the module",
}


# --- copies and pickles of compiled functions -------------------------------------------------------------------


def _reduce_compiled(compiled: Any) -> Any:
    """A decorated global pickles by name (copies are itself); anything else is compiled again from its original."""
    target = compiled._graphlift_original
    module = sys.modules.get(getattr(target, "__module__", None) or "")
    name = getattr(target, "__qualname__", "")
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is compiled:
        return name
    return _recompile, (target, compiled._graphlift_settings)


def _recompile(target: Any, settings: Settings) -> Any:
    return settings.compile(target)


@functools.cache
def _register_reducer() -> None:
    copyreg.pickle(frame().CompiledCallable, _reduce_compiled)


# --- explain ----------------------------------------------------------------------------------------------------


def explain(
    fn: Any,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Explanation]:
    """`explain(fn)(*args, **kwargs)` compiles and runs `fn` once and says what happened.

    The call leaves the same effects as one eager call. Entries compiled before are neither used nor changed. A
    compiled callable is explained with its own settings, where none are given.
    """
    from graphlift.report.explain import explain_call

    own = getattr(fn, "_graphlift_settings", None) if backend is None else None
    base = own if isinstance(own, Settings) else Settings(backend="auto" if backend is None else backend)
    settings = replace(base, fullgraph=fullgraph or base.fullgraph)
    if own is None:
        settings = replace(settings, dynamic=dynamic, mode=mode, options=dict(options or {}))
    settings.resolved()
    original = _without_compiled(fn)
    if isinstance(original, CompiledModule):
        original = original._orig_mod
    if not callable(original):
        settings.compile(original)  # raises the error that names what was found

    @functools.wraps(original if hasattr(original, "__name__") else explain_call)
    def run(*args: Any, **kwargs: Any) -> Explanation:
        return explain_call(original, settings, args, kwargs)

    return run


def advise(compiled: Any) -> Advice:
    """What varied between the calls of `compiled` so far, what that cost in recompiles, and what would remove them.

    `compiled` is what `compile` returned: a function, a method or a module. The advice prints as a table.

    Raises: NotCallable for anything else.
    """
    from graphlift.report.advice import advise as advise_on

    parts: list[Any] = [getattr(compiled, "__func__", compiled)]
    if isinstance(compiled, CompiledModule):
        parts = [type(compiled).__call__.__get__(compiled), compiled._graphlift_forward]
    handlers = [p.handler for p in parts if isinstance(p, frame().CompiledCallable)]
    if not handlers:
        raise NotCallable(
            "advice is about compiled callables",
            found=type(compiled).__name__,
            expected="what graphlift.compile returned",
            hint="call it a few times first, then graphlift.advise(compiled)",
        )
    return advise_on(event for handler in handlers for event in handler.history)
