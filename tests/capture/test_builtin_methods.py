"""Every method of every builtin class, with arguments that fit and arguments that do not.

In: the classes' own `dir()`. Out: one test per receiver. Always: one graph, and results, changes of the receiver and
exceptions (type and message) are eager's.
"""

from __future__ import annotations

import builtins
import collections
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import graphlift
from tests.capture.program import CountingBackend

RECEIVERS = (
    "'abcab'",
    "' Hello World 12 '",
    "b'abcab'",
    "[3, 1, 2, 1]",
    "['b', 'a']",
    "(3, 1, 2, 1)",
    "{'a': 1, 'b': 2}",
    "{1, 2, 3}",
    "frozenset({1, 2, 3})",
    "range(10, 0, -3)",
    "slice(1, 5, 2)",
    "-5",
    "2.5",
    "1 + 2j",
    "True",
    "collections.deque([3, 1, 2], 4)",
    "collections.OrderedDict(a=1, b=2)",
)
ARGUMENTS = (
    *("", "1", "'a'", "0, 2", "None", "[1, 2]", "'a', 'b'", "-1", "1, 'z'", "{'a': 5}", "(3, 1)", "{1, 7}"),
    *("frozenset([1])", "'b', 0, 5", "2, 9", "b'a'", "1, 2, 3, 4"),
)
#: They make, describe or rebuild the object itself, or show where it is in memory.
LEFT_OUT = frozenset(
    "__init__ __new__ __init_subclass__ __subclasshook__ __class__ __getnewargs__ __sizeof__ __reduce__ __reduce_ex__ "
    "__getstate__ __dir__ __alloc__ __setattr__ __delattr__ __class_getitem__ __hash__ __doc__ __reversed__".split()
)
#: Which item goes is up to the set.
ARBITRARY = {(set, "pop")}
SOURCE = """
def fn(x, collections=collections):
    y = x + 1
    log = []
{calls}
    return y * 2, log
"""
CALL = """
    try:
        q = {receiver}
        log.append((q, q.{method}({arguments})))
    except Exception as error:
        log.append((type(error), str(error)))
"""


def shown(value: Any) -> Any:
    """Comparable, with the type: what an iterator has left, floats by their text."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Iterator):
        return type(value), [shown(item) for item in value]
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value), [shown(item) for item in value]
    if isinstance(value, (dict, set, frozenset)):
        items = list(value.items()) if isinstance(value, dict) else sorted(value, key=repr)
        return type(value), [shown(item) for item in items]
    if type(value).__name__ in (
        "dict_keys",
        "dict_values",
        "dict_items",
        "odict_keys",
        "odict_values",
        "odict_items",
    ):
        return type(value).__name__.removeprefix("o"), [shown(item) for item in value]
    if type(value).__module__ == "builtins" and callable(value):
        return value if isinstance(value, type) else value.__name__
    return type(value), repr(value)


def methods(receiver: str) -> list[str]:
    cls = type(eval(receiver, {"collections": collections}))
    return [
        name
        for name in dir(cls)
        if name not in LEFT_OUT and callable(getattr(cls, name)) and (cls, name) not in ARBITRARY
    ]


@pytest.mark.parametrize("receiver", RECEIVERS)
def test_methods(receiver: str, compiler):
    for method in methods(receiver):
        calls = "".join(CALL.format(receiver=receiver, method=method, arguments=each) for each in ARGUMENTS)
        space: dict[str, Any] = {"collections": collections, "__builtins__": builtins}
        exec(compile(SOURCE.format(calls=calls), f"<captured {method}>", "exec"), space)
        fn, backend = space["fn"], CountingBackend()
        compiled = compiler.compile(fn, backend=backend)
        for start in (0.0, 1.0):
            expected, got = fn(torch.tensor([start])), compiled(torch.tensor([start]))
            assert shown(got) == shown(expected), method
        if compiler.name != "eager":
            assert len(backend.graphs) == 1, method


def test_dicts_are_made_of_lists_and_iterators():
    """C code asks them how many items are left, only to make room."""

    def fn(x: torch.Tensor) -> Any:
        found = dict([["a", x + 1], iter(("b", 2))])
        found.update(iter([["c", 3], reversed((4, "d"))]))
        return found, dict(zip("ef", iter([5, 6])))

    compiled = graphlift.compile(fn, backend="eager", fullgraph=True)
    assert shown(compiled(torch.ones(2))) == shown(fn(torch.ones(2)))
