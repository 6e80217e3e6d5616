"""Classes and objects: attribute lookup, construction, operators, the kinds of classes of the standard library."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import threading
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import graphlift
from benchmarks.compilers import Compiler
from tests.capture.program import program


class Point:
    kind = "point"

    def __init__(self, a, b=2):
        self.a, self.b = a, b

    @property
    def total(self):
        return self.a + self.b

    @total.setter
    def total(self, value):
        self.a = value - self.b

    @classmethod
    def make(cls, a):
        return cls(a)

    @staticmethod
    def double(v):
        return v * 2

    def __add__(self, other):
        return Point(self.a + other.a, self.b + other.b) if isinstance(other, Point) else NotImplemented

    def __radd__(self, other):
        return ("radd", other, self.a)

    def __eq__(self, other):
        return isinstance(other, Point) and (self.a, self.b) == (other.a, other.b)

    def __hash__(self):
        return hash((self.a, self.b))

    def __lt__(self, other):
        return self.a < other.a

    def __bool__(self):
        return self.a != 0

    def __len__(self):
        return 7

    def __getitem__(self, index):
        if index > 2:
            raise IndexError(index)
        return self.a * index

    def __contains__(self, item):
        return item == self.a

    def __call__(self, *args, **kwargs):
        return args, kwargs

    def __repr__(self):
        return f"Point({self.a}, {self.b})"

    def __format__(self, spec):
        return f"<{spec}:{self.a}>"

    def __iadd__(self, n):
        self.a += n
        return self

    def __neg__(self):
        return Point(-self.a, -self.b)


@program()
def test_special_methods(x: Tensor):
    p, q = Point(1), Point.make(3)
    p.total = 10
    s = p + q
    s += 1
    log = [s.a, s.b, s.total, s.double(4), 5 + q, p == q, Point(1) == Point(1), p != q, q < p, bool(Point(0))]
    log += [
        not q,
        len(q),
        list(q),
        3 in q,
        4 in q,
        q(1, k=2),
        str(q),
        f"{q!r} {q:spec} {q}",
        (-q).a,
        hash(Point(1)) == hash(Point(1)),
    ]
    return x * s.a, log, sorted([Point(3), Point(1)])[0].a, max(p, q).a


class Slotted:
    __slots__ = ("value", "__dict__")
    __match_args__ = ("value",)

    def __init__(self, value):
        self.value = value


class OnlySlots:
    __slots__ = ("value",)


@program(lambda: Slotted(3))
def test_slots(x: Tensor, given: Slotted):
    made = Slotted(given.value + 1)
    made.extra = 5
    given.value = 9
    only = OnlySlots()
    try:
        only.value
    except AttributeError as error:
        text = str(error)
    try:
        only.other = 1
    except AttributeError:
        text += "!"
    only.value = x
    return x * made.value, made.extra, hasattr(made, "nothing"), text, only.value + 1


class Fallback:
    def __init__(self):
        self.real = 1

    def __getattr__(self, name):
        if name.startswith("no_"):
            raise AttributeError(f"refused {name}")
        return f"fallback {name}"

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value if name == "real" else [value])

    @property
    def broken(self):
        return self.no_such

    def __delattr__(self, name):
        object.__setattr__(self, "deleted", name)


@program(Fallback)
def test_getattr_setattr_delattr(x: Tensor, given: Fallback):
    given.other = 2
    del given.gone
    try:
        given.no_way
    except AttributeError as error:
        text = str(error)
    return (
        x + given.real,
        given.other,
        given.missing,
        text,
        hasattr(given, "no_x"),
        getattr(given, "no_y", 8),
        given.broken,
    )


class Descriptor:
    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, owner):
        return (self.name, owner.__name__) if obj is None else obj.__dict__.get(self.name, "unset")

    def __set__(self, obj, value):
        obj.__dict__[self.name] = value * 2


class Managed:
    field = Descriptor()

    def __getattribute__(self, name):
        if name == "virtual":
            return 42
        return super().__getattribute__(name)


@program()
def test_descriptors(x: Tensor):
    m = Managed()
    before = m.field
    m.field = 4
    return x * m.field, before, Managed.field, m.virtual


class Base:
    def greet(self, n):
        return ["base", n]

    @classmethod
    def named(cls):
        return [cls.__name__]


class Left(Base):
    def greet(self, n):
        return ["left", *super().greet(n)]


class Right(Base):
    def greet(self, n):
        return ["right", *super().greet(n)]

    @classmethod
    def named(cls):
        return ["right", *super().named()]


class Both(Left, Right):
    def greet(self, n):
        return ["both", *super(Both, self).greet(n)]


@program()
def test_super_and_mro(x: Tensor):
    return x * len(Both().greet(1)), Both().greet(2), Both.named(), [c.__name__ for c in Both.__mro__]


class Meta(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.tagged = True
        return made

    def __getitem__(cls, item):
        return (cls.__name__, item)

    @property
    def label(cls):
        return f"<{cls.__name__}>"

    def __instancecheck__(cls, obj):
        return getattr(obj, "tagged", False)


class WithMeta(metaclass=Meta):
    def __new__(cls, value):
        made = super().__new__(cls)
        made.value = value
        return made


@program()
def test_metaclass(x: Tensor):
    made = WithMeta(3)
    return (
        x * made.value,
        made.tagged,
        WithMeta[1],
        WithMeta.label,
        isinstance(made, WithMeta),
        isinstance(3, WithMeta),
    )


@dataclasses.dataclass
class Config:
    size: int = 3
    names: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.names.append("post")


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: float = 1.0


@dataclasses.dataclass(slots=True)
class WithSlots:
    a: int
    b: int = 2


@program(lambda: Config(5))
def test_dataclasses(x: Tensor, given: Config):
    made = Config(names=["x"])
    frozen = dataclasses.replace(Frozen(1), a=4)
    try:
        frozen.a = 3
    except dataclasses.FrozenInstanceError as error:
        text = str(error)
    given.size += 1
    slotted = WithSlots(7)
    slotted.b += 1
    return (
        x * given.size,
        made,
        frozen,
        text,
        Frozen(1) < frozen,
        Frozen(1) == Frozen(1),
        repr(frozen),
        slotted.b,
        Config() == Config(),
    )


class Pair(NamedTuple):
    left: Tensor
    right: int = 5

    def swapped(self):
        return (self.right, self.left)


Old = collections.namedtuple("Old", "a b")


@program(lambda: Old(1, 2))
def test_named_tuples(x: Tensor, given: Old):
    pair = Pair(x + 1)
    left, right = pair
    return (
        pair,
        pair.swapped(),
        given._replace(a=9),
        given.b,
        left * right,
        pair[1],
        pair._fields,
        given._asdict(),
        len(pair),
        given == (1, 2),
    )


class Color(enum.Enum):
    RED = 1
    GREEN = "g"

    @property
    def bright(self):
        return self.name + "!"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = 1
    B = 2


@program(lambda: Color.RED, lambda: Level.HIGH)
def test_enums(x: Tensor, color: Color, level: Level):
    table = {Color.RED: 2, Color.GREEN: 3}
    return (
        x * table[color] * level,
        color.bright,
        Color("g"),
        Color["RED"] is color,
        level > Level.LOW,
        [c.name for c in Color],
        color == Color.GREEN,
        Flags.A | Flags.B,
    )


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    @functools.cached_property
    def cached(self):
        return self.area() * 2


class Square(Shape):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side**2


@program(lambda: Square(3))
def test_abstract_and_cached(x: Tensor, square: Square):
    try:
        Shape()
    except TypeError as error:
        text = type(error).__name__
    return x * square.cached, square.cached, text, isinstance(square, Shape), vars(square)


class OwnList(list):
    def total(self):
        return sum(self)


class OwnDict(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, ("set", value))

    def __missing__(self, key):
        return f"missing {key}"


class OwnSet(set):
    pass


@program(lambda: OwnList([1, 2]), lambda: OwnDict(a=1))
def test_subclasses_of_containers(x: Tensor, items: OwnList, table: OwnDict):
    items.append(4)
    items += [5]
    table["b"] = 2
    table.update(c=3)
    made = OwnList(items)
    made.insert(0, 9)
    own = OwnDict(k=1)
    own["z"] = x
    return (
        x * items.total(),
        made,
        table["nothing"],
        table.get("b"),
        isinstance(made, list),
        own["z"][1] + 1,
        list(own),
        made == list(made),
    )


@program(lambda: collections.defaultdict(list, a=[1]), lambda: collections.OrderedDict(a=1, b=2))
def test_collections(x: Tensor, table, ordered):
    table["b"].append(x)
    table["a"].append(2)
    ordered.move_to_end("a")
    ordered["c"] = 3
    first = ordered.popitem(last=False)
    made = collections.defaultdict(int)
    for letter in "hello":
        made[letter] += 1
    return (
        x + len(table["b"]),
        first,
        list(ordered),
        made,
        dict(made),
        collections.ChainMap({"a": 1}, {"b": 2})["b"],
    )


@program()
def test_counter(x: Tensor):
    counts = collections.Counter("abca")
    counts.update("a")
    return x + counts["a"], counts["z"], counts.most_common(1)


@program(breaks=True)
def test_deque(x: Tensor):
    queue = collections.deque([x, x + 1], maxlen=2)
    queue.append(x + 2)
    queue.appendleft(x * 5)
    return sum(queue), len(queue), queue[0], queue.maxlen


class Box:
    def __init__(self):
        self.a, self.b = 1, 2


@program(Box)
def test_attributes_written_and_deleted(x: Tensor, p: Box):
    p.new = x * 2
    p.a += 5
    del p.b
    setattr(p, "via", [p.a])
    return hasattr(p, "b"), p.new + 1, vars(p).keys() == {"a", "new", "via"}, p.__dict__["via"]


@program(breaks=True)
def test_class_made_inside(x: Tensor):
    class Local:
        factor = 3

        def apply(self, v):
            return v * self.factor

    return Local().apply(x)


@program(lambda: {"k": [1, 2, {"a": 3}]}, lambda: Point(5), lambda: (1, "s"))
def test_match(x: Tensor, table: dict, point: Point, pair: tuple):
    log = []
    for value in (table, point, pair, Slotted(8), 5, "text", [1, 2, 3], None):
        match value:
            case {"k": [first, *_, {"a": inner}], **rest}:
                log.append(("mapping", first, inner, rest))
            case Point(a=5, b=b):
                log.append(("point", b))
            case Slotted(v):
                log.append(("slotted", v))
            case (int(n), str(s)):
                log.append(("pair", n, s))
            case int() | float() as number if number > 3:
                log.append(("number", number))
            case [a, b, *others]:
                log.append((a, b, others))
            case str():
                log.append("str")
            case _:
                log.append("other")
    return x + 1, log


class Powers:
    def __pow__(self, exponent, modulus=None):
        return exponent, modulus


@program()
def test_power_with_three_arguments(x: Tensor):
    return x + 1, pow(Powers(), 2, 3), pow(Powers(), 2), Powers() ** 4


def raised(call):
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


@program()
def test_wrong_results_of_special_methods(x: Tensor):
    class Wrong:
        def __iter__(self):
            return 3

        def __hash__(self):
            return "h"

        def __len__(self):
            return -1

        def __bool__(self):
            return 3

        def __index__(self):
            return "i"

    class Large:
        def __hash__(self):
            return 1 << 70

    wrong = Wrong()
    calls = [
        lambda: iter(wrong),
        lambda: hash(wrong),
        lambda: len(wrong),
        lambda: bool(wrong),
        lambda: [1][wrong],
    ]
    calls += [lambda: {wrong: 1}, lambda: hash(Large()), lambda: list(wrong)]
    for each in (1, "text", None, [], (), {}, {1}, frozenset()):
        for name in ("real", "missing", "append", "__doc__", "pop", "__eq__"):
            calls.append(lambda each=each, name=name: setattr(each, name, 3))
    return x + 1, [raised(call) for call in calls]


@program()
def test_properties_that_refuse(x: Tensor):
    class Plain:
        @property
        def a(self):
            return self.missing

        b = property(None, lambda self, value: None)

    class Fallback(Plain):
        def __getattr__(self, name):
            return "for " + name

    made = Plain()

    def delete():
        del made.a

    calls = [lambda: made.a, lambda: setattr(made, "a", 3), delete, lambda: made.b, lambda: Fallback().a]
    return x + 1, [raised(call) for call in calls], Fallback().b, hasattr(made, "b")


class TuplePair(tuple):
    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))


class FrozenNumbers(frozenset):
    pass


@program()
def test_subclasses_give_plain_ones(x: Tensor):
    pair, frozen = TuplePair(1, 2), FrozenNumbers([1])
    made = pair + (), () + pair, pair[:], pair * 1, frozen.copy(), frozen.union(), frozen | frozenset()
    return x + 1, [type(each) for each in made]


TOLD: list[str] = []


def told(text):
    TOLD.append(text)
    return text


class Spoken(enum.Enum):
    """An enumeration whose members' methods are the program's code."""

    ONE = 1
    TWO = 2

    def __init__(self, number):
        self.hits = number

    @property
    def low(self):
        return told(self.name).lower() * self.hits

    @classmethod
    def make(cls):
        return told(cls.__name__)

    @staticmethod
    def plain():
        return told("plain")

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return told("for " + name)

    def __str__(self):
        return told("text")

    def __repr__(self):
        return told("shown")

    def __format__(self, spec):
        return told("formatted " + spec)

    def __call__(self):
        return told("called")

    def __bool__(self):
        return bool(TOLD and False)

    def __len__(self):
        return len(told("abc"))

    def __add__(self, other):
        return told("added")

    def __lt__(self, other):
        return self.value < other.value and bool(told("less"))

    def __contains__(self, item):
        return bool(told("held"))

    def __getitem__(self, index):
        return told("item")

    def __iter__(self):
        return iter([told("first")])


@program(breaks=True)
def test_members_of_enumerations_with_code_of_their_own(x: Tensor):
    TOLD.clear()
    one = Spoken.ONE
    found = [
        one.low,
        one.make(),
        one.plain(),
        one.missing,
        hasattr(one, "absent"),
        str(one),
        repr(one),
        f"{one:>3}",
    ]
    found += [one(), not one, len(one), one + 1, one < Spoken.TWO, 3 in one, one[2], list(one), one.hits]
    found += [sorted([Spoken.TWO, one])[0].name, one.value, one.name, one is Spoken(1), Spoken["TWO"].low]
    return x + 1, found, list(TOLD)


def test_what_a_member_of_an_enumeration_holds_may_change(compiler):
    def fn(x):
        return x * Spoken.TWO.hits, Spoken.TWO.low

    compiled = compiler.compile(fn, backend="eager")
    for hits in (2, 3, 2):
        Spoken.TWO.hits = hits
        y, text = compiled(torch.ones(1))
        assert y.item() == hits and text == "two" * hits


class Judging(type):
    def __instancecheck__(cls, instance):
        cls.asked.append(type(instance).__name__)
        return isinstance(instance, int)

    def __subclasscheck__(cls, subclass):
        cls.asked.append(subclass.__name__)
        return issubclass(subclass, int)


class Judge(metaclass=Judging):
    asked: list[str] = []

    def __lt__(self, other):
        return "lt"

    def __add__(self, other):
        return "add"

    def who(self):
        return 1


class Junior(Judge):
    def __gt__(self, other):
        return "gt"

    def __radd__(self, other):
        return "radd"

    def who(self):
        return super().who() + 1


@program(breaks=True)  # the list is another one in each call
def test_metaclasses_that_say_what_instances_are(x: Tensor):
    Judge.asked = []
    found = [isinstance(each, Judge) for each in (3, "text", x, Judge(), [], int)]
    found += [isinstance(3, (str, Judge)), isinstance("", Judge | None), issubclass(bool, Judge)]
    made = Judge() < Junior(), Judge() + Junior(), Junior().who(), super(Junior, Junior()).who()
    return x + 1, found, made, Judge.asked


def test_a_class_has_its_own_of_what_the_region_wrote_to_its_base() -> None:
    class Base:
        made = 0

    class Derived(Base):
        pass

    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        Base.made = n
        Derived.made += 1
        return x + Derived.made

    compiled = graphlift.compile(program, backend="eager")
    found = []
    for call in (compiled, program):
        Base.made = 1
        vars(Derived).get("made") is None or delattr(Derived, "made")
        found.append([(call(torch.zeros(1), n).item(), Base.made, Derived.made) for n in (0, 0, 5, 0)])
    assert found[0] == found[1] == [(1, 0, 1), (2, 0, 2), (3, 5, 3), (4, 0, 4)]


class Hashed:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and other.value == self.value


class HashedSlot(Hashed):
    __slots__ = ("value",)


def set_before(x, key):
    key.value = 5
    return {key}, {(key, 1): 2}, frozenset([Hashed(key)])


def set_after(x, key):
    found = {key}, {1: 0, (key, 1): 2}
    key.value = 5
    return found


def made_and_set(x, key):
    made = type(key)(1)
    held = Hashed(made)
    found = {made}, {held}
    made.value = 5
    return found, {made}


def set_between(x, key, table):
    table["first"] = 0
    key.value = 5
    table[key] = 1
    return table


@pytest.mark.parametrize("cls", [Hashed, HashedSlot])
@pytest.mark.parametrize("fn", [set_before, set_after, made_and_set, set_between])
def test_a_key_whose_hash_changes(fn: Any, cls: Any, compiler: Compiler) -> None:
    """A container keeps the hash that its key had then."""

    def program(x: torch.Tensor, *args: Any) -> Any:
        return x + 1, fn(x, *args)

    def hashes(value: Any) -> Any:
        if isinstance(value, tuple):
            return [hashes(item) for item in value]
        return [key in value for key in value], [cls(n) in value or (cls(n), 1) in value for n in (1, 5)]

    compiled = compiler.compile(program, backend="eager")
    for _ in range(2):
        extra = [[{}] if fn is set_between else [] for _ in range(2)]
        expected, found = (
            run(torch.ones(2), cls(1), *more)[1] for run, more in zip((program, compiled), extra, strict=True)
        )
        assert hashes(found) == hashes(expected)


def test_a_key_that_stays_as_it_is_breaks_nothing() -> None:
    def program(x: torch.Tensor, key: Hashed, value: int) -> Any:
        made = Hashed(value)
        made.value = (value, 1)
        key.other = 3
        return x + 1, made in {Hashed((value, 1))}, {made: 1}

    compiled = graphlift.compile(program, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2), Hashed(1), 4)[1:] == (True, {Hashed((4, 1)): 1})


class Local(threading.local):
    size = 5

    def __init__(self):
        self.made = 7


LOCAL, OWN_LOCAL = threading.local(), Local()
LOCAL.size = OWN_LOCAL.width = 2


@program(breaks="unsupported-attribute")
def test_attributes_found_in_c(x: Tensor):
    held = LOCAL.size, hasattr(LOCAL, "size"), getattr(LOCAL, "width", None), hasattr(OWN_LOCAL, "width")
    OWN_LOCAL.size = 6
    try:
        OWN_LOCAL.depth, LOCAL.depth = x, 3
        del LOCAL.width
    except AttributeError:
        held = *held, LOCAL.depth
    found = held, OWN_LOCAL.size, OWN_LOCAL.made, OWN_LOCAL.depth
    del OWN_LOCAL.size
    return x + OWN_LOCAL.size, found


STORAGE = torch.UntypedStorage([1, 0])


@program(breaks=True)
def test_library_classes_that_say_what_instances_are(x: Tensor):
    made = torch.storage.TypedStorage(wrap_storage=STORAGE, dtype=torch.bool, _internal=True)
    return x + 1, isinstance(made, torch.BoolStorage), isinstance(made, torch.FloatStorage), type(made)
