"""Metadata of one tensor, and the storage identity that views share.

In: shapes, strides, dtype, device. Out: interned `Spec`s (equal metadata is the same object) and `FakeStorage`s.
Always: a Spec never changes; two fakes alias exactly when their `home` is the same FakeStorage.
"""

from __future__ import annotations

import torch

from ..shapes.expr import Expr, SizeLike, evaluate
from ..shapes.table import recent_hints

META = torch.device("meta")
_INTERNED: dict[tuple, Spec] = {}
_INTERN_LIMIT = 200_000


class Spec:
    """Interned tensor metadata; compared and hashed by identity, which makes cache keys cheap."""

    __slots__ = (
        "shape",
        "stride",
        "offset",
        "dtype",
        "device",
        "layout",
        "conj",
        "neg",
        "nbytes",
        "symbolic",
        "__weakref__",
    )

    shape: tuple[SizeLike, ...]  # a symbolic size is never 0 or 1
    stride: tuple[SizeLike, ...]
    offset: SizeLike
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    conj: bool
    neg: bool
    nbytes: SizeLike  # of the smallest storage that holds it
    symbolic: bool  # whether a size, stride or the offset is an expression

    def span(self) -> SizeLike:
        """Elements of storage reached, counted from the storage's start."""
        if 0 in self.shape:
            return self.offset
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))

    def numel(self) -> SizeLike:
        n: SizeLike = 1
        for s in self.shape:
            n *= s
        return n

    def concrete(self) -> Spec:
        """As in the call last captured: for estimates, and where no size decides the answer."""
        if not self.symbolic:
            return self
        shape, stride, offset = (
            tuple([evaluate(n, recent_hints) for n in self.shape]),
            tuple([evaluate(n, recent_hints) for n in self.stride]),
            evaluate(self.offset, recent_hints),
        )
        return make_spec(shape, stride, offset, self.dtype, self.device, self.layout, self.conj, self.neg)

    def size_bytes(self) -> int:
        """`nbytes` as a number; an estimate where it is symbolic."""
        return evaluate(self.nbytes, recent_hints)

    def __repr__(self) -> str:
        flags = ("" if not self.conj else ", conj") + ("" if not self.neg else ", neg")
        offset = f"+{self.offset}" if self.offset else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}{list(self.shape)}{list(self.stride)}{offset}@{self.device}{flags}"


def make_spec(
    shape: tuple[SizeLike, ...],
    stride: tuple[SizeLike, ...],
    offset: SizeLike,
    dtype: torch.dtype,
    device: torch.device,
    layout: torch.layout = torch.strided,
    conj: bool = False,
    neg: bool = False,
) -> Spec:
    key = (shape, stride, offset, dtype, device, layout, conj, neg)
    spec = _INTERNED.get(key)
    if spec is None:
        if len(_INTERNED) >= _INTERN_LIMIT:
            _INTERNED.clear()
        spec = object.__new__(Spec)
        (spec.shape, spec.stride, spec.offset, spec.dtype) = (shape, stride, offset, dtype)
        (spec.device, spec.layout, spec.conj, spec.neg) = (device, layout, conj, neg)
        spec.nbytes = spec.span() * dtype.itemsize
        spec.symbolic = any(isinstance(n, Expr) for n in (*shape, *stride, offset))
        _INTERNED[key] = spec
    return spec


def spec_of(t: torch.Tensor, device: torch.device) -> Spec:
    """The metadata of a plain strided tensor, said to live on `device`."""
    return make_spec(
        tuple(t.shape),
        tuple(t.stride()),
        t.storage_offset(),
        t.dtype,
        device,
        t.layout,
        t.is_conj(),
        t.is_neg(),
    )


class FakeStorage:
    """Identity of a storage; `constant` is set while its value is a known literal."""

    __slots__ = ("nbytes", "meta", "constant")

    def __init__(self, nbytes: SizeLike) -> None:
        self.nbytes = nbytes
        self.meta: torch.UntypedStorage | None = None
        self.constant: torch.Tensor | None = None

    def on_meta(self, seen: int) -> torch.UntypedStorage:
        """The stand-in for meta kernels; of a size that varies, at least as much as is `seen` of it."""
        size = self.nbytes if type(self.nbytes) is int else seen
        if self.meta is None or self.meta.nbytes() < size:
            self.meta = torch.UntypedStorage(size, device="meta")
        return self.meta


def meta_tensor(spec: Spec, home: FakeStorage) -> torch.Tensor:
    """A meta tensor with this metadata whose storage is `home`'s."""
    if spec.offset == 0 and spec.nbytes == home.nbytes and home.meta is None:
        t = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=META)
    else:
        t = torch.empty(0, dtype=spec.dtype, device=META)
        t.set_(home.on_meta(int(spec.nbytes)), spec.offset, spec.shape, spec.stride)
    if spec.conj:
        torch._C._set_conj(t, True)
    if spec.neg:
        torch._C._set_neg(t, True)
    return t
