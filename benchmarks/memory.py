"""Measures what training keeps for the backward: `python -m benchmarks.memory [--quick] [--output FILE]`.

For a transformer encoder (12 layers, width 768, batch 8, length 512, dropout 0.1) and the U-Net: bytes that the forward
leaves saved, peak resident memory of the process, and seconds a step, for eager, torch.compile, and graphlift at
several memory budgets. Each row comes from a fresh process. Saved bytes are counted alike for all: the storages that
autograd's graph of the loss holds, without parameters, buffers and inputs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROWS = (("eager", 1.0), ("torch.compile", 1.0), ("graphlift", 1.0), ("graphlift", 0.5), ("graphlift", 0.2))
STEPS = 2


def encoder(quick: bool) -> tuple[Any, Any]:
    import torch
    from torch import nn

    width, layers, batch, length = (256, 2, 4, 128) if quick else (768, 12, 8, 512)
    layer = nn.TransformerEncoderLayer(
        width, 12 if not quick else 4, 4 * width, dropout=0.1, batch_first=True
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), torch.randn(batch, length, width)


def unet(quick: bool) -> tuple[Any, Any]:
    from benchmarks.zoo import MODELS

    model, size = MODELS["unet"], "tiny" if quick else "full"
    return model.make(size), next(iter(model.batch(size)[0].values()))


CASES = {"encoder": encoder, "unet": unet}


def saved_tensors(loss: Any) -> Iterator[Any]:
    """Every tensor that the graph of `loss` has saved."""
    import torch

    seen, pending = set(), [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        pending.extend(n for n, _ in node.next_functions)
        for name in dir(node):
            if name.startswith("_saved_") or name == "saved_tensors":
                value = getattr(node, name)
                yield from (
                    t
                    for t in (value if isinstance(value, (tuple, list)) else [value])
                    if isinstance(t, torch.Tensor)
                )


def child(case: str, compiler: str, budget: float, quick: bool) -> dict[str, float]:
    import torch

    import graphlift

    torch.manual_seed(0)
    module, x = CASES[case](quick)
    module.train()
    graphlift.config.activation_memory_budget = budget
    run = {"eager": lambda m: m, "torch.compile": torch.compile, "graphlift": graphlift.compile}[compiler](
        module
    )
    given = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers(), x)}
    times = []
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        loss = run(x).square().mean()
        storages = {s.data_ptr(): s.nbytes() for t in saved_tensors(loss) for s in [t.untyped_storage()]}
        loss.backward()
        times.append(time.perf_counter() - start)
        module.zero_grad(set_to_none=True)
    return {
        "saved": sum(n for pointer, n in storages.items() if pointer not in given),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "step_s": min(times[1:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small models, to see that it works")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(*json.loads(options.child))))
        return
    lines = [
        "| training step | compiler | budget | saved, MB | of eager's | peak memory, MB | step, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in options.cases.split(","):
        eager = None
        for compiler, budget in ROWS:
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", "--child"]
            command.append(json.dumps([case, compiler, budget, options.quick]))
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True
            )
            row = json.loads(done.stdout.splitlines()[-1])
            eager = eager or row["saved"]
            shown = budget if compiler == "graphlift" else ""
            lines.append(
                f"| {case} | {compiler} | {shown} | {row['saved'] / 1e6:.1f} | {row['saved'] / eager:.2f} "
                f"| {row['peak'] / 1e6:.0f} | {row['step_s']:.2f} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    text = "\n".join(lines)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
