"""What the backward no longer asks the forward to keep, with the gradients as before."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import graphlift
from graphlift.aot import Compiled, compile_graph, interpret
from tests.aot.programs import graph_of


def check(f, *inputs: Tensor) -> Compiled:
    """The compiled region, after its gradients were found equal to eager's."""
    c = compile_graph(graph_of(f, len(inputs)), inputs, fw_compiler=interpret)
    assert c.fallback_reason is None
    wanted = [t for t in inputs if t.requires_grad]
    out, expected = c(*inputs)[0], f(*inputs)
    assert torch.equal(out, expected)
    weight = torch.randn_like(out)
    found = torch.autograd.grad(out, wanted, weight)
    for a, b in zip(found, torch.autograd.grad(expected, wanted, weight), strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()
    return c


def saved_dtypes(c: Compiled) -> list[torch.dtype]:
    inputs = [
        n for n in c.forms["backward"].graph.nodes if n.op == "placeholder" and n.name.startswith("saved")
    ]
    return [n.meta["val"].dtype for n in inputs]


@pytest.mark.parametrize(
    "options", [(2,), (3, 2, 1), ((3, 5), (2, 1), (1, 2)), (2, 2, 0, 1, True), (3, 1)], ids=str
)
@pytest.mark.parametrize("size", [(7, 9), (40, 33)])
def test_positions_within_a_pooling_window_are_kept_as_bytes(options: tuple, size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size, requires_grad=True)
    c = check(lambda x: F.max_pool2d(x * 2, *options), x)
    assert saved_dtypes(c) == [torch.int8]  # and not the pooled tensor, of which only the shape counts


@pytest.mark.parametrize(("size", "dtype"), [(8, torch.int8), (100, torch.int16), (300, torch.int32)])
def test_positions_are_kept_as_narrow_as_the_plane_allows(size: int, dtype: torch.dtype) -> None:
    x = torch.randn(1, 2, size, size, requires_grad=True)
    assert saved_dtypes(check(lambda x: F.max_pool2d(x * 2, 2, 2, 0, dilation=2), x)) == [dtype]
    assert saved_dtypes(check(lambda x: F.adaptive_max_pool2d(x * 2, 3), x)) == [dtype]


def test_indices_that_the_caller_gets_keep_their_dtype() -> None:
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    f = lambda x: F.max_pool2d(x, 2, return_indices=True)  # noqa: E731
    c = compile_graph(graph_of(f, 1), [x], fw_compiler=interpret)
    assert torch.equal(c(x)[1], f(x)[1])


@pytest.mark.parametrize("pool", [lambda x: F.avg_pool2d(x, 3, 2, 1), lambda x: F.adaptive_avg_pool2d(x, 3)])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_a_pooled_tensor_is_not_kept_for_its_shape(pool, format: torch.memory_format) -> None:
    x = torch.randn(2, 4, 9, 9).to(memory_format=format).requires_grad_()
    c = check(lambda x: pool(x * 2), x)
    if format is torch.contiguous_format:
        assert c.saved_bytes == 0


@pytest.mark.parametrize("axis", [1, -1])
def test_a_concatenation_is_not_kept_beside_its_parts(axis: int) -> None:
    x, y = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    c = check(lambda x, y: torch.cat([torch.tanh(x @ x.T @ x), torch.tanh(y)], axis).square(), x, y)
    assert c.saved_bytes == 4 * 6 * 4 + 4 * 4 * 4  # the two products


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 8, 9), (4, 3), (2, 3, 5)])
def test_what_batch_norm_gives_is_not_kept_beside_its_input(
    shape: tuple[int, ...], tracked: bool, affine: bool
) -> None:
    x = torch.randn(shape, requires_grad=True)
    parameters = [torch.randn(3, requires_grad=True) for _ in range(2 * affine)]

    def f(x: Tensor, *parameters: Tensor) -> Tensor:
        running = (torch.zeros(3), torch.ones(3)) if tracked else (None, None)
        y = F.batch_norm(x * 3, *running, *parameters, training=True)
        return torch.tanh(F.relu(y) * 2)

    assert (
        check(f, x, *parameters).saved_bytes <= 4 * 3 * 4
    )  # numbers per channel; all else is had again from x


def test_running_statistics_are_not_kept_in_training() -> None:
    x, w, b = torch.randn(4, 3, 5, 5), torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)

    def f(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.batch_norm(x, torch.zeros(3), torch.ones(3), w, b, training=True)

    assert check(f, x, w, b).saved_bytes == 2 * 3 * 4  # mean and deviation of the batch


def test_a_result_that_is_computed_again_is_the_same_in_generated_code() -> None:
    """Whether an activation was zero is asked again in the backward, of values that cancel to almost nothing."""

    def f(x: Tensor, w: Tensor, b: Tensor, z: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(F.batch_norm(x * 1.0, mean, var, w, b, True) + z)
        return y, F.conv2d(y, torch.ones(2, 5, 1, 1))

    torch.manual_seed(0)
    x, w = torch.randint(0, 4, (3, 5, 24, 24)) * 0.37, torch.randn(5)
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    b = (mean - 0.37) * w / torch.sqrt(var + 1e-5)
    z = torch.zeros_like(x).requires_grad_()
    compiled = graphlift.compile(f)
    y, out = compiled(x.requires_grad_(), w, b, z, torch.zeros(5), torch.ones(5))
    out.sum().backward()
    assert torch.equal(z.grad != 0, y > 0)
    assert ((y > 0) & (y < 1e-5)).any()
