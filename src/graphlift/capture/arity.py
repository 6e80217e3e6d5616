"""What arguments a C function with a rule takes.

In: a callable of the table of rules, positional and named arguments. Out: the arguments in the order of its signature.
Always: arguments that do not fit are told apart before the rule runs; the exception is then the function's own.
"""

from __future__ import annotations

import builtins
import collections
import functools
import inspect
import itertools
import types
from typing import Any

from .trackers import Tracker

#: Signatures of functions that do not tell theirs.
_DECLARED: dict[str, tuple[Any, ...]] = {
    "a, /": (
        *(getattr(t, name) for t in (dict, collections.OrderedDict) for name in "clear copy keys values items".split()),
        *(set.clear, set.copy, set.pop, frozenset.copy, types.GeneratorType.close),
    ),
    "a, b, /": (
        *(getattr(set, name) for name in "add discard remove".split()),
        *(getattr(t, name) for t in (set, frozenset) for name in "issubset issuperset isdisjoint".split()),
        *(set.symmetric_difference, frozenset.symmetric_difference, set.__contains__, list.__getitem__, dict.__getitem__),
        *(filter, types.GeneratorType.send, BaseException.add_note, BaseException.with_traceback),
        *(BaseExceptionGroup.split, BaseExceptionGroup.subgroup, BaseExceptionGroup.derive),
    ),
    "_1=0, _2=0, /": (super,),
    "a=0, /": (bool, set, frozenset, types.CellType, vars),
    "a, b=0, /": (iter, next),
    "a, b=0, c=0, /": (range, slice),
    "a, n, d=0, /": (getattr, dict.pop, functools.reduce),
    "a, /, key, default=0": (collections.OrderedDict.pop,),
    "_a=0, /, **_k": (dict, collections.OrderedDict),
    "_a, _b=0, /, **_k": (dict.update, collections.OrderedDict.update),
    "*a, strict=False": (zip,),
    "f, a, /, *b": (map,),
    "_f, /, *_a, **_k": (functools.partial,),
    "a, b, c=0, d=0, /": (itertools.islice, types.GeneratorType.throw),
    "*a, repeat=1": (itertools.product,),
    "*a": (itertools.chain,),
    "*a, fillvalue=None": (itertools.zip_longest,),
    "object, times=0": (itertools.repeat,),
    "iterable, func=None, *, initial=None": (itertools.accumulate,),
    "iterable, key=None": (itertools.groupby,),
    "iterable, n=2, /": (itertools.tee,),
    "mycmp": (functools.cmp_to_key,),
    "f, a, /": (itertools.starmap, itertools.dropwhile, itertools.takewhile, itertools.filterfalse),
    "_a, /": (itertools.pairwise, itertools.cycle),
    "data, selectors": (itertools.compress,),
    "iterable, r": (itertools.combinations, itertools.combinations_with_replacement),
    "iterable, r=None": (itertools.permutations,),
    "iterable=(), maxlen=None": (collections.deque,),
    "a, /, *b, key=None, default=None": (min, max),
    "object='', encoding='', errors=''": (str,),
    "x=0, /, base=0": (int,),
    "mapping": (types.MappingProxyType,),
}  # fmt: skip


def _signature(text: str) -> inspect.Signature:
    return inspect.signature(eval(f"lambda {text}: 0"))


_SIGNATURES: dict[Any, inspect.Signature | None] = {
    target: _signature(text) for text, targets in _DECLARED.items() for target in targets
}


def signature_of(target: Any) -> inspect.Signature | None:
    """The signature of a function of C or the standard library; None where it is not known."""
    found = _SIGNATURES.get(target, builtins)
    if found is not builtins:
        return found  # type: ignore[return-value]
    known = None
    if not (getattr(target, "__module__", None) or "").startswith("torch"):
        try:
            known = inspect.signature(target)
        except (TypeError, ValueError):
            known = None
    _SIGNATURES[target] = known
    return known


@functools.cache
def _fits(target: Any, count: int) -> bool:
    """Whether a function of known signature takes ``count`` arguments without names."""
    signature = signature_of(target)
    assert signature is not None
    try:
        signature.bind(*(None,) * count)
    except TypeError:
        return False
    return True


def arrange(
    target: Any, args: list[Tracker], kwargs: dict[str, Tracker]
) -> tuple[list[Tracker], dict[str, Tracker]] | None:
    """The arguments, those given by name put where they belong; None if the function does not take them."""
    signature = signature_of(target)
    if signature is None or (not kwargs and _fits(target, len(args))):
        return args, kwargs
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    return (list(bound.args), bound.kwargs) if kwargs else (args, kwargs)
