"""Random changes of what a function looks at, between its calls, made by instructions that have specialised.

In: objects with few and many attributes, slots, modules, functions, cells, globals. Out: one test per seed.
Always: a compiled call gives what eager gives after every change, whichever of the earlier entries it may have hit.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import graphlift

SETTINGS = types.ModuleType("settings")
FACTOR = 1.5
X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Base:
    rate = 1.0

    def act(self, x: Any) -> Any:
        return x + 1

    def __call__(self, x: Any) -> Any:
        return self.act(x) * self.rate


class Other(Base):
    rate = 3.0


class Few(Base):
    def __init__(self) -> None:
        self.a, self.b = 1.0, 2.0


class Many(Base):
    def __init__(self) -> None:
        for k in range(40):
            setattr(self, f"v{k}", k)
        self.a, self.b = 1.0, 2.0


class Slotted(Base):
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a, self.b = 1.0, 2.0


class Net(nn.Module):
    rate = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.a, self.b = 1.0, 2.0

    def act(self, x: Any) -> Any:
        return self.linear(x)

    def forward(self, x: Any) -> Any:
        return self.act(x) * self.rate


def helper(x: Any, k: float = 1.0, *, m: float = 2.0) -> Any:
    return x * k + m


def another(x: Any, k: float = 1.0, *, m: float = 2.0) -> Any:
    return x - k * m


def cells() -> tuple[Callable[..., Any], Callable[..., Any]]:
    c = 1.0

    def read(x: Any) -> Any:
        return x * c

    def write(value: float) -> None:
        nonlocal c
        c = value

    return read, write


READ, WRITE = cells()


def target(objects: list[Any], x: Any) -> Any:
    y = x * FACTOR * SETTINGS.scale + SETTINGS.items[0]
    for o in objects:
        y = o(y) * o.a + o.b
        if getattr(o, "extra", None) is not None:
            y = y - o.extra
        if "a" in o.__dict__ and len(o.__dict__) % 2:
            y = y + 0.5
    return READ(helper(y))


def store_a(o: Any, value: float) -> None:
    o.a = value


def store_b(o: Any, value: float) -> None:
    o.b = value


def store_extra(o: Any, value: float) -> None:
    o.extra = value


def store_global(o: Any, value: float) -> None:
    global FACTOR
    FACTOR = value


def store_in_module(o: Any, value: float) -> None:
    SETTINGS.scale = value


def reorder(o: Any, value: float) -> None:
    names = o.__dict__
    for name in list(names)[:1]:
        names[name] = names.pop(name)


def refill(o: Any, value: float) -> None:
    kept = dict(o.__dict__)
    o.__dict__.clear()
    o.__dict__.update(kept)


def change_class(o: Any, value: float) -> None:
    o.__class__ = {Few: Many, Many: Few}.get(type(o), type(o))


def change_bases(o: Any, value: float) -> None:
    if type(o) in (Few, Many):
        type(o).__bases__ = (Other,) if type(o).__bases__ == (Base,) else (Base,)


def swap_code(o: Any, value: float) -> None:
    helper.__code__, another.__code__ = another.__code__, helper.__code__


CHANGES: list[Callable[[Any, float], Any]] = [
    *(store_a, store_b, store_extra, store_global, store_in_module, reorder, refill),
    *(change_class, change_bases, swap_code),
    lambda o, value: setattr(type(o), "rate", value),
    lambda o, value: setattr(Base, "rate", value),
    lambda o, value: setattr(o, "__dict__", dict(o.__dict__)),
    lambda o, value: o.__dict__.update(extra=value),
    lambda o, value: o.__dict__.setdefault("extra", value),
    lambda o, value: o.__dict__.pop("extra", None),
    lambda o, value: vars(o).update(act=lambda x: x - value),
    lambda o, value: o.__dict__.pop("act", None),
    lambda o, value: setattr(Base, "act", lambda self, x: x * value),
    lambda o, value: setattr(helper, "__defaults__", (value,)),
    lambda o, value: setattr(helper, "__kwdefaults__", {"m": value}),
    lambda o, value: helper.__kwdefaults__.update(m=value),
    lambda o, value: WRITE(value),
    lambda o, value: SETTINGS.items.__setitem__(0, value),
    lambda o, value: setattr(SETTINGS, "items", [value]),
    lambda o, value: isinstance(o, Net) and setattr(o.linear.weight, "data", torch.full((3, 3), value)),
    lambda o, value: isinstance(o, Net) and setattr(o, "linear", nn.Linear(3, 3)),
]


CODES = helper.__code__, another.__code__


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts back what the changes leave."""
    for cls in (Base, Net):
        monkeypatch.setattr(cls, "rate", 1.0)
    monkeypatch.setattr(Base, "act", Base.act)
    monkeypatch.setitem(globals(), "FACTOR", 1.5)
    for name, value in (("scale", 2.0), ("items", [1.0])):
        monkeypatch.setattr(SETTINGS, name, value, raising=False)
    yield
    for cls in (Few, Many, Slotted):
        if "rate" in vars(cls):
            del cls.rate
    Few.__bases__ = Many.__bases__ = (Base,)
    helper.__code__, another.__code__ = CODES
    helper.__defaults__, helper.__kwdefaults__ = (1.0,), {"m": 2.0}
    WRITE(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_every_change_is_seen(seed: int, as_before: None) -> None:
    draw = random.Random(seed)
    for make in (Few, Many, Slotted, Net):
        for store in (store_a, store_b, store_extra):
            made = make()
            for k in range(12):
                store(made, float(k))
    objects = [Few(), Net(), Many(), Slotted()]
    graphlift.reset()
    compiled = graphlift.compile(target, backend="eager")
    with graphlift.config.patch(cache_size_limit=1000):
        for step in range(70):
            for _ in range(draw.choice((0, 1, 1, 2))):
                change = draw.choice(CHANGES)
                change(draw.choice(objects), draw.choice((0.5, 1.0, 2.0)))
            expected = target(objects, X)
            for _ in range(draw.choice((1, 2, 3))):
                assert torch.equal(compiled(objects, X), expected), f"{change} at step {step}"
