"""The autograd.Function around a compiled forward and its lazily compiled backward.

In: forward and backward graphs, and which values pass between them. Out: a class whose `apply` is differentiable.
Always: saved tensors go through save_for_backward; a second derivative is right or an error, never silently wrong.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..data import dataclass
from ..fake import Spec
from ..frame import call_disabled
from ..shapes.expr import Symbol
from .blame import note_forward_line
from .late import Late
from .release import Release, keeper, keeps_graph
from .saved import bits
from .segments import Watched
from .wrapper import Source, literal, size_name

Run = Callable[[list], Sequence]


@dataclass(frozen=True, slots=True)
class Backward:
    """A compiled backward and its graph, which take those of the arguments that `used` gives (None: all)."""

    compiled: Run
    graph: fx.GraphModule
    used: tuple[int, ...] | None = None

    def run(self, args: list) -> Sequence:
        return self.compiled(self.taken(args))

    def plainly(self, args: list) -> Sequence:
        """The graph itself, operator by operator, on tensors of any kind."""
        return self.graph.forward(*self.taken(args))

    def taken(self, args: list) -> list:
        return args if self.used is None else [args[k] for k in self.used]


# Given which tangents come (None: all), and the marks at which it stops.
CompileBackward = Callable[[tuple[bool, ...] | None, tuple[int, ...]], Backward]

_raw_apply = torch._C._FunctionBase.__dict__["apply"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the compiled pair is called.

    `saved_inputs`: inputs kept for the backward; `saved_slots`: positions of the forward's outputs kept.
    `tangents`: for each incoming gradient used, the output it belongs to and its layout.
    """

    constants: tuple[Tensor, ...]
    outputs: int
    non_differentiable: tuple[int, ...]
    saved_inputs: tuple[int, ...]
    saved_slots: tuple[int, ...]
    tangents: tuple[tuple[int, Spec], ...]
    leaves: tuple[bool, ...]  # inputs that are leaves in each call: found again through the graph
    tensors: int  # number of inputs that are tensors
    unconnected: frozenset[int] = (
        frozenset()
    )  # inputs that come in a tuple, which makes no edge to their history
    symbols: tuple[Symbol, ...] = ()  # of the sizes that follow them
    watched: Watched = ()  # tensors of the forward to be unchanged
    # Tangents through such a checkpoint, as bits, and the inputs behind it.
    reentrant: tuple[int, tuple[int, ...]] | None = None
    release: Release | None = None  # None: a backward of any output frees what all the others need
    late: Late | None = None


def make_apply(
    fw: Callable[[list], Sequence],
    compile_backward: CompileBackward,
    layout: Layout,
    again: Again,
) -> tuple[Callable[..., tuple], str]:
    """The bound `apply`, and the source text of forward and backward."""
    constants = "".join(f", c{k}" for k in range(len(layout.constants)))
    src = Source("def forward(ctx, *i):")
    for k, c in enumerate(layout.constants):
        src.names[f"c{k}"] = c
    if layout.unconnected:
        src.add("given, i = i, [*i]")
        for k in sorted(layout.unconnected):
            src.add(f"i[{k}] = i[{k}][0].detach()")
    src.add("with Guard(BELOW):")
    src.add(f"    o = fw([*i{constants}])")
    saved = [f"i[{k}]" for k in layout.saved_inputs] + _slot_items(layout.saved_slots)
    if layout.release is not None:
        # An output that holds itself would never be freed.
        slots = [f"o[{k}].detach()" if k < layout.outputs else f"o[{k}]" for k in layout.saved_slots]
        kept = ", ".join([f"i[{k}]" for k in layout.saved_inputs] + slots)
        src.add(f"{src.name('release', layout.release)}.keep(ctx, [{kept}])")
    elif saved:
        src.add(f"ctx.save_for_backward({', '.join(saved)})")
    if layout.non_differentiable:
        src.add(f"ctx.mark_non_differentiable({', '.join(f'o[{k}]' for k in layout.non_differentiable)})")
    src.add("ctx.set_materialize_grads(False)")
    refs = [
        f"ref(given[{k}][0]), " if k in layout.unconnected else f"ref(i[{k}]), "
        for k, leaf in enumerate(layout.leaves)
        if not leaf
    ]
    src.add(f"ctx.inputs = ({''.join(refs)})")
    if layout.watched:
        watched = [f"(ref({i}[{k}]), {i}[{k}]._version), " for i, k, _ in layout.watched]
        src.add(f"ctx.watched = ({''.join(watched)})")
    if layout.late is not None:
        src.add(f"ctx.late = {src.name('late', layout.late)}.versions(i)")
    sizes = ", *ctx.sizes" if layout.symbols else ""
    if sizes:
        src.add(f"ctx.sizes = i[{layout.tensors}:]")
    src.add(f"return tuple(o[:{layout.outputs}])")
    forward_text = src.text()
    src.names.update(fw=fw, ref=weakref.ref)
    forward = src.make("forward", "<graphlift forward>")

    holder = Backwards(compile_backward)
    src = Source("def backward(ctx, *g):")
    used = [f"t{n}" for n in range(len(layout.tangents))]
    for t, (k, _) in zip(used, layout.tangents, strict=True):
        src.add(f"{t} = g[{k}]")
    here = "".join(f"{t} is not None, " for t in used)
    nothing = " and ".join(f"{t} is None" for t in used)
    grads = len(layout.leaves) + len(layout.symbols)
    src.add(f"if {nothing}: return {src.name('pass_over', pass_over)}(ctx, {grads})")
    if layout.reentrant is not None:
        refuse = functools.partial(_refuse_some_inputs, layout)
        src.add(f"{src.name('refuse', refuse)}(ctx, ({here}))")
    if layout.watched:
        edges = [k for k in range(len(layout.leaves)) if k not in layout.unconnected]
        unchanged = functools.partial(require_unchanged, edges=edges, watched=layout.watched)
        src.add(f"{src.name('unchanged', unchanged)}(ctx, bits(({here})))")
    src.add("if grad_enabled(): return again(ctx, g)")
    if layout.release is None:
        src.add("try: s = ctx.saved_tensors")
        src.add(f"except RuntimeError: s = {src.name('saved', saved_tensors)}(ctx)")
    else:
        src.add(f"s = {src.name('release', layout.release)}.take(ctx, bits(({here})))")
    if layout.late is not None:
        src.add(f"if {src.name('late', layout.late)}.changed(ctx.late): return again.as_captured(ctx, g)")
    if sizes:
        src.add(f"{''.join(size_name(s) + ', ' for s in layout.symbols)}= ctx.sizes")
    src.add(
        f"run = holder.run if {' and '.join(f'{t} is not None' for t in used)} else holder.partial(({here}))"
    )
    for n, (_, spec) in enumerate(layout.tangents):
        shape, stride = literal(src, spec.shape), literal(src, spec.stride)
        fixed = f"{src.name('arrive', arrive)}(t{n}, {src.name('spec', spec)}, {shape}, {stride})"
        lazy = "is_conj" if spec.dtype.is_complex else "is_neg"  # memory that holds something else
        src.add(f"if t{n} is not None and (t{n}.stride() != {stride} or t{n}.{lazy}()): t{n} = {fixed}")
    given = f"[*s, {', '.join(used)}{sizes}{constants}]"
    absent = f" + ({'None, ' * len(layout.symbols)})" if sizes else ""
    src.add("with Guard(BELOW):")
    src.add(f"    try: return tuple(run({given})){absent}")
    src.add(f"    except Exception as e: return tuple(holder.failed(e, ({here}), {given})){absent}")
    backward_text = src.text()
    src.names.update(bits=bits, holder=holder, grad_enabled=torch.is_grad_enabled, again=again)
    for k, c in enumerate(layout.constants):
        src.names[f"c{k}"] = c
    backward = src.make("backward", "<graphlift backward>")
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    cls = type("GraphliftRegion", (torch.autograd.Function,), methods)
    return _raw_apply.__get__(None, cls), forward_text + "\n" + backward_text


def arguments(layout: Layout) -> str:
    """What `apply` is given for the inputs `i`."""
    first = max(layout.unconnected, default=-1) + 1
    return ", ".join(
        [*(f"(i[{k}],)" if k in layout.unconnected else f"i[{k}]" for k in range(first)), f"*i[{first}:]"]
        if first
        else ["*i"]
    )


def hooks_of(t: Tensor) -> OrderedDict:
    """Where the program will put its hooks on an output, which outlives the tensor."""
    hooks: OrderedDict = OrderedDict()
    t._backward_hooks = hooks
    t.grad_fn._register_hook_dict(t)
    return hooks


def add_ports(src: Source, slots: Sequence[int]) -> None:
    """Statements that give each output of a node that has several one of its own, as in eager.

    What is asked of one (hooks, `retain_grad`, gradients with respect to it) then leaves the others alone.
    """
    if len(slots) > 1:
        for k in slots:
            src.add(f"{src.name('lift', _LIFT)}(o[{k}])")


#: Gives the tensor itself, with a node more.
_LIFT = torch.ops.aten.lift.default


def pass_over(ctx: Any, grads: int) -> tuple[None, ...]:
    """No gradient came: the way here is through a later region, by an output that does not depend on this one.

    Eager's graph has no such way. What autograd is about to free is kept for a backward that does come through here.
    """
    if not keeps_graph() and getattr(ctx, "passed", None) is None:
        with contextlib.suppress(RuntimeError):  # freed already
            # An output that holds itself would never be freed.
            ctx.passed = keeper([t.detach() for t in ctx.saved_tensors])
    return (None,) * grads


def saved_tensors(ctx: Any) -> tuple[Tensor, ...]:
    """What was saved, also where `pass_over` has freed it. Raises: if a backward has."""
    try:
        return ctx.saved_tensors
    except RuntimeError:
        passed = getattr(ctx, "passed", None)
        if passed is None:
            raise
    if not keeps_graph():
        ctx.passed = None
    return passed.grad_fn.saved_tensors


runs_everything: Callable[[], bool] = torch.autograd._is_checkpoint_valid


def require_unchanged(ctx: Any, here: int, edges: Sequence[int], watched: Watched) -> None:
    """Raises: as eager, whose backward would read a tensor that was changed in place since.

    `here`: the tangents that came, as bits; `edges`: what the node's edges lead to, as in `watched`.
    """
    for (ref, version), (_, _, needed) in zip(ctx.watched, watched, strict=True):
        t = ref()
        if t is None or t._version == version:
            continue
        wanted = -1  # everything; or some inputs only: eager may not come to where it reads the tensor
        if not runs_everything():
            wanted = sum(
                1 << k for k, (node, _) in zip(edges, ctx.next_functions, strict=True) if _is_wanted(node)
            )
        if any(mask & here and (leads & wanted or wanted == -1) for mask, leads in needed):
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{t.type()} {list(t.shape)}] is at version {t._version}; expected version {version} instead. Hint: "
                "enable anomaly detection to find the operation that failed to compute its gradient, with "
                "torch.autograd.set_detect_anomaly(True)."
            )


def _refuse_some_inputs(layout: Layout, ctx: Any, arrived: Iterable[bool]) -> None:
    """Raises: as a reentrant checkpoint, which gives gradients of all that is behind it or none."""
    assert layout.reentrant is not None
    mask, behind = layout.reentrant
    if runs_everything() or not mask & bits(arrived):
        return
    edges = iter(ctx.next_functions)
    nodes = [None if k in layout.unconnected else next(edges)[0] for k in range(len(layout.leaves))]
    if any(_is_wanted(nodes[k]) for k in behind):
        raise RuntimeError(
            "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an `inputs` "
            "parameter to .backward(). To resolve this error, you can either set use_reentrant=False, or call "
            ".backward() without passing the `inputs` argument."
        )


def _is_wanted(node: Any) -> bool:
    """Whether the backward under way goes on to this node of autograd's."""
    if node is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # not told of leaves whose gradient is asked for
        return True


def _slot_items(slots: tuple[int, ...]) -> list[str]:
    """`o[a], o[b]`, or `*o[a:b]` where the slots are consecutive to the end."""
    if len(slots) > 2 and slots == tuple(range(slots[0], slots[-1] + 1)):
        return [f"*o[{slots[0]}:{slots[-1] + 1}]"]
    return [f"o[{k}]" for k in slots]


def arrive(t: Tensor, spec: Spec, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """An incoming gradient in the layout the backward was compiled for."""
    if _is_batch(t):  # its strides are nobody's
        return t.contiguous()
    fixed = torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)
    return fixed.copy_(t)


def _is_batch(t: Any) -> bool:
    """Whether it is what vmap makes of a tensor, as for `is_grads_batched`."""
    return isinstance(t, Tensor) and "Batched" in repr(torch._C._dispatch_keys(t))


class Backwards:
    """The compiled backwards, made when first called: the whole one, and one for each set of gradients that came.

    Some stop at marks, whose gradients they give after those of the inputs.
    """

    __slots__ = ("_compile", "_every", "_made", "run")

    def __init__(self, compile_backward: CompileBackward) -> None:
        # A backward called inside a compiled function runs with the frame hook on; compiling it must not.
        self._compile = functools.partial(call_disabled, compile_backward)
        self._made: dict[tuple[tuple[bool, ...], tuple[int, ...]], Backward] = {}
        self._every: Backward | None = None
        self.run: Run = self._first

    def _first(self, args: list) -> Sequence:
        self.run = self._whole().compiled
        return self.run(args)

    def _whole(self) -> Backward:
        made = self._every
        if made is None:
            made = self._every = self._compile(None, ())
        return made

    def backward(self, here: tuple[bool, ...], stops: tuple[int, ...] = ()) -> Backward:
        """The backward when only these tangents came; takes None for the others."""
        if all(here) and not stops:
            return self._whole()
        made = self._made.get((here, stops))
        if made is None:
            made = self._made[here, stops] = self._compile(here, stops)
        return made

    def partial(self, here: tuple[bool, ...], stops: tuple[int, ...] = ()) -> Run:
        return self.backward(here, stops).run

    def failed(
        self, error: Exception, here: tuple[bool, ...], args: list, stops: tuple[int, ...] = ()
    ) -> Sequence:
        """`error` left the backward of these tangents, which generated code raises where it is given a batch of them.

        Raises: `error` otherwise, with a note of which line of the forward it concerns.
        """
        backward = self.backward(here, stops)
        if any(map(_is_batch, args)):
            return backward.plainly(args)
        note_forward_line(error, backward.graph, backward.taken(args))
        raise error


def refused(reason: str) -> RuntimeError:
    """The error where a second derivative cannot be computed."""
    return RuntimeError(f"a second derivative through a compiled region: {reason}; compute it in eager")


def differentiate(
    gm: fx.GraphModule,
    inputs: Sequence[Tensor],
    sizes: Sequence[int],
    arrived: Sequence[tuple[tuple[int, bool], Tensor]],
) -> dict[int, Tensor | None]:
    """Gradients of the captured graph by input, with a graph of their own.

    `arrived`: gradients, each of an output or of the base of one.
    """
    with torch.enable_grad():
        same = {id(t): t.view_as(t) if t.requires_grad else t for t in inputs}
        mine = [same[id(t)] for t in inputs]
        outs = gm.forward(*mine, *sizes)
        if not isinstance(outs, (tuple, list)):
            outs = (outs,)
        wanted = [
            k for k, t in enumerate(mine) if t.requires_grad and same.pop(id(inputs[k]), None) is not None
        ]
        grads = torch.autograd.grad(
            [outs[k]._base if viewed else outs[k] for (k, viewed), _ in arrived],
            [mine[k] for k in wanted],
            [t for _, t in arrived],
            create_graph=True,
            allow_unused=True,
        )
    return dict(zip(wanted, grads, strict=True))


def without_history(grads: Iterable[Tensor | None]) -> tuple[Tensor | None, ...]:
    return tuple([None if t is None else t.detach() for t in grads])


@dataclass(frozen=True, slots=True)
class Again:
    """The backward under `create_graph=True`: differentiates the captured graph itself, run in eager on the inputs."""

    gm: fx.GraphModule
    layout: Layout
    outputs: Mapping[
        int, tuple[int, bool]
    ]  # by slot: position among gm's outputs, and whether that is a view of it
    refusal: str | None

    def __call__(self, ctx: Any, tangents: tuple) -> tuple:
        if self.refusal is not None:
            raise refused(self.refusal)
        inputs = self._inputs(ctx, tangents)
        arrived = [(at, tangents[k]) for k, at in self.outputs.items() if tangents[k] is not None]
        sizes = ctx.sizes if self.layout.symbols else ()
        found = differentiate(self.gm, inputs, sizes, arrived)
        return tuple(found.get(k) for k in range(len(inputs) + len(sizes)))

    def as_captured(self, ctx: Any, tangents: tuple) -> tuple:
        """The first derivative in this way, where what the program's own functions look at has changed."""
        if self.refusal is not None and self.layout.late is not None:
            self.layout.late.refuse(self.refusal)
        return without_history(self(ctx, tangents))

    def _inputs(self, ctx: Any, tangents: tuple) -> list[Tensor]:
        # Raises if freed or changed in place.
        if self.layout.release is None:
            saved_tensors(ctx)
        else:
            self.layout.release.take(ctx, bits(tangents[k] is not None for k, _ in self.layout.tangents))
        held = iter(ctx.inputs)
        edges = iter(ctx.next_functions)
        found = []
        for k, leaf in enumerate(self.layout.leaves):
            edge: Any = None if k in self.layout.unconnected else next(edges)[0]
            t = None if leaf else next(held)()
            t = getattr(edge, "variable", None) if t is None else t
            if t is None:
                raise refused("it needs its inputs, which are gone")
            found.append(t.detach() if k in self.layout.unconnected else t)
        return found
