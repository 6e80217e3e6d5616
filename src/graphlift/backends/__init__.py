"""The backends: names and callables that compile one captured graph.

In: what the user passed as `backend=`. Out: `ResolvedBackend`, whose `compile` is `(GraphModule, example_inputs) ->
callable(*inputs)`. Always: light to import; a stage or TorchDynamo is imported only when its backend is used.
"""

from graphlift.backends.registry import (
    BackendRow,
    ResolvedBackend,
    list_backends,
    lookup_backend,
    register_backend,
    resolve,
)

__all__ = ["BackendRow", "ResolvedBackend", "list_backends", "lookup_backend", "register_backend", "resolve"]
