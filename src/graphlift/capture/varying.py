"""Integers, text, generators and tensors of one element that vary from call to call, told from what is configuration.

In: a call that no entry of its code fits. Out: the sources of the values that capture is not to specialise on.
Always: only a number or text that the frame itself holds (an argument, a local, the item of a loop) is taken to vary.
"""

from __future__ import annotations

import types
from collections import Counter
from typing import Any

import torch

from ..frame import entries
from ..guards import Const, DictItem, Equals, IdIs, InstanceDict, Predicate, Source
from ..guards.explain import failure
from .questions import SameAnswers

#: As many versions for values of a type are compiled before one is taken for one that varies: text is often a choice.
SPECIALISED = {int: 3, str: 5, torch.Generator: 2, SameAnswers: 3}


def varying_values(func: types.FunctionType, args: tuple[Any, ...]) -> frozenset[Source]:
    """The frame's own integers and texts, and the tensors asked, for which several regions were compiled in vain."""
    failed: Counter[tuple[Source, type]] = Counter()
    for check, _ in entries(func.__code__):
        for guard in check.guards:
            if type(guard) is Equals and type(guard.const) in SPECIALISED and _is_frames_own(guard.source):
                failed[guard.source, type(guard.const)] += failure(guard, func, args) is not None
            elif type(guard) is IdIs and isinstance(guard.obj, torch.Generator):
                failed[guard.source, torch.Generator] += failure(guard, func, args) is not None
            elif type(guard) is Predicate and type(guard.fn) is SameAnswers:
                if failure(guard, func, args) is not None:
                    failed.update((source, SameAnswers) for source in guard.items)
    return frozenset(source for (source, kind), count in failed.items() if count >= SPECIALISED[kind])


def _is_frames_own(source: Source | None) -> bool:
    while source is not None and not isinstance(source, (DictItem, InstanceDict, Const)):
        source = source.parent
    return source is None
