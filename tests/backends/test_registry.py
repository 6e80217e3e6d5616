"""Names, callables, options and the pipeline's fall-backs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import graphlift
from graphlift import backends, config, pipeline
from graphlift.backends import registry
from graphlift.errors import BackendError, InvalidOption, NotCallable, UnknownBackend
from graphlift.record import recording

X = torch.linspace(-1, 1, 8)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def test_list() -> None:
    names = graphlift.list_backends()
    assert names[:4] == ["auto", "llvm", "aot_eager", "eager"] and "inductor" in names
    assert len(names) == len(set(names)) and "graphlift" not in names


def test_register_as_decorator_call_and_with_a_name() -> None:
    @graphlift.register_backend
    def mine(gm: Any, inputs: Any) -> Any:
        return gm.forward

    graphlift.register_backend(lambda gm, inputs: gm.forward, name="other")
    assert {"mine", "other"} <= set(graphlift.list_backends())
    for name in ("mine", "other"):
        torch.testing.assert_close(graphlift.compile(lambda x: x + 1, backend=name)(X), X + 1)


def test_register_refuses() -> None:
    with pytest.raises(NotCallable):
        graphlift.register_backend(3, name="x")
    with pytest.raises(InvalidOption, match="own"):
        graphlift.register_backend(lambda gm, i: gm, name="auto")


def test_mode_and_options_reach_a_users_backend_only_where_given() -> None:
    seen: list[dict[str, Any]] = []

    def mine(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        seen.append(kwargs)
        return gm.forward

    graphlift.compile(lambda x: x + 1, backend=mine)(X)
    graphlift.compile(lambda x: x + 1, backend=mine, mode="reduce-overhead", options={"a": 1})(X)
    assert seen == [{}, {"mode": "reduce-overhead", "options": {"a": 1}}]


def test_unknown_names_the_near_miss() -> None:
    with pytest.raises(UnknownBackend, match="did you mean 'aot_eager'"):
        backends.resolve("aot_eagre")
    with pytest.raises(UnknownBackend, match="one of auto"):
        backends.resolve("zzz")


def test_own_backends_do_not_import_dynamo() -> None:
    code = (
        "import sys, torch, graphlift; before = 'torch._dynamo' in sys.modules\n"
        "f = graphlift.compile(lambda x: x.sin() + 1)\n"
        "f(torch.ones(3, requires_grad=True)).sum().backward()\n"
        "bad = [m for m in ('torch._dynamo', 'torch._functorch', 'torch._inductor', 'torch.export') "
        "if m in sys.modules and m not in before_all]\n"
        "print(bad)"
    ).replace("before = 'torch._dynamo' in sys.modules", "before_all = set(sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


# --- the pipeline -----------------------------------------------------------------------------------------------


def graph_of(fn: Any) -> torch.fx.GraphModule:
    gm = torch.fx.symbolic_trace(fn)
    for node in gm.graph.nodes:
        if node.op == "output" and not isinstance(node.args[0], tuple):
            node.args = ((node.args[0],),)
    gm.recompile()
    return gm


@pytest.fixture
def lax() -> Iterator[None]:
    with config.patch(strict=False):
        yield


@pytest.mark.parametrize("compile_graph", [pipeline.compile_native, pipeline.compile_aten])
def test_forward_and_backward_equal_eager(compile_graph: Any) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x @ w).sum(-1)

    x, w = torch.randn(4, 3), torch.randn(3, 5, requires_grad=True)
    with recording() as records:
        compiled = compile_graph(graph_of(fn), [x, w])
        (out,) = compiled(x, w)
        out.sum().backward()
    torch.testing.assert_close(out, fn(x, w))
    (expected,) = torch.autograd.grad(fn(x, w).sum(), [w])
    torch.testing.assert_close(w.grad, expected)
    (record,) = records
    assert record.op_count == 3 and not record.fallbacks
    if compile_graph is pipeline.compile_native:
        assert set(record.plans) == {"forward", "backward"}


@pytest.mark.parametrize("stage", ["lower", "codegen", "aot"])
def test_a_failing_stage_falls_back_and_is_recorded(
    stage: str, monkeypatch: pytest.MonkeyPatch, lax: None, caplog: pytest.LogCaptureFixture
) -> None:
    from graphlift import aot, lower, runtime

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("stage broke")

    target, name = {
        "lower": (lower, "lower_graph"),
        "codegen": (runtime, "load"),
        "aot": (aot, "compile_graph"),
    }[stage]
    monkeypatch.setattr(target, name, fail)
    gm = graph_of(lambda x: torch.sin(x) + 1)
    with recording() as records:
        (out,) = pipeline.compile_native(gm, [X])(X)
    torch.testing.assert_close(out, X.sin() + 1)
    assert [f.stage for f in records[0].fallbacks] == [stage]
    assert "stage broke" in records[0].fallbacks[0].error and "stage broke" in caplog.text
    with config.patch(strict=True), pytest.raises(BackendError, match=f"stage {stage} failed"):
        pipeline.compile_native(gm, [X])


def test_a_backend_looked_up_can_be_wrapped() -> None:
    graphs: list[torch.fx.GraphModule] = []
    inner = backends.lookup_backend("aot_eager")

    def counting(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        graphs.append(gm)
        return inner(gm, example_inputs)

    x = torch.ones(3, requires_grad=True)
    graphlift.compile(lambda x: (x * x).sum(), backend=counting)(x).backward()
    assert len(graphs) == 1 and torch.equal(x.grad, torch.full((3,), 2.0))
    with pytest.raises(UnknownBackend, match="aot_eger"):
        backends.lookup_backend("aot_eger")
