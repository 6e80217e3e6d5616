"""Subclasses of builtin containers, made inside and outside, whose iterators and views are alive at graph breaks.

In: classes with and without methods of their own. Out: tests, each against eager.
Always: iterators and views go over the object itself, and the program's own methods run as often as in eager.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

import graphlift
from benchmarks.compilers import Compiler

from .program import outcome, program


class Asked:
    """Counts which of its methods run."""

    def __init__(self, *args):
        super().__init__(*args)
        self.log = []

    def __len__(self):
        self.log.append("len")
        return super().__len__()

    def __iter__(self):
        self.log.append("iter")
        return super().__iter__()

    def __contains__(self, item):
        self.log.append("in")
        return super().__contains__(item)


class Items(list):
    pass


class AskedItems(Asked, list):
    def __reversed__(self):
        self.log.append("reversed")
        return super().__reversed__()


class AskedTable(Asked, dict):
    def keys(self):
        self.log.append("keys")
        return super().keys()

    def values(self):
        self.log.append("values")
        return super().values()


class Ordered(OrderedDict):
    pass


class Defaults(defaultdict):
    pass


class Table(dict):
    pass


class Names(set):
    pass


class AskedNames(Asked, set):
    pass


class Sevens(tuple):
    def __getitem__(self, index):
        return 7


def walk_list(x: Tensor, items: Any, steps: Callable[[Any], Any]) -> Any:
    seen = []
    for item in steps(items):
        items[0] = 99
        graphlift.graph_break()
        seen.append(item)
        if len(items) < 6:
            items.append(len(seen))
    return x + 1, seen, list(items), getattr(items, "log", None)


def shorten_list(x: Tensor, items: Any, steps: Callable[[Any], Any]) -> Any:
    seen = []
    iterator = iter(steps(items))
    next(iterator, None)
    items.clear()
    graphlift.graph_break()
    items += [7, 8, 9]
    return x + 1, seen, list(iterator), getattr(items, "log", None)


def walk_dict(x: Tensor, table: Any, steps: Callable[[Any], Any]) -> Any:
    seen = []
    view = steps(table)
    for item in view:
        graphlift.graph_break()
        seen.append(item)
        table["b"] = len(seen)
    iterator = iter(view)
    seen.append(next(iterator, None))
    try:
        graphlift.graph_break()
        table["c"] = 1
        seen += iterator
    except RuntimeError as error:
        seen.append(str(error))
    return x + 1, seen, dict(table), getattr(table, "log", None)


def walk_set(x: Tensor, names: Any, steps: Callable[[Any], Any]) -> Any:
    seen = []
    try:
        for item in steps(names):
            graphlift.graph_break()
            seen.append(item)
            names.add(10)
    except RuntimeError as error:
        seen.append(str(error))
    return x + 1, seen, len(names), getattr(names, "log", None)


def plain(items: Any) -> Any:
    return items


def zipped(items: Any) -> Any:
    return zip(items, items)


def mapped(items: Any) -> Any:
    return map(str, items)


LISTS = (Items, AskedItems, list)
DICTS = (Table, AskedTable, Ordered, Counter, lambda pairs: Defaults(int, pairs), dict, OrderedDict)
WALKS = (
    *((walk, cls, [1, 2, 3], step) for walk in (walk_list, shorten_list) for cls in LISTS
      for step in (plain, reversed, enumerate, zipped, mapped)),
    *((walk_dict, cls, {"a": 1, "b": 2}, step) for cls in DICTS
      for step in (plain, dict.keys, dict.items, lambda table: table.values(), enumerate, mapped)),
    *((walk_set, cls, {1, 2}, step) for cls in (Names, AskedNames, set, frozenset) for step in (plain, enumerate)),
)  # fmt: skip


@pytest.mark.parametrize("index", range(len(WALKS)))
def test_iterators_and_views_of_what_the_region_made(compiler: Compiler, index: int) -> None:
    import torch

    walk, cls, content, step = WALKS[index]

    def inside(x: Tensor) -> Any:
        return walk(x, cls(content), step)

    compiled = compiler.compile(inside, backend="eager")
    for _ in range(2):
        expected, got = outcome(inside, torch.ones(2)), outcome(compiled, torch.ones(2))
        assert got[1:] == expected[1:]
        expected = outcome(walk, torch.ones(2), cls(content), step)
        got = outcome(compiler.compile(walk, backend="eager"), torch.ones(2), cls(content), step)
        assert got[1:] == expected[1:]


@program(breaks=True)
def test_containers_that_hold_iterators_over_themselves(x: Tensor):
    items, table, plain_table = Items([1, 2]), Table(a=1, b=2), {"a": 1}
    items.append(iter(items))
    next(items[2])
    table["it"] = plain_table["it"] = None
    table["it"], plain_table["it"] = iter(table), iter(plain_table)
    next(table["it"])
    graphlift.graph_break()
    return x + 1, next(items[2]), next(table["it"]), list(plain_table["it"])


@program(breaks=True)
def test_length_of_a_view_after_a_break(x: Tensor):
    table = {"a": 1}
    view = table.keys()
    graphlift.graph_break()
    table["b"] = 2
    return x + len(view), list(view), "b" in view


@program()
def test_tuples_that_are_reversed_by_their_items(x: Tensor):
    return x + 1, list(reversed(Sevens((1, 2)))), list(Sevens((1, 2)))


@program(lambda: AskedItems([1, 2]), lambda: AskedTable({"a": 1}))
def test_methods_of_subclasses_run_as_often_as_in_eager(x: Tensor, items: Any, table: Any):
    items.append(3)
    items.insert(0, 5)
    table["b"] = 2
    table.setdefault("c", 3)
    found = 5 in items, "a" in table, len(items), len(table), sorted(items), sorted(table.values())
    return x + 1, found, items.log, table.log


class Sized:
    """An iterable whose length is asked for by what makes lists, tuples and arguments of it."""

    def __init__(self, error: Any = None) -> None:
        self.log = []
        self.error = error

    def __iter__(self):
        self.log.append("iter")
        return iter(range(3))

    def __len__(self):
        self.log.append("len")
        if self.error is not None:
            raise self.error("no length")
        return 3


class Hinted(Sized):
    def __length_hint__(self):
        self.log.append("hint")
        return 3


USES = (
    *(list, tuple, sorted, set, sum, lambda s: [*s], lambda s: (*s, 1), lambda s: {*s}, lambda s: [i for i in s]),
    *(lambda s: [0].extend(s), lambda s: [0].__iadd__(s), lambda s: max(*s), lambda s: max(*s, 5), lambda s: Sevens(s)),
)  # fmt: skip


@pytest.mark.parametrize("cls", (Sized, Hinted))
@pytest.mark.parametrize("error", (None, TypeError, NotImplementedError))
def test_the_length_of_an_iterable_is_asked_for(compiler: Compiler, cls: Any, error: Any) -> None:
    def fn(use: Any) -> Any:
        sized = cls(error)
        try:
            result = use(sized)
        except Exception as raised:
            result = repr(raised)
        return result, sized.log

    compiled = compiler.compile(fn, backend="eager")
    for use in USES:
        assert compiled(use) == fn(use)


def delegating(base: type) -> Any:
    """A subclass whose special methods ask the builtin class."""

    def asking(name: str) -> Any:
        return lambda self, *args: getattr(super(made, self), name)(*args)

    names = "eq ne lt le gt ge add or and sub xor contains iter len getitem".split()
    methods = {f"__{name}__": asking(f"__{name}__") for name in names if hasattr(base, f"__{name}__")}
    methods |= {name: asking(name) for name in ("extend", "update", "keys", "copy") if hasattr(base, name)}
    made = type(f"Asking{base.__name__}", (base,), {**methods, "__hash__": base.__hash__})
    return made


def refusing(base: type) -> Any:
    """A subclass that leaves comparisons to the other side."""

    def refuse(self, other):
        return NotImplemented

    methods = {name: refuse for name in ("__eq__", "__lt__", "__gt__", "__add__", "__or__")}
    return type(f"Refusing{base.__name__}", (base,), {**methods, "__hash__": base.__hash__})


def bare(base: type) -> Any:
    return type(f"Bare{base.__name__}", (base,), {})


OPERATIONS = (
    *(lambda a, b, c: a == b, lambda a, b, c: a != b, lambda a, b, c: a == c, lambda a, b, c: a < c),
    *(lambda a, b, c: a <= b, lambda a, b, c: a > c, lambda a, b, c: a < 5, lambda a, b, c: "a" > a),
    *(lambda a, b, c: a + b, lambda a, b, c: a | c, lambda a, b, c: a & c, lambda a, b, c: a - c),
    *(lambda a, b, c: a in [b], lambda a, b, c: [a] == [b], lambda a, b, c: 1 in a, lambda a, b, c: "a" in a),
    *(lambda a, b, c: a.extend(a), lambda a, b, c: a.extend(b), lambda a, b, c: a.update(c)),
    *(lambda a, b, c: max(a, c), lambda a, b, c: len({a, b}), lambda a, b, c: a.copy()),
    *(lambda a, b, c: type(a).__mro__[1](a) == b, lambda a, b, c: a == type(a).__mro__[1](b)),
    *(lambda a, b, c: a | type(a).__mro__[1](b), lambda a, b, c: type(a).__mro__[1](a) | b),
    *(lambda a, b, c: a[:], lambda a, b, c: a * 1, lambda a, b, c: a.format(), lambda a, b, c: a % ()),
)
CONTENTS = (
    *((list, [1], [1, 3]), (dict, {"a": 1}, {"a": 2}), (set, {1}, {1, 2}), (tuple, (1,), (1, 3))),
    *((OrderedDict, {"a": 1}, {"a": 2}), (frozenset, {1}, {1, 2}), (int, 1, 2), (str, "a", "ab")),
)


@pytest.mark.parametrize("kind", (bare, delegating, refusing))
@pytest.mark.parametrize("base, content, other", CONTENTS, ids=[base.__name__ for base, *_ in CONTENTS])
def test_operators_of_instances_of_subclasses(
    compiler: Compiler, kind: Any, base: Any, content: Any, other: Any
) -> None:
    cls = kind(base)

    def outside(a: Any, b: Any, c: Any) -> Any:
        seen = []
        for operation in OPERATIONS:
            try:
                result = operation(a, b, c)
                seen.append((type(result).__name__, result is a, repr(result)))
            except Exception as error:
                seen.append((type(error).__name__, str(error)))
        return seen, repr(a)

    def inside() -> Any:
        return outside(cls(content), cls(content), cls(other))

    expected = inside()
    assert compiler.compile(inside, backend="eager")() == expected
    made = cls(content), cls(content), cls(other)
    assert compiler.compile(outside, backend="eager")(*made) == expected


@program()
def test_text_of_containers_inside_themselves(x: Tensor):
    items, table, own, asked = [1], {}, Items([1]), AskedItems([1])
    pair = (1, items)
    items += [items, pair]
    table["t"], table["i"] = table, items
    own.append(own)
    asked.append([asked])
    return (
        x + 1,
        str(items),
        repr(table),
        f"{own!r}",
        str(asked),
        asked.log,
        items == items,
        "%s" % table,
    )


class Upper(OrderedDict):
    def __setitem__(self, key, value):
        super().__setitem__(key.upper(), value)

    def __contains__(self, key):
        return super().__contains__(key.upper())

    def __getitem__(self, key):
        return super().__getitem__(key.upper())


class Zed(dict):
    def keys(self):
        return ["z"]

    def __getitem__(self, key):
        return 99


class IteratedZed(Zed):
    def __iter__(self):
        return iter(["z"])


class Product(list):
    def __mul__(self, other):
        return "product"


@program()
def test_ordered_dicts_are_filled_by_their_own_methods(x: Tensor):
    made = [Upper(a=1), Upper([("b", 2)], c=3), Upper({"d": 4}), Upper(Zed(a=1)), OrderedDict(Zed(a=1))]
    first = made[0]
    first.update(f=6)
    first |= {"h": 1}
    found = first.setdefault("a", 9), first.setdefault("k", 10), (first | {"q": 1}).copy()
    product = Product([1])
    product *= 2
    return x + 1, [list(each.items()) for each in (*made, *found[2:])], found[:2], product


@pytest.mark.parametrize("cls", (Zed, IteratedZed))
def test_dictionaries_are_merged_as_they_are_stored_or_by_their_keys(compiler: Compiler, cls: Any) -> None:
    def update(table: Any, into: Any) -> Any:
        into.update(table)
        return into

    def fn(table: Any) -> Any:
        whole = dict(table), {**table}, {"n": 1, **table}, table.copy(), (lambda **named: named)(**table)
        return (
            whole,
            update(table, {}),
            update(table, OrderedDict()),
            table == {"a": 1},
            {"n": 1} | table,
            table | {},
        )

    compiled = compiler.compile(fn, backend="eager")
    for _ in range(2):
        assert compiled(cls(a=1)) == fn(cls(a=1))


def shown(base: type) -> Any:
    """A subclass whose text is the builtin class's with a letter in front."""

    def asking(letter: str, name: str) -> Any:
        return lambda self, *args: letter + getattr(super(made, self), name)(*args)

    made = type(
        f"Shown{base.__name__}",
        (base,),
        {f"__{n}__": asking(n[0], f"__{n}__") for n in ("repr", "str", "format")},
    )
    return made


SHOWN = (
    *((shown(list), [1]), (shown(tuple), (1,)), (shown(dict), {"a": 1}), (shown(set), {1}), (shown(frozenset), ())),
    *((shown(OrderedDict), {"a": 1}), (shown(Counter), "a"), (shown(int), 3), (shown(float), 2.5), (shown(str), "q")),
)  # fmt: skip


@pytest.mark.parametrize("cls, content", SHOWN, ids=[cls.__name__ for cls, _ in SHOWN])
def test_text_of_subclasses_that_ask_the_builtin_class(compiler: Compiler, cls: Any, content: Any) -> None:
    def outside(value: Any) -> Any:
        texts = repr(value), str(value), f"{value}", f"{value!r:>30}", "%s %r" % (value, value), f"{value}"
        try:
            return *texts, format(value), [value].__repr__(), f"{value:>9}"
        except TypeError as error:
            return *texts, str(error)

    def inside() -> Any:
        return outside(cls(content))

    expected = inside()
    assert compiler.compile(inside, backend="eager")() == expected
    assert compiler.compile(outside, backend="eager")(cls(content)) == expected


class Stored(tuple):
    def __iter__(self):
        return iter([7])

    def __len__(self):
        return 9


class Two(int):
    def __index__(self):
        return 1


class Thing:
    pass


THINGS = {Thing(), Thing()}


@program(lambda: THINGS, lambda: memoryview(b"ab"), lambda: bytearray(b"xy"), breaks=True)
def test_c_functions_that_look_into_their_arguments(
    x: Tensor, things: set, view: memoryview, array: bytearray
):
    """What nothing is known of is no argument that they refuse."""
    bound = slice(Two(2))
    graphlift.graph_break()
    found = []
    for use in (
        *(lambda: [1, 2, 3][bound], lambda: (1, 2)[bound], lambda: "%s %s" % Stored((1, 2)), lambda: len({1} | things)),
        *(lambda: b"".join([view]), lambda: b"z" + array, lambda: b"axy".find(array), lambda: things == set(things)),
    ):  # fmt: skip
        try:
            found.append(use())
        except TypeError as error:
            found.append(str(error))
    return x + 1, found
