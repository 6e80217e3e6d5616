"""numpy inside captured code: arrays on tensors' memory are part of the graph where torch gives the same numbers.

In: programs of arrays, tensors and numpy's scalars. Out: values, dtypes, layouts and shared memory as in eager.
Always: what numpy and torch compute differently, or only values tell, runs natively.
"""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
from torch import Tensor

import graphlift
from graphlift import explain
from tests.capture.program import CountingBackend, program


@program()
def test_arrays_of_tensors(x: Tensor):
    a = x.numpy()
    scaled = (a * 2).reshape(-1, 1)
    return (
        torch.tensor(a + a),
        scaled,
        scaled.T.shape,
        a.dtype.name,
        a.ndim,
        len(a),
        a[1:],
        a > 1,
        -a,
        a.astype(float),
    )


@program()
def test_promotion_is_numpys(x: Tensor):
    a = x.numpy()
    i = torch.arange(3).numpy()
    return a + i, i / 2, np.float64(2) * a, np.float32(2) * a, 2 * a, True + i, np.add(i, i), i == a


@program(lambda: np.array([1, 2.0, 3.33]))
def test_arrays_given(x: Tensor, a):
    return torch.tensor(np.floor((a - 1) / 2)) + x, torch.from_numpy(a) * 2


@program()
def test_numbers(x: Tensor):
    size = int(np.floor(np.sqrt(x.shape[0] + 1.0)))
    return x * np.float64(0.5) + size, x + np.finfo(np.float32).min, np.dtype("int32").itemsize, np.float32(2)


def test_memory_is_shared():
    def fn(x):
        a = x.numpy()
        x.add_(1)
        return a, torch.from_numpy(a), torch.tensor(a), a[1:]

    x = torch.arange(3.0)
    a, same, copy, part = graphlift.compile(fn, backend="eager", fullgraph=True)(x)
    x.zero_()
    assert a.tolist() == same.tolist() == [0, 0, 0]
    assert (copy.tolist(), part.tolist()) == ([1, 2, 3], [0, 0])


def test_layouts_given_are_guarded():
    def fn(a):
        return torch.tensor(a * 2)

    compiled = graphlift.compile(fn, backend="eager")
    for a in (
        np.ones((2, 3)),
        np.ones((3, 2)),
        np.ones((2, 3), np.float32),
        np.ones((3, 2)).T,
        np.ones(6)[::-1],
    ):
        expected, found = fn(a), compiled(a)
        assert torch.equal(found, expected) and found.dtype == expected.dtype


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")
@pytest.mark.parametrize(
    "number", [np.float64(0.5), np.float32(0.5), np.int64(3), np.bool_(True), np.array(2.0)]
)
@pytest.mark.parametrize("op", [operator.add, operator.truediv, operator.lt, operator.eq])
def test_numpys_numbers_with_tensors(op, number):
    def outcome(fn, *args):
        try:
            result = fn(*args)
            return type(result), getattr(result, "dtype", None), np.asarray(result).tolist()
        except TypeError as error:
            return str(error)

    def fn(a, b):
        return op(a, b)

    for x in (torch.ones(2), torch.ones(2, dtype=torch.int64), torch.tensor(1.5)):
        for args in ((x, number), (number, x)):
            assert outcome(graphlift.compile(fn, backend="eager"), *args) == outcome(fn, *args)


def test_what_values_decide_breaks():
    def fn(x):
        a = x.numpy()
        a += 1
        return a, np.exp(a), a.sum(), a[0]

    x = torch.arange(3.0)
    explanation = explain(fn)(x.clone())
    assert explanation.break_reasons
    for found, expected in zip(explanation.result, fn(x.clone()), strict=True):
        assert type(found) is type(expected) and np.array_equal(found, expected)


@program()
def test_methods_of_numbers(x: Tensor):
    least, n = np.finfo(np.float32).min, np.int64(5)
    return (
        float(least),
        n.item(),
        n.bit_count(),
        least.astype(np.float64),
        x + float(n),
        np.float32(0.1) + 1,
        n // 2,
    )


def test_numbers_are_guarded_by_value(compiler):
    def fn(x, n):
        return x * n

    backend = CountingBackend()
    compiled = compiler.compile(fn, backend=backend)
    x = torch.ones(2)
    for number in (
        np.float64(0.5),
        np.float64(0.5),
        np.float32(0.5),
        np.int64(2),
        np.int64(1) + 1,
        np.float64("nan"),
    ):
        expected, found = fn(x, number), compiled(x, number)
        torch.testing.assert_close(found, expected, equal_nan=True)
    if compiler.name != "eager":
        assert len(backend.graphs) == 4


@program()
def test_arrays_of_constants(x: Tensor):
    grid = np.stack(np.meshgrid(range(2), range(3), indexing="ij"), axis=-1).reshape(-1, 2)
    half = np.arange(6, dtype=np.float32) / 2
    window = torch.from_numpy(np.hanning(3)).to(x.dtype)
    size = int(np.prod(x.shape)) + int(half.sum()) + int(np.ceil(half[3]))
    return (
        torch.from_numpy(grid) + size,
        x * window,
        half,
        torch.tensor(half[::2]),
        grid[1, 1],
        np.isclose(0, 0.0),
    )


def test_arrays_of_constants_are_made_anew_and_share_memory():
    def fn(x):
        a = np.arange(6.0)
        b = a[2:].reshape(2, 2)
        c = np.ones(3)
        return a, b, torch.from_numpy(c), c, np.asarray(c) is c, x + 1

    compiled = graphlift.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        a, b, t, c, same, _ = compiled(torch.ones(1))
        assert (a.tolist(), b.tolist(), c.tolist(), same) == (
            [0, 1, 2, 3, 4, 5],
            [[2, 3], [4, 5]],
            [1, 1, 1],
            True,
        )
        a += 10
        t.zero_()
        assert (b.tolist(), c.tolist()) == ([[12, 13], [14, 15]], [0, 0, 0])


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_arrays_of_constants_through_the_backends(backend):
    def fn(x):
        table = np.outer(np.arange(4), [1.0, 2.0, 3.0]).astype(np.float32)
        return x @ torch.from_numpy(table) + torch.tensor(table)[1:2]

    x = torch.randn(2, 4, requires_grad=True)
    found = graphlift.compile(fn, backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(found, fn(x))
    found.sum().backward()
    assert x.grad.shape == x.shape


def test_complex_arithmetic_is_numpys():
    def fn(x, y):
        return x.numpy() + y.numpy()

    x, y = torch.tensor([float("inf"), 1.0]), torch.tensor([1 + 2j, 3j])
    found = graphlift.compile(fn, backend="eager")(x, y)
    assert str(found) == str(fn(x, y))


@program(lambda: np.array([2, 0]))
def test_arrays_as_arguments_of_torch(x: Tensor, order):
    return (
        x[order],
        x[None, order],
        x[np.arange(2)],
        torch.as_tensor(x.numpy()) + 1,
        torch.as_tensor(order, dtype=torch.float32),
        torch.FloatTensor(order),
    )
