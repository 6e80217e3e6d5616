"""Guards of captured modules: how a passing check finds its way, and what makes it fail."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import graphlift
from graphlift.guards._guards import Check


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()) for _ in range(5))
    ).eval()


def compiled_check(model: nn.Module, x: torch.Tensor) -> tuple[nn.Module, Check]:
    before = {id(o) for o in gc.get_objects() if type(o) is Check}
    compiled = graphlift.compile(model, backend="eager")
    for _ in range(4):
        compiled(x)
    (check,) = (o for o in gc.get_objects() if type(o) is Check and id(o) not in before)
    return compiled, check


def test_a_hit_compares_words_and_runs_no_code(model: nn.Module) -> None:
    x = torch.randn(2, 4)
    compiled, check = compiled_check(model, x)
    before = check.stats
    for _ in range(50):
        compiled(x)
    assert check.stats["walks"] == before["walks"] and check.stats["records"] == before["records"]
    assert check.stats["tails"] == before["tails"], "a check is left to code at every hit"


def test_a_hook_is_seen_at_once(model: nn.Module) -> None:
    x = torch.randn(2, 4)
    compiled, _ = compiled_check(model, x)
    for at in (model, model[0], model[3][1]):
        for register in (
            at.register_forward_hook,
            lambda hook, at=at: at.register_forward_pre_hook(lambda m, i: hook(m, i, i[0])),
        ):
            handle = register(lambda m, i, o: o + 1 if isinstance(o, torch.Tensor) else None)
            torch.testing.assert_close(compiled(x), model(x))
            handle.remove()
            torch.testing.assert_close(compiled(x), model(x))
