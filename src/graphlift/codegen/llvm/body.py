"""Values and memory accesses of one point of a kernel's grid, as vectors or scalars.

In: IR nodes, the schedule, the lanes' position. Out: `Value`s and stores in the function being built.
Always: memory is touched only at indices the kernel computes for active lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from graphlift.codegen.llvm.affine import Indices, fits_int32
from graphlift.codegen.llvm.ops import MEMORY, REGISTER, Emitter
from graphlift.codegen.llvm.rowcache import RowCache, choose_cached
from graphlift.codegen.llvm.schedule import Schedule, axis_stride, choose, loop_nodes, stores_of, walk
from graphlift.codegen.llvm.sizes import Sizes
from graphlift.codegen.llvm.target import Target
from graphlift.codegen.llvm.text import ELEMENT_BITS, MANGLED, Builder, Value
from graphlift.codegen.llvm.tiles import lies_across, turned, without_axis
from graphlift.codegen.llvm.vmath import VectorMath
from graphlift.lower.ir import Kernel, Loop, Node, Store
from graphlift.shapes.expr import Expr, SizeLike

_ROW_BUFFER = """declare ptr @malloc(i64)
declare void @free(ptr)
define internal ptr @gl_row_buffer(ptr %stack, i64 %room, i64 %needed) nounwind {
  %fits = icmp sle i64 %needed, %room
  br i1 %fits, label %small, label %large
small:
  ret ptr %stack
large:
  %aligned = add i64 %needed, 64
  %block = call ptr @malloc(i64 %aligned)
  ret ptr %block
}
define internal void @gl_free_row_buffer(ptr %stack, ptr %used) nounwind {
  %same = icmp eq ptr %stack, %used
  br i1 %same, label %end, label %large
large:
  call void @free(ptr %used)
  br label %end
end:
  ret void
}"""


class Body:
    """What a kernel computes at the lanes starting at each of ``bases``, under ``mask``."""

    def __init__(self, name: str, kernel: Kernel, target: Target) -> None:
        self.name = name
        self.target = target
        self.kernel = kernel
        self.sizes = self.kernel.outer + self.kernel.inner
        self.indices = Indices(self.sizes)
        self.empty = math.prod(self.kernel.outer) == 0
        self.schedule: Schedule = choose(self.kernel, target, self.indices)
        self.b = Builder(self.schedule.lanes)
        self.varying = Sizes(self.b, kernel.symbols, len(kernel.buffers))
        self.emitter = Emitter(self.b, VectorMath(self.b, target))
        self.written = {store.buffer for store, _ in stores_of(self.kernel)}
        self.axes: dict[int, Value] = {}
        self.bases: list[Value] = []  # of the vector axis, one per unrolled copy
        self.mask: Value | None = None  # of the current body's lanes, None when all are on
        self.guard = 0  # depth below which loads along the vector axis may not be hoisted
        self.memos: list[dict[tuple[Node, Any, str], Value]] = [{}]
        self.reduced: dict[tuple[int, int], list[Value]] = {}
        self.lane_facts: dict[Node, tuple[SizeLike | None, int]] = {}
        self.varies_memo: dict[Node, bool] = {}
        self.serial = any(store.mode == "add" for store, _ in stores_of(self.kernel))
        self.pointers = [self._base(k) for k in range(len(self.kernel.buffers))]
        self.loop_position = 0
        self.row_buffers: list[tuple[str, str]] = []  # on the stack, in use
        self.tile_start: Value | None = None  # the task's first value of the tile axis
        self.turned: dict[Node, str] = {}  # what holds the current tile of a load, turned
        self.unturned: dict[Store, str] = {}  # what takes the current tile of a store, before it is turned
        self.cache = RowCache()
        if not self.empty:
            self.cache = choose_cached(self.kernel, self.schedule, self.varies, self._reads_written)
            for node in self.cache.first:
                self.cache.slots[node] = self._row_buffer(REGISTER[node.dtype])

    def _row_buffer(self, kind: str) -> str:
        """Memory for a cached row: on the stack, or on the heap for this call where a length that varies exceeds it."""
        elements = self.cache.elements
        if not isinstance(elements, Expr):
            return self.b.alloca(f"[{elements} x {kind}]")
        stack = self.b.alloca(f"[{self.cache.room} x {kind}]")
        self.b.declarations.add(_ROW_BUFFER)
        step = ELEMENT_BITS[kind] // 8
        room = f"i64 {self.cache.room * step}"
        call = f"call ptr @gl_row_buffer(ptr {stack}, {room}, i64 {{0}})"
        buffer = self.b.emit("ptr", 0, call, self._i64(elements * step), unique=True)
        self.row_buffers.append((stack, buffer.text))
        return buffer.text

    def _base(self, position: int) -> Value:
        slot = self.b.emit("ptr", 0, f"getelementptr ptr, ptr %buffers, i64 {position}")
        return self.b.emit("ptr", 0, "load ptr, ptr {0}, align 8", slot)

    def open_loop(self, start: Value, stop: Value, step: int) -> Value:
        self.memos.append({})
        return self.b.open_loop(start, stop, step)

    def open_if(self, condition: Value) -> None:
        self.memos.append({})
        self.b.open_if(condition)

    def close(self) -> None:
        self.memos.pop()
        self.b.close()

    def _i64(self, value: SizeLike) -> Value:
        return self.varying.value(value)

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

    def lane_stride(self, node: Node) -> SizeLike | None:
        """How an integer node moves from lane to lane: by the same for all of them, or None."""
        return self._lane_fact(node)[0]

    def _lane_fact(self, node: Node) -> tuple[SizeLike | None, int]:
        """(stride between lanes or None, a power of two that divides the value of lane 0)."""
        found = self.lane_facts.get(node)
        if found is None:
            found = self.lane_facts[node] = self._find_lane_fact(node)
        return found

    def _find_lane_fact(self, node: Node) -> tuple[SizeLike | None, int]:
        lanes = self.schedule.lanes
        if not self.varies(node):
            return 0, math.gcd(node.attr, lanes) if node.op == "const" else 1
        if node.op == "axis":
            return 1, lanes
        facts = [self._lane_fact(arg) for arg in node.args] if node.dtype == torch.int64 else []
        strides = [f[0] for f in facts if f[0] is not None]
        if not facts or len(strides) < len(facts):
            return None, 1
        if node.op in ("add", "sub"):
            sign = 1 if node.op == "add" else -1
            return strides[0] + sign * strides[1], math.gcd(facts[0][1], facts[1][1])
        if node.op == "mul":
            for this, other in ((0, 1), (1, 0)):
                if node.args[this].op == "size":
                    return strides[other] * node.args[this].attr, 1
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
            found: Value | None = memo.get(key)
            if found is not None:
                return found
        value: Value = compute(node, u)
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
        slot = self.cache.slots.get(node)
        if slot is None or self.loop_position < self.cache.first[node]:
            return self._computed(node, u)
        b = self.b
        kind = REGISTER[node.dtype]
        index = b.inst("add", self._row_start(), self.bases[u])
        pointer = b.emit("ptr", 0, f"getelementptr {kind}, ptr {slot}, i64 {{0}}", index)
        if self.loop_position > self.cache.first[node]:
            # The row is padded to whole vectors: lanes beyond its end hold something, and are masked where used.
            return self._vector_load(pointer, kind, 4, None, b.depth, True)
        value = self._computed(node, u)
        b.effect(f"store {b.splat(value).typed}, ptr {pointer.text}, align 4")
        return value

    def _row_start(self) -> Value:
        """Where the current point of the other inner axes starts in a cached row."""
        b, total, scale = self.b, self.b.constant(0, "i64"), self.cache.row
        for k in range(len(self.sizes) - 1, len(self.kernel.outer) - 1, -1):
            if k != self.schedule.vector:
                step = b.inst("mul", self.axes[k], self._i64(scale))
                total = step if total.text == "0" else b.inst("add", total, step)
                scale = scale * self.sizes[k]
        return total

    def _computed(self, node: Node, u: int) -> Value:
        b = self.b
        match node.op:
            case "const":
                return self.emitter.const(node)
            case "size":
                return self._i64(node.attr)
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
                return b.inst("add", b.splat(first), self._lane_offsets(kind, stride))
        args = [self.value(arg, u) for arg in node.args]
        if any(arg.dtype == torch.int64 for arg in node.args):
            args = self._same_width(node, args)
        return self.emitter.node(node, args)

    def _lane_offsets(self, kind: str, stride: SizeLike) -> Value:
        """``stride`` times the lane's number."""
        b = self.b
        if not isinstance(stride, Expr):
            return b.iota(kind, stride)
        return b.inst("mul", b.iota(kind), b.splat(b.cast("trunc", self._i64(stride), kind)))

    def _same_width(self, node: Node, args: list[Value]) -> list[Value]:
        """int64 vectors whose values are known to fit are computed as int32: half the registers."""
        wide = [arg.dtype == torch.int64 for arg in node.args]
        vector = any(a.lanes for a in args)
        narrow = (
            vector
            and node.op not in ("cast", "bitcast")
            and all(fits_int32(self.indices.range(arg)) for arg, w in zip(node.args, wide, strict=True) if w)
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
        return self.b.emit(
            "ptr", 0, f"getelementptr {kind}, ptr {{0}}, i64 {{1}}", self.pointers[buffer], index
        )

    def _lane_addresses(self, buffer: int, index: Node, u: int) -> Value:
        """A vector of pointers, with 32-bit offsets from a scalar where possible (cheaper gathers)."""
        b = self.b
        stride = self.lane_stride(index)
        if stride is not None:
            first = self._address(buffer, self.lane_zero(index, u))
            kind = MEMORY[self.kernel.buffers[buffer].dtype]
            offsets = self._lane_offsets("i64", stride)
            return b.emit(
                "ptr", b.lanes, f"getelementptr {kind}, ptr {{0}}, {offsets.llvm} {{1}}", first, offsets
            )
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
        if other is not None and self.kernel.buffers[buffer].numel == 0:
            return other
        fixed = buffer in self.written
        at = b.depth if fixed else 0
        if not self.varies(index) and (condition is None or not condition.lanes):
            position = self.value(index, u)
            if condition is not None:
                position = b.select(condition, position, self._i64(0))
            pointer = self._address(buffer, position)
            if condition is not None and isinstance(self.kernel.buffers[buffer].numel, Expr):
                nothing = Value(b.alloca(kind, 8), "ptr", 0, 0)  # the buffer may be empty in this call
                pointer = b.select(condition, pointer, nothing)
            raw = b.emit(kind, 0, f"load {kind}, ptr {{0}}, align {align}", pointer, at=at, unique=fixed)
            value = self.emitter.from_memory(raw, dtype)
            return (
                value if condition is None or other is None else b.select(condition, *b.unify(value, other))
            )
        if node in self.turned:
            row = self._current_row(self.turned[node], kind)
            return self.emitter.from_memory(self._vector_load(row, kind, 4, None, b.depth, True), dtype)
        at = max(at, self.guard)
        active = self._both(b.splat(condition) if condition is not None else None, self.mask)
        if self.lane_stride(index) == 1:
            pointer = self._address(buffer, self.lane_zero(index, u))
            raw = self._vector_load(pointer, kind, align, active, at, fixed)
        elif self.lane_stride(index) in (-1, 2) and active is None:
            raw = self._picked(buffer, index, u, at, fixed)
        elif active is None and (times := self._repeats(index)) > 1:
            raw = self._repeated(buffer, index, u, times, at, fixed)
        else:
            raw = self._gather(buffer, index, u, active, at, fixed)
        value = self.emitter.from_memory(raw, dtype)
        if condition is None or other is None:
            return value
        return b.select(b.splat(condition), value, b.splat(other))

    def _picked(self, buffer: int, index: Node, u: int, at: int, fixed: bool) -> Value:
        """Lanes that lie backwards, or at every other element: picked from what lies between the first and the last."""
        b = self.b
        kind = MEMORY[self.kernel.buffers[buffer].dtype]
        last, stride = b.lanes - 1, self.lane_stride(index)
        starts, picks = [-last], list(range(last, -1, -1))
        if stride == 2:
            # The second vector ends at the last lane's element: nothing beyond it may be read.
            starts, picks = [0, last], [2 * k + (1 if 2 * k > last else 0) for k in range(b.lanes)]
        first = self.lane_zero(index, u)
        vectors = [
            self._vector_at(buffer, b.inst("add", first, b.constant(k, "i64")), kind, at, fixed)
            for k in starts
        ]
        return b.shuffle(vectors[0], vectors[-1], picks)

    def _repeats(self, index: Node) -> int:
        """How many lanes in a row have the same index, where it then moves by one; else 0."""
        if index.op == "floordiv" and index.args[1].op == "const":
            times, lanes = index.args[1].attr, self.schedule.lanes
            whole = times > 0 and lanes % times == 0
            return times if whole and self._lane_fact(index.args[0]) == (1, lanes) else 0
        if index.op in ("add", "sub"):
            one, other = index.args
            if not self.varies(other):
                return self._repeats(one)
            return self._repeats(other) if index.op == "add" and not self.varies(one) else 0
        return 0

    def _repeated(self, buffer: int, index: Node, u: int, times: int, at: int, fixed: bool) -> Value:
        b, kind = self.b, MEMORY[self.kernel.buffers[buffer].dtype]
        pointer = self._address(buffer, self.lane_zero(index, u))
        count, align = b.lanes // times, max(ELEMENT_BITS[kind] // 8, 1)
        load = f"load <{count} x {kind}>, ptr {{0}}, align {align}"
        few = b.emit(kind, count, load, pointer, at=at, unique=fixed)
        return b.shuffle(few, few, [k // times for k in range(b.lanes)])

    def _vector_at(self, buffer: int, first: Value, kind: str, at: int, fixed: bool) -> Value:
        align = max(ELEMENT_BITS[kind] // 8, 1)
        return self._vector_load(self._address(buffer, first), kind, align, None, at, fixed)

    # --- tiles -----------------------------------------------------------------------------------------------

    def open_tiles(self, loop: Loop, tile: int, start: Value) -> None:
        """Read what lies along the tile axis, from ``start`` on, for all lanes, and keep it turned; find room for
        what is stored along it."""
        b = self.b
        for node in loop_nodes(loop):
            if node.op != "load" or len(node.args) > 1 or node.attr in self.written:
                continue
            if self._lies_across(node.args[0], tile):
                kind = MEMORY[self.kernel.buffers[node.attr].dtype]
                rows = [
                    self._vector_at(node.attr, at, kind, b.depth, True)
                    for at in self._along(node.args[0], tile, start)
                ]
                self.turned[node] = self._put_tile(turned(b, rows))
        for store in loop.stores:
            if self._stored_last(store) and self._lies_across(store.index, tile):
                kind = MEMORY[self.kernel.buffers[store.buffer].dtype]
                self.unturned[store] = b.alloca(f"[{b.lanes * b.lanes} x {kind}]")

    def _stored_last(self, store: Store) -> bool:
        """Whether nothing else reads or writes the buffer, so that a tile of it may be stored when it is complete."""
        used = [node.attr for node, _ in walk(self.kernel) if node.op == "load"]
        used += [other.buffer for other, _ in stores_of(self.kernel) if other is not store]
        return store.mode == "set" and store.buffer not in used

    def close_tiles(self, tile: int, start: Value) -> None:
        """Turn what was stored along the tile axis, and store it."""
        b = self.b
        for store, slot in self.unturned.items():
            kind = MEMORY[self.kernel.buffers[store.buffer].dtype]
            columns = [
                self._vector_load(self._tile_row(slot, kind, self._i64(k)), kind, 4, None, b.depth, True)
                for k in range(b.lanes)
            ]
            for at, row in zip(self._along(store.index, tile, start), turned(b, columns), strict=True):
                pointer = self._address(store.buffer, at)
                b.effect(f"store {row.typed}, ptr {pointer.text}, align {max(ELEMENT_BITS[kind] // 8, 1)}")
        self.turned, self.unturned = {}, {}

    def _lies_across(self, index: Node, tile: int) -> bool:
        return lies_across(self.lane_stride(index), axis_stride(index, tile))

    def _along(self, index: Node, tile: int, start: Value) -> list[Value]:
        """Where each lane's part of a tile starts."""
        b, stride = self.b, self.lane_stride(index)
        assert stride is not None
        first = b.inst("add", self.lane_zero(without_axis(index, tile), 0), start)
        steps = [b.inst("mul", self._i64(stride), b.constant(k, "i64")) for k in range(b.lanes)]
        return [b.inst("add", first, step) for step in steps]

    def _put_tile(self, rows: list[Value]) -> str:
        b, kind = self.b, rows[0].type
        slot = b.alloca(f"[{b.lanes * b.lanes} x {kind}]")
        for k, row in enumerate(rows):
            b.effect(f"store {row.typed}, ptr {self._tile_row(slot, kind, self._i64(k)).text}, align 4")
        return slot

    def _tile_row(self, slot: str, kind: str, row: Value) -> Value:
        at = self.b.inst("mul", row, self._i64(self.b.lanes))
        return self.b.emit("ptr", 0, f"getelementptr {kind}, ptr {slot}, i64 {{0}}", at)

    def _current_row(self, slot: str, kind: str) -> Value:
        assert self.schedule.tile is not None and self.tile_start is not None
        return self._tile_row(slot, kind, self.b.inst("sub", self.axes[self.schedule.tile], self.tile_start))

    def _gather(self, buffer: int, index: Node, u: int, active: Value | None, at: int, fixed: bool) -> Value:
        b = self.b
        kind = MEMORY[self.kernel.buffers[buffer].dtype]
        align = max(ELEMENT_BITS[kind] // 8, 1)
        vector, pointers = f"<{b.lanes} x {kind}>", self._lane_addresses(buffer, index, u)
        active = active or b.splat(b.constant(True, "i1"))
        name = f"llvm.masked.gather.v{b.lanes}{MANGLED[kind]}.v{b.lanes}p0"
        b.declarations.add(f"declare {vector} @{name}(<{b.lanes} x ptr>, i32, {active.llvm}, {vector})")
        arguments = f"<{b.lanes} x ptr> {{0}}, i32 {align}, {active.llvm} {{1}}, {vector} zeroinitializer"
        template = f"call {vector} @{name}({arguments})"
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
        if not varies and self.schedule.vector is not None and value.lanes:
            value = self._last_or_sum(store, value)
        if not varies and not value.lanes:
            pointer = self._address(store.buffer, self.value(store.index, u))
            if store.mode == "add":
                old = b.emit(
                    kind, 0, f"load {kind}, ptr {{0}}, align {align}", pointer, at=b.depth, unique=True
                )
                value = self._accumulate(self.emitter.from_memory(old, dtype), value, dtype)
            raw = self.emitter.to_memory(value, dtype)
            b.effect(f"store {raw.typed}, ptr {pointer.text}, align {align}")
            return
        value = b.splat(value)
        if store in self.unturned:
            raw = self.emitter.to_memory(value, dtype)
            row = self._current_row(self.unturned[store], kind)
            b.effect(f"store {raw.typed}, ptr {row.text}, align 4")
        elif self.lane_stride(store.index) == 1:
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
        return self._last_active(value, self.mask)

    def _last_active(self, value: Value, mask: Value) -> Value:
        b = self.b
        count = b.cast("zext", mask, "i32")
        lanes = count.lanes
        while lanes > 1:
            lanes //= 2
            low, high = (
                b.shuffle(count, count, list(range(lanes))),
                b.shuffle(count, count, list(range(lanes, 2 * lanes))),
            )
            count = b.inst("add", low, high)
        last = b.inst("sub", b.extract(count, 0), b.constant(1, "i32"))
        return b.emit(value.type, 0, f"extractelement {value.llvm} {{0}}, i32 {{1}}", value, last)

    def _vector_store(self, store: Store, pointer: Value, value: Value, align: int) -> None:
        b, dtype = self.b, self.kernel.buffers[store.buffer].dtype
        kind = MEMORY[dtype]
        if store.mode == "add":
            old = self._vector_load(pointer, kind, align, self.mask, b.depth, True)
            value = self._accumulate(self.emitter.from_memory(old, dtype), value, dtype)
        raw = self.emitter.to_memory(value, dtype)
        if self.mask is None:
            b.effect(f"store {raw.typed}, ptr {pointer.text}, align {align}")
            return
        name = f"llvm.masked.store.v{b.lanes}{MANGLED[kind]}.p0"
        b.declarations.add(f"declare void @{name}({raw.llvm}, ptr, i32, {self.mask.llvm})")
        b.effect(f"call void @{name}({raw.typed}, ptr {pointer.text}, i32 {align}, {self.mask.typed})")

    def _vector_load(
        self, pointer: Value, kind: str, align: int, active: Value | None, at: int, fixed: bool
    ) -> Value:
        """As many elements as there are lanes, in a row; ``active``: those that may be read."""
        b = self.b
        vector = f"<{b.lanes} x {kind}>"
        if active is None:
            template = f"load {vector}, ptr {{0}}, align {align}"
            return b.emit(kind, b.lanes, template, pointer, at=at, unique=fixed)
        name = f"llvm.masked.load.v{b.lanes}{MANGLED[kind]}.p0"
        b.declarations.add(f"declare {vector} @{name}(ptr, i32, {active.llvm}, {vector})")
        arguments = f"ptr {{0}}, i32 {align}, {active.llvm} {{1}}, {vector} zeroinitializer"
        return b.emit(
            kind, b.lanes, f"call {vector} @{name}({arguments})", pointer, active, at=at, unique=fixed
        )

    def _scatter_add(self, store: Store, u: int, value: Value, align: int) -> None:
        """Lane by lane, since lanes may meet in one place."""
        b, dtype = self.b, self.kernel.buffers[store.buffer].dtype
        kind = MEMORY[dtype]
        pointers = self._lane_addresses(store.buffer, store.index, u)
        for lane in range(b.lanes):
            inside = b.extract(self.mask, lane) if self.mask is not None else None
            if inside is not None:
                self.open_if(inside)
            pointer, one = b.extract(pointers, lane), b.extract(value, lane)
            old = b.emit(kind, 0, f"load {kind}, ptr {{0}}, align {align}", pointer, at=b.depth, unique=True)
            raw = self.emitter.to_memory(
                self._accumulate(self.emitter.from_memory(old, dtype), one, dtype), dtype
            )
            b.effect(f"store {raw.typed}, ptr {pointer.text}, align {align}")
            if inside is not None:
                self.close()
