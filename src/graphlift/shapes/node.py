"""torch's SymInt and SymBool over our expressions: how torch's C++ code computes with sizes that vary.

In: an expression and the table it belongs to. Out: objects torch takes for ints; a question they are asked is the
table's to decide. Always: nothing of torch's own symbolic shapes is loaded; SymInt's Python operators, which torch
itself defines, work on these nodes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .expr import Compound, Expr, FloorDiv, Max, Min, Real, Relation, SizeLike, smax, smin
from .reals import CEIL, FLOOR, TRUNC
from .table import SymbolTable


class SizeNode:
    """The node of a torch.SymInt: an expression."""

    __slots__ = ("expr", "table")

    def __init__(self, expr: SizeLike, table: SymbolTable) -> None:
        self.expr = expr
        self.table = table

    def _with(self, expr: SizeLike) -> SizeNode:
        return SizeNode(expr, self.table)

    # -- what it is
    def is_int(self) -> bool:
        return True

    def is_float(self) -> bool:
        return False

    is_bool = is_nested_int = is_symbolic_nested = is_float

    def has_hint(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return isinstance(self.expr, int)

    def is_symbolic(self) -> bool:
        return not isinstance(self.expr, int)

    def nested_int(self) -> None:
        return None

    def maybe_as_int(self) -> int | None:
        return self.expr if isinstance(self.expr, int) else None

    constant_int = maybe_as_int

    @property
    def hint(self) -> int:
        return self.table.hint(self.expr)

    @property
    def pytype(self) -> type:
        return int

    def str(self) -> Any:
        return str(self.expr)

    _graph_repr = __repr__ = str

    # -- made from numbers
    def wrap_int(self, value: int) -> SizeNode:
        return self._with(value)

    def wrap_float(self, value: float) -> FloatNode:
        return FloatNode(value, self.table)

    def wrap_bool(self, value: bool) -> TruthNode:
        return TruthNode(value, self.table)

    # -- as a number
    def int_(self) -> int:
        return self.table.specialize(self.expr, "used as a plain number")

    def guard_int(self, file: Any = "", line: int = 0) -> int:
        return self.int_()

    def sym_float(self) -> FloatNode:
        return FloatNode(self.table.reals.call(float, self.expr), self.table)

    def clone(self) -> SizeNode:
        return self

    ceil = floor = trunc = pos = round = sym_int = clone

    # -- arithmetic
    def add(self, other: SizeNode) -> SizeNode:
        return self._with(self.expr + other.expr)

    def sub(self, other: SizeNode) -> SizeNode:
        return self._with(self.expr - other.expr)

    def mul(self, other: SizeNode) -> SizeNode:
        return self._with(self.expr * other.expr)

    def neg(self) -> SizeNode:
        return self._with(-self.expr)

    def _nonzero(self, other: SizeNode) -> SizeLike:
        if not isinstance(other.expr, int) and self.table.decide(Relation("==", other.expr, 0)):
            return 0
        return other.expr

    def int_floordiv(self, other: SizeNode) -> SizeNode:
        return self._with(self.expr // self._nonzero(other))

    floordiv = int_floordiv

    def mod(self, other: SizeNode) -> SizeNode:
        return self._with(self.expr % self._nonzero(other))

    python_mod = mod

    def pow_by_natural(self, other: SizeNode) -> SizeNode:
        result: SizeLike = 1
        for _ in range(self.table.specialize(other.expr, "used as an exponent")):
            result = result * self.expr
        return self._with(result)

    pow = pow_by_natural

    def int_truediv(self, other: SizeNode) -> FloatNode:
        return FloatNode(self.table.reals.call(operator.truediv, self.expr, other.expr), self.table)

    truediv = int_truediv

    def sym_min(self, other: SizeNode) -> SizeNode:
        return self._with(self._ordered(other, smin(self.expr, other.expr), self, other))

    def sym_max(self, other: SizeNode) -> SizeNode:
        return self._with(self._ordered(other, smax(self.expr, other.expr), other, self))

    def _ordered(self, other: SizeNode, both: SizeLike, if_less: SizeNode, if_not: SizeNode) -> SizeLike:
        less = self.table.is_true(Relation("<=", self.expr, other.expr))
        return both if less is None else if_less.expr if less else if_not.expr

    # -- comparisons
    def _ask(self, op: Any, left: SizeLike, right: SizeLike) -> TruthNode:
        return TruthNode(Relation(op, left, right), self.table)

    def eq(self, other: SizeNode) -> TruthNode:
        return self._ask("==", self.expr, other.expr)

    def ne(self, other: SizeNode) -> TruthNode:
        return self._ask("!=", self.expr, other.expr)

    def lt(self, other: SizeNode) -> TruthNode:
        return self._ask("<", self.expr, other.expr)

    def le(self, other: SizeNode) -> TruthNode:
        return self._ask("<=", self.expr, other.expr)

    def gt(self, other: SizeNode) -> TruthNode:
        return self._ask("<", other.expr, self.expr)

    def ge(self, other: SizeNode) -> TruthNode:
        return self._ask("<=", other.expr, self.expr)

    # -- what C++ asks of a tensor's sizes and strides
    def is_contiguous(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TruthNode:
        return self._answer(is_packed, sizes, strides, range(len(sizes) - 1, -1, -1))

    def is_channels_last_contiguous_2d(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TruthNode:
        return self._channels_last(4, is_packed, sizes, strides)

    def is_channels_last_contiguous_3d(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TruthNode:
        return self._channels_last(5, is_packed, sizes, strides)

    def is_channels_last_strides_2d(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TruthNode:
        return self._channels_last(4, _has_order, sizes, strides)

    def is_channels_last_strides_3d(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TruthNode:
        return self._channels_last(5, _has_order, sizes, strides)

    def is_non_overlapping_and_dense(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TruthNode:
        hint = self.table.hint
        order = sorted(range(len(sizes)), key=lambda d: (hint(_expr(strides[d])), hint(_expr(sizes[d])), -d))
        return self._answer(is_packed, sizes, strides, order)

    def _channels_last(
        self, rank: int, test: Callable[..., bool], sizes: Sequence[Any], strides: Sequence[Any]
    ) -> TruthNode:
        if len(sizes) != rank:
            return TruthNode(False, self.table)
        return self._answer(test, sizes, strides, (1, *range(rank - 1, 1, -1), 0))

    def _answer(
        self, test: Callable[..., bool], sizes: Sequence[Any], strides: Sequence[Any], order: Sequence[int]
    ) -> TruthNode:
        shape, stride = [_expr(s) for s in sizes], [_expr(s) for s in strides]
        return TruthNode(test(self.table, shape, stride, order), self.table)


def _expr(node: Any) -> SizeLike:
    return node.expr if isinstance(node, SizeNode) else node.maybe_as_int()


def is_packed(
    table: SymbolTable, shape: Sequence[SizeLike], stride: Sequence[SizeLike], order: Sequence[int]
) -> bool:
    """Whether the dimensions, fastest first, fill memory without gaps; sizes of one do not count."""
    expected: SizeLike = 1
    for d in order:
        if shape[d] == 0:
            return True
    for d in order:
        if shape[d] == 1:
            continue
        if stride[d] != expected and not _same(table, stride[d], expected):
            return False
        expected = expected * shape[d]
    return True


def _same(table: SymbolTable, a: SizeLike, b: SizeLike) -> bool:
    """Whether two strides are equal; once the guards are made, only what is certain is."""
    relation = Relation("==", a, b)
    return table.is_true(relation) is True if table.frozen else table.decide(relation)


def _has_order(
    table: SymbolTable, shape: Sequence[SizeLike], stride: Sequence[SizeLike], order: Sequence[int]
) -> bool:
    """c10's reading of strides as channels last: growing in this order, ties broken towards contiguous."""
    least: SizeLike = 0
    if stride[1] == 0:
        return False
    for d in order:
        if shape[d] == 0 or table.decide(Relation("<", stride[d], least)):
            return False
        if d == 0 and least == stride[1]:
            return False
        least = stride[d]
        if shape[d] != 1:
            least = least * shape[d]
    return True


class TruthNode:
    """The node of a torch.SymBool: a relation still to be decided, or an answer."""

    __slots__ = ("table", "value")

    def __init__(self, value: Relation | bool, table: SymbolTable) -> None:
        self.value = value if isinstance(value, bool) or value.constant is None else value.constant
        self.table = table

    def is_bool(self) -> bool:
        return True

    def is_int(self) -> bool:
        return False

    is_float = is_nested_int = is_int

    def has_hint(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return isinstance(self.value, bool)

    def is_symbolic(self) -> bool:
        return not self.is_constant()

    def maybe_as_int(self) -> None:
        return None

    def maybe_as_bool(self) -> bool | None:
        return self.value if isinstance(self.value, bool) else None

    constant_bool = maybe_as_bool

    def str(self) -> Any:
        return str(self.value)

    _graph_repr = __repr__ = str

    def bool_(self) -> bool:
        return self.value if isinstance(self.value, bool) else self.table.decide(self.value)

    def guard_bool(self, file: Any = "", line: int = 0) -> bool:
        return self.bool_()

    expect_true = guard_bool

    def _unless_unknown(self, otherwise: bool) -> bool:
        """The answer; of what only the running graph knows, what torch takes for the general case."""
        value = self.value
        if isinstance(value, bool):
            return value
        if self.table.is_unknown(value.lhs, value.rhs) and self.table.is_true(value) is None:
            return otherwise
        return self.table.decide(value)

    def guard_or_false(self, file: Any = "", line: int = 0) -> bool:
        return self._unless_unknown(False)

    guard_size_oblivious = guard_or_false

    def guard_or_true(self, file: Any = "", line: int = 0) -> bool:
        return self._unless_unknown(True)

    def statically_known_true(self, file: Any = "", line: int = 0) -> bool:
        known = self.value if isinstance(self.value, bool) else self.table.is_true(self.value)
        return known is True

    def wrap_bool(self, value: bool) -> TruthNode:
        return TruthNode(value, self.table)

    def wrap_int(self, value: int) -> SizeNode:
        return SizeNode(value, self.table)

    def clone(self) -> TruthNode:
        return self

    def sym_not(self) -> TruthNode:
        value = self.value
        return TruthNode((not value) if isinstance(value, bool) else value.negated(), self.table)

    def sym_and(self, other: TruthNode) -> TruthNode:
        return TruthNode(self.bool_() and other.bool_(), self.table)

    def sym_or(self, other: TruthNode) -> TruthNode:
        return TruthNode(self.bool_() or other.bool_(), self.table)

    and_, or_ = sym_and, sym_or

    def eq(self, other: TruthNode) -> TruthNode:
        return TruthNode(self.bool_() == other.bool_(), self.table)

    def ne(self, other: TruthNode) -> TruthNode:
        return TruthNode(self.bool_() != other.bool_(), self.table)

    def sym_ite(self, then: Any, otherwise: Any) -> Any:
        return then if self.bool_() else otherwise

    def sym_float(self) -> FloatNode:
        return FloatNode(float(self.bool_()), self.table)


def _arithmetic(operation: Callable[[Any, Any], Any]) -> Any:
    def method(self: FloatNode, other: FloatNode) -> FloatNode:
        return FloatNode(self.table.reals.call(operation, self.value, other.value), self.table)

    return method


def _comparison(operation: Callable[[float, float], bool]) -> Any:
    def method(self: FloatNode, other: FloatNode) -> TruthNode:
        return TruthNode(self.table.reals.compare(operation, self.value, other.value), self.table)

    return method


def _rounding(direction: int, convert: Callable[[float], int]) -> Any:
    def method(self: FloatNode) -> SizeNode:
        size = self.table.reals.whole(self.value, direction)
        return SizeNode(convert(self.guard_float()) if size is None else size, self.table)

    return method


class FloatNode:
    """The node of a torch.SymFloat: a number, or a float that comes with each call."""

    __slots__ = ("table", "value")

    def __init__(self, value: Any, table: SymbolTable) -> None:
        self.value = value
        self.table = table

    def is_float(self) -> bool:
        return True

    def is_int(self) -> bool:
        return False

    is_bool = is_nested_int = is_int

    def has_hint(self) -> bool:
        return True

    is_constant = is_int  # torch's operators on constants know ints and bools only

    def is_symbolic(self) -> bool:
        return isinstance(self.value, Real)

    def maybe_as_int(self) -> None:
        return None

    def maybe_as_float(self) -> float | None:
        return None if isinstance(self.value, Real) else self.value

    def str(self) -> Any:
        return str(self.value)

    _graph_repr = __repr__ = str

    def guard_float(self, file: Any = "", line: int = 0) -> float:
        return float(self.table.reals.fixed(self.value, "used as a plain number"))

    def wrap_float(self, value: float) -> FloatNode:
        return FloatNode(value, self.table)

    def wrap_int(self, value: int) -> SizeNode:
        return SizeNode(value, self.table)

    def clone(self) -> FloatNode:
        return self

    sym_float = clone

    add = _arithmetic(operator.add)
    sub = _arithmetic(operator.sub)
    mul = _arithmetic(operator.mul)
    truediv = float_truediv = _arithmetic(operator.truediv)
    pow = float_pow = _arithmetic(operator.pow)
    mod = _arithmetic(operator.mod)
    floordiv = _arithmetic(operator.floordiv)
    sym_min = _arithmetic(min)
    sym_max = _arithmetic(max)
    eq = _comparison(operator.eq)
    ne = _comparison(operator.ne)
    lt = _comparison(operator.lt)
    le = _comparison(operator.le)
    gt = _comparison(operator.gt)
    ge = _comparison(operator.ge)
    floor = _rounding(FLOOR, math.floor)
    ceil = _rounding(CEIL, math.ceil)
    trunc = sym_int = _rounding(TRUNC, int)

    def neg(self) -> FloatNode:
        return FloatNode(self.table.reals.call(operator.neg, self.value), self.table)


# -- between torch's objects and ours ----------------------------------------------------------------------------


def to_symint(size: SizeLike, table: SymbolTable) -> Any:
    """The size as torch takes it: an int, or a SymInt; a float that comes with each call as a SymFloat."""
    if isinstance(size, Real):
        return torch.SymFloat(FloatNode(size, table))
    return size if isinstance(size, int) else torch.SymInt(SizeNode(size, table))


def expr_of(value: Any) -> SizeLike:
    """The size that an int or a SymInt of ours stands for."""
    if isinstance(value, torch.SymInt):
        node = value.node
        if not isinstance(node, SizeNode):
            node = node.maybe_as_int()
            if node is None:
                raise TypeError(f"a SymInt that is not graphlift's: {value!r}")
            return int(node)
        return node.expr
    if isinstance(value, torch.SymFloat) and isinstance(value.node, FloatNode):
        return value.node.value  # type: ignore[no-any-return]
    return int(value)


def table_of(value: Any) -> SymbolTable | None:
    """The table that a SymInt or SymFloat of ours belongs to; None for other objects."""
    if isinstance(value, (torch.SymInt, torch.SymFloat)) and isinstance(value.node, (SizeNode, FloatNode)):
        return value.node.table
    return None


def size_nodes(size: Expr, node_of: Callable[[SizeLike], Any], call: Callable[..., Any]) -> Any:
    """A size, no symbol, as a call of an operator on the nodes of its parts; ints stand for themselves.

    `node_of` gives the node of a part, a size like others (and keeps it, so that equal parts are one node), `call`
    makes a node.
    """
    if isinstance(size, Compound):
        *first, last = size.args
        head = type(size)(*first) if len(first) > 1 else first[0]
        return call(_FUNCTIONS[type(size)], _node(head, node_of), _node(last, node_of))
    *terms, (monomial, coefficient) = size.terms
    if not terms:
        factors: list[Any] = [*monomial] if coefficient == 1 else [*monomial, coefficient]
        head = math.prod(factors[:-1])
        return call(operator.mul, _node(head, node_of), _node(factors[-1], node_of))
    head = sum([math.prod(atoms) * factor for atoms, factor in terms])
    part = math.prod(monomial) * abs(coefficient)
    operation = operator.sub if coefficient < 0 else operator.add
    return call(operation, _node(head, node_of), _node(part, node_of))


def _node(size: SizeLike, node_of: Callable[[SizeLike], Any]) -> Any:
    return size if isinstance(size, int) else node_of(size)


_FUNCTIONS: dict[type, Callable[..., Any]] = {
    FloorDiv: operator.floordiv,
    Min: torch.sym_min,
    Max: torch.sym_max,
}
