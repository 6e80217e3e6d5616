"""The registry of break reasons and the pages made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphlift.capture.reasons import REASONS, BreakReason, Reason, StackFrame, reason_table
from graphlift.report import docs

ROOT = Path(__file__).resolve().parents[2]


def test_rows_are_complete() -> None:
    for code, row in REASONS.items():
        assert code == row.code and code == code.lower() and " " not in code
        assert row.text[0].islower() and row.why.endswith(".") and row.remedy[-1] in ".`"


def test_duplicates_and_gaps_are_refused() -> None:
    row = Reason("a", "text", "why.", "remedy.")
    with pytest.raises(ValueError, match="twice"):
        reason_table((row, row))
    with pytest.raises(ValueError, match="lacks"):
        reason_table((Reason("a", "text", "", "remedy."),))


def test_unregistered_code_is_refused() -> None:
    with pytest.raises(ValueError, match="unregistered"):
        BreakReason("no-such-reason")


def test_reason_prints_the_users_source() -> None:
    line = next(
        i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "def test_rows" in text
    )
    frame = StackFrame(__file__, line, "f")
    reason = BreakReason("tensor-item", "x.item()", __file__, line, (frame,))
    assert "def test_rows_are_complete" in str(reason) and f'File "{__file__}", line {line}, in f' in str(
        reason
    )
    assert "def test_rows_are_complete" in BreakReason("tensor-item", "", __file__, line).user_stack()
    assert REASONS["tensor-item"].remedy in str(reason)


@pytest.mark.parametrize("name", docs.PAGES)
def test_generated_pages_are_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == docs.PAGES[name](), "run: python -m graphlift.report.docs"


def test_pages_have_a_section_per_row(tmp_path: Path) -> None:
    assert len(docs.write_pages(tmp_path)) == 2 and docs.write_pages(tmp_path) == []
    text = (tmp_path / "breaks.md").read_text()
    assert all(f"## {code}\n" in text for code in REASONS)
