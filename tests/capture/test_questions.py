"""Branches on tensors of one element, and on numbers read from them: the answers are guarded where they can be asked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import graphlift
from graphlift.api import Settings
from tests.equality import assert_equal

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Initialised(nn.Module):
    """Sets its scale in the first call, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ready", torch.tensor(False))
        self.register_buffer("calls", torch.tensor(0))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready.item():
            with torch.no_grad():
                self.scale.copy_(x.std(0))
                self.ready.fill_(True)
        self.calls += 1
        if self.calls > 3:
            x = x * 2
        return x * self.scale


def item(state: Tensor) -> Tensor:
    n = max(state.item(), 1)
    state += 1
    return X + 1 if 0 < n < 3 and n != 2 else X


def in_steps(state: Tensor) -> Tensor:
    if (int(state) + 2) // 2 % 2 == 1:
        state += 1
        return X * 2
    state += 1
    return X


def hidden_write(state: Tensor) -> Tensor:
    state.data.add_(1)
    return X * 2 if state > 1 else X


def written_from_more(state: Tensor) -> Tensor:
    state.data.copy_((X + state).sum() > 11)
    return X * 2 if state else X


def statistics(state: Tensor) -> Tensor:
    F.batch_norm(torch.ones(4, 1), state.view(1), torch.ones(1), training=True)
    return X * 2 if state > 0.15 else X


def element(state: Tensor) -> Tensor:
    state.add_(1)
    return X * 2 if state[None][0] > 1 else X


def listed(state: Tensor) -> Tensor:
    torch._foreach_add_([state], 1)
    return X * 2 if state > 2 else X


def random(state: Tensor) -> Tensor:
    return X * 2 if torch.rand(()) + state * 0 > 0.5 else X


def identity(state: Tensor) -> Any:
    return X * 2, state.item() == 0, state.bool().item() is False, isinstance(state.item(), int)


def kept(state: Tensor) -> Any:
    n = state.item()
    state += 1
    return X[:n], {0: "a", 1: "b"}.get(n), [n] == [0], n in {0, 1}, f"{n}", X * n


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], int | None]] = {
    "module": (Initialised, lambda module: module(X), 3),
    "item": (lambda: torch.tensor(0), item, 3),
    "in_steps": (lambda: torch.tensor(0), in_steps, 2),
    "listed": (lambda: torch.tensor(0.0), listed, 2),
    "element": (lambda: torch.tensor(0), element, 2),
    "identity": (lambda: torch.tensor(0), identity, 1),
    "hidden_write": (lambda: torch.tensor(0), hidden_write, 2),
    "written_from_more": (lambda: torch.tensor(0.0), written_from_more, None),
    "statistics": (lambda: torch.tensor(0.0), statistics, None),
    "random": (lambda: torch.tensor(0.0), random, None),
    "kept": (lambda: torch.tensor(0), kept, None),
}


def observed(fn: Callable[[Any], Any], state: Any) -> Any:
    torch.manual_seed(0)
    results = []
    for _ in range(6):
        result = fn(state)
        tensors = state.state_dict() if isinstance(state, nn.Module) else {"state": state}
        results.append((result, {name: tensor.detach().clone() for name, tensor in tensors.items()}))
    return results


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "auto"])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_each_call(name: str, backend: str) -> None:
    """`regions`: how many there are where nothing breaks."""
    make, fn, regions = CASES[name]
    graphlift.reset()
    made: list[Any] = []
    compiled = Settings(backend=backend).callable(fn, on_region=(made.append,))
    assert_equal(observed(compiled, make()), observed(fn, make()))
    breaks = [region.break_reason for region in made if region.break_reason is not None]
    assert (len(made), breaks) == (regions, []) if regions is not None else breaks


def test_inputs_on_one_memory_break() -> None:
    graphlift.reset()

    def fn(flag: Tensor, other: Tensor) -> Tensor:
        other.add_(1)
        return X * 2 if flag > 1 else X

    made: list[Any] = []
    compiled = Settings(backend="eager").callable(fn, on_region=(made.append,))
    for shared in (False, False, False, True, True, False):
        flag, flag_ = torch.ones(()), torch.ones(())
        other, other_ = (flag.view(1), flag_.view(1)) if shared else (torch.ones(1), torch.ones(1))
        assert_equal(compiled(flag, other), fn(flag_, other_))
    assert [region.break_reason is None for region in made[:2]] == [True, False]


def test_flags_that_keep_changing_end_the_region() -> None:
    """After three versions in vain the branch is left to Python."""
    graphlift.reset()

    def fn(*flags: Tensor) -> Tensor:
        x = X
        for k, flag in enumerate(flags):
            if flag:
                x = x * (k + 2)
        return x

    made: list[Any] = []
    compiled = Settings(backend="eager").callable(fn, on_region=(made.append,))
    for n in range(16):
        flags = [torch.tensor(bool(n >> k & 1)) for k in range(4)]
        assert_equal(compiled(*flags), fn(*flags))
    assert [r.break_reason is None for r in made if r.kind == "root"] == [True, True, True, False]
