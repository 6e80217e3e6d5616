"""The loop IR as text: what a captured graph became, for people.

In: a `Plan` or a `Kernel` of lower/ir.py. Out: indented pseudo-Python, one line per loop, binding, store and call.
Always: a value used twice in one loop is bound to a name once; the text shows everything the kernel does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

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
    TensorSpec,
    ViewCall,
)

__all__ = ["kernel_text", "plan_text"]

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
}
_SHORT = {
    "float": "f",
    "bfloat": "bf",
    "int": "i",
    "uint": "u",
    "complex": "c",
}


def plan_text(plan: Plan) -> str:
    """The whole plan: its inputs, its steps in order with every kernel once, its outputs."""
    kernels: dict[Kernel, str] = {}
    steps = []
    for step in plan.steps:
        if isinstance(step, KernelCall):
            name = kernels.setdefault(step.kernel, f"kernel_{len(kernels)}")
            origins = f"  # {', '.join(dict.fromkeys(step.origins))}" if step.origins else ""
            steps.append(f"{name}({', '.join(step.buffers)}){origins}")
        else:
            steps.append(_step_text(step, plan))
    lines = [kernel_text(kernel, name) for kernel, name in kernels.items()]
    inputs = ", ".join(_tensor_text(plan, name) for name in plan.inputs if name is not None)
    lines.append("\n".join([f"def plan({inputs}):", *(f"    {step}" for step in steps)]))
    return "\n\n".join(lines) + f"\n    return {', '.join(_value_text(value) for value in plan.outputs)}"


def _tensor_text(plan: Plan, name: str) -> str:
    spec = plan.tensors.get(name)
    return name if spec is None else f"{name}: {_spec_text(spec)}"


def _spec_text(spec: TensorSpec) -> str:
    return f"{dtype_text(spec.dtype)}[{', '.join(map(str, spec.shape))}]"


def dtype_text(dtype: Any) -> str:
    """A dtype in two or three letters and digits: f32, bf16, i64, bool."""
    name = str(dtype).removeprefix("torch.")
    letters = name.rstrip("0123456789")
    return _SHORT.get(letters, letters) + name[len(letters) :]


def _step_text(step: ExternCall | ViewCall | CheckCall | Any, plan: Plan) -> str:
    if isinstance(step, ExternCall):
        outputs = ", ".join("_" if name is None else _tensor_text(plan, name) for name in step.outputs)
        arguments = [_value_text(arg) for arg in step.args]
        arguments += [f"{key}={_value_text(value)}" for key, value in step.kwargs]
        return f"{outputs} = {step.target}({', '.join(arguments)})"
    if isinstance(step, ViewCall):
        spec = plan.tensors[step.output]
        geometry = f"{spec.shape}, {spec.stride}, {spec.offset}"
        return f"{_tensor_text(plan, step.output)} = as_strided({step.base}, {geometry})"
    if isinstance(step, CheckCall):
        return f"if {step.flag}: raise {step.error}({step.message!r})"
    return str(step)


def _value_text(value: Any) -> str:
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, tuple | list):
        return f"[{', '.join(_value_text(item) for item in value)}]"
    return str(value)


def kernel_text(kernel: Kernel, name: str = "kernel") -> str:
    """One kernel: parameters, loop nest, reductions and stores."""
    parameters = ", ".join(
        f"b{i}: {spec.role} {dtype_text(spec.dtype)}[{spec.numel}]" for i, spec in enumerate(kernel.buffers)
    )
    lines, depth = [f"kernel {name}({parameters}):"], 1
    for axis, size in enumerate(kernel.outer):
        lines.append("    " * depth + f"for i{axis} in range({size}):" + "  # parallel" * (axis == 0))
        depth += 1
    for number, loop in enumerate(kernel.loops):
        lines += _loop_lines(kernel, number, loop, depth)
    if kernel.epilogue:
        lines += _body_lines((), kernel.epilogue, depth, f"e{len(kernel.loops)}")
    return "\n".join(lines)


def _loop_lines(kernel: Kernel, number: int, loop: Loop, depth: int) -> list[str]:
    lines = []
    for axis, size in enumerate(kernel.inner, len(kernel.outer)):
        lines.append("    " * depth + f"for i{axis} in range({size}):")
        depth += 1
    folds = [
        (f"r{number}_{position}", reduction.op, dtype_text(reduction.dtype), reduction.value)
        for position, reduction in enumerate(loop.reductions)
    ]
    return lines + _body_lines(folds, loop.stores, depth, f"t{number}")


def _body_lines(
    folds: Iterable[tuple[str, str, str, Node]], stores: Sequence[Store], depth: int, prefix: str
) -> list[str]:
    folds = list(folds)
    roots = [value for *_, value in folds]
    roots += [node for store in stores for node in (store.index, store.value)]
    writer = _ExpressionWriter(roots, prefix)
    lines = []
    for result, op, dtype, value in folds:
        text = writer.text(value)
        lines += [*writer.take(), f"{result}: {dtype} = {op}({result}, {text})"]
    for store in stores:
        place, text = writer.text(store.index), writer.text(store.value)
        sign = "=" if store.mode == "set" else "+="
        lines += [*writer.take(), f"b{store.buffer}[{_bare(place)}] {sign} {_bare(text)}"]
    return ["    " * depth + line for line in lines]


class _ExpressionWriter:
    """Turns nodes into expressions; nodes that occur twice become bindings, collected by `take`."""

    def __init__(self, roots: Iterable[Node], prefix: str) -> None:
        self.prefix = prefix
        self.names: dict[Node, str] = {}
        self.pending: list[str] = []
        self.uses: Counter[Node] = Counter()
        seen: set[Node] = set()
        stack = list(roots)
        self.uses.update(stack)
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                self.uses.update(node.args)
                stack.extend(node.args)

    def take(self) -> list[str]:
        lines, self.pending = self.pending, []
        return lines

    def text(self, node: Node) -> str:
        if node in self.names:
            return self.names[node]
        written = self._expression(node)
        if self.uses[node] > 1 and node.args:
            name = f"{self.prefix}_{len(self.names)}"
            self.pending.append(f"{name}: {dtype_text(node.dtype)} = {_bare(written)}")
            self.names[node] = written = name
        return written

    def _expression(self, node: Node) -> str:
        if node.op == "const":
            return str(node.attr)
        if node.op == "size":
            return f"({node.attr})" if " " in str(node.attr) else str(node.attr)
        if node.op == "axis":
            return f"i{node.attr}"
        if node.op == "reduced":
            return f"r{node.attr[0]}_{node.attr[1]}"
        args = [self.text(arg) for arg in node.args]
        if node.op == "load":
            loaded = f"b{node.attr}[{_bare(args[0])}]"
            return loaded if len(args) == 1 else f"({loaded} if {args[1]} else {args[2]})"
        if node.op in ("cast", "bitcast"):
            return f"{dtype_text(node.dtype)}{'.bits' * (node.op == 'bitcast')}({_bare(args[0])})"
        if node.op == "where":
            return f"({args[1]} if {args[0]} else {args[2]})"
        if node.op in _INFIX and len(args) == 2:
            return f"({args[0]} {_INFIX[node.op]} {args[1]})"
        extra = [] if node.attr is None else [repr(node.attr)]
        return f"{node.op}({', '.join([*map(_bare, args), *extra])})"


def _bare(text: str) -> str:
    """The expression without parentheses around the whole of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and position < len(text) - 1:
            return text
    return text[1:-1]
