"""Kernels of the loop IR to machine code, through LLVM.

In: `lower.ir.Kernel`s. Out: `compile_kernels` gives native entry points taking an array of base pointers.
Always: explicitly vectorised for the host; structurally equal kernels compile once per process.
"""

from graphlift.codegen.llvm.compile import NativeKernel, compile_kernels, kernel_ir
from graphlift.codegen.llvm.target import Target, host_target

__all__ = ["NativeKernel", "Target", "compile_kernels", "host_target", "kernel_ir"]
