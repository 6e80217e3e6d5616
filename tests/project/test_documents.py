"""What the documents promise: the tour and the demo run and tell the truth, links lead somewhere, names exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT

GENERATED = ("benchmarks/RESULTS.md",)  # written by `make bench`
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def run_script(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_tour_shows_every_form() -> None:
    text = run_script("docs/tour.py")
    headings = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert headings == list(range(1, 13))
    for form in ("LOAD_FAST", "def forward(", "x: ", "aten.", "tangent", "kernel ", "define ", "equal"):
        assert form in text, form


def test_demo_on_a_small_model() -> None:
    pytest.importorskip("transformers")
    text = run_script("examples/demo.py", "--layers", "2", "--hidden", "64", "--length", "16", "--steps", "3")
    assert text.count("equal, largest difference") == 3
    assert "speed-up" in text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_named_in_code_marks_exist(document: Path) -> None:
    """`src/…`, `docs/…` and the like, and bare package files such as `lower/ir.py`."""
    for name in re.findall(r"`([\w./]+\.(?:py|c|md|toml|txt|sh))`", document.read_text()):
        found = (
            name in GENERATED
            or (ROOT / name).exists()
            or (ROOT / "src/graphlift" / name).exists()
            or (document.parent / name).exists()
        )
        assert found, f"{document.name} names {name}"


def test_every_dependency_is_explained() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rows = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    rows += [row for extra in project["project"]["optional-dependencies"].values() for row in extra]
    for row in rows:
        assert f"| {re.split('[<>=]', row)[0]} |" in text, row


def test_dependencies_have_lower_bounds_that_the_pins_satisfy() -> None:
    from packaging.requirements import Requirement

    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and line[0] != "#"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rows = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, rows):
        assert any(bound.operator == ">=" for bound in requirement.specifier), requirement
        assert pins[requirement.name] in requirement.specifier, requirement


def test_readme_examples_use_names_that_exist() -> None:
    import graphlift

    for name in re.findall(r"graphlift\.([a-z_]+)\b(?!\.)", (ROOT / "README.md").read_text()):
        assert hasattr(graphlift, name) or (ROOT / "src/graphlift" / name).exists(), name
