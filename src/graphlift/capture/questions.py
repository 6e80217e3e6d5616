"""Branches on flags, counters and steps in tensors of one element, and on tensors made of sizes alone, such as masks.

In: the truth of such a tensor, or of a comparison of numbers read from them. Out: the answer in this call, and one
guard, which makes the same few operations on copies and must find the same answers.
Always: what depends on a larger tensor from outside, on random numbers, or on a change that cannot be made again is not
answered.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from ..data import dataclass
from ..fake import FakeTensor
from ..guards import Predicate
from ..shapes.node import expr_of, table_of
from .graph import GraphBuilder
from .overriding import PLAIN_TENSORS
from .rerun import inside, is_plain, may_draw

if TYPE_CHECKING:
    from .capture import Capture


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A node as it was when it was captured: its operation, on the results of earlier ones."""

    node: fx.Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, values: dict[fx.Node, Any]) -> None:
        args, kwargs = fx.map_arg((self.args, self.kwargs), values.__getitem__)
        target: Any = self.node.target
        fn = getattr(args[0], target) if self.node.op == "call_method" else target
        values[self.node] = fn(*args[self.node.op == "call_method" :], **kwargs)


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    answer: bool
    where: str

    def ask(self, values: dict[fx.Node, Any]) -> bool:
        return bool(self.fn(*fx.map_arg(self.args, values.__getitem__)))


@dataclass(frozen=True, slots=True, eq=False)
class SameAnswers:
    """Whether the questions have the answers that they had, for these inputs."""

    same: Callable[..., bool]

    def __call__(self, *given: Any) -> bool:
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            return self.same(*given)
        finally:
            torch._C._set_grad_enabled(before)


def _written_out(inputs: list[fx.Node], steps: list[_Step | _Question]) -> Callable[..., bool]:
    """The steps as one function of the inputs, on copies of them where a step may write."""
    names = {node: f"v{i}" for i, node in enumerate(inputs)}
    scope: dict[str, Any] = {}

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return names[value]
        if type(value) is slice:
            return f"slice({text(value.start)}, {text(value.stop)}, {text(value.step)})"
        if isinstance(value, (tuple, list)):
            items = "".join(f"{text(item)}, " for item in value)
            return f"({items})" if isinstance(value, tuple) else f"[{items}]"
        scope[f"c{len(scope)}"] = value
        return f"c{len(scope) - 1}"

    writes = any(type(step) is _Step and _written(step.node) for step in steps)
    copied = [node for node in inputs if writes and isinstance(node.meta["val"], Tensor)]
    lines = [f"{names[node]} = {names[node]}.clone()" for node in copied]
    for step in steps:
        args = [text(arg) for arg in step.args]
        if type(step) is _Question:
            lines.append(f"if bool({text(step.fn)}({', '.join(args)})) is not {step.answer}: return False")
            continue
        args += [f"{key}={text(value)}" for key, value in step.kwargs.items()]  # type: ignore[union-attr]
        node: fx.Node = step.node  # type: ignore[union-attr]
        method = node.op == "call_method"
        called = f"{args.pop(0)}.{node.target}" if method else text(node.target)
        names[node] = f"v{len(names)}"
        lines.append(f"{names[node]} = {called}({', '.join(args)})")
    body = "".join(f"    {line}\n" for line in lines)
    exec(f"def same({', '.join(f'v{i}' for i in range(len(inputs)))}):\n{body}    return True\n", scope)
    return scope["same"]


#: Beyond as many operations it is a computation, such as a loop over a counter.
_MOST_STEPS = 1000
#: Elements of the largest tensor that is made for an answer.
_LARGEST = 2**22


class Questions:
    """What one capture has asked so far."""

    def __init__(self) -> None:
        self.inputs: dict[fx.Node, int | None] = {}  # None: a number
        self.values: dict[fx.Node, Any] = {}
        self.steps: list[_Step | _Question] = []

    def guard(self, cap: Capture) -> Predicate:
        """The answers are what they were."""
        sources = tuple(
            cap.builder.input_sources[i] if i is not None else cap.size_sources[expr_of(node.meta["val"])]  # type: ignore[index]
            for node, i in self.inputs.items()
        )
        asked = [f"{step.where} is {step.answer}" for step in self.steps if type(step) is _Question]
        same = SameAnswers(_written_out(list(self.inputs), self.steps))
        return Predicate(same, sources, f"what is asked of tensors at {', at '.join(dict.fromkeys(asked))}")

    def can_ask(self, cap: Capture, *wanted: fx.Node) -> bool:
        """Whether what is asked of these nodes can be asked again in each call."""
        return self._askable(cap, wanted) is not None

    def _askable(self, cap: Capture, wanted: Iterable[fx.Node]) -> dict[fx.Node, int | None] | None:
        """The nodes that make the wanted ones, and which input each is; None where they cannot be made again."""
        sets_dtype = any(setter is torch._C._set_default_dtype for setter, _ in cap.state_log)
        if type(cap.builder) is not GraphBuilder or cap.is_faking or cap.modes or sets_dtype:
            return None
        inputs = [node for node in cap.builder.graph.nodes if node.op == "placeholder"]
        places = {node: i for i, node in enumerate(inputs)}
        made_by = {node: places.get(node) for node in _made_by(cap.builder.graph, wanted)}
        of_sizes = not any(node.op == "placeholder" and _is_tensor(node) for node in made_by)
        fits = _is_of_sizes if of_sizes else _is_small
        fit = all(fits(cap, node, place) for node, place in made_by.items())
        return made_by if fit and len(self.steps) <= _MOST_STEPS else None

    def ask(self, cap: Capture, fn: Callable[..., Any], *args: Any) -> bool | None:
        """``bool(fn(*args))`` of nodes and constants in this call; None where it cannot be asked again."""
        nodes = self._askable(cap, [arg for arg in args if isinstance(arg, fx.Node)])
        if nodes is None:
            return None
        if not any(node.op == "placeholder" for node in nodes):
            return Questions()._answered(cap, nodes, fn, args)  # which constants alone make: always the same
        return self._answered(cap, nodes, fn, args)

    def _answered(
        self, cap: Capture, nodes: dict[fx.Node, int | None], fn: Callable[..., Any], args: tuple[Any, ...]
    ) -> bool | None:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            try:
                for node, place in nodes.items():
                    self._run(cap, node, place)
                if any(self._is_changed_elsewhere(cap, node) for node in nodes):
                    return None
                question = _Question(fn, args, False, cap._where().rpartition("/")[2])
                answer = question.ask(self.values)
            except Exception:  # the program's own: it is to meet it itself
                return None
        self.steps.append(_Question(fn, args, answer, question.where))
        return answer

    def _run(self, cap: Capture, node: fx.Node, place: int | None) -> None:
        if node in self.values:
            return
        if node.op == "placeholder":
            self.inputs[node] = place if _is_tensor(node) else None
            if place is not None and _is_tensor(node):
                self.values[node] = cap.builder.input_tensors[place].clone()
            else:
                self.values[node] = cap.sizes.reals.value(expr_of(node.meta["val"]))
        else:
            step = _Step(node, node.args, dict(node.kwargs))
            step.run(self.values)
            self.steps.append(step)

    def _is_changed_elsewhere(self, cap: Capture, node: fx.Node) -> bool:
        """Whether the graph has written a tensor by what was not made again."""
        value, fake = self.values[node], node.meta["val"]
        if not isinstance(value, Tensor):
            return False
        place = self.inputs.get(node)
        before = cap.builder.input_versions[place][1] if place is not None else 0
        return value._version != fake._version - before  # type: ignore[operator]


def _made_by(graph: fx.Graph, wanted: Iterable[fx.Node]) -> list[fx.Node]:
    """The nodes that make the ``wanted`` ones, with all that write the memory that these are read from, in order."""
    needed, count = dict.fromkeys(wanted), -1
    while count != len(needed):
        count, homes = len(needed), _homes(list(needed))
        for node in reversed(graph.nodes):
            if node in needed or not homes.isdisjoint(_homes(_written(node))):
                needed.update(dict.fromkeys((node, *node.all_input_nodes)))
    return [node for node in graph.nodes if node in needed]


def _homes(nodes: list[fx.Node]) -> set[int]:
    """The storages of the nodes' tensors."""
    values = [node.meta.get("val") for node in nodes]
    flat = [item for value in values for item in (value if isinstance(value, (list, tuple)) else [value])]
    return {id(value.home) for value in flat if isinstance(value, FakeTensor)}


_INPLACE = frozenset(
    "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift setitem".split()
)


def _written(node: fx.Node) -> list[fx.Node]:
    """What an operation may write: all it is given, if it writes anything."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    only_reads = is_plain(node) and not list(inside(node)) and not _may_write(name)
    if not only_reads:
        return node.all_input_nodes
    found: list[fx.Node] = []
    fx.map_arg(node.kwargs.get("out"), found.append)
    return found


@functools.cache
def _may_write(name: str) -> bool:
    """Whether a function of this name writes its arguments: by its name, or as the operator's schema says."""
    if (
        name in _INPLACE
        or name.startswith(("__i", "__set"))
        or (name.endswith("_") and not name.endswith("__"))
    ):
        return True
    if "norm" in name:  # these keep running statistics
        return True
    packet = getattr(torch.ops.aten, name, None)
    schemas = [] if packet is None else [getattr(packet, overload)._schema for overload in packet.overloads()]
    return any(schema.is_mutable and not schema.arguments[-1].is_out for schema in schemas)


def _is_small(cap: Capture, node: fx.Node, place: int | None) -> bool:
    """Whether a node gives one element on the CPU, or numbers, and always the same from the same."""
    value = node.meta.get("val")
    if not all(map(_is_number, value if isinstance(value, (list, tuple)) else [value])):
        return False
    if node.op == "placeholder":
        return place is not None and place < len(cap.builder.input_tensors) and _is_own(cap, place)
    return _only_computes(node)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def _is_of_sizes(cap: Capture, node: fx.Node, place: int | None) -> bool:
    """Whether a node is a number that comes with each call, or what an operation that only computes makes of such."""
    value = node.meta.get("val")
    if node.op == "placeholder":
        source = cap.size_sources.get(expr_of(value)) if table_of(value) is not None else None  # type: ignore[call-overload]
        return source is not None and source not in cap.varying
    each = [
        item for item in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(item, Tensor)
    ]
    if not all(_is_plain_tensor(item) for item in each):
        return False
    return _only_computes(node) and all(cap.sizes.hint(math.prod(t.spec.shape)) <= _LARGEST for t in each)


def _only_computes(node: fx.Node) -> bool:
    plain = node.op in ("call_function", "call_method") and is_plain(node) and not may_draw([node])
    return plain and "empty" not in str(node.target)


def _is_plain_tensor(value: Tensor) -> bool:
    return value.device.type == "cpu" and value.layout is torch.strided and not value.is_inference()


def _is_number(value: Any) -> bool:
    if not isinstance(value, Tensor):
        return value is None or isinstance(value, (int, float))
    fixed = all(type(size) is int for size in value.shape)
    return fixed and _is_plain_tensor(value) and value.numel() == 1


def _is_own(cap: Capture, place: int) -> bool:
    """Whether an input shares its memory with none that the graph writes so far; guards see to it that this stays so."""
    builder = cap.builder
    real = builder.input_tensors[place]
    if (
        type(real) not in PLAIN_TENSORS
        or place in builder.arrays
        or builder.input_sources[place] in cap.varying
    ):
        return False
    home = real.untyped_storage()._cdata
    return all(
        i == place or builder.input_tensors[i].untyped_storage()._cdata != home
        for i in builder.written_inputs()
    )
