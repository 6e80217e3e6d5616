"""The grammar of random programs, as tables of templates.

In: nothing. Out: expressions by type, simple statements, heads of blocks, for `generator.Writer`.
Always: one template a line. In front: `3* ` is a weight, `?flag ` says that it needs a flag of the program. Slots: `$T`
an expression of type T, `$name.T` a variable that exists, `$to.T` one to be assigned, `$own.T` one to be changed,
`$new.T` a fresh one, and `$T|i:int` an expression that may use `i` as well. Tensors `T` have the shape of `x`.
"""

from __future__ import annotations

# The types: T a tensor, S one without dimensions, list one of tensors, ints one of integers, dict one from strings to
# tensors, tup a pair (tensor, integer), fn a function of a tensor and an integer, gen an iterator of tensors.

#: Programs start with these; everything in them runs natively under every compiler.
PRELUDE = '''\
import collections, contextlib, copy, dataclasses, enum, functools, itertools, math, operator, random
import torch
import torch.nn.functional as F
import graphlift

SEEN = lambda scope, value: None


def made(seed, rows=2, grad=False):
    tensor = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)
    return tensor.requires_grad_() if grad else tensor


@graphlift.disable
def opaque(value):
    """Natively: whoever looks sees the effects so far."""
    SEEN(globals(), value)
    return value


@graphlift.disable
def opaque_change(value):
    """Natively: changes what it is given."""
    if isinstance(value, list):
        value.append(value[0] if value else 0)
    elif isinstance(value, dict):
        value["changed"] = next(iter(value.values()), 0)
    elif isinstance(value, torch.Tensor):
        value.detach().mul_(0.5)
    elif hasattr(value, "n"):
        value.n = value.n + 10
    return value


class Fault(Exception):
    def __init__(self, message, code=0):
        super().__init__(message, code)
        self.code = code


class Quiet:
    """A context that keeps ValueErrors and its own count."""
    count = 0

    def __enter__(self):
        Quiet.count += 1
        return self

    def __exit__(self, kind, error, trace):
        Quiet.count += 10
        return kind is not None and issubclass(kind, ValueError)


@contextlib.contextmanager
def noted(log, value):
    log.append(value)
    try:
        yield value
    finally:
        log.append(-value)


COUNT = 0
n = 2
flag = True
FUEL = 0
KEPT = []
TABLE = {}
Pair = collections.namedtuple("Pair", "first second")


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def bump():
    global COUNT
    COUNT += 1


def fuel():
    global FUEL
    FUEL -= 1
    return FUEL > 0


def helper(t, k=2, *rest, scale=1, **more):
    if scale > 2:
        return t - k
    return t * scale + k + len(rest)


def compose(fn):
    calls = 0

    @functools.wraps(fn)
    def inner(*args, **kwargs):
        nonlocal calls
        calls += 1
        return fn(*args, **kwargs) + calls

    return inner


def recurse(t, depth):
    return t if depth <= 0 else recurse(t * 0.5, depth - 1) + depth


def recurse_break(t, depth):
    if depth <= 0:
        return opaque(t)
    return recurse_break(t * 0.5, depth - 1) + opaque(depth)


def produce(t, count):
    for i in range(count):
        yield t + i
    KEPT.append(count)


def produce_more(items):
    yield from produce(items[0] if items else torch.zeros(2, 3, dtype=DTYPE), 2)
    return len(items)


def produce_send(t):
    try:
        got = yield t
        yield t * got
    finally:
        KEPT.append("closed")


def drive(t, k):
    made = produce_send(t)
    next(made)
    t = made.send(k)
    made.close()
    return t
'''

EXPRESSIONS: dict[str, str] = {
    "T": """
20* $name.T
4* ?method self.v
?method self.items[0]
torch.sin($T)
torch.tanh($T) * 2
$T.relu()
-$T
$T.abs() - 1
$T.softmax(-1)
$T.clamp(-2, 2)
2* $T + $T
$T - $T * 0.5
$T * $T
$T / ($T.abs() + 1)
torch.maximum($T, $T)
torch.where($T > 0, $T, $T)
torch.stack([$T, $T]).mean(0)
torch.cat([$T, $T], 0)[: x.shape[0]]
$T + $S
$S * $T
$T * $int
$T + $float
$T - $T.mean(-1, keepdim=True)
$T.reshape(-1).view(x.shape)
$T.t().contiguous().t()
$T.t().t()
$T[:]
$T[:, [2, 0, 1]]
$T.unsqueeze(0).squeeze(0)
$T.expand(x.shape)
$T.view_as(x)
$T.clone()
$T.detach()
torch.stack([row * 2 for row in $T])
F.gelu($T)
F.layer_norm($T, (3,))
torch.zeros_like($T)
?rng torch.rand_like($T)
?rng F.dropout($T, 0.5, True)
?risky $list[$int]
$list[0] if $list else $T
$name.list[-1] if len($name.list) > 1 else $T
$dict['a'] if 'a' in $dict else $T
2* ?risky $list[0]
?risky $list[-1] + $T
?risky $dict["a"]
$dict.get("b", $T)
$dict.setdefault($str, $T)
$tup[0]
2* $name.obj.v
$obj.p
2* $obj.m($T)
$obj.m($T, k=$int)
$obj.cm($T)
$obj.sm($T)
getattr($obj, "v")
getattr($obj, "absent", $T)
?add ($obj + $T)
?add ($T + $obj)
?getitem $obj[$int]
?call $obj($T)
2* $fn($T, $int)
$fn($T)
$T if $bool else $T
($flagged and $T)
(None or $T)
(lambda t, k=$int: t * k)($T)
sum($list, $T)
functools.reduce(torch.add, $list, $T)
next($gen, $T)
?risky next(iter($list))
?risky max($list, key=lambda t: t.dim())
torch.stack([$T|i:T for i in [$T, $T]]).sum(0)
sum([$T|i:int for i in range(2)])
[$T, $T][$bool]
{True: $T, False: $T}[$bool]
(w := $T) + w
$T.to(torch.float64).to(x.dtype)
($T > 0).to(x.dtype)
torch.add($T, $T, alpha=$int)
recurse($T, 2)
copy.copy($T)
?break opaque($T)
?break recurse_break($T, 2)
?break (print("e"), $T)[1]
?break $T * $S.item()
$T.requires_grad_(False) if not $T.requires_grad else $T
""",
    "S": """
3* $T.sum()
$T.mean()
$T[0, 1]
$T.max()
$T.amax()
($T > 0).sum() * 0.5
torch.tensor($float, dtype=x.dtype)
$S + 1
$S * $S
?break opaque($S)
""",
    "int": """
10* $name.int
2* ?method self.n
6* 0
6* 1
5* 2
3* -1
3* 3
n
$int + $int
$int - $int
($int * $int) % 17
$int // 2
$int % 3
?risky $int // $int
-$int
abs($int)
len($list)
len($ints)
len($dict)
len($str)
len($set)
x.shape[0]
$T.dim()
sum($ints)
max($int, $int)
min($ints, default=$int)
max($ints, default=0)
?risky $ints[0]
?risky $ints[$int]
?risky $ints.index($int)
$ints.count($int)
2* $obj.n
$obj.q
$tup[1]
COUNT
$int if $bool else $int
int($bool)
int($float)
int("$lit")
$str.count("a")
$str.find("b")
sum($int|i:int for i in $ints)
len([i for i in $ints if $bool|i:int])
functools.reduce(lambda i, j: (i * 3 + j) % 101, $ints, $int)
(lambda *a, **k: len(a) + len(k))(*$ints, **$strs)
divmod($int, 3)[1]
round($float)
hash($int) % 7
?len len($obj)
?risky ord($str[0])
Color.RED.value
Color($int % 2 + 1).value
?break opaque($int)
?break int($S.item() * 10) % 7
?break int($T.sum() > 0)
?break (print($int), $int)[1]
bool($int) + 1
$int & $int
$int ^ 1
$int << 1
""",
    "float": """
4* $name.float
2* 0.5
1.5
-2.0
$float + $float
$float * 0.5
?risky $float / $int
float($int)
math.sqrt(abs($float))
math.floor($float)
round($float, 1)
abs($float)
max($float, $int)
float("$lit")
?break opaque($float)
?break round($S.item(), 2)
""",
    "bool": """
3* flag
True
False
3* $int > $int
$int == $int
$int in $ints
$int not in $ints
$str == $str
"a" in $str
$str in $dict
not $bool
$bool and $bool
$bool or $bool
$int < $int <= $int
$T is x
$T is not $T
$obj is $obj
$list is $list
$name.list is items
isinstance($obj, Base)
isinstance($T, torch.Tensor)
hasattr($obj, "absent")
any($bool|i:int for i in $ints)
all([$bool|i:int for i in $ints])
bool($list)
bool($str)
$ints == $ints
$tup is None
$T.shape == x.shape
$T.requires_grad
callable($fn)
$set <= $set
?eq $obj == $obj
?bool bool($obj)
?lt $obj < $obj
?contains $int in $obj
?break bool($S > 0)
?break $S.item() > 0.5
?break bool(($T > 0).all())
?break opaque($bool)
?break $T in $list
""",
    "str": """
4* $name.str
"a"
"b"
"ab"
f"{$name.int}:{$name.str}"
f"{$name.int:03d}-{$name.float:.2f}"
f"{$name.bool!r:>6}"
f"{$name.T.shape}{$name.int}"
f"{$name.obj}{$name.obj!s}"
str($obj)
repr($obj)
$str + $str
$str.upper()
$str.replace("a", "c")
$str[$int:]
$str * 2
"-".join([$str, $str])
",".join(str(i) for i in $ints)
"%s/%d" % ($str, $int)
"{}{b}".format($int, b=$str)
str($int)
type($obj).__name__
type($obj).tag
$obj.__class__.__name__
$str if $bool else $str
repr($ints)
str($tup[1])
?break opaque($str)
""",
    "list": """
9* $name.list
[$T]
2* [$T, $T]
[]
[$T|i:T for i in $list]
[i for i in $list if $bool|i:T]
[$T|j:int for j in range($small)]
[*$list, $T]
$list + $list
$list[1:]
$list[::-1]
list(reversed($list))
$list * 2
list($gen)
list(map(lambda t: $T|t:T, $list))
sorted($list, key=lambda t: t.dim())
$obj.items
list($dict.values())
[t for t, _ in zip($list, $ints)]
[$T|i:int,t:T for i, t in enumerate($list)]
$list if $bool else $list
copy.copy($list)
?rows list($T)
$T.unbind(0) and [$T]
list(filter(lambda t: $bool|t:T, $list))
list(itertools.chain($list, [$T]))
?break opaque($list)
""",
    "ints": """
8* $name.ints
[1, 2, 3]
[$int, $int]
[]
[$int|i:int for i in $ints]
[$int|i:int for i in range($small)]
[$int|i:int,j:int for i in $ints for j in (1, 2) if i != j]
list(range($int % 4))
sorted($ints)
sorted($ints, key=lambda i: $int|i:int)
sorted($ints, reverse=$bool)
$ints[1:]
$ints[::-1]
$ints + [$int]
list(map(lambda i: $int|i:int, $ints))
[*$ints, $int]
list($set)
[len($str), $int]
list(itertools.accumulate($ints))
[i * j for i, j in zip($ints, $ints)]
list(x.shape)
[ord(c) for c in $str]
list(dict.fromkeys($ints))
?iter list($obj)
?break opaque($ints)
""",
    "dict": """
9* $name.dict
{"a": $T}
{"a": $T, "b": $T}
{}
{$str: $T}
{**$dict, "b": $T}
$dict | {"a": $T}
{key: $T|value:T for key, value in $dict.items()}
dict(a=$T)
dict(zip("ab", [$T, $T]))
{k: v for k, v in $dict.items() if $bool}
copy.copy($dict)
collections.OrderedDict(a=$T)
?break opaque($dict)
""",
    "strs": """
{}
{"p": $int}
dict(q=$int, r=$T)
{$str: $int}
""",
    "tup": """
2* $name.tup
2* ($T, $int)
tuple([$T, $int])
(*[$T], $int)
Pair($T, $int)
Pair($T, $int)._replace(second=$int)
""",
    "set": """
4* $name.set
{1, 2}
set($ints)
{$int, $int}
$set | $set
$set & {1, 2, 3}
$set - {1}
{$int|i:int for i in $ints}
frozenset($ints)
""",
    "obj": """
9* $name.obj
1* $class($T, $int)
copy.copy($obj)
$obj if $bool else $obj
?break opaque($obj)
""",
    "fn": """
6* $name.fn
helper
$name.obj.m
lambda t, k=1: $T|t:T,k:int
functools.partial(helper, scale=$int)
functools.partial($fn, k=$int)
$fn if $bool else $fn
compose($fn)
""",
    "gen": """
($T|i:T for i in $list)
(t for t in $list if $bool|t:T)
iter($list)
produce($T, $small)
map(lambda t: $T|t:T, $list)
produce_more($list)
""",
    "out": """
($T, $int)
$T
$int, $list, $str
$dict
$obj, $T
None
""",
    "flagged": """
flag
True
$int
$list
""",
    "small": """
0
1
2
3
""",
    "lit": """
3
12
""",
}

#: Statements of one line; `; ` separates lines.
STATEMENTS = """
6* $to.T = $T
2* ?method self.n += $int
2* ?method self.v = $T
?method self.items.append($T)
2* $to.int = $int
2* $to.list = $list
$to.ints = $ints
$to.dict = $dict
$to.str = $str
$to.float = $float
$to.tup = $tup
$to.set = $set
$to.obj = $obj
$to.fn = $fn
$to.S = $S
$to.bool = $bool
2* $own.T += $T
$own.T *= $float
2* $own.int += $int
$own.int -= 1
$own.str += $str
$own.list += [$T, $T]
$own.list[:] = ($own.list * 2)[:5]
$own.ints += $ints
$own.set |= {$int}
$own.dict |= {"b": $T}
?inplace $T.add_($T)
?inplace $name.T.mul_($float)
?inplace $name.T[0] = $T[-1]
?inplace $name.T[:, 1:] += 1.0
?inplace $name.T[$T > 1] = 0.25
?inplace $T.t().add_(0.5)
?inplace $name.T.view(-1)[::2].sub_(1)
?inplace $name.T.copy_($T)
?inplace $T[$int].zero_()
?inplace torch.add($T, $T, out=$name.T)
2* $name.list.append($T)
$name.list.extend([$T, $T])
$name.list.extend(itertools.islice($gen, 3))
$name.list.insert($int, $T)
?risky $to.T = $name.list.pop()
$name.list.reverse()
$name.list.clear()
?risky $name.list[0] = $T
?risky $name.list[$int] = $T
$name.list[1:] = [$T]
?risky del $name.list[0]
$name.ints.append($int)
$name.ints.sort()
$name.ints.sort(key=lambda i: -i, reverse=$bool)
?risky $name.ints.remove($int)
?risky $name.ints[0] += $int
$name.ints.insert(0, $int)
?risky $to.int = $name.ints.pop()
?risky del $name.ints[-1]
$name.ints[:1] = [$int, $int]
2* $name.dict[$str] = $T
?risky $name.dict["a"] += $T
?risky del $name.dict[$str]
$name.dict.update(a=$T)
$name.dict.update($dict)
$to.T = $name.dict.pop("a", $T)
$name.dict.clear()
?risky $to.T = $name.dict.popitem()[1]
$name.set.add($int)
$name.set.discard($int)
2* $name.obj.v = $T
2* $name.obj.n += $int
$name.obj.items.append($T)
$name.obj.items = $list
$name.obj.extra = $int
setattr($name.obj, "v", $T)
$name.obj.q = $int
?risky del $name.obj.extra
$name.obj.v += $T
$name.obj.child = $obj
?setitem $name.obj[$int] = $T
?iadd $own.obj += $T
type($obj).tag = $str
type($obj).total += 1
Base.total += $int
2* bump()
KEPT.append($T)
KEPT.append($int)
TABLE[$str] = $int
TABLE["t"] = $T
TABLE.setdefault("l", []).append($int)
($to.T, $to.int) = $tup
$to.T, *$new.list = [$T, $T, $T]
?risky *$new.list, $to.T = $list
$new.T, $new.T = $T, $T
($new.int, ($new.T, $new.int)) = ($int, $tup)
?risky [$to.T, $to.T] = $list
?risky $new.T, $new.T = $list
for $to.int in $ints: pass
$to.T = $to.T = $T
$name.obj.v, $to.int = $tup
$name.dict["b"], $list[0] = $T, $T
$to.T = $fn(*$tup)
$to.T = helper(*[$T], **{"scale": $int})
$to.T = helper($T, *$ints, scale=2)
$to.T = $fn(t=$T) if $bool else $T
?risky assert $bool, $str
assert isinstance($T, torch.Tensor)
$to.int = $name.int if $bool else $int
$new.gen = produce($T, $small); $to.T = next($name.gen, $T)
$new.gen = ($T|i:T for i in $list); $to.list = list($name.gen)
$to.T = drive($T, $int)
$new.list = []; $name.list.extend($list)
$new.list = $name.list
$new.dict = $name.dict
$new.T = $name.T
?rng $to.T = torch.randn(x.shape, dtype=x.dtype)
?rng $to.int = random.randrange(5)
?rng $to.float = torch.rand(()).item()
3* ?break print($str)
?break print($int, f"{$name.T.sum().item():.4f}")
2* ?break graphlift.graph_break()
2* ?break opaque(0)
?break opaque_change($name.list)
?break opaque_change($name.dict)
?break opaque_change($name.obj)
?break opaque_change($name.ints)
?break opaque($obj).n += 1
?break $to.int = opaque($int) + $int
?break $name.list.append(opaque($T))
?break $name.dict[opaque($str)] = opaque($T)
?break $to.T = helper(opaque($T), scale=opaque($int))
?break $to.list = [opaque($T|i:T) for i in $list]
?break $to.ints = sorted($ints, key=opaque)
?break $to.T = opaque($T) if opaque($bool) else opaque($T)
?break $to.bool = opaque($bool) and $bool or opaque($bool)
?break $to.str = f"{opaque($name.int)}{$name.str}"
?break $name.obj.v = opaque($T)
?break $to.list = $T.tolist() and $list
"""

#: Statements that raise, or may.
RAISES = """
3* raise ValueError($str)
raise Fault($str, $int)
raise Fault($str) from None
raise KeyError($str)
raise StopIteration
raise RuntimeError
if $bool: raise ValueError($int)
if $bool: raise Fault($str) from KeyError(1)
$to.T = $dict["absent"]
$to.int = $int // 0
$to.T = $list[99]
$to.T = $T @ $T
$to.T = $obj.absent
$to.int = int("x")
$to.T = helper()
$to.T = helper($T, wrong=1)
$new.int, $new.int = $ints
$to.T = next(iter([]))
$to.int = $ints.index(999)
$to.T = unbound
assert not $bool, f"{$name.int}"
assert False
$to.int = $str + $int
$ints.remove(999)
?break opaque(1 // 0)
?break print(1 // $int)
"""

#: Heads of blocks: the names in them that the body may use come with `$new`.
LOOPS = """
3* for $new.int in range($small):
for $new.T in $list:
for $new.T in list($list):
for $new.int, $new.T in enumerate($list):
for $new.T, $new.T in zip($list, $list):
for $new.T, $new.int in zip($list, $ints):
for $new.str, $new.T in $dict.items():
for $new.str in list($dict):
for $new.int in $ints:
for $new.int in reversed($ints):
for $new.int in sorted($set):
for $new.T in $gen:
for $new.T in produce($T, $small):
for $new.T in $T.unbind(0) and [$T]:
?iter for $new.int in $obj:
?break for $new.int in opaque($ints):
?break for $new.int in range(opaque($small)):
while $bool and fuel():
while $int < $int and fuel():
?break while $S.item() < 1 and fuel():
"""
WITHS = """
with torch.no_grad():
with torch.enable_grad():
2* with Quiet():
with Quiet() as $new.any:
with noted(KEPT, $int) as $new.int:
with contextlib.suppress(ValueError, Fault):
with contextlib.nullcontext($T) as $new.T:
with Quiet(), noted(KEPT, $int) as $new.int:
with contextlib.ExitStack() as stack: stack.enter_context(Quiet())
?enter with $obj as $new.obj:
"""
CATCHES = """
3* except ValueError as error:
2* except (Fault, KeyError) as error:
except Fault as error:
except (LookupError, ArithmeticError):
except RuntimeError as error:
3* except Exception as error:
except BaseException:
except:
"""
HANDLERS = """
2* KEPT.append(str(error))
$to.int = len(error.args)
$to.str = str(error)
$to.str = type(error).__name__
KEPT.append(repr(error.args))
raise
raise Fault($str) from error
raise Fault($str)
raise ValueError("again") from None
KEPT.append(repr(error.__context__))
"""
PATTERNS = """
case 0:
case 1 | 2:
case int($new.int) if $new.int > 1:
case [$new.any, *$new.any]:
case []:
case {"a": $new.T}:
case {"a": _, **$new.any}:
case str():
case Base(n=$new.int):
case (_, $new.int):
case None:
case float() | bool():
case torch.Tensor():
"""
SUBJECTS = """
$int
$ints
$dict
$obj
$tup
$str
$list
$T
"""
