"""How a reported program becomes a test: run once in eager, once compiled under each backend, and compared.

In: a program `(compile) -> result` that builds its inputs, compiles its region with `compile(fn)`, returns all
that a user could look at. Out: one test per backend. Asserts inside a program state the right answer, run both times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.compilers import Compiler
from tests.equality import EXACT, assert_equal

Compile = Callable[..., Any]
BACKENDS = ("eager", "aot_eager", "auto")


def case(*reports: str, exact: bool = False) -> Callable[[Callable[[Compile], Any]], Callable[..., None]]:
    """Make ``program`` a test over all backends. ``reports``: where the fault was first seen, for people.

    ``exact``: floating-point results must be eager's to the last bit.
    """

    def decorate(program: Callable[[Compile], Any]) -> Callable[..., None]:
        @pytest.mark.parametrize("backend", BACKENDS)
        @pytest.mark.filterwarnings("ignore")
        def test(compiler: Compiler, backend: str) -> None:
            torch.manual_seed(0)
            expected = program(lambda fn, **options: fn)
            torch.manual_seed(0)
            got = program(partial(compiler.compile, backend=backend))
            assert_equal(got, expected, tolerance=EXACT if exact else None)

        test.__name__ = program.__name__
        test.__module__ = program.__module__
        test.__doc__ = f"{program.__doc__ or program.__name__} ({', '.join(reports)})"
        return test

    return decorate


def outcome(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the call returns, or the type and message of what it raises."""
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        return "raised", type(error), str(error)


def graph_break() -> None:
    """Something no compiler captures: writing to standard output, here nothing."""
    print(end="")
