"""Reads at computed positions: values, and the errors of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from graphlift.lower.interpret import interpret

from .tracing import check, externs, lowered

T = torch.tensor
X = torch.randn(20, 6)
INDEX = torch.randint(0, 20, (3, 4))
TARGET = torch.randint(0, 6, (20,))

CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "embedding": (lambda x, i: F.embedding(i, x) + 1, (X, INDEX)),
    "embedding with positions": (
        lambda x, i: F.layer_norm(F.embedding(i, x) + F.embedding(torch.arange(4), x), (6,)), (X, INDEX)),
    "negative": (lambda x, i: x[i], (X, INDEX - 20)),
    "second dimension": (lambda x, i: x[:, i], (X, T([1, -1, 5]))),
    "two adjacent": (lambda x, i: x.view(4, 5, 6)[:, i, i], (X, T([1, 1, -1]))),
    "two apart": (lambda x, i: x.view(4, 5, 6)[i, :, i], (X, T([1, 1, -1]))),
    "broadcast": (lambda x, i: x.view(4, 5, 6)[i[:, None], i[None]], (X, T([1, 1, -1]))),
    "gather": (lambda x, i: x.gather(0, i), (X, INDEX)),
    "select": (lambda x, i: x.index_select(1, i), (X, T([1, 1, 5]))),
    "int32": (lambda x, i: x.index_select(0, i), (X, T([1, 1, 5], dtype=torch.int32))),
    "of a computed value": (lambda x, i: x.exp()[i] * 2, (X, INDEX)),
    "computed index": (lambda x, i: x[(i * 3) % 20], (X, INDEX)),
    "cross entropy": (F.cross_entropy, (X, TARGET)),
    "ignored targets": (F.cross_entropy, (X, torch.where(torch.arange(20) < 7, -100, TARGET))),
    "all ignored": (F.cross_entropy, (X, torch.full((20,), -100))),
    "class weights": (lambda x, t, w: F.cross_entropy(x, t, w), (X, TARGET, torch.rand(6))),
    "no reduction": (lambda x, t, w: F.cross_entropy(x, t, w, reduction="none"), (X, TARGET, torch.rand(6))),
    "summed": (lambda x, t: F.cross_entropy(x, t, reduction="sum"), (X, TARGET)),
    "one row": (lambda x, t: F.nll_loss(x[0], t[0]), (X, TARGET)),
    "images": (lambda x, t: F.nll_loss(x.view(5, 6, 4), t), (X, torch.randint(0, 6, (5, 4)))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_value(name: str) -> None:
    function, inputs = CASES[name]
    assert not externs(check(function, *inputs))


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, i: F.embedding(i, x), (X, T([3, 20]))),
        (lambda x, i: F.embedding(i, x), (X, T([3, -1]))),
        (lambda x, i: x[i] * 2, (X, T([3, -21]))),
        (lambda x, i: x[:, i], (X, T([6]))),
        (lambda x, i: x.gather(0, i), (X, T([[3, -1]]))),
        (lambda x, i: x.index_select(0, i), (X, T([3, 20]))),
        (lambda x, i: x.index_select(1, i), (X, T([3, 20]))),
        (F.cross_entropy, (X, torch.full((20,), 7))),
        (F.cross_entropy, (X, torch.full((20,), -7))),
    ],
)
def test_out_of_range_raises_as_eager(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> None:
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(*inputs)
    plan = lowered(function, inputs)
    with pytest.raises(eager.type) as ours:
        interpret(plan, inputs)
    assert str(ours.value) == str(eager.value)
