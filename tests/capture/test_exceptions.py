"""Exceptions inside captured code: raised, caught, chained, left behind in `finally`."""

from __future__ import annotations

import contextlib
import sys

from torch import Tensor

from tests.capture.program import program


class Own(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Child(Own):
    pass


@program()
def test_caught_by_base_class(x: Tensor):
    try:
        raise Child("bad", 3)
    except Own as error:
        return x + error.code, error.args, str(error)


@program()
def test_else_and_finally_in_order(x: Tensor):
    log = []
    for kind in ("ok", "key", "value"):
        try:
            log.append(kind)
            if kind == "key":
                {}[kind]
            if kind == "value":
                int(kind)
        except KeyError as error:
            log.append(("key", str(error)))
        except ValueError as error:
            log.append(("value", str(error)))
        else:
            log.append("else")
        finally:
            log.append("finally")
    return x * len(log), log


@program()
def test_return_in_finally_wins(x: Tensor):
    def inner():
        try:
            raise ValueError("lost")
        finally:
            return x + 1

    return inner()


@program()
def test_break_and_continue_through_finally(x: Tensor):
    log = []
    for i in range(4):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            x = x + i
        finally:
            log.append(i)
    return x, log


@program()
def test_bare_raise_and_context(x: Tensor):
    def reraises():
        raise

    try:
        try:
            raise KeyError("first")
        except KeyError:
            reraises()
    except KeyError as error:
        again = error
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904
    except ValueError as error:
        return (
            x + 1,
            str(again),
            type(error.__context__).__name__,
            error.__cause__,
            error.__suppress_context__,
        )


@program()
def test_cause(x: Tensor):
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        cause = error.__cause__
    try:
        raise ValueError("third") from None
    except ValueError as error:
        return x + 1, str(cause), error.__cause__, error.__suppress_context__


@program()
def test_exc_info(x: Tensor):
    try:
        raise ValueError("here")
    except ValueError:
        cls, error, _ = sys.exc_info()
        return x + 1, cls, str(error)


@program()
def test_name_unbound_after_handler(x: Tensor):
    try:
        raise ValueError
    except ValueError as error:
        kept = str(error)
    try:
        error  # noqa: F821
    except UnboundLocalError as unbound:
        return x + 1, kept, str(unbound)


@program()
def test_messages_of_the_interpreter(x: Tensor):
    def attempts():
        yield lambda: [1, 2][5]
        yield lambda: tuple([1, 2])["a"]
        yield lambda: {}["missing"]
        yield lambda: {}[("a", 1)]
        yield lambda: 1 / 0
        yield lambda: int("x")
        yield lambda: "a" + 1
        yield lambda: len(3)
        yield lambda: iter(3)
        yield lambda: (lambda: 0)(1)
        yield lambda: (lambda a: 0)()
        yield lambda: (lambda a, b, c: 0)()
        yield lambda: (lambda a, b=1: 0)(1, 2, 3)
        yield lambda: (lambda *, k: 0)()
        yield lambda: (lambda *, k: 0)(1, k=2)
        yield lambda: (lambda a, /: 0)(a=1)
        yield lambda: (lambda a: 0)(1, a=1)
        yield lambda: (lambda a: 0)(b=1)
        yield lambda: [].pop()
        yield lambda: [1].remove(2)
        yield lambda: [1].index(2)
        yield lambda: (1,).index(2)
        yield lambda: {}.pop("k")
        yield lambda: set().remove(3)
        yield lambda: next(iter([]))
        yield lambda: object().missing
        yield lambda: None.missing
        yield lambda: sys.missing
        yield lambda: [1] < 2
        yield lambda: {[]: 1}
        yield lambda: min([])
        yield lambda: float("z")
        yield lambda: "%d" % "a"
        yield lambda: "{}".format()
        yield lambda: dict(a=1)["b"]

    seen = []
    for attempt in attempts():
        try:
            attempt()
        except Exception as error:
            seen.append((type(error).__name__, str(error)))
    return x + len(seen), seen


@program()
def test_unpacking_errors(x: Tensor):
    seen = []
    for values in ((1,), (1, 2, 3)):
        try:
            a, b = values
        except ValueError as error:
            seen.append(str(error))
    try:
        a, b, *_ = (1,)
    except ValueError as error:
        seen.append(str(error))
    return x + 1, seen


@program(breaks=True)
def test_leaves_the_function(x: Tensor):
    y = x + 1
    if y.shape[0] == 3:
        raise Own("three", 3)
    return y


@program(breaks=True)
def test_leaves_through_finally_and_handler(x: Tensor):
    log = []
    try:
        try:
            x = x + 1
            raise Own("inner", 1)
        except KeyError:
            log.append("never")
        finally:
            log.append("finally")
    except Own as error:
        log.append(error.code)
        raise ValueError("outer") from error


@program(lambda: [])
def test_effects_before_a_caught_exception_stay(x: Tensor, log: list):
    def effectful():
        log.append(x * 2)
        raise KeyError("after")

    with contextlib.suppress(KeyError):
        effectful()
    return x + 1


@program()
def test_assert_with_message(x: Tensor):
    try:
        assert x.shape[0] == 4, f"got {x.shape[0]}"
    except AssertionError as error:
        return x + 1, str(error)


@program()
def test_exception_object_returned(x: Tensor):
    try:
        raise Own("kept", 4)
    except Own as error:
        kept = error
    return x + 1, type(kept), kept.args, kept.code, isinstance(kept, Exception)


@program(breaks=True)
def test_except_star(x: Tensor):
    try:
        raise ExceptionGroup("group", [ValueError("a"), KeyError("b")])
    except* ValueError as group:
        x = x + len(group.exceptions)
    except* KeyError:
        x = x * 2
    return x


@program(breaks=True)
def test_error_of_a_tensor_operation_caught(x: Tensor):
    try:
        return x @ x.new_ones(4, 4)
    except RuntimeError:
        return x + 1


class Asking:
    def __getattr__(self, name):
        raise AttributeError("asked for " + name)


@program()
def test_errors_say_what_was_missing(x: Tensor):
    def unbound():
        if not log:
            name = 1
        return name

    def unbound_outside():
        def inner():
            return later

        if not log:
            later = 1
        return inner()

    log = ["started"]
    asking, text = Asking(), "text"
    for call in (lambda: undefined_name, unbound, unbound_outside):  # noqa: F821
        try:
            call()
        except NameError as error:
            log.append((type(error), str(error), error.name))
    for obj in (asking, text, contextlib, Asking):
        try:
            obj.missing
        except AttributeError as error:
            log.append((str(error), error.name, error.obj is obj))
    return x + 1, log
