"""Sizes over symbols: operations equal those on ints whatever is simplified; bounds and proofs are sound."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlift.shapes.expr import (
    Range,
    Relation,
    Symbol,
    bounds,
    divisible,
    evaluate,
    free,
    holds,
    provable,
    smax,
    smin,
    substitute,
)

S, T, U = (Symbol(f"s{k}") for k in range(3))
SYMBOLS = (S, T, U)
RANGES = {S: Range(2, 9), T: Range(2, None), U: Range(-4, 5)}

# An expression is a function of the three values: over ints and over symbols the same operations run.
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": smin,
    "max": smax,
}
LEAVES = st.one_of(st.integers(-9, 9), st.sampled_from(["s0", "s1", "s2"]))
TREES = st.recursive(LEAVES, lambda t: st.tuples(st.sampled_from(sorted(OPERATIONS)), t, t), max_leaves=8)
VALUES = st.tuples(st.integers(2, 9), st.integers(2, 40), st.integers(-4, 5))


def run(tree, env):
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return env[tree]
    op, left, right = tree
    return OPERATIONS[op](run(left, env), run(right, env))


def symbolic(tree):
    try:
        return run(tree, {s.name: s for s in SYMBOLS})
    except ZeroDivisionError:
        return None


def values_at(tree, values):
    try:
        return run(tree, {s.name: v for s, v in zip(SYMBOLS, values, strict=True)})
    except ZeroDivisionError:
        return None


@settings(max_examples=600, deadline=None)
@given(TREES, VALUES)
def test_operations_equal_those_on_ints(tree, values):
    expr, expected = symbolic(tree), values_at(tree, values)
    if expr is None or expected is None:
        return
    env = dict(zip(SYMBOLS, values, strict=True))
    assert evaluate(expr, env) == expected
    assert eval(str(expr), {s.name: v for s, v in env.items()}) == expected
    assert free(expr) <= set(SYMBOLS)
    assert substitute(expr, env) == expected
    assert substitute(expr, {S: S}) is expr or isinstance(expr, int)


@settings(max_examples=400, deadline=None)
@given(TREES, VALUES)
def test_bounds_hold_every_value(tree, values):
    expr, expected = symbolic(tree), values_at(tree, values)
    if expr is None or expected is None:
        return
    found = bounds(expr, RANGES)
    assert found.lo is None or found.lo <= expected
    assert found.hi is None or expected <= found.hi


@settings(max_examples=500, deadline=None)
@given(
    TREES,
    TREES,
    st.sampled_from(["==", "!=", "<", "<="]),
    st.lists(st.tuples(TREES, TREES), max_size=2),
    VALUES,
)
def test_proofs_are_true(left, right, op, facts, values):
    a, b = symbolic(left), symbolic(right)
    if a is None or b is None or values_at(left, values) is None or values_at(right, values) is None:
        return
    env = dict(zip(SYMBOLS, values, strict=True))
    relation = Relation(op, a, b)
    expected = eval(f"x {op} y", {"x": values_at(left, values), "y": values_at(right, values)})
    assert holds(relation, env) == expected
    assert holds(relation.negated(), env) != expected
    assert eval(str(relation), {s.name: v for s, v in env.items()}) == expected
    known = []
    for x, y in facts:
        p, q = symbolic(x), symbolic(y)
        if p is None or q is None or values_at(x, values) is None or values_at(y, values) is None:
            continue
        for kind in ("==", "!=", "<", "<="):
            fact = Relation(kind, p, q)
            if holds(fact, env):
                known.append(fact)
    assert provable(relation, RANGES, known) in (None, expected)
    for n in (2, 3, 8):
        if divisible(a, n, known):
            assert values_at(left, values) % n == 0


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ((8 * S) // 8, "s0"),
        ((8 * S + 3) // 8, "s0"),
        ((8 * S + 16) // 8 - S, "2"),
        ((4 * S * T) % 4, "0"),
        ((S * T) // S, "s1"),
        ((S * T + S) // S, "s1 + 1"),
        ((S * S - T * T) // (S - T), "s0 + s1"),
        (S // 4 // 2, "s0//8"),
        ((2 * S + 1) // 4, "s0//2"),
        ((S - 3) // 2 + 1, "(s0 + 1)//2 - 1"),
        (-(-S // 4), "(s0 + 3)//4"),
        (S // 4 * 4 + S % 4, "s0"),
        (S % 8, "s0 % 8"),
        (3 * (S % 8) + T, "3*(s0 % 8) + s1"),
        (S - T - (S - T), "0"),
        (smin(S, S + 2, T), "min(s0, s1)"),
        (smax(smax(S, 4), 3), "max(s0, 4)"),
        (S * T * 2 - 5, "2*s0*s1 - 5"),
        ((S + T) // (S * T), "(s0 + s1)//(s0*s1)"),
        ((S + 1) * (S - 1), "s0*s0 - 1"),
    ],
)  # fmt: skip
def test_canonical_forms(found, text):
    assert str(found) == text


def test_equality_is_structural():
    assert S + T == T + S and (S + T) is (T + S)
    assert (S + 1) * 2 is 2 * S + 2
    assert S != T and S + 1 != S and (S == 3) is False
    assert len({S * T, T * S}) == 1
    assert copy.deepcopy(S + T) is S + T
    assert pickle.loads(pickle.dumps(S // (T + 1))) is S // (T + 1)
    assert Relation("<", S, T) == Relation("<=", S + 1, T) == Relation("<=", 2 * S + 1, 2 * T)
    assert Relation("==", 2 * S, 2 * T) == Relation("==", T, S)


def test_texts_of_relations():
    assert str(Relation("==", S % 8, 0)) == "s0 % 8 == 0"
    assert str(Relation("<=", 2, S)) == "2 <= s0"
    assert str(Relation("<", S, T)) == "s0 < s1"
    assert Relation("==", S, T).render({S: "x.size(0)", T: "n"}) == "x.size(0) == n"


def test_proofs():
    ranges = {S: Range(2, None), T: Range(2, None)}
    assert provable(Relation("==", S, 1), ranges) is False
    assert provable(Relation("<=", S, S * T), ranges) is True
    assert provable(Relation("==", S, T), ranges) is None
    assert provable(Relation("==", S, T), ranges, [Relation("==", T, S)]) is True
    assert provable(Relation("==", S * U, T * U), ranges, [Relation("==", T, S)]) is True
    assert provable(Relation("!=", S, T), ranges, [Relation("<", S, T)]) is True
    assert provable(Relation("<", S, T + 4), ranges, [Relation("<=", S, T)]) is True
    assert provable(Relation("==", 2 * S, 2 * T + 1), ranges) is False
    assert provable(Relation("<", S % 8, 8), ranges) is True
    assert bounds(S // 2 - 2 * (S // 4), ranges) == Range(0, 1)  # a remainder of S // 2
    assert provable(Relation("<", 2 * (S // 4) - 1, S // 2), ranges) is True
    eights = [Relation("==", S % 8, 0)]
    assert divisible(S, 8, eights) and divisible(S * T, 4, eights) and not divisible(S, 16, eights)
    assert provable(Relation("==", S // 8 * 8, S), ranges, eights) is True


def test_division_by_zero_is_an_error():
    with pytest.raises(ZeroDivisionError):
        S // 0
    with pytest.raises(ZeroDivisionError):
        S % (T - T)


def test_every_small_division_is_exact():
    for a, b, d in product(range(-5, 6), range(-5, 6), (-7, -3, -2, 2, 3, 6)):
        quotient, remainder = (a * S + b) // d, (a * S + b) % d
        for value in range(-6, 7):
            expected = divmod(a * value + b, d)
            assert (evaluate(quotient, {S: value}), evaluate(remainder, {S: value})) == expected
