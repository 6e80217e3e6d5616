"""Views as replayable steps, and how a write to a view reaches the tensor it views.

In: the view operator with its arguments. Out: steps, which can be replayed on values and on real tensors, and inverted.
Always: replaying a tensor's path on its storage's base value gives the tensor's value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..data import dataclass
from ..fake import Spec, Unsupported
from ..fake.ops import aten
from ..fake.spec import make_spec
from ..shapes.expr import SizeLike
from .ir import Value

if TYPE_CHECKING:
    from .record import Recorder


@dataclass(frozen=True, slots=True, eq=False)
class ViewStep:
    """`func(parent, *args, **kwargs)`; `many` is (func, args, index) where the program made several views at once."""

    func: Any
    args: tuple
    kwargs: dict
    parent: Spec
    spec: Spec
    grad_mode: bool
    in_place: bool = False
    many: tuple[Any, tuple, int] | None = None
    data: bool = False  # made by `.data`, which has a version counter of its own

    @property
    def identity(self) -> bool:
        """Whether the value is the parent's: same geometry, only autograd sees a difference."""
        return self.spec is self.parent


Path = tuple[ViewStep, ...]


def detaches(step: ViewStep) -> bool:
    """Whether it makes an alias that is no view, and the base of its own views."""
    return step.data or step.func is aten.detach.default


def same_layout(a: Spec, b: Spec) -> bool:
    """Equal but for the offset into storage."""
    return a is b or (
        a.shape == b.shape
        and a.stride == b.stride
        and a.dtype == b.dtype
        and a.device == b.device
        and a.conj == b.conj
        and a.neg == b.neg
    )


def shifted(spec: Spec, delta: SizeLike) -> Spec:
    if delta == 0:
        return spec
    return make_spec(
        spec.shape,
        spec.stride,
        spec.offset + delta,
        spec.dtype,
        spec.device,
        spec.layout,
        spec.conj,
        spec.neg,
    )


def replay(rec: Recorder, step: ViewStep, parent: Value) -> Value:
    """The step's value on this parent value, whose layout is the step's parent's."""
    if step.identity:
        return parent
    if step.parent.dtype.itemsize == step.spec.dtype.itemsize:
        delta = parent.spec.offset - step.parent.offset
    else:
        delta = _rescaled_offset(parent.spec.offset - step.parent.offset, step)
    spec = shifted(step.spec, delta)
    args = step.args
    if step.func is aten.as_strided.default:
        args = (spec.shape, spec.stride, spec.offset)
    return rec.record(step.func, (parent, *args), step.kwargs, spec)


def _rescaled_offset(delta: SizeLike, step: ViewStep) -> SizeLike:
    bytes_ = delta * step.parent.dtype.itemsize
    if bytes_ % step.spec.dtype.itemsize:
        raise Unsupported(step.func, "a view of another element size at an odd offset")
    return bytes_ // step.spec.dtype.itemsize


# -- several views at once, as single views ----------------------------------------------------------------


def single_views(func: Any, args: tuple, kwargs: dict, specs: list[Spec]) -> list[tuple[Any, tuple]]:
    """For `unbind`, `split` and kin: each result as one view operator of the argument."""
    rule = _MANY.get(func)
    if rule is None:
        return [(aten.as_strided.default, (s.shape, s.stride, s.offset)) for s in specs]
    return rule(args, kwargs, specs)


def _argument(args: tuple, kwargs: dict, position: int, name: str, default: Any) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def _unbind(args: tuple, kwargs: dict, specs: list[Spec]) -> list[tuple[Any, tuple]]:
    dim = _argument(args, kwargs, 1, "dim", 0)
    return [(aten.select.int, (dim, i)) for i in range(len(specs))]


def _split(args: tuple, kwargs: dict, specs: list[Spec]) -> list[tuple[Any, tuple]]:
    dim = _argument(args, kwargs, 2, "dim", 0)
    views, start = [], 0
    for s in specs:
        end = start + s.shape[dim]
        views.append((aten.slice.Tensor, (dim, start, end)))
        start = end
    return views


_MANY: dict[Any, Callable[..., list[tuple[Any, tuple]]]] = {
    aten.unbind.int: _unbind,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
}


# -- inverses ----------------------------------------------------------------------------------------------
# Each takes (recorder, step, parent value, new child value) and gives the new parent value.


def scatter(rec: Recorder, base: Value, path: Path, value: Value) -> Value:
    """The base value after `value` was written through the views of `path`."""
    parents = [base]
    for step in path[:-1]:
        parents.append(replay(rec, step, parents[-1]))
    for step, parent in zip(reversed(path), reversed(parents), strict=True):
        if step.func in _BY_LAYOUT:
            value = rec.conform(value, step.spec)
        inverse = _INVERSE.get(step.func, _by_strides)
        value = rec.cast(inverse(rec, step, parent, value), parent.spec)
    return rec.conform(value, base.spec)


def _same(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
    return child


def _reshape_back(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
    return rec.call(aten.view.default, child, list(parent.spec.shape))


def _transpose(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
    return rec.call(aten.transpose.int, child, *step.args)


def _t(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
    return rec.call(aten.t.default, child)


def _permute(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
    n = len(parent.spec.shape)
    inverse = [0] * n
    for position, dim in enumerate(step.args[0]):
        inverse[dim % n] = position
    return rec.call(aten.permute.default, child, inverse)


def _scatter_with(func: Any) -> Callable[..., Value]:
    def inverse(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
        return rec.call(func, parent, child, *step.args, **step.kwargs)

    return inverse


def _expand(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
    if parent.spec.numel() != child.spec.numel():
        return _by_strides(rec, step, parent, child)
    return child if parent.spec.shape == child.spec.shape else _reshape_back(rec, step, parent, child)


def _by_strides(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
    if step.spec.dtype != parent.spec.dtype or step.spec.conj != parent.spec.conj:
        raise Unsupported(step.func, "a write through this view has no functional form")
    offset = step.spec.offset - step.parent.offset + parent.spec.offset
    if parent.op is None:  # the kernel refuses an input that requires grad, although autograd is off
        parent = rec.record(aten.detach.default, (parent,), {}, parent.spec)
    return rec.call(
        aten.as_strided_scatter.default, parent, child, list(step.spec.shape), list(step.spec.stride), offset
    )


def _as_complex(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
    return rec.call(aten.view_as_complex.default, child)


def _as_real(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
    return rec.call(aten.view_as_real.default, child)


def _as_dtype(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
    return rec.call(aten.view.dtype, child, parent.spec.dtype)


def _conj(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
    return rec.call(aten._conj.default, child)


def _neg(rec: Recorder, step: ViewStep, parent: Value, child: Value) -> Value:
    return rec.call(aten._neg_view.default, child)


_INVERSE: dict[Any, Callable[..., Value]] = {
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten.lift_fresh.default: _same,
    aten.view.default: _reshape_back,
    aten._reshape_alias.default: _reshape_back,
    aten.unsqueeze.default: _reshape_back,
    aten.squeeze.default: _reshape_back,
    aten.squeeze.dim: _reshape_back,
    aten.squeeze.dims: _reshape_back,
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.permute.default: _permute,
    aten.expand.default: _expand,
    aten.slice.Tensor: _scatter_with(aten.slice_scatter.default),
    aten.select.int: _scatter_with(aten.select_scatter.default),
    aten.diagonal.default: _scatter_with(aten.diagonal_scatter.default),
    aten.view_as_real.default: _as_complex,
    aten.view_as_complex.default: _as_real,
    aten.view.dtype: _as_dtype,
    aten._conj.default: _conj,
    aten._neg_view.default: _neg,
}

# These read the written value's strides, which must then be the view's.
_BY_LAYOUT = frozenset(
    f for f, rule in _INVERSE.items() if rule in (_reshape_back, _as_complex, _as_dtype, _expand)
)
