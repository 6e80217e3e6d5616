"""More of the grammar of `grammar`: the corners of the language and its library, in the same notation.

In: nothing. Out: what programs start with as well, expressions by type, statements, heads of blocks.
Always: nothing that differs between two runs in one process (addresses, clocks, counters of the process); an exception
that is kept has lost its traceback, whose frames end elsewhere when compiled (docs/architecture.md).
"""

from __future__ import annotations

PRELUDE = '''
import heapq, weakref


class Typed:
    """A descriptor that counts its uses."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        instance.reads += 1
        return getattr(instance, self.name, 0)

    def __set__(self, instance, value):
        if not isinstance(value, int):
            raise TypeError(f"{self.name}: {type(value).__name__}")
        setattr(instance, self.name, value % 50)

    def __delete__(self, instance):
        setattr(instance, self.name, -1)


class Left:
    def who(self):
        return "L"

    def add(self, t):
        return t + 1


class Right(Left):
    def who(self):
        return "R" + super().who()


class Mixed(Left):
    def who(self):
        return "M" + super().who()

    def add(self, t):
        return super().add(t) * 2


class Diamond(Mixed, Right):
    size = Typed()
    made = 0
    __match_args__ = ("size", "key")

    def __init_subclass__(cls, **more):
        super().__init_subclass__()
        cls.more = more

    def __init__(self, size=1, key="k"):
        self.reads = 0
        self.size = size
        self.key = key
        type(self).made += 1

    def who(self):
        return "D" + "".join([super(Diamond, self).who() for _ in range(2)])

    def __index__(self):
        return self.size % 3

    def __hash__(self):
        return self.size

    def __eq__(self, other):
        if isinstance(other, int):
            return self.size == other
        return NotImplemented

    def __lt__(self, other):
        if other == 2:
            raise ValueError("lt")
        return self.size < other

    def __rsub__(self, other):
        if isinstance(other, str):
            raise TypeError("rsub")
        return other + self.size

    def __rmul__(self, other):
        return NotImplemented

    def __imul__(self, other):
        self.size = self.size * other
        return self

    def __matmul__(self, other):
        return (self.size, other)

    def __format__(self, spec):
        return f"<{spec}{self.key}>"

    def __bool__(self):
        if self.size == 7:
            raise Fault("bool", 7)
        return self.size != 3

    def __len__(self):
        return self.size

    def __class_getitem__(cls, item):
        return (cls.__name__, item)

    def __reversed__(self):
        return iter([2, 1])

    def __delattr__(self, name):
        KEPT.append("del " + name)
        super().__delattr__(name)


class Loud(Diamond, level=2):
    def __getattribute__(self, name):
        if name == "key":
            bump()
        return super().__getattribute__(name)

    def __enter__(self):
        return self.size

    def __exit__(self, kind, error, trace):
        if self.size == 4:
            raise KeyError("exit")
        KEPT.append(trace is not None and trace.tb_lineno > 0)
        return self.size > 5


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@dataclasses.dataclass
class Record:
    t: object
    n: int = 2
    tags: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.n += 1


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Point:
    x: int
    y: int = 0


class Mode(enum.Flag):
    A = 1
    B = 2


class Table(dict):
    def __missing__(self, key):
        self[key] = len(self)
        return self[key]


class Stack(list):
    def push(self, item):
        self.append(item)
        return self

    def __getitem__(self, index):
        found = super().__getitem__(index)
        return found


class Ends:
    """Tells when it ends."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        KEPT.append(("end", self.number))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(9)
        weight = torch.randn(3, 3, generator=generator, dtype=DTYPE)
        self.weight = torch.nn.Parameter(weight)
        self.register_buffer("seen", torch.zeros(3, dtype=DTYPE))
        self.parts = torch.nn.ModuleList([torch.nn.Tanh(), torch.nn.ReLU()])
        self.calls = 0
        self.last = None

    def forward(self, t, k=1):
        self.calls += 1
        if self.training:
            self.seen.add_(t.detach().sum(0))
        for part in self.parts:
            t = part(t) * k
        self.last = k
        return t @ self.weight


@contextlib.contextmanager
def swallows(kind):
    try:
        yield kind
    except kind as error:
        KEPT.append(str(error))


def careful(t, count):
    """A generator that handles what is thrown in, and tidies up."""
    i = 0
    try:
        while i < count:
            try:
                got = yield t * i
                i += 1 if got is None else got
            except ValueError as error:
                KEPT.append(str(error))
                yield t - 1
        return i
    finally:
        KEPT.append(("careful", i))


def delegate(t, count):
    with noted(KEPT, count):
        got = yield from careful(t, count)
        KEPT.append(got)


def walk(tree):
    for item in tree:
        if isinstance(item, list):
            yield from walk(item)
        else:
            yield item


def early(items):
    for i, item in enumerate(items):
        try:
            if i == 1:
                return item
            if item is None:
                continue
        finally:
            KEPT.append(i)
            if i == 2:
                break
    else:
        return "none"
    return "late"


def in_double(t):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return (t + torch.ones(3)).to(t.dtype)
    finally:
        torch.set_default_dtype(before)


@functools.lru_cache(maxsize=4)
def cached(n):
    return n * 2


class Key:
    def __init__(self, n):
        self.n = n

    def __repr__(self):
        return f"{type(self).__name__}({self.n})"

    def __hash__(self):
        return self.n % 3

    def __eq__(self, other):
        return isinstance(other, Key) and other.n == self.n


class Told(Key):
    __hash__ = Key.__hash__

    def __eq__(self, other):
        bump()
        return super().__eq__(other)


class Judge(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.judged = cls.__name__
        return made

    def __instancecheck__(cls, instance):
        bump()
        return type(instance) is int

    def __getattr__(cls, name):
        return name * 2

    def __len__(cls):
        return 2


class Judged(metaclass=Judge):
    def __init__(self, n):
        self.n = n


@functools.total_ordering
class Rank(Key):
    def __lt__(self, other):
        return self.n < other.n


def lines_of(trace):
    found = []
    while trace is not None:
        found.append(trace.tb_lineno)
        trace = trace.tb_next
    return found
'''

#: What the calls find: it needs the data type of the program.
OBJECTS = ("NET = Net()", "DIA = Diamond(2)")

EXPRESSIONS: dict[str, str] = {
    "T": """
?net NET($T)
?net NET($T, k=$int)
?net NET.parts[0]($T)
?net NET.seen + $T
?net NET.weight.sum() * $T
?dia DIA.add($T)
?dia (Loud($int).add($T))
Record($T).t
dataclasses.replace(Record($T), t=$T).t
operator.itemgetter(0)($tup)
operator.attrgetter("v")($obj)
operator.methodcaller("abs")($T)
?risky next(itertools.islice($gen, 1, 2))
?gen next(careful($T, $small), $T)
?risky ?gen list(careful($T, $small))[-1]
functools.partial(torch.add, $T)($T)
torch.stack(list(itertools.repeat($T, 2)))[0]
[t for t in ($T, $T) if (u := t.dim()) == 2 and u][0]
sum((t for t in [$T, $T]), start=$T)
{**$dict, "z": $T}["z"]
[*$list, $T][0]
(lambda *a, k=$int, **kw: a[0] * k)($T, $int, z=1)
max([$T, $T], key=lambda t: t.shape[0])
?risky $T[..., $int].unsqueeze(-1).expand(x.shape)
$T[None].squeeze(0)
$T.where($T > 0.5, $T)
torch.cat([$T, $T])[-x.shape[0]:]
torch.einsum("ij,ij->ij", $T, $T)
?made type("Made", (Mixed,), {"scale": lambda self, t: self.add(t) * $int})().scale($T)
?made functools.cache(lambda k: $T|k:int)($int)
?risky ?keys {Key($int): $T, Key($int): $T}[Key($int)]
globals()["OBJ"].v
""",
    "int": """
?dia DIA.size
?dia DIA.reads
?dia DIA.made
?dia len(DIA)
?dia [4, 5, 6][DIA]
?dia hash(DIA)
?dia operator.index(DIA)
?dia (DIA @ $int)[0]
?dia $int - DIA
?risky ?dia $int * DIA
?dia sum(reversed(DIA))
cached($int)
cached.cache_info().currsize
Record($T, $int).n
Point($int, $int).x
Point(1) < Point(1, $int)
(Mode.A | Mode($int % 4)).value
Table()[$int]
Table(a=3)["b"]
len(Stack([$int]).push($int))
collections.Counter($str)["a"]
collections.Counter($ints).most_common(1)[0][1] if $ints else $int
len(collections.deque($ints, maxlen=2))
collections.ChainMap({"a": 1}, {"b": $int})["b"]
collections.defaultdict(int, a=$int)["q"]
sum(1 for _ in itertools.product($ints, $ints))
sum(a for a, b in itertools.pairwise($ints))
sum(len(list(g)) for _, g in itertools.groupby($ints))
sum(itertools.takewhile(lambda i: i < 3, $ints))
sum(itertools.starmap(lambda a, b: a * b, [($int, 2), (3, 4)]))
sum(a or b for a, b in itertools.zip_longest($ints, $ints, fillvalue=1))
next(itertools.compress($ints, [0, 1]), $int)
max(*$ints, 1, 2)
min($ints, key=lambda i: -i, default=0)
?risky max($ints)
sum(i if i > 1 else -i for i in $ints)
[i for i in $ints if (w := i) > 1][-1] if max($ints, default=0) > 1 else $int
len(early($ints)) if isinstance(early($ints), str) else 0
len(list(walk([$ints, [[$int]], 5])))
$str.rfind("b")
len($str.encode())
int.from_bytes(b"a" + bytes([$int % 9]), "little") % 11
$int.bit_length()
(~$int) % 5
$int ** 2 % 13
?risky 5 >> $int
?risky int($str)
?set $set.pop() if $set else $int
?set sum(i * k for k, i in enumerate($set))
?set next(iter($set), $int)
sum({i: i * 2 for i in $ints}.values())
dict(zip($ints, range(9))).get($int, $int)
?risky dict(zip($ints, $ints))[$int]
(lambda: (yield))().__class__.__name__.__len__()
functools.reduce(operator.mul, $ints, 1) % 23
id($name.T) == id($name.T)
?keys {Key($int): $int, Told(1): $int}.get(Told($int), 0)
?keys len({Key($int), Key($int), Told($int)})
?risky ?keys [Told(1), Told($int)].index(Told($int))
?keys max(Rank($int), Rank($int)).n
?keys sorted([Rank($int), Rank($int), Rank(1)], reverse=$bool)[0].n
?meta Judged($int).n + len(Judged)
?meta len(Judged($int).judged + Judged.absent)
?made type("Made", (Left,), {"k": $int}).k
?made functools.lru_cache(2)(lambda i: $int|i:int)($int)
heapq.nsmallest(1, $ints + [$int])[0]
globals().get("COUNT", 5)
slice(1, $int).indices(5)[1]
len(range(0, 10, 1 + $int % 3))
copy.deepcopy([$int, [$int]])[1][0]
""",
    "float": """
math.fmod($float, 2)
$float % 1
$float // 1
?risky math.sqrt($float)
?risky $float ** -1
complex($float, 1).imag
min($float, 1.5)
sum([$float, 0.5])
math.copysign(1, $float)
math.hypot($float, 2.0)
float(f"{$float:.1f}")
(0.1 + 0.2j).real
""",
    "bool": """
?dia bool(DIA)
?dia DIA == $int
?dia $int != DIA
?risky ?dia DIA < $int
?dia DIA in [$int, $int]
?dia isinstance(DIA, (Left, int))
?dia issubclass(type(DIA), Right)
Point($int) == Point($int)
Point(1, 2) in {Point(1, 2): 1}
Mode.A in Mode($int % 4)
$tup is not None and $bool
?meta isinstance($int, Judged)
?meta isinstance($T, (str, Judged))
?meta isinstance(Judged(1), Judged)
?keys Key($int) in {Key($int): 1}
?keys Rank($int) <= Rank($int)
?risky ?weak weakref.ref($name.obj)() is $name.obj
$str in globals()
$str.startswith(("a", "b"))
$str.isalpha()
$str < $str
$set.isdisjoint($ints)
{$int} < {$int, 2}
$float < $int <= $float
any(i == 2 for i in $ints if i)
$bool ^ $bool
$bool & $flagbool
not ($bool or $bool)
$list and $bool
type($obj) is Base
Slotted.__slots__ == ("a", "b")
""",
    "flagbool": """
flag
True
""",
    "str": """
?dia DIA.who()
?dia f"{DIA:>3}"
?dia f"{DIA.key}{DIA.size}"
?dia Loud.more["level"].__str__()
?dia Diamond[$int].__repr__()
Right().who()
repr(Point($int, $int))
repr(Record(1, $int))
str(Mode($int % 4))
f"{$float:>{4 + $small}.{$small}f}"
f"{$int:+d}|{$int:>4}|{$int:x}|{$int!s:^5}"
f"{$name.str!r:<6}{$name.str:*^5}"
f"{'a' if $bool else 'b'}{{}}"
?risky f"{$T:.1f}{$S:d}"
f"{$S:.3f}|{$S.detach()!r}"
"{:>9.2e}{}".format($S, $T.shape)
repr($S.detach())
"{0!r:>5}{1[0]}{2.real}".format($str, [$int], $int)
"%-4s|%+.2f|%x|%r" % ($str, $float, abs($int), $str)
$str.center(5, "-").strip("-").title()
$str.partition("a")[2] + "/".join($str.split("b"))
$str.zfill(4).swapcase()
"".join(sorted($str, reverse=True))
"".join(c for c in reversed($str))
$str.translate({97: "x"})
$str.encode().hex()
$str[::-1]
repr({$int: $str, "k": [$int]})
repr($set)
repr(($str, $float, $bool, None))
str(collections.Counter($str))
str(collections.deque($ints, 3))
str(collections.OrderedDict(a=$int))
ascii($str + "é")
chr(97 + $int % 5)
str($float)
str(bytearray(b"ab") + bytes([$int % 9]))
type($tup).__name__
""",
    "ints": """
sorted($ints, key=lambda i: (i % 2, -i))
[i for i in $ints for _ in range(2)]
[[j for j in range(i % 3)] for i in $ints][0] if $ints else []
[w for i in $ints if (w := i * 2) > 2]
[*map(operator.add, $ints, $ints)]
[a + b for a, b in zip($ints, reversed($ints))]
?risky [a for a, _ in zip($ints, $ints, strict=True)]
[i for i, _ in itertools.islice(enumerate($ints, $int), 2)]
[*itertools.chain.from_iterable([$ints, [$int]])]
[*itertools.accumulate($ints, operator.mul)]
[a for a, in [(1,), ($int,)]]
[*itertools.dropwhile(lambda i: i < 2, $ints)]
[*filter(None, $ints)]
list(collections.deque($ints, maxlen=3))
list(collections.Counter($ints).elements())
sorted(collections.Counter($ints).values())
?set [i for i in $set]
?set list($set | {$int, 9})
?set [*$set, *{5, $int}]
?set list($set ^ {2, 40})
?set list($set.difference($ints))
list({i: 1 for i in $ints})
list(range(3))[$int::-1]
$ints[$int:$int]
$ints[-2:]
($ints * 2)[::2]
Stack($ints).push($int)
[ord(c) for c in $str]
list(b"ab")
list(walk([[$int], $ints]))
list(Table(zip($ints, $ints)))
copy.deepcopy($ints)
[x_ for x_ in (lambda: $ints)()]
""",
    "list": """
?gen list(careful($T, $small))
?gen list(delegate($T, $small))
?gen [b for _, b in zip([1], careful($T, 3))]
?gen [b for b, _ in zip(delegate($T, 2), [1, 2, 3])]
list(itertools.islice(itertools.cycle([$T]), 2))
list(itertools.tee($gen, 2)[1])
[t for t in [$T, $T] if not (t is $T)]
[t * k for k, t in enumerate($list, 1)]
[t for row in [$list, [$T]] for t in row]
list(map(operator.neg, $list))
[*reversed($list), $T]
($list + [$T])[::-1][:3]
list(collections.deque($list, maxlen=2))
list({k: v for k, v in zip("abc", $list)}.values())
copy.deepcopy([t.detach() for t in $list])
""",
    "dict": """
collections.defaultdict(lambda: $T, $dict)
collections.OrderedDict(reversed(list($dict.items())))
{k: v for k, v in sorted($dict.items())}
dict(collections.ChainMap({"c": $T}, $dict))
{**{"a": $T}, **$dict}
{k.upper(): v * 2 for k, v in $dict.items()}
dict.fromkeys("ab", $T)
""",
    "set": """
{i % 3 for i in $ints}
set($ints).union([$int], ($int,))
set($str.encode())
$set.copy()
set($ints) ^ {$int}
{*$ints, 17, 33}
set(range(0, 40, 8))
""",
    "tup": """
(lambda: ($T, $int))()
divmod(7, 1 + abs($int)) and ($T, $int)
Pair(*($T, $int))
tuple(reversed(($int, $T)))
""",
    "gen": """
?gen careful($T, $small)
?gen delegate($T, $small)
(t for t in (u * 2 for u in $list))
itertools.chain($list, ($T for _ in range(2)))
(t for t, _ in zip($list, itertools.count()))
map(torch.add, $list, $list)
filter(lambda t: $bool|t:T, $list)
itertools.islice($gen, 2)
reversed($list)
""",
    "fn": """
?net NET
?net NET.forward
?dia (lambda t, k=1: DIA.add(t))
(lambda t, k=1, *, _kept=[]: (_kept.append(k), t * len(_kept))[1])
functools.wraps(helper)(lambda t, k=1: t + k)
torch.add
operator.mul
""",
}

STATEMENTS = """
?net NET.calls += $int
?net NET.train($bool)
?net NET.last = $T
?net NET.seen.mul_(0.5)
?net NET.parts.append(torch.nn.Sigmoid()) if len(NET.parts) < 4 else None
?net $to.int = sum(p.numel() for p in NET.parameters())
?net $to.str = ",".join(dict(NET.named_buffers())) + str(NET.training)
?net NET.zero_grad()
?dia DIA.size = $int
?dia DIA.size += $int
?risky ?dia DIA.size = $str
?dia del DIA.size
?dia DIA.key = $str
?risky ?dia del DIA.key; DIA.key = "n"
?dia $to.int = ($str - DIA if $bool else 1) and 2
?dia $new.any = DIA; $name.any *= 2
Diamond.made = $int
?risky Diamond.extra = $int; del Diamond.extra
$new.any = Slotted($int); $to.int = $name.any.a
?del $new.any = Ends($int); KEPT.append($int)
?del ended = [Ends($int)]; ended = None; KEPT.append($int)
?del Ends($int).number
?del $to.int = sum(1 for e in [Ends(1), Ends(2)])
?del KEPT.append(Ends($int)); KEPT.pop()
?set $own.set -= {$int}
?set $own.set &= {1, 2, 3, $int}
?set $own.set ^= {$int, 40}
?set $name.set.update($ints)
?set $name.set.update($set)
?set $name.set.difference_update($ints)
?risky ?set $name.set.remove($int)
?risky ?set $to.int = $name.set.pop()
?set $name.set.clear()
?set KEPT.append(list($name.set))
?dictiter for $new.str in $name.dict: $name.dict.pop($str, None)
?dictiter for $new.int in $name.set: $name.set.add($int)
?dictiter for $new.str in list($name.dict): $name.dict[$str] = $T
del $name.ints[:]
$name.ints.extend(i for i in $ints)
$name.ints[::2] = [0] * len($name.ints[::2])
$name.ints += (3,)
$name.ints *= 2; del $name.ints[4:]
$name.list *= 1
$name.list[0:1] = $list[:1]
(a_ := $int); KEPT.append(a_)
$to.ints = [y_ := $int, y_ + 1]
*$new.ints, $new.int = $ints + [$int]
$new.int, (*$new.ints,) = $int, $ints
[$new.int, *_] = [$int, $int]
$name.dict["k"], $to.int = $T, $int
$new.int = $new.int = $int
$to.int = $name.int; del $name.int
?risky $to.int = $ints[0] if $bool else $ints[5]
$to.str = str(early([None, $int]))
?gen $new.gen = careful($T, 3); next($name.gen, None); KEPT.append("between")
?gen $new.gen = careful($T, 2); next($name.gen, None); $name.gen.close()
?gen $new.gen = delegate($T, 2); next($name.gen, None); $to.T = $name.gen.throw(ValueError("in"))
?risky ?gen $new.gen = delegate($T, 2); next($name.gen, None); $name.gen.throw(KeyError("in"))
?gen $new.gen = careful($T, 5); next($name.gen, None); $to.T = $name.gen.send(2)
?gen $to.list = [$T for _ in zip(range(2), careful($T, 4))]
KEPT.extend(Table(zip("ab", $ints)).items())
TABLE[Point($int)] = $int
TABLE[$int, $str] = $int
TABLE.pop($str, None)
TABLE.update(dict.fromkeys($str, $int))
KEPT[:] = KEPT[-5:]
KEPT.insert(0, $str)
globals()["COUNT"] = $int
vars($name.obj)["w"] = $int
setattr($name.obj, "k" + $str, $int)
?risky delattr($name.obj, "k" + $str)
?keys TABLE[Key($int)] = $int
?keys TABLE.pop(Told($int), None)
?weak KEPT.append(weakref.ref(Left())() is None)
?made $new.any = type("Made", (Base,), {"m": lambda self, t, k=1: t * k}); $to.T = $name.any($T).m($T)
?made $new.fn = functools.lru_cache(None)(lambda t, k=1: t * k); $to.T = $name.fn($T, $int)
?keys heapq.heappush($name.ints, $int)
collections.deque(map(KEPT.append, $ints), 0)
KEPT.append(dataclasses.asdict(Record($int, tags=[$int])))
?risky Point(1).x = 3
?risky object().a = 1
?risky Slotted(1).b
torch.set_grad_enabled($bool)
?dtype $to.T = in_double($T)
$new.any = $T.sum(); $to.T = $T * 1
KEPT.append([f"{i}{c}" for i, c in enumerate($str)])
?risky raise ExceptionGroup("g", [ValueError(1), Fault("f")])
?break $to.ints = [opaque(i) for i in $ints if opaque($bool)]
?break $to.T = sum((opaque(t) for t in $list), $T)
?break $to.dict = {opaque(k): opaque(v) for k, v in $dict.items()}
?break $to.int = max($ints, key=opaque, default=0)
?break $to.bool = all(opaque(i) > 0 for i in $ints)
?break $to.int = (lambda k: opaque(k) + k)($int)
?break $to.str = "".join(map(opaque, $str))
?break KEPT.append(opaque([$int, opaque($int)]))
?break ?net NET.last = opaque(NET.calls)
?break ?dia DIA.size = opaque(DIA.size + 1)
?break ?gen $to.list = list(map(opaque, careful($T, 2)))
?break $to.int = opaque(n) if opaque(flag) else opaque(3)
?break $name.ints[opaque(0):opaque(1)] = [opaque($int)]
?break assert opaque(True), opaque("no")
"""

LOOPS = """
?set for $new.int in $name.set:
?set for $new.int in list($set):
for $new.int, $new.str in zip($ints, $str):
for $new.str in $str:
for ($new.int, ($new.str, $new.T)) in enumerate($dict.items()):
for $new.int, *$new.ints in [[1, 2, 3], [$int]]:
for $new.int in itertools.islice(itertools.count($int), 3):
for $new.any, $new.T in itertools.zip_longest($ints, $list):
for $new.int in (i for i in $ints if $bool|i:int):
?gen for $new.T in careful($T, $small):
?gen for $new.T in delegate($T, 3):
?gen for _, $new.T in zip(range(2), careful($T, 4)):
?dia for $new.int in reversed(DIA):
?del for $new.any in [Ends(1), Ends(2)]:
?break for $new.int in map(opaque, $ints):
while ($new.int := $int) > 2 and fuel():
"""
WITHS = """
with swallows(ValueError):
with swallows((KeyError, Fault)) as $new.any:
?dia with Loud($int) as $new.int:
?dia with Loud($int), Quiet():
with contextlib.ExitStack() as stack: stack.callback(KEPT.append, $int)
with contextlib.ExitStack() as stack: stack.push(lambda *error: error[0] is KeyError)
?break with contextlib.ExitStack() as stack: stack.callback(opaque, $int)
with contextlib.ExitStack() as stack: stack.push(lambda *error: KEPT.append(str(error[1])))
with torch.set_grad_enabled($bool):
with contextlib.closing(careful($T, 3)) as $new.gen:
?auto with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
"""
HANDLERS = """
$to.int = error.__traceback__.tb_lineno and 3
error.add_note($str); KEPT.append(error.__notes__)
KEPT.append(error.with_traceback(None) is error)
$new.any = error.with_traceback(None)
raise error
raise type(error)(*error.args) from error.__cause__
KEPT.append((type(error.__cause__).__name__, error.__suppress_context__))
KEPT.append(getattr(error, "code", None))
2* KEPT.append(lines_of(error.__traceback__))
raise error from KeyError($int)
"""
PATTERNS = """
case [1, *_] | [_, 2]:
case {"a": torch.Tensor() as $new.T, **$new.dict}:
case Base(n=1 | 2) | Base(n=5):
case [$new.any, [*_]] | ($new.any, _):
case str($new.str) if len($new.str) > 1:
case int() | float() as $new.any:
case -1 | 0x02:
case "a" | "ab":
case (torch.Tensor(), int($new.int)):
"""
RAISES = """
raise ExceptionGroup("group", [ValueError($int), KeyError($str)])
raise Fault($str).with_traceback(None)
raise (ValueError if $bool else KeyError)($str)
raise ValueError from None
raise Base
$to.int = DIA < 2
$to.bool = bool(Diamond(7))
$to.int = "a" - DIA
$to.int = 2 * DIA
Point(1).x = 2
$to.int = [1, 2][:$str]
$to.int = len($int)
$to.T = $T.nothing()
$to.int = {}[$tup]
for $to.int in $int: pass
$to.int = next(careful($T, 0))
"""
