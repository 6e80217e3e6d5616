"""Programs that use the standard library, of `library_programs.txt`: its classes, functions and containers.

In: blocks ``=== name: graphs``, or ``1, 3.13: 2`` where the library of later versions does more; what stands before the function and ``---`` if anything does, the function's body.
Out: one test each. Always: everything observable is eager's, in at most as many graphs as the block says.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.capture.library import graphs_of


def _programs() -> dict[str, tuple[str, str, int]]:
    found = {}
    text = Path(__file__).with_name("library_programs.txt").read_text()
    for block in text.split("=== ")[1:]:
        head, _, source = block.partition("\n")
        name, _, graphs = head.partition(": ")
        graphs, _, later = graphs.partition(", 3.13: ")
        graphs = later if later and sys.version_info >= (3, 13) else graphs
        before, separator, body = source.rpartition("\n---\n")
        found[name] = body, before if separator else "", int(graphs)
    return found


PROGRAMS = _programs()


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    body, before, graphs = PROGRAMS[name]
    assert graphs_of(body, before) <= graphs
