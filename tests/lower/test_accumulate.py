"""The gradient of a tied embedding: rows added into the product's memory, never where somebody else looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphlift.runtime import load

from .tracing import check, externs

aten = torch.ops.aten
A, B = torch.randn(30, 12), torch.randn(12, 8)
GRAD, INDEX = torch.randn(2, 5, 8), torch.randint(0, 30, (2, 5))
INDEX[0, :3] = 7


def rows(grad: torch.Tensor, index: torch.Tensor, padding: int = -1, scaled: bool = False) -> torch.Tensor:
    return aten.embedding_dense_backward(grad, index, 30, padding, scaled)


JOINED: dict[str, Callable[..., Any]] = {
    "product": lambda a, b, g, i: a @ b + rows(g, i),
    "other order": lambda a, b, g, i: rows(g, i) + a @ b,
    "through views": lambda a, b, g, i: (a @ b).t().t() + rows(g, i),
    "padding": lambda a, b, g, i: a @ b + rows(g, i, 7),
    "twice": lambda a, b, g, i: (a @ b + rows(g, i)) + rows(g * 2, i.flip(0)),
    "read on": lambda a, b, g, i: (a @ b + rows(g, i)).exp(),
    "computed gradient": lambda a, b, g, i: a @ b + rows(g.sin() * 2, i),
}
APART: dict[str, Callable[..., Any]] = {
    "product returned": lambda a, b, g, i: (lambda p: (p, p + rows(g, i)))(a @ b),
    "product read": lambda a, b, g, i: (lambda p: (p.sum(0), p + rows(g, i)))(a @ b),
    "gradient returned": lambda a, b, g, i: (lambda r: (r, a @ b + r))(rows(g, i)),
    "scaled": lambda a, b, g, i: a @ b + rows(g, i, -1, True),
    "an input": lambda a, b, g, i: (a[:, :8] + rows(g, i), b),
    "with a factor": lambda a, b, g, i: torch.add(a @ b, rows(g, i), alpha=2),
}


@pytest.mark.parametrize("name", [*JOINED, *APART])
def test_sum(name: str) -> None:
    function = JOINED.get(name) or APART[name]
    inputs = (A.clone(), B.clone(), GRAD, INDEX)
    plan = check(function, *inputs)
    assert ("aten.index_add_.default" in externs(plan)) == (name in JOINED)
    assert ("aten.embedding_dense_backward.default" in externs(plan)) == (name in APART)
    expected = function(*inputs)
    loaded = load(plan)
    for run in (loaded, loaded.run_python, loaded):
        got = run(list(inputs))
        for g, e in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(g, e)
    assert torch.equal(inputs[0], A) and torch.equal(inputs[1], B)
