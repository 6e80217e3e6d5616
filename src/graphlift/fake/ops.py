"""What each operator's schema says about aliasing, read once and kept.

In: an OpOverload. Out: an `OpInfo`: which kind of rule computes it, what it writes, what its returns alias; and the
overload that computes what a writing operator writes.
Always: derived from the schema, except the short tables below where the schema is known to be silent.
"""

from __future__ import annotations

import threading
import warnings
from enum import Enum, auto
from typing import Any

import torch

from graphlift.data import dataclass

aten = torch.ops.aten
Tag = torch.Tag


class Kind(Enum):
    PURE = auto()  # fresh outputs, arguments untouched
    VIEW = auto()  # outputs alias the first argument
    INPLACE = auto()  # writes and returns its first argument, whose metadata stay
    WRITES = auto()  # writes some arguments (out=, foreach, batch-norm statistics)
    METADATA = auto()  # changes the metadata of its first argument (t_, resize_, set_)
    COMPOSITE = auto()  # only defined through other operators
    VALUES = auto()  # needs the values of its arguments
    HIGHER_ORDER = auto()


# The schemas of these say nothing of the running statistics they update in training: (argument positions, flag).
SILENT_WRITES: dict[str, tuple[tuple[int, ...], int]] = {
    "aten::native_batch_norm": ((3, 4), 5),
    "aten::cudnn_batch_norm": ((3, 4), 5),
    "aten::miopen_batch_norm": ((3, 4), 5),
}

# Kernels that look at values and may raise: indices out of range, classes, matrices that are not as they should be.
VALUE_CHECKS = frozenset(
    "aten::" + n
    for n in (
        "index index_put _index_put_impl gather scatter scatter_add scatter_reduce index_select index_add index_copy "
        "index_fill index_reduce take put embedding embedding_renorm _embedding_bag _embedding_bag_forward_only "
        "nll_loss_forward nll_loss2d_forward multi_margin_loss multilabel_margin_loss_forward max_unpool2d "
        "max_unpool3d _ctc_loss segment_reduce histc binary_cross_entropy cholesky linalg_eig _linalg_eigh _linalg_svd "
        "linalg_matrix_exp bincount"
    ).split()
)
# These divide, and raise where an integer divisor is zero.
INTEGER_DIVISIONS = frozenset("aten::" + n for n in "div remainder fmod floor_divide".split())

# Devices of the arguments may differ here.
MIXED_DEVICES = frozenset(
    "aten::" + n
    for n in (
        "index.Tensor index_put index_put_ _index_put_impl_ _index_put_impl _unsafe_index.Tensor _unsafe_index_put "
        "copy_ copy _to_copy _foreach_copy_ _foreach_copy set_.source_Tensor lift_fresh lift is_same_size"
    ).split()
)


@dataclass(frozen=True, slots=True, eq=False)
class OpInfo:
    func: Any
    name: str
    kind: Kind
    random: bool
    writes: tuple[tuple[int, str], ...]  # (position, or -1 for keyword-only; name)
    returns: tuple[tuple[int, str] | None, ...]  # which written argument each return is; None: a fresh tensor
    silent: tuple[tuple[int, ...], int] | None
    multi_view: bool
    cacheable: bool
    unregistered: bool  # with autograd: its kernel's own operators are differentiated, if any

    @property
    def checks_values(self) -> bool:
        """Whether its kernel raises for some values, so that it must run even where nothing uses its result."""
        return self.name.partition(".")[0] in VALUE_CHECKS

    @property
    def divides(self) -> bool:
        """The same, for integers alone."""
        return self.name.partition(".")[0] in INTEGER_DIVISIONS


_INFO: dict[Any, OpInfo] = {}


def _has_kernel(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def op_info(func: Any) -> OpInfo:
    info = _INFO.get(func)
    if info is None:
        info = _INFO[func] = _read_schema(func)
    return info


def _read_schema(func: Any) -> OpInfo:
    if not isinstance(func, torch._ops.OpOverload):
        return OpInfo(func, str(func), Kind.HIGHER_ORDER, False, (), (), None, False, False, False)
    schema, tags = func._schema, func.tags
    by_set: dict[str, tuple[int, str]] = {}
    writes = []
    position = 0
    for arg in schema.arguments:
        where = (-1 if arg.kwarg_only else position, arg.name)
        position += 1
        if arg.alias_info is not None and arg.alias_info.is_write:
            writes.append(where)
            for s in arg.alias_info.before_set:
                by_set[s] = where
    returns = tuple(
        next((by_set[s] for s in r.alias_info.before_set if s in by_set), None)
        if r.alias_info is not None and r.alias_info.is_write
        else None
        for r in schema.returns
    )
    name = func.name()
    return OpInfo(
        func=func,
        name=name,
        kind=_kind(func, name, schema, tags, writes, returns),
        random=Tag.nondeterministic_seeded in tags and name != "aten::_fused_sdp_choice",
        writes=tuple(writes),
        returns=returns,
        silent=SILENT_WRITES.get(name),
        multi_view=len(schema.returns) == 1
        and "[]" in str(schema.returns[0].type).replace("List[Tensor]", "[]"),
        cacheable=True,
        unregistered=not any(
            _has_kernel(name, key) for key in ("CompositeImplicitAutograd", "Autograd", "AutogradCPU")
        ),
    )


def _kind(func: Any, name: str, schema: Any, tags: Any, writes: list, returns: tuple) -> Kind:
    if _has_kernel(name, "CompositeImplicitAutograd"):
        return Kind.COMPOSITE
    if Tag.data_dependent_output in tags or Tag.dynamic_output_shape in tags:
        return Kind.VALUES
    if name in SILENT_WRITES:
        return Kind.WRITES
    if writes:
        if Tag.inplace_view in tags:
            return Kind.METADATA
        if len(writes) == 1 and writes[0][0] == 0 and returns == (writes[0],) and Tag.out not in tags:
            return Kind.INPLACE
        return Kind.WRITES
    if any(r.alias_info is not None for r in schema.returns):
        return Kind.VIEW
    return Kind.PURE


# -- functional forms -----------------------------------------------------------------------------------------

_FORMS: dict[Any, Any] = {
    aten.normal_.default: aten.normal_functional.default,
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.bernoulli_.Tensor: aten.bernoulli.Tensor,
    aten.uniform_.default: aten.uniform.default,
    aten.zero_.default: aten.zero.default,
}


def functional_form(func: Any) -> Any | None:
    """The overload that computes what `func` writes, from the same arguments (without `out`); None if there is none."""
    if func not in _FORMS:
        _FORMS[func] = _find(func)
    return _FORMS[func]


def _find(func: Any) -> Any | None:
    namespace, _, base = func._schema.name.partition("::")
    space = getattr(torch.ops, namespace)
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if not a.is_out]
    candidates = []
    if base.endswith("_") and not base.endswith("__"):
        candidates.append(base[:-1])
    candidates.append(base)
    candidates.append(base + "_functional")
    for name in candidates:
        packet = getattr(space, name, None)
        if packet is None:
            continue
        for overload in packet.overloads():
            other = getattr(packet, overload)
            if other is func or any(a.alias_info is not None for a in other._schema.arguments):
                continue
            if [(a.name, str(a.type)) for a in other._schema.arguments] == wanted:
                return other
    return None


# -- calls --------------------------------------------------------------------------------------------------

#: Held while what the whole process has, how it warns, is not as the program set it: other threads capture, too.
quieted = threading.RLock()


def quietly(func: Any, args: tuple, kwargs: dict) -> Any:
    """A call on tensors that stand for others, without its warnings: the operator itself gives them when it runs."""
    with quieted:
        always = torch.is_warn_always_enabled()
        torch.set_warn_always(True)  # so that what warns once does not count this as its time
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return func(*args, **kwargs)
        finally:
            torch.set_warn_always(always)
