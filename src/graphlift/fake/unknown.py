"""Operators whose results' sizes, or results, only the running graph knows.

In: such an operator and its fake arguments. Out: fakes and numbers with new unknown symbols of the mode's table.
Always: asked for by a flag of `config`; without it, and where there is no rule, the operator is `DataDependent`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .. import config
from ..shapes.expr import ANY, Range, SizeLike, Symbol, contiguous_strides
from ..shapes.node import to_symint
from .size_rules import broadcast
from .spec import FakeStorage, make_spec
from .tensor import FakeTensor, new_fake
from .view_rules import require_equal

if TYPE_CHECKING:
    from ..shapes.table import SymbolTable
    from .mode import FakeMode

aten = torch.ops.aten
_COUNT = Range(0, None)
_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))


def number(mode: FakeMode, t: FakeTensor) -> Any:
    """``t.item()`` of an integer or a float; None where it is not to be captured."""
    table = mode.unknown_sizes
    if not config.capture_scalar_outputs or table is None:
        return None
    mode.sizes = table
    table.asked += 1
    key = ("number", len(table.unknown))
    if t.spec.dtype in _INTEGERS:
        return to_symint(table.unknown_size(key, f"item_{len(table.unknown)}", ANY), table)
    if t.spec.dtype.is_floating_point:
        return to_symint(table.reals.unknown(key, f"item_{len(table.unknown)}"), table)
    return None


def result(mode: FakeMode, func: Any, args: tuple, kwargs: dict) -> Any:
    """What the operator gives; None where it is not to be captured."""
    form = _FORMS.get(func)
    if form is not None:
        return form(mode, *args, **kwargs)
    table = mode.unknown_sizes
    rule = _RULES.get(func)
    if not config.capture_dynamic_output_shape_ops or table is None or rule is None:
        return None
    mode.sizes = table
    table.asked += 1
    return rule(_Maker(mode, table), *args, **kwargs)


class _Maker:
    """Makes sizes and tensors for the rules."""

    def __init__(self, mode: FakeMode, table: SymbolTable) -> None:
        self.mode, self.table = mode, table

    def count(self, of: FakeTensor | None = None) -> Symbol:
        """How many elements; of the same tensor, unchanged, as many as before."""
        number = len(self.table.unknown)
        same = None if of is None or of.is_inference() else ("count", id(of), of._version)
        known: Any = self.table.recipes.get(same) if same is not None else None
        if known is None or known[0] is not of:
            known = of, self.table.unknown_size(("count", number), f"count_{number}", _COUNT)
            if same is not None:
                self.table.recipes[same] = known
        return known[1]

    def tensor(
        self, like: FakeTensor, shape: tuple[SizeLike, ...], dtype: Any = torch.int64, stride: Any = None
    ) -> FakeTensor:
        spec = make_spec(shape, stride or contiguous_strides(shape), 0, dtype, like.spec.device)
        return new_fake(self.mode, spec, FakeStorage(spec.nbytes))


def _nonzero(m: _Maker, t: FakeTensor) -> FakeTensor:
    count = m.count(t)
    return m.tensor(t, (count, len(t.spec.shape)), stride=(1, count))


def _masked_select(mode: FakeMode, t: FakeTensor, mask: FakeTensor) -> Any:
    shape = list(broadcast(mode.sizes or mode.unknown_sizes, [t.spec.shape, mask.spec.shape]))
    t, mask = [mode.dispatch(aten.expand.default, (a, shape), {}) for a in (t, mask)]
    return _index(mode, t, [mask])


def _index(mode: FakeMode, t: FakeTensor, indices: Any) -> Any:
    """Each mask as the positions that it picks."""
    table = mode.sizes or mode.unknown_sizes
    places: list[Any] = []
    for index in indices:
        if index is None or index.spec.dtype not in (torch.bool, torch.uint8):
            places.append(index)
            continue
        at, dims = len(places), len(index.spec.shape)
        for size, wanted in zip(index.spec.shape, t.spec.shape[at : at + dims], strict=True):
            if not require_equal(table, size, wanted):
                raise IndexError(f"a mask of {size} on a dimension of {wanted}")
        found = mode.dispatch(aten.nonzero.default, (index,), {})
        places += [mode.dispatch(aten.select.int, (found, 1, i), {}) for i in range(dims)]
    return mode.dispatch(aten.index.Tensor, (t, places), {})


def _unique(
    m: _Maker, t: FakeTensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    count = m.count()
    inverse = m.tensor(t, t.spec.shape if return_inverse else (0,))
    return m.tensor(t, (count,), t.spec.dtype), inverse, m.tensor(t, (count,) if return_counts else (0,))


def _unique_consecutive(
    m: _Maker,
    t: FakeTensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    return _unique(m, t, True, return_inverse, return_counts) if dim is None else None


def _repeat_interleave(m: _Maker, repeats: FakeTensor, output_size: Any = None) -> FakeTensor:
    return m.tensor(repeats, (m.count() if output_size is None else output_size,))


#: Said by other operators, which any mode knows.
_FORMS: dict[Any, Callable[..., Any]] = {
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
}

_RULES: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: _nonzero,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique_consecutive,
    aten.repeat_interleave.Tensor: _repeat_interleave,
}
