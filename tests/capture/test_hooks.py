"""Hooks that a compiled function registers and takes off itself: captured, and compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

import graphlift
from tests.capture.program import CountingBackend
from tests.equality import assert_equal


def on_a_tensor(m: nn.Module, x: Tensor) -> Any:
    y = m(x)
    y.register_hook(lambda grad: grad * 3)
    return y * 2


def taken_off_a_tensor(m: nn.Module, x: Tensor) -> Any:
    y = m(x)
    first, second = y.register_hook(lambda grad: grad * 3), y.register_hook(lambda grad: grad * 5)
    z = y * 2
    first.remove()
    first.remove()
    return z, y.register_hook(lambda grad: grad + 1) is second


def on_a_module(m: nn.Module, x: Tensor) -> Any:
    handle = m.register_forward_hook(lambda m, inputs, out: out * 2)
    y = m(x)
    handle.remove()
    return m(x) + y, len(m._forward_hooks), isinstance(handle, RemovableHandle)


def before_a_module(m: nn.Module, x: Tensor) -> Any:
    with m.register_forward_pre_hook(lambda m, inputs: (inputs[0] * 2,)):
        y = m(x)
    return y + m(x), len(m._forward_pre_hooks)


def keeping_what_it_sees(m: nn.Module, x: Tensor) -> Any:
    seen = {}
    handles = [
        m.register_forward_hook(lambda m, args, kwargs, out: seen.setdefault("first", out), with_kwargs=True),
        m.register_forward_hook(lambda m, args, out: seen.setdefault("second", out * 3), prepend=True),
    ]
    try:
        m(x)
    finally:
        for handle in handles:
            handle.remove()
    return seen["first"] + seen["second"], list(seen), handles[0].id == handles[1].id


def left_on_a_module(m: nn.Module, x: Tensor) -> Any:
    if not m._forward_hooks:
        m.register_forward_hook(lambda m, inputs, out: out * 2)
    return m(x)


def over_a_break(m: nn.Module, x: Tensor) -> Any:
    handle = m.register_forward_hook(lambda m, inputs, out: out * 2)
    y = m(x)
    graphlift.graph_break()
    handle.remove()
    return y + m(x)


def returned(m: nn.Module, x: Tensor) -> Any:
    handle = m.weight.register_post_accumulate_grad_hook(lambda p: None)
    y = m(x)
    handle.remove()
    return y


def kept(m: nn.Module, x: Tensor) -> Any:
    y = m(x)
    m.handle = y.register_hook(lambda grad: grad * 3)
    return y * 2


ONE_GRAPH = (on_a_tensor, taken_off_a_tensor, on_a_module, before_a_module, keeping_what_it_sees)
#: With the most graphs of any two calls.
OTHERS = {left_on_a_module: 3, over_a_break: 6, returned: 1, kept: 2}


def _outcomes(fn: Callable[..., Any], calls: int) -> list[Any]:
    torch.manual_seed(0)
    module, found = nn.Linear(3, 3), []
    for k in range(calls):
        x = torch.full((2, 3), k + 1.0, requires_grad=True)
        result = fn(module, x)
        y, *rest = result if isinstance(result, tuple) else (result,)
        y.sum().backward()
        assert x.grad is not None
        found.append((y.detach(), x.grad, rest, len(module._forward_hooks)))
    return found


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "auto"))
@pytest.mark.parametrize("program", (*ONE_GRAPH, *OTHERS), ids=lambda p: p.__name__)
def test_hooks(program: Callable[..., Any], backend: str) -> None:
    compiled = graphlift.compile(program, backend=backend, fullgraph=program in ONE_GRAPH)
    assert_equal(_outcomes(compiled, 3), _outcomes(program, 3))


@pytest.mark.parametrize("program", (*ONE_GRAPH, returned, kept), ids=lambda p: p.__name__)
def test_compiled_once(program: Callable[..., Any]) -> None:
    backend = CountingBackend()
    compiled = graphlift.compile(program, backend=backend)
    _outcomes(compiled, 2)
    graphs = len(backend.graphs)
    _outcomes(compiled, 3)
    assert len(backend.graphs) == graphs == (1 if program in ONE_GRAPH else OTHERS[program])
