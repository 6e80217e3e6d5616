"""Every opcode of every supported CPython is executed by capture, or breaks with a registered reason."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from graphlift.bytecode.dialect import EFFECTS
from graphlift.bytecode.version import TABLES
from graphlift.capture.breaks import Break
from graphlift.capture.opcodes import HANDLERS, UNSUPPORTED
from graphlift.capture.reasons import REASONS
from tests.frame.test_interpreters import candidates

#: Only in memory, while a tool watches the code: `co_code` shows the opcode beneath.
WATCHED = "INSTRUMENTED_"
VERSIONS = sorted(TABLES)
ASK = "import json, opcode, sys; print(json.dumps([sys.version_info[:2], sorted(opcode.opmap)]))"


@pytest.fixture(scope="module")
def opcodes() -> dict[tuple[int, int], list[str]]:
    """The opcodes that each interpreter on this machine names."""
    found: dict[tuple[int, int], list[str]] = {}
    for path in dict.fromkeys(candidates()):
        asked = subprocess.run([path, "-c", ASK], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            version, names = json.loads(asked.stdout)
            found[tuple(version)] = names
    return found


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_every_opcode_has_a_row_or_never_shows(version: tuple[int, int], opcodes):
    if version not in opcodes:
        pytest.skip(f"no CPython {version} here")
    table = TABLES[version]
    unknown = [
        name
        for name in opcodes[version]
        if name not in table.rows and name not in table.never and not name.startswith(WATCHED)
    ]
    assert unknown == []


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_every_version_maps_into_the_dialect(version: tuple[int, int]):
    table = TABLES[version]
    assert [jump for jump in table.jumps if jump not in HANDLERS] == []
    assert [name for name in table.rows if name in EFFECTS and name not in HANDLERS] == []
    assert all(len(why) > 8 for why in table.never.values())


@pytest.mark.parametrize("name", sorted(EFFECTS))
def test_every_canonical_instruction_is_handled_or_breaks(name: str):
    handler = HANDLERS[name]
    if name not in UNSUPPORTED:
        assert callable(handler)
        return
    with pytest.raises(Break) as stopped:
        handler(None, None, None)
    assert stopped.value.code in REASONS
    assert stopped.value.detail == f"{name}: {UNSUPPORTED[name]}"


def test_reasons_are_given():
    assert set(UNSUPPORTED) <= set(HANDLERS)
    assert all(len(why) > 10 for why in UNSUPPORTED.values())
    assert len(UNSUPPORTED) <= 22  # grows only by intent
    assert sys.version_info[:2] in TABLES
