"""Guards on tensors: every fact in both directions, read in C as Python reads it."""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from graphlift.guards import (
    Arg,
    DictItem,
    DistinctTensors,
    Equals,
    HasKey,
    IdIs,
    InstanceDict,
    NoOverlap,
    SeqItem,
    StorageOffset,
    TensorGrad,
    TensorMeta,
    TensorSpec,
    _guards,
    tensors,
)
from tests.guards.checking import Checked, check_of

X, Y, Z = Arg(0, "x"), Arg(1, "y"), Arg(2, "z")


class Subclass(torch.Tensor):
    pass


class Wrapper(torch.Tensor):
    """A wrapper subclass with Python dispatch."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, strides=inner.stride()
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2, 3)


def other_tensors() -> dict[str, Any]:
    """Tensors that each differ in something from ``torch.ones(2, 3)``."""
    leaf = torch.ones(2, 3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        csr = torch.eye(2, 3).to_sparse_csr()
        csc = torch.eye(2, 3).to_sparse_csc()
    return {
        "float64": torch.ones(2, 3, dtype=torch.float64),
        "int64": torch.ones(2, 3, dtype=torch.int64),
        "bfloat16": torch.ones(2, 3, dtype=torch.bfloat16),
        "complex": torch.ones(2, 3, dtype=torch.complex64),
        "conjugate": torch.ones(2, 3, dtype=torch.complex64).conj(),
        "negative": torch._neg_view(torch.ones(2, 3)),
        "rank 0": torch.ones(()),
        "rank 1": torch.ones(6),
        "rank 7": torch.ones(1, 1, 1, 1, 1, 2, 3),
        "rank 8": torch.ones(1, 1, 1, 1, 1, 1, 2, 3),
        "rows": torch.ones(3, 3),
        "columns": torch.ones(2, 4),
        "empty": torch.ones(2, 0),
        "transposed": torch.ones(3, 2).t(),
        "strided": torch.ones(2, 6)[:, ::2],
        "expanded": torch.ones(1, 3).expand(2, 3),
        "meta": torch.ones(2, 3, device="meta"),
        "leaf": leaf,
        "result": leaf * 2,
        "parameter": torch.nn.Parameter(torch.ones(2, 3)),
        "frozen parameter": torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
        "subclass": torch.ones(2, 3).as_subclass(Subclass),
        "wrapper": Wrapper(torch.ones(2, 3)),
        "inference": inference_tensor(),
        "sparse": torch.eye(2, 3).to_sparse(),
        "csr": csr,
        "csc": csc,
    }


def test_torch_can_be_read_in_c() -> None:
    found = tensors.access()
    assert found.tensors and found.state and not found.why


def test_every_pair_of_tensors() -> None:
    samples = {"plain": torch.ones(2, 3), **other_tensors()}
    # What one guard takes for the same: the result of an operation and a leaf differ in nothing that is guarded.
    alike = {frozenset({"leaf", "result"})}
    for name, tensor in samples.items():
        check = Checked([TensorMeta(X, TensorSpec.of(tensor))], [X])
        for other_name, other in samples.items():
            expected = name == other_name or frozenset({name, other_name}) in alike
            assert check.passes(other) == expected, (name, other_name)
        for wrong in (None, 1, torch.Tensor, [tensor], object()):
            assert not check.passes(wrong)


def test_facts_that_are_not_guarded() -> None:
    check = check_of(TensorMeta(X, TensorSpec.of(torch.ones(2, 3))), torch.ones(2, 3))
    assert check.passes(torch.zeros(2, 3))
    assert check.passes(torch.ones(10)[4:].view(2, 3)), "storage offset"
    assert check.passes(torch.ones(2, 3, requires_grad=True).detach())
    grad = torch.ones(2, 3)
    grad.name_of_mine = "attributes"
    assert check.passes(grad)


def test_same_tensor_changed_in_place() -> None:
    x = torch.ones(2, 3)
    check = check_of(TensorMeta(X, TensorSpec.of(x)), x)
    changes: list[tuple[Any, Any]] = [
        (lambda: x.requires_grad_(True), lambda: x.requires_grad_(False)),
        (lambda: x.resize_(3, 3), lambda: x.resize_(2, 3)),
        (lambda: x.t_(), lambda: x.t_()),
        (lambda: setattr(x, "data", torch.ones(2, 4)), lambda: setattr(x, "data", torch.ones(2, 3))),
        (lambda: setattr(x, "data", torch.ones(2, 3).double()), lambda: setattr(x, "data", torch.ones(2, 3))),
        (lambda: x.resize_(1, 1, 1, 1, 1, 1, 6), lambda: x.resize_(2, 3)),
    ]
    for change, undo in changes:
        change()
        assert not check.passes(x)
        undo()
        assert check.passes(x)
    x.add_(1)
    assert check.passes(x)


def test_loosened_spec() -> None:
    spec = replace(TensorSpec.of(torch.ones(4, 5)), shape=(None, 5), strides=None)
    check = check_of(TensorMeta(X, spec), torch.ones(4, 5))
    assert check.passes(torch.ones(7, 5)) and check.passes(torch.ones(5, 7).t())
    assert not check.passes(torch.ones(7, 6)) and not check.passes(torch.ones(7, 5, 1))
    spec = replace(TensorSpec.of(torch.ones(2, 3, 4, 5, 6, 7)), shape=(None, 3, 4, 5, 6, 7))
    check = check_of(TensorMeta(X, spec), torch.ones(2, 3, 4, 5, 6, 7))
    assert check.passes(torch.ones(9, 3, 4, 5, 6, 7)) and not check.passes(torch.ones(9, 3, 4, 5, 6, 8))


def test_tensor_replaced_by_something_else() -> None:
    holder = [torch.ones(2, 3)]
    check = check_of([TensorMeta(SeqItem(X, 0), TensorSpec.of(holder[0]))], holder, fetch=[SeqItem(X, 0)])
    for other in [*other_tensors().values(), None, 3, "tensor"]:
        holder[0] = other
        assert not check.passes(holder)
    holder[0] = torch.zeros(2, 3)
    assert check.fetch(holder)[0] is holder[0]


def test_attributes_set_on_tensors() -> None:
    x = torch.ones(2)
    flag = DictItem(InstanceDict(X), "flag")
    absent = check_of(HasKey(InstanceDict(X), "flag", False), x)
    x.flag = 1
    check = check_of(Equals(flag, 1), x)
    assert not absent.passes(x)
    x.flag = 2
    assert not check.passes(x) and not check.passes(torch.ones(2))
    del x.flag
    assert absent.passes(x) and absent.passes(torch.nn.Parameter(torch.ones(2)))


def test_distinct_and_identity() -> None:
    x, y = torch.ones(2), torch.ones(2)
    check = check_of(DistinctTensors((X, Y, Z)), x, y, torch.ones(2))
    assert not check.passes(x, y, x) and not check.passes(x, x, y)
    for other in (torch.ones(2), torch.ones(2)):
        assert check.passes(other, y, x) and check.passes(x, other, y) and not check.passes(other, y, other)
    check = check_of(IdIs(X, x), x)
    assert not check.passes(y)


def test_many_tensors_of_which_some_change_are_distinct() -> None:
    tensors = [torch.ones(1) for _ in range(40)]
    items = tuple(SeqItem(X, i) for i in range(40))
    check = check_of(DistinctTensors(items), tensors)
    for many in (1, 3, 30):
        changed = [torch.ones(1) for _ in range(many)] + tensors[many:]
        assert check.passes(changed) and check.passes(tensors) and check.passes(tensors[::-1])
        for place in (0, many - 1, 39):
            twice = list(changed)
            twice[place] = changed[(place + 7) % 40]
            assert not check.passes(twice)


def test_whether_parameters_require_grad_is_seen() -> None:
    tensors = [
        torch.ones(2),
        torch.ones(2, requires_grad=True),
        torch.ones(2).requires_grad_().requires_grad_(False),
    ]
    items = [SeqItem(X, i) for i in range(3)]
    check = check_of([TensorMeta(i, TensorSpec.of(t)) for i, t in zip(items, tensors, strict=True)], tensors)
    for tensor in tensors:
        flag = tensor.requires_grad
        assert not (tensor.requires_grad_(not flag), check.passes(tensors))[1]
        assert (tensor.requires_grad_(flag), check.passes(tensors))[1]
    tensors[1].sum().backward()
    assert check.passes(tensors) and not check.passes([*tensors[:2], tensors[1] * 2])
    written = torch.ones(2)
    check = check_of(TensorMeta(SeqItem(X, 0), TensorSpec.of(written)), [written])
    written.mul_(tensors[1])
    assert written.requires_grad and not check.passes([written])


def test_overlap() -> None:
    base = torch.zeros(10)
    check = check_of(NoOverlap((X,), (Y, Z)), torch.zeros(3), base, base)
    assert check.passes(base[:5], base[5:], base[7:])
    assert not check.passes(base[:6], base[5:], torch.zeros(1))
    assert not check.passes(base[:6], torch.zeros(1), base[5:])
    assert check.passes(base[:0], base, base), "empty tensors share nothing"
    meta = torch.zeros(3, device="meta")
    assert check.passes(meta, meta, meta)
    bytes_view = base.view(torch.uint8)
    assert check.passes(base[:5], bytes_view[20:], bytes_view[20:])
    assert not check.passes(base[:5], bytes_view[19:], bytes_view[20:])
    both = check_of(NoOverlap((X, Y)), base[:5], base[5:])
    assert not both.passes(base[:6], base[5:])
    assert both.passes(base.view(5, 2).t()[0:1, :0], base)
    assert check_of(NoOverlap((X,)), base).check(None, 3) is None


def test_overlap_of_memory_shared_with_numpy() -> None:
    base = torch.zeros(10)
    alias = torch.from_numpy(base.numpy())
    check = check_of(NoOverlap((X, Y)), base[:5], alias[5:])
    assert not check.passes(base, alias)


def test_storage_offset_relation() -> None:
    base = torch.zeros(10)
    check = check_of(StorageOffset(X, Y, 3), base[1:], base[4:])
    assert not check.passes(base[1:], base[5:]) and not check.passes(base[1:], torch.zeros(10)[4:])
    assert check.passes(base[2:], base[5:])
    assert check.check(None, None, base) is None


def test_grad() -> None:
    x = torch.ones(2, requires_grad=True)
    check = check_of(Equals(TensorGrad(X), None), x)
    (x * 2).sum().backward()
    assert not check.passes(x)
    check = check_of(TensorMeta(TensorGrad(X), TensorSpec.of(x.grad)), x, fetch=[TensorGrad(X)])
    assert check.fetch(x)[0] is x.grad
    x.grad = None
    assert not check.passes(x)
    assert check.check(None, 5) is None


def test_torch_constants() -> None:
    check = check_of(Equals(X, torch.device("cpu")), torch.device("cpu"))
    assert not check.passes(torch.device("meta")) and not check.passes("cpu")
    check = check_of(Equals(X, torch.Size([2, 3])), torch.ones(2, 3).shape)
    assert not check.passes(torch.Size([2, 4])) and not check.passes((2, 3))
    check = check_of(Equals(X, torch.float32), torch.float32)
    assert not check.passes(torch.float64)
    check = check_of(Equals(X, torch.channels_last), torch.channels_last)
    assert not check.passes(torch.contiguous_format)


def test_every_dtype() -> None:
    dtypes = [d for d in vars(torch).values() if isinstance(d, torch.dtype)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = []
        for dtype in dict.fromkeys(dtypes):
            try:
                made.append(torch.empty(2, dtype=dtype))
            except (RuntimeError, TypeError, NotImplementedError):
                continue
        for tensor in made:
            check = Checked([TensorMeta(X, TensorSpec.of(tensor))])
            assert [check.passes(other) for other in made] == [other is tensor for other in made]


def test_functorch_and_fake_tensors_fail() -> None:
    x = torch.ones(2, 3)
    check = Checked([TensorMeta(X, TensorSpec.of(x[0]))])
    seen = []

    def look(row: torch.Tensor) -> torch.Tensor:
        seen.append(check.check(None, row) is None)
        return row

    torch.vmap(look)(x)
    torch.func.grad(lambda row: look(row).sum())(x[0])
    torch.func.functionalize(look)(x[0])
    torch.func.jvp(look, (x[0],), (x[0],))
    assert seen[:3] == [True] * 3


def test_tensors_are_not_kept_alive_and_calls_do_not_leak() -> None:
    x, y = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.float64)
    spec = TensorSpec.of(x)
    check = Checked([TensorMeta(X, spec), DistinctTensors((X, Y)), NoOverlap((X,), (Y,))], [X, Y], 2).check
    for _ in range(100):
        assert check(None, x, y) is not None and check(None, y, x) is None
    before = sys.getrefcount(x), sys.getrefcount(y)
    for _ in range(5000):
        check(None, x, y)
        check(None, y, x)
        check(None, x, None)
    assert (sys.getrefcount(x), sys.getrefcount(y)) == before
    ref = weakref.ref(x)
    del x
    gc.collect()
    assert ref() is None


def test_reading_agrees_with_python_for_odd_tensors() -> None:
    for name, tensor in other_tensors().items():
        if name in ("sparse", "csr", "csc", "wrapper"):
            continue
        keys, _, shape, strides, requires_grad, data, storage, offset = _guards.read_tensor(tensor)
        assert keys == torch._C._dispatch_keys(tensor).raw_repr(), name
        assert shape == tuple(tensor.shape) and strides == tensor.stride(), name
        assert requires_grad == tensor.requires_grad and offset == tensor.storage_offset(), name
        assert data == tensor.data_ptr() and storage == tensor.untyped_storage()._cdata, name


def test_slow_path_gives_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch cannot be read in C, Python decides, and decides alike."""
    blind = tensors.Access(False, False, "test", {}, {}, 0)
    monkeypatch.setattr("graphlift.guards.compile.access", lambda: blind)
    samples = {"plain": torch.ones(2, 3), **other_tensors()}
    for name in ("plain", "leaf", "parameter", "conjugate", "csr"):
        check = Checked([TensorMeta(X, TensorSpec.of(samples[name]))])
        for other_name, other in samples.items():
            expected = name == other_name or {name, other_name} == {"leaf", "result"}
            assert check.passes(other) == expected, (name, other_name)
    base = torch.zeros(10)
    check = Checked([NoOverlap((X,), (Y,))], nargs=2)
    assert check.passes(base[:5], base[5:]) and not check.passes(base[:6], base[5:])
