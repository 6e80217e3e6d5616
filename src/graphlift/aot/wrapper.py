"""The Python code around a compiled graph: effects on inputs, rebuilt outputs, modes.

In: `Surroundings` and what to call. Out: source text of `run(*i)`, and the function made from it.
Always: no loop over inputs at run time; a region without effects costs one call and one tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..fake import Spec
from ..fake.ops import aten
from ..shapes.expr import Expr, SizeLike, Symbol, free, render
from .plan import FromInput, FromSlot, Geometry, Literal, Mutation, SameAs, Surroundings
from .versions import set_version
from .views import Path, ViewStep, detaches

BELOW = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
BELOW |= torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
for _name in ("AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS", "AutocastPrivateUse1"):
    BELOW |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _name))

_METHODS = {
    aten.view.default: "view",
    aten.transpose.int: "transpose",
    aten.permute.default: "permute",
    aten.select.int: "select",
    aten.unsqueeze.default: "unsqueeze",
    aten.squeeze.default: "squeeze",
    aten.squeeze.dim: "squeeze",
    aten.t.default: "t",
    aten.detach.default: "detach",
    aten.expand.default: "expand",
    aten.diagonal.default: "diagonal",
}
_METHODS_MANY = {
    aten.unbind.int: "unbind",
    aten.split.Tensor: "split",
    aten.split_with_sizes.default: "split_with_sizes",
}


class Source:
    """Lines of a function under construction, and the objects they name."""

    def __init__(self, header: str) -> None:
        self.lines = [header]
        self.names: dict[str, Any] = {
            "torch": torch,
            "set_grad": torch._C._set_grad_enabled,
            "Guard": torch._C._ExcludeDispatchKeyGuard,
            "BELOW": BELOW,
        }
        self.depth = 1
        self.made: dict[tuple, str] = {}  # by start and steps: the variable that holds the view

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self, prefix: str, value: Any) -> str:
        for known, held in self.names.items():
            if held is value:
                return known
        label = f"{prefix}{len(self.names)}"
        self.names[label] = value
        return label

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def make(self, function: str, filename: str) -> Callable[..., Any]:
        scope = dict(self.names)
        exec(compile(self.text(), filename, "exec"), scope)
        return scope[function]


def size_name(symbol: Symbol) -> str:
    """The variable that holds a size."""
    return f"n_{symbol.name}"


def size_text(size: SizeLike) -> str:
    """A size as an expression."""
    if isinstance(size, int):
        return repr(size)
    return f"({render(size, {symbol: size_name(symbol) for symbol in free(size)})})"


def literal(src: Source, value: Any) -> str:
    """An argument of a view, as an expression."""
    if isinstance(value, Expr):
        return size_text(value)
    if value is None or isinstance(value, (bool, int)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        inner = ", ".join(literal(src, v) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    return src.name("k", value)


def view_expression(src: Source, parent: str, step: ViewStep) -> str:
    if step.data:
        return f"{parent}.data"
    if step.in_place:
        return _in_place_statement(src, parent, step)
    if step.many is not None:
        func, args, index = step.many
        return f"{_call(src, _METHODS_MANY, func, parent, args, {})}[{index}]"
    if step.func is aten.as_strided.default:
        return _strided(src, parent, step.parent, step.spec)
    return _call(src, _METHODS, step.func, parent, step.args, step.kwargs)


def _as_strided_from(parent: torch.Tensor, size: tuple, stride: tuple, delta: int) -> torch.Tensor:
    return parent.as_strided(size, stride, parent.storage_offset() + delta)


def _restride(t: torch.Tensor, size: tuple, stride: tuple, delta: int) -> torch.Tensor:
    return t.as_strided_(size, stride, t.storage_offset() + delta)


def _resize(t: torch.Tensor, value: torch.Tensor, stride: tuple) -> None:
    """An empty tensor resized as `out=` does it: the result's own strides, and one write."""
    version = t._version
    t.resize_(value.shape)
    if t.stride() != stride:
        t.as_strided_(value.shape, stride)
    set_version(t.copy_(value), version + 1)


def _call(src: Source, methods: dict, func: Any, parent: str, args: tuple, kwargs: dict) -> str:
    given = [literal(src, a) for a in args] + [f"{k}={literal(src, v)}" for k, v in kwargs.items()]
    method = methods.get(func)
    if method is not None:
        return f"{parent}.{method}({', '.join(given)})"
    return f"{src.name('op', func)}({', '.join([parent, *given])})"


def rebuild(src: Source, start: str, path: Path, grad_mode: bool) -> str:
    """An expression for `path` replayed on `start`.

    Steps made in the other grad mode get statements of their own, and so do detached aliases, which are the base of
    their views and made once. What changes its own metadata in place is not shared, but its base is. Outputs that are
    made already are shared by views of them.
    """
    expression = src.made.get((start,), start)
    in_place = [n for n, step in enumerate(path) if step.in_place]
    first, last = (in_place[0], in_place[-1]) if in_place else (len(path), -1)
    for n, step in enumerate(path):
        owner = detaches(step)
        key = (start, *map(id, path[: n + 1]))
        known = src.made.get(key) if n > last or n < first - 1 else None
        if known is not None:
            expression = known
            continue
        if step.grad_mode == grad_mode and not owner:
            expression = view_expression(src, expression, step)
            continue
        label = src.made[key] = f"v{len(src.lines)}"
        if step.in_place:
            src.add(f"{label} = {expression}")
            expression = label
        _in_mode(src, step.grad_mode, grad_mode, f"{label} = {view_expression(src, expression, step)}")
        expression = label
    return expression


def keep_view(src: Source, label: str, plan: Any, result: str, grad_mode: bool) -> None:
    """A statement that makes an output, which views of it share."""
    assert isinstance(plan, (FromInput, FromSlot))
    start = f"i[{plan.input}]" if isinstance(plan, FromInput) else f"{result}[{plan.slot}]"
    key = (start, *map(id, plan.path))
    if key not in src.made:
        src.add(f"{label} = {rebuild(src, start, plan.path, grad_mode)}")
        src.made[key] = label


def add_epilogue(src: Source, around: Surroundings, result: str) -> None:
    """Statements after the graph ran: written inputs, changed metadata, outputs."""
    grad = around.grad_mode
    _add_mutations(src, around, result)
    for change in around.metadata:
        for step in change.path:
            _in_mode(src, step.grad_mode, grad, _in_place_statement(src, f"i[{change.input}]", step))
    items: list[str] = []
    for k in sorted(around.between, key=lambda k: len(around.outputs[k].path)):  # type: ignore[union-attr]
        keep_view(src, f"w{k}", around.outputs[k], result, grad)
    for k, plan in enumerate(around.outputs):
        items.append(_output(src, plan, result, grad, k, items))
    less = [(i, count) for i, count in around.touched.items() if count < 0]
    if around.grad_mode_after != grad or around.written_outputs or less:
        for k, item in enumerate(items):
            src.add(f"r{k} = {item}")
        items = [f"r{k}" for k in range(len(items))]
    for k, version in around.written_outputs.items():
        src.add(f"{src.name('set_version', set_version)}(r{k}, {version})")
    for i, count in less:
        src.add(f"{src.name('set_version', set_version)}(i[{i}], i[{i}]._version - {-count})")
    if around.grad_mode_after != grad:
        src.add(f"set_grad({around.grad_mode_after})")
    src.add(f"return ({', '.join(items)}{',' if len(items) == 1 else ''})")


def _output(src: Source, plan: Any, result: str, grad: bool, k: int, items: list[str]) -> str:
    if isinstance(plan, Literal):
        return (
            literal(src, plan.value)
            if not isinstance(plan.value, (list, tuple))
            else src.name("k", plan.value)
        )
    if isinstance(plan, SameAs):
        if not items[plan.output].isidentifier():
            src.add(f"s{plan.output} = {items[plan.output]}")
            items[plan.output] = f"s{plan.output}"
        return items[plan.output]
    if isinstance(plan, FromInput):
        return rebuild(src, f"i[{plan.input}]", plan.path, grad)
    start = f"{result}[{plan.slot}]"
    if plan.geometry is not None:
        return _by_geometry(src, start, plan.geometry, grad)
    return rebuild(src, start, plan.path, grad)


def _by_geometry(src: Source, start: str, g: Geometry, grad: bool) -> str:
    owner = g.owner
    for n, step in enumerate(g.aliases, 1):
        spec = step.spec if g.is_view or n < len(g.aliases) else g.spec
        key = (start, *map(id, g.aliases[:n]))
        if key not in src.made:
            src.made[key] = label = f"v{len(src.lines)}"
            src.add(f"{label} = {_strided(src, start, owner, spec)}.{'data' if step.data else 'detach()'}")
        start, owner = src.made[key], spec
    if g.aliases and not g.is_view:
        return start
    expression = _strided(src, start, owner, g.spec)
    if not g.is_view:
        return f"{expression}.detach()"
    if g.grad_mode == grad:
        return expression
    label = f"v{len(src.lines)}"
    _in_mode(src, g.grad_mode, grad, f"{label} = {expression}")
    return label


def _strided(src: Source, owner: str, own: Spec, spec: Spec) -> str:
    """A view by strides. The owner's offset at run time may be another; aliases keep their distance from it."""
    held = src.name("as_strided_from", _as_strided_from)
    layout = f"{literal(src, spec.shape)}, {literal(src, spec.stride)}, {size_text(spec.offset - own.offset)}"
    return f"{held}({owner}, {layout})"


def _in_place_statement(src: Source, target: str, step: ViewStep) -> str:
    if step.func is aten.as_strided.default:
        size, stride, offset = step.args
        held = src.name("restride", _restride)
        return f"{held}({target}, {size}, {stride}, {offset - step.parent.offset})"
    given = [literal(src, a) for a in step.args] + [f"{k}={literal(src, v)}" for k, v in step.kwargs.items()]
    name = step.func._schema.name.removeprefix("aten::")
    return f"{target}.{name}_({', '.join(given)})"


def _in_mode(src: Source, wanted: bool, ambient: bool, *statements: str) -> None:
    if wanted == ambient:
        for s in statements:
            src.add(s)
        return
    src.add(f"set_grad({wanted})")
    src.add("try:")
    for s in statements:
        src.add("    " + s)
    src.add("finally:")
    src.add(f"    set_grad({ambient})")


def _add_mutations(src: Source, around: Surroundings, result: str) -> None:
    grad = around.grad_mode
    plain = [m for m in around.mutations if not (m.differentiable or m.hidden or m.resized or m.part)]
    hidden = [m for m in around.mutations if not m.differentiable and m.hidden]
    tracked = [m for m in around.mutations if m.differentiable]
    statements = [f"i[{m.input}].data.copy_({result}[{m.slot}])" for m in hidden]
    for n, base in enumerate(around.bases):
        if base.slot is not None:
            statements.append(f"b{n}.copy_({result}[{base.slot}])")
    for m in around.mutations:
        if m.resized is not None:
            given = f"i[{m.input}], {result}[{m.slot}], {m.resized.stride}"
            statements.append(f"{src.name('resize', _resize)}({given})")
    statements += [f"{_part(src, m)}.copy_({result}[{m.slot}])" for m in around.mutations if m.part]
    statements += _copies(plain, result)
    again = [f"i[{i}]" for i, count in around.touched.items() for _ in range(count)]
    if again:
        statements.append(f"torch.autograd.graph.increment_version([{', '.join(again)}])")
    if statements:
        _in_mode(src, False, grad, *statements)
    if tracked:
        _in_mode(src, True, grad, *[f"i[{m.input}].copy_({result}[{m.slot}])" for m in tracked])


def _part(src: Source, m: Mutation) -> str:
    """The part of an input that is written."""
    found = f"i[{m.input}]"
    for func, args, kwargs in m.part:
        found = _call(src, _METHODS, func, found, args, kwargs)
    return found


def _copies(plain: list[Mutation], result: str) -> list[str]:
    if len(plain) < 4:
        return [f"i[{m.input}].copy_({result}[{m.slot}])" for m in plain]
    to = ", ".join(f"i[{m.input}]" for m in plain)
    new = ", ".join(f"{result}[{m.slot}]" for m in plain)
    return [f"torch._foreach_copy_([{to}], [{new}])"]


def add_prologue(src: Source, around: Surroundings) -> str:
    """Statements before the graph runs; gives the expression of its arguments."""
    sizes = ""
    if around.symbols:
        src.add(f"n, i = i[{around.tensors}:], i[:{around.tensors}]")
        src.add(f"{''.join(size_name(s) + ', ' for s in around.symbols)}= n")
        sizes = ", *n"
    for i, offset in around.offsets.items():
        src.add(f"if i[{i}].storage_offset() != {offset}: return eager(*i{sizes})")
    for n, base in enumerate(around.bases):
        held = src.name("flat", _flat)
        src.add(f"b{n} = {held}(i[{base.members[0]}], {base.numel})")
    return "".join(f", b{n}" for n in range(len(around.bases))) + sizes


def _flat(t: torch.Tensor, numel: int) -> torch.Tensor:
    """The whole storage of `t` as one flat tensor."""
    with torch.no_grad():
        return torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage(), 0, (numel,), (1,))
