"""Rules of what makes and describes functions: methods, cells, `functools`, `inspect`.

In: calls of what is named. Out: trackers with the builtins' meaning.
Always: what needs a loop over user values is a polyfill in Python, traced like user code.
"""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import operator
import types
from collections import OrderedDict
from typing import Any

from ..guards import Const, IdIs
from . import polyfills
from .attributes import (
    find_attr,
    python_type,
)
from .breaks import Break
from .calls import INSTANCE_CALLS, call, is_callable, refuse
from .capture import Capture, Link, NotConst
from .frame import inline
from .protocol import (
    evaluate,
    is_same,
    sequence_items,
)
from .residual import OBJECT_BUILDERS
from .rules import rule
from .trackers import (
    NONE,
    Args,
    CellVar,
    ConstVar,
    DictVar,
    FunctionVar,
    Kwargs,
    MethodVar,
    ObjectVar,
    Tracker,
    TupleVar,
    describe,
)


@rule(types.CellType)
def _cell(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return CellVar(args[0] if args else None)


@rule(functools.partial)
def _partial(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if not is_callable(cap, args[0]):
        return refuse(cap, functools.partial, args, kwargs)
    func, given, named = cap.realize(args[0]), args[1:], dict(kwargs)
    marked = type(func) is ObjectVar and (
        bool(cap.complete(func.attrs).known)
        if func.obj is None
        else functools.partial(func.obj).func is func.obj
    )
    if type(func) is ObjectVar and func.cls is functools.partial and not marked:
        inner = func.slots["keywords"]  # a partial of a partial is one of the function inside
        assert type(inner) is DictVar
        given = [*sequence_items(cap, func.slots["args"]), *given]
        named = {**cap.complete(inner).known, **named}
        func = func.slots["func"]
    made = ObjectVar(functools.partial)
    made.slots = {"func": cap.realize(func), "args": TupleVar(given), "keywords": DictVar(named)}
    return made


@rule(types.MethodType)
def _method_type(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if not is_callable(cap, args[0]) or is_same(cap, args[1], NONE):
        return refuse(cap, types.MethodType, args, kwargs)
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
    return inline(cap, ConstVar(functools.update_wrapper), args, kwargs)


def _described(cap: Capture, target: Tracker) -> Any:
    """A real object with the target's signature."""
    target = cap.realize(target)
    if type(target) is MethodVar:
        return types.MethodType(_described(cap, target.func), object())
    if type(target) is FunctionVar:
        cells = tuple(types.CellType() for _ in target.closure)
        defaults = tuple(cap.value_of(value) for value in target.defaults) or None
        made = types.FunctionType(target.code, target.globals_, target.code.co_name, defaults, cells)
        made.__kwdefaults__ = {name: cap.value_of(value) for name, value in target.kwdefaults.items()} or None
        made.__qualname__ = target.qualname
        if target.annotations is not None:
            made.__annotations__ = cap.value_of(target.annotations)
        if target.attrs.known:
            raise NotConst
        return made
    if type(target) is ConstVar and isinstance(target.value, (types.FunctionType, type)):
        for name in ("__init__", "__new__", "__signature__", "__call__"):
            if isinstance(target.value, type):
                cap.type_attr(target.value, name)
        return cap.value_of(target)
    raise Break("unsupported-call", f"signature of a {describe(target)}")


@rule(inspect.signature)
def _signature(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    real = inspect.signature(_described(cap, args[0]))
    made = ObjectVar(inspect.Signature)
    parameters = {name: cap.wrap(p, Const(p, f"parameter_{name}")) for name, p in real.parameters.items()}
    made.slots = {
        "_parameters": DictVar(parameters, cls=collections.OrderedDict),
        "_return_annotation": cap.from_python(real.return_annotation),
    }
    return made


@rule(inspect.getfullargspec)
def _full_arg_spec(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    return evaluate(cap, inspect.getfullargspec, _described(cap, args[0]))


_KEY_MAKER: type = type(functools.cmp_to_key(len))  # type: ignore[arg-type]


@rule(functools.cmp_to_key)
def _cmp_to_key(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    made = ObjectVar(_KEY_MAKER)
    made.slots = {"(compare)": cap.realize(args[0])}
    return made


def _make_key(cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs, link: Link | None) -> Tracker:
    if "(compare)" not in fn.slots or len(args) != 1 or kwargs:
        raise Break("c-function", f"call of a {fn.cls.__name__} with {len(args)} arguments, or made outside")
    made = ConstVar.known(polyfills.Key, "Key")
    return call(cap, made, [fn.slots["(compare)"], args[0]], {})


INSTANCE_CALLS[_KEY_MAKER] = _make_key
OBJECT_BUILDERS[_KEY_MAKER] = lambda residual, made: (
    f"{residual.constant(functools.cmp_to_key)}({residual.expr(made.slots['(compare)'])})"
)
OBJECT_BUILDERS[polyfills.Key] = lambda residual, key: (
    f"{residual.constant(functools.cmp_to_key)}({residual.expr(key.slots['compare'])})({residual.expr(key.slots['obj'])})"
)


@rule(types.SimpleNamespace)
def _namespace(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    if args:
        return refuse(cap, types.SimpleNamespace, args, kwargs)
    made = ObjectVar(types.SimpleNamespace)
    made.attrs.known = dict(kwargs)
    return made


def _getter(cls: Any) -> None:
    @rule(cls)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        names = args[: None if cls is operator.attrgetter else 1]
        texts = cls is operator.itemgetter or all(issubclass(python_type(cap.realize(n)), str) for n in names)
        if not args or not texts or (kwargs and cls is not operator.methodcaller):
            return refuse(cap, cls, args, kwargs)
        made = ObjectVar(cls)
        made.slots = {"args": TupleVar(args), "keywords": DictVar(dict(kwargs))}
        return made


for _cls in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    _getter(_cls)


@rule(types.MappingProxyType)
def _mapping_proxy(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """A view of a dict, whose methods are the dict's own."""
    mapping = cap.realize(args[0])
    if type(mapping) is not DictVar:
        raise Break("unsupported-object", f"a mapping proxy of a {describe(mapping)}")
    made = ObjectVar(types.MappingProxyType)
    made.payload = mapping
    return made


def _through_proxy(name: str) -> None:
    @rule(getattr(types.MappingProxyType, name))
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        proxy = cap.realize(args[0])
        mapping = _behind(cap, proxy)
        if mapping is None or kwargs:
            raise Break("unsupported-object", f"mappingproxy.{name} of a {describe(proxy)}")
        method = getattr(mapping.cls, name)
        return call(cap, ConstVar(method), [mapping, *args[1:]], {})


def _behind(cap: Capture, proxy: Tracker) -> DictVar | None:
    """The dict behind a proxy; one made outside is known by what it is a proxy of."""
    if type(proxy) is not ObjectVar:
        return None
    if proxy.payload is None and proxy.source is not None:
        (mapping,) = gc.get_referents(proxy.obj)
        if type(mapping) in (dict, OrderedDict):
            cap.guard(IdIs(proxy.source, proxy.obj))
            found = cap.wrap(mapping, Const(mapping, "mapping"))
            proxy.payload = found if type(found) is DictVar else None
    return proxy.payload if type(proxy.payload) is DictVar else None


for _name in ("get", "keys", "values", "items", "copy", "__getitem__", "__contains__", "__len__", "__iter__"):
    _through_proxy(_name)
