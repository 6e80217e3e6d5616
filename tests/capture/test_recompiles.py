"""When a call is compiled again: what the program looked at has changed; and when not: anything else has."""

from __future__ import annotations

import abc
import sys
from collections import namedtuple
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import pytest
import torch
from torch import Tensor

from graphlift import config
from graphlift.api import Settings
from tests.capture.program import CountingBackend
from tests.equality import assert_equal

SCALE = 2
X = torch.ones(3)
Y = torch.ones(3, dtype=torch.int64)
LEAF = torch.ones(3, requires_grad=True)
KEPT = LEAF * 1
KEPT.retain_grad()


class Real(float):
    pass


class Config:
    mode = "a"

    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)

    def factor(self):
        return 2


def compiled_counts(compiler, fn: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[int]:
    """How many graphs there are after each call; each result is compared with eager."""
    if compiler.name == "eager":
        pytest.skip("eager compiles nothing")
    backend = CountingBackend()
    compiled = compiler.compile(fn, backend=backend, dynamic=False)
    counts = []
    for args in calls:
        torch.testing.assert_close(compiled(*args), fn(*args))
        counts.append(len(backend.graphs))
    return counts


CHANGES: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "int": (lambda x, n: x * n, [(X, 2), (X, 2), (X, 3)]),
    "float and its sign": (lambda x, v: x * v, [(X, 0.0), (X, 0.0), (X, -0.0)]),
    "int is not bool": (lambda x, n: x * n, [(X, 1), (X, 1), (X, True)]),
    "text": (lambda x, s: x + len(s), [(X, "a"), (X, "a"), (X, "bb")]),
    "none": (lambda x, o: x * 2 if o is None else x + 1, [(X, None), (X, None), (X, 5)]),
    "dtype": (lambda x: x + 1, [(X,), (X,), (X.double(),)]),
    "shape": (lambda x: x + 1, [(X,), (X,), (torch.ones(4),)]),
    "strides": (lambda x: x + 1, [(torch.ones(2, 3),), (torch.ones(2, 3),), (torch.ones(3, 2).t(),)]),
    "requires grad": (lambda x: x.detach() + 1, [(X,), (X,), (torch.ones(3, requires_grad=True),)]),
    "list length": (lambda x, v: x + len(v), [(X, [1]), (X, [1]), (X, [1, 2])]),
    "list too short": (lambda x, v: x + v[1], [(X, [1, 5]), (X, [1, 5, 6]), (X, [1, 6])]),
    "list item": (lambda x, v: x + v[0], [(X, [1, 5]), (X, [1, 6]), (X, [2, 5])]),
    "dict key absent": (lambda x, d: x + d.get("k", 0), [(X, {}), (X, {}), (X, {"k": 1})]),
    "dict order": (lambda x, d: x * list(d)[0], [(X, {1: 0, 2: 0}), (X, {1: 0, 2: 0}), (X, {2: 0, 1: 0})]),
    "set item's type": (lambda x, s: x * [*s][0], [(Y, {2}), (Y, {2}), (Y, {2.0})]),
    "set order": (lambda x, s: x * [*s][0], [(X, {1, 9}), (X, {1, 9}), (X, {9, 1})]),
    "float inside a subclass": (lambda x, v: x / v, [(X, Real(0.0)), (X, Real(0.0)), (X, Real(-0.0))]),
    "attribute": (lambda x, c: x * c.n, [(X, Config(n=1)), (X, Config(n=1)), (X, Config(n=2))]),
    "class": (lambda x, c: x * c.n, [(X, Config(n=1)), (X, Config(n=1)), (X, SimpleNamespace(n=1))]),
    "method of a container": (lambda x, m: x + m(1), [(X, [1].count), (X, [1].count), (X, (1,).count)]),
    "set": (lambda x, s: x + (1 in s), [(X, {1}), (X, {1}), (X, {2})]),
    "where in its storage": (lambda x: x * x[1:].storage_offset(), [(X,), (X,), (torch.ones(4)[1:],)]),
    "a view": (lambda x: x * 2 if x._is_view() else x + 5, [(X,), (X,), (torch.ones(4)[:3],)]),
    "keeps its gradient": (lambda x: x.detach() + x.retains_grad, [(KEPT,), (KEPT,), (LEAF * 2,)]),
    "same tensor twice": (lambda x, y: x + y, [(X, X + 1), (X, X + 1), (X, X)]),
    "identity of numbers": (lambda x, a, b: x + (a is b), [(X, 1, 1), (X, 1, 1), (X, 1, 2)]),
    "instance attribute over class attribute": (
        lambda x, c: x * 2 if c.mode == "a" else x + 1,
        [(X, Config()), (X, Config()), (X, Config(mode="b"))],
    ),
}
SAME: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "unused argument": (lambda x, n: x + 1, [(X, 1), (X, "text"), (X, None)]),
    "unused attribute": (lambda x, c: x * c.n, [(X, Config(n=1, m=1)), (X, Config(n=1, m=2))]),
    "unused key": (lambda x, d: x * d["a"], [(X, {"a": 1}), (X, {"a": 1, "b": 2}), (X, {"c": 3, "a": 1})]),
    "another place in a storage": (lambda x: x + 1, [(X,), (torch.ones(4)[1:],)]),
    "another tensor": (lambda x: x + 1, [(X,), (X * 2,), (X.clone(),)]),
    "only its type": (lambda x, n: x * 2 if isinstance(n, int) and n is not None else x, [(X, 3), (X, 4)]),
    "another list": (lambda x, v: x + v[0], [(X, [1, 2]), (X, [1, 3])]),
    "a longer list": (lambda x, v: x + v[1], [(X, [1, 2]), (X, [1, 2, 3]), (X, [0, 2])]),
    "a list only grown": (lambda x, v: v.append(1) or x + 1, [(X, []), (X, [1, 2])]),
    "another instance": (lambda x, c: x * c.factor(), [(X, Config()), (X, Config())]),
    "another lambda": (lambda x, f: f(x), [(X, (lambda: lambda v: v + 1)())] * 2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_compiled_again(compiler, name: str):
    fn, calls = CHANGES[name]
    assert compiled_counts(compiler, fn, calls) == [1, 1, 2]


@pytest.mark.parametrize("name", SAME)
def test_not_compiled_again(compiler, name: str):
    fn, calls = SAME[name]
    assert compiled_counts(compiler, fn, calls) == [1] * len(calls)


def test_global_and_closure(compiler):
    global SCALE
    factor = 1

    def fn(x):
        return x * SCALE + factor

    backend = CountingBackend()
    compiled = compiler.compile(fn, backend=backend)
    counts = []
    for scale, offset in ((2, 1), (2, 1), (3, 1), (3, 2), (2, 1)):
        SCALE, factor = scale, offset
        assert compiled(X)[0].item() == scale + offset
        counts.append(len(backend.graphs))
    assert compiler.name == "eager" or counts == [1, 1, 2, 3, 3]
    SCALE = 2


def test_patched_method_and_class_attribute(compiler, monkeypatch):
    config = Config()

    def fn(x):
        return x * config.factor() + len(config.mode)

    compiled = compiler.compile(fn, backend="eager")
    assert compiled(X)[0].item() == 3
    monkeypatch.setattr(Config, "factor", lambda self: 5)
    assert compiled(X)[0].item() == 6
    monkeypatch.setattr(Config, "mode", "long")
    assert compiled(X)[0].item() == 9
    config.factor = lambda: 7
    assert compiled(X)[0].item() == 11


class Named(abc.ABC):  # noqa: B024
    pass


@runtime_checkable
class Sized(Protocol):
    def size(self): ...


def test_what_abstract_classes_say_of_an_object(compiler):
    class Given:
        pass

    given, fresh = Given(), Given()

    def fn(x):
        return x + isinstance(given, Named) + 2 * isinstance(given, Sized) + 4 * issubclass(Given, Named)

    compiled = compiler.compile(fn, backend="eager")
    assert compiled(X)[0].item() == 1
    given.size = lambda: 3
    assert compiled(X)[0].item() == 3
    Named.register(Given)
    assert compiled(X)[0].item() == 8
    given = fresh
    assert compiled(X)[0].item() == 6


def test_a_module_that_takes_the_place_of_an_imported_one(compiler, monkeypatch):
    def module(value):
        made = ModuleType("graphlift_imported")
        made.value = value
        monkeypatch.setitem(sys.modules, "graphlift_imported", made)

    def fn(x):
        import graphlift_imported

        return x * graphlift_imported.value

    module(2)
    compiled = compiler.compile(fn, backend="eager")
    assert compiled(X)[0].item() == 2
    module(3)
    assert compiled(X)[0].item() == 3


def test_global_state(compiler):
    def fn(x):
        return x + torch.is_grad_enabled()

    compiled = compiler.compile(fn, backend="eager")
    assert compiled(X)[0].item() == 2
    with torch.no_grad():
        assert compiled(X)[0].item() == 1
    assert compiled(X)[0].item() == 2


def test_module_state(compiler):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.0), torch.nn.ReLU())
    compiled = compiler.compile(model, backend="eager")
    torch.testing.assert_close(compiled(X), model(X))
    model.eval()
    torch.testing.assert_close(compiled(X), model(X))
    model[2] = torch.nn.Tanh()
    torch.testing.assert_close(compiled(X), model(X))
    model.append(torch.nn.Linear(3, 2))
    torch.testing.assert_close(compiled(X), model(X))
    handle = model[0].register_forward_hook(lambda module, args, out: out * 10)
    torch.testing.assert_close(compiled(X), model(X))
    handle.remove()
    torch.testing.assert_close(compiled(X), model(X))


def test_loops_with_breaks_compile_their_body_once(compiler):
    def fn(x):
        for i, item in enumerate([1, 1, 1, 1, 1, 1]):  # noqa: B007
            x = x + item
            print(end="")
        return x + i

    backend = CountingBackend()
    compiled = compiler.compile(fn, backend=backend)
    for _ in range(2):
        assert compiled(X)[0].item() == 12
    assert len(backend.graphs) <= 3


@pytest.mark.parametrize(
    "ask",
    [
        lambda n: -1 < n,
        lambda n: n > -1,
        lambda n: n + 1 > 0,
        lambda n: 7 - n > 0,
        lambda n: 2**n > 0,
        lambda n: n in (0, 2, 5),
        lambda n: [4, 5, 6, 7, 8, 9][n % 6] > 0,
        lambda n: divmod(n, 2)[0] >= 0,
        lambda n: -n <= 0,
        lambda n: n == 5 or n != 5,
    ],
)
def test_an_integer_that_varies_raises_nothing_of_our_own(compiler, ask: Callable[[int], bool]) -> None:
    """Not inside a handler either, where a refusal of capture's would go unseen."""

    def fn(x, n, log):
        try:
            if ask(n):
                log.append(n)
        except BaseException as error:
            log.append(repr(error))
        print(end="")
        return x + len(log)

    compiled = compiler.compile(fn)
    logs: tuple[list[Any], list[Any]] = [], []
    for n in (2, 3, 0, 5, 7, 1, 9, 2):
        assert torch.equal(compiled(X, n, logs[1]), fn(X, n, logs[0]))
        assert logs[0] == logs[1]


def test_text_that_varies(compiler):
    """A text that differs in each call is passed on after some versions; what looks at it runs natively."""

    def fn(x, name):
        return (
            x * 2,
            name,
            f"{name}: {x}",
            "a" + name,
            [name.upper(), len(name), name == "t3", name in ("t4",)],
        )

    backend = CountingBackend()
    compiled = compiler.compile(fn, backend=backend)
    for k in range(20):
        given = torch.full((2,), float(k)), f"t{k}"
        assert_equal(compiled(*given), fn(*given))
    if compiler.name == "graphlift":
        assert len(backend.graphs) <= 8


def test_generators_made_for_each_call() -> None:
    def noisy(x: Tensor, generator: torch.Generator) -> Any:
        y = x * 2
        noise = torch.randn(3, generator=generator)
        return y + noise, torch.rand(2, generator=generator) * y.sum()

    regions: list[Any] = []
    compiled = Settings(backend=lambda gm, inputs: gm.forward).callable(noisy, on_region=(regions.append,))
    counts = []
    for seed in range(8):
        made = [torch.Generator().manual_seed(seed) for _ in range(2)]
        assert_equal(compiled(torch.ones(3), made[0]), noisy(torch.ones(3), made[1]))
        assert torch.equal(made[0].get_state(), made[1].get_state())
        counts.append(len([r for r in regions if r.filename == __file__]))
    assert counts[-1] == counts[4] <= 7, counts
    same = torch.Generator()
    fixed = Settings(backend=lambda gm, inputs: gm.forward).callable(noisy, fullgraph=True)
    for seed in range(3):
        want = noisy(torch.ones(3), same.manual_seed(seed))
        assert_equal(fixed(torch.ones(3), same.manual_seed(seed)), want)


def test_classes_made_for_each_call() -> None:
    """Others of one name come in each call: after some, nothing is compiled for one of them any more."""

    def with_fields(x: Tensor) -> Any:
        Pair = namedtuple("Pair", "first second")
        return Pair(x * 2, x + 1)

    def with_methods(x: Tensor) -> Any:
        class Box:
            def __init__(self, value: Tensor) -> None:
                self.value = value

            def doubled(self) -> Tensor:
                return self.value * 2

        box = Box(x + 1)
        return box.doubled(), box

    for fn in (with_fields, with_methods):
        regions: list[Any] = []
        compiled = Settings(backend=lambda gm, inputs: gm.forward).callable(fn, on_region=(regions.append,))
        counts = []
        for k in range(20):
            got, want = compiled(torch.ones(3) * k), fn(torch.ones(3) * k)
            assert type(got).__name__ == type(want).__name__
            assert torch.equal(got[0], want[0])
            assert type(got[1]).__qualname__ == type(want[1]).__qualname__
            counts.append(len(regions))
        assert counts[-1] == counts[14], counts


class Ticks:
    count = 0
    rate = 1.5
    name = "a"


class Hiding(type):
    n = property(lambda cls: 100)


class Hidden(metaclass=Hiding):
    n = 2


class Base:
    n = 2


class Side(Base):
    pass


class Other(Base):
    n = 3


class Both(Side, Other):
    def read(self) -> int:
        return super().n


def count_and_read(x: Tensor) -> Tensor:
    Ticks.count += 1
    return x * Ticks.count


def numbers_of_classes(x: Tensor) -> Tensor:
    return x * Ticks.rate + len(Ticks.name) + Hidden().n + Both().read() + Both().n


def numbers_behind_made_classes(x: Tensor) -> Tensor:
    class Made(Side, Other):
        pass

    return x * Made.n + Made().n


def test_a_counter_of_a_class_is_a_number_that_varies(compiler) -> None:
    if compiler.name == "eager":
        pytest.skip("eager compiles nothing")
    backend = CountingBackend()
    compiled = compiler.compile(count_and_read, backend=backend)
    Ticks.count = 0
    results = [compiled(X) for _ in range(12)]
    assert [int(y[0]) for y in results] == list(range(1, 13))
    assert len(backend.graphs) == 2


@config.patch(cache_size_limit=20)
@pytest.mark.parametrize("fn", [numbers_of_classes, numbers_behind_made_classes])
def test_numbers_of_classes_are_read_where_the_program_finds_them(compiler, fn, monkeypatch) -> None:
    compiled = compiler.compile(fn)
    assert_equal(compiled(X), fn(X))
    for cls, name, value in [
        (Ticks, "rate", 2.5),
        (Ticks, "name", "bcd"),
        (Ticks, "rate", 7),
        (Base, "n", 5),
        (Other, "n", 6),
        (Side, "n", 7),  # earlier in the order than where it was found
        (Both, "n", 8),
        (Base, "n", True),
        (Side, "n", 2.5),
        (Both, "n", property(lambda self: 9)),
    ]:
        monkeypatch.setattr(cls, name, value, raising=False)
        for _ in range(2):
            assert_equal(compiled(X), fn(X))
    monkeypatch.undo()
    assert_equal(compiled(X), fn(X))


def written(out: Tensor, x: Tensor) -> Tensor:
    out[0] = x * 2
    return out * 3


@pytest.mark.parametrize("kind", ("plain", "view", "computed", "view of computed"))
def test_what_gets_a_gradient_by_being_written_is_compiled_once(compiler, kind: str) -> None:
    """A leaf that requires no grad may be written, and requires one then."""

    def made() -> tuple[Tensor, Tensor]:
        base = torch.zeros(3, 2, requires_grad="computed" in kind) * 1
        return base[:, 0] if "view" in kind else base, torch.tensor(2.0, requires_grad=True)

    if compiler.name == "eager":
        pytest.skip("eager compiles nothing")
    backend = CountingBackend()
    compiled = compiler.compile(written, backend=backend)
    for _ in range(3):
        got, expected = compiled(*made()), written(*made())
        assert_equal(got, expected)
    assert len(backend.graphs) == 1


def test_tensors_of_classes_are_read_like_those_of_instances(compiler) -> None:
    if compiler.name == "eager":
        pytest.skip("eager compiles nothing")

    class Held:
        scale: Tensor = X
        last: Tensor | None = None

    def fn(x: Tensor) -> Tensor:
        if Held.last is not None:
            x = x + Held.last
        Held.last = x * Held().scale
        return Held.last

    backend = CountingBackend()
    compiled = compiler.compile(fn, backend=backend)
    expected = torch.zeros(3)
    for k in range(5):
        Held.scale = torch.full((3,), float(k))
        expected = (X + expected) * k
        assert_equal(compiled(X), expected)
        assert_equal(Held.last, expected)
    assert len(backend.graphs) == 2
