"""A plan as readable Python: what the launcher does, and a launcher in its own right where the native one cannot run.

In: a `Plan`, its `Memory` and compiled kernels. Out: source text and the function it defines.
Always: the text says everything that happens in a call, in order.
"""

from __future__ import annotations

import ctypes
import functools
import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphlift.codegen.llvm import NativeKernel
from graphlift.lower.concrete import bits_of
from graphlift.lower.interpret import check, extent_of
from graphlift.lower.ir import CheckCall, ExternCall, KernelCall, Plan, Ref, TensorSpec, ViewCall
from graphlift.runtime.externs import conforming, describe, out_form, scales
from graphlift.runtime.memory import ALIGNMENT, Memory
from graphlift.shapes.expr import Expr, SizeLike, Symbol, render

Run = Callable[[Sequence[Any]], list[Any]]


def _kernel_caller(address: int, count: int) -> Callable[..., None]:
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
    array = ctypes.c_void_p * (count + 1)

    def call(*tensors: torch.Tensor, sizes: tuple[int | float, ...] = ()) -> None:
        numbers = (ctypes.c_int64 * len(sizes))(*map(_word, sizes))
        function(array(*[t.data_ptr() for t in tensors], ctypes.addressof(numbers)))

    return call


def _word(number: int | float) -> int:
    """A size, or the bits of a float."""
    return number if isinstance(number, int) else bits_of(number)


def _aligned(*sizes: int) -> int:
    """Bytes for the largest of ``sizes``."""
    return (max(*sizes, 0) + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _typed(arena: torch.Tensor, offset: int, dtype: torch.dtype, shape: Any, stride: Any) -> torch.Tensor:
    size: Any = extent_of(shape, stride) * dtype.itemsize
    return arena[offset : offset + size].view(dtype).as_strided(shape, stride)


def _shifted(base: torch.Tensor, shape: Sequence[int], stride: Sequence[int], shift: int) -> torch.Tensor:
    return base.as_strided(shape, stride, base.storage_offset() + shift)


def _placed(base: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """A tensor in the memory of ``base`` that is no view of it: results belong to nobody."""
    return torch.empty(0, dtype=base.dtype).set_(base.untyped_storage(), offset, shape, stride)


def _storage(size_bytes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(-(-size_bytes // dtype.itemsize), dtype=dtype)


class _Writer:
    """The lines of ``run`` and the names they use."""

    def __init__(
        self, plan: Plan, memory: Memory, kernels: dict[int, NativeKernel], out_calls: set[int]
    ) -> None:
        self.plan, self.memory, self.kernels, self.out_calls = plan, memory, kernels, out_calls
        self.scope: dict[str, Any] = {
            "torch": torch,
            "shifted": _shifted,
            "placed": _placed,
            "typed": _typed,
            "storage": _storage,
            "aligned": _aligned,
        }
        self.lines: list[str] = []
        self.defined: set[str] = set()
        self.identifiers: dict[str, str] = {}
        self.taken: set[str] = {"inputs", "arena", "run", "_"}
        self.taken |= {f"pool_{k}" for k in range(len(memory.pools))}
        self.bases: dict[str, str] = {}
        self.symbols: dict[Symbol, str] = {}
        self.functions: dict[int, str] = {}
        self.views = {step.output: step.base for step in plan.steps if isinstance(step, ViewCall)}

    def name(self, tensor: str) -> str:
        """A Python identifier for a tensor of the plan."""
        found = self.identifiers.get(tensor)
        if found is None:
            found = re.sub(r"\W", "_", tensor)
            if not found.isidentifier() or keyword.iskeyword(found):
                found = f"t_{found}"
            while found in self.taken or found in self.scope:
                found += "_"
            self.taken.add(found)
            self.identifiers[tensor] = found
        return found

    def size(self, size: SizeLike) -> str:
        """Text of a size."""
        return render(size, self.symbols)

    def sizes(self, sizes: Sequence[SizeLike]) -> str:
        """Text of a tuple of sizes."""
        return f"({', '.join(map(self.size, sizes))}{',' if len(sizes) == 1 else ''})"

    def line(self, text: str) -> None:
        self.lines.append(f"    {text}")

    def need(self, tensor: str) -> str:
        """The identifier of a tensor, with a line that makes it before its first use."""
        name = self.name(tensor)
        if tensor in self.defined:
            return name
        spec = self.plan.tensors[tensor]
        storage = self.memory.storages[spec.storage]
        geometry = f"{self.sizes(spec.shape)}, {self.sizes(spec.stride)}"
        if tensor in self.views:
            base = self.need(self.views[tensor])
            shift = spec.offset - self.plan.tensors[self.views[tensor]].offset
            self.line(f"{name} = shifted({base}, {geometry}, {self.size(shift)})")
        elif storage.kind == "arena":
            inside = spec.offset * spec.dtype.itemsize
            offset = self.size(storage.offset + inside)
            if self.plan.symbols:
                offset = f"pool_{storage.offset}" + (f" + {self.size(inside)}" if inside else "")
            self.line(f"{name} = typed(arena, {offset}, {spec.dtype}, {geometry})")
        else:
            base = self._base(storage.name, storage.size_bytes, spec)
            self.line(f"{name} = placed({base}, {geometry}, {self.size(spec.offset)})")
        self.defined.add(tensor)
        return name

    def _base(self, storage: str, size_bytes: SizeLike, spec: TensorSpec) -> str:
        found = self.bases.get(storage)
        if found is None:
            found = self.bases[storage] = f"storage_{len(self.bases)}"
            self.line(f"{found} = storage({self.size(size_bytes)}, {spec.dtype})")
        return found

    # --- steps -----------------------------------------------------------------------------------------------

    def kernel(self, position: int, step: KernelCall) -> None:
        address = self.kernels[position].address
        function = self.functions.get(address)
        if function is None:
            function = self.functions[address] = f"kernel_{len(self.functions)}"
            self.scope[function] = _kernel_caller(address, len(step.kernel.buffers))
        arguments = ", ".join([self.need(n) for n in step.buffers])
        if step.kernel.symbols:
            arguments += f", sizes={self.sizes(step.kernel.symbols)}"
        origin = "  # " + "; ".join(step.origins) if step.origins else ""
        self.line(f"{function}({arguments}){origin}".replace("\n", " "))

    def extern(self, position: int, step: ExternCall) -> None:
        function = f"extern_{position}"
        if position in self.out_calls:
            form = out_form(self.plan, step)
            assert form is not None and step.outputs[0] is not None
            beta, alpha = scales(step) if form.scaled else (0.0, 0.0)
            self.scope[function] = (
                functools.partial(form.python, beta=beta, alpha=alpha) if form.scaled else form.python
            )
            arguments = ", ".join([self.need(a.name) for a in step.args])
            self.line(f"{function}({arguments}, out={self.need(step.outputs[0])})  # {describe(step)}")
            return
        self.scope[function], used = conforming(self.plan, step)
        arguments = ", ".join([self.need(n) if isinstance(n, str) else self.size(n) for n in used])
        results = [self.name(n) if n else "_" for n in step.outputs]
        returns = getattr(getattr(step.target, "_schema", None), "returns", [None])
        single = len(results) == 1 and len(returns) == 1 and "[]" not in str(getattr(returns[0], "type", ""))
        left = f"{results[0]} = " if single else f"[{', '.join(results)}, *_] = " if results else ""
        self.line(f"{left}{function}({arguments})  # {describe(step)}".replace("\n", " "))
        self.defined.update(n for n in step.outputs if n)

    def check(self, position: int, step: CheckCall) -> None:
        self.scope[f"check_{position}"] = functools.partial(check, step)
        message = step.message.replace("\n", " ")
        arguments = f"{self.need(step.flag)}, {self.need(step.index)}"
        if isinstance(step.low, Expr) or isinstance(step.high, Expr):
            arguments += f", {self.size(step.low)}, {self.size(step.high)}"
        self.line(f"check_{position}({arguments})  # {message}")

    def constant(self, value: Any) -> str:
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        if isinstance(value, Expr):
            return self.size(value)
        name = f"constant_{len(self.scope)}"
        self.scope[name] = value
        return name

    def _pools(self) -> None:
        """Where each pool of intermediates begins, and the arena that holds them all."""
        end = "0"
        for number, pool in enumerate(self.memory.pools):
            self.line(f"pool_{number} = {end}")
            end = f"pool_{number} + aligned({', '.join(map(self.size, pool))})"
        self.line(f"arena = torch.empty({end}, dtype=torch.uint8)  # all intermediates")

    def write(self) -> str:
        plan = self.plan
        names = [self.name(n) if n else "_" for n in plan.inputs]
        for symbol, (position, _) in plan.symbols.items():
            self.symbols[symbol] = names[position] = self.name(symbol.name)
        if names:
            self.line(f"[{', '.join(names)}] = inputs")
        self.defined.update(n for n in plan.inputs if n)
        for tensor, value in plan.constants.items():
            self.scope[self.name(tensor)] = value
            self.defined.add(tensor)
        if self.memory.pools:
            self._pools()
        elif self.memory.arena_bytes:
            self.line(
                f"arena = torch.empty({self.memory.arena_bytes}, dtype=torch.uint8)  # all intermediates"
            )
        for position, step in enumerate(plan.steps):
            match step:
                case KernelCall():
                    self.kernel(position, step)
                case ExternCall():
                    self.extern(position, step)
                case CheckCall():
                    self.check(position, step)
                case ViewCall():
                    self.need(step.output)
        outputs = [
            self.need(o.name if isinstance(o, Ref) else o) if isinstance(o, (Ref, str)) else self.constant(o)
            for o in plan.outputs
        ]
        self.line(f"return [{', '.join(outputs)}]")
        return "\n".join(["def run(inputs):", *self.lines]) + "\n"


def python_launcher(
    plan: Plan, memory: Memory, kernels: dict[int, NativeKernel], out_calls: set[int]
) -> tuple[str, Run]:
    """Source text of ``run(inputs)`` and the function."""
    writer = _Writer(plan, memory, kernels, out_calls)
    text = writer.write()
    exec(compile(text, "<graphlift launcher>", "exec"), writer.scope)
    inner = writer.scope["run"]

    def run(inputs: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            return inner(inputs)  # type: ignore[no-any-return]

    return text, run
