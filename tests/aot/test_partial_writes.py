"""Writes to part of an input: as in eager, and no more of it is computed or copied than that part."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import graphlift
from graphlift import record

BACKENDS = ("aot_eager", "auto")


def _cache(cache: Tensor, x: Tensor, at: int) -> Tensor:
    cache[:2, at : at + 2] = x
    return cache[:, : at + 2] * 2


def _select(cache: Tensor, x: Tensor, at: int) -> None:
    cache[0, at] = x[0, 0]


def _added(cache: Tensor, x: Tensor, at: int) -> Tensor:
    cache[1:3, at:].add_(1).mul_(2)
    return cache.sum()


def _last_rows(cache: Tensor, x: Tensor, at: int) -> Tensor:
    part = cache.transpose(0, 1)[at]
    part.fill_(3)
    return part + cache[0, at]


def _diagonal(cache: Tensor, x: Tensor, at: int) -> None:
    cache[..., 0].diagonal().copy_(x[0, 0].mean())


def _every_other(cache: Tensor, x: Tensor, at: int) -> None:
    cache[::2, -3:, 1] = 7


def _twice(cache: Tensor, x: Tensor, at: int) -> None:
    cache[0] = 1
    cache[1, at] = 2


def _of_itself(cache: Tensor, x: Tensor, at: int) -> Tensor:
    cache[0] = cache[1] + cache[0]
    return cache[1]


def _empty(cache: Tensor, x: Tensor, at: int) -> None:
    cache[at : at - 1] = 5


def _all(cache: Tensor, x: Tensor, at: int) -> None:
    cache[:] = 2
    cache[:, :] += 1


def _attended(cache: Tensor, x: Tensor, at: int) -> Tensor:
    cache[:2, at : at + 2] = x * 2
    return cache.transpose(1, 2) @ cache


def _read_before(cache: Tensor, x: Tensor, at: int) -> Tensor:
    before = cache @ x[0, 0]
    cache[:2, at : at + 2] = x
    return before + cache @ x[0, 0]


def _copied(cache: Tensor, x: Tensor, at: int) -> Tensor:
    cache.index_copy_(1, torch.tensor([at, 0]), torch.cat([x, x * 2]).double().float())
    return cache @ x[0, 0]


def _put(cache: Tensor, x: Tensor, at: int) -> Tensor:
    cache[torch.tensor([1, 3]), at] = x[0]
    return cache @ x[0, 0]


def _put_whole(cache: Tensor, x: Tensor, at: int) -> Tensor:
    cache[torch.tensor([at, 0])] = x[0, 0]
    return cache @ x[0, 0]


def _put_unread(cache: Tensor, x: Tensor, at: int) -> None:
    cache[:, torch.tensor([at, 0])] = x[0, 0]


def _copied_into_layer(cache: Tensor, x: Tensor, at: int) -> Tensor:
    cache[1].index_copy_(0, torch.tensor([at, 0]), x[0])
    return cache[1] @ x[0, 0]


def _put_added(cache: Tensor, x: Tensor, at: int) -> Tensor:
    cache.index_put_((torch.tensor([1, 1]),), x[0, :1], accumulate=True)
    return cache @ x[0, 0]


def _scattered(cache: Tensor, x: Tensor, at: int) -> Tensor:
    cache.scatter_(1, torch.full((2, 2, 3), at), x[:, :1].expand(2, 2, 3))
    return cache @ x[0, 0]


def _in_two_calls(cache: Tensor, x: Tensor, at: int) -> tuple[Tensor, Tensor]:
    cache[0, at] = x[0, 0]
    first = cache @ x[0, 0]
    cache[0, at] = x[0, 1]
    return first, cache @ x[0, 0]


def _returned(cache: Tensor, x: Tensor, at: int) -> tuple[Tensor, Tensor, Tensor]:
    cache[:2, at : at + 2] = x
    return cache, cache[1:], cache @ x[0, 0]


PROGRAMS = (_cache, _select, _added, _last_rows, _diagonal, _every_other, _twice, _of_itself, _empty, _all)
PROGRAMS += (_attended, _read_before, _copied, _put, _put_added, _scattered, _in_two_calls, _returned)
PROGRAMS += (_put_whole, _put_unread, _copied_into_layer)


def _inputs(layout: str) -> tuple[Tensor, Tensor]:
    cache = torch.arange(4.0 * 6 * 3).view(4, 6, 3)
    if layout == "turned":
        cache = torch.arange(4.0 * 6 * 3).view(3, 4, 6).permute(1, 2, 0)
    if layout == "part":
        cache = torch.arange(5.0 * 8 * 3).view(5, 8, 3)[1:, 2:]
    return cache, torch.linspace(0, 1, 12).view(2, 2, 3)


def _ran(f: Callable[..., Any], layout: str, inference: bool) -> list[Any]:
    found: list[Any] = []
    cache, x = _inputs(layout)
    for at in (1, 2, 3, 3):
        with torch.inference_mode() if inference else torch.no_grad():
            out = f(cache, x, at)
        found += [copy.deepcopy(out), cache.clone(), cache._version]
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.parametrize("layout", ["plain", "turned", "part"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program: Callable[..., Any], layout: str, dynamic: bool | None, backend: str) -> None:
    graphlift.reset()
    compiled = graphlift.compile(program, backend=backend, dynamic=dynamic)
    torch.testing.assert_close(_ran(compiled, layout, False), _ran(program, layout, False), rtol=0, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_gradients_flow_beside(backend: str) -> None:
    """The buffer is written without a history, what is computed of it has one."""

    def step(cache: Tensor, x: Tensor, w: Tensor) -> Tensor:
        y = x * w
        with torch.no_grad():
            cache[1:3, 0] = y[0]
        return (y * cache[:2, :1]).sum() + y.square().sum()

    found, expected = [], []
    for into, f in ((found, graphlift.compile(step, backend=backend)), (expected, step)):
        cache, x = _inputs("plain")
        w = torch.full((3,), 2.0, requires_grad=True)
        for _ in range(2):
            f(cache, x, w).backward()
            into += [cache.clone(), cache._version, w.grad.clone()]
    torch.testing.assert_close(found, expected)


def _outputs(f: Callable[..., Any], *inputs: Any) -> list[tuple[int, ...]]:
    graphlift.reset()
    with record.recording() as records, torch.no_grad():
        graphlift.compile(f, backend="aot_eager")(*inputs)
    (found,) = records
    graph: fx.GraphModule = found.compiled.forms["inference"]
    (output,) = graph.graph.find_nodes(op="output")
    return [tuple(node.meta["val"].shape) for node in output.args[0]]


@pytest.mark.parametrize(
    ("program", "shape"), [(_select, (3,)), (_every_other, (2, 3)), (_added, (2, 5, 3)), (_of_itself, (6, 3))]
)
def test_no_more_than_the_part_is_computed(program: Callable[..., Any], shape: tuple[int, ...]) -> None:
    assert shape in _outputs(program, *_inputs("plain"), 1)
    assert (4, 6, 3) not in _outputs(program, *_inputs("plain"), 1)


def test_what_is_computed_of_an_input_while_it_is_written_is_of_its_old_value() -> None:
    def step(cache: Tensor) -> tuple[Tensor, Tensor]:
        before = cache[0] * 1
        cache[0] = cache[1]
        cache[0, 1] = before[0]
        return before, cache[0] + before

    found, expected = [], []
    for into, f in ((found, graphlift.compile(step)), (expected, step)):
        cache, _ = _inputs("plain")
        for _ in range(2):
            into += [*f(cache), cache.clone()]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def _stores(f: Callable[..., Any], *inputs: Any) -> int:
    graphlift.reset()
    with record.recording() as records, torch.no_grad():
        graphlift.compile(f)(*inputs)
    (found,) = records
    assert not found.fallbacks
    return sum(str(node.target) == "store" for node in found.compiled.forms["inference"].graph.nodes)


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (_attended, 1),
        (_copied, 1),
        (_put, 1),
        (_scattered, 1),
        (_returned, 1),
        (_put_whole, 1),
        (_put_unread, 1),
    ]
    + [(_copied_into_layer, 1)]
    + [(_select, 0), (_read_before, 0), (_of_itself, 0), (_put_added, 0), (_added, 0)],
)
def test_what_is_read_afterwards_is_written_in_place(program: Callable[..., Any], count: int) -> None:
    """Unless something needs the old value, or writing twice would not be writing once."""
    assert _stores(program, *_inputs("plain"), 1) == count


def _written_and_raised(cache: Tensor, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    cache[0, 1] = x[0, 0] * 2
    return torch.nn.functional.embedding(index, x[0]), cache @ x[0, 0]


def _raised_and_written(cache: Tensor, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.nn.functional.embedding(index, x[0])
    cache[0, 1] = x[0, 0] * 2
    return found, cache @ x[0, 0]


def _raised_at_last_and_written(cache: Tensor, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    found = x[0].gather(0, index[:, None]).exp() + x[0].index_select(0, index)
    cache[0, 1] = x[0, 0] * 2
    read = cache @ x[0, 0]
    return found * read.sum(), read


@pytest.mark.parametrize("step", [_written_and_raised, _raised_and_written, _raised_at_last_and_written])
def test_a_region_that_raises(step: Callable[..., Any]) -> None:
    """It has written what eager has written when it raises."""
    assert _stores(step, *_inputs("plain"), torch.tensor([1])) == 1
    found: list[Any] = []
    expected: list[Any] = []
    for into, f in ((found, graphlift.compile(step)), (expected, step)):
        for index in (torch.tensor([1]), torch.tensor([99])):
            cache, x = _inputs("plain")
            with torch.no_grad():
                try:
                    into += f(cache, x, index)
                except (IndexError, RuntimeError) as error:
                    into.append(str(error))
            into += [cache, cache._version]
    assert [type(v) for v in found] == [type(v) for v in expected] and found[4] == expected[4]
    torch.testing.assert_close(found[:4] + found[5:], expected[:4] + expected[5:])


def test_parameters_written_under_no_grad() -> None:
    """Of a leaf, in place: its version is counted once, and it keeps its history."""

    def step(weight: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            weight[0] = x[0, 0]
            return weight @ weight.mT

    weight, expected = (torch.nn.Parameter(torch.ones(4, 3)) for _ in range(2))
    x = _inputs("plain")[1]
    compiled = graphlift.compile(step)
    for _ in range(2):
        torch.testing.assert_close(compiled(weight, x), step(expected, x))
    assert torch.equal(weight, expected) and weight._version == expected._version
    assert weight.requires_grad and weight.is_leaf
