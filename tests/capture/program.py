"""A Python program as a test: the function is run in eager and compiled, with the same fresh arguments, and compared.

In: a function of one tensor `x` and what `extra` makes. Out: a test over three calls with two different values.
Always: results, exceptions (with cause, context, notes and lines) and what became of the arguments are eager's; without `breaks` the
program is one graph and is compiled once.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx

from benchmarks.compilers import Compiler
from tests.equality import assert_equal

Made = Callable[[], Any]


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """What the call returns, or the exception that leaves it."""
    try:
        return fn(*args)
    except Exception as error:
        return "raised", described(error)


def described(error: BaseException | None, depth: int = 4) -> Any:
    """What can be seen of an exception: class, arguments, notes, lines of the program, cause, context, parts."""
    if error is None or not depth:
        return None
    inner = (error.__cause__, error.__context__, *getattr(error, "exceptions", ()))
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if "/tests/" in frame.filename and frame.filename != __file__
    ]
    said = type(error), str(error), len(error.args), list(getattr(error, "__notes__", ()))
    return *said, error.__suppress_context__, lines, [described(each, depth - 1) for each in inner]


def shown(value: Any) -> Any:
    """What of an argument or a result is compared: arrays as lists, what is left of an iterator."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Iterator):
        return list(value)
    return tuple(map(shown, value)) if type(value) is tuple else value


class CountingBackend:
    """Runs graphs as they are and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []

    def __call__(self, gm: fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return gm.forward


def program(*extra: Made, breaks: bool = False) -> Callable[[Callable[..., Any]], Callable[[Compiler], None]]:
    """Make a test of the function; ``breaks``: it is known to take more than one graph, or none."""

    def decorate(fn: Callable[..., Any]) -> Callable[[Compiler], None]:
        @pytest.mark.filterwarnings(
            "ignore:graphlift:RuntimeWarning"
        )  # a limit reached: still eager's results
        def test(compiler: Compiler) -> None:
            backend = CountingBackend()
            compiled = compiler.compile(fn, backend=backend)
            for value in (1.0, 2.0, 1.0):
                expected_args = (torch.arange(3.0) + value, *(make() for make in extra))
                args = (torch.arange(3.0) + value, *(make() for make in extra))
                expected = outcome(fn, *expected_args)
                assert_equal(shown((outcome(compiled, *args), args)), shown((expected, expected_args)))
            if not breaks and compiler.name != "eager":
                assert len(backend.graphs) == 1, [str(graph.graph) for graph in backend.graphs]

        test.__name__ = fn.__name__
        test.__module__ = fn.__module__
        test.__doc__ = fn.__doc__
        return test

    return decorate
