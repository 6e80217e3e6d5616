"""Second derivatives through a compiled region: its backward under `create_graph=True`.

In: the captured graph, the region's inputs, and the gradients that came. Out: gradients with a graph of their own.
Always: it runs the captured graph again, in eager, and differentiates that; what it cannot do raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from ..data import dataclass
from .release import keeps_graph
from .saved import nodes_behind
from .versions import version_of

if TYPE_CHECKING:
    from .training import Layout

_raw_apply = torch._C._FunctionBase.__dict__["apply"]
#: A gradient that came: of an output of the graph, or of the base of one; and the program's own tensor, if still there.
Arrived = tuple[tuple[int, bool], Tensor, Tensor | None]


def refused(reason: str) -> RuntimeError:
    """The error where a second derivative cannot be computed."""
    return RuntimeError(f"a second derivative through a compiled region: {reason}; compute it in eager")


def differentiate(
    gm: fx.GraphModule, inputs: Sequence[Tensor], sizes: Sequence[int], arrived: Sequence[Arrived]
) -> dict[int, Tensor | None]:
    """Gradients of the captured graph by input, with a graph of their own."""
    with torch.enable_grad():
        same = {id(t): t.view_as(t) if t.requires_grad else t for t in inputs}
        mine = [same[id(t)] for t in inputs]
        outs = gm.forward(*mine, *sizes)
        if not isinstance(outs, (tuple, list)):
            outs = (outs,)
        wanted = [
            k for k, t in enumerate(mine) if t.requires_grad and same.pop(id(inputs[k]), None) is not None
        ]
        roots = [outs[k]._base if viewed else outs[k] for (k, viewed), _, _ in arrived]
        came = [t.view_as(t) if t.requires_grad else t for _, t, _ in arrived]
        leads = [mine[k] for k in wanted]
        grads = torch.autograd.grad(roots, leads, came, create_graph=True, allow_unused=True)
        behind = nodes_behind([t for t in grads if t is not None])
        results = [
            (root, theirs)
            for root, (_, _, theirs) in zip(roots, arrived, strict=True)
            if theirs is not None and root.grad_fn in behind
        ]
        if results:
            leads = [t for t in (*leads, *came) if t.grad_fn in behind]
            grads = _through_results(grads, leads, results)
    return dict(zip(wanted, grads, strict=True))


def _through_results(
    grads: Sequence[Tensor | None], leads: list[Tensor], results: list[tuple[Tensor, Tensor]]
) -> list[Tensor | None]:
    """`grads`, with what they owe to results of the graph going to the program's own tensors."""
    found = [t for t in grads if t is not None and t.requires_grad]
    made = iter(_apply(found, leads, [root for root, _ in results], *leads, *[own for _, own in results]))
    return [next(made) if t is not None and t.requires_grad else t for t in grads]


class _Gradients(torch.autograd.Function):
    """The graph behind gradients as one node, by which what comes to a result goes to the program's tensor."""

    @staticmethod
    def forward(
        ctx: Any, grads: list[Tensor], leads: list[Tensor], results: list[Tensor], *_: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.grads, ctx.leads, ctx.results = grads, leads, results
        ctx.set_materialize_grads(False)
        return tuple([t.detach() for t in grads])

    @staticmethod
    def backward(ctx: Any, *g: Tensor | None) -> tuple[Tensor | None, ...]:
        diverted: list[Tensor | None] = [None] * len(ctx.results)

        def divert(n: int) -> Callable[[Tensor], Tensor]:
            def hook(gradient: Tensor) -> Tensor:
                diverted[n] = gradient
                return torch.zeros_like(gradient)

            return hook

        came = [(t, gradient) for t, gradient in zip(ctx.grads, g, strict=True) if gradient is not None]
        found: Sequence[Tensor | None] = [None] * len(ctx.leads)
        if came:
            handles = [t.register_hook(divert(n)) for n, t in enumerate(ctx.results)]
            try:
                found = torch.autograd.grad(
                    [t for t, _ in came],
                    ctx.leads,
                    [gradient for _, gradient in came],
                    retain_graph=keeps_graph(),
                    create_graph=torch.is_grad_enabled(),
                    allow_unused=True,
                )
            finally:
                for handle in handles:
                    handle.remove()
        return None, None, None, *found, *diverted


_apply = _raw_apply.__get__(None, _Gradients)


def without_history(grads: Iterable[Tensor | None]) -> tuple[Tensor | None, ...]:
    return tuple([None if t is None else t.detach() for t in grads])


def require_same(inputs: Iterable[Tensor], versions: Iterable[int | None]) -> None:
    """Raises: where one was changed in place since, which eager's own backward may not read."""
    if any(version_of(t) != version for t, version in zip(inputs, versions, strict=True)):
        raise refused("it needs its inputs, of which one was changed in place")


@dataclass(frozen=True, slots=True)
class Again:
    """The backward under `create_graph=True`: differentiates the captured graph itself, run in eager on the inputs."""

    gm: fx.GraphModule
    layout: Layout
    outputs: Mapping[
        int, tuple[int, bool]
    ]  # by slot: position among gm's outputs, and whether that is a view of it
    refusal: str | None

    def __call__(
        self, ctx: Any, came: Sequence[Tensor | None], saved: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        if self.refusal is not None:
            raise refused(self.refusal)
        inputs = self._inputs(ctx, saved)
        arrived = [
            (self.outputs[k], t, ref())
            for k, t, ref in zip(self.layout.tangents, came, ctx.outputs, strict=True)
            if t is not None
        ]
        found = differentiate(self.gm, inputs, ctx.sizes, arrived)
        return tuple(found.get(k) for k in range(len(inputs) + len(ctx.sizes)))

    def as_captured(
        self, ctx: Any, came: Sequence[Tensor | None], saved: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        """The first derivative in this way, where what the program's own functions look at has changed."""
        if self.refusal is not None and self.layout.late is not None:
            self.layout.late.refuse(self.refusal)
        return without_history(self(ctx, came, saved))

    def _inputs(self, ctx: Any, saved: Sequence[Tensor | None]) -> list[Tensor]:
        kept = dict(zip(self.layout.saved_inputs, saved, strict=False))
        held = iter(ctx.inputs)
        edges = iter(ctx.next_functions)
        found = []
        for k, leaf in enumerate(self.layout.leaves):
            edge: Any = None if k in self.layout.unconnected else next(edges)[0]
            t = None if leaf else next(held)()
            t = kept.get(k) if t is None else t
            t = getattr(edge, "variable", None) if t is None else t
            if t is None:
                raise refused("it needs its inputs, which are gone")
            found.append(t.detach() if k in self.layout.unconnected else t)
        require_same([found[k] for k in self.layout.unsaved], ctx.versions)
        return found
