"""The torch-free tests on every supported interpreter of the machine, each with an extension built for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUPPORTED = ((3, 11), (3, 12), (3, 13))
#: What the build needs to know about an interpreter; fails where it is none of ours or has no headers.
ASK = """
import os, sys, sysconfig
include = sysconfig.get_paths()["include"]
assert sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
assert os.path.exists(os.path.join(include, "internal", "pycore_frame.h"))
print(*sys.version_info[:2], sysconfig.get_config_var("EXT_SUFFIX"), include)
"""


def candidates() -> list[Path]:
    found = [shutil.which(f"python{major}.{minor}") for major, minor in SUPPORTED]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found += [str(path) for path in sorted(root.glob("versions/3.*/bin/python"))]
    return [Path(path) for path in [sys.executable, *found] if path]


def interpreters() -> dict[tuple[int, int], tuple[Path, str, str]]:
    """One usable interpreter of each supported version: its path, extension suffix, include folder."""
    usable: dict[tuple[int, int], tuple[Path, str, str]] = {}
    for path in candidates():
        asked = subprocess.run([path, "-c", ASK], capture_output=True, text=True, check=False)
        if asked.returncode:
            continue
        major, minor, suffix, include = asked.stdout.strip().split(" ", 3)
        version = (int(major), int(minor))
        if version in SUPPORTED:
            usable.setdefault(version, (path, suffix, include))
    return usable


def build(folder: Path, suffix: str, include: str) -> None:
    """The two torch-free packages alone, with what they stand on and the extension for one interpreter."""
    package = folder / "graphlift"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(ROOT / "src/graphlift/data.py", package)
    for part in ("bytecode", "frame"):
        shutil.copytree(
            ROOT / "src/graphlift" / part,
            package / part,
            ignore=shutil.ignore_patterns("*.so", "__pycache__"),
        )
    compiler = os.environ.get("CC", "cc")
    source, target = package / "frame/_frame.c", package / f"frame/_frame{suffix}"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-fno-strict-aliasing", f"-I{include}",
         str(source), "-o", str(target)],
        check=True,
    )  # fmt: skip


@pytest.mark.parametrize("version", SUPPORTED, ids=lambda v: f"{v[0]}.{v[1]}")
def test_on(version: tuple[int, int], tmp_path: Path) -> None:
    found = interpreters().get(version)
    if found is None:
        pytest.skip(f"no CPython {version[0]}.{version[1]} with headers on this machine")
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler")
    path, suffix, include = found
    build(tmp_path, suffix, include)
    # This very interpreter runs them all anyway: here it only shows that the build works.
    only = ["tests.bytecode.test_continuation"] if version == sys.version_info[:2] else []
    ran = subprocess.run(
        [path, "-X", "faulthandler", "-m", "tests.frame.plain_runner", *only],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
