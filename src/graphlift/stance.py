"""The stance: what compiled callables do when they are called, for the whole process.

In: `set_stance(...)` as a call, a `with` block or a decorator. Out: `current()`, which the handler asks.
Always: answers never depend on the stance, only whether something is compiled for them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

from graphlift.errors import InvalidOption

Stance = Literal["default", "force_eager", "eager_on_recompile", "fail_on_recompile"]

#: Every stance and what a compiled callable does under it.
STANCES: dict[str, str] = {
    "default": "compile what is not compiled yet",
    "force_eager": "run the original code; compile nothing and use nothing compiled",
    "eager_on_recompile": "use compiled code where its guards pass, run eagerly otherwise",
    "fail_on_recompile": "use compiled code where its guards pass, raise RecompileError otherwise",
}

_current: Stance = "default"
_listeners: list[Callable[[Stance], None]] = []


class _Suspended(threading.local):
    depth = 0


_suspended = _Suspended()


def current() -> Stance:
    """The stance in force."""
    return _current


def suspended() -> bool:
    """Whether this thread is inside a `with graphlift.disable():` block."""
    return _suspended.depth > 0


def suspend(change: int) -> None:
    """Enters (+1) or leaves (-1) a block in which this thread compiles nothing."""
    _suspended.depth += change


def on_change(listener: Callable[[Stance], None]) -> None:
    """Calls `listener` with the new stance whenever it changes."""
    _listeners.append(listener)


def _apply(stance: Stance) -> None:
    global _current
    if stance != _current:
        _current = stance
        for listener in _listeners:
            listener(stance)


class set_stance:  # a function in use, a class in form, as torch.compiler.set_stance
    """Sets the stance now; as a context manager or decorator, restores the earlier one at the end."""

    def __init__(self, stance: Stance = "default") -> None:
        if stance not in STANCES:
            raise InvalidOption("unknown stance", found=repr(stance), expected=", ".join(map(repr, STANCES)))
        self.stance: Stance = stance
        self._previous: list[Stance] = [_current]
        _apply(stance)

    def __enter__(self) -> set_stance:
        self._previous.append(self._previous[0])
        _apply(self.stance)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _apply(self._previous.pop())

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """As a decorator: `fn` runs under the stance, which is not in force outside it."""
        stance = self.stance
        _apply(self._previous[0])

        @functools.wraps(fn)
        def under_stance(*args: Any, **kwargs: Any) -> Any:
            with set_stance(stance):
                return fn(*args, **kwargs)

        return under_stance
