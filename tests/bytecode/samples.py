"""Small functions, one per awkward place, with arguments; what a plain call does is what is expected.

In: nothing. Out: CASES of (function, arguments). Always: deterministic, no state shared between calls.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CASES: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []


def case(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append((fn, args))
        return fn

    return add


class Recorder:
    """A context manager that notes what happens to it, and may swallow an exception."""

    def __init__(self, log: list[Any], swallow: type[BaseException] | None = None) -> None:
        self.log, self.swallow = log, swallow

    def __enter__(self) -> Recorder:
        self.log.append("enter")
        return self

    def __exit__(self, kind: Any, value: Any, tb: Any) -> bool:
        self.log.append(
            (
                "exit",
                kind and kind.__name__,
                str(value),
                tb and tb.tb_lineno - tb.tb_frame.f_code.co_firstlineno,
            )
        )
        return self.swallow is not None and kind is not None and issubclass(kind, self.swallow)


def pick(*args: Any, **kwargs: Any) -> Any:
    return args, tuple(sorted(kwargs.items()))


def fail(message: str) -> Any:
    raise ValueError(message)


def generate(n: int) -> Any:
    for i in range(n):  # noqa: UP028 (a generator with a loop of its own)
        yield i


@case(3, 4)
def arithmetic(a: int, b: int) -> Any:
    c = a + b * 2 - a // b
    c += a**2
    c <<= 1
    d = -c ^ ~b & +a
    return c, d, not d, c % 7 / 2, c @ a if False else c, c is d, c is not d, a < b <= c != d


@case([1, 2, 3, 4, 5])
def slices(values: list[int]) -> Any:
    values = list(values)
    values[1:3] = [9, 8, 7]
    del values[0]
    values[-1] += 5
    values[::2], first, (*rest, last) = [0] * len(values[::2]), values[0], values[1:]
    return values[1:], values[:-1], values[::2], first, rest, last


@case(5)
def for_range(n: int) -> int:
    total = 0
    for i in range(n):
        if i == 3:
            continue
        total += i
    else:
        total += 100
    return total


@case(6)
def nested_loops(n: int) -> list[tuple[int, int]]:
    found = []
    for i in range(n):
        for j in generate(i):
            if j > 3:
                break
            found.append((i, j))
        else:
            found.append((i, -1))
    return found


@case(4)
def while_loop(n: int) -> int:
    total, k = 0, n
    while k > 0:
        k -= 1
        if k == 2:
            continue
        total += k
        if total > 100:
            break
    return total


@case([3, 1, 2])
def opaque_iterators(values: list[int]) -> Any:
    out = []
    for x in iter(values):
        out.append(x)
    for x, y in zip(values, itertools.count()):
        out.append((x, y))
    for key, value in {"a": 1, "b": 2}.items():
        out.append(key * value)
    for x in (v + 1 for v in values):
        out.append(x)
    for x in iter(functools.partial(next, iter([1, 2, 0, 3])), 0):
        out.append(x)
    for x in map(lambda v: v * 2, values):
        out.append(x)
    return out


@case(0, 1, None, "x")
def bool_chains(a: Any, b: Any, c: Any, d: Any) -> Any:
    r = [a or b and c, a and b or d, (a or c) and d, not (a or b), c is None and d, c is not None or b]
    if a or (b and not c) or d:
        r.append("yes")
    if c is None:
        r.append("none")
    if d is not None and b:
        r.append("some")
    r.append("p" if a else "q" if b else "r")
    r.append(a < b < 2 < 1 or 3)
    while b and (a or d):
        b -= 1
    return r, b


@case(2, 3)
def call_forms(a: int, b: int) -> Any:
    out = [
        pick(),
        pick(a, b),
        pick(a, pick(b, key=a), key=pick(b)),
        pick(*[a, b], **{"k": b}),
        pick(a, *(b,), z=1, **{"y": pick(a)}),
        max(a, b, key=lambda v: -v),
        pick(a if a > b else b, k=a if a < b else b),
    ]
    out.append("-".join([str(a), str(b)]).upper().split("-", 1))
    out.append({**{"a": a}, "b": b, **{"c": pick}})
    out.append([*out[1], *out[2]])
    out.append({*out[1][0], a})
    return out


@case("ab", 2.5)
def strings(text: str, number: float) -> Any:
    width = 8
    return f"{text!r:>{width}}|{number:.2f}|{text}|{number!s}|{width=}", "%s-%d" % (text, width), text * 2  # noqa: UP031


@case([1, 2, 3])
def comprehensions(values: list[int]) -> Any:
    k = 10
    x = "kept"
    a = [x * k for x in values]
    b = {x: [y for y in range(x)] for x in values if x != 2}
    c = {x % 2 for x in values}
    d = sum(x * k for x in values)
    e = [f() for f in [lambda: x for x in values]]  # noqa: B023
    return a, b, c, d, e, x, [[i * j for j in values] for i in values]


@case(3)
def closures(n: int) -> Any:
    total = 0

    def add(x: int) -> int:
        nonlocal total
        total += x + n
        return total

    first = add(1)
    n += 10
    second = add(2)
    later = 7

    def reads_later() -> int:
        return later

    later = 8
    return first, second, total, reads_later(), n


@case(2)
def recursion_in_closure(n: int) -> int:
    def fact(k: int) -> int:
        return 1 if k <= 1 else k * fact(k - 1)

    return fact(n + 3)


@case()
def unbound_cell() -> Any:
    def inner() -> Any:
        return late  # noqa: F821

    try:
        inner()
    except NameError as error:
        message = str(error)
    late = 1
    got = inner()
    del late
    try:
        return late
    except NameError:
        return message, got  # the message differs: in a continuation the variable is a free one


@case()
def deleted_local() -> Any:
    x = 1
    del x
    try:
        return x  # noqa: F821
    except UnboundLocalError as error:
        return type(error).__name__, str(error)


@case(True)
def maybe_unbound(flag: bool) -> Any:
    if not flag:
        x = 1
    try:
        x += 1
    except UnboundLocalError:
        x = 5
    return x


@case(1)
def defaults_and_annotations(a: int) -> Any:
    def inner(b: int, c: int = a, *rest: int, d: int = a + 1, **more: int) -> Any:
        return a, b, c, rest, d, more

    return (
        inner(1),
        inner(1, 2, 3, d=4, e=5),
        inner.__defaults__,
        inner.__kwdefaults__,
        sorted(inner.__annotations__),
    )


@case("12", "x")
def try_except(good: str, bad: str) -> Any:
    out: list[Any] = []
    for text in (good, bad, None):
        try:
            out.append(int(text))  # type: ignore[arg-type]
        except ValueError as error:
            out.append(str(error))
        except TypeError:
            out.append("type")
        else:
            out.append("else")
        finally:
            out.append("finally")
    return out


@case()
def try_finally_return() -> Any:
    log: list[Any] = []

    def run(value: int) -> Any:
        try:
            if value:
                return value
            log.append("fell")
        finally:
            log.append(value)
        return "end"

    return run(0), run(1), log


@case()
def nested_try() -> Any:
    out: list[Any] = []
    try:
        try:
            fail("inner")
        except KeyError:
            out.append("wrong")
        finally:
            out.append("cleanup")
    except ValueError as error:
        out.append(str(error))
        try:
            raise KeyError("second") from error
        except KeyError as again:
            out.append((str(again), str(again.__cause__), str(again.__context__)))
    out.append("after")
    return out


@case()
def with_statement() -> Any:
    log: list[Any] = []
    with Recorder(log) as r:
        log.append(r is not None)
    with Recorder(log, ValueError):
        fail("swallowed")
    with Recorder(log), Recorder(log, ValueError) as inner:
        log.append(int("7"))
        inner.log.append(fail("two"))
    return log


@case("q")
def call_in_try_in_with(text: str) -> Any:
    log: list[Any] = []
    with Recorder(log):
        try:
            value = int(text)
        except ValueError as error:
            value = len(str(error))
        log.append(value)
    for attempt in ("1", "z", "2"):
        with Recorder(log, ValueError):
            log.append(int(attempt))
    return log


@case("q")
def uncaught_in_with(text: str) -> Any:
    log: list[Any] = []
    with Recorder(log):
        try:
            log.append(text)
            value = int(text)
        except TypeError:
            value = 0
    return log, value


@case(0)
def uncaught(n: int) -> Any:
    values = [1, 2]
    total = sum(values)
    return total / n


@case("deep")
def uncaught_in_callee(text: str) -> Any:
    out = [text]
    out.append(
        fail(
            text,
        )
    )
    return out


@case()
def chained_raise() -> Any:
    try:
        fail("first")
    except ValueError as error:
        raise RuntimeError("second") from error


@case(5)
def assertion(n: int) -> Any:
    assert n > 1
    assert n < 3, f"{n} is too much"
    return n


@case()
def except_star() -> Any:
    out = []
    try:
        raise ExceptionGroup("g", [ValueError("a"), TypeError("b"), KeyError("c")])
    except* ValueError as group:
        out.append([str(e) for e in group.exceptions])
    except* (TypeError, KeyError) as group:
        out.append(len(group.exceptions))
    return out


@case({"kind": "point", "at": (1, 2)}, [1, 2, 3, 4])
def matching(shape: Any, values: Any) -> Any:
    out = []
    for subject in (shape, values, 3, "s", Point(1, 2), None):
        match subject:
            case {"kind": "point", "at": (x, y), **rest}:
                out.append((x, y, rest))
            case [first, *middle, last]:
                out.append((first, middle, last))
            case Point(x=x, y=2):
                out.append(("point", x))
            case 3 | 4:
                out.append("number")
            case str() as text if text:
                out.append(text)
            case _:
                out.append("other")
    return out


@dataclass
class Point:
    x: int
    y: int
    tag: str = "t"

    def moved(self, by: int) -> Point:
        return type(self)(self.x + by, self.y + by)


class Tagged(Point):
    def moved(self, by: int) -> Point:
        first = super().moved(by)
        second = super(Tagged, self).moved(by)  # noqa: UP008
        self.tag = first.__class__.__name__
        return Tagged(first.x + second.x, self.y)

    def captured(self, by: int) -> Any:
        def inner() -> Any:
            return self.x

        by = by + 1
        there = super().moved(by)
        return inner(), there.x

    @property
    def doubled(self) -> int:
        return self.x * 2


@case(1)
def classes(n: int) -> Any:
    p = Tagged(n, 2)
    q = p.moved(n).moved(2)
    p.x += q.x
    p.extra = [p.doubled]
    p.extra[0] += 1
    del p.tag

    class Local(Point):
        kind = n

        def total(self) -> int:
            return self.x + self.y + n

    return p.x, q, p.extra, Local(1, 2).total(), Local.kind, hasattr(p, "tag")


CASES.append((Tagged.moved, (Tagged(1, 2), 3)))
CASES.append((Tagged.captured, (Tagged(5, 2), 3)))


@case(2)
def globals_and_imports(n: int) -> Any:
    global _counter
    import os.path
    from math import floor as down
    from math import pi

    _counter = n
    _counter += 1
    got = _counter
    del _counter
    return os.path.basename("a/b"), down(pi * n), got


@case(1, (2, 3), 4, {"z": 5})
def all_parameters(a: int, *args: int, k: int = 0, **kw: int) -> Any:
    def later() -> Any:
        return args, kw

    return a, args, k, kw, later()


@case(7)
def walrus_and_lambda(n: int) -> Any:
    if (half := n // 2) > 2:
        n = half
    twice = lambda v=n: v * 2 + half  # noqa: E731
    return half, twice(), twice(1), [last := v for v in range(3)], last


@case(3)
def many_constants(n: int) -> Any:
    return [n, 1, 2, 3, "a", b"b", 1.5, 2j, None, True, ..., (1, (2, 3)), frozenset({1})], {1: 2, "x": n}


@case([5, 1, 4])
def bubble(values: list[int]) -> list[int]:
    values = list(values)
    for i in range(len(values)):
        for j in range(len(values) - 1 - i):
            if values[j] > values[j + 1]:
                values[j], values[j + 1] = values[j + 1], values[j]
    return values


@case(4)
def conditional_in_arguments(n: int) -> Any:
    return pick(
        n,
        pick(n and 1, n or 2, [i for i in range(n) if i % 2]),
        key=(n if n > 2 else pick(n)),
        other=[*range(n)][1 if n else 0 :],
    )


@case(3)
def try_in_loop_with_new_locals(n: int) -> Any:
    out = []
    for i in range(n):
        try:
            out.append(fail(str(i)) if i != 1 else i)
        except ValueError as error:
            seen = str(error)
            out.append(seen)
        if i:
            out.append(seen)
    return out


@case(3)
def generator_made_inside(n: int) -> Any:
    squares = (i * i for i in range(n))
    first = next(squares)
    return first, list(squares), sum(generate(n))


@case()
def line_of_caught() -> Any:
    start = line_of_caught.__code__.co_firstlineno
    lines = []
    for text in ("a", "b"):
        try:
            lines.append(text)
            int(
                text,
            )
        except ValueError as error:
            lines.append(error.__traceback__.tb_lineno - start)  # type: ignore[union-attr]
    try:
        [int(t) for t in ["x"]]
    except ValueError as error:
        tb = error.__traceback__
        lines.append(tb.tb_lineno - start)  # type: ignore[union-attr]
    return lines


@case([3, 4])
def loops_between_exception_ranges(items: list[int]) -> Any:
    """The end of a loop in a handler begins a range of its own, as the constant loop's jump is in none."""
    seen: list[Any] = []
    with contextlib.suppress(ValueError):
        try:
            int("x")
        except ValueError:
            for item in items:
                while False and items:
                    if item:
                        continue
        finally:
            seen.append(len(items))
        for item in items:
            if item > 3:
                break
            for other in items:
                seen.append((item, other))
        raise ValueError
    return seen


def _many_locals() -> Callable[..., Any]:
    """A function whose locals, names, constants and jumps need EXTENDED_ARG."""
    names = [f"v{i}" for i in range(280)]
    lines = ["def many(n, out):", "    total = 0", f"    {', '.join(names)} = range(n, n + {len(names)})"]
    lines += ["    for k in range(2):"]
    lines += [
        f"        if k == {k % 2}: total += {name}; out.append({name})" for k, name in enumerate(names[::28])
    ]
    lines += [f"        if k > 2: out.{name} = {name} + {1000 + i}" for i, name in enumerate(names[::9])]
    lines += ["    return total, v279, len(out), lambda: v5"]
    scope: dict[str, Any] = {}
    exec(compile("\n".join(lines), __file__, "exec"), scope)
    many = scope["many"]

    def call_many(n: int) -> Any:
        total, last, length, cell = many(n, [])
        return total, last, length, cell()

    call_many.many = many  # type: ignore[attr-defined]
    return call_many


MANY = _many_locals()
