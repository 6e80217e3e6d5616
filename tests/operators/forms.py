"""The ways to call an operator: function, method, operator, in place, `out=` of every kind, and with wrong arguments.

In: an OpInfo and a dtype. Out: `Case`s, functions of tensors with arguments. Always: eager alone says what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .samples import (
    BinaryUfuncInfo,
    ForeachFuncInfo,
    Tree,
    UnaryUfuncInfo,
    all_samples,
    copied,
    name_of,
    spread,
)

FEW = 4  # samples of the forms that say little about an operator's own arithmetic


@dataclass(frozen=True, slots=True)
class Case:
    form: str
    index: int
    fn: Callable[..., Any]
    tree: Any
    grad: bool


def cases(info: Any, dtype: torch.dtype, grad: bool, limit: int) -> Iterator[Case]:
    """Every form of the operator on ``limit`` samples from all over (0: on every sample)."""
    trees = list(all_samples(info, dtype, grad))
    trees = spread(trees, limit) if limit else trees
    few = spread(trees, min(FEW, limit or FEW))
    for form, chosen, fn in _plain_forms(info, grad, trees, few):
        for index, tree in enumerate(chosen):
            yield Case(form, index, fn, tree, grad)
    if not grad:
        yield from _error_cases(info)
    if info.supports_out and not isinstance(info, ForeachFuncInfo):
        yield from _out_cases(info, few, grad)


def _plain_forms(
    info: Any, grad: bool, trees: list[Tree], few: list[Tree]
) -> Iterator[tuple[str, list[Tree], Any]]:
    def function(x: Any, *args: Any, **kwargs: Any) -> Any:
        return info.op(x, *args, **kwargs)

    yield "function", trees, function
    variants = (
        ("method", "method_variant", few),
        ("operator", "operator_variant", few),
        ("in place", "inplace_variant", trees),
        ("in-place operator", "inplace_operator_variant", few),
    )
    for form, attribute, chosen in variants:
        variant = getattr(info, attribute, None)
        if variant is not None:
            yield form, chosen, _calling(variant, copy=grad and form.startswith("in"))


def _calling(variant: Callable[..., Any], copy: bool) -> Callable[..., Any]:
    """A program of the variant; autograd lets no leaf be written, so a copy is where gradients are followed."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return variant(x, *args, **kwargs)

    def call_on_copy(x: Any, *args: Any, **kwargs: Any) -> Any:
        mine = [t.clone() for t in x] if isinstance(x, (list, tuple)) else x.clone()
        result = variant(mine, *args, **kwargs)
        return mine if result is None else result

    return call_on_copy if copy else call


def _error_cases(info: Any) -> Iterator[Case]:
    def function(x: Any, *args: Any, **kwargs: Any) -> Any:
        return info.op(x, *args, **kwargs)

    if info.error_inputs_func is None:
        return
    for index, error in enumerate(info.error_inputs("cpu")):
        sample = error.sample_input
        yield Case("error", index, function, (sample.input, tuple(sample.args), dict(sample.kwargs)), False)


# Kernels of eager that write past a strided output, and so corrupt memory.
CORRUPTING = frozenset(("linalg.lu", "lu_unpack", "narrow_copy", "nn.functional.avg_pool3d"))

# Other kernels than elementwise ones do not look whether they read what they write, or write a place twice.
_ELEMENTWISE = frozenset(("out= expanded",))
_STRIDED = frozenset(("out= with gaps", "out= transposed"))


# -- out= --------------------------------------------------------------------------------------------------------


def _out_cases(info: Any, trees: list[Tree], grad: bool) -> Iterator[Case]:
    def with_out(x: Any, *args: Any, out: Any, **kwargs: Any) -> Any:
        return info.op(x, *args, out=out, **kwargs)

    def with_alias(x: Any, *args: Any, **kwargs: Any) -> Any:
        return info.op(x, *args, out=x, **kwargs)

    elementwise = isinstance(info, (UnaryUfuncInfo, BinaryUfuncInfo))
    for index, tree in enumerate(trees):
        results = _results(info, tree)
        if results is None:
            continue
        for form, make in _OUTS.items():
            if form in _ELEMENTWISE and not elementwise or form in _STRIDED and name_of(info) in CORRUPTING:
                continue
            outs = pytree.tree_map(lambda t, make=make: make(t.detach()), results)
            first, args, kwargs = tree
            yield Case(form, index, with_out, (first, args, {**kwargs, "out": outs}), grad)
        if elementwise and isinstance(tree[0], Tensor):
            yield Case("out= the input", index, with_alias, tree, grad)


def _results(info: Any, tree: Tree) -> Any:
    (first, args, kwargs), _ = copied(tree, False)
    try:
        results = info.op(first, *args, **kwargs)
    except Exception:
        return None
    kinds = (Tensor,) if isinstance(results, Tensor) else results
    plain = isinstance(results, Tensor) or (
        isinstance(results, tuple) and all(isinstance(t, Tensor) for t in kinds)
    )
    strided = all(t.layout == torch.strided for t in pytree.tree_leaves(results) if isinstance(t, Tensor))
    if not (plain and strided):
        return None
    return results if isinstance(results, Tensor) else tuple(results)


def _filled(t: Tensor) -> Tensor:
    return torch.zeros_like(t, memory_format=torch.contiguous_format)


def _every_second(t: Tensor) -> Tensor:
    return torch.zeros((*t.shape, 2), dtype=t.dtype)[..., 1]


def _reversed_strides(t: Tensor) -> Tensor:
    return torch.zeros(tuple(reversed(t.shape)), dtype=t.dtype).permute(tuple(reversed(range(t.dim()))))


_OTHER = {torch.float32: torch.int64, torch.float64: torch.int64}

_OUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "out=": _filled,
    "out= with gaps": _every_second,
    "out= transposed": _reversed_strides,
    "out= empty": lambda t: torch.empty(0, dtype=t.dtype),
    "out= of another shape": lambda t: torch.zeros((*t.shape, 2), dtype=t.dtype),
    "out= of a smaller type": lambda t: _filled(t).to(_OTHER.get(t.dtype, torch.bool)),
    "out= of a larger type": lambda t: _filled(t).to(torch.complex128),
    "out= that requires grad": lambda t: (
        _filled(t).requires_grad_() if t.is_floating_point() else _filled(t).double().requires_grad_()
    ),
    "out= expanded": lambda t: torch.zeros((), dtype=t.dtype).expand(t.shape),
}
