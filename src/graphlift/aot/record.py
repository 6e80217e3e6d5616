"""The recorder: a fake mode that writes down the functional form of everything it computes.

In: torch operators on fakes, below autograd. Out: a Trace without mutation, and for each storage its final value.
Always: every fake's value is its path replayed on its storage's base value; a write makes a new base value.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor

from ..fake import FakeMode, FakeStorage, FakeTensor, Spec, Unsupported
from ..fake import mode as rules
from ..fake.known import carry, know
from ..fake.mode import metadata_key
from ..fake.ops import Kind, OpInfo, Tag, aten, functional_form, op_info
from ..fake.outs import require_casts, require_regular_out
from ..fake.spec import make_spec, spec_of
from ..fake.symbolic import fix, torch_sizes
from ..fake.tensor import count_writes, fakes_in, in_mode_of, new_fake, set_metadata
from ..shapes.expr import SizeLike, contiguous_strides
from . import mutating, training_ops
from .effect_ops import EFFECTS
from .ir import FORWARD, Op, Trace, Value
from .overlap import overlaps_itself, overlaps_partly
from .passes import is_dense
from .plan import FallBack
from .views import ViewStep, replay, same_layout, scatter, shifted, single_views

Decompositions = dict[Any, Callable[..., Any]]
_BELOW_AUTOGRAD = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
_BELOW_AUTOGRAD |= torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


class Home(FakeStorage):
    """A storage while recording: its current value, counted in versions, and the tensor that owns it."""

    __slots__ = ("base", "version", "root", "first", "reached", "viewed", "writer", "mixed")

    def __init__(self, nbytes: SizeLike, base: Value) -> None:
        super().__init__(nbytes)
        self.base = base
        self.first = base
        self.version = 0
        self.writer: Any = None  # the node of the captured graph that wrote last
        self.mixed = False  # whether it was written beside views of it
        self.root: FakeTensor | None = None
        self.viewed = False
        self.reached = False  # whether a view reads memory between or beyond the first value's elements

    def reach(self, spec: Spec, source: Spec) -> None:
        """Note that a view by strides of `source` reads the storage so. Raises: Unsupported as `check`."""
        spec = spec.concrete()
        for whole in (self.first.spec.concrete(), source.concrete()):
            inside = whole.offset <= spec.offset and spec.span() <= whole.span()
            if not (inside and is_dense(whole.shape, whole.stride)):
                self.reached = True
        self.check()

    def count_write(self, writer: Any) -> None:
        self.version += 1
        self.writer = writer
        self.mixed |= self.viewed

    def check(self) -> None:
        """Raises: Unsupported where a new base value would lack memory that a view reads."""
        if self.reached and self.version:
            raise Unsupported("as_strided", "a view reaches memory outside a tensor that is written")


_number = operator.itemgetter(0)


class Recorder(FakeMode):
    """Records into `trace`; `decompositions` replaces operators by others, recursively, below autograd."""

    def __init__(self, decompositions: Decompositions | None = None) -> None:
        super().__init__()
        self.trace = Trace()
        self.stage = FORWARD
        self.source: Any = None  # the node of the captured graph that is run
        # While the backward is recorded: those nodes, each with the number of autograd's node that came next.
        self.forward_sources: list[tuple[int, Any]] = []
        self.constants: list[tuple[Tensor, Value]] = []
        self.constant_homes: set[int] = set()
        self.homes: list[Home] = []
        self.newest: tuple[Home | None, Any] = None, None  # the memory made last, and by which node
        self.held: list[Value] = []
        self.compress_masks = False
        self.in_place = False  # whether the compiler takes graphs that write their inputs
        self._decompositions = decompositions or {}
        self._inference = torch.is_inference_mode_enabled()

    # -- values --------------------------------------------------------------------------------------------

    def dispatch(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """As fakes do. Raises: FallBack where only the operator's own kernel would know what is differentiated."""
        result = super().dispatch(func, args, kwargs)
        if op_info(func).unregistered and torch.is_grad_enabled():
            made = fakes_in((result,), [])
            counted = made and not any(
                f.spec.dtype.is_floating_point or f.spec.dtype.is_complex for f in made
            )
            if not counted and any(f.requires_grad for f in fakes_in((*args, *kwargs.values()), [])):
                raise FallBack("operator-limit", f"{func.name()}: no kernel is registered to autograd")
        return result

    def record(self, func: Any, args: tuple, kwargs: dict, recipe: Any) -> Any:
        """Append an operator; gives its Value, or a tuple or list of them as `recipe` is shaped."""
        self._require_mode(torch.is_inference_mode_enabled())
        source = self.source
        if self.stage != FORWARD and source is None:
            source = self.source_of(torch._C._current_autograd_node())
        op = Op(func, args, kwargs, self.stage, source)
        self.trace.ops.append(op)
        if type(recipe) is Spec:
            value = Value(recipe, op)
            op.outs.append(value)
            return value
        return self._record_many(op, recipe, ())

    def source_of(self, node: Any) -> Any:
        """The node of the captured graph whose gradient this node of autograd's computes."""
        if node is None or not self.forward_sources:
            return None
        k = bisect.bisect_right(self.forward_sources, node._sequence_nr(), key=_number)
        return self.forward_sources[k][1] if k < len(self.forward_sources) else None

    def _require_mode(self, inference: bool) -> None:
        if inference is not self._inference:
            raise FallBack("inference-part")

    def _record_many(self, op: Op, recipe: Any, index: tuple[int, ...]) -> Any:
        if type(recipe) is Spec:
            value = Value(recipe, op, index)
            op.outs.append(value)
            return value
        if type(recipe) in (tuple, list):
            return type(recipe)([self._record_many(op, r, (*index, i)) for i, r in enumerate(recipe)])
        return recipe

    def adopt(self, value: Any) -> Any:
        """Fresh fakes that own the given values."""
        if type(value) is Value:
            home = Home(value.spec.nbytes, value)
            fake = new_fake(self, value.spec, home)
            fake.path, fake.value, fake.seen = (), value, 0
            home.root = fake
            self.homes.append(home)
            self.newest = home, self.source
            return fake
        if type(value) in (tuple, list):
            return type(value)([self.adopt(v) for v in value])
        return value.value

    def made(self, info: OpInfo, args: tuple, kwargs: dict, recipe: Any) -> Any:
        if type(recipe) is rules._Literal:
            return recipe.value
        lowered = {k: self._lower(v) for k, v in kwargs.items()} if kwargs else kwargs
        return self.adopt(self.record(info.func, self.lower(args), lowered, recipe))

    def alias(self, of: FakeTensor, step: ViewStep, value: Value) -> FakeTensor:
        self._require_mode(torch.is_inference_mode_enabled())
        of.home.viewed = True
        fake = in_mode_of(of, lambda: new_fake(self, step.spec, of.home))
        fake.path, fake.value, fake.seen = (*of.path, step), value, of.home.version
        return fake

    def read(self, fake: FakeTensor) -> Value:
        """The fake's current value, its views replayed if its storage was written since."""
        home = fake.home
        if fake.seen != home.version:
            value = home.base
            for step in fake.path:
                value = replay(self, step, value)
            fake.value, fake.seen = value, home.version
        return fake.value

    def write(self, fake: FakeTensor, value: Value) -> None:
        """Make `value` the fake's value, and with it its storage's."""
        home = fake.home
        home.constant = None
        if _repeats(fake):
            raise Unsupported("write", "the written tensor overlaps itself in memory")
        _require_followed(fake)
        if fake.path:
            home.base = scatter(self, home.base, fake.path, self.cast(value, fake.spec))
            home.count_write(self.source)
            home.check()
            return
        home.base = fake.value = self.conform(value, fake.spec)
        home.count_write(self.source)
        home.check()
        fake.seen = home.version

    def lower(self, args: Any) -> tuple:
        """Fakes in nested arguments, as values."""
        return tuple([self._lower(a) for a in args])

    def _lower(self, a: Any) -> Any:
        cls = type(a)
        if cls is FakeTensor:
            return a.value if a.seen == a.home.version else self.read(a)
        if cls is list or cls is tuple:
            return cls([self._lower(v) for v in a])
        return a

    def call(self, func: Any, *args: Any, **kwargs: Any) -> Value:
        """Record a functional operator on Values, with its decomposition if it has one; its first result."""
        fakes = [self.adopt(a) if type(a) is Value else a for a in args]
        result = self.dispatch(func, tuple(fakes), kwargs)
        return self.read(result[0] if type(result) is tuple else result)

    def cast(self, value: Value, spec: Spec) -> Value:
        """`value` broadcast to the shape and cast to the dtype and device of `spec`, in whatever strides."""
        if value.spec.shape != spec.shape:
            value = self.call(aten.expand.default, value, list(spec.shape))
        if value.spec.dtype != spec.dtype or value.spec.device != spec.device:
            value = self.call(aten._to_copy.default, value, dtype=spec.dtype, device=spec.device)
        if value.spec.conj != spec.conj or value.spec.neg != spec.neg:
            value = self.call(aten.clone.default, value)
        return value

    def conform(self, value: Value, spec: Spec) -> Value:
        """`value` with the dtype, shape and strides of `spec`, as writing into such a tensor leaves it."""
        value = self.cast(value, spec)
        if same_layout(value.spec, spec):
            return value
        if _is_contiguous(spec) and not spec.conj and not spec.neg:
            return self.call(aten.clone.default, value, memory_format=torch.contiguous_format)
        empty = self.call(
            aten.empty_strided.default,
            list(spec.shape),
            list(spec.stride),
            dtype=spec.dtype,
            device=spec.device,
        )
        return self.call(aten.copy.default, empty, value)

    def hold(self, fake: FakeTensor) -> FakeTensor:
        """A copy of statistics: what the backward computes again must not see later updates, which nothing counts."""
        value = self.call(aten.clone.default, self.read(fake))
        self.held.append(value)
        return self.adopt(value)

    # -- inputs --------------------------------------------------------------------------------------------

    def add_input(self, t: Tensor, into: list[Value], spec: Spec | None = None) -> FakeTensor:
        """A placeholder with this real tensor's metadata (or `spec`), on a storage of its own."""
        rules.require_plain(t)
        value = Value(spec_of(t, t.device) if spec is None else spec)
        into.append(value)
        return self._placeholder(t, value)

    def _placeholder(self, t: Tensor, value: Value) -> FakeTensor:
        spec = value.spec
        home = Home(spec.nbytes if spec.symbolic else max(spec.nbytes, t.untyped_storage().nbytes()), value)
        self.homes.append(home)
        leaf = in_mode_of(t, lambda: new_fake(self, spec, home, t.requires_grad and t.is_leaf))
        leaf.path, leaf.value, leaf.seen = (), value, 0
        home.root = leaf
        if isinstance(t, torch.nn.Parameter):
            leaf._is_param = True
        return leaf

    def non_leaf(self, leaf: FakeTensor, make: Callable[[Any, Any], Any] = rules.cloned) -> FakeTensor:
        fake = super().non_leaf(leaf, make)
        fake.path, fake.value, fake.seen = leaf.path, leaf.value, leaf.seen
        fake.home.root = fake
        return fake

    def convert_constant(self, t: Tensor) -> FakeTensor:
        known = self._fakes.get(id(t))
        if known is not None and known[0]() is t:
            return known[1]
        if t.requires_grad:
            raise Unsupported("constant", "a real tensor that requires grad appeared inside the graph")
        rules.require_plain(t)
        self._require_mode(t.is_inference())
        value = Value(spec_of(t, t.device))
        self.constants.append((t, value))
        fake = self._placeholder(t, value)
        self.constant_homes.add(id(fake.home))
        self._fakes[id(t)] = (rules.weakref.ref(t), fake)
        return fake

    def lift(self, t: Tensor) -> FakeTensor:
        if type(t) is FakeTensor:
            return t
        if t.numel() == 1 and t.device == rules.CPU and not t.is_complex() and not t.is_conj():
            fill = t.item()
            spec = make_spec(tuple(t.shape), tuple(t.stride()), 0, t.dtype, t.device)
            kwargs = {"dtype": t.dtype, "device": t.device}
            fake = self.adopt(self.record(aten.full.default, (list(t.shape), fill), kwargs, spec))
            fake.home.constant = t
            return fake
        fake = self.adopt(self.read(self.convert_constant(t)))
        know(fake, t)
        return fake

    # -- decompositions ------------------------------------------------------------------------------------------

    def decompose(self, rule: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        """Run a decomposition under this recorder, below autograd."""
        if self.sizes is not None:
            args, kwargs = torch_sizes(args, self.sizes), torch_sizes(kwargs, self.sizes)
        torch._C._push_on_torch_dispatch_stack(self)
        try:
            with torch._C._ExcludeDispatchKeyGuard(_BELOW_AUTOGRAD):
                return rule(*args, **kwargs)
        finally:
            torch._C._pop_torch_dispatch_stack(None)

    def settle(self, result: Any, recipe: Any) -> Any:
        """A decomposition's result as fresh fakes with exactly the metadata the operator itself gives."""
        if type(recipe) is Spec:
            if result is None:  # a gradient that the output mask leaves out, undefined as in eager
                return None
            if type(result) is not FakeTensor:
                raise Unsupported("decomposition", f"gave {type(result).__name__} where a tensor is due")
            return self.adopt(self.conform(self.read(result), recipe))
        if type(recipe) in (tuple, list):
            return type(recipe)([self.settle(a, b) for a, b in zip(result, recipe, strict=True)])
        return recipe.value

    def release(self) -> None:
        """Drop the fakes, which refer to their storages and back."""
        for home in self.homes:
            home.root = None
        self.homes.clear()
        self._fakes.clear()
        self._homes.clear()


def _is_contiguous(spec: Spec) -> bool:
    return spec.stride == contiguous_strides(spec.shape)


# -- rules by kind -----------------------------------------------------------------------------------------


def _pure(rec: Recorder, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    recipe = rec.pure_recipe(info, key, args, kwargs)
    if type(recipe) is rules._Literal:
        return recipe.value
    rule = rec._decompositions.get(info.func)
    if rule is not None:
        result = rec.decompose(rule, args, kwargs)
        if result is not NotImplemented:
            return carry(info, args, kwargs, rec.settle(result, recipe))
    lowered = {k: rec._lower(v) for k, v in kwargs.items()} if kwargs else kwargs
    value = rec.record(info.func, rec.lower(args), lowered, recipe)
    if info.random and rec.compress_masks and info.func in _BERNOULLI and value.spec.dtype.is_floating_point:
        value = _compressed(rec, value)
    return carry(info, args, kwargs, rec.adopt(value))


_BERNOULLI = frozenset((aten.bernoulli.p, aten.bernoulli.default, aten.bernoulli.Tensor))


def _compressed(rec: Recorder, mask: Value) -> Value:
    """A mask of zeros and ones by way of bool, so that the backward can keep a byte (not four) per element."""
    small = rec.call(aten._to_copy.default, mask, dtype=torch.bool)
    return rec.call(aten._to_copy.default, small, dtype=mask.spec.dtype)


def _is_made(rec: Recorder, info: OpInfo, source: FakeTensor) -> bool:
    """Whether it is the end of making a tensor: torch's factories detach what the operator gave, which nobody has."""
    home, node = rec.newest
    if info.func is not aten.detach.default or home is not source.home or home.root is not source:
        return False
    one_call = node is not None and (node.op == "call_method" or type(node.target) is BuiltinFunctionType)
    return one_call and node is rec.source and not source.requires_grad


def _view(rec: Recorder, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    if type(args[0]) is complex:
        return rules.view_of_number(rec, info, args)
    source = args[0]
    if _is_made(rec, info, source):
        return source
    recipe = rec.view_recipe(info, key, args, kwargs)
    grad_mode = torch.is_grad_enabled()
    if type(recipe) is Spec:
        rest = args[1:]
        if info.func is aten.as_strided.default:
            source.home.reach(recipe, source.spec)
            rest, kwargs = (recipe.shape, recipe.stride, recipe.offset), {}
        step = ViewStep(info.func, rest, kwargs, source.spec, recipe, grad_mode, data=rec.reading_data)
        return rec.alias(source, step, replay(rec, step, rec.read(source)))
    views = single_views(info.func, args, kwargs, recipe)
    outs = []
    for i, (spec, (func, rest)) in enumerate(zip(recipe, views, strict=True)):
        step = ViewStep(func, rest, {}, source.spec, spec, grad_mode, many=(info.func, args[1:], i))
        outs.append(rec.alias(source, step, replay(rec, step, rec.read(source))))
    return outs


def _inplace(rec: Recorder, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    known = rules.write_in_place(rec, info, key, args, kwargs)
    _write_in_place(rec, info, args, kwargs)
    args[0].home.constant = known
    return args[0]


def _write_in_place(rec: Recorder, info: OpInfo, args: tuple, kwargs: dict) -> Any:
    if info.func is aten.copy_.default and not _by_place(args):
        return rec.write(args[0], rec.read(args[1]))
    if info.func in _FILLS and not _repeats(args[0]):
        return rec.write(args[0], _filled(rec, args[0], args[1] if len(args) > 1 else 0))
    form = functional_form(info.func)
    if _by_place(args) or form is None or (info.random and not _is_contiguous(args[0].spec)):
        # Random operators fill in memory order, so they must see the very strides that eager's tensor has.
        return _writes_generic(rec, info, args, kwargs)
    result = rec.dispatch(form, mutating.with_defaults(info.func, form, args, kwargs), kwargs)
    if type(result) is tuple:  # the functional form may also give what the in-place one only writes elsewhere
        result = result[0]
    require_casts(args[0], result)  # some meta kernels do not ask
    return rec.write(args[0], rec.read(result))


def _filled(rec: Recorder, target: FakeTensor, fill: Any) -> Value:
    """Filling with a number does not depend on the old contents."""
    spec = target.spec
    if isinstance(fill, bool) or spec.dtype.is_complex or not isinstance(fill, (int, float)):
        return rec.read(rec.dispatch(aten.fill.Scalar, (target, fill), {}))
    return rec.call(aten.full.default, list(spec.shape), fill, dtype=spec.dtype, device=spec.device)


_FILLS = frozenset((aten.fill_.Scalar, aten.zero_.default))


def _repeats(fake: FakeTensor) -> bool:
    """Whether an element may be in memory twice: a write to one place is seen at the other."""
    return any(
        overlaps_itself(spec)
        for spec in (fake.home.first.spec, fake.spec, *(step.spec for step in fake.path))
    )


def _require_followed(fake: FakeTensor) -> None:
    """Autograd knows fakes by the view that they were. Raises: where one that changed its shape in place is written."""
    if fake.requires_grad and any(s.in_place and s.func is aten.as_strided.default for s in fake.path):
        raise Unsupported("as_strided_", "a view restrided in place is written under autograd")
    views = itertools.dropwhile(lambda step: step.in_place, fake.path)
    if torch.is_grad_enabled() and any(step.in_place for step in views):
        raise FallBack("metadata-changed", "of a view that is written then")


def _by_place(args: tuple) -> bool:
    """Whether the result depends on where in memory, and in which order, elements are written."""
    target = args[0]
    aliases = [f.spec for f in fakes_in(args[1:], []) if f.home is target.home]
    return _repeats(target) or any(overlaps_partly(target.spec, other) for other in aliases)


def _writes(rec: Recorder, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    if info.silent is not None:
        return _batch_norm(rec, info, key, args, kwargs)
    form = functional_form(info.func)
    targets = rules.written(info, args, kwargs)
    require_regular_out(info, targets, args, kwargs)
    _require_own_memory(info, targets)
    if form is None or _tangled(list(targets.values()), args, kwargs):
        return _writes_generic(rec, info, args, kwargs)
    keep = {name for _, name in info.writes}
    out_only = all(a.is_out for a in info.func._schema.arguments if a.name in keep)
    if out_only and info.random and not all(_is_contiguous(f.spec) for f in fakes_in(targets.values(), [])):
        return _writes_generic(rec, info, args, kwargs)
    if out_only:
        plain_kwargs = {k: v for k, v in kwargs.items() if k not in keep}
        result = rec.dispatch(form, args, plain_kwargs)
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        for target, value in zip(targets.values(), results, strict=True):
            _write_out(rec, target, value)
        outs = [targets[r] for r in info.returns]
        return outs[0] if len(outs) == 1 else tuple(outs)
    as_written = rules._writes(rec, info, key, args, kwargs)
    result = rec.dispatch(form, args, kwargs)
    return _assign_results(rec, info, form, targets, result, as_written)


def _require_own_memory(info: OpInfo, targets: dict) -> None:
    """Composite kernels write `out=` through `_unsafe_view`, an alias that no schema tells of. Raises: Unsupported."""
    for f in fakes_in(tuple(targets.values()), []):
        op = f.home.first.op
        if op is not None and op.func is aten._unsafe_view.default and Tag.out in info.func.tags:
            raise Unsupported(info.name, "writes a tensor that may be a view of another")


def _tangled(targets: list, args: tuple, kwargs: dict) -> bool:
    """Whether what one write changes is seen by another argument: then the order of writes matters."""
    homes = [id(f.home) for f in fakes_in(targets, [])]
    every = [id(f.home) for f in fakes_in((*args, *kwargs.values()), [])]
    return len(homes) > 1 and len(set(homes)) + sum(h not in set(homes) for h in every) < len(every)


def _write_out(rec: Recorder, target: FakeTensor, value: FakeTensor) -> None:
    """`out=`: write, giving the target the result's shape if it has another (eager resizes)."""
    if target.spec.shape != value.spec.shape:
        _require_growable("out=", target)
        spec = make_spec(value.spec.shape, value.spec.stride, 0, target.spec.dtype, target.spec.device)
        target.home.nbytes = max(target.home.nbytes, spec.nbytes)
        set_metadata(target, spec, target.home)
        target.path = ()
    if value.spec.dtype != target.spec.dtype:
        raise Unsupported("out=", f"writes {value.spec.dtype} into a tensor of {target.spec.dtype}")
    rec.write(target, rec.read(value))


def _require_growable(name: str, target: FakeTensor) -> None:
    """Only a tensor without contents or views can be given another shape. Raises: Unsupported."""
    home = target.home
    if target.path or target.spec.numel() != 0 or home.root is not target or home.viewed:
        raise Unsupported(name, "resizes a tensor that has contents or views")


def _assign_results(
    rec: Recorder, info: OpInfo, form: Any, targets: dict, result: Any, as_written: Any
) -> Any:
    """Functional results: first those the writing operator returns fresh, then the new value of each target.

    Fresh ones get the strides that the writing operator gives, those of `as_written`.
    """
    results = list(result) if isinstance(result, tuple) else [result]
    fresh_count = sum(r is None for r in info.returns)
    fresh, new = results[:fresh_count], results[fresh_count:]
    if len(new) != len(targets) and len(targets) == 1:
        new = [list(results)] if isinstance(next(iter(targets.values())), (list, tuple)) else results[-1:]
    require_casts(list(targets.values()), new)
    for target, value in zip(targets.values(), new, strict=True):
        if isinstance(target, (list, tuple)):
            for t, v in zip(target, value, strict=True):
                rec.write(t, rec.read(v))
        elif target is not None:
            rec.write(target, rec.read(value))
    rest = iter(fresh)
    wanted = as_written if isinstance(as_written, tuple) else (as_written,) * len(info.returns)
    outs = [
        targets[r] if r is not None else _in_layout(rec, next(rest), like)
        for r, like in zip(info.returns, wanted, strict=True)
    ]
    return outs[0] if len(outs) == 1 else tuple(outs) if outs else None


def _in_layout(rec: Recorder, made: Any, like: Any) -> Any:
    if type(made) is not FakeTensor or same_layout(made.spec, like.spec):
        return made
    return rec.adopt(rec.conform(rec.read(made), like.spec))


def _batch_norm(rec: Recorder, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    positions, flag = info.silent
    stats = [args[p] for p in positions]
    if any(s is None for s in stats):
        return _pure(rec, info, key, args, kwargs)
    if not args[flag]:
        copies = dict(zip(positions, map(rec.hold, stats), strict=True))
        args = tuple([copies.get(k, a) for k, a in enumerate(args)])
        return _pure(rec, info, metadata_key(info.func, args, kwargs), args, kwargs)
    if info.func is not aten.native_batch_norm.default:
        return _writes_generic(rec, info, args, kwargs, positions)
    out, mean, invstd, *new = rec.dispatch(aten._native_batch_norm_legit_functional.default, args, kwargs)
    for target, value in zip(stats, new, strict=True):
        rec.write(target, rec.read(value))
    return out, mean, invstd


def _writes_generic(
    rec: Recorder, info: OpInfo, args: tuple, kwargs: dict, silent: tuple[int, ...] = ()
) -> Any:
    """Any writing operator: call it on copies of the storages it writes, aliases among the arguments kept."""
    varies = rec.involves_symbols(args, kwargs)
    if varies and not rules.only_writes(info):
        assert rec.sizes is not None  # there are symbols
        fix(rec.sizes, info, args, kwargs, "writes in a way that has no functional form")
    written = rules.written(info, args, kwargs)
    rules.require_results(info, written, args, kwargs)
    targets = list(written.values()) + [args[p] for p in silent]
    for f in fakes_in(targets, []):
        if overlaps_itself(f.home.base.spec):
            raise Unsupported(info.name, "the written tensor overlaps itself in memory")
        _require_followed(f)
    homes = {id(f.home): f.home for f in fakes_in(targets, [])}
    order = list(homes)
    aliases: list[list] = []

    def template(a: Any) -> Any:
        if type(a) is FakeTensor and id(a.home) in homes:
            base = a.home.base.spec
            if a.spec.dtype != base.dtype:
                raise Unsupported(info.name, "writes through a view of another dtype")
            if (a.spec.conj, a.spec.neg) != (base.conj, base.neg):
                raise Unsupported(info.name, "writes with a conjugate of what it writes")
            offset = a.spec.offset - a.home.first.spec.offset + base.offset
            aliases.append([order.index(id(a.home)), list(a.spec.shape), list(a.spec.stride), offset])
            return ("alias", len(aliases) - 1)
        if type(a) in (list, tuple):
            return [template(v) for v in a]
        return rec._lower(a)

    t_args, t_kwargs = [template(a) for a in args], {k: template(v) for k, v in kwargs.items()}
    device = rules.result_device(info, args, kwargs)
    result, standins = rules.call_on_meta(info, args, kwargs) if not varies else ((), {})
    for f in fakes_in(targets, []):
        if id(f) in standins and tuple(standins[id(f)].shape) != f.spec.shape:
            raise Unsupported(info.name, "resizes a tensor")
    results = result if isinstance(result, (tuple, list)) and len(info.returns) != 1 else (result,)
    fresh = [rules.recipe_of(v, device) for r, v in zip(info.returns, results, strict=False) if r is None]
    new_specs = [_at_zero(homes[h].base.spec) for h in order]
    bases = [homes[h].base for h in order]
    values = rec.record(
        mutating.functionalized_call, (info.func, bases, aliases, t_args, t_kwargs), {}, (*fresh, *new_specs)
    )
    rec.trace.ops[-1].random = info.random
    for h, value in zip(order, values[len(fresh) :], strict=True):
        homes[h].base = value
        homes[h].count_write(rec.source)
        homes[h].check()
    for target in targets:
        if isinstance(target, (list, tuple)):
            count_writes(target)
    made = iter([rec.adopt(v) for v in values[: len(fresh)]])
    outs = [written[r] if r is not None else next(made) for r in info.returns]
    return outs[0] if len(outs) == 1 else tuple(outs) if outs else None


def _at_zero(spec: Spec) -> Spec:
    return shifted(spec, -spec.offset)


def _metadata(rec: Recorder, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    target = args[0]
    if info.func is aten.detach_.default:
        return target
    before = target.spec
    if info.func is aten.set_.source_Tensor:
        # It would share memory with the source, but neither a version counter nor a base.
        raise Unsupported(info.name, "a tensor takes the storage of another")
    spec, home = rules.metadata_after(rec, info, args, kwargs)
    if info.func is aten.resize_.default and spec.shape != before.shape and before.numel() != 0:
        raise Unsupported(info.name, "resizes a tensor that has contents, of which `out=` warns")
    form = rules.AS_VIEW.get(info.func)
    if form is None or info.func is aten.as_strided_.default:
        count, had = spec.numel(), before.numel()
        varies = spec.symbolic or before.symbolic  # then both have as many elements
        if not varies and (count > had or (had == 0 and spec.shape != before.shape)):
            _require_growable(info.name, target)
            fresh = rec.call(
                aten.empty_strided.default,
                list(spec.shape),
                list(spec.stride),
                dtype=spec.dtype,
                device=spec.device,
            )
            set_metadata(target, spec, home)
            home.base = fresh
            home.count_write(rec.source)
            return target
        home.reach(spec, before)
        form, rest, kwargs = aten.as_strided.default, (spec.shape, spec.stride, spec.offset), {}
    else:
        rest = args[1:]
    step = ViewStep(form, rest, kwargs, before, spec, torch.is_grad_enabled(), in_place=True)
    value = replay(rec, step, rec.read(target))
    set_metadata(target, spec, home)
    target.path, target.value, target.seen = (*target.path, step), value, home.version
    return target


def _composite(rec: Recorder, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    rule = rec._decompositions.get(info.func)
    if (
        rule is None and torch.is_inference_mode_enabled()
    ):  # the operators inside count what they write, as in eager
        return rules._composite(rec, info, key, args, kwargs)
    return rec.decompose(rule or info.func.decompose, args, kwargs)


_RULES: dict[Kind, Callable[..., Any]] = {
    Kind.PURE: _pure,
    Kind.VIEW: _view,
    Kind.INPLACE: _inplace,
    Kind.WRITES: _writes,
    Kind.METADATA: _metadata,
    Kind.COMPOSITE: _composite,
    Kind.VALUES: rules._values,
    Kind.HIGHER_ORDER: rules._higher_order,
}


# -- rules by operator -------------------------------------------------------------------------------------


def _clone(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    return rules._clone(rec, func, args, kwargs)


def _copy_(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """A copy is its source's value, cast and broadcast: no operator at all where nothing changes."""
    args = rec.convert(args)
    target, source = args[0], args[1]
    if source.home is target.home and source.spec is target.spec:
        target.home.count_write(rec.source)  # a copy onto itself changes no value, but autograd saw it
        return target
    return _inplace(rec, op_info(func), metadata_key(func, args, kwargs), args, kwargs)


def _rnn_layer(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    trains = args[-1] if len(args) == 16 else kwargs.get("train")
    return rec.dispatch(training_ops.mkldnn_rnn_layer, args, kwargs) if trains else NotImplemented


_SPECIAL: dict[Any, Callable[..., Any]] = {
    **EFFECTS,
    **rules.NUMBERS,
    aten.mkldnn_rnn_layer.default: _rnn_layer,
    aten._local_scalar_dense.default: rules._item,
    aten.lift_fresh.default: rules._lift,
    aten.lift.default: rules._lift,
    aten.clone.default: _clone,
    aten._fused_sdp_choice.default: rules.sdp_choice,
    aten.is_pinned.default: rules._not_pinned,
    aten.copy_.default: _copy_,
}

Recorder.rules_by_operator = _SPECIAL
Recorder.rules_by_kind = _RULES
