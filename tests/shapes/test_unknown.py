"""Numbers that only the running graph knows: read from tensors, or how many elements an operator finds.

Always: one graph without a break; results, errors and gradients are eager's, also where there are no elements or one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import graphlift
from graphlift.frame import entries

BACKENDS = ("eager", "aot_eager", "auto")
COUNTS = (3, 5, 1, 0, 12, 7, 2)
ROWS = 12


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    with graphlift.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def given(count: int) -> tuple[Tensor, Tensor]:
    """Rows, and a mask of so many of them."""
    torch.manual_seed(count)
    mask = torch.zeros(ROWS, dtype=torch.bool)
    mask[torch.randperm(ROWS)[:count]] = True
    return torch.randn(ROWS, 4), mask


def item_in_arithmetic(x, m):
    return x + m.sum().item()


def item_as_size(x, m):
    return torch.zeros(m.sum().item()) + 1


def item_returned(x, m):
    n = int(m.sum())
    return torch.arange(n) * 2, n, n // 2 + 1


def item_of_floats(x, m):
    s = x.abs().mean().item()
    return x * s + (s / 2), s


def item_in_slice(x, m):
    n = m.sum().item()
    graphlift.check(n <= x.shape[0])
    graphlift.check(n >= 0)
    return x[:n] * 2


def mask_rows(x, m):
    return x[m]


def mask_in_arithmetic(x, m):
    return (x[m] * 2).sum(0), x[m].shape[0]


def mask_then_matmul(x, m):
    return torch.relu(x[m] @ torch.ones(4, 3)).sum()


def split_by_counts(x, m):
    first, second = torch.split(x, torch.stack([m.sum(), (~m).sum()]).tolist())
    return first * 2, second.sum(0), first.T.split_with_sizes([3, 1], 0)[1]


def mask_twice(x, m):
    return F.mse_loss(x[m], x[m] * 2)


def two_masks(x, m):
    a, b = x[m], x[~m]
    return a.sum(0) + b.sum(0), a.shape[0] + b.shape[0]


def nonzero(x, m):
    found = m.nonzero()
    return found + 1, found.shape


def nonzero_as_tuple(x, m):
    (rows,) = torch.nonzero(m, as_tuple=True)
    return x[rows] + 1


def where_of_one(x, m):
    return x[torch.where(m)[0]] * 2


def masked_select(x, m):
    return x.masked_select(m[:, None]) * 2


def unique(x, m):
    values, inverse, counts = torch.unique((x * 2).int(), return_inverse=True, return_counts=True)
    return values * 2, inverse, counts.float().mean()


def unique_consecutive(x, m):
    values, inverse, counts = torch.unique_consecutive(m, return_inverse=True, return_counts=True)
    return values, inverse * 2, counts.float().mean(), m.long().unique_consecutive() + 1


def numbers_listed(x, m):
    (a, b), c = m.long()[:2].tolist(), x.detach().mean(0)[:1].tolist()
    return x * a + b, c, x[:, 0].sum() * c[0]


def numbers_listed_deep(x, m):
    first, second = torch.stack([m.sum(), (~m).sum()]).reshape(2, 1, 1).tolist()
    return torch.zeros(first[0][0]), x + second[0][0], m.sum().tolist()


def repeat_interleave(x, m):
    return x.repeat_interleave(m.long() + 1, dim=0) * 2


def softmax(x, m):
    return torch.softmax(x[m], -1)


def concatenation(x, m):
    return torch.cat([x[m], x], 0)


def transposed(x, m):
    y = x[m].t() + 1
    return y, y * 2


def everything(x, m):
    return (torch.tanh(x[m]) * m.sum().item()).sum() + x.mean().item() * x.sum()


WHOLE = (
    *(
        item_in_arithmetic,
        item_as_size,
        item_returned,
        item_of_floats,
        item_in_slice,
        mask_rows,
        mask_in_arithmetic,
    ),
    *(
        mask_then_matmul,
        split_by_counts,
        mask_twice,
        two_masks,
        nonzero,
        nonzero_as_tuple,
        where_of_one,
        masked_select,
        unique,
        unique_consecutive,
    ),
    *(numbers_listed, numbers_listed_deep),
    *(repeat_interleave, softmax, concatenation, transposed, everything),
)


def branch(x, m):
    n = m.sum().item()
    if n > 3:
        return x * 2
    return x + n


def loop(x, m):
    total = x.sum()
    for k in range(m.sum().item()):
        total = total + x[k]
    return total


def write(x, m):
    x = x * 1
    y = x[m] * 3
    x[m] = y
    return x


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected, check_stride=True, equal_nan=True)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6)
    else:
        assert found == expected


def hold_against_eager(program: Callable[..., Any], backend: str) -> Callable[..., Any]:
    compiled = graphlift.compile(program, backend=backend)
    for count in COUNTS:
        x, mask = given(count)
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        expected, found = program(leaves[0], mask), compiled(leaves[1], mask)
        assert_same(found, expected)
        if isinstance(expected, Tensor) and expected.requires_grad:
            grads = [
                torch.autograd.grad(y.sum(), leaf)[0]
                for y, leaf in zip((expected, found), leaves, strict=True)
            ]
            torch.testing.assert_close(grads[1], grads[0], equal_nan=True)
    return compiled


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", WHOLE, ids=lambda p: p.__name__)
def test_captured_whole(program: Callable[..., Any], backend: str) -> None:
    compiled = hold_against_eager(program, backend)
    assert len(entries(program.__code__)) == 1  # no value is guarded
    del compiled
    assert graphlift.explain(program, backend=backend)(*given(3)).graph_break_count == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", (branch, loop, write), ids=lambda p: p.__name__)
def test_what_needs_an_answer_breaks(program: Callable[..., Any], backend: str) -> None:
    hold_against_eager(program, backend)
    found = graphlift.explain(program, backend=backend)(*given(5))
    assert {reason.code for reason in found.break_reasons} == {"unbacked-size"}


@pytest.mark.parametrize("program", (item_in_arithmetic, mask_rows, nonzero, where_of_one, unique))
def test_without_the_flags_they_break(program: Callable[..., Any]) -> None:
    with graphlift.config.patch(capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False):
        found = graphlift.explain(program)(*given(3))
    assert {reason.code for reason in found.break_reasons} <= {"tensor-item", "data-dependent-op"}
    assert found.graph_break_count


def promised(x, m):
    n = m.sum().item()
    graphlift.check(n < 7, "too many rows")
    return x[:3] + n if n < 10 else x


def promised_to_torch(x, m):
    n = m.sum().item()
    torch._check_value(n < 7, lambda: f"too many rows in {x.shape[1]} columns")
    return x[:3] + n


def promised_of_a_sum(x, m):
    n, k = m.sum().item(), (~m).sum().item()
    graphlift.check(n + k + x.shape[0] == 2 * ROWS)
    graphlift.check(n + k + 2 * n < 2 * ROWS + 2, "too many rows")
    return torch.split(x, [n, k]), x + (n + k + x.shape[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program", (promised, promised_to_torch, promised_of_a_sum), ids=lambda p: p.__name__
)
def test_promises_are_checked_in_each_call(program: Callable[..., Any], backend: str) -> None:
    compiled = graphlift.compile(program, backend=backend, fullgraph=True)
    for count in COUNTS:
        if count < 7:
            assert_same(compiled(*given(count)), program(*given(count)))
            continue
        with pytest.raises(Exception, match="too many rows") as expected:
            program(*given(count))
        with pytest.raises(type(expected.value)) as found:
            compiled(*given(count))
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_an_operator_requires_of_sizes_is_checked(backend: str) -> None:
    def program(x, sizes):
        graphlift.check(sizes.numel() == 2)
        return torch.split(x, sizes.tolist())[1] * 2

    def caught(x, sizes):
        try:
            return program(x, sizes)
        except RuntimeError:
            return x + 1

    x = torch.arange(6.0)
    compiled = graphlift.compile(program, backend=backend, fullgraph=True)
    catching = graphlift.compile(caught, backend=backend)
    for sizes in map(torch.tensor, ([2, 4], [3, 4], [5, 1], [-1, 7], [6, 0], [1, 5], [2, 3])):
        assert_same(catching(x, sizes), caught(x, sizes))
        if sizes.sum() == 6 and sizes.min() >= 0:
            assert_same(compiled(x, sizes), program(x, sizes))
            continue
        with pytest.raises(RuntimeError) as expected:
            program(x, sizes)
        with pytest.raises(RuntimeError) as found:
            compiled(x, sizes)
        assert str(found.value) == str(expected.value)


@pytest.mark.filterwarnings("ignore:.*_check_is_size:FutureWarning")
def test_a_warning_before_a_check() -> None:
    def program(x):
        n = x.item()
        torch._check_is_size(n)
        return torch.ones(3) * n if n >= 0 else x

    compiled = graphlift.compile(program, backend="aot_eager", fullgraph=True)
    for n in (3, 0, 5):
        assert torch.equal(compiled(torch.tensor(n)), program(torch.tensor(n)))
    with pytest.raises(RuntimeError, match="Expected cond"):
        compiled(torch.tensor(-1))


def test_a_promise_of_eager_raises() -> None:
    graphlift.check(True, "unused")
    with pytest.raises(RuntimeError, match="^no rows$"):
        graphlift.check(False, lambda: "no rows")
    compiled = graphlift.compile(lambda x: (graphlift.check(x.dim() == 1, "one dimension"), x + 1)[1])
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match="^one dimension$"):
        compiled(torch.ones(2, 2))


def test_caught_errors_of_promises_are_the_programs() -> None:
    def program(x, m):
        try:
            graphlift.check(m.sum().item() < 7, "too many")
            return x + 1
        except RuntimeError as error:
            return x, str(error)

    compiled = graphlift.compile(program)
    for count in COUNTS:
        assert_same(compiled(*given(count)), program(*given(count)))
