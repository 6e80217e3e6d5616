"""Floats that change from call to call: one more compilation, after which they come with each call.

Always: results and gradients are eager's; before code generation bit for bit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import graphlift
from graphlift.frame import entries
from graphlift.shapes.expr import Range, Symbol, evaluate
from graphlift.shapes.reals import CEIL, FLOOR, NEAREST, TRUNC
from graphlift.shapes.table import SymbolTable

BACKENDS = ("eager", "aot_eager", "auto")
VALUES = (0.3, 0.7, -1.3, 2.5, 1e-3, 1e30, 0.1 + 0.2)

PROGRAMS: dict[str, Callable[..., Any]] = {
    "times": lambda x, s: x * s,
    "plus": lambda x, s: s + x,
    "minus": lambda x, s: s - x,
    "over": lambda x, s: x / s,
    "under": lambda x, s: s / x,
    "in_place": lambda x, s: x.clone().mul_(s),
    "filled": lambda x, s: torch.full((3,), s) + x.sum(),
    "filled_like": lambda x, s: torch.full_like(x, s) * x,
    "where": lambda x, s: torch.where(x > s, x, s),
    "masked": lambda x, s: x.masked_fill(x > 0, s),
    "compared": lambda x, s: (x > s).float() * x,
    "of_integers": lambda x, s: (x > 0).int() * s + x,
    "of_bfloat16": lambda x, s: (x.bfloat16() * s).float(),
    "of_doubles": lambda x, s: x.double() * s,
    "as_tensor": lambda x, s: x * torch.tensor(s),
    "in_python": lambda x, s: (x * (1 - s) + (x * x) * s, s * 2 + 1, -s, abs(s)),
    "functions": lambda x, s: (x * math.sqrt(abs(s)), x * math.tanh(s), x + math.pow(abs(s), 0.5)),
    "with_sizes": lambda x, s: (x * (s / x.shape[0]), x.shape[1] * s),
    "in_softmax": lambda x, s: (x / s).softmax(-1),
    "returned": lambda x, s: (x + 1, s),
    "in_containers": lambda x, s: {"scale": s, "all": [x * s, (s,)]},
}


def bits(value: Any) -> Any:
    """Something equal only for results equal bit for bit."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape, value.stride(), value.detach().numpy().tobytes())
    if isinstance(value, (tuple, list)):
        return type(value), [bits(v) for v in value]
    if isinstance(value, dict):
        return {k: bits(v) for k, v in value.items()}
    return type(value), repr(value)


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_changed_float_comes_with_each_call(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    compiled = graphlift.compile(program, backend=backend)
    torch.manual_seed(0)
    x = torch.randn(5, 6, requires_grad=True)
    for s in VALUES:
        found, expected = compiled(x, s), program(x, s)
        if backend == "auto":
            torch.testing.assert_close(
                tensors(found), tensors(expected), equal_nan=True, rtol=1e-6, atol=1e-7
            )
        else:
            assert bits(found) == bits(expected)
        for a, b in zip(tensors(found), tensors(expected), strict=True):
            if b.requires_grad and math.isfinite(b.sum().item()):
                grads = [torch.autograd.grad(y.sum(), x)[0] for y in (a, b)]
                torch.testing.assert_close(*grads, equal_nan=True, rtol=1e-5, atol=1e-6)
    assert len(entries(program.__code__)) == (
        1 if name == "returned" else 2
    )  # what nothing looks at is no guard


def test_only_comparisons_are_guarded() -> None:
    def program(x, s):
        return x * s if s > 0.5 else x / s

    compiled = graphlift.compile(program, backend="eager")
    x = torch.randn(4)
    for s in (0.1, 0.7, 0.2, 2.5, 0.9, 0.3):
        assert torch.equal(compiled(x, s), program(x, s))
    assert len(entries(program.__code__)) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_needs_the_number_gets_it(backend: str) -> None:
    """A float that an operator takes as a plain number is compiled as such, others beside it are not."""

    def program(x, eps, scale):
        return F.layer_norm(x, (6,), eps=eps) * scale

    compiled = graphlift.compile(program, backend=backend)
    x = torch.randn(5, 6)
    for k in range(6):
        given = x, 1e-5, 0.5 + k
        torch.testing.assert_close(compiled(*given), program(*given))
    assert len(entries(program.__code__)) == 2
    for eps in (1e-3, 1e-2):
        torch.testing.assert_close(compiled(x, eps, 1.0), program(x, eps, 1.0))


def test_kinds_and_odd_values_are_told_apart() -> None:
    def program(x, s):
        return x * s

    compiled = graphlift.compile(program, backend="aot_eager")
    x = torch.randn(4)
    for s in (0.5, 0.25, -0.0, math.inf, math.nan, 2, True, 0.75, 3):
        assert bits(compiled(x, s)) == bits(program(x, s))


@pytest.mark.parametrize(
    "rounding, expected", ((FLOOR, math.floor), (CEIL, math.ceil), (TRUNC, int), (NEAREST, round))
)
@pytest.mark.parametrize("by", (3, 7, 0.75, 1.5, 2))
def test_floats_of_sizes_are_rounded_as_python_rounds_them(rounding: int, expected: Any, by: Any) -> None:
    table = SymbolTable()
    size = table.symbol("n", "n", 11, Range(2, None))
    assert isinstance(size, Symbol)
    fn = operator.mul if isinstance(by, float) else operator.truediv
    found = table.reals.whole(table.reals.call(fn, size, by), rounding)
    for n in (2, 3, 10, 11, 12, 14, 20, 21, 2**40 + 1):
        assert evaluate(found, {size: n}) == expected(fn(n, by))


ROUNDED: dict[str, Callable[[int], int]] = {
    "int": lambda n: int(0.8 * n),
    "int_of_a_quotient": lambda n: int(n / 1.2),
    "floor": lambda n: math.floor(n * 0.29),
    "ceil": lambda n: math.ceil(n * 0.3),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_sizes_rounded_from_decimal_fractions_are_eagers(name: str) -> None:
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    def program(x: torch.Tensor) -> Any:
        k = ROUNDED[name](x.shape[0])
        return x[: abs(k)].clone(), k

    compiled = graphlift.compile(program, backend=backend)
    for n in (50, 60, 61, 62, 63, 64, 65, 99, 100, 101, 200, 7):
        x = torch.arange(float(n))
        assert bits(compiled(x)) == bits(program(x))
    # One for a number, one for all; 100 and 200 apart, of which 0.29 is just below a whole number.
    assert len(graphs) == (4 if name == "floor" else 2)
