"""Marks that user code puts on functions and tensors, and that capture reads.

In: `allow_in_graph`, `disable`, `assume_constant_result`, `mark_dynamic` and their kin. Out: `mark_of(fn)` and
attributes on tensors. Always: the attributes are those torch.compile uses, so a mark means the same to both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any, Literal, TypeVar

import torch
from torch._C._dynamo import eval_frame

from graphlift.data import dataclass
from graphlift.errors import InvalidOption, NotCallable

F = TypeVar("F", bound=Callable[..., Any])

Mark = Literal["allow_in_graph", "constant_result", "disabled"]

# Callables other than plain functions: by identity, kept alive.
_others: dict[int, tuple[Any, Mark]] = {}

_ATTRIBUTES: tuple[tuple[str, Mark], ...] = (
    ("_torchdynamo_disable", "disabled"),
    ("_graphlift_disable", "disabled"),
    ("_dynamo_marked_constant", "constant_result"),
    ("_graphlift_leaf", "allow_in_graph"),
)


def keep_from_torch_compile(code: CodeType) -> None:
    """Under `torch.compile`, frames of `code` and all that they call are run as they are: they are graphlift's own."""
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))


def put_mark(fn: Any, mark: Mark) -> None:
    """Marks the callable `fn`."""
    if not callable(fn):
        raise NotCallable(
            f"cannot mark a {type(fn).__name__} as {mark}",
            found=repr(fn)[:200],
            expected="a function or callable",
        )
    if isinstance(fn, FunctionType):
        setattr(fn, next(name for name, value in _ATTRIBUTES if value == mark), True)
    else:
        _others[id(fn)] = (fn, mark)


def mark_of(fn: Any) -> Mark | None:
    """The mark on a callable, if any; runs no user code."""
    if isinstance(fn, FunctionType):
        attributes = fn.__dict__
        return next((mark for name, mark in _ATTRIBUTES if attributes.get(name) is True), None)
    entry = _others.get(id(fn))
    return entry[1] if entry is not None and entry[0] is fn else None


def allow_in_graph(fn: F | Iterable[F]) -> Any:
    """Makes capture put calls of `fn` into the graph as one node, without looking inside.

    `fn` must only compute on tensors and must not depend on anything but its arguments. Also accepts a list or
    tuple of functions. Returns its argument, so that it serves as a decorator.
    """
    for one in fn if isinstance(fn, list | tuple) else (fn,):
        put_mark(one, "allow_in_graph")
    return fn


def assume_constant_result(fn: F) -> F:
    """Promises that `fn` always returns the same value, so capture calls it once and keeps the result."""
    put_mark(fn, "constant_result")
    return fn


# --- marks on lines of code -----------------------------------------------------------------------------------


def is_compiling() -> bool:
    """False when Python runs the call; capture replaces the call by True."""
    return False


def graph_break(msg: str = "") -> None:
    """Does nothing when Python runs the call; capture ends the graph here (reason `requested-break`, with `msg`)."""


def check(cond: bool, message: str | Callable[[], str] = "") -> None:
    """Raises RuntimeError unless `cond`. Captured, it is a fact that the graph checks in each call: what follows may
    rely on it, of sizes that only the running graph knows too."""
    if not cond:
        raise RuntimeError(message() if callable(message) else message)


# --- marks on tensors ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DimRange:
    """The promised range of one dimension (None: no bound)."""

    dim: int
    min: int | None
    max: int | None


def _dims(tensor: torch.Tensor, index: int | Iterable[int] | None, who: str) -> list[int]:
    if not isinstance(tensor, torch.Tensor):
        raise NotCallable(
            f"{who} takes a tensor",
            found=type(tensor).__name__,
            expected="torch.Tensor",
            hint="pass the tensor itself",
        )
    if index is None:
        return list(range(tensor.dim()))
    dims = [index] if isinstance(index, int) else list(index)
    for dim in dims:
        if not -tensor.dim() <= dim < tensor.dim():
            raise InvalidOption(
                f"{who}: dimension out of range",
                found=str(dim),
                expected=f"{-tensor.dim()} to {tensor.dim() - 1} for a tensor of shape {tuple(tensor.shape)}",
            )
    return [dim % tensor.dim() for dim in dims]


def _add(tensor: torch.Tensor, attribute: str, values: Iterable[Any]) -> None:
    marks = getattr(tensor, attribute, None)
    if marks is None:
        marks = set()
        setattr(tensor, attribute, marks)
    marks.update(values)
    tensor._has_dynamo_dim_marking = True


def mark_dynamic(
    t: torch.Tensor, dim: int | Iterable[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Promises that sizes of `t` in `dim` vary (between `min` and `max`, where given): they are compiled once for all.

    Sizes 0 and 1 are compiled for themselves, as is a size outside the range. Code that works for one size only raises
    ConstraintError, which names the line.
    """
    dims = _dims(t, dim, "mark_dynamic")
    if min is not None and max is not None and min > max:
        raise InvalidOption(
            "mark_dynamic: min is above max", found=f"min={min}, max={max}", expected="min <= max"
        )
    _add(t, "_dynamo_dynamic_indices", dims)
    _add(t, "_dynamo_dynamic_range", [DimRange(d, min, max) for d in dims])


def maybe_mark_dynamic(t: torch.Tensor, dim: int | Iterable[int]) -> None:
    """Says that sizes of `t` in `dim` may vary: compiled once for all where the program allows it."""
    _add(t, "_dynamo_weak_dynamic_indices", _dims(t, dim, "maybe_mark_dynamic"))


def mark_static(t: torch.Tensor, dim: int | Iterable[int] | None = None) -> None:
    """Says that sizes of `t` in `dim` (by default all) are to be compiled as numbers, whatever else is asked."""
    _add(t, "_dynamo_static_indices", _dims(t, dim, "mark_static"))
