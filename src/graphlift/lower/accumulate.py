"""Sums of a product and an embedding's gradient: the rows are added into the product's own memory.

In: an fx node. Out: what is added to what, where that is possible. Always: nobody else reads the product.
A tied embedding's gradient is nearly all zeros: making it and adding it costs more than the rows that are not.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from graphlift.lower.sizes import sizes_of

aten = torch.ops.aten
_PRODUCTS = (aten.mm.default, aten.addmm.default)
_VIEWS = (aten.t.default, aten.view.default, aten.transpose.int, aten.permute.default)


def rows_added(node: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """(the dense summand, the embedding's gradient) of a sum that can be made in the dense summand's memory."""
    if node.target is not aten.add.Tensor or len(node.args) != 2 or node.kwargs:
        return None
    for dense, rows in (node.args, node.args[::-1]):
        if _is_gradient(rows) and isinstance(dense, torch.fx.Node) and _owned(dense):
            a, b = dense.meta.get("val"), rows.meta.get("val")
            if a is not None and b is not None and _alike(a, b):
                return dense, rows
    return None


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and sizes_of(a.shape) == sizes_of(b.shape)


def _is_gradient(node: Any) -> bool:
    return (
        isinstance(node, torch.fx.Node)
        and node.target is aten.embedding_dense_backward.default
        and len(node.users) == 1
        and not node.args[4]  # gradients scaled by frequency
        and node.meta["val"].is_floating_point()
    )


def _owned(node: torch.fx.Node) -> bool:
    """Whether the value is a product's memory, seen through views, that nothing else reads."""
    while len(node.users) == 1 and node.op == "call_function":
        if node.target in _PRODUCTS or rows_added(node) is not None:
            return True
        if node.target not in _VIEWS:
            return False
        node = node.args[0]
    return False
