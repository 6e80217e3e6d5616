"""A graph break at every place of a function, under every kind of caller, changes nothing that a program can see.

In: the places and callers of `break_places.py`. Out: values, what is printed and in which order, exceptions with the
user's lines, effects, and what the native call sees of the stack above it: all as eager.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import graphlift
from benchmarks.compilers import Compiler
from tests.capture import break_places
from tests.capture.break_places import CALLERS, LOG, PLACES, Place
from tests.equality import assert_equal

PLACES_FILE = break_places.__file__


def shown(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else type(value).__name__


def printing(value: Any = 0, error: Exception | None = None) -> Any:
    print("stop", shown(value))
    if error is not None:
        raise error
    return value


def breaking(value: Any = 0, error: Exception | None = None) -> Any:
    graphlift.graph_break()
    LOG.append(("stop", shown(value)))
    if error is not None:
        raise error
    return value


@graphlift.disable
def opaque(value: Any = 0, error: Exception | None = None) -> Any:
    LOG.append(("stack", shown(value), user_stack(), sys.exc_info()[0]))
    if error is not None:
        raise error
    return value


def user_stack() -> list[tuple[str, int]]:
    """The user's frames, outermost first, as the interpreter has them."""
    found = []
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == PLACES_FILE:
            found.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found[::-1]


STOPS: dict[str, Callable[..., Any]] = {"print": printing, "graph_break": breaking, "opaque": opaque}


def lines(error: BaseException) -> list[Any]:
    """The lines of the user's file in a traceback, and in those of the exceptions behind it."""
    frames = traceback.extract_tb(error.__traceback__)
    behind = [lines(e) for e in (error.__cause__, error.__context__) if e is not None]
    return [(f.name, f.lineno) for f in frames if f.filename == PLACES_FILE] + behind


def outcome(fn: Place, value: float, stop: Any, capsys: pytest.CaptureFixture[str]) -> Any:
    LOG.clear()
    x = torch.arange(3.0) + value
    x.requires_grad_()
    try:
        result: Any = fn(x, stop)
    except Exception as error:
        result = "raised", type(error), str(error), lines(error)
    state = torch.is_grad_enabled(), torch.get_default_dtype(), torch._C._len_torch_function_stack()
    return result, list(LOG), capsys.readouterr().out, state


@pytest.mark.filterwarnings("ignore:graphlift:RuntimeWarning")  # a limit reached: still eager's results
@pytest.mark.parametrize("depth", CALLERS)
@pytest.mark.parametrize("name", PLACES)
def test_as_eager(name: str, depth: int, compiler: Compiler, capsys: pytest.CaptureFixture[str]) -> None:
    fn = CALLERS[depth](PLACES[name])
    stop = list(STOPS.values())[(depth + list(PLACES).index(name)) % 3]
    compiled = compiler.compile(fn, backend=lambda gm, inputs: gm.forward)
    for value in (1.0, 2.0):
        expected = outcome(fn, value, stop, capsys)
        assert_equal(outcome(compiled, value, stop, capsys), expected)
