"""Classes made inside of captured code: kept there they cost no break; one that outlives the call is a new one each time."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import types
import typing
from collections import namedtuple
from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum, auto

import pytest
import torch
from torch import Tensor

import graphlift
from benchmarks.compilers import Compiler
from tests.capture.program import CountingBackend, program
from tests.equality import assert_equal


class A:
    def __init__(self, v):
        self.v = v

    @property
    def twice(self):
        return self.v * 2

    def who(self):
        return "A"


class Meta(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.tag = cls.__name__
        return made

    def __getitem__(cls, index):
        return cls.__name__, index

    def __len__(cls):
        return 7

    def __iter__(cls):
        return iter([1, 2])

    @property
    def mp(cls):
        return "mp" + cls.__name__


class WM(metaclass=Meta):
    pass


class Base2:
    def __init_subclass__(cls, tag=None, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.tag = tag


class Logged:
    def __set_name__(self, owner, name):
        self.name = name
        self.owner = owner.__name__

    def __get__(self, o, t=None):
        return (self.name, self.owner, getattr(o, "v", None))


@program()
def test_set_name(x: Tensor):
    class P:
        d = Logged()

        def __init__(self, v):
            self.v = v

    return x + 1, P(3).d, P.d


@program()
def test_prop(x: Tensor):
    class P:
        def __init__(self, v):
            self._v = v

        @property
        def v(self):
            "doc"
            return self._v

        @v.setter
        def v(self, n):
            self._v = n * 2

        @v.deleter
        def v(self):
            self._v = None

        @classmethod
        def mk(cls, v):
            return cls(v)

        @staticmethod
        def st(a):
            return a + 1

        @functools.cached_property
        def cp(self):
            return self._v + 1

        def __class_getitem__(cls, i):
            return i

    o = P.mk(x)
    o.v = x
    r = o.v + P.st(1) + o.cp + o.cp
    del o.v
    return r, o.v, P.v.__doc__, P[3], P.st(2)


@program()
def test_list_attr(x: Tensor):
    class P:
        items = []

        def add(self, v):
            self.items.append(v)

    a, b = P(), P()
    a.add(x)
    b.add(2)
    return a.items[0] + len(P.items), a.items is b.items


@program()
def test_loop_body(x: Tensor):
    class P:
        t = 0
        for i in range(4):
            t += i
        sq = [i * i for i in range(3)]
        d = {k: v for k, v in zip("ab", (1, 2))}
        if t > 3:
            big = True
        try:
            zz
        except NameError as e:
            err = str(e)
        del i

    return x + P.t, P.sq, P.d, P.big, P.err, hasattr(P, "i")


@program()
def test_classref(x: Tensor):
    k = 10

    class P:
        k = k if False else 3
        j = k + 1

    return x + P.j


@program()
def test_classderef(x: Tensor):
    k = 10

    def mk():
        class P:
            a = k

            def m(self):
                return k

        return P

    return x + mk().a + mk()().m()


@program()
def test_super_chain(x: Tensor):
    class P:
        def f(self):
            return [1]

    class Q(P):
        def f(self):
            return super().f() + [2]

    class R(P):
        def f(self):
            return super().f() + [3]

    class S(Q, R):
        def f(self):
            return super().f() + [4]

    return x + sum(S().f()), S().f(), [c.__name__ for c in S.__mro__], isinstance(S(), R)


@program()
def test_eq_hash(x: Tensor):
    class P:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return self.v == o.v

        def __hash__(self):
            return hash(self.v)

        def __repr__(self):
            return f"P{self.v}"

        def __lt__(self, o):
            return self.v < o.v

        def __bool__(self):
            return self.v > 1

        def __len__(self):
            return 4

        def __iter__(self):
            yield self.v
            yield 7

        def __contains__(self, i):
            return i == 7

        def __getitem__(self, i):
            return i

        def __call__(self, *a):
            return a

        def __add__(self, o):
            return P(self.v + o.v)

        def __enter__(self):
            return self

        def __exit__(self, *a):
            return True

        def __getattr__(self, n):
            return n

        def __str__(self):
            return "s"

        def __format__(self, f):
            return "f" + f

    with P(1) as q:
        raise ValueError
    return (
        x + 1,
        P(1) == P(1),
        len({P(1), P(1), P(2)}),
        repr(P(1)),
        sorted([P(3), P(2)])[0].v,
        bool(P(0)),
        len(P(1)),
        list(P(3)),
        7 in P(1),
        P(1)[4],
        P(1)(5),
        (P(1) + P(2)).v,
        P(1).zz,
        q.v,
        str(P(1)),
        f"{P(1):z}",
        f"{[P(1)]}",
        max([P(1), P(4)]).v,
    )


@program()
def test_eq_no_hash(x: Tensor):
    class P:
        def __eq__(self, o):
            return True

    try:
        {P()}
    except TypeError as e:
        return x + 1, str(e), P.__hash__


@program()
def test_sub_list(x: Tensor):
    class L2(list):
        def total(self):
            return sum(self)

    class D2(dict):
        def __missing__(self, k):
            return k

    class I2(int):
        pass

    class T2(tuple):
        @property
        def first(self):
            return self[0]

    numbers = L2([1, 2])
    numbers.append(3)
    d = D2(a=1)
    return x + numbers.total(), d["a"], d["q"], I2(3) + 1, T2((x, 1)).first


@program()
def test_metaclass_inside_use(x: Tensor):
    class P(metaclass=Meta):
        def __init__(self, v):
            self.v = v

    class Q(P):
        pass

    return x + Q(2).v, Q(2).tag, Q.mp, len(Q), Q[3], list(P), 2 in P


class PrepMeta(type):
    @classmethod
    def __prepare__(mcs, name, bases, **kw):
        return {"prepared": name, **kw}

    def __new__(mcs, name, bases, ns, **kw):
        ns["made"] = len(ns)
        return super().__new__(mcs, name, bases, ns)

    def __init__(cls, name, bases, ns, **kw):
        super().__init__(name, bases, ns)
        cls.inited = kw


@program()
def test_prepare(x: Tensor):
    class P(metaclass=PrepMeta, z=3):
        a = 1

    return x + P.a, P.prepared, P.z, P.inited, P.made > 2


class PlainPrepareMeta(type):
    def __prepare__(name, bases, **kw):
        return {"prepared": name, **kw}

    def __new__(mcs, name, bases, ns, **kw):
        return super().__new__(mcs, name, bases, ns)

    def __init__(cls, name, bases, ns, **kw):
        super().__init__(name, bases, ns)


class NoNamespaceMeta(type):
    __prepare__ = staticmethod(lambda *args, **kw: len(args))


@program()
def test_prepare_as_a_plain_function(x: Tensor):
    class P(metaclass=PlainPrepareMeta, z=3):
        a = 1

    try:

        class Q(metaclass=NoNamespaceMeta):
            pass

    except TypeError as error:
        return x + P.a, P.prepared, P.z, str(error)


@program()
def test_abstract(x: Tensor):
    class P(abc.ABC):
        @property
        @abc.abstractmethod
        def v(self): ...
        @abc.abstractmethod
        def w(self): ...

    class Q(P):
        v = 3

        def w(self):
            return 2

    try:
        P()
    except TypeError as e:
        m = str(e)
    return x + Q().v + Q().w(), m, isinstance(Q(), P), issubclass(Q, P), P.__abstractmethods__


@program()
def test_kwargs_error(x: Tensor):
    try:

        class P(z=3):
            pass
    except TypeError as e:
        return x + 1, str(e)


@program(breaks=True)
def test_conflict(x: Tensor):
    out = []
    try:

        class P(WM, abc.ABC):
            pass
    except TypeError as e:
        out.append(str(e))
    try:

        class P(int, str):
            pass
    except TypeError as e:
        out.append(str(e))
    try:

        class P(A, A):
            pass
    except TypeError as e:
        out.append(str(e))
    try:

        class P(3):
            pass
    except TypeError as e:
        out.append(str(e))
    try:

        class P:
            __slots__ = ("a",)
            a = 1
    except ValueError as e:
        out.append(str(e))
    try:

        class P(bool):
            pass
    except TypeError as e:
        out.append(str(e))
    return x + 1, out


@program()
def test_body_raises(x: Tensor):
    y = x + 1

    class P:
        k = 1
        z = 1 / 0

    return y


@program(breaks=True)
def test_body_breaks(x: Tensor):
    y = x + 1

    class P:
        k = 3
        graphlift.graph_break()

        def m(self):
            return self.k

    return y * P().m()


@program(breaks=True)
def test_break_after(x: Tensor):
    class P:
        def __init__(self, v):
            self.v = v

        def m(self):
            return self.v * 2

    y = P(x).m()
    graphlift.graph_break()
    return P(y).m()


@program()
def test_dc_full(x: Tensor):
    z = 5

    @dataclass(order=True, frozen=True)
    class P:
        a: int
        b: int = z
        c: list = field(default_factory=lambda: [z], compare=False)
        d: typing.ClassVar[int] = 9

        def __post_init__(self):
            object.__setattr__(self, "e", self.a + self.b)

        @property
        def s(self):
            return self.a + z

    @dataclass
    class Q(P if False else Base2):
        t: object = None

    q = P(1)
    try:
        q.a = 3
    except dataclasses.FrozenInstanceError as e:
        m = str(e)
    return (
        x + q.e + q.s + q.d,
        q.c,
        P(1) < P(2),
        repr(q),
        m,
        dataclasses.replace(q, a=4).a,
        dataclasses.asdict(q),
        hash(q) == hash(P(1)),
        Q(x).t,
        q.c is P(1).c,
    )


@program()
def test_dc_slots(x: Tensor):
    @dataclass(slots=True)
    class P:
        a: object
        b: int = 3

    o = P(x)
    o.b = 5
    try:
        o.zz = 1
    except AttributeError as e:
        m = str(e)
    return o.a + o.b, m


@program(breaks=True)
def test_dc_bad(x: Tensor):
    try:

        @dataclass
        class P:
            a: int = 1
            b: str
    except TypeError as e:
        m = str(e)
    try:

        @dataclass
        class Q:
            a: list = []
    except ValueError as e:
        n = str(e)
    return x + 1, m, n


@program()
def test_dc_tensor_default(x: Tensor):
    @dataclass
    class P:
        a: object = x

    return P().a + 1


@program()
def test_enum_full(x: Tensor):
    class E(Enum):
        A = auto()
        B = auto()
        C = B
        _ignore_ = ["q"]
        q = 4

        @property
        def low(self):
            return self.name.lower()

        def plus(self, n):
            return self.value + n

    class F(Flag):
        X = auto()
        Y = auto()

    class Whole(IntEnum):
        P = 3

    return (
        x + E.B.value + E.A.plus(2) + Whole.P,
        E.C is E.B,
        [e.name for e in E],
        E["A"] is E.A,
        E(2).name,
        E.A.low,
        (F.X | F.Y).value,
        F.X in (F.X | F.Y),
        len(E),
    )


@program(breaks=True)
def test_enum_closure(x: Tensor):
    n = 4

    class E(Enum):
        A = 1

        def m(self):
            return self.value + n

    return x + E.A.m()


@program()
def test_enum_str(x: Tensor):
    class E(Enum):
        A = 1

        def __str__(self):
            return "E!" + self.name

    return x + 1, str(E.A), f"{E.A}", repr(E.A)


@program()
def test_enum_dup(x: Tensor):
    try:

        class E(Enum):
            A = 1
            A = 2
    except TypeError as e:
        return x + 1, str(e)


@program()
def test_protocol(x: Tensor):
    class P(typing.Protocol):
        def m(self) -> int: ...

    class Q:
        def m(self):
            return 3

    return x + Q().m()


@program()
def test_typeddict(x: Tensor):
    class P(typing.TypedDict):
        a: int

    return x + P(a=3)["a"]


@program()
def test_setattr_class(x: Tensor):
    class P:
        def m(self):
            return 1

    o = P()
    a = o.m()
    P.m = lambda self: 5
    b = o.m()
    del P.m
    try:
        o.m()
    except AttributeError as e:
        c = str(e)
    try:
        del P.nope
    except AttributeError as e:
        d = str(e)
    setattr(P, "t", x)
    return o.t + a + b, c, d


@program()
def test_init_subclass_chain(x: Tensor):
    class R0:
        regs = []

        def __init_subclass__(cls, /, tag=0, **kw):
            super().__init_subclass__(**kw)
            R0.regs.append(tag)
            cls.tag = tag

    class P(R0, tag=4):
        pass

    class Q(P, tag=6):
        pass

    return x + P.tag + Q.tag, R0.regs


@program()
def test_nested_class(x: Tensor):
    class P:
        class Inner:
            k = 3

        def m(self):
            return self.Inner.k

    return x + P().m() + P.Inner.k, P.Inner.__qualname__


@program()
def test_class_as_key(x: Tensor):
    class P:
        pass

    d = {P: 3}
    return x + d[P], P in d


@program()
def test_generator_method(x: Tensor):
    class P:
        def __init__(self, n):
            self.n = n

        def g(self):
            for i in range(self.n):
                yield i * x

    return sum(P(3).g())


@program()
def test_module_inside(x: Tensor):
    class M(torch.nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k

        def forward(self, y):
            return y * self.k

    m = M(3)
    return m(x) + M(2)(x), m.training


@program()
def test_exception_hier(x: Tensor):
    class E1(Exception):
        def __init__(self, c):
            super().__init__("m")
            self.c = c

    class E2(E1):
        pass

    try:
        try:
            raise E2(3)
        except KeyError:
            pass
    except E1 as e:
        return x + e.c, str(e), type(e).__name__, type(e).__mro__[1].__name__


@program()
def test_new_method(x: Tensor):
    class P:
        def __new__(cls, v):
            o = super().__new__(cls)
            o.made = v
            return o

        def __init__(self, v):
            self.v = v

    return P(x).made + P(2).v


@program()
def test_singleton(x: Tensor):
    class S:
        inst = None

        def __new__(cls):
            if cls.inst is None:
                cls.inst = super().__new__(cls)
                cls.inst.n = 0
            cls.inst.n += 1
            return cls.inst

    return x + S().n + S().n, S() is S()


@program()
def test_total_ordering(x: Tensor):
    @functools.total_ordering
    class P:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return self.v == o.v

        def __lt__(self, o):
            return self.v < o.v

    return x + 1, P(1) <= P(2), P(2) >= P(3)


@program()
def test_bases_from_outside(x: Tensor):
    class P(A):
        def who(self):
            return "P" + super().who() + __class__.__name__

    class Q(Base2, tag=x.shape[0]):
        pass

    made = type("R", (A,), {"z": 4, "m": lambda self: self.z})
    return P(x).twice + made(1).m() + Q.tag, P(x).who(), issubclass(P, A), made.__name__, made.__module__


@program()
def test_class_in_a_loop(x: Tensor):
    made = []
    for i in range(3):

        class P:
            n = i

        made.append(P)
    return x + sum(P.n for P in made), len({*made}), made[0] is made[1]


@program()
def test_tensor_in_a_class(x: Tensor):
    class P:
        t = x + 1
        __slots__ = ("a",)

        def m(self):
            self.a = self.t * 2
            return self.a

    P.other = x
    return P().m() + P.other


@program()
def test_named_tuples(x: Tensor):
    P = namedtuple("P", "a b", defaults=[3])

    class Q(typing.NamedTuple):
        a: object
        b: int = 2

        def total(self):
            return self.a + self.b

    p, q = P(x), Q(x)
    return p.a * p.b + q.total(), P._fields, q._replace(b=5).b, p._asdict()["b"]


@dataclass
class Outside:
    inner: object = None


@program()
def test_repr_of_what_contains_itself(x: Tensor):
    made = Outside()
    made.inner = made
    return x + 1, repr(made), repr(Outside(3))


def instance(x: Tensor):
    class P:
        def m(self):
            return 3

    return x + 1, P(), P


def method(x: Tensor):
    class P:
        n = 4

        def m(self):
            return self.n

    return x + 1, P().m, P


def named(x: Tensor):
    P = namedtuple("P", "a b")
    return x + 1, P(1, 2).index, P


def member(x: Tensor):
    class E(Enum):
        A = 1

        def m(self):
            return self.value

    return x + 1, E.A.m, E


def data(x: Tensor):
    @dataclass
    class P:
        a: int = 1

    return x + 1, dataclasses.fields(P)[0], P


def closed_over(x: Tensor):
    class P:
        pass

    return x + 1, lambda: P, P


HELD: dict[str, type] = {}


def kept(x: Tensor):
    class P:
        pass

    HELD["last"] = P
    return x + 1, HELD["last"], P


def raised(x: Tensor):
    class P(ValueError):
        pass

    try:
        raise P("gone")
    except P as error:
        return x + 1, error, P


@pytest.mark.parametrize("fn", [instance, method, named, member, data, closed_over, kept, raised])
def test_class_that_outlives_the_call(fn, compiler: Compiler) -> None:
    compiled = compiler.compile(fn, backend="eager")
    made = []
    for value in (1.0, 2.0):
        result, part, cls = compiled(torch.ones(2) * value)
        expected, _, eager_class = fn(torch.ones(2) * value)
        assert torch.equal(result, expected)
        assert (cls.__name__, cls.__qualname__, cls.__module__, cls.__mro__[1:]) == (
            eager_class.__name__,
            eager_class.__qualname__,
            eager_class.__module__,
            eager_class.__mro__[1:],
        )
        assert [name for name in vars(cls)] == [name for name in vars(eager_class)]
        made.append(cls)
    assert made[0] is not made[1]


def test_class_attribute_found_between_the_bases(compiler: Compiler) -> None:
    class Root:
        def m(self):
            return 1

    class Left(Root):
        def m(self):
            return super().m() + 10

    class Right(Root):
        pass

    class Both(Left, Right):
        pass

    def f(x, both):
        return x + both.m()

    compiled = compiler.compile(f, backend="eager")
    assert compiled(torch.zeros(1), Both()).item() == 11
    Right.m = lambda self: 5
    assert compiled(torch.zeros(1), Both()).item() == 15


@program()
def test_copies_of_instances(x: Tensor):
    class P:
        def __init__(self):
            self.items = [x]

    deep = copy.deepcopy(P())
    shallow = copy.copy(deep)
    return deep.items[0] + 1, shallow.items is deep.items, type(shallow) is P


@program()
def test_methods_under_transforms(x: Tensor):
    k = x.sum()

    class P:
        def scaled(self, v):
            return v * k

        def loss(self, v):
            return (v * 3).sum()

    return torch.func.vmap(P().scaled)(x), torch.func.grad(P().loss)(x)


@program()
def test_names_shared_with_the_methods(x: Tensor):
    k = 1

    class P:
        def get(self):
            return k

        def add(self):
            nonlocal k
            k += 5

    k = 2
    before = P().get()
    P().add()
    after = P().get()
    k = 10
    return x + before + after + P().get(), k


class Changing:
    v = 1

    def hello(self):
        return self.v


MADE = {"count": 0}


class Counting(type):
    def __new__(mcs, name, bases, namespace):
        MADE["count"] += 1
        return super().__new__(mcs, name, bases, namespace)


def test_what_classes_take_from_outside_may_change(compiler: Compiler) -> None:
    defaults = [1]

    def f(x, base, names, value):
        class P(base):
            k = value

            def total(self):
                return self.hello() * 10 + self.v + self.k + getattr(self, "extra", 0)

        @dataclass
        class Q:
            a: int = defaults[0]

        class E(Enum):
            A = value
            B = 5

        R = namedtuple("R", names)
        return x + P().total() + Q().a + len(R._fields), E(5).name, E.A.value

    class Other(Changing):
        v = 4

    compiled = compiler.compile(f, backend="eager")

    def check(*args):
        assert_equal(compiled(torch.zeros(2), *args), f(torch.zeros(2), *args))

    check(Changing, "a b", 1)
    check(Changing, "a b c", 1)
    check(Changing, "a b", 5)
    check(Other, "a b", 1)
    Changing.v = 7
    check(Changing, "a b", 1)
    Changing.extra = 100
    check(Changing, "a b", 1)
    Changing.hello = lambda self: 3
    check(Other, "a b", 1)
    defaults[0] = 50
    check(Changing, "a b", 1)


def test_a_metaclass_acts_in_each_call(compiler: Compiler) -> None:
    def f(x):
        before = MADE["count"]

        class P(metaclass=Counting):
            pass

        return x + (MADE["count"] - before)

    compiled = compiler.compile(f, backend="eager")
    MADE["count"] = 0
    for count in (1, 2, 3):
        assert compiled(torch.zeros(1)).item() == 1
        assert MADE["count"] == count


class Bare:
    pass


class OwnNew:
    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)


class PassingNew:
    def __new__(cls, *args):
        return super().__new__(cls, *args)


class PassingInit:
    def __init__(self, *args):
        super().__init__(*args)


class PassingBoth(PassingNew):
    def __init__(self, *args):
        super().__init__(*args)


@program()
def test_arguments_that_object_does_not_take(x: Tensor):
    class Made:
        pass

    class Abstract(abc.ABC):
        @abc.abstractmethod
        def method(self): ...

    said = []
    for cls in (object, Bare, OwnNew, PassingNew, PassingInit, PassingBoth, Made, Abstract):
        for args, kwargs in (((), {}), ((1,), {}), ((), {"a": 1})):
            try:
                cls(*args, **kwargs).__init__(*args, **kwargs)
                said.append("made")
            except TypeError as error:
                said.append(str(error))
    return x + 1, said


@program()
def test_protocols_that_are_checked_at_run_time(x: Tensor):
    @typing.runtime_checkable
    class Callback(typing.Protocol):
        def method(self): ...

    class Given:
        def method(self):
            return 2

    known = isinstance(Given(), Callback), isinstance(3, Callback), issubclass(Given, Callback)
    return x * Given().method(), known


@typing.runtime_checkable
class Valued(typing.Protocol):
    value: int


class WithValue:
    def __init__(self, has: bool):
        if has:
            self.value = 2


@program(breaks=True)
def test_protocols_of_attributes(x: Tensor):
    found = []
    for value in (WithValue(True), WithValue(False), x, [1], 3):
        found.append(isinstance(value, Valued))
    try:
        issubclass(WithValue, Valued)
    except TypeError as error:
        found.append(str(error))
    return x + 1, found


def test_subclasses():
    """A walk through the classes below one is in the graph, and a class more is seen."""
    family = types.new_class("Family", (), {}, lambda space: space.update(n=1))
    kept = [type("First", (family,), {"n": 2})]

    def f(x):
        total, waiting = 0, [family]
        while waiting:
            total += (cls := waiting.pop()).n
            waiting += cls.__subclasses__()
        return x * total, [cls.__name__ for cls in family.__subclasses__()]

    backend = CountingBackend()
    compiled = graphlift.compile(f, backend=backend)
    for count in (1, 1, 2):
        if count == 2:
            kept.append(type("Second", (kept[0],), {"n": 5}))
        assert str(compiled(torch.ones(2))) == str(f(torch.ones(2)))
        assert len(backend.graphs) == count
