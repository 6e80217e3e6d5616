"""What the program notices when an object ends happens where eager has it: finalizers, and `finally` in generators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import graphlift
from benchmarks.compilers import Compiler

ENDED: list[int] = []


class Noted:
    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        ENDED.append(self.number)


class Holder:
    held: Any


def numbers() -> Iterator[int]:
    yield 1
    yield 2


def tidy() -> Iterator[int]:
    try:
        yield 1
        yield 2
    finally:
        ENDED.append(3)


def tidy_behind() -> Iterator[int]:
    try:
        yield from numbers()
    finally:
        ENDED.append(3)


def holds() -> Iterator[int]:
    noted = Noted(4)
    yield 1
    yield noted.number


def takes(value: Any) -> int:
    graphlift.graph_break()
    return 3


def zipped_comprehension() -> Any:
    return [b for _, b in zip([1], tidy())], len(ENDED)


def zipped_delegating() -> Any:
    return [b for _, b in zip([1], tidy_behind())], len(ENDED)


def zipped_loop() -> Any:
    found = []
    for _, b in zip([1], tidy_behind()):
        found.append(b)
    return found, len(ENDED)


def dropped_list() -> Any:
    held: Any = [Noted(1)]
    graphlift.graph_break()
    held = None
    return held, len(ENDED)


def dropped_instance() -> Any:
    holder: Any = Holder()
    holder.held = Noted(1)
    graphlift.graph_break()
    holder = None
    return holder, len(ENDED)


class Layer(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.noted = Noted(number)


def replaced_module() -> Any:
    model = torch.nn.Module()
    model.layer, model.layers = Layer(3), torch.nn.ModuleList([Layer(4), Layer(5)])
    return _replaced(model), len(ENDED)


def _replaced(model: torch.nn.Module) -> Any:
    takes(None)
    model.layer = None
    first = len(ENDED)
    model.layers[1] = torch.nn.Identity()
    second = len(ENDED)
    del model.layers
    return first, second, len(ENDED)


def cleared_dict() -> Any:
    table = {1: [Noted(1)]}
    graphlift.graph_break()
    table.clear()
    return table, len(ENDED)


def popped_list() -> Any:
    nested = [[Noted(1)]]
    graphlift.graph_break()
    nested.pop()
    return nested, len(ENDED)


def replaced_attribute() -> Any:
    holder = Holder()
    holder.held = [Noted(1)]
    graphlift.graph_break()
    holder.held = None
    return len(ENDED)


def replaced_cell() -> Any:
    noted: Any = Noted(1)

    def look() -> Any:
        return noted

    graphlift.graph_break()
    noted = None
    return look(), len(ENDED)


def arguments() -> Any:
    takes([Noted(1)])
    takes((Noted(2),))
    return len(ENDED)


def loop_over_unnamed() -> Any:
    for noted in [Noted(1), Noted(2)]:  # noqa: B007
        graphlift.graph_break()
    return noted.number, len(ENDED)


def loop_left_by_exception() -> Any:
    try:
        for _ in tidy():
            graphlift.graph_break()
            raise ValueError
    except ValueError:
        pass
    return len(ENDED)


def loop_left_by_break() -> Any:
    for make in (tidy, holds):
        for _ in make():
            graphlift.graph_break()
            break
    return len(ENDED)


def _first() -> int:
    for item in tidy():
        graphlift.graph_break()
        return item
    return 0


def loop_left_by_return() -> Any:
    return _first(), len(ENDED)


def iterator_dropped() -> Any:
    items: Any = zip(tidy(), [1])
    first = next(items)
    graphlift.graph_break()
    items = None
    return first, items, len(ENDED)


def exchanged() -> Any:
    a, b = Noted(1), Noted(2)
    graphlift.graph_break()
    a, b = b, a
    before = len(ENDED)
    a = 1
    return a, before, len(ENDED)


def inside_an_exception() -> Any:
    try:
        noted: Any = Noted(3)
        graphlift.graph_break()
        raise ValueError(noted)
    except ValueError as error:
        noted = type(error).__name__
        before = len(ENDED)
    return noted, before, len(ENDED)


def taken_from_the_stack() -> Any:
    first = Noted(1).number, len(ENDED)
    second = [Noted(2), len(ENDED)][1], len(ENDED)
    return first, second, str([Noted(3)].__len__()), len(ENDED)


def _raises(noted: Noted) -> None:
    graphlift.graph_break()
    raise ValueError(len(ENDED))


def callee_left_by_exception() -> Any:
    try:
        _raises(Noted(5))
    except ValueError as error:
        caught = error.args
    try:
        ENDED(Noted(6))  # type: ignore[operator]
    except TypeError:
        pass
    return caught, len(ENDED)


PROGRAMS: list[Callable[[], Any]] = [
    *(
        zipped_comprehension,
        zipped_delegating,
        zipped_loop,
        dropped_list,
        dropped_instance,
        cleared_dict,
        popped_list,
    ),
    *(
        replaced_attribute,
        replaced_module,
        replaced_cell,
        arguments,
        loop_over_unnamed,
        loop_left_by_exception,
        loop_left_by_break,
    ),
    *(
        loop_left_by_return,
        iterator_dropped,
        exchanged,
        inside_an_exception,
        callee_left_by_exception,
        taken_from_the_stack,
    ),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_ends_are_noticed_where_they_are_in_eager(compiler: Compiler, program: Callable[[], Any]) -> None:
    def called(x: torch.Tensor) -> Any:
        return program(), x + len(ENDED)

    def calls(function: Callable[[torch.Tensor], Any]) -> Any:
        ENDED.clear()
        return [repr(function(torch.ones(1))) for _ in range(3)], list(ENDED)

    assert calls(compiler.compile(called, backend="eager")) == calls(called)


def test_an_exception_that_breaks_the_graph_is_freed_with_its_handler(compiler: Compiler) -> None:
    """No frame of ours that its traceback holds keeps it alive."""

    def program(x: torch.Tensor) -> Any:
        try:
            noted = Noted(1)
            takes(noted)
            raise ValueError(noted)
        except ValueError as error:
            graphlift.graph_break()
            noted = type(error).__name__  # type: ignore[assignment]
            graphlift.graph_break()
        return x + 1, len(ENDED)

    compiled = compiler.compile(program, backend="eager")
    ENDED.clear()
    assert [compiled(torch.ones(1))[1] for _ in range(3)] == [1, 2, 3]


def test_the_last_of_what_a_generator_goes_through_ends_with_the_generator() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (
            x * 2 + sum(1 for _ in [Noted(1), Noted(2)]) + len([n for n in (c.number for c in (Noted(3),))])
        )

    compiled = graphlift.compile(program, backend="eager")
    for call in (compiled, compiled, compiled, program):
        ENDED.clear()
        assert call(torch.ones(2)).tolist() == [5.0, 5.0]
        assert ENDED == [1, 2, 3]
