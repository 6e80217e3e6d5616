"""Operators whose results nothing uses still raise what they raise in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import graphlift


def _written(x: Tensor, i: Tensor) -> None:
    x.clone()[i] = 1.0


UNUSED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "index": lambda x, i: x[i],
    "index of a dead chain": lambda x, i: (x[i] * 2).sum(),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "index_select": lambda x, i: x.index_select(0, i),
    "take": lambda x, i: x.take(i + 5),
    "embedding": lambda x, i: F.embedding(i, x),
    "cross_entropy": lambda x, i: F.cross_entropy(x, i),
    "index_put_": _written,
    "inv": lambda x, i: torch.linalg.inv(x),
    "cholesky": lambda x, i: torch.linalg.cholesky(-x.T @ x),
    "integer division": lambda x, i: i // (i - i),
    "integer remainder": lambda x, i: i % (i - i),
}


@pytest.mark.parametrize("backend", ("aot_eager", "auto"))
@pytest.mark.parametrize("grad", (False, True))
@pytest.mark.parametrize("name", UNUSED)
def test_unused_operator_raises(name: str, grad: bool, backend: str) -> None:
    def program(x: Tensor, i: Tensor) -> Tensor:
        UNUSED[name](x, i)
        return x + 1

    x, i = torch.zeros(3, 3, requires_grad=grad), torch.tensor([0, 7, 1])
    with pytest.raises(Exception) as expected:
        program(x, i)
    with pytest.raises(type(expected.value)) as got:
        graphlift.compile(program, backend=backend)(x, i)
    assert str(got.value) == str(expected.value)
    good = torch.eye(3, requires_grad=grad), torch.ones(3, dtype=torch.int64)
    if name not in ("cholesky", "integer division", "integer remainder"):
        compiled = graphlift.compile(program, backend=backend)
        assert torch.equal(compiled(*good), good[0] + 1)
