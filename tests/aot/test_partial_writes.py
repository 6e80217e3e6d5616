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


PROGRAMS = (_cache, _select, _added, _last_rows, _diagonal, _every_other, _twice, _of_itself, _empty, _all)


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
