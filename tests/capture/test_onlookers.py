"""Calls while something looks on that must see every operator: nothing is captured then, and the reason is told."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import graphlift

X = torch.linspace(-1, 1, 6)


def fn(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).relu() + 1


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@contextmanager
def below_autograd():
    with torch._C._AutoDispatchBelowAutograd():
        yield


CONTEXTS = {
    "dispatch mode": (Names, "TorchDispatchMode"),
    "dual level": (forward_ad.dual_level, "forward-mode"),
    "no autograd keys": (below_autograd, "autograd is excluded"),
    "saved tensors": (
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        "hooks on saved tensors",
    ),
}


@pytest.mark.parametrize("warm", [False, True], ids=["first call", "compiled before"])
@pytest.mark.parametrize("name", CONTEXTS)
def test_runs_eagerly_under(name: str, warm: bool) -> None:
    context, told = CONTEXTS[name]
    compiled = graphlift.compile(lambda x: fn(x))
    x = X.clone().requires_grad_()
    if warm:
        compiled(x)
    with context():
        expected = fn(x)
    with context() as seen:
        found = compiled(x)
        explanation = graphlift.explain(fn)(x)
    torch.testing.assert_close(found, expected)
    assert found.requires_grad == expected.requires_grad
    assert explanation.graph_count == 0 and told in str(explanation)
    if isinstance(seen, Names):
        computed = [name for name in seen.names if name != "detach.default"]
        assert computed[:3] == ["mul.Tensor", "relu.default", "add.Tensor"]


@pytest.mark.parametrize("warm", [False, True], ids=["first call", "compiled before"])
def test_torchscript_records_every_operator(warm: bool) -> None:
    compiled = graphlift.compile(lambda x: fn(x))
    if warm:
        compiled(X)
    traced = torch.jit.trace(compiled, X)
    torch.testing.assert_close(traced(-X), fn(-X))
    assert str(traced.graph).count("aten::") == 3
