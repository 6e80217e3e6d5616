"""Programs as text that call the standard library, run in eager and compiled and compared.

In: the body of a function of a tensor `x` (and `y = x + 1`), and what stands before the function. Out: one test.
Always: results, exceptions, what became of the module's `G_` names, output, warnings and random states are eager's.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import random
import types
import warnings
from typing import Any

import numpy as np
import torch

import graphlift
from tests.capture.program import CountingBackend

MODULES = (
    "abc base64 binascii bisect calendar cmath collections contextlib copy csv dataclasses datetime decimal difflib enum "
    "fnmatch fractions functools graphlib hashlib heapq inspect io itertools json logging math numbers operator os pathlib "
    "pprint random re shlex statistics string struct sys textwrap time types typing unicodedata urllib.parse uuid warnings "
    "weakref zlib array colorsys"
).split()
SCOPE: dict[str, Any] = {
    **{name.partition(".")[0]: importlib.import_module(name.partition(".")[0]) for name in MODULES},
    **{"torch": torch, "np": np, "nn": torch.nn},
}
importlib.import_module("urllib.parse")


def shown(value: Any) -> Any:
    """What is compared, as plain data."""
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        return kind, repr(value.tolist()), str(value.dtype), value.requires_grad
    if isinstance(value, np.ndarray):
        return kind, repr(value.tolist()), str(value.dtype)
    if type(value) in (list, tuple):
        return kind, [shown(item) for item in value]
    if isinstance(value, dict):
        return kind, [(shown(k), shown(v)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(map(repr, value))
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return value.__qualname__
    if isinstance(value, functools._lru_cache_wrapper):
        return kind, str(value.cache_info())
    if isinstance(value, random.Random):
        return kind, hash(value.getstate())
    if hasattr(value, "__dict__") and type(value).__repr__ is object.__repr__:
        return kind, shown(vars(value))
    return kind, repr(value)


def observed(fn: Any, scope: dict[str, Any], calls: int = 3) -> Any:
    """Everything that some calls with different tensors do."""
    results, printed, warned = [], io.StringIO(), []
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for k in range(calls):
            try:
                results.append(shown(fn(torch.arange(3.0) + 1 + k % 2)))
            except Exception as error:
                results.append(("raised", type(error), str(error)))
    warned = [
        (str(w.message), w.category, w.lineno, w.filename)
        for w in caught
        if not str(w.message).startswith("graphlift")
    ]
    kept = {name: shown(value) for name, value in scope.items() if name.startswith("G_")}
    random_states = random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()
    return results, kept, printed.getvalue(), warned, random_states


def function(body: str, before: str = "") -> tuple[Any, dict[str, Any]]:
    """The function, in a module of its own, which runs ``before`` first."""
    scope: dict[str, Any] = {**SCOPE, "__name__": "tests.capture.library"}
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    exec(
        compile(f"{before}\ndef fn(x):\n    y = x + 1\n{lines}    return y * 2, q\n", "<program>", "exec"),
        scope,
    )
    return scope["fn"], scope


def graphs_of(body: str, before: str = "", calls: int = 3) -> int:
    """Compares eager and compiled; how many graphs it took."""
    expected = observed(*function(body, before), calls)
    fn, scope = function(body, before)
    backend = CountingBackend()
    found = observed(graphlift.compile(fn, backend=backend), scope, calls)
    for what, ours, theirs in zip(
        ("results", "globals", "output", "warnings", "random state"), found, expected
    ):
        assert ours == theirs, what
    return len(backend.graphs)
