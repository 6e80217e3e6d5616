"""Compiles guards to a `Check`: the sources become one tree, so that shared prefixes are loaded once, and a C program.

In: guards, the sources whose values the graph needs, the number of arguments. Out: `Check`, called in C at every call.
Always: the order of guards is kept among the checks of one source, cheap ones first; equal guards are checked once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from graphlift.data import dataclass
from graphlift.guards import _guards, explain
from graphlift.guards import guards as g
from graphlift.guards import sources as s
from graphlift.guards._guards import Check
from graphlift.guards.tensors import access
from graphlift.shapes.expr import FloorDiv, Max, Min, Relation, SizeLike, Symbol, terms_of

__all__ = ["Check", "compile_guards"]


class Constants:
    """The root above all constants: they are known to C, and checked as one."""


# Position = the number that C knows the kind by.
_NODES: tuple[type[s.Source | Constants], ...] = (
    *(s.Arg, s.Func, s.Const, s.InstanceDict, s.DictItem, s.SeqItem, s.DictKey),
    *(s.TypeOf, s.Slot, s.Attr, s.ClosureCell, s.CellContents, s.TensorGrad, s.TensorSize, s.WeakTarget),
    *(s.FunctionMode, Constants),
)
_LEAVES = ("type", "id", "equal", "length", "keys", "has_key", "tensor", "tensor_slow")
_RELATIONS = ("same", "distinct", "no_overlap", "offset", "predicate", "sizes", "gives")

for _name, _ours in (
    ("NODE_KINDS", [kind.__name__ for kind in _NODES]),
    ("LEAF_KINDS", _LEAVES),
    ("RELATION_KINDS", _RELATIONS),
):
    if getattr(_guards, _name).split() != list(_ours):
        raise ImportError(
            f"graphlift's guards extension was built from other sources ({_name}): build it again"
        )

_NODE_NUMBER = {kind: number for number, kind in enumerate(_NODES)}
_LEAF_NUMBER = {kind: number for number, kind in enumerate(_LEAVES)}
# Checks of one value run in this order: cheap ones first.
_LEAF_ORDER = {
    kind: place
    for place, kind in enumerate(
        ("type", "id", "equal", "length", "tensor", "has_key", "keys", "tensor_slow")
    )
}
# Sources that C reads with an object number, an index, or a name.
_INDEX: dict[type[s.Source], Callable[[Any], int]] = {
    kind: (lambda source: source.index)
    for kind in (s.Arg, s.SeqItem, s.DictKey, s.ClosureCell, s.TensorSize, s.FunctionMode)
}
_NAME: dict[type[s.Source], Callable[[Any], str]] = {s.Slot: lambda x: x.slot_name, s.Attr: lambda x: x.attr}


@dataclass(slots=True)
class _Leaf:
    kind: str
    ref: int = -1
    n: int = 0
    present: bool = False
    obj: Any = None
    key_refs: tuple[int, ...] | None = None
    spec: int = -1


def _leaf_order(leaf: _Leaf) -> int:
    return _LEAF_ORDER[leaf.kind]


@dataclass(slots=True)
class _Node:
    source: s.Source | Constants
    children: list[_Node] = field(default_factory=list)
    leaves: list[_Leaf] = field(default_factory=list)
    slot: int = -1


class _Program:
    """The lists that the C constructor takes, under construction."""

    def __init__(self, n_fetch: int) -> None:
        self.nodes: dict[s.Source, _Node] = {}
        self.roots: list[_Node] = []
        self.refs: list[tuple[bool, Any]] = []
        self.ref_numbers: dict[s.Ref, int] = {}
        self.specs: list[tuple[Any, ...]] = []
        self.spec_numbers: dict[tuple[Any, ...], int] = {}
        self.type_attrs: dict[int, list[tuple[str, int]]] = {}
        self.relations: list[tuple[Any, ...]] = []
        self.copies: list[tuple[int, int]] = []
        self.global_state: Any = None
        self.n_slots = n_fetch

    def node(self, source: s.Source) -> _Node:
        """The node of a source, made with its ancestors (a loop: chains can be long)."""
        found = self.nodes.get(source)
        if found is not None:
            return found
        missing: list[s.Source] = []
        at: s.Source | None = source
        while at is not None and at not in self.nodes:
            missing.append(at)
            at = at.parent
        for each in reversed(missing):
            node = self.nodes[each] = _Node(each)
            (self.roots if each.parent is None else self.nodes[each.parent].children).append(node)
        return self.nodes[source]

    def ref(self, ref: s.Ref) -> int:
        number = self.ref_numbers.get(ref)
        if number is None:
            number = self.ref_numbers[ref] = len(self.refs)
            self.refs.append((ref.is_weak, ref.holder))
        return number

    def slot(self, source: s.Source) -> int:
        """Where the value of a source is found once its subtree has passed."""
        node = self.node(source)
        if node.slot < 0:
            node.slot = self.n_slots
            self.n_slots += 1
        return node.slot

    def add_fetch(self, position: int, source: s.Source) -> None:
        node = self.node(source)
        if node.slot < 0:
            node.slot = position
        else:
            self.copies.append((position, node.slot))

    def leaf(self, source: s.Source, leaf: _Leaf) -> None:
        self.node(source).leaves.append(leaf)

    def relate(
        self, kind: str, sources: Sequence[s.Source], n_written: int = 0, distance: int = 0, fn: Any = None
    ) -> None:
        slots = tuple(self.slot(source) for source in sources)
        self.relations.append((_RELATIONS.index(kind), slots, n_written, distance, fn))

    def finish(self, guards: tuple[g.Guard, ...], fetch: tuple[s.Source, ...], nargs: int) -> Check:
        nodes: list[tuple[Any, ...]] = []
        leaves: list[tuple[Any, ...]] = []
        # Arguments first: they are what varies. Then the function and constants, whose subtrees are large.
        constants = [node for node in self.roots if isinstance(node.source, s.Const)]
        roots = [node for node in self.roots if not isinstance(node.source, s.Const)]
        if constants:
            roots.append(_Node(Constants(), constants))
        roots.sort(key=lambda node: (_NODE_NUMBER[type(node.source)], len(node.children)))
        stack = [(node, -1) for node in reversed(roots)]
        while stack:
            node, parent = stack.pop()
            begin = len(leaves)
            node.leaves.sort(key=_leaf_order)
            for leaf in node.leaves:
                number = _LEAF_NUMBER[leaf.kind]
                leaves.append((number, leaf.ref, leaf.n, leaf.present, leaf.obj, leaf.key_refs, leaf.spec))
            stack += [(child, len(nodes)) for child in reversed(node.children)]
            nodes.append(self.node_fields(node, parent, begin, len(leaves)))
        groups: list[tuple[int, int, int]] = []
        attrs: list[tuple[str, int]] = []
        for ref, entries in self.type_attrs.items():
            groups.append((ref, len(attrs), len(attrs) + len(entries)))
            attrs += entries
        return Check(
            *(guards, fetch, nargs, self.n_slots, nodes, leaves, self.refs, self.specs, groups, attrs),
            *(self.relations, self.copies, self.global_state),
        )

    def node_fields(self, node: _Node, parent: int, begin: int, end: int) -> tuple[Any, ...]:
        source, kind = node.source, type(node.source)
        ref, key = -1, None
        if isinstance(source, s.Const):
            ref = self.ref(source.ref)
        elif isinstance(source, s.DictItem):
            ref, key = (self.ref(source.key), None) if isinstance(source.key, s.Ref) else (-1, source.key)
        elif isinstance(source, s.FunctionMode):
            ref = self.ref(s.function_stack_at())
        elif kind in _NAME:
            key = _NAME[kind](source)
        index = _INDEX[kind](source) if kind in _INDEX else 0
        return (_NODE_NUMBER[kind], parent, node.slot, begin, end, ref, index, key)


# ---- one row per kind of guard ----


def _add_keys(program: _Program, guard: g.DictKeys) -> None:
    refs = tuple(program.ref(key) if isinstance(key, s.Ref) else -1 for key in guard.keys)
    keys = tuple(None if isinstance(key, s.Ref) else key for key in guard.keys)
    program.leaf(guard.source, _Leaf("keys", obj=keys, key_refs=refs))


def _add_has_key(program: _Program, guard: g.HasKey) -> None:
    if isinstance(guard.key, s.Ref):
        leaf = _Leaf("has_key", ref=program.ref(guard.key), present=guard.present)
    else:
        leaf = _Leaf("has_key", obj=guard.key, present=guard.present)
    program.leaf(guard.source, leaf)


def _add_tensor(program: _Program, guard: g.TensorMeta) -> None:
    spec = guard.spec
    fields = access().spec_fields(spec)
    if fields is None:
        program.leaf(guard.source, _Leaf("type", ref=program.ref(spec.cls)))
        program.leaf(guard.source, _Leaf("tensor_slow", obj=lambda value: spec.mismatch(value) is None))
        return
    row = (program.ref(spec.cls), *fields)
    number = program.spec_numbers.setdefault(row, len(program.specs))
    if number == len(program.specs):
        program.specs.append(row)
    program.leaf(guard.source, _Leaf("tensor", spec=number))


def _add_type_attr(program: _Program, guard: g.TypeAttr) -> None:
    expected = -1 if guard.expected.get() is g.ABSENT else program.ref(guard.expected)
    program.type_attrs.setdefault(program.ref(guard.ref), []).append((guard.attr, expected))


def _add_global_state(program: _Program, guard: g.GlobalState) -> None:
    facts = access().state_facts(guard)
    if program.global_state is not None:
        raise ValueError("guards contradict each other: two different global states")
    program.global_state = facts if facts is not None else lambda: guard.mismatch() is None
    if facts is not None:
        for asked in guard.mode_guards():
            _ADD[type(asked)](program, asked)


def _add_memory_relation(program: _Program, guard: g.NoOverlap | g.StorageOffset) -> None:
    if not access().tensors:
        program.relate("predicate", guard.sources, fn=lambda *values: explain.test(guard, values) is None)
    elif isinstance(guard, g.NoOverlap):
        program.relate("no_overlap", guard.sources, n_written=len(guard.written))
    else:
        program.relate("offset", guard.sources, distance=guard.distance)


# Position = the number that C knows the operation by (sizes.h).
_SIZE_OPS = ("value", "const", "+", "*", "//", "min", "max", "==", "!=", "<", "<=")
_SIZE_STACK = 32


def _size_program(relation: Relation, symbols: Sequence[Symbol]) -> tuple[int, ...] | None:
    """The relation in postfix, as pairs (operation, operand); None where C's stack or words do not hold it."""
    place = {symbol: k for k, symbol in enumerate(symbols)}
    code: list[int] = []
    deepest = depth = 0

    def emit(op: str, operand: int = 0) -> None:
        nonlocal depth, deepest
        code.extend((_SIZE_OPS.index(op), operand))
        depth += 1 if op in ("value", "const") else -1
        deepest = max(deepest, depth)

    def push(size: SizeLike) -> None:
        terms = terms_of(size)
        if not terms:
            emit("const", 0)
        for k, (monomial, coefficient) in enumerate(terms):
            emit("const", coefficient)
            for atom in monomial:
                push_atom(atom)
                emit("*")
            if k:
                emit("+")

    def push_atom(atom: Any) -> None:
        if isinstance(atom, Symbol):
            emit("value", place[atom])
            return
        op = {FloorDiv: "//", Min: "min", Max: "max"}[type(atom)]
        push(atom.args[0])
        for other in atom.args[1:]:
            push(other)
            emit(op)

    push(relation.lhs)
    push(relation.rhs)
    emit(relation.op)
    fits = deepest <= _SIZE_STACK and all(-(2**63) <= word < 2**63 for word in code)
    return tuple(code) if fits else None


def _add_size_relation(program: _Program, guard: g.SizeRelation) -> None:
    code = _size_program(guard.relation, guard.symbols)
    if code is None:
        program.relate("predicate", guard.items, fn=lambda *values: explain.test(guard, values) is None)
    else:
        program.relate("sizes", guard.items, fn=code)


_MOST_ARGS = 8  # of a call that C makes


def _add_gives(program: _Program, guard: g.Gives) -> None:
    """Places in C: the sources, the expected object and the functions, the constants, the results."""
    functions = tuple(dict.fromkeys([fn for fn, _ in guard.calls]))
    if any(len(places) > _MOST_ARGS for _, places in guard.calls):
        program.relate("predicate", guard.items, fn=guard.holds)
        return
    n, more = len(guard.items), 1 + len(functions)
    code: list[int] = []
    for fn, places in guard.calls:
        code += (n + 1 + functions.index(fn), len(places))
        code += [place if place < n else place + more for place in places]
    program.relate("gives", guard.items, fn=(tuple(code), (guard.expected, *functions, *guard.constants)))


def _add_predicate(program: _Program, guard: g.Predicate) -> None:
    program.relate("predicate", guard.items, fn=guard.fn)


_ADD: dict[type[g.Guard], Callable[[_Program, Any], None]] = {
    g.TypeIs: lambda p, guard: p.leaf(guard.source, _Leaf("type", ref=p.ref(guard.ref))),
    g.IdIs: lambda p, guard: p.leaf(guard.source, _Leaf("id", ref=p.ref(guard.ref))),
    g.Equals: lambda p, guard: p.leaf(guard.source, _Leaf("equal", obj=guard.const)),
    g.Length: lambda p, guard: p.leaf(guard.source, _Leaf("length", n=guard.n)),
    g.DictKeys: _add_keys,
    g.HasKey: _add_has_key,
    g.TensorMeta: _add_tensor,
    g.TypeAttr: _add_type_attr,
    g.SameObject: lambda p, guard: p.relate("same", guard.sources),
    g.DistinctTensors: lambda p, guard: p.relate("distinct", guard.items),
    g.NoOverlap: _add_memory_relation,
    g.StorageOffset: _add_memory_relation,
    g.GlobalState: _add_global_state,
    g.Gives: _add_gives,
    g.Predicate: _add_predicate,
    g.SizeRelation: _add_size_relation,
}


def compile_guards(guards: Sequence[g.Guard], fetch: Sequence[s.Source], nargs: int) -> Check:
    """A check that passes exactly when all guards hold and every source of ``fetch`` can be loaded.

    ``check(func, *args)`` gives the tuple of fetched values, in order, or None. ``nargs`` counts ``args``.
    Raises ValueError for a source that refers to an argument beyond ``nargs``.
    """
    _register_torch()
    distinct = tuple(dict.fromkeys(guards))
    program = _Program(len(fetch))
    for position, source in enumerate(fetch):
        program.add_fetch(position, source)
    for guard in distinct:
        _ADD[type(guard)](program, guard)
    return program.finish(distinct, tuple(fetch), nargs)


_torch_registered = False


def _register_torch() -> None:
    """Tells C the torch types that `Equals` compares, once torch is there."""
    global _torch_registered
    torch = sys.modules.get("torch")
    if not _torch_registered and torch is not None and hasattr(torch, "Size"):
        _guards.set_constant_types((torch.device,), (torch.Size,))
        _torch_registered = True


_guards.set_python_side(explain.explain_failure, explain.check_text)
