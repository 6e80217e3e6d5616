"""Runs one program in eager and compiled, and tells the first difference.

In: the source of a program (see `generator`), a backend. Out: a `Difference`, or None.
Always: each run has its own module, arguments and random streams; what is compared is the result or the exception with
its chain and lines, what was printed, what opaque calls saw on the way, all state afterwards, and gradients.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import linecache
import random
import signal
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import graphlift

from .observe import Entry, Numbers, observe, state_of, user_lines

TOLERANCE = {"eager": 0.0, "aot_eager": 1e-9, "auto": 1e-9}
SECONDS = 20
_SEEN_MOST = 12


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the compiled program first differs. `kind` names the sort of fault: shrinking keeps it."""

    kind: tuple[str, ...]
    call: int
    path: str
    found: str
    expected: str

    def __str__(self) -> str:
        return (
            f"{' '.join(self.kind)} in call {self.call}, {self.path}:\n"
            f"  found    {self.found}\n  expected {self.expected}"
        )


class Slow(BaseException):
    """The program takes too long, by the time of the processor."""


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """What only cycles hold ends afterwards, in eager as compiled, and not whenever the collector happens to run."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Slow

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)  # again, where a finaliser swallows it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def load(source: str, filename: str) -> dict[str, Any]:
    """The program's module, with lines that tracebacks can show."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    module = types.ModuleType("program")
    torch.manual_seed(0)  # shrinking may take away the program's own seeds
    random.seed(0)
    exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


@dataclass(slots=True)
class Run:
    """One way of running a program, call by call."""

    scope: dict[str, Any]
    function: Callable[..., Any]
    filename: str

    def call(self, number: int) -> tuple[list[Entry], BaseException | None]:
        """What can be seen of one call, and what it raised."""
        seen: list[Entry] = []
        torch.manual_seed(number)
        random.seed(number)
        torch.set_grad_enabled(True)
        args = self.scope["CALLS"][number]()

        def look(scope: dict[str, Any], value: Any) -> None:
            if len(seen) < _SEEN_MOST * 400:
                seen.extend(observe(seen=value, args=args, state=state_of(self.scope)))

        self.scope["SEEN"] = look
        error: BaseException | None = None
        result = None
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            try:
                result = self.function(*args)
            except Exception as raised:
                error = raised
        entries: list[Entry] = [("printed", line) for line in output.getvalue().splitlines()]
        entries += [("seen at an opaque call: " + path, what) for path, what in seen]
        if error is not None:
            entries.append(("raised", (type(error).__qualname__, str(error))))
            entries += [("traceback", line) for line in user_lines(error, self.filename)]
        entries += observe(result=result, error=error, args=args, state=state_of(self.scope))
        entries.append(("grad mode", torch.is_grad_enabled()))
        entries.append(("random numbers", (hash(random.getstate()), Numbers(torch.get_rng_state()))))
        entries += self.gradients(result, args)
        return entries, error

    def gradients(self, result: Any, args: tuple[Any, ...]) -> list[Entry]:
        if not isinstance(result, tuple):
            return []
        outputs = [
            v for v in result if isinstance(v, torch.Tensor) and v.requires_grad and v.grad_fn is not None
        ]
        if not outputs:
            return []
        try:
            sum(output.sum() for output in outputs).backward()  # type: ignore[union-attr]
        except Exception as error:
            return [("backward", type(error).__qualname__)]
        return observe(gradients=[v.grad for v in args if isinstance(v, torch.Tensor) and v.is_leaf])


def check(source: str, backend: str, filename: str = "program.py") -> Difference | None:
    """The first difference between the compiled program and eager; raises Slow where eager itself is slow."""
    graphlift.reset()
    with warnings.catch_warnings(), no_collector():
        warnings.simplefilter("ignore")
        eager_scope, scope = load(source, filename), load(source, filename)
        eager = Run(eager_scope, eager_scope["program"], filename)
        expected = []
        with at_most(2):
            for number in range(len(eager_scope["CALLS"])):
                expected.append(eager.call(number))
        compiled = Run(scope, graphlift.compile(scope["program"], backend=backend), filename)
        for number, (wanted, wanted_error) in enumerate(expected):
            try:
                with at_most(SECONDS):
                    found, error = compiled.call(number)
            except Slow:
                return Difference(("slow",), number, "", f"more than {SECONDS} s", "")
            if error is not None and type(error).__module__.startswith("graphlift"):
                return fault(error, number)
            different = first_difference(found, wanted, TOLERANCE[backend])
            if different is None:
                continue
            if error is not None and (
                wanted_error is None or type(wanted_error).__name__ != type(error).__name__
            ):
                return fault(error, number, different)
            path, a, b = different
            return Difference(("differs", aspect(path), aspect(b)), number, path, a, b)
    return None


def first_difference(
    found: list[Entry], expected: list[Entry], tolerance: float
) -> tuple[str, str, str] | None:
    for (path, a), (other, b) in zip(found, expected, strict=False):
        if path != other:
            return path, f"{path}: {a}", f"{other}: {b}"
        if isinstance(a, Numbers) and isinstance(b, Numbers):
            if not a.same(b, tolerance):
                return path, repr(a), repr(b)
        elif isinstance(a, tuple) and a and isinstance(a[-1], Numbers):
            if a[:-1] != b[:-1] or not a[-1].same(b[-1], 0.0):
                return path, "another state", "eager's"
        elif a != b:
            return path, str(a), str(b)
    if len(found) != len(expected):
        longer = found if len(found) > len(expected) else expected
        path, what = longer[min(len(found), len(expected))]
        more = f"{path}: {what}"
        return (path, more, "nothing more") if longer is found else (path, "nothing more", more)
    return None


def aspect(path: str) -> str:
    """What a path is about: the state, the result, what was printed and so on."""
    for word in ("seen", "printed", "traceback", "raised", "error", "result", "args", "state", "gradients"):
        if path.startswith(word):
            return word
    return "value"


def fault(error: BaseException, number: int, different: tuple[str, str, str] | None = None) -> Difference:
    """The compiled program raised what eager does not: named by where."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "graphlift/" in f.filename.replace("src/graphlift/", "graphlift/")]
    inside = [f for f in ours if not f.filename.endswith(("api.py",))]
    place = f"{inside[-1].filename.rpartition('/')[2]}:{inside[-1].name}" if inside else "in the program"
    expected = f"{different[0]}: {different[2]}" if different else "no fault"
    return Difference(
        ("raises", type(error).__name__, place),
        number,
        "",
        "".join(traceback.format_exception(error))[-2500:],
        expected,
    )


faulthandler.enable()
