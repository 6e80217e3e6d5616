"""A plan as readable Python: what the launcher does, and a launcher in its own right where the native one cannot run.

In: a `Plan`, its `Memory` and compiled kernels. Out: source text and the function it defines.
Always: the text says everything that happens in a call, in order.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphlift.codegen.llvm import NativeKernel
from graphlift.lower.interpret import check, extent_of
from graphlift.lower.ir import CheckCall, ExternCall, KernelCall, Plan, Ref, TensorSpec, ViewCall
from graphlift.runtime.externs import caller, describe, out_form, scales
from graphlift.runtime.memory import Memory


def _kernel_caller(address: int, count: int) -> Callable[..., None]:
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
    array = ctypes.c_void_p * count

    def call(*tensors: torch.Tensor) -> None:
        function(array(*[t.data_ptr() for t in tensors]))

    return call


def _typed(arena: torch.Tensor, offset: int, spec: TensorSpec) -> torch.Tensor:
    size = extent_of(spec.shape, spec.stride) * spec.dtype.itemsize
    return arena[offset : offset + size].view(spec.dtype).as_strided(spec.shape, spec.stride)


def _shifted(base: torch.Tensor, shape: Sequence[int], stride: Sequence[int], shift: int) -> torch.Tensor:
    return base.as_strided(shape, stride, base.storage_offset() + shift)


def _storage(size_bytes: int, spec: TensorSpec) -> torch.Tensor:
    return torch.empty(-(-size_bytes // spec.dtype.itemsize), dtype=spec.dtype)


def python_launcher(
    plan: Plan, memory: Memory, kernels: dict[int, NativeKernel], out_calls: set[int]
) -> tuple[str, Callable[[Sequence[Any]], list[Any]]]:
    """Source text of ``run(inputs)`` and the function."""
    names: dict[str, Any] = {"torch": torch, "shifted": _shifted, "typed": _typed, "storage": _storage, "spec": plan.tensors}
    lines = ["def run(inputs):"]
    if plan.inputs:
        lines.append("    " + ", ".join(n or "_" for n in plan.inputs) + ", = inputs")
    defined = {n for n in plan.inputs if n}
    for name, value in plan.constants.items():
        names[name] = value
        defined.add(name)
    if memory.arena_bytes:
        lines.append(f"    arena = torch.empty({memory.arena_bytes}, dtype=torch.uint8)  # all intermediates")
    bases: set[str] = set()
    views = {step.output: step.base for step in plan.steps if isinstance(step, ViewCall)}
    native: dict[int, str] = {}

    def need(name: str) -> str:
        if name in defined:
            return name
        spec = plan.tensors[name]
        storage = memory.storages[spec.storage]
        geometry = f"{spec.shape}, {spec.stride}"
        if name in views:
            base = need(views[name])
            lines.append(f"    {name} = shifted({base}, {geometry}, {spec.offset - plan.tensors[base].offset})")
        elif storage.kind == "arena":
            offset = storage.offset + spec.offset * spec.dtype.itemsize
            lines.append(f"    {name} = typed(arena, {offset}, spec[{name!r}])  # {spec.dtype} {geometry}")
        else:
            base = f"storage_{len(bases)}"
            found = names.get(("base", storage.name))  # type: ignore[call-overload]
            if found is None:
                names["base", storage.name] = found = base  # type: ignore[index]
                bases.add(base)
                lines.append(f"    {base} = storage({storage.size_bytes}, spec[{name!r}])")
            lines.append(f"    {name} = shifted({found}, {geometry}, {spec.offset})")
        defined.add(name)
        return name

    for position, step in enumerate(plan.steps):
        match step:
            case KernelCall(kernel, buffers):
                address = kernels[position].address
                function = native.get(address)
                if function is None:
                    function = native[address] = f"kernel_{len(native)}"
                    names[function] = _kernel_caller(address, len(kernel.buffers))
                arguments = ", ".join([need(n) for n in buffers])
                origin = "  # " + "; ".join(step.origins) if step.origins else ""
                lines.append(f"    {function}({arguments}){origin}")
            case ExternCall() if position in out_calls:
                form = out_form(plan, step)
                assert form is not None
                beta, alpha = scales(step) if form.scaled else (0.0, 0.0)
                call = functools.partial(form.python, beta=beta, alpha=alpha) if form.scaled else form.python
                names[f"extern_{position}"] = call
                arguments = ", ".join([need(a.name) for a in step.args])
                lines.append(f"    extern_{position}({arguments}, out={need(step.outputs[0])})  # {describe(step)}")
            case ExternCall():
                names[f"extern_{position}"], used = caller(step)
                arguments = ", ".join([need(n) for n in used])
                results = [n or "_" for n in step.outputs]
                single = len(results) == 1 and len(getattr(getattr(step.target, "_schema", None), "returns", [0])) <= 1
                left = f"{results[0]} = " if single else "[" + ", ".join(results) + ", *_] = " if results else ""
                lines.append(f"    {left}extern_{position}({arguments})  # {describe(step)}")
                defined.update(n for n in step.outputs if n)
            case CheckCall():
                names[f"check_{position}"] = functools.partial(check, step)
                lines.append(f"    check_{position}({need(step.flag)}, {need(step.index)})  # {step.message}")
            case ViewCall():
                need(step.output)
    outputs = [
        need(o.name if isinstance(o, Ref) else o) if isinstance(o, (Ref, str)) else _constant(o, names) for o in plan.outputs
    ]
    lines.append(f"    return [{', '.join(outputs)}]")
    text = "\n".join(lines) + "\n"
    code = compile(text, "<graphlift launcher>", "exec")
    scope = {key: value for key, value in names.items() if isinstance(key, str)}
    exec(code, scope)
    inner = scope["run"]

    def run(inputs: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            return inner(inputs)  # type: ignore[no-any-return]

    return text, run


def _constant(value: Any, names: dict[str, Any]) -> str:
    if value is None or isinstance(value, (bool, int)):
        return repr(value)
    name = f"constant_{len(names)}"
    names[name] = value
    return name
