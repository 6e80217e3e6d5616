"""Side effects: visible outside afterwards, in order, with aliases kept."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.capture.program import CountingBackend, program
from tests.equality import assert_equal


@program(lambda: [1], lambda: {"n": 0})
def test_containers(x: Tensor, items: list, table: dict):
    items.append(x * 2)
    items.extend([3, 4])
    items.insert(0, "first")
    items[1] = "one"
    del items[3]
    items.reverse()
    table["n"] += 1
    table.update(a=1, b=2)
    table.pop("a")
    table.setdefault("c", []).append(x)
    return x + len(items)


@program(lambda: [3, 1, 2])
def test_list_methods_in_place(x: Tensor, items: list):
    same = items
    items *= 2
    items += (5,)
    items.sort(reverse=True)
    items[1:3] = [7, 7, 7]
    del items[::2]
    items.remove(1)
    return x + 1, same is items, items.count(7), items.index(7), items.copy() is items, items[::-1]


@program(lambda: {1, 2, 3})
def test_sets_in_place(x: Tensor, items: set):
    same = items
    items -= {1}
    items |= {5, 6}
    items &= {2, 5, 6}
    items ^= {6, 7}
    items.add(8)
    return (
        x + 1,
        same is items,
        sorted(items),
        items - {2},
        {1, 2} < {1, 2, 3},
        frozenset([1]) | {2},
        {1, True, 1.0},
    )


def test_aliases_of_arguments(compiler):
    """Two names of one list stay one list; the same code is right when the two are different lists."""

    def fn(x, a, b):
        a.append(x)
        return len(b), x + 1

    compiled = compiler.compile(fn, backend="eager")
    x = torch.ones(1)
    for _ in range(2):
        assert compiled(x, [1], [1])[0] == 1
        both = [1]
        assert compiled(x, both, both)[0] == 2


def test_aliases_of_objects(compiler):
    class Box:
        def __init__(self):
            self.n = 0

    def fn(x, a, b):
        a.n = 5
        return x + b.n

    compiled = compiler.compile(fn, backend="eager")
    x = torch.zeros(1)
    for _ in range(2):
        assert compiled(x, Box(), Box()).item() == 0
        box = Box()
        assert compiled(x, box, box).item() == 5


@program()
def test_aliases_of_results(x: Tensor):
    inner = [x + 1]
    outer = {"a": inner, "b": (inner, inner)}
    inner.append(outer)
    biggest = max([1], [2])
    return len(inner), outer["b"][0] is inner, biggest, [[]] * 2


def test_results_share_what_they_share_in_eager(compiler):
    def fn(x):
        y = [x + 1]
        return y, [y, y], {"k": y}

    y, twice, table = compiler.compile(fn, backend="eager")(torch.ones(1))
    assert twice[0] is y and twice[1] is y and table["k"] is y


def test_cycle_through_a_list(compiler):
    def fn(x):
        y = [x + 1]
        y.append(y)
        return y

    y = compiler.compile(fn, backend="eager")(torch.ones(1))
    assert y[1] is y and y[0].item() == 2


COUNT = 0
TABLE: dict = {}


def test_globals(compiler):
    global COUNT
    COUNT = 0
    TABLE.clear()

    def fn(x):
        global COUNT
        COUNT += 1
        TABLE[COUNT] = x + 1
        return x * COUNT

    compiled = compiler.compile(fn, backend="eager")
    for i in range(1, 4):
        assert compiled(torch.ones(1)).item() == i == COUNT == len(TABLE)


@program()
def test_closures_and_nonlocal(x: Tensor):
    total = 0
    log = []

    def add(n):
        nonlocal total
        total += n
        log.append(total)
        return lambda: total

    readers = [add(i) for i in range(3)]
    late = [lambda: i for i in range(3)]
    bound = [lambda i=i: i for i in range(3)]
    return x * total, log, [r() for r in readers], [f() for f in late], [f() for f in bound]


def test_closure_cells_outside(compiler):
    counter = 0

    def fn(x):
        nonlocal counter
        counter += 1
        return x + counter

    compiled = compiler.compile(fn, backend="eager")
    assert [compiled(torch.zeros(1)).item() for _ in range(3)] == [1, 2, 3] and counter == 3


def test_functions_returned_share_their_cells(compiler):
    def fn(x):
        n = 0

        def bump():
            nonlocal n
            n += 1
            return n

        def read():
            return n

        bump()
        return bump, read, x + 1

    bump, read, _ = compiler.compile(fn, backend="eager")(torch.ones(1))
    assert (read(), bump(), read()) == (1, 2, 2) and bump.__name__ == "bump"


class Counted:
    calls = 0


def test_class_attributes(compiler):
    Counted.calls = 0

    def fn(x):
        Counted.calls += 1
        return x + Counted.calls

    compiled = compiler.compile(fn, backend="eager")
    assert [compiled(torch.zeros(1)).item() for _ in range(3)] == [1, 2, 3]


def test_new_functions_do_not_recompile(compiler):
    """A function that each call makes anew is known by its code."""

    def fn(x, f):
        return f(x) + 1

    backend = CountingBackend()
    compiled = compiler.compile(fn, backend=backend)
    for n in (1, 1, 1, 1):
        assert compiled(torch.ones(1), lambda v, n=n: v * n).item() == 2
    assert len(backend.graphs) <= 1


@program(lambda: [])
def test_order_of_effects_of_evaluation(x: Tensor, log: list):
    def note(value):
        log.append(value)
        return value

    table = {note("k1"): note("v1"), note("k2"): note("v2")}
    total = note(1) + note(2) * note(3)
    note(0) and note("never")
    note(4) < note(5) < note(3) < note("never")
    target = [0]
    target[note(0)] = note(6)
    return x + total, table, [note(i) for i in (7, 8)], note("a") if note(False) else note("b")


class Slotted:
    __slots__ = ("extra", "kept")


def test_a_slot_set_and_deleted_is_left_without_a_value(compiler) -> None:
    def fn(x: Tensor, one: Slotted, other: Slotted) -> Tensor:
        one.extra = x
        one.kept = 1
        y = one.extra + 1
        del other.extra
        return y

    compiled = compiler.compile(fn)
    for set_before in (False, True, False):
        slotted = Slotted()
        if set_before:
            slotted.extra = 3
        assert torch.equal(compiled(torch.ones(2), slotted, slotted), torch.full((2,), 2.0))
        assert not hasattr(slotted, "extra") and slotted.kept == 1


class Cache:
    calls = 0
    last: Tensor | None = None
    seen: list = []

    def read(self):
        return self.calls


class SubCache(Cache):
    pass


class Deeper(SubCache):
    calls = 100


def writes_classes(x: Tensor, cache: SubCache, deeper: Deeper):
    Cache.calls += 1
    before = cache.read(), deeper.read(), Cache.calls
    SubCache.calls = Cache.calls + 10
    type(deeper).calls = 7
    Cache.last = x * 2
    setattr(Cache, "fresh", [x])
    Cache.fresh.append(3)
    after = cache.read(), deeper.read(), Cache.calls, SubCache.last is Cache.last, len(cache.fresh)
    return before, after, Cache.last + 1


def test_attributes_of_classes(compiler):
    compiled = compiler.compile(writes_classes, fullgraph=True)
    seen = []
    for run in (writes_classes, compiled):
        Cache.calls, Cache.last, Deeper.calls = 0, None, 100
        if "calls" in vars(SubCache):
            del SubCache.calls
        results = [run(torch.ones(2) * k, SubCache(), Deeper()) for k in range(4)]
        seen.append((results, Cache.calls, SubCache.calls, Deeper.calls, Cache.last, Cache.fresh))
    assert_equal(seen[1], seen[0])


def test_a_counter_and_a_cache_in_a_class(compiler):
    def fn(x: Tensor) -> Tensor:
        Cache.calls += 1
        Cache.last = x + Cache.calls
        return Cache.last * 2

    backend = CountingBackend()
    compiled = compiler.compile(fn, backend=backend)
    Cache.calls, Cache.last = 0, None
    for k in range(1, 6):
        result = compiled(torch.ones(2))
        assert Cache.calls == k and torch.equal(Cache.last, torch.full((2,), k + 1.0))
        assert torch.equal(result, Cache.last * 2)
    if compiler.name != "eager":
        assert len(backend.graphs) == 2


def test_what_a_class_says_of_its_attributes_is_heeded(compiler):
    class Refusing(type):
        def __setattr__(cls, name, value):
            raise AttributeError(name)

    class Refused(metaclass=Refusing):
        k = 2

    class Doubling(type):
        k = property(lambda cls: 3, lambda cls, value: setattr(cls, "twice", 2 * value))

    class Doubled(metaclass=Doubling):
        pass

    def fn(x: Tensor):
        x = x + 1
        try:
            Refused.k = 5
        except AttributeError as error:
            x = x * len(error.args)
        Doubled.k = x
        Doubled.read = lambda self: self
        return x * Refused.k * Doubled.k + Doubled.twice, Doubled().read()

    expected = fn(torch.ones(2))[0]
    assert torch.equal(compiler.compile(fn)(torch.ones(2))[0], expected)
