"""What is known of sizes: proofs record nothing, decisions record facts, facts that fix a symbol start again."""

from __future__ import annotations

import pytest

from graphlift.errors import ConstraintError
from graphlift.shapes.expr import Range, Relation, SizeLike, holds
from graphlift.shapes.table import Known, Refused, Solved, SymbolTable, in_range


def two(
    known: Known | None = None, a: int = 8, b: int = 8, **options: bool
) -> tuple[SymbolTable, SizeLike, SizeLike]:
    table = SymbolTable(known)
    return table, table.symbol("a", "x.shape[0]", a, **options), table.symbol("b", "y.shape[0]", b)  # type: ignore


def test_what_the_range_proves_is_no_fact() -> None:
    table, a, _ = two()
    assert table.decide(Relation("<=", 2, a)) and table.decide(Relation("!=", a * 3, 1))
    assert not table.decide(Relation("==", a + 1, 0))
    assert not list(table.facts())


def test_what_the_hints_answer_is_a_fact_in_the_users_terms() -> None:
    table, a, _ = two()
    assert table.decide(Relation("==", a % 4, 0))
    assert not table.decide(Relation("<", a, 5))
    texts = [fact.relation.render(table.names) for fact in table.facts_by_relation.values()]
    assert texts == ["x.shape[0] % 4 == 0", "5 <= x.shape[0]"]
    assert table.ranges[a].lo == 5  # type: ignore[index]
    assert table.is_true(Relation("<=", 4, a)) is True and table.is_true(Relation("<=", 6, a)) is None


def test_a_fixed_symbol_is_a_number_at_the_next_attempt() -> None:
    known = Known()
    table, a, _ = two(known)
    with pytest.raises(Solved):
        table.decide(Relation("==", a * 2, 16))
    again, fixed, other = two(known)
    assert fixed == 8 and not isinstance(other, int)
    assert not list(again.facts())


def test_equal_sizes_become_one_symbol_with_a_guard() -> None:
    known = Known()
    table, a, b = two(known)
    assert a is not b
    with pytest.raises(Solved):
        table.decide(Relation("==", a, b))
    again, first, second = two(known)
    assert second is first
    assert [f.render(again.names) for f in again.facts()] == ["x.shape[0] == y.shape[0]"]


def test_a_size_computed_of_another() -> None:
    known = Known()
    table, a, b = two(known, 8, 15)
    with pytest.raises(Solved):
        table.decide(Relation("==", a * 2 - 1, b))
    _, first, second = two(known, 8, 15)
    assert second == first * 2 - 1


def test_what_no_symbol_solves_stays_a_fact() -> None:
    table, a, b = two(None, 8, 4)
    assert table.specialize(a // 2) == 4 and table.specialize(a * b) == 32
    assert table.is_true(Relation("==", a // 2, 4)) is True
    assert len(list(table.facts())) == 2


def test_knowledge_of_another_attempt_that_does_not_fit_is_dropped() -> None:
    known = Known()
    table, a, _ = two(known)
    with pytest.raises(Solved):
        table.specialize(a)
    other = SymbolTable(known)
    assert not isinstance(other.symbol("a", "x.shape[0]", 9), int)


def test_a_strict_symbol_cannot_be_fixed() -> None:
    table, a, b = two(None, 8, 9, strict=True)
    table.where = lambda: "file.py:7"
    with pytest.raises(Refused) as caught:
        table.specialize(a, "used as a number")
    assert isinstance(caught.value.error, ConstraintError) and caught.value.error.where == "file.py:7"
    with pytest.raises(Solved):
        table.specialize(b)


def test_settled_sizes_are_no_zero_and_no_one() -> None:
    table, a, _ = two()
    for size in (a - 7, a - 8):
        with pytest.raises(Solved):
            table.settle(size)
    assert two(table.known)[1] == 8
    table, a, _ = two()
    assert table.settle(a // 8) == 1
    size = table.settle(a // 2)
    assert table.is_true(Relation("<=", 2, size)) is True


@pytest.mark.parametrize("seed", range(5))
def test_a_witness_is_another_case_for_which_all_facts_hold(seed: int) -> None:
    table, a, b = two(None, 16 + seed * 8, 5)
    for relation in (
        Relation("==", a % 8, 0),
        Relation("<", b, a),
        Relation("!=", b, 6),
        Relation("<", a, 200),
    ):
        table.decide(relation)
    found = table.witness()
    assert found is not None and found != table.hints
    assert all(holds(fact, found) for fact in table.facts())


def test_merging_takes_symbols_with_the_same_hint() -> None:
    known = Known()
    table, a, b = two(known)
    with pytest.raises(Solved):
        table.merge([a * 2, b + 1], "they are added")
    _, first, second = two(known)
    assert first is second
    table, a, b = two(None, 8, 9)
    table.merge([a, b], "no reason")


def test_bounds_as_relations() -> None:
    table, a, _ = two()
    assert [str(r) for r in in_range(a, Range(2, 64))] == ["2 <= s0", "s0 <= 64"]  # type: ignore[arg-type]
    assert in_range(a, Range(None, None)) == []  # type: ignore[arg-type]
