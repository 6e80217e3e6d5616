"""How often runs of changing sizes and numbers compile: no more often than needed, with eager's values in each call."""

from __future__ import annotations

import collections
import heapq
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import graphlift
from graphlift.frame import entries
from graphlift.guards import Predicate
from tests.capture.program import CountingBackend, outcome
from tests.equality import assert_equal

NAN, INF = math.nan, math.inf
LENGTHS = (4, 6, 7, 9, 3)


def compiled_counts(fn: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[int]:
    graphlift.reset()
    backend = CountingBackend()
    compiled = graphlift.compile(fn, backend=backend)
    counts = []
    for args in calls:
        assert_equal(compiled(*args), fn(*args))
        counts.append(len(backend.graphs))
    return counts


OF_SHAPES: dict[str, tuple[Callable[..., Any], list[int]]] = {
    "index": (lambda x: x * x.shape.index(8), [1, 2, 2, 2, 2]),
    "count": (lambda x: x * (1 + x.shape.count(1)), [1, 2, 2, 2, 2]),
    "in": (lambda x: x * 2 if 100 in x.shape else x + 1, [1, 2, 2, 2, 2]),
    "sorted": (lambda x: x * sorted(x.shape)[0], [1, 2, 2, 3, 3]),  # on either side of 8
    "max": (lambda x: x * max(x.shape), [1, 2, 2, 2, 2]),
    "dict": (lambda x: x * dict(zip("nc", x.shape))["n"], [1, 2, 2, 2, 2]),
    "a list changed": (lambda x: x * _changed([*x.shape])[-1], [1, 2, 2, 2, 2]),
    "a queue": (lambda x: (x * _queued(x.shape)[0], [*_queued(x.shape)]), [1, 2, 2, 2, 2]),
    "what is not there": (lambda x: (x + 1, outcome(x.shape.index, 99)), [1, 2, 2, 2, 2]),
}


def _queued(sizes: torch.Size) -> collections.deque[int]:
    queue = collections.deque(sizes, maxlen=3)
    queue.append(queue[0] * 2)
    queue.rotate(1)
    queue.extendleft([1, queue.popleft()])
    return queue


def _changed(sizes: list[int]) -> list[int]:
    sizes.append(sizes[0] * 2)
    sizes.insert(0, 1)
    sizes.remove(8)
    sizes.sort()
    return sizes


@pytest.mark.parametrize("name", OF_SHAPES)
def test_sizes_that_are_only_compared_and_moved(name: str) -> None:
    fn, counts = OF_SHAPES[name]
    assert compiled_counts(fn, [(torch.randn(n, 8),) for n in LENGTHS]) == counts


def _best(x, score):
    beams = [(1.0, 0)]
    heapq.heappush(beams, (score, 1))
    return x * heapq.heappop(beams)[0]


def _ranked(x, score):
    return x * sorted([(score, 1), (0.05, 2)], key=lambda beam: beam[0])[-1][0]


OF_FLOATS: dict[str, tuple[Callable[..., Any], tuple[float, ...], int]] = {
    "heap": (_best, (0.1, 0.2, 0.3, 0.4, 1.5, 0.2, 1.7), 3),
    "sorted": (_ranked, (0.1, 0.2, 0.3, 0.4, 1.5), 2),
    "in": (lambda x, s: x * 2 if s in (0.05, 1.0) else x + s, (0.1, 0.2, 0.3, 0.05, 0.4, 1.0), 4),
    "in itself": (lambda x, s: x * ([s].index(s) + [s, 0.0].count(0.0) + 1), (0.1, 0.2, NAN, 0.0, -0.0), 4),
    "limited": (lambda x, s: x * max(s, 0.5) + min(s, 1.0), (0.1, 0.7, 0.2, NAN, 1.5, INF, -0.0), 2),
    "of an int": (lambda x, s: x * max(0, s), (0.1, 0.7, -1.0, -2.0, 0.3), 3),
    "finite": (lambda x, s: x * s if math.isfinite(s) else x, (0.1, 0.7, 0.2, INF, NAN, -INF, 0.4), 2),
    "not a number": (
        lambda x, s: x if math.isnan(s) or math.isinf(s) else x * s,
        (0.1, 0.7, 0.2, NAN, 0.4),
        2,
    ),
}


@pytest.mark.parametrize("name", OF_FLOATS)
def test_floats_that_are_only_compared_and_moved(name: str) -> None:
    fn, values, count = OF_FLOATS[name]
    assert compiled_counts(fn, [(torch.randn(8), value) for value in values])[-1] == count


OF_ARGUMENTS: dict[str, tuple[Callable[..., Any], list[int]]] = {
    "made of it": (lambda x, s: torch.zeros(s) + x, [1, 2, 2, 2, 2]),
    "its items": (lambda x, s: (x * s[0] + s.numel(), s, s[::-1], [*s]), [1, 2, 2, 2, 2]),
    "compared": (lambda x, s: x * 2 if x.shape == s else x, [1, 2, 2, 2, 2]),
    "viewed": (lambda x, s: x.view(s).expand(s).reshape(torch.Size((s[1], s[0]))), [1, 2, 2, 2, 2]),
    "said": (lambda x, s: (x + 1, f"{s}", isinstance(s, tuple), len(s)), [1, 2, 2, 2, 2]),
    "a key": (lambda x, s: x + len({s: 1}), [1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize("name", OF_ARGUMENTS)
def test_a_size_as_argument(name: str) -> None:
    fn, counts = OF_ARGUMENTS[name]
    assert compiled_counts(fn, [(torch.randn(n, 8), torch.Size((n, 8))) for n in LENGTHS]) == counts


def test_numbers_of_another_type_have_changed() -> None:
    counts = compiled_counts(
        lambda x, n: x * n, [(torch.ones(3), n) for n in (1, 2.5, 3, 0.5, 4, 0.25, -0.0)]
    )
    assert counts == [1, 2, 3, 3, 3, 3, 3]


def test_the_sizes_of_each_rank_have_a_history() -> None:
    shapes = ((6,), (2, 3), (7,), (4, 3), (9,), (5, 3))
    counts = compiled_counts(lambda x: x.flatten() * x.dim(), [(torch.randn(*shape),) for shape in shapes])
    assert counts == [1, 2, 3, 4, 4, 4]


# -- questions about what is made of sizes alone -----------------------------------------------------------------


def _mask(size: int) -> torch.Tensor:
    kept = (torch.triu(torch.ones(size, size)) == 1).transpose(0, 1)
    return kept.float().masked_fill(kept == 0, float("-inf")).masked_fill(kept == 1, 0.0)


def _encoded(mask: Callable[[int], torch.Tensor]) -> Callable[..., Any]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return lambda x: encoder(x, mask=mask(x.shape[1]))


def _written(x):
    places = torch.arange(x.shape[1])
    places[0] = x.shape[0]
    places += 1
    if (places > 5).all():
        return x * 2
    return x * 3 if places.float().mean() > 25 else x + 1


def _outlives(x):
    places = torch.arange(x.shape[1])
    if places.sum() > 600:
        places = places + 1
    return x + places[:, None], places


OF_SIZES: dict[str, tuple[Callable[..., Any], list[int]]] = {
    "a causal mask": (_encoded(nn.Transformer.generate_square_subsequent_mask), [1, 2, 2, 2, 2]),
    "another way to a causal mask": (_encoded(_mask), [1, 2, 2, 2, 2]),
    "written": (_written, [1, 2, 2, 3, 3]),
    "part of the result": (_outlives, [1, 2, 2, 2, 3]),
}


@pytest.mark.parametrize("name", OF_SIZES)
def test_questions_about_what_is_made_of_sizes(name: str) -> None:
    fn, counts = OF_SIZES[name]
    shapes = ((4, 32), (8, 48), (2, 40), (16, 128), (3, 33))
    assert compiled_counts(fn, [(torch.randn(*shape, 8),) for shape in shapes]) == counts


def test_questions_about_what_is_made_of_constants_need_no_guard() -> None:
    def fn(x):
        places = torch.arange(10_000)
        return x * 2 if places[-1] == 9_999 and (places >= 0).all() else x

    assert compiled_counts(fn, [(torch.randn(n),) for n in LENGTHS]) == [1, 2, 2, 2, 2]
    assert not any(type(guard) is Predicate for check, _ in entries(fn.__code__) for guard in check.guards)


class Numbered:
    """What C functions ask for a number, which varies."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __index__(self) -> int:
        return self.size % 3

    def __len__(self) -> int:
        return self.size % 5 + 1

    def __getitem__(self, index: int) -> int:
        if index >= len(self):
            raise IndexError
        return index + self.size

    def __length_hint__(self) -> int:
        return self.size


ASKING: dict[str, Callable[[Numbered, list[int]], Any]] = {
    "counted": lambda d, ints: ints.count([4, 5, 6][d]),
    "indexed": lambda d, ints: ((1, 2, 3)[d], "abcdef"[d:], range(9)[d], hex(d)),
    "inserted": lambda d, ints: ints.insert(d, 3) or ints,
    "extended": lambda d, ints: ints.extend(d) or ints,
    "repeated": lambda d, ints: (ints * d, "a" * d),
    "sorted": lambda d, ints: (sorted(d), list(reversed(d)), max(d)),
    "made": lambda d, ints: (tuple(d), dict(zip("abcdefg", d, strict=False)), bytes(d)),
}


@pytest.mark.parametrize("name", ASKING)
def test_numbers_that_special_methods_give_to_c_functions(name: str) -> None:
    def f(x: torch.Tensor, size: int) -> Any:
        try:
            return x + 1, ASKING[name](Numbered(size), [4, 5])
        except Exception as error:
            return str(error)

    compiled = graphlift.compile(f, backend="eager")
    for size in (2, 10, 18, 7, 5):
        assert str(compiled(torch.ones(2), size)) == str(f(torch.ones(2), size))
