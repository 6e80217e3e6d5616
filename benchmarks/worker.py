"""One measurement, in a process of its own: `python -m benchmarks.worker '{"kind": "cold", …}'`.

In: a measurement as JSON. Out: its figures as JSON on the last line of standard output. Times are in seconds.
Whatever goes wrong ends the process with a traceback; `run.py` turns that into a row that says so.
"""

from __future__ import annotations

import gc
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

Step = Callable[[], Any]
SEED = 0


def seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def make_step(model_name: str, size: str, training: bool, compiler_name: str) -> tuple[Step, Step]:
    """(the first call, which compiles too; any later call) of one model under one compiler."""
    import torch

    from benchmarks.compilers import COMPILERS
    from benchmarks.zoo import MODELS

    compiler, model = COMPILERS[compiler_name](), MODELS[model_name]
    module = model.make(size, SEED).train(training)
    inputs, targets = model.batch(size, seed=SEED)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, eps=1e-6)
    compiled: list[Any] = []

    def infer() -> Any:
        with torch.no_grad():
            return compiled[0](**inputs)

    def train() -> Any:
        optimizer.zero_grad()
        loss = model.training_loss(compiled[0], inputs, targets)
        loss.backward()
        optimizer.step()
        return loss

    later = train if training else infer

    def first() -> Any:
        compiled.append(compiler.compile(module))
        return later()

    return first, later


def answer(result: Any) -> Any:
    """The tensors of a result that two compilers must agree on."""
    from torch import Tensor

    if isinstance(result, Tensor):
        return [result.detach().clone()]
    values = result.values() if isinstance(result, Mapping) else result
    return [value.detach().clone() for value in values if isinstance(value, Tensor)]


def largest_difference(a: list[Any], b: list[Any]) -> float:
    """Relative to the largest entry of eager's answer."""
    import torch

    differences = [0.0]
    for found, wanted in zip(a, b, strict=True):
        scale = wanted.abs().max().item() or 1.0
        differences.append(((found.to(torch.float64) - wanted).abs().max() / scale).item())
    return max(differences)


def cold(model: str, size: str, training: bool, compiler: str, later_calls: int) -> dict[str, Any]:
    """First call in a fresh process, a few calls after it, and the process's peak memory."""
    first, later = make_step(model, size, training, compiler)
    first_s = seconds(first)
    later_s = statistics.median(seconds(later) for _ in range(later_calls))
    return {
        "first_s": first_s,
        "later_s": later_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def steady(
    model: str, size: str, training: bool, compilers: list[str], budget_s: float, least_rounds: int
) -> dict[str, Any]:
    """Medians of interleaved calls: in every round each compiler runs once, in an order that rotates.

    A compiler that fails is left out and its error kept. Training uses dropout, so only inference compares answers.
    """
    steps: dict[str, Step] = {}
    answers: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name in compilers:
        try:
            first, later = make_step(model, size, training, name)
            answers[name] = answer(first())
            for _ in range(2):
                later()
            steps[name] = later
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    gc.collect()
    gc.disable()
    times: dict[str, list[float]] = {name: [] for name in steps}
    order, start = list(steps), time.perf_counter()
    rounds = 0
    while order and (rounds < least_rounds or time.perf_counter() - start < budget_s) and rounds < 500:
        for name in order:
            times[name].append(seconds(steps[name]))
        order.append(order.pop(0))
        rounds += 1
    difference = {}
    if not training and "eager" in answers:
        difference = {name: largest_difference(answers[name], answers["eager"]) for name in steps}
    return {
        "median_s": {name: statistics.median(values) for name, values in times.items()},
        "rounds": rounds,
        "difference": difference,
        "errors": errors,
    }


def overhead(compilers: list[str], rounds: int, calls: int) -> dict[str, Any]:
    """Time of one call of a two-layer MLP on a single row, where launching is all there is."""
    import torch

    from benchmarks.compilers import COMPILERS
    from examples.mlp import MLP

    torch.manual_seed(SEED)
    module, x = MLP(features=16, hidden=16, classes=4, layers=2).eval(), torch.randn(1, 16)
    runs: dict[str, Any] = {}
    errors: dict[str, str] = {}
    with torch.no_grad():
        for name in compilers:
            try:
                compiled = COMPILERS[name]().compile(module)
                for _ in range(20):
                    compiled(x)
                runs[name] = compiled
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {error}"
        times: dict[str, list[float]] = {name: [] for name in runs}
        gc.disable()
        for _ in range(rounds):
            for name, compiled in runs.items():
                start = time.perf_counter()
                for _ in range(calls):
                    compiled(x)
                times[name].append((time.perf_counter() - start) / calls)
    return {"median_s": {name: statistics.median(values) for name, values in times.items()}, "errors": errors}


IMPORTS = (
    "import time, torch; start = time.perf_counter(); import graphlift; print(time.perf_counter() - start)"
)


def import_time(repeats: int) -> dict[str, Any]:
    """What `import graphlift` adds to `import torch`, in fresh processes with compiled bytecode files at hand."""
    taken = [
        float(
            subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, check=True, text=True).stdout
        )
        for _ in range(repeats + 1)
    ]
    return {"median_s": statistics.median(taken[1:])}


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    "cold": cold,
    "steady": steady,
    "overhead": overhead,
    "import": import_time,
}


def main() -> None:
    warnings.simplefilter("ignore")
    measurement = json.loads(sys.argv[1])
    print(json.dumps(KINDS[measurement.pop("kind")](**measurement)))


if __name__ == "__main__":
    main()
