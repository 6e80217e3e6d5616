"""Places for a graph break: one small function per place, which calls `stop` there; and callers to put around them.

In: nothing. Out: PLACES, functions of a tensor and of `stop(value)`, which returns its value; CALLERS by depth.
Always: deterministic; what a place does besides its result goes to LOG, which its caller empties.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Stop = Callable[..., Any]
Place = Callable[[Tensor, Stop], Any]

PLACES: dict[str, Place] = {}
LOG: list[Any] = []


def place(fn: Place) -> Place:
    PLACES[fn.__name__] = fn
    return fn


class Manager:
    """Notes what happens to it, and may swallow exceptions."""

    def __init__(self, name: str, suppress: bool = False) -> None:
        self.name, self.suppress = name, suppress

    def __enter__(self) -> Manager:
        LOG.append(("enter", self.name))
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        LOG.append(("exit", self.name, kind and kind.__name__, str(error), traceback and traceback.tb_lineno))
        return self.suppress


# --- expressions ---------------------------------------------------------------------------------------------------


@place
def statement(x: Tensor, stop: Stop) -> Any:
    y = x + 1
    stop()
    return y * 2


@place
def last_statement(x: Tensor, stop: Stop) -> Any:
    LOG.append(x + 1)
    stop()


@place
def returned(x: Tensor, stop: Stop) -> Any:
    LOG.append(x + 1)
    return stop(7)


@place
def arguments(x: Tensor, stop: Stop) -> Any:
    def f(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    return f(x + 1, stop(2), *[x, stop(3)], k=stop(4), **{"z": x + stop(5)})


@place
def and_or_chains(x: Tensor, stop: Stop) -> Any:
    y = x + 1
    return (
        (stop(0) or y + stop(1)),
        (stop(1) and stop(0) and y),
        (stop(0) or stop(0) or y),
        not stop(1) or y * 2,
    )


@place
def conditional_expressions(x: Tensor, stop: Stop) -> Any:
    y = x * 3
    return (y if stop(1) else y + 1), (y + 2 if stop(0) else y - stop(2)), (stop(3) if x.shape[0] > 1 else y)


@place
def chained_comparisons(x: Tensor, stop: Stop) -> Any:
    y = x - 1
    return 0 < stop(1) < 2 < stop(3), 5 < stop(2) < stop(1), (y, 1 == stop(1) != 2), y


@place
def f_strings(x: Tensor, stop: Stop) -> Any:
    width = 6
    y = x + 1
    return f"{stop('a')!r:>{stop(width)}}|{stop(1.5):.2f}|{y.shape[0]}{stop('b')}", y


@place
def unpacking(x: Tensor, stop: Stop) -> Any:
    a, (b, *c), d = x + 1, stop([1, 2, 3]), stop(4)
    [e, *f] = [*stop([x]), *stop((2,)), 3]
    return a, b, c, d, e, f, {**stop({"k": x}), "l": stop(1)}, {*stop([1]), 2}


@place
def targets(x: Tensor, stop: Stop) -> Any:
    table: dict[Any, Any] = {}
    items = [x, 0, 0]
    table[stop("k")], items[stop(1)] = x + 1, stop(5)
    items[stop(1)] += stop(2)
    items[stop(0)] = items[0] * 2
    del items[stop(2)]
    return table, items, items[: stop(1)]


@place
def operators(x: Tensor, stop: Stop) -> Any:
    y = (x + stop(1)) * stop(2) - -stop(3)
    y += stop(1)
    return y, stop(7) // 2, 1 + stop(2) ** 2, ~stop(1), stop(2) in (1, stop(2)), stop(None) is None


@place
def lambda_defaults(x: Tensor, stop: Stop) -> Any:
    scale = lambda v, k=stop(2), *, m=stop(3): v * k + m  # noqa: E731, B008
    return scale(x), scale(x, 1), [f() for f in [lambda: x, lambda: stop(1)]]


@place
def decorators(x: Tensor, stop: Stop) -> Any:
    def twice(fn: Any) -> Any:
        stop()

        @functools.wraps(fn)
        def wrapper(*args: Any) -> Any:
            stop("wrapper")
            return fn(*args) * 2

        return wrapper

    @twice
    @stop(lambda fn: fn)
    def inner(v: Tensor, k: Any = stop(1)) -> Any:  # noqa: B008
        return v + k

    return inner(x), inner.__name__


@place
def definitions(x: Tensor, stop: Stop) -> Any:
    class Local:
        value = stop(3)

        def scaled(self, v: Tensor) -> Tensor:
            return v * self.value

    return Local().scaled(x), Local.value


@place
def matching(x: Tensor, stop: Stop) -> Any:
    out = []
    for subject in ([1, x], {"k": stop(2)}, stop(3), (1, 2, 3), "s"):
        match subject:
            case [int(n), tail] if stop(True):
                out.append((n, tail + n))
            case {"k": value}:
                out.append(value + stop(1))
            case 3 | 4:
                out.append(stop("three"))
            case [_, *rest]:
                out.append(rest)
            case _:
                out.append(stop("other"))
    return out


@place
def walrus_and_slices(x: Tensor, stop: Stop) -> Any:
    if (n := stop(2)) > 1:
        x = x[: stop(n)]
    return x[stop(0) :], n, [m for _ in range(2) if (m := stop(3))], m


@place
def assertions(x: Tensor, stop: Stop) -> Any:
    assert stop(True), stop("unused")
    try:
        assert stop(0), f"message {stop(1)}"
    except AssertionError as error:
        return x + 1, str(error)


# --- loops ---------------------------------------------------------------------------------------------------------


@place
def for_loops(x: Tensor, stop: Stop) -> Any:
    for i in range(stop(3)):
        x = x + 1
        if stop(i) == 1:
            continue
        x = x * 2
    for item in [1, 2, 3]:
        if stop(item) == 2:
            break
        x = x + item
    else:
        x = x * 100
    for _ in ():
        stop()
    else:
        stop("else")
    return x


@place
def loops_over_iterators(x: Tensor, stop: Stop) -> Any:
    for i, item in enumerate((1.5, 2.5)):
        x = x + item * i
        stop(i)
    for a, b in zip([1, 2], (3, 4)):
        x = x * a + b
        stop(b)
    for key, value in {"a": 1, "b": 2}.items():
        x = x + value
        stop(key)
    for v in reversed([1, 2]):
        x = x + v
        stop()
    for v in map(float, "12"):
        x = x + stop(v)
    return x


@place
def iterators_that_notice(x: Tensor, stop: Stop) -> Any:
    out: list[Any] = []
    table, seen, queue = {"a": 1}, {1}, collections.deque([1, 2])
    for container, change in (
        (table, lambda k: table.setdefault(k * 2, 2)),
        (seen, lambda k: seen.add(k + 1)),
        (queue, lambda k: queue.append(k)),
    ):
        for early in (False, True):
            try:
                for key in container:
                    if early:
                        stop()
                    change(key)
                    x = x + 1
            except RuntimeError as error:
                out.append((str(error), len(container)))
    items, named = [1, 2, 3], iter(table)
    numbers = iter(items)
    items += [next(numbers), next(numbers), 6]
    LOG.append((next(numbers), next(named)))
    stop()
    table["later"] = 3
    try:
        out.append(next(named))
    except RuntimeError as error:
        out.append(str(error))
    return x, out, list(numbers), type(named).__name__, type(numbers).__name__


@place
def while_loops(x: Tensor, stop: Stop) -> Any:
    k = 0
    while stop(k) < 3:
        k += 1
        x = x + k
        if k == 2:
            stop("two")
            continue
        x = x * 2
    while True:
        x = x - 1
        if stop(True):
            break
    return x, k


@place
def nested_loops(x: Tensor, stop: Stop) -> Any:
    out = []
    for i in range(2):
        for j in range(2):
            x = x + i * j
            out.append((stop(i), j))
        x = x * 2
    return x, out


@place
def comprehensions(x: Tensor, stop: Stop) -> Any:
    values = [x + i + stop(i) for i in range(3) if stop(1)]
    table = {i: x * stop(2) for i in range(2)}
    nested = [[stop(i * j) for j in range(2)] for i in range(2)]
    return values, table, {stop(1) for _ in range(3)}, nested, sum(stop(i) for i in range(3))


@place
def generators(x: Tensor, stop: Stop) -> Any:
    def numbers(n: int) -> Any:
        for i in range(n):
            stop("before")
            got = yield x * i
            LOG.append(got)
        return stop("end")

    def delegating() -> Any:
        result = yield from numbers(2)
        yield stop(result)

    return list(delegating()), sum(numbers(3)), next(numbers(1))


# --- exceptions and blocks -----------------------------------------------------------------------------------------


@place
def try_parts(x: Tensor, stop: Stop) -> Any:
    for kind in (None, ValueError, KeyError):
        try:
            x = x + stop(1)
            if kind:
                raise kind("k")
        except ValueError:
            x = x * stop(2)
            LOG.append(sys.exc_info()[0])
        except KeyError as error:
            stop()
            LOG.append((str(error), sys.exc_info()[1] is error))
        else:
            stop()
            x = x - 1
        finally:
            LOG.append(stop("finally"))
            x = x + 3
        LOG.append(sys.exc_info())
    return x


@place
def raised_while_handling(x: Tensor, stop: Stop) -> Any:
    try:
        try:
            raise ValueError(stop("first"))
        except ValueError:
            stop()
            raise KeyError(stop("second"))  # noqa: B904
    except KeyError as error:
        stop()
        return x + 1, str(error), str(error.__context__), error.__cause__


@place
def bare_raise(x: Tensor, stop: Stop) -> Any:
    try:
        try:
            raise ValueError("v")
        except ValueError:
            stop()
            x = x + 1
            raise
    except ValueError as error:
        stop()
        return x, str(error), error.__traceback__ is not None


@place
def finally_with_return(x: Tensor, stop: Stop) -> Any:
    def inner(v: Tensor) -> Any:
        try:
            return v + stop(1)
        finally:
            v = v * 2
            LOG.append(stop("cleanup"))

    return inner(x) + 1


@place
def leaves_by_exception(x: Tensor, stop: Stop) -> Any:
    def check(v: Tensor) -> Any:
        y = v + 1
        stop()
        raise LookupError(f"shape {y.shape[0]}")

    y = x * 2
    with Manager("outer"):
        check(y)


@place
def error_of_a_break(x: Tensor, stop: Stop) -> Any:
    y = x * 2
    try:
        return y + stop(error=ValueError("broken"))
    except ValueError as error:
        LOG.append(str(error))
    return y, stop(error=KeyError("uncaught"))


@place
def with_blocks(x: Tensor, stop: Stop) -> Any:
    with Manager(stop("a")) as a, Manager("b", suppress=True):
        x = x + stop(1)
        LOG.append(a.name)
        raise ValueError(stop("gone"))
    with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        stack.callback(LOG.append, "callback")
        stop()
        x = x * 2
        raise KeyError
    return x


@place
def managers_of_generators(x: Tensor, stop: Stop) -> Any:
    @contextlib.contextmanager
    def managed(name: str) -> Any:
        stop(name)
        try:
            yield x * 2
        except ValueError as error:
            LOG.append(str(error))
        finally:
            stop("leave")

    with managed("one") as y:
        y = y + stop(1)
        raise ValueError("inside")
    with managed("two") as z:
        z = z + stop(1)
    return y, z


@place
def grad_modes(x: Tensor, stop: Stop) -> Any:
    LOG.append(torch.is_grad_enabled())
    with torch.no_grad():
        y = x * 2
        stop()
        LOG.append((torch.is_grad_enabled(), y.requires_grad))
        with torch.enable_grad():
            stop()
            LOG.append(torch.is_grad_enabled())
            z = x + stop(1)
    LOG.append(torch.is_grad_enabled())
    with torch.inference_mode():
        w = x + stop(1)
    return y.requires_grad, z.requires_grad, w.is_inference(), y, z


@place
def autocast(x: Tensor, stop: Stop) -> Any:
    weight = torch.ones(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x.view(1, 3) @ weight
        stop()
        z = x.view(1, 3) @ weight
        LOG.append(torch.is_autocast_enabled("cpu"))
    return y, z, torch.is_autocast_enabled("cpu"), x.view(1, 3) @ weight


@place
def state_setters(x: Tensor, stop: Stop) -> Any:
    before = torch.get_default_dtype()
    with torch.set_grad_enabled(stop(False)):
        y = x * 2
        stop()
        LOG.append((torch.is_grad_enabled(), y.requires_grad))
    with torch.device("cpu"), contextlib.nullcontext(stop(2)) as n:
        z = torch.ones(2) * n
        stop()
    with torch.profiler.record_function("region"):
        z = z + stop(1)
    with torch.autograd.set_detect_anomaly(False):
        z = z * stop(2)
    return y, z, before, torch.is_grad_enabled()


# --- functions, objects, effects -----------------------------------------------------------------------------------


@place
def closures(x: Tensor, stop: Stop) -> Any:
    n = 1

    def bump() -> Any:
        nonlocal n
        n += stop(1)
        return n

    first = bump()
    stop()
    return x * n, first, bump(), (lambda: n)()


class Base:
    scale = 2

    def __init__(self, stop: Stop) -> None:
        self.stop = stop
        self.made = stop("made")

    def run(self, x: Tensor) -> Any:
        self.stop("base")
        return x * self.scale

    @property
    def size(self) -> Any:
        return self.stop(3)

    def __add__(self, other: Any) -> Any:
        return self.stop(other)

    def __call__(self, x: Tensor) -> Any:
        return self.run(x + self.stop(1))


class Derived(Base):
    def __init__(self, stop: Stop) -> None:
        super().__init__(stop)
        self.also = stop("also")

    def run(self, x: Tensor) -> Any:
        y = super().run(x + 1)
        self.stop("derived")
        return y + super().scale + super().size


@place
def objects(x: Tensor, stop: Stop) -> Any:
    item = Derived(stop)
    item.late = stop("late")
    return item(x), item.size, item + 4, item.made, item.also, item.late, functools.partial(item, x)()


@place
def aliases(x: Tensor, stop: Stop) -> Any:
    items = [1]
    made = [items]

    def grow(values: list[Any]) -> Any:
        values.append(x)
        stop()
        made[0].append(2)
        return values

    same = grow(items)
    return same is items, made[0] is items, len(items), same


@place
def in_place(x: Tensor, stop: Stop) -> Any:
    y = x.clone()
    view = y[:2]

    def change(v: Tensor) -> Any:
        v.mul_(2)
        stop()
        v.add_(1)
        return v

    change(view)
    stop()
    return y, view, view.data_ptr() == y.data_ptr()


@place
def recursion(x: Tensor, stop: Stop) -> Any:
    def down(v: Tensor, n: int) -> Any:
        if n == 0:
            return v + stop(1)
        v = down(v * 2, n - 1)
        stop(n)
        return v - 1

    return down(x, 3)


@place
def many(x: Tensor, stop: Stop) -> Any:
    for _ in range(10):
        x = x + stop(1) + stop(2) + stop(3) + stop(4) + stop(5)
    return x


@place
def tensor_values(x: Tensor, stop: Stop) -> Any:
    if x.sum() > 5:
        x = x + stop(1)
    while x.max() < 12:
        x = x * 2
        stop()
    y = x if (x > stop(3)).all() else -x
    return y, x[0].item(), int(x[1]), x.tolist()


# --- callers -------------------------------------------------------------------------------------------------------


def plain_caller(inner: Place) -> Place:
    def caller(x: Tensor, stop: Stop) -> Any:
        y = x + 1
        result = inner(y * 2, stop)
        return result, y - 1

    return caller


class Holder:
    def __init__(self, inner: Place) -> None:
        self.inner = inner
        self.calls = 0

    def method(self, x: Tensor, *, stop: Stop, extra: int = 1) -> Any:
        self.calls += 1
        x = x + extra
        try:
            with Manager("caller"), torch.no_grad():
                result = [self.inner(x, stop=stop)]
                self.calls += 1
        except LookupError as error:
            LOG.append(("caught", type(error)))
            raise
        finally:
            LOG.append(("calls", self.calls, torch.is_grad_enabled()))
        return result, x * self.calls


def method_caller(inner: Place) -> Place:
    def caller(x: Tensor, stop: Stop) -> Any:
        holder = Holder(inner)
        pair = (x * 2, holder.method(x, **{"stop": stop}, extra=2))
        return pair, holder.calls

    return caller


def comprehension_caller(inner: Place) -> Place:
    def caller(x: Tensor, stop: Stop) -> Any:
        count = 0

        def counted(v: Tensor) -> Any:
            nonlocal count
            count += 1
            return inner(v, stop)

        results = [counted(x + i) for i in range(2)]
        return results, count, x + count

    return caller


CALLERS: dict[int, Callable[[Place], Place]] = {
    0: lambda inner: inner,
    1: plain_caller,
    2: method_caller,
    3: lambda inner: comprehension_caller(plain_caller(inner)),
}
