"""Reported programs about Python itself: state that changes between calls, classes, exceptions, context managers."""

from __future__ import annotations

import functools
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tests.cases.case import Compile, case, graph_break, outcome


class Plain:
    """An object with a ``__dict__`` and nothing else."""


@case("pt#165385")
def test_read_only_attribute(compile: Compile):
    @compile
    def region(x: Tensor, obj: Plain) -> Tensor:
        try:
            obj.__weakref__ = 1
        except AttributeError:
            return x + 1
        return x

    out = region(torch.zeros(2), Plain())
    assert out.tolist() == [1, 1]
    return out


@case("pt#165385")
def test_exceptions_of_python_operations(compile: Compile):
    """An exception raised by Python inside the region reaches the handler that Python would choose."""

    @compile
    def region(x: Tensor, kind: str) -> Tensor:
        try:
            if kind == "key":
                {}["absent"]
            if kind == "index":
                [][3]
            if kind == "attribute":
                Plain().absent  # noqa: B018
            if kind == "type":
                len(3)
            if kind == "zero":
                1 // 0  # noqa: B018
            if kind == "value":
                int("x")
        except (KeyError, IndexError):
            return x + 1
        except AttributeError as error:
            return x + len(str(error))
        except TypeError:
            x = x + 3
        finally:
            x = x * 2
        return x

    return [
        outcome(region, torch.ones(2), kind)
        for kind in ("none", "key", "index", "attribute", "type", "zero", "value")
    ]


@case("pt#156463")
def test_lru_cache(compile: Compile):
    calls = []

    @functools.lru_cache
    def helper(n: int) -> int:
        calls.append(n)
        return n * 2

    region = compile(lambda x: x * helper(3))
    outs = [region(torch.ones(2)), region(torch.ones(2)), region(torch.ones(3))]
    assert calls == [3] and helper.cache_info().currsize == 1
    return outs


@case("f-string of a size")
def test_format_of_a_size(compile: Compile):
    region = compile(lambda x: (x + 1, f"{x.shape[0]:03d}"))
    texts = [region(torch.ones(size))[1] for size in (3, 5, 7, 3)]
    assert texts == ["003", "005", "007", "003"]
    return texts


class Switch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flag = True

    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if self.flag else x - 1


@case("pt#113290")
def test_flag_flipped_twice(compile: Compile):
    module = Switch()
    compiled = compile(module)
    outs = []
    for flag in (True, False, True, False):
        module.flag = flag
        outs.append(compiled(torch.zeros(1)).item())
    assert outs == [1, -1, 1, -1]
    return outs


SCALE = 2.0


@case("pt#113290")
def test_flags_everywhere(compile: Compile):
    """A global, a closure cell, a default argument, a container and train/eval, each changed between calls."""
    global SCALE
    bias, options = 1, {"shift": 0}

    def helper(x: Tensor, extra: float = 5.0) -> Tensor:
        return x * SCALE + bias + options["shift"] + extra

    region = compile(lambda x: helper(x))
    x, outs = torch.ones(1), []
    try:
        outs.append(region(x))
        SCALE = 3.0
        outs.append(region(x))
        bias = 10
        outs.append(region(x))
        options["shift"] = 100
        outs.append(region(x))
        helper.__defaults__ = (7.0,)
        outs.append(region(x))
    finally:
        SCALE = 2.0
    outs.append(region(x))
    assert [out.item() for out in outs] == [8, 9, 18, 118, 120, 119]
    return outs


class Registry:
    items: list[int] = []
    factor = 2


@case("pt#169253")
def test_list_on_a_class(compile: Compile):
    Registry.items = []

    @compile
    def region(x: Tensor) -> Tensor:
        Registry.items.append(len(Registry.items))
        return x + 1

    for expected in range(1, 5):
        region(torch.ones(1))
        assert len(Registry.items) == expected
    return Registry.items


@case("pt#197896")
def test_closure_list_changed_by_a_local_class(compile: Compile):
    @compile
    def region(x: Tensor) -> tuple[Tensor, list[int]]:
        items = [1]

        class Adder:
            def add(self, item: int) -> None:
                items.append(item)

        Adder().add(5)
        return x * len(items), items

    out, items = region(torch.ones(1))
    assert out.item() == 2 and items == [1, 5]
    return out, items


@case("pt#176851", "pt#115774")
def test_attributes_replaced_between_calls(compile: Compile):
    holder = Plain()
    holder.weight = torch.ones(2)
    region = compile(lambda x: x * holder.weight * Registry.factor)
    x, outs = torch.ones(2), []
    try:
        outs.append(region(x))
        holder.weight = torch.full((2,), 3.0)
        outs.append(region(x))
        Registry.factor = 5
        outs.append(region(x))
        holder.weight.add_(1)
        outs.append(region(x))
        holder.weight = torch.ones(2, dtype=torch.float64)
        outs.append(region(x))
    finally:
        Registry.factor = 2
    assert [out[0].item() for out in outs] == [2, 6, 15, 20, 5]
    return outs


@case("pt#115774")
def test_parameter_and_submodule_replaced_between_calls(compile: Compile):
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    compiled = compile(module)
    x, outs = torch.ones(1, 2), []
    outs.append(compiled(x))
    module[0].weight = nn.Parameter(torch.eye(2))
    outs.append(compiled(x))
    module[1] = nn.Sigmoid()
    outs.append(compiled(x))
    module.append(nn.Flatten(0))
    outs.append(compiled(x))
    return outs


class Disguised:
    """Says that it is a str; its type says otherwise."""

    @property
    def __class__(self):  # type: ignore[override]
        return str


@case("pt#174050")
def test_overridden_class(compile: Compile):
    @compile
    def region(x: Tensor, obj: object) -> tuple[Tensor, bool, bool]:
        named, real = isinstance(obj, str), type(obj) is str
        return (x + 1 if named else x - 1), real, obj.__class__ is str

    out = region(torch.zeros(1), Disguised())
    assert (out[0].item(), *out[1:]) == (1, False, True)
    return out, region(torch.zeros(1), "text"), region(torch.zeros(1), 3)


@case("pt#196173")
def test_branch_on_identity(compile: Compile):
    @compile
    def region(x: Tensor, a: object, b: object) -> Tensor:
        return x + 1 if a is b else x - 1

    one, other = Plain(), Plain()
    x, t = torch.zeros(1), torch.ones(1)
    pairs = [
        (one, one),
        (one, other),
        (None, one),
        (None, None),
        (t, t),
        (t, t.clone()),
        ([], []),
        (one, one),
    ]
    outs = [region(x, a, b).item() for a, b in pairs]
    assert outs == [1, -1, -1, 1, 1, -1, -1, 1]
    return outs


@case("pt#113894")
def test_zip_strict(compile: Compile):
    @compile
    def region(xs: list[Tensor], ys: list[int]) -> list[Tensor]:
        return [x * y for x, y in zip(xs, ys, strict=True)]

    xs = [torch.ones(1), torch.ones(2)]
    bad = outcome(region, xs, [1, 2, 3])
    assert bad[1] is ValueError
    return bad, outcome(region, xs, [1]), region(xs, [1, 2])


def make_tracer(log: list[str]):
    @contextmanager
    def trace(name: str):
        log.append(f"enter {name}")
        try:
            yield name
        finally:
            log.append(f"exit {name}")

    return trace


@case("pt#128651", "pt#133483")
def test_finally_runs_once_with_a_break_inside(compile: Compile):
    log: list[str] = []
    trace = make_tracer(log)

    @compile
    def region(x: Tensor) -> Tensor:
        with trace("outer"):
            x = x + 1
            with trace("inner"):
                graph_break()
                x = x * 2
            x = x + 1
        return x

    outs = [region(torch.ones(1)), region(torch.ones(1))]
    assert log == ["enter outer", "enter inner", "exit inner", "exit outer"] * 2
    return outs, log


@case("pt#133483")
def test_finally_with_an_exception_and_a_return_inside(compile: Compile):
    log: list[str] = []
    trace = make_tracer(log)

    @compile
    def region(x: Tensor, fail: bool) -> Tensor:
        try:
            with trace("body"):
                graph_break()
                if fail:
                    raise ValueError("as told")
                return x * 2
        except ValueError:
            log.append("caught")
        finally:
            log.append("finally")
            graph_break()
        return x - 1

    outs = [region(torch.ones(1), fail) for fail in (False, True, False)]
    assert [out.item() for out in outs] == [2, 0, 2]
    return outs, log


def mixed_precision_helper(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    graph_break()
    return y @ w


@case("pt#102414")
def test_autocast_with_a_break_in_a_callee(compile: Compile):
    @compile
    def region(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = mixed_precision_helper(x, w)
        return y, x @ w

    y, z = region(torch.randn(2, 4), torch.randn(4, 4))
    assert (y.dtype, z.dtype) == (torch.bfloat16, torch.float32)
    assert not torch.is_autocast_enabled("cpu")
    return y, z


@case("pt#102414")
def test_grad_mode_with_a_break_and_an_exception_in_a_callee(compile: Compile):
    def callee(x: Tensor, fail: bool) -> Tensor:
        graph_break()
        if fail:
            raise RuntimeError("inside no_grad")
        return x * 2

    @compile
    def region(x: Tensor, fail: bool) -> Tensor:
        with torch.no_grad():
            y = callee(x, fail)
        return y + x

    x = torch.ones(2, requires_grad=True)
    results = [outcome(region, x, fail) for fail in (False, True, False)]
    assert torch.is_grad_enabled()
    return results
