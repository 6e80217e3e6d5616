"""Random functions broken at every instruction do what they do plainly; seeds are in the failure message."""

from __future__ import annotations

import os
import warnings
from types import FunctionType
from typing import Any

from graphlift.bytecode import decode
from graphlift.frame import CompiledCallable
from tests.bytecode.chain import outcome, run_chain
from tests.bytecode.random_programs import program
from tests.bytecode.samples import Recorder
from tests.frame.breaker import Breaker

FIRST = int(os.environ.get("GRAPHLIFT_SEED", "0"))
COUNT = int(os.environ.get("GRAPHLIFT_PROGRAMS", "60"))
#: Each place of a program costs a stub and a resume function the size of the program.
LARGEST = 400


def note(log: list[Any], *values: Any, k: int) -> int:
    log.append((values, k))
    if len(log) > 60:
        raise KeyError("enough")
    return k


def produce(n: int) -> Any:
    yield from range(n)


def build(seed: int) -> FunctionType | None:
    """The function of a seed, or None where it does not compile or is too large."""
    source = program(seed)
    scope: dict[str, Any] = {"Recorder": Recorder, "note": note, "produce": produce}
    name = f"<program {seed}>"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(source, name, "exec"), scope)
    except SyntaxError:
        return None
    made: FunctionType = scope["f"]
    return made if len(decode(made.__code__).instrs) < LARGEST else None


def alike(result: Any) -> Any:
    """An outcome without what may differ: a cell variable's message says 'free' in a continuation."""
    if result[0] == "raised":
        kind, message, lines, below = result[1]
        kind = "NameError" if kind == "UnboundLocalError" else kind
        message = "unbound" if kind == "NameError" else message
        return "raised", kind, message, lines, [alike(("raised", b)) for b in below]
    return result


def unbound_said(result: Any) -> bool:
    return "cannot access" in repr(result)


def test_random_programs() -> None:
    ran = 0
    for seed in range(FIRST, FIRST + COUNT):
        fn = build(seed)
        if fn is None:
            continue
        name = fn.__code__.co_filename
        want = outcome(fn, name, 2, 3)
        got = outcome(lambda fn=fn: run_chain(fn, (2, 3), native_after=3000, unsupported=[])[0], name)
        fast = CompiledCallable(fn, Breaker(name))
        hooked = [outcome(fast, name, 2, 3) for _ in range(2)]
        for other in (got, *hooked):
            same = alike(other) == alike(want) or (unbound_said(want) and unbound_said(other))
            assert same, f"seed {seed}: {other}\nplain: {want}\n{program(seed)}"
        ran += 1
        if os.environ.get("GRAPHLIFT_VERBOSE"):
            print(seed, len(decode(fn.__code__).instrs), want[0], flush=True)
    assert ran > COUNT // 3, f"only {ran} of {COUNT} programs were of use"
