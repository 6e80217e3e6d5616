"""Documentation pages generated from the registries.

In: the rows of `config`, `capture.reasons` and `aot.reasons`. Out: `docs/config.md`, `docs/breaks.md`.
Always: `python -m graphlift.report.docs [folder]` writes them; a test compares them with the rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

from graphlift.aot.reasons import fallbacks_markdown
from graphlift.capture.reasons import breaks_markdown
from graphlift.config import config_markdown

#: File name to the function that makes its text.
PAGES = {"breaks.md": lambda: breaks_markdown() + fallbacks_markdown(), "config.md": config_markdown}


def write_pages(folder: Path) -> list[Path]:
    """Writes every page that differs; returns those written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in PAGES.items():
        path = folder / name
        if not path.exists() or path.read_text() != text():
            path.write_text(text())
            written.append(path)
    return written


if __name__ == "__main__":
    for page in write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")):
        print(page)
