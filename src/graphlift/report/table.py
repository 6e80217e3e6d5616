"""Tables as text and as HTML.

In: a title, column names, rows of cells. Out: aligned text of bounded width, or an HTML table.
Always: every cell is converted with str and escaped; long cells wrap in text rather than widening the table.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from graphlift.data import dataclass

_NUMBER = (int, float)


@dataclass(frozen=True, slots=True)
class Table:
    """One table; numbers are aligned right, everything else left."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @staticmethod
    def of(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
        """A table of any sequences."""
        return Table(title, tuple(columns), tuple(tuple(row) for row in rows))

    def text(self, width: int = 110) -> str:
        """Aligned plain text, at most about `width` characters wide."""
        widths = self._widths(width)
        lines = [
            self.title,
            _text_row(self.columns, widths, self._right()),
            "  ".join("-" * w for w in widths),
        ]
        lines += [_text_row(row, widths, self._right()) for row in self.rows]
        return "\n".join(line.rstrip() for line in lines)

    def html(self) -> str:
        """An HTML table."""
        right = self._right()
        head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(_html_cell(cell, r) for cell, r in zip(row, right, strict=True)) + "</tr>"
            for row in self.rows
        )
        return f"<h4>{html.escape(self.title)}</h4><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _right(self) -> list[bool]:
        return [
            bool(self.rows) and all(isinstance(row[i], _NUMBER) for row in self.rows)
            for i in range(len(self.columns))
        ]

    def _widths(self, limit: int) -> list[int]:
        """Natural widths; while too wide together, the widest column gives way."""
        widths = [
            max([len(name), *(len(line) for row in self.rows for line in _cell(row[i]).splitlines() or [""])])
            for i, name in enumerate(self.columns)
        ]
        while sum(widths) + 2 * (len(widths) - 1) > limit and max(widths) > 16:
            widths[widths.index(max(widths))] -= 1
        return widths


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _text_row(cells: Sequence[Any], widths: Sequence[int], right: Sequence[bool]) -> str:
    wrapped = [
        [
            part
            for line in _cell(cell).splitlines() or [""]
            for part in textwrap.wrap(line, max(width, 1)) or [""]
        ]
        for cell, width in zip(cells, widths, strict=True)
    ]
    lines = []
    for i in range(max(map(len, wrapped))):
        parts = [column[i] if i < len(column) else "" for column in wrapped]
        lines.append(
            "  ".join(p.rjust(w) if r else p.ljust(w) for p, w, r in zip(parts, widths, right, strict=True))
        )
    return "\n".join(lines)


def _html_cell(value: Any, right: bool) -> str:
    text = html.escape(_cell(value)).replace("\n", "<br>")
    return f"<td style='text-align:{'right' if right else 'left'};white-space:pre-wrap'>{text}</td>"
