"""Threads that compile, recompile, reset and run the same functions at once get eager's answers.

While they do, functions raise and break, models are trained and die with their entries, and the stance changes.
"""

from __future__ import annotations

import copy
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import graphlift

SECONDS = 6.0  # the same ran for minutes before it was kept
THREADS = 8


def make() -> Callable[..., tuple[torch.Tensor, int]]:
    def f(x: torch.Tensor, k: int, stop: bool) -> tuple[torch.Tensor, int]:
        y = x * k
        if stop:
            graphlift.graph_break()
        for i in range(k):
            y = y + i
        return y.sum(0), k

    return f


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.relu(self.linear(x)),)


def fails(x: torch.Tensor, k: int) -> torch.Tensor:
    y = x * 2
    if k % 2:
        raise ValueError(f"{k} for {tuple(x.shape)}")
    return y + k


class Work:
    """What a thread does: each method is one kind of work, and gives what was found with what eager finds."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)

    def tensor(self) -> torch.Tensor:
        return torch.randn(self.pick.choice([2, 3, 4, 5]), 4, requires_grad=self.pick.random() < 0.5)

    def function(self) -> tuple[Any, Any]:
        x, k, stop = self.tensor(), self.pick.randrange(1, 4), self.pick.random() < 0.5
        return compiled(x, k, stop), f(x, k, stop)

    def module(self) -> tuple[Any, Any]:
        x = self.tensor()
        return compiled_model(x), model(x)

    def new_function(self) -> tuple[Any, Any]:
        x, k = self.tensor(), self.pick.randrange(1, 4)
        return graphlift.compile(make(), backend="eager")(x, k, False), f(x, k, False)

    def dying_model(self) -> tuple[Any, Any]:
        own, x = Model(), self.tensor()
        return graphlift.compile(own, backend="eager")(x), own(x)

    def exception(self) -> tuple[Any, Any]:
        x, k = self.tensor(), self.pick.randrange(4)
        return outcome(compiled_fails, x, k), outcome(fails, x, k)

    def training(self) -> tuple[Any, Any]:
        own = Model()
        twin, x = copy.deepcopy(own), self.tensor()
        for each in (graphlift.compile(own), twin):
            each(x)[0].sum().backward()
        gradients = [[p.grad for p in each.parameters()] for each in (own, twin)]
        torch.testing.assert_close(*gradients)
        return (), ()

    def eagerly(self) -> tuple[Any, Any]:  # threads that run eagerly meanwhile are left alone
        x, k = self.tensor(), self.pick.randrange(1, 4)
        return f(x, k, False), f(x, k, False)

    def disabled(self) -> tuple[Any, Any]:
        x = self.tensor()
        with graphlift.disable():
            return compiled_model(x), model(x)

    def stance(self) -> tuple[Any, Any]:
        with graphlift.set_stance(self.pick.choice(["force_eager", "eager_on_recompile"])):
            return self.function()

    def reset(self) -> tuple[Any, Any]:
        graphlift.reset()
        return (), ()


f, model = make(), Model()
compiled = graphlift.compile(f, backend="eager")
compiled_model = graphlift.compile(model, backend="eager")
compiled_fails = graphlift.compile(fails, backend="eager")
KINDS = [name for name in vars(Work) if name[0] != "_" and name != "tensor"]
RARE = {"reset": 0.05, "stance": 0.1, "training": 0.1, "new_function": 0.2, "dying_model": 0.2}


def outcome(fn: Callable[..., torch.Tensor], *args: Any) -> tuple[torch.Tensor | str]:
    try:
        return (fn(*args),)
    except ValueError as error:
        return (str(error),)


def test_threads_share_compiled_functions() -> None:
    limit = sys.getrecursionlimit()
    errors: list[BaseException] = []
    calls = [0] * THREADS
    end = time.monotonic() + SECONDS

    def run(n: int) -> None:
        work = Work(n)
        try:
            while time.monotonic() < end and not errors:
                (kind,) = work.pick.choices(KINDS, [RARE.get(kind, 1.0) for kind in KINDS])
                for a, b in zip(*getattr(work, kind)(), strict=True):
                    assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, kind
                calls[n] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(THREADS)]
    with graphlift.config.patch(cache_size_limit=64):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS + 60)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    assert not errors, errors[0]
    assert all(calls)
    assert sys.getrecursionlimit() == limit
