"""Errors that only the data bring about: the frame's effects, its exception and its traceback are eager's."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from graphlift import explain

LOG: list[Any] = []
EMBEDDING = torch.arange(15.0).reshape(5, 3)


class Counter:
    def __init__(self) -> None:
        self.calls = 0
        self.seen: list[int] = []


def effects_before(x: torch.Tensor, i: torch.Tensor, c: Counter) -> torch.Tensor:
    c.calls += 1
    LOG.append("before")
    y = EMBEDDING[i] + x
    c.seen.append(1)
    LOG.append("after")
    return y


def nested(x: torch.Tensor, i: torch.Tensor, c: Counter) -> torch.Tensor:
    c.seen.append(0)
    y = effects_before(x, i, c)
    c.seen.append(2)
    return y * 2


def after_a_break(x: torch.Tensor, i: torch.Tensor, c: Counter) -> torch.Tensor:
    y = x * 2
    print("native")
    return effects_before(y, i, c).sum()


def in_a_loop(x: torch.Tensor, i: torch.Tensor, c: Counter) -> torch.Tensor:
    for k in range(3):
        print(k)
        x = torch.gather(x, 0, i) + k
        c.calls += 1
    return x


def singular(x: torch.Tensor, i: torch.Tensor, c: Counter) -> torch.Tensor:
    c.calls = 5
    return torch.linalg.inv(x[:2, :2] * 0)


CASES = [effects_before, nested, after_a_break, in_a_loop, singular]


def outcome(run: Callable[..., Any], i: torch.Tensor) -> dict[str, Any]:
    c, x = Counter(), torch.ones(3, 3)
    LOG.clear()
    found: dict[str, Any] = {}
    try:
        found["result"] = run(x, i, c).tolist()
    except Exception as error:
        lines = traceback.extract_tb(error.__traceback__)
        found["error"] = (type(error), str(error), error.__context__, error.__cause__)
        found["lines"] = [(f.name, f.lineno) for f in lines if f.filename == __file__ and f.name != "outcome"]
    return found | {"state": vars(c), "log": list(LOG)}


def assert_alike_with_random_numbers(fn: Any, compiled: Any, indices: Iterable[torch.Tensor]) -> None:
    """Outcomes, and the random numbers that come after them."""
    for i in indices:
        found = []
        for run in (fn, compiled):
            torch.manual_seed(3)
            found.append(outcome(run, i) | {"random": torch.rand(2).tolist()})
        assert found[0] == found[1]


@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "auto"])
def test_effects_errors_and_lines_are_eagers(compiler, fn: Callable[..., Any], backend: str, capsys) -> None:
    good, bad = torch.zeros(3, 3, dtype=torch.long)[0], torch.tensor([0, 9, 1])
    if fn is in_a_loop:
        good, bad = torch.zeros(3, 3, dtype=torch.long), torch.full((3, 3), 7)
    compiled = compiler.compile(fn, backend=backend)
    for i in (good, bad, good, bad):
        want = outcome(fn, i)
        printed = capsys.readouterr().out
        got = outcome(compiled, i)
        assert got == want and capsys.readouterr().out == printed


def any_signature(x: Any, /, d: int = 2, *rest: Any, i: torch.Tensor, k: int = 3, **more: Any) -> Any:
    LOG.append((d, len(rest), k, more))
    return EMBEDDING[i] + x * d + k + sum(rest)


def test_arguments_of_every_kind_are_passed_again(compiler) -> None:
    compiled = compiler.compile(any_signature)
    found: list[Any] = []
    for i in (torch.tensor([0, 2, 1]), torch.tensor([0, 9, 1])):
        for run in (any_signature, compiled):
            LOG.clear()
            try:
                result = run(torch.ones(3), 4, 5, 6, k=7, i=i, more=8).tolist()
            except IndexError as error:
                result = str(error)
            found.append((result, list(LOG)))
    assert found[0] == found[1] and found[2] == found[3]
    assert found[3][1] == [(4, 2, 7, {"more": 8})]


# -- handlers of the user's ------------------------------------------------------------------------------------


def caught(x: torch.Tensor, i: torch.Tensor, c: Counter) -> torch.Tensor:
    try:
        c.calls += 1
        y = EMBEDDING[i] + x
    except IndexError as error:
        c.seen.append(len(error.args))
        y = x * 0
    finally:
        LOG.append("finally")
    return y


def caught_with_random_numbers(x: torch.Tensor, i: torch.Tensor, c: Counter) -> torch.Tensor:
    try:
        x = torch.nn.functional.dropout(x, 0.5) + torch.rand(3)
        y = EMBEDDING[i] + x
        c.calls += 1
    except IndexError:
        y = torch.rand(3)
    return y + torch.rand(3)


NORM = torch.nn.BatchNorm1d(3)


def caught_with_statistics(x: torch.Tensor, i: torch.Tensor, c: Counter) -> torch.Tensor:
    try:
        y = torch.nn.functional.embedding(i, NORM(x + c.calls))
    except IndexError:
        y = x - 1
    return y


def written_argument(x: torch.Tensor, i: torch.Tensor, c: Counter) -> torch.Tensor:
    x.add_(1)
    try:
        y = EMBEDDING[i] + x
    except IndexError:
        y = x * 2
    return y.sum() + x.sum()


@pytest.mark.parametrize("fn", [caught, caught_with_random_numbers, caught_with_statistics, written_argument])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "auto"])
def test_handlers_meet_errors_of_data(compiler, fn: Callable[..., Any], backend: str) -> None:
    good, bad = torch.tensor([0, 2, 1]), torch.tensor([0, 9, 1])
    compiled = compiler.compile(fn, backend=backend)
    for i in (good, bad, good, bad):
        found = []
        for run in (fn, compiled):
            torch.manual_seed(3)
            NORM.reset_running_stats()
            found.append(
                outcome(run, i) | {"random": torch.rand(2).tolist(), "mean": NORM.running_mean.tolist()}
            )
        assert found[0] == found[1]


def test_a_handler_around_a_graph_that_can_run_again_breaks_nothing(compiler) -> None:
    i, x = torch.tensor([0, 2, 1]), torch.ones(3, 3)
    for fn in (caught, caught_with_random_numbers):
        explained = compiler.explain(fn, x, i, Counter())
        assert (explained.graph_count, explained.graph_break_count) == (1, 0)


def test_only_graphs_that_draw_keep_the_state_of_the_generator() -> None:
    def attend(x: torch.Tensor, training: bool, p: float) -> torch.Tensor:
        y = torch.nn.functional.dropout(x, 0.1, training)
        return torch.nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=p)

    for training, p in ((False, 0.0), (True, 0.0), (False, 0.5)):
        (region,) = explain(attend, backend="eager")(torch.ones(2, 3, 4), training, p).regions
        assert ("get_rng_state()" in region.source_text) == (training or p > 0)


# -- operators of a library ------------------------------------------------------------------------------------


@torch.library.custom_op("gltest_errors::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(x.shape)


noisy.register_fake(torch.empty_like)


def caught_with_a_librarys_operator(x: torch.Tensor, i: torch.Tensor, c: Counter) -> torch.Tensor:
    try:
        y = EMBEDDING[i] + noisy(x)
    except IndexError:
        y = noisy(x)
    return y + torch.rand(3)


def test_a_librarys_operator_that_writes_nothing_runs_again(compiler) -> None:
    good, bad = torch.tensor([0, 2, 1]), torch.tensor([0, 9, 1])
    fn = caught_with_a_librarys_operator
    explained = compiler.explain(fn, torch.ones(3, 3), good, Counter())
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    compiled = compiler.compile(fn)
    assert_alike_with_random_numbers(fn, compiled, (good, bad, good))


# -- functions that capture makes ------------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


def caught_with_a_custom_function(x: torch.Tensor, i: torch.Tensor, c: Counter) -> torch.Tensor:
    try:
        y = EMBEDDING[i] + Doubled.apply(x.requires_grad_() * 1)
    except IndexError:
        y = Doubled.apply(x * 3)
    return y.sum()


def caught_with_a_transform(x: torch.Tensor, i: torch.Tensor, c: Counter) -> torch.Tensor:
    try:
        y = EMBEDDING[i] + torch.vmap(lambda r: r + torch.rand(3), randomness="different")(x)
    except IndexError:
        y = torch.rand(3)
    return y + torch.rand(3)


@pytest.mark.parametrize("fn", [caught_with_a_custom_function, caught_with_a_transform])
def test_graphs_with_functions_that_capture_made_run_again(compiler, fn: Callable[..., Any]) -> None:
    good, bad = torch.tensor([0, 2, 1]), torch.tensor([0, 9, 1])
    compiled = compiler.compile(fn)
    assert_alike_with_random_numbers(fn, compiled, (good, bad, good))
    explained = compiler.explain(fn, torch.ones(3, 3), good, Counter())
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
