"""Rules of what makes and describes functions: methods, cells, `functools`, `inspect`.

In: calls of what is named. Out: trackers with the builtins' meaning.
Always: what needs a loop over user values is a polyfill in Python, traced like user code.
"""

from __future__ import annotations

import collections
import functools
import inspect
import types

from ..guards import Const
from .attributes import (
    find_attr,
)
from .breaks import Break
from .capture import Capture, describe
from .protocol import (
    is_same,
)
from .rules import rule
from .trackers import (
    NONE,
    CellVar,
    ConstVar,
    DictVar,
    FunctionVar,
    MethodVar,
    ObjectVar,
    Tracker,
    TupleVar,
)

Args = list[Tracker]
Kwargs = dict[str, Tracker]


@rule(types.CellType)
def _cell(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return CellVar(args[0] if args else None)


@rule(functools.partial)
def _partial(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    made = ObjectVar(functools.partial)
    made.slots = {"func": cap.realize(args[0]), "args": TupleVar(args[1:]), "keywords": DictVar(dict(kwargs))}
    return made


@rule(types.MethodType)
def _method_type(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return MethodVar(cap.realize(args[0]), cap.realize(args[1]))


@rule(types.FunctionType.__get__)
def _function_get(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    obj = cap.realize(args[1])
    return args[0] if is_same(cap, obj, NONE) else MethodVar(args[0], obj)


@rule(functools.update_wrapper)
def _update_wrapper(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    wrapper, wrapped = cap.realize(args[0]), cap.realize(args[1])
    if type(wrapper) is FunctionVar and len(args) == 2 and not kwargs:
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            found = find_attr(cap, wrapped, name)
            if found is not None:
                wrapper.attrs.known[name] = found
        own = find_attr(cap, wrapped, "__dict__")
        if type(own) is DictVar:
            wrapper.attrs.known.update(cap.complete(own).known)
        wrapper.attrs.known["__wrapped__"] = wrapped
        return wrapper
    raise Break("unsupported-call", "functools.update_wrapper")


@rule(inspect.signature)
def _signature(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    target = cap.realize(args[0])
    bound = type(target) is MethodVar
    function = target.func if bound else target  # type: ignore[attr-defined]
    if type(function) is not ConstVar or not isinstance(function.value, types.FunctionType):
        raise Break("unsupported-call", f"inspect.signature of a {describe(target)}")
    real = inspect.signature(types.MethodType(function.value, object()) if bound else function.value)
    made = ObjectVar(inspect.Signature)
    parameters = {name: cap.wrap(p, Const(p, f"parameter_{name}")) for name, p in real.parameters.items()}
    made.slots = {
        "_parameters": DictVar(parameters, cls=collections.OrderedDict),
        "_return_annotation": cap.from_python(real.return_annotation),
    }
    return made


@rule(types.MappingProxyType)
def _mapping_proxy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return cap.realize(args[0])
