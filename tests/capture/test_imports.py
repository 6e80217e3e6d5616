"""Imports in captured code: modules that are there already, and modules that the import runs.

In: a package made in a temporary folder. Out: pass or fail. Always: eager's results.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import graphlift

IMPORTS = {
    "module of a package": "from gl_made import lazy",
    "module of a package, renamed": "from gl_made import lazy as lazy",
    "module by its whole name": "import gl_made.lazy as lazy",
    "attribute and module": "from gl_made import there, lazy",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is imported, with a module that is not."""
    (tmp_path / "gl_made").mkdir()
    (tmp_path / "gl_made" / "__init__.py").write_text("there = 1\n")
    (tmp_path / "gl_made" / "lazy.py").write_text("scale = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("gl_made")


@pytest.mark.parametrize("how", IMPORTS)
def test_a_module_that_is_not_imported_yet(package: None, how: str) -> None:
    scope: dict[str, object] = {}
    exec(f"def f(x):\n    {IMPORTS[how]}\n    return x * lazy.scale", scope)
    compiled = graphlift.compile(scope["f"], backend="eager")
    try:
        for _ in range(2):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
        report = graphlift.explain(scope["f"], backend="eager")(torch.ones(2))
        assert not report.break_sites and report.graph_count == 1
    finally:
        sys.modules.pop("gl_made.lazy", None)
        sys.modules.pop("gl_made", None)


def test_a_name_that_is_not_there(package: None) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            from gl_made import nothing  # type: ignore[import-not-found]
        except ImportError as error:
            return x + len(str(error))
        return x + nothing

    expected = f(torch.ones(2))
    assert torch.equal(graphlift.compile(f, backend="eager")(torch.ones(2)), expected)
    sys.modules.pop("gl_made", None)
