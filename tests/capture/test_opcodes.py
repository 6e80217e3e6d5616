"""Every canonical instruction is executed by capture or listed as unsupported with its reason."""

from __future__ import annotations

import importlib

import pytest

from graphlift.bytecode.dialect import EFFECTS
from graphlift.capture.opcodes import HANDLERS, UNSUPPORTED

TABLES = ("py311", "py312", "py313")


def test_the_dialect_is_covered():
    assert set(EFFECTS) - set(HANDLERS) == set()


def test_reasons_are_given():
    assert set(UNSUPPORTED) <= set(HANDLERS)
    assert all(len(why) > 10 for why in UNSUPPORTED.values())
    assert len(UNSUPPORTED) <= 22  # grows only by intent


@pytest.mark.parametrize("module", TABLES)
def test_every_version_maps_into_the_dialect(module: str):
    """The rows of each version's table name physical opcodes; what they become is in the dialect or vanishes."""
    try:
        table = importlib.import_module(f"graphlift.bytecode.{module}").TABLE
    except (KeyError, ImportError):
        pytest.skip("the table can be built only by its own interpreter")
    for jump in table.jumps:
        assert jump in HANDLERS
    missing = [name for name in table.rows if name in EFFECTS and name not in HANDLERS]
    assert missing == []
