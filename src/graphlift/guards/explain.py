"""The meaning of sources and guards, in Python: what the C evaluator must agree with, and what explains a failure.

In: a source or guard and a call's arguments. Out: the value, or the text of what is expected and found.
Always: independent of the C evaluator (the tests compare the two); not used while checks pass.
"""

from __future__ import annotations

import itertools
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from types import CellType, FunctionType
from typing import Any
from weakref import ProxyTypes, ReferenceType

from graphlift.guards import _guards
from graphlift.guards import guards as g
from graphlift.guards import sources as s
from graphlift.shapes.expr import holds


class Unloadable(Exception):
    """A source has no value in this call; the text says why."""


Arguments = Sequence[Any]


def load(source: s.Source, func: Any, args: Arguments) -> Any:
    """The source's value in the call ``func(*args)``. Raises Unloadable."""
    loader = _LOADERS[type(source)]
    if source.parent is None:
        return loader(source, func, args)
    return loader(source, load(source.parent, func, args))


def _load_arg(source: s.Arg, func: Any, args: Arguments) -> Any:
    if source.index >= len(args):
        raise Unloadable(f"{source.name()}: only {len(args)} arguments")
    return args[source.index]


def _load_const(source: s.Const, func: Any, args: Arguments) -> Any:
    if source.ref.dead:
        raise Unloadable(f"{source.name()}: the object has died")
    return source.obj


def _load_instance_dict(source: s.InstanceDict, base: Any) -> Any:
    try:
        found = object.__getattribute__(base, "__dict__")
    except AttributeError:
        found = None
    if not isinstance(found, dict):
        raise Unloadable(f"{source.base.name()} has no instance dictionary")
    return found


def _key_of(key: Any) -> Any:
    if not isinstance(key, s.Ref):
        return key
    if key.dead:
        raise Unloadable(f"the key {key!r} has died")
    return key.get()


def _load_dict_item(source: s.DictItem, base: Any) -> Any:
    if not isinstance(base, dict):
        raise Unloadable(f"{source.base.name()} is not a dict but {s.describe_object(base)}")
    try:
        return dict.__getitem__(base, _key_of(source.key)) if _has_key(base, source.key) else _missing(source)
    except KeyError:
        return _missing(source)


def _missing(source: s.DictItem) -> Any:
    raise Unloadable(f"{source.base.name()} has no key {source.key!r}")


def _has_key(table: dict[Any, Any], key: Any) -> bool:
    return dict.__contains__(table, _key_of(key))


def _load_seq_item(source: s.SeqItem, base: Any) -> Any:
    kinds = (list, tuple, deque) if type(base) is deque else (list, tuple)
    kind: Any = next((kind for kind in kinds if isinstance(base, kind)), None)
    if kind is None:
        raise Unloadable(f"{source.base.name()} is no list, tuple or deque but {s.describe_object(base)}")
    try:
        return kind.__getitem__(base, source.index)
    except IndexError:
        raise Unloadable(f"{source.base.name()} has no item {source.index}") from None


def _keys(table: dict[Any, Any]) -> Iterable[Any]:
    return OrderedDict.__iter__(table) if isinstance(table, OrderedDict) else dict.__iter__(table)


def _load_dict_key(source: s.DictKey, base: Any) -> Any:
    if isinstance(base, dict):
        for key in itertools.islice(_keys(base), source.index, None):
            return key
    raise Unloadable(f"{source.base.name()} has no key number {source.index}")


def _load_slot(source: s.Slot, base: Any) -> Any:
    found = (cls.__dict__[source.slot_name] for cls in type(base).__mro__ if source.slot_name in cls.__dict__)
    descriptor: Any = next(found, None)
    if type(descriptor) in (types.MemberDescriptorType, types.GetSetDescriptorType):
        return _attribute(source, lambda: descriptor.__get__(base, type(base)))
    raise Unloadable(f"{source.base.name()} has no slot {source.slot_name!r}")


def _attribute(source: s.Source, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        raise Unloadable(f"{source.name()}: {type(error).__name__}: {error}") from None


def _load_closure_cell(source: s.ClosureCell, base: Any) -> Any:
    closure = base.__closure__ if isinstance(base, FunctionType) else None
    if closure is None or source.index >= len(closure):
        raise Unloadable(f"{source.base.name()} has no closure cell {source.index}")
    return closure[source.index]


def _load_contents(source: s.CellContents, base: Any) -> Any:
    try:
        if isinstance(base, CellType):
            return base.cell_contents
    except ValueError:
        pass
    raise Unloadable(f"{source.name()} is unset")


def _load_grad(source: s.TensorGrad, base: Any) -> Any:
    import torch

    return _attribute(source, lambda: torch._C.TensorBase.__dict__["grad"].__get__(base, type(base)))


def _load_target(source: s.WeakTarget, base: Any) -> Any:
    if not isinstance(base, (ReferenceType, *ProxyTypes)):
        raise Unloadable(f"{source.base.name()} is no weak reference")
    target = base() if isinstance(base, ReferenceType) else _guards.weak_target(base)
    if target is None:
        raise Unloadable(f"what {source.base.name()} refers to has ended")
    return target


def _load_size(source: s.TensorSize, base: Any) -> Any:
    import torch

    if not isinstance(base, torch.Tensor) or source.index >= base.dim():
        raise Unloadable(f"{source.name()}: {s.describe_object(base)} has no such dimension")
    return int(base.shape[source.index])


_LOADERS: dict[type[s.Source], Callable[..., Any]] = {
    s.Arg: _load_arg,
    s.Func: lambda source, func, args: func,
    s.Const: _load_const,
    s.FunctionMode: lambda source, func, args: _attribute(
        source, lambda: s.function_stack_at().get()(source.index)
    ),
    s.InstanceDict: _load_instance_dict,
    s.DictItem: _load_dict_item,
    s.SeqItem: _load_seq_item,
    s.DictKey: _load_dict_key,
    s.TypeOf: lambda source, base: type(base),
    s.Slot: _load_slot,
    s.Attr: lambda source, base: _attribute(source, lambda: getattr(base, source.attr)),
    s.ClosureCell: _load_closure_cell,
    s.CellContents: _load_contents,
    s.TensorGrad: _load_grad,
    s.TensorSize: _load_size,
    s.WeakTarget: _load_target,
}


# ---- guards: text of expected and found, or None ----


def test(guard: g.Guard, values: Sequence[Any]) -> str | None:
    """Why the guard fails for the values of its sources, or None where it holds."""
    return _TESTS[type(guard)](guard, *values)


def _expect_identity(ref: s.Ref, found: Any) -> str | None:
    if ref.dead:
        return f"expected {ref!r}, which has died"
    return None if found is ref.get() else f"expected {ref.text}, found {s.describe_object(found)}"


def _test_equals(guard: g.Equals, value: Any) -> str | None:
    try:
        same = g.constant_key(value) == guard.key
    except TypeError:
        same = False
    return None if same else f"expected {guard.const!r}, found {s.describe_object(value)}"


def storage_length(value: Any) -> int | None:
    """The length of a container's own storage, whatever its class makes of ``len``."""
    kinds: tuple[Any, ...] = (list, tuple, OrderedDict, dict, set, frozenset, str, bytes, bytearray, range)
    for kind in kinds:
        if isinstance(value, kind):
            return int(kind.__len__(value))
    return len(value) if type(value).__module__ == "collections" or "dict_" in type(value).__name__ else None


def _test_length(guard: g.Length, value: Any) -> str | None:
    found = storage_length(value)
    return None if found == guard.n else f"expected length {guard.n}, found {found}"


def _test_keys(guard: g.DictKeys, value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"expected a dict, found {s.describe_object(value)}"
    found = list(_keys(value))
    same = len(found) == len(guard.keys) and all(map(_same_key, guard.keys, found))
    names = ", ".join(map(s.describe_object, found[:20]))
    return None if same else f"expected keys {list(guard.keys)}, found [{names}]"


def _same_key(want: Any, found: Any) -> bool:
    if isinstance(want, s.Ref):
        return not want.dead and want.get() is found
    try:
        return bool(g.constant_key(want) == g.constant_key(found))
    except TypeError:
        return False


def _test_has_key(guard: g.HasKey, value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"expected a dict, found {s.describe_object(value)}"
    found = _has_key(value, guard.key)
    return None if found == guard.present else f"the key is {'there' if found else 'missing'}"


def _test_type_attr(guard: g.TypeAttr) -> str | None:
    cls = guard.cls
    if cls is None:
        return "the class has died"
    for base in type.__dict__["__mro__"].__get__(cls):
        if guard.attr in base.__dict__:
            return _expect_identity(guard.expected, base.__dict__[guard.attr])
    return None if guard.expected.get() is g.ABSENT else f"expected {guard.expected.text}, found nothing"


def _test_tensor(guard: g.TensorMeta, value: Any) -> str | None:
    mismatch = guard.spec.mismatch(value)
    return None if mismatch is None else f"expected that its {mismatch}"


def _test_distinct(guard: g.DistinctTensors, *values: Any) -> str | None:
    first: dict[int, s.Source] = {}
    for source, value in zip(guard.items, values, strict=True):
        if id(value) in first:
            return f"{first[id(value)].name()} and {source.name()} are the same object"
        first[id(value)] = source
    return None


def span(tensor: Any) -> tuple[int, int]:
    """The byte addresses [start, end) that a strided tensor reaches; empty for tensors without memory."""
    start = tensor.data_ptr()
    if start == 0 or tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def _test_overlap(guard: g.NoOverlap, *values: Any) -> str | None:
    spans = [span(value) for value in values]
    for i in range(len(guard.written)):
        for j in range(i + 1, len(spans)):
            (a0, a1), (b0, b1) = spans[i], spans[j]
            if a0 < b1 and b0 < a1 and a0 < a1 and b0 < b1:
                return f"{guard.sources[i].name()} and {guard.sources[j].name()} share memory"
    return None


def _test_offset(guard: g.StorageOffset, first: Any, second: Any) -> str | None:
    if first.untyped_storage()._cdata != second.untyped_storage()._cdata:
        return "they have different storages"
    found = second.storage_offset() - first.storage_offset()
    return None if found == guard.distance else f"expected {guard.distance} elements, found {found}"


def _test_sizes(guard: g.SizeRelation, *values: Any) -> str | None:
    pairs = ", ".join(
        f"{item.name()} = {s.describe_object(v)}" for item, v in zip(guard.items, values, strict=True)
    )
    if not all(type(v) is int and -(2**63) <= v < 2**63 for v in values):
        return f"expected ints, found {pairs}"
    try:
        held = holds(guard.relation, dict(zip(guard.symbols, values, strict=True)))
    except ZeroDivisionError:
        held = False
    return None if held else f"found {pairs}"


def _test_gives(guard: g.Gives, *values: Any) -> str | None:
    try:
        if guard.holds(*values):
            return None
        why = ""
    except Exception as error:
        why = f"{type(error).__name__}: {error}; "
    pairs = [f"{item.name()} = {s.describe_object(v)}" for item, v in zip(guard.items, values, strict=True)]
    return f"{why}found {', '.join(pairs)}" if pairs else f"{why}the condition is false"


def _test_predicate(guard: g.Predicate, *values: Any) -> str | None:
    try:
        return None if guard.fn(*values) else "the condition is false"
    except Exception as error:
        return f"the condition raised {type(error).__name__}: {error}"


_TESTS: dict[type[g.Guard], Callable[..., str | None]] = {
    g.TypeIs: lambda guard, value: _expect_identity(guard.ref, type(value)),
    g.IdIs: lambda guard, value: _expect_identity(guard.ref, value),
    g.Equals: _test_equals,
    g.Length: _test_length,
    g.DictKeys: _test_keys,
    g.HasKey: _test_has_key,
    g.TensorMeta: _test_tensor,
    g.TypeAttr: _test_type_attr,
    g.SameObject: lambda guard, a, b: None if a is b else "they are different objects",
    g.DistinctTensors: _test_distinct,
    g.NoOverlap: _test_overlap,
    g.StorageOffset: _test_offset,
    g.GlobalState: lambda guard: guard.mismatch(),
    g.Gives: _test_gives,
    g.Predicate: _test_predicate,
    g.SizeRelation: _test_sizes,
}


# ---- whole checks ----


def failure(guard: g.Guard, func: Any, args: Arguments) -> str | None:
    """Why the guard fails in this call, or None where it holds."""
    try:
        return test(guard, [load(source, func, args) for source in guard.sources])
    except Unloadable as error:
        return str(error)


def evaluate(
    guards: Iterable[g.Guard], fetch: Iterable[s.Source], func: Any, args: Arguments
) -> tuple[Any, ...] | None:
    """What a Check of these guards returns, worked out in Python."""
    if any(failure(guard, func, args) is not None for guard in guards):
        return None
    try:
        return tuple(load(source, func, args) for source in fetch)
    except Unloadable:
        return None


def explain_failure(check: Any, call: tuple[Any, ...]) -> str:
    """The first failing guard of a Check for the call ``(func, *args)``, with what was expected and found."""
    if not call:
        return "a check is called with the function first"
    func, args = call[0], call[1:]
    if len(args) != check.nargs:
        return f"expected {check.nargs} arguments, found {len(args)}"
    for guard in check.guards:
        why = failure(guard, func, args)
        if why is not None:
            return f"{guard.describe()}: {why}"
    for source in check.fetch:
        try:
            load(source, func, args)
        except Unloadable as error:
            return f"cannot load {source.name()}: {error}"
    return "an object that the guards know by identity has died" if check.expired else "no guard fails now"


def check_text(check: Any) -> str:
    """A readable listing of a Check."""
    lines = [f"guards ({len(check.guards)}), evaluated in C:"]
    lines += [f"  {guard.describe()}" for guard in check.guards]
    lines.append(f"fetched ({len(check.fetch)}):")
    lines += [f"  {source.name()}" for source in check.fetch]
    return "\n".join(lines)
