"""Times guard hits: `python -m tests.guards.timing`. Prints a table and asserts nothing."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from typing import Any

import torch

from graphlift.guards import Arg, Equals, GlobalState, TensorMeta, TensorSpec, TypeIs, compile_guards
from tests.guards.modules import guard_module


def best_us(run: Callable[[], Any], number: int = 2000, repeat: int = 7) -> float:
    return min(timeit.repeat(run, number=number, repeat=repeat)) / number * 1e6


def small_function() -> list[tuple[str, float]]:
    """A function of three tensors and two scalars."""
    x, y, z = torch.ones(4, 8), torch.ones(8), torch.ones(4, 8, dtype=torch.float64)
    sources = [Arg(i, name) for i, name in enumerate(("x", "y", "z", "n", "p"))]
    guards = [TensorMeta(s, TensorSpec.of(t)) for s, t in zip(sources, (x, y, z), strict=False)]
    scalars = [Equals(sources[3], 3), TypeIs(sources[4], float), Equals(sources[4], 0.5)]
    check = compile_guards([*guards, *scalars, GlobalState()], sources[:3], 5)
    empty = compile_guards([], [], 5)
    state = compile_guards([GlobalState()], [], 5)
    args = (small_function, x, y, z, 3, 0.5)
    assert check(*args) is not None
    return [
        ("3 tensors, 2 scalars, global state: hit", best_us(lambda: check(*args), 50_000)),
        ("  of which a check without guards", best_us(lambda: empty(*args), 50_000)),
        (
            "  of which the global state",
            best_us(lambda: state(*args), 50_000) - best_us(lambda: empty(*args), 50_000),
        ),
        ("  miss on the last scalar", best_us(lambda: check(*args[:-1], 0.25), 50_000)),
    ]


def tree(name: str, model: torch.nn.Module) -> list[tuple[str, float]]:
    start = time.perf_counter()
    guards, fetch = guard_module(model, Arg(0, "self"))
    recorded = time.perf_counter()
    check = compile_guards(guards, fetch, 1)
    compiled = time.perf_counter()
    cold = []
    for _ in range(3):
        begin = time.perf_counter()
        assert check(tree, model) is not None
        cold.append((time.perf_counter() - begin) * 1e6)

    def touched() -> None:
        model.__dict__["steps"] = 1
        check(tree, model)

    def walked() -> None:
        # A value that equals the guard's but is another object: no trace applies, everything is loaded again.
        model.__dict__["pi"] = float("3.25")
        check(tree, model)

    model.pi = 3.25
    text = f"{name} ({len(guards)} guards, {sum(1 for _ in model.modules())} modules, {len(fetch)} tensors)"
    hit = best_us(lambda: check(tree, model))
    rows = [
        (f"{text}: hit", hit),
        ("  without fetching", best_us_of_no_fetch(guards, model)),
        ("  after an unrelated attribute changed", best_us(touched)),
        ("  first call", cold[0]),
        ("  second call (records)", cold[1]),
        ("  making the guard records", (recorded - start) * 1e6),
        ("  compiling the guards", (compiled - recorded) * 1e6),
    ]
    guards, fetch = guard_module(model, Arg(0, "self"))
    check = compile_guards(guards, fetch, 1)
    rows.append(("  hit by walking (no trace applies)", best_us(walked, 200)))
    model.train(not model.training)
    rows.append(("  miss on train/eval", best_us(lambda: check(tree, model))))
    return rows


def best_us_of_no_fetch(guards: Any, model: torch.nn.Module) -> float:
    check = compile_guards(guards, [], 1)
    for _ in range(3):
        check(tree, model)
    return best_us(lambda: check(tree, model))


def main() -> None:
    torch.set_num_threads(1)
    rows = small_function()
    rows += tree("three linear layers", torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))))
    try:
        from transformers import BertConfig, BertModel
    except ImportError:
        print("transformers is not installed: BERT-base left out")
    else:
        rows += tree("BERT-base", BertModel(BertConfig()))
    width = max(len(text) for text, _ in rows)
    for text, time_us in rows:
        print(f"{text:{width}}  {time_us:10.2f} us")


if __name__ == "__main__":
    main()
