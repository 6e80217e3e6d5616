"""What captured backwards and hooks look at when autograd calls them, rather than as the forward left it.

In: a captured graph. Out: `Late`, what of that a compiled backward, which took it for settled, must find unchanged.
Always: None for a graph without custom functions and hooks; where something changed, the graph runs as captured.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from ..capture.autograd_rules import CALLED_LATER
from ..capture.late_reads import LateCheck
from ..data import dataclass

Versions = list[tuple[weakref.ref[Any], int]]


@dataclass(frozen=True, slots=True)
class Late:
    checks: tuple[LateCheck, ...]
    inputs: tuple[int, ...]  # tensors that are read as they are then, without having been saved
    forward_too: frozenset[int]  # those of them that the forward reads as well

    def versions(self, inputs: Sequence[Tensor]) -> Versions:
        return [(weakref.ref(inputs[k]), inputs[k]._version) for k in self.inputs]

    def changed(self, versions: Versions) -> bool:
        """Raises: RuntimeError where the captured graph would not give the gradients either."""
        changed = False
        for k, (ref, version) in zip(self.inputs, versions, strict=True):
            t = ref()
            if t is not None and t._version != version:
                if k in self.forward_too:
                    raise RuntimeError(
                        f"a tensor of shape {list(t.shape)} that a custom backward or a hook reads without having "
                        "saved it has been changed in place since the forward, which read it too: leave the function "
                        "out of what is compiled, by graphlift.disable, or hand the backward a copy"
                    )
                changed = True
        return changed or not all([check.holds() for check in self.checks])

    def refuse(self, why: str) -> None:
        """Raises: that the captured graph cannot be run again."""
        for check in self.checks:
            check.refuse(why)
        raise RuntimeError(
            "a tensor that a custom backward or a hook reads without having saved it has been changed in place since "
            f"the forward, which cannot be run again: {why}; leave the function out of what is compiled, by "
            "graphlift.disable, or hand the backward a copy"
        )


def late_of(gm: fx.GraphModule) -> Late | None:
    checks: list[LateCheck] = []
    read: dict[fx.Node, set[fx.Node]] = {}  # by placeholder, the calls that read it late
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in CALLED_LATER:
            check, places = CALLED_LATER[node.target]
            checks += [check] if check is not None else []
            given: list[fx.Node] = []
            fx.map_arg([node.args[place] for place in places], given.append)
            for each in given:
                read.setdefault(each, set()).add(node)
    if not checks and not read:
        return None
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    inputs = tuple(
        k for k, p in enumerate(placeholders) if p in read and isinstance(p.meta.get("val"), Tensor)
    )
    too = [k for k in inputs if any(user not in read[placeholders[k]] for user in placeholders[k].users)]
    return Late(tuple(checks), inputs, frozenset(too))
