"""Compiled nn.Modules: another object with the same insides.

In: a module and a callable that runs it. Out: an instance of a subclass of the module's own class that shares its
`__dict__`. Always: parameters, buffers, hooks, modes and attributes are the original's, in both directions.
"""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from graphlift.errors import NotBuilt

_REAL_CLASS = object.__dict__["__class__"]
_OWN_SLOTS = ("__call__", "_graphlift_forward", "_graphlift_original", "_graphlift_settings")


class CompiledModule(nn.Module):  # type: ignore[misc]
    """Base of every compiled module; `compiled(x)` and `compiled.forward(x)` run compiled code.

    The call goes through a slot named `__call__`, so Python finds the per-object callable without a Python frame.
    An object made by other code from `type(compiled)` has no original and is a plain module of the original's class.
    """

    __slots__ = ()

    _graphlift_original: nn.Module | None
    _graphlift_settings: Any
    _graphlift_forward: Callable[..., Any] | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keeps the original class's own `__init_subclass__` from seeing compiled classes."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        make = super().__new__
        self = make(cls) if make is object.__new__ else make(cls, *args, **kwargs)
        if isinstance(self, CompiledModule):
            _fill(self, None, types.MethodType(_next_call(cls), self), None)
        return self

    def __getattr__(self, name: str) -> Any:
        original = object.__getattribute__(self, "_graphlift_original")
        if original is not None and type(original) is not _plain_class(type(self)):
            # The original changed its class since (parametrisation, lazy modules, sharding): follow it.
            _follow(self, type(original))
            return getattr(self, name)
        return super().__getattr__(name)

    @property
    def _orig_mod(self) -> nn.Module:
        """The original module, by the name that torch.compile's users know."""
        return self if self._graphlift_original is None else self._graphlift_original

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._orig_mod)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._graphlift_original is None:
            return super().__reduce_ex__(protocol)
        return _rebuild, (self._graphlift_original, self._graphlift_settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._graphlift_original is None:
            return _plain_copy(self, lambda module: copy.deepcopy(module, memo))
        return _rebuild(copy.deepcopy(self._graphlift_original, memo), self._graphlift_settings)

    def __copy__(self) -> Any:
        if self._graphlift_original is None:
            return _plain_copy(self, copy.copy)
        return _rebuild(copy.copy(self._graphlift_original), self._graphlift_settings)

    def _replicate_for_data_parallel(self) -> Any:
        return nn.Module._replicate_for_data_parallel(self._orig_mod)


class _WithSlots(CompiledModule):
    """The layout base of compiled modules whose own class has no slots: they may move between compiled classes."""

    __slots__ = _OWN_SLOTS


def _shared_slot(name: str, slot: types.MemberDescriptorType) -> property:
    """A slot of the original's class: its value is the original's."""

    def owner(module: CompiledModule) -> Any:
        return module if module._graphlift_original is None else module._graphlift_original

    return property(
        lambda module: slot.__get__(owner(module)),
        lambda module, value: slot.__set__(owner(module), value),
        lambda module: slot.__delete__(owner(module)),
        f"The slot {name!r}, shared with the original.",
    )


def _slots_of(plain: type) -> dict[str, types.MemberDescriptorType]:
    """Slots that Python code declared in a class or its bases."""
    found: dict[str, types.MemberDescriptorType] = {}
    for base in reversed(plain.__mro__):
        if "__slots__" in base.__dict__:
            members = {n: v for n, v in vars(base).items() if type(v) is types.MemberDescriptorType}
            found.update(members)
    return found


def _plain_copy(module: CompiledModule, copier: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Copies a module that has a compiled class but no original as a module of the plain class."""
    plain = object.__new__(_plain_class(type(module)))
    plain.__dict__ = module.__dict__
    return copier(plain)


class _CompiledForward:
    """`compiled.forward`: the original's forward, compiled on first use. An instance attribute takes precedence.

    As any bound method it stays what it was when it was taken: a wrapper assigned to `forward` may call it.
    """

    def __init__(self, plain: type[nn.Module]) -> None:
        self.plain = plain

    def __get__(self, module: CompiledModule | None, owner: type | None = None) -> Any:
        if module is None:
            return self.plain.forward
        original, settings = module._graphlift_original, module._graphlift_settings
        if original is None or settings is None:
            return types.MethodType(self.plain.forward, module)
        known: Any = module._graphlift_forward
        if known is None or known._graphlift_original != original.forward:
            object.__setattr__(module, "_graphlift_forward", settings.compile_forward(original))
        return module._graphlift_forward


def _get_class(self: CompiledModule) -> type:
    return type(self) if self._graphlift_original is None else type(self._graphlift_original)


def _set_class(self: CompiledModule, cls: type) -> None:
    if self._graphlift_original is None:
        _REAL_CLASS.__set__(self, cls)
    else:
        self._graphlift_original.__class__ = cls
        _follow(self, cls)


def _follow(module: CompiledModule, cls: type[nn.Module]) -> None:
    """The original is of another class now."""
    try:
        _REAL_CLASS.__set__(module, compiled_class(cls))
    except TypeError as error:
        raise NotBuilt(
            f"a compiled module cannot follow its original to {cls.__qualname__}",
            expected="classes without __slots__, or the same class",
            hint="compile the module after its class has changed",
        ) from error


def _plain_class(cls: type) -> type[nn.Module]:
    return cls._graphlift_plain  # type: ignore[attr-defined,no-any-return]


def _next_call(cls: type) -> Callable[..., Any]:
    """The original class's `__call__`."""
    return _plain_class(cls).__call__


def _fill(
    module: CompiledModule, original: nn.Module | None, call: Callable[..., Any], settings: Any
) -> None:
    object.__setattr__(module, "__call__", call)
    object.__setattr__(module, "_graphlift_original", original)
    object.__setattr__(module, "_graphlift_settings", settings)
    object.__setattr__(module, "_graphlift_forward", None)


def compiled_class(plain: type[nn.Module]) -> type[CompiledModule]:
    """The compiled class of `plain`: made once, kept by `plain` itself (its subclass list)."""
    for known in type.__subclasses__(plain):
        if issubclass(known, CompiledModule) and known.__dict__.get("_graphlift_plain") is plain:
            return known
    namespace: dict[str, Any] = {
        "__slots__": (),
        "__doc__": plain.__doc__,
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__class__": property(_get_class, _set_class),
        "_graphlift_plain": plain,
        "forward": _CompiledForward(plain),
    }
    if hasattr(plain, "__del__"):
        namespace["__del__"] = _del_once
    slots = _slots_of(plain)
    if slots:
        namespace["__slots__"] = _OWN_SLOTS
        namespace.update((name, _shared_slot(name, slot)) for name, slot in slots.items())
    base = CompiledModule if slots else _WithSlots
    try:
        return types.new_class(plain.__name__, (base, plain), {}, lambda ns: ns.update(namespace))
    except TypeError as error:
        raise NotBuilt(
            f"modules of class {plain.__qualname__} cannot be shared: {error}",
            expected="an nn.Module class of which a subclass can be made",
            hint="compile its forward instead: module.forward = graphlift.compile(module.forward)",
        ) from error


def _del_once(self: CompiledModule) -> None:
    """The original runs its own `__del__`; two objects with one inside must not run it twice."""
    if self._graphlift_original is None:
        _plain_class(type(self)).__del__(self)


def share_module(original: nn.Module, call: Callable[..., Any], settings: Any) -> CompiledModule:
    """A module that is `original` in everything but its call, which is `call`.

    `settings` rebuilds the module after a copy or unpickling (`settings.compile_module(original)`), and compiles
    `forward`; None means that the call is a disabled one.
    """
    module = object.__new__(compiled_class(type(original)))
    object.__setattr__(module, "__dict__", original.__dict__)
    _fill(module, original, call, settings)
    return module


def _rebuild(original: nn.Module, settings: Any) -> CompiledModule:
    if settings is None:
        from graphlift.control import disable

        return disable(original)  # type: ignore[no-any-return]
    return settings.compile_module(original)  # type: ignore[no-any-return]
