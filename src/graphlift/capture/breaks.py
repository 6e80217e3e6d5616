"""Control flow of the symbolic executor: what stops it, and what the captured program itself raises.

In: a reason code of `reasons.py` with details. Out: exceptions that only `capture/` raises and catches.
Always: `Break` means "run this instruction natively"; `Raised` is an exception of the user's own program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .capture import Capture
    from .frame import Frame
    from .trackers import Tracker


class Break(Exception):
    """The current instruction cannot be captured; ``code`` names a row of the reason registry.

    ``at_once`` says that nothing was done before: a call that breaks so leaves ``frames`` as they were before it, and
    the capture need not be made again to get there.
    """

    def __init__(self, code: str, detail: str = "", *, at_once: bool = False) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.at_once = at_once
        self.stack = ""
        self.step = 0
        self.frames: list[Frame] = []

    def undo_call(self, cap: Capture, operands: list[Tracker]) -> None:
        """A call instruction of the innermost frame broke: puts its operands back if that is all it had done."""
        frame = cap.frames[-1]
        if self.at_once and cap.step == frame.step and not self.stack:
            frame.stack += operands
            self.frames = list(cap.frames)


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
    """The captured program raised ``value`` (a tracker of the exception object); ``is_placed``: a frame has seen it."""

    def __init__(self, value: Tracker) -> None:
        super().__init__(value)
        self.value = value
        self.is_placed = False


class Exhausted(Exception):
    """An iterator tracker has no next item; ``value`` is what a generator returned (None: nothing)."""

    def __init__(self, value: Tracker | None = None) -> None:
        super().__init__()
        self.value = value
