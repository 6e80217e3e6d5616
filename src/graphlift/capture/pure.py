"""Which C functions act through their arguments alone.

In: a callable. Out: whether it may be run while capturing, on constants and on stand-ins (`mirror.py`).
Always: such a function reads and writes no state of its own, keeps none of its arguments, and gives the same result for
the same arguments.
"""

from __future__ import annotations

import _bisect
import _collections  # type: ignore[import-not-found]
import _heapq
import _operator
import _string  # type: ignore[import-not-found]
import _struct
import binascii
import builtins
import cmath
import collections
import math
import os
import re
import sys
import types
import unicodedata
import zlib
from typing import Any

import torch

from .constants import IMMUTABLE_CONSTANTS, PLAIN_CONSTANTS

#: Immutable classes: their methods give new values and change nothing.
PURE_OBJCLASSES: tuple[type, ...] = (
    *(str, int, float, bool, bytes, complex, tuple, range, frozenset, slice, type(None), type(...)),
    *(torch.Size, torch.dtype, torch.device),
    *IMMUTABLE_CONSTANTS,
)
#: Containers: their methods change the receiver and nothing else.
_CONTAINERS = (list, dict, set, collections.deque, collections.OrderedDict)
#: Methods that make, describe, rebuild or enter the object itself, or hand out parts of it.
_NOT_RUN = frozenset(
    "__new__ __getattribute__ __setattr__ __delattr__ __reduce__ __reduce_ex__ __sizeof__ __getstate__ __init_subclass__ "
    "__iter__ __reversed__ __dir__ keys values items __enter__ __exit__".split()
)
_OBJECT_METHODS = frozenset("__str__ __format__ __lt__ __le__ __gt__ __ge__".split())


#: Modules that not every platform has, and how the names of such functions begin.
_PARTLY = {
    "_hashlib": ("openssl_", "new", "pbkdf2", "compare"),
    "posix": ("_path_normpath", "_path_splitroot"),
    "nt": ("_path_normpath", "_path_splitroot"),
}


def _in(*modules: types.ModuleType) -> list[Any]:
    found = [value for module in modules for value in vars(module).values()]
    return [value for value in found if isinstance(value, types.BuiltinFunctionType)]


def _functions() -> frozenset[Any]:
    names = "abs round divmod pow chr ord hex oct bin ascii format hash repr len sorted sum min max any all"
    chosen: list[Any] = [getattr(builtins, name) for name in names.split()]
    chosen += _in(math, cmath, _operator, _heapq, _bisect, _string, _struct, binascii, unicodedata, zlib)
    for name, starts in _PARTLY.items():
        found = vars(sys.modules[name]).items() if name in sys.modules else ()
        chosen += [value for name, value in found if name.startswith(starts) and callable(value)]
    chosen += [_collections._count_elements, str.maketrans, bytes.maketrans, os.fspath, sys.intern]
    chosen += [torch.finfo, torch.iinfo, torch._C._get_tracing_state, torch.promote_types, torch.can_cast]
    # They look up, or fill, the cache of compiled patterns, which nobody sees.
    chosen += [
        getattr(re, name)
        for name in "compile match fullmatch search sub subn split findall finditer escape".split()
    ]
    return frozenset(chosen) - {_operator.length_hint}  # stand-ins for iterators have no hint


PURE_FUNCTIONS = _functions()
_MOVING_METHODS = frozenset(
    "append appendleft copy count extend extendleft index insert pop popleft remove reverse rotate setdefault sort update "
    "__contains__ __eq__ __ge__ __getitem__ __gt__ __init__ __le__ __len__ __lt__ __ne__".split()
)
_MOVING = frozenset((sorted, collections.deque, *_in(_heapq, _bisect)))


def moves(value: Any) -> bool:
    """Whether one of these functions does no more to what containers hold than compare it and put it elsewhere."""
    if isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return value.__objclass__ in (tuple, *_CONTAINERS) and value.__name__ in _MOVING_METHODS
    return value in _MOVING


def is_pure(value: Any) -> bool:
    """Whether ``value`` is one of these functions."""
    if isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        owner = value.__objclass__
        if owner in PURE_OBJCLASSES or owner in _CONTAINERS:
            return value.__name__ not in _NOT_RUN
        return owner is object and value.__name__ in _OBJECT_METHODS
    try:
        return value in PURE_FUNCTIONS or _is_pure_classmethod(value)
    except TypeError:  # not hashable
        return False


def _is_pure_classmethod(value: Any) -> bool:
    if isinstance(value, types.ClassMethodDescriptorType):
        return value.__objclass__ in (*PURE_OBJCLASSES, dict)
    if not isinstance(value, types.BuiltinFunctionType):
        return False
    owner = value.__self__
    if isinstance(owner, type):
        return owner in PURE_OBJCLASSES
    if value.__name__ in ("__enter__", "__exit__"):  # a device's change the process
        return False
    return type(owner) in PLAIN_CONSTANTS or type(owner) in (*IMMUTABLE_CONSTANTS, frozenset, tuple)
