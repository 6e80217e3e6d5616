"""Integers, text, generators, classes and tensors of one element that vary from call to call, told from what is configuration.

In: a call that no entry of its code fits. Out: the sources of the values that capture is not to specialise on.
Always: only what the frame itself holds (an argument, a local, the item of a loop) is taken to vary.
"""

from __future__ import annotations

import types
from collections import Counter
from typing import Any

import torch

from ..frame import entries
from ..guards import Const, DictItem, Equals, IdIs, InstanceDict, Predicate, Source, TypeIs
from ..guards.explain import Unloadable, failure, load
from ..guards.sources import describe_object
from .questions import SameAnswers

#: As many versions for values of a type are compiled before one is taken for one that varies: text is often a choice.
SPECIALISED = {int: 3, str: 5, torch.Generator: 2, type: 3, SameAnswers: 3}


def varying_values(func: types.FunctionType, args: tuple[Any, ...]) -> frozenset[Source]:
    """The frame's own integers and texts, and the tensors asked, for which several regions were compiled in vain."""
    failed: Counter[tuple[Source, type]] = Counter()
    for check, _ in entries(func.__code__):
        for guard in check.guards:
            if type(guard) is Equals and type(guard.const) in SPECIALISED and _is_frames_own(guard.source):
                failed[guard.source, type(guard.const)] += failure(guard, func, args) is not None
            elif type(guard) is IdIs and isinstance(guard.obj, torch.Generator):
                failed[guard.source, torch.Generator] += failure(guard, func, args) is not None
            elif type(guard) in (IdIs, TypeIs) and _is_made_anew(guard, func, args):
                failed[guard.source, type] += 1
            elif type(guard) is Predicate and type(guard.fn) is SameAnswers:
                if failure(guard, func, args) is not None:
                    failed.update((source, SameAnswers) for source in guard.items)
    return frozenset(source for (source, kind), count in failed.items() if count >= SPECIALISED[kind])


def _is_made_anew(guard: Any, func: types.FunctionType, args: tuple[Any, ...]) -> bool:
    """Whether the frame holds another class of the same name, or an instance of one: a function makes it in each call."""
    if not _is_frames_own(guard.source):
        return False
    try:
        found = load(guard.source, func, args)
    except Unloadable:
        return False
    cls = found if type(guard) is IdIs and isinstance(found, type) else type(found)
    return cls is not guard.ref.get() and describe_object(cls) == guard.ref.text


def _is_frames_own(source: Source | None) -> bool:
    while source is not None and not isinstance(source, (DictItem, InstanceDict, Const)):
        source = source.parent
    return source is None
