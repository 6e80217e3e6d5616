"""Loaded plans: both launchers, memory, aliasing, errors, threads, references."""

from __future__ import annotations

import gc
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlift.lower.interpret import interpret
from graphlift.lower.ir import (
    BufferSpec,
    CheckCall,
    ExternCall,
    Kernel,
    KernelCall,
    Loop,
    Plan,
    Ref,
    Store,
    ViewCall,
)
from graphlift.runtime import Loaded, load
from graphlift.runtime.memory import Storage, _place
from tests.codegen.building import axis, const, op
from tests.codegen.building import load as loads
from tests.runtime.plans import aten, chain, mlp, spec, table, unary


def mlp_inputs(batch: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(20, 30), torch.nn.Linear(30, 7)
    return [torch.randn(batch, 20), first.weight, first.bias, second.weight, second.bias]


def runs(loaded: Loaded) -> list:
    return [loaded, loaded.run_python]


def test_the_native_launcher_is_used() -> None:
    assert load(mlp(3, 20, 30, 7)).native


def test_mlp_equals_eager_in_both_launchers() -> None:
    plan, inputs = mlp(3, 20, 30, 7), mlp_inputs()
    x, w1, b1, w2, b2 = inputs
    want = torch.nn.functional.linear(torch.nn.functional.linear(x, w1, b1).relu(), w2, b2).detach()
    loaded = load(plan)
    for run in [*runs(loaded), lambda tensors: interpret(plan, tensors)]:
        (got,) = run(inputs)
        torch.testing.assert_close(got, want)
        assert not got.requires_grad and torch.is_grad_enabled()


def test_outputs_are_fresh_each_call() -> None:
    loaded, inputs = load(mlp(3, 20, 30, 7)), mlp_inputs()
    for run in runs(loaded):
        (one,), (two,) = run(inputs), run(inputs)
        assert one.data_ptr() != two.data_ptr()
        kept = one.clone()
        run([torch.zeros_like(inputs[0]), *inputs[1:]])
        assert torch.equal(one, kept)


def test_intermediates_share_memory() -> None:
    loaded = load(chain(10, 1000))
    assert loaded.memory.arena_bytes <= 2 * 4096
    x = torch.randn(1000)
    for run in runs(loaded):
        assert torch.equal(run([x])[0], x)


def test_outputs_that_are_inputs_views_constants_and_none() -> None:
    tensors = table(
        spec("x", (4, 6)),
        spec("xt", (6, 4), "x", (1, 6)),
        spec("c", (2,)),
        spec("y", (24,)),
        spec("yv", (4,), "y", (1,), 3),
    )
    steps = (ViewCall("xt", "x"), KernelCall(unary("neg", 24), ("x", "y")), ViewCall("yv", "y"))
    constant = torch.ones(2)
    plan = Plan(tensors, {"c": constant}, ("x", None), ("x", "xt", "c", None, "y", "yv", 5), steps)
    x = torch.randn(4, 6)
    for run in runs(load(plan)):
        same, transposed, c, nothing, y, part, five = run([x, None])
        assert same is x and c is constant and nothing is None and five == 5
        assert transposed.data_ptr() == x.data_ptr() and torch.equal(transposed, x.t())
        assert torch.equal(part, y[3:7]) and part.data_ptr() == y.data_ptr() + 12


def test_inputs_with_a_storage_offset() -> None:
    tensors = table(spec("x", (4, 6)), spec("row", (6,), "x", (1,), 12), spec("y", (6,)))
    plan = Plan(
        tensors, {}, ("x",), ("y", "row"), (ViewCall("row", "x"), KernelCall(unary("neg", 6), ("row", "y")))
    )
    x = torch.randn(9, 6)[3:7]
    for run in runs(load(plan)):
        y, row = run([x])
        assert torch.equal(y, -x[2]) and torch.equal(row, x[2])


def test_parts_of_one_allocation() -> None:
    """Two kernels fill the halves of one output, as a fused cat does."""
    tensors = table(
        spec("x", (5,)), spec("a", (5,), "out"), spec("b", (5,), "out", (1,), 5), spec("all", (10,), "out")
    )
    steps = (
        KernelCall(unary("neg", 5), ("x", "a")),
        KernelCall(unary("abs", 5), ("x", "b")),
        ViewCall("all", "a"),
    )
    x = torch.randn(5)
    for run in runs(load(Plan(tensors, {}, ("x",), ("all",), steps))):
        assert torch.equal(run([x])[0], torch.cat([-x, x.abs()]))


def test_atens_results_of_several_tensors() -> None:
    tensors = table(
        spec("x", (4, 8)), spec("v", (4, 3)), spec("i", (4, 3), dtype=torch.int64), spec("n", (4, 3))
    )
    topk = ExternCall(aten.topk.default, (Ref("x"), 3), (), ("v", "i"))
    plan = Plan(tensors, {}, ("x",), ("n", "i"), (topk, KernelCall(unary("neg", 12), ("v", "n"))))
    x = torch.randn(4, 8)
    want = x.topk(3)
    for run in runs(load(plan)):
        n, i = run([x])
        assert torch.equal(n, -want.values) and torch.equal(i, want.indices)


def test_unused_results_and_lists() -> None:
    tensors = table(spec("x", (6, 2)), spec("a", (3, 2), "x"), spec("m", (4, 1)), spec("y", (6,)))
    split = ExternCall(aten.split.Tensor, (Ref("x"), 3), (), ("a", None))
    cat = ExternCall(aten.cat.default, ([Ref("a"), Ref("a")],), (("dim", 1),), ("y4",))
    tensors["y4"] = spec("y4", (3, 4))
    plan = Plan(tensors, {}, ("x",), ("y4",), (split, cat))
    x = torch.randn(6, 2)
    for run in runs(load(plan)):
        assert torch.equal(run([x])[0], torch.cat([x[:3], x[:3]], 1))


def test_errors_are_atens_own() -> None:
    inputs = mlp_inputs()
    loaded = load(mlp(3, 20, 30, 7))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        loaded([torch.randn(3, 21), *inputs[1:]])
    (got,) = loaded(inputs)
    assert got.isfinite().all()


def test_wrong_arguments_are_refused() -> None:
    loaded = load(chain(1, 4))
    with pytest.raises(TypeError, match="1 inputs got 2"):
        loaded.run([torch.ones(4), torch.ones(4)])
    with pytest.raises(TypeError):
        loaded.run()


def test_index_checks_raise_the_error_of_the_step() -> None:
    bad = op("ge", loads(0, axis(0), torch.int64), const(5), dtype=torch.bool)
    from graphlift.lower.ir import Reduction
    from tests.codegen.building import reduced

    kernel = Kernel(
        (),
        (3,),
        (Loop((Reduction("any", bad, torch.bool),)),),
        (Store(1, const(0), reduced(0, 0, torch.bool)),),
        (BufferSpec(torch.int64, 3, "in"), BufferSpec(torch.bool, 1, "out")),
    )
    tensors = table(spec("i", (3,), dtype=torch.int64), spec("flag", (), dtype=torch.bool))
    check = CheckCall("flag", "i", 0, 5, None, "IndexError", "index {value} is out of range")
    plan = Plan(tensors, {}, ("i",), ("i",), (KernelCall(kernel, ("i", "flag")), check))
    for run in [*runs(load(plan)), lambda tensors: interpret(plan, tensors)]:
        run([torch.tensor([0, 4, 2])])
        with pytest.raises(IndexError, match="index 7 is out of range"):
            run([torch.tensor([0, 7, 9])])


def test_no_reference_is_kept() -> None:
    loaded, inputs = load(mlp(3, 20, 30, 7)), mlp_inputs()
    loaded(inputs)
    gc.collect()
    before = [sys.getrefcount(t) for t in inputs]
    for _ in range(200):
        loaded(inputs)
        with pytest.raises(RuntimeError):
            loaded([torch.randn(3, 21), *inputs[1:]])
    gc.collect()
    assert [sys.getrefcount(t) for t in inputs] == before


def test_calls_from_many_threads() -> None:
    size = 300_000  # large enough to let other threads run meanwhile
    loaded = load(chain(6, size))
    failures: list[str] = []

    def work(seed: int) -> None:
        x = torch.full((size,), float(seed))
        for _ in range(20):
            if not torch.equal(loaded([x])[0], x):
                failures.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_source_is_readable() -> None:
    source = load(mlp(3, 20, 30, 7)).source
    assert (
        "def run(inputs):" in source
        and "aten.addmm.default(b1, x, w1.t)" in source
        and "# aten.relu" in source
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 20), st.integers(0, 8)), max_size=25))
def test_no_two_living_storages_overlap(rows: list[tuple[int, int, int]]) -> None:
    storages = [
        Storage(str(k), "arena", size, first, first + life) for k, (size, first, life) in enumerate(rows)
    ]
    total = _place(storages)
    for a in storages:
        assert a.offset % 64 == 0 and a.offset + a.size_bytes <= total
        for b in storages:
            if a is not b and a.first <= b.last and b.first <= a.last:
                assert a.offset + a.size_bytes <= b.offset or b.offset + b.size_bytes <= a.offset
