"""How objects that existed before the call become trackers, by their kind.

In: a value and the source it is loaded from. Out: its tracker, and the guards that its kind needs.
Always: the real object is read, never changed; what it holds is wrapped when it is first asked for.
"""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..fake import Spec, refuses_history
from ..fake.spec import make_spec
from ..fake.symbolic import strides_of
from ..frame import Callee
from ..guards import (
    Attr,
    Call,
    Const,
    Equals,
    Follows,
    Guard,
    IdIs,
    InstanceDict,
    Length,
    SeqItem,
    Source,
    TensorMeta,
    TensorSize,
    TensorSpec,
    TypeIs,
    gives,
)
from ..guards._guards import same_constant
from ..marks import mark_of
from .constants import is_constant_key, raw_attribute
from .overriding import PLAIN_TENSORS, is_modelled, plain_tensor, untouched
from .trackers import (
    CalleeVar,
    CellVar,
    ConstVar,
    DequeVar,
    LazyVar,
    ListVar,
    MethodVar,
    ObjectVar,
    OpaqueVar,
    SetVar,
    TensorVar,
    Tracker,
    TupleVar,
)

if TYPE_CHECKING:
    from .capture import Capture


def is_inner_function(value: Any) -> bool:
    """Whether the function was made by another function, and nothing marks it."""
    return type(value) is types.FunctionType and "<locals>" in value.__qualname__ and mark_of(value) is None


def wrap_unread(cap: Capture, value: Any, source: Source, same: Guard | None = None) -> Tracker:
    """A number or text: its type is guarded, and its value (by ``same``) when something asks for it."""
    of_type, equals = TypeIs(source, type(value)), same or Equals(source, value)
    if equals in cap.guards:
        return ConstVar(value, source)

    def read() -> None:
        cap.guards.pop(of_type, None)
        cap.guard(equals)

    cap.guard(of_type)
    if type(value) in (int, str) and source in cap.varying:
        return OpaqueVar(value, source, f"varying-{type(value).__name__}", source.name())
    return ConstVar.unread(value, source, read)


def wrap_tensor(cap: Capture, value: torch.Tensor, source: Source) -> Tracker:
    kind = type(value)
    if not is_modelled(kind):
        cap.guard(TypeIs(source, kind))
        return OpaqueVar(value, source, "unsupported-tensor-subclass", kind.__qualname__)
    with untouched(value):
        return _wrap_modelled(cap, value, source)


def _wrap_modelled(cap: Capture, value: torch.Tensor, source: Source) -> Tracker:
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        cap.guard(TypeIs(source, type(value)))
        return OpaqueVar(value, source, "unsupported-tensor-subclass", f"layout {value.layout}")
    if value._is_zerotensor():
        cap.guard(TypeIs(source, type(value)))
        return OpaqueVar(value, source, "unsupported-tensor-subclass", "zeros without memory")
    if refuses_history(value):
        cap.guard(TypeIs(source, type(value)))
        return OpaqueVar(
            value, source, "unsupported-tensor-subclass", "a view that autograd refuses to follow"
        )
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        return OpaqueVar(value, source, "unsupported-tensor-subclass", "a tensor inside torch.func")
    guard, spec = tensor_layout(cap, value, source)
    cap.guard(TensorMeta(source, guard))
    plain = plain_tensor(value)
    fake = cap.fake_mode.from_real(plain, spec)
    node = cap.builder.add_input(source, value, fake)
    tracker = TensorVar(node, fake, type(value), source)
    cap.fakes[id(fake)] = tracker
    if plain is not value:
        cap.keep_alive.append(plain)  # the fakes of its aliases find it by its memory
        cap.disguised.append((fake, fake.spec, fake.requires_grad))
    return tracker


def tensor_layout(cap: Capture, value: torch.Tensor, source: Source) -> tuple[TensorSpec, Spec | None]:
    """What a tensor is guarded by, and its metadata in symbols where some of its sizes vary."""
    exact = TensorSpec.of(value)
    if cap.policy is None:
        return exact, None
    choices = cap.policy.dims(value, source)
    if not any(choices):
        return exact, None
    sizes = [
        cap.symbol(TensorSize(source, dim), size, choice) if choice is not None else size
        for dim, (size, choice) in enumerate(zip(value.shape, choices, strict=True))
    ]
    if all(type(size) is int for size in sizes):
        return exact, None
    strides, followed = strides_of(cap.sizes, sizes, value.stride())
    shape = tuple([size if type(size) is int else None for size in sizes])
    kept = tuple([n if d is None else Follows(d) for n, d in zip(strides, followed, strict=True)])
    spec = make_spec(
        *(tuple(sizes), strides, value.storage_offset(), value.dtype, value.device, value.layout),
        *(value.is_conj(), value.is_neg()),
    )
    return replace(exact, shape=shape, strides=kept), spec


#: Classes of containers, subclasses before their bases.
CONTAINERS = (list, tuple, OrderedDict, dict, set, frozenset, deque)


def as_builtin(container: Any, method: str) -> Any:
    """``container.method()`` as the builtin class has it, whatever a subclass makes of it."""
    base = next((cls for cls in CONTAINERS if isinstance(container, cls)), type(container))
    return getattr(base, method)(container)


def wrap_list(cap: Capture, value: list, source: Source) -> Tracker:
    cap.guard(TypeIs(source, list))
    return list_var(cap, value, source)


def _items(cap: Capture, value: Any, source: Source, kind: Any) -> list[Tracker]:
    """The items of a sequence, as ``kind`` gives them, of which its length is guarded."""
    cap.guard(Length(source, kind.__len__(value)))
    return [LazyVar(item, SeqItem(source, i)) for i, item in enumerate(kind.__iter__(value))]


def list_var(cap: Capture, value: list, source: Source) -> ListVar:
    return ListVar(None, source, value, lambda: _items(cap, value, source, list))


def wrap_tuple(cap: Capture, value: tuple, source: Source) -> Tracker:
    cap.guard(TypeIs(source, tuple))
    return TupleVar(_items(cap, value, source, tuple), source)


def wrap_deque(cap: Capture, value: deque[Any], source: Source) -> Tracker:
    cap.guard(TypeIs(source, deque))
    cap.guard(gives(Call(_MAXLEN, source), value.maxlen, f"{source.name()}.maxlen == {value.maxlen}"))
    return DequeVar(None, value.maxlen, source, value, lambda: _items(cap, value, source, deque))


_MAXLEN = deque.maxlen.__get__


def wrap_dict(cap: Capture, value: dict, source: Source) -> Tracker:
    cap.guard(TypeIs(source, type(value)))
    return cap.dict_var(value, source, type(value))


def wrap_set(cap: Capture, value: Any, source: Source) -> Tracker:
    key: Guard
    try:
        key = Equals(source, frozenset(value))
    except TypeError:
        if not all(map(is_constant_key, value)):
            return OpaqueVar(value, source, "unsupported-object", "a set of objects other than constants")
        key = IdIs(source, value)  # of classes and functions, say: what a frozenset holds never changes
    cap.guard(TypeIs(source, type(value)))
    if type(value) is frozenset:
        cap.guard(key)
    else:
        cap.guard(Length(source, len(value)))
        cap.guard(set_contents_guard(source, value))
    cap.saw_keys(value)
    return SetVar({item: ConstVar(item) for item in value}, type(value), source, value)


def set_contents_guard(source: Source, value: set) -> Guard:
    return _holds_constant(source, frozenset, frozenset(value), f"{source.name()} == {set(value)!r}")


def _holds_constant(source: Source, read: Callable[..., Any], expected: Any, text: str) -> Guard:
    """What ``read``, a C function, makes of the value is this constant, to the type of each item and the sign of a zero."""
    return gives(Call(same_constant, expected, Call(read, source)), True, text)


def wrap_set_payload(cap: Capture, value: Any, source: Source) -> Tracker:
    """The set inside an instance of a subclass."""
    base = set if isinstance(value, set) else frozenset
    plain = frozenset(base.__iter__(value))
    if not all(map(is_constant_key, plain)):
        return OpaqueVar(value, source, "unsupported-object", "a set of objects other than constants")
    cap.guard(_holds_constant(source, frozenset, plain, f"{source.name()} == {set(plain)!r}"))
    cap.saw_keys(plain)
    return SetVar({item: ConstVar(item) for item in base.__iter__(value)}, base, source, value)


def wrap_method(cap: Capture, value: types.MethodType, source: Source) -> Tracker:
    cap.guard(TypeIs(source, types.MethodType))
    return MethodVar(
        cap.wrap(value.__func__, Attr(source, "__func__")),
        cap.wrap(value.__self__, Attr(source, "__self__")),
        source,
    )


def wrap_cell(cap: Capture, value: types.CellType, source: Source) -> Tracker:
    return CellVar(None, source, value)


def wrap_function(cap: Capture, value: types.FunctionType, source: Source) -> Tracker:
    """Functions are constants; one made by another function is known by its code, since each call makes a new one."""
    if not isinstance(source, Const):
        if is_inner_function(value):
            cap.guard(IdIs(Attr(source, "__code__"), value.__code__))
            cap.guard(IdIs(Attr(source, "__globals__"), value.__globals__))
        else:
            cap.guard(IdIs(source, value))
    return ConstVar(value, source)


def wrap_builtin(cap: Capture, value: types.BuiltinFunctionType, source: Source) -> Tracker:
    """A function is known by identity; a method of an object, of which each access makes a new one, by its parts."""
    owner, name = value.__self__, value.__name__
    method = raw_attribute(type(owner), name)
    if not isinstance(method, types.MethodDescriptorType):
        if not isinstance(source, Const):
            cap.guard(IdIs(source, value))
        return ConstVar(value, source)
    cap.guard(TypeIs(source, types.BuiltinFunctionType))
    cap.guard(Equals(Attr(source, "__name__"), name))
    return MethodVar(ConstVar(method), cap.wrap(owner, Attr(source, "__self__")), source)


def wrap_partial(cap: Capture, value: functools.partial, source: Source) -> Tracker:
    cap.guard(TypeIs(source, functools.partial))
    tracker = ObjectVar(functools.partial, value, source)
    for name in ("func", "args", "keywords"):
        tracker.slots[name] = cap.wrap(getattr(value, name), Attr(source, name))
    return tracker


def wrap_callee(cap: Capture, value: Callee, source: Source) -> Tracker:
    """Known by the code it goes on with, and so by the code of each call under way inside it."""
    cap.guard(TypeIs(source, Callee))
    cap.guard(IdIs(Attr(Attr(source, "handover"), "code"), value.handover.code))
    cap.guard(IdIs(Attr(Attr(source, "handover"), "globals"), value.handover.globals))
    for part in ("finish", "attribute"):
        given = getattr(value, part)
        cap.guard(IdIs(Attr(source, part), None) if given is None else TypeIs(Attr(source, part), tuple))
    if value.finish is not None:
        steps = Attr(source, "finish")
        cap.guard(Length(steps, len(value.finish)))
        for index, step in enumerate(value.finish):
            cap.guard(IdIs(SeqItem(SeqItem(steps, index), 0), step[0]))
    return CalleeVar(value, source)


def wrap_object(cap: Capture, value: Any, source: Source) -> Tracker:
    kind = type(value)
    if not isinstance(source, Const):
        cap.guard(TypeIs(source, kind))
    attrs = None
    try:
        instance_dict = object.__getattribute__(value, "__dict__")
    except AttributeError:
        instance_dict = None
    if type(instance_dict) is dict:
        attrs = cap.dict_var(instance_dict, InstanceDict(source))
    tracker = ObjectVar(kind, value, source, attrs)
    for base, make in PAYLOADS:
        if issubclass(kind, base):
            tracker.payload = make(cap, value, source)
            break
    return tracker


WRAPPERS: dict[type, Callable[[Capture, Any, Source], Tracker]] = {
    **dict.fromkeys(PLAIN_TENSORS, wrap_tensor),
    list: wrap_list,
    tuple: wrap_tuple,
    dict: wrap_dict,
    OrderedDict: wrap_dict,
    deque: wrap_deque,
    set: wrap_set,
    frozenset: wrap_set,
    types.FunctionType: wrap_function,
    types.BuiltinFunctionType: wrap_builtin,
    types.MethodType: wrap_method,
    types.CellType: wrap_cell,
    functools.partial: wrap_partial,
    Callee: wrap_callee,
}


def plain_payload(read: Callable[..., Any]) -> Callable[[Capture, Any, Source], Tracker]:
    """The text or number inside an instance of a subclass."""

    def make(cap: Capture, value: Any, source: Source) -> Tracker:
        plain = read(value)
        if not isinstance(source, Const):
            cap.guard(_holds_constant(source, read, plain, f"{source.name()} == {plain!r}"))
        return ConstVar(plain)

    return make


PAYLOADS: tuple[tuple[type, Callable[[Capture, Any, Source], Tracker]], ...] = (
    (str, plain_payload(str.__str__)),
    *((base, plain_payload(base.__pos__)) for base in (int, float, complex)),
    (bytes, plain_payload(b"".__add__)),
    (set, wrap_set_payload),
    (frozenset, wrap_set_payload),
    (dict, lambda cap, value, source: cap.dict_var(value, source, type(value))),
    (list, lambda cap, value, source: list_var(cap, value, source)),
    (
        tuple,
        lambda cap, value, source: (
            cap.guard(Length(source, tuple.__len__(value)))
            or TupleVar(
                [LazyVar(item, SeqItem(source, i)) for i, item in enumerate(tuple.__iter__(value))], source
            )
        ),
    ),
)
