"""Generators and iterators: the whole protocol, inside captured code and across its edge."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

import graphlift
from tests.capture.program import program

X = torch.ones(3)


@program()
def test_send_and_return_value(x: Tensor):
    def averager():
        total, count = 0.0, 0
        while True:
            item = yield total
            if item is None:
                return count
            total, count = total + item, count + 1

    generator = averager()
    log = [next(generator), generator.send(1.0), generator.send(2.0)]
    try:
        generator.send(None)
    except StopIteration as stop:
        return x * stop.value, log, list(generator)


@program()
def test_throw_is_caught_inside(x: Tensor):
    log = []

    def patient():
        while True:
            try:
                log.append((yield len(log)))
            except ValueError as error:
                log.append(str(error))

    generator = patient()
    values = [next(generator), generator.throw(ValueError("one")), generator.send("two")]
    generator.close()
    return x + 1, values, log


@program()
def test_close_runs_finally_of_the_delegate(x: Tensor):
    log = []

    def inner():
        try:
            yield 1
            yield 2
        finally:
            log.append("inner")

    def outer():
        try:
            log.append((yield from inner()))
        finally:
            log.append("outer")

    generator = outer()
    first = next(generator)
    generator.close()
    return x + first, log


@program()
def test_throw_into_the_delegate(x: Tensor):
    log = []

    def inner():
        try:
            yield 1
        except KeyError:
            log.append("caught")
            yield 2
        return "done"

    def outer():
        result = yield from inner()
        log.append(result)
        yield 3

    generator = outer()
    values = [next(generator), generator.throw(KeyError("k")), next(generator)]
    return x * len(values), values, log


@program()
def test_yield_from_results(x: Tensor):
    def leaf(n):
        yield n
        return n * 10

    def tree():
        a = yield from leaf(1)
        b = yield from leaf(2)
        yield from [a, b]
        return x * (a + b)

    def collect(generator):
        items = []
        while True:
            try:
                items.append(next(generator))
            except StopIteration as stop:
                return items, stop.value

    return collect(tree())


@program()
def test_stop_iteration_inside_becomes_runtime_error(x: Tensor):
    def bad():
        yield 1
        next(iter(()))

    try:
        for _ in bad():
            x = x + 1
    except RuntimeError as error:
        return x, str(error), type(error.__cause__), type(error.__context__), error.__suppress_context__


@program()
def test_generator_errors(x: Tensor):
    def stubborn():
        try:
            yield
        except GeneratorExit:
            yield

    seen = []
    generator = stubborn()
    try:
        generator.send(1)
    except TypeError as error:
        seen.append(str(error))
    next(generator)
    try:
        generator.close()
    except RuntimeError as error:
        seen.append(str(error))
    return x + 1, seen


@program()
def test_exhausted_iterator_stays_exhausted(x: Tensor):
    items = [1, 2]
    iterator = iter(items)
    first = list(iterator)
    items.append(3)
    return x + len(first), list(iterator), next(iterator, "end")


@program()
def test_list_grown_while_iterated(x: Tensor):
    items = [1]
    for item in items:
        if len(items) < 5:
            items.append(item + 1)
    return x + 1, items


@program(lambda: {"a": 1, "b": 2})
def test_dict_changed_while_iterated(x: Tensor, table: dict):
    seen = []
    try:
        for key in table:
            seen.append(key)
            table[key + "!"] = 0
    except RuntimeError as error:
        seen.append(str(error))
    return x + 1, seen


@program(lambda: {"a": 1, "b": 2})
def test_dict_values_replaced_while_iterated(x: Tensor, table: dict):
    seen = []
    for key, value in table.items():
        seen.append((key, value))
        table["b"] = 7
    return x + 1, seen


@program()
def test_set_changed_while_iterated(x: Tensor):
    items = {1, 2, 3}
    try:
        for item in items:
            items.discard(item)
    except RuntimeError as error:
        return x + 1, str(error), len(items)


@program()
def test_user_iterator_class(x: Tensor):
    class_log = []

    def steps(n):
        yield from range(n)

    for i, (a, b) in enumerate(zip(steps(3), map(str, itertools.count(5)))):
        class_log.append((i, a, b))
    return x + 1, class_log


@program()
def test_itertools(x: Tensor):
    return (
        x + 1,
        list(itertools.chain([1], (2, 3), "ab")),
        list(itertools.product([1, 2], "ab")),
        list(itertools.accumulate([1, 2, 3])),
        list(itertools.islice(itertools.count(), 2, 9, 3)),
        list(itertools.zip_longest([1], [2, 3], fillvalue=0)),
        list(itertools.starmap(pow, [(2, 3), (3, 2)])),
        list(itertools.pairwise("abc")),
        list(itertools.repeat(4, 2)),
        list(itertools.combinations([1, 2, 3], 2)),
        list(itertools.permutations([1, 2, 3], 2)),
        list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])),
        list(itertools.dropwhile(lambda v: v < 3, [1, 2, 3, 1])),
        [(key, list(group)) for key, group in itertools.groupby("aabc")],
        list(itertools.compress("abc", [1, 0, 1])),
        list(itertools.filterfalse(None, [0, 1, 2])),
        list(itertools.islice(itertools.cycle([1, 2]), 5)),
    )


@program(breaks=True)
def test_generator_returned(x: Tensor):
    return list(x + i for i in range(3))


@program(breaks=True)
def test_break_with_generator_under_way(x: Tensor):
    def numbers():
        for i in range(3):
            yield i + 1

    for number in numbers():
        x = x * number
        print(end="")
    return x


@program(breaks=True)
def test_break_inside_a_generator(x: Tensor):
    def numbers():
        for i in range(3):
            print(end="")
            yield x + i

    return sum(numbers())


def test_generator_leaves_the_region(compiler):
    import torch

    def fn(x):
        y = x + 1
        return (y * i for i in range(3)), y

    compiled = compiler.compile(fn, backend="eager")
    for _ in range(2):
        generator, y = compiled(torch.ones(2))
        assert [item.tolist() for item in generator] == [[0, 0], [2, 2], [4, 4]]
        assert y.tolist() == [2, 2]


class Indexed(Sequence):
    """Its `__iter__` is that of the abstract class: a generator inside `try ... except IndexError`."""

    def __getitem__(self, i):
        return (1.0, 2.0)[i]

    def __len__(self):
        return 2


def test_a_generator_left_inside_an_except_that_lets_its_end_pass_breaks_nothing(compiler) -> None:
    def fn(x, values):
        for a, b in zip([1.0], values):  # leaves the iterator of `values` suspended
            x = x * a + b
        return x

    explained = compiler.explain(fn, X, Indexed())
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    assert torch.equal(compiler.compile(fn)(X, Indexed()), fn(X, Indexed()))


@program(breaks=True)
def test_a_stop_that_a_function_raises_ends_the_iterator_that_calls_it(x: Tensor):
    def stop(value):
        if value != 1:
            raise StopIteration(value)
        return value

    class Stopping:
        def __iter__(self):
            return self

        def __next__(self):
            return stop(2)

    def seen(call):
        try:
            return call()
        except (StopIteration, RuntimeError, ValueError) as error:
            return type(error), str(error)

    def unpacked():
        a, b = map(stop, [1, 2])
        return a, b

    def looped():
        for value in map(stop, [1, 2, 1]):
            x.add_(value)
        return "ended"

    ends = [
        lambda: list(map(stop, [1, 2, 1])),
        lambda: [*filter(stop, [1, 2, 1])],
        lambda: sum(map(stop, [1, 2])),
    ]
    ends += [lambda: list(zip(map(stop, [1, 2, 1]), "abc")), lambda: 5 in map(stop, [1, 2]), unpacked, looped]
    ends += [
        lambda: [*enumerate(Stopping())],
        lambda: next(map(stop, [2]), "default"),
        lambda: "".join(Stopping()),
    ]
    ends += [
        lambda: list(itertools.chain(map(stop, [1, 2]), [7])),
        lambda: list(itertools.starmap(stop, [(1,), (2,)])),
    ]
    raises = [
        lambda: next(map(stop, [2])),
        lambda: [stop(v) for v in (1, 2)],
        lambda: list(stop(v) for v in (1, 2)),
    ]
    raises += [lambda: sorted([1, 2], key=stop), lambda: max([1, 2], key=stop)]
    return x + 1, [seen(call) for call in ends + raises]


def test_a_generator_closed_before_it_started_leaves_the_region_closed(compiler) -> None:
    def values(x: Tensor):
        yield x

    def closed(x: Tensor):
        with contextlib.closing(values(x)) as generator:
            y = x + 1
        return y, generator

    def thrown_into(x: Tensor):
        generator = values(x)
        with contextlib.suppress(KeyError):
            generator.throw(KeyError())
        return x + 1, generator

    for fn in (closed, thrown_into):
        y, generator = compiler.compile(fn, backend="eager")(X)
        assert torch.equal(y, X + 1) and generator.gi_frame is None and list(generator) == []


def breaking(x: Tensor, log: list):
    try:
        for i in range(3):
            y = x + i
            graphlift.graph_break()
            yield y
    finally:
        log.append("closing")
        graphlift.graph_break()
        log.append("closed")


def descending(x: Tensor, depth: int):
    if not depth:
        graphlift.graph_break()
        yield x
        return
    for y in descending(x + 1, depth - 1):
        yield y * 2
    yield from descending(x, depth - 1)


@program(breaks=True)
def test_a_loop_is_left_after_a_break_in_its_generator(x: Tensor):
    log = []
    seen = []
    for y in breaking(x * 2, log):
        seen.append(y)
        break
    kept = breaking(x, log)
    for y in kept:
        seen.append(y)
        break
    kept.close()
    return torch.stack(seen) + 1, log


@program(breaks=True)
def test_breaks_in_the_loop_and_in_its_generator(x: Tensor):
    log = []
    for y in breaking(x * 2, log):
        log.append("round")
        graphlift.graph_break()
        z = y * 3
    return z + 1, log


@program(breaks=True)
def test_generators_that_break_inside_each_other(x: Tensor):
    log = []
    rows = [w * 2 for y in breaking(x, log) for w in breaking(y, log)]
    widths = (max((w.shape[0] for w in breaking(y, log)), key=lambda v: -v) for y in breaking(x, log))
    return torch.stack(rows), sum(widths) * x, sum(descending(x, 3)), log


@program(breaks=True)
def test_an_exception_between_rounds_of_a_generator_that_breaks(x: Tensor):
    log = []
    with torch.no_grad():
        for y in breaking(x, log):
            try:
                if len(log) > 2:
                    raise ValueError("enough")
                log += [w.shape[0] for w in breaking(y, log)]
            except ValueError as error:
                log.append(str(error))
    return y * 2, log, torch.is_grad_enabled()


@program()
def test_items_and_their_ranks_in_turn(x: Tensor):
    log = []

    def item(value):
        log.append(("item", value))
        return value

    def rank(value):
        log.append(("rank", value))
        return -value

    best = [
        max((item(i) for i in range(3)), key=rank),
        min(map(item, [2, 1]), key=rank),
        min(iter([2, 1, item(3)])),
        sorted((item(i) for i in range(3)), key=rank),
        min((i for i in range(0)), default=3, key=rank),
    ]
    return x * best[0], best, log


@program(breaks=True)
def test_iterators_at_their_end_stay_there_across_a_break(x: Tensor):
    made = [
        itertools.combinations("ab", 3),
        itertools.combinations("ab", 1),
        itertools.permutations("ab"),
        itertools.product([1, 2], "a"),
        itertools.combinations_with_replacement("a", 2),
        itertools.accumulate([1, 2]),
        enumerate([1]),
        reversed([1, 2]),
        iter({1, 2}),
        iter({1: 2}),
        iter(range(2)),
    ]
    first = [list(iterator) for iterator in made]
    torch._dynamo.graph_break()
    second = [next(iterator, "end") for iterator in made]
    for last in itertools.combinations("ab", 2), itertools.combinations("ab", 3):
        items = list(last)
        torch._dynamo.graph_break()
        second.append((items, list(last)))
    return x + 1, first, second


@program()
def test_super_without_arguments_where_there_are_none(x: Tensor):
    said = []
    for function in (lambda: super().method, lambda *args: super().method, lambda own: super().method):
        try:
            function(*[1][: function.__code__.co_argcount])
        except RuntimeError as error:
            said.append(str(error))
    return x + 1, said


@program()
def test_throw_into_a_delegate_inside_a_with(x: Tensor):
    """What leaves the delegate is handled where the `yield from` stands, with the stack as it was there."""
    log = []

    class Manager:
        def __init__(self, keeps: bool):
            self.keeps = keeps

        def __enter__(self):
            return self

        def __exit__(self, *error):
            log.append((self.keeps, error[0]))
            return self.keeps

    def careful():
        for i in range(3):
            try:
                yield x * i
            except ValueError as error:
                log.append(str(error))

    def delegating(keeps: bool):
        with Manager(keeps):
            yield from careful()
        yield "behind"

    found = []
    for keeps in (True, False):
        generator = delegating(keeps)
        found += [next(generator), generator.throw(ValueError("known"))]
        try:
            found.append(generator.throw(KeyError("unknown")))
        except KeyError as error:
            found.append(str(error))
    return x + 1, found, log
