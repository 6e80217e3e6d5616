"""Operators that write their arguments, in functional form.

In: an in-place, `out=` or otherwise writing operator. Out: the functional overload, or a generic call on copies.
Always: the generic call copies every written storage first, so nothing the caller holds is changed.
"""

from __future__ import annotations

from typing import Any

import torch

from ..fake.ops import aten

_RENAMED = {
    aten.normal_.default: aten.normal_functional.default,
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.bernoulli_.Tensor: aten.bernoulli.Tensor,
    aten.uniform_.default: aten.uniform.default,
    aten.zero_.default: aten.zero.default,
}
_FORMS: dict[Any, Any] = dict(_RENAMED)


def functional_form(func: Any) -> Any | None:
    """The overload that computes what `func` writes, from the same arguments (without `out`); None if there is none."""
    if func not in _FORMS:
        _FORMS[func] = _find(func)
    return _FORMS[func]


def with_defaults(func: Any, form: Any, args: tuple, kwargs: dict) -> tuple:
    """`args` completed by defaults that the functional form does not have (`bernoulli_` has p=0.5)."""
    wanted = form._schema.arguments
    if len(args) >= len(wanted) or wanted[len(args)].has_default_value() or wanted[len(args)].kwarg_only:
        return args
    rest = [
        a.default_value
        for a in func._schema.arguments[len(args) :]
        if not a.kwarg_only and a.name not in kwargs
    ]
    return (*args, *rest)


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


def functionalized_call(func: Any, bases: list, aliases: list, args: list, kwargs: dict) -> tuple:
    """Call a writing operator on copies of `bases`; gives its fresh results, then the copies as written.

    `args`/`kwargs` hold `("alias", k)` where argument k of `aliases`, `(base, dtype, size, stride, offset)`, stands.
    """
    copies = [_clone_storage(b) for b in bases]
    views = []
    for base, size, stride, offset in aliases:
        copy = copies[base]
        views.append(
            copy.as_strided(size, stride, offset - bases[base].storage_offset() + copy.storage_offset())
        )

    def fill(a: Any) -> Any:
        if isinstance(a, (tuple, list)):
            if len(a) == 2 and a[0] == "alias":
                return views[a[1]]
            return [fill(v) for v in a]
        return a

    result = func(*[fill(a) for a in args], **{k: fill(v) for k, v in kwargs.items()})
    results = result if isinstance(result, (tuple, list)) else (result,)
    written_returns = [r.alias_info is not None and r.alias_info.is_write for r in func._schema.returns]
    fresh = [r for r, w in zip(results, written_returns, strict=False) if not w]
    return (*fresh, *copies)


def _clone_storage(t: torch.Tensor) -> torch.Tensor:
    copy = torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device)
    return copy.copy_(t)
