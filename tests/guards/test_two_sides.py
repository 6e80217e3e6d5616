"""What a program reads is guarded and nothing else: each change that matters compiles again, and no other does.

In: programs that reach what they read by roundabout ways, each with changes of both kinds. Out: one test per program.
Always: after every change, also a change back, the compiled call gives what eager gives.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import graphlift
from tests.capture.program import CountingBackend
from tests.equality import assert_equal

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Change = Callable[[], Any]


@dataclass
class Case:
    """A program of X, changes that it has to see, changes that are nothing to it, ways back to what was compiled."""

    run: Callable[..., Any]
    seen: list[Change] = field(default_factory=list)
    unseen: list[Change] = field(default_factory=list)
    back: list[Change] = field(default_factory=list)
    undo: Change | None = None


CASES: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    CASES[build.__name__.replace("_", " ")] = build
    return build


class Scale(nn.Module):
    rate = 2.0

    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        self.by = by
        self.unread = 0

    @property
    def factor(self) -> float:
        return self.by * self.rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class OtherScale(Scale):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.factor


def tree() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            first=nn.ModuleList(
                [nn.ModuleDict({"a": Scale(1.0), "b": Scale(3.0)}), nn.ModuleDict({"a": Scale(5.0)})]
            ),
            last=nn.Linear(4, 4),
        )
    )


def walk(net: Any) -> Callable[..., Any]:
    def run(x: torch.Tensor) -> torch.Tensor:
        for level in net.first:
            for part in level.values():
                x = part(x)
        return net.last(x)

    return run


# --- modules in containers ----------------------------------------------------------------------------------------


@case
def attributes_deep_in_containers() -> Case:
    net = tree()
    deep = net.first[0]["b"]
    return Case(
        walk(net),
        [
            lambda: setattr(deep, "by", 4.0),
            lambda: setattr(deep, "rate", 7.0),  # on the instance, over the class's
            lambda: deep.__dict__.update(by=6.0),
            lambda: setattr(deep, "__dict__", {**deep.__dict__, "by": 8.0}),
            lambda: setattr(deep, "__class__", OtherScale),
        ],
        [
            lambda: setattr(deep, "unread", 5),
            lambda: setattr(deep, "new", 5),
            lambda: setattr(deep, "__dict__", dict(deep.__dict__)),
            lambda: setattr(net.first[1], "note", "x"),
            lambda: setattr(net, "note", "x"),
        ],
        [
            lambda: setattr(deep, "__class__", Scale),
            lambda: delattr(deep, "rate"),
            lambda: setattr(deep, "by", 3.0),
        ],
    )


@case
def modules_exchanged_and_reordered() -> Case:
    net = tree()
    return Case(
        walk(net),
        [
            lambda: net.first[0].update({"b": OtherScale(3.0)}),
            lambda: net.first[0].update({"c": Scale(9.0)}),
            lambda: net.first[0]._modules.update(a=net.first[0]._modules.pop("a")),
            lambda: net.first._modules.update({"0": net.first[1], "1": net.first[0]}),
            lambda: net.first.append(nn.ModuleDict({"z": Scale(2.0)})),
            lambda: setattr(net, "last", nn.Linear(4, 2)),
            lambda: setattr(net, "last", nn.Linear(4, 2, bias=False)),
        ],
        [
            lambda: net.first[0].update({"a": copy.deepcopy(net.first[0]["a"])}),
            lambda: setattr(net, "last", nn.Linear(4, 4)),
            lambda: net.add_module("more", nn.ReLU()),
        ],
        [lambda: setattr(net, "last", nn.Linear(4, 4)), lambda: net.first.pop(2)],
    )


@case
def parameters_and_flags() -> Case:
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 4)))
    inner = net[1][1]

    def run(x: torch.Tensor) -> torch.Tensor:
        return net(x.to(inner.weight.dtype).to(net[0].weight.dtype)).sum()

    return Case(
        run,
        [
            lambda: inner.weight.requires_grad_(False),
            lambda: setattr(inner.weight, "data", inner.weight.data.t()),
            lambda: setattr(inner, "bias", None),
            lambda: net[1].eval(),
            lambda: net.double(),
        ],
        [
            lambda: inner.weight.data.mul_(2),
            lambda: setattr(inner.weight, "data", torch.ones(4, 4)),
            lambda: setattr(inner, "weight", nn.Parameter(torch.ones(4, 4))),
            lambda: setattr(inner.weight, "grad", torch.ones(4, 4)),
            lambda: net.load_state_dict(copy.deepcopy(net.state_dict())),
            lambda: net.float(),
            lambda: net.zero_grad(),
        ],
    )


@case
def hooks_of_a_submodule_and_of_all() -> Case:
    net = tree()
    deep = net.first[1]["a"]
    kept: list[Any] = []
    every = nn.modules.module.register_module_forward_hook

    def add(register: Callable[..., Any], hook: Any) -> None:
        kept.append(register(hook))

    def drop() -> None:
        while kept:
            kept.pop().remove()

    return Case(
        walk(net),
        [
            lambda: add(deep.register_forward_hook, lambda module, args, out: out * 3),
            lambda: add(deep.register_forward_pre_hook, lambda module, args: (args[0] - 1,)),
            lambda: add(every, lambda module, args, out: out + 1),
        ],
        [
            lambda: net.register_state_dict_pre_hook(lambda *args: None),
            lambda: net.first[0].register_forward_hook(
                lambda module, args, out: out * 5
            ),  # which is not called
        ],
        [drop],
        drop,
    )


@case
def methods_on_instances_and_classes() -> Case:
    class Part(Scale):
        pass

    class Later(Part):
        def helper(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.helper(x))

    part = Later()
    holder = {"parts": [(part,)]}
    return Case(
        lambda x: holder["parts"][0][0](x),
        [
            lambda: setattr(Later, "helper", lambda self, x: x - 2),
            lambda: setattr(part, "helper", lambda x: x * 7),
            lambda: setattr(Part, "forward", lambda self, x: x / 4),
            lambda: setattr(Part, "__call__", lambda self, x: self.forward(x) * 9),
            lambda: holder.update(parts=[(Later(2.0),)]),
        ],
        [
            lambda: setattr(Later, "another", lambda self: 1),
            lambda: setattr(Part, "rate", 2.0) or setattr(Part, "unread", 2),
            lambda: holder["parts"].append(()),
        ],
    )


# --- classes ------------------------------------------------------------------------------------------------------


@case
def what_a_property_or_descriptor_gives() -> Case:
    class Meta(type):
        @property
        def shared(cls) -> float:
            return cls.base

    class Described:
        def __init__(self, value: float) -> None:
            self.value = value

        def __get__(self, obj: Any, cls: Any = None) -> float:
            return self.value * obj.own

    class Thing(metaclass=Meta):
        base = 2.0
        described = Described(3.0)
        own = 1.0

        @property
        def made(self) -> float:
            return self.own + 1

        @functools.cached_property
        def once(self) -> float:
            return self.own * 10

    thing = Thing()
    return Case(
        lambda x: x * thing.made + thing.described + type(thing).shared + thing.once,
        [
            lambda: setattr(thing, "own", 5.0),
            lambda: thing.__dict__.update(once=3.0),
            lambda: setattr(Thing, "base", 4.0),
            lambda: setattr(Thing.__dict__["described"], "value", 8.0),
            lambda: setattr(Thing, "made", property(lambda self: 11.0)),
            lambda: setattr(Thing, "made", 12.0),
            lambda: setattr(Meta, "shared", property(lambda cls: 13.0)),
        ],
        [
            lambda: setattr(thing, "other", 1),
            lambda: setattr(Thing, "more", 1),
            lambda: setattr(Meta, "n", 1),
        ],
    )


@case
def the_order_of_bases() -> Case:
    class Root:
        k = 1.0

    class Left(Root):
        k = 2.0

    class Right(Root):
        k = 3.0

    class Both(Left, Right):
        pass

    box = Both()
    return Case(
        lambda x: x * box.k,
        [
            lambda: setattr(Both, "__bases__", (Right, Left)),
            lambda: setattr(Right, "k", 8.0),
            lambda: setattr(Both, "k", 9.0),
            lambda: setattr(box, "k", 10.0),
            lambda: setattr(Both, "k", property(lambda self: 11.0)),  # which is before the instance's
        ],
        [lambda: setattr(Root, "j", 1), lambda: setattr(Left, "j", 2), lambda: setattr(box, "j", 3)],
        [
            lambda: delattr(Both, "k"),
            lambda: delattr(box, "k"),
            lambda: setattr(Both, "__bases__", (Left, Right)),
        ],
    )


@case
def getattr_and_slots() -> Case:
    class Open:
        __slots__ = ("held", "unread")

        def __getattr__(self, name: str) -> float:
            return 4.0 if name == "missing" else 1.0

    box = Open()
    box.held = 2.0
    return Case(
        lambda x: x * box.held + box.missing,
        [
            lambda: setattr(box, "held", 3.0),
            lambda: setattr(Open, "__getattr__", lambda self, name: 5.0),
            lambda: delattr(box, "held"),
            lambda: setattr(Open, "missing", 6.0),
        ],
        [lambda: setattr(box, "unread", 1), lambda: setattr(Open, "unused", 1)],
    )


# --- functions ----------------------------------------------------------------------------------------------------


def wrapping(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


def cell_of(fn: Any, name: str) -> Any:
    return fn.__closure__[fn.__code__.co_freevars.index(name)]


@case
def what_a_decorator_wraps() -> Case:
    def inner(x: torch.Tensor, k: float = 2.0, *, m: float = 1.0) -> torch.Tensor:
        return x * k + m

    outer = wrapping(wrapping(inner))
    return Case(
        lambda x: outer(x),
        [
            lambda: setattr(inner, "__defaults__", (3.0,)),
            lambda: inner.__kwdefaults__.update(m=5.0),
            lambda: setattr(inner, "__kwdefaults__", {"m": 6.0}),
            lambda: setattr(inner, "__code__", (lambda x, k=2.0, *, m=1.0: x - k - m).__code__),
            lambda: setattr(cell_of(outer, "fn"), "cell_contents", inner),
            lambda: setattr(cell_of(outer, "fn"), "cell_contents", torch.sin),
        ],
        [
            lambda: setattr(inner, "note", 1),
            lambda: setattr(inner, "__doc__", "text"),
            lambda: setattr(outer, "__wrapped__", None),
            lambda: setattr(inner, "__name__", "renamed"),
        ],
    )


@case
def partials() -> Case:
    options = {"rounding_mode": "floor"}
    values = [0.3]
    held = types.SimpleNamespace(
        fn=functools.partial(lambda x, v, **kw: torch.div(x, v[0], **kw), v=values, **options)
    )
    return Case(
        lambda x: held.fn(x),
        [
            lambda: values.__setitem__(0, 0.7),
            lambda: held.fn.keywords.update(rounding_mode="trunc"),
            lambda: held.fn.keywords.update(v=[0.9]),
            lambda: held.fn.keywords.pop("rounding_mode"),
            lambda: setattr(held, "fn", functools.partial(held.fn, rounding_mode="floor")),
            lambda: held.fn.__setstate__((torch.sub, (), {"other": 2.0}, {})),
        ],
        [
            lambda: values.append(5.0),
            lambda: options.update(rounding_mode="trunc"),
            lambda: setattr(held.fn, "note", 1),
            lambda: setattr(held, "other", 1),
        ],
    )


@case
def cells_two_functions_deep() -> Case:
    def make() -> tuple[Any, Any, Any]:
        k, unread = 2.0, 0

        def middle(x: torch.Tensor) -> Any:
            def innermost(y: torch.Tensor) -> torch.Tensor:
                return y * k

            return innermost(x)

        def write(value: float) -> None:
            nonlocal k
            k = value

        def other(value: int) -> int:
            nonlocal unread
            unread = value
            return unread

        return middle, write, other

    middle, write, other = make()
    return Case(middle, [lambda: write(3.0), lambda: write(3)], [lambda: other(5), lambda: write(2.0)])


@case
def bound_methods() -> Case:
    class Bank:
        def __init__(self, k: float) -> None:
            self.k = k

        def act(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.k

    one, two = Bank(2.0), Bank(4.0)
    table = {"act": one.act}
    return Case(
        lambda x: table["act"](x),
        [
            lambda: setattr(one, "k", 3.0),
            lambda: table.update(act=two.act),
            lambda: table.update(act=types.MethodType(lambda self, x: x + self.k, two)),
            lambda: setattr(two, "k", 9.0),
        ],
        [lambda: setattr(one, "n", 1), lambda: table.update(other=one.act), lambda: setattr(Bank, "n", 1)],
    )


# --- globals and modules ------------------------------------------------------------------------------------------

LIBRARY = types.ModuleType("graphlift_tests_library")
exec(
    "import math\nscale = 2.0\nunread = 0\ndef act(x):\n    return x * scale + math.floor(2.5)\n",
    vars(LIBRARY),
)


@case
def another_modules_globals() -> Case:
    def run(x: torch.Tensor) -> torch.Tensor:
        return LIBRARY.act(x)

    math = types.SimpleNamespace(floor=lambda v: 7)
    return Case(
        run,
        [
            lambda: setattr(LIBRARY, "scale", 3.0),
            lambda: vars(LIBRARY).update(math=math),
            lambda: setattr(LIBRARY, "act", lambda x: x - 1),
            lambda: globals().update(LIBRARY=types.SimpleNamespace(act=lambda x: x - 2)),
        ],
        [
            lambda: setattr(LIBRARY, "unread", 1),
            lambda: setattr(LIBRARY, "new", 1),
            lambda: globals().update(NEW=1),
        ],
    )


@case
def modules_by_name() -> Case:
    sys.modules[LIBRARY.__name__] = LIBRARY
    replacement = types.ModuleType(LIBRARY.__name__)
    replacement.scale = 11.0

    def run(x: torch.Tensor) -> torch.Tensor:
        return x * sys.modules["graphlift_tests_library"].scale

    return Case(
        run,
        [
            lambda: setattr(LIBRARY, "scale", 3.0),
            lambda: sys.modules.update({LIBRARY.__name__: replacement}),
        ],
        [lambda: setattr(LIBRARY, "unread", 3), lambda: sys.modules.update(graphlift_tests_other=LIBRARY)],
        undo=lambda: [sys.modules.pop(name, None) for name in (LIBRARY.__name__, "graphlift_tests_other")],
    )


@case
def builtins_that_are_hidden() -> Case:
    names: dict[str, Any] = {}
    exec("def run(x):\n    return x * max(2, 3) + len([1, 2])\n", names)
    return Case(
        names["run"],
        [lambda: names.update(max=lambda *v: 5), lambda: names.update(len=lambda v: 8)],
        [lambda: names.update(min=lambda *v: 5)],
        [lambda: names.pop("len"), lambda: names.pop("max")],
    )


# --- containers ---------------------------------------------------------------------------------------------------


@case
def content_and_order_of_containers() -> Case:
    data = {
        "list": [1.0, [2.0]],
        "dict": {"a": 1.0, "b": 2.0},
        "set": {1, 2},
        "deque": deque([1.0, 2.0]),
        "ordered": OrderedDict(a=1.0, b=2.0),
        "tuple": (1.0, {"k": [3.0]}),
    }

    def run(x: torch.Tensor) -> torch.Tensor:
        x = x * data["list"][1][0] + data["deque"][-1]
        for name, value in data["dict"].items():
            x = x - value if name == "a" else x / value
        x = x + (3 in data["set"]) + list(data["ordered"].values())[0]
        return x * data["tuple"][1]["k"][0]

    return Case(
        run,
        [
            lambda: data["list"][1].__setitem__(0, 5.0),
            lambda: data["deque"].append(7.0),
            lambda: data["dict"].update(a=4.0),
            lambda: data["dict"].update(a=data["dict"].pop("a")),
            lambda: data["dict"].update(c=9.0),
            lambda: data["set"].add(3),
            lambda: data["ordered"].move_to_end("a"),
            lambda: data["tuple"][1].update(k=[8.0]),
            lambda: data.update(list=(0, [6.0])),
        ],
        [
            lambda: data["list"].__setitem__(0, 9.0),
            lambda: data["list"][1].append(1.0),
            lambda: data["deque"].appendleft(0.0),
            lambda: data.update(more=1),
            lambda: data["tuple"][1].update(other=1),
        ],
    )


# --- the tests ----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    graphlift.reset()
    library, state = LIBRARY, dict(vars(LIBRARY))
    yield
    globals().update(LIBRARY=library)
    vars(library).clear()
    vars(library).update(state)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("warm", [1, 4])
def test_both_sides(name: str, warm: int) -> None:
    made = CASES[name]()
    backend = CountingBackend()
    compiled = graphlift.compile(made.run, backend=backend, dynamic=False)

    def check(change: Change | None) -> int:
        if change is not None:
            change()
        before = len(backend.graphs)
        expected = outcome(made.run)
        for _ in range(warm):
            assert_equal(outcome(compiled), expected)
        return len(backend.graphs) - before

    try:
        with graphlift.config.patch(cache_size_limit=100):
            check(None)
            count = len(backend.graphs)
            assert count
            for k, change in enumerate(made.unseen):
                assert check(change) == 0, f"compiled again for nothing: change {k}"
            for k, change in enumerate(made.seen):
                assert check(change) > 0 or type(outcome(made.run)) is not torch.Tensor, (
                    f"not seen: change {k}"
                )
    finally:
        if made.undo is not None:
            made.undo()


def outcome(fn: Callable[..., Any]) -> Any:
    try:
        return fn(X)
    except Exception as error:
        return type(error), str(error)


# --- tensors and what is around the call --------------------------------------------------------------------------


class Plain(torch.Tensor):
    pass


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.add else out


DOUBLING = Doubling()


@pytest.mark.parametrize(
    ("first", "alike", "others"),
    [
        (
            X,
            [X + 1, X.clone(), nn.Parameter(X.clone(), requires_grad=False).data],
            [X.double(), X.to("meta")],
        ),
        (X, [X.contiguous()], [X.t().contiguous().t(), X[:, :3], X.expand(2, 3, 4), X.half()]),
        (X + 1j * X, [X - 1j], [(X + 1j * X).conj(), X]),
        (
            torch.ones(3),
            [torch.zeros(3)],
            [torch._neg_view(torch.ones(3)), torch.ones(3, requires_grad=True)],
        ),
        (X.clone(), [X.clone()], [X.clone().as_subclass(Plain), nn.Parameter(X.clone())]),
    ],
)
def test_tensors(first: Any, alike: list[Any], others: list[Any]) -> None:
    def run(x: Any) -> Any:
        return torch.add(x, 1).sum(-1)

    backend = CountingBackend()
    compiled = graphlift.compile(run, backend=backend, dynamic=False)
    compiled(first)
    for x in alike:
        assert_equal(compiled(x), run(x))
    assert len(backend.graphs) == 1
    for k, x in enumerate(others):
        found, expected = compiled(x), run(x)
        assert type(found) is type(expected) and found.dtype == expected.dtype
        if x.device.type != "meta":
            assert torch.equal(found, expected)
        assert len(backend.graphs) > 1, k
    assert_equal(compiled(first), run(first))


class Counted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out + 100 if func is torch.add else out


@pytest.mark.parametrize(
    "make", [torch.ones, lambda n: torch.ones(n).as_subclass(Counted)], ids=["plain", "subclass"]
)
def test_handlers_switched_off_around_the_call(make: Callable[..., Any]) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, 1)

    x = make(2)
    backend = CountingBackend()
    compiled = graphlift.compile(run, backend=backend)
    inner = (contextlib.nullcontext, torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction)
    for _ in range(2):
        for mode in (contextlib.nullcontext(), DOUBLING):
            for around in inner:
                with mode, around():
                    found, expected = compiled(x), run(x)
                with torch._C.DisableTorchFunction():
                    assert type(found) is type(expected) and torch.equal(found, expected)
    assert len(backend.graphs) <= 6


def _set_flag(setter: Callable[[Any], Any], inside: Any, outside: Any) -> Callable[[], Any]:
    class Around:
        def __enter__(self) -> None:
            setter(inside)

        def __exit__(self, *args: Any) -> None:
            setter(outside)

    return Around


STATES: dict[str, tuple[Callable[[], Any], bool]] = {  # and whether a program that asks nothing of it sees it
    "no_grad": (torch.no_grad, True),
    "inference mode": (torch.inference_mode, True),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), True),
    "default dtype": (_set_flag(torch.set_default_dtype, torch.float64, torch.float32), True),
    "default device": (lambda: torch.device("meta"), True),
    "deterministic": (_set_flag(torch.use_deterministic_algorithms, True, False), True),
    "function mode": (lambda: DOUBLING, True),
    "threads": (_set_flag(torch.set_num_threads, 1, torch.get_num_threads()), False),
    "autocast, off": (lambda: torch.autocast("cpu", enabled=False), False),
    "seed": (_set_flag(torch.manual_seed, 1, 2), False),
    "print options": (_set_flag(lambda n: torch.set_printoptions(precision=n), 2, 4), False),
    "warnings": (_set_flag(torch.set_warn_always, True, False), False),
}


@pytest.mark.parametrize("name", STATES)
def test_state_around_the_call(name: str) -> None:
    around, seen = STATES[name]

    def run(x: torch.Tensor) -> Any:
        return torch.add(x @ x.t(), torch.ones(3, device="cpu")).sum()

    backend = CountingBackend()
    compiled = graphlift.compile(run, backend=backend)
    compiled(X)
    for _ in range(2):
        with around():
            assert_equal(compiled(X), run(X))
        assert_equal(compiled(X), run(X))
    assert len(backend.graphs) == 1 + seen


def test_threads_are_guarded_where_they_are_asked_for() -> None:
    compiled = graphlift.compile(lambda x: x * torch.get_num_threads(), backend="eager")
    before = torch.get_num_threads()
    try:
        for n in (1, 2, 1, 3):
            torch.set_num_threads(n)
            assert torch.equal(compiled(X), X * n)
    finally:
        torch.set_num_threads(before)


def test_methods_of_operators_and_item_getters() -> None:
    held = {"get": operator.itemgetter("a"), "data": {"a": 2.0, "b": 3.0}}
    compiled = graphlift.compile(lambda x: x * held["get"](held["data"]), backend="eager")
    assert torch.equal(compiled(X), X * 2)
    held["get"] = operator.itemgetter("b")
    assert torch.equal(compiled(X), X * 3)
    held["data"]["b"] = 5.0
    assert torch.equal(compiled(X), X * 5)
