"""LLVM IR text: typed values, nested regions (loops and branches), hoisting and value numbering while emitting.

In: instructions asked for one by one. Out: the text of one function.
Always: an instruction is placed in the outermost region where its operands exist, and once per region.
"""

from __future__ import annotations

import struct
from dataclasses import field

from graphlift.data import dataclass

ELEMENT_BITS = {
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "half": 16,
    "i32": 32,
    "float": 32,
    "i64": 64,
    "double": 64,
    "ptr": 64,
}
MANGLED = {
    "i1": "i1",
    "i8": "i8",
    "i16": "i16",
    "i32": "i32",
    "i64": "i64",
    "float": "f32",
    "double": "f64",
    "half": "f16",
}


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value or constant: its text, element type, lanes (0 for a scalar) and the depth of its region."""

    text: str
    type: str
    lanes: int
    depth: int

    @property
    def llvm(self) -> str:
        return f"<{self.lanes} x {self.type}>" if self.lanes else self.type

    @property
    def typed(self) -> str:
        return f"{self.llvm} {self.text}"

    @property
    def is_constant(self) -> bool:
        return self.text[0] not in "%@"


@dataclass(slots=True)
class Region:
    """A nested piece of a function: ``pre`` runs once before it, in its parent; ``lines`` is its body."""

    label: str
    kind: str  # "entry", "loop" or "if"
    index: str = ""
    bounds: tuple[str, str, int] = ("", "", 1)
    condition: str = ""
    pre: list[str] = field(default_factory=list)
    lines: list[str | Region] = field(default_factory=list)
    memo: dict[str, Value] = field(default_factory=dict)


def float_text(value: float, kind: str) -> str:
    """A float constant as LLVM reads it: the 64-bit pattern of the value, already rounded to ``kind``."""
    if kind == "float":
        try:
            value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"


class Builder:
    """Emits one function. ``lanes`` is the number of elements of every vector of the current body."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.stack: list[Region] = [Region("entry", "entry")]
        self.allocas: list[str] = []
        self.declarations: set[str] = set()
        self.counter = 0

    # --- regions ---------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        return len(self.stack) - 1

    def fresh(self, hint: str = "v") -> str:
        self.counter += 1
        return f"%{hint}{self.counter}"

    def open_loop(self, start: Value, stop: Value, step: int) -> Value:
        """Enter ``for (i = start; i < stop; i += step)``; returns i."""
        index = self.fresh("i")
        region = Region(self.fresh("L")[1:], "loop", index, (start.text, stop.text, step))
        self.stack[-1].lines.append(region)
        self.stack.append(region)
        return Value(index, "i64", 0, self.depth)

    def open_if(self, condition: Value) -> None:
        region = Region(self.fresh("B")[1:], "if", condition=condition.text)
        self.stack[-1].lines.append(region)
        self.stack.append(region)

    def close(self) -> None:
        self.stack.pop()

    # --- instructions ----------------------------------------------------------------------------------------

    def constant(self, value: float | int | bool, kind: str) -> Value:
        if kind in ("float", "double"):
            return Value(float_text(float(value), kind), kind, 0, 0)
        if kind == "i1":
            return Value("true" if value else "false", kind, 0, 0)
        bits = ELEMENT_BITS[kind]
        wrapped = (int(value) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        return Value(str(wrapped), kind, 0, 0)

    def emit(
        self, kind: str, lanes: int, template: str, *operands: Value, at: int = 0, unique: bool = False
    ) -> Value:
        """``name = template.format(operands)``, at depth ``at`` or deeper as its operands require."""
        depth = max([at, *[o.depth for o in operands]])
        text = template.format(*[o.text for o in operands])
        if not unique:
            for region in self.stack[depth::-1]:
                found = region.memo.get(text)
                if found is not None:
                    return found
        name = self.fresh()
        self._place(f"{name} = {text}", depth)
        value = Value(name, kind, lanes, depth)
        if not unique:
            self.stack[depth].memo[text] = value
        return value

    def effect(self, line: str) -> None:
        """A store or call, at this very point."""
        self.stack[-1].lines.append(line)

    def _place(self, line: str, depth: int) -> None:
        if depth >= self.depth:
            self.stack[-1].lines.append(line)
        else:
            self.stack[depth + 1].pre.append(line)

    def alloca(self, llvm_type: str, align: int = 64) -> str:
        name = self.fresh("slot")
        self.allocas.append(f"{name} = alloca {llvm_type}, align {align}")
        return name

    # --- vectors ---------------------------------------------------------------------------------------------

    def splat(self, value: Value, lanes: int | None = None) -> Value:
        """The value in every lane."""
        lanes = lanes or self.lanes
        if value.lanes:
            return value
        if value.is_constant:
            return Value(f"splat ({value.type} {value.text})", value.type, lanes, 0)
        vector = f"<{lanes} x {value.type}>"
        first = self.emit(
            value.type, lanes, f"insertelement {vector} poison, {value.type} {{0}}, i64 0", value
        )
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.emit(value.type, lanes, f"shufflevector {vector} {{0}}, {vector} poison, {zeros}", first)

    def unify(self, *values: Value) -> tuple[Value, ...]:
        """All scalars, or all vectors if one of them is."""
        lanes = max(v.lanes for v in values)
        return tuple(self.splat(v, lanes) for v in values) if lanes else values

    def iota(self, kind: str, step: int = 1) -> Value:
        items = ", ".join(f"{kind} {k * step}" for k in range(self.lanes))
        return Value(f"<{items}>", kind, self.lanes, 0)

    def inst(self, opcode: str, *values: Value, kind: str | None = None) -> Value:
        """``opcode T a, b`` on unified operands (comparisons: kind i1)."""
        values = self.unify(*values)
        operands = ", ".join(f"{{{k}}}" for k in range(len(values)))
        return self.emit(
            kind or values[0].type, values[0].lanes, f"{opcode} {values[0].llvm} {operands}", *values
        )

    def cast(self, opcode: str, value: Value, kind: str) -> Value:
        if value.type == kind:
            return value
        to = f"<{value.lanes} x {kind}>" if value.lanes else kind
        if value.is_constant and not value.lanes and opcode in ("sext", "trunc"):
            return self.constant(int(value.text), kind)
        return self.emit(kind, value.lanes, f"{opcode} {value.llvm} {{0}} to {to}", value)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        if condition.lanes or yes.lanes or no.lanes:
            lanes = max(condition.lanes, yes.lanes, no.lanes)
            yes, no = self.splat(yes, lanes), self.splat(no, lanes)
            if condition.text == "true":
                return yes
        template = f"select {condition.llvm} {{0}}, {yes.llvm} {{1}}, {yes.llvm} {{2}}"
        return self.emit(yes.type, yes.lanes, template, condition, yes, no)

    def intrinsic(self, name: str, *values: Value, kind: str | None = None) -> Value:
        """``llvm.name.<type>`` on unified operands of one type."""
        values = self.unify(*values)
        kind, lanes = kind or values[0].type, values[0].lanes
        suffix = f"v{lanes}{MANGLED[values[0].type]}" if lanes else MANGLED[values[0].type]
        full = f"llvm.{name}.{suffix}"
        result = f"<{lanes} x {kind}>" if lanes else kind
        self.declarations.add(f"declare {result} @{full}({', '.join(v.llvm for v in values)})")
        operands = ", ".join(f"{v.llvm} {{{k}}}" for k, v in enumerate(values))
        return self.emit(kind, lanes, f"call {result} @{full}({operands})", *values)

    def call(self, symbol: str, kind: str, lanes: int, *values: Value) -> Value:
        """A library function without side effects."""
        result = f"<{lanes} x {kind}>" if lanes else kind
        self.declarations.add(f"declare {result} @{symbol}({', '.join(v.llvm for v in values)})")
        operands = ", ".join(f"{v.llvm} {{{k}}}" for k, v in enumerate(values))
        return self.emit(kind, lanes, f"call {result} @{symbol}({operands})", *values)

    def shuffle(self, a: Value, b: Value, picks: list[int]) -> Value:
        mask = ", ".join(f"i32 {p}" for p in picks)
        template = f"shufflevector {a.llvm} {{0}}, {a.llvm} {{1}}, <{len(picks)} x i32> <{mask}>"
        return self.emit(a.type, len(picks), template, a, b)

    def extract(self, value: Value, lane: int) -> Value:
        return self.emit(value.type, 0, f"extractelement {value.llvm} {{0}}, i64 {lane}", value)

    # --- text ------------------------------------------------------------------------------------------------

    def function(self, header: str) -> str:
        lines = [header + " {", "entry:", *self.allocas]
        self._render(self.stack[0], lines)
        return "\n".join([*lines, "ret void", "}"])

    def _render(self, region: Region, out: list[str]) -> None:
        for item in region.lines:
            if isinstance(item, str):
                out.append(item)
            elif item.kind == "loop":
                label, (start, stop, step) = item.label, item.bounds
                out += [f"br label %{label}.pre", f"{label}.pre:", *item.pre]
                if "%" in start + stop:
                    out += [f"%{label}.any = icmp slt i64 {start}, {stop}"]
                    out += [f"br i1 %{label}.any, label %{label}.body, label %{label}.exit"]
                else:
                    out += [f"br label %{label}.{'body' if int(start) < int(stop) else 'exit'}"]
                out += [f"{label}.body:"]
                out += [
                    f"{item.index} = phi i64 [ {start}, %{label}.pre ], [ %{label}.next, %{label}.latch ]"
                ]
                self._render(item, out)
                out += [f"br label %{label}.latch", f"{label}.latch:"]
                out += [f"%{label}.next = add nsw i64 {item.index}, {step}"]
                out += [f"%{label}.more = icmp slt i64 %{label}.next, {stop}"]
                out += [f"br i1 %{label}.more, label %{label}.body, label %{label}.exit", f"{label}.exit:"]
            else:
                label = item.label
                out += [
                    *item.pre,
                    f"br i1 {item.condition}, label %{label}.then, label %{label}.end",
                    f"{label}.then:",
                ]
                self._render(item, out)
                out += [f"br label %{label}.end", f"{label}.end:"]
