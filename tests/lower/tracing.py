"""Functional ATen graphs for the tests of lowering, made by torch's own tracer (tests only)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from graphlift.lower.interpret import interpret
from graphlift.lower.ir import ExternCall, KernelCall, Plan
from graphlift.lower.lowering import lower_graph


def trace(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """The functional ATen graph of ``function`` (flat tensors in, any pytree out: flattened)."""

    def flat(*args: torch.Tensor) -> list[Any]:
        return pytree.tree_leaves(function(*args))

    functional = torch.func.functionalize(flat, remove="mutations")
    gm = make_fx(functional, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    gm.graph.eliminate_dead_code()
    return gm


def lowered(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Plan:
    return lower_graph(trace(function, inputs))


def kernels(plan: Plan) -> list[KernelCall]:
    return [s for s in plan.steps if isinstance(s, KernelCall)]


def externs(plan: Plan) -> list[str]:
    return [str(s.target) for s in plan.steps if isinstance(s, ExternCall)]


def same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal strides wherever they matter: where the size is 1, torch's own fakes differ from eager."""
    return b.numel() == 0 or all(
        s == 1 or x == y for s, x, y in zip(b.shape, a.stride(), b.stride(), strict=True)
    )


def check(
    function: Callable[..., Any], *inputs: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-5
) -> Plan:
    """Lower, interpret, compare with eager: values, dtypes, strides."""
    plan = lowered(function, inputs)
    torch.manual_seed(0)
    expected = pytree.tree_leaves(function(*inputs))
    torch.manual_seed(0)
    got = interpret(plan, list(inputs))
    assert got is not None and len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        if not isinstance(e, torch.Tensor):
            assert g == e
            continue
        assert g.dtype == e.dtype and g.shape == e.shape
        assert same_strides(g, e), (g.stride(), e.stride())
        torch.testing.assert_close(g, e.detach(), rtol=rtol, atol=atol, equal_nan=True)
    return plan
