"""Errors: one base, compatible with the built-in that code would catch, with all parts in the message."""

from __future__ import annotations

import inspect
import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import graphlift
from graphlift import errors
from graphlift.capture.reasons import REASONS, BreakReason, StackFrame
from graphlift.errors import GraphBreakError, GraphliftError

CLASSES = [getattr(errors, name) for name in errors.__all__]


def test_all_lists_every_class() -> None:
    found = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert found == set(errors.__all__)


@pytest.mark.parametrize("cls", CLASSES)
def test_message_has_every_part_and_survives_pickling(cls: type[GraphliftError]) -> None:
    error = cls("sentence", found="F", expected="E", where="a.py:3", stack="one\ntwo", hint="H")
    text = str(error)
    for part in ("sentence", "found: F", "expected: E", "at: a.py:3", "    two", "next step: H"):
        assert part in text
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls and str(again) == text and again.hint == "H"


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.NotCallable, TypeError),
        (errors.UnknownBackend, ValueError),
        (errors.InvalidOption, ValueError),
        (errors.MissingExtension, ImportError),
        (errors.NotBuilt, NotImplementedError),
        (errors.BackendError, RuntimeError),
        (errors.UnsupportedCPU, RuntimeError),
        (errors.GraphBreakError, RuntimeError),
        (errors.RecompileError, RuntimeError),
    ],
)
def test_compatible_with_the_builtin(cls: type, builtin: type) -> None:
    assert issubclass(cls, builtin) and issubclass(cls, GraphliftError)


def test_graph_break_error_names_reason_line_and_remedy() -> None:
    frame = StackFrame(__file__, 10, "user")
    reason = BreakReason("tensor-item", "x.item()", __file__, 10, (frame,))
    error = GraphBreakError.from_reason(reason, "user")
    assert error.code == "tensor-item"
    for part in ("fullgraph=True", "x.item()", f"{__file__}:10", "in user", REASONS["tensor-item"].remedy):
        assert part in str(error)


@pytest.mark.parametrize("name", ["graphlift.frame._frame", "graphlift.guards._guards"])
def test_missing_extension_names_the_next_step(name: str) -> None:
    code = (
        f"import sys; sys.modules[{name!r}] = None\n"
        "import torch, graphlift\n"
        "from graphlift.errors import MissingExtension\n"
        "try:\n"
        "    graphlift.compile(lambda x: x + 1, backend='eager')(torch.ones(2))\n"
        "except MissingExtension as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "pip install ." in done.stdout and name in done.stdout and "next step" in done.stdout


def test_extension_that_cannot_be_loaded_is_one_that_is_missing(tmp_path: Path) -> None:
    """Built for another machine, or cut short: the same error and the same next step."""
    package = tmp_path / "graphlift"
    shutil.copytree(
        Path(graphlift.__file__).parent, package, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    (package / "frame" / f"_frame{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"no library")
    code = (
        "import graphlift\n"
        "from graphlift.errors import MissingExtension\n"
        "try:\n"
        "    graphlift.compile(abs)\n"
        "except MissingExtension as error:\n"
        "    print(graphlift.__file__, error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout and "pip install ." in done.stdout


def test_cpu_without_avx2_is_refused_with_an_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    import platform

    import torch

    from graphlift import backends

    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: False)
    with pytest.raises(errors.UnsupportedCPU, match="aot_eager"):
        backends.resolve("auto")
    assert backends.resolve("eager").name == "eager"
