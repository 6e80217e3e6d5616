"""A long stream of calls with changing arguments never differs from eager, and memory stands still.

Flags, sizes, dtypes, strides, grad modes, train and eval, container lengths and module attributes change from call to
call, in more combinations than the cache holds: hits, recompiles and the step back to eager are all on the way.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.compilers import Compiler
from tests.equality import GRADIENT_RTOL, Tolerance, assert_equal

pytestmark = pytest.mark.filterwarnings("ignore")
CALLS = 10_000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 2_000
BACKENDS = ("eager", "auto")
SETTLED = 0.5  # by this part of the stream every combination was seen and the cache is full
GROWTH_LIMIT_BYTES = 4_000_000


def resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def flags_and_containers(
    x: Tensor, *, flag: bool, scale: float | int, extras: list[Tensor], table: dict
) -> Any:
    if flag:
        x = x * scale
    for extra in extras:
        x = x + extra.sum()
    for key, value in table.items():
        x = x - value if key.startswith("minus") else x + value
    return x.tanh(), x.shape[0], f"{scale}:{len(extras)}"


def tensor_kinds(x: Tensor, y: Tensor | None, *, out_dtype: torch.dtype, inplace: bool) -> Any:
    if inplace and not x.requires_grad:
        x.add_(1)
    y = x if y is None else y
    return (x.float() * y.float()).to(out_dtype).sum(-1), torch.is_grad_enabled()


class Changing(nn.Module):
    """A module whose attributes, mode and buffers decide what it does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm = nn.BatchNorm1d(4)
        self.depth = 1
        self.activation: Callable[[Tensor], Tensor] = F.relu

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.depth):
            x = self.norm(self.second(self.activation(self.first(x))))
        return F.dropout(x, 0.5, self.training)


Draw = random.Random


def containers_call(draw: Draw, number: int) -> tuple[tuple, dict]:
    torch.manual_seed(number)
    keys = draw.choice((("a",), ("minus_a", "a"), ("a", "minus_a"), ()))
    x = torch.randn(draw.choice((1, 2, 3, 5)), 4, dtype=draw.choice((torch.float32, torch.float64)))
    return (x,), {
        "flag": draw.random() < 0.5,
        "scale": draw.choice((2, 2.0, 0.5, True)),
        "extras": [torch.ones(2)] * draw.randrange(3),
        "table": {key: draw.choice((1, 2)) for key in keys},
    }


def tensors_call(draw: Draw, number: int) -> tuple[tuple, dict]:
    torch.manual_seed(number)
    x = torch.randn(draw.choice((2, 4)), 4)
    x = draw.choice((x, x.t().contiguous().t(), x[:, ::2], x.double(), x.bfloat16(), x.requires_grad_()))
    y = draw.choice((None, torch.randn(x.shape), x, x.detach().clone()))
    return (x, y), {
        "out_dtype": draw.choice((torch.float32, torch.float16, torch.int64)),
        "inplace": draw.random() < 0.3,
    }


def assert_memory_still(readings: list[int]) -> None:
    growth = readings[-1] - readings[0]
    assert growth < GROWTH_LIMIT_BYTES, f"resident memory grew by {growth / 1e6:.1f} MB: {readings}"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("function", "make_call"),
    [(flags_and_containers, containers_call), (tensor_kinds, tensors_call)],
    ids=["containers", "tensors"],
)
def test_function_stream(compiler: Compiler, backend: str, function: Callable, make_call: Callable) -> None:
    compiled = compiler.compile(function, backend=backend)
    draw, readings = random.Random(0), []
    for number in range(CALLS):
        before = draw.getstate()
        args, kwargs = make_call(draw, number)
        draw.setstate(before)
        other_args, other_kwargs = make_call(draw, number)
        with torch.set_grad_enabled(draw.random() < 0.7):
            expected = function(*other_args, **other_kwargs)
            got = compiled(*args, **kwargs)
        assert_equal((got, args), (expected, other_args), path=f"call {number}")
        if number >= CALLS * SETTLED and number % (CALLS // 10) == 0:
            readings.append(resident_bytes())
    readings.append(resident_bytes())
    assert_memory_still(readings)


@pytest.mark.parametrize("backend", BACKENDS)
def test_module_stream(compiler: Compiler, backend: str) -> None:
    eager, module = Changing(), Changing()
    compiled = compiler.compile(module, backend=backend)
    draw, readings = random.Random(1), []
    for number in range(CALLS):
        torch.manual_seed(number)
        x = torch.randn(draw.choice((4, 6)), 4)
        if draw.random() < 0.2:
            depth, activation = draw.choice((1, 2)), draw.choice((F.relu, torch.tanh))
            training = draw.random() < 0.5
            for each in (eager, module):
                each.depth, each.activation = depth, activation
                each.train(training)
        with torch.set_grad_enabled(draw.random() < 0.5):
            results = []
            for run in (compiled, eager):
                torch.manual_seed(number)
                results.append(run(x))
        assert_equal(results[0], results[1], path=f"call {number}")
        if results[1].requires_grad and number % 5 == 0:
            for each, result in zip((module, eager), results, strict=True):
                each.zero_grad()
                (result * torch.linspace(-1, 2, result.numel()).view_as(result)).sum().backward()
            found, wanted = ([p.grad for p in each.parameters()] for each in (module, eager))
            # A bias before a normalisation has a gradient of nothing but rounding: the model's largest is the scale.
            largest = max(grad.abs().max().item() for grad in wanted)
            limit = Tolerance(rtol=0.0, atol=GRADIENT_RTOL * largest)
            assert_equal(found, wanted, tolerance=limit, path=f"gradients of call {number}")
        if number >= CALLS * SETTLED and number % (CALLS // 10) == 0:
            readings.append(resident_bytes())
    assert_equal(list(module.buffers()), list(eager.buffers()), path="buffers")
    readings.append(resident_bytes())
    assert_memory_still(readings)
