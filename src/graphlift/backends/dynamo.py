"""graphlift as a backend of torch.compile: `torch.compile(model, backend="graphlift")`.

In: the graph that TorchDynamo captured (entry point `torch_dynamo_backends`). Out: our AOT and generated code for it.
Always: compiled per concrete sizes, from real tensors; a graph we cannot compile runs as captured, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphlift import config, logs
from graphlift.backends.registry import resolve
from graphlift.options import Backend


def graphlift_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a TorchDynamo graph. `options={"backend": "aot_eager"}` chooses another backend of graphlift."""
    rest = dict(options or {})
    inner = resolve(rest.pop("backend", "auto"), mode, rest).compile
    if all(_is_real(value) for value in example_inputs):
        return inner(gm, list(example_inputs))
    return Specialising(gm, inner)


def _is_real(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter)


class Specialising:
    """A graph with symbolic or fake example inputs, compiled at the first call with each set of sizes.

    Integer inputs become constants of the graph. After `config.cache_size_limit` sets of sizes, runs as captured.
    """

    def __init__(self, gm: torch.fx.GraphModule, inner: Backend) -> None:
        self.gm = gm
        self.inner = inner
        self.entries: dict[Any, Callable[..., Any] | None] = {}

    def __call__(self, *inputs: Any) -> Any:
        key = tuple(_key(value) for value in inputs)
        compiled = self.entries.get(key)
        if compiled is None:
            if key in self.entries or len(self.entries) >= config.cache_size_limit:
                return self.gm.forward(*inputs)
            compiled = self.entries[key] = self._compile(inputs)
        if compiled is None:
            return self.gm.forward(*inputs)
        return compiled(*(value for value in inputs if isinstance(value, torch.Tensor)))

    def _compile(self, inputs: Sequence[Any]) -> Callable[..., Any] | None:
        try:
            tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
            return self.inner(with_constants(self.gm, inputs), tensors)
        except Exception as error:
            if config.strict:
                raise
            logs.warning(f"a TorchDynamo graph runs as captured: {type(error).__name__}: {error}")
            return None


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad)
    return (type(value), value)


def with_constants(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """A copy of `gm` in which every placeholder that is not given a tensor is the constant it is given."""
    graph = torch.fx.Graph()
    values: dict[torch.fx.Node, Any] = {}
    remaining = iter(inputs)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            value = next(remaining)
            if not isinstance(value, torch.Tensor):
                values[node] = value
                continue
        copy = graph.create_node(
            node.op,
            node.target,
            torch.fx.node.map_arg(node.args, values.__getitem__),
            torch.fx.node.map_arg(node.kwargs, values.__getitem__),
            node.name,
            node.type,
        )
        copy.meta = {key: node.meta[key] for key in ("stack_trace",) if key in node.meta}
        values[node] = copy
    return torch.fx.GraphModule(gm, graph)
