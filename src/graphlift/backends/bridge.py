"""The bridge to backends registered with TorchDynamo, such as "inductor".

In: a name of theirs, mode, options. Out: a graphlift backend, or None where the name is unknown to them too.
Always: torch._dynamo is imported only here, and only because the user named one of its backends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from graphlift.errors import InvalidOption
from graphlift.options import Backend

#: Node metadata that their passes may read and that is not tied to our fake tensors.
_KEPT_META = ("stack_trace", "nn_module_stack", "source_fn_stack")


def dynamo_backend(name: str, mode: str | None, options: Mapping[str, Any]) -> Backend | None:
    """The TorchDynamo backend `name` as a graphlift backend; None if there is none."""
    import torch._dynamo

    if name not in torch._dynamo.list_backends(exclude_tags=()):
        return None
    make = _wrapper_of_inductor if name == "inductor" else _wrapper_of
    try:
        wrapper = make(name, mode, dict(options) or None)
    except (RuntimeError, TypeError) as error:
        text = str(error)
        raise InvalidOption(
            f"backend {name!r} refuses mode={mode!r}, options={dict(options)!r:.200}",
            found=text if len(text) < 300 else f"{text[:300]} ...",
        ) from error

    def bridged(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = wrapper(without_fakes(gm), list(example_inputs))
        return compiled

    bridged.__name__ = name
    return bridged


def _wrapper_of_inductor(name: str, mode: str | None, options: dict[str, Any] | None) -> Callable[..., Any]:
    return torch._TorchCompileInductorWrapper(mode, options, False)  # type: ignore[no-any-return]


def _wrapper_of(name: str, mode: str | None, options: dict[str, Any] | None) -> Callable[..., Any]:
    return torch._TorchCompileWrapper(name, mode, options, False)  # type: ignore[no-any-return]


def without_fakes(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of `gm` whose nodes carry no fake values of ours (their passes would take them for theirs)."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in gm.graph.nodes:
        copy = graph.node_copy(node, copies.__getitem__)
        copy.meta = {key: node.meta[key] for key in _KEPT_META if key in node.meta}
        copies[node] = copy
    graph.lint()
    return torch.fx.GraphModule(gm, graph)
