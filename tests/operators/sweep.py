"""The whole operator database through the compiler: every operator, sample and form of call, counted.

    python -m tests.operators.sweep --dtype float32 --backend auto [--gradients] [--samples 8] [--shard 1/4]
                                    [--ops NAME ...] [--output found.json]

In: options. Out: a table of counts, what was wrong, and all of it as JSON. Exits 1 where anything is wrong.
Always: operators run in a child process that is started again after a crash or a hang, which counts as wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("GRAPHLIFT_STRICT", "1")

import torch
from torch.utils import _pytree as pytree

from .comparison import EXCEPTIONS, as_accurate, compare
from .forms import Case, cases
from .samples import foreach_db, name_of, op_db, outcome

SILENCE_S = 240.0  # an operator that says nothing for so long hangs
LOW = (torch.bfloat16, torch.float16)
MANY = 25  # wrong samples of one operator and form that are listed


def operators(dtype: torch.dtype, gradients: bool) -> list[Any]:
    def fits(info: Any) -> bool:
        if dtype not in info.supported_dtypes("cpu"):
            return False
        return not gradients or (info.supports_autograd and dtype in info.supported_backward_dtypes("cpu"))

    return [info for info in (*op_db, *foreach_db) if fits(info)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one call came out. `kind`: equal, raises as eager, or wrong; `way`: one graph, breaks and why, ..."""

    kind: str
    way: str
    why: str  # the particulars of the first break
    detail: str = ""


def judge(info: Any, case: Case, backend: str, dtype: torch.dtype) -> Verdict:
    """Runs the case in eager and compiled, and compares."""
    from graphlift.api import Settings
    from graphlift.record import recording

    ignored, _ = EXCEPTIONS.get(name_of(info), ("", ""))
    expected = outcome(case.fn, case.tree, case.grad)
    regions: list[Any] = []
    events: list[Any] = []
    compiled = Settings(backend=backend).callable(
        case.fn, on_region=(regions.append,), on_event=(events.append,)
    )
    try:
        with recording() as records:
            got = outcome(compiled, case.tree, case.grad)
            again = outcome(compiled, case.tree, case.grad)
        for found in (got, again):
            compare(found, expected, ignored, dtype if case.form == "out= of a larger type" else None)
    except AssertionError as error:
        if not (
            dtype in LOW and as_accurate(got, expected, outcome(case.fn, _widened(case.tree), case.grad))
        ):
            return Verdict("wrong", *_way(regions, events, []), f"AssertionError: {error}")
    except Exception as error:
        return Verdict("wrong", *_way(regions, events, []), f"{type(error).__name__}: {error}")
    return Verdict("raises as eager" if "raised" in expected else "equal", *_way(regions, events, records))


def _widened(tree: Any) -> Any:
    """Low-precision tensors as float64."""
    return pytree.tree_map_only(
        torch.Tensor,
        lambda t: t.detach().double().requires_grad_(t.requires_grad) if t.dtype in LOW else t,
        tree,
    )


def _way(regions: list[Any], events: list[Any], records: list[Any]) -> tuple[str, str]:
    """How the call was compiled, in words that can be counted, and the particulars of what kept it from one graph."""
    if any(e.kind == "internal_error" for e in events):
        return "internal error", ""
    fallbacks = [f for record in records for f in record.fallbacks]
    if fallbacks:
        return "eager graph", fallbacks[0].error
    reasons = [r.break_reason for r in regions if r.break_reason is not None]
    reasons += [e.reason for e in events if e.reason is not None]
    if reasons:
        return f"breaks: {reasons[0].code}", reasons[0].detail
    return "one graph", ""


def run_operator(info: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Counts by form and verdict, and what was wrong."""
    import graphlift

    counts: Counter[tuple[str, str, str]] = Counter()
    whys: dict[str, str] = {}
    wrong = []
    dtype = getattr(torch, options.dtype)
    try:
        for case in cases(info, dtype, options.gradients, options.samples):
            if options.forms and case.form not in options.forms:
                continue
            verdict = judge(info, case, options.backend, dtype)
            counts[case.form, verdict.kind, verdict.way] += 1
            if verdict.why and verdict.kind == "equal":
                whys.setdefault(verdict.way, verdict.why[:200])
            if verdict.kind == "wrong" and len(wrong) < MANY:
                wrong.append({"form": case.form, "sample": case.index, "detail": verdict.detail[:600]})
    except Exception as error:  # the database itself: samples that cannot be made
        counts["-", "skipped", f"no samples: {type(error).__name__}: {error}"[:150]] += 1
    graphlift.reset()
    return {"op": name_of(info), "counts": [[*k, n] for k, n in counts.items()], "whys": whys, "wrong": wrong}


# -- processes -----------------------------------------------------------------------------------------------------


def child(options: argparse.Namespace) -> None:
    """Runs the operators named on the command line; a line of JSON each."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wanted = set(options.ops)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels print is no result
    for info in operators(getattr(torch, options.dtype), options.gradients):
        if name_of(info) in wanted:
            print(json.dumps(run_operator(info, options)), file=out, flush=True)


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """The child's lines; ends when it has ended, or was silent for too long."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=SILENCE_S)
        except queue.Empty:
            process.kill()
            return
        if line is None:
            return
        yield line


def results(names: list[str], arguments: list[str]) -> Iterator[dict[str, Any]]:
    """One result per operator; one that kills or hangs the child is wrong, and the next ones go on."""
    left = list(names)
    while left:
        command = [sys.executable, "-m", __spec__.name, *arguments, "--child", "--ops", *left]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in _lines(process):
            result = json.loads(line)
            left.remove(result["op"])
            yield result
        status = process.wait()
        if left:
            what = "hangs" if status == -9 else f"ends the process with status {status}"
            wrong = [{"form": "-", "sample": 0, "detail": what}]
            yield {"op": left.pop(0), "counts": [["-", "wrong", "crash", 1]], "wrong": wrong}


# -- report ----------------------------------------------------------------------------------------------------------


def table(found: list[dict[str, Any]]) -> str:
    by_form: dict[str, Counter[str]] = {}
    ways: Counter[str] = Counter()
    for result in found:
        for form, kind, way, n in result["counts"]:
            column = kind if kind != "equal" else way.partition(":")[0]
            by_form.setdefault(form, Counter())[column] += n
            if way != "one graph":
                ways[f"{kind}, {way}"] += n
    columns = ["one graph", "breaks", "eager graph", "raises as eager", "skipped", "wrong"]
    lines = ["".join(["form".ljust(28), *(c.rjust(17) for c in columns)])]
    total: Counter[str] = Counter()
    for form, counts in by_form.items():
        total.update(counts)
        lines.append("".join([form.ljust(28), *(str(counts[c]).rjust(17) for c in columns)]))
    lines.append("".join(["all".ljust(28), *(str(total[c]).rjust(17) for c in columns)]))
    lines += ["", f"{len(found)} operators", ""]
    lines += [f"{n:7} {way}" for way, n in ways.most_common(40)]
    for result in found:
        for wrong in result["wrong"][:6]:
            first = " ".join(wrong["detail"].split())[:300]
            lines.append(f"WRONG {result['op']} [{wrong['form']} {wrong['sample']}] {first}")
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.operators.sweep")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--samples", type=int, default=0, help="samples an operator; 0: all")
    parser.add_argument("--shard", default="0/1", help="k/n: every n-th operator, from the k-th on")
    parser.add_argument("--ops", nargs="*", default=None)
    parser.add_argument("--forms", nargs="*", default=None)
    parser.add_argument("--output")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    if options.child:
        child(options)
        return 0
    names = options.ops or [name_of(i) for i in operators(getattr(torch, options.dtype), options.gradients)]
    k, n = map(int, options.shard.split("/"))
    arguments = ["--dtype", options.dtype, "--backend", options.backend, "--samples", str(options.samples)]
    arguments += ["--gradients"] if options.gradients else []
    arguments += ["--forms", *options.forms] if options.forms else []
    found = []
    for result in results(list(dict.fromkeys(names))[k::n], arguments):
        found.append(result)
        if options.output:
            with open(options.output, "w") as file:
                json.dump({"options": vars(options), "results": found}, file, indent=1)
    print(table(found))
    return int(any(result["wrong"] for result in found))


if __name__ == "__main__":
    sys.exit(main())
