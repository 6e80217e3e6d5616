"""One face for the compilers that tests and benchmarks drive: graphlift, torch.compile, and eager as itself.

In: a compiler's name. Out: a `Compiler` whose `compile`, `explain` and `reset` mean the same for each.
The torch row is the reference that the harness itself was checked against; nothing of it is imported until asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# graphlift's "auto" is its own code generation; torch.compile's counterpart is Inductor.
TORCH_BACKENDS = {"auto": "inductor"}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What both explainers tell: graphs, breaks, and the reasons of the breaks as text."""

    graph_count: int
    graph_break_count: int
    break_reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compiler:
    """``compile(fn, backend=…, fullgraph=…)``, ``explain(fn, *args, **kwargs)``, ``reset()``."""

    name: str
    compile: Callable[..., Any]
    explain: Callable[..., Explanation]
    reset: Callable[[], None]


def explanation(result: Any) -> Explanation:
    return Explanation(
        result.graph_count, result.graph_break_count, tuple(str(reason) for reason in result.break_reasons)
    )


def graphlift_compiler() -> Compiler:
    import graphlift

    return Compiler(
        "graphlift",
        graphlift.compile,
        lambda fn, *args, **kwargs: explanation(graphlift.explain(fn)(*args, **kwargs)),
        graphlift.reset,
    )


def torch_compiler() -> Compiler:
    import torch

    def compile(fn: Any, *, backend: str = "auto", **options: Any) -> Any:
        return torch.compile(fn, backend=TORCH_BACKENDS.get(backend, backend), **options)

    def explain(fn: Any, *args: Any, **kwargs: Any) -> Explanation:
        return explanation(torch._dynamo.explain(fn)(*args, **kwargs))

    return Compiler("torch", compile, explain, torch.compiler.reset)


def eager_compiler() -> Compiler:
    return Compiler(
        "eager",
        lambda fn, **options: fn,
        lambda fn, *args, **kwargs: Explanation(0, 0, ()),
        lambda: None,
    )


COMPILERS: dict[str, Callable[[], Compiler]] = {
    "graphlift": graphlift_compiler,
    "torch": torch_compiler,
    "eager": eager_compiler,
}
