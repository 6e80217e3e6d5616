"""Each decomposition against the operator it replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import graphlift
from graphlift.lower.decompositions import decompositions

aten = torch.ops.aten


def _image(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(4, 3, 5, 5).to(dtype)


def _statistics() -> tuple[torch.Tensor, ...]:
    return torch.rand(3), torch.randn(3), torch.randn(3), torch.rand(3) + 0.5


CASES: dict[str, tuple[Any, Callable[[torch.dtype], tuple[Any, ...]]]] = {
    "train": (aten.native_batch_norm.default, lambda d: (_image(d), *_statistics(), True, 0.1, 1e-5)),
    "infer": (aten.native_batch_norm.default, lambda d: (_image(d), *_statistics(), False, 0.1, 1e-5)),
    "no weights": (
        aten.native_batch_norm.default,
        lambda d: (_image(d), None, None, None, None, True, 0.1, 1e-5),
    ),
    "update": (aten._batch_norm_with_update.default, lambda d: (_image(d), *_statistics(), 0.1, 1e-5)),
    "glu": (aten.glu.default, lambda d: (_image(d)[:, :, :4], 2)),
    "glu backward": (aten.glu_backward.default, lambda d: (_image(d)[..., :2], _image(d)[..., :4], 3)),
    "roll": (aten.roll.default, lambda d: (_image(d), [2], [-1])),
    "roll back": (aten.roll.default, lambda d: (_image(d), [-7, 1], [2, 0])),
    "roll not at all": (aten.roll.default, lambda d: (_image(d), [5, 0], [2, 0])),
    "pixel shuffle": (aten.pixel_shuffle.default, lambda d: (torch.randn(2, 12, 3, 5).to(d), 2)),
    "pixel unshuffle": (aten.pixel_unshuffle.default, lambda d: (torch.randn(2, 3, 6, 9).to(d), 3)),
    "train backward": (
        aten.native_batch_norm_backward.default,
        lambda d: (_image(d), _image(d), *[_statistics()[k] for k in (0, 2, 3)], torch.randn(3), torch.rand(3) + 0.5,
                   True, 1e-5, [True, True, True]),
    ),
    "infer backward": (
        aten.native_batch_norm_backward.default,
        lambda d: (_image(d), _image(d), *[_statistics()[k] for k in (0, 2, 3)], None, None, False, 1e-5,
                   [True, True, True]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_operator(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    target, arguments = CASES[name]
    args = arguments(dtype)
    ours = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    expected, got = target(*args), decompositions[target](*ours)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    expected = expected if isinstance(expected, tuple) else (expected,)
    got = got if isinstance(got, tuple) else (got,)
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == e.dtype or e.numel() == 0
        torch.testing.assert_close(g, e, **tolerance) if e.numel() else None
    for mine, theirs in zip(ours, args, strict=True):  # running statistics
        if isinstance(mine, torch.Tensor):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_elements_are_moved_as_eager_moves_them(dynamic: bool) -> None:
    def moved(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rolled = torch.roll(x, (3, -2), (1, -1)), torch.roll(x, x.shape[2], 2), torch.roll(x, 1)
        return *rolled, F.pixel_shuffle(x, 2) + 1, F.pixel_unshuffle(x, 2), F.pixel_shuffle(x, 2)

    compiled = graphlift.compile(moved, dynamic=dynamic)
    for shape, last in (
        ((2, 4, 6, 8), False),
        ((2, 8, 4, 6), True),
        ((3, 8, 10, 34), False),
        ((0, 4, 6, 8), False),
    ):
        x = torch.randn(shape)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        for got, expected in zip(compiled(x), moved(x), strict=True):
            assert torch.equal(got, expected) and got.stride() == expected.stride()
