"""Small programs over sizes that vary, each for three sizes: results are eager's, and compilations are counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphlift
from graphlift.frame import entries

from .programs import PROGRAMS, Program

SIZES = (5, 8, 12)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, check_stride=True, equal_nan=True, rtol=1e-5, atol=1e-6)
    else:
        assert found == expected


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "auto"))
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_program(program: Program, backend: str) -> None:
    graphlift.reset()
    torch.manual_seed(0)
    compiled = graphlift.compile(program.run, backend=backend, dynamic=True)
    for size in SIZES:
        given = program.inputs(size)
        assert_same(compiled(*given), program.run(*given))
    assert len(entries(program.run.__code__)) == program.versions
