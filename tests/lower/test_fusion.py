"""What is fused with what: the shape of the kernels that small programs become."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from graphlift.lower.ir import Plan

from .tracing import check, externs, kernels

X = torch.randn(6, 5, 16)


def shapes(plan: Plan) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    return [(k.kernel.outer, k.kernel.inner, len(k.kernel.loops)) for k in kernels(plan)]


def test_pointwise_is_one_flat_kernel() -> None:
    assert shapes(check(lambda x: F.gelu(x + 1) * x.sigmoid(), X)) == [((480,), (), 1)]


def test_softmax_is_one_kernel_of_three_loops() -> None:
    plan = check(lambda x: F.softmax(x * 0.5 + 1, -1) * 2, X)
    assert shapes(plan) == [((30,), (16,), 3)]
    assert not externs(plan)


def test_layer_norm_with_residual_is_one_kernel() -> None:
    plan = check(lambda x, y, w: F.layer_norm(x + y, (16,), w, w).relu(), X, X + 1, torch.randn(16))
    assert shapes(plan) == [((30,), (16,), 3)]


def test_cross_entropy_statistics_share_a_kernel_with_softmax() -> None:
    target = torch.randint(0, 16, (30,))
    plan = check(lambda x, t: F.cross_entropy(x.view(30, 16), t), X, target)
    over_rows = [s for s in shapes(plan) if s[0]]
    assert over_rows == [((30,), (16,), 2)]  # the maximum and the sum: log-probabilities are never written


def test_bias_gradient_reduces_along_rows_and_keeps_columns_outer() -> None:
    assert shapes(check(lambda x: x.sum((0, 1)), X)) == [((16,), (30,), 1)]


def test_siblings_with_shared_reads_fuse() -> None:
    plan = check(lambda x, y: (x.sum((0, 1)), (x * y).sum((0, 1))), X, X + 1)
    assert shapes(plan) == [((16,), (30,), 1)]


def test_equal_sizes_do_not_make_siblings_of_rows_and_columns() -> None:
    square = torch.randn(16, 16)
    assert len(shapes(check(lambda x: (x.sum(0), x.sum(1)), square))) == 2


def test_batch_statistics_and_their_use_fuse_across_permuted_axes() -> None:
    image = torch.randn(3, 4, 5, 6)

    def normalise(x: torch.Tensor) -> torch.Tensor:
        var, mean = torch.var_mean(x, (0, 2, 3), keepdim=True)
        return ((x - mean) * (var + 1e-5).rsqrt()).relu()

    assert shapes(check(normalise, image)) == [((4,), (3, 30), 3)]


def test_views_cost_nothing() -> None:
    plan = check(lambda x: x.transpose(1, 2).reshape(6, 80).view(6, 16, 5)[:, 2:8] + 1, X)
    assert shapes(plan) == [((6, 6, 5), (), 1)]


def test_concatenation_is_fused() -> None:
    def rotate(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * 0.5 + torch.cat([-second, first], -1) * 2

    assert shapes(check(rotate, X)) == [((30, 16), (), 1)]


def test_shared_cheap_values_are_recomputed_and_expensive_ones_stored() -> None:
    matrix = torch.randn(30, 30)

    def cheap(x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y + 1, (m @ (y.exp())).relu() + y

    stored = [n for k in kernels(check(cheap, torch.randn(30, 16), matrix)) for n in k.buffers]
    assert not any(n.startswith("mul") for n in stored)


def test_equal_layers_are_equal_kernels() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = F.layer_norm(F.gelu(x @ w) + x, (16,))
        return x

    found = kernels(check(layers, X, torch.randn(16, 16)))
    assert len(found) == 6
    assert len({k.kernel for k in found}) == 1


def test_whole_tensor_reductions_are_split_for_threads() -> None:
    plan = check(lambda x: (x * x).sum(), torch.randn(256, 1024), rtol=1e-4)
    assert shapes(plan) == [((64,), (4096,), 1), ((), (64,), 1)]


def test_a_bias_is_added_by_the_kernel_that_reads_the_sum() -> None:
    bias, weight = torch.randn(8), torch.randn(16, 8)
    plan = check(lambda x, b, w: F.gelu(torch.addmm(b, x.view(30, 16), w)), X, bias, weight)
    assert externs(plan) == ["aten.mm.default"] and len(kernels(plan)) == 1
    plan = check(lambda x, b, w: torch.addmm(b, x.view(30, 16), w) @ w.T, X, bias, weight)
    assert externs(plan) == ["aten.addmm.default", "aten.mm.default"] and not kernels(plan)


def test_dead_code_is_removed_but_random_draws_stay() -> None:
    def unused(x: torch.Tensor) -> torch.Tensor:
        torch.rand_like(x)
        return x + torch.rand_like(x)

    assert len([e for e in externs(check(unused, X)) if "rand" in e]) == 2


def test_an_output_is_a_tensor_of_its_own() -> None:
    plan = check(lambda x: (x + 1, x + 1, (x * 1).clone()), X)
    assert len({o.name for o in plan.outputs}) == 3


def test_empty_parts_of_a_concatenation_add_nothing() -> None:
    """A cache that starts empty is joined with the first keys: a plain copy."""
    plan = check(lambda e, x: torch.cat([e, x.exp()], -2), torch.empty(0), torch.randn(2, 3, 4))
    assert not externs(plan) and len(kernels(plan)) == 1
    check(lambda e, x: torch.cat([e, x], 0), torch.empty(0, 4, dtype=torch.float64), torch.randn(3, 4))
    check(lambda e: torch.cat([e, e], 0), torch.empty(0, 4))
