"""Joint forward and backward graphs of small models, for the tests of lowering (torch's tracer, tests only)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from graphlift.lower.decompositions import decompositions


def joint(
    module: torch.nn.Module, loss: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """A graph of (parameters and buffers, inputs) to (loss, gradients); functional; and its example inputs."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names = list(state)
    trained = [n for n, t in state.items() if isinstance(t, torch.nn.Parameter)]

    def step(*flat: torch.Tensor) -> list[Any]:
        values = dict(zip(names, flat[: len(names)], strict=True))
        rest = flat[len(names) :]

        def of_trained(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
            every = {**{n: t.clone() for n, t in values.items()}, **parameters}  # buffers may be written
            return loss(lambda *args, **kw: torch.func.functional_call(module, every, args, kw), *rest)

        gradients, result = torch.func.grad_and_value(of_trained)({n: values[n] for n in trained})
        return [result, *[gradients[n] for n in trained]]

    example = [t.detach().clone() for t in state.values()] + list(inputs)
    # Decompositions may write (running statistics): functionalised after they have run.
    gm = make_fx(step, tracing_mode="fake", decomposition_table=decompositions, _allow_non_fake_inputs=True)(
        *example
    )
    gm = make_fx(torch.func.functionalize(gm, remove="mutations"), tracing_mode="fake")(*example)
    gm.graph.eliminate_dead_code()
    return gm, example
