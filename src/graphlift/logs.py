"""Logging: one standard logger per artifact, switched on by GRAPHLIFT_LOGS or `graphlift.config.logs`.

In: regions, events and printable forms from the stages. Out: records of the loggers `graphlift.<artifact>`.
Always: an artifact that is off costs one set look-up; warnings go to the logger `graphlift` whatever is on.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from graphlift import config
from graphlift.errors import InvalidOption

if TYPE_CHECKING:
    from graphlift.capture.region import Region
    from graphlift.options import CompileEvent

#: Every artifact that can be logged, with what it prints.
ARTIFACTS: Mapping[str, str] = MappingProxyType(
    {
        "graph_breaks": "every graph break, with its reason and the user's stack",
        "guards": "the guards of every compiled region",
        "recompiles": "which guard failed when a function is compiled again",
        "graph_code": "the captured graph of every region, as Python",
        "source": "the Python source that replaces the region",
        "aot": "the forward and backward graphs after functionalisation and partitioning",
        "output_code": "the kernels and calls that a graph became",
        "timings": "compile time per stage for every region",
    }
)

_root = logging.getLogger("graphlift")
_enabled: frozenset[str] = frozenset()
_handler: logging.Handler | None = None


class _StderrHandler(logging.StreamHandler[Any]):
    """Writes to the sys.stderr of the moment (which tests and notebooks replace)."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure(spec: str) -> None:
    """Switches on exactly the artifacts in the comma-separated `spec` ("all": every one)."""
    global _enabled, _handler
    names = {name.strip() for name in spec.split(",") if name.strip()}
    if "all" in names:
        names = set(ARTIFACTS)
    unknown = sorted(names - set(ARTIFACTS))
    if unknown:
        raise InvalidOption(
            "GRAPHLIFT_LOGS or graphlift.config.logs names an unknown artifact",
            found=", ".join(unknown),
            expected="some of " + ", ".join([*ARTIFACTS, "all"]),
        )
    _enabled = frozenset(names)
    for name in ARTIFACTS:
        _root.getChild(name).setLevel(logging.DEBUG if name in names else logging.WARNING)
    if names and _handler is None:
        _handler = _StderrHandler()
        _handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        _root.addHandler(_handler)
        _root.propagate = False
    elif not names and _handler is not None:
        _root.removeHandler(_handler)
        _root.propagate = True
        _handler = None


def enabled(artifact: str) -> bool:
    """Whether `artifact` is logged: ask before building an expensive text."""
    return artifact in _enabled


def log(artifact: str, text: str | Callable[[], str]) -> None:
    """Logs `text` (or what it returns when called) if `artifact` is on."""
    if artifact in _enabled:
        _root.getChild(artifact).debug("%s", text() if callable(text) else text)


def warning(text: str) -> None:
    """Logs a warning that the user should see without asking for it."""
    _root.warning("%s", text)


def log_region(region: Region) -> None:
    """Logs what the enabled artifacts want to know of a compiled region."""
    if not _enabled:
        return
    where = f"{region.fn_name} ({region.filename}:{region.lineno})"
    reason = region.break_reason
    if reason is not None:
        log("graph_breaks", lambda: f"in {where}\n{reason}")
    if region.graph is not None:
        graph = region.graph
        log("graph_code", lambda: f"{where}, {region.op_count} ops\n{graph.code.strip()}")
    log("guards", lambda: f"{where}\n" + "\n".join(f"  {guard}" for guard in guard_lines(region)))
    log("source", lambda: f"{where}\n{region.source_text}")
    log(
        "timings",
        lambda: f"{where}: " + ", ".join(f"{k} {v * 1e3:.1f} ms" for k, v in region.timings.items()),
    )


def log_event(event: CompileEvent) -> None:
    """Logs an event; a fall-back and an internal error are warnings (capture itself warns of a cache limit)."""
    where = f"{event.fn_name} ({event.filename}:{event.lineno})"
    if event.kind in ("recompile", "reuse", "fixed_size", "cache_limit"):
        log("recompiles", lambda: f"{where}: {event.message}")
    elif event.kind in _WARNED:
        warning(f"{_WARNED[event.kind]}: {where}: {event.message}")
    elif event.reason is not None:
        log("graph_breaks", lambda: f"in {where}\n{event.reason}")


_WARNED = {
    "fallback": "a graph runs through ATen instead of generated code",
    "internal_error": "graphlift could not compile a function, which runs eagerly; please report",
}


def guard_lines(region: Region) -> list[str]:
    """The guards of a region, one readable line each."""
    return [
        describe() if (describe := getattr(guard, "describe", None)) else str(guard)
        for guard in region.guards
    ]


configure(config.logs)
