"""A Check beside its meaning in Python: every answer is asked twice, with and without a trace, and must agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphlift.guards import Guard, Source, compile_guards, explain


def some_function(*args: Any) -> None:
    """Stands for the frame's function."""


class Checked:
    """`passes(*args)`: what the C evaluator says, compared with `explain.evaluate`."""

    def __init__(
        self, guards: Sequence[Guard], fetch: Sequence[Source] = (), nargs: int = 1, func: Any = None
    ) -> None:
        self.func = some_function if func is None else func
        self.check = compile_guards(guards, fetch, nargs)
        self.nargs = nargs

    def fetch(self, *args: Any) -> tuple[Any, ...] | None:
        found = self.check(self.func, *args)
        expected = explain.evaluate(self.check.guards, self.check.fetch, self.func, args)
        assert (found is None) == (expected is None), (
            f"C: {found is not None}, Python: {expected is not None}\n{self.check}\n"
            f"{self.check.explain_failure(self.func, *args)}"
        )
        if found is not None and expected is not None:
            assert len(found) == len(expected)
            assert all(a is b for a, b in zip(found, expected, strict=True))
        return found

    def passes(self, *args: Any) -> bool:
        return self.fetch(*args) is not None

    def warm(self, *args: Any) -> Checked:
        """Calls until a trace has been recorded (where the program allows one)."""
        for _ in range(4):
            assert self.passes(*args), self.check.explain_failure(self.func, *args)
        return self

    def why(self, *args: Any) -> str:
        assert not self.passes(*args)
        return str(self.check.explain_failure(self.func, *args))


def check_of(
    guards: Sequence[Guard] | Guard, *args: Any, fetch: Sequence[Source] = (), func: Any = None
) -> Checked:
    """A warmed check of guards that hold for ``args``."""
    listed = [guards] if isinstance(guards, Guard) else guards
    return Checked(listed, fetch, len(args), func).warm(*args)
