"""Which values are constants to the capture, by their classes.

In: a class or a value. Out: whether it stands for itself, and what exceptions carry beside their arguments.
Always: a constant's contents never change, so the value itself, or its identity, says all of it.
"""

from __future__ import annotations

import array
import datetime
import enum
import functools
import hashlib
import io
import random
import re
import struct
import types
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

#: `torch.autograd.Function.apply` as rules know it: a Python class method in some releases of torch, a C one in others.
FUNCTION_APPLY: Any = vars(torch.autograd.Function)["apply"]
FUNCTION_APPLY = getattr(FUNCTION_APPLY, "__func__", FUNCTION_APPLY)

PLAIN_CONSTANTS: frozenset[type] = frozenset(
    {
        int,
        float,
        bool,
        str,
        bytes,
        complex,
        type(None),
        type(...),
        type(NotImplemented),
        torch.dtype,
        torch.device,
    }
    | {torch.layout, torch.memory_format, torch.Size, range, slice, torch.finfo, torch.iinfo}
)
#: Constants of which only the type is guarded until something asks for the value.
READ_LATE: frozenset[type] = frozenset((int, float, str))


def _numpy_scalars(base: type) -> Iterator[type]:
    """The classes of numpy's scalars, without records, which can be changed."""
    if base is not np.void:
        yield base
        subclasses: list[type] = base.__subclasses__()
        for cls in subclasses:
            yield from _numpy_scalars(cls)


NUMPY_SCALARS: frozenset[type] = frozenset(_numpy_scalars(np.generic))
#: Enumerations of torch that are made in C++, such as `torch.nn.attention.SDPBackend`.
CPP_ENUMS: frozenset[type] = frozenset(
    value for value in vars(torch._C).values() if isinstance(value, type) and "__members__" in vars(value)
)
#: Classes whose instances never change, known by identity (or bits) where they come from outside.
IMMUTABLE_CONSTANTS: frozenset[type] = (
    NUMPY_SCALARS
    | CPP_ENUMS
    | frozenset(
        (
            re.Pattern,
            re.Match,
            datetime.date,
            datetime.time,
            datetime.datetime,
            datetime.timedelta,
            datetime.timezone,
        )
    )
)
#: Classes of C whose instances a region may make and use for real, and whether ``copy.copy`` makes the like of one.
PRIVATE_CLASSES: dict[type, bool] = {
    **dict.fromkeys((bytearray, array.array, random.Random, np.random.RandomState), True),
    **dict.fromkeys((io.StringIO, io.BytesIO, memoryview, struct.Struct, np.random.Generator), False),
    **dict.fromkeys({type(hashlib.new(name)) for name in hashlib.algorithms_guaranteed}, False),
    **dict.fromkeys(
        (type(iter(bytearray())), type(iter(array.array("b"))), type(iter(memoryview(b"")))), False
    ),
}
IDENTITY_CONSTANTS: tuple[type, ...] = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.CodeType,
    types.GenericAlias,
    typing.TypeVar,
    typing.ParamSpec,
    type,
    enum.Enum,
    property,
    staticmethod,
    classmethod,
    type(functools.lru_cache(lambda: None)),
    np.generic,  # numpy's scalars are immutable
    np.dtype,
    np.finfo,
    np.iinfo,
)
_NUMBERS = (int, float, complex, np.generic)
#: What exceptions of the interpreter carry beside their arguments.
EXCEPTION_VALUES: dict[type, tuple[str, ...]] = {
    StopIteration: ("value",),
    SystemExit: ("code",),
    OSError: ("errno", "strerror", "filename"),
    ImportError: ("msg", "name", "path"),
    AttributeError: ("name", "obj"),
    NameError: ("name",),
    SyntaxError: (
        "msg",
        "filename",
        "lineno",
        "offset",
        "text",
        "end_lineno",
        "end_offset",
        "print_file_and_line",
    ),
    UnicodeDecodeError: ("encoding", "object", "start", "end", "reason"),
    UnicodeEncodeError: ("encoding", "object", "start", "end", "reason"),
    UnicodeTranslateError: ("object", "start", "end", "reason"),
}


def exception_values(cls: type) -> tuple[str, ...]:
    """What exceptions of a class carry beside their arguments."""
    return next((names for base, names in EXCEPTION_VALUES.items() if issubclass(cls, base)), ())


def is_number(value: Any) -> bool:
    """Whether tensor operations take the value as a number: Python's, or numpy's scalars."""
    return isinstance(value, _NUMBERS)


def is_static_type(cls: type) -> bool:
    """Whether the type's attributes cannot be changed by the program (builtin and C types)."""
    return bool(cls.__flags__ & (1 << 8))  # Py_TPFLAGS_IMMUTABLETYPE


def raw_attribute(cls: type, name: str, missing: Any = None) -> Any:
    """The object that ``name`` is along the MRO of ``cls``, undescriptored; no code of the program's is asked."""
    return next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), missing)


#: Objects lie above the interpreter's own data.
_LOWEST_ADDRESS = min(map(id, (None, int, object))) // 2


def has_address(key: Any) -> bool:
    """Whether a key made outside is, or contains, a number that may be the id() of an object."""
    if type(key) in (tuple, frozenset):
        return any(map(has_address, key))
    return type(key) is int and key >= _LOWEST_ADDRESS


def is_constant_key(key: Any) -> bool:
    if type(key) is tuple:
        return all(is_constant_key(item) for item in key)
    return type(key) in PLAIN_CONSTANTS or issubclass(type(key), IDENTITY_CONSTANTS)
