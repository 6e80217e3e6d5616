"""The fake tensor: a wrapper subclass with real device, sizes and strides and no memory.

In: a Spec, a FakeStorage and the mode that made it. Out: a tensor autograd and dispatch treat as the real thing.
Always: `spec` equals what the C++ wrapper reports; anything that needs values raises DataDependent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor

from ..shapes.node import to_symint
from .errors import DataDependent
from .spec import FakeStorage, Spec

if TYPE_CHECKING:
    from ..shapes.table import SymbolTable
    from .mode import FakeMode

_make_wrapper = torch.Tensor._make_wrapper_subclass
_plain_data = torch._C.TensorBase.data


class FakeTensor(torch.Tensor):
    """Metadata of a tensor; operators on it compute metadata only."""

    spec: Spec
    home: Any  # a FakeStorage; while recording, the recorder's kind of one
    owner: FakeMode  # not `mode`, which is an operator

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _mode_of(args, kwargs).dispatch(func, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        self.owner.reading_data = True
        try:
            return _plain_data.__get__(self)
        finally:
            self.owner.reading_data = False

    @data.setter
    def data(self, value: Tensor) -> None:
        fake = value if isinstance(value, FakeTensor) else self.owner.from_real(value)
        _plain_data.__set__(self, fake)
        self.spec, self.home = fake.spec, fake.home

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"FakeTensor({self.spec!r}{', requires_grad' if self.requires_grad else ''})"

    def __format__(self, spec: str) -> str:
        raise DataDependent("Tensor.__format__")

    def _needs_values(name: str) -> Any:
        def method(self: FakeTensor, *args: Any, **kwargs: Any) -> NoReturn:
            raise DataDependent(f"Tensor.{name}")

        method.__name__ = name
        return method

    def tolist(self) -> Any:
        known = value_of(self)
        if known is None:
            raise DataDependent("Tensor.tolist")
        return known.tolist()

    numpy = _needs_values("numpy")
    data_ptr = _needs_values("data_ptr")
    __array__ = _needs_values("__array__")
    __dlpack__ = _needs_values("__dlpack__")
    __reduce_ex__ = _needs_values("__reduce_ex__")
    del _needs_values


def value_of(fake: Tensor) -> Tensor | None:
    """The fake's values where they are known, to be read only."""
    if type(fake) is not FakeTensor or fake.home.constant is None:
        return None
    spec, constant = fake.spec, fake.home.constant
    if spec.symbolic or spec.conj or spec.neg or spec.dtype != constant.dtype:
        return None
    if spec.span() * constant.itemsize > constant.untyped_storage().nbytes():
        return None
    with torch._C._DisableTorchDispatch():
        return constant.as_strided(spec.shape, spec.stride, spec.offset)


def new_fake(mode: FakeMode, spec: Spec, home: FakeStorage, requires_grad: bool = False) -> FakeTensor:
    shape: Sequence[Any] = spec.shape
    stride: Sequence[Any] = spec.stride
    offset: Any = spec.offset
    if spec.symbolic:
        table = cast("SymbolTable", mode.sizes)  # only a mode with symbols makes such specs
        shape, stride = [to_symint(n, table) for n in shape], [to_symint(n, table) for n in stride]
        offset = to_symint(offset, table)
    t = _make_wrapper(
        FakeTensor,
        shape,
        stride,
        offset,
        None,
        spec.dtype,
        spec.layout,
        spec.device,
        False,
        requires_grad,
        # Nobody asks for the size of the storage; working it out in symbols would take long.
        storage_size=0 if spec.symbolic else None,
    )
    if spec.conj:
        torch._C._set_conj(t, True)
    if spec.neg:
        torch._C._set_neg(t, True)
    t.spec = spec
    t.home = home
    t.owner = mode
    return t


def in_mode_of(t: Tensor, make: Callable[[], Any]) -> Any:
    """`make()` where `t` was made: as in eager, a tensor made outside inference mode, and what views it, has a version
    counter inside it too, and the reverse."""
    if torch.is_inference_mode_enabled() == t.is_inference():
        return make()
    with torch.inference_mode(t.is_inference()):
        return make()


def count_writes(listed: Iterable[Tensor]) -> None:
    """Move the version counters of tensors that an operator writes as a list: eager does so below dispatch."""
    torch.autograd.graph.increment_version([t for t in listed if not t.is_inference()])


def set_metadata(fake: FakeTensor, spec: Spec, home: FakeStorage) -> None:
    """Change a fake in place, as `resize_`, `t_` or `set_` do; autograd state and version counter stay."""
    _plain_data.__set__(fake, in_mode_of(fake, lambda: new_fake(fake.owner, spec, home)))
    fake.spec, fake.home = spec, home


def _mode_of(args: Any, kwargs: Any) -> FakeMode:
    for a in (*args, *(kwargs or {}).values()):
        if type(a) is FakeTensor:
            return a.owner
        if isinstance(a, (list, tuple)):
            for b in a:
                if type(b) is FakeTensor:
                    return b.owner
    raise AssertionError("no fake tensor among the arguments")


def fakes_in(args: Any, into: list[FakeTensor]) -> list[FakeTensor]:
    """The fakes in nested arguments."""
    for a in args:
        if type(a) is FakeTensor:
            into.append(a)
        elif type(a) is list or type(a) is tuple:
            fakes_in(a, into)
    return into
