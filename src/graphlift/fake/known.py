"""Fakes whose values are known: small literals, and what is computed from them alone.

In: operators on fakes and their results. Out: real tensors on known storages (`FakeStorage.constant`).
Always: a storage that is written is known no more; random and uninitialised values never are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..shapes.expr import Expr
from .ops import OpInfo
from .tensor import FakeTensor, value_of

#: Elements of the largest tensor whose values are kept.
KNOWN_LIMIT = 256
_CPU = torch.device("cpu")


def know(fake: FakeTensor, value: Tensor) -> None:
    """Remember that the storage of ``fake`` holds what ``value``, which nobody writes, holds; not if it is large."""
    plain = (
        value.device == _CPU and value.layout is torch.strided and not value.is_conj() and not value.is_neg()
    )
    if plain and value.numel() <= KNOWN_LIMIT and value.storage_offset() == 0:
        fake.home.constant = value


def carry(info: OpInfo, args: tuple, kwargs: dict, result: Any) -> Any:
    """``result``, known where it is one small tensor made of known values alone."""
    if type(result) is not FakeTensor or (
        args and type(args[0]) is FakeTensor and args[0].home.constant is None
    ):
        return result
    spec = result.spec
    if spec.symbolic or spec.device != _CPU or spec.numel() > KNOWN_LIMIT or not _is_determined(info):
        return result
    found: list[bool] = []
    real_args, real_kwargs = _values(args, found), _values(kwargs, found)
    if not all(found):
        return result
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        value = info.func(*real_args, **real_kwargs)
    if (tuple(value.shape), value.stride(), value.dtype) == (spec.shape, spec.stride, spec.dtype):
        know(result, value)
    return result


def answer(info: OpInfo, args: tuple, kwargs: dict) -> Any:
    """What an operator such as ``equal`` says of known values; None where one is not known, or it gives tensors."""
    found: list[bool] = []
    real_args, real_kwargs = _values(args, found), _values(kwargs, found)
    if not all(found) or any(isinstance(r.type, torch.TensorType) for r in info.func._schema.returns):
        return None
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        return info.func(*real_args, **real_kwargs)


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
