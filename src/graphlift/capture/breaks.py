"""Control flow of the symbolic executor: what stops it, and what the captured program itself raises.

In: a reason code of `reasons.py` with details. Out: exceptions that only `capture/` raises and catches.
Always: `Break` means "run this instruction natively"; `Raised` is an exception of the user's own program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .frame import Frame
    from .trackers import Tracker


class Break(Exception):
    """The current instruction cannot be captured; ``code`` names a row of the reason registry."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.stack = ""
        self.step = 0


class Stopped(BaseException):
    """The step at which this capture is to end is reached; ``frames`` are live, each in the middle of a call but the last.

    Not an Exception: nothing on the way handles it.
    """

    def __init__(self, frames: list[Frame]) -> None:
        super().__init__()
        self.frames = frames


class RunEagerly(Exception):
    """The frame cannot be captured up to here: up to the step ``earlier`` if that is given, else not at all."""

    def __init__(self, code: str, detail: str = "", earlier: int | None = None) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.earlier = earlier


class Raised(Exception):
    """The captured program raised ``value`` (a tracker of the exception object)."""

    def __init__(self, value: Tracker) -> None:
        super().__init__(value)
        self.value = value


class Exhausted(Exception):
    """An iterator tracker has no next item; ``value`` is what a generator returned (None: nothing)."""

    def __init__(self, value: Tracker | None = None) -> None:
        super().__init__()
        self.value = value
