"""Builtins with arguments that they refuse, or take although they are odd; the classes of iterators that leave a region.

In: calls as text. Out: one test per call. Always: results with their types, and exceptions (type and message), are
eager's.
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import graphlift
from tests.capture import odd_arguments

NAMES = {
    "itertools": itertools,
    "functools": functools,
    "types": types,
    "operator": operator,
    "collections": collections,
}
REFUSED = (
    "enumerate([1], start='a')",
    "enumerate([1], None)",
    "enumerate(x, 2.5)",
    "enumerate(object(), 'a')",
    "isinstance(1, 2)",
    "isinstance([1], 'a')",
    "isinstance(x, 1)",
    "isinstance('a', (int, 2))",
    "isinstance(1, (int, 2))",
    "type([1], start=1)",
    "super(int, 'a')",
    "str([1], 'a')",
    "str(b'abc', 'utf8')",
    "str(object(), object())",
    "sum(object(), 'a')",
    "functools.reduce(len)",
    "functools.reduce(max, 3)",
    "functools.reduce(max, [])",
    "functools.partial(1)",
    "types.MethodType(1, 2)",
    "types.MethodType(len, None)",
    "types.SimpleNamespace(1)",
    "operator.itemgetter()",
    "operator.attrgetter('a', 1)",
    "operator.methodcaller(1)",
    "collections.deque([1], 'a')",
    "collections.deque([1], -1)",
    "collections.deque(len, [1])",
    "itertools.count('a')",
    "itertools.count(1, None)",
    "itertools.repeat(1, 'a')",
    "itertools.repeat(1, times=None)",
    "itertools.islice([1], 'a')",
    "itertools.islice([1], -1)",
    "itertools.islice([1], 0, 2, 0)",
    "itertools.islice([1], 0, 2, 2.5)",
    "itertools.islice([1], 1.5, None)",
    "itertools.islice(3, 1)",
    "itertools.combinations([1], 'a')",
    "itertools.combinations([1], -1)",
    "itertools.permutations([1], 'a')",
    "itertools.permutations([1], -1)",
    "itertools.product([1], repeat='a')",
    "itertools.product([1], repeat=-1)",
    "itertools.product(1)",
    "itertools.chain.from_iterable(1)",
    "itertools.chain(1)",
    "itertools.zip_longest([1], 2)",
    "itertools.accumulate(3)",
    "itertools.starmap(len, 3)",
    "itertools.takewhile(3)",
    "itertools.pairwise(1)",
    "itertools.cycle()",
    "object(1)",
    "reversed(object())",
    "[1][10**30]",
    "['c'] in 'ab'",
    "2 in b'ab'",
    "slice(abs).stop",
    "types.MappingProxyType([1])",
)
ITERATORS = (
    *("iter([1, 2])", "iter((1, 2))", "iter('ab')", "iter({1, 2})", "iter({1: 2})", "iter({1: 2}.items())"),
    *("iter(range(3))", "reversed([1, 2, 3])", "reversed((1, 2))", "reversed('ab')", "reversed(range(4))"),
    *("reversed({1: 2, 3: 4})", "reversed({1: 2}.values())", "reversed(collections.deque([1, 2]))"),
    *("reversed(collections.OrderedDict(a=1, b=2))", "itertools.islice([1, 2, 3], 1, None)"),
    *(
        "itertools.product([1, 2], 'ab')",
        "itertools.combinations([1, 2, 3], 2)",
        "itertools.permutations('ab')",
    ),
    *(
        "itertools.combinations_with_replacement('ab', 2)",
        "itertools.chain([1], 'a')",
        "itertools.pairwise('abc')",
    ),
    *("itertools.chain.from_iterable([[1], 'a'])", "itertools.zip_longest([1], 'ab', fillvalue=0)"),
    *(
        "itertools.accumulate([1, 2])",
        "itertools.accumulate([1, 2], max, initial=3)",
        "itertools.repeat(1, 3)",
    ),
    *("itertools.starmap(pow, [(2, 3)])", "itertools.compress('abc', [1, 0, 1])", "itertools.cycle([1, 2])"),
    *("itertools.takewhile(bool, [1, 0])", "itertools.dropwhile(bool, [1, 0, 1])", "itertools.count(2.5, 2)"),
    *("itertools.filterfalse(None, [1, 0])", "zip([1], 'a')", "enumerate('ab', True)", "map(abs, [-1])"),
)


def shown(value: Any) -> Any:
    """What is compared: iterators by class and items."""
    if isinstance(value, tuple):
        return tuple(map(shown, value))
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Iterator):
        return type(value), [shown(item) for item in itertools.islice(value, 8)]
    if isinstance(value, (functools.partial, types.MethodType, super)):
        return type(value)
    return type(value), value


def outcomes(body: str) -> tuple[Any, Any]:
    """What eager and the compiled function give."""
    found = []
    for compiled in (False, True):
        scope = dict(NAMES, torch=torch, given=[1, 2])
        exec(f"def fn(x):\n    y = x + 1\n{body}\n    return y * 2, q\n", scope)
        fn = graphlift.compile(scope["fn"], backend="eager") if compiled else scope["fn"]
        try:
            found.append(shown(fn(torch.ones(2))))  # type: ignore[operator]
        except Exception as error:
            found.append((type(error), str(error)))
    return found[0], found[1]


def assert_alike(body: str) -> None:
    expected, found = outcomes(body)
    assert found == expected


@pytest.mark.parametrize("call", REFUSED)
def test_caught(call: str) -> None:
    expected, found = outcomes(
        f"    try:\n        q = {call}\n    except Exception as error:\n        q = type(error).__name__, str(error)"
    )
    assert found == expected


@pytest.mark.parametrize("call", REFUSED)
def test_raised(call: str) -> None:
    expected, found = outcomes(f"    q = {call}")
    assert found == expected


@pytest.mark.parametrize("taken", range(3))
@pytest.mark.parametrize("call", ITERATORS)
def test_iterators(call: str, taken: int) -> None:
    """The class and the rest of an iterator that leaves the region, some items taken, once across a break."""
    for breaks in ("", "    torch._dynamo.graph_break()\n"):
        body = f"    q = {call}\n" + "    next(q, None)\n" * taken + breaks + "    q = q, type(q).__name__"
        expected, found = outcomes(body)
        assert found == expected


@pytest.mark.parametrize("call", ITERATORS)
def test_iterators_seen_by_c_functions(call: str) -> None:
    """What C code gets to see after a break is the program's own iterator."""
    body = f"    q = repr({call}).split(' at ')[0], operator.length_hint({call})"
    assert_alike(body)


def test_islice_takes_what_it_skips() -> None:
    body = "    it = iter(range(10))\n    q = list(itertools.islice(it, 0, 4, 3)), next(it), list(itertools.islice(it, 5, 2)), next(it)"
    assert_alike(body)


def test_zip_longest_takes_turns() -> None:
    body = "    it = itertools.zip_longest([1, 2], itertools.count())\n    q = next(it), next(it), next(it)"
    assert_alike(body)


def test_mapping_proxy() -> None:
    """A proxy shows the dict that it was made of, and cannot be changed."""
    body = (
        "    a = {'b': 1}\n    p = types.MappingProxyType(a)\n    a['c'] = 2\n    try:\n        p['d'] = 1\n"
        "    except TypeError as error:\n        text = str(error)\n"
        "    q = text, type(p), len(p), list(p.items()), p.get('z', 3), 'b' in p, p['c'], repr(p), p == a, p, {**p}"
    )
    assert_alike(body)


def test_reversed_list_is_live() -> None:
    body = "    a = [1, 2, 3]\n    it = reversed(a)\n    a.append(4)\n    q = next(it), a.pop(), a.pop(), a.pop(), next(it, 0), it"
    assert_alike(body)


@pytest.mark.parametrize(
    "over", ["a", "reversed(a)", "list(a)", "reversed(tuple(a))", "itertools.product(a, a)"]
)
def test_loops_over_what_grows(over: str) -> None:
    body = (
        f"    a = given\n    q = []\n    for item in {over}:\n        if len(a) < 6:\n            a.append(3)\n"
        "        torch._dynamo.graph_break()\n        q.append((item, len(a)))"
    )
    assert_alike(body)


def test_stop_iteration_inside() -> None:
    """A StopIteration of a function ends an iterator of C; a generator would make a RuntimeError of it."""
    body = "    def f(a):\n        raise StopIteration\n    q = list(itertools.takewhile(f, [1, 2]))"
    assert_alike(body)


def test_unbound_after_a_break() -> None:
    """A variable shared with a closure, read while unbound, is a local one where it is one."""
    body = (
        "    def inner():\n        return z\n    found = []\n    torch._dynamo.graph_break()\n"
        "    for read in (lambda: None, inner):\n        try:\n            read() or z\n"
        "        except NameError as error:\n            found.append((type(error), str(error)))\n"
        "        torch._dynamo.graph_break()\n    q = found\n    if y is None:\n        z = 1"
    )
    expected, found = outcomes(body)
    assert found == expected
    assert [kind for kind, _ in expected[1][1]] == [UnboundLocalError, NameError]


@pytest.mark.parametrize("callee", odd_arguments.CALLEES)
def test_sweep(callee: str) -> None:
    """A few of the calls that ``python -m tests.capture.odd_arguments`` makes: others for each callee."""
    start = odd_arguments.CALLEES.index(callee) % 16
    assert not odd_arguments.differences(callee, odd_arguments.ARGUMENTS[start::16])
