"""`explain`: one real compile-and-run of a function, told as data.

In: a function, settings, arguments. Out: `Explanation`, printable as tables and as HTML.
Always: the function is run by the machinery that `compile` uses, with entries of its own, exactly once.
"""

from __future__ import annotations

import html
import re
import textwrap
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from torch import nn

from graphlift import logs
from graphlift.capture.reasons import BreakReason
from graphlift.data import dataclass
from graphlift.options import CompileEvent
from graphlift.record import GraphRecord, recording
from graphlift.report.table import Table
from graphlift.timing import collect

if TYPE_CHECKING:
    from graphlift.api import Settings
    from graphlift.capture.region import Region

__all__ = ["BreakSite", "Explanation", "GraphReport", "explain_call"]

_CALLS = frozenset({"call_function", "call_method", "call_module"})
_MANY = 12  # rows of a long list that the printed report shows


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One captured graph. `ops`: how often each operation is called, most frequent first."""

    index: int
    fn_name: str
    filename: str
    lineno: int
    kind: str
    op_count: int
    ops: Mapping[str, int]
    input_count: int
    guard_count: int
    compile_time_s: float
    code: str
    source_text: str


@dataclass(frozen=True, slots=True)
class BreakSite:
    """One place where capture stopped, and in how many regions it did: each part of a loop that is resumed counts."""

    reason: BreakReason
    times: int

    def text(self, index: int) -> str:
        """Some lines: the reason, the user's stack with the innermost line last, and what to do."""
        often = f", in {self.times} parts" if self.times > 1 else ""
        head = f"{index}. {self.reason.headline()}{often}"
        stack = [f"     {line}" for line in self.reason.user_stack().splitlines()]
        remedy = textwrap.wrap(f"what to do: {self.reason.reason.remedy}", 100)
        return "\n".join([head, *stack, *(f"   {line}" for line in remedy)])


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one call of a compiled function did.

    `compile_time_s` maps a stage to its own seconds; `run_time_s` is the whole call, compilation included. `result`
    is what the function returned. `graphs` are the torch.fx graphs behind `graph_reports`, in the same order.
    """

    fn_name: str
    backend: str
    graph_reports: tuple[GraphReport, ...]
    break_reasons: tuple[BreakReason, ...]
    guards: tuple[str, ...]
    recompiles: tuple[str, ...]
    fallbacks: tuple[str, ...]
    events: tuple[CompileEvent, ...]
    compile_time_s: Mapping[str, float]
    run_time_s: float
    kernels: Mapping[str, int]
    regions: tuple[Region, ...] = field(repr=False)
    graphs: tuple[Any, ...] = field(repr=False)
    result: Any = field(repr=False)

    @property
    def graph_count(self) -> int:
        """Graphs with at least one operation."""
        return len(self.graph_reports)

    @property
    def graph_break_count(self) -> int:
        """Places where capture stopped and Python ran on; a place in a loop counts once."""
        return len(self.break_sites)

    @property
    def break_sites(self) -> tuple[BreakSite, ...]:
        """The reasons by place and what was found there, in the order in which they were met."""
        counts = Counter((reason.code, _what(reason), reason.stack) for reason in self.break_reasons)
        first = {(r.code, _what(r), r.stack): r for r in reversed(self.break_reasons)}
        return tuple(BreakSite(first[key], times) for key, times in counts.items())

    @property
    def op_count(self) -> int:
        """Operations over all graphs."""
        return sum(report.op_count for report in self.graph_reports)

    @property
    def ops_per_graph(self) -> tuple[Mapping[str, int], ...]:
        """For each graph, how often each operation is called."""
        return tuple(report.ops for report in self.graph_reports)

    def headline(self) -> str:
        """One sentence."""
        seconds = sum(self.compile_time_s.values())
        return (
            f"{self.fn_name}: {_count(self.graph_count, 'graph')}, {_count(self.graph_break_count, 'graph break')}, "
            f"{_count(self.op_count, 'op')}, {_count(len(self.guards), 'guard')}; "
            f"compiled in {seconds:.2f} s with backend {self.backend!r}"
        )

    def tables(self) -> list[Table]:
        """The report as tables; empty ones are left out."""
        graphs = Table.of(
            "Graphs",
            ("#", "function", "from", "part", "ops", "inputs", "guards", "ms", "most frequent"),
            (
                (r.index, r.fn_name, _at(r), _KINDS[r.kind], r.op_count, r.input_count, r.guard_count)
                + (r.compile_time_s * 1e3, _top(r.ops))
                for r in self.graph_reports
            ),
        )
        breaks = Table.of(
            "Graph breaks",
            ("#", "times", "reason", "user code", "what to do"),
            (
                (i, site.times, site.reason.headline(), site.reason.user_stack(), site.reason.reason.remedy)
                for i, site in enumerate(self.break_sites)
            ),
        )
        stages = Table.of(
            "Compile time",
            ("stage", "ms"),
            [(name, seconds * 1e3) for name, seconds in self.compile_time_s.items()]
            + [("whole call, with the run", self.run_time_s * 1e3)],
        )
        generated = Table.of("Generated code", ("what", "number"), tuple(self.kernels.items()))
        guards = Table.of("Guards", ("guard",), [(guard,) for guard in _shortened(self.guards)])
        recompiles = Table.of("Recompiles", ("why",), [(plain(text),) for text in self.recompiles])
        fallbacks = Table.of("Fall-backs", ("what", ""), [(text, "") for text in self.fallbacks])
        return [t for t in (graphs, breaks, generated, recompiles, fallbacks, stages, guards) if t.rows]

    def __str__(self) -> str:
        parts = [
            self._breaks_text() if table.title == "Graph breaks" else table.text() for table in self.tables()
        ]
        return "\n\n".join([self.headline(), *parts])

    def _breaks_text(self) -> str:
        return "\n".join(["Graph breaks", *(site.text(i) for i, site in enumerate(self.break_sites))])

    def _repr_html_(self) -> str:
        graphs = "".join(
            f"<details><summary>graph {r.index}: {html.escape(r.fn_name)}</summary>"
            f"<pre>{html.escape(r.code)}</pre><pre>{html.escape(r.source_text)}</pre></details>"
            for r in self.graph_reports
        )
        tables = "".join(table.html() for table in self.tables())
        return f"<div><p><b>{html.escape(self.headline())}</b></p>{tables}{graphs}</div>"


def explain_call(
    fn: Any, settings: Settings, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> Explanation:
    """Compiles `fn` afresh, calls it once, and reports."""
    regions: list[Region] = []
    events: list[CompileEvent] = []
    target = fn.__call__ if isinstance(fn, type) else fn
    compiled = settings.callable(target, on_region=(regions.append,), on_event=(events.append,))
    start = time.perf_counter()
    with collect() as times, recording() as records:
        result = compiled(*args, **(kwargs or {}))
    elapsed = time.perf_counter() - start
    with_ops = [region for region in regions if region.graph is not None and _op_names(region.graph)]
    name = type(fn).__name__ if isinstance(fn, nn.Module) else getattr(fn, "__qualname__", type(fn).__name__)
    return Explanation(
        fn_name=name,
        backend=settings.resolved().name,
        graph_reports=tuple(_graph_report(i, region) for i, region in enumerate(with_ops)),
        break_reasons=tuple(r.break_reason for r in regions if r.break_reason is not None)
        + tuple(e.reason for e in events if e.reason is not None and e.kind != "internal_error"),
        guards=tuple(dict.fromkeys(line for region in regions for line in logs.guard_lines(region))),
        recompiles=tuple(f"{e.fn_name}: {e.message}" for e in events if e.kind == "recompile"),
        fallbacks=tuple(f"{f.stage}, {f.graph} graph: {f.error}" for r in records for f in r.fallbacks)
        + tuple(f"{e.fn_name}: {e.message}" for e in events if e.kind in ("fallback", "internal_error")),
        events=tuple(events),
        compile_time_s=dict(times.seconds),
        run_time_s=elapsed,
        kernels=_kernels(records),
        regions=tuple(regions),
        graphs=tuple(region.graph for region in with_ops),
        result=result,
    )


def _graph_report(index: int, region: Region) -> GraphReport:
    graph = region.graph
    assert graph is not None
    names = _op_names(graph)
    return GraphReport(
        index=index,
        fn_name=region.fn_name,
        filename=region.filename,
        lineno=region.lineno,
        kind=region.kind,
        op_count=len(names),
        ops=dict(Counter(names).most_common()),
        input_count=sum(node.op == "placeholder" for node in graph.graph.nodes),
        guard_count=len(region.guards),
        compile_time_s=sum(region.timings.values()),
        code=graph.code.strip(),
        source_text=region.source_text or "",
    )


def _op_names(graph: Any) -> list[str]:
    return [_op_name(node) for node in graph.graph.nodes if node.op in _CALLS]


def _op_name(node: Any) -> str:
    if node.op == "call_method":
        return f".{node.target}"
    return getattr(node.target, "__name__", str(node.target))


def _kernels(records: list[GraphRecord]) -> dict[str, int]:
    """How many steps of each kind the plans have, and what training keeps for the backward."""
    counts: Counter[str] = Counter()
    for record in records:
        saved = getattr(record.compiled, "saved_bytes", 0)
        if saved:
            counts["saved for backward, bytes"] += saved
            counts["eager would save, bytes"] += record.compiled.eager_saved_bytes
            counts["recomputed in backward, ops"] += record.compiled.recomputed
        for name, plan in record.plans.items():
            for step in getattr(plan, "steps", ()):
                counts[f"{name}: {_STEPS.get(type(step).__name__, type(step).__name__)}"] += 1
    return dict(counts)


_STEPS = {"KernelCall": "fused kernels", "ExternCall": "calls of ATen", "ViewCall": "views"}


#: How the report calls the two kinds of regions.
_KINDS = {"root": "start", "resume": "after a break"}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _at(report: GraphReport) -> str:
    return f"{report.filename.rpartition('/')[2]}:{report.lineno}"


def _top(ops: Mapping[str, int], number: int = 4) -> str:
    return ", ".join(f"{name} {count}" for name, count in list(ops.items())[:number])


def _what(reason: BreakReason) -> str:
    """What was found, without the values that differ from round to round of a loop."""
    return re.sub(r"\d+(\.\d+)?", "0", reason.detail)


_CARRIED = re.compile(r"stack\d+(\.(handover|args|closure|made|upcoming\d*|ended\d*|over|kind)\b(\[\d+\])*)*")
#: Guards on how Python finds things, and on what graphlift hands on to itself.
_INTERNAL = re.compile(
    r"^.?stack\d|\bstack\d+[.)]|<function>|__defaults__|__kwdefaults__|__code__|globals_of_|has no attribute"
    r"|^[^(]* is (?!None|True|False)|not in .*__dict__"
)


def plain(text: str) -> str:
    """A guard without names that only graphlift knows: what a part after a break is handed on the stack."""
    return _CARRIED.sub("a value carried over the break", text)


def _shortened(lines: tuple[str, ...]) -> list[str]:
    """The guards on what the user knows: values and global state; those on how Python finds things are counted."""
    known = sorted((line for line in lines if not _INTERNAL.search(line)), key=lambda line: ": " not in line)
    shown = list(dict.fromkeys(known))[:_MANY]
    rest = len(lines) - len(shown)
    return [*shown, f"... and {rest} more: see .guards"] if rest else shown
