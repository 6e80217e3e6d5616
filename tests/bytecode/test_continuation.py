"""Continuations one at a time: what is cached, what is refused, what a stub does at each kind of instruction."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from graphlift.bytecode import ContinuationUnsupported, FrameLayout, break_stub, decode, origin, resume_code
from graphlift.frame import Handover, is_skipped
from tests.bytecode.chain import enter, entry_state, next_state


def index_of(code: CodeType, op: str, arg: Any = None, nth: int = 0) -> int:
    found = [at.index for at in decode(code).instrs if at.op == op and (arg is None or at.arg == arg)]
    return found[nth]


def walk_to(fn: FunctionType, index: int, *args: Any) -> Any:
    """The state just before the instruction at `index`, by breaks at all before it."""
    state = entry_state(fn, args)
    while state.index != index:
        result = enter(fn, break_stub(fn.__code__, state.index, state.layout), state)
        assert isinstance(result, Handover), "returned before the instruction was reached"
        state = next_state(fn.__code__, result)
    return state


def branching(a: Any) -> Any:
    if a:
        return "true"
    return "false"


def test_made_once_and_known_by_origin() -> None:
    code = branching.__code__
    index, layout = index_of(code, "LOAD_FAST", "a"), FrameLayout((), ("a",))
    resume = resume_code(code, index, layout)
    assert resume is resume_code(code, index, FrameLayout((), ("a",)))
    assert break_stub(code, index, layout) is break_stub(code, index, layout)
    point = origin(resume)
    assert point is not None and (point.code, point.index, point.layout) == (code, index, layout)
    assert origin(code) is None and origin(break_stub(code, index, layout)) is None
    assert is_skipped(break_stub(code, index, layout)) and not is_skipped(resume)
    for made in (resume, break_stub(code, index, layout)):
        assert (made.co_name, made.co_filename, made.co_qualname) == (
            code.co_name, code.co_filename, code.co_qualname,
        )  # fmt: skip
        assert made.co_argcount == 1 and made.co_varnames[0] == "a"


def test_both_ways_of_a_conditional_jump() -> None:
    code = branching.__code__
    for value, expected in ((0, "false"), (1, "true")):
        jump = next(at.index for at in decode(code).instrs if at.op.startswith("POP_JUMP"))
        state = walk_to(branching, jump, value)
        result = enter(branching, break_stub(code, jump, state.layout), state)
        after = next_state(code, result)
        assert after.layout.stack == () and after.values == (value,)
        assert enter(branching, result.code, after) == expected


def looping(items: Any) -> Any:
    for item in items:
        str(item)
    return "done"


def test_both_ways_out_of_an_iterator_and_the_same_code_each_time_round() -> None:
    code = looping.__code__
    at = index_of(code, "FOR_ITER")
    for items in ([], [1], (x for x in [1]), range(0), map(str, [])):
        state = walk_to(looping, at, items)
        assert state.layout.stack == (True,)
        result = enter(looping, break_stub(code, at, state.layout), state)
        after = next_state(code, result)
        if after.layout.stack:
            assert after.layout.stack == (True, True) and after.index == at + 1
        else:
            assert enter(looping, result.code, after) == "done"
    seen = set()
    state = entry_state(looping, ([1, 2, 3, 4, 5],))
    made: set[int] = set()
    while True:
        stub = break_stub(code, state.index, state.layout)
        if len(seen) > 60:  # the first iterations make the codes, later ones must find them
            assert id(stub) in made
        made.add(id(stub))
        seen.add((state.index, state.layout))
        result = enter(looping, stub, state)
        if not isinstance(result, Handover):
            break
        state = next_state(code, result)


def keyword_call(f: Any, a: Any) -> Any:
    return f(a, f(1, k=2), key=a)


def test_nulls_under_a_call_come_back() -> None:
    code = keyword_call.__code__
    at = index_of(code, "CALL", (2, ("k",)))

    def f(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    state = walk_to(keyword_call, at, f, 3)
    assert state.layout.stack.count(False) == 2  # one NULL for each of the two calls under way
    result = enter(keyword_call, break_stub(code, at, state.layout), state)
    after = next_state(code, result)
    assert after.layout.stack.count(False) == 1
    assert enter(keyword_call, result.code, after) == keyword_call(f, 3)


def method_call(a: Any) -> Any:
    return a.upper().join(["x", "y"])


def test_a_method_load_leaves_a_null_that_is_known() -> None:
    code = method_call.__code__
    at = index_of(code, "LOAD_METHOD", "upper")
    state = walk_to(method_call, at, "q")
    result = enter(method_call, break_stub(code, at, state.layout), state)
    after = next_state(code, result)
    assert sorted(after.layout.stack) == [False, True]
    assert enter(method_call, result.code, after) == method_call("q")


def unbound(flag: Any) -> Any:
    if flag:
        value = 1
    return value


def test_a_local_left_out_of_the_layout_is_unbound() -> None:
    code = unbound.__code__
    at = index_of(code, "LOAD_FAST", "value")
    continued = FunctionType(resume_code(code, at, FrameLayout((), ())), globals(), "unbound")
    try:
        continued()
    except UnboundLocalError as error:
        assert "value" in str(error)
    else:
        raise AssertionError("an unbound name was read")
    assert FunctionType(resume_code(code, at, FrameLayout((), ("value",))), globals())(5) == 5


def counter() -> tuple[Callable[[], int], Callable[[], int]]:
    n = 0

    def up() -> int:
        nonlocal n
        n += 1
        return n

    n = 10
    return up, lambda: n


def test_cells_are_shared_with_closures_made_before_the_break() -> None:
    code = counter.__code__
    at = index_of(code, "STORE_DEREF", "n", nth=1)
    state = walk_to(counter, at)
    up = state.values[state.layout.locals.index("up")]
    assert up() == 1
    result = enter(counter, resume_code(code, at, state.layout), state)
    assert result[0]() == 11 and result[1]() == 11 and up() == 12


def handling(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return len(text)


def test_a_handler_that_is_left_hands_over_again() -> None:
    code = handling_on.__code__
    for text, expected in (("3", 4), ("xyz", 4)):
        at = index_of(code, "CALL", (1, ()))
        state = walk_to(handling_on, at, text)
        result = enter(handling_on, break_stub(code, at, state.layout), state)
        after = next_state(code, result)
        assert set(after.layout.locals) == {"text"} or "number" in after.layout.locals
        assert enter(handling_on, result.code, after) == expected


def handling_on(text: str) -> Any:
    try:
        number = int(text)
    except ValueError:
        number = len(text)
    return number + 1


async def coroutine() -> Any:
    return 1


def delegating(items: Any) -> Any:
    yield from items


def refused(code: CodeType, index: int, layout: FrameLayout) -> str:
    try:
        break_stub(code, index, layout)
    except ContinuationUnsupported as error:
        assert error.reason == str(error)
        return error.reason
    raise AssertionError("a continuation was made")


def test_refusals_have_reasons() -> None:
    assert "coroutine" in refused(coroutine.__code__, 2, FrameLayout((), ()))
    send = next(at.index for at in decode(delegating.__code__).instrs if at.op == "SEND")
    assert "yield from" in refused(delegating.__code__, send, FrameLayout((True, True), ("items",)))
    module = compile("x = 1\ny = x", "<m>", "exec")
    assert "module" in refused(module, 2, FrameLayout((), ()))
    for bad in (lambda: resume_code(branching.__code__, 999, FrameLayout((), ())),
                lambda: resume_code(branching.__code__, 1, FrameLayout((), ("nobody",)))):  # fmt: skip
        try:
            bad()
        except ValueError:
            pass
        else:
            raise AssertionError("accepted")


def test_continuations_go_with_their_origin() -> None:
    scope: dict[str, Any] = {}
    exec(compile("def f(a):\n    b = a + 1\n    return b", "<gone>", "exec"), scope)
    code = scope["f"].__code__
    stub = break_stub(code, decode(code).entry, FrameLayout((), ("a",)))
    gone = weakref.ref(code)
    kept = resume_code(code, decode(code).entry, FrameLayout((), ("a",)))
    del scope, code, stub
    gc.collect()
    assert gone() is None and origin(kept) is None


def test_line_of_the_instruction_is_the_line_of_the_stub() -> None:
    code = method_call.__code__
    state = entry_state(method_call, ("q",))
    while True:
        at = decode(code).instrs[state.index]
        stub = break_stub(code, at.index, state.layout)
        lines = {line for *_, line in stub.co_lines()}
        assert at.line in lines and stub.co_firstlineno == code.co_firstlineno
        result = enter(method_call, stub, state)
        if not isinstance(result, Handover):  # the stub of the last call returns too
            break
        state = next_state(code, result)
    assert result == method_call("q")
    assert sys.version_info >= (3, 11)
