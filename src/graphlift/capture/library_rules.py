"""Functions of the standard library that are pointless to trace: run for real on constants, or known by what they say.

In: calls of what is named. Out: trackers. Always: a function runs while capturing only if it acts through its arguments
alone; what depends on the process or the thread is guarded.
"""

from __future__ import annotations

import _thread
import ast
import functools
import inspect
import json
import operator
import os
import pprint
import shlex
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from .. import uncompiled
from ..fake.checks import is_dense
from ..guards import (
    Call,
    CellContents,
    ClosureCell,
    Const,
    DictItem,
    Equals,
    IdIs,
    InstanceDict,
    Length,
    NoOverlap,
    Predicate,
    TensorGrad,
    gives,
)
from .breaks import Break, Raised
from .calls import CODE_RULES, TENSOR_METHODS
from .capture import Capture, NotConst
from .frame import inline
from .rules import rule
from .trackers import NONE, Args, ConstVar, DictVar, Kwargs, ObjectVar, TensorVar, Tracker


def _is_data(value: Any) -> bool:
    """Whether nothing in it is code."""
    if isinstance(value, dict):
        return all(_is_data(key) and _is_data(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_data, value))
    return not callable(value)


def _evaluated(target: types.FunctionType) -> None:
    @rule(target)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        try:
            values = [cap.value_of(arg) for arg in args]
            named = {name: cap.value_of(arg) for name, arg in kwargs.items()}
        except (NotConst, RecursionError):
            values, named = [target], {}
        if not all(map(_is_data, (*values, *named.values()))):
            return inline(cap, ConstVar.known(target), args, kwargs)
        try:
            return cap.from_python(target(*values, **named))
        except Exception as error:
            if isinstance(type(error).__init__, types.FunctionType):  # with fields of its own
                raise Break("exception-raised", f"{type(error).__name__}: {error}") from None
            raise Raised(cap.exception_var(error)) from error


for _target in (json.dumps, json.loads, ast.literal_eval, pprint.pformat, shlex.split):
    _evaluated(_target)


def _ambient(target: Callable[[], Any]) -> None:
    """What the process or the thread is: a constant as long as it is the same."""

    @rule(target)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        value, name = target(), target.__name__
        cap.guard(gives(Call(operator.eq, Call(target), value), True, f"{name}() == {value!r}"))
        return ConstVar(value)


for _asked in (_thread.get_ident, os.getpid):
    _ambient(_asked)


def _dispatch(cap: Capture, fn: ConstVar, args: Args, kwargs: Kwargs) -> Tracker:
    """``dispatch(cls)`` of a `functools.singledispatch` function, which keeps what it found behind weak references."""
    dispatch, cls = fn.value, cap.value_of(args[0])
    found = dispatch(cls)
    name = f"dispatch of {cls.__qualname__}"
    source = Const(dispatch, name)
    at = {n: CellContents(ClosureCell(source, k, n)) for k, n in enumerate(dispatch.__code__.co_freevars)}
    variables = inspect.getclosurevars(dispatch).nonlocals
    registry, key = variables["registry"], next(filter(variables["registry"].__contains__, cls.__mro__), None)
    if variables["cache_token"] is None and key is not None and registry[key] is found:
        cap.guard(Equals(at["cache_token"], None))  # no abstract class is registered, whose subclasses change
        cap.guard(Length(at["registry"], len(registry)))
        cap.guard(IdIs(DictItem(at["registry"], key), found))
    else:
        text = f"{name} is {getattr(found, '__qualname__', found)}"
        cap.guard(Predicate(lambda ask: ask(cls) is found, (source,), text))
    return cap.wrap(found, Const(found, getattr(found, "__qualname__", "implementation")))


CODE_RULES[functools.singledispatch(lambda _: None).dispatch.__code__] = _dispatch  # type: ignore[attr-defined]


def _deepcopy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """The copy of a plain tensor that fills its memory, and shares it with no other that goes into the same copy."""
    tensor = cap.realize(args[0])
    assert type(tensor) is TensorVar
    memo = cap.realize(args[1]) if len(args) == 2 else NONE
    if type(memo) is not DictVar or memo.source is not None:
        raise Break("unsupported-call", "Tensor.__deepcopy__ with a memo of the program's")
    cap.stays_inside(memo)  # as storages are not in it
    copied = cap.copied.setdefault(id(memo), [])
    if not _is_whole(cap, tensor) or not all(_is_apart(cap, tensor, other) for other in copied):
        raise Break(
            "unsupported-call", "Tensor.__deepcopy__ of other than a plain tensor with memory of its own"
        )
    if tensor.source is not None:
        cap.guard(Length(InstanceDict(tensor.source), 0))
        cap.guard(IdIs(TensorGrad(tensor.source), None))
    copied.append(tensor)
    return cap.emit("call_method", "clone", [tensor], {}, torch.Tensor.clone)


def _is_whole(cap: Capture, tensor: TensorVar) -> bool:
    fake: Any = tensor.fake
    plain = tensor.cls is torch.Tensor and not fake.requires_grad and id(tensor) not in cap.tensor_attrs
    if not plain or fake.storage_offset() or not is_dense(fake.spec):
        return False
    if tensor.source is None:
        return all(fake.home is not given.home for given, _ in cap.builder.input_versions)  # type: ignore[attr-defined]
    real = cap.builder.input_tensors[cap.builder.input_sources.index(tensor.source)]
    return not real.__dict__ and real.grad is None


def _is_apart(cap: Capture, tensor: TensorVar, other: TensorVar) -> bool:
    if tensor.fake.home is other.fake.home:  # type: ignore[attr-defined]
        return False
    if tensor.source is not None and other.source is not None:
        cap.guard(NoOverlap((tensor.source,), (other.source,)))
    return True


TENSOR_METHODS["__deepcopy__"] = _deepcopy


def _whole(target: Any, why: str) -> None:
    @rule(target)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        raise Break("unsupported-call", why, at_once=True)


def _recurrent(target: Any) -> None:
    @rule(target)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        given = cap.realize(args[1]) if len(args) > 1 else None
        if type(given) is ObjectVar and issubclass(given.cls, PackedSequence):
            raise Break("unsupported-call", "a recurrent module called with packed sequences", at_once=True)
        return inline(cap, ConstVar.known(target), args, kwargs)


for _target, _why in uncompiled.WHOLE.items():
    _whole(_target, _why)
for _target in uncompiled.RECURRENT:
    _recurrent(_target)
