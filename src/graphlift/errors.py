"""The exceptions a user of graphlift can meet.

In: what was found, what was expected, where in the user's code, the next step. Out: one readable message with them.
Always: every class derives from `GraphliftError` and from the built-in exception that existing code would catch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphlift.capture.reasons import BreakReason

__all__ = [
    "BackendError",
    "ConstraintError",
    "GraphBreakError",
    "GraphliftError",
    "InternalError",
    "InvalidOption",
    "MissingExtension",
    "NotBuilt",
    "NotCallable",
    "RecompileError",
    "UnknownBackend",
    "UnsupportedCPU",
]


class GraphliftError(Exception):
    """Base of all graphlift errors: a sentence, then labelled lines for what is known."""

    def __init__(
        self,
        message: str,
        *,
        found: str | None = None,
        expected: str | None = None,
        where: str | None = None,
        stack: str | None = None,
        hint: str | None = None,
    ) -> None:
        rows = (
            ("found", found),
            ("expected", expected),
            ("at", where),
            ("user code", stack),
            ("next step", hint),
        )
        lines = [message, *(_row(label, value) for label, value in rows if value is not None)]
        super().__init__("\n".join(lines))
        self.message = message
        self.found = found
        self.expected = expected
        self.where = where
        self.stack = stack
        self.hint = hint


def _row(label: str, value: str) -> str:
    """One labelled line; a value of several lines starts below its label, indented."""
    if "\n" not in value:
        return f"  {label}: {value}"
    return "\n".join([f"  {label}:", *(f"    {line}" for line in value.splitlines())])


class NotCallable(GraphliftError, TypeError):
    """`compile` or `explain` was given something that cannot be called."""


class InvalidOption(GraphliftError, ValueError):
    """An option, mode, stance or config value outside what is allowed."""


class UnknownBackend(GraphliftError, ValueError):
    """The backend's name is neither graphlift's nor a registered TorchDynamo backend."""


class BackendError(GraphliftError, RuntimeError):
    """A backend raised, or returned something that is not a callable."""


class GraphBreakError(GraphliftError, RuntimeError):
    """`fullgraph=True` and something could not be captured; carries the registered reason's code."""

    code: str | None = None

    @classmethod
    def from_reason(cls, reason: BreakReason, fn_name: str | None = None) -> GraphBreakError:
        """The error that says why `fn_name` could not be one graph."""
        error = cls(
            f"{fn_name or _function_of(reason)} was compiled with fullgraph=True and breaks: {reason.headline()}",
            where=reason.where,
            stack=reason.user_stack(),
            hint=f"{reason.reason.remedy} Or compile without fullgraph=True to accept the break.",
        )
        error.code = reason.code
        return error


def _function_of(reason: BreakReason) -> str:
    return reason.stack[0].name if reason.stack else "a function"


class RecompileError(GraphliftError, RuntimeError):
    """A compilation was needed under `set_stance("fail_on_recompile")`."""


class MissingExtension(GraphliftError, ImportError):
    """A C extension of graphlift is absent: the package was not built for this interpreter."""


class UnsupportedCPU(GraphliftError, RuntimeError):
    """The code generator has no target for this CPU."""


class NotBuilt(GraphliftError, NotImplementedError):
    """The name is part of graphlift's public surface, but this version does not have the feature yet."""


class ConstraintError(GraphliftError, ValueError):
    """A dimension marked dynamic that the program allows one size of, or a size outside of what was promised."""


class InternalError(GraphliftError, RuntimeError):
    """A fault of graphlift itself, shown only under `GRAPHLIFT_STRICT=1`; otherwise the call runs eagerly."""
