"""Wires the stages: from a captured graph to a callable.

In: a torch-level GraphModule and its real example inputs. Out: `callable(*inputs) -> tuple of outputs`.
Always: each stage is timed; a failure of code generation falls back to ATen with a recorded reason (strict raises).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from graphlift import aot, buckets, config, logs, pieces
from graphlift.aot.inference import without_inference_mode
from graphlift.capture.checkpoint_rules import is_reentrant
from graphlift.errors import BackendError
from graphlift.frame.headroom import deep_recursion
from graphlift.record import Fallback, GraphRecord, discard, new_record
from graphlift.report.plan_text import plan_text
from graphlift.shapes.expr import SizeUnknown
from graphlift.shapes.table import Solved
from graphlift.timing import importing, stage

__all__ = ["AtenRunner", "compile_aten", "compile_native"]


def compile_native(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The backends "auto" and "llvm": AOT autograd, then generated code."""
    with importing():
        from graphlift import lower, runtime  # noqa: F401  (runtime: so that its import counts here)

    return _in_parts(
        gm, example_inputs, lambda g, inputs: _compile(g, inputs, _native_part, lower.decompositions)
    )


def compile_aten(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The backend "aot_eager": AOT autograd, then ATen operator by operator."""
    return _in_parts(gm, example_inputs, lambda g, inputs: _compile(g, inputs, _aten_part, None))


def _in_parts(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compile_one: pieces.Compile
) -> Callable[..., Any]:
    """Compiles the graph; in parts under DistributedDataParallel, so that gradients travel during the backward, and
    where it makes numbers that no part computes, enters inference mode, or has a reentrant checkpoint."""
    inner = without_inference_mode(gm)
    if inner is not None:
        with torch.inference_mode():
            run = _in_parts(inner, example_inputs, compile_one)
        inferring: Callable[..., Any] = torch.inference_mode()(run)
        return inferring
    caps = None if any(map(is_reentrant, gm.graph.nodes)) else buckets.bucket_caps()
    steps = (caps and buckets.split(gm, example_inputs, caps)) or pieces.split(gm)
    if not steps:
        return compile_one(gm, example_inputs)
    program = pieces.Program(gm, steps, compile_one)
    program.prepare(example_inputs)
    return program


_Part = Callable[[str, torch.fx.GraphModule, Sequence[Any], GraphRecord], Callable[..., Any]]


def _compile(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    part: _Part,
    decompositions: Any,
) -> Callable[..., Any]:
    record = new_record(sum(node.op.startswith("call_") for node in gm.graph.nodes))

    def compiler(name: str) -> Callable[..., Any]:
        return lambda graph, fakes: part(name, graph, fakes, record)

    try:
        with stage("aot"):
            compiled = aot.compile_graph(
                gm,
                example_inputs,
                fw_compiler=compiler("forward"),
                bw_compiler=compiler("backward"),
                decompositions=decompositions,
                in_place=decompositions is not None,  # for generated code
            )
    except BackendError:
        raise  # strict: a part has said what failed
    except Solved:
        discard(record)
        raise
    except Exception as error:
        _fall_back("aot", "captured", error, record)
        return gm.forward  # type: ignore[no-any-return]
    record.compiled = compiled
    if compiled.fallback_reason is not None:
        # A limit that aot knows and names, not a failure: strict mode does not raise.
        record.fallbacks.append(Fallback("aot", "captured", compiled.fallback_reason))
        logs.warning(f"a graph runs eagerly as captured: {compiled.fallback_reason}")
    logs.log("aot", compiled.print_readable)
    return compiled.run


@deep_recursion()
def _native_part(
    name: str, graph: torch.fx.GraphModule, fakes: Sequence[Any], record: GraphRecord
) -> Callable[..., Any]:
    """Lowers and generates code for the forward or the backward graph."""
    from graphlift import runtime
    from graphlift.lower import lower_graph

    current = "lower"
    limit = next(filter(None, map(_unlike_memory, _tensors(graph))), None)
    if limit is not None:
        record.fallbacks.append(Fallback(current, name, limit))
        logs.warning(f"the {name} graph runs through ATen instead of generated code: {limit}")
        return AtenRunner(graph)
    hoisted = pieces.without_floats(graph)
    if hoisted is not None:
        inner, made = hoisted
        values = [n.meta["val"] for n in inner.graph.nodes if n.op == "placeholder"]
        return pieces.with_floats(graph, made, _native_part(name, inner, values, record))
    try:
        with stage("lower"):
            plan = lower_graph(graph, fakes)
        record.plans[name] = plan
        current = "codegen"
        with stage("codegen"):
            loaded: Callable[..., Any] = runtime.load(plan)
    except SizeUnknown as limit:  # named and known, not a failure: strict mode does not raise
        record.fallbacks.append(Fallback(current, name, str(limit)))
        logs.warning(f"the {name} graph runs through ATen instead of generated code: {limit}")
        return AtenRunner(graph)
    except Exception as error:
        _fall_back(current, name, error, record)
        return AtenRunner(graph)
    logs.log("output_code", lambda: f"{name}\n{plan_text(plan)}")
    return loaded


def _tensors(graph: torch.fx.GraphModule) -> Iterator[torch.Tensor]:
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, torch.Tensor):
                yield item


def _unlike_memory(t: torch.Tensor) -> str | None:
    """Why generated code cannot take the tensor for what is in its memory."""
    if t.device.type != "cpu":
        return f"a tensor is on {t.device}, and code is generated for the CPU"
    return "a tensor is the negative of what is in its memory" if t.is_neg() else None


def _aten_part(
    name: str, graph: torch.fx.GraphModule, fakes: Sequence[Any], record: GraphRecord
) -> Callable[..., Any]:
    return AtenRunner(graph)


class AtenRunner:
    """A functional ATen graph run operator by operator; takes a list of tensors, returns the outputs."""

    __slots__ = ("forward", "graph")

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.graph = graph
        _LazyGraphModule.force_recompile(
            graph
        )  # its stand-in goes through Module.__call__, where users' hooks are
        self.forward = graph.forward

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return self.forward(*inputs)


def _fall_back(stage_name: str, graph: str, error: Exception, record: GraphRecord) -> None:
    """Records that `stage_name` failed for `graph`; raises under strict."""
    text = f"{type(error).__name__}: {error}"
    if config.strict:
        raise BackendError(
            f"stage {stage_name} failed for the {graph} graph: {text}",
            hint="unset GRAPHLIFT_STRICT to run the graph through ATen instead; please report this",
        ) from error
    record.fallbacks.append(Fallback(stage_name, graph, text))
    logs.warning(f"the {graph} graph runs through ATen instead of generated code: stage {stage_name}: {text}")
