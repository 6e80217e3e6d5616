"""C functions run for real on stand-ins of what is tracked.

In: a C function that acts through the special methods of its arguments alone, and trackers. Out: its result's tracker.
Always: constants stand for themselves and containers are copied; of any other object there is a `Stand`, whose special
methods are the captured ones. What the function changed in a copy is then changed in the shadow.
"""

from __future__ import annotations

import array
import collections
import operator
import types
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import torch

from ..guards import ABSENT
from ..guards._guards import set_table
from .arrays import known_array
from .attributes import get_attr, is_python, ordered_attrs, python_type
from .breaks import Break, Exhausted, Raised, RunEagerly
from .calls import call, call_special
from .capture import Capture, NotConst
from .constants import (
    IDENTITY_CONSTANTS,
    IMMUTABLE_CONSTANTS,
    PLAIN_CONSTANTS,
    PRIVATE_CLASSES,
    exception_values,
    raw_attribute,
)
from .frame import SeqIter
from .protocol import (
    BINARY,
    COMPARE,
    INPLACE,
    UNARY,
    binary,
    change_list,
    change_set,
    compare,
    contains,
    del_item,
    get_item,
    get_iter,
    has_constants,
    inplace,
    is_same_item,
    length,
    next_item,
    real_set,
    set_item,
    truth,
    unary,
)
from .pure import PURE_OBJCLASSES, moves
from .trackers import (
    ConstVar,
    DequeVar,
    DictVar,
    DictViewVar,
    FloatVar,
    LazyVar,
    ListVar,
    ObjectVar,
    OpaqueVar,
    PrivateVar,
    SetVar,
    SizeVar,
    SliceVar,
    TensorVar,
    Tracker,
    TrackerKey,
    TupleVar,
    describe,
)
from .wrapping import CONTAINERS

#: Constants that stand for themselves; of functions and classes there are stand-ins, whose calls are captured.
_RAW = PLAIN_CONSTANTS | IMMUTABLE_CONSTANTS
_OURS = (Break, Raised, Exhausted, NotConst, RunEagerly)
#: Where an exception on its way through C code keeps what it is in the captured program.
_RAISED = "__graphlift_raised__"


class Fault(Exception):
    """A fault of ours inside a stand-in's method, which the C function must not take for the program's exception."""


class Stand:
    """A tracked object as C code sees it. The subclasses have the special methods of the object's type, no others."""

    __slots__ = ("_mirror", "_tracker")

    def __init__(self, mirror: Mirror, tracker: Tracker) -> None:
        self._mirror = mirror
        self._tracker = tracker

    def __getattr__(self, name: str) -> Any:
        return self._mirror.forward(lambda cap: get_attr(cap, self._tracker, name))


class Mirror:
    """The stand-ins of one call, and the way back from them."""

    def __init__(self, cap: Capture) -> None:
        self.cap = cap
        self.shows = False  # whether text is made of the arguments
        self.moves = False  # whether they are only compared and moved
        self.stands: dict[int, Any] = {}
        self.originals: dict[int, tuple[Any, Tracker]] = {}
        self.opened: list[tuple[Tracker, Any, Any, Any]] = []

    def release(self) -> None:
        """Let go of the program's objects now: the stand-ins and this refer to each other."""
        for known in (self.stands, self.originals, self.opened):
            known.clear()

    # --- there -----------------------------------------------------------------------------------------------------

    def give(self, tracker: Tracker) -> Any:
        """What stands for a tracker inside another object."""
        if type(tracker) is LazyVar and type(tracker.value) not in PLAIN_CONSTANTS:
            if id(tracker.value) not in self.cap.memo:
                return self._stand(tracker, UNREAD)
            tracker = self.cap.realize(tracker)  # guarded: it is that known object
        tracker = self.cap.realize(tracker)
        if self.moves and type(tracker) in (SizeVar, FloatVar):
            is_same_item(self.cap, tracker, tracker)  # an object finds itself, and so does each number
            return self._stand(tracker, stand_class(python_type(tracker)))
        tracker = self.cap.plain(tracker)
        if type(tracker) is ConstVar and type(tracker.value) in _RAW:
            if tracker.source is not None and type(tracker.value) is not int:
                self.originals.setdefault(id(tracker.value), (tracker.value, tracker))
            return tracker.value
        if type(tracker) is OpaqueVar and issubclass(python_type(tracker), _LOOKED_INTO):
            raise Break(tracker.code, tracker.detail)
        if type(tracker) is PrivateVar:
            self.originals[id(tracker.value)] = tracker.value, tracker
            return tracker.value
        if type(tracker) is SliceVar:
            return slice(*(self.give(part) for part in tracker.parts))
        if type(tracker) is TupleVar:
            if self.shows and not all(type(item) is ConstVar for item in tracker.items):
                return self._stand(tracker, stand_class(tuple))  # whose text is short inside itself
            return self._tuple(tracker)
        if type(tracker) is ObjectVar and type(tracker.payload) is TupleVar:
            return self._tuple_subclass(tracker)
        if type(tracker) is ObjectVar and type(tracker.payload) is ConstVar:
            return self.stands.get(id(tracker)) or self._plain_subclass(tracker, tracker.payload.value)
        found = self.stands.get(id(tracker))
        if found is None and type(tracker) is ObjectVar and issubclass(tracker.cls, _BUFFERS):
            raise Break("c-function", f"a C function that may look into a {tracker.cls.__name__}")
        return found if found is not None else self._stand(tracker, stand_class(python_type(tracker)))

    def _tuple(self, tracker: TupleVar) -> Any:
        made = self.stands.get(id(tracker))
        return (
            made
            if made is not None
            else self._remember(tracker, tuple(self.give(item) for item in tracker.items))
        )

    def _tuple_subclass(self, tracker: ObjectVar) -> Any:
        """A real tuple of the class, unless the class has its own ways with what is inside."""
        cls = tracker.cls
        own = [name for name in (*METHODS, "__getattribute__") if name not in ("__repr__", "__str__")]
        if tracker.attrs.known or any(
            isinstance(self.cap.type_attr(cls, n), types.FunctionType) for n in own
        ):
            return self._stand(tracker, stand_class(cls))
        made = self.stands.get(id(tracker))
        if made is None:
            items = tuple(self.give(item) for item in tracker.payload.items)  # type: ignore[union-attr]
            if cls is torch.Size and any(isinstance(item, Stand) for item in items):
                return self._remember(tracker, items)  # which a torch.Size cannot hold
            by_call = cls is torch.Size or hasattr(cls, "n_sequence_fields")
            made = cls(items) if by_call else tuple.__new__(cls, items)
            self._remember(tracker, made)
        return made

    def _plain_subclass(self, tracker: ObjectVar, value: Any) -> Any:
        """An instance of a subclass of text or numbers, with the special methods that its class writes in Python."""
        own: dict[str, Any] = {
            name: method
            for name, method in METHODS.items()
            if isinstance(self.cap.type_attr(tracker.cls, name), types.FunctionType)
        }
        made = type(tracker.cls.__name__, (type(value),), own)(value)
        made._mirror, made._tracker = self, tracker
        return self._remember(tracker, made)

    def _stand(self, tracker: Tracker, cls: type) -> Any:
        found = self.stands.get(id(tracker))
        return found if found is not None else self._remember(tracker, cls(self, tracker))

    def _remember(self, tracker: Tracker, made: Any) -> Any:
        self.stands[id(tracker)] = made
        self.originals[id(made)] = (made, tracker)
        return made

    def open(self, tracker: Tracker, receiver: bool = False) -> Any:
        """What stands for an argument: a container is copied, so that C code finds a real one."""
        tracker = self.cap.realize(tracker)
        known = self.stands.get(id(tracker))
        if known is not None:
            return known
        if receiver and type(tracker) is ConstVar and isinstance(tracker.value, PURE_OBJCLASSES):
            return tracker.value
        if receiver and type(tracker) is ObjectVar and type(tracker.payload) is ConstVar:
            return tracker.payload.value
        if receiver and type(tracker) is ObjectVar and tracker.payload is not None:
            copy = self.open(tracker.payload)
            if not isinstance(
                copy, (tuple, frozenset)
            ):  # those give a plain one where they would give themselves
                self.originals[id(copy)] = (copy, tracker)
            return copy
        if type(tracker) is DictViewVar:
            return self._remember(tracker, getattr(self.open(tracker.owner), tracker.kind)())
        copier = COPIES.get(type(tracker))
        if type(tracker) is TupleVar:
            return self._tuple(tracker)
        if copier is None:
            return self._open_subclass(tracker) if type(tracker) is ObjectVar else self.give(tracker)
        copy = copier(self, tracker)
        if type(copy) is not frozenset:
            self.opened.append((tracker, copy, copy.copy(), _content(tracker)))
        return copy

    def _open_subclass(self, tracker: ObjectVar) -> Any:
        """An instance of a subclass of a container: the container inside, unless the class reads it in its own way."""
        if (
            tracker.payload is None
            or type(tracker.payload) is ConstVar
            or any(isinstance(self.cap.type_attr(tracker.cls, name), types.FunctionType) for name in _READING)
        ):
            return self.give(tracker)
        if type(tracker.payload) is TupleVar:
            return self._tuple_subclass(tracker)
        copy = self.open(tracker.payload)
        self.stands[id(tracker)] = copy
        if not isinstance(copy, frozenset):
            self.originals[id(copy)] = (copy, tracker)
        return copy

    def give_key(self, key: Any) -> Any:
        return self.give(key.tracker) if isinstance(key, TrackerKey) else key

    # --- and back --------------------------------------------------------------------------------------------------

    def back(self, value: Any) -> Tracker:
        """The tracker of what C code returned or stored."""
        if isinstance(value, Stand):
            return self.cap.realize(value._tracker)
        entry = self.originals.get(id(value))
        if entry is not None and entry[0] is value:
            return entry[1]
        kind = type(value)
        if kind is np.ndarray:
            return known_array(self.cap, value)
        if kind in PRIVATE_CLASSES:
            return PrivateVar(value, self.cap.break_step())
        if kind is tuple:
            return TupleVar([self.back(item) for item in value])
        if kind is list:
            return ListVar([self.back(item) for item in value])
        if kind in (dict, collections.OrderedDict):
            return DictVar({self.key(k): self.back(v) for k, v in value.items()}, cls=kind)
        if kind in (set, frozenset):
            made = SetVar({self.key(item): self.back(item) for item in value}, kind)
            made.twin = value if has_constants(made) else None
            return made
        if kind is collections.deque:
            return DequeVar([self.back(item) for item in value], value.maxlen)
        if kind in PURE_OBJCLASSES or kind in PLAIN_CONSTANTS or issubclass(kind, IDENTITY_CONSTANTS):
            return self.cap.from_python(value)
        if kind.__name__ in _LISTED:
            found = TupleVar([self.back(item) for item in value])
            return SeqIter(found.items, found)
        if isinstance(value, tuple):
            return self.cap.from_python(value)
        raise Break("c-function", f"a C function that returns a {kind.__name__}")

    def key(self, value: Any) -> Any:
        return self.cap.key_of(self.back(value))

    def write_back(self) -> None:
        """Change in the shadow what the function changed in the copies."""
        for tracker, copy, before, content in self.opened:
            if not _unchanged(content, _content(tracker)):
                raise Break(
                    "unsupported-mutation", f"a {describe(tracker)} changed while a C function reads it"
                )
            WRITERS[type(tracker)](self, tracker, copy, before)

    def raised(self, error: Exception) -> Raised:
        """The program's exception: one that passed through the C function, or one that it raised."""
        link = error.__dict__.pop(_RAISED, None)
        if link is not None:
            return link  # type: ignore[no-any-return]
        if not any(isinstance(arg, Stand) or id(arg) in self.originals for arg in error.args):
            return Raised(self.cap.exception_var(error))
        result = ObjectVar(type(error))
        result.slots["args"] = TupleVar([self.back(arg) for arg in error.args])
        for name in exception_values(type(error)):
            result.slots[name] = self.back(getattr(error, name))
        return Raised(result)

    def forward(self, step: Callable[[Capture], Any]) -> Any:
        """A step of the captured program asked for by C code."""
        try:
            result = step(self.cap)
        except Raised as raised:
            if python_type(raised.value).__module__ != "builtins":
                raise
            raise _passing(raised) from None
        except _OURS:
            raise
        except Exception as error:
            raise Fault from error
        return self.give(result) if isinstance(result, Tracker) else result


def _passing(raised: Raised) -> Any:
    """An exception of the program on its way through C code, which may ask for its class.

    No variable of a frame that it passes holds it: such a cycle keeps the program's objects until the collector runs.
    """
    cls: Any = python_type(raised.value)
    error = cls.__new__(cls)
    setattr(error, _RAISED, raised)
    return error


def run(cap: Capture, fn: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
    """``fn(*args, **kwargs)`` for real."""
    if isinstance(fn, types.ClassMethodDescriptorType) and args:
        fn, args = fn.__get__(None, cap.value_of(args[0])), args[1:]
    mirror = Mirror(cap)
    try:
        return _run_on(mirror, fn, args, kwargs)
    finally:
        mirror.release()


def _run_on(mirror: Mirror, fn: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
    cap = mirror.cap
    is_method = isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType))
    inside = is_method and _reads_inside(fn)
    mirror.moves = moves(fn)
    mirror.shows = fn in (str, repr) or (is_method and fn.__name__ in ("__repr__", "__str__"))
    open_ = mirror.give if fn is str.format else mirror.open  # which asks each argument for its own text
    real = []
    for index, arg in enumerate(args):
        receives = is_method and index == 0 or (inside and _is_kin(cap, arg, fn))
        real.append(mirror.open(arg, receiver=True) if receives else open_(arg))
    if inside and fn.__name__ in ("__or__", "__ror__") and issubclass(fn.__objclass__, dict):
        _refuse_merged(cap, fn, args)
    named = {name: open_(arg) for name, arg in kwargs.items()}
    if is_method and real and not isinstance(real[0], fn.__objclass__):
        receiver = python_type(cap.realize(args[0]))
        if issubclass(receiver, fn.__objclass__):
            raise Break("c-function", f"{fn.__qualname__} of a {receiver.__name__}")
    try:
        result = fn(*real, **named)
    except _OURS:
        raise
    except Fault as fault:
        raise fault.__cause__ from None  # type: ignore[misc]
    except RecursionError:
        raise Break("inline-limit", f"recursion in {getattr(fn, '__qualname__', fn)}") from None
    except Exception as error:
        mirror.write_back()
        raise mirror.raised(error) from error
    mirror.write_back()
    if fn in _MAY_GIVE_THEMSELVES and result is real[0]:
        return cap.realize(args[0])
    return mirror.back(result)


def _refuse_merged(cap: Capture, method: Any, args: list[Tracker]) -> None:
    """A dictionary whose class iterates in its own way is merged by its keys, and not as it is stored."""
    for arg in map(cap.realize, args):
        if type(arg) is ObjectVar and is_python(cap, arg, "__iter__"):
            raise Break(
                "c-function", f"{method.__qualname__} of a {arg.cls.__name__}, which is merged by its keys"
            )


#: Classes whose instances C code looks into, rather than asking them: nothing stands for one of which nothing is known.
_LOOKED_INTO = (*CONTAINERS, str, bytes, bytearray, memoryview, slice, range, int, float, complex)
#: Classes of memory that other objects read.
_BUFFERS = (bytearray, memoryview, array.array)
#: Methods of text that give an instance of a subclass as it is where there is nothing to do.
_MAY_GIVE_THEMSELVES = frozenset((str.format, str.__mod__))
#: Operators of containers, which read the storage of another container of the same kind, whatever its class says.
_OF_STORAGE = frozenset(
    f"__{name}__"
    for name in "eq ne lt le gt ge add or and sub xor ror rand rsub rxor ior iand isub ixor".split()
)


def _reads_inside(method: Any) -> bool:
    return type(method) is types.WrapperDescriptorType and (
        method is str.__mod__ or method.__name__ in _OF_STORAGE
    )


def _is_kin(cap: Capture, arg: Tracker, method: Any) -> bool:
    """Whether an operand is an instance of a subclass of a container such as the operator takes."""
    arg, cls = cap.realize(arg), method.__objclass__
    if type(arg) is not ObjectVar or type(arg.payload) not in (ListVar, TupleVar, SetVar, DictVar):
        return False
    if cls is str:
        return type(arg.payload) is TupleVar  # the values of a `%`
    return issubclass(arg.cls, (set, frozenset) if issubclass(cls, (set, frozenset)) else cls)


# --- containers --------------------------------------------------------------------------------------------------------


def _content(tracker: Any) -> list[Any]:
    """What a container holds now; an object that nothing has looked at yet may be looked at meanwhile."""
    found = tracker.items if type(tracker) in (ListVar, DequeVar) else chain(*tracker.known.items())
    return [None if type(item) is LazyVar else item for item in found]


def _unchanged(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(a is None or a is b for a, b in zip(before, after))


def _copy_list(mirror: Mirror, tracker: ListVar) -> list[Any]:
    copy: list[Any] = mirror._remember(tracker, [])  # it may contain itself
    copy.extend(mirror.give(item) for item in tracker.items)
    return copy


def _copy_deque(mirror: Mirror, tracker: DequeVar) -> collections.deque[Any]:
    copy: collections.deque[Any] = mirror._remember(tracker, collections.deque(maxlen=tracker.maxlen))
    copy.extend(mirror.give(item) for item in tracker.items)
    return copy


def _copy_dict(mirror: Mirror, tracker: DictVar) -> dict[Any, Any]:
    known = mirror.cap.complete(tracker).known
    base = collections.OrderedDict if issubclass(tracker.cls, collections.OrderedDict) else dict
    copy: dict[Any, Any] = mirror._remember(tracker, base())
    copy.update((mirror.give_key(key), mirror.give(value)) for key, value in known.items())
    if base is not dict:
        vars(copy).update({name: mirror.give(v) for name, v in ordered_attrs(mirror.cap, tracker).items()})
    return copy


def _copy_set(mirror: Mirror, tracker: SetVar) -> Any:
    if has_constants(tracker):
        return mirror._remember(tracker, real_set(mirror.cap, tracker))
    return mirror._remember(tracker, tracker.cls(mirror.give_key(key) for key in tracker.known))


COPIES: dict[type, Callable[[Mirror, Any], Any]] = {
    ListVar: _copy_list,
    DequeVar: _copy_deque,
    DictVar: _copy_dict,
    SetVar: _copy_set,
}


def _write_list(mirror: Mirror, tracker: Any, copy: Any, before: Any) -> None:
    if type(tracker) is DequeVar and tracker.maxlen != copy.maxlen:
        raise Break("unsupported-mutation", "the length limit of a deque made before")
    if len(copy) != len(before) or not all(map(operator.is_, copy, before)):
        change_list(mirror.cap, tracker)[:] = [_unread(mirror, item) for item in copy]


def _unread(mirror: Mirror, item: Any) -> Tracker:
    return item._tracker if isinstance(item, Stand) else mirror.back(item)  # type: ignore[no-any-return]


def _write_dict(mirror: Mirror, tracker: DictVar, copy: Any, before: Any) -> None:
    cap = mirror.cap
    kept = [key for key in before if key in copy]
    if list(copy)[: len(kept)] != kept:  # moved
        cap.dict_clear(tracker)
        before = {}
    for key in before:
        if key not in copy:
            cap.dict_del(tracker, mirror.key(key))
    for key, value in copy.items():
        if key not in before or before[key] is not value:
            cap.dict_set(tracker, mirror.key(key), _unread(mirror, value))


def _write_set(mirror: Mirror, tracker: SetVar, copy: Any, before: Any) -> None:
    same = len(copy) == len(before) and all(map(operator.is_, copy, before))
    if same and (tracker.real is None or tracker.mutated or set_table(copy) == set_table(tracker.real)):
        return
    known = change_set(mirror.cap, tracker)
    kept = {mirror.key(item): mirror.back(item) for item in copy}
    for key in list(known):
        if key not in kept:
            del known[key]
    for key, item in kept.items():
        known.setdefault(key, item)
    tracker.twin = copy if has_constants(tracker) else None


WRITERS: dict[type, Callable[[Mirror, Any, Any, Any], None]] = {
    ListVar: _write_list,
    DequeVar: _write_list,
    DictVar: _write_dict,
    SetVar: _write_set,
}


# --- the special methods of stand-ins ------------------------------------------------------------------------------------

Step = Callable[..., Any]


def _forwarded(step: Step) -> Callable[..., Any]:
    """A special method that runs ``step(cap, tracker, *trackers)``."""

    def method(self: Stand, *args: Any) -> Any:
        mirror = self._mirror
        return mirror.forward(lambda cap: step(cap, self._tracker, *map(mirror.back, args)))

    return method


def _special(name: str, breaks_on_tensors: bool = False) -> Callable[..., Any]:
    """A special method that must give a plain value."""

    def step(cap: Capture, obj: Tracker, *args: Tracker) -> Any:
        obj = cap.realize(obj)
        if type(obj) is TensorVar and breaks_on_tensors:
            raise Break("tensor-item", f"{name} of a tensor")
        return _plain(cap, call_special(cap, cap.plain(obj), name, list(args)))

    return _forwarded(step)


def _plain(cap: Capture, found: Any) -> Any:
    """What C code takes from a special method for a number: one that varies is the number that it is."""
    return cap.plain(found) if isinstance(found, Tracker) else found


def _next(self: Stand) -> Any:
    def step(cap: Capture) -> Any:
        try:
            return next_item(cap, self._tracker)
        except Exhausted:
            return _END

    found = self._mirror.forward(step)
    if found is _END:
        raise StopIteration
    return found


_END = object()
#: Iterators that only C functions make: of `re.finditer`, `struct.iter_unpack`, `string.Formatter`.
_LISTED = frozenset(("callable_iterator", "unpack_iterator", "formatteriterator", "fieldnameiterator"))
#: Methods by which a class decides what is seen of the container inside.
_READING = ("__iter__", "__len__", "__getitem__", "__contains__", "keys", "items")


def _hash(cap: Capture, obj: Tracker) -> int:
    obj = cap.realize(obj)
    key = cap.key_of(obj)
    return hash(id(key)) if type(key) is TrackerKey else hash(key)


def _text(fn: Callable[..., str]) -> Callable[..., Any]:
    return _forwarded(lambda cap, obj, *args: call(cap, ConstVar(fn), [cap.plain(obj), *args], {}))


def _power(cap: Capture, base: Tracker, exponent: Tracker, *modulus: Tracker) -> Tracker:
    if modulus:
        return call_special(cap, base, "__pow__", [exponent, *modulus])
    return binary(cap, "**", base, exponent)


def _methods() -> dict[str, Any]:
    table: dict[str, Any] = {
        "__bool__": _forwarded(truth),
        "__len__": _forwarded(lambda cap, obj: _plain(cap, length(cap, obj))),
        "__iter__": _forwarded(get_iter),
        "__next__": _next,
        "__contains__": _forwarded(contains),
        "__getitem__": _forwarded(get_item),
        "__setitem__": _forwarded(set_item),
        "__delitem__": _forwarded(del_item),
        "__call__": _call,
        "__hash__": _forwarded(_hash),
        "__repr__": _text(repr),
        "__str__": _text(str),
        "__format__": _text(format),
    }
    for name in ("__index__", "__int__", "__float__", "__complex__", "__trunc__", "__floor__", "__ceil__"):
        table[name] = _special(name, breaks_on_tensors=True)
    for name in ("__round__", "__divmod__", "__rdivmod__", "__reversed__", "__bytes__", "__length_hint__"):
        table[name] = _special(name)
    for symbol, (_, name, reflected) in BINARY.items():
        table[name] = _forwarded(lambda cap, a, b, *, s=symbol: binary(cap, s, a, b))
        table[reflected] = _forwarded(lambda cap, a, b, s=symbol: binary(cap, s, b, a))
    table["__pow__"] = _forwarded(_power)
    for symbol, (_, name) in INPLACE.items():
        table[name] = _forwarded(lambda cap, a, b, s=symbol: inplace(cap, s, a, b))
    for symbol, (_, name, _) in COMPARE.items():
        table[name] = _forwarded(lambda cap, a, b, s=symbol: compare(cap, s, a, b))
    for symbol, (_, name) in UNARY.items():
        table[name] = _forwarded(lambda cap, a, s=symbol: unary(cap, s, a))
    return table


def _call(self: Stand, *args: Any, **kwargs: Any) -> Any:
    mirror = self._mirror
    return mirror.forward(
        lambda cap: call(
            cap,
            self._tracker,
            [mirror.back(arg) for arg in args],
            {name: mirror.back(arg) for name, arg in kwargs.items()},
        )
    )


METHODS = _methods()
#: Stands for an object that nothing has looked at yet.
UNREAD: type = type("object", (Stand,), {**METHODS, "__module__": "builtins"})
_classes: dict[type, type] = {}


def stand_class(cls: type) -> type:
    """The class of stand-ins for instances of ``cls``."""
    found = _classes.get(cls)
    if found is None:
        own: dict[str, Any] = {"__slots__": ()} | {n: getattr(cls, n) for n in ("__module__", "__qualname__")}
        for name, method in METHODS.items():
            raw = raw_attribute(cls, name, ABSENT)
            if name == "__length_hint__" and not isinstance(raw, types.FunctionType):
                continue  # of an iterator in C: what asks for it only makes room
            if raw is not ABSENT:
                own[name] = method if raw is not None else None
        found = type(cls.__name__, (Stand,), own)
        if cls.__hash__ is None:
            found.__hash__ = None  # type: ignore[assignment]
        if cls.__flags__ & (1 << 9):  # classes of the program may change
            return found
        _classes[cls] = found
    return found
