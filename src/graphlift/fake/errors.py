"""What an operator on fake tensors may raise beyond eager's own exceptions.

In: the operator that could not be computed. Out: an exception the capture stage turns into a graph break.
Always: neither derives from an exception eager raises, so user code cannot swallow one by accident.
"""

from __future__ import annotations

from typing import Any


class FakeLimit(BaseException):
    """Base of both limits: not an Exception, so a user's `except Exception` never hides one."""

    def __init__(self, op: Any, why: str) -> None:
        super().__init__(f"{op}: {why}")
        self.op = op
        self.why = why


class DataDependent(FakeLimit):
    """The result (or its size) depends on tensor values, which a fake tensor does not have."""

    def __init__(self, op: Any, why: str = "needs the tensor's values") -> None:
        super().__init__(op, why)


class Unsupported(FakeLimit):
    """The operator has no metadata rule, or the tensor is of a kind that has no fake."""

    def __init__(self, op: Any, why: str = "has no metadata (meta) kernel") -> None:
        super().__init__(op, why)
