"""Every operator with a row, on torch's own samples and several dtypes: the interpreted plan equals eager."""

from __future__ import annotations

import itertools
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import graphlift
from graphlift.lower.interpret import interpret
from graphlift.lower.ir import KernelCall
from graphlift.lower.lowering import lower_graph
from graphlift.lower.table import ROWS

from .tracing import same_strides, trace

try:
    import expecttest  # noqa: F401
except ImportError:  # torch's operator samples import it without using it
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stub
from torch.testing._internal.common_methods_invocations import op_db

LOWERED = {str(target).split(".")[1].strip("_") for target in ROWS}
ALIASES = {
    "nn.functional.normalize",
    "softmax",
    "outer",
    "nn.functional.layer_norm",
    "nn.functional.group_norm",
    "nn.functional.prelu",
}
SKIPPED = {
    # not a function of their arguments
    "empty_like", "new_empty", "empty", "empty_strided", "new_empty_strided", "randint_like",
    "narrow", "chunk", "unsafe_chunk",  # samples with tensors for numbers
    "as_strided", "as_strided_copy", "view_as_real",  # rows that say: ATen
    "nn.functional.binary_cross_entropy_with_logits",  # torch's tracer replaces it by another formula
    "addmm",  # a kernel only where one reads the sum
    "nn.functional.unfold",  # an operator of another name
    "nn.functional.embedding",  # samples that renormalise the weights in place
}  # fmt: skip
TOLERANCE = {
    torch.float32: (1e-4, 1e-5),
    torch.bfloat16: (2e-2, 1e-2),
    torch.float16: (4e-3, 1e-3),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)


def _tested() -> Iterator[Any]:
    for info in op_db:
        names = {info.name, info.aten_name, info.name.removeprefix("nn.functional.")}
        if info.variant_test_name == "" and (names & LOWERED or info.name in ALIASES) and not names & SKIPPED:
            yield info


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("info", list(_tested()), ids=lambda info: info.name)
def test_operator(info: Any) -> None:
    lowered = False
    for dtype in DTYPES:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        samples = list(itertools.islice(info.sample_inputs("cpu", dtype), 40))
        for sample in samples[:: max(1, len(samples) // 3)]:
            lowered |= _check_sample(info.op, sample)
    assert lowered, "no sample became a kernel"


def _check_sample(op: Any, sample: Any) -> bool:
    flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]

    def function(*given: torch.Tensor) -> Any:
        rest = iter(given)
        args = pytree.tree_unflatten([next(rest) if isinstance(x, torch.Tensor) else x for x in flat], spec)
        return op(args[0], *args[1], **args[2])

    expected = pytree.tree_leaves(function(*tensors))
    plan = lower_graph(trace(function, tensors))
    got = interpret(plan, tensors)
    assert got is not None
    for g, e in zip(got, expected, strict=True):
        if not isinstance(e, torch.Tensor):
            continue
        assert (g.dtype, g.shape) == (e.dtype, e.shape)
        assert same_strides(g, e)
        rtol, atol = TOLERANCE.get(e.dtype, (0, 0))
        torch.testing.assert_close(g, e, rtol=rtol, atol=atol, equal_nan=True)
    return any(isinstance(s, KernelCall) for s in plan.steps) or not plan.steps or _only_views(plan)


def _only_views(plan: Any) -> bool:
    return all(type(s).__name__ == "ViewCall" for s in plan.steps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", [1, 8])
def test_prelu_trained(dtype: torch.dtype, weights: int) -> None:
    def ran(f: Any) -> tuple[Any, ...]:
        x = torch.linspace(-2, 2, 2 * 8 * 16).view(2, 8, 4, 4).to(dtype)
        x[0, 0, 0] = torch.tensor([0.0, -0.0, float("inf"), -1.0])
        w = torch.linspace(0.1, 0.7, weights).to(dtype).requires_grad_()
        out = f(x.requires_grad_(), w)
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape).to(dtype)).sum().backward()
        return out.detach(), x.grad, w.grad

    compiled = graphlift.compile(torch.nn.functional.prelu)
    rtol = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(
        ran(compiled), ran(torch.nn.functional.prelu), rtol=rtol, atol=rtol, equal_nan=True
    )
