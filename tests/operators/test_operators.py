"""Every operator of torch's database, compiled by the whole pipeline in strict mode: what eager gives.

In: one sample an operator and dtype. Out: a test each: values, dtypes, strides, flags, aliasing, arguments changed in
place, gradients and the generator's state. Always: an exception is a row of `EXCEPTIONS`, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.compilers import Compiler
from tests.equality import TOLERANCES, Tolerance, assert_equal, leaves

from .samples import name_of, op_db, outcome, samples

# Operator -> (what is not compared: "values" or "views"; why).
EXCEPTIONS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
        ("values", "memory that nothing has written"),
    ),
    "nn.functional.max_pool1d": ("views", "eager's fast path without gradients is another operator"),
}

FLOAT = Tolerance(1e-4, 1e-5)
GRADIENT = Tolerance(5e-4, 1e-4)


def _cases() -> Iterator[Any]:
    for info in op_db:
        for dtype in (torch.float32, torch.int64):
            if dtype in info.supported_dtypes("cpu"):
                yield pytest.param(info, dtype, id=f"{name_of(info)}-{str(dtype).removeprefix('torch.')}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("info", "dtype"), list(_cases()))
def test_operator(compiler: Compiler, info: Any, dtype: torch.dtype) -> None:
    grad = dtype.is_floating_point and info.supports_autograd
    ignored, _ = EXCEPTIONS.get(name_of(info), ("", ""))

    def fn(x: Any, *args: Any, **kwargs: Any) -> Any:
        return info.op(x, *args, **kwargs)

    for tree in samples(info, dtype, grad, 1):
        expected = outcome(fn, tree, grad)
        got = outcome(compiler.compile(fn, backend="auto"), tree, grad)
        _compare(got, expected, ignored)


def _compare(got: dict[str, Any], expected: dict[str, Any], ignored: str) -> None:
    if "raised" in expected or "raised" in got:
        assert got.get("raised") == expected.get("raised")
        return
    if ignored == "values":
        for (where, a), (_, b) in zip(leaves(got["result"]), leaves(expected["result"]), strict=True):
            if isinstance(b, torch.Tensor):
                assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()), where
        return
    strict = ignored != "views"
    for part in ("result", "arguments", "generator"):
        assert_equal(got[part], expected[part], strict=strict, path=part)
    if "gradients" in expected:
        _compare_gradients(got["gradients"], expected["gradients"])


def _compare_gradients(got: Any, expected: Any) -> None:
    """To the tolerance of the dtype, or that fraction of the largest entry."""
    for position, (a, b) in enumerate(zip(got, expected, strict=True)):
        if not isinstance(b, torch.Tensor) or b.layout != torch.strided:
            assert type(a) is type(b) and (isinstance(b, torch.Tensor) or a == b), position
            continue
        assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad), position
        finite = b[torch.isfinite(b)].abs()
        limit = GRADIENT if b.dtype == torch.float32 else TOLERANCES.get(b.dtype, FLOAT)
        scale = limit.rtol * float(finite.max()) if finite.numel() else 0.0
        torch.testing.assert_close(a, b, rtol=limit.rtol, atol=max(limit.atol, scale), equal_nan=True)


def test_exceptions_are_operators() -> None:
    assert set(EXCEPTIONS) <= {name_of(info) for info in op_db}
