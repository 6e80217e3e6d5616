"""What lowering may ask of sizes that vary: their values in the example call, and what is certain of them.

In: `SizeLike`s of the graph being lowered. Out: ints for costs, answers for decisions.
Always: a hint decides only how fast the code is; whatever changes results is proven, or takes the general path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any

import torch

from graphlift.shapes.expr import Expr, Real, Relation, SizeLike
from graphlift.shapes.node import expr_of
from graphlift.shapes.table import SymbolTable

_table: ContextVar[SymbolTable | None] = ContextVar("sizes of the graph being lowered", default=None)


@contextmanager
def knowing(table: SymbolTable | None) -> Iterator[None]:
    """Within it, questions are answered by ``table``."""
    token = _table.set(table)
    try:
        yield
    finally:
        _table.reset(token)


def table_of(metas: Iterable[Any]) -> SymbolTable | None:
    """The table behind the first size that varies; None where all is static."""
    for meta in metas:
        if isinstance(meta, (torch.SymInt, torch.SymFloat)):
            return meta.node.table  # type: ignore[no-any-return]
    return None


def varying() -> bool:
    """Whether the graph being lowered has sizes that vary."""
    return _table.get() is not None


def hint(size: SizeLike) -> int:
    """The size in the example call."""
    if not isinstance(size, Expr):
        return size
    table = _table.get()
    assert table is not None, f"{size} outside of `knowing`"
    if isinstance(size, Real):
        return 0  # nothing is decided by it
    return table.hint(size)


def hinted(sizes: Sequence[SizeLike]) -> int:
    """The product of sizes in the example call."""
    count = prod(sizes)
    return count if isinstance(count, int) else hint(count)


def proven(op: str, left: SizeLike, right: SizeLike) -> bool:
    """Whether ``left op right`` holds in every call; False where that is not known."""
    table = _table.get()
    if table is None:
        assert isinstance(left, int) and isinstance(right, int)
        return Relation(op, left, right).constant is True
    return table.is_true(Relation(op, left, right)) is True


def sizes_of(values: Iterable[Any]) -> tuple[SizeLike, ...]:
    """Sizes or strides of a fake, as expressions where they vary."""
    return tuple([v if type(v) is int else expr_of(v) for v in values])
