"""Groups of exceptions and `except*`, notes, what is being handled, and the context of what is raised."""

from __future__ import annotations

import contextlib
import sys

import torch
from torch import Tensor

import graphlift
from benchmarks.compilers import Compiler
from tests.capture.program import program

# ruff: noqa: B904


class Own(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Derived(ExceptionGroup):
    def derive(self, errors):
        return Derived(self.message + "!", errors)


def nested() -> ExceptionGroup:
    return ExceptionGroup("g", [ValueError(1), ExceptionGroup("n", [TypeError(2), ValueError(3)])])


@program()
def test_each_clause_takes_its_part(x: Tensor):
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError("t")])
    except* ValueError as error:
        x = x + len(error.exceptions)
        seen = sys.exception() is error
    except* (TypeError, KeyError) as error:
        x = x * 2
        text = error.message
    return x, text, seen, sys.exception()


@program()
def test_single_exception_is_wrapped(x: Tensor):
    try:
        {}["k"]
    except* KeyError as error:
        kept = type(error), error.message, repr(error), error.exceptions[0].__context__
    return x + 1, kept


@program()
def test_else_and_finally_of_star(x: Tensor):
    try:
        x = x + 1
    except* KeyError:
        x = x * 100
    else:
        x = x + 2
    finally:
        x = x * 3
    return x


@program()
def test_rest_goes_on(x: Tensor):
    log = []
    try:
        try:
            raise nested()
        except* ValueError as error:
            log.append(repr(error))
    except ExceptionGroup as rest:
        log.append((repr(rest), rest.message))
    return x + len(log), log


@program()
def test_raised_in_clauses(x: Tensor):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError("t"), OSError(3)])
        except* ValueError:
            raise KeyError("new")
        except* TypeError as error:
            raise Own("m", 3) from error
    except ExceptionGroup as group:
        parts = group.exceptions
        chains = [(repr(part.__cause__), repr(part.__context__)) for part in parts]
        return x + 1, repr(group), chains, repr(group.__context__)


@program()
def test_reraised_parts_keep_their_places(x: Tensor):
    try:
        try:
            raise nested()
        except* ValueError:
            raise
        except* TypeError:
            raise
    except ExceptionGroup as group:
        return x + 1, repr(group), group.message


@program()
def test_named_raise_is_no_reraise(x: Tensor):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        except* ValueError as error:
            raise error
    except ExceptionGroup as group:
        return x + 1, repr(group), group.message


@program()
def test_single_exception_reraised_is_itself(x: Tensor):
    own = ValueError(1)
    try:
        try:
            raise own
        except* ValueError:
            raise
    except BaseException as error:
        return x + 1, repr(error), error is own


@program()
def test_group_leaves_the_function(x: Tensor):
    x = x + 1
    try:
        raise ExceptionGroup("out", [ValueError(1), OSError(2, "no")])
    except* OSError:
        x = x * 2
    return x


@program()
def test_clause_raises_out_of_the_function(x: Tensor):
    x = x + 1
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError as error:
        raise KeyError("n") from error


@program()
def test_star_in_loop_and_in_handler(x: Tensor):
    total = 0
    for i in range(4):
        try:
            raise KeyError("outer")
        except KeyError:
            try:
                if i % 2:
                    raise ExceptionGroup(str(i), [ValueError(i)])
                x = x + i
            except* ValueError as error:
                total += error.exceptions[0].args[0]
            outer = repr(sys.exception())
    return x + total, outer


@program(breaks=True)
def test_break_inside_a_clause(x: Tensor):
    x = x + 1
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError:
        graphlift.graph_break()
        x = x * 2
    except* TypeError:
        x = x * 3
    return x * 2


@program()
def test_methods_of_groups(x: Tensor):
    group = nested()
    group.add_note("first")
    match, rest = group.split(ValueError)
    match.add_note("second")
    large = group.subgroup(lambda error: isinstance(error, ValueError) and error.args[0] > 1)
    parts = match, rest, group.subgroup((TypeError, KeyError)), large, group.derive([KeyError("d")])
    notes = group.__notes__, match.__notes__, rest.__notes__
    return x + len(group.exceptions), list(map(repr, parts)), str(group), notes, group.subgroup(KeyError)


@program()
def test_derive_of_subclass(x: Tensor):
    try:
        raise Derived("mine", [ValueError(1), TypeError(2)])
    except* ValueError as error:
        first = type(error), error.message
    except* TypeError as error:
        second = type(error), error.message
    return x + 1, first, second


@program()
def test_group_refuses(x: Tensor):
    log = []
    for args in (
        (1, []),
        ("m", []),
        ("m", [1]),
        ("m",),
        ("m", 3),
        ("m", {1: 2}),
        ("m", [KeyboardInterrupt()]),
    ):
        try:
            ExceptionGroup(*args)
        except Exception as error:
            log.append((type(error), str(error)))
    kinds = (
        type(BaseExceptionGroup("m", [ValueError()])),
        type(BaseExceptionGroup("m", [KeyboardInterrupt()])),
    )
    try:
        ExceptionGroup("g", [ValueError()]).split(3)
    except TypeError as error:
        log.append(str(error))
    try:
        try:
            raise ValueError(1)
        except* ExceptionGroup:
            x = x * 100
    except TypeError as error:
        log.append(str(error))
    return x + 1, log, kinds


@program()
def test_group_that_nothing_raised_is_returned(x: Tensor):
    group = ExceptionGroup("g", [ValueError(1), KeyError(2)])
    group.add_note("q")
    return x + 1, repr(group), group.__notes__, [group]


@program()
def test_notes(x: Tensor):
    log = []
    try:
        own = ValueError("v")
        own.add_note("first")
        raise own
    except ValueError as error:
        error.add_note("second")
        log += error.__notes__
    for note in (3, None):
        try:
            ValueError("v").add_note(note)
        except TypeError as error:
            log.append(str(error))
    return x + 1, log


@program()
def test_notes_leave_the_function(x: Tensor):
    own = ValueError("v")
    own.add_note("first")
    own.add_note("second")
    x = x + 1
    raise own


@program()
def test_context_is_that_of_the_last_raise(x: Tensor):
    own, log = ValueError("v"), []
    for handled in (KeyError(1), TypeError(2)):
        try:
            try:
                raise handled
            except LookupError:
                raise own
            except TypeError:
                raise own
        except ValueError:
            log.append(repr(own.__context__))
    return x + 1, log


@program()
def test_context_is_no_circle(x: Tensor):
    first, second = ValueError("a"), KeyError("b")
    try:
        try:
            raise first
        except ValueError:
            raise second
    except KeyError:
        try:
            raise first
        except ValueError:
            pass
    return x + 1, repr(first.__context__), repr(second.__context__)


@program()
def test_context_is_set_where_it_is_raised(x: Tensor):
    def fails():
        raise ValueError("v")

    try:
        try:
            raise KeyError("k")
        except KeyError:
            try:
                fails()
            except ValueError as error:
                seen = repr(error.__context__)
            raise TypeError("t")
    except TypeError as error:
        return x + 1, seen, repr(error.__context__)


@program()
def test_fields_of_exceptions_are_set(x: Tensor):
    error = ValueError(1, 2)
    error.args = (3,)
    error.extra = x
    error.__suppress_context__ = False
    error.__cause__ = KeyError(2)
    error.__context__ = TypeError(3)
    log = [repr(error), repr(error.__cause__), repr(error.__context__), error.__suppress_context__]
    error.__suppress_context__ = False
    for name in ("__cause__", "__context__"):
        try:
            setattr(error, name, 3)
        except TypeError as wrong:
            log.append(str(wrong))
    return error.extra + 1, log, error.__suppress_context__


class WithNew(Exception):
    def __new__(cls, first, second):
        made = super().__new__(cls, first)
        made.second = second
        return made

    def __init__(self, first, second):
        super().__init__(first)


class Missing(AttributeError):
    def __init__(self, text):
        super().__init__(text, name="it")


@program()
def test_exceptions_with_their_own_making(x: Tensor):
    made = WithNew(1, 2)
    try:
        raise Missing("text")
    except AttributeError as error:
        return x + made.second, made, error.name, str(error), repr(error)


def handles(x: Tensor):
    try:
        raise ValueError(1)
    except ValueError as error:
        context = repr(error.__context__)
    return x + 1, context, repr(sys.exception()), sys.exc_info()[0]


def test_called_while_an_exception_is_handled(compiler: Compiler) -> None:
    compiled = compiler.compile(handles, backend="eager")

    def seen(fn):
        found = [fn(torch.ones(2))[1:]]
        try:
            raise KeyError("outer")
        except KeyError:
            found.append(fn(torch.ones(2))[1:])
        return [*found, fn(torch.ones(2))[1:]]

    assert seen(compiled) == seen(handles)
    assert seen(compiled) == seen(handles)


@program(list)
def test_contextmanager_that_catches(x: Tensor, log: list):
    @contextlib.contextmanager
    def catching():
        try:
            yield
        except ValueError as error:
            log.append(str(error))

    with catching():
        raise ValueError("gone")
    return x + 1


@program(list)
def test_exit_stack_outside_of_handlers(x: Tensor, log: list):
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, "callback")
        rest = stack.pop_all()
    log.append("between")
    rest.close()
    return x + 1


@program()
def test_throw_into_a_generator_that_delegates_to_a_list(x: Tensor):
    def outer():
        try:
            yield from [1, 2]
        except ValueError:
            yield 9

    generator = outer()
    next(generator)
    first = generator.throw(ValueError())
    return x + first, list(generator)


@program()
def test_context_of_what_is_thrown_into_a_generator(x: Tensor):
    def generator():
        try:
            yield 1
        except ValueError as error:
            yield repr(sys.exception()), repr(error.__context__)
        yield sys.exception()
        try:
            raise TypeError("own")
        except TypeError:
            try:
                yield 2
            except ValueError as error:
                kept = repr(error.__context__)
        yield kept

    made = generator()
    next(made)
    try:
        raise KeyError("outer")
    except KeyError:
        log = [made.throw(ValueError("v")), repr(sys.exception()), repr(next(made)), next(made)]
        log.append(made.throw(ValueError("w")))
    return x + 1, log, list(made)


@program()
def test_subclasses_that_keep_more(x: Tensor):
    class Coded(ExceptionGroup):
        def __new__(cls, text, errors, code):
            made = super().__new__(cls, text, errors)
            made.code = code
            return made

        def derive(self, errors):
            return Coded(self.message, errors, self.code)

    class Wrong(ExceptionGroup):
        def derive(self, errors):
            return 3

    try:
        raise Coded("m", [ValueError(1), KeyError(2)], 7)
    except* ValueError as error:
        first = type(error).__name__, error.code, len(error.args)
    except* KeyError as error:
        second = type(error).__name__, error.code
    try:
        Wrong("m", [ValueError(1), KeyError(2)]).split(ValueError)
    except TypeError as error:
        return x + 1, first, second, str(error)


@program()
def test_parts_know_what_the_group_came_from(x: Tensor):
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError as error:
        first = repr(error.__context__), error.__cause__, error.__suppress_context__
    except* TypeError as error:
        second = repr(error.__context__)
    return x + 1, first, second
