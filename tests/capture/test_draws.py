"""Numbers drawn from random generators: in the order and from the state of eager, without a break where only computed with."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import graphlift
from graphlift.errors import GraphBreakError
from tests.equality import assert_equal

PROGRAMS: dict[str, tuple[int, Callable[..., Any]]] = {}
RNG = random.Random(3)
NUMPY = np.random.RandomState(3)


def program(graphs: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A program, and how many graphs it makes in its first call."""

    def note(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[fn.__name__] = graphs, fn
        return fn

    return note


@program(1)
def scale_and_shift(x: Tensor) -> Any:
    return x.sin() * random.random() + random.uniform(-1, b=2.0)


@program(1)
def gaussian(x: Tensor) -> Any:
    return x + random.gauss(0, 1) * random.normalvariate(1.0, 0.5) - random.betavariate(2, 3)


@program(1)
def pairs_of_gauss(x: Tensor) -> Any:
    return x * random.gauss(), random.random()


@program(1)
def crop(x: Tensor) -> Any:
    top, left = random.randint(0, 3), random.randrange(4)
    return x[top : top + 4, left : left + 4].cos(), top, left


@program(1)
def crop_of_any_size(x: Tensor) -> Any:
    top = random.randint(0, x.shape[0] - 5)
    return x[top : top + 4].cos()


@program(1)
def rolled(x: Tensor) -> Any:
    return torch.roll(x, random.randint(-2, 2), 0) + random.getrandbits(2)


@program(1)
def mixup(x: Tensor) -> Any:
    mixed = np.random.beta(0.4, 0.4)
    order = torch.randperm(x.shape[0])
    return mixed * x + (1 - mixed) * x[order]


@program(1)
def of_numpy(x: Tensor) -> Any:
    return x * np.random.rand() + np.random.uniform(0, 2) - np.random.randn() + np.random.randint(3, 7)


@program(1)
def of_numbers(x: Tensor) -> Any:
    return x * random.choice([1, 2, 3]) + random.choice((0.5, 1.5))


@program(1)
def of_other_generators(x: Tensor) -> Any:
    return x * RNG.uniform(0, 1) + NUMPY.normal(0.0, 2.0) - RNG.random()


@program(1)
def in_a_loop(x: Tensor) -> Any:
    for _ in range(3):
        x = x.relu() * random.uniform(0.5, 1.5)
    return x


@program(1)
def passed_on(x: Tensor) -> Any:
    drawn = random.random()
    text = f"drawn {drawn}"
    return {"y": x + drawn, "drawn": drawn, "text": text, "more": [drawn, 2 * drawn]}


@program(1)
def only_drawn(x: Tensor) -> Any:
    random.random()
    return x.cos(), random.random()


@program(1)
def drawn_of_drawn(x: Tensor) -> Any:
    return x + random.uniform(0, 1.0 + x.shape[0])


@program(1)
def with_dropout(x: Tensor) -> Any:
    return torch.nn.functional.dropout(x * random.random(), 0.5) + random.random()


@program(1)
def in_a_generator(x: Tensor) -> Any:
    return sum(x * random.random() for _ in range(2))


@program(2)
def branch(x: Tensor) -> Any:
    x = x.cos()
    if random.random() > 0.5:
        x = x.flip(0) + 1
    return x.sin() * random.uniform(0.8, 1.2)


@program(2)
def as_a_count(x: Tensor) -> Any:
    x = x.cos()
    for _ in range(random.randint(1, 3)):
        x = x.sin()
    return x


@program(2)
def of_objects(x: Tensor) -> Any:
    x = x.cos()
    return random.choice([torch.sin, torch.relu])(x)


@program(1)
def seeded_between(x: Tensor) -> Any:
    x = x * random.random()
    random.seed(7)
    NUMPY.seed(3)
    return x * random.random() + NUMPY.rand()


@program(2)
def seeded_with_text(x: Tensor) -> Any:
    x = x * random.random()
    random.seed("seven")
    return x * random.random()


@program(1)
def only_seeded(x: Tensor) -> Any:
    random.seed(7)
    return x.cos()


@program(1)
def in_try(x: Tensor) -> Any:
    try:
        return x[random.randint(0, 3)] * random.random()
    except IndexError:
        return x


def _noisy(x: Tensor) -> Tensor:
    return (x * random.random()).sin()


@program(2)
def in_a_checkpoint(x: Tensor) -> Any:
    y = x.clone().requires_grad_()
    checkpoint(_noisy, y, use_reentrant=False).sum().backward()
    return y.grad, random.random()


@functools.lru_cache
def _remembered(n: int) -> float:
    return n * random.random()


@program(1)
def in_a_cached_function(x: Tensor) -> Any:
    return x * _remembered(3)


@program(1)
def empty_range(x: Tensor) -> Any:
    x = x.cos()
    try:
        return x + random.randint(3, 1)
    except ValueError as error:
        return str(error)


def run(fn: Callable[..., Any], calls: int = 6) -> list[str]:
    seen = []
    _remembered.cache_clear()
    for call in range(calls):
        torch.manual_seed(call)
        np.random.seed(call)
        NUMPY.seed(call)
        for generator in (random, RNG):
            generator.seed(call)
        seen.append(fn(torch.linspace(-1, 2, 64).reshape(8, 8)))
        seen.append((random.random(), RNG.random(), torch.rand(1), np.random.rand(), NUMPY.rand()))
    return seen


@pytest.mark.parametrize("backend", ["eager", "auto"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_draws(name: str, backend: str) -> None:
    graphs, fn = PROGRAMS[name]
    graphlift.reset()
    assert_equal(run(graphlift.compile(fn, backend=backend)), run(fn))
    graphlift.reset()
    found = graphlift.explain(fn)(torch.ones(8, 8))
    assert len(found.graphs) == graphs, found.break_reasons


def test_a_graph_that_raises_draws_again_from_the_same_state() -> None:
    def fn(x: Tensor, index: Tensor) -> Tensor:
        y = x * random.random() + np.random.rand()
        return y[index] + random.random()

    compiled = graphlift.compile(fn)
    for index in (0, 1, 9, 1, 9):
        for call in (fn, compiled):
            random.seed(1)
            np.random.seed(1)
            try:
                result: Any = call(torch.ones(4), torch.tensor(index))
            except IndexError as error:
                result = str(error)
            drawn = random.random(), np.random.rand()
            if call is fn:
                expected = result, drawn
        assert_equal((result, drawn), expected)


def test_gradients_and_sizes_that_vary() -> None:
    def fn(x: Tensor) -> Tensor:
        start = random.randint(0, x.shape[0] - 3)
        return (x[start : start + 3] * random.uniform(1, 2)).sum()

    compiled = graphlift.compile(fn)
    for size in (4, 5, 6, 7, 3, 8):
        results = []
        for call in (fn, compiled):
            random.seed(size)
            x = torch.ones(size, requires_grad=True)
            y = call(x)
            y.backward()
            results.append((y, x.grad, random.random()))
        assert_equal(results[1], results[0])


def test_a_decision_is_a_break_which_fullgraph_refuses() -> None:
    @graphlift.compile(fullgraph=True)
    def fn(x: Tensor) -> Tensor:
        return x.sin() if random.random() < 0.5 else x

    with pytest.raises(GraphBreakError, match=r"random_0 < 0.5"):
        fn(torch.ones(2))


def test_layer_drop_compiles_each_branch_once() -> None:
    graphs = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(6)])

    def fn(x: Tensor) -> Tensor:
        for layer in layers:
            if random.random() < 0.3:
                continue
            x = layer(x).relu()
        return x

    compiled = graphlift.compile(fn, backend=backend)
    seen = []
    for call in range(40):
        random.seed(call)
        expected = fn(torch.ones(2, 4))
        random.seed(call)
        assert_equal(compiled(torch.ones(2, 4)), expected)
        seen.append(len(graphs))
    assert seen[-1] == seen[20] <= 12, seen
