"""Fakes whose values are known: small literals, and what is computed from them alone.

In: operators on fakes and their results. Out: real tensors on known storages (`FakeStorage.constant`).
Always: what is written to a storage is known too, or the storage no more; random and uninitialised values never are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..shapes.expr import Expr
from .ops import OpInfo, quietly
from .tensor import FakeTensor, value_of

#: Elements of the largest tensor whose values are kept.
KNOWN_LIMIT = 4096
_CPU = torch.device("cpu")


def know(fake: FakeTensor, value: Tensor) -> None:
    """Remember that the storage of ``fake`` holds what ``value``, which nobody writes, holds; not if it is large."""
    plain = (
        value.device == _CPU and value.layout is torch.strided and not value.is_conj() and not value.is_neg()
    )
    if plain and value.numel() <= KNOWN_LIMIT and value.storage_offset() == 0:
        fake.home.constant = value


def carry(info: OpInfo, args: tuple, kwargs: dict, result: Any) -> Any:
    """``result``, known where it is small tensors made of known values alone."""
    if args and type(args[0]) is FakeTensor and args[0].home.constant is None:
        return result
    made = result if type(result) is tuple else (result,)
    if not all(map(_may_be_known, made)) or not _is_determined(info):
        return result
    values = computed(info, args, kwargs)
    for fake, value in zip(made, values if type(values) is tuple else (values,), strict=False):
        spec = fake.spec
        if value is not None and (tuple(value.shape), value.stride(), value.dtype) == (
            spec.shape,
            spec.stride,
            spec.dtype,
        ):
            know(fake, value)
    return result


def _may_be_known(made: Any) -> bool:
    if type(made) is not FakeTensor or made.spec.symbolic:
        return False
    return made.spec.device == _CPU and made.spec.numel() <= KNOWN_LIMIT


def computed(info: OpInfo, args: tuple, kwargs: dict) -> Any:
    """What an operator such as ``equal`` or ``nonzero`` makes of known values; None where one is not known."""
    found: list[bool] = []
    real_args, real_kwargs = _values(args, found), _values(kwargs, found)
    if not all(found):
        return None
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        return quietly(info.func, real_args, real_kwargs)


def rewritten(info: OpInfo, args: tuple, kwargs: dict) -> Tensor | None:
    """What the storage of the first argument holds after an operator in place; None where it is known no more."""
    home = args[0].home
    before = home.constant
    if before is None or not _is_determined(info):
        return None
    memory = before.untyped_storage().clone()
    home.constant = before.new_empty(0).set_(memory, before.storage_offset(), before.shape, before.stride())
    try:
        return None if computed(info, args, kwargs) is None else home.constant
    finally:
        home.constant = before


def _is_determined(info: OpInfo) -> bool:
    return not info.random and "empty" not in info.name


def _values(value: Any, found: list[bool]) -> Any:
    """``value`` with real tensors for fakes; ``found`` gets, for each, whether it is known."""
    if isinstance(value, Tensor):
        real = value_of(value)
        found.append(real is not None)
        return real
    if isinstance(value, Expr):
        found.append(False)
    if type(value) in (list, tuple):
        return type(value)(_values(item, found) for item in value)
    if type(value) is dict:
        return {key: _values(item, found) for key, item in value.items()}
    return value
