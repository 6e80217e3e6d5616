"""Each kind of guard and source, torch-free, in both directions: the change that must fail does, the other does not.

Only plain functions and asserts, so that the same file runs on interpreters without pytest (test_other_pythons.py).
"""

from __future__ import annotations

import functools
import math
import operator
import types
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any

from graphlift.guards import (
    ABSENT,
    Arg,
    Attr,
    Call,
    CellContents,
    ClosureCell,
    Const,
    DictItem,
    DictKey,
    DictKeys,
    DistinctTensors,
    Equals,
    Func,
    HasKey,
    IdIs,
    InstanceDict,
    Length,
    Predicate,
    SameObject,
    SeqItem,
    Slot,
    TypeAttr,
    TypeIs,
    TypeOf,
    _guards,
    gives,
)
from tests.guards.checking import Checked, check_of

X = Arg(0, "x")
Y = Arg(1, "y")


class Box:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Other(Box):
    pass


def attribute(name: str, base: Any = X) -> DictItem:
    return DictItem(InstanceDict(base), name)


def test_type_is() -> None:
    check = check_of(TypeIs(X, int), 3)
    assert check.passes(2**80)
    assert not check.passes(True) and not check.passes(3.0) and not check.passes(None)


def test_type_is_sees_class_assignment() -> None:
    box = Box(a=1)
    check = check_of([TypeIs(X, Box), Equals(attribute("a"), 1)], box)
    box.b = 2
    assert check.passes(box)
    box.__class__ = Other
    assert not check.passes(box)
    box.__class__ = Box
    assert check.passes(box)


def test_id_is() -> None:
    class Local:
        pass

    one, two = Local(), Local()
    check = check_of(IdIs(X, one), one)
    assert not check.passes(two) and not check.passes(None) and not check.passes(1)
    assert check.passes(one)


def test_id_is_of_a_dead_object_fails_for_good() -> None:
    one = Box()
    check = check_of(IdIs(X, one), one)
    assert not check.check.expired
    del one
    assert check.check.expired
    # A new object may well lie at the old address.
    assert not any(check.check(check.func, Box()) for _ in range(100))
    assert check.check(check.func, None) is None
    assert "died" in check.check.explain_failure(check.func, Box())


def test_type_of_a_dead_class_fails_for_good() -> None:
    def make() -> type:
        return type("Local", (), {})

    cls = make()
    check = check_of(TypeIs(X, cls), cls())
    del cls
    import gc

    gc.collect()
    assert check.check.expired
    assert not any(check.check(check.func, make()()) for _ in range(50))


EQUAL_GROUPS: list[list[Any]] = [
    # Values of one list are the same constant; values of different lists are not.
    [0, int("0")],
    [False],
    [0.0, float("0")],
    [-0.0],
    [complex(0.0, 0.0)],
    [complex(0.0, -0.0)],
    [complex(math.nan, 1.0)],
    [math.nan, float("nan")],
    [1, int("1")],
    [True],
    [1.0],
    [10**40, int("1" + "0" * 40)],
    [10**40 + 1],
    [-(10**40)],
    [1e300],
    [math.inf],
    [-math.inf],
    ["", "a"[1:]],
    ["abc", "".join(["a", "bc"])],
    ["ab\u1234"],
    ["ab\U00012345"],
    [b""],
    [b"abc", bytes([97, 98, 99])],
    [None],
    [...],
    [NotImplemented],
    [()],
    [(1, "a", None), tuple([1, "a", None])],
    [(1.0, "a", None)],
    [(True, "a", None)],
    [((1, 2), (3,)), ((1, 2), tuple([3]))],
    [frozenset()],
    [frozenset({1, "a"}), frozenset({"a", 1})],
    [frozenset({True, "a"})],
    [frozenset({(1, 2), None})],
    [slice(1, 2, None), slice(1, 2)],
    [slice(1, 2, 1)],
    [slice(1.0, 2, None)],
    [range(0, 4, 2)],
    [range(0, 3, 2)],
]


class Odd(int):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("never called")

    __hash__ = int.__hash__


def test_equals_of_every_pair_of_constants() -> None:
    for i, group in enumerate(EQUAL_GROUPS):
        check = Checked([Equals(X, group[0])])
        for j, others in enumerate(EQUAL_GROUPS):
            for value in others:
                assert check.passes(value) == (i == j), (group[0], value)
        assert not check.passes(Odd(1)) and not check.passes((Odd(1), "a", None))
        assert not check.passes(Box()) and not check.passes([]) and not check.passes({})
        assert not check.passes(frozenset({Odd(1), "a"}))


def test_equals_inside_an_instance_follows_the_value_not_the_address() -> None:
    box = Box(alpha=0.5, pair=(1.5, 2.5))
    check = check_of([Equals(attribute("alpha"), 0.5), Equals(SeqItem(attribute("pair"), 1), 2.5)], box)
    for i in range(50):
        box.alpha = float(i)
        box.alpha = float(i + 0.25)  # this one may lie where the first 0.5 lay
        assert not check.passes(box)
        box.alpha = float("0.5")
        assert check.passes(box)
        box.pair = (1.5, 3.5 + i)
        assert not check.passes(box)
        box.pair = (7.5, float("2.5"))
        assert check.passes(box)


def test_equals_rejects_what_it_cannot_compare() -> None:
    for value in ([], {}, Box(), Odd(3), (1, []), object()):
        try:
            Equals(X, value)
        except TypeError:
            continue
        raise AssertionError(f"accepted {value!r}")


def test_length() -> None:
    Point = namedtuple("Point", "a b")
    pairs: list[tuple[Any, Any]] = [
        ([1, 2], [1]),
        ((1, 2), ()),
        (Point(1, 2), (1, 2, 3)),
        ({1: 1, 2: 2}, {1: 1}),
        (OrderedDict(a=1, b=2), OrderedDict()),
        ({1, 2}, {1}),
        (frozenset({1, 2}), frozenset()),
        ("ab", "a"),
        (b"ab", b""),
        (range(2), range(3)),
        (deque([1, 2]), deque()),
        (Counter(a=1, b=1), Counter()),
        ({1: 1, 2: 2}.keys(), {}.keys()),
    ]
    for good, bad in pairs:
        check = check_of(Length(X, 2), good)
        assert not check.passes(bad) and not check.passes(2) and not check.passes(None)


def test_length_never_calls_a_python_len() -> None:
    class Liar(list):
        def __len__(self) -> int:
            raise RuntimeError("never called")

    class Sized:
        def __len__(self) -> int:
            raise RuntimeError("never called")

    check = check_of(Length(X, 2), Liar([1, 2]))
    assert not check.passes(Liar([1]))
    assert check.check(check.func, Sized()) is None


def test_length_of_a_list_in_an_instance() -> None:
    box = Box(items=[1, 2, 3])
    check = check_of([Length(attribute("items"), 3)], box)
    box.items[0] = 5
    assert check.passes(box)
    box.items.append(1)
    assert not check.passes(box)
    box.items.pop()
    assert check.passes(box)
    box.items = (1, 2, 3)
    assert check.passes(box)


def test_dict_keys() -> None:
    key = Box()
    check = check_of(DictKeys(X, ["a", 1, key]), {"a": 0, 1: 0, key: 0})
    assert check.passes({"a": 5, 1: None, key: 3})
    assert not check.passes({1: 0, "a": 0, key: 0}), "order counts"
    assert not check.passes({"a": 0, 1: 0}) and not check.passes({"a": 0, 1: 0, key: 0, "b": 0})
    assert not check.passes({"a": 0, True: 0, key: 0}), "True is not 1 to a loop over the keys"
    assert not check.passes({"a": 0, 1: 0, Box(): 0})
    assert not check.passes(["a", 1, key]) and not check.passes(None)


def test_dict_keys_in_an_instance_and_order() -> None:
    box = Box(table={"a": 1, "b": 2}, ordered=OrderedDict(a=1, b=2))
    for name in ("table", "ordered"):
        check = check_of(DictKeys(attribute(name), ["a", "b"]), box)
        table = getattr(box, name)
        table["a"] = 7
        assert check.passes(box)
        table["a"] = table.pop("a")
        assert not check.passes(box)
        table["b"] = table.pop("b")
        assert check.passes(box)
    box.ordered.move_to_end("a")
    assert not check.passes(box), "move_to_end leaves the dict's version alone"
    box.ordered.move_to_end("b")
    assert check.passes(box)


def test_empty_dict_keys() -> None:
    box = Box(hooks=OrderedDict())
    check = check_of(DictKeys(attribute("hooks"), []), box)
    box.hooks[1] = print
    assert not check.passes(box)
    del box.hooks[1]
    assert check.passes(box)
    box.hooks = {}
    assert check.passes(box)
    box.hooks = []
    assert not check.passes(box)


def test_has_key() -> None:
    present = check_of(HasKey(X, "a", True), {"a": 1})
    absent = check_of(HasKey(X, "a", False), {"b": 1})
    for table in ({"a": 2}, OrderedDict(a=1), defaultdict(int, a=1)):
        assert present.passes(table) and not absent.passes(table)
    for table in ({}, {"A": 1}, defaultdict(int), {1: 1}):
        assert absent.passes(table) and not present.passes(table)
    for other in (None, ["a"], "a"):
        assert not absent.passes(other) and not present.passes(other)


def test_has_key_in_an_instance_dict() -> None:
    box = Box(a=1)
    check = check_of([HasKey(InstanceDict(X), "a", True), HasKey(InstanceDict(X), "forward", False)], box)
    box.a = 2
    box.unrelated = 1
    assert check.passes(box)
    box.forward = None
    assert not check.passes(box)
    del box.forward
    assert check.passes(box)
    del box.a
    assert not check.passes(box)


def test_an_instance_without_attributes_needs_no_walk() -> None:
    class Bare:
        pass

    def store(bare: Bare) -> None:
        bare.__dict__  # noqa: B018  # there before the store
        bare.a = 1  # type: ignore[attr-defined]

    for _ in range(20):
        store(Bare())  # the instruction specialises
    bare = Bare()
    check = check_of([HasKey(InstanceDict(X), "a", False)], bare)
    before = check.check.stats["walks"]
    for _ in range(5):
        assert check.passes(bare)
    assert check.check.stats["walks"] == before
    assert vars(bare) == {}
    store(bare)
    assert not check.passes(bare)
    del bare.a  # type: ignore[attr-defined]
    assert check.passes(bare)


def test_has_key_of_an_object_key() -> None:
    key = Box()
    check = check_of(HasKey(X, key, True), {key: 1, "a": 2})
    assert not check.passes({Box(): 1}) and not check.passes({})


def test_type_attr() -> None:
    class Base:
        def method(self) -> int:
            return 1

    class Derived(Base):
        pass

    original = Base.method
    check = check_of([TypeIs(X, Derived), TypeAttr(Derived, "method", original)], Derived())
    missing = check_of([TypeAttr(Derived, "extra", ABSENT)], Derived())
    Derived.unrelated = 1
    assert check.passes(Derived()) and missing.passes(Derived())

    Base.method = lambda self: 2
    assert not check.passes(Derived())
    Base.method = original
    assert check.passes(Derived()), "restored"

    Derived.method = original
    assert check.passes(Derived()), "the same object, found earlier in the MRO"
    Derived.method = property(original)
    assert not check.passes(Derived())
    del Derived.method
    assert check.passes(Derived())

    Base.extra = None
    assert not missing.passes(Derived())
    del Base.extra
    assert missing.passes(Derived())


def test_type_attr_sees_changed_bases() -> None:
    class A:
        x = 1

    class B:
        x = 2000

    class C(A):
        pass

    check = check_of(TypeAttr(C, "x", A.__dict__["x"]), None)
    C.__bases__ = (B,)
    assert not check.passes(None)
    C.__bases__ = (A,)
    assert check.passes(None)


def test_same_object_and_distinct() -> None:
    one, two = [1], [1]
    same = check_of(SameObject(X, Y), one, one)
    different = check_of(DistinctTensors((X, Y)), one, two)
    assert not same.passes(one, two) and not different.passes(one, one)
    many = [Box() for _ in range(300)]
    sources = tuple(SeqItem(X, i) for i in range(300))
    check = check_of(DistinctTensors(sources), many)
    many[299] = many[0]
    assert not check.passes(many)


def test_predicate() -> None:
    check = check_of(Predicate(lambda x, y: x < y, [X, Y], "x < y"), 1, 2)
    assert check.passes(-5, 0) and not check.passes(2, 1)
    assert not check.passes("a", 1), "an exception is a failure"
    assert "raised TypeError" in check.why("a", 1)


def test_gives() -> None:
    half = Call(operator.truediv, X, 2)
    guard = gives(Call(operator.gt, Call(operator.add, half, half), Y), True, "x / 2 + x / 2 > y")
    assert [fn for fn, _ in guard.calls] == [operator.truediv, operator.add, operator.gt], "each call once"
    check = check_of(guard, 2.0, 1)
    assert check.passes(1.5, 1) and not check.passes(1.0, 1) and not check.passes(math.nan, 1)
    assert not check.passes("a", 1), "an exception is a failure"
    assert "TypeError" in check.why("a", 1) and "x = 'a'" in check.why("a", 1)
    assert guard == gives(Call(operator.gt, Call(operator.add, half, half), Y), True, guard.text)
    assert guard != gives(Call(operator.gt, Call(operator.add, half, half), Y), False, guard.text)
    one, other = (gives(Call(operator.eq, X, constant), True, "") for constant in (1, 1.0))
    assert one != other, "constants by their type"


def test_gives_long_chains_and_many_values() -> None:
    value: Any = X
    for _ in range(400):
        value = Call(operator.add, value, value)
    check = check_of(gives(Call(operator.eq, value, 2**400), True, "x == 1"), 1)
    assert not check.passes(2)
    largest = gives(Call(operator.eq, Call(max, X, Y, *range(9)), 20), True, "the largest is 20")
    assert check_of(largest, 20, 3).passes(3, 20)


def test_constants_inside_subclasses_are_known_by_type_and_bits() -> None:
    rows: list[tuple[Any, type, list[Any]]] = [
        (frozenset, set, [{1}, {1.0}, {True}, {2}]),
        (float.__pos__, float, [0.0, -0.0, math.nan]),
        (str.__str__, str, ["a", "b", ""]),
        (b"".__add__, bytes, [b"a", b""]),
    ]
    for read, kind, values in rows:
        derived = type("Derived", (kind,), {"__eq__": lambda a, b: True, "__hash__": None})
        for expected in values:
            guard = gives(Call(_guards.same_constant, read(expected), Call(read, X)), True, "same")
            check = check_of(guard, derived(expected))
            for found in values:
                assert check.passes(derived(found)) == (found is expected)


def test_two_predicates_on_one_source_and_repeated_guards() -> None:
    check = check_of(
        [TypeIs(X, int), Predicate(lambda x: x > 0, [X], "x > 0"), TypeIs(X, int), Equals(X, 5)], 5
    )
    assert len(check.check.guards) == 3
    assert not check.passes(-5)


# ---- sources ----


def test_fetch_order_and_repeats() -> None:
    box = Box(a=1.5, b=[1, 2])
    sources = [
        attribute("b"),
        X,
        attribute("a"),
        SeqItem(attribute("b"), -1),
        attribute("b"),
        InstanceDict(X),
    ]
    check = check_of([], box, fetch=sources)
    assert check.fetch(box) == (box.b, box, 1.5, 2, box.b, box.__dict__)
    box.b = [3, 4]
    assert check.fetch(box)[3] == 4


def test_slots() -> None:
    class Slotted:
        __slots__ = ("a", "b")

    value = Slotted()
    value.a = 1
    check = check_of([Equals(Slot(X, "a"), 1)], value, fetch=[Slot(X, "a")])
    assert check.fetch(value) == (1,)
    value.a = 2
    assert not check.passes(value)
    value.a = 1
    assert check.passes(value)
    del value.a
    assert not check.passes(value), "an unset slot"
    value.a = 1
    descriptor = Slotted.__dict__["a"]
    Slotted.a = property(lambda self: 1)
    assert not check.passes(value), "no longer a slot"
    Slotted.a = descriptor
    assert check.passes(value)
    assert not check.passes(Box(a=1)) and not check.passes(1)


def test_slot_of_another_class_with_the_same_name() -> None:
    class One:
        __slots__ = ("x", "a")

    class Two:
        __slots__ = ("a", "x")

    one, two = One(), Two()
    one.a = two.x = 1
    one.x = two.a = 2
    check = check_of(Equals(Slot(X, "a"), 1), one)
    assert not check.passes(two)
    two.a = 1
    assert check.passes(two) and check.passes(one)


def test_function_fields() -> None:
    def make() -> Any:
        def function(x: int, y: int = 5, *, z: int = 6) -> int:
            return x + y + z

        return function

    function = make()
    code = function.__code__
    guards = [
        IdIs(Attr(Func(), "__code__"), code),
        Equals(SeqItem(Attr(Func(), "__defaults__"), 0), 5),
        Equals(DictItem(Attr(Func(), "__kwdefaults__"), "z"), 6),
        Equals(Attr(Func(), "__closure__"), None),
        Equals(Attr(Func(), "__name__"), "function"),
        Equals(Attr(Func(), "__qualname__"), function.__qualname__),
    ]
    check = check_of(guards, 1, func=function)
    assert check.check.stats["tails"] == 0
    for name in ("__name__", "__qualname__"):
        before = getattr(function, name)
        setattr(function, name, "other")
        assert not check.passes(1)
        setattr(function, name, before)
        assert check.passes(1)
    function.__defaults__ = (5,)
    assert check.passes(1)
    function.__defaults__ = (7,)
    assert not check.passes(1)
    function.__defaults__ = None
    assert not check.passes(1)
    function.__defaults__ = (5,)
    assert check.passes(1)
    function.__kwdefaults__["z"] = 7
    assert not check.passes(1)
    function.__kwdefaults__ = {"z": 6}
    assert check.passes(1)
    function.__code__ = (lambda x: x).__code__
    assert not check.passes(1)


def test_methods_partials_and_properties() -> None:
    class Holder:
        def method(self) -> None:
            pass

        prop = property(lambda self: 3)

    holder = Holder()
    check = check_of(
        [IdIs(Attr(X, "__self__"), holder), IdIs(Attr(X, "__func__"), Holder.method)], holder.method
    )
    assert check.passes(holder.method) and not check.passes(Holder().method) and not check.passes(len)

    part = functools.partial(len, [1], key=2)
    check = check_of(
        [
            IdIs(Attr(X, "func"), len),
            Equals(DictItem(Attr(X, "keywords"), "key"), 2),
            Length(Attr(X, "args"), 1),
        ],
        part,
    )
    part.keywords["key"] = 3
    assert not check.passes(part)
    part.keywords["key"] = 2
    assert check.passes(part)
    assert not check.passes(functools.partial(print, [1], key=2))
    assert not check.passes(functools.partial(len))

    getter = Holder.__dict__["prop"].fget
    assert check_of(IdIs(Attr(X, "fget"), getter), Holder.__dict__["prop"])


def test_closures() -> None:
    def make(value: Any) -> tuple[Any, Any]:
        def read() -> Any:
            return value

        def write(new: Any) -> None:
            nonlocal value
            value = new

        def clear() -> None:
            nonlocal value
            del value

        return read, write, clear

    read, write, clear = make([1])
    cell = ClosureCell(Func(), 0, "value")
    check = check_of([Length(CellContents(cell), 1)], 0, func=read)
    assert "value" in str(CellContents(cell))
    write([1, 2])
    assert not check.passes(0)
    write("a")
    assert check.passes(0)
    clear()
    assert not check.passes(0)
    write([7])
    assert check.passes(0)

    equal = check_of([Equals(CellContents(cell), 2.5)], 0, func=make(2.5)[0])
    assert not Checked([Equals(CellContents(ClosureCell(Func(), 3)), 1)], func=read).passes(0)
    assert not Checked([Equals(CellContents(X), 1)]).passes(5)
    assert equal.check(make(2.5)[0], 0) == () and equal.check(make(3.5)[0], 0) is None
    assert equal.check(test_closures, 0) is None


def test_globals() -> None:
    module = types.ModuleType("settings")
    module.flag = True
    module.helper = helper = lambda: 1
    table = Const(module.__dict__, "settings")
    check = check_of([Equals(DictItem(table, "flag"), True), IdIs(DictItem(table, "helper"), helper)], 0)
    module.step = 1
    assert check.passes(0)
    for step in range(20):
        module.step = step
        assert check.passes(0)
    module.flag = False
    assert not check.passes(0)
    module.flag = True
    assert check.passes(0)
    module.helper = lambda: 1
    assert not check.passes(0)
    module.helper = helper
    assert check.passes(0)
    del module.flag
    assert not check.passes(0)


def test_dict_key_source() -> None:
    check = check_of([Equals(DictKey(X, 1), "b")], {"a": 1, "b": 2})
    assert not check.passes({"b": 2, "a": 1}) and not check.passes({"b": 1}) and not check.passes(1)
    assert check.passes(OrderedDict(z=1, b=2, c=3))


def test_type_of_source() -> None:
    check = check_of(IdIs(TypeOf(X), dict), {})
    assert not check.passes(OrderedDict())


def test_dict_item_never_calls_missing() -> None:
    class Missing(dict):
        def __missing__(self, key: object) -> Any:
            raise RuntimeError("never called")

    check = check_of(Equals(DictItem(X, "a"), 1), Missing(a=1))
    assert not check.passes(Missing())
    table = defaultdict(lambda: 1)
    assert not check.passes(table) and not table


def test_nested_path() -> None:
    inner = Box(items=[{"k": (1, Box(v=3))}])
    source = attribute("v", SeqItem(DictItem(SeqItem(attribute("items", attribute("inner")), 0), "k"), 1))
    box = Box(inner=inner)
    check = check_of(Equals(source, 3), box, fetch=[source])
    assert source.name() == "x.inner.items[0]['k'][1].v"
    assert check.fetch(box) == (3,)
    inner.items[0]["k"][1].v = 4
    assert not check.passes(box)
    inner.items[0]["k"] = (1, Box(v=3))
    assert check.passes(box)
    inner.items.insert(0, {})
    assert not check.passes(box)
    inner.items.pop(0)
    assert check.passes(box)
    box.inner = None
    assert not check.passes(box)
    assert not check.passes(None) and not check.passes(3)


def test_many_roots_of_one_argument() -> None:
    boxes = [Box(a=1, child=Box(b=2)) for _ in range(20)]
    source = attribute("b", attribute("child"))
    check = Checked([Equals(source, 2)], [source])
    for _ in range(5):
        assert all(check.passes(box) for box in boxes)
    boxes[3].child.b = 5
    assert [check.passes(box) for box in boxes].count(False) == 1


def test_wrong_calls_fail() -> None:
    check = check_of([TypeIs(X, int)], 1).check
    assert check(None) is None and check(None, 1, 2) is None and check() is None
    assert check(None, x=1) is None
    assert check(None, 1) == ()
    assert "expected 1 arguments" in check.explain_failure(None, 1, 2)


def test_source_beyond_the_arguments_is_rejected() -> None:
    try:
        Checked([TypeIs(Arg(3, "d"), int)], nargs=1)
    except ValueError:
        return
    raise AssertionError("accepted")


def test_explain_names_the_guard_and_both_values() -> None:
    box = Box(p=0.5)
    check = check_of([Equals(attribute("p"), 0.5)], box)
    box.p = 0.25
    assert check.why(box) == "x.p == 0.5: expected 0.5, found 0.25"
    assert "x.p == 0.5" in str(check.check)


def test_names_read_as_the_users_expressions() -> None:
    layers = DictItem(InstanceDict(DictItem(InstanceDict(X), "_modules")), "layers")
    assert layers.name() == "x._modules.layers"
    layer = DictItem(InstanceDict(DictItem(DictItem(InstanceDict(X), "_modules"), "layers")), "_modules")
    weight = DictItem(DictItem(InstanceDict(DictItem(layer, "3")), "_parameters"), "weight")
    assert weight.name() == "x.layers[3].weight"
    box = types.SimpleNamespace(_modules={"layers": types.SimpleNamespace(_modules={})})
    loaded = eval(DictItem(DictItem(InstanceDict(X), "_modules"), "layers").code(), {"x": box})
    assert loaded is box._modules["layers"]
