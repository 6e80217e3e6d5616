# ruff: noqa: B009, B019, B904, E741, UP042
"""Constructs of Python, one program each: what is one graph and what breaks, always with eager's results."""

import abc
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import math
import random
import re
import string
import sys
import types
import typing
import weakref
from typing import Generic, Protocol, TypeVar

import torch

from tests.capture.program import program


class P:
    def __init__(s, a=1):
        s.a = a

    def __eq__(s, o):
        return isinstance(o, P) and s.a == o.a

    def __hash__(s):
        return hash(s.a)

    def __repr__(s):
        return f"P({s.a})"


@program(breaks=True)
def test_exc_star(x):
    y = x + 1
    log = []
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError as e:
        log.append(("v", len(e.exceptions)))
    except* TypeError as e:
        log.append(("t", str(e)))
    return y * 2, log


@program(breaks=True)
def test_exc_star_single(x):
    y = x + 1
    log = []
    try:
        raise ValueError(3)
    except* ValueError as e:
        log.append(type(e).__name__)
    return y * 2, log


@program()
def test_exc_star_none(x):
    try:
        y = x + 1
    except* ValueError:
        y = x
    return y * 2


@program(breaks=True)
def test_class_inside(x):
    y = x + 1

    class A:
        k = 3

        def m(self, v):
            return v * self.k

    return A().m(y)


@program(breaks=True)
def test_class_inside_super(x):
    class A:
        def __init__(self):
            self.v = 1

    class B(A):
        def __init__(self):
            super().__init__()
            self.w = 2

    b = B()
    return x * b.v + b.w, B.__name__


@program(breaks=True)
def test_type_inside(x):
    A = type("A", (), {"k": 2, "m": lambda s, v: v * s.k})
    return A().m(x + 1)


@program(breaks=True)
def test_namedtuple_inside(x):
    T = collections.namedtuple("T", "a b")
    t = T(x, 2)
    return t.a * t.b


@program(breaks=True)
def test_dataclass_inside(x):
    @dataclasses.dataclass
    class D:
        a: int = 1

    return x * D(3).a


@program()
def test_enum_inside(x):
    E = enum.Enum("E", "A B")
    return x * E.A.value


@program()
def test_deque_ops(x):
    d = collections.deque(maxlen=3)
    for i in range(5):
        d.append(x + i)
    d.rotate(1)
    d.appendleft(x)
    return torch.stack(list(d)), len(d), d.maxlen, list(d)


@program(lambda: collections.deque([1, 2, 3]), breaks=True)
def test_deque_arg(x, d):
    y = x + 1
    d.append(5)
    return y * 2, d[0], list(d)


@functools.singledispatch
def sd(v):
    return "base"


@sd.register
def _(v: int):
    return "int"


@sd.register(list)
def _(v):
    return "list"


class SDM:
    @functools.singledispatchmethod
    def m(self, v):
        return "b"

    @m.register
    def _(self, v: int):
        return "i"


@program(breaks=sys.version_info >= (3, 13))  # where it keeps methods behind weak references with callbacks
def test_singledispatchmethod(x):
    return x + 1, SDM().m(1), SDM().m("a")


@program(lambda: random.Random(4), breaks=True)
def test_random_own(x, r):
    return x * r.random(), r.getrandbits(3), r.gauss(0, 1)


@program(lambda: collections.ChainMap({"a": 1}, {"b": 2}))
def test_chainmap(x, c):
    c["z"] = 3
    return x + 1, c["b"], dict(c), len(c), "q" in c, c.maps[0]


@program(lambda: collections.UserDict(a=1))
def test_userdict(x, d):
    d["b"] = x
    d.update(c=2)
    return x + 1, len(d), list(d), d.get("q"), "a" in d


@program(lambda: collections.UserList([1]))
def test_userlist(x, d):
    d.append(x + 1)
    return d[1] * 2, len(d), d[0]


@program(lambda: collections.Counter("ab"))
def test_counter(x, c):
    c.update("bc")
    c["z"] += 1
    c.subtract("a")
    return x + 1, c.most_common(), c


@program(lambda: P(3), breaks=True)
def test_weak(x, p):
    r = weakref.ref(p)
    return x + r().a, r() is p


@program(lambda: P(3), breaks=True)
def test_weakdict(x, p):
    d = weakref.WeakKeyDictionary()
    d[p] = x
    return d[p] + 1, len(d)


class LL(list):
    def __init__(s, *a):
        super().__init__(*a)
        s.n = 1

    def total(s):
        return sum(s)

    def __getitem__(s, i):
        return super().__getitem__(i)


class DD(dict):
    def __missing__(s, k):
        return k * 2

    def __getattr__(s, k):
        try:
            return s[k]
        except KeyError:
            raise AttributeError(k)


class TT(tuple):
    def __new__(cls, *a):
        return super().__new__(cls, a)

    def first(s):
        return s[0]


class SS(set):
    def addall(s, *a):
        for i in a:
            s.add(i)
        return s


class II(int):
    def half(s):
        return s // 2

    def __add__(s, o):
        return ("added", int(s), o)


class ST(str):
    def shout(s):
        return s.upper() + "!"


class FF(float):
    pass


@program(lambda: LL([1, 2]))
def test_sub_list(x, l):
    m = LL([x, x])
    l.append(4)
    m.extend(l)
    return (
        m.total(),
        l[0],
        len(m),
        m.n,
        l.n,
        l == [1, 2, 4],
        l[1:],
        sorted(l),
        list(reversed(l)),
        2 in l,
        l + [1],
        l * 2,
        l.index(2),
    )


@program(lambda: DD(a=1))
def test_sub_dict(x, d):
    e = DD(b=x)
    d["z"] = 5
    return (
        e["b"] + 1,
        d["q"],
        d.a,
        dict(d),
        len(d),
        list(d.items()),
        "a" in d,
        d.get("n"),
        {**d},
        d == {"a": 1, "z": 5},
        d | {"k": 1},
    )


@program(lambda: TT(1, 2))
def test_sub_tuple(x, t):
    u = TT(x, 3)
    return u.first() + 1, t.first(), len(u), t + (1,), t == (1, 2), t[0:1], hash(t) == hash((1, 2)), [*t], t


@program(lambda: SS([1]))
def test_sub_set(x, s):
    t = SS().addall(1, 2)
    s.add(9)
    return x + 1, len(t), t | {5}, s, 9 in s, t & s


@program(lambda: II(7), breaks=True)
def test_sub_int(x, i):
    return x * i.half(), i + 1, i * 2, i == 7, II(9).half(), int(i), i, range(i)[2], [0] * II(2), -i, i < 9


@program(lambda: ST("ab"))
def test_sub_str(x, s):
    return (
        x + 1,
        s.shout(),
        s + "c",
        len(s),
        ST("q").shout(),
        s,
        s == "ab",
        {s: 1}["ab"],
        f"{s}",
        s.upper(),
        s[0],
        "a" in s,
    )


@program(lambda: FF(1.5))
def test_sub_float(x, f):
    return x * f, f + 1, FF(2)


class CP:
    n = 0

    @functools.cached_property
    def v(self):
        self.n += 1
        return self.n * 10


@program(CP)
def test_cached_prop(x, c):
    return x + c.v, c.v, c.n, vars(c)


@functools.lru_cache(maxsize=None)
def lru(a, b=2):
    return a * b


@program()
def test_lru_cache(x):
    return x * lru(3), lru(3, b=4), lru(2)


class LM:
    @functools.lru_cache(None)
    def m(self, a):
        return a + 1


LMI = LM()


@program()
def test_lru_method(x):
    return x * LMI.m(3)


@functools.lru_cache
def lru_t(t):
    return t + 1


@program()
def test_sig(x):
    def g(a, b=1, *c, d=2, **e): ...

    s = inspect.signature(g)
    return x + 1, list(s.parameters), str(s), s.parameters["b"].default, s.parameters["d"].kind.name


def outer_sig(a: int, b: str = "q") -> float: ...


@program()
def test_sig2(x):
    s = inspect.signature(outer_sig)
    b = s.bind(1)
    b.apply_defaults()
    return (
        x + 1,
        b.arguments,
        s.return_annotation,
        outer_sig.__annotations__,
        outer_sig.__defaults__,
        outer_sig.__name__,
    )


@program()
def test_sig_class(x):
    return (
        x + 1,
        list(inspect.signature(P).parameters),
        inspect.getfullargspec(outer_sig).args,
        inspect.isfunction(outer_sig),
        inspect.isclass(P),
    )


@program(lambda: {"a": [1, {2: 3}], "t": (1, [2])})
def test_deepcopy(x, d):
    e = copy.deepcopy(d)
    e["a"].append(x)
    f = copy.copy(d)
    f["n"] = 1
    return x + 1, e, f, d


@program(lambda: P([1]))
def test_deepcopy_obj(x, p):
    q = copy.deepcopy(p)
    q.a.append(2)
    r = copy.copy(p)
    return x + 1, q.a, p.a, r.a is p.a


class Copied(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.linear, s.norm = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)
        s.tags, s.named = {"b", "a", 3}, collections.OrderedDict(z=1, y=[2])
        s.same, s.inner = s.tags, s.named["y"]

    def forward(s, x):
        return s.norm(s.linear(x)).relu()

    def __eq__(s, o):
        return s is o or all(map(torch.equal, s.state_dict().values(), o.state_dict().values()))

    __hash__ = torch.nn.Module.__hash__


def copied():
    torch.manual_seed(0)
    return Copied()


@program(copied)
def test_deepcopy_of_a_module(x, m):
    first, second = copy.deepcopy(m), copy.deepcopy(m)
    second.tags.add("new")
    second.named["w"] = second.inner
    second.inner.append(x)
    y = first(second(torch.ones(4, 3) * x))
    state = [*m.state_dict().values(), *first.state_dict().values()]
    with torch.no_grad():
        state = [value.clone() for value in state]
    return y, state, m.tags, list(m.named), list(first.tags) == list(m.tags), second.tags


@program(copied)
def test_deepcopy_keeps_aliases(x, m):
    c = copy.deepcopy(m)
    return x + 1, c.same is c.tags, c.inner is c.named["y"], c.tags is m.tags, c.inner is m.inner


@program()
def test_copies_of_ordered_dicts_and_sets(x):
    made = collections.OrderedDict(a=x, b=[x + 1])
    deep, shallow = copy.deepcopy(made), copy.copy(made)
    made["c"] = 1
    same = deep["b"] is made["b"], shallow["b"] is made["b"]
    return deep, shallow, made, same, copy.deepcopy({1, "k"}), copy.deepcopy(frozenset((1, 2)))


class WithDC:
    def __init__(s):
        s.v = 1

    def __deepcopy__(s, m):
        r = WithDC()
        r.v = s.v + 1
        return r

    def __copy__(s):
        return "c"


@program(WithDC)
def test_deepcopy_own(x, w):
    return x + copy.deepcopy(w).v, copy.copy(w)


@program()
def test_regex(x):
    m = re.match(r"(\w+)-(\d+)", "ab-12")
    return (
        x + int(m.group(2)),
        m.groups(),
        re.sub(r"\d", "#", "a1b2"),
        re.split("-", "a-b"),
        [t.start() for t in re.finditer("a", "aba")],
    )


PAT = re.compile("a+")


@program()
def test_regex_global(x):
    return x + len(PAT.findall("aa b a")), PAT.pattern, bool(PAT.search("b"))


@program()
def test_gen_send(x):
    def g():
        r = yield 1
        while True:
            r = yield r * 2

    i = g()
    next(i)
    a = i.send(x)
    b = i.send(3)
    i.close()
    return a, b


@program()
def test_gen_throw(x):
    log = []

    def g():
        try:
            yield 1
        except ValueError as e:
            log.append(str(e))
            yield x
        finally:
            log.append("fin")

    i = g()
    next(i)
    r = i.throw(ValueError("q"))
    i.close()
    return r + 1, log


@program()
def test_gen_return(x):
    def g():
        yield 1
        return x

    def h():
        r = yield from g()
        yield r

    return sum(list(h())[1:]), list(g())


@program(breaks=True)
def test_gen_early(x):
    log = []

    def g():
        try:
            for i in range(5):
                yield x + i
        finally:
            log.append("closed")

    for v in g():
        if v is not None:
            break
    return v * 2


@program()
def test_gen_exhaust(x):
    def g():
        yield 1

    i = g()
    next(i)
    try:
        next(i)
    except StopIteration as e:
        r = e.value
    return x + 1, r, next(i, "d")


def countdown(n):
    while n:
        yield n
        n -= 1


@program()
def test_gen_module(x):
    return x + sum(countdown(3)), max(countdown(4)), [*zip(countdown(2), "ab")]


@program()
def test_nonlocal(x):
    n = 0

    def inc():
        nonlocal n
        n += 1
        return n

    def get():
        return n

    inc()
    inc()
    return x + n, get()


def make_counter():
    n = 0

    def inc(k=1):
        nonlocal n
        n += k
        return n

    def get():
        return n

    return inc, get


class SL:
    __slots__ = ("a", "b")

    def __init__(s, a):
        s.a = a


class SLD(SL):
    __slots__ = ("c", "__weakref__")


@program()
def test_slots(x):
    s = SL(3)
    t = SLD(x)
    t.c = 2
    s.b = s.a + 1
    try:
        t.zz = 1
    except AttributeError as e:
        m = str(e)
    try:
        t.b
    except AttributeError as e:
        m2 = str(e)
    del s.a
    return t.a + t.c, s.b, hasattr(s, "a"), m, m2


class SlotMod(torch.nn.Module):
    __slots__ = ("extra",)

    def __init__(s):
        super().__init__()
        s.l = torch.nn.Linear(3, 3)
        s.extra = 2

    def forward(s, x):
        return s.l(x) * s.extra


SLM = SlotMod().eval()


class M(type):
    def __new__(m, name, bases, ns, **k):
        c = super().__new__(m, name, bases, ns)
        c.tag = name
        return c

    def __call__(c, *a, **k):
        o = super().__call__(*a, **k)
        o.made = 1
        return o

    def __len__(c):
        return 5

    def __iter__(c):
        return iter([1, 2])

    def __contains__(c, v):
        return v == 3

    def __getattr__(c, n):
        return n * 2

    def __eq__(c, o):
        return c is o

    __hash__ = type.__hash__


class MC(metaclass=M):
    def __init__(s, v):
        s.v = v


@program()
def test_metaclass(x):
    o = MC(4)
    return x * o.v + o.made, MC.tag, MC.zz, type(o) is MC, isinstance(o, MC), type(MC).__name__


@program()
def test_metaclass_protocols(x):
    return x + len(MC), list(MC), 3 in MC, MC == MC, bool(MC)


class Sing:
    _i = None

    def __new__(cls, *a):
        if cls._i is None:
            cls._i = super().__new__(cls)
        return cls._i

    def __init__(s, v):
        s.v = v


@program()
def test_singleton(x):
    a = Sing(1)
    b = Sing(2)
    return x + a.v, a is b


class NewOther:
    def __new__(cls, v):
        return [v]


@program()
def test_new_other(x):
    return NewOther(x)[0] + 1


class Ops:
    def __init__(s, v):
        s.v = v

    for _n in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split():
        exec(
            f"def __{_n}__(s,o): return ('{_n}',s.v,o if not isinstance(o,Ops) else o.v)\ndef __r{_n}__(s,o): return ('r{_n}',s.v,o)\ndef __i{_n}__(s,o):\n  s.v=(s.v,'{_n}')\n  return s"
        )

    def __neg__(s):
        return "neg"

    def __pos__(s):
        return "pos"

    def __invert__(s):
        return "inv"

    def __abs__(s):
        return "abs"

    def __lt__(s, o):
        return ("lt", o if not isinstance(o, Ops) else o.v)

    def __ge__(s, o):
        return NotImplemented

    def __int__(s):
        return 5

    def __index__(s):
        return 6

    def __float__(s):
        return 2.5

    def __complex__(s):
        return 1j

    def __bool__(s):
        return False

    def __enter__(s):
        return s.v

    def __exit__(s, *a):
        return True

    def __matmul__(s, o):
        return ("mm", o)

    def __divmod__(s, o):
        return "dm"

    def __rdivmod__(s, o):
        return "rdm"

    def __round__(s, n=None):
        return ("rnd", n)

    def __trunc__(s):
        return 9

    def __delitem__(s, k):
        s.v = ("del", k)

    def __setitem__(s, k, v):
        s.v = (k, v)

    def __getitem__(s, k):
        return ("get", k)

    def __call__(s, *a, **k):
        return (a, k)

    def __length_hint__(s):
        return 3


@program()
def test_ops(x):
    o = Ops(1)
    p = Ops(2)
    r = [
        o + 1,
        1 + o,
        o - p,
        3 - o,
        o * 2,
        2 * o,
        o / 2,
        2 / o,
        o // 2,
        2 // o,
        o % 2,
        5 % o,
        o**2,
        2**o,
        o @ 1,
        1 @ o,
        o & 1,
        1 & o,
        o | 1,
        1 | o,
        o ^ 1,
        1 ^ o,
        o << 1,
        1 << o,
        o >> 1,
        1 >> o,
        -o,
        +o,
        ~o,
        abs(o),
        o < 1,
        1 > o,
        int(o),
        float(o),
        complex(o),
        bool(o),
        not o,
        [0, 1, 2, 3, 4, 5, 6][o],
        divmod(o, 1),
        divmod(1, o),
        round(o),
        round(o, 1),
        math.trunc(o),
        o[1:2],
        o[1, 2],
        o(1, k=2),
    ]
    o += 1
    o -= 1
    o *= 2
    with p as v:
        raise ValueError
    p[1] = 2
    q = p.v
    del p[3]
    try:
        o >= 1
    except TypeError as e:
        m = str(e)
    return x + 1, r, o.v, v, q, p.v, m


class RT:
    def __radd__(s, o):
        return "radd"

    def __rmul__(s, o):
        return o * 2


@program()
def test_refl_tensor(x):
    return x * RT(), x + RT()


@dataclasses.dataclass(frozen=True)
class Fr:
    a: int
    b: list = dataclasses.field(default_factory=list)

    def __post_init__(s):
        object.__setattr__(s, "c", s.a + 1)


@dataclasses.dataclass(slots=True, order=True)
class Sl:
    a: int
    b: float = dataclasses.field(default=1.0, compare=False)


@dataclasses.dataclass(kw_only=True, eq=True, unsafe_hash=True)
class Kw:
    a: int
    b: int = 2


@dataclasses.dataclass
class Base_:
    a: int = 1
    iv: dataclasses.InitVar[int] = 3
    cv: typing.ClassVar[int] = 7

    def __post_init__(s, iv):
        s.z = iv


@dataclasses.dataclass
class Child(Base_):
    t: object = None


@program(lambda: Fr(1), lambda: Sl(2), breaks=True)
def test_dataclass(x, f, s):
    g = dataclasses.replace(f, a=5)
    s.b = 3.0
    k = Kw(a=1)
    c = Child(2, t=x)
    try:
        f.a = 9
    except dataclasses.FrozenInstanceError as e:
        m = str(e)
    try:
        Kw(1)
    except TypeError as e:
        m2 = str(e)
    return (
        c.t + c.a,
        g,
        g.c,
        s < Sl(3),
        s == Sl(2),
        repr(s),
        hash(k) == hash(Kw(a=1)),
        c.z,
        c.cv,
        m,
        m2,
        dataclasses.is_dataclass(f),
        [q.name for q in dataclasses.fields(c)],
    )


@program(lambda: Child(2))
def test_dataclass_asdict(x, c):
    c.t = x
    return x + 1, dataclasses.asdict(Kw(a=1)), dataclasses.astuple(Kw(a=3))


class Fl(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    C = A | B


class IFl(enum.IntFlag):
    R = 4
    W = 2


class Co(enum.Enum):
    R = 1
    G = 2

    def nxt(s):
        return Co.G if s is Co.R else Co.R

    @classmethod
    def make(cls, v):
        return cls(v)

    @property
    def low(s):
        return s.name.lower()


class SE(str, enum.Enum):
    A = "a"
    B = "b"


@program(lambda: Fl.A, lambda: Co.R)
def test_flags(x, f, c):
    return (
        x + 1,
        f | Fl.B,
        Fl.A in Fl.C,
        (f & Fl.B),
        ~f,
        f.value,
        IFl.R | 1,
        IFl.R | IFl.W,
        bool(f & Fl.B),
        c.nxt(),
        Co.make(2),
        c.low,
        Co["R"],
        len(Co),
        [m.name for m in Co],
        c == Co.R,
        SE.A == "a",
        SE("b"),
        SE.A.upper(),
        {Co.R: 1}[c],
        Co(1) is c,
        list(Fl.C),
        repr(c),
        str(c),
        hash(c) == hash(Co.R),
    )


@program()
def test_enum_bad(x):
    try:
        Co(9)
    except ValueError as e:
        m = str(e)
    try:
        Co["Z"]
    except KeyError as e:
        m2 = str(e)
    return x + 1, m, m2


class Ab(abc.ABC):
    @abc.abstractmethod
    def f(s): ...
    @property
    @abc.abstractmethod
    def g(s): ...


class Im(Ab):
    def f(s):
        return 1

    @property
    def g(s):
        return 2


@program()
def test_abc(x):
    try:
        Ab()
    except TypeError as e:
        m = str(e)
    return (
        x + Im().f(),
        Im().g,
        m,
        isinstance(Im(), Ab),
        issubclass(Im, Ab),
        isinstance([], collections.abc.Sized),
        isinstance(3, collections.abc.Hashable),
    )


TV = TypeVar("TV")


class Ge(Generic[TV]):
    def __init__(s, v: TV):
        s.v = v


class Pr(Protocol):
    def f(s): ...


@typing.runtime_checkable
class RPr(Protocol):
    def f(s): ...


class TD(typing.TypedDict):
    a: int


class CM:
    def __init__(s, log, sw=False):
        s.log = log
        s.sw = sw

    def __enter__(s):
        s.log.append("in")
        return s

    def __exit__(s, t, v, tb):
        s.log.append(("out", t and t.__name__, str(v)))
        return s.sw


@contextlib.contextmanager
def cmg(log):
    log.append("a")
    try:
        yield 5
    except KeyError as e:
        log.append(("ke", str(e)))
    finally:
        log.append("z")


@program(breaks=True)
def test_cms(x):
    log = []
    with CM(log), cmg(log) as v:
        y = x + v
    with CM(log, True):
        raise ValueError("q")
    with cmg(log):
        raise KeyError("k")
    with contextlib.suppress(ZeroDivisionError):
        1 / 0
    with contextlib.ExitStack() as st:
        st.enter_context(CM(log))
        st.callback(log.append, "cb")
    with contextlib.nullcontext(3) as n:
        pass
    with contextlib.closing(types.SimpleNamespace(close=lambda: log.append("cl"))):
        pass
    return y, log, n


@program()
def test_exc_chain(x):
    try:
        try:
            1 / 0
        except ZeroDivisionError as e:
            raise ValueError("v") from e
    except ValueError as e:
        r = (type(e.__cause__).__name__, type(e.__context__).__name__, e.__suppress_context__)
    try:
        try:
            {}["q"]
        except KeyError:
            raise RuntimeError("z")
    except RuntimeError as e:
        r2 = (e.__cause__, type(e.__context__).__name__)
    return x + 1, r, r2


@program()
def test_exc_finally(x):
    log = []

    def g():
        try:
            return 1
        finally:
            log.append("f")

    def h():
        for i in range(3):
            try:
                if i == 1:
                    continue
                log.append(i)
            finally:
                log.append("c")
        else:
            log.append("else")

    g()
    h()
    return x + 1, log


class MyE(Exception):
    def __init__(s, a, b=2):
        super().__init__(a)
        s.b = b

    def __str__(s):
        return f"MyE {s.args} {s.b}"


@program(breaks=True)
def test_exc_custom(x):
    try:
        raise MyE(1, b=3)
    except MyE as e:
        r = (str(e), e.args, e.b, repr(e))
    try:
        raise OSError(2, "no", "f")
    except OSError as e:
        r2 = (e.errno, e.strerror, e.filename, str(e))
    try:
        raise StopIteration(5)
    except StopIteration as e:
        r3 = e.value
    try:
        int("z")
    except ValueError as e:
        r4 = (str(e), e.args)
    e = ValueError("n")
    e.add_note("note")
    try:
        raise e
    except ValueError as f:
        r5 = (f is e, f.__notes__)
    return x + 1, r, r2, r3, r4, r5


@program(breaks=True)
def test_exc_leaves(x):
    y = x + 1
    raise MyE(3)


@program(breaks=True)
def test_sysexc(x):
    import sys

    try:
        1 / 0
    except ZeroDivisionError:
        t = sys.exc_info()[0].__name__
        s = type(sys.exception()).__name__
    return x + 1, t, s, sys.exc_info()


class Pr2:
    def __init__(s):
        s._v = 1

    @property
    def v(s):
        return s._v

    @v.setter
    def v(s, n):
        s._v = n * 2

    @v.deleter
    def v(s):
        s._v = -1

    @staticmethod
    def st(a):
        return a + 1

    @classmethod
    def cl(cls, a):
        return (cls.__name__, a)

    def __getattr__(s, n):
        return "ga:" + n

    def __dir__(s):
        return ["q"]

    def __format__(s, f):
        return "F" + f

    def __contains__(s, i):
        return i == 1

    def __iter__(s):
        yield from (1, 2)

    def __reversed__(s):
        return [2, 1]

    def __bytes__(s):
        return b"b"

    def __class_getitem__(cls, i):
        return (cls.__name__, i)

    def __init_subclass__(cls, **k):
        cls.k = k

    def __set_name__(s, o, n):
        pass

    def __instancecheck__(s, o):
        return True


class Pr3(Pr2, q=1):
    pass


@program(Pr2, breaks=True)
def test_props(x, p):
    p.v = 5
    a = p.v
    del p.v
    return (
        x + a,
        p.v,
        p.st(1),
        Pr2.st(2),
        p.cl(3),
        Pr2.cl(4),
        p.zz,
        f"{p:>3}",
        1 in p,
        [*p],
        list(reversed(p)),
        bytes(p),
        Pr2[int],
        Pr3.k,
        p.__class__ is Pr2,
        p.__dict__,
        type(p).__mro__[-1],
        Pr2.v.fget(p),
        p.__module__,
        Pr2.__name__,
        hasattr(p, "nn"),
    )


@program()
def test_partials(x):
    f = functools.partial(torch.add, x)
    g = functools.partial(lambda a, *b, **k: (a, b, k), 1, z=2)
    return f(1), g(3, q=4), g.args, g.keywords, functools.partial(f)(2)


class PM:
    def m(s, a, b):
        return (a, b)

    pm = functools.partialmethod(m, 1)


@program(PM)
def test_partialmethod(x, p):
    return x + 1, p.pm(2)


def deco(f):
    @functools.wraps(f)
    def w(*a, **k):
        return f(*a, **k) + 1

    w.tag = "t"
    return w


@deco
def decorated(a):
    "doc"
    return a * 2


@program()
def test_wraps(x):
    @deco
    def g(a):
        return a

    return (
        decorated(x),
        decorated.__name__,
        decorated.tag,
        decorated.__wrapped__(x),
        g(x),
        g.__name__,
        decorated.__doc__,
    )


@functools.total_ordering
class TO:
    def __init__(s, v):
        s.v = v

    def __eq__(s, o):
        return s.v == o.v

    def __lt__(s, o):
        return s.v < o.v


@program()
def test_total(x):
    return (
        x + 1,
        TO(1) <= TO(2),
        TO(3) > TO(2),
        TO(1) >= TO(1),
        max(TO(1), TO(4)).v,
        sorted([TO(3), TO(1)])[0].v,
    )


@program()
def test_recursion(x):
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    return x + fib(10)


@program()
def test_lambdas(x):
    fs = [lambda v, i=i: v + i for i in range(3)]
    return fs[2](x), [f(1) for f in fs]


@program()
def test_argforms(x):
    def f(a, /, b, *c, d, e=5, **k):
        return (a, b, c, d, e, k)

    r = [f(1, 2, 3, d=4), f(1, b=2, d=3, z=9), f(*[1, 2], **{"d": 3})]
    for bad in (lambda: f(1), lambda: f(a=1, b=2, d=3), lambda: f(1, 2), lambda: f(1, 2, d=1, **{"d": 2})):
        try:
            bad()
        except TypeError as e:
            r.append(str(e).split(".")[-1])
    return x + 1, r


G = [1]

GD = {"a": 1}


@program(lambda: [[1], [2]])
def test_alias(x, l):
    a = l[0]
    a.append(5)
    l.append(a)
    b = l
    b[1].extend(a)
    l[1:2] = [[9]]
    del l[0]
    return x + 1, l, a, l[-1] is a


@program(lambda: {"a": 1, "b": 2})
def test_dictops(x, d):
    d.pop("a")
    d.setdefault("q", []).append(x)
    d.update([("z", 1)])
    k = list(d)
    d["a"] = 0
    d |= {"w": 1}
    try:
        for q in d:
            d["n" + q] = 1
    except RuntimeError as e:
        m = str(e)
    return x + 1, k, d.popitem(), m, dict(sorted(d.items(), key=lambda kv: kv[0])[:1])


@program()
def test_walrus(x):
    return [y := 5, y**2], (n := x + 1) * n


@program(lambda: 3, lambda: "s", lambda: None)
def test_mixed(x, a, b, c):
    return (x if c is None else c) + a, b * a, a if b else c, not c, a == 3 and b, c or a


@program()
def test_strfmt(x):
    return (
        x + 1,
        "%5.2f|%-5s|%05d|%x" % (3.14159, "a", 42, 255),
        "{:>8}{:^5}{:<3}|{!r}".format("a", 1, 2, "q"),
        f"{3.14159:.2f}{'a':>4}{10:#x}{1_000_000:,}",
        "a,b".split(","),
        " a ".strip(),
        "-".join(["a", "b"]),
        "aXb".partition("X"),
        "abc".translate(str.maketrans("a", "z")),
        "a\tb".expandtabs(4),
        "Ab".swapcase(),
        "a".zfill(3),
        string.ascii_lowercase[:3],
        f"{x.shape}",
        f"{len(x)=}",
    )


@program()
def test_comprehension_scopes(x):
    n = 2
    r = [i * n for i in range(3)]
    s = {i: j for i in range(2) for j in range(2) if i != j}
    return x + 1, r, s, [[x + i for i in range(2)][j] for j in range(2)]


@program()
def test_star_unpack(x):
    a, *b, c = [1, 2, 3, 4]
    (d, e), f = (1, 2), 3
    (*g,) = range(2)
    return x + a, b, c, d, e, f, g


@program()
def test_del_things(x):
    a = 1
    l = [1, 2, 3]
    d = {"a": 1}
    p = P()
    del a, l[0], d["a"], p.a
    try:
        a  # noqa: F821
    except UnboundLocalError as e:
        m = str(e)
    return x + 1, l, d, hasattr(p, "a"), m


@program()
def test_match(x):
    r = []
    for v in (1, "a", [1, 2], {"k": 1}, P(3), None, (1, 2, 3), Co.R, 3.5):
        match v:
            case 1 | 2:
                r.append("12")
            case str():
                r.append("s")
            case [a, b]:
                r.append((a, b))
            case {"k": k, **rest}:
                r.append((k, rest))
            case P(a=q):
                r.append(q)
            case None:
                r.append("N")
            case Co.R:
                r.append("R")
            case (a, *_) if a == 1:
                r.append(a)
            case float(z):
                r.append(z)
    return x + 1, r


@program(breaks=True)
def test_itertools_lazy(x):
    c = itertools.count()
    z = zip(c, [x, x])
    g = itertools.groupby([1, 1, 2])
    return (
        [i * v for i, v in z],
        [(k, len(list(q))) for k, q in g],
        list(itertools.takewhile(lambda v: v < 3, itertools.count())),
    )


@program()
def test_ordered(x):
    o = collections.OrderedDict(a=1)
    o["b"] = x
    o.move_to_end("a")
    return x + 1, list(o), o.popitem(last=False)[0]


@program(lambda: collections.defaultdict(list))
def test_dd(x, d):
    d["a"].append(x)
    e = collections.defaultdict(lambda: 5)
    e["z"] += 1
    return x + 1, d, e["q"], dict(e), len(d)


@program(lambda: types.SimpleNamespace(a=1), breaks=True)
def test_ns(x, n):
    m = types.SimpleNamespace(q=x)
    n.b = 2
    m.r = 3
    return m.q + n.a, n, vars(n), n == types.SimpleNamespace(a=1, b=2)


@program()
def test_ids(x):
    p = P()
    return x + 1, id(p) == id(p), p is p, {id(p): 1}[id(p)]


@program()
def test_getset(x):
    p = P()
    setattr(p, "n", x)
    return getattr(p, "n") + 1, getattr(p, "zz", 3), hasattr(p, "a"), vars(p)["a"], p.__dict__.get("q")


class Desc:
    def __set_name__(s, o, n):
        s.n = "_" + n

    def __get__(s, o, t):
        return s if o is None else getattr(o, s.n, 0)

    def __set__(s, o, v):
        setattr(o, s.n, v + 1)

    def __delete__(s, o):
        delattr(o, s.n)


class UD:
    d = Desc()


@program(UD)
def test_desc(x, u):
    u.d = 4
    a = u.d
    del u.d
    return x + a, u.d, type(UD.d).__name__, vars(u)


@program()
def test_callable_obj(x):
    class_ = P
    o = class_(2)
    f = o.__repr__
    g = P.__eq__
    return x + 1, f(), g(o, P(2)), (lambda: o)().a


@program()
def test_in_stops_at_the_first_match(x):
    log = []

    def counted():
        for i in range(4):
            log.append(i)
            yield i

    class Compared:
        def __eq__(self, other):
            log.append("compared")
            return False

    rest, generator, pairs = iter([1, 2, 3]), counted(), enumerate("abc")
    found = 2 in rest, 1 in generator, 5 in itertools.count(), (1, "b") in pairs, 7 in reversed([1, 2])
    first = Compared() in [Compared(), 3]
    return x + 1, found, list(rest), list(generator), list(pairs), log, first
