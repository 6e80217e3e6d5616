"""A break at every instruction in turn changes nothing: values, exceptions, lines of tracebacks."""

from __future__ import annotations

import copy
from types import FunctionType
from typing import Any

from tests.bytecode.chain import outcome, parameters, run_chain
from tests.bytecode.samples import CASES, MANY


def bound_args(fn: FunctionType, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments in localsplus order -> positional and keyword arguments of a plain call."""
    code = fn.__code__
    named = dict(zip(parameters(code), args, strict=True))
    positional = [named[n] for n in code.co_varnames[: code.co_argcount]]
    keywords = {n: named[n] for n in code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]}
    extra = list(parameters(code)[code.co_argcount + code.co_kwonlyargcount :])
    if code.co_flags & 4:
        positional += named[extra.pop(0)]
    if code.co_flags & 8:
        keywords |= named[extra.pop(0)]
    return tuple(positional), keywords


def in_slot_order(fn: FunctionType, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """CASES give *args before keyword-only arguments, as a signature reads; slots have them after."""
    if fn.__name__ != "all_parameters":
        return args
    a, rest, k, kw = args
    return a, k, rest, kw


def plain(fn: FunctionType, args: tuple[Any, ...]) -> Any:
    positional, keywords = bound_args(fn, copy.deepcopy(args))
    return outcome(fn, fn.__code__.co_filename, *positional, **keywords)


def test_every_instruction() -> None:
    for fn, case in CASES:
        args = in_slot_order(fn, case)
        want = plain(fn, args)
        missed: list[str] = []
        got = outcome(
            lambda fn=fn, args=args, missed=missed: run_chain(fn, copy.deepcopy(args), unsupported=missed)[0],
            fn.__code__.co_filename,
        )
        assert got == want, f"{fn.__name__}: broken everywhere {got}, plain {want}"
        assert not missed, f"{fn.__name__}: {missed}"


def test_resume_from_every_place() -> None:
    """After k breaks the rest runs natively, for every k."""
    for fn, case in CASES:
        args = in_slot_order(fn, case)
        want = plain(fn, args)
        steps = 0
        while True:
            broke: list[int] = []

            def run(fn=fn, args=args, steps=steps, broke=broke) -> Any:  # type: ignore[no-untyped-def]
                result, places = run_chain(fn, copy.deepcopy(args), native_after=steps)
                broke += places
                return result

            got = outcome(run, fn.__code__.co_filename)
            assert got == want, f"{fn.__name__} after {steps} breaks: {got}, plain {want}"
            if want[0] == "raised" and steps > 400 or want[0] == "returned" and len(broke) < steps:
                break
            if steps > 400:
                break
            steps += 1 if steps < 60 else 7


def test_extended_arguments() -> None:
    many = MANY.many  # type: ignore[attr-defined]
    out: list[int] = []
    (total, last, length, cell), places = run_chain(many, (1, out))
    want = many(1, [])
    assert (total, last, length, cell()) == (*want[:3], want[3]())
    assert len(places) > 500
