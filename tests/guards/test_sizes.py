"""Relations between sizes and int arguments: C agrees with Python, and failures name the user's expressions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphlift.guards import (
    Arg,
    Follows,
    SizeRelation,
    TensorMeta,
    TensorSize,
    TensorSpec,
    TypeIs,
    compile_guards,
)
from graphlift.guards.explain import evaluate
from graphlift.shapes.expr import Relation, SizeLike, Symbol, free, smax, smin

A, B = Symbol("s0"), Symbol("s1")
X, N = Arg(0, "x"), Arg(1, "n")

RELATIONS: list[tuple[str, SizeLike, SizeLike]] = [
    ("==", A % 3, 0),
    ("<=", 2, A),
    ("==", A + 1, B),
    ("<", A * B, 100),
    ("!=", A // B, 2),
    ("==", smin(A, B) * 2, 12),
    ("<", smax(A, B - 4), 7),
    ("==", A * A - B, 29),
]


def call(*args: Any) -> None:
    pass


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda r: str(Relation(*r)))
def test_relations_mean_the_same_in_c_and_in_python(relation: tuple[str, SizeLike, SizeLike]) -> None:
    asked = Relation(*relation)
    used = [(s, i) for s, i in ((A, TensorSize(X, 0)), (B, N)) if s in free(asked.lhs - asked.rhs)]
    guard = SizeRelation(asked, tuple(s for s, _ in used), tuple(i for _, i in used))
    check = compile_guards([guard], [TensorSize(X, 0)], 2)
    for size in (0, 1, 3, 5, 6, 7, 9):
        for n in (0, 1, 4, 7, 8, 20, -3, 2**62, 2**70):
            args = (torch.empty(size, 0), n)
            expected = evaluate([guard], [TensorSize(X, 0)], call, args)
            if n < 2**62 or expected is None:  # C gives up on what overflows
                assert check(call, *args) == expected, args


def test_other_values_fail() -> None:
    guard = SizeRelation(Relation("<=", 5, A + B), (A, B), (TensorSize(X, 0), N))
    check = compile_guards([guard], [], 2)
    x = torch.empty(4)
    assert check(call, x, 3) == ()
    for args in ((x, True), (x, 3.0), (x, "3"), (torch.tensor(3), 3), ([4], 3), (None, 3)):
        assert check(call, *args) is None, args


def test_strides_that_follow_another_dimension() -> None:
    x = torch.randn(6, 8)
    spec = replace(TensorSpec.of(x), shape=(None, None), strides=(Follows(1), 1))
    check = compile_guards([TensorMeta(X, spec)], [], 1)
    assert check(call, torch.randn(3, 5)) == ()
    for other in (
        torch.randn(3, 10)[:, :5],
        torch.randn(5, 3).t(),
        torch.randn(3),
        torch.randn(3, 5).double(),
    ):
        assert check(call, other) is None
        assert spec.mismatch(other) is not None
    assert "strides are [size[1]*stride[1], 1], found [10, 1]" in check.explain_failure(
        call, torch.randn(3, 10)[:, :5]
    )


def test_a_failure_names_the_users_expressions() -> None:
    guards = [TypeIs(N, int), SizeRelation(Relation("==", A % 8, 0), (A,), (TensorSize(X, 0),))]
    check = compile_guards(guards, [], 2)
    assert check.explain_failure(call, torch.empty(13), 1) == "x.shape[0] % 8 == 0: found x.shape[0] = 13"
