"""One kernel to LLVM IR: loops, vector bodies with masked tails, reductions, stores.

In: a `Kernel`. Out: the text of ``@name_range(buffers, first task, last task)`` and of ``@name(buffers)``.
Always: memory is touched only at indices the kernel computes for points of its grid; masked lanes touch nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

from graphlift.codegen.llvm.affine import Sum, axis_node, build, is_pointwise, simplify
from graphlift.codegen.llvm.body import Body
from graphlift.codegen.llvm.ops import MEMORY
from graphlift.codegen.llvm.reduce import Fold, fold_for
from graphlift.codegen.llvm.schedule import block_count
from graphlift.codegen.llvm.sizes import Sizes
from graphlift.codegen.llvm.split import split
from graphlift.codegen.llvm.target import Target
from graphlift.codegen.llvm.text import Builder, Value
from graphlift.lower.ir import Kernel, Loop, Node
from graphlift.shapes.expr import Expr, SizeLike

_ONE = "@gl_one = global i32 1"  # not a constant to LLVM
_CYCLES_PER_THREAD = 24_000  # about 8 microseconds: what waking another thread must be worth


def prepare(kernel: Kernel) -> Kernel:
    """The kernel as it is scheduled: pointwise kernels have outer axes only, few axes, canonical indices."""
    if (
        is_pointwise(kernel)
        and len(kernel.loops) == 1
        and (not kernel.epilogue or math.prod(kernel.inner) == 1)
    ):
        kernel = replace(kernel, outer=kernel.outer + kernel.inner, inner=())
    return simplify(kernel)


class KernelWriter(Body):
    """Writes one kernel, already simplified; ``text`` gives its two functions."""

    # --- the function ----------------------------------------------------------------------------------------

    def text(self) -> str:
        if self.empty:
            return f"define void @{self.name}(ptr %buffers) {{\nret void\n}}"
        s = self.schedule
        b = self.b
        task = self.open_loop(Value("%first", "i64", 0, 0), Value("%last", "i64", 0, 0), 1)
        block = self._decode(task)
        if s.columns:
            self._columns(block)
        elif s.block:
            self._pointwise(block)
        else:
            self._loops_over_rows()
        self.close()
        for stack, used in self.row_buffers:
            self.b.effect(f"call void @gl_free_row_buffer(ptr {stack}, ptr {used})")
        body = b.function(f"define internal void @{self.name}_range(ptr %buffers, i64 %first, i64 %last) #0")
        return body + "\n" + self._entry()

    def _entry(self) -> str:
        s = self.schedule
        outer, inner = math.prod(self.kernel.outer), math.prod(self.kernel.inner)
        if isinstance(s.task_count, Expr) or isinstance(outer, Expr) or isinstance(inner, Expr):
            return self._varying_entry(s.task_count, outer, inner)
        cycles = outer * (inner * s.cycles_per_point + s.cycles_per_row)
        threads = min(s.task_count, int(cycles / _CYCLES_PER_THREAD)) if not self.serial else 1
        call = f"call void @{self.name}_range(ptr %buffers, i64 0, i64 {s.task_count})"
        if threads > 1:
            call = f"call void @gl_parallel(ptr @{self.name}_range, ptr %buffers, i64 {s.task_count}, i64 {threads})"
        return f"define void @{self.name}(ptr %buffers) #0 {{\n{call}\nret void\n}}"

    def _varying_entry(self, tasks: SizeLike, outer: SizeLike, inner: SizeLike) -> str:
        """As `_entry`, by the sizes of the call; without points there may be nothing to read, even ahead of loops."""
        s, b = self.schedule, Builder(0)
        sizes = Sizes(b, self.kernel.symbols, len(self.kernel.buffers))
        points = outer * inner
        needed = points if is_pointwise(self.kernel) else outer
        count = sizes.value(tasks)
        b.open_if(b.inst("icmp sgt", sizes.value(needed), sizes.value(0), kind="i1"))
        if self.serial:
            b.effect(f"call void @{self.name}_range(ptr %buffers, i64 0, i64 {count.text})")
        else:
            unit = 256  # of a cycle
            work = b.inst("mul", sizes.value(points), sizes.value(int(s.cycles_per_point * unit) + 1))
            rows = b.inst("mul", sizes.value(outer), sizes.value(int(s.cycles_per_row * unit)))
            threads = b.inst("sdiv", b.inst("add", work, rows), sizes.value(_CYCLES_PER_THREAD * unit))
            wanted = b.intrinsic("smin", count, threads)
            arguments = f"ptr @{self.name}_range, ptr %buffers, i64 {count.text}, i64 {wanted.text}"
            b.effect(f"call void @gl_parallel({arguments})")
        b.close()
        self.b.declarations |= b.declarations
        return b.function(f"define void @{self.name}(ptr %buffers) #0")

    def _decode(self, task: Value) -> Value | None:
        """Set the task's axes; the block number where the vector axis is blocked."""
        s, b = self.schedule, self.b
        counts = [(k, self.sizes[k]) for k in s.tasks]
        if s.block and s.vector is not None:
            counts.append((-1, block_count(self.sizes[s.vector], s.block)))
        if s.tile is not None and not s.columns:
            counts.append((-2, block_count(self.sizes[s.tile], s.lanes)))
        counts = [(k, n) for k, n in counts if n != 1 or self.axes.setdefault(k, self._i64(0)) is None]
        rest = task
        for position, (k, n) in reversed(list(enumerate(counts))):
            if position == 0:
                self.axes[k] = rest
            else:
                self.axes[k] = b.inst("urem", rest, self._i64(n))
                rest = b.inst("udiv", rest, self._i64(n))
        return self.axes.get(-1)

    # --- three shapes of loop nest ---------------------------------------------------------------------------

    def _pointwise(self, block: Value | None) -> None:
        """A block of the vector axis for every point of the task's scalar axes."""
        s, b = self.schedule, self.b
        assert s.vector is not None and block is not None
        size = self.sizes[s.vector]
        start, stop = self._i64(0), self._i64(size)
        whole = isinstance(size, int) and size <= s.block
        if not whole:
            start = b.inst("mul", block, self._i64(s.block))
            stop = b.intrinsic("smin", b.inst("add", start, self._i64(s.block)), self._i64(size))
        if s.tile is not None:
            self.tile_start = b.inst("mul", self.axes[-2], self._i64(s.lanes))
        for k in s.scalar:
            self.axes[k] = self.open_loop(self._i64(0), self._i64(self.sizes[k]), 1)
        for position, loop in enumerate(self.kernel.loops):
            self._vector_loop(position, loop, start, stop, whole)
        self._epilogue_over_vector(start, stop, whole)
        for _ in s.scalar:
            self.close()

    def _epilogue_over_vector(self, start: Value, stop: Value, whole: bool) -> None:
        if self.kernel.epilogue:
            self._vector_loop(-1, Loop((), self.kernel.epilogue), start, stop, whole)

    def _vector_loop(self, position: int, loop: Loop, start: Value, stop: Value, whole: bool) -> None:
        """Sweep the vector axis from ``start`` to ``stop``: full steps, then what is left under a mask."""
        s, b = self.schedule, self.b
        assert s.vector is not None
        size, step = self.sizes[s.vector], s.lanes * s.unroll
        full = 0 if s.masked else size // step * step
        if full:
            end = self._i64(full) if whole else b.intrinsic("smin", stop, self._i64(full))
            index = self.open_loop(start, end, step)
            self._point(
                position,
                loop,
                [b.inst("add", index, self._i64(u * s.lanes)) if u else index for u in range(s.unroll)],
            )
            self.close()
        left = size - full
        if not left:
            return
        if whole and isinstance(left, int) and left < s.lanes:
            self.mask = self._first_lanes(left)
            self.open_if(Value("true", "i1", 0, 0))
            self._point(position, loop, [self._i64(full)])
            self.close()
        else:
            begin = start
            if full:
                begin = self._i64(full) if whole else b.intrinsic("smax", start, self._i64(full))
            index = self.open_loop(begin, stop, s.lanes)
            self.mask = self._lane_mask(index, size)
            self._point(position, loop, [index])
            self.close()
        self.mask = None

    def _first_lanes(self, count: int) -> Value:
        """A mask of ``count`` lanes."""
        b, lanes = self.b, self.schedule.lanes
        if count == 1:
            # LLVM 22 makes a narrowing masked store whose mask is known to be one lane a store of the wide element.
            b.declarations.add(_ONE)
            return b.inst("icmp slt", b.iota("i32"), b.emit("i32", 0, "load i32, ptr @gl_one"), kind="i1")
        items = ", ".join(f"i1 {'true' if k < count else 'false'}" for k in range(lanes))
        return Value(f"<{items}>", "i1", lanes, 0)

    def _lane_mask(self, index: Value, size: SizeLike) -> Value:
        b = self.b
        left = b.cast(
            "trunc", b.intrinsic("smin", b.inst("sub", self._i64(size), index), self._i64(1024)), "i32"
        )
        return b.inst("icmp slt", b.iota("i32"), b.splat(left), kind="i1")

    def _loops_over_rows(self) -> None:
        """Inner vector axis: every loop sweeps the row, folding across lanes at its end."""
        s = self.schedule
        assert s.vector is not None
        for position, loop in enumerate(self.kernel.loops):
            folds = self._start_folds(position, loop, s.unroll)
            opened = self._open_inner_axes()
            self._vector_loop(position, loop, self._i64(0), self._i64(self.sizes[s.vector]), whole=True)
            for _ in range(opened):
                self.close()
            for k, fold in enumerate(folds):
                self.reduced[position, k] = [fold.across_lanes()]
        self._epilogue([self._i64(0)])

    def _open_inner_axes(self) -> int:
        apart = (self.schedule.vector, self.schedule.tile)
        axes = [k for k in range(len(self.kernel.outer), len(self.sizes)) if k not in apart]
        for k in axes:
            self.axes[k] = self.open_loop(self._i64(0), self._i64(self.sizes[k]), 1)
        return len(axes)

    def _columns(self, block: Value | None) -> None:
        """Outer vector axis: lanes are separate outer points, reductions stay within a lane."""
        s, b = self.schedule, self.b
        if s.vector is None:
            self._column_body([self._i64(0)])
            return
        assert block is not None
        size = self.sizes[s.vector]
        blocks, left = (0 if s.masked else size // s.block), size % s.block
        start = b.inst("mul", block, self._i64(s.block))
        if blocks:
            if left:
                self.open_if(b.inst("icmp slt", block, self._i64(blocks), kind="i1"))
                self.guard = b.depth
            self._column_body(
                [b.inst("add", start, self._i64(u * s.lanes)) if u else start for u in range(s.unroll)]
            )
            if left:
                self.close()
        if left:
            if blocks:
                self.open_if(b.inst("icmp eq", block, self._i64(blocks), kind="i1"))
                self.guard = b.depth
            index = self.open_loop(start, self._i64(size), s.lanes)
            self.mask = self._lane_mask(index, size)
            self._column_body([index])
            self.close()
            self.mask = None
            if blocks:
                self.close()
        self.guard = 0

    def _column_body(self, bases: list[Value]) -> None:
        tile = self.schedule.tile
        for position, loop in enumerate(self.kernel.loops):
            folds = self._start_folds(position, loop, len(bases))
            opened = self._open_inner_axes()
            if tile is not None:
                self.tile_start = self.open_loop(
                    self._i64(0), self._i64(self.sizes[tile]), self.schedule.lanes
                )
                opened += 1
            self._point(position, loop, bases)
            self.tile_start = None
            for _ in range(opened):
                self.close()
            for k, fold in enumerate(folds):
                self.reduced[position, k] = fold.per_lane(len(bases))
        self._epilogue(bases)

    def _start_folds(self, position: int, loop: Loop, copies: int) -> list[Fold]:
        scalar = self.schedule.vector is None
        self.folds = [
            fold_for(
                self.emitter, r, 0 if scalar else self.schedule.lanes, copies, math.prod(self.kernel.inner)
            )
            for r in loop.reductions
        ]
        return self.folds

    def _epilogue(self, bases: list[Value]) -> None:
        if self.kernel.epilogue:
            self.open_if(Value("true", "i1", 0, 0))
            self._point(-1, Loop((), self.kernel.epilogue), bases)
            self.close()

    # --- one point of a loop ---------------------------------------------------------------------------------

    def _point(self, position: int, loop: Loop, bases: list[Value]) -> None:
        """Fold and store at the lanes starting at each of ``bases``, for all of the task's values of the tile axis."""
        start, tile = self.tile_start, self.schedule.tile
        if start is None or tile is None:
            self._values(position, loop, bases)
            return
        b, size, lanes = self.b, self.sizes[tile], self.schedule.lanes
        end = b.inst("add", start, self._i64(lanes))
        self.bases = bases
        if self.mask is None:
            whole = b.inst("icmp sle", end, self._i64(size), kind="i1")
            self.open_if(whole)
            self.open_tiles(loop, tile, start)
            self._along_tile(position, loop, bases, start, end)
            self.close_tiles(tile, start)
            self.close()
            if not isinstance(size, Expr) and size % lanes == 0:
                return
            start = b.select(whole, end, start)
        self._along_tile(position, loop, bases, start, b.intrinsic("smin", end, self._i64(size)))

    def _along_tile(self, position: int, loop: Loop, bases: list[Value], start: Value, stop: Value) -> None:
        assert self.schedule.tile is not None
        self.axes[self.schedule.tile] = self.open_loop(start, stop, 1)
        self._values(position, loop, bases)
        self.close()

    def _values(self, position: int, loop: Loop, bases: list[Value]) -> None:
        """Fold and store at the lanes starting at each of ``bases``; all values are computed before any store."""
        self.bases = bases
        self.loop_position = position if position >= 0 else len(self.kernel.loops)
        for u in range(len(bases)):
            for fold, reduction in zip(self.folds if loop.reductions else (), loop.reductions, strict=True):
                value = self.value(reduction.value, u)
                at = None
                if reduction.op in ("argmax", "argmin"):
                    at = self.value(self._inner_position(), u)
                fold.add(u, value, at, self.mask)
        ready = [(store, u, self.value(store.value, u)) for u in range(len(bases)) for store in loop.stores]
        for store, u, value in ready:
            self._store(store, u, value)

    def _inner_position(self) -> Node:
        position = Sum(0)
        scale: SizeLike = 1
        for k in range(len(self.sizes) - 1, len(self.kernel.outer) - 1, -1):
            position = position.plus(Sum(0, ((axis_node(k), scale),)))
            scale = scale * self.sizes[k]
        return build(position)


def write_kernel(name: str, kernel: Kernel, target: Target) -> tuple[str, set[str]]:
    """The functions of a kernel, ending with ``@name(buffers)``, and the declarations they need."""
    stages = split(prepare(kernel))
    if len(stages.kernels) == 1:
        writer = KernelWriter(name, stages.kernels[0], target)
        return writer.text(), writer.b.declarations
    parts: list[str] = []
    declarations: set[str] = set()
    lines = []
    count = len(kernel.buffers) + len(stages.scratch)
    lines.append(f"%all = alloca [{count + 1} x ptr], align 16")
    if kernel.symbols:
        lines.append(f"%sizes_from = getelementptr ptr, ptr %buffers, i64 {len(kernel.buffers)}")
        lines.append("%sizes = load ptr, ptr %sizes_from")
        lines.append(f"%sizes_to = getelementptr ptr, ptr %all, i64 {count}")
        lines.append("store ptr %sizes, ptr %sizes_to")
    for k, spec in enumerate(stages.scratch):
        lines.append(f"%scratch{k} = alloca [{max(spec.numel, 1)} x {MEMORY[spec.dtype]}], align 64")
    for k in range(count):
        lines.append(f"%to{k} = getelementptr ptr, ptr %all, i64 {k}")
        value = f"%scratch{k - len(kernel.buffers)}"
        if k < len(kernel.buffers):
            value = f"%base{k}"
            lines.append(f"%from{k} = getelementptr ptr, ptr %buffers, i64 {k}")
            lines.append(f"{value} = load ptr, ptr %from{k}")
        lines.append(f"store ptr {value}, ptr %to{k}")
    for k, stage in enumerate(stages.kernels):
        writer = KernelWriter(f"{name}_stage{k}", prepare(stage), target)
        parts.append(writer.text())
        declarations |= writer.b.declarations
        lines.append(f"call void @{name}_stage{k}(ptr %all)")
    body = "\n".join(lines)
    parts.append(f"define void @{name}(ptr %buffers) #0 {{\n{body}\nret void\n}}")
    return "\n\n".join(parts), declarations
