"""Tracing a torch-level graph, forward and backward, into one functional trace.

In: a GraphModule and real example inputs. Out: a `Joint`: the trace, and the `Surroundings` that put effects back.
Always: autograd itself, run on fakes above the recorder, decides every gradient; raises FallBack rather than guess.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, cast

import torch
from torch import Tensor, fx

from ..capture.checkpoint_rules import Region, is_reentrant, region_of
from ..capture.torch_state import casts
from ..data import dataclass
from ..fake import FakeLimit, FakeTensor, Spec
from ..fake.ops import aten
from ..fake.spec import make_spec
from ..fake.tensor import fakes_in, in_mode_of
from ..shapes.expr import Expr, contiguous_strides, free
from ..shapes.node import expr_of, table_of
from ..shapes.table import SymbolTable
from . import captured_calls, passes
from .effect_ops import REPLACED
from .ir import BACKWARD, FORWARD, Trace, Value, memory_root
from .lighten import lighten
from .plan import (
    FallBack,
    FromInput,
    FromSlot,
    Geometry,
    Literal,
    MetadataMutation,
    Mutation,
    OutputPlan,
    SameAs,
    Surroundings,
    SyntheticBase,
)
from .record import Recorder
from .saved import (
    Part,
    eager_saved_bytes,
    leading_to,
    needed_unchanged,
    nodes_behind,
    released_parts,
    union,
)
from .segments import Cut, Segments, Watched, find_cuts, find_segments, mark_cut, views_between
from .stores import store_in_place, users_of, written_part
from .versions import count_versions, version_of
from .views import Path, ViewStep, detaches, replay, same_layout

AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
for _key in ("AutocastCUDA", "AutocastXPU", "AutocastMPS", "AutocastPrivateUse1"):
    AUTOCAST_KEYS |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _key))
_AUTOCAST_DEVICES = ("cpu", "cuda")


@dataclass(slots=True)
class Joint:
    trace: Trace
    around: Surroundings
    constants: list[Tensor]
    leaves: list[bool]  # per input: a leaf that requires grad
    parameters: list[bool]  # per input: such a leaf in each call
    requires_grad: list[bool]  # per input
    has_backward: bool
    uses_random: bool
    new_leaves: tuple[int, ...] = ()  # inputs that come to require grad
    unconnected: frozenset[int] = frozenset()  # inputs that require grad, with no way there from any output
    segments: Segments = Segments(0)  # the nodes it is in autograd's graph
    storage_groups: list[tuple[int, ...]] = field(default_factory=list)
    sizes: SymbolTable | None = None  # None: every size is a number
    eager_saved_bytes: int = 0  # what eager's own backward would keep
    parts: tuple[Part, ...] = ()  # of eager's graph, by what a backward frees

    def changed_inputs(self) -> set[int]:
        """Inputs that are not, after the region ran, what they were before (values, metadata or version)."""
        around = self.around
        changed = {m.input for m in (*around.mutations, *around.metadata)} | {*around.touched}
        changed.update(i for b in around.bases for i in b.members)
        for group in self.storage_groups:
            if changed & set(group):
                changed.update(group)
        return changed


@dataclass(slots=True)
class _Inputs:
    """The region's inputs as the traced code sees them (`fakes`) and as gradients are taken of them (`leaves`)."""

    real: list[Tensor]
    sizes: list[Any] = field(default_factory=list)  # SymInts of the inputs that are ints, which come last
    fakes: list[FakeTensor] = field(default_factory=list)
    leaves: list[FakeTensor] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)  # id of fake -> input index
    versions: list[int | None] = field(default_factory=list)
    grad_fns: list[Any] = field(default_factory=list)
    needs_grad: list[bool] = field(default_factory=list)
    bases: list[tuple[tuple[int, ...], Value, FakeTensor]] = field(default_factory=list)
    new_leaves: list[int] = field(default_factory=list)  # inputs that the program makes require grad
    # Id of an output -> nodes that give it.
    made: dict[int, tuple[fx.Node, ...]] = field(default_factory=dict)


def trace_joint(
    gm: fx.GraphModule, inputs: Sequence[Tensor], recorder: Callable[[], Recorder] = Recorder
) -> Joint:
    """Trace once; once more with aliased inputs merged if the first trace wrote to one of them."""
    with torch.autograd.set_detect_anomaly(False):  # it would look at the values of gradients
        return _trace_joint(gm, inputs, recorder)


def _trace_joint(gm: fx.GraphModule, inputs: Sequence[Tensor], recorder: Callable[[], Recorder]) -> Joint:
    joint = _trace(gm, inputs, recorder(), merge=())
    written = {m.input for m in joint.around.mutations}
    merge = tuple(g for g in joint.storage_groups if written & set(g))
    if merge and joint.sizes is not None:
        joint.sizes.fix(joint.sizes.hints, "inputs that share memory are written")
    return _trace(gm, inputs, recorder(), merge) if merge else joint


def _trace(
    gm: fx.GraphModule,
    inputs: Sequence[Tensor],
    rec: Recorder,
    merge: tuple[tuple[int, ...], ...],
) -> Joint:
    grad_mode, autocast = torch.is_grad_enabled(), autocast_state()
    around = Surroundings(grad_mode=grad_mode, autocast=any(enabled for enabled, _ in autocast))
    rec.compress_masks = grad_mode
    sources: list[tuple[int, fx.Node]] = []
    try:
        if gm.meta.get("history_read") and grad_mode:
            raise FallBack("history-read")
        if any(map(is_reentrant, gm.graph.nodes)):
            raise FallBack("graph-form", "a reentrant checkpoint, whose backward is one of its own")
        specs, sizes = _placeholders(gm)
        rec.sizes = table_of(sizes[0]) if sizes else None
        given = _make_inputs(rec, list(inputs[: len(specs)]), merge, specs, casts(gm.graph))
        if grad_mode and any(t.is_inference() and t.requires_grad for t in given.real):
            raise FallBack("inference-part", "an input made there requires grad")
        given.sizes = sizes
        around.tensors, around.symbols = len(specs), tuple(expr_of(size) for size in sizes)
        with rec:
            outs = _run(gm, given, rec, sources)
        around.grad_mode_after = torch.is_grad_enabled()
        if autocast_state() != autocast:
            raise FallBack("autocast-left")
        traced = _Outputs(rec, given, around)
        try:
            traced.classify(outs)
        except (
            RuntimeError,
            IndexError,
        ) as e:  # a view whose history autograd refuses to give, or cannot make again
            raise FallBack("view-history", str(e)) from None
        has_backward = any(around.differentiable)
        rec.forward_sources = sources
        region = functools.partial(_region, rec)
        saved_bytes = eager_saved_bytes(traced.slots, given.leaves, region) if has_backward else 0
        behind = nodes_behind(traced.roots()) if has_backward else {}
        segments, parts = _segments(given, traced, outs, behind, region)
        if not all(segment.leads for segment in segments.nodes):
            raise FallBack("new-leaf", "no input leads to an output that requires grad")
        reached = union(segment.leads for segment in segments.nodes) | union(
            1 << plan.input for cut in segments.cuts if type(plan := around.outputs[cut.output]) is FromInput
        )
        unconnected = frozenset(
            i
            for i, leaf in enumerate(given.leaves)
            if given.needs_grad[i]
            and leaf.requires_grad
            and not reached >> given.first[id(given.fakes[i])] & 1
        )
        if has_backward and not any(n and i not in unconnected for i, n in enumerate(given.needs_grad)):
            raise FallBack("new-leaf", "no input leads to an output that requires grad")
        if has_backward:
            _differentiate(rec, given, traced, [outs[cut.output] for cut in segments.cuts])
    except FakeLimit as e:
        raise FallBack("operator-limit", str(e)) from None
    finally:
        torch._C._set_grad_enabled(grad_mode)
        if around.autocast:
            torch.clear_autocast_cache()
        _restore_autocast(autocast)
    joint = _finish(rec, given, around, has_backward)
    joint.eager_saved_bytes, joint.unconnected, joint.parts = saved_bytes, unconnected, parts
    joint.segments = segments
    if has_backward:
        named = zip(joint.trace.inputs, joint.leaves, strict=False)
        needed = {k for segment in segments.nodes for kind, k, _ in segment.watched if kind == "i"}
        joint.trace.borrowed = {
            v
            for i, (v, leaf) in enumerate(named)
            if i not in needed and (not leaf or given.real[i].is_inference())
        }
    rec.release()
    return joint


def _store_parts(rec: Recorder, around: Surroundings, has_backward: bool) -> None:
    """Writes to part of an input write no more than that part, behind the region or, where it goes on to read the
    result and the compiler takes graphs that write, in the middle of it."""
    trace = rec.trace
    plain = [
        (n, m)
        for n, m in enumerate(around.mutations)
        if not (m.differentiable or m.hidden or m.resized is not None)
    ]
    if plain and rec.in_place and not has_backward:
        trace.ops = passes.drop_dead(trace.ops, trace.outputs)
        users = users_of(trace.ops)
        for _, m in plain:
            store_in_place(trace, users, trace.inputs[m.input], trace.outputs[m.slot])
    for n, m in plain:
        value, part = written_part(trace.inputs[m.input], trace.outputs[m.slot])
        sizes = [size for _, args, _ in part for size in args if isinstance(size, Expr)]
        if part and {symbol for size in sizes for symbol in free(size)} <= {*around.symbols}:
            trace.outputs[m.slot] = value
            around.mutations[n] = replace(m, part=part)


def _finish(rec: Recorder, given: _Inputs, around: Surroundings, has_backward: bool) -> Joint:
    trace = rec.trace
    trace.inputs.extend(v for _, v in rec.constants)
    passes.hold_copies(trace, rec.held, has_backward)
    held = {value.op for value in rec.held}
    passes.share_expressions(trace)
    if has_backward:
        lighten(trace, rec)
    _store_parts(rec, around, has_backward)
    rec.stage, rec.source = FORWARD, None
    passes.own_outputs(trace, lambda v: _clone(rec, v))
    live = [*trace.outputs, *(g for g in trace.grads if g is not None), *trace.remade.values()]
    trace.ops = passes.drop_dead(trace.ops, live)
    trace.outputs.extend(passes.unused_actions(trace))
    _find_offsets(trace, given, around)
    leaves = [i in given.new_leaves or (t.requires_grad and t.is_leaf) for i, t in enumerate(given.real)]
    return Joint(
        trace=trace,
        around=around,
        constants=[t for t, _ in rec.constants],
        leaves=leaves,
        parameters=[
            leaf and isinstance(t, torch.nn.Parameter) for t, leaf in zip(given.real, leaves, strict=True)
        ],
        requires_grad=[i in given.new_leaves or t.requires_grad for i, t in enumerate(given.real)],
        new_leaves=tuple(given.new_leaves),
        has_backward=has_backward,
        uses_random=any(op.random and op not in held for op in trace.ops),
        storage_groups=_storage_groups(given.real),
        sizes=rec.sizes,
    )


def _clone(rec: Recorder, value: Value) -> Value:
    copy = rec.call(aten.clone.default, value)
    return rec.conform(copy, value.spec)


def _storage_groups(real: list[Tensor]) -> list[tuple[int, ...]]:
    """Inputs that are different tensors on the same storage."""
    by_storage: dict[int, list[int]] = {}
    for i, t in enumerate(real):
        if t.numel():
            by_storage.setdefault(t.untyped_storage()._cdata, []).append(i)
    return [tuple(g) for g in by_storage.values() if len({id(real[i]) for i in g}) > 1]


def _find_offsets(trace: Trace, given: _Inputs, around: Surroundings) -> None:
    """as_strided counts from the start of the storage, so graphs with it hold for one storage offset only."""
    position = {v: i for i, v in enumerate(trace.inputs[: len(given.real)])}
    for op in trace.ops:
        if op.func in (aten.as_strided.default, aten.as_strided_scatter.default):
            i = position.get(memory_root(op.args[0]))
            if i is not None:
                around.offsets[i] = given.real[i].storage_offset()


# -- inputs ------------------------------------------------------------------------------------------------


def _placeholders(gm: fx.GraphModule) -> tuple[list[Spec | None], list[Any]]:
    """The symbolic metadata of the inputs that are tensors, and the SymInts of those that are sizes."""
    specs: list[Spec | None] = []
    sizes: list[Any] = []
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("val")
        if table_of(value) is not None:
            sizes.append(value)
            continue
        if sizes:
            raise FallBack("graph-form", "a tensor among the inputs comes after a size")
        symbolic = type(value) is FakeTensor and value.spec.symbolic
        specs.append(value.spec if symbolic else None)
    return specs, sizes


def _make_inputs(
    rec: Recorder,
    real: list[Tensor],
    merge: tuple[tuple[int, ...], ...],
    specs: list[Spec | None],
    casting: bool,
) -> _Inputs:
    given = _Inputs(real)
    by_id: dict[int, int] = {}
    merged = {i: group for group in merge for i in group}
    base_of: dict[tuple[int, ...], FakeTensor] = {}
    for group in merge:
        if any(real[i].requires_grad for i in group) and torch.is_grad_enabled():
            raise FallBack("shared-inputs-written", "autograd follows one of them")
        if len({real[i].dtype for i in group}) > 1:
            raise FallBack("shared-inputs-written", "as different dtypes")
    for i, t in enumerate(real):
        same = by_id.setdefault(id(t), i)
        if same != i:  # the same tensor again: the same fake, so its gradient is counted once
            rec.trace.inputs.append(Value(given.fakes[same].spec))
            given.fakes.append(given.fakes[same])
            given.leaves.append(given.leaves[same])
        else:
            leaf = fake = rec.add_input(t, rec.trace.inputs, specs[i])
            if i in merged:
                leaf = fake = _member(rec, given, base_of, merged[i], t)
            # Autocast keeps what it casts of leaves, but not of those that are views.
            if t.requires_grad and (not t.is_leaf or (casting and t._is_view())):
                leaf.requires_grad_()
                fake = in_mode_of(t, functools.partial(rec.non_leaf, leaf))
            given.fakes.append(fake)
            given.leaves.append(leaf)
            given.first[id(fake)] = i
        fake = given.fakes[i]
        given.needs_grad.append(t.requires_grad)
        given.grad_fns.append(fake.grad_fn)
        given.versions.append(version_of(fake))
    rec.trace.inputs.extend(value for _, value, _ in given.bases)
    return given


def _member(rec: Recorder, given: _Inputs, base_of: dict, group: tuple[int, ...], t: Tensor) -> FakeTensor:
    """An input that is a view of the flat tensor over its storage."""
    base = base_of.get(group)
    if base is None:
        numel = t.untyped_storage().nbytes() // t.dtype.itemsize
        value = Value(make_spec((numel,), (1,), 0, t.dtype, t.device))
        base = base_of[group] = in_mode_of(t, lambda: rec.adopt(value))
        given.bases.append((group, value, base))
    size, stride, offset = tuple(t.shape), tuple(t.stride()), t.storage_offset()
    spec = make_spec(size, stride, offset, t.dtype, t.device)
    step = ViewStep(aten.as_strided.default, (size, stride, offset), {}, base.spec, spec, True)
    fake = rec.alias(base, step, replay(rec, step, base.value))
    if t.requires_grad and t.is_leaf:
        fake.requires_grad_()
    return fake


# -- running the graph -------------------------------------------------------------------------------------


def _run(gm: fx.GraphModule, given: _Inputs, rec: Recorder, sources: list[tuple[int, fx.Node]]) -> tuple:
    """Raises: FallBack where the program raises, so that eager itself gives the error, in the user's own frames."""
    try:
        return _interpret(gm, given, rec, sources)
    except FallBack:
        raise
    except Exception as e:
        raise FallBack("graph-raises", f"{type(e).__name__}: {e}") from e


def _interpret(
    gm: fx.GraphModule, given: _Inputs, rec: Recorder, sources: list[tuple[int, fx.Node]]
) -> tuple:
    env: dict[fx.Node, Any] = {}
    fakes = iter([*given.fakes, *given.sizes])
    aliases: list[FakeTensor] = []
    leaves: list[FakeTensor] = []

    def load(a: Any) -> Any:
        if isinstance(a, fx.Node):
            return env[a]
        if isinstance(a, tuple):
            return (
                tuple([load(v) for v in a]) if not hasattr(a, "_fields") else type(a)(*[load(v) for v in a])
            )
        if isinstance(a, list):
            return [load(v) for v in a]
        if isinstance(a, dict):
            return {k: load(v) for k, v in a.items()}
        if isinstance(a, slice):
            return slice(load(a.start), load(a.stop), load(a.step))
        return a

    sequence = torch._C._autograd._get_sequence_nr
    for node in gm.graph.nodes:
        op = node.op
        if op == "placeholder":
            env[node] = next(fakes)
            continue
        rec.source = node
        if op == "output":
            result = load(node.args[0])
            outs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
            captured_calls.require_no_alias(outs, aliases)
            for out in outs:
                given.made[id(out)] = tuple(n for n, v in env.items() if v is out)
            if leaves and any(isinstance(out, Tensor) and out.requires_grad for out in outs):
                raise FallBack("new-leaf")
            return outs
        if op == "get_attr":
            env[node] = _attribute(gm, node.target, rec)
            continue
        args, kwargs = load(node.args), load(node.kwargs)
        if op == "call_function":
            env[node] = REPLACED.get(node.target, node.target)(*args, **kwargs)
            captured_calls.note_result(node.target, env[node], aliases)
        elif op == "call_method":
            if node.target == "requires_grad_":
                _require_leaf(args, kwargs, given, leaves)
            env[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            raise FallBack("graph-form", f"a call of submodule {node.target}")
        sources.append((sequence(), node))
    raise FallBack("graph-form", "no output")


def _require_leaf(args: tuple, kwargs: dict, given: _Inputs, leaves: list[FakeTensor]) -> None:
    """A leaf made inside the region may get gradients there, but give none to what the region returns."""
    wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    if args[0].requires_grad == wanted:
        return
    position = given.first.get(id(args[0]))
    if not wanted:
        raise FallBack("requires-grad-changed", "to False")
    if position is None:
        leaves.append(args[0])
    else:
        given.new_leaves.append(position)


def _attribute(gm: fx.GraphModule, target: str, rec: Recorder) -> Any:
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part)
    return rec.convert_constant(value) if isinstance(value, Tensor) else value


# -- outputs and effects -----------------------------------------------------------------------------------


def _descends(node: Any, old: Any) -> bool:
    """Whether the history that a written input had is part of the one it has now."""
    seen, stack = set(), [node]
    while old is not None and stack:
        one = stack.pop()
        if one is old:
            return True
        if one is not None and one not in seen:
            seen.add(one)
            stack.extend(n for n, _ in one.next_functions)
    return old is None


def _made_without_grad(t: Tensor) -> bool:
    """Whether `t` is a view of a tensor that autograd follows, made where it does not."""
    if not (t.requires_grad and t._is_view()):
        return False
    return torch._C._autograd._get_creation_meta(t) in _UNTRACKED


_UNTRACKED = (
    torch._C._autograd.CreationMeta.NO_GRAD_MODE,
    torch._C._autograd.CreationMeta.INFERENCE_MODE,
)


def _restrides_base(path: Path, other: Path) -> bool:
    """Whether `path` changes, in place, the metadata of a detached alias that `other` views."""
    n = next((n for n, step in enumerate(path) if step.in_place), 0)
    shared = len(other) > n and all(a is b for a, b in zip(path[:n], other, strict=False))
    return shared and any(map(detaches, path[:n]))


def _is_restrided_base(g: Geometry, other: Geometry) -> bool:
    """The same of outputs whose owner's metadata were changed in place."""
    own = g.aliases
    if g.is_view or not own or own != other.aliases[: len(own)]:
        return False
    return not same_layout(own[-1].spec, g.spec)


def _require_inside(whole: Spec, parts: Sequence[Spec]) -> None:
    """Raises: FallBack where a view of a tensor reads memory that is not the tensor's, or reads it otherwise."""
    own = whole.concrete()
    for part in parts:
        if (part.dtype, part.conj, part.neg) != (whole.dtype, whole.conj, whole.neg):
            raise FallBack("metadata-changed", "a view as another dtype, or a conjugate")
        of = part.concrete()
        inside = own.offset <= of.offset and of.span() <= own.span()
        if not (inside and passes.is_dense(own.shape, own.stride)):
            raise FallBack("metadata-changed", "of a tensor with views of memory that it no longer spans")


class _Outputs:
    """Sorts what the region gives back: graph outputs (slots), views to rebuild, inputs, written inputs."""

    def __init__(self, rec: Recorder, given: _Inputs, around: Surroundings) -> None:
        self.rec = rec
        self.given = given
        self.around = around
        self.slots: list[FakeTensor] = []
        self._slot_of: dict[int, int] = {}
        self._home_input: dict[int, int] = {}
        for i, leaf in enumerate(given.leaves):
            self._home_input.setdefault(id(leaf.home), i)

    def classify(self, outs: tuple) -> None:
        self._mutations()
        seen: dict[int, int] = {}
        for k, out in enumerate(outs):
            if isinstance(out, Tensor) and type(out) is not FakeTensor:
                raise FallBack("outside-tensor")
            if type(out) is not FakeTensor:
                if fakes_in((out,), []):
                    raise FallBack("outside-tensor", "a container of tensors")
                plan: OutputPlan = Literal(out)
            elif id(out) in seen:
                plan = SameAs(seen[id(out)])
            else:
                seen[id(out)] = k
                plan = self._plan(out)
            self.around.outputs.append(plan)
        given = self.given
        inputs = {i: fake for i, fake in enumerate(given.fakes) if given.first.get(id(fake)) == i}
        count_versions(self.around, inputs, given.versions, outs)
        paths = [p.path for p in self.around.outputs if isinstance(p, (FromInput, FromSlot))]
        restrided = sum(any(s.in_place for s in path) for path in paths) + len(self.around.metadata)
        untracked = sum(any(not s.grad_mode for s in path) for path in paths)
        used = [p.input for p in self.around.outputs if isinstance(p, FromInput)]
        untracked += sum(_made_without_grad(self.given.real[i]) for i in used)
        if restrided and untracked and len(paths) + len(self.around.metadata) > 1:
            # Rebuilding one counts as a change of the other, which autograd allows in program order only.
            raise FallBack("metadata-changed", "views made without grad beside aliases")
        placed = [g for p in self.around.outputs if isinstance(p, FromSlot) and (g := p.geometry) is not None]
        restrided_base = any(_restrides_base(a, b) for a in paths for b in paths if a is not b)
        if restrided_base or any(_is_restrided_base(a, b) for a in placed for b in placed if a is not b):
            raise FallBack("metadata-changed", "of a detached alias that is the base of another output")
        if self.around.grad_mode:
            self.around.between = views_between(outs, self.around.outputs)

    def roots(self) -> list[FakeTensor]:
        """The slots that gradients come for."""
        return [f for f, d in zip(self.slots, self.around.differentiable, strict=True) if d]

    def _plan(self, out: FakeTensor) -> OutputPlan:
        i = self.given.first.get(id(out))
        if i is not None:
            return FromInput(i)
        path = tuple(s for s in out.path)
        untracked = any(not s.grad_mode for s in path)  # such a view says it requires grad, with no history
        if out.requires_grad and out.is_leaf and not untracked:
            raise FallBack("new-leaf", "an output")
        if out.requires_grad and any(s.func is aten.detach.default for s in path):
            raise FallBack("alias-history", "a detached alias")
        i = self._home_input.get(id(out.home))
        if i is not None:
            return self._view_of_input(out, i, path)
        if id(out.home) in self.rec.constant_homes:
            raise FallBack("outside-tensor", "an output aliases a constant of the graph")
        return self._view_of_slot(out, path)

    def _view_of_input(self, out: FakeTensor, i: int, path: tuple) -> OutputPlan:
        if any(out.home is base.home for _, _, base in self.given.bases):
            return self._view_of_member(out, path)
        own = self.given.fakes[i].path  # changes of the input's own metadata, which come first
        if path[: len(own)] != own:
            raise FallBack("metadata-changed", "a view made before")
        path = path[len(own) :]
        if i in self.given.new_leaves and path:
            raise FallBack("requires-grad-changed", "of an input with views that are returned")
        if out.requires_grad and not self.given.fakes[i].requires_grad:
            raise FallBack("alias-history", "an alias of an input")
        return FromInput(i, path)

    def _view_of_member(self, out: FakeTensor, path: tuple) -> OutputPlan:
        for i, fake in enumerate(self.given.fakes):
            if fake.home is out.home and path[: len(fake.path)] == fake.path:
                return FromInput(i, path[len(fake.path) :])
        raise FallBack("shared-inputs-written", "an output aliases several of them")

    def _view_of_slot(self, out: FakeTensor, path: tuple) -> OutputPlan:
        root = out.home.root
        if root is None:
            raise FallBack("alias-history", "an output has no owner")
        if out is root:
            return FromSlot(self._slot(out, out.requires_grad))
        if out.requires_grad and not root.requires_grad:
            raise FallBack("alias-history", "a view")
        slot = self._slot(root, out.requires_grad)
        if root.path:
            aliases = tuple(filter(detaches, path))
            _require_inside(root.spec, [out.spec, *(s.spec for s in aliases)])
            tracked = all(s.grad_mode for s in path if not s.in_place)
            return FromSlot(slot, (), Geometry(root.spec, aliases, out.spec, out._is_view(), tracked))
        return FromSlot(slot, path)

    def _slot(self, fake: FakeTensor, differentiable: bool) -> int:
        """The slot of a fake that owns its memory; ``differentiable``: what is given of it has its history."""
        slot = self._slot_of.get(id(fake))
        if slot is None:
            slot = self._slot_of[id(fake)] = len(self.slots)
            self.slots.append(fake)
            self.rec.trace.outputs.append(self.rec.read(fake))
            self.around.differentiable.append(False)
        self.around.differentiable[slot] |= differentiable
        return slot

    def _mutations(self) -> None:
        rec, given = self.rec, self.given
        with_base = {i for group, _, _ in given.bases for i in group}
        sharing = {i for group in _storage_groups(given.real) for i in group}
        for i, fake in enumerate(given.fakes):
            if given.leaves[i].home is not fake.home:
                raise FallBack("data-assigned", "an input took the storage of another tensor")
            if given.first.get(id(fake)) != i:
                continue
            home = fake.home
            in_place = tuple(s for s in fake.path if s.in_place)
            became_differentiable = fake.grad_fn is not given.grad_fns[i]
            was_leaf = given.needs_grad[i] and given.grad_fns[i] is None
            if became_differentiable and (was_leaf or not _descends(fake.grad_fn, given.grad_fns[i])):
                raise FallBack("alias-history", "an input is detached in place, and then written")
            written = home.version != 0 and (home.base is not home.first or became_differentiable)
            if i in given.new_leaves:
                if written or fake.path or became_differentiable or i in with_base:
                    raise FallBack("requires-grad-changed", "of an input that is written")
                given.needs_grad[i] = True
            elif fake.requires_grad != given.needs_grad[i] and not (
                became_differentiable and fake.requires_grad
            ):
                raise FallBack("requires-grad-changed")
            if in_place:
                untracked = fake.requires_grad and not all(s.grad_mode for s in in_place)
                if (became_differentiable and written) or i in with_base or i in sharing or untracked:
                    raise FallBack("metadata-changed", "of an input under autograd")
                self.around.metadata.append(MetadataMutation(i, in_place))
            if i in with_base:
                if became_differentiable:
                    raise FallBack("shared-inputs-written", "one of them comes to require grad")
                continue
            if not written:
                continue
            if was_leaf and home.viewed and given.real[i]._is_view():  # views lead to its base's history now
                raise FallBack("alias-history", "a leaf that is a view is written")
            hidden = given.versions[i] is not None and version_of(fake) == given.versions[i]
            self._slot_of[-1 - i] = slot = len(self.slots)
            self.slots.append(fake)
            rec.trace.outputs.append(home.base)
            self.around.differentiable.append(became_differentiable and fake.requires_grad)
            resized = None if home.base.spec.shape == home.first.spec.shape else home.base.spec
            if resized is not None and (became_differentiable or hidden):
                raise FallBack("resized")
            self.around.mutations.append(Mutation(i, slot, became_differentiable, hidden, resized))
        for group, value, base in given.bases:
            slot = None
            if base.home.base is not value:
                slot = len(self.slots)
                self.slots.append(base)
                rec.trace.outputs.append(base.home.base)
                self.around.differentiable.append(False)
            numel = cast(int, base.spec.shape[0])  # of a real storage
            self.around.bases.append(SyntheticBase(group, base.spec.dtype, numel, slot))


# -- backward ----------------------------------------------------------------------------------------------


def _region(rec: Recorder, item: Any) -> Region | None:
    """The checkpoint that a node of autograd's is in, or the operator that made a fake's memory."""
    if type(item) is FakeTensor:
        op = item.home.first.op
        return region_of(op.source) if op is not None else None
    return region_of(rec.source_of(item))


def _segments(
    given: _Inputs,
    traced: _Outputs,
    outs: tuple,
    behind: dict[Any, int],
    region: Callable[[Any], Any],
) -> tuple[Segments, tuple[Part, ...]]:
    """The nodes of the region, and the parts of eager's graph by what a backward frees."""
    roots, count = traced.roots(), len(given.leaves) + len(given.bases)
    if not roots:
        return Segments(count), ()
    places = {id(given.leaves[i]): i for i in given.first.values()}
    cuts: tuple[Cut, ...] = ()
    around = traced.around
    whole = not around.grad_mode
    plain = not (around.mutations or around.metadata or around.bases)
    if not whole and (
        len(roots) > 1 or any(type(plan) is FromInput and plan.path for plan in around.outputs)
    ):
        edges = {edge for node in behind for edge in node.next_functions}
        tangents = {
            slot: n for n, slot in enumerate(k for k, d in enumerate(traced.around.differentiable) if d)
        }
        plans = [plan if plain or type(plan) is not FromInput else None for plan in around.outputs]
        cuts = find_cuts(outs, plans, tangents, edges, given.made)
    stops = {
        (outs[cut.output].grad_fn, outs[cut.output].output_nr): 1 << count + c for c, cut in enumerate(cuts)
    }
    if cuts:
        behind = nodes_behind(roots, stops)
    variables = {node: id(node.variable) for node in behind if hasattr(node, "variable")}
    ends = {(node, 0): 1 << places[leaf] for node, leaf in variables.items() if leaf in places}
    own = given.first.values()  # not the same tensor again
    homes = [("i", i, id(given.leaves[i].home)) for i in own]
    homes += [("o", k, id(fake.home)) for k, fake in enumerate(traced.slots)]

    def watched(part: Mapping[Any, int], leads: Mapping[Any, int]) -> Watched:
        needed = needed_unchanged(part, leads, region)
        return tuple((kind, k, needed[home]) for kind, k, home in homes if home in needed)

    solid = sum(1 << i for i in own if not _ends_there(given.real[i]))
    leads = leading_to(behind, {**ends, **stops})
    found = find_segments(roots, behind, leads, Segments(count, cuts), 0 if whole else solid, watched)
    return found, released_parts(behind, leads)


def _ends_there(t: Tensor) -> bool:
    """Whether nothing is seen of a backward that brings no gradient. Of other tensors, another call may give a leaf."""
    return isinstance(t, torch.nn.Parameter) and not t._backward_hooks


def _differentiate(rec: Recorder, given: _Inputs, traced: _Outputs, cuts: Sequence[FakeTensor]) -> None:
    roots = traced.roots()
    tangents = []
    for f in roots:
        value = Value(_dense(f.spec))
        rec.trace.tangents.append(value)
        tangents.append(rec.adopt(value))
    wanted = [
        i
        for i, (leaf, fake) in enumerate(zip(given.leaves, given.fakes, strict=True))
        if given.needs_grad[i] and leaf.requires_grad and given.first.get(id(fake)) == i
    ]
    rec.stage, rec.source = BACKWARD, None
    marks: dict[int, Value] = {}

    def mark(c: int, gradient: FakeTensor) -> FakeTensor:
        marks[c] = mark_cut(rec.trace.ops, rec.read(gradient), BACKWARD)
        return rec.adopt(marks[c])

    for c, cut in enumerate(cuts):
        cut.register_hook(functools.partial(mark, c))
    try:
        with rec, torch._C._ExcludeDispatchKeyGuard(AUTOCAST_KEYS):
            grads = torch.autograd.grad(roots, [given.leaves[i] for i in wanted], tangents, allow_unused=True)
    except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError) as e:
        raise FallBack("backward-raises", str(e)) from e
    found = dict(zip(wanted, grads, strict=True))
    rec.trace.grads = [
        rec.read(g) if (g := found.get(i)) is not None else None for i in range(len(given.real))
    ]
    rec.trace.marks = [marks.get(c) for c in range(len(cuts))]
    rec.trace.grads += [*[None] * len(given.bases), *rec.trace.marks]


def _dense(spec: Any) -> Any:
    """The layout gradients of such an output arrive in."""
    if passes.is_dense(spec.shape, spec.stride):
        return make_spec(spec.shape, spec.stride, 0, spec.dtype, spec.device)
    return make_spec(spec.shape, contiguous_strides(spec.shape), 0, spec.dtype, spec.device)


def autocast_state() -> tuple[tuple[bool, torch.dtype], ...]:
    return tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _AUTOCAST_DEVICES)


def _restore_autocast(state: tuple[tuple[bool, torch.dtype], ...]) -> None:
    for device, (enabled, dtype) in zip(_AUTOCAST_DEVICES, state, strict=True):
        if torch.is_autocast_enabled(device) != enabled:
            torch.set_autocast_enabled(device, enabled)
        if torch.get_autocast_dtype(device) != dtype:
            torch.set_autocast_dtype(device, dtype)
