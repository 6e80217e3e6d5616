"""torch's operator databases as programs: samples, copies of them, and what a call gives.

In: an OpInfo and a dtype. Out: sample arguments, and outcomes to compare. Always: the same samples in every run.
"""

from __future__ import annotations

import copy
import itertools
import random
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

try:
    import expecttest  # noqa: F401
except ImportError:  # torch's operator samples import it without using it
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stub
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ForeachFuncInfo, UnaryUfuncInfo


def _unseeded(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


# The database's own seeding of random operators would be captured with them; `outcome` seeds.
database.wrapper_set_seed = _unseeded

__all__ = [
    "BinaryUfuncInfo",
    "ForeachFuncInfo",
    "Tree",
    "UnaryUfuncInfo",
    "all_samples",
    "copied",
    "foreach_db",
    "name_of",
    "op_db",
    "outcome",
    "samples",
    "spread",
]

foreach_db: list[Any] = [
    *database.foreach_unary_op_db,
    *database.foreach_binary_op_db,
    *database.foreach_pointwise_op_db,
    *database.foreach_reduce_op_db,
    *database.foreach_other_op_db,
]

Tree = tuple[Any, tuple[Any, ...], dict[str, Any]]  # input, args, kwargs


def name_of(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def all_samples(info: Any, dtype: torch.dtype, grad: bool) -> Iterator[Tree]:
    torch.manual_seed(0)
    random.seed(0)
    for sample in info.sample_inputs("cpu", dtype, requires_grad=grad):
        yield sample.input, tuple(sample.args), dict(sample.kwargs)


def samples(info: Any, dtype: torch.dtype, grad: bool, count: int) -> list[Tree]:
    """``count`` samples from all over the first forty."""
    return spread(list(itertools.islice(all_samples(info, dtype, grad), 40)), count)


def spread(found: list[Any], count: int) -> list[Any]:
    """``count`` entries from all over a list."""
    return found[:: max(1, len(found) // count)][:count]


def copied(tree: Any, grad: bool) -> tuple[Any, list[Tensor]]:
    """The same tree with tensors of its own: strides, and memory that tensors share, are kept."""
    leaves, spec = pytree.tree_flatten(tree)
    memo: dict[int, Any] = {}
    tensors = []
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            detached = leaf.detach()
            made = copy.deepcopy(detached, memo) if leaf.layout == torch.strided else detached.clone()
            leaves[k] = made.requires_grad_(grad and leaf.requires_grad)
            tensors.append(leaves[k])
        elif isinstance(leaf, torch.Generator):
            leaves[k] = torch.Generator().manual_seed(5)
    return pytree.tree_unflatten(leaves, spec), tensors


def outcome(fn: Callable[..., Any], tree: Any, grad: bool) -> dict[str, Any]:
    """Results, arguments afterwards, gradients and the generator's state; or the error that eager users see."""
    (first, args, kwargs), tensors = copied(tree, grad)
    versions = [t._version for t in tensors]
    torch.manual_seed(3)
    try:
        with torch.set_grad_enabled(grad), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            result = fn(first, *args, **kwargs)
    except Exception as error:
        if type(error).__module__.startswith("graphlift"):
            raise
        return {"raised": (type(error).__name__, str(error))}
    found = {"result": result, "arguments": tensors, "generator": torch.get_rng_state()}
    found["written"] = [t._version != v for t, v in zip(tensors, versions, strict=True)]
    found["resizes"] = any("was resized" in str(w.message) for w in warned)
    if grad:
        found["gradients"] = _gradients(result, [t for t in tensors if t.requires_grad and t.is_leaf])
        found["generator"] = torch.get_rng_state()
    return found


def _gradients(result: Any, inputs: list[Tensor]) -> Any:
    outputs = [
        o
        for o in pytree.tree_leaves(result)
        if isinstance(o, Tensor) and o.requires_grad and o.layout == torch.strided
    ]
    if not outputs or not inputs:
        return ()
    generator = torch.Generator().manual_seed(7)
    weights = [torch.rand(o.shape, generator=generator).to(o.dtype) + 0.1 for o in outputs]
    try:
        return torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
    except Exception as error:
        if type(error).__module__.startswith("graphlift"):
            raise
        return "raised", type(error).__name__, str(error)
