"""The native launcher's program: slots and steps as the tuples that `_launch.Launcher` reads.

In: a `Plan` and its `Memory`. Out: a `Launcher`.
Always: used only where `available()` has seen torch's C symbols and the tensor layout it relies on.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from graphlift.codegen.llvm import NativeKernel
from graphlift.codegen.llvm.target import address_of
from graphlift.lower.interpret import check, extent_of
from graphlift.lower.ir import CheckCall, ExternCall, KernelCall, Plan, Ref, ViewCall
from graphlift.runtime.externs import conforming, out_form, scales
from graphlift.runtime.memory import Memory
from graphlift.runtime.sizes import ADD, SizeProgram
from graphlift.shapes.expr import Expr, Real, SizeLike

_INPUT, _CONSTANT, _ARENA, _FRESH, _VIEW, _RESULT, _NUMBER, _REAL = range(8)
_KERNEL, _EXTERN, _MM_OUT, _ADDMM_OUT, _CHECK, _ALLOCATE = range(6)

_SYMBOLS = (
    "aoti_torch_get_data_ptr",
    "aoti_torch_empty_strided",
    "aoti_torch_create_tensor_from_blob",
    "aoti_torch__reinterpret_tensor",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_grad_mode_is_enabled",
    "aoti_torch_grad_mode_set_enabled",
    "_Z16THPVariable_WrapRKN2at10TensorBaseE",
)

# c10::ScalarType, the same numbers as aoti_torch_dtype_*().
_SCALAR_TYPE: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}

_LONG_CALL_FLOPS = 2_000_000
_LONG_KERNEL_BYTES = 1 << 20


@functools.cache
def launch_module() -> ModuleType | None:
    """The C extension, bound to torch, or None where it is missing or torch's layout is not the one it knows."""
    try:
        _launch = importlib.import_module("graphlift.runtime._launch")
    except ImportError:
        return None
    table = {symbol: address_of(symbol) for symbol in _SYMBOLS}
    probe = torch.empty(0)
    return _launch if all(table.values()) and _launch.bind(table, probe, probe._cdata) else None


class _Program:
    def __init__(
        self, plan: Plan, memory: Memory, kernels: dict[int, NativeKernel], out_calls: set[int]
    ) -> None:
        self.plan = plan
        self.memory = memory
        self.kernels = kernels
        self.out_calls = out_calls
        self.slots: list[tuple[Any, ...]] = []
        self.by_name: dict[str, int] = {}
        self.storage_slots: dict[str, list[int]] = {}
        self.bases: dict[str, int] = {}
        self.numbers: dict[Expr, int] = {}
        self.sizes = SizeProgram(plan.symbols)
        self.pools, self.arena_end = self._pools()
        self.views = {step.output: step.base for step in plan.steps if isinstance(step, ViewCall)}
        self.inputs = {name: k for k, name in enumerate(plan.inputs) if name is not None}
        self.results = {
            name
            for k, step in enumerate(plan.steps)
            if isinstance(step, ExternCall) and k not in out_calls
            for name in step.outputs
            if name is not None
        }

    def _pools(self) -> tuple[list[int], int]:
        """The registers that hold where each pool of memory begins, and where the last one ends."""
        starts: list[int] = []
        if not self.plan.symbols:
            return starts, -1
        end = self.sizes.register(0)
        for pool in self.memory.pools:
            starts.append(end)
            end = self.sizes.end_of_pool(end, pool)
        return starts, end

    def _add(self, kind: int, name: str | None, **fields: Any) -> int:
        spec = self.plan.tensors[name] if name is not None else None
        dtype = fields.get("dtype", spec.dtype if spec else torch.uint8)
        shape = tuple(fields.get("shape", spec.shape if spec else ()))
        stride = tuple(fields.get("stride", spec.stride if spec else ()))
        index, shift = fields.get("index", 0), fields.get("shift", 0)
        # What varies is given as registers, all of it for a slot if any of it does.
        varying = bool(self.plan.symbols) and kind in (_ARENA, _FRESH, _VIEW)
        if varying:
            register = self.sizes.register
            shape, stride = tuple(map(register, shape)), tuple(map(register, stride))
            shift = register(shift)
        elif self.plan.symbols:
            shape = stride = ()
        base, constant = fields.get("base", 0), fields.get("constant")
        self.slots.append(
            (
                kind,
                index,
                base,
                shift,
                _SCALAR_TYPE[dtype],
                dtype.itemsize,
                shape,
                stride,
                constant,
                int(varying),
            )
        )
        return len(self.slots) - 1

    def given(self, argument: str | Expr) -> int:
        """The slot of an argument of a call: a tensor by name, or a size."""
        if isinstance(argument, str):
            return self.slot(argument)
        found = self.numbers.get(argument)
        if found is None:
            register = self.sizes.register(argument)
            kind = _REAL if isinstance(argument, Real) else _NUMBER
            found = self.numbers[argument] = self._add(kind, None, index=register)
        return found

    def slot(self, name: str) -> int:
        """The slot of a tensor, made when first asked for."""
        found = self.by_name.get(name)
        if found is None:
            found = self.by_name[name] = self._make(name)
            self.storage_slots.setdefault(self.plan.tensors[name].storage, []).append(found)
        return found

    def _make(self, name: str) -> int:
        spec = self.plan.tensors[name]
        if name in self.inputs:
            return self._add(_INPUT, name, index=self.inputs[name])
        if name in self.plan.constants:
            return self._add(_CONSTANT, name, constant=self.plan.constants[name])
        if name in self.results:
            return self._add(_RESULT, name)
        storage = self.memory.storages[spec.storage]
        if storage.kind == "arena" and self.plan.symbols:
            inside = self.sizes.register(spec.offset * spec.dtype.itemsize)
            return self._add(_ARENA, name, index=self.sizes.emit(ADD, self.pools[storage.offset], inside))
        if storage.kind == "arena":
            return self._add(_ARENA, name, index=storage.offset + spec.offset * spec.dtype.itemsize)
        if name in self.views:
            base = self.slot(self.views[name])
            shift = spec.offset - self.plan.tensors[self.views[name]].offset
            return self._add(_VIEW, name, base=base, shift=shift)
        return self._fresh(name)

    def _fresh(self, name: str) -> int:
        """A tensor of an allocation of ours: the allocation itself where it covers it, else a view."""
        spec = self.plan.tensors[name]
        storage = self.memory.storages[spec.storage]
        covers = (
            spec.offset == 0
            and extent_of(spec.shape, spec.stride) * spec.dtype.itemsize == storage.size_bytes
        )
        base = self.bases.get(storage.name)
        if base is None and covers:
            base = self.bases[storage.name] = self._add(_FRESH, name)
            return base
        if base is None:
            elements = (storage.size_bytes + spec.dtype.itemsize - 1) // spec.dtype.itemsize
            base = self._add(_FRESH, None, dtype=spec.dtype, shape=(elements,), stride=(1,))
            self.bases[storage.name] = base
            self.storage_slots.setdefault(storage.name, []).append(base)
        return self._add(_VIEW, name, base=base, shift=spec.offset)

    def step(self, position: int, step: Any) -> tuple[Any, ...] | None:
        row: tuple[Any, ...]
        match step:
            case KernelCall(kernel, buffers):
                slots = tuple(self.slot(n) for n in buffers)
                moved = sum(kernel.hint(b.numel) * b.dtype.itemsize for b in kernel.buffers)
                release = int(moved > _LONG_KERNEL_BYTES)
                sizes = tuple(map(self.sizes.register, kernel.symbols))
                row = (_KERNEL, self.kernels[position].address, 0.0, 0.0, release, None, slots, sizes)
            case ExternCall() if position in self.out_calls:
                row = self._matmul(step)
            case ExternCall():
                function, names = conforming(self.plan, step)
                out = tuple(-1 if n is None else self.slot(n) for n in step.outputs)
                row = (_EXTERN, 0, 0.0, 0.0, 0, function, tuple(self.given(n) for n in names), out)
            case CheckCall():
                slots = (self.slot(step.flag), self.slot(step.index))
                if isinstance(step.low, Expr) or isinstance(step.high, Expr):
                    slots += (self._size(step.low), self._size(step.high))
                row = (_CHECK, 0, 0.0, 0.0, 0, functools.partial(check, step), slots, ())
            case ViewCall():
                self.slot(step.output)
                return None
        return (*row, ())

    def _size(self, size: SizeLike) -> int:
        """The slot of a size, or of a number beside one that varies."""
        return self.given(size) if isinstance(size, Expr) else self._add(_CONSTANT, None, constant=size)

    def _matmul(self, step: ExternCall) -> tuple[Any, ...]:
        form = out_form(self.plan, step)
        assert form is not None and step.outputs[0] is not None
        beta, alpha = scales(step) if form.scaled else (0.0, 0.0)
        slots = (self.slot(step.outputs[0]), *(self.slot(arg.name) for arg in step.args))

        def again(out: torch.Tensor, *args: torch.Tensor, _call: Callable[..., Any] = form.python) -> Any:
            return _call(*args, **({"beta": beta, "alpha": alpha} if form.scaled else {}), out=out)

        shape = self.plan.tensors[step.outputs[0]].shape
        last = self.plan.tensors[step.args[-1].name].shape[-2]
        flops = self.plan.hint(math.prod([2, last, *shape]))
        release = int(flops > _LONG_CALL_FLOPS)
        kind = _ADDMM_OUT if form.scaled else _MM_OUT
        return (kind, address_of(form.symbol), beta, alpha, release, again, slots, ())


def native_launcher(
    plan: Plan, memory: Memory, kernels: dict[int, NativeKernel], out_calls: set[int]
) -> Callable[..., Any] | None:
    """A launcher in C, or None where it cannot run."""
    module = launch_module()
    if module is None:
        return None
    if any(spec.dtype not in _SCALAR_TYPE for spec in plan.tensors.values()):
        return None
    program = _Program(plan, memory, kernels, out_calls)
    rows: list[list[Any]] = []
    row_of_step: dict[int, int] = {}
    for position, step in enumerate(plan.steps):
        row = program.step(position, step)
        if row is not None:
            rows.append(list(row))
        row_of_step[position] = len(rows) - 1
    outputs = tuple(_output(program, o) for o in plan.outputs)
    for position in range(len(plan.steps)):
        for storage in memory.freed_after(position):
            if row_of_step[position] >= 0:
                freed = tuple(program.storage_slots.get(storage.name, ()))
                rows[row_of_step[position]][-1] = (*rows[row_of_step[position]][-1], *freed)
    sizes = program.sizes
    varying = (tuple(sizes.first), tuple(sizes.inputs), tuple(sizes.code), program.arena_end)
    steps = tuple(map(tuple, rows))
    arguments = (len(plan.inputs), memory.arena_bytes, tuple(program.slots), steps, outputs, varying)
    return module.Launcher(*arguments)  # type: ignore[no-any-return]


def _output(program: _Program, output: Any) -> Any:
    if isinstance(output, Ref):
        return program.slot(output.name)
    if isinstance(output, (str, Expr)):
        return program.given(output)
    return None if output is None else (output,)
