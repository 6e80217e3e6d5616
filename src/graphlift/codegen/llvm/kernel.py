"""One kernel to LLVM IR: loops, vector bodies with masked tails, reductions, stores.

In: a `Kernel`. Out: the text of ``@name_range(buffers, first task, last task)`` and of ``@name(buffers)``.
Always: memory is touched only at indices the kernel computes for points of its grid; masked lanes touch nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from graphlift.codegen.llvm.affine import Indices, axis_node, build, Sum, fits_int32, is_pointwise, simplify
from graphlift.codegen.llvm.ops import MEMORY, REGISTER, Emitter
from graphlift.codegen.llvm.reduce import Fold, fold_for
from graphlift.codegen.llvm.schedule import Schedule, axis_stride, choose, stores_of
from graphlift.codegen.llvm.target import Target
from graphlift.codegen.llvm.text import ELEMENT_BITS, MANGLED, Builder, Value
from graphlift.codegen.llvm.vmath import VectorMath
from graphlift.lower.ir import Kernel, Loop, Node, Store

_CYCLES_PER_THREAD = 24_000  # about 8 microseconds: what waking another thread must be worth


def prepare(kernel: Kernel) -> Kernel:
    """The kernel as it is scheduled: pointwise kernels have outer axes only, few axes, canonical indices."""
    if is_pointwise(kernel) and len(kernel.loops) == 1 and (not kernel.epilogue or math.prod(kernel.inner) == 1):
        kernel = replace(kernel, outer=kernel.outer + kernel.inner, inner=())
    return simplify(kernel)


class KernelWriter:
    """Writes one kernel; ``text`` is the result, ``declarations`` what it calls."""

    def __init__(self, name: str, kernel: Kernel, target: Target) -> None:
        self.name = name
        self.target = target
        self.kernel = prepare(kernel)
        self.sizes = self.kernel.outer + self.kernel.inner
        self.indices = Indices(self.sizes)
        self.empty = math.prod(self.kernel.outer) == 0
        self.schedule: Schedule = choose(self.kernel, target, self.indices)
        self.b = Builder(self.schedule.lanes)
        self.emitter = Emitter(self.b, VectorMath(self.b, target))
        self.written = {store.buffer for store, _ in stores_of(self.kernel)}
        self.axes: dict[int, Value] = {}
        self.bases: list[Value] = []  # of the vector axis, one per unrolled copy
        self.mask: Value | None = None  # of the current body's lanes, None when all are on
        self.guard = 0  # depth below which loads along the vector axis may not be hoisted
        self.memos: list[dict[tuple[Node, Any, str], Value]] = [{}]
        self.reduced: dict[tuple[int, int], list[Value]] = {}
        self.lane_facts: dict[Node, tuple[int | None, int]] = {}
        self.varies_memo: dict[Node, bool] = {}
        self.serial = any(store.mode == "add" for store, _ in stores_of(self.kernel))
        self.pointers = [
            self._base(k) for k in range(len(self.kernel.buffers))
        ]

    def _base(self, position: int) -> Value:
        slot = self.b.emit("ptr", 0, f"getelementptr ptr, ptr %buffers, i64 {position}")
        return self.b.emit("ptr", 0, "load ptr, ptr {0}, align 8", slot)

    # --- the function ----------------------------------------------------------------------------------------

    def text(self) -> str:
        if self.empty:
            return f"define void @{self.name}(ptr %buffers) {{\nret void\n}}"
        s = self.schedule
        b = self.b
        task = self._open(Value("%first", "i64", 0, 0), Value("%last", "i64", 0, 0), 1)
        block = self._decode(task)
        if s.columns:
            self._columns(block)
        elif s.block:
            self._pointwise(block)
        else:
            self._loops_over_rows()
        self._close()
        body = b.function(
            f"define internal void @{self.name}_range(ptr %buffers, i64 %first, i64 %last) #0"
        )
        return body + "\n" + self._entry()

    def _entry(self) -> str:
        s = self.schedule
        threads = min(s.task_count, int(s.cycles / _CYCLES_PER_THREAD)) if not self.serial else 1
        call = f"call void @{self.name}_range(ptr %buffers, i64 0, i64 {s.task_count})"
        if threads > 1:
            call = f"call void @gl_parallel(ptr @{self.name}_range, ptr %buffers, i64 {s.task_count}, i64 {threads})"
        return f"define void @{self.name}(ptr %buffers) #0 {{\n{call}\nret void\n}}"

    def _open(self, start: Value, stop: Value, step: int) -> Value:
        self.memos.append({})
        return self.b.open_loop(start, stop, step)

    def _open_if(self, condition: Value) -> None:
        self.memos.append({})
        self.b.open_if(condition)

    def _close(self) -> None:
        self.memos.pop()
        self.b.close()

    def _i64(self, value: int) -> Value:
        return self.b.constant(value, "i64")

    def _decode(self, task: Value) -> Value | None:
        """Set the task's axes; the block number where the vector axis is blocked."""
        s, b = self.schedule, self.b
        counts = [(k, self.sizes[k]) for k in s.tasks]
        if s.block and s.vector is not None:
            counts.append((-1, math.ceil(self.sizes[s.vector] / s.block)))
        counts = [(k, n) for k, n in counts if n > 1 or self.axes.setdefault(k, self._i64(0)) is None]
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
        if size > s.block:
            start = b.inst("mul", block, self._i64(s.block))
            stop = b.intrinsic("smin", b.inst("add", start, self._i64(s.block)), self._i64(size))
        for k in s.scalar:
            self.axes[k] = self._open(self._i64(0), self._i64(self.sizes[k]), 1)
        for position, loop in enumerate(self.kernel.loops):
            self._vector_loop(position, loop, start, stop, whole=size <= s.block)
        self._epilogue_over_vector(start, stop, size <= s.block)
        for _ in s.scalar:
            self._close()

    def _epilogue_over_vector(self, start: Value, stop: Value, whole: bool) -> None:
        if self.kernel.epilogue:
            self._vector_loop(-1, Loop((), self.kernel.epilogue), start, stop, whole)

    def _vector_loop(self, position: int, loop: Loop, start: Value, stop: Value, whole: bool) -> None:
        """Sweep the vector axis from ``start`` to ``stop``: full steps, then what is left under a mask."""
        s, b = self.schedule, self.b
        assert s.vector is not None
        size, step = self.sizes[s.vector], s.lanes * s.unroll
        full = size // step * step
        if full:
            end = self._i64(full) if whole else b.intrinsic("smin", stop, self._i64(full))
            index = self._open(start, end, step)
            self._point(position, loop, [b.inst("add", index, self._i64(u * s.lanes)) if u else index for u in range(s.unroll)])
            self._close()
        left = size - full
        if not left:
            return
        if whole and left < s.lanes:
            lanes = ", ".join(f"i1 {'true' if k < left else 'false'}" for k in range(s.lanes))
            self.mask = Value(f"<{lanes}>", "i1", s.lanes, 0)
            self.memos.append({})
            b.open_if(Value("true", "i1", 0, 0))
            self._point(position, loop, [self._i64(full)])
            self._close()
        else:
            begin = self._i64(full) if whole else b.intrinsic("smax", start, self._i64(full))
            index = self._open(begin, stop, s.lanes)
            self.mask = self._lane_mask(index, size)
            self._point(position, loop, [index])
            self._close()
        self.mask = None

    def _lane_mask(self, index: Value, size: int) -> Value:
        b = self.b
        left = b.cast("trunc", b.intrinsic("smin", b.inst("sub", self._i64(size), index), self._i64(1024)), "i32")
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
                self._close()
            for k, fold in enumerate(folds):
                self.reduced[position, k] = [fold.across_lanes()]
        self._epilogue([self._i64(0)])

    def _open_inner_axes(self) -> int:
        axes = [k for k in range(len(self.kernel.outer), len(self.sizes)) if k != self.schedule.vector]
        for k in axes:
            self.axes[k] = self._open(self._i64(0), self._i64(self.sizes[k]), 1)
        return len(axes)

    def _columns(self, block: Value | None) -> None:
        """Outer vector axis: lanes are separate outer points, reductions stay within a lane."""
        s, b = self.schedule, self.b
        if s.vector is None:
            self._column_body([self._i64(0)])
            return
        assert block is not None
        size = self.sizes[s.vector]
        blocks, left = divmod(size, s.block)
        start = b.inst("mul", block, self._i64(s.block))
        if blocks:
            if left:
                self._open_if(b.inst("icmp slt", block, self._i64(blocks), kind="i1"))
                self.guard = b.depth
            self._column_body([b.inst("add", start, self._i64(u * s.lanes)) if u else start for u in range(s.unroll)])
            if left:
                self._close()
        if left:
            if blocks:
                self._open_if(b.inst("icmp eq", block, self._i64(blocks), kind="i1"))
                self.guard = b.depth
            index = self._open(start, self._i64(size), s.lanes)
            self.mask = self._lane_mask(index, size)
            self._column_body([index])
            self._close()
            self.mask = None
            if blocks:
                self._close()
        self.guard = 0

    def _column_body(self, bases: list[Value]) -> None:
        for position, loop in enumerate(self.kernel.loops):
            folds = self._start_folds(position, loop, len(bases))
            opened = self._open_inner_axes()
            self._point(position, loop, bases)
            for _ in range(opened):
                self._close()
            for k, fold in enumerate(folds):
                self.reduced[position, k] = fold.per_lane(len(bases))
        self._epilogue(bases)

    def _start_folds(self, position: int, loop: Loop, copies: int) -> list[Fold]:
        scalar = self.schedule.vector is None
        self.folds = [fold_for(self.emitter, r, 0 if scalar else self.schedule.lanes, copies) for r in loop.reductions]
        return self.folds

    def _epilogue(self, bases: list[Value]) -> None:
        if self.kernel.epilogue:
            self.memos.append({})
            self.b.open_if(Value("true", "i1", 0, 0))
            self._point(-1, Loop((), self.kernel.epilogue), bases)
            self._close()

    # --- one point of a loop ---------------------------------------------------------------------------------

    def _point(self, position: int, loop: Loop, bases: list[Value]) -> None:
        """Fold and store at the lanes starting at each of ``bases``; all values are computed before any store."""
        self.bases = bases
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
        position, scale = Sum(0), 1
        for k in range(len(self.sizes) - 1, len(self.kernel.outer) - 1, -1):
            position = position.plus(Sum(0, ((axis_node(k), scale),)))
            scale *= self.sizes[k]
        return build(position)

    # --- values ----------------------------------------------------------------------------------------------

    def varies(self, node: Node) -> bool:
        """Whether the node's value differs between lanes (or unrolled copies)."""
        found = self.varies_memo.get(node)
        if found is None:
            if node.op == "axis":
                found = node.attr == self.schedule.vector
            elif node.op == "reduced":
                found = self.schedule.columns and self.schedule.vector is not None
            else:
                found = any([self.varies(arg) for arg in node.args])
            self.varies_memo[node] = found
        return found

    def lane_stride(self, node: Node) -> int | None:
        """How an integer node moves from lane to lane: a constant, or None."""
        return self._lane_fact(node)[0]

    def _lane_fact(self, node: Node) -> tuple[int | None, int]:
        """(stride between lanes or None, a power of two that divides the value of lane 0)."""
        found = self.lane_facts.get(node)
        if found is None:
            found = self.lane_facts[node] = self._find_lane_fact(node)
        return found

    def _find_lane_fact(self, node: Node) -> tuple[int | None, int]:
        lanes = self.schedule.lanes
        if not self.varies(node):
            return 0, math.gcd(node.attr, lanes) if node.op == "const" else 1
        if node.op == "axis":
            return 1, lanes
        facts = [self._lane_fact(arg) for arg in node.args] if node.dtype == torch.int64 else []
        strides = [f[0] for f in facts]
        if not facts or None in strides:
            return None, 1
        if node.op in ("add", "sub"):
            sign = 1 if node.op == "add" else -1
            return strides[0] + sign * strides[1], math.gcd(facts[0][1], facts[1][1])
        if node.op == "mul":
            for this, other in ((0, 1), (1, 0)):
                if node.args[this].op == "const":
                    factor = node.args[this].attr
                    return strides[other] * factor, math.gcd(facts[other][1] * math.gcd(factor, lanes), lanes)
        if node.op in ("floordiv", "mod") and node.args[1].op == "const" and node.args[1].attr > 0:
            # A full vector starting at a multiple of the lanes never crosses a multiple of the divisor.
            if strides[0] == 1 and facts[0][1] == lanes and node.args[1].attr % lanes == 0:
                return (0, 1) if node.op == "floordiv" else (1, lanes)
        return None, 1

    def value(self, node: Node, u: int) -> Value:
        """The node's value in copy ``u``: a vector if it differs between lanes, else a scalar."""
        return self._memoised(node, u, "value", self._value)

    def lane_zero(self, node: Node, u: int) -> Value:
        """An integer node's scalar value in lane 0."""
        if not self.varies(node):
            return self.value(node, u)
        return self._memoised(node, u, "lane0", self._lane_zero)

    def _memoised(self, node: Node, u: int, form: str, compute: Callable[[Node, int], Value]) -> Value:
        # Lanes of another base or under another mask are other values, though the node is the same.
        where = (self.bases[u].text, self.mask and self.mask.text, u) if self.varies(node) else None
        key = (node, where, form)
        for memo in reversed(self.memos):
            found = memo.get(key)
            if found is not None:
                return found
        value = compute(node, u)
        depth = value.depth
        if self.written and self._reads_written(node):
            depth = self.b.depth
        self.memos[depth][key] = value
        return value

    def _reads_written(self, node: Node) -> bool:
        stack, seen = [node], {node}
        while stack:
            current = stack.pop()
            if current.op == "load" and current.attr in self.written:
                return True
            for arg in current.args:
                if arg not in seen:
                    seen.add(arg)
                    stack.append(arg)
        return False

    def _lane_zero(self, node: Node, u: int) -> Value:
        if node.op == "axis":
            return self.bases[u]
        return self.emitter.node(node, [self.lane_zero(arg, u) for arg in node.args])

    def _value(self, node: Node, u: int) -> Value:
        b = self.b
        match node.op:
            case "const":
                return self.emitter.const(node)
            case "reduced":
                values = self.reduced[node.attr]
                return values[u] if len(values) > 1 else values[0]
            case "load":
                return self._load(node, u)
            case "axis" if not self.varies(node):
                return self.axes[node.attr]
        if node.dtype == torch.int64 and self.varies(node):
            stride = self.lane_stride(node)
            if stride == 0:
                return self.lane_zero(node, u)
            if stride is not None:
                kind = "i32" if fits_int32(self.indices.range(node)) else "i64"
                first = b.cast("trunc", self.lane_zero(node, u), kind)
                return b.inst("add", b.splat(first), b.iota(kind, stride))
        args = [self.value(arg, u) for arg in node.args]
        if any(arg.dtype == torch.int64 for arg in node.args):
            args = self._same_width(node, args)
        return self.emitter.node(node, args)

    def _same_width(self, node: Node, args: list[Value]) -> list[Value]:
        """int64 vectors whose values are known to fit are computed as int32: half the registers."""
        wide = [arg.dtype == torch.int64 for arg in node.args]
        vector = any(a.lanes for a in args)
        narrow = vector and node.op not in ("cast", "bitcast") and all(
            fits_int32(self.indices.range(arg)) for arg, w in zip(node.args, wide, strict=True) if w
        )
        if node.dtype == torch.int64 and node.op not in ("cast", "bitcast"):
            narrow = narrow and fits_int32(self.indices.range(node))
        if node.op in ("cast", "bitcast"):
            return args
        kind = "i32" if narrow else "i64"
        return [self._to_width(a, kind) if w else a for a, w in zip(args, wide, strict=True)]

    def _to_width(self, value: Value, kind: str) -> Value:
        if value.type == kind:
            return value
        return self.b.cast("trunc" if kind == "i32" else "sext", value, kind)

    # --- memory ----------------------------------------------------------------------------------------------

    def _address(self, buffer: int, index: Value) -> Value:
        kind = MEMORY[self.kernel.buffers[buffer].dtype]
        if index.lanes:
            template = f"getelementptr {kind}, ptr {{0}}, {index.llvm} {{1}}"
            return self.b.emit("ptr", index.lanes, template, self.pointers[buffer], index)
        return self.b.emit("ptr", 0, f"getelementptr {kind}, ptr {{0}}, i64 {{1}}", self.pointers[buffer], index)

    def _lane_addresses(self, buffer: int, index: Node, u: int) -> Value:
        """A vector of pointers, with 32-bit offsets from a scalar where possible (cheaper gathers)."""
        b = self.b
        stride = self.lane_stride(index)
        if stride is not None:
            first = self._address(buffer, self.lane_zero(index, u))
            kind = MEMORY[self.kernel.buffers[buffer].dtype]
            offsets = b.iota("i64", stride)
            return b.emit("ptr", b.lanes, f"getelementptr {kind}, ptr {{0}}, {offsets.llvm} {{1}}", first, offsets)
        value = self.value(index, u)
        return self._address(buffer, b.cast("sext", b.splat(value), "i64"))

    def _both(self, a: Value | None, b: Value | None) -> Value | None:
        if a is None or b is None:
            return a or b
        return self.b.inst("and", a, b)

    def _load(self, node: Node, u: int) -> Value:
        b, dtype = self.b, node.dtype
        buffer = node.attr
        index = node.args[0]
        kind = MEMORY[dtype]
        align = max(ELEMENT_BITS[kind] // 8, 1)
        condition = self.value(node.args[1], u) if len(node.args) > 1 else None
        other = self.value(node.args[2], u) if condition is not None else None
        if condition is not None and self.kernel.buffers[buffer].numel == 0:
            return other
        fixed = buffer in self.written
        at = b.depth if fixed else 0
        if not self.varies(index) and (condition is None or not condition.lanes):
            position = self.value(index, u)
            if condition is not None:
                position = b.select(condition, position, self._i64(0))
            raw = b.emit(kind, 0, f"load {kind}, ptr {{0}}, align {align}", self._address(buffer, position), at=at, unique=fixed)
            value = self.emitter.from_memory(raw, dtype)
            return value if condition is None else self.emitter.b.select(condition, *b.unify(value, other))
        at = max(at, self.guard)
        active = self._both(b.splat(condition) if condition is not None else None, self.mask)
        vector = f"<{b.lanes} x {kind}>"
        if self.lane_stride(index) == 1:
            pointer = self._address(buffer, self.lane_zero(index, u))
            if active is None:
                raw = b.emit(kind, b.lanes, f"load {vector}, ptr {{0}}, align {align}", pointer, at=at, unique=fixed)
            else:
                name = f"llvm.masked.load.v{b.lanes}{MANGLED[kind]}.p0"
                b.declarations.add(f"declare {vector} @{name}(ptr, i32, {active.llvm}, {vector})")
                template = f"call {vector} @{name}(ptr {{0}}, i32 {align}, {active.llvm} {{1}}, {vector} zeroinitializer)"
                raw = b.emit(kind, b.lanes, template, pointer, active, at=at, unique=fixed)
        else:
            raw = self._gather(buffer, index, u, active, at, fixed)
        value = self.emitter.from_memory(raw, dtype)
        return value if condition is None else b.select(b.splat(condition), value, b.splat(other))

    def _gather(self, buffer: int, index: Node, u: int, active: Value | None, at: int, fixed: bool) -> Value:
        b = self.b
        kind = MEMORY[self.kernel.buffers[buffer].dtype]
        align = max(ELEMENT_BITS[kind] // 8, 1)
        vector, pointers = f"<{b.lanes} x {kind}>", self._lane_addresses(buffer, index, u)
        active = active or b.splat(b.constant(True, "i1"))
        name = f"llvm.masked.gather.v{b.lanes}{MANGLED[kind]}.v{b.lanes}p0"
        b.declarations.add(f"declare {vector} @{name}(<{b.lanes} x ptr>, i32, {active.llvm}, {vector})")
        template = f"call {vector} @{name}(<{b.lanes} x ptr> {{0}}, i32 {align}, {active.llvm} {{1}}, {vector} zeroinitializer)"
        return b.emit(kind, b.lanes, template, pointers, active, at=at, unique=fixed)

    def _store(self, store: Store, u: int, value: Value) -> None:
        b = self.b
        dtype = self.kernel.buffers[store.buffer].dtype
        if dtype == torch.int64:
            value = self._to_width(value, "i64")
        kind = MEMORY[dtype]
        align = max(ELEMENT_BITS[kind] // 8, 1)
        varies = self.varies(store.index)
        if not varies and u and not self.varies(store.value) and store.mode == "set":
            return
        if not varies and not self.schedule.vector is None and value.lanes:
            value = self._last_or_sum(store, value)
        if not varies and not value.lanes:
            pointer = self._address(store.buffer, self.value(store.index, u))
            if store.mode == "add":
                old = b.emit(kind, 0, f"load {kind}, ptr {{0}}, align {align}", pointer, at=b.depth, unique=True)
                value = self._accumulate(self.emitter.from_memory(old, dtype), value, dtype)
            raw = self.emitter.to_memory(value, dtype)
            b.effect(f"store {raw.typed}, ptr {pointer.text}, align {align}")
            return
        value = b.splat(value)
        if self.lane_stride(store.index) == 1:
            pointer = self._address(store.buffer, self.lane_zero(store.index, u))
            self._vector_store(store, pointer, value, align)
        elif store.mode == "add":
            self._scatter_add(store, u, value, align)
        else:
            pointers = self._lane_addresses(store.buffer, store.index, u)
            raw = self.emitter.to_memory(value, dtype)
            active = self.mask or b.splat(b.constant(True, "i1"))
            name = f"llvm.masked.scatter.v{b.lanes}{MANGLED[kind]}.v{b.lanes}p0"
            b.declarations.add(f"declare void @{name}({raw.llvm}, <{b.lanes} x ptr>, i32, {active.llvm})")
            b.effect(f"call void @{name}({raw.typed}, {pointers.typed}, i32 {align}, {active.typed})")

    def _accumulate(self, old: Value, value: Value, dtype: torch.dtype) -> Value:
        opcode = "fadd" if dtype.is_floating_point else "or" if dtype == torch.bool else "add"
        return self.b.inst(opcode, old, value)

    def _last_or_sum(self, store: Store, value: Value) -> Value:
        """Many lanes to one place: their sum, or the last active lane."""
        if store.mode == "add":
            zero = self.b.splat(self.b.constant(0, value.type))
            if self.mask is not None:
                value = self.b.select(self.mask, value, zero)
            lanes = value.lanes
            while lanes > 1:
                lanes //= 2
                low = self.b.shuffle(value, value, list(range(lanes)))
                high = self.b.shuffle(value, value, list(range(lanes, 2 * lanes)))
                value = self._accumulate(low, high, self.kernel.buffers[store.buffer].dtype)
            return self.b.extract(value, 0)
        if self.mask is None:
            return self.b.extract(value, value.lanes - 1)
        return self._last_active(value)

    def _last_active(self, value: Value) -> Value:
        b = self.b
        count = b.cast("zext", self.mask, "i32")
        lanes = count.lanes
        while lanes > 1:
            lanes //= 2
            low, high = b.shuffle(count, count, list(range(lanes))), b.shuffle(count, count, list(range(lanes, 2 * lanes)))
            count = b.inst("add", low, high)
        last = b.inst("sub", b.extract(count, 0), b.constant(1, "i32"))
        return b.emit(value.type, 0, f"extractelement {value.llvm} {{0}}, i32 {{1}}", value, last)

    def _vector_store(self, store: Store, pointer: Value, value: Value, align: int) -> None:
        b, dtype = self.b, self.kernel.buffers[store.buffer].dtype
        kind = MEMORY[dtype]
        if store.mode == "add":
            old = self._plain_vector_load(pointer, kind, align)
            value = self._accumulate(self.emitter.from_memory(old, dtype), value, dtype)
        raw = self.emitter.to_memory(value, dtype)
        if self.mask is None:
            b.effect(f"store {raw.typed}, ptr {pointer.text}, align {align}")
            return
        name = f"llvm.masked.store.v{b.lanes}{MANGLED[kind]}.p0"
        b.declarations.add(f"declare void @{name}({raw.llvm}, ptr, i32, {self.mask.llvm})")
        b.effect(f"call void @{name}({raw.typed}, ptr {pointer.text}, i32 {align}, {self.mask.typed})")

    def _plain_vector_load(self, pointer: Value, kind: str, align: int) -> Value:
        b = self.b
        vector = f"<{b.lanes} x {kind}>"
        if self.mask is None:
            return b.emit(kind, b.lanes, f"load {vector}, ptr {{0}}, align {align}", pointer, at=b.depth, unique=True)
        name = f"llvm.masked.load.v{b.lanes}{MANGLED[kind]}.p0"
        b.declarations.add(f"declare {vector} @{name}(ptr, i32, {self.mask.llvm}, {vector})")
        template = f"call {vector} @{name}(ptr {{0}}, i32 {align}, {self.mask.llvm} {{1}}, {vector} zeroinitializer)"
        return b.emit(kind, b.lanes, template, pointer, self.mask, at=b.depth, unique=True)

    def _scatter_add(self, store: Store, u: int, value: Value, align: int) -> None:
        """Lane by lane, since lanes may meet in one place."""
        b, dtype = self.b, self.kernel.buffers[store.buffer].dtype
        kind = MEMORY[dtype]
        pointers = self._lane_addresses(store.buffer, store.index, u)
        for lane in range(b.lanes):
            inside = b.extract(self.mask, lane) if self.mask is not None else None
            if inside is not None:
                self._open_if(inside)
            pointer, one = b.extract(pointers, lane), b.extract(value, lane)
            old = b.emit(kind, 0, f"load {kind}, ptr {{0}}, align {align}", pointer, at=b.depth, unique=True)
            raw = self.emitter.to_memory(self._accumulate(self.emitter.from_memory(old, dtype), one, dtype), dtype)
            b.effect(f"store {raw.typed}, ptr {pointer.text}, align {align}")
            if inside is not None:
                self._close()
