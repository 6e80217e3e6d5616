"""A graph break inside a function that an operation leads to: as eager, and the regions on both sides are the caller's.

In: forms of operations, ways in which what they lead to goes on after the break, and places around the operation. Out:
values, effects in order, exceptions with their lines, all as eager; and the number of graphs, that of a plain call.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import sys
import traceback
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor

import graphlift
from benchmarks.compilers import Compiler
from tests.equality import assert_equal

LOG: list[Any] = []
GENERATED = __file__.replace(".py", "_generated.py")


def shown(value: Any) -> Any:
    return value if isinstance(value, (int, str, bool, type(None))) else type(value).__name__


def of_what(error: Exception) -> Any:
    """What an AttributeError says that it is of; from 3.12 on that depends on whether the interpreter ran hot."""
    if sys.version_info >= (3, 12):
        return None
    return getattr(error, "name", 0), shown(getattr(error, "obj", 0))


class Answer:
    """What an operation leads to: it computes, breaks, and goes on in one of the `WAYS`."""

    def __init__(self, x: Tensor, way: str) -> None:
        vars(self).update(x=x, way=way)

    def act(self, name: str, given: Any = 1, special: Any = None) -> Any:
        y = vars(self)["x"] + given
        LOG.append((name, "before"))
        graphlift.graph_break()
        z = y * 2
        LOG.append((name, "after", shown(given)))
        return WAYS[vars(self)["way"]](z) if special is None else special(z, vars(self)["way"])


def raising(error: Callable[[], Exception]) -> Callable[[Tensor], Any]:
    def way(value: Tensor) -> Any:
        raise error()

    return way


#: How the callee goes on after the break.
WAYS: dict[str, Callable[[Tensor], Any]] = {
    "value": lambda value: value,
    "again": lambda value: (graphlift.graph_break(), value + 1)[1],
    "refuses": lambda value: NotImplemented,
    "odd": lambda value: 3,
    "fails": raising(lambda: ValueError("bad")),
    "misses": raising(lambda: AttributeError("gone")),
    "misses a name": raising(lambda: AttributeError("gone", name="other", obj=3)),
    "ends": raising(StopIteration),
}


def either(good: Any, bad: Any) -> Callable[[Tensor, str], Any]:
    """What a special method returns that the interpreter expects one type of."""
    return lambda value, way: good if way == "value" else bad if way == "refuses" else WAYS[way](value)


as_truth = either(True, [True])
as_text = either("text", 3)


class Operand(Answer):
    def method(self) -> Any:
        return self.act("method")

    @property
    def prop(self) -> Any:
        return self.act("get")

    @prop.setter
    def prop(self, value: Any) -> None:
        self.act("set", value)

    def __neg__(self) -> Any:
        return self.act("neg")

    def __add__(self, other: Any) -> Any:
        return self.act("add", 2)

    def __rsub__(self, other: Any) -> Any:
        return self.act("rsub", 2)

    def __lt__(self, other: Any) -> Any:
        return self.act("lt", 2)

    def __eq__(self, other: Any) -> Any:
        return self.act("eq", 2)

    def __getitem__(self, index: Any) -> Any:
        return self.act("getitem", 2)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.act("setitem", value)

    def __contains__(self, item: Any) -> Any:
        return self.act("contains", 2, as_truth)

    def __bool__(self) -> bool:
        return self.act("bool", 2, as_truth)  # type: ignore[no-any-return]

    def __call__(self, *args: Any) -> Any:
        return self.act("call", *args)

    def __enter__(self) -> Any:
        return self.act("enter")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        LOG.append(("exit", kind))


class Asked(Operand):
    """What builtins ask for."""

    __bool__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.act("len", 2, either(2, -1))  # type: ignore[no-any-return]

    def __iter__(self) -> Any:
        return self.act("iter", 2, lambda value, way: either(iter([1, 2]), [1, 2])(value, way))

    def __next__(self) -> Any:
        return self.act("next", 2)

    def __reversed__(self) -> Any:
        return self.act("reversed", 2)

    def __str__(self) -> str:
        return self.act("str", 2, as_text)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return self.act("repr", 2, as_text)  # type: ignore[no-any-return]

    def __format__(self, spec: str) -> str:
        return self.act("format " + spec, 2, as_text)  # type: ignore[no-any-return]

    def __int__(self) -> int:
        return self.act("int", 2, either(5, "5"))  # type: ignore[no-any-return]

    def __abs__(self) -> Any:
        return self.act("abs", 2)

    def __iadd__(self, other: Any) -> Any:
        return self.act("iadd", 2)


class Sized(Operand):
    __bool__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.act("len", 2, either(2, -1))  # type: ignore[no-any-return]


del Asked.__bool__, Sized.__bool__


class Plain(Answer):
    """Its text is that of its ``__repr__``."""

    def __repr__(self) -> str:
        return self.act("repr", 2, as_text)  # type: ignore[no-any-return]


class Deleting(Operand):
    @property
    def gone(self) -> Any:
        return None

    @gone.deleter
    def gone(self) -> None:
        self.act("del")

    def __delitem__(self, index: Any) -> None:
        self.act("delitem")


class DeletingAll(Operand):
    def __delattr__(self, name: str) -> None:
        self.act(f"delattr {name}")


class Giving(Answer):
    """What is iterated over, and functions that builtins call again and again."""

    def items(self) -> Any:
        for given in range(2):
            yield self.act("item", given)
            LOG.append(("gave", given))

    def body(self) -> Any:
        for given in range(2):
            y = vars(self)["x"] + given
            LOG.append(("body", "before"))
            graphlift.graph_break()
            LOG.append(("body", "after"))
            yield WAYS[vars(self)["way"]](y * 2)

    def tried(self) -> Any:
        for given in range(2):
            try:
                y = self.act("tried", given)
                LOG.append("inside")
                yield y
            except (ValueError, TypeError) as error:
                LOG.append((type(error), str(error)))
            finally:
                LOG.append("closed")

    def refusing(self) -> Any:
        try:
            print(end=vars(self)["x"] is None or 3)  # type: ignore[call-overload]
        except TypeError as error:
            LOG.append((type(error), str(error)))
            yield 5
        yield self.act("after")

    def rank(self, given: int) -> Any:
        return -given if self.act("rank", given) is not None else 0

    def joined(self, left: Any, right: Any) -> Any:
        return self.act("joined", right)


class Iterating(Answer):
    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        given = vars(self)["given"] = vars(self).get("given", 0) + 1
        y = self.act("next", given)
        if given > 2:
            raise StopIteration
        return y


class Inherited(Operand):
    """It reaches over itself for what `Operand` has."""

    @property
    def own(self) -> Any:
        return super().prop

    def calls(self) -> Any:
        return super().prop.add(1)


class Hooked(Operand):
    """A lookup that misses asks `__getattr__`; what is set goes through `__setattr__`."""

    def __getattr__(self, name: str) -> Any:
        return self.act(f"getattr {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        self.act(f"setattr {name}", value)


class Through(Operand):
    def __getattribute__(self, name: str) -> Any:
        if name != "shown":
            return object.__getattribute__(self, name)
        return Answer.act(self, "getattribute")


class Descriptor:
    def __get__(self, obj: Any, cls: Any) -> Any:
        return obj.act("descriptor")

    def __set__(self, obj: Any, value: Any) -> None:
        obj.act("set descriptor", value)


class Described(Operand):
    shown = Descriptor()


class Module(torch.nn.Module, Operand):
    """Its `__getattr__` is torch's."""

    def __init__(self, x: Tensor, way: str) -> None:
        super().__init__()
        Answer.__init__(self, x, way)

    __setattr__ = object.__setattr__
    __call__ = Operand.__call__


class Made(Answer):
    def __init__(self, x: Tensor, way: str) -> None:
        Answer.__init__(self, x, way)
        self.act("init")


class New:
    def __new__(cls, x: Tensor, way: str) -> Any:
        Answer(x, way).act("new")
        made = object.__new__(cls)
        vars(made)["way"] = way
        return made


class NewAndInit(New):
    def __init__(self, x: Tensor, way: str) -> None:
        LOG.append("init")
        Answer(x, "odd" if way == "odd" else "value").act("init")
        if way == "refuses":
            raise ValueError("refused")


class NewOfAnother:
    def __new__(cls, x: Tensor, way: str) -> Any:
        return Answer(x, way).act("new")

    def __init__(self, x: Tensor, way: str) -> None:
        raise AssertionError("an object of another class is not initialised")


#: A class and what a statement does with an instance `t`.
FORMS: dict[str, tuple[Any, str]] = {
    "method": (Operand, "r = t.method()"),
    "property": (Operand, "r = t.prop"),
    "property of a module": (Module, "r = t.prop"),
    "property behind a hook": (Hooked, "r = t.prop"),
    "called property": (Operand, "r = t.prop.add(1)"),
    "set property": (Operand, "t.prop = x"),
    "getattr": (Hooked, "r = t.other"),
    "setattr": (Hooked, "t.other = x"),
    "getattribute": (Through, "r = t.shown"),
    "descriptor": (Described, "r = t.shown"),
    "set descriptor": (Described, "t.shown = x"),
    "negative": (Operand, "r = -t"),
    "add": (Operand, "r = t + 1"),
    "reflected": (Operand, "r = 1 - t"),
    "add in place": (Operand, "r = t; r += 1"),
    "less": (Operand, "r = t < 1"),
    "equal": (Operand, "r = t == 1"),
    "item": (Operand, "r = t[0]"),
    "slice": (Operand, "r = t[0:1]"),
    "set item": (Operand, "t[0] = x"),
    "set slice": (Operand, "t[0:1] = x"),
    "contains": (Operand, "r = 1 in t"),
    "not contains": (Operand, "r = 1 not in t"),
    "not": (Operand, "r = not t"),
    "if": (Operand, "r = 1 if t else 2"),
    "while": (Operand, "r = [1]\n{indent}while t and len(r) < 2: r.append(1)"),
    "and": (Operand, "r = bool(x is None or t and 2)"),
    "call": (Operand, "r = t(1)"),
    "with": (Operand, "with t as r: LOG.append('inside')"),
    "init": (Made, "r = type(t)(x, WAY)"),
    "new": (New, "r = type(t)(x, WAY)"),
    "len": (Asked, "r = len(t)"),
    "bool": (Operand, "r = bool(t)"),
    "bool by length": (Sized, "r = bool(t)"),
    "if by length": (Sized, "r = 1 if t else 2"),
    "not by length": (Sized, "r = not t"),
    "iter": (Asked, "r = next(iter(t))"),
    "for": (Asked, "r = 0\n{indent}for i in t: r = r + i"),
    "next": (Asked, "r = next(t)"),
    "reversed": (Asked, "r = reversed(t)"),
    "str": (Asked, "r = str(t)"),
    "str by repr": (Plain, "r = str(t)"),
    "repr": (Asked, "r = repr(t)"),
    "format": (Asked, "r = format(t, '>3')"),
    "format by repr": (Plain, "r = format(t)"),
    "text": (Asked, "r = f'a {{t}} b'"),
    "text with a width": (Asked, "r = f'{{t:>9}}'"),
    "converted text": (Asked, "r = f'{{t!r:>9}}{{1}}'"),
    "converted": (Asked, "r = f'{{t!s}}'"),
    "int": (Asked, "r = int(t)"),
    "abs": (Asked, "r = abs(t)"),
    "inplace": (Asked, "r = t; r += 1"),
    "getattr by name": (Operand, "r = getattr(t, 'prop')"),
    "setattr by name": (Hooked, "r = setattr(t, 'other', x)"),
    "delattr by name": (DeletingAll, "r = delattr(t, 'other')"),
    "del": (DeletingAll, "del t.other"),
    "del property": (Deleting, "del t.gone"),
    "del item": (Deleting, "del t[0]"),
    "super": (Inherited, "r = t.own"),
    "method of super": (Inherited, "r = t.calls()"),
    "for generator": (Giving, "for r in t.items(): LOG.append('round')"),
    "for body": (Giving, "for r in t.body(): LOG.append('round')"),
    "left loop": (Giving, "for r in t.body(): break"),
    "for tried": (Giving, "for r in t.tried(): LOG.append('round')"),
    "for refusing": (Giving, "for r in t.refusing(): LOG.append('round')"),
    "generator kept": (Giving, "g = t.body()\n{indent}r = [next(g), next(g, None), next(g, None)]"),
    "loop over kept": (Giving, "g = t.body()\n{indent}r = [0 for r in g]"),
    "list of generator": (Giving, "r = list(t.items())"),
    "tuple of body": (Giving, "r = tuple(t.body())"),
    "sum of generator": (Giving, "r = sum(t.items())"),
    "any of body": (Giving, "r = any(v is None for v in t.body())"),
    "generator expression": (Giving, "r = sum(t.rank(i) for i in range(2))"),
    "all of expression": (Giving, "r = all(t.rank(i) is None for i in [1, 2])"),
    "delegated": (Giving, "r = list((lambda: (yield from t.body()))())"),
    "enumerated": (Giving, "for i, r in enumerate(t.body()): LOG.append(i)"),
    "sorted": (Giving, "r = sorted([2, 1, 3], key=t.rank)"),
    "sorted by function": (Giving, "r = sorted([2, 1, 3], key=lambda i: t.rank(i), reverse=True)"),
    "max": (Giving, "r = max([2, 1], key=t.rank)"),
    "max of generator": (Giving, "r = max((i for i in range(2)), key=t.rank)"),
    "min": (Giving, "r = min(2, 1, key=lambda i: t.rank(i))"),
    "reduce": (Giving, "r = reduce(t.joined, [0, 1, 2])"),
    "reduce with a start": (Giving, "r = reduce(t.joined, range(2), x)"),
    "for iterator": (Iterating, "for r in t: LOG.append('round')\n{indent}else: LOG.append('else')"),
    "left iterator": (Iterating, "for r in t: break"),
    "sum of iterator": (Iterating, "r = sum(t)"),
    "iterated in an expression": (Iterating, "r = [v for v in t]"),
    "new and init": (NewAndInit, "r = type(t)(x, WAY)"),
    "argument": (Operand, "r = torch.stack([t.prop * 1, x])"),
    "nested": (Operand, "r = t[t.prop, 1 if t else 2]"),
}
#: Forms whose result leads to others, and those that have two breaks.
DEEPER = {"and", "while", "nested", "init", "new", "new and init"}
DEEPER |= {form for form in FORMS if FORMS[form][0] in (Giving, Iterating)}

AROUND = {
    "bare": "{form}",
    "tried": """\
try:
        {form}
    except Exception as error:
        LOG.append((type(error), str(error), of_what(error)))
        r = y + 1
    else:
        y = y + 2
    finally:
        LOG.append("finally")
        y = y * 2""",
    "managed": """\
for i in range(2):
        with torch.no_grad():
            y = y + i
            {form}
            LOG.append(torch.is_grad_enabled())""",
}


def source(form: str, around: str) -> str:
    indent = {"bare": " " * 4, "tried": " " * 8, "managed": " " * 12}[around]
    statement = FORMS[form][1].format(indent=indent).replace("WAY", "vars(t)['way']")
    body = AROUND[around].format(form=statement)
    return f"""
def inner(t, x):
    r, y = None, x - 1
    {body}
    z = y * 3
    return r, z, x + z
"""


def made(form: str, around: str) -> FunctionType:
    """The function, in a file that tracebacks show."""
    filename = f"{GENERATED}/{form}/{around}"
    text = source(form, around)
    linecache.cache[filename] = len(text), None, text.splitlines(True), filename
    space: dict[str, Any] = {"torch": torch, "LOG": LOG, "of_what": of_what, "reduce": functools.reduce}
    exec(compile(text, filename, "exec"), space)
    return space["inner"]  # type: ignore[no-any-return]


def outside(inner: Any, cls: Any) -> Any:
    def caller(x: Tensor, way: str, t: Any) -> Any:
        return inner(t, x + 1)

    return caller


def inside(inner: Any, cls: Any) -> Any:
    def caller(x: Tensor, way: str, t: Any) -> Any:
        y = x * 2
        made = cls(y, way)
        return inner(made, y), y - 1

    return caller


def lines(error: BaseException) -> list[Any]:
    frames = traceback.extract_tb(error.__traceback__)
    behind = [lines(e) for e in (error.__cause__, error.__context__) if e is not None]
    return [(f.name, f.lineno) for f in frames if f.filename.startswith(__file__[:-3])] + behind


def outcome(fn: Any, cls: Any, way: str, value: float) -> Any:
    LOG.clear()
    x = torch.arange(3.0) + value
    t = cls(x, "value" if cls in (Made, New, NewAndInit) else way)
    LOG.clear()
    try:
        result: Any = fn(x, way, t)
    except Exception as error:
        result = "raised", type(error), str(error), of_what(error), lines(error)[1:]
    if isinstance(result, tuple) and isinstance(result[0], Answer | New):
        result = shown(result[0]), *result[1:]
    return result, list(LOG)


def check(form: str, around: str, way: str, caller: Any, compiler: Compiler) -> None:
    cls = FORMS[form][0]
    fn = caller(made(form, around), cls)
    compiled = compiler.compile(fn, backend=lambda gm, inputs: gm.forward)
    for value in (1.0, 2.0):
        expected = outcome(fn, cls, way, value)
        assert_equal(outcome(compiled, cls, way, value), expected)


@pytest.mark.parametrize("form", FORMS)
def test_as_eager(form: str, compiler: Compiler) -> None:
    every = list(itertools.product(AROUND, WAYS, (outside, inside)))
    for around, way, caller in every[list(FORMS).index(form) % 5 :: 5]:
        check(form, around, way, caller, compiler)


@pytest.mark.parametrize("form", [form for form in FORMS if form not in DEEPER])
def test_keeps_the_regions_of_the_caller(form: str) -> None:
    """The operations before the operation and those before the break are one graph, and so are those behind."""
    cls = FORMS[form][0]
    fn = inside(made(form, "bare"), cls)
    x = torch.arange(3.0)
    assert graphlift.explain(fn)(x, "value", cls(x, "value")).graph_count == 2


@pytest.mark.parametrize("way", WAYS)
def test_new_that_returns_an_object_of_another_class(way: str, compiler: Compiler) -> None:
    def makes(x: Tensor, way: str, t: Any) -> Any:
        return NewOfAnother(x + 1, way=way), x - 1

    compiled = compiler.compile(makes, backend=lambda gm, inputs: gm.forward)
    for value in (1.0, 2.0):
        assert_equal(outcome(compiled, Operand, way, value), outcome(makes, Operand, way, value))
