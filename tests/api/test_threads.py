"""Threads that compile, recompile, reset and run the same functions at once get eager's answers."""

from __future__ import annotations

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


def test_threads_share_compiled_functions() -> None:
    f, model = make(), Model()
    compiled, compiled_model = (
        graphlift.compile(f, backend="eager"),
        graphlift.compile(model, backend="eager"),
    )
    limit = sys.getrecursionlimit()
    errors: list[BaseException] = []
    calls = [0] * THREADS
    end = time.monotonic() + SECONDS

    def work(n: int) -> None:
        pick = random.Random(n)
        try:
            while time.monotonic() < end and not errors:
                x = torch.randn(pick.choice([2, 3, 4, 5]), 4, requires_grad=pick.random() < 0.5)
                k, stop = pick.randrange(1, 4), pick.random() < 0.5
                what = pick.random()
                pair: tuple[Any, Any]
                if what < 0.4:
                    pair = compiled(x, k, stop), f(x, k, stop)
                elif what < 0.7:
                    pair = compiled_model(x), model(x)
                elif what < 0.72 and n == 0:
                    graphlift.reset()
                    continue
                elif what < 0.75:
                    pair = graphlift.compile(make(), backend="eager")(x, k, False), f(x, k, False)
                else:  # threads that run eagerly meanwhile are left alone
                    pair = f(x, k, stop), f(x, k, stop)
                for a, b in zip(*pair, strict=True):
                    assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
                calls[n] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(THREADS)]
    with graphlift.config.patch(cache_size_limit=64):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS + 60)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    assert not errors, errors[0]
    assert all(calls)
    assert sys.getrecursionlimit() == limit
