"""The reference interpreter of the loop IR: its executable definition, in plain torch, with no thought for speed.

In: a `Kernel` with flat buffers, or a `Plan` with input tensors. Out: buffers written, or output tensors.
Always: every op means what the ATen operator named in `OPS` means for the node's dtype (rounding included).
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphlift.lower.concrete import concrete_plan, env_of
from graphlift.lower.ir import (
    CheckCall,
    ExternCall,
    Kernel,
    KernelCall,
    Loop,
    Node,
    Plan,
    Ref,
    Store,
    ViewCall,
)
from graphlift.shapes.expr import SizeLike

# Every op of the IR besides const, axis, load, reduced, cast and bitcast. Adding one: a row here, one in codegen.
OPS: dict[str, Callable[..., torch.Tensor]] = {
    # arithmetic; div is true division of floats, floordiv/mod round towards -inf, truncdiv/fmod towards zero
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.true_divide,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "mod": torch.remainder,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "fmod": torch.fmod,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "nextafter": torch.nextafter,
    "min": torch.minimum,
    "max": torch.maximum,
    "fmin": torch.fmin,
    "fmax": torch.fmax,
    # a*b + c with one rounding at most (codegen may fuse or not)
    "fma": lambda a, b, c: torch.addcmul(c, a, b),
    # bits; and/or/xor/not are logical on bool
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    # comparison (args share a dtype, result is bool) and selection
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "signbit": torch.signbit,
    "where": torch.where,
    # unary
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "square": torch.square,
    "relu": torch.relu,
    "reciprocal": torch.reciprocal,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "lgamma": torch.lgamma,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
}


class _Evaluation:
    """Node values over the whole grid at once: each has one dimension per axis (size 1 where it does not vary)."""

    def __init__(self, kernel: Kernel, buffers: Sequence[torch.Tensor]) -> None:
        self.sizes: tuple[Any, ...] = (*kernel.outer, *kernel.inner)
        self.outer_rank = len(kernel.outer)
        self.buffers = buffers
        self.reduced: dict[tuple[int, int], torch.Tensor] = {}
        self.memo: dict[Node, torch.Tensor] = {}

    def value(self, node: Node) -> torch.Tensor:
        found = self.memo.get(node)
        if found is None:
            found = self.memo[node] = self._compute(node)
        return found

    def _compute(self, node: Node) -> torch.Tensor:
        ones = (1,) * len(self.sizes)
        if node.op == "const":
            return torch.full(ones, node.attr, dtype=node.dtype)
        if node.op == "axis":
            shape = list(ones)
            shape[node.attr] = -1
            return torch.arange(self.sizes[node.attr], dtype=node.dtype).reshape(shape)
        if node.op == "reduced":
            result = self.reduced[node.attr]
            assert result.dtype == node.dtype, f"reduced {node.attr} is {result.dtype}, not {node.dtype}"
            return result
        args = [self.value(arg) for arg in node.args]
        if node.op == "load":
            return self._load(node, args)
        if node.op == "cast":
            return args[0].to(node.dtype)
        if node.op == "bitcast":
            return args[0].contiguous().view(node.dtype)
        result = OPS[node.op](*args)
        assert result.dtype == node.dtype, f"{node.op} gives {result.dtype}, the node says {node.dtype}"
        return result

    def _load(self, node: Node, args: list[torch.Tensor]) -> torch.Tensor:
        buffer = self.buffers[node.attr]
        assert buffer.dtype == node.dtype, f"load of {node.dtype} from a buffer of {buffer.dtype}"
        if len(args) == 1:
            return buffer[args[0]]
        index, mask, other = torch.broadcast_tensors(*args)
        result = other.clone()
        result[mask] = buffer[index[mask]]
        return result

    def perform(self, stores: Sequence[Store], sizes: Sequence[int]) -> None:
        """All values are computed before any is stored."""
        ready = [
            (s, self.value(s.index).expand(sizes).reshape(-1), self.value(s.value).expand(sizes).reshape(-1))
            for s in stores
        ]
        for store, index, value in ready:
            buffer = self.buffers[store.buffer]
            buffer.index_put_((index,), value.to(buffer.dtype), accumulate=store.mode == "add")

    def loop(self, position: int, loop: Loop) -> None:
        self.memo.clear()  # an earlier loop's stores may have changed what a load sees
        for k, reduction in enumerate(loop.reductions):
            outer = self.sizes[: self.outer_rank]
            flat = (*outer, math.prod(self.sizes[self.outer_rank :]))
            value = self.value(reduction.value).expand(self.sizes).reshape(flat)
            result = REDUCERS[reduction.op](value, reduction.dtype)
            shape = (*self.sizes[: self.outer_rank], *(1,) * (len(self.sizes) - self.outer_rank))
            self.reduced[position, k] = result.to(reduction.dtype).reshape(shape)
        self.perform(loop.stores, self.sizes)


def _accumulated(op: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor, torch.dtype], torch.Tensor]:
    def reduce(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
        return op(value.to(wide), dim=-1)

    return reduce


REDUCERS: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "sum": _accumulated(torch.sum),
    "prod": _accumulated(torch.prod),
    "max": lambda value, _: value.amax(-1),
    "min": lambda value, _: value.amin(-1),
    "any": lambda value, _: value.any(-1),
    "all": lambda value, _: value.all(-1),
    "argmax": lambda value, _: value.argmax(-1),
    "argmin": lambda value, _: value.argmin(-1),
}


def interpret_kernel(kernel: Kernel, buffers: Sequence[torch.Tensor]) -> None:
    """Run ``kernel`` on flat (one-dimensional) buffers, writing its out and inout buffers in place."""
    if math.prod(kernel.outer) == 0:
        return
    evaluation = _Evaluation(kernel, buffers)
    for position, loop in enumerate(kernel.loops):
        if math.prod(kernel.inner) or loop.reductions:
            evaluation.loop(position, loop)
    evaluation.memo.clear()
    sizes: tuple[Any, ...] = (*kernel.outer, *(1,) * len(kernel.inner))
    evaluation.perform(kernel.epilogue, sizes)


def flat_view(tensor: torch.Tensor, numel: Any) -> torch.Tensor:
    """The ``numel`` elements of ``tensor``'s storage from its first one on: what a kernel's base pointer sees."""
    return tensor.detach().as_strided((numel,), (1,))


def interpret_plan(plan: Plan, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """Run a plan step by step; returns its outputs (tensors, None and constants as ``plan.outputs`` lists them)."""
    if plan.symbols:
        plan = concrete_plan(plan, env_of(plan, inputs))
    env: dict[str, torch.Tensor] = dict(plan.constants)
    env.update((name, t) for name, t in zip(plan.inputs, inputs, strict=True) if name is not None)
    storages: dict[str, torch.Tensor] = {}

    def place(name: str) -> torch.Tensor:
        found = env.get(name)
        if found is None:
            spec: Any = plan.tensors[name]
            extent = spec.offset + extent_of(spec.shape, spec.stride)
            storage = storages.get(spec.storage)
            if storage is None or storage.untyped_storage().nbytes() < extent * spec.dtype.itemsize:
                storage = storages[spec.storage] = torch.empty(
                    extent * spec.dtype.itemsize, dtype=torch.uint8
                )
            typed = torch.empty(0, dtype=spec.dtype).set_(storage.untyped_storage(), 0, (0,), (1,))
            found = env[name] = typed.as_strided(spec.shape, spec.stride, spec.offset)
        return found

    for step in plan.steps:
        match step:
            case KernelCall(kernel, names):
                flat = [flat_view(place(n), b.numel) for n, b in zip(names, kernel.buffers, strict=True)]
                interpret_kernel(kernel, flat)
            case ViewCall(output, base):
                spec, source = plan.tensors[output], place(base)
                offset = source.storage_offset() + spec.offset - plan.tensors[base].offset
                env[output] = source.as_strided(spec.shape, spec.stride, offset)
            case CheckCall():
                check(step, place(step.flag), place(step.index))
            case ExternCall():
                for name, result in zip(step.outputs, run_extern(step, place), strict=False):
                    if name is not None:
                        env[name] = result
    return [
        place(o) if isinstance(o, str) else place(o.name) if isinstance(o, Ref) else o for o in plan.outputs
    ]


def check(step: CheckCall, flag: torch.Tensor, index: torch.Tensor, *limits: int) -> None:
    """Raise the error of ``step`` if its flag is set; ``limits``: low and high, where they vary."""
    if not flag.item():
        return
    low, high = limits or (step.low, step.high)
    message = step.message.replace("{high}", str(high))
    if "{value}" in message:
        bad = (index < low) | (index >= high)
        if step.ignore is not None:
            bad &= index != step.ignore
        message = message.replace("{value}", str(index[bad].flatten()[0].item()))
    raise getattr(builtins, step.error)(message)


def run_extern(step: ExternCall, place: Callable[[str], torch.Tensor]) -> list[Any]:
    """Call the ATen overload of ``step`` with its references resolved by ``place``; always a list of results."""
    args, kwargs = pytree.tree_map(
        lambda leaf: place(leaf.name) if isinstance(leaf, Ref) else leaf,
        (step.args, dict(step.kwargs)),
        is_leaf=lambda leaf: isinstance(leaf, Ref),
    )
    result = step.target(*args, **kwargs)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def extent_of(shape: Sequence[SizeLike], stride: Sequence[SizeLike]) -> SizeLike:
    """Elements from the first to the last one of a strided tensor, both included (0 if it is empty)."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def interpret(plan_or_kernel: Plan | Kernel, tensors: Sequence[torch.Tensor]) -> list[Any] | None:
    """Run a `Kernel` on flat buffers, or a `Plan` on input tensors (then its outputs are returned)."""
    with torch.no_grad():
        if isinstance(plan_or_kernel, Plan):
            return interpret_plan(plan_or_kernel, tensors)
        interpret_kernel(plan_or_kernel, tensors)
        return None
