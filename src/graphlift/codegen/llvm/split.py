"""Long reductions with few results: split in parts that run in parallel, then fold the parts.

In: a simplified `Kernel`. Out: the kernels to run one after the other, over the same buffers and scratch ones.
Always: the stages together do what the kernel does; partial sums also make long sums more accurate.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from graphlift.codegen.llvm.affine import Sum, axis_node, build, rewrite
from graphlift.data import dataclass
from graphlift.lower.ir import BufferSpec, Kernel, Loop, Node, Reduction, Store
from graphlift.shapes.expr import Expr, SizeLike

_SPLIT_POINTS = 1 << 15  # of the inner axes, from which on splitting pays
_SPLIT_WORK = 1 << 18  # of the whole grid
_FEW_RESULTS = 64
_SCRATCH_BYTES = 64 << 10
_FOLDABLE = frozenset({"sum", "prod", "max", "min", "any", "all"})


@dataclass(frozen=True, slots=True)
class Stages:
    """Kernels in order, over the original buffers and then the scratch buffers."""

    kernels: tuple[Kernel, ...]
    scratch: tuple[BufferSpec, ...]


def split(kernel: Kernel) -> Stages:
    """The stages of a kernel: itself alone, or parts of its first loop's reductions and what follows them."""
    whole = Stages((kernel,), ())
    parts = _parts(kernel)
    if not parts:
        return whole
    loop = kernel.loops[0]
    outer_points = math.prod(kernel.outer)
    scratch = tuple(BufferSpec(r.dtype, outer_points * parts, "out") for r in loop.reductions)
    if sum(s.numel * s.dtype.itemsize for s in scratch) > _SCRATCH_BYTES:
        return whole
    first = len(kernel.buffers)
    stages = [_partial(kernel, parts, scratch)]
    if len(kernel.loops) == 1:
        stages.append(_fold(kernel, parts, scratch, kernel.epilogue))
        return Stages(tuple(stages), scratch)
    # Later loops need the results: fold them into a second set of scratch buffers first.
    results = tuple(BufferSpec(r.dtype, outer_points, "out") for r in loop.reductions)
    position = _flat(kernel.outer)
    epilogue = tuple(
        Store(first + len(scratch) + k, position, Node("reduced", r.dtype, (), (0, k)))
        for k, r in enumerate(loop.reductions)
    )
    stages.append(_fold(kernel, parts, scratch + results, epilogue))
    stages.append(_rest(kernel, scratch + results, first + len(scratch), position))
    return Stages(tuple(stages), scratch + results)


def _parts(kernel: Kernel) -> int:
    """Into how many parts the first inner axis is split; 0 where splitting is not possible or does not pay."""
    if not kernel.loops or not kernel.loops[0].reductions or kernel.loops[0].stores:
        return 0
    loop = kernel.loops[0]
    if any(r.op not in _FOLDABLE or r.dtype in (torch.bfloat16, torch.float16) for r in loop.reductions):
        return 0
    outer, inner = math.prod(kernel.outer), math.prod(kernel.inner)
    if isinstance(outer, Expr) or isinstance(inner, Expr):
        return 0
    if outer > _FEW_RESULTS or inner < _SPLIT_POINTS or outer * inner < _SPLIT_WORK:
        return 0
    size = kernel.inner[0]
    return max((p for p in range(2, 65) if size % p == 0), default=0)


def _flat(sizes: tuple[SizeLike, ...]) -> Node:
    total = Sum(0)
    scale: SizeLike = 1
    for k in range(len(sizes) - 1, -1, -1):
        total = total.plus(Sum(0, ((axis_node(k), scale),)))
        scale = scale * sizes[k]
    return build(total)


def _partial(kernel: Kernel, parts: int, scratch: tuple[BufferSpec, ...]) -> Kernel:
    """The first loop's reductions over each part of the first inner axis; the part is the last outer axis."""
    rank = len(kernel.outer)
    each = kernel.inner[0] // parts
    axes = {k: Sum(0, ((axis_node(k), 1),)) for k in range(rank)}
    axes[rank] = Sum(0, ((axis_node(rank), each), (axis_node(rank + 1), 1)))
    axes |= {k: Sum(0, ((axis_node(k + 1), 1),)) for k in range(rank + 1, rank + len(kernel.inner))}
    alone = replace(kernel, loops=kernel.loops[:1], epilogue=())
    outer, inner = (*kernel.outer, parts), (each, *kernel.inner[1:])
    split_kernel, _ = rewrite(alone, outer, inner, axes)
    position = _flat(outer)
    epilogue = tuple(
        Store(len(kernel.buffers) + k, position, Node("reduced", r.dtype, (), (0, k)))
        for k, r in enumerate(kernel.loops[0].reductions)
    )
    return replace(split_kernel, epilogue=epilogue, buffers=kernel.buffers + scratch)


def _fold(kernel: Kernel, parts: int, scratch: tuple[BufferSpec, ...], epilogue: tuple[Store, ...]) -> Kernel:
    outer, inner = kernel.outer, (parts,)
    position = _flat(outer + inner)
    reductions = tuple(
        Reduction(r.op, Node("load", r.dtype, (position,), len(kernel.buffers) + k), r.dtype)
        for k, r in enumerate(kernel.loops[0].reductions)
    )
    buffers = kernel.buffers + scratch
    return replace(kernel, inner=inner, loops=(Loop(reductions),), epilogue=epilogue, buffers=buffers)


def _rest(kernel: Kernel, scratch: tuple[BufferSpec, ...], results: int, position: Node) -> Kernel:
    """The loops after the first, whose results are loaded; loop numbers move down by one."""
    memo: dict[Node, Node] = {}

    def renamed(node: Node) -> Node:
        found = memo.get(node)
        if found is None:
            if node.op == "reduced":
                loop, k = node.attr
                if loop == 0:
                    found = Node("load", node.dtype, (position,), results + k)
                else:
                    found = node.replace(attr=(loop - 1, k))
            else:
                found = node.replace(args=tuple(renamed(arg) for arg in node.args)) if node.args else node
            memo[node] = found
        return found

    def store(s: Store) -> Store:
        return Store(s.buffer, renamed(s.index), renamed(s.value), s.mode)

    loops = tuple(
        Loop(
            tuple(Reduction(r.op, renamed(r.value), r.dtype) for r in loop.reductions),
            tuple(store(s) for s in loop.stores),
        )
        for loop in kernel.loops[1:]
    )
    epilogue = tuple(store(s) for s in kernel.epilogue)
    return replace(kernel, loops=loops, epilogue=epilogue, buffers=kernel.buffers + scratch)
