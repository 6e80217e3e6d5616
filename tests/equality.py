"""Comparing what a compiled program gives with what eager gives: values, dtypes, strides, flags and aliasing.

In: two results of any structure (tensors, containers, dataclasses, plain objects such as key-value caches).
Out: nothing, or an AssertionError that names the path of the first difference. Eager's result always comes second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Closeness of two floating-point tensors; integers and bools are always exact."""

    rtol: float
    atol: float


EXACT = Tolerance(0.0, 0.0)
FLOAT32 = Tolerance(1e-4, 1e-5)
TOLERANCES = {
    torch.float64: Tolerance(1e-7, 1e-9),
    torch.float32: FLOAT32,
    torch.complex64: FLOAT32,
    torch.complex128: Tolerance(1e-7, 1e-9),
    torch.bfloat16: Tolerance(1.6e-2, 1e-2),
    torch.float16: Tolerance(2e-3, 1e-3),
}
GRADIENT_RTOL = 1e-3  # of the largest entry


def leaves(value: Any, path: str = "result") -> Iterator[tuple[str, Any]]:
    """Every leaf of ``value`` with its path, in a fixed order; objects are opened up through their attributes."""
    if isinstance(value, Mapping):
        yield f"{path} keys", (type(value), tuple(value))
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple, deque)):
        yield f"{path} length", (type(value), len(value), getattr(value, "maxlen", None))
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif (
        hasattr(value, "__dict__")
        and not isinstance(value, (Tensor, nn.Module, type))
        and not callable(value)
    ):
        for name in sorted(vars(value)):
            yield from leaves(vars(value)[name], f"{path}.{name}")
    else:
        yield path, value


def assert_equal(
    got: Any, expected: Any, *, tolerance: Tolerance | None = None, strict: bool = True, path: str = "result"
) -> None:
    """``got`` is what eager gives: structure, types, values and, when ``strict``, strides and ``requires_grad``."""
    got_leaves, expected_leaves = list(leaves(got, path)), list(leaves(expected, path))
    for (where, a), (expected_where, b) in zip(got_leaves, expected_leaves, strict=False):
        assert where == expected_where, f"structure differs: found {where}, eager has {expected_where}"
        if isinstance(b, Tensor):
            assert_tensors_equal(a, b, tolerance=tolerance, strict=strict, path=where)
        else:
            same_nan = isinstance(b, float) and b != b and isinstance(a, float) and a != a
            assert type(a) is type(b), f"{where}: found {type(a).__name__}, eager has {type(b).__name__}"
            assert same_nan or a is b or a == b or close(a, b), f"{where}: found {a!r}, eager has {b!r}"
    assert len(got_leaves) == len(expected_leaves), (
        f"{path}: {len(got_leaves)} leaves, eager has {len(expected_leaves)}"
    )
    if strict:
        assert_same_aliasing(got_leaves, expected_leaves)


def close(a: Any, b: Any) -> bool:
    return isinstance(b, float) and abs(a - b) <= FLOAT32.atol + FLOAT32.rtol * abs(b)


def assert_tensors_equal(
    a: Any, b: Tensor, *, tolerance: Tolerance | None = None, strict: bool = True, path: str = "tensor"
) -> None:
    assert isinstance(a, Tensor), f"{path}: found {type(a).__name__}, eager has a tensor"
    assert type(a) is type(b), f"{path}: found {type(a).__name__}, eager has {type(b).__name__}"
    properties = ["dtype", "shape", "device", "layout"] + (["requires_grad", "is_leaf"] if strict else [])
    for name in properties:
        found, wanted = getattr(a, name), getattr(b, name)
        assert found == wanted, f"{path}: {name} is {found}, eager has {wanted}"
    if strict and b.layout == torch.strided:
        assert a.stride() == b.stride(), f"{path}: strides are {a.stride()}, eager has {b.stride()}"
        assert a._is_view() == b._is_view(), f"{path}: is a view: {a._is_view()}, eager has {b._is_view()}"
        assert (a.grad_fn is None) == (b.grad_fn is None), (
            f"{path}: grad_fn is {a.grad_fn}, eager has {b.grad_fn}"
        )
    limit = tolerance or TOLERANCES.get(b.dtype, EXACT)
    torch.testing.assert_close(
        a.detach(),
        b.detach(),
        rtol=limit.rtol,
        atol=limit.atol,
        equal_nan=True,
        msg=lambda text: f"{path}: {text}",
    )


def assert_same_aliasing(got: list[tuple[str, Any]], expected: list[tuple[str, Any]]) -> None:
    """Two leaves are one object, or share memory, exactly where they do in eager."""
    pairs = [(where, a, b) for (where, a), (_, b) in zip(got, expected, strict=True) if isinstance(b, Tensor)]
    pairs = [(where, a, b) for where, a, b in pairs if b.layout == torch.strided and b.numel()]
    for position, (where, a, b) in enumerate(pairs):
        for other_where, other_a, other_b in pairs[:position]:
            assert (a is other_a) == (b is other_b), f"{where} and {other_where}: identity differs from eager"
            shared = a.untyped_storage().data_ptr() == other_a.untyped_storage().data_ptr()
            wanted = b.untyped_storage().data_ptr() == other_b.untyped_storage().data_ptr()
            assert shared == wanted, f"{where} and {other_where}: share memory: {shared}, eager has {wanted}"


def assert_gradients_equal(got: nn.Module, expected: nn.Module, *, rtol: float = GRADIENT_RTOL) -> None:
    """Every parameter's gradient is eager's, to ``rtol`` of the largest entry.

    A gradient that is zero but for rounding (a key bias under softmax) has no scale of its own: the floor is a
    ten-thousandth of the largest gradient in the model.
    """
    reference = {name: p.grad for name, p in expected.named_parameters()}
    largest = max((g.abs().max().item() for g in reference.values() if g is not None), default=0.0)
    for name, parameter in got.named_parameters():
        wanted = reference.pop(name)
        found = parameter.grad
        assert (found is None) == (wanted is None), f"gradient of {name}: found {found}, eager has {wanted}"
        if found is None or wanted is None:
            continue
        assert found.shape == wanted.shape and found.dtype == wanted.dtype, (
            f"gradient of {name}: other shape or dtype"
        )
        limit = rtol * max(wanted.abs().max().item(), 1e-4 * largest)
        difference = (found - wanted).abs().max().item()
        assert difference <= limit, f"gradient of {name}: differs by {difference:.3g}, allowed {limit:.3g}"
    assert not reference, f"parameters missing: {sorted(reference)}"


def assert_state_equal(got: nn.Module, expected: nn.Module) -> None:
    """Parameters and buffers, those outside the state_dict too, are eager's."""
    for kind in ("named_parameters", "named_buffers"):
        found, wanted = dict(getattr(got, kind)()), dict(getattr(expected, kind)())
        assert set(found) == set(wanted), f"{kind}: {sorted(set(found) ^ set(wanted))}"
        for name, tensor in wanted.items():
            assert_tensors_equal(found[name], tensor, strict=False, path=name)
