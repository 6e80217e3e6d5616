"""Data flows one way: a stage imports no later stage, the torch-free stages import no torch, and nothing of torch's own
compiler is loaded while compiling.

The first two are read off the source; the last is seen in a fresh process after compiling and training a small model.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "graphlift"

# In the order data flows; a stage may import those before it. pipeline.py, api.py and the like wire them.
STAGES = ("shapes", "frame", "bytecode", "guards", "fake", "capture", "aot", "lower", "codegen", "runtime")
TORCH_FREE = ("bytecode", "frame")
# Foundations that any stage may import, and that import no stage themselves (but for type checking).
FOUNDATIONS = (
    "collector",
    "config",
    "data",
    "errors",
    "logs",
    "marks",
    "options",
    "record",
    "timing",
    "uncompiled",
)
FORBIDDEN = (
    "torch._dynamo",
    "torch._functorch",
    "torch._inductor",
    "torch._export",
    "torch.export",
    "torch._subclasses",
    "torch.fx.experimental.proxy_tensor",
    "torch.jit",
)


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def type_checking_only(tree: ast.Module) -> set[ast.AST]:
    """The nodes inside ``if TYPE_CHECKING:`` blocks."""
    guarded: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            guarded.update(inner for statement in node.body for inner in ast.walk(statement))
    return guarded


def imports(path: Path, *, with_type_checking: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that the file imports, relative imports resolved."""
    tree = ast.parse(path.read_text(), str(path))
    skipped = set() if with_type_checking else type_checking_only(tree)
    package = ("graphlift", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def violations(paths: list[Path], banned: tuple[str, ...], *, with_type_checking: bool = True) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in paths
        for line, name in imports(path, with_type_checking=with_type_checking)
        if any(name == prefix or name.startswith(prefix + ".") for prefix in banned)
    ]


@pytest.mark.parametrize("stage", STAGES)
def test_stage_imports_no_later_stage(stage: str) -> None:
    later = STAGES[STAGES.index(stage) + 1 :]
    banned = tuple(f"graphlift.{name}" for name in (*later, "pipeline", "api", "backends", "report"))
    assert not violations(sources(PACKAGE / stage), banned)


@pytest.mark.parametrize("module", FOUNDATIONS)
def test_foundation_imports_no_stage(module: str) -> None:
    banned = tuple(f"graphlift.{name}" for name in (*STAGES, "pipeline", "api", "backends", "report"))
    assert not violations([PACKAGE / f"{module}.py"], banned, with_type_checking=False)


@pytest.mark.parametrize("stage", TORCH_FREE)
def test_stage_is_free_of_torch(stage: str) -> None:
    assert not violations(sources(PACKAGE / stage), ("torch",))


@pytest.mark.parametrize("stage", STAGES)
def test_stage_uses_nothing_of_torchs_compiler(stage: str) -> None:
    assert not violations(sources(PACKAGE / stage), FORBIDDEN)


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": str(ROOT / "src"), "GRAPHLIFT_STRICT": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_free_stages_load_without_torch() -> None:
    modules = ", ".join(f"graphlift.{stage}" for stage in TORCH_FREE)
    assert run_python(f"import {modules}, sys; print('torch' in sys.modules)").strip() == "False"


COMPILE_AND_TRAIN = """
import sys, torch
from examples.mlp import MLP
before = set(sys.modules)
import graphlift
model = MLP(features=4, hidden=8, classes=3)
compiled = graphlift.compile(model)
for batch in (2, 3):
    compiled(torch.randn(batch, 4)).square().sum().backward()
with torch.no_grad():
    compiled(torch.randn(2, 4))
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def test_compiling_loads_nothing_of_torchs_compiler() -> None:
    loaded = run_python(COMPILE_AND_TRAIN).split()
    assert "graphlift.capture" in loaded
    assert [
        name for name in loaded if f"{name}.".startswith(tuple(f"{prefix}." for prefix in FORBIDDEN))
    ] == []


def test_importing_graphlift_is_cheap() -> None:
    """The package's own file and nothing else: the stages are loaded when first used."""
    code = "import torch, sys; before = set(sys.modules); import graphlift; print(*sorted(set(sys.modules) - before))"
    assert run_python(code).split() == ["graphlift"]
