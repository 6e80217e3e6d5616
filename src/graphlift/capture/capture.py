"""The state of one capture: graph, guards, object memo, effects, and how values enter and leave it.

In: a frame's function and arguments. Out: trackers for everything the program touches, an FX graph, guards.
Always: one tracker per mutable object (aliases stay aliases); real objects are read, never changed.
"""

from __future__ import annotations

import builtins
import operator
import sys
import types
import weakref
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..bytecode import can_continue
from ..data import dataclass
from ..fake import DataDependent, FakeMode, Unsupported
from ..fake.composite import ON_FAKES
from ..fake.symbolic import needed_as_numbers, plain_sizes
from ..guards import (
    ABSENT,
    Attr,
    Call,
    CellContents,
    ClosureCell,
    Const,
    DictItem,
    DictKey,
    DictKeys,
    Equals,
    Func,
    Guard,
    HasKey,
    IdIs,
    SameObject,
    SeqItem,
    Source,
    TypeAttr,
    TypeIs,
    gives,
)
from ..shapes.expr import Real, SizeLike, Symbol
from ..shapes.table import SymbolTable
from .breaks import Break, Raised
from .constants import (
    IDENTITY_CONSTANTS,
    IMMUTABLE_CONSTANTS,
    PLAIN_CONSTANTS,
    READ_LATE,
    exception_values,
    has_address,
    is_constant_key,
    is_static_type,
    raw_attribute,
)
from .dynamic import Choice, SizePolicy
from .endings import held, is_noticed, reached
from .graph import GraphBuilder
from .graph_values import contains_tensor, to_graph, wrap_result
from .keys import contents
from .overriding import active_modes, mode_tracker, overrides, state_at_entry
from .questions import Questions
from .runtime_errors import inside_try, may_raise
from .trackers import (
    NONE,
    ArrayVar,
    CellVar,
    ConstVar,
    DictVar,
    FloatVar,
    IdVar,
    LazyVar,
    ListVar,
    NumberVar,
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
    ValueKey,
)
from .wrapping import WRAPPERS, is_inner_function, wrap_object, wrap_tensor, wrap_unread

if TYPE_CHECKING:
    from .draws import Draw
    from .late_reads import LateReads
    from .reordered import LateText, PutOff

#: Kinds of results without tensors that become constants or sizes.
_RESULTS = PLAIN_CONSTANTS | {torch.SymInt, torch.SymBool, torch.SymFloat}
#: Operators to which a float of numpy beside a tensor is a float of Python's.
_ARITHMETIC = frozenset(
    getattr(operator, prefix + name)
    for name in "add sub mul truediv floordiv mod pow".split()
    for prefix in ("", "i")
) | {operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne}
#: Frames that one break leaves in the middle of a call; a break further in runs the call natively.
RESUME_DEPTH_LIMIT = 48


@dataclass(frozen=True, slots=True)
class Link:
    """How a frame's result becomes that of the instruction in the frame below which led to it.

    ``finish``: a function and operands, to be given the result; ``attribute``: of a lookup, the object, the name and the
    ``__getattr__`` to ask where the frame raises an AttributeError; of a loop, the iterator that ends it where the frame
    raises a StopIteration; ``steps``: what an earlier region left to do then.
    """

    finish: tuple[Tracker, ...] = ()
    attribute: tuple[Tracker, ...] = ()
    steps: tuple[Tracker, ...] = ()


#: The callee's value is that of the call, or of the operation.
DIRECT = Link()


class NotConst(Exception):
    """A tracker has no value known at capture time."""


class Capture:
    """One attempt at capturing one frame."""

    def __init__(
        self,
        func: types.FunctionType,
        stop_at: int | None = None,
        varying: frozenset[Source] = frozenset(),
        sizes: SymbolTable | None = None,
        policy: SizePolicy | None = None,
    ) -> None:
        self.func = func
        self.sizes = sizes if sizes is not None else SymbolTable()
        self.sizes.where = self._where
        self.sizes.refuse = lambda text: Break("unbacked-size", text)
        self.policy = policy
        self.size_sources: dict[Symbol, Source] = {}
        # Step and stack of the first operator after which the frame may have to run again, and why it would be a break.
        self.unsafe: tuple[int, str, str, str] | None = None
        self.varying = varying  # integers that were not what an earlier region had taken them for
        self.stop_at = stop_at
        self.step = 0
        self.global_state = state_at_entry()
        self.builder = GraphBuilder()
        self.fake_mode = FakeMode()
        self.fake_mode.unknown_sizes = self.sizes
        self.guards: dict[Guard, None] = {}
        self.memo: dict[int, Tracker] = {}
        self.keep_alive: list[Any] = []
        self.fakes: dict[int, TensorVar] = {}
        self.changed: dict[int, Tracker] = {}
        self.state_log: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.restore_calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        #: Contexts of torch that are open: where to end if one must not be left open, and how to leave them.
        self.entered: dict[int, int] = {}
        self.closers: list[Callable[[], Any]] = []
        #: Objects made in the region that cannot be made again as they are: where to end if one is to outlive it.
        self.inside: dict[int, int] = {}
        #: The objects of the region that carry a container, by its id: what knows the container means the object.
        self.holders: dict[int, ObjectVar] = {}
        #: Text that shows tensors, by the id of its tracker; calls put off until the graph has run.
        self.texts: dict[int, LateText] = {}
        self.put_off: list[PutOff] = []
        self.draws: dict[Any, Draw] = {}  # numbers that each call draws before the graph, by their symbols
        self.questions = Questions()
        self.history_asked = 0  # how often it was asked whether gradients are recorded
        self.copied: dict[int, list[TensorVar]] = {}  # tensors that went into a deep copy, by its memo
        #: Calls of cached functions, which the region repeats, and what they give.
        self.repeated: list[Any] = []
        self.cached: dict[Any, tuple[Any, ...]] = {}
        self.in_cached = False
        self.guarded = False
        self.is_faking = False  # whether the fake mode is on already: inside a transform that runs on fakes
        #: What the region set on tensors and OrderedDicts, by the id of their trackers.
        self.tensor_attrs: dict[int, dict[str, Tracker]] = {}
        #: Modes that see calls of torch's functions, the innermost last; meanwhile none acts for real.
        self.modes: list[Tracker] = []
        self.mode_stack: Any = None
        # 1: no class's __torch_function__ is called, 2: no mode's either.
        self.functions_off = self.global_state.function_state
        #: Inputs that the graph gets as plain tensors, with what must stay as it is.
        self.disguised: list[tuple[Any, Any, bool]] = []
        self.frames: list[Any] = []
        self.type_attrs: dict[tuple[type, str], Any] = {}
        self.raise_points: dict[int, tuple[int, str, Tracker]] = {}
        self.traces: dict[int, tuple[Tracker, object]] = {}
        #: Real objects made for classes of the region, by id: with the tracker each stands for, and the step that made it.
        self.made: dict[int, tuple[Any, Tracker | None, int]] = {}
        #: What functions that torch calls later look at, as it was, and the step that handed each function over.
        self.looked_at: list[tuple[str, Any, int]] = []
        self.late: LateReads | None = None  # while such a function is captured
        self.numpy_floats: dict[int, tuple[ConstVar, Real]] = {}  # those that vary, by their trackers
        self.key_reads: dict[int, tuple[Tracker, Any]] | None = None  # while the class of a key is asked
        self.references: dict[tuple[type, int], Tracker] = {}  # weak ones that the region made
        self.given: list[Any] = []  # the objects that the frame was entered with
        self.mortal: set[int] = set()  # those of them whose end runs code, or that of what only they hold
        self.on_stack: set[int] = set()  # those of them that the frames were entered with on their stacks
        self.shown: set[tuple[int, int]] = set()  # objects whose `__repr__` is under way
        self.valued: set[int] = set()  # containers whose value is being made
        self.compared: set[tuple[int, int]] = set()  # containers that are being compared
        self.outside = sys.exception()  # what a caller of the frame handles
        self.generators: list[Any] = []
        self.signals: list[Exception] = []  # the Raised and Break that passed through frames
        self.tracebacks: dict[int, OpaqueVar] = {}
        self._identity_keys: dict[int, TrackerKey] = {}
        self.id_keys = self.address_keys = False  # see `saw_keys`
        self.builtins_var = self.dict_var(builtins.__dict__, Const(builtins.__dict__, "builtins"))
        self.globals_memo: dict[int, DictVar] = {}
        self.class_writes: dict[type, DictVar] = {}  # what the region set in classes from outside
        self.modes += [mode_tracker(self, mode, place) for place, mode in enumerate(active_modes())]

    def release(self) -> None:
        """Let go of the program's objects now: trackers refer to each other, and objects that end are seen to end."""
        for signal in self.signals:  # frames of ours that raised one hold it, and it them by its traceback
            signal.__traceback__ = signal.__context__ = signal.__cause__ = None
        self.__dict__.clear()

    def stays_inside(self, tracker: Tracker, step: int = 0) -> None:
        """An object that cannot be made again as it is: where it is to outlive the region, that ends at ``step``, or here."""
        if id(tracker) not in self.inside:
            self.inside[id(tracker)] = step or self.break_step()
            self.keep_alive.append(tracker)

    # --- guards and sources ------------------------------------------------------------------------------------

    def guard(self, guard: Guard) -> None:
        self.guards[guard] = None

    def type_attr(self, cls: type, name: str) -> Any:
        """The object that ``name`` is along the MRO of ``cls`` (raw, undescriptored), guarded; ABSENT if none."""
        key = (cls, name)
        found = self.type_attrs.get(key, self)
        if found is not self:
            if self.late is not None:
                self._note_late(cls, name, found)
            return found
        if id(cls) in self.made:  # only the region can change it, and not its bases from outside
            for base in cls.__bases__:
                self.exact_type_attr(base, name)
        found = raw_attribute(cls, name, ABSENT)
        writer = self.writer(cls, name)
        if self._is_open(cls) and writer is not cls:
            value = self.class_value(cls, name, found)
            self.guard(TypeAttr(cls, name, found) if value is None else TypeIs(value, type(found)))
        if writer is not None:
            for between in takewhile(lambda base: base is not writer, cls.__mro__):
                if self._is_open(between):  # may have its own in another call
                    text = f"{between.__qualname__} has no {name} of its own"
                    self.guard(gives(Call(operator.contains, Call(vars, between), name), False, text))
            from .class_rules import stand_for

            found = stand_for(self, self.class_writes[writer].known[name])
        self.type_attrs[key] = found
        self._note_late(cls, name, found)
        return found

    def writer(self, cls: type, name: str) -> type | None:
        """The class along the MRO of ``cls`` in which ``name`` is found, if the region wrote it there."""
        for base in cls.__mro__ if self.class_writes else ():
            if base in self.class_writes and name in self.class_writes[base].known:
                return base
            if name in base.__dict__:
                break
        return None

    def exact_type_attr(self, cls: type, name: str) -> Any:
        """`type_attr`, where more than the kind of a number matters: which class of several it is found in."""
        found = self.type_attr(cls, name)
        if self._is_open(cls) and self.writer(cls, name) is None:
            self.guard(TypeAttr(cls, name, found))
        return found

    def _is_open(self, cls: type) -> bool:
        """Whether the program may change a class behind the region's back."""
        return not is_static_type(cls) and id(cls) not in self.made

    def _note_late(self, cls: type, name: str, found: Any) -> None:
        if self.late is not None and self._is_open(cls):
            self.late.attribute(cls, name, found)

    def class_value(self, cls: type, name: str, found: Any) -> Source | None:
        """Where a number, text or tensor of a class is read, guarded as far as it is looked at; None for others."""
        if (
            not (type(found) in READ_LATE or issubclass(type(found), torch.Tensor))
            or name.startswith("__")
            or not self._is_open(cls)
        ):
            return None
        meta = type(cls)
        if self.writer(cls, name) is not None or self.type_attr(meta, name) is not ABSENT:
            return None
        if self.type_attr(meta, "__getattribute__") is not type.__getattribute__:
            return None
        return Attr(Const(cls, cls.__qualname__), name)

    def note_made(self, real: Any, tracker: Tracker | None) -> None:
        """``real`` was made for a class of the region; what it stands for, if for anything but itself."""
        self.made[id(real)] = real, tracker, self.break_step()
        if tracker is not None:
            self.memo[id(real)] = tracker

    def born(self, value: Any) -> int | None:
        """The step at which the region made an object, or its class, for real."""
        found = self.made.get(id(value)) or self.made.get(id(type(value)))
        return found[2] if found is not None else None

    def globals_var(self, globals_: dict[str, Any]) -> DictVar:
        found = self.globals_memo.get(id(globals_))
        if found is None:
            if globals_ is self.func.__globals__:
                self.guard(IdIs(Attr(Func(), "__globals__"), globals_))
            source = Const(
                globals_, f"globals_of_{str(globals_.get('__name__', 'module')).replace('.', '_')}"
            )
            found = self.dict_var(globals_, source)
            self.globals_memo[id(globals_)] = found
            self.memo[id(globals_)] = found
        return found

    # --- values entering the capture -----------------------------------------------------------------------------

    def wrap(self, value: Any, source: Source) -> Tracker:
        """The tracker of a pre-existing ``value`` loaded from ``source``, guarded by what its kind needs."""
        kind = type(value)
        if kind is torch.Size and self._varies_in_part(value, source):
            return wrap_object(self, value, source)
        if kind in PLAIN_CONSTANTS:
            if kind is int and self.policy is not None and not isinstance(source, Const):
                choice = self.policy.integer(value, source)
                size = value if choice is None else self.symbol(source, value, choice)
                if not isinstance(size, int):
                    self.guard(TypeIs(source, int))
                    return SizeVar(size)
            if kind is float and self.policy is not None and not isinstance(source, Const):
                real = self.real(source, value) if self.policy.number(value, source) else None
                if real is not None:
                    self.guard(TypeIs(source, float))
                    return FloatVar(real)
            if kind is slice and any(
                type(v) not in PLAIN_CONSTANTS for v in (value.start, value.stop, value.step)
            ):
                self.guard(TypeIs(source, slice))
                return OpaqueVar(value, source, "tensor-item", "a slice with a bound that is not a constant")
            if kind in READ_LATE and not isinstance(source, Const):
                return wrap_unread(self, value, source)
            if not isinstance(source, Const):
                by_identity = value is None or kind in (bool, torch.finfo, torch.iinfo)
                self.guard(IdIs(source, value) if by_identity else Equals(source, value))
            return ConstVar(value, source)
        if kind is np.float64 and self.policy is not None and not isinstance(source, Const):
            found = self._numpy_float(value, source)
            if found is not None:
                return found
        known = self.memo.get(id(value))
        if known is not None:
            if known.source is not None and known.source != source and id(value) not in self.made:
                if type(known) is not ConstVar or is_inner_function(value):
                    self.guard(SameObject(known.source, source))
                elif not isinstance(source, Const):
                    self.guard(IdIs(source, value))
            return known
        wrapper = WRAPPERS.get(kind)
        if wrapper is not None:
            tracker = wrapper(self, value, source)
        elif source in self.varying and (
            issubclass(kind, type) or not (is_static_type(kind) or issubclass(kind, torch.Tensor))
        ):
            detail = f"{source.name()} is, or is of, a class that each call makes"
            tracker = OpaqueVar(value, source, "class-definition", detail)
        elif kind in IMMUTABLE_CONSTANTS or issubclass(kind, IDENTITY_CONSTANTS):
            if not isinstance(source, Const):
                self.guard(IdIs(source, value))
            tracker = ConstVar(value, source)
        elif issubclass(kind, torch.Tensor):  # isinstance() would ask the object, and run its code
            tracker = wrap_tensor(self, value, source)
        else:
            tracker = wrap_object(self, value, source)
        self.memo[id(value)] = tracker
        self.keep_alive.append(value)
        return tracker

    # --- sizes that vary ---------------------------------------------------------------------------------------

    def _varies_in_part(self, shape: torch.Size, source: Source) -> bool:
        """Whether a torch.Size is to be its integers, each for itself, as some of them vary."""
        if self.policy is None or isinstance(source, Const):
            return False
        choices = [self.policy.integer(n, SeqItem(source, i)) for i, n in enumerate(shape)]
        return any(choice is not None for choice in choices)

    def _where(self) -> str:
        frame = self.frames[-1] if self.frames else None
        return f"{frame.code.co_filename}:{frame.line}" if frame is not None else ""

    def symbol(self, source: Source, value: int, choice: Choice) -> SizeLike:
        """The size that ``source`` gives: a symbol, unless it is known to be fixed."""
        size = self.sizes.symbol(source, source.name(), value, choice.bounds, choice.strict)
        symbol = self.sizes.known.symbols[source]
        if symbol in self.sizes.hints:
            self.size_sources[symbol] = source
            self.fake_mode.sizes = self.sizes
        return size

    def real(self, source: Source, value: float) -> Real | None:
        """The float that ``source`` gives; None where it is known to be needed as a number."""
        real = self.sizes.reals.given(source, source.name(), value)
        if real is not None:
            self.size_sources[real] = source
            self.fake_mode.sizes = self.sizes
        return real

    def _numpy_float(self, value: Any, source: Source) -> Tracker | None:
        """A float of numpy that varies: to a tensor's operators it is one of Python's; all else asks for its value."""
        assert self.policy is not None
        real = self.real(source, float(value)) if self.policy.number(float(value), source) else None
        if real is None:
            return None
        tracker = wrap_unread(self, value, source, IdIs(source, value))
        assert type(tracker) is ConstVar
        self.numpy_floats[id(tracker)] = tracker, real
        return tracker

    def _as_float(self, tracker: Tracker) -> Tracker:
        known = self.numpy_floats.get(id(tracker))
        return tracker if known is None or not known[0].is_unread else FloatVar(known[1])

    def real_var(self, fn: Callable[..., Any], *args: Any) -> Tracker:
        """The tracker of ``fn(*args)``, of floats, sizes and numbers."""
        try:
            result = self.sizes.reals.call(fn, *args)
        except Break:
            raise
        except Exception as error:
            raise Raised(self.exception_var(error)) from error
        return FloatVar(result) if isinstance(result, Real) else self.from_python(result)

    def size_var(self, size: SizeLike) -> Tracker:
        """The tracker of an int that is computed of sizes."""
        return ConstVar(size) if isinstance(size, int) else SizeVar(size)

    def plain(self, tracker: Tracker) -> Tracker:
        """A tracker whose value is known: a size that may vary becomes the number that it is."""
        tracker = self.realize(tracker)
        varies = type(tracker) in (SizeVar, SliceVar, FloatVar)
        return ConstVar(self.value_of(tracker)) if varies else tracker

    def size_node(self, size: SizeLike) -> Any:
        """The graph's node for a size; its symbols become inputs of the graph."""
        if isinstance(size, int):
            return size
        if type(self.builder) is not GraphBuilder and self.sizes.is_unknown(size):
            return self.sizes.specialize(size, "used in an inner function")
        return self.builder.size_node(size, self.sizes, self.size_sources)

    def dict_var(self, value: dict, source: Source, cls: type = dict) -> DictVar:
        return DictVar({}, source, value, cls)

    def wrap_cell_of(self, fn: types.FunctionType, source: Source, index: int) -> CellVar:
        cell = fn.__closure__[index]  # type: ignore[index]
        known = self.memo.get(id(cell))
        if known is None:
            known = CellVar(None, ClosureCell(source, index, fn.__code__.co_freevars[index]), cell)
            self.memo[id(cell)] = known
            self.keep_alive.append(cell)
        return known  # type: ignore[return-value]

    def read_cell(self, cell: CellVar) -> Tracker | None:
        if self.late is not None and cell.real is not None:
            self.late.cell(cell)
        if not cell.loaded:
            assert cell.source is not None
            try:
                value = cell.real.cell_contents
            except ValueError:
                raise Break("unsupported-object", "an empty closure cell made outside the function") from None
            cell.content = self.wrap(value, CellContents(cell.source))
            cell.loaded = True
        return self.realize(cell.content) if cell.content is not None else None

    def realize(self, tracker: Tracker) -> Tracker:
        if type(tracker) is LazyVar:
            return self.wrap(tracker.value, tracker.source)  # type: ignore[arg-type]
        return tracker

    def from_python(self, value: Any) -> Tracker:
        """The tracker of a value computed at capture time (fresh: no source)."""
        kind = type(value)
        if self.made and (known := self.made.get(id(value))) is not None and known[1] is not None:
            return known[1]
        if kind in (torch.SymInt, torch.SymBool, torch.SymFloat):
            number = plain_sizes(value)
            if isinstance(number, Real):
                return FloatVar(number)
            return ConstVar(number) if isinstance(number, (bool, float)) else self.size_var(number)
        if kind is torch.Size and any(type(item) is torch.SymInt for item in value):
            shape = ObjectVar(torch.Size)
            shape.payload = TupleVar([self.from_python(item) for item in value])
            return shape
        if kind is list:
            return ListVar([self.from_python(item) for item in value])
        if kind is tuple:
            return TupleVar([self.from_python(item) for item in value])
        if kind in (dict, OrderedDict):
            return DictVar({key: self.from_python(item) for key, item in value.items()}, cls=kind)
        if kind in (set, frozenset):
            twin = value if kind is frozenset else None
            return SetVar({item: ConstVar(item) for item in value}, kind, twin=twin)
        if kind in PLAIN_CONSTANTS or kind in IMMUTABLE_CONSTANTS or issubclass(kind, IDENTITY_CONSTANTS):
            return ConstVar(value)
        if isinstance(value, BaseException):
            return self.exception_var(value)
        if isinstance(value, tuple) and isinstance(
            getattr(kind, "n_fields", None) or getattr(kind, "_fields", None), (int, tuple)
        ):
            result = ObjectVar(kind)
            result.payload = TupleVar([self.from_python(item) for item in value])
            return result
        return self.wrap(value, Const(value, f"const_{kind.__name__}_{len(self.keep_alive)}"))

    def exception_var(self, error: BaseException) -> ObjectVar:
        result = ObjectVar(type(error))
        result.slots["args"] = TupleVar([self.from_python(arg) for arg in error.args])
        for name in exception_values(type(error)):
            result.slots[name] = self.from_python(getattr(error, name))
        return result

    def raise_(self, cls: type[BaseException], *args: Any) -> Raised:
        return Raised(self.exception_var(cls(*args)))

    def handled(self) -> Tracker | None:
        """The exception being handled (``sys.exception()``), of this frame or of the nearest caller that handles one."""
        for frame in reversed(self.frames):
            if frame.handled:
                return frame.handled[-1]  # type: ignore[no-any-return]
        return None

    def nothing_handled_outside(self) -> None:
        """The region relies on no caller handling an exception, which is what code sees where it handles none itself."""
        if self.outside is not None:
            raise Break("frame-introspection", "the exception that a caller handles")
        self.guard(gives(Call(sys.exception), None, "sys.exception() is None"))

    def note_raised(self, error: Any, frame: Any, again: bool, fresh: bool) -> None:
        """``error`` is on its way through ``frame``: its context, and where it first appeared.

        ``again``: it goes on as it was, with the traceback it had; ``fresh``: it is raised here and not below.
        """
        handled: Any = self.handled()
        if not again:
            self.traces[id(error)] = error, object()
            if fresh and handled is not None and handled is not error:
                chained = handled
                while (link := chained.slots.get("__context__")) is not None and type(link) is ObjectVar:
                    if link is error:  # the interpreter lets no exception be its own context
                        chained.slots["__context__"] = NONE
                        break
                    chained = link
                error.slots["__context__"] = handled
        if id(error) not in self.raise_points:
            self.raise_points[id(error)] = self.break_step(), self.user_stack(), error

    def trace_of(self, error: Tracker) -> Any:
        """What stands for the traceback of an exception: one object as long as it does not grow."""
        return self.traces.get(id(error), (None, None))[1]

    def share_trace(self, part: Tracker, group: Tracker) -> None:
        """``part`` gets the traceback of ``group``."""
        if id(group) in self.raise_points:
            self.traces[id(part)] = part, self.trace_of(group)
            step, stack, _ = self.raise_points[id(group)]
            self.raise_points[id(part)] = step, stack, part

    def traceback_of(self, error: Tracker) -> Tracker:
        """``error.__traceback__``: None before it is raised, then what only the interpreter has."""
        point = self.raise_points.get(id(error))
        if point is None:
            return NONE
        known = self.tracebacks.get(id(error))
        if known is None:
            detail = "the traceback of an exception raised in captured code"
            known = self.tracebacks[id(error)] = OpaqueVar(point[0], None, "frame-introspection", detail)
        return known

    def break_step(self) -> int:
        """The step to end at for the present instruction to run natively, or one as near before it as can be.

        That is the instruction of the innermost frame to which links lead. What is being handled is state
        of the interpreter that no resume function can restore: inside a handler it is the instruction that raised.
        """
        step = 0
        for depth, frame in enumerate(self.frames):
            if frame.handled:
                point = self.raise_points.get(id(frame.handled[0]))
                return point[0] if point else frame.step  # type: ignore[no-any-return]
            if depth and (frame.link is None or depth == RESUME_DEPTH_LIMIT):
                break
            if depth and not can_continue(frame.code, frame.pc):
                break
            if not frame.is_polyfill:
                step = frame.step
        return step

    # --- constants leaving it --------------------------------------------------------------------------------------

    def value_of(self, tracker: Tracker) -> Any:
        """The Python value of a tracker made of constants; raises NotConst otherwise."""
        tracker = self.realize(tracker)
        kind = type(tracker)
        if kind is ConstVar:
            self.pin(tracker)  # type: ignore[arg-type]
            return tracker.value  # type: ignore[attr-defined]
        if kind is SizeVar:
            return self.sizes.specialize(tracker.expr, "used as a number in Python")  # type: ignore[attr-defined]
        if kind is FloatVar:
            return self.sizes.reals.fixed(tracker.real, "used as a number in Python")  # type: ignore[attr-defined]
        if kind is SliceVar:
            return slice(*[self.value_of(part) for part in tracker.parts])  # type: ignore[attr-defined]
        if kind is TupleVar:
            return tuple(self.value_of(item) for item in tracker.items)  # type: ignore[attr-defined]
        if kind is ListVar or kind is DictVar:
            return self._container_value(tracker)  # type: ignore[arg-type]
        if kind is SetVar:
            from .protocol import has_constants, real_set

            if has_constants(tracker):  # type: ignore[arg-type]
                return real_set(self, tracker)  # type: ignore[arg-type]
            return tracker.cls(self.value_of(item) for item in tracker.known.values())  # type: ignore[attr-defined]
        if kind is ObjectVar and type(tracker.payload) is TupleVar:  # type: ignore[attr-defined]
            items = self.value_of(tracker.payload)  # type: ignore[attr-defined]
            cls = tracker.cls  # type: ignore[attr-defined]
            by_call = cls is torch.Size or hasattr(cls, "n_sequence_fields")
            return cls(items) if by_call else tuple.__new__(cls, items)
        raise NotConst

    def _container_value(self, tracker: ListVar | DictVar) -> Any:
        if id(tracker) in self.valued:  # it is inside itself
            raise NotConst
        self.valued.add(id(tracker))
        try:
            if type(tracker) is ListVar:
                return [self.value_of(item) for item in tracker.items]
            known = self.complete(tracker).known  # type: ignore[arg-type]
            return tracker.cls((key_value(key), self.value_of(item)) for key, item in known.items())  # type: ignore
        finally:
            self.valued.discard(id(tracker))

    def pin(self, tracker: ConstVar) -> None:
        """The very object is used: guard its identity where so far only its kind is."""
        if (
            type(tracker.value) is types.FunctionType
            and tracker.source is not None
            and not isinstance(tracker.source, Const)
        ):
            self.guard(IdIs(tracker.source, tracker.value))

    # --- dictionaries ------------------------------------------------------------------------------------------------

    def dict_get(self, var: DictVar, key: Any) -> Tracker | None:
        """The tracker under ``key`` or None, guarded by no more than this key."""
        self.note_read(var)
        if self.late is not None and var.real is not None:
            self.late.key(var, key)
        found = var.known.get(key)
        if found is not None:
            if type(found) is LazyVar:
                found = var.known[key] = self.realize(found)
            return found
        if var.complete or key in var.absent:
            return None
        assert var.real is not None and var.source is not None
        if isinstance(key, TrackerKey):
            return self.dict_get(self.complete(var), key)
        if dict.__contains__(var.real, key):
            found = self.wrap(dict.__getitem__(var.real, key), DictItem(var.source, key))
            var.known[key] = found
            return found
        if id(key) not in self.made:  # which no dictionary from outside can have
            self.guard(HasKey(var.source, key, False))
        var.absent.add(key)
        return None

    def dict_has(self, var: DictVar, key: Any) -> bool:
        self.note_read(var)
        if self.late is not None and var.real is not None:
            self.late.key(var, key)
        if key in var.known:
            return True
        if var.complete or key in var.absent:
            return False
        assert var.real is not None and var.source is not None
        if isinstance(key, TrackerKey):
            return self.dict_has(self.complete(var), key)
        present = dict.__contains__(var.real, key)
        if id(key) not in self.made:
            self.guard(HasKey(var.source, key, present))
        if not present:
            var.absent.add(key)
        return present

    def complete(self, var: DictVar) -> DictVar:
        """Know every key of a dict in order (guards the whole key list)."""
        if self.late is not None and var.real is not None:
            self.late.keys(var)
        if var.complete:
            return var
        assert var.real is not None and var.source is not None
        items = list((OrderedDict if isinstance(var.real, OrderedDict) else dict).items(var.real))
        self.guard(DictKeys(var.source, tuple(key for key, _ in items)))
        self.saw_keys(dict.__iter__(var.real))
        known: dict[Any, Tracker] = {}
        for index, (key, value) in enumerate(items):
            shadow_key = (
                key if is_constant_key(key) else self.key_of(self.wrap(key, DictKey(var.source, index)))
            )
            known[shadow_key] = var.known.get(shadow_key) or LazyVar(value, DictItem(var.source, key))
        for op, key, value in var.log:
            if op == "set":
                known[key] = value  # type: ignore[assignment]
            elif op == "del":
                known.pop(key, None)
        var.known = known
        var.complete = True
        return var

    def saw_keys(self, keys: Iterable[Any]) -> None:
        """Constants are keys of dictionaries or sets; a number among them could be found by the id() of an object."""
        self.address_keys = self.address_keys or any(map(has_address, keys))
        self.check_ids()

    def check_ids(self) -> None:
        if self.address_keys and self.id_keys:
            raise Break(
                "unsupported-object", "id() of an object as a key, where such numbers made outside are keys"
            )

    def enter_with(self, values: tuple[Any, ...]) -> None:
        """Remember what a frame is entered with: the region holds it to its end."""
        new = [value for value in values if type(value) not in PLAIN_CONSTANTS]
        self.given += new
        self.mortal.update(id(value) for value in new if is_noticed(value))

    def let_go(self, value: Any) -> None:
        """The region drops a reference to a pre-existing object, which is replayed at its end."""
        if is_noticed(value, modules=True):
            what = f"a {type(value).__name__} is let go, whose end may run a __del__, a finally or a callback then"
            raise Break("unsupported-mutation", what)

    def drop(self, *gone: Any, frame: Any = None, result: Tracker | None = None) -> None:
        """Values have left a frame, or a frame has returned; asked only where the frame was entered with `mortal`."""
        lost = reached(self, gone or (frame,))[1] & self.mortal
        if lost:
            self._let_go_of(lost - held(self, result, without=frame)[1])

    def stands_for(self, tracker: Tracker, key: int) -> bool:
        """Whether it is the tracker of the real object of this id."""
        return id(getattr(tracker, "value", None)) == key or self.memo.get(key) is tracker

    def require_taken(self) -> None:
        """What only the stack held has not been lost in an instruction that took it from there.

        Once a variable leads to it, it is lost where that lets it go.
        """
        slots = [slot for frame in self.frames for slot in frame.stack]
        gone = {key for key in self.on_stack if not any(self.stands_for(slot, key) for slot in slots)}
        if gone:
            self._let_go_of(gone - held(self)[1])
            variables = [slot for f in self.frames for slot in (*f.locals.values(), *f.cells.values())]
            self.on_stack -= reached(self, (*variables, *self.globals_memo.values()))[1]

    def require_held(self) -> None:
        """An exception is caught: what the frames that it left had is lost with it, at the latest."""
        self._let_go_of(self.mortal - held(self)[1])

    def _let_go_of(self, lost: set[int]) -> None:
        for value in self.given:
            if id(value) in lost:
                self.let_go(value)

    def dict_set(self, var: DictVar, key: Any, value: Tracker) -> None:
        if var.real is not None:
            if not isinstance(key, TrackerKey):
                self.let_go(dict.get(var.real, key))
            self.mark_changed(var)
            var.log.append(("set", key, value))
        var.known[key] = value
        var.absent.discard(key)

    def dict_del(self, var: DictVar, key: Any) -> bool:
        if not self.dict_has(var, key):
            return False
        if var.real is not None:
            if not isinstance(key, TrackerKey):
                self.let_go(dict.get(var.real, key))
            self.mark_changed(var)
            var.log.append(("del", key, None))
        var.known.pop(key, None)
        if not var.complete:
            var.absent.add(key)
        return True

    def dict_clear(self, var: DictVar) -> None:
        if var.real is not None:
            for value in dict.values(var.real):
                self.let_go(value)
            self.mark_changed(var)
            var.log = [("clear", None, None)]
        var.known = {}
        var.complete = True

    def mark_changed(self, var: Tracker) -> None:
        self.changed.setdefault(id(var), var)

    def key_of(self, tracker: Tracker) -> Any:
        """The dictionary key that a tracker is; raises Break for keys whose hash is the user's own code."""
        if type(tracker) is SizeVar:
            tracker = ConstVar(self.sizes.specialize(tracker.expr, "used as a key of a dictionary or a set"))
        tracker = self.plain(tracker)
        if type(tracker) is ObjectVar and tracker.cls is torch.Size:
            return self.value_of(tracker)
        if type(tracker) is ConstVar:
            from .attributes import says_itself

            if says_itself(self, tracker, "__hash__", "__eq__"):
                raise Break("unsupported-object", "a constant as a key whose class says what it equals")
            try:
                hash(tracker.value)
            except TypeError as error:
                raise Raised(self.exception_var(error)) from None
            self.saw_keys((tracker.value,))
            return tracker.value
        if type(tracker) is TupleVar:
            keys = [self.key_of(item) for item in tracker.items]
            if any(isinstance(key, TrackerKey) for key in keys):
                read = [key.read for key in keys if isinstance(key, ValueKey)]
                return self.value_key(tracker, hash(tuple(keys)), dict(ChainMap(*read)))
            return tuple(keys)
        if type(tracker) in (ListVar, DictVar) or (type(tracker) is SetVar and tracker.cls is set):
            raise self.raise_(
                TypeError,
                f"unhashable type: '{tracker.cls.__name__ if type(tracker) is not ListVar else 'list'}'",
            )  # type: ignore
        if type(tracker) is SetVar:
            return frozenset(tracker.known)
        if type(tracker) is ArrayVar:
            raise self.raise_(TypeError, "unhashable type: 'numpy.ndarray'")
        if type(tracker) is ObjectVar:
            return self.object_key(tracker)
        if type(tracker) is OpaqueVar:
            raise Break(tracker.code, tracker.detail)
        if type(tracker) is NumberVar:
            raise Break("tensor-item", "a number read from a tensor, used as a key")
        if type(tracker) is PrivateVar:
            raise Break("unsupported-object", f"a dictionary key of type {type(tracker.value).__name__}")
        return self.identity_key(tracker)

    def object_key(self, tracker: ObjectVar) -> TrackerKey:
        """The key that an instance is: by its class's own hash, or by identity."""
        from .calls import call_special, hash_by_method

        cls = tracker.cls
        method = self.type_attr(cls, "__hash__")
        if method is weakref.ref.__hash__:  # that of what it refers to
            from .protocol import compare, truth

            key = self.key_of(call_special(self, tracker, "__call__", []))
            read = key.read if isinstance(key, ValueKey) else {}
            compared: Any = lambda left, right: truth(self, compare(self, "==", left, right))  # noqa: E731
            return ValueKey(tracker, hash(key), compared, read, self.break_step())
        if method is object.__hash__ or issubclass(cls, torch.nn.Module):
            return self.identity_key(tracker)
        if method is None:
            raise self.raise_(TypeError, f"unhashable type: '{cls.__name__}'")
        if isinstance(method, types.FunctionType):
            what, read = f"{cls.__name__}.__hash__ of a key", {}  # type: ignore[var-annotated]
            hash_ = self._asked(what, lambda: hash_by_method(self, tracker), read)
            return self.value_key(tracker, hash_, read)
        if tracker.payload is not None:
            return self.value_key(tracker, hash(self.key_of(tracker.payload)), {})
        raise Break("unsupported-object", f"a dictionary key of type {cls.__name__}, which defines __hash__")

    def value_key(self, tracker: Tracker, hash_: int, read: dict[int, tuple[Tracker, Any]]) -> ValueKey:
        from .protocol import items_equal

        def equal(left: Tracker, right: Tracker) -> bool:
            return self._asked("__eq__ of a key", lambda: items_equal(self, left, right), read)  # type: ignore[no-any-return]

        return ValueKey(tracker, hash_, equal, read, self.break_step())

    def _asked(self, what: str, run: Callable[[], Any], read: dict[int, tuple[Tracker, Any]]) -> Any:
        """What a key's class says of it; adds to ``read`` what it looks at."""
        outer, self.key_reads = self.key_reads, read
        try:
            return self.only_computed(what, run, "unsupported-object")
        finally:
            self.key_reads = outer
            if outer is not None:
                outer.update(read)

    def note_read(self, var: ObjectVar | DictVar) -> None:
        """``var`` is looked at, perhaps by the class of a key."""
        if self.key_reads is not None:
            self.key_reads.setdefault(id(var), (var, contents(var)))

    def only_computed(self, what: str, run: Callable[[], Any], code: str = "c-function") -> Any:
        """What ``run`` gives, which may run again, or less often, when the region is replayed. Raises: Break."""
        changed, self.changed = self.changed, {}
        operators, logged, drawn = self.builder.op_count, len(self.state_log), len(self.draws)
        try:
            found = run()
            counts = self.builder.op_count, len(self.state_log), len(self.draws)
            if self.changed or counts != (operators, logged, drawn):
                raise Break(code, f"{what} does more than compute a constant")
        finally:
            self.changed = changed
        return found

    def identity_key(self, tracker: Tracker) -> TrackerKey:
        """The key under which this very object (or its ``id()``) is found in a tracked dictionary."""
        is_id = type(tracker) is IdVar
        index = ~id(tracker.target) if is_id else id(tracker)  # type: ignore[attr-defined]
        if is_id:
            self.id_keys = True
            self.check_ids()
        key = self._identity_keys.get(index)
        if key is None:
            key = self._identity_keys[index] = TrackerKey(tracker)
        return key

    # --- tensor operations -----------------------------------------------------------------------------------------

    def user_stack(self, limit: int = 0) -> str:
        """The user's stack at this point, formatted as a traceback lists it."""
        shown = [frame for frame in self.frames[-limit:] if not frame.is_stand_in] or self.frames
        return "".join(frame.trace_line() for frame in shown)

    def emit(
        self,
        kind: str,
        target: Any,
        args: list[Tracker],
        kwargs: dict[str, Tracker],
        call: Callable[..., Any],
    ) -> Tracker:
        """Run ``call`` on fakes and append the node; a result without tensors is a constant and needs no node."""
        if self.modes or any([overrides(self, arg) for arg in (*args, *kwargs.values())]):
            from .override_rules import handled

            answer = handled(self, target, call, args, kwargs)
            if answer is not None:
                return answer
        if self.numpy_floats and kind == "call_function" and target in _ARITHMETIC:
            args = [self._as_float(arg) for arg in args]
        pairs = [to_graph(self, arg) for arg in args]
        kw_pairs = {name: to_graph(self, arg) for name, arg in kwargs.items()}
        fake_args = [p[1] for p in pairs]
        fake_kwargs = {name: p[1] for name, p in kw_pairs.items()}
        asked_before = self.sizes.asked
        try:
            with nullcontext() if self.is_faking else self.fake_mode:
                value = ON_FAKES.get(target, call)(*fake_args, **fake_kwargs)
        except DataDependent as error:
            from .number_rules import with_numbers

            read = with_numbers(self, kwargs)
            if read is not None:
                return self.emit(kind, target, args, read, call)
            raise Break(
                "tensor-item" if "item" in str(error) or "scalar" in str(error) else "data-dependent-op",
                str(error),
            ) from None
        except Unsupported as error:
            raise Break("unsupported-fake-op", str(error)) from None
        except Break:
            raise
        except Exception as error:
            if numbers := needed_as_numbers(error, [fake_args, fake_kwargs]):
                self.sizes.fix(numbers, "read by an operator that takes numbers only")
            # Natively, so that type, text and the place are eager's.
            raise Break("exception-raised", f"{type(error).__name__}: {error}") from error
        found = self.sizes.asked > asked_before
        if found and type(self.builder) is not GraphBuilder:
            raise Break("data-dependent-op", f"{target} in an inner function")
        if value is not None and not contains_tensor(value) and not found:
            if type(value) in _RESULTS or isinstance(value, (tuple, list)):
                return self.from_python(value)
            raise Break("unsupported-call", f"{target} returns a {type(value).__name__}")
        for fake, spec, requires_grad in self.disguised:
            if fake.spec != spec or fake.requires_grad != requires_grad:
                raise Break(
                    "unsupported-tensor-subclass", "the metadata of a tensor made outside are changed"
                )
        where = self.user_stack()
        risky = bool(self.sizes.unknown) or may_raise(kind, target, fake_args)
        if self.unsafe is None and risky and inside_try(self.frames):
            detail = "an operator that may raise, inside a try statement"
            self.unsafe = self.step, where, "exception-raised", detail
        while self.sizes.required:
            if type(self.builder) is not GraphBuilder:
                raise Break("data-dependent-op", f"{target} in an inner function")
            detail = f"{target} of sizes that only the running graph knows"
            self.unsafe = self.unsafe or (self.step, where, "exception-raised", detail)
            relation = self.sizes.required.pop(0)
            self.builder.check(relation, RuntimeError, detail, self.sizes, self.size_sources)
        node = self.builder.add_op(
            kind, target, tuple(p[0] for p in pairs), {n: p[0] for n, p in kw_pairs.items()}, value, where
        )
        if self.builder.arrays:
            self.builder.check_arrays()
        if found:
            return self.builder.found_out(node, self.sizes, wrap_result(self, node, value, where))
        return wrap_result(self, node, value, where)

    def set_state(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Change global torch state here and in the graph (grad mode, autocast, …)."""
        result = fn(*args)
        self.builder.graph.create_node("call_function", fn, args, {})
        self.state_log.append((fn, args))
        return result


def key_value(key: Any) -> Any:
    if isinstance(key, TrackerKey):
        raise NotConst
    return key
