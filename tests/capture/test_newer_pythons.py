"""What CPython 3.12 and 3.13 added, as eager has it: syntax that older ones do not parse, sums, messages."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.program import program

# Syntax of 3.12: type parameters (PEP 695), quotes and lines inside f-strings (PEP 701).
SYNTAX = """
import functools

def ident[T](x: T, *more: T) -> T:
    return x

class Box[T]:
    def __init__(self, v: T):
        self.v = v
    def get(self) -> T:
        return self.v * 2
    def both[U](self, u: U) -> tuple[T, U]:
        return self.v, u

class Sub(Box[int]):
    def get(self):
        return super().get() + 1

type Alias[K] = dict[str, K]

def generic_function(x):
    return ident(x) + 1, ident.__type_params__[0].__name__, Alias.__name__

def generic_class(x):
    b = Sub(x)
    return b.get(), b.both(3)[1], Box[int](x).get()

def generic_function_made_here(x):
    y = x * 2
    def local[T](a: T, b=2) -> T:
        return a + b
    return local(y), local.__type_params__[0].__name__

def generic_function_with_keyword_defaults(x):
    y = x * 2
    def both[T](a: T, b=3, *, c=y, d=4) -> T:
        return a + b + c + d
    def alone[T](a: T, *, c=5) -> T:
        return a + c
    return both(x), alone(x), both.__defaults__, both.__kwdefaults__, alone.__kwdefaults__

def generic_class_made_here(x):
    class L[T]:
        def m(self, a: T):
            return a * 3
    return L().m(x + 1), [p.__name__ for p in L.__type_params__]

def alias_made_here(x):
    y = x + 1
    type Loc = list[int]
    return y * 2, Loc.__name__, Loc.__value__

def wrapped(x):
    def fn(a):
        return a * 2
    made = functools.wraps(fn)(lambda a: fn(a) + 1)
    return made(x), made.__type_params__

def f_strings(x):
    n, d = 3, {"a": [1, 2]}
    return x + n, f"{d["a"]!r:>10}|{n:{n}}|{f"{n + 1}"}|{'\\n'.join(["a", "b"])}|{x.shape[0] = }|{
        n!s}|{3.14159:.2f}|{{}}"
"""
NAMES = [line[4 : line.index("(")] for line in SYNTAX.splitlines() if line.endswith("(x):")]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of CPython 3.12")
@pytest.mark.parametrize("name", NAMES)
def test_syntax(name: str, compiler) -> None:
    space: dict[str, Any] = {"__name__": __name__}
    exec(compile(SYNTAX, "<syntax of 3.12>", "exec"), space)
    program(breaks=True)(space[name])(compiler)


@program()
def test_comprehensions_and_the_variables_around_them(x: Tensor):
    """From 3.12 on a comprehension is a part of its function, and its variables may share slots with a cell."""
    i, y = 10, 5
    around = lambda: y  # noqa: E731
    items = [i * x for i in range(3)]
    made = [lambda: i for i in range(3)]
    nested = [[(i, y) for y in range(i)] for i in range(3)]
    shared = [y + x for y in range(3)]
    try:
        [1 // (2 - i) for i in range(5)]
    except ZeroDivisionError:
        pass
    return sum(items), i, [f() for f in made], nested, sum(shared), around(), y


@program()
def test_names_that_are_unbound_behind_a_comprehension(x: Tensor):
    """The slot that a comprehension cleared gets nothing back: reading, deleting and listing the name see that."""
    known = [[i for i in range(2)], {k: 1 for k in "ab"}, sorted(j for j in [[j for j in [3]][0]])]
    said = []
    try:
        i  # noqa: F821
    except UnboundLocalError as error:
        said.append(str(error))
    try:
        del k  # noqa: F821
    except UnboundLocalError as error:
        said.append(str(error))
    try:
        said.append(x + j)  # noqa: F821
    except UnboundLocalError as error:
        said.append(str(error))
    i = j = k = 1
    known.append([i for i in range(2)])
    return x + i, known, said, j, k


@program(breaks=True)
def test_breaks_in_comprehensions_with_cells(x: Tensor):
    i = 7
    around = lambda: i  # noqa: E731
    out = [(torch._dynamo.graph_break(), x + i, (lambda: i)()) for i in range(3)]
    return sum(each[1] for each in out) * around(), [each[2] for each in out], i


@program(breaks=True)
def test_a_break_between_the_defaults_of_a_function_and_the_function(x: Tensor):
    def broken(value):
        torch._dynamo.graph_break()
        return value

    def fn(a, b=x, *, c=2, d: broken("note") = 3) -> broken("made"):
        return a + b + c + d

    return fn(1), fn.__defaults__, fn.__kwdefaults__, fn.__annotations__["return"]


@program()
def test_sums_of_floats(x: Tensor):
    """From 3.12 on `sum` keeps what adding floats loses, as long as it meets nothing but numbers."""
    tenths = sum([0.1] * 10), sum([0.1, 0.2, 0.3], start=0.0), sum([1e100, 1.0, -1e100])
    mixed = sum([True, 0.1, 2, 1e16, -1e16]), sum([2**62, 2**62, 0.1, 1e16, -1e16]), sum([float("inf"), 1.0])
    return tenths, mixed, sum([0.1, 0.2, x, 0.3]), sum([x, 0.1, 0.2, 0.3])


@program()
def test_a_keyword_that_is_almost_right(x: Tensor):
    def fn(alpha, *, beta=2):
        return alpha

    said = []
    for keywords in ({"alhpa": 1}, {"betta": 1}, {"gamma": 1}):
        try:
            fn(**keywords)
        except TypeError as error:
            said.append(str(error))
    return x + 1, said


def recursive(x: Tensor, depth: int) -> Tensor:
    if depth == 0:
        return x
    torch._dynamo.graph_break()
    return recursive(x + 1, depth - 1) + 1


def test_recursion_as_deep_as_in_eager(compiler) -> None:
    """Calls of Python are calls from C under the hook, which from 3.12 on have a limit of their own."""
    compiled = compiler.compile(recursive, backend="eager")
    assert compiled(torch.zeros(1), 700).item() == recursive(torch.zeros(1), 700).item() == 1400


@program(breaks=True)
def test_variables_by_way_of_the_frame(x: Tensor):
    """From 3.13 on `f_locals` writes through (PEP 667), so a function that looks at frames keeps its own."""

    def set_in_caller() -> list[str]:
        seen = sys._getframe(1).f_locals
        seen["a"] = 7
        return sorted(name for name in seen if name != "set_in_caller")

    a, y = 1, x * 2
    frame = inspect.currentframe()
    assert frame is not None
    names = set_in_caller()
    torch._dynamo.graph_break()
    b = a
    return y + a + b, a, names, frame.f_locals["y"] is y, sorted(frame.f_locals)


@program()
def test_closing_a_generator_gives_its_value(x: Tensor):
    """From 3.13 on `close` returns what the generator returns at its GeneratorExit."""
    log = []

    def inner():
        try:
            yield x
        except GeneratorExit:
            return "inner"

    def outer():
        try:
            log.append((yield from inner()))
        except GeneratorExit:
            return x * 3

    def leaving():
        yield x

    closed = []
    for make in (inner, outer, leaving):
        generator = make()
        next(generator)
        closed += [generator.close(), generator.close(), make().close()]
    return x + 1, closed, log
