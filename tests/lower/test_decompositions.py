"""Each decomposition against the operator it replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

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
