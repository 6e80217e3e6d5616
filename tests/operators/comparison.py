"""Whether an operator's compiled outcome is eager's, and how the compiled call was made.

In: two outcomes. Out: nothing, or an AssertionError that names the first difference.
Always: an exception to exactness is a row of `EXCEPTIONS`, with its reason.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.equality import TOLERANCES, Tolerance, assert_equal, leaves

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


def compare(
    got: dict[str, Any], expected: dict[str, Any], ignored: str = "", computed: torch.dtype | None = None
) -> None:
    """``computed``: the dtype of the arithmetic, where results may be written into a wider one."""
    if "raised" in expected or "raised" in got:
        assert got.get("raised") == expected.get("raised"), (
            f"raised {got.get('raised', 'nothing')}, eager {expected.get('raised', 'nothing')}"
        )
        return
    if ignored == "values":
        for (where, a), (_, b) in zip(leaves(got["result"]), leaves(expected["result"]), strict=True):
            if isinstance(b, Tensor):
                assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()), where
        return
    parts = [{k: found[k] for k in ("result", "arguments")} for found in (got, expected)]
    limit = TOLERANCES.get(computed) if computed is not None else None
    assert_equal(*parts, strict=ignored != "views", tolerance=limit, path="call")
    if ignored != "views":
        _compare_places(*parts)
    for part in ("generator", "written", "resizes"):
        assert_equal(got[part], expected[part], path=part)
    if "gradients" in expected:
        _compare_gradients(got["gradients"], expected["gradients"])


def _compare_places(got: Any, expected: Any) -> None:
    """Offsets within the storage, where eager's tensor is a view of something."""
    for (where, a), (_, b) in zip(leaves(got), leaves(expected), strict=True):
        if isinstance(b, Tensor) and b.layout == torch.strided:
            assert a.storage_offset() == b.storage_offset(), (
                f"{where}: offset is {a.storage_offset()}, eager has {b.storage_offset()}"
            )


def _compare_gradients(got: Any, expected: Any) -> None:
    """To the tolerance of the dtype, or that fraction of the largest entry."""
    assert len(got) == len(expected), f"gradients: {got!r:.200}, eager has {expected!r:.200}"
    for position, (a, b) in enumerate(zip(got, expected, strict=True)):
        if not isinstance(b, Tensor) or b.layout != torch.strided:
            assert type(a) is type(b) and (isinstance(b, Tensor) or a == b), (
                f"gradient {position}: {a!r:.200}, eager has {b!r:.200}"
            )
            continue
        assert isinstance(a, Tensor), f"gradient {position}: {a!r:.200}, eager has a tensor"
        found, wanted = ((t.dtype, t.shape, t.requires_grad) for t in (a, b))
        assert found == wanted, f"gradient {position}: {found}, eager has {wanted}"
        finite = b[torch.isfinite(b)].abs()
        limit = GRADIENT if b.dtype == torch.float32 else TOLERANCES.get(b.dtype, FLOAT)
        scale = limit.rtol * float(finite.max()) if finite.numel() else 0.0
        torch.testing.assert_close(
            a,
            b,
            rtol=limit.rtol,
            atol=max(limit.atol, scale),
            equal_nan=True,
            msg=lambda text, position=position: f"gradient {position}: {text}",
        )


def as_accurate(got: dict[str, Any], expected: dict[str, Any], exact: dict[str, Any]) -> bool:
    """Whether results and gradients are as near to those in float64 as eager's are, which then are noise alone.

    Where terms cancel, a low-precision gradient is the rounding of its parts; eager itself rounds the last elements of
    a vector otherwise than the others.
    """
    if "raised" in got or "raised" in expected or "raised" in exact:
        return False
    parts = [[*leaves(f["result"]), *leaves(f.get("gradients", ()))] for f in (got, expected, exact)]
    for (_, a), (_, b), (_, c) in zip(*parts, strict=True):
        if isinstance(b, Tensor) and b.is_floating_point():
            if (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
                return False
            ours, theirs = ((t.detach().double() - c.detach()).abs().max() for t in (a, b))
            if _is_nan(ours) != _is_nan(theirs) or float(ours) > 2 * float(theirs):
                return False
    return True


def _is_nan(value: Tensor) -> bool:
    return bool(value.isnan())
