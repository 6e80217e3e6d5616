"""Marks on functions and tensors."""

from __future__ import annotations

import math

import pytest
import torch

import graphlift
from graphlift.errors import InvalidOption, NotCallable
from graphlift.marks import mark_of


def test_marks_on_functions() -> None:
    def plain() -> None: ...

    assert mark_of(plain) is None

    @graphlift.allow_in_graph
    def allowed() -> None: ...

    @graphlift.assume_constant_result
    def constant() -> None: ...

    assert mark_of(allowed) == "allow_in_graph"
    assert mark_of(constant) == "constant_result"


def test_marks_on_builtins_and_lists() -> None:
    assert graphlift.allow_in_graph([math.hypot]) == [math.hypot]
    assert mark_of(math.hypot) == "allow_in_graph"
    assert mark_of(math.sin) is None


def test_marks_of_torch_mean_the_same() -> None:
    @torch.compiler.disable
    def off() -> None: ...

    @torch.compiler.assume_constant_result
    def constant() -> None: ...

    assert mark_of(off) == "disabled"
    assert mark_of(constant) == "constant_result"


def test_mark_refuses_what_is_not_callable() -> None:
    with pytest.raises(NotCallable):
        graphlift.allow_in_graph(3)


def test_marks_on_tensors_are_recorded() -> None:
    t = torch.zeros(2, 3, 4)
    graphlift.mark_dynamic(t, 0, min=2, max=64)
    graphlift.mark_dynamic(t, -1)
    graphlift.maybe_mark_dynamic(t, [1])
    graphlift.mark_static(t)
    assert t._dynamo_dynamic_indices == {0, 2}
    assert {(r.dim, r.min, r.max) for r in t._dynamo_dynamic_range} == {(0, 2, 64), (2, None, None)}
    assert t._dynamo_weak_dynamic_indices == {1}
    assert t._dynamo_static_indices == {0, 1, 2}


def test_marks_on_tensors_check_their_arguments() -> None:
    t = torch.zeros(2)
    with pytest.raises(InvalidOption, match="out of range"):
        graphlift.mark_dynamic(t, 1)
    with pytest.raises(InvalidOption, match="min is above max"):
        graphlift.mark_dynamic(t, 0, min=5, max=4)
    with pytest.raises(TypeError):
        graphlift.mark_static([1.0])  # type: ignore[arg-type]
