"""Functions: arguments of every kind, closures, decorators, functools, operator, builtins and text."""

from __future__ import annotations

import collections.abc
import copy
import functools
import inspect
import math
import operator
import types
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import graphlift
from graphlift.guards import Predicate
from tests.capture.program import program


@program()
def test_arguments_of_every_kind(x: Tensor):
    def f(a, b=2, /, c=3, *rest, d, e=5, **more):
        return a, b, c, rest, d, e, more

    given, named = [1, 2], {"d": 4, "z": 9}
    return x + 1, f(1, d=0), f(*given, *given, **named), f(1, 2, 3, 4, 5, d=1, b=7), f(1, **{"d": 2, "c": 8})


@program()
def test_defaults_are_shared(x: Tensor):
    def f(item, seen=[]):  # noqa: B006
        seen.append(item)
        return seen

    f(1)
    return x + len(f(2)), f(3)


def decorated(times):
    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            result = fn(*args, **kwargs)
            for _ in range(times - 1):
                result = result + fn(*args, **kwargs)
            return result

        wrapper.times = times
        return wrapper

    return decorate


@decorated(3)
def tripled(x):
    """Doc."""
    return x * 2


@functools.lru_cache(maxsize=None)
def cached(n):
    return [n]


@functools.singledispatch
def dispatched(value):
    return "object"


@dispatched.register
def _(value: int):
    return "int"


@program()
def test_functools(x: Tensor):
    @decorated(2)
    def local(v):
        return v + 1

    part = functools.partial(lambda a, b, c=0: (a, b, c), 1, c=5)
    nested = functools.partial(part, c=6)
    return (
        tripled(x) + local(x),
        (tripled.__name__, tripled.times, local.__name__, tripled.__wrapped__ is not tripled),
        part(2),
        nested(3),
        part.args,
        functools.reduce(operator.add, [1, 2, 3], 10),
        cached(3) is cached(3),
    )


@program(breaks=True)
def test_singledispatch(x: Tensor):
    return x + 1, dispatched(3), dispatched("s")


def test_what_singledispatch_finds_is_guarded_in_c():
    @functools.singledispatch
    def scaled(value, x):
        return x * 2

    compiled = graphlift.compile(lambda x, value: scaled(value, x), backend="eager")
    explained = graphlift.explain(lambda x, value: scaled(value, x), backend="eager")
    x = torch.ones(2)

    def check(value: Any, factor: int, in_c: bool) -> None:
        for _ in range(2):
            assert torch.equal(compiled(x, value), x * factor)
        guards = [guard for region in explained(x, value).regions for guard in region.guards]
        assert in_c != any(isinstance(guard, Predicate) for guard in guards)

    check(True, 2, in_c=True)
    scaled.register(int, lambda value, x: x * 3)
    check(True, 3, in_c=True)
    scaled.register(str, lambda value, x: x * 7)
    check(True, 3, in_c=True)
    scaled.register(int, lambda value, x: x * 4)
    check(True, 4, in_c=True)
    scaled.register(collections.abc.Sized, lambda value, x: x * 5)
    check(True, 4, in_c=False)
    check([1], 5, in_c=False)


@program()
def test_recursion(x: Tensor):
    def factorial(n):
        return 1 if n == 0 else n * factorial(n - 1)

    def tree(node):
        return node if isinstance(node, int) else sum(tree(child) for child in node)

    return x * factorial(5), tree([1, [2, [3, 4]], (5,)])


@program()
def test_operator_module(x: Tensor):
    getter, attribute = operator.itemgetter(1), operator.attrgetter("shape")
    return (
        operator.mul(x, 2),
        getter([1, 2]),
        attribute(x),
        operator.itemgetter(0, 2)("abc"),
        operator.contains([1], 1),
    )


@program()
def test_builtins(x: Tensor):
    values = [3, 1, 2]
    return (
        x + 1,
        (
            all(values),
            any([]),
            sum(values, 4),
            min(values),
            max(values, key=lambda v: -v),
            min([], default=7),
        ),
        (
            sorted(values),
            sorted(values, reverse=True),
            sorted(["b", "A"], key=str.lower),
            list(reversed(values)),
        ),
        (
            list(map(str, values)),
            list(filter(None, [0, 1])),
            list(zip(values, "ab")),
            list(enumerate("ab", 5)),
        ),
        (
            divmod(7, 3),
            pow(2, 5, 7),
            round(2.567, 1),
            abs(-3),
            bin(5),
            hex(255),
            chr(97),
            ord("a"),
            hash((1, 2)),
        ),
        (
            isinstance(True, int),
            issubclass(bool, int),
            callable(len),
            type(3) is int,
            bool([]),
            int("7"),
            float("2.5"),
        ),
        (
            str(values),
            repr("a'b"),
            tuple("ab"),
            set([1, 1]),
            dict(a=1, **{"b": 2}),
            list(range(5))[1:4:2],
            complex(1, 2),
        ),
        (math.sqrt(16), math.pi, math.floor(2.5), math.inf > 3, math.prod([1, 2, 3])),
        (
            len("abc"),
            slice(1, 3),
            "abc"[::-1],
            [*values, *"x"],
            {**{"a": 1}, "b": 2},
            list(zip(*[(1, 2), (3, 4)])),
        ),
    )


@program()
def test_text(x: Tensor):
    name, value = "n", 3.14159
    return (
        x + 1,
        f"{name}={value:.2f} {value!r:>10} {name!s:^5}|{x.shape} {[1, 'a']} {None}",
        "%s-%d-%5.1f" % (name, 3, value),
        "{} {0[0]} {k}".replace("{} ", "").format([7], k=2),
        ",".join(["a", "b"]),
        "a b".split(),
        "Abc".lower().startswith("a"),
        "x".center(5, "*"),
        "abc".partition("b"),
        b"ab" + b"c",
        "tEST".title(),
        str(x.dtype),
        f"{value:{'.1f'}}",
    )


@program(lambda: {"deep": [1, {"k": (2, 3)}]})
def test_copies(x: Tensor, given: dict):
    shallow, deep = copy.copy(given), copy.deepcopy(given)
    deep["deep"][1]["k"] = 0
    shallow["new"] = 1
    return x + 1, given, shallow, deep, shallow["deep"] is given["deep"]


@program()
def test_signature(x: Tensor):
    def f(a, b=2, *, c):
        return a

    return x + 1, [name for name in inspect.signature(tripled).parameters]


def _bound(a, b=2, *c, k=3, **d):
    """Bound in a region."""


SIGNATURE = inspect.signature(_bound)
PROXY = types.MappingProxyType({"a": 1, "b": 2})
CACHED_PARTIAL = functools.lru_cache(functools.partial(_bound, b=3))


@program()
def test_signatures_of_outside_bind(x: Tensor):
    bound = SIGNATURE.bind(x, 4, 5, k=7, z=8)
    bound.apply_defaults()
    return (
        bound.arguments["a"] * bound.arguments["k"],
        list(bound.arguments),
        bound.args[1:],
        sorted(bound.kwargs),
    )


@program()
def test_proxies_of_outside(x: Tensor):
    seen = dict(PROXY), list(PROXY.items()), len(PROXY), "a" in PROXY, PROXY.get("z", 3)
    return x + PROXY["a"], seen, CACHED_PARTIAL(4)


@program()
def test_annotations_of_functions_without(x: Tensor):
    @functools.wraps(len_of_nothing)
    def made(y):
        return y + 1

    return (
        made(x),
        made.__name__,
        made.__annotations__,
        made.__annotations__ is len_of_nothing.__annotations__,
    )


def len_of_nothing(y):
    return y


@program()
def test_comprehensions(x: Tensor):
    n = 2
    return (
        [x * i for i in range(n)],
        {i: j for i in range(3) if i for j in range(i)},
        {i % 2 for i in range(5)},
        [[i + j for j in range(2)] for i in range(2)],
        list(i for i in range(3) if i != 1),
        [y := 5, y + 1],
    )


@program()
def test_conditions(x: Tensor):
    a, b = 0, 5
    return (
        x + (a or b),
        a and b,
        a if b else b,
        not a,
        1 < b < 6 > 2,
        a is None,
        b in (1, 5),
        "z" not in "abc",
    )


@program()
def test_while_and_for_else(x: Tensor):
    n, log = 0, []
    while n < 5:
        n += 1
        if n == 2:
            continue
        for i in range(3):
            if i == n:
                break
        else:
            log.append(n)
    else:
        log.append("end")
    (a, *b), c = (1, 2, 3), 4
    return x + n, log, a, b, c


@program()
def test_star_of_what_is_no_iterable(x: Tensor):
    def local(*args, **kwargs):
        return args, kwargs

    log = []
    for call in (
        lambda: local(*3),
        lambda: local(1, *3),
        lambda: len(*3),
        lambda: local(**3),
        lambda: local(**{1: 2}),
    ):
        try:
            log.append(call())
        except TypeError as error:
            log.append(str(error))
    return x + 1, log


ROUNDS = 0


@program()
def test_the_globals_as_a_dictionary(x: Tensor):
    scope = globals()
    scope["ROUNDS"] = 2
    seen = [
        ROUNDS,
        "ABSENT" in scope,
        scope is double_globals.__globals__,
        double_globals(),
        scope.get("ABSENT", 3),
    ]
    scope["ABSENT"] = x
    seen += [ABSENT, globals().pop("ABSENT") is x, "ABSENT" in globals()]  # noqa: F821
    scope.update(ROUNDS=seen[0] + 5)
    return x + ROUNDS, seen, [name for name in scope if name == "ROUNDS"]


def double_globals():
    return globals()["ROUNDS"] * 2


@program(breaks=True)
def test_defaults_by_keyword_change(x: Tensor):
    def scaled(*, a=1, b=2):
        return a * b

    scaled.__kwdefaults__["b"] = 7
    del scaled.__kwdefaults__["a"]
    shifted.__kwdefaults__["by"] = 4
    return x + scaled(a=3), scaled.__kwdefaults__, shifted(x)


def shifted(x, *, by=1):
    return x + by


OUTSIDE = functools.partial(max, 2)
MARKED = functools.partial(max, 2)
MARKED.mark = 1


@program()
def test_partial_of_a_partial_is_one(x: Tensor):
    def f(a, b, *c, k=1, **m):
        return a, b, c, k, m

    inner = functools.partial(f, 1, k=5, z=3)
    outer = functools.partial(inner, 2, k=7)
    marked = functools.partial(f)
    marked.mark = 1
    kept = functools.partial(marked, 4)
    more = functools.partial(OUTSIDE, 3)
    log = [functools.partial(MARKED, 4).func is MARKED, functools.partial(MARKED, 4)(1)]
    shown = outer.func is f, outer.args, outer.keywords, kept.func is marked, more.func, more.args, more(1)
    return x + 1, shown, outer(9, w=4), inner.args, log


@program(lambda: 0)
def test_variables_of_closures_deleted_twice(x, n):
    def inner():
        nonlocal z
        del z

    z, caught, read = 1, [], lambda: n  # noqa: F821
    inner()
    try:
        inner()
    except NameError as error:
        caught.append((type(error), str(error)))
    try:
        for _ in range(2):
            del n
    except UnboundLocalError as error:
        caught.append(str(error))
    return x + 1, caught, callable(read)


ITEM = TypeVar("ITEM")


@program()
def test_annotations_are_subscripted(x: Tensor):
    """As in `torch.utils._pytree.map_only`."""

    def wrapper(fn: collections.abc.Callable[[ITEM], Any]) -> collections.abc.Callable[[Any], ITEM | None]:
        return fn

    return wrapper(torch.sin)(x), pytree.tree_map_only(Tensor, lambda leaf: leaf + 1, {"a": [x, 1], "b": x})
