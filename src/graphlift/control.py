"""Functions that steer compilation from the program: disable and reset.

In: calls from user code. Out: what the eager program sees of them, next to nothing; capture knows them by
identity or by their marks. Always: importing this module loads the frame extension but no stage of the compiler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType, TracebackType
from typing import Any
from weakref import WeakSet, ref

from torch import nn

from graphlift import sharing, stance
from graphlift.errors import NotCallable
from graphlift.extension import frame
from graphlift.marks import put_mark
from graphlift.modules import CompiledModule, share_module

#: Code objects that a handler has been asked about, by identity; `reset` clears their entries.
_seen_codes: dict[int, ref[CodeType]] = {}
#: Code objects that the user disabled without recursion, by identity; `reset` leaves them so.
_disabled_codes: dict[int, ref[CodeType]] = {}
#: The handlers of all compiled callables (objects with a method `forget`).
handlers: WeakSet[Any] = WeakSet()


def _add(codes: dict[int, ref[CodeType]], code: CodeType) -> None:
    """Equal code objects are as different as any: each has entries of its own."""
    key = id(code)
    if key not in codes:
        codes[key] = ref(code, lambda _: codes.pop(key, None))


def _alive(codes: dict[int, ref[CodeType]]) -> list[CodeType]:
    return [code for held in list(codes.values()) if (code := held()) is not None]


def saw(code: CodeType) -> None:
    """A handler was asked about `code`."""
    _add(_seen_codes, code)


def reset() -> None:
    """Forgets everything compiled in this process; compiled callables stay usable and compile again when called."""
    for code in _alive(_seen_codes):
        frame().clear(code)
    _seen_codes.clear()
    sharing.clear()
    for code in _alive(_disabled_codes):
        frame().set_skip(code)
    for handler in list(handlers):
        handler.forget()


def _apply_stance(now: stance.Stance) -> None:
    """Under force_eager compiled entries must not be hit: the extension bypasses them, or else they are dropped."""
    bypass = getattr(frame(), "set_forced_eager", None)
    if bypass is not None:
        bypass(now == "force_eager")
    elif now == "force_eager":
        reset()


stance.on_change(_apply_stance)


class _Disable:
    """What `disable()` returns: a decorator and a context manager."""

    def __init__(self, recursive: bool, reason: str | None) -> None:
        self.recursive = recursive
        self.reason = reason

    def __call__(self, fn: Any) -> Any:
        return disable(fn, self.recursive, reason=self.reason)

    def __enter__(self) -> None:
        stance.suspend(+1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stance.suspend(-1)


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Makes `fn` run as plain Python, with everything it calls (`recursive=False`: only its own frame).

    As `disable()` with a `with` block: nothing new is compiled on this thread during the block. Accepts functions,
    methods, classes (their construction and calls) and nn.Modules (returns a module that shares everything).
    """
    if fn is None:
        return _Disable(recursive, reason)
    if not callable(fn) and not isinstance(fn, staticmethod | classmethod):
        raise NotCallable(
            "graphlift.disable takes a callable",
            found=f"{fn!r:.100} of type {type(fn).__name__}",
            expected="a function, method, class or nn.Module",
        )
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(disable(fn.__func__, recursive, reason=reason))
    if isinstance(fn, type):
        for name in ("__init__", "__call__"):
            if isinstance(vars(fn).get(name), FunctionType):
                setattr(fn, name, disable(vars(fn)[name], recursive, reason=reason))
        return fn
    fn = _innermost(fn._orig_mod if isinstance(fn, CompiledModule) else fn)
    if isinstance(fn, nn.Module):
        return share_module(fn, _disabled(fn, reason), None)
    if not recursive and isinstance(fn, FunctionType):
        frame().set_skip(fn.__code__)
        _add(_disabled_codes, fn.__code__)
        fn._graphlift_disable = True  # type: ignore[attr-defined]
        return fn
    return _disabled(fn, reason)


def _innermost(fn: Any) -> Any:
    """The function inside compiled callables."""
    while isinstance(fn, frame().CompiledCallable):
        fn = fn._graphlift_original
    return fn


def _disabled(fn: Callable[..., Any], reason: str | None) -> Callable[..., Any]:
    call_disabled = frame().call_disabled

    def run_disabled(*args: Any, **kwargs: Any) -> Any:
        return call_disabled(fn, *args, **kwargs)

    frame().set_skip(run_disabled.__code__)
    wrapper = functools.wraps(fn)(run_disabled)
    put_mark(wrapper, "disabled")
    wrapper._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
    wrapper._torchdynamo_orig_callable = fn  # type: ignore[attr-defined]
    return wrapper
