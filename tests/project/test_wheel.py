"""`pip install .` works with build isolation: the wheel builds where torch is not, and holds what it should."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

EXTENSIONS = ("graphlift/frame/_frame.", "graphlift/guards/_guards.", "graphlift/runtime/_launch.")


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=500, **options
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built by pip in an isolated environment, from what git would put into a checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    files = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in files:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source)
    (built,) = folder.glob("graphlift-*.whl")
    return built


def test_wheel_holds_the_package_and_its_extensions(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = email.message_from_bytes(
            archive.read(next(name for name in names if name.endswith(".dist-info/METADATA")))
        )
    expected = {
        f"graphlift/{path.relative_to(ROOT / 'src' / 'graphlift')}"
        for path in (ROOT / "src/graphlift").rglob("*.py")
    }
    assert expected <= set(names)
    for extension in EXTENSIONS:
        assert any(name.startswith(extension) and name.endswith((".so", ".pyd")) for name in names), extension
    assert metadata["Requires-Python"] and metadata["License-Expression"] == "MIT"
    assert any(row.startswith("torch") for row in metadata.get_all("Requires-Dist"))


def test_wheel_installs_and_says_what_is_missing_without_torch(wheel: Path, tmp_path: Path) -> None:
    """In an environment without torch the package imports, its torch-free parts work, and compile names torch."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = "import graphlift.frame._frame, graphlift.bytecode as b; print(len(b.decode(b.decode.__code__).instrs) > 0)"
    assert run(python, "-c", code, cwd=tmp_path).strip() == "True"
    done = subprocess.run(
        [python, "-c", "import graphlift; graphlift.compile(abs)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "torch" in done.stderr


def test_every_header_is_a_reason_to_build_again() -> None:
    """Left out of `depends`, a changed header would leave the extension as it was."""
    modules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    named = [header for module in modules for header in module.get("depends", ())]
    assert sorted(named) == sorted(str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.h"))
    assert len({module["name"] for module in modules}) == len(modules)
