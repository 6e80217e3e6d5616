"""torch's own C++ and Python operators on our sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphlift.shapes.expr import Relation, evaluate
from graphlift.shapes.node import expr_of, size_nodes, table_of, to_symint
from graphlift.shapes.table import Solved, SymbolTable


def sizes() -> tuple[SymbolTable, Any, Any]:
    table = SymbolTable()
    found = [to_symint(table.symbol(k, f"x.shape[{k}]", hint), table) for k, hint in enumerate((7, 12))]
    return table, *found


@pytest.mark.parametrize(
    "fn",
    [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, torch.sym_max, torch.sym_min],
)
def test_arithmetic(fn: Callable[[Any, Any], Any]) -> None:
    table, a, b = sizes()
    for left, right in ((a, b), (a, 3), (20, b), (a * 2 + 1, b)):
        plain = [evaluate(expr_of(v), table.hints) for v in (left, right)]
        assert evaluate(expr_of(fn(left, right)), table.hints) == fn(*plain)


@pytest.mark.parametrize("fn", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
def test_comparisons_are_decisions(fn: Callable[[Any, Any], Any]) -> None:
    table, a, b = sizes()
    assert bool(fn(a, b)) is fn(7, 12)
    assert len(list(table.facts())) == 1


def test_a_plain_number_fixes_the_size() -> None:
    table, a, _ = sizes()
    for use in (int, float, operator.index, lambda size: [0] * size):
        with pytest.raises(Solved):
            use(a)
    assert table_of(a) is table and table_of(3) is None


def test_tensors_of_symbolic_sizes() -> None:
    table, a, b = sizes()
    x = torch.empty((a, b, 4), device="meta")
    assert x.is_contiguous() and not x.transpose(0, 1).is_contiguous()
    assert expr_of(x.numel()) == expr_of(a) * expr_of(b) * 4
    assert expr_of(x.stride(0)) == expr_of(b) * 4
    assert not any(fact.op == "==" for fact in table.facts())


def test_sizes_as_calls_of_operators() -> None:
    table, a, b = sizes()
    s, t = expr_of(a), expr_of(b)
    for size in (s * 2 - t, s * s * t + 3, (s + 1) // 2 - 5, (s // t) * 4 - s % 3, -s - t):
        values: dict[Any, Any] = {s: 7, t: 12}

        def node_of(part: Any, values: dict[Any, Any] = values) -> Any:
            if isinstance(part, int):
                return part
            if part not in values:
                values[part] = size_nodes(part, node_of, lambda fn, *args: fn(*args))
            return values[part]

        assert node_of(size) == evaluate(size, table.hints)


def test_after_the_guards_only_what_is_certain_is_answered() -> None:
    table, a, b = sizes()
    assert bool(a < b)
    table.frozen = True
    assert bool(a < b) and bool(a >= 2)
    assert table.is_true(Relation("==", expr_of(a), 9)) is None
    with pytest.raises(Exception, match="was not asked"):
        bool(a == 9)
