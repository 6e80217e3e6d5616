"""Integer index expressions as sums of terms: ranges, simplification of // and %, and merging of adjacent axes.

In: a `Kernel`. Out: an equal `Kernel` with canonical indices and as few axes as its accesses allow.
Always: the interpreter gives the same result before and after; outer axes stay outer, inner ones inner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from graphlift.data import dataclass
from graphlift.lower.affine import size_node
from graphlift.lower.ir import Kernel, Loop, Node, Reduction, Store
from graphlift.shapes.expr import Expr, SizeLike

Range = tuple[int, int] | None

_SMALL_RANGES: dict[torch.dtype, tuple[int, int]] = {
    torch.bool: (0, 1),
    torch.uint8: (0, 255),
    torch.int8: (-128, 127),
    torch.int16: (-32768, 32767),
}
_INT32 = (-(2**31), 2**31 - 1)


@dataclass(frozen=True, slots=True)
class Sum:
    """``constant + sum(coefficient * atom)``; atoms are axes or opaque int64 nodes, the rest are sizes."""

    constant: SizeLike
    terms: tuple[tuple[Node, SizeLike], ...] = ()

    def plus(self, other: Sum, scale: SizeLike = 1) -> Sum:
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + scale * coefficient
        return Sum(self.constant + scale * other.constant, tuple((a, c) for a, c in terms.items() if c))

    def times(self, scale: SizeLike) -> Sum:
        if scale == 0:
            return Sum(0)
        return Sum(self.constant * scale, tuple((a, c * scale) for a, c in self.terms))


def fits_int32(bounds: Range) -> bool:
    """Whether every value of the range is an int32."""
    return bounds is not None and bounds[0] >= _INT32[0] and bounds[1] <= _INT32[1]


class Indices:
    """Ranges and canonical sums of one kernel's integer nodes; ``sizes`` are those of all axes, outer first."""

    def __init__(self, sizes: tuple[SizeLike, ...]) -> None:
        self.sizes = sizes
        self._ranges: dict[Node, Range] = {}

    def range(self, node: Node) -> Range:
        """Bounds of an integer or bool node's value, both included, or None when nothing is known."""
        if node not in self._ranges:
            self._ranges[node] = self._range(node)
        return self._ranges[node]

    def _range(self, node: Node) -> Range:
        if node.op == "axis":
            size = self.sizes[node.attr]
            return None if isinstance(size, Expr) else (0, max(size - 1, 0))
        if node.op == "const":
            return (int(node.attr), int(node.attr)) if isinstance(node.attr, int) else None
        rule = _RANGE_RULES.get(node.op)
        if rule is not None and node.dtype == torch.int64:
            bounds = [self.range(arg) for arg in node.args]
            if node.op == "where":
                bounds = bounds[1:]
            found = rule(*bounds) if None not in bounds else None
            if found is not None and max(abs(found[0]), abs(found[1])) < 2**62:
                return found
            return None
        if (
            node.op == "cast"
            and node.dtype in (torch.int64, torch.int32)
            and not node.args[0].dtype.is_floating_point
        ):
            return self.range(node.args[0])
        return _SMALL_RANGES.get(node.dtype)

    def sum_range(self, total: Sum) -> Range:
        if isinstance(total.constant, Expr):
            return None
        low = high = total.constant
        for atom, c in total.terms:
            bounds = self.range(atom)
            if bounds is None or isinstance(c, Expr):
                return None
            low += min(c * bounds[0], c * bounds[1])
            high += max(c * bounds[0], c * bounds[1])
        return low, high


def _mul_range(a: tuple[int, int], b: tuple[int, int]) -> Range:
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _floordiv_range(a: tuple[int, int], b: tuple[int, int]) -> Range:
    return (a[0] // b[0], a[1] // b[0]) if b[0] == b[1] > 0 else None


def _mod_range(a: tuple[int, int], b: tuple[int, int]) -> Range:
    if b[0] != b[1] or b[0] <= 0:
        return None
    return a if 0 <= a[0] and a[1] < b[0] else (0, b[0] - 1)


_RANGE_RULES: dict[str, Callable[..., Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _mul_range,
    "neg": lambda a: (-a[1], -a[0]),
    "abs": lambda a: (0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1])), max(abs(a[0]), abs(a[1]))),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "where": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "floordiv": _floordiv_range,
    "truncdiv": lambda a, b: _floordiv_range(a, b) if a[0] >= 0 else None,
    "mod": _mod_range,
}


class _Canonical:
    """Rewrites nodes to canonical form; ``axes`` maps an old axis to its replacement sum; records every root sum."""

    def __init__(self, indices: Indices, axes: dict[int, Sum]) -> None:
        self.indices = indices  # of the new axes
        self.axes = axes
        self.roots: set[Sum] = set()
        self.nodes: dict[Node, Node] = {}
        self.sums: dict[Node, Sum] = {}

    def node(self, node: Node) -> Node:
        found = self.nodes.get(node)
        if found is None:
            if _is_index_arithmetic(node):
                total = self.sum(node)
                self.roots.add(total)
                found = build(total)
            elif node.args:
                found = node.replace(args=tuple(self.node(arg) for arg in node.args))
            else:
                found = node
            self.nodes[node] = found
        return found

    def sum(self, node: Node) -> Sum:
        found = self.sums.get(node)
        if found is None:
            found = self.sums[node] = self._sum(node)
        return found

    def _sum(self, node: Node) -> Sum:
        if not _is_index_arithmetic(node):
            return Sum(0, ((self.node(node), 1),))
        if node.op == "const":
            return Sum(int(node.attr))
        if node.op == "size":
            return Sum(node.attr)
        if node.op == "axis":
            return self.axes[node.attr]
        args = [self.sum(arg) for arg in node.args]
        match node.op:
            case "add":
                return args[0].plus(args[1])
            case "sub":
                return args[0].plus(args[1], -1)
            case "neg":
                return args[0].times(-1)
            case "mul" if not args[1].terms:
                return args[0].times(args[1].constant)
            case "mul" if not args[0].terms:
                return args[1].times(args[0].constant)
            case "floordiv" | "mod" if not args[1].terms and _is_divisor(args[1].constant):
                return self._divide(node.op, args[0], args[1].constant)
        self.roots.update(args)
        return Sum(0, ((node.replace(args=tuple(build(arg) for arg in args)), 1),))

    def _divide(self, op: str, total: Sum, by: SizeLike) -> Sum:
        """(by*q + r) // by is q + r // by, and its remainder that of r; nothing is left when 0 <= r < by."""
        whole, over = total.constant // by, total.constant % by
        if over and isinstance(by, Expr):
            whole, over = 0, total.constant
        quotient = Sum(whole, tuple((a, c // by) for a, c in total.terms if c % by == 0))
        rest = Sum(over, tuple((a, c) for a, c in total.terms if c % by))
        bounds = self.indices.sum_range(rest)
        if not isinstance(by, Expr) and bounds is not None and 0 <= bounds[0] and bounds[1] < by:
            return quotient if op == "floordiv" else rest
        self.roots.add(rest)
        divided = Node(op, torch.int64, (build(rest), size_node(by)))
        left = Sum(0, ((divided, 1),))
        return quotient.plus(left) if op == "floordiv" else left


def _is_divisor(by: SizeLike) -> bool:
    """Whether it is positive, as the sizes by which kernels divide are."""
    return isinstance(by, Expr) or by > 0


_INDEX_OPS = frozenset({"const", "size", "axis", "add", "sub", "neg", "mul", "floordiv", "mod"})


def _is_index_arithmetic(node: Node) -> bool:
    return node.dtype == torch.int64 and node.op in _INDEX_OPS


def build(total: Sum) -> Node:
    """The node computing a sum, terms in a fixed order (axes first)."""

    def order(term: tuple[Node, SizeLike]) -> tuple[int, int, str]:
        return (0, term[0].attr, "") if term[0].op == "axis" else (1, 0, "")

    result: Node | None = None
    for atom, coefficient in sorted(total.terms, key=order):
        scaled = atom
        if coefficient != 1:
            scaled = Node("mul", torch.int64, (atom, size_node(coefficient)))
        result = scaled if result is None else Node("add", torch.int64, (result, scaled))
    constant = size_node(total.constant)
    if result is None:
        return constant
    return Node("add", torch.int64, (result, constant)) if total.constant else result


def rewrite(
    kernel: Kernel, outer: tuple[SizeLike, ...], inner: tuple[SizeLike, ...], axes: dict[int, Sum]
) -> tuple[Kernel, set[Sum]]:
    """``kernel`` over new axes; each old axis is the given sum over the new ones. Also the sums that use axes."""
    canonical = _Canonical(Indices(outer + inner), axes)

    def store(s: Store) -> Store:
        return replace(s, index=canonical.node(s.index), value=canonical.node(s.value))

    loops = tuple(
        Loop(
            tuple(Reduction(r.op, canonical.node(r.value), r.dtype) for r in loop.reductions),
            tuple(store(s) for s in loop.stores),
        )
        for loop in kernel.loops
    )
    epilogue = tuple(store(s) for s in kernel.epilogue)
    changed = replace(kernel, outer=outer, inner=inner, loops=loops, epilogue=epilogue)
    return changed, canonical.roots


def axis_node(k: int) -> Node:
    """The index of axis ``k``."""
    return Node("axis", torch.int64, (), k)


def simplify(kernel: Kernel) -> Kernel:
    """Drop axes of size one, make indices canonical and merge every pair of neighbouring axes that allows it."""
    outer, inner, axes = _renumbered(
        kernel.outer, kernel.inner, {k for k, n in enumerate(kernel.outer + kernel.inner) if n == 1}
    )
    kernel, roots = rewrite(kernel, outer, inner, axes)
    while True:
        sizes = kernel.outer + kernel.inner
        for k in range(len(sizes) - 1):
            if k + 1 != len(kernel.outer) and _mergeable(roots, k, sizes[k + 1]):
                break
        else:
            return kernel
        merged = (*sizes[:k], sizes[k] * sizes[k + 1], *sizes[k + 2 :])
        split = len(kernel.outer) - (k + 1 < len(kernel.outer))
        axes = {j: Sum(0, ((axis_node(j - (j > k)), 1),)) for j in range(len(sizes))}
        axes[k] = Sum(0)
        axes[k + 1] = Sum(0, ((axis_node(k), 1),))
        kernel, roots = rewrite(kernel, merged[:split], merged[split:], axes)


def _renumbered(
    outer: tuple[SizeLike, ...], inner: tuple[SizeLike, ...], dropped: set[int]
) -> tuple[tuple[SizeLike, ...], tuple[SizeLike, ...], dict[int, Sum]]:
    axes: dict[int, Sum] = {}
    for k in range(len(outer) + len(inner)):
        axes[k] = Sum(0) if k in dropped else Sum(0, ((axis_node(k - sum(d < k for d in dropped)), 1),))
    kept_outer = tuple(n for k, n in enumerate(outer) if k not in dropped)
    kept_inner = tuple(n for k, n in enumerate(inner) if k + len(outer) not in dropped)
    return kept_outer, kept_inner, axes


def _mergeable(roots: set[Sum], k: int, size: SizeLike) -> bool:
    """Axes k and k+1 are one axis of the product size when every sum sees only ``index_k * size + index_k+1``."""
    first, second = axis_node(k), axis_node(k + 1)
    for total in roots:
        terms = dict(total.terms)
        if terms.get(first, 0) != size * terms.get(second, 0):
            return False
    return True


def is_pointwise(kernel: Kernel) -> bool:
    """Whether no loop reduces, so that every axis is independent."""
    return not any(loop.reductions for loop in kernel.loops)
