"""Reductions: accumulators in registers (one per unrolled copy), folded across copies and lanes at the end.

In: values one body at a time. Out: the reduced value, a scalar or one per lane.
Always: NaN wins min, max, argmax and argmin; argmax and argmin give the first position among equals.
"""

from __future__ import annotations

from dataclasses import field

import torch

from graphlift.codegen.llvm.ops import LOW_PRECISION, REGISTER, Emitter
from graphlift.codegen.llvm.text import Builder, Value
from graphlift.data import dataclass
from graphlift.lower.ir import Reduction
from graphlift.shapes.expr import SizeLike

_LAST = {"i32": 2**31 - 1, "i64": 2**63 - 1}


@dataclass(slots=True)
class Fold:
    """Accumulator slots of one reduction; mem2reg turns them into registers."""

    emitter: Emitter
    reduction: Reduction
    lanes: int
    values: list[str]
    positions: list[str]
    position_type: str = "i32"
    used: set[int] = field(default_factory=set)

    @property
    def b(self) -> Builder:
        return self.emitter.b

    @property
    def kind(self) -> str:
        return REGISTER[self.folded]

    @property
    def folded(self) -> torch.dtype:
        """What the accumulator holds."""
        return self.reduction.dtype if self.reduction.op in ("sum", "prod") else self.reduction.value.dtype

    @property
    def tracks_position(self) -> bool:
        return self.reduction.op in ("argmax", "argmin")

    def start(self) -> None:
        identity = self.identity(self.lanes)
        for slot in self.values:
            self.b.effect(f"store {identity.typed}, ptr {slot}")
        for slot in self.positions:
            last = self._splat(self.b.constant(_LAST[self.position_type], self.position_type), self.lanes)
            self.b.effect(f"store {last.typed}, ptr {slot}")

    def _splat(self, value: Value, lanes: int) -> Value:
        return self.b.splat(value, lanes) if lanes else value

    def identity(self, lanes: int) -> Value:
        return self._splat(self.b.constant(_identity(self.reduction.op, self.folded), self.kind), lanes)

    def add(self, u: int, value: Value, position: Value | None, mask: Value | None) -> None:
        b = self.b
        if self.reduction.op in ("sum", "prod"):
            source, target = self.reduction.value.dtype, self.folded
            wide = torch.float32 if target in LOW_PRECISION else target
            value = self.emitter.cast(value, torch.float32 if source in LOW_PRECISION else source, wide)
        if value.type == "i32" and self.kind == "i64":
            value = b.cast("sext", value, "i64")
        value = self._splat(value, self.lanes)
        if mask is not None:
            value = b.select(mask, value, self.identity(self.lanes))
        self.used.add(u)
        old = self._read(self.values[u], self.kind)
        if not self.tracks_position:
            b.effect(f"store {self.combine(old, value).typed}, ptr {self.values[u]}")
            return
        assert position is not None
        if position.type != self.position_type:
            position = b.cast(
                "trunc" if self.position_type == "i32" else "sext", position, self.position_type
            )
        position = self._splat(position, self.lanes)
        if mask is not None:
            last = self._splat(b.constant(_LAST[self.position_type], self.position_type), self.lanes)
            position = b.select(mask, position, last)
        old_position = self._read(self.positions[u], self.position_type)
        best, at = self.combine_at((old, old_position), (value, position))
        b.effect(f"store {best.typed}, ptr {self.values[u]}")
        b.effect(f"store {at.typed}, ptr {self.positions[u]}")

    def _read(self, slot: str, kind: str) -> Value:
        vector = f"<{self.lanes} x {kind}>" if self.lanes else kind
        return self.b.emit(kind, self.lanes, f"load {vector}, ptr {slot}", at=self.b.depth, unique=True)

    # --- folding two values ----------------------------------------------------------------------------------

    def combine(self, a: Value, x: Value) -> Value:
        b, floating = self.b, self.folded.is_floating_point
        match self.reduction.op:
            case "sum":
                return b.inst("fadd" if floating else "or" if self.kind == "i1" else "add", a, x)
            case "prod":
                return b.inst("fmul" if floating else "and" if self.kind == "i1" else "mul", a, x)
            case "any":
                return b.inst("or", a, x)
            case "all":
                return b.inst("and", a, x)
            case "max" | "min" as op:
                if self.kind == "i1":
                    return b.inst("or" if op == "max" else "and", a, x)
                if not floating:
                    sign = "u" if self.folded == torch.uint8 else "s"
                    return b.intrinsic(f"{sign}{op}", a, x)
                return self.emitter.maximum(a, x, "fcmp ogt" if op == "max" else "fcmp olt")
        raise AssertionError(self.reduction.op)

    def combine_at(self, a: tuple[Value, Value], x: tuple[Value, Value]) -> tuple[Value, Value]:
        b = self.b
        greater = self.reduction.op == "argmax"
        earlier = b.inst("icmp slt", x[1], a[1], kind="i1")
        if self.folded.is_floating_point:
            better = b.inst("fcmp ogt" if greater else "fcmp olt", x[0], a[0], kind="i1")
            x_nan = b.inst("fcmp uno", x[0], x[0], kind="i1")
            a_nan = b.inst("fcmp uno", a[0], a[0], kind="i1")
            a_number = b.inst("fcmp ord", a[0], a[0], kind="i1")
            better = b.inst("or", better, b.inst("and", x_nan, a_number))
            equal = b.inst("or", b.inst("fcmp oeq", x[0], a[0], kind="i1"), b.inst("and", x_nan, a_nan))
        else:
            sign = "u" if self.folded in (torch.uint8, torch.bool) else "s"
            better = b.inst(f"icmp {sign}{'gt' if greater else 'lt'}", x[0], a[0], kind="i1")
            equal = b.inst("icmp eq", x[0], a[0], kind="i1")
        take = b.inst("or", better, b.inst("and", equal, earlier))
        return b.select(take, x[0], a[0]), b.select(take, x[1], a[1])

    # --- results ---------------------------------------------------------------------------------------------

    def per_lane(self, copies: int) -> list[Value]:
        """The result of each copy, lane by lane."""
        slots, kind = (
            (self.positions, self.position_type) if self.tracks_position else (self.values, self.kind)
        )
        return [self._finish(self._read(slot, kind)) for slot in slots[:copies]]

    def across_lanes(self) -> Value:
        """One scalar over all copies and lanes."""
        b = self.b
        pairs: list[tuple[Value, ...]] = []
        for u in sorted(self.used):
            pair = [self._read(self.values[u], self.kind)]
            pair += [self._read(self.positions[u], self.position_type)] if self.tracks_position else []
            pairs.append(tuple(pair))

        def merge(one: tuple[Value, ...], two: tuple[Value, ...]) -> tuple[Value, ...]:
            if self.tracks_position:
                return self.combine_at((one[0], one[1]), (two[0], two[1]))
            return (self.combine(one[0], two[0]),)

        while len(pairs) > 1:
            pairs = [
                merge(*pairs[k : k + 2]) if k + 1 < len(pairs) else pairs[k] for k in range(0, len(pairs), 2)
            ]
        result = pairs[0]
        if self.kind == "i1" and not self.tracks_position:
            name = "or" if self.reduction.op in ("any", "max", "sum") else "and"
            return self._finish(self._mask_to_bool(result[0], name))
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            low = tuple(b.shuffle(r, r, list(range(lanes))) for r in result)
            high = tuple(b.shuffle(r, r, list(range(lanes, 2 * lanes))) for r in result)
            result = merge(low, high)
        return self._finish(b.extract(result[-1], 0) if self.lanes else result[-1])

    def _mask_to_bool(self, mask: Value, name: str) -> Value:
        if not mask.lanes:
            return mask
        full = f"llvm.vector.reduce.{name}.v{mask.lanes}i1"
        self.b.declarations.add(f"declare i1 @{full}({mask.llvm})")
        return self.b.emit("i1", 0, f"call i1 @{full}({mask.llvm} {{0}})", mask)

    def _finish(self, value: Value) -> Value:
        if self.tracks_position:
            return self.b.cast("sext", value, "i64")
        if self.reduction.dtype in LOW_PRECISION and self.reduction.op in ("sum", "prod"):
            return self.emitter.round_to(value, self.reduction.dtype)
        return value


def _identity(op: str, dtype: torch.dtype) -> float | int | bool:
    if op in ("sum", "any"):
        return 0
    if op in ("prod", "all"):
        return 1
    if dtype == torch.bool:
        return op in ("min", "argmin")
    if dtype.is_floating_point:
        return float("-inf") if op in ("max", "argmax") else float("inf")
    info = torch.iinfo(dtype)
    return int(info.min) if op in ("max", "argmax") else int(info.max)


def fold_for(
    emitter: Emitter, reduction: Reduction, lanes: int, copies: int, inner_points: SizeLike = 0
) -> Fold:
    """A started fold with ``copies`` accumulators of ``lanes`` lanes."""
    fold = Fold(emitter, reduction, lanes, [], [])
    fold.position_type = "i32" if isinstance(inner_points, int) and inner_points < 2**31 else "i64"
    vector = f"<{lanes} x {{}}>" if lanes else "{}"
    for _ in range(copies):
        fold.values.append(emitter.b.alloca(vector.format(fold.kind), 64))
        if fold.tracks_position:
            fold.positions.append(emitter.b.alloca(vector.format(fold.position_type), 64))
    fold.start()
    return fold
