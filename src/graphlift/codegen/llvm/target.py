"""The machine kernels are compiled for: vector width, LLVM target machine, addresses of library functions.

In: the host CPU and the libraries torch has loaded. Out: `Target` and the JIT's symbol table.
Always: every symbol a module may call is resolved before it is compiled, so that native code never meets a hole.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

import llvmlite.binding as llvm
import torch

from graphlift.data import dataclass
from graphlift.errors import UnsupportedCPU

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")
_AVX2 = ("avx2", "fma", "f16c")


@dataclass(frozen=True, slots=True)
class Target:
    """``isa`` is "avx512" or "avx2"; vectors hold ``lanes`` elements of 32 bits."""

    isa: str

    @property
    def vector_bits(self) -> int:
        return 512 if self.isa == "avx512" else 256

    @property
    def lanes(self) -> int:
        return self.vector_bits // 32

    def sleef(self, name: str, double: bool, accuracy: str) -> str:
        """Name of the Sleef function over one full vector, e.g. Sleef_expf16_u10avx512f."""
        kind = f"d{self.lanes // 2}" if double else f"f{self.lanes}"
        suffix = "avx512f" if self.isa == "avx512" else "avx2"
        return f"Sleef_{name}{kind}_{accuracy}{suffix}"

    @property
    def attributes(self) -> str:
        """Function attributes that let LLVM use full vectors."""
        width = self.vector_bits
        return f'nounwind "prefer-vector-width"="{width}" "min-legal-vector-width"="{width}"'


@functools.cache
def host_target() -> Target:
    """The widest target this CPU runs; ``GRAPHLIFT_CPU=avx2`` asks for the narrower one."""
    features = llvm.get_host_cpu_features()
    if not all(features.get(f) for f in _AVX2):
        raise UnsupportedCPU(
            "this CPU lacks AVX2, which graphlift's code generator needs",
            found=llvm.get_host_cpu_name(),
            expected="an x86-64 CPU with " + ", ".join(_AVX2),
            hint='use backend="aot_eager" (ahead-of-time graphs run by ATen) or backend="eager"',
        )
    wide = all(features.get(f) for f in _AVX512) and os.environ.get("GRAPHLIFT_CPU") != "avx2"
    return Target("avx512" if wide else "avx2")


@functools.cache
def target_machine(target: Target) -> llvm.TargetMachine:
    """An LLVM target machine for the host CPU, restricted to AVX2 where the target is."""
    # Loop strength reduction is the dearest pass of code generation, and our addresses are base + index already.
    llvm.set_option("graphlift", "-disable-lsr")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    if target.isa == "avx2":
        for name in list(features):
            if name.startswith(("avx512", "avx10", "evex")):
                features[name] = False
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=features.flatten(),
        opt=1,
        reloc="pic",
        codemodel="jitdefault",
        jit=True,
    )


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    folder = Path(torch.__file__).parent / "lib"
    names = ("libgomp.so.1", "libtorch_cpu.so", "libtorch_python.so")
    found = [ctypes.CDLL(str(folder / name)) for name in names if (folder / name).exists()]
    return (ctypes.CDLL(None), *found)


@functools.cache
def address_of(symbol: str) -> int:
    """The address of an exported function of torch's libraries or of the process, or 0."""
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    return 0


@functools.cache
def bind(symbol: str) -> bool:
    """Make ``symbol`` callable from compiled modules; False where no library has it."""
    address = address_of(symbol)
    if address:
        llvm.add_symbol(symbol, address)
    return bool(address)
