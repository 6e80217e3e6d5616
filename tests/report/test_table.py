"""Tables: alignment, wrapping, escaping."""

from __future__ import annotations

from graphlift.report.table import Table


def test_text() -> None:
    table = Table.of("Title", ("name", "n"), [("a", 1), ("long name", 22)])
    assert table.text() == "Title\nname        n\n---------  --\na           1\nlong name  22"


def test_wide_cells_wrap_and_empty_tables_print() -> None:
    table = Table.of("T", ("a", "b"), [("word " * 60, "x\ny")])
    text = table.text(60)
    assert max(map(len, text.splitlines())) <= 60 and text.count("word") == 60
    assert Table.of("T", ("a",), []).text() == "T\na\n-"


def test_html_is_escaped() -> None:
    html = Table.of("<T>", ("a<b",), [("<script>",)]).html()
    assert "<script>" not in html and "&lt;script&gt;" in html and "&lt;T&gt;" in html


def test_empty_columns_have_text_too() -> None:
    text = Table.of("title", ("", "b"), [("", ""), ("", "x" * 300)]).text(40)
    assert text.startswith("title\n") and text.count("x") == 300
