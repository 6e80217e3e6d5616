"""Every operator of torch's database, compiled by the whole pipeline in strict mode: what eager gives.

In: one sample an operator and dtype. Out: a test each: values, dtypes, strides, flags, aliasing, arguments changed in
place, gradients and the generator's state. Always: what `sweep.py` does with all samples and forms of call, in brief.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.compilers import Compiler

from .comparison import EXCEPTIONS, compare
from .samples import name_of, op_db, outcome, samples


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
        compare(got, expected, ignored)


def test_exceptions_are_operators() -> None:
    assert set(EXCEPTIONS) <= {name_of(info) for info in op_db}
