"""`load`: from a plan to something that runs.

In: a `Plan`. Out: `Loaded`. Always: the same results as `lower.interpret` to rounding.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from graphlift.codegen.llvm import NativeKernel, compile_kernels, kernel_ir
from graphlift.lower.ir import ExternCall, Kernel, KernelCall, Plan
from graphlift.runtime.externs import out_form
from graphlift.runtime.memory import Memory, plan_memory
from graphlift.runtime.native import native_launcher
from graphlift.runtime.source import python_launcher


class Loaded:
    """A runnable plan. Call it with a list of tensors; read ``source`` for what a call does."""

    def __init__(self, plan: Plan) -> None:
        clock = time.perf_counter
        started = clock()
        self.plan = plan
        calls = {k: step.kernel for k, step in enumerate(plan.steps) if isinstance(step, KernelCall)}
        self.kernels: dict[int, NativeKernel] = dict(
            zip(calls, compile_kernels(list(calls.values())), strict=True)
        )
        compiled = clock()
        self._out_calls = {
            k
            for k, step in enumerate(plan.steps)
            if isinstance(step, ExternCall) and out_form(plan, step) is not None
        }
        self.memory: Memory = plan_memory(plan, self._out_calls)
        launcher = None
        if os.environ.get("GRAPHLIFT_LAUNCHER") != "python":
            launcher = native_launcher(plan, self.memory, self.kernels, self._out_calls)
        self.run: Callable[[Sequence[Any]], list[Any]] = launcher or self._python[1]
        self.native = launcher is not None
        self.timings = {"kernels_s": compiled - started, "launcher_s": clock() - compiled}

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        return self.run(tensors)

    @cached_property
    def _python(self) -> tuple[str, Callable[[Sequence[Any]], list[Any]]]:
        return python_launcher(self.plan, self.memory, self.kernels, self._out_calls)

    @property
    def source(self) -> str:
        """The call as readable Python."""
        return self._python[0]

    def run_python(self, tensors: Sequence[Any]) -> list[Any]:
        """A call through the Python launcher: slower, for debugging."""
        return self._python[1](tensors)

    @property
    def unique_kernels(self) -> list[Kernel]:
        """The distinct kernels of the plan, in order of first use."""
        return list(dict.fromkeys(native.kernel for native in self.kernels.values()))

    def llvm_ir(self, position: int) -> str:
        """LLVM IR of the position-th distinct kernel."""
        return kernel_ir(self.unique_kernels[position])


def load(plan: Plan) -> Loaded:
    """Compile and plan everything; raises where a kernel uses what code generation does not know."""
    return Loaded(plan)
