"""Operators that write their arguments, in functional form.

In: a writing operator, and its functional overload where there is one. Out: that form's arguments, or a generic call on
copies.
Always: the generic call copies every written storage first, so nothing the caller holds is changed.
"""

from __future__ import annotations

from typing import Any

import torch


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
