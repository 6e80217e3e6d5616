"""`out=` as eager writes it: resized, of other strides or dtypes, of kernels with rules of their own; and powers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphlift

from .comparison import compare
from .samples import outcome

X = torch.linspace(-2, 2, 24).reshape(4, 6)
S = X @ X.T + 5 * torch.eye(4)

# What is called with `out=`, on what, and into what.
CALLS: dict[str, tuple[Callable[..., Any], Tensor, Any]] = {
    "resized": (torch.sin, X, torch.empty(0)),
    "resized to the result's strides": (torch.sin, X.t(), torch.empty(0)),
    "without elements to without elements": (
        torch.svd,
        torch.zeros(0, 0),
        tuple(torch.empty(0) for _ in "usv"),
    ),
    "resized with a warning": (torch.sin, X, torch.zeros(3)),
    "resized with a warning by a composite kernel": (torch.linalg.norm, X, torch.zeros(3)),
    "strided": (torch.exp, X, torch.zeros(6, 4).t()),
    "with gaps": (torch.exp, X, torch.zeros(4, 6, 2)[..., 1]),
    "cast to a wider type": (torch.sin, X, torch.zeros(4, 6, dtype=torch.float64)),
    "cast to integers": (torch.sin, X, torch.zeros(4, 6, dtype=torch.int64)),
    "of another type than the kernel takes": (lambda x, out: torch.softmax(x, 1, out=out), X, X.double()),
    "that overlaps itself": (torch.sin, X, torch.zeros(6).expand(4, 6)),
    "of a factory, which overlaps itself": (
        lambda x, out: torch.ones(4, out=out),
        X,
        torch.zeros(()).expand(4),
    ),
    "of a kernel that chooses strides": (torch.cholesky_inverse, S, torch.zeros(4, 4)),
    "of a kernel that heeds no strides": (torch._C._nn.gelu, X, torch.zeros(6, 4).t()),
    "through a view that no schema tells of": (
        lambda x, out: torch.kron(x, x, out=out),
        X,
        torch.zeros(16, 36),
    ),
    "of a kernel that replaces the tensor": (torch.linalg.matrix_rank, S, torch.zeros((), dtype=torch.int64)),
    "of a resizing factory": (lambda x, out: torch.arange(3, out=out), X, torch.zeros(2, 2)),
    "of random numbers": (lambda x, out: torch.normal(x, 1.0, out=out), X, torch.zeros(6, 4).t()),
    "of an aliased input": (
        lambda x, out: torch.index_select(out, 0, torch.tensor([1, 0]), out=out[:2]),
        X,
        X.clone(),
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ("eager", "aot_eager", "auto"))
@pytest.mark.parametrize("name", CALLS)
def test_output(name: str, backend: str) -> None:
    function, x, out = CALLS[name]

    def program(x: Tensor, out: Any) -> Any:
        return function(x, out=out)

    tree = (x, (out,), {})
    expected = outcome(program, tree, False)
    compiled = graphlift.compile(program, backend=backend)
    for _ in range(2):
        compare(outcome(compiled, tree, False), expected)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("exponent", (3, -2, 2.3, 0.7, -1.3))
def test_powers_round_as_eager_rounds(dtype: torch.dtype, exponent: float) -> None:
    x = (torch.linspace(0.05, 3, 1024) + 0.01).to(dtype)

    def program(x: Tensor) -> Any:
        return x**exponent, torch.pow(x, torch.full_like(x, exponent)), abs(exponent) ** x

    got, expected = graphlift.compile(program)(x), program(x)
    for a, b in zip(got, expected, strict=True):
        steps = (a.view(torch.int16).int() - b.view(torch.int16).int()).abs()
        assert int(steps.max()) <= 1 and float((steps > 0).float().mean()) < 0.01


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_an_output_that_is_an_input_is_not_resized(backend: str) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.add(x, y, out=x)

    compiled = graphlift.compile(f, backend=backend)
    for shapes in ((0, 1, 3), (0, 10, 3)), ((1, 3), (10, 3)):
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            compiled(*map(torch.zeros, shapes))
