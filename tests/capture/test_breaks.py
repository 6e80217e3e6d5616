"""Graph breaks in awkward places: the program goes on exactly where it was."""

from __future__ import annotations

import contextlib
import re

import torch
from torch import Tensor

from tests.capture.program import program


def stop():
    """Something that is not captured."""
    print(end="")
    return 1


class Manager:
    def __init__(self, log, suppress=False):
        self.log, self.suppress = log, suppress

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append(("exit", kind and kind.__name__))
        return self.suppress


@program(breaks=True)
def test_in_with(x: Tensor):
    log = []
    with Manager(log) as manager, Manager(log, suppress=True):
        x = x + stop()
        manager.log.append("body")
        raise ValueError
    return x * 2, log


@program(breaks=True)
def test_in_enter_and_exit(x: Tensor):
    @contextlib.contextmanager
    def managed():
        stop()
        try:
            yield x * 2
        finally:
            stop()

    with managed() as y:
        y = y + 1
    return y


@program(breaks=True)
def test_in_try_except_else_finally(x: Tensor):
    log = []
    for kind in (None, ValueError, KeyError):
        try:
            x = x + stop()
            if kind:
                raise kind("k")
        except ValueError:
            x = x * stop() * 2
            log.append("except")
        except KeyError as error:
            stop()
            log.append(str(error))
        else:
            stop()
            x = x - 1
        finally:
            stop()
            x = x + 3
            log.append("finally")
    return x, log


@program(breaks=True)
def test_in_finally_with_return(x: Tensor):
    def inner(v):
        try:
            return v + stop()
        finally:
            v = v * 2
            stop()

    return inner(x) + 1


@program(breaks=True)
def test_in_loops(x: Tensor):
    total = 0
    for i, item in enumerate([1, 2, 3, 4]):
        while total < item * 3:
            total += stop()
            x = x + item
        if i == 2:
            break
        stop()
    else:
        x = x * 100
    return x, total


@program(breaks=True)
def test_in_comprehensions(x: Tensor):
    values = [x + i + stop() for i in range(3) if stop()]
    table = {i: x * stop() for i in range(2)}
    return values, table, {stop() for _ in range(3)}


@program(breaks=True)
def test_in_expressions(x: Tensor):
    a = (x + 1) * stop() + (x * 2) * stop()
    b = stop() and x + stop()
    c = x if stop() else None
    d = [x, stop(), {"k": x + stop()}, (stop(), x)]
    e = f"{stop()} {stop():>3}"
    f = max(stop(), 2, key=lambda v: v + stop())
    return a, b, c, d, e, f, stop() < stop() + 1 < 3


@program(breaks=True)
def test_in_arguments(x: Tensor):
    def f(*args, **kwargs):
        return args, kwargs

    return f(x + 1, stop(), *[x, stop()], k=stop(), **{"z": x + stop()})


@program(breaks=True)
def test_in_assignment_targets(x: Tensor):
    table, items = {}, [0, 0]
    table[stop()], items[stop()] = x + 1, stop()
    items[stop() - 1] += stop() + 4
    (a, b), c = (x, stop()), stop()
    return table, items, a, b, c


@program(breaks=True)
def test_in_nested_callees(x: Tensor):
    def inner(v):
        v = v + 1
        stop()
        return v * 2

    def outer(v):
        v = inner(v) + inner(v * 3)
        return v - 1

    return outer(x) + outer(x + 1)


@program(breaks=True)
def test_in_grad_modes(x: Tensor):
    log = [torch.is_grad_enabled()]
    with torch.no_grad():
        stop()
        log.append(torch.is_grad_enabled())
        with torch.enable_grad():
            x = x + stop()
            log.append(torch.is_grad_enabled())
        stop()
        log.append(torch.is_grad_enabled())
    stop()
    log.append(torch.is_grad_enabled())
    return x, log


@program(breaks=True)
def test_in_autocast(x: Tensor):
    weight = torch.ones(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x.view(1, 3) @ weight
        stop()
        z = x.view(1, 3) @ weight
        enabled = torch.is_autocast_enabled("cpu")
    return y, z, enabled, torch.is_autocast_enabled("cpu"), x.view(1, 3) @ weight


@program(breaks=True)
def test_closures_across(x: Tensor):
    n = 1

    def bump():
        nonlocal n
        n += stop()
        return n

    first = bump()
    stop()
    return x * n, first, bump(), (lambda: n)()


@program(lambda: [1, 2], breaks=True)
def test_aliases_across(x: Tensor, items: list):
    same = items
    made = [items]
    items.append(x)
    stop()
    same.append(3)
    stop()
    return made[0] is items, len(same), items is same


@program(lambda: [1, 2, 3, 4], breaks=True)
def test_iterators_across(x: Tensor, items: list):
    iterator = iter(items)
    pairs = zip(iterator, enumerate(reversed("abcd")))
    first = next(pairs)
    stop()
    rest = list(pairs)
    keys = iter({"a": 1, "b": 2}.items())
    next(keys)
    stop()
    return x + len(rest), first, rest, list(keys), list(iterator)


@program(breaks=True)
def test_on_tensor_values(x: Tensor):
    if x.sum() > 5:
        x = x + 1
    while x.max() < 12:
        x = x * 2
    y = x if (x > 3).all() else -x
    n = x[0].item()
    assert x.min() > 0, "negative"
    return y, n, int(x[1]), [float(v) for v in x], x.tolist()


@program(breaks=True)
def test_fifty_breaks(x: Tensor):
    for _ in range(10):
        x = x + stop() + stop() + stop() + stop() + stop()
    return x


@program(breaks=True)
def test_raised_after_break_is_caught_outside(x: Tensor):
    def risky(v):
        stop()
        raise KeyError(v.shape[0])

    try:
        risky(x + 1)
    except KeyError as error:
        return x * 2, error.args


def _add(x: Tensor, scale: Tensor):
    scale = scale * 2
    stop()
    return x * scale


@program(breaks=True)
def test_frames_with_variables_of_one_name(x: Tensor):
    def _add(x: Tensor, scale: Tensor):
        return inner(x, scale * 3) + scale

    inner = globals()["_add"]
    return _add(x, x + 1)


PATTERN = re.compile("a+")


@program(breaks=True)
def test_between_methods_of_c_classes_and_their_calls(x: Tensor):
    sub, make = PATTERN.sub, dict.fromkeys
    x = x + 1
    return x * 2, sub("-", "baab" * stop()), make("ab", stop()), PATTERN.match("aa", stop()).group()
