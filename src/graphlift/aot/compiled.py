"""From a torch-level graph to a callable that behaves as the graph does in eager.

In: a GraphModule, example inputs and two compilers. Out: a `Compiled`, called with tensors, giving a tuple.
Always: exactly eager's effects, or eager itself with `fallback_reason` saying why.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .. import config
from ..capture.checkpoint_rules import regions_of, with_checkpoints
from ..collector import collector_paused
from ..fake import FakeTensor
from ..fake.ops import aten
from ..fake.spec import make_spec
from .absent import without
from .again import Again
from .emit import Input, emit, example_of
from .ir import Op, Trace, Value, inputs_of, memory_root, rewritten
from .joint import Joint, trace_joint
from .late import Late, late_of
from .listing import ListingRecorder
from .nodes import Node, Nodes, add_nodes
from .partition import Split, partition
from .passes import is_dense
from .plan import FallBack, FromSlot, Surroundings
from .record import Decompositions, Recorder
from .release import EVERYTHING, Release, freed_as_one, tangents_that_need
from .saved import Part, bits, members, union
from .segments import Segment, Watched, until
from .stores import Store
from .training import Backward, Backwards, Layout, add_ports, arguments, make_apply
from .versions import written
from .wrapper import Source, add_epilogue, add_prologue

Compiler = Callable[[fx.GraphModule, list[FakeTensor]], Callable[[list], Sequence]]
Partitioner = Callable[[Trace, set[Value]], Split]


class Forms(Mapping[str, fx.GraphModule]):
    """Printable graphs by name; those not needed to run are made when looked at."""

    def __init__(self) -> None:
        self._made: dict[str, fx.GraphModule] = {}
        self._makers: dict[str, Callable[[], fx.GraphModule]] = {}

    def put(self, name: str, gm: fx.GraphModule) -> None:
        self._made[name] = gm

    def later(self, name: str, make: Callable[[], fx.GraphModule]) -> None:
        self._makers[name] = make

    def __getitem__(self, name: str) -> fx.GraphModule:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._made, *self._makers]))

    def __len__(self) -> int:
        return len(set(self._made) | set(self._makers))


class Compiled:
    """A compiled region. `run` is the bare function (what hot paths call); the rest describes it."""

    def __init__(self, run: Callable[..., tuple], forms: Forms) -> None:
        self.run = run
        self.forms = forms
        self.source = ""
        self.fallback_reason: str | None = None
        self.timings: dict[str, float] = {}
        self.saved_bytes = 0
        self.eager_saved_bytes = 0  # what eager would keep for the same backward
        self.recomputed = 0
        self.mutated_inputs: tuple[int, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple:
        return self.run(*inputs)

    def print_readable(self) -> str:
        """Every form, as text."""
        return "\n\n".join(f"# {name}\n{gm.code.strip()}" for name, gm in self.forms.items())


def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Tensor],
    *,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    decompositions: Decompositions | None = None,
    partitioner: Partitioner | None = None,
    listing: bool = False,
    in_place: bool = False,
) -> Compiled:
    """Compile a torch-level graph for inputs like these (metadata, aliasing and modes as now).

    Without a `partitioner` it is the minimum cut within `config.activation_memory_budget`. With `listing`, the form
    "traced" shows the operators as autograd called them. With `in_place`, the graph of a region without a backward may
    write its inputs (see `stores`), else it is functional.
    """
    if partitioner is None:
        partitioner = functools.partial(partition, budget=config.activation_memory_budget)
    forms = Forms()
    forms.put("captured", gm)
    recorders: list[Recorder] = []

    def recorder() -> Recorder:
        recorders.append((ListingRecorder if listing else Recorder)(decompositions))
        recorders[-1].in_place = in_place
        return recorders[-1]

    with collector_paused():
        compiled = _compile(
            gm, example_inputs, forms, fw_compiler, bw_compiler or fw_compiler, recorder, partitioner
        )
    if recorders and isinstance(recorders[-1], ListingRecorder):
        forms.later("traced", recorders[-1].listing.module)
    return compiled


def _compile(
    gm: fx.GraphModule,
    example_inputs: Sequence[Tensor],
    forms: Forms,
    fw_compiler: Compiler,
    bw_compiler: Compiler,
    recorder: Callable[[], Recorder],
    partitioner: Partitioner,
) -> Compiled:
    start = time.perf_counter()
    try:
        joint = trace_joint(gm, example_inputs, recorder)
    except FallBack as e:
        result = Compiled(_eager(gm), forms)
        result.fallback_reason = str(e)
        return result
    traced = time.perf_counter()
    build = _build_training if joint.has_backward else _build_inference
    result = build(gm, joint, forms, fw_compiler, bw_compiler, partitioner)
    result.timings["trace"] = traced - start
    if joint.new_leaves:
        result.run = _with_leaves(result.run, joint.new_leaves)
    result.run.writes_last = True
    result.mutated_inputs = tuple(m.input for m in joint.around.mutations)
    return result


def _with_leaves(run: Callable[..., tuple], positions: tuple[int, ...]) -> Callable[..., tuple]:
    """`run` on inputs that the program makes require grad: before, so that outputs lead to them."""

    def with_leaves(*inputs: Tensor) -> tuple:
        for k in positions:
            inputs[k].requires_grad_()
        try:
            return run(*inputs)
        except BaseException:  # the program runs again, from its start
            for k in positions:
                inputs[k].requires_grad_(False)
            raise

    return with_leaves


def _eager(gm: fx.GraphModule) -> Callable[..., tuple]:
    @functools.cache
    def forward() -> Callable[..., Any]:  # not the module: hooks on all modules are the user's
        return with_checkpoints(gm).forward

    def run(*inputs: Tensor) -> tuple:
        out = forward()(*inputs)
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    return run


def _named(prefix: str, values: Sequence[Value]) -> list[tuple[str, Input]]:
    return [(f"{prefix}{k}", v) for k, v in enumerate(values)]


def _inputs_named(joint: Joint) -> list[tuple[str, Input]]:
    count, inputs = len(joint.leaves), joint.trace.inputs
    bases = count + len(joint.around.bases)
    return [
        *_named("input", inputs[:count]),
        *_named("base", inputs[count:bases]),
        *_sizes_named(joint),
        *_named("constant", inputs[bases:]),
    ]


def _sizes_named(joint: Joint) -> list[tuple[str, Input]]:
    return [(symbol.name, symbol) for symbol in joint.around.symbols]


def _fakes(inputs: list[tuple[str, Input]], joint: Joint) -> list[Any]:
    return [example_of(given, joint.sizes) for _, given in inputs]


def _build_inference(
    gm: fx.GraphModule, joint: Joint, forms: Forms, fw: Compiler, bw: Compiler, partitioner: Partitioner
) -> Compiled:
    trace, around = joint.trace, joint.around
    inputs = _inputs_named(joint)
    graph = emit(inputs, trace.ops, list(trace.outputs), "inference", joint.sizes)
    forms.put("inference", graph)
    start = time.perf_counter()
    compiled = written(fw(graph, _fakes(inputs, joint)), around)
    src = Source("def run(*i):")
    extra = add_prologue(src, around)
    constants = "".join(f", c{k}" for k in range(len(joint.constants)))
    # Below autograd where running it in the open would leave traces: gradients, views, autocast, counted writes.
    shielded = (
        around.autocast
        or any(v.op is not None and (v.op.view or _writes(v.op)) for v in trace.outputs)
        or (around.grad_mode and any(joint.requires_grad))
        or any(isinstance(op.func, Store) for op in trace.ops)
    )
    call = f"fw([*i{extra}{constants}])"
    if shielded:
        src.add("with Guard(BELOW):")
        src.add(f"    o = {call}")
    elif _straight(around) and len(around.outputs) == len(trace.outputs):
        src.add(f"return tuple({call})")
    else:
        src.add(f"o = {call}")
    if "return" not in src.lines[-1]:
        add_epilogue(src, around, "o")
    return _assemble(src, forms, gm, joint, compiled, start)


def _writes(op: Op) -> bool:
    """Whether it may write what it makes, of which eager's callers see nothing: a factory, or a product by `out=`."""
    schema = getattr(op.func, "_schema", None)
    if op.func in (aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default):
        return True
    return schema is not None and op.func is not aten._to_copy.default and "pin_memory" in str(schema)


def _straight(around: Surroundings) -> bool:
    """Whether the graph's outputs are the region's, with nothing to do around them."""
    return (
        not (around.mutations or around.metadata or around.bases or around.touched or around.written_outputs)
        and around.grad_mode_after == around.grad_mode
        and len(around.outputs) == len(around.differentiable)
        and all(type(p) is FromSlot and p == FromSlot(k) for k, p in enumerate(around.outputs))
    )


def _assemble(src: Source, forms: Forms, gm: fx.GraphModule, joint: Joint, fw: Any, start: float) -> Compiled:
    src.names.update(fw=fw, eager=_eager(gm))
    for k, c in enumerate(joint.constants):
        src.names[f"c{k}"] = c
    result = Compiled(src.make("run", "<graphlift region>"), forms)
    result.source = src.text()
    result.timings["compile forward"] = time.perf_counter() - start
    return result


def _build_training(
    gm: fx.GraphModule, joint: Joint, forms: Forms, fw: Compiler, bw: Compiler, partitioner: Partitioner
) -> Compiled:
    trace, around = joint.trace, joint.around
    start = time.perf_counter()
    free = {v for v, leaf in zip(trace.inputs, joint.leaves, strict=False) if leaf}
    split = partitioner(trace, free)
    handover = _Handover(joint, split, late_of(gm))
    inputs = _inputs_named(joint)
    forward = emit(inputs, handover.forward, handover.forward_outputs, "forward", joint.sizes)
    forms.put("forward", forward)
    forms.later("joint", lambda: _emit_joint(joint, inputs))
    backward_inputs = handover.backward_inputs()
    marks, count = trace.marks, joint.segments.count

    def whole_backward() -> fx.GraphModule:
        ops, grads = until(handover.backward, trace.grads[:count], marks, ())
        return emit(backward_inputs, ops, grads, "backward", joint.sizes)

    forms.later("backward", whole_backward)
    partitioned = time.perf_counter()
    compiled = written(fw(forward, _fakes(inputs, joint)), around)

    every = (1 << len(trace.tangents)) - 1

    def compile_backward(here: int, stops: tuple[int, ...], wanted: int) -> Backward:
        if here == every and not stops and wanted == EVERYTHING:
            return Backward(bw(forms["backward"], _fakes(backward_inputs, joint)), forms["backward"])
        leads = [g if wanted >> k & 1 else None for k, g in enumerate(trace.grads)]
        ends = [marks[c] if wanted >> count + c & 1 else None for c in stops]
        ops, grads = until(handover.backward, leads[:count], marks, ends)
        beyond = [v for v in ends if v is not None]
        came = [bool(here >> n & 1) for n in range(len(trace.tangents))]
        ops, grads = without(ops, [*trace.tangents, *beyond], grads, [*came, *(False for _ in beyond)])
        absent = {v for v, there in zip(trace.tangents, came, strict=True) if not there}
        needed = {v for op in ops for v in inputs_of(op)} | {*grads}  # what others need may be freed
        absent |= {v for _, v in handover.saved() if v not in needed}
        used = tuple([k for k, (_, v) in enumerate(backward_inputs) if v not in absent])
        inputs = [backward_inputs[k] for k in used]
        graph = emit(inputs, ops, grads, "backward", joint.sizes)
        return Backward(bw(graph, _fakes(inputs, joint)), graph, used)

    specs = [t.spec for t in trace.tangents]
    backwards = Backwards(compile_backward, specs, around.symbols, joint.constants)
    src = Source("def run(*i):")
    # Hooks on saved tensors get to see what eager saves, and anomaly detection every gradient, so eager it is.
    src.names["saved_hooks"] = torch._C._autograd._top_saved_tensors_default_hooks
    src.names["anomaly"] = torch.is_anomaly_enabled
    src.add("if saved_hooks(True) is not None or anomaly(): return eager(*i)")
    if any(map(regions_of, gm.graph.nodes)):  # eager's checkpoints are such hooks
        src.names["hooks_enabled"] = torch._C._autograd._saved_tensors_hooks_is_enabled
        src.add("if not hooks_enabled(): return eager(*i)")
    extra = add_prologue(src, around)
    if joint.segments.several:
        text = ""
        add_nodes(src, handover.nodes(compiled, backwards, gm, _refusal(joint)), around, extra)
    else:
        again = Again(gm, handover.layout, _correspondence(around), _refusal(joint))
        made = make_apply(compiled, backwards, handover.layout, again)
        text = _add_node(src, around, extra, handover.layout, made)
    result = _assemble(src, forms, gm, joint, compiled, partitioned)
    result.source = text + "\n" + result.source
    result.saved_bytes, result.recomputed = split.saved_bytes, split.recomputed
    result.eager_saved_bytes = joint.eager_saved_bytes
    result.timings["partition"] = partitioned - start
    return result


def _add_node(
    src: Source, around: Surroundings, extra: str, layout: Layout, made: tuple[Callable[..., tuple], str]
) -> str:
    """Statements that run the region as one node; gives the source of its forward and backward."""
    src.names["apply"], text = made
    slots = layout.tangents
    if around.grad_mode and not extra and _straight(around) and len(slots) == 1:
        src.add(f"return apply({arguments(layout)})")
    elif around.grad_mode:
        src.add(f"o = apply({arguments(layout)}{extra})")
        add_ports(src, slots)
    else:  # gradients are recorded inside although they are off outside
        src.add("set_grad(True)")
        src.add("try:")
        src.depth += 1
        src.add(f"o = apply({arguments(layout)}{extra})")
        add_ports(src, slots)
        src.depth -= 1
        src.add("finally:")
        src.add("    set_grad(False)")
    if "return apply" not in src.lines[-1]:
        add_epilogue(src, around, "o")
    return text


def _emit_joint(joint: Joint, inputs: list[tuple[str, Input]]) -> fx.GraphModule:
    trace = joint.trace
    ops, grads = until(trace.ops, trace.grads[: joint.segments.count], trace.marks, ())
    return emit(
        inputs + _named("tangent", trace.tangents),
        ops,
        [*trace.outputs, *grads],
        "joint",
        joint.sizes,
    )


def _correspondence(around: Surroundings) -> dict[int, tuple[int, bool]]:
    """For each differentiable slot an output of the captured graph: the slot itself, or a view with it as base."""
    found: dict[int, tuple[int, bool]] = {}
    for k, p in enumerate(around.outputs):
        if type(p) is not FromSlot or p.geometry is not None or not around.differentiable[p.slot]:
            continue
        if not p.path or (p.slot not in found and all(s.grad_mode and not s.data for s in p.path)):
            found[p.slot] = k, bool(p.path)
    return found


def _refusal(joint: Joint) -> str | None:
    around = joint.around
    if joint.uses_random:
        return "it draws random numbers, which cannot be drawn again"
    if around.autocast:
        return "it ran under autocast"
    if around.mutations or around.bases or around.metadata:
        return "it changes its inputs in place"
    corresponding = _correspondence(around)
    if any(d and k not in corresponding for k, d in enumerate(around.differentiable)):
        return "it returns views of its intermediate results"
    return None


class _Handover:
    """What the forward gives the backward: inputs by reference, and further outputs."""

    def __init__(self, joint: Joint, split: Split, late: Late | None) -> None:
        self.joint, self.late = joint, late
        trace = joint.trace
        self.forward: list[Op] = list(split.forward)
        self.backward: list[Op] = list(split.backward)
        self.forward_outputs: list[Value | None] = list(trace.outputs)
        position = {v: k for k, v in enumerate(trace.inputs)}
        slot_of: dict[Value, int] = {}
        for k, v in enumerate(trace.outputs):
            slot_of.setdefault(v, k)
        root_slot = {memory_root(v): k for k, v in enumerate(trace.outputs)}
        written = joint.changed_inputs()
        count = len(joint.leaves)
        self.saved_inputs: list[tuple[int, Value]] = []
        self.saved_slots: list[tuple[int, Value]] = []
        self.saved_constants: list[Value] = []
        for v in split.saved:
            k = position.get(v)
            if k is not None and k < count and k not in written and v not in trace.borrowed:
                self.saved_inputs.append((k, v))
            elif k is not None and k >= count + len(joint.around.bases):
                self.saved_constants.append(v)
            elif k is not None:
                self._save_copy(v)
            elif v in slot_of:
                self.saved_slots.append((slot_of[v], v))
            elif v in root_slot:
                self._save_through_output(v, trace.outputs[root_slot[v]], root_slot[v])
            else:
                self._save(v, v)

    def _save(self, produced: Value, v: Value) -> None:
        self.saved_slots.append((len(self.forward_outputs), v))
        self.forward_outputs.append(produced)

    def _save_copy(self, v: Value) -> None:
        """A copy of a tensor with holes, or of one that overlaps itself, is of the memory that it spans."""
        spec = v.spec
        if is_dense(spec.shape, spec.stride) or 0 in spec.shape:
            self._save(_cloned(self, v), v)
            return
        span = spec.span() - spec.offset
        op = Op(aten.as_strided.default, (v, (span,), (1,)), {}, 0, None)
        flat = make_spec((span,), (1,), spec.offset, spec.dtype, spec.device, conj=spec.conj, neg=spec.neg)
        seen = Value(flat, op)
        op.outs.append(seen)
        self.forward.append(op)
        stand_in = Value(flat)
        self._read_through(v, stand_in)
        self._save(_cloned(self, seen), stand_in)

    def _save_through_output(self, v: Value, output: Value, slot: int) -> None:
        """`v`'s memory is handed to the user as `output`: keep that tensor, so that changing it is noticed."""
        mine, theirs = v.spec, output.spec
        if (mine.numel(), mine.dtype, mine.conj) != (theirs.numel(), theirs.dtype, theirs.conj):
            self._save_copy(v)
            return
        stand_in = Value(output.spec)
        self._read_through(v, stand_in)
        self.saved_slots.append((slot, stand_in))

    def _read_through(self, v: Value, stand_in: Value) -> None:
        """The backward reads `v` as a view of a saved tensor that spans its memory."""
        op = Op(aten.as_strided.default, (stand_in, v.spec.shape, v.spec.stride, 0), {}, 1, None)
        new = Value(v.spec, op)
        op.outs.append(new)
        env = {v: new}
        self.backward = [op, *[rewritten(b, env) for b in self.backward]]
        grads = self.joint.trace.grads
        self.joint.trace.grads = [env.get(g, g) if g is not None else None for g in grads]

    @functools.cached_property
    def layout(self) -> Layout:
        """Of a region that is one node."""
        joint = self.joint
        trace, around = joint.trace, joint.around
        differentiable = around.differentiable
        outputs = len(differentiable)
        slots = [k for k, d in enumerate(differentiable) if d]
        count = len(joint.leaves) + len(around.bases)
        apart = not freed_as_one([mask for mask, _ in joint.parts], len(trace.tangents))
        release = self._release() if apart else self._release_at_once(joint.parts, len(self.saved()))
        return Layout(
            constants=tuple(joint.constants),
            outputs=outputs,
            non_differentiable=tuple(k for k, d in enumerate(differentiable) if not d),
            saved_inputs=tuple(k for k, _ in self.saved_inputs),
            saved_slots=tuple(k for k, _ in self.saved_slots),
            tangents=tuple(slots),
            release=release,
            apart=apart,
            unconnected=joint.unconnected,
            leaves=tuple(
                k < len(joint.leaves) and joint.parameters[k] and k not in joint.unconnected
                for k in range(count)
            ),
            symbols=around.symbols,
            tensors=count,
            watched=self._watched(joint.segments.nodes[0], release.needs),
            late=self.late,
        )

    def nodes(
        self, fw: Callable[[list], Sequence], bw: Backwards, gm: fx.GraphModule, refusal: str | None
    ) -> Nodes:
        """A region that is several nodes."""
        joint, segments = self.joint, self.joint.segments
        if any(cut.mixed for cut in segments.cuts):
            refusal = refusal or "it changes a result in place beside views of it"
        release, around = self._release(), joint.around
        nodes = tuple(self._node(n, release) for n in range(len(segments.nodes)))
        frees = all(
            node.saved and self._frees_itself(s) for node, s in zip(nodes, segments.nodes, strict=True)
        )
        slots = [k for k, d in enumerate(around.differentiable) if d]
        return Nodes(
            nodes=nodes,
            cuts=segments.cuts,
            inputs=segments.count,
            tensors=len(joint.leaves),
            constants=tuple(joint.constants),
            outputs=len(around.differentiable),
            saved=tuple(k for k, _ in self.saved_inputs),
            kept=tuple(k for k, _ in self.saved_slots),
            release=None if frees else release,
            arriving=tuple(slots),
            fw=fw,
            bw=bw,
            gm=gm,
            again=_correspondence(around),
            refusal=refusal,
            late=self.late,
        )

    def _node(self, n: int, release: Release) -> Node:
        segments = self.joint.segments
        segment, cuts = segments.nodes[n], segments.arriving_at(n)
        inputs = tuple(k for k in members(segment.leads) if k < segments.count)
        to = 0 if segment.hands_on is None else segments.nodes[segment.hands_on].tangents
        between = {
            c: 1 << cut.tangent
            for c, cut in enumerate(segments.cuts)
            if cut.tangent is not None and to >> cut.tangent & 1
        }
        saved = tuple(k for k, need in enumerate(release.needs) if need & segment.tangents)
        return Node(
            tangents=members(segment.tangents),
            inputs=inputs,
            cuts=cuts,
            edges=(*inputs, *(segments.count + c for c in cuts)),
            hands_on=segment.hands_on,
            between=tuple(between),
            at=union(between.get(c, 0) for c in cuts),
            watched=self._watched(segment, release.needs),
            saved=saved,
            release=self._release_at_once([p for p in release.parts if p[0] & segment.tangents], len(saved)),
        )

    def _frees_itself(self, segment: Segment) -> bool:
        """Whether a backward of any of its outputs frees all that its node saves, and nothing else."""
        parts = [mask for mask, _ in self.joint.parts]
        own = members(segment.tangents)
        inside = [bits(part >> t & 1 for t in own) for part in parts if part & segment.tangents]
        alone = not any(part & segment.tangents and part & ~segment.tangents for part in parts)
        return alone and bool(inside) and freed_as_one(inside, len(own))

    def _watched(self, segment: Segment, needs: Sequence[int]) -> Watched:
        """What eager's backward needs unchanged and this one does not read. `needs`: of what is kept, by tangents."""
        joint = self.joint
        apart = {("i", k) for k in joint.changed_inputs() | joint.unconnected}
        apart |= {("o", m.slot) for m in joint.around.mutations}
        kept = [*(("i", k) for k, _ in self.saved_inputs), *(("o", k) for k, _ in self.saved_slots)]
        apart |= {k for n, k in enumerate(kept) if not segment.tangents & ~needs[n]}
        return tuple(watched for watched in segment.watched if watched[:2] not in apart)

    def _release_at_once(self, parts: Sequence[Part], saved: int) -> Release:
        """Of a node that frees all it saved when its backward runs."""
        return Release(tuple(parts), ((1 << len(self.joint.trace.tangents)) - 1,) * saved)

    def _release(self) -> Release:
        trace, saved = self.joint.trace, [v for _, v in self.saved()]
        cuts = self.joint.segments.cuts
        marks = {
            v: 1 << cut.tangent if cut.tangent is not None else 0
            for v, cut in zip(trace.marks, cuts, strict=True)
            if v is not None
        }
        needs = tangents_that_need(saved, self.backward, trace.tangents, marks)
        return Release(self.joint.parts, needs, nodes=self.joint.segments.several)

    def saved(self) -> list[tuple[int, Value]]:
        return [*self.saved_inputs, *self.saved_slots]

    def backward_inputs(self) -> list[tuple[str, Input]]:
        trace = self.joint.trace
        return (
            _named("saved", [v for _, v in self.saved()])
            + _named("tangent", trace.tangents)
            + _sizes_named(self.joint)
            + _named("constant", trace.inputs[self.joint.segments.count :])
        )


def _cloned(handover: _Handover, v: Value) -> Value:
    op = Op(aten.clone.default, (v,), {}, 0, None)
    copy = Value(v.spec, op)
    op.outs.append(copy)
    handover.forward.append(op)
    return copy


def interpret(gm: fx.GraphModule, example: list[FakeTensor]) -> Callable[[list], Sequence]:
    """The compiler that runs the functional graph operator by operator (backend "aot_eager")."""
    forward = gm.forward

    def run(args: list) -> Sequence:
        return forward(*args)

    return run
