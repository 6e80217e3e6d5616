"""The replacement: readable Python that runs instead of the captured frame.

In: a finished capture (graph outputs to find, effects to replay, live state to hand on). Out: source text and its names.
Always: everything loaded comes from the fetched tuple `__in`, read before the graph runs; objects are rebuilt once each;
then effects are replayed; then the result is returned.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import linecache
import operator
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

from ..guards import Const, Source
from ..guards._guards import set_become, set_clone, set_table
from ..marks import keep_from_torch_compile
from ..shapes.expr import Expr, Real, SizeLike, Symbol, free, render
from . import polyfills
from .arrays import known_array, memory_of
from .breaks import RunEagerly
from .called_iterators import Ahead, CalledIter, FixedIter, ReversedIter, TeeIter
from .capture import Capture
from .constants import is_static_type
from .frame import (
    CallIter,
    DequeIter,
    DictIter,
    GeneratorVar,
    IteratorVar,
    RangeIter,
    SeqIter,
    SetIter,
)
from .keys import require_same
from .loops import LoopIterVar, advanced, iterator_at, loop_expr, put_at
from .protocol import has_constants, real_set
from .reordered import text
from .trackers import (
    NULL,
    ArrayVar,
    CellVar,
    ConstVar,
    DequeVar,
    DictVar,
    DictViewVar,
    FunctionVar,
    IdVar,
    LazyVar,
    ListVar,
    MethodVar,
    ObjectVar,
    OpaqueVar,
    SetVar,
    SuperVar,
    TensorVar,
    Tracker,
    TrackerKey,
    TupleVar,
    ValueKey,
    describe,
)
from .wrapping import CONTAINERS, as_builtin

_LITERALS = frozenset({int, bool, str, type(None), type(...)})


class GraphNumber:
    """A number that the graph gives: what only running it finds out."""

    __slots__ = ("node",)

    def __init__(self, node: Any) -> None:
        self.node = node


def _is_unset(error: ObjectVar, item: Tracker) -> bool:
    """Whether an AttributeError does not say of what: the interpreter adds that, where it was never set."""
    return issubclass(error.cls, AttributeError) and type(item) is ConstVar and item.value is None


class _Cyclic(Exception):
    """What is made whole holds itself, by way of ``first``, which can be made before it and filled afterwards."""

    def __init__(self, tracker: Tracker, first: Tracker) -> None:
        super().__init__()
        self.tracker = tracker
        self.first = first


class Residual:
    """Collects the lines of one replacement."""

    def __init__(self, cap: Capture) -> None:
        self.cap = cap
        self.fetch: list[Source] = [*cap.builder.input_sources, *cap.builder.size_sources]
        self.fetch_index: dict[Source, int] = {source: i for i, source in enumerate(self.fetch)}
        self.graph_inputs = len(self.fetch)
        self.names: dict[str, Any] = {}
        self.lines: list[str] = []
        self.memo: dict[int, str] = {}
        self.under_way: list[Tracker] = []  # what is being made, the innermost last
        self.unready: set[int] = set()  # those of them that nothing can refer to before they are whole
        self.open: set[int] = set()
        self.cyclic: set[int] = set()
        self.outputs: list[TensorVar | GraphNumber] = []
        self.numbers: dict[Symbol, str] = {}
        self.output_names: dict[int, str] = {}
        self.retyped: list[str] = []  # what makes outputs of the graph instances of their classes
        self.loops: dict[int, tuple[str, Tracker]] = {}
        self.functions_open = 0  # functions whose closure is being made, and the cells left empty meanwhile
        self.unfilled: list[tuple[str, CellVar]] = []
        self.late: list[str] = []  # lines for after the effects
        self.counter = 0

    # --- names ---------------------------------------------------------------------------------------------------

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def constant(self, value: Any, hint: str = "const") -> str:
        """The name of an object bound in the replacement's globals."""
        if self.cap.made:
            self._check_made(value)
        if type(value) in _LITERALS and (type(value) is not int or abs(value) < 1 << 62):
            return repr(value)
        for name, held in self.names.items():
            if held is value:
                return name
        name = getattr(value, "__name__", hint)
        name = f"__{name}" if isinstance(name, str) and name.isidentifier() else f"__{hint}"
        while name in self.names:
            name = self.fresh(name + "_")
        self.names[name] = value
        return name

    def _check_made(self, value: Any) -> None:
        """What belongs to a class of the region is made anew in each call, by the program itself."""
        born = self.cap.born(value)
        if born is not None:
            name = getattr(value, "__qualname__", type(value).__qualname__)
            raise RunEagerly(
                "class-definition", f"{name}, which outlives the region that made it", earlier=born
            )

    def load(self, source: Source) -> str:
        if self.cap.made:
            root = source
            while root.parent is not None:
                root = root.parent
            if isinstance(root, Const):
                self._check_made(root.obj)
        if isinstance(source, Const):
            return self.constant(source.obj, "object")
        position = self.fetch_index.get(source)
        if position is None:
            position = self.fetch_index[source] = len(self.fetch)
            self.fetch.append(source)
        return f"__in[{position}]"

    def size(self, size: SizeLike) -> str:
        """A Python expression for a size, from the values of its symbols."""
        if isinstance(size, int):
            return repr(size)
        if isinstance(size, Real):
            made = self.cap.sizes.reals.made.get(size)
            if made is None:
                return self.symbol(size)
            args = [self.size(a) if isinstance(a, Expr) else self.constant(a, "number") for a in made.args]
            return f"{self.constant(made.fn)}({', '.join(args)})"
        names = {symbol: self.symbol(symbol) for symbol in free(size)}
        return f"({render(size, names)})"

    def symbol(self, symbol: Symbol) -> str:
        """The name of a symbol's value: loaded from its source, drawn before the graph, or what that found out."""
        source = self.cap.size_sources.get(symbol)
        if source is not None:
            return self.load(source)
        if symbol in self.cap.draws:
            return self.cap.draws[symbol].name
        name = self.numbers.get(symbol)
        if name is None:
            name = self.numbers[symbol] = f"g{len(self.outputs)}"
            self.outputs.append(GraphNumber(self.cap.size_node(symbol)))
        return name

    def line(self, text: str) -> None:
        self.lines.append(text)

    # --- values --------------------------------------------------------------------------------------------------

    def expr(self, tracker: Tracker) -> str:
        """A Python expression for the value of a tracker."""
        kind = type(tracker)
        if kind is LazyVar:
            return self.load(tracker.source)  # type: ignore[arg-type]
        if kind is ConstVar:
            if tracker.is_unread:  # type: ignore[attr-defined]
                return self.load(tracker.source)  # type: ignore[arg-type]
            if type(tracker.value) is types.FunctionType and tracker.source is not None:  # type: ignore[attr-defined]
                return self.load(tracker.source)
            return self.constant(tracker.value)  # type: ignore[attr-defined]
        if tracker.source is not None:
            return self.load(tracker.source)
        if kind is TensorVar:
            return self.output(tracker)  # type: ignore[arg-type]
        if id(tracker) in self.cap.inside:
            detail = f"a {describe(tracker)} at a graph break or returned"
            raise RunEagerly("unsupported-object", detail, earlier=self.cap.inside[id(tracker)])
        holder = self.cap.holders.get(id(tracker))
        if holder is not None:
            return self.expr(holder)
        if id(tracker) in self.unready:
            within = self.under_way[self.under_way.index(tracker) + 1 :]
            raise _Cyclic(tracker, next(outer for outer in within if id(outer) not in self.unready))
        known = self.memo.get(id(tracker))
        if known is not None:
            if id(tracker) in self.open:
                self.cyclic.add(id(tracker))
            return known
        late = self.cap.texts.get(id(tracker))
        if late is not None:
            return self._keep(tracker, "text", text(self, late))
        if kind is OpaqueVar:  # a traceback: the interpreter makes it where the exception is raised
            raise RunEagerly(tracker.code, tracker.detail, earlier=tracker.value)  # type: ignore[attr-defined]
        builder = BUILDERS.get(kind)
        if builder is None:
            raise RunEagerly(
                "unsupported-object", f"a {describe(tracker)} alive at a graph break or returned"
            )
        return self._built(builder, tracker)

    def _built(self, builder: Callable[[Residual, Any], str], tracker: Tracker) -> str:
        kept = len(self.memo), len(self.lines), len(self.late), len(self.unfilled)
        functions_open = self.functions_open
        self.under_way.append(tracker)
        self.unready.add(id(tracker))
        try:
            return builder(self, tracker)
        except _Cyclic as cycle:
            if cycle.tracker is not tracker:
                raise
            first = cycle.first
        finally:
            self.under_way.pop()
            self.unready.discard(id(tracker))
        for key in list(self.memo)[kept[0] :]:
            del self.memo[key]
            self.open.discard(key)
        del self.lines[kept[1] :], self.late[kept[2] :], self.unfilled[kept[3] :]
        self.functions_open = functions_open
        self.expr(first)
        return self.expr(tracker)

    def output(self, tensor: TensorVar) -> str:
        name = self.output_names.get(id(tensor))
        if name is None:
            name = self.output_names[id(tensor)] = f"g{len(self.outputs)}"
            self.outputs.append(tensor)
            if tensor.cls is not torch.Tensor:
                self.retyped.append(f"{name}.__class__ = {self.constant(tensor.cls)}")
        return name

    def exprs(self, trackers: list[Tracker]) -> str:
        return ", ".join(self.expr(t) for t in trackers)

    def key(self, key: Any) -> str:
        if isinstance(key, ValueKey):
            require_same(self.cap, key)
        return self.expr(key.tracker) if isinstance(key, TrackerKey) else self.key_constant(key)

    def key_constant(self, key: Any) -> str:
        return self.constant(key, "key")

    def container(
        self, tracker: Tracker, empty: str, fill: Callable[[str], list[str]], whole: Callable[[], str]
    ) -> str:
        """Build a mutable container; one that (through a cycle) contains itself is made empty first, then filled."""
        name = self.memo[id(tracker)] = self.fresh("v")
        mark = len(self.lines)
        self.open.add(id(tracker))
        self.unready.discard(id(tracker))
        text = whole()
        self.open.discard(id(tracker))
        if id(tracker) in self.cyclic:
            self.lines.insert(mark, f"{name} = {empty}")
            for item in fill(name):
                self.line(item)
        else:
            self.line(f"{name} = {text}")
        return name

    def _list(self, tracker: ListVar) -> str:
        def whole() -> str:
            return f"[{self.exprs(tracker.items)}]"

        return self.container(tracker, "[]", lambda name: [f"{name}.extend({whole()})"], whole)

    def _tuple(self, tracker: TupleVar) -> str:
        if not tracker.items:
            return "()"
        name = self.fresh("v")
        text = f"({self.exprs(tracker.items)},)"
        self.memo[id(tracker)] = name
        self.line(f"{name} = {text}")
        return name

    def _dict(self, tracker: DictVar) -> str:
        self.cap.complete(tracker)

        def items() -> str:
            return ", ".join(f"{self.key(k)}: {self.expr(v)}" for k, v in tracker.known.items())

        make = "" if tracker.cls is dict else self.constant(tracker.cls)
        made = self.container(
            tracker,
            f"{make or 'dict'}()",
            lambda name: [f"{name}.update({{{items()}}})"],
            lambda: f"{make}({{{items()}}})" if make else f"{{{items()}}}",
        )
        self.lines += self.attributes(tracker, made)
        return made

    def attributes(self, tracker: Tracker, target: str) -> list[str]:
        """Statements that set what the region set on a tensor or an OrderedDict."""
        attributes = self.cap.tensor_attrs.get(id(tracker), {})
        return [f"{target}.{name} = {self.expr(value)}" for name, value in attributes.items()]

    def _deque(self, tracker: DequeVar) -> str:
        make = self.constant(deque)
        limit = "" if tracker.maxlen is None else f", {tracker.maxlen}"
        empty = f"{make}((){limit})"

        def items() -> str:
            return f"[{self.exprs(tracker.items)}]"

        return self.container(
            tracker,
            empty,
            lambda name: [f"{name}.extend({items()})"],
            lambda: f"{make}({items()}{limit})",
        )

    def _set(self, tracker: SetVar) -> str:
        make = "set" if tracker.cls is set else "frozenset"
        if tracker.cls is set and not has_constants(tracker):

            def items() -> str:
                return f"[{', '.join(map(self.key, tracker.known))}]"

            return self.container(
                tracker, "set()", lambda name: [f"{name}.update({items()})"], lambda: f"set({items()})"
            )
        name = self.memo[id(tracker)] = self.fresh("v")
        if has_constants(tracker):
            twin = real_set(self.cap, tracker)
            for keys in (list(tracker.known), list(twin)):
                if set_table(tracker.cls(keys)) == set_table(twin):
                    break
            else:  # no sequence of its items leads to what its history made of it
                self.line(f"{name} = {self.constant(set_clone)}({self.constant(set_clone(twin))})")
                return name
        else:
            keys = list(tracker.known)
        self.line(f"{name} = {make}([{', '.join(map(self.key, keys))}])")
        return name

    def _object(self, tracker: ObjectVar) -> str:
        if id(tracker) in self.cap.entered:
            detail = f"a {tracker.cls.__name__} that is open at a graph break"
            raise RunEagerly("context-manager", detail, earlier=self.cap.entered[id(tracker)])
        name = self.memo[id(tracker)] = self.fresh("v")
        self.open.add(id(tracker))
        cls = self.constant(tracker.cls)
        payload = tracker.payload
        own = OBJECT_BUILDERS.get(tracker.cls)
        if own is not None:
            self.line(f"{name} = {own(self, tracker)}")
        elif tracker.cls is types.MappingProxyType:
            self.line(f"{name} = {cls}({self.expr(payload)})")  # type: ignore[arg-type]
        elif tracker.cls in MADE_BY_CALL:
            keywords, args = self.expr(tracker.slots["keywords"]), self.expr(tracker.slots["args"])
            func = f"{self.expr(tracker.slots['func'])}, " if "func" in tracker.slots else ""
            self.line(f"{name} = {cls}({func}*{args}, **{keywords})")
        elif type(payload) is TupleVar:
            items = f"({self.exprs(payload.items)}{',' if payload.items else ''})"
            structseq = hasattr(tracker.cls, "n_sequence_fields")
            made = structseq or tracker.cls is torch.Size
            self.line(f"{name} = {cls}({items})" if made else f"{name} = tuple.__new__({cls}, {items})")
        elif issubclass(tracker.cls, BaseException):
            if id(tracker) in self.cap.raise_points:
                detail = f"a {tracker.cls.__name__} raised in captured code outlives it, with its traceback"
                raise RunEagerly("exception-raised", detail, earlier=self.cap.raise_points[id(tracker)][0])
            self.line(f"{name} = {self._exception(tracker, cls)}")
        elif type(payload) is SetVar:
            frozen = payload.cls is frozenset
            if not frozen:
                self.line(f"{name} = set.__new__({cls})")
                self.unready.discard(id(tracker))
            items = ", ".join(self.key(k) for k in payload.known)
            if frozen:
                self.line(f"{name} = frozenset.__new__({cls}, [{items}])")
            elif items:
                self.line(f"set.update({name}, [{items}])")
        else:
            base = self._base(tracker)
            value = f", {self.expr(payload)}" if type(payload) is ConstVar else ""
            self.line(f"{name} = {base}.__new__({cls}{value})")
            self.unready.discard(id(tracker))
            if type(payload) is DictVar:
                for key, item in payload.known.items():
                    self.line(f"{base}.__setitem__({name}, {self.key(key)}, {self.expr(item)})")
            elif type(payload) is ListVar and payload.items:
                self.line(f"list.extend({name}, [{self.exprs(payload.items)}])")
        self.unready.discard(id(tracker))
        if tracker.cls not in MADE_BY_CALL and own is None:
            for slot, item in tracker.slots.items():
                if (
                    item is NULL
                    or slot in ("message", "exceptions")
                    and issubclass(tracker.cls, BaseExceptionGroup)
                ):
                    continue
                if (
                    slot == "args"
                    and issubclass(tracker.cls, BaseException)
                    and not issubclass(tracker.cls, BaseExceptionGroup)
                ):
                    continue
                if slot in ("name", "obj") and _is_unset(tracker, item):
                    continue
                self.line(f"object.__setattr__({name}, {slot!r}, {self.expr(item)})")
        if tracker.attrs.known:
            items = ", ".join(f"{self.key(k)}: {self.expr(v)}" for k, v in tracker.attrs.known.items())
            # Without running the program's code.
            plain = tracker.cls.__getattribute__ is object.__getattribute__
            attrs = f"{name}.__dict__" if plain else f"object.__getattribute__({name}, '__dict__')"
            self.line(f"{attrs}.update({{{items}}})")
        self.open.discard(id(tracker))
        return name

    def _exception(self, tracker: ObjectVar, cls: str) -> str:
        """An exception as the C-level ``__new__`` of its class makes it; a group has parts beside its arguments."""
        base = self.constant(next(base for base in tracker.cls.__mro__ if is_static_type(base)))
        if not issubclass(tracker.cls, BaseExceptionGroup):
            return f"{base}.__new__({cls}, *{self.expr(tracker.slots.get('args', TupleVar([])))})"
        return f"{base}.__new__({cls}, {self.exprs([tracker.slots['message'], tracker.slots['exceptions']])})"

    def _base(self, tracker: ObjectVar) -> str:
        """The class whose ``__new__`` makes the empty object."""
        bases = (defaultdict, OrderedDict, dict, list, str, int, float, complex, bytes, types.SimpleNamespace)
        for base in bases:
            if issubclass(tracker.cls, base):
                return self.constant(base)
        return "object"

    def _cell(self, tracker: CellVar) -> str:
        name = self.memo[id(tracker)] = self.fresh("cell")
        make = self.constant(types.CellType)
        self.line(f"{name} = {make}()")
        self.unready.discard(id(tracker))
        if tracker.content is not None and self.functions_open:  # it may hold the function being made
            self.unfilled.append((name, tracker))
        elif tracker.content is not None:
            self.line(f"{name}.cell_contents = {self.expr(tracker.content)}")
        return name

    def _function(self, tracker: FunctionVar) -> str:
        name = self.memo[id(tracker)] = self.fresh("fn")
        self.functions_open += 1
        closure = f"({self.exprs(list(tracker.closure))},)" if tracker.closure else "None"
        self.functions_open -= 1
        defaults = f"({self.exprs(tracker.defaults)},)" if tracker.defaults else "None"
        make, code = self.constant(types.FunctionType), self.constant(tracker.code, "code")
        globals_ = self.constant(tracker.globals_, "globals")
        self.line(f"{name} = {make}({code}, {globals_}, {tracker.code.co_name!r}, {defaults}, {closure})")
        self.unready.discard(id(tracker))
        if tracker.kwdefaults:
            items = ", ".join(f"{k!r}: {self.expr(v)}" for k, v in tracker.kwdefaults.items())
            self.line(f"{name}.__kwdefaults__ = {{{items}}}")
        if tracker.annotations is not None:
            self.line(f"{name}.__annotations__ = {self.expr(tracker.annotations)}")
        for key, value in tracker.attrs.known.items():
            self.line(f"{name}.{key} = {self.expr(value)}")
        while self.unfilled and not self.functions_open:
            cell, held = self.unfilled.pop()
            self.line(f"{cell}.cell_contents = {self.expr(held.content)}")  # type: ignore[arg-type]
        return name

    def _method(self, tracker: MethodVar) -> str:
        func = tracker.func
        if (
            type(func) is ConstVar
            and not isinstance(func.value, types.FunctionType)
            and hasattr(type(func.value), "__get__")
        ):
            instance = self.expr(tracker.self_var)
            # Both are given: CPython 3.11 crashes on some methods of C classes where the class is left out.
            of_class = isinstance(func.value, types.ClassMethodDescriptorType)
            bound_to = f"None, {instance}" if of_class else f"{instance}, type({instance})"
            text = f"{self.expr(func)}.__get__({bound_to})"
        else:
            text = f"{self.constant(types.MethodType)}({self.expr(func)}, {self.expr(tracker.self_var)})"
        name = self.memo[id(tracker)] = self.fresh("method")
        self.line(f"{name} = {text}")
        return name

    def _array(self, tracker: ArrayVar) -> str:
        content = tracker.content
        if tracker.tensor is not None or content is None:
            assert tracker.tensor is not None
            return self._keep(tracker, "array", f"{self.expr(tracker.tensor)}.numpy()")
        if content.base is None:
            return self._keep(tracker, "array", f"{self.constant(content, 'array')}.copy('K')")
        root, offset = memory_of(content)
        place = f"{content.shape}, {self.constant(content.dtype, 'dtype')}, {self.expr(known_array(self.cap, root))}"
        text = f"{self.constant(type(content))}({place}, {offset}, {content.strides})"
        return self._keep(tracker, "array", text)

    def _super(self, tracker: SuperVar) -> str:
        return f"super({self.constant(tracker.cls)}, {self.expr(tracker.self_var)})"

    def _view(self, tracker: DictViewVar) -> str:
        return self._of_builtin(tracker.owner, tracker.kind)

    def _of_builtin(self, owner: Any, method: str) -> str:
        """A call of a method of a container's as the builtin class has it."""
        made = self.expr(owner)
        fresh = owner.source is None and id(owner) not in self.cap.holders
        if fresh or type(getattr(owner, "real", None)) in CONTAINERS:
            return f"iter({made})" if method == "__iter__" else f"{made}.{method}()"
        return f"{self.constant(as_builtin)}({made}, {method!r})"

    def _id(self, tracker: IdVar) -> str:
        return f"id({self.expr(tracker.target)})"

    def _keep(self, tracker: Tracker, prefix: str, text: str) -> str:
        name = self.memo[id(tracker)] = self.fresh(prefix)
        self.line(f"{name} = {text}")
        return name

    def _sequence_iterator(self, tracker: SeqIter) -> str:
        if tracker.done:
            return self._keep(tracker, "it", "iter(())" if type(tracker.owner) is TupleVar else "iter([])")
        owner = self.expr(tracker.owner)
        if id(tracker.owner) not in self.cap.changed:
            return self._keep(tracker, "it", f"{self.constant(iterator_at)}({owner}, {tracker.position})")
        # A position behind the end of the list as it was counts only once the list has grown.
        name = self._keep(tracker, "it", self._of_builtin(tracker.owner, "__iter__"))
        self.late.append(f"{self.constant(put_at)}({name}, {owner}, {tracker.position})")
        return name

    def _watching_iterator(self, tracker: SetIter | DequeIter | DictIter) -> str:
        """The iterator of what is live, made before its changes are replayed: it is to notice them."""
        owner: Any = tracker.watched if type(tracker) is SetIter else tracker.owner
        if type(owner) is SetVar and any(isinstance(key, TrackerKey) for key in owner.known):
            assert type(tracker) is SetIter  # whose order is the region's own
            return self._sequence_iterator(tracker)
        if tracker.done:
            empty: Any = deque() if type(tracker) is DequeIter else set() if type(tracker) is SetIter else {}
            if type(tracker) is DictIter:
                empty = getattr(OrderedDict() if issubclass(owner.cls, OrderedDict) else {}, tracker.kind)()
            return self._keep(tracker, "it", f"iter({self.constant(empty, 'empty')})")
        untouched = tracker.birth.unchanged if owner.real is not None else tracker.as_at_birth
        if not untouched:
            detail = f"an iterator over a {describe(owner)} that the region has changed"
            raise RunEagerly("unsupported-object", detail, earlier=tracker.birth.step)
        if type(tracker) is DictIter:
            made = f"iter({self._of_builtin(owner, tracker.kind)})"
        else:
            made = self._of_builtin(owner, "__iter__")
        if self.open & {id(owner), id(self.cap.holders.get(id(owner)))}:
            detail = f"an iterator that is inside of the {describe(owner)} that it goes over"
            raise RunEagerly("unsupported-object", detail, earlier=tracker.birth.step)
        return self._keep(tracker, "it", f"{self.constant(advanced)}({made}, {tracker.position})")

    def _range_iterator(self, tracker: RangeIter) -> str:
        rest = tracker.values[tracker.position :]
        return self._keep(tracker, "it", f"iter(range({rest.start}, {rest.stop}, {rest.step}))")

    def _call_iterator(self, tracker: CallIter) -> str:
        parts = self.exprs(tracker.parts)
        builtin = tracker.builtin
        if builtin is enumerate:
            text = f"enumerate({parts}, {tracker.extra['count']})"
        elif builtin is zip:
            text = f"zip({parts}{', ' if parts else ''}strict={tracker.extra['strict']})"
        elif builtin is itertools.repeat and "times" in tracker.extra:
            text = f"{self.constant(builtin)}({parts}, {tracker.extra['times']})"
        elif builtin is itertools.count:
            text = (
                f"{self.constant(itertools.count)}({', '.join(map(self.constant, tracker.extra.values()))})"
            )
        else:
            text = f"{self.constant(builtin)}({parts})"
        return self._keep(tracker, "it", text)

    def _called_iterator(self, tracker: CalledIter) -> str:
        if tracker.taken and not tracker.pooled:
            detail = f"a {tracker.builtin.__name__} under way at a graph break or returned"
            raise RunEagerly("generator", detail, earlier=tracker.born)
        keywords = "".join(f", {name}={self.expr(value)}" for name, value in tracker.kwargs.items())
        args = f"*({self.exprs(tracker.args)}{',' if tracker.args else ''})"
        made = f"{self.constant(tracker.maker)}({args}{keywords})"
        text = f"{self.constant(advanced)}({made}, {tracker.taken})" if tracker.taken else made
        return self._keep(tracker, "it", text)

    def _ahead(self, tracker: Ahead) -> str:
        return f"{self.constant(polyfills.ahead)}({self.expr(tracker.iterator)}, {self.expr(tracker.item)})"

    def _reversed_iterator(self, tracker: ReversedIter) -> str:
        if tracker.done:
            return self._keep(tracker, "it", f"reversed({'[]' if type(tracker.owner) is ListVar else '()'})")
        owner = self.expr(tracker.owner)
        text = f"reversed({owner})"
        if type(tracker.owner) is ListVar:
            text = self._of_builtin(tracker.owner, "__reversed__")
        name = self._keep(tracker, "it", text)
        target = self.late if id(tracker.owner) in self.cap.changed else self.lines
        target.append(f"{self.constant(put_at)}({name}, {owner}, {tracker.position})")
        return name

    def _fixed_iterator(self, tracker: FixedIter | TeeIter) -> str:
        detail = f"a {tracker.builtin.__name__} at a graph break or returned"
        raise RunEagerly("unsupported-object", detail, earlier=tracker.born)

    def _generator(self, tracker: GeneratorVar) -> str:
        if tracker.started:
            detail = f"generator {tracker.frame.code.co_qualname} under way at a graph break or returned"
            raise RunEagerly("generator", detail, earlier=tracker.born)
        frame = tracker.frame
        code = frame.code
        assert frame.func is not None
        function = self.expr(frame.func)
        count = code.co_argcount + code.co_kwonlyargcount
        names = code.co_varnames
        arguments = [self.expr(frame.locals[name]) for name in names[: code.co_argcount]]
        arguments += [f"{name}={self.expr(frame.locals[name])}" for name in names[code.co_argcount : count]]
        if code.co_flags & inspect.CO_VARARGS:
            arguments.insert(code.co_argcount, f"*{self.expr(frame.locals[names[count]])}")
            count += 1
        if code.co_flags & inspect.CO_VARKEYWORDS:
            arguments.append(f"**{self.expr(frame.locals[names[count]])}")
        return self._keep(tracker, "gen", f"{function}({', '.join(arguments)})")

    # --- loops ---------------------------------------------------------------------------------------------------

    def live_expr(self, tracker: Tracker) -> str:
        """As expr, for what is in a frame's stack: an iterator that turns out to be there alone is made last."""
        if not self._is_made_last(tracker):
            return self.expr(tracker)
        found = self.loops.get(id(tracker))
        if found is None:
            found = self.loops[id(tracker)] = self.fresh("it"), tracker
        return found[0]

    def _is_made_last(self, tracker: Tracker) -> bool:
        if (
            type(tracker) is DictIter
        ):  # it notices changes of the dict: it is made before them, or there are none
            return tracker.as_at_birth and id(tracker.owner) not in self.cap.changed
        if type(tracker) is CallIter:
            return all(self._is_made_last(part) for part in tracker.parts if isinstance(part, IteratorVar))
        return type(tracker) in LOOPS and tracker.source is None

    def finish_loops(self) -> None:
        """Make the iterators of loops, now that all else that is live has been made, and changed as it is to be."""
        self.lines += self.late
        self.late = []
        for name, tracker in self.loops.values():
            self.line(f"{name} = {loop_expr(self, tracker) or self.expr(tracker)}")
        self.lines += self.late

    # --- effects -------------------------------------------------------------------------------------------------

    def effects(self) -> None:
        """Replay the changes that the region made to pre-existing objects."""
        replayed: list[str] = []
        for var in list(self.cap.changed.values()):
            replayed += EFFECTS[type(var)](self, var)
        self.lines += replayed

    def _dict_effect(self, var: DictVar) -> list[str]:
        target = self.load(var.source)  # type: ignore[arg-type]
        if type(var.source) is Const and isinstance(var.source.obj, type):
            return [f"type.__setattr__({target}, {k!r}, {self.expr(v)})" for k, v in var.known.items()]
        lines = []
        plain = type(var.real) is dict
        base = "" if plain else self.constant(OrderedDict if isinstance(var.real, OrderedDict) else dict)
        for op, key, value in var.log:
            if op == "set":
                item, new = self.key(key), self.expr(value)  # type: ignore[arg-type]
                lines.append(
                    f"{target}[{item}] = {new}" if plain else f"{base}.__setitem__({target}, {item}, {new})"
                )
            elif op == "del":
                lines.append(
                    f"{target}.pop({self.key(key)}, None)"
                    if plain
                    else f"{base}.pop({target}, {self.key(key)}, None)"
                )
            else:
                lines.append(f"{target}.clear()" if plain else f"{base}.clear({target})")
        return lines + self.attributes(var, target)

    def _list_effect(self, var: ListVar) -> list[str]:
        target = self.load(var.source)  # type: ignore[arg-type]
        if var.untouched:
            return [f"list.extend({target}, [{self.exprs(var.tail)}])"]
        return [f"list.__setitem__({target}, slice(None), [{self.exprs(var.items)}])"] if var.mutated else []

    def _deque_effect(self, var: DequeVar) -> list[str]:
        target, kind = self.load(var.source), self.constant(deque)  # type: ignore[arg-type]
        return [f"{kind}.clear({target})", f"{kind}.extend({target}, [{self.exprs(var.items)}])"]

    def _set_effect(self, var: SetVar) -> list[str]:
        target = self.load(var.source)  # type: ignore[arg-type]
        if has_constants(var):
            like = self.constant(set_clone(real_set(self.cap, var)))
            return [f"{self.constant(set_become)}({target}, {like})"]
        items = ", ".join(self.key(k) for k in var.known)
        return [f"set.clear({target})", f"set.update({target}, [{items}])"]

    def _cell_effect(self, var: CellVar) -> list[str]:
        assert var.source is not None
        return (
            [f"{self.load(var.source)}.cell_contents = {self.expr(var.content)}"]
            if var.content is not None
            else []
        )

    def _loop_effect(self, var: LoopIterVar) -> list[str]:
        return [f"{self.constant(advanced)}({self.load(var.source)}, {var.steps})"]  # type: ignore[arg-type]

    def _object_effect(self, var: ObjectVar) -> list[str]:
        target = self.load(var.source)  # type: ignore[arg-type]
        return [
            f"{self.constant(unset)}({target}, {slot!r})"
            if var.slots[slot] is NULL
            else f"object.__setattr__({target}, {slot!r}, {self.expr(var.slots[slot])})"
            for slot in var.slots_written
        ]


#: Classes whose instances are known by the arguments that make them.
MADE_BY_CALL = (functools.partial, operator.itemgetter, operator.attrgetter, operator.methodcaller)
#: How instances of classes of C are made, by their class.
OBJECT_BUILDERS: dict[type, Callable[[Residual, Any], str]] = {}
BUILDERS: dict[type, Callable[[Residual, Any], str]] = {
    ListVar: Residual._list,
    DequeVar: Residual._deque,
    TupleVar: Residual._tuple,
    DictVar: Residual._dict,
    SetVar: Residual._set,
    ObjectVar: Residual._object,
    CellVar: Residual._cell,
    FunctionVar: Residual._function,
    MethodVar: Residual._method,
    SuperVar: Residual._super,
    ArrayVar: Residual._array,
    DictViewVar: Residual._view,
    IdVar: Residual._id,
    SeqIter: Residual._sequence_iterator,
    SetIter: Residual._watching_iterator,
    DequeIter: Residual._watching_iterator,
    DictIter: Residual._watching_iterator,
    RangeIter: Residual._range_iterator,
    CallIter: Residual._call_iterator,
    CalledIter: Residual._called_iterator,
    Ahead: Residual._ahead,
    ReversedIter: Residual._reversed_iterator,
    FixedIter: Residual._fixed_iterator,
    TeeIter: Residual._fixed_iterator,
    GeneratorVar: Residual._generator,
}
#: Iterators that no program can tell from others while only a loop holds them.
LOOPS = frozenset((SeqIter, RangeIter, DictIter, CallIter, CalledIter, ReversedIter))
EFFECTS: dict[type, Callable[[Residual, Any], list[str]]] = {
    DictVar: Residual._dict_effect,
    ListVar: Residual._list_effect,
    DequeVar: Residual._deque_effect,
    SetVar: Residual._set_effect,
    CellVar: Residual._cell_effect,
    ObjectVar: Residual._object_effect,
    LoopIterVar: Residual._loop_effect,
}


def unset(target: Any, slot: str) -> None:
    """Leave a slot without a value; it may never have had one before the program set and deleted it."""
    with contextlib.suppress(AttributeError):
        object.__delattr__(target, slot)


def build_function(
    name: str, params: list[str], residual: Residual, body: list[str]
) -> tuple[Callable[..., Any], str]:
    """Compile the replacement; returns the function and its text."""
    head = f"def {name}(__func, {''.join(p + ', ' for p in params)}__in):"
    comments = [f"    # __in[{i}]: {source.name()}" for i, source in enumerate(residual.fetch)]
    text = "\n".join([head, *comments, *(f"    {line}" for line in body)]) + "\n"
    filename = f"<graphlift {name} {id(residual):#x}>"
    namespace = dict(residual.names)
    exec(compile(text, filename, "exec"), namespace)
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    keep_from_torch_compile(namespace[name].__code__)
    return namespace[name], text
