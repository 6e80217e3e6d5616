"""Builtins and functions of the library with arguments of every kind: wrong types, too many, odd values.

In: names of callables and texts of argument lists. Out: the calls at which compiled differs from eager; run as a
module (``python -m tests.capture.odd_arguments [WORD]``) it makes all calls and prints these.
Always: the same calls in every process; results with their types, exceptions and what became of arguments are compared.
"""

from __future__ import annotations

import collections
import copy
import functools
import heapq
import itertools
import math
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

import graphlift

SPACE = {
    module.__name__: module
    for module in (collections, copy, functools, heapq, itertools, math, operator, types, torch)
}
BUILTINS = (
    "abs all any ascii bin bool bytes callable chr complex dict divmod enumerate filter float format frozenset getattr "
    "hasattr hex int isinstance issubclass iter len list map max min next object oct ord pow range repr reversed round "
    "set setattr slice sorted str sum super tuple type vars zip delattr"
).split()
LIBRARY = (
    "collections.Counter collections.OrderedDict collections.defaultdict collections.deque collections.ChainMap "
    "collections.UserDict collections.UserList collections.namedtuple functools.partial functools.reduce "
    "functools.cmp_to_key heapq.heappush heapq.heappop heapq.heapify heapq.nlargest itertools.accumulate itertools.chain "
    "itertools.chain.from_iterable itertools.combinations itertools.compress itertools.count itertools.cycle "
    "itertools.dropwhile itertools.filterfalse itertools.groupby itertools.islice itertools.pairwise itertools.permutations "
    "itertools.product itertools.repeat itertools.starmap itertools.takewhile itertools.tee itertools.zip_longest math.ceil "
    "math.floor math.gcd math.isclose math.log math.prod math.sqrt math.fsum math.ldexp operator.add operator.attrgetter "
    "operator.contains operator.getitem operator.index operator.itemgetter operator.methodcaller operator.mul operator.concat "
    "operator.setitem operator.delitem operator.countOf operator.length_hint types.MethodType types.SimpleNamespace "
    "types.MappingProxyType copy.copy copy.deepcopy str.join str.format str.split str.replace 'a{}b'.format 'ab'.join "
    "list.append list.insert list.sort list.index dict.get dict.pop dict.update dict.fromkeys dict.setdefault set.add "
    "set.union set.update tuple.index int.from_bytes int.to_bytes float.fromhex bytes.fromhex str.maketrans range.index "
    "slice.indices [3,1].sort {1:2}.get {1:2}.pop {1,2}.union (1,2).count range(3).index slice(1,5).indices 'abc'.find "
    "b'ab'.split [1].extend [1,2].pop {1:2}.update"
).split()
CALLEES = (*BUILTINS, *LIBRARY)
ARGUMENTS = (
    *("", "None", "1", "-1", "0", "2.5", "True", "'a'", "''", "'abc'", "b'ab'", "1j", "[]", "[1, 2]", "['a', 'b']", "()"),
    *("(1, 2)", "{}", "{'a': 1}", "{1: 2}", "{1, 2}", "frozenset([1])", "range(3)", "slice(1, 2)", "int", "str", "len"),
    *("lambda *a: 0", "object()", "x", "[x]", "[[1], [2]]", "[(1, 2), (3, 4)]", "..." , "float('nan')", "float('inf')"),
    *("10**30", "iter([1, 2])", "(i for i in [1, 2])", "[1, 'a']", "[None]", "NotImplemented", "Odd()", "Odd"),
    *("1, 2", "'a', 'b'", "[1, 2], [3]", "[1, 2], 1", "[1, 2], 'a'", "1, [1, 2]", "'a', [1]", "None, [0, 1]", "int, ['1']"),
    *("len, ['ab']", "operator.add, [1, 2]", "[3, 1], None", "{'a': 1}, 'a'", "{'a': 1}, 'b'", "'abc', 'b'", "'a', 1"),
    *("2, 2.5", "0, 0", "1, 0", "x, 1", "1, x", "Odd(), 'a'", "Odd(), 'v'", "[1, 2], 0, 5", "1, 2, 3", "'abc', 'b', 'z'"),
    *("{'a': 1}, 'b', 3", "Odd(), 'z', 3", "Odd(), 'z', x", "[1, 2], 1, 1", "operator.add, [1, 2], 3", "1, 2, 3, 4"),
    *("[1], [2], [3], [4]", "a=1", "1, a=1", "[3, 1], key=None", "[3, 1], reverse=True", "[3, 1], key=lambda v: -v"),
    *("[], default=3", "*[1, 2]", "**{'a': 1}", "[1, 2], start=1", "[1, 2], strict=True", "'a', sep='b'", "1, base=2"),
)  # fmt: skip
HEAD = '''
class Odd:
    """Has attributes, a length that is wrong, and an order."""
    v = 1
    def __len__(self):
        return -1
    def __lt__(self, other):
        return NotImplemented
    def __eq__(self, other):
        return self is other
    __hash__ = object.__hash__

def fn(x):
    y = x + 1
    log = []
'''
#: The results are looked at while capturing: iterators are part of the result as what they give.
CALL = """
    try:
        q = {callee}({arguments})
        log.append(q)
    except Exception as error:
        log.append((type(error), str(error)))
"""
BATCH = 8
#: CPython's message has the class's name or not, by the instruction that made the call.
KNOWN = frozenset(("{1,2}.union(**{'a': 1})", "'abc'.find(**{'a': 1})"))


def shown(value: Any, depth: int = 0) -> Any:
    """What is compared: results with their types; of iterators, what they have left."""
    kind = type(value).__name__
    if depth > 4:
        return kind
    if isinstance(value, torch.Tensor):
        return kind, value.tolist()
    if isinstance(value, Iterator):
        return kind, _left(value, depth)
    if isinstance(value, dict):
        return kind, [(shown(k, depth + 1), shown(v, depth + 1)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, sorted((shown(item, depth + 1) for item in value), key=repr)
    if isinstance(value, (list, tuple, collections.deque)):
        return kind, [shown(item, depth + 1) for item in value]
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return kind, value.__qualname__
    if hasattr(value, "__dict__") and not isinstance(value, types.ModuleType):
        return kind, shown(vars(value), depth + 1)
    text = repr(value)
    return kind, kind if " at 0x" in text else text


def _left(value: Iterator[Any], depth: int) -> list[Any]:
    found: list[Any] = []
    try:
        for item in itertools.islice(value, 5):
            found.append(shown(item, depth + 1))
    except Exception as error:
        found.append((type(error).__name__, str(error)))
    return found


def outcome(fn: Callable[..., Any]) -> list[Any]:
    return [shown(item) for item in fn(torch.ones(2))[1]]


def function(callee: str, arguments: Iterable[str]) -> Callable[..., Any]:
    space: dict[str, Any] = {**SPACE, "__name__": "program"}
    calls = "".join(CALL.format(callee=callee, arguments=each) for each in arguments)
    exec(compile(f"{HEAD}{calls}\n    return y * 2, log\n", "<program>", "exec"), space)
    return space["fn"]  # type: ignore[no-any-return]


def differences(callee: str, arguments: tuple[str, ...]) -> list[tuple[str, Any, Any]]:
    """The calls whose outcome is not eager's; many are made in one function first, then each of those that differ."""
    expected, again = (outcome(function(callee, arguments)) for _ in range(2))
    if len(arguments) == 1 and (again != expected or f"{callee}({arguments[0]})" in KNOWN):
        return []
    try:
        found: Any = outcome(graphlift.compile(function(callee, arguments), backend="eager"))
    except Exception as error:
        found = [f"{type(error).__name__}: {error}"]
    graphlift.reset()
    if len(arguments) == 1:
        call = f"{callee}({arguments[0]})"
        return [] if found == expected else [(call, expected, found)]
    if found == expected:
        return []
    return [each for one in arguments for each in differences(callee, (one,))]


def batches() -> Iterator[tuple[str, tuple[str, ...]]]:
    for callee in CALLEES:
        for start in range(0, len(ARGUMENTS), BATCH):
            yield callee, ARGUMENTS[start : start + BATCH]


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    calls, wrong = 0, 0
    for callee, arguments in batches():
        if word not in callee:
            continue
        calls += len(arguments)
        for call, expected, found in differences(callee, arguments):
            wrong += 1
            print(f"{call}\n  eager     {expected}\n  graphlift {found}", flush=True)
    print(f"{calls} calls, {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
