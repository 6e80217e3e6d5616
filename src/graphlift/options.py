"""What one call of `graphlift.compile` asked for.

In: the arguments of `compile`, resolved (the backend is a callable). Out: `CompileOptions`, which capture reads.
Always: frozen; everything a stage may want to tell the outside goes through `region()` and `event()`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from graphlift.data import dataclass

if TYPE_CHECKING:
    from graphlift.capture.reasons import BreakReason
    from graphlift.capture.region import Region
    from graphlift.guards.changes import Change

#: `(GraphModule, example_inputs) -> callable(*inputs) -> tuple of outputs`
Backend: TypeAlias = Callable[[Any, Sequence[Any]], Callable[..., Any]]
EventKind: TypeAlias = Literal[
    "recompile", "reuse", "fixed_size", "cache_limit", "skip", "fallback", "internal_error"
]

_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CompileEvent:
    """Something that happened to a frame besides a region being compiled.

    `recompile`: every entry failed its guards (message: which guard, expected, found). `reuse`: a region compiled for
    another callable serves here too. `fixed_size`: a size that varies is compiled as a number, since the program needs
    it (message: which, why, where). `cache_limit`: the frame now runs eagerly. `skip`: the frame is never captured.
    `fallback`: a stage failed and eager or ATen took over. `internal_error`: a fault of graphlift itself, after which
    the frame runs eagerly.
    """

    kind: EventKind
    fn_name: str
    filename: str
    lineno: int
    message: str
    reason: BreakReason | None = None
    changes: tuple[Change, ...] = ()  # what no longer is as the entry used last had it


@dataclass(frozen=True, slots=True, eq=False)
class CompileOptions:
    """The options of one compiled callable, shared by every frame it reaches.

    `backend` compiles one captured graph. `owner` labels the compiled callable in logs and reports. Regions serve other
    callables of the same code and settings, if their `shared_by` is equal and not None. `on_region` and `on_event` are
    told of everything compiled, in order; they must not raise.
    """

    backend: Backend
    backend_name: str
    fullgraph: bool = False
    dynamic: bool | None = None
    mode: str | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: _NO_OPTIONS)
    owner: str = "<compiled>"
    shared_by: Hashable = None
    on_region: tuple[Callable[[Region], None], ...] = ()
    on_event: tuple[Callable[[CompileEvent], None], ...] = ()

    def region(self, region: Region) -> None:
        """Tells every listener that `region` was compiled."""
        for listener in self.on_region:
            listener(region)

    def event(self, event: CompileEvent) -> None:
        """Tells every listener that `event` happened."""
        for listener in self.on_event:
            listener(event)
