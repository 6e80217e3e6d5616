"""The frame hook: what is asked, what is hit, and that everything is put back."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

from graphlift.frame import (
    FROZEN,
    SKIP,
    CompiledCallable,
    Disabled,
    Handover,
    call_disabled,
    clear,
    current_owner,
    dict_version,
    entries,
    hook_active,
    hook_installed,
    invalidate,
    is_skipped,
    remove_entry,
    set_skip,
    trampoline,
    type_version,
)


def accept(func: FunctionType, *args: Any) -> tuple[Any, ...]:
    return args


def refuse(func: FunctionType, *args: Any) -> None:
    return None


def answering(**answers: Any) -> Callable[..., Any]:
    """A handler that answers by function name, and notes the questions about functions of this file."""

    def handler(func: FunctionType, args: tuple[Any, ...], recompiles: int) -> Any:
        if func.__code__.co_filename != __file__:  # a callback of the garbage collector, say
            return SKIP
        handler.asked.append((func.__name__, args, recompiles))  # type: ignore[attr-defined]
        assert not hook_active()
        answer = answers.get(func.__name__)
        return answer(func, args) if isinstance(answer, FunctionType) else answer

    handler.asked = []  # type: ignore[attr-defined]
    return handler


def fresh(fn: FunctionType) -> FunctionType:
    """The same function with code of its own, so that tests share no entries."""
    made = FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__kwdefaults__ = fn.__kwdefaults__
    return made


def times(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> Any:
    return "plain", a, b, rest, c, more


def add(a: int, b: int = 2) -> Any:
    return "plain", a + b


def test_replacement_gets_the_arguments_as_bound() -> None:
    fn = fresh(times)
    handler = answering(times=(accept, lambda func, *args: ("new", func, args)))
    fast = CompiledCallable(fn, handler)
    fetched = (1, 2, 3, (), {})
    assert fast(1) == ("new", fn, (*fetched, fetched))
    fetched = (1, 5, 9, (6, 7), {"z": 8})
    assert fast(1, 5, 6, 7, c=9, z=8) == ("new", fn, (*fetched, fetched))
    assert fast(a=1, b=5) == ("new", fn, (1, 5, 3, (), {}, (1, 5, 3, (), {})))
    assert handler.asked == [("times", (1, 2, 3, (), {}), 0)]  # type: ignore[attr-defined]
    assert fn(1) == ("plain", 1, 2, (), 3, {})
    for wrong in ((), (1, 2)):
        try:
            fast(*wrong, **({"a": 1} if wrong else {}))
        except TypeError as error:
            assert "times()" in str(error)
        else:
            raise AssertionError("bad arguments were accepted")


def test_plain_arguments_skip_the_frame_and_agree_with_it() -> None:
    fn = fresh(add)
    fast = CompiledCallable(fn, answering(add=(accept, lambda func, *args: args)))
    for _ in range(3):
        assert fast(1) == (1, 2, (1, 2))
        assert fast(1, 3) == (1, 3, (1, 3))
        assert fast(1, b=3) == (1, 3, (1, 3))
    for wrong in ((), (1, 2, 3)):
        try:
            fast(*wrong)
        except TypeError as error:
            assert "add()" in str(error)
        else:
            raise AssertionError("bad arguments were accepted")


def test_most_recently_hit_first_and_recompiles_counted() -> None:
    fn = fresh(add)

    def answer(func: FunctionType, args: tuple[Any, ...]) -> Any:
        wanted = args[0]
        return (lambda f, *a: a if a[0] == wanted else None), (lambda f, *a: ("for", wanted))

    handler = answering(add=answer)
    fast = CompiledCallable(fn, handler)
    for value in (1, 2, 3, 1, 2, 3, 3):
        assert fast(value) == ("for", value)
    assert [question[2] for question in handler.asked] == [0, 1, 2]  # type: ignore[attr-defined]
    assert len(entries(fn)) == 3
    first = entries(fn)[0][0]
    assert first(fn, 3) == (3,)
    fast(1)
    assert entries(fn)[0][0](fn, 1) == (1,)
    assert remove_entry(fn.__code__, first) and not remove_entry(fn.__code__, first)
    assert len(entries(fn)) == 2
    invalidate(fast)
    assert entries(fn) == []


def test_verdicts() -> None:
    for answer, asked in ((SKIP, 1), (FROZEN, 1), (None, 3)):
        fn = fresh(add)
        handler = answering(add=answer)
        fast = CompiledCallable(fn, handler)
        assert [fast(1), fast(1), fast(1)] == [("plain", 3)] * 3
        assert len(handler.asked) == asked, answer  # type: ignore[attr-defined]
        assert is_skipped(fn) == (answer is SKIP)
        clear(fn)
        fast(1)
        assert len(handler.asked) == asked + 1  # type: ignore[attr-defined]
    assert repr(SKIP) == "SKIP" and repr(FROZEN) == "FROZEN"


def test_frozen_keeps_the_entries_that_exist() -> None:
    fn = fresh(add)

    def answer(func: FunctionType, args: tuple[Any, ...]) -> Any:
        return ((lambda f, *a: a if a[0] == 1 else None), lambda f, *a: "one") if args[0] == 1 else FROZEN

    handler = answering(add=answer)
    fast = CompiledCallable(fn, handler)
    assert [fast(v) for v in (1, 2, 3, 1)] == ["one", ("plain", 4), ("plain", 5), "one"]
    assert len(handler.asked) == 2 and len(entries(fn)) == 1  # type: ignore[attr-defined]


def test_an_entry_whose_own_check_fails_runs_eagerly() -> None:
    fn = fresh(add)
    fast = CompiledCallable(fn, answering(add=(refuse, lambda *args: "never")))
    assert fast(1) == ("plain", 3)


def test_errors_pass_and_everything_is_put_back() -> None:
    def bad_handler(func: FunctionType, args: tuple[Any, ...], recompiles: int) -> Any:
        raise LookupError("handler")

    def bad_check(func: FunctionType, *args: Any) -> Any:
        raise LookupError("check")

    def bad_replacement(func: FunctionType, *args: Any) -> Any:
        raise LookupError("replacement")

    handlers = [
        bad_handler,
        answering(add=(bad_check, bad_replacement)),
        answering(add=(accept, bad_replacement)),
        answering(add=3),
    ]
    for handler in handlers:
        fn = fresh(add)
        fast = CompiledCallable(fn, handler)
        for call in (lambda: fast(1), lambda: fast(1), lambda: fast(a=1)):  # noqa: B023
            try:
                call()
            except (LookupError, TypeError):
                pass
            else:
                raise AssertionError("no exception")
            assert not hook_active() and not hook_installed() and current_owner() is None
        assert fn(1) == ("plain", 3)


def raising(a: int) -> Any:
    raise KeyError(a)


def test_original_raises_through() -> None:
    fast = CompiledCallable(fresh(raising), answering())
    try:
        fast(1)
    except KeyError as error:
        assert error.args == (1,)
    assert not hook_active() and not hook_installed()


def inner(x: int) -> Any:
    return "inner", x, hook_active()


def outer(x: int) -> Any:
    return inner(x), hook_active()


def test_callees_are_asked_too_and_replacements_run_with_the_hook_on() -> None:
    handler = answering(inner=(accept, lambda func, *args: ("new inner", args[0], hook_active())))
    fast = CompiledCallable(fresh(outer), handler)
    assert fast(1) == (("new inner", 1, True), True)
    assert [name for name, *_ in handler.asked] == ["outer", "inner"]  # type: ignore[attr-defined]

    handler = answering(outer=(accept, lambda func, *args: ("new outer", inner(args[0]))))
    fast = CompiledCallable(fresh(outer), handler)
    clear(inner)
    assert fast(1) == ("new outer", ("inner", 1, True))
    assert [name for name, *_ in handler.asked] == ["outer", "inner"]  # type: ignore[attr-defined]
    assert not hook_active()
    clear(inner)


def test_a_replacement_may_ask_to_run_without_the_hook() -> None:
    handler = answering(outer=(accept, lambda func, *args: inner(args[0]), False))
    fast = CompiledCallable(fresh(outer), handler)
    assert fast(1) == ("inner", 1, False)


def test_compiled_inside_compiled_keeps_owners_apart() -> None:
    leaf = fresh(inner)
    one = CompiledCallable(leaf, answering(inner=(accept, lambda func, *args: "one")))
    two = CompiledCallable(leaf, answering(inner=(accept, lambda func, *args: "two")))

    def both(x: int) -> Any:
        before = current_owner()
        got = one(x), two(x), leaf(x)[0]  # noqa: F821 (deleted at the end)
        assert current_owner() is before
        return got

    three = CompiledCallable(both, answering())
    for _ in range(3):
        assert three(1) == ("one", "two", "inner")
        assert one(1) == "one" and two(1) == "two" and leaf(1) == ("inner", 1, False)
    assert len(entries(leaf)) == 2
    del one, both, three
    gc.collect()
    assert [replacement(None) for _, replacement in entries(leaf)] == ["two"]


def test_reentrant_handler_and_check() -> None:
    """The handler and the checks may themselves call compiled functions."""
    helper = CompiledCallable(fresh(add), answering(add=(accept, lambda func, *args: "helped")))

    def answer(func: FunctionType, args: tuple[Any, ...]) -> Any:
        assert helper(1) == "helped"
        return (lambda f, *a: (helper(2),)), (lambda f, *a: (a[-1], helper(3)))

    fast = CompiledCallable(fresh(inner), answering(inner=answer))
    assert fast(1) == fast(2) == (("helped",), "helped")


def test_a_check_may_clear_the_entries_under_it() -> None:
    fn = fresh(add)

    def clearing(func: FunctionType, *args: Any) -> Any:
        clear(fn)
        return args if args[0] else None

    fast = CompiledCallable(fn, answering(add=(clearing, lambda *args: "new")))
    assert [fast(v) for v in (1, 0, 1, 0, 0)] == ["new", ("plain", 2), "new", ("plain", 2), ("plain", 2)]


def test_threads_do_not_see_each_other() -> None:
    handler = answering(add=(accept, lambda func, *args: ("new", hook_active())))
    fn = fresh(add)
    fast = CompiledCallable(fn, handler)
    inside, go = threading.Event(), threading.Event()
    got: list[Any] = []

    def waits(x: int) -> Any:
        inside.set()
        go.wait(10)
        return add(x), hook_active()

    slow = CompiledCallable(waits, answering())
    thread = threading.Thread(target=lambda: got.append(slow(1)))
    thread.start()
    inside.wait(10)
    assert hook_installed() and not hook_active()
    assert fn(1) == ("plain", 3)
    assert fast(1) == ("new", True)
    assert hook_installed()
    go.set()
    thread.join()
    assert got == [(("plain", 3), True)]
    assert not hook_installed()


def test_many_threads() -> None:
    fn = fresh(add)

    def answer(func: FunctionType, args: tuple[Any, ...]) -> Any:
        wanted = args[0] % 4
        return (lambda f, *a: a if a[0] % 4 == wanted else None), (
            lambda f, *a: ("mod", a[0] % 4, inner(a[0])[1])
        )

    fast = CompiledCallable(fn, answering(add=answer))
    wrong: list[Any] = []

    def work(start: int) -> None:
        for i in range(start, start + 2000):
            if fast(i) != ("mod", i % 4, i):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    interval = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-5)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong and not hook_installed()


def test_disabled() -> None:
    def calls(x: int) -> Any:
        return Disabled(inner)(x), call_disabled(inner, x=x), inner(x)

    handler = answering(inner=(accept, lambda func, *args: "new"))
    clear(inner)
    fast = CompiledCallable(calls, handler)
    assert fast(1) == (("inner", 1, False), ("inner", 1, False), "new")
    clear(inner)
    off = Disabled(inner)
    assert off(2) == ("inner", 2, False) and off.__wrapped__ is inner and off.__name__ == "inner"

    def fails() -> Any:
        try:
            Disabled(raising)(1)
        except KeyError:
            return hook_active(), hook_installed()

    assert CompiledCallable(fails, answering())() == (True, True)
    assert not hook_installed()


def test_skip() -> None:
    fn = fresh(add)
    assert not is_skipped(fn)
    set_skip(fn)
    handler = answering(add=(accept, lambda *args: "new"))
    assert CompiledCallable(fn, handler)(1) == ("plain", 3)
    assert is_skipped(fn.__code__) and not handler.asked  # type: ignore[attr-defined]


def test_generators_and_class_bodies_are_never_roots() -> None:
    def counting(n: int) -> Any:
        class Body:
            total = sum(i for i in range(n))

        async def never() -> None: ...

        never().close()
        return list(produce(n)), Body.total, [i for i in produce(n)]

    def produce(n: int) -> Any:
        yield from range(n)

    handler = answering()
    assert CompiledCallable(counting, handler)(4) == ([0, 1, 2, 3], 6, [0, 1, 2, 3])
    names = {name for name, *_ in handler.asked}  # type: ignore[attr-defined]
    assert "counting" in names and not names & {"produce", "Body", "<genexpr>", "never"}


def test_methods_and_metadata() -> None:
    class Model:
        def plain(self, x: int, y: int = 1) -> Any:
            "doc"
            return self, x, y

        fast = CompiledCallable(plain, answering(plain=(accept, lambda func, *args: ("new", *args[:-1]))))
        fast.note = 1  # type: ignore[attr-defined]

    model = Model()
    assert model.fast(2) == ("new", model, 2, 1) == model.fast(2)
    assert Model.fast(model, 2, y=3) == ("new", model, 2, 3)
    bound = CompiledCallable(
        model.plain, answering(plain=(accept, lambda func, *args: ("bound", *args[:-1])))
    )
    assert bound(5) == ("bound", model, 5, 1) == bound(5)
    assert bound(x=5) == ("bound", model, 5, 1)
    fast = Model.__dict__["fast"]
    assert (fast.__name__, fast.__doc__, fast.__wrapped__) == ("plain", "doc", Model.plain)
    assert str(inspect.signature(fast)) == str(inspect.signature(Model.plain))
    assert fast.note == 1 and weakref.ref(fast)() is fast and "plain" in repr(fast)
    partial = CompiledCallable(functools.partial(add, 1), answering())
    assert partial() == ("plain", 3)
    for wrong in ((3, add), (add, 3), (add,)):
        try:
            CompiledCallable(*wrong)
        except TypeError:
            pass
        else:
            raise AssertionError(wrong)


def test_entries_die_with_their_owner_and_with_the_code() -> None:
    fn = fresh(add)

    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)
    fast = CompiledCallable(fn, answering(add=(accept, lambda func, *args, held=held: held)))
    assert fast(1) is held
    del held
    gc.collect()
    assert gone() is not None
    del fast
    gc.collect()
    assert gone() is None and entries(fn) == []

    held = Held()
    gone = weakref.ref(held)
    fn2 = fresh(inner)

    def caller(f: Callable[..., Any]) -> Any:
        return f(1)

    once = [held]

    def handler(func: FunctionType, args: tuple[Any, ...], recompiles: int) -> Any:
        if func.__name__ == "caller":
            return None
        kept = once.pop()
        return accept, lambda func, *args: kept

    fast = CompiledCallable(caller, handler)
    assert fast(fn2) is held
    del held
    gc.collect()
    assert gone() is not None
    del fn2
    gc.collect()
    assert gone() is None  # the owner lives, the code is gone


def test_an_owner_in_a_cycle_with_its_replacement_is_collected() -> None:
    fn = fresh(add)

    def build() -> weakref.ref[Any]:
        def replacement(func: FunctionType, *args: Any) -> Any:
            return fast

        fast = CompiledCallable(fn, answering(add=(accept, replacement)))
        assert fast(1) is fast
        return weakref.ref(fast)

    gone = build()
    gc.collect()
    assert gone() is None and entries(fn) == []


def test_trampoline_and_handover() -> None:
    def step(n: int, acc: int) -> Any:
        return acc if n == 0 else Handover(step.__code__, globals(), step.__closure__, (n - 1, acc + n))

    assert trampoline(7) == 7
    assert trampoline(step(10_000, 0)) == 50_005_000
    handover = step(1, 2)
    assert (handover.code, handover.args, handover.closure) == (step.__code__, (0, 3), step.__closure__)
    for wrong in ((), (1, 2, 3, 4), (step.__code__, {}, None, ()), (step.__code__, {}, (), ())):
        try:
            Handover(*wrong)
        except (TypeError, ValueError):
            pass
        else:
            raise AssertionError(wrong)
    try:
        trampoline(Handover(raising.__code__, globals(), None, (3,)))
    except KeyError as error:
        assert error.args == (3,)


def test_a_handed_over_frame_alone_keeps_its_values_alive() -> None:
    class Held:
        pass

    def root(x: int) -> Any:
        return None

    def rest(held: Any, seen: Any) -> Any:
        del held
        return seen() is None

    def replacement(func: FunctionType, *args: Any) -> Any:
        held = Held()
        return Handover(rest.__code__, globals(), None, (held, weakref.ref(held)))

    def relay(first: Any) -> Any:
        held = first()
        return Handover(rest.__code__, globals(), None, (held, weakref.ref(held)))

    def through(func: FunctionType, *args: Any) -> Any:
        return trampoline(Handover(relay.__code__, globals(), relay.__closure__, (Held,)))

    for first in (through, replacement):
        fast = CompiledCallable(root, lambda func, *_: (accept, first) if func is root else None)  # noqa: B023
        assert fast(1) is True and fast(1) is True


def test_versions() -> None:
    d = {"a": 1}
    before = dict_version(d)
    assert dict_version(d) == before
    d["a"] = 2
    assert dict_version(d) != before

    class C:
        x = 1

    C().x  # noqa: B018
    assert isinstance(type_version(C), int)
    for call in (lambda: dict_version(3), lambda: type_version(3), lambda: set_skip(3)):
        try:
            call()
        except TypeError:
            pass
        else:
            raise AssertionError("accepted")


def test_another_frame_evaluator_is_chained() -> None:
    """Tracing and profiling still see the frames that are run."""
    seen: list[str] = []

    def traced(frame: Any, event: str, arg: Any) -> Any:
        seen.append(frame.f_code.co_name)
        return None

    fast = CompiledCallable(fresh(outer), answering())
    old = sys.gettrace()
    sys.settrace(traced)
    try:
        fast(1)
    finally:
        sys.settrace(old)
    assert "outer" in seen and "inner" in seen
