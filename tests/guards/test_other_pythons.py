"""The torch-free guard tests on the other supported interpreters that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "graphlift"
VERSIONS = ("3.11", "3.12", "3.13")


def interpreter(version: str) -> str | None:
    """An interpreter of this version with headers: on PATH, or one of pyenv's."""
    candidates = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"))]
    probe = f"import sys; assert sys.version.startswith('{version}.')"
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", probe], capture_output=True).returncode == 0:
            return candidate
    return None


@pytest.mark.parametrize(
    "version", [v for v in VERSIONS if v != f"{sys.version_info[0]}.{sys.version_info[1]}"]
)
def test_on(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    compiler = shutil.which("cc") or shutil.which("gcc")
    if python is None or compiler is None:
        pytest.skip(f"no Python {version} or no C compiler here")
    asked = "import sysconfig as s; print(s.get_paths()['include']); print(s.get_config_var('EXT_SUFFIX'))"
    include, suffix = subprocess.check_output([python, "-c", asked], text=True).split()
    if not (Path(include) / "Python.h").exists():
        pytest.skip(f"Python {version} has no headers here")

    copy = tmp_path / "graphlift"
    shutil.copytree(PACKAGE / "guards", copy / "guards", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(PACKAGE / "shapes", copy / "shapes", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "data.py", copy)
    (copy / "__init__.py").write_text('"""Only the guards."""\n')
    shutil.copytree(ROOT / "tests" / "guards", tmp_path / "tests" / "guards")
    (tmp_path / "tests" / "__init__.py").write_text("")
    build = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-g",
        "-fno-strict-aliasing",
        "-Wall",
        "-Werror",
        f"-I{include}",
    ]
    subprocess.run([*build, "_guards.c", "-o", f"_guards{suffix}"], cwd=copy / "guards", check=True)
    run = subprocess.run(
        [python, "-X", "faulthandler", "-m", "tests.guards.plain_runner"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " 0 failed" in run.stdout
