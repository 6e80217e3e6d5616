"""Random object graphs, random guards on them, random changes (see random_objects.py), chosen by Hypothesis."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.guards import random_objects


@given(st.integers(0, 2**32))
def test_c_answers_as_python_does(seed: int) -> None:
    random_objects.run(seed)
