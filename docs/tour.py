"""A tour of graphlift: one small function, and every form it goes through until it runs as machine code.

In: nothing. Out: text; run it with `make tour` or `python docs/tour.py`. The test suite runs it too, so what it says
stays true. Read it beside docs/architecture.md: the headings are the stages in the order data flows.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

import graphlift
from graphlift.bytecode import decode
from graphlift.codegen.llvm import kernel_ir
from graphlift.lower.ir import KernelCall
from graphlift.record import recording
from graphlift.report.plan_text import plan_text
from graphlift.timing import collect


def normalised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    hidden = torch.nn.functional.silu(x @ weight + bias)
    centred = hidden - hidden.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + 1e-5)


def section(title: str, why: str) -> None:
    print(f"\n\n{title}\n{'=' * len(title)}\n{why}\n")


def first_lines(text: str, count: int) -> str:
    """The start of a long text, and how much is left out."""
    lines = text.strip().splitlines()
    more = [f"... and {len(lines) - count} more lines"] if len(lines) > count else []
    return "\n".join([*lines[:count], *more])


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in ((32, 64), (64, 128), (128,)))
    return x, weight.requires_grad_(), bias.requires_grad_()


def main() -> None:
    x, weight, bias = arguments()

    section(
        "1. Bytecode",
        "What CPython runs, decoded to one instruction set for all versions. Capture executes it symbolically.",
    )
    for instruction in decode(normalised.__code__).instrs:
        argument = "" if instruction.arg is None else repr(instruction.arg)
        print(f"  {instruction.index:3}  line {instruction.line}  {instruction.op:18} {argument}")

    # One real compilation, watched: `explain` compiles and calls the function once and keeps every form on the way.
    with collect() as times, recording() as records:
        explained = graphlift.explain(normalised)(x, weight, bias)
        explained.result.sum().backward()  # the backward graph is compiled when it is first needed
    (region,) = explained.regions
    (record,) = records

    section(
        "2. The captured graph", "Tensor operations in order, as torch.fx at the level of the user's calls."
    )
    print(region.graph.code.strip())

    section("3. Guards", "What must hold for the compiled code to be right. Checked in C at every call.")
    for guard in explained.guards:
        print(f"  {guard}")

    section(
        "4. The replacement", "What runs instead of the frame when the guards hold: Python, made from source."
    )
    print(region.source_text.strip())

    section(
        "5. The joint graph",
        "Forward and backward in one functional ATen graph: no views to write through, no mutation.",
    )
    print(record.compiled.forms["joint"].code.strip())

    section(
        "6. The forward graph",
        "The part that runs at once; it also returns what the backward needs (min-cut).",
    )
    print(record.compiled.forms["forward"].code.strip())

    section("7. The backward graph", "The rest, run by autograd.")
    print(record.compiled.forms["backward"].code.strip())

    for number, (name, plan) in enumerate(record.plans.items(), 8):
        section(
            f"{number}. Loops of the {name} graph",
            "Fused kernels over flat buffers; calls of ATen for the rest.",
        )
        print(plan_text(plan))

    section("10. LLVM", "The first kernel of the forward graph as vectorised LLVM text, before optimisation.")
    kernels = [step.kernel for step in record.plans["forward"].steps if isinstance(step, KernelCall)]
    text = kernel_ir(kernels[0])
    print(first_lines(text[text.index("define internal void @kernel_0") :], 60))

    section("11. Where the compile time went", "Milliseconds per stage, the backward included.")
    for stage, taken in times.seconds.items():
        print(f"  {stage:12}{taken * 1e3:9.1f}")

    section("12. The answer", "Compiled and eager, values and gradients.")
    compiled = graphlift.compile(normalised)
    results = []
    for run in (compiled, normalised):
        x, weight, bias = arguments()
        out = run(x, weight, bias)
        out.square().sum().backward()
        results.append((out, weight.grad, bias.grad))
    for name, found, wanted in zip(("output", "weight.grad", "bias.grad"), *results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        print(f"  {name:12} equal, largest difference {(found - wanted).abs().max().item():.1e}")
    for name, run in (("compiled", compiled), ("eager", normalised)):
        start = time.perf_counter()
        for _ in range(100):
            run(x, weight, bias)
        print(f"  {name:12} {(time.perf_counter() - start) * 1e4:7.1f} µs a call")


if __name__ == "__main__":
    main()
