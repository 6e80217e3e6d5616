"""Edges of a dtype, errors that depend on values, memory formats of results: programs that once went wrong.

In: programs of `case`. Always: what eager gives, to rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import Compile, case, outcome

INF, NAN = float("inf"), float("nan")


def _specials(dtype: torch.dtype) -> Tensor:
    return torch.tensor(
        [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            2.5,
            -2.5,
            7.0,
            88.8,
            -104.0,
            1e-38,
            -1e-40,
            1e-45,
            1e19,
            1e30,
            INF,
            -INF,
            NAN,
        ]
    ).to(dtype)


@case("sweep of special values")
def test_hyperbolic_functions_up_to_the_largest_float(compile: Compile) -> Any:
    fn = compile(lambda x: (torch.sinh(x), torch.cosh(x), torch.asinh(x), torch.acosh(x)))
    results = [fn(_specials(dtype)) for dtype in (torch.float32, torch.bfloat16)]
    assert torch.isfinite(results[0][0][8]) and torch.isfinite(results[0][2][14])
    return results


@case("sweep of special values")
def test_floor_division_whose_quotient_overflows(compile: Compile) -> Any:
    fn = compile(lambda x, y: (x // y, x % y))
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        x = _specials(dtype)
        results.append(fn(x.repeat_interleave(16), x.repeat(16)))
    assert fn(torch.ones(32), torch.full((32,), -1e-40))[0].eq(-INF).all()
    return results


@case("sweep of special values", exact=True)
def test_square_root_as_a_power_of_half_precision(compile: Compile) -> Any:
    """ATen's half kernel calls pow, which has another answer than sqrt for -inf and -0.0."""
    fn = compile(lambda x: (x.pow(0.5), x.pow(-0.5)))
    half = fn(torch.tensor([-INF, -0.0, 4.0, -1.0], dtype=torch.float16))
    assert half[0][0] == INF
    return half, fn(torch.tensor([-INF, -0.0, 4.0, -1.0]))


@case("hostile programs")
def test_singular_matrices_raise(compile: Compile) -> Any:
    calls = (
        torch.linalg.inv,
        torch.linalg.cholesky,
        lambda x: torch.linalg.solve(x, x),
        torch.linalg.lu_factor,
        lambda x: x.inverse() * 2,
    )
    singular = [outcome(compile(lambda x, call=call: call(x)), torch.zeros(3, 3)) for call in calls]
    assert all(found[0] == "raised" for found in singular)
    return singular, [compile(lambda x, call=call: call(x))(torch.eye(3) * 2) for call in calls]


@case("hostile programs")
def test_one_hot_checks_its_classes(compile: Compile) -> Any:
    fn = compile(lambda x: F.one_hot(x, 3) * 2)
    results = [outcome(fn, torch.tensor(values)) for values in ([0, 2], [5, 0], [0, -1])]
    assert results[1] == ("raised", RuntimeError, "Class values must be smaller than num_classes.")
    return results


@case("hostile programs")
def test_one_hot_of_no_classes(compile: Compile) -> Any:
    results = []
    for classes in (0, -2, -1):
        for values in ([0, 2], [0, -1], []):
            fn = compile(lambda x, classes=classes: F.one_hot(x, classes) * 2)
            results.append(outcome(fn, torch.tensor(values, dtype=torch.int64)))
    assert [r[0] == "raised" for r in results if isinstance(r, tuple)] == [True] * 8
    return results


@case("hostile programs")
def test_lists_written_in_place_take_what_eager_casts(compile: Compile) -> Any:
    calls: list[Callable[[Tensor], Any]] = [
        lambda x: torch._foreach_mul_([x], 2),
        lambda x: torch._foreach_add_([x], 0.5),
        lambda x: torch._foreach_add_([x, x], [torch.ones(3), torch.ones(3)]),
        lambda x: torch._foreach_lerp_([x], [torch.ones(3)], 0.5),
        lambda x: torch._foreach_copy_([x], [torch.ones(3)]),
        lambda x: x.mul_(2.5),
    ]
    dtypes = (torch.bool, torch.int64, torch.float32)
    found = []
    for call, dtype in itertools.product(calls, dtypes):
        x = torch.ones(3, dtype=dtype)
        found.append((outcome(compile(lambda x, call=call: (call(x), x + 0)[1]), x)[:2], x))
    assert found[0][0] == ("raised", RuntimeError)
    return found


@case("hostile programs")
def test_assertions_on_values_are_kept(compile: Compile) -> Any:
    def checked(x: Tensor) -> Tensor:
        torch._assert_async(x.min() >= 0, "negative")
        return x + 1

    fn = compile(checked)
    assert outcome(fn, torch.tensor([-1])) == ("raised", RuntimeError, "negative")
    return fn(torch.tensor([1])), outcome(fn, torch.tensor([-1]))


@case("layer norm without parameters")
def test_normalisations_without_parameters_train(compile: Compile) -> Any:
    x = torch.randn(2, 4, 3, requires_grad=True)
    fn = compile(lambda x: (F.layer_norm(x, (3,)), F.group_norm(x, 2)))
    layer, group = fn(x)
    return torch.autograd.grad([layer, group], x, [torch.rand_like(layer), torch.rand_like(group)])


@case("layout sweep")
def test_memory_formats_of_results(compile: Compile) -> Any:
    rolled = compile(lambda x: (x.roll(2, -1), x.roll((1, 2), (2, 3)), x.roll(3), x.roll(0, 1)))
    signed = compile(lambda x: F.logsigmoid(x))
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    normal = compile(lambda x: F.batch_norm(x, torch.zeros(3), torch.ones(3), training=True))
    normals = normal(image), normal(torch.randn(2, 4, 3).transpose(1, 2))
    return rolled(image), rolled(torch.randn(2, 3, 4, 5)), signed(torch.randn(4, 3).t()), normals


@case("hostile programs")
def test_results_beside_complex_halves_are_no_views(compile: Compile) -> Any:
    return compile(lambda x: (x + 1, x.float().int().bool(), x * x))(
        torch.randn(3, 4).to(torch.complex64).real
    )


@case("sweep of dtypes")
def test_dtypes_that_eager_refuses(compile: Compile) -> Any:
    whole, mask = torch.tensor([1, 2, 3]), torch.tensor([True, False, True])
    refused = [
        (lambda x, y: x.mul_(y.double()), whole, whole),
        (lambda x, y: x.logit_(), whole, whole),
        (lambda x, y: x.ldexp_(y), whole, whole),
        (lambda x, y: x - y, whole, mask),
        (lambda x, y: x - True, mask, mask),
        (lambda x, y: x.sub_(y), whole, mask),
        (lambda x, y: x.add(y, alpha=0.5), mask, mask),
        (lambda x, y: torch.lerp(x, x, 0.5), whole, whole),
        (lambda x, y: torch.addcdiv(x, x, x), whole, whole),
        (lambda x, y: torch.addcmul(x, x, x), mask, mask),
        (lambda x, y: torch.logaddexp(x, y), whole, whole),
        (lambda x, y: x.std(0), whole, whole),
        (lambda x, y: x.relu(), mask, mask),
        (lambda x, y: F.glu(x[:2]), whole, whole),
    ]
    activations = (F.gelu, F.silu, F.mish, F.softplus, F.hardswish, F.hardsigmoid, F.logsigmoid)
    refused += [(lambda x, y, f=f: f(x), whole, whole) for f in activations]
    results = [outcome(compile(fn), x.clone(), y.clone()) for fn, x, y in refused]
    assert all(result[0] == "raised" for result in results)
    return results


@case("layout sweep")
def test_gradients_whose_kernels_give_other_strides(compile: Compile) -> Any:
    """ATen's backward kernels give row-major results where their meta kernels promise the strides of the input."""
    results = []
    for fn, x in (
        (lambda x: F.huber_loss(x, x * 2), torch.randn(4, 3).t()),
        (lambda x: F.max_pool1d(x, 2), torch.randn(2, 5, 3).transpose(1, 2)),
        (lambda x: F.avg_pool1d(x, 2), torch.randn(2, 5, 3).transpose(1, 2)),
    ):
        y = compile(fn)(x.requires_grad_())
        weight = torch.arange(1.0, y.numel() + 1).reshape(y.shape)
        results += [y.contiguous().clone(), torch.autograd.grad(y, x, weight)[0].contiguous()]
    return results
