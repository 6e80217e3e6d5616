"""Shapes of the results of layers and losses that are operators of their own, where sizes are symbolic.

In, out and always: as in `size_rules.py`, whose table these rows belong to.
"""

from __future__ import annotations

from typing import Any

from ..shapes.expr import SizeLike
from ..shapes.table import SymbolTable
from .corrections import sums_bags_fast
from .size_rules import SizeRule, row, shaped_as
from .view_rules import Shape, argument, require_equal

# -- bags of embeddings ------------------------------------------------------------------------------------------


def _bag(forward_only: bool) -> SizeRule:
    def rule(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
        weight, indices, offsets = (t.spec for t in args[:3])
        mode = argument(args, kwargs, 4, "mode", 0)
        last = argument(args, kwargs, 7, "include_last_offset", False)
        bags: SizeLike = offsets.shape[0] - (1 if last else 0)
        counted = offsets.shape[0] if mode == 0 and forward_only else bags
        scale = argument(args, kwargs, 6, "per_sample_weights")
        if scale is not None:
            require_equal(table, scale.spec.shape[0], indices.shape[0])
        result = (bags, weight.shape[1])
        bag_of = (0,) if sums_bags_fast(args, kwargs) else indices.shape
        return result, bag_of, (counted,), result if mode == 2 else (counted,)

    return rule


row("_embedding_bag")(_bag(False))
row("_embedding_bag_forward_only")(_bag(True))


row("_embedding_bag_backward")(lambda table, args, kwargs: (args[6], args[0].spec.shape[1]))
row("_embedding_bag_dense_backward")(lambda table, args, kwargs: (args[5], args[0].spec.shape[1]))


row("_embedding_bag_per_sample_weights_backward")(shaped_as(2))


# -- attention ---------------------------------------------------------------------------------------------------


@row("_native_multi_head_attention")
def _attention(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    shape, heads = args[0].spec.shape, args[4]
    if not argument(args, kwargs, 10, "need_weights", True):
        return shape, None
    averaged = argument(args, kwargs, 11, "average_attn_weights", True)
    return shape, (shape[0], *(() if averaged else (heads,)), shape[1], shape[1])


# -- pools -------------------------------------------------------------------------------------------------------


@row("fractional_max_pool2d fractional_max_pool3d")
def _fractional_pool(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    shape = (*args[0].spec.shape[: -len(args[2])], *args[2])
    return shape, shape


row("fractional_max_pool2d_backward fractional_max_pool3d_backward")(shaped_as(1))


@row("max_unpool2d max_unpool3d")
def _unpool(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    for a, b in zip(args[0].spec.shape, args[1].spec.shape, strict=True):
        require_equal(table, a, b)
    return (*args[0].spec.shape[: -len(args[2])], *args[2])


# -- losses ------------------------------------------------------------------------------------------------------


@row("multi_margin_loss")
def _margin_loss(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    shape, target = args[0].spec.shape, args[1].spec.shape
    if len(shape) == 2:
        require_equal(table, shape[0], target[0])
    return target if argument(args, kwargs, 5, "reduction", 1) == 0 else ()


@row("multilabel_margin_loss_forward")
def _labels_loss(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    shape, target = args[0].spec.shape, args[1].spec.shape
    for a, b in zip(shape, target, strict=True):
        require_equal(table, a, b)
    return (shape[:-1] if args[2] == 0 else ()), target


row("multi_margin_loss_backward multilabel_margin_loss_backward")(shaped_as(1))
