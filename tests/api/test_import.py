"""What importing graphlift costs, and what it must not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "scipy",
    "llvmlite",
    "torch._dynamo",
    "torch._functorch",
    "torch._inductor",
    "graphlift.capture.handler",
)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_door_and_compile_load_no_stage() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import graphlift; "
        "graphlift.compile(lambda x: x, backend='eager'); graphlift.compile(torch.nn.ReLU()); "
        f"print([name for name in {HEAVY!r} if name in sys.modules and name not in before])"
    )
    assert run(code).strip() == "[]"


def test_import_graphlift_alone_does_not_import_torch() -> None:
    assert run("import graphlift, sys; print('torch' in sys.modules)").strip() == "False"


def test_every_public_name_resolves() -> None:
    import graphlift

    for name in graphlift.__all__:
        assert getattr(graphlift, name) is not None
    assert set(graphlift.__all__) <= set(dir(graphlift))


def test_unknown_name_is_an_attribute_error() -> None:
    import graphlift

    with pytest.raises(AttributeError, match="no attribute 'complie'"):
        _ = graphlift.complie


@pytest.mark.parametrize("name", ["export", "Dim", "save", "load", "verify"])
def test_names_not_built_say_so_when_called(name: str) -> None:
    import graphlift
    from graphlift.errors import NotBuilt

    with pytest.raises(NotBuilt, match=rf"graphlift\.{name} .* is not built"):
        getattr(graphlift, name)("anything")
