"""Kernels to machine code: one LLVM module for all that are new, a cheap pass pipeline, a cache for the process.

In: `Kernel`s. Out: `NativeKernel`s with the address of ``void (void **buffers)``.
Always: structurally equal kernels share one entry point; code stays loaded while the process lives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import llvmlite.binding as llvm

from graphlift.codegen.llvm.kernel import write_kernel
from graphlift.codegen.llvm.target import Target, bind, host_target, target_machine
from graphlift.data import dataclass
from graphlift.errors import InternalError
from graphlift.lower.ir import Kernel


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """A compiled kernel: ``address`` takes an array of base pointers in `Kernel.buffers` order."""

    kernel: Kernel
    address: int


_RUNTIME = """
declare i32 @omp_get_max_threads()
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare i32 @omp_in_parallel()
declare void @GOMP_parallel(ptr, ptr, i32, i32)

define internal void @gl_worker(ptr %work) nounwind {
  %fn = load ptr, ptr %work
  %p1 = getelementptr i8, ptr %work, i64 8
  %buffers = load ptr, ptr %p1
  %p2 = getelementptr i8, ptr %work, i64 16
  %tasks = load i64, ptr %p2
  %me32 = call i32 @omp_get_thread_num()
  %n32 = call i32 @omp_get_num_threads()
  %me = sext i32 %me32 to i64
  %n = sext i32 %n32 to i64
  %a = mul i64 %me, %tasks
  %first = udiv i64 %a, %n
  %me1 = add i64 %me, 1
  %c = mul i64 %me1, %tasks
  %last = udiv i64 %c, %n
  call void %fn(ptr %buffers, i64 %first, i64 %last)
  ret void
}

define internal void @gl_parallel(ptr %fn, ptr %buffers, i64 %tasks, i64 %wanted) nounwind {
  %work = alloca [3 x i64], align 16
  %max32 = call i32 @omp_get_max_threads()
  %max = sext i32 %max32 to i64
  %fewer = icmp slt i64 %wanted, %max
  %n = select i1 %fewer, i64 %wanted, i64 %max
  %nested = call i32 @omp_in_parallel()
  %inside = icmp ne i32 %nested, 0
  %one = icmp sle i64 %n, 1
  %serial = or i1 %inside, %one
  br i1 %serial, label %alone, label %team
alone:
  call void %fn(ptr %buffers, i64 0, i64 %tasks)
  ret void
team:
  store ptr %fn, ptr %work
  %p1 = getelementptr i8, ptr %work, i64 8
  store ptr %buffers, ptr %p1
  %p2 = getelementptr i8, ptr %work, i64 16
  store i64 %tasks, ptr %p2
  %n32 = trunc i64 %n to i32
  call void @GOMP_parallel(ptr @gl_worker, ptr %work, i32 %n32, i32 0)
  ret void
}
"""
_RUNTIME_SYMBOLS = (
    "omp_get_max_threads",
    "omp_get_thread_num",
    "omp_get_num_threads",
    "omp_in_parallel",
    "GOMP_parallel",
)

_lock = threading.Lock()
_compiled: dict[tuple[Kernel, Target], NativeKernel] = {}
_engines: list[llvm.ExecutionEngine] = []
last_timings: dict[str, float] = {}


def module_ir(kernels: Sequence[Kernel], target: Target | None = None) -> str:
    """The LLVM module of ``kernels``, named kernel_0, kernel_1, ..."""
    target = target or host_target()
    parts: list[str] = []
    declarations: set[str] = set()
    for position, kernel in enumerate(kernels):
        text, needed = write_kernel(f"kernel_{position}", kernel, target)
        parts.append(text)
        declarations |= needed
    attributes = f"attributes #0 = {{ {target.attributes} }}"
    return "\n\n".join([_RUNTIME, "\n".join(sorted(declarations)), *parts, attributes]) + "\n"


def kernel_ir(kernel: Kernel, target: Target | None = None) -> str:
    """The LLVM IR of one kernel as text, before optimisation (for reading)."""
    return module_ir([kernel], target)


def optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Bodies are vectors already and hoisted by hand: registers for accumulators and a local clean-up are enough."""
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def compile_kernels(kernels: Sequence[Kernel], target: Target | None = None) -> list[NativeKernel]:
    """Native code for each kernel, in order; only kernels not seen before are compiled."""
    target = target or host_target()
    with _lock:
        missing = list(dict.fromkeys(k for k in kernels if (k, target) not in _compiled))
        if missing:
            _compile_new(missing, target)
        return [_compiled[k, target] for k in kernels]


def _compile_new(kernels: list[Kernel], target: Target) -> None:
    for symbol in _RUNTIME_SYMBOLS:
        if not bind(symbol):
            raise InternalError(f"torch's OpenMP runtime does not export {symbol}")
    clock = time.perf_counter
    t0 = clock()
    text = module_ir(kernels, target)
    t1 = clock()
    machine = target_machine(target)
    module = llvm.parse_assembly(text)
    t2 = clock()
    optimise(module, machine)
    t3 = clock()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    for position, kernel in enumerate(kernels):
        _compiled[kernel, target] = NativeKernel(kernel, engine.get_function_address(f"kernel_{position}"))
    _engines.append(engine)
    t4 = clock()
    last_timings.update(write_s=t1 - t0, parse_s=t2 - t1, optimise_s=t3 - t2, code_s=t4 - t3)
