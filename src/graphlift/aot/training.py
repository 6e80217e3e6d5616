"""The autograd.Function around a compiled forward and its lazily compiled backward.

In: forward and backward graphs, and which values pass between them. Out: a class whose `apply` is differentiable.
Always: saved tensors go through save_for_backward; a second derivative is right or an error, never silently wrong.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..data import dataclass
from ..fake import Spec
from ..fake.symbolic import spec_at
from ..frame import call_disabled
from ..shapes.expr import Symbol
from .again import Again
from .blame import note_forward_line
from .late import Late
from .release import EVERYTHING, Release, changed_in_place, keeps_graph
from .saved import union
from .segments import Watched
from .versions import set_version, version_of
from .wrapper import BELOW, Source

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


# Given the tangents that come, the marks at which it stops, and which of what it leads to is wanted; sets as bits.
CompileBackward = Callable[[int, tuple[int, ...], int], Backward]

_raw_apply = torch._C._FunctionBase.__dict__["apply"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the compiled pair is called.

    `saved_inputs`: inputs kept for the backward; `saved_slots`: positions of the forward's outputs kept.
    `tangents`: for each incoming gradient used, the output it belongs to.
    """

    constants: tuple[Tensor, ...]
    outputs: int
    non_differentiable: tuple[int, ...]
    saved_inputs: tuple[int, ...]
    saved_slots: tuple[int, ...]
    tangents: tuple[int, ...]
    release: Release
    apart: bool  # whether that keeps what is saved: a backward of one output may leave what others need
    leaves: tuple[bool, ...]  # inputs that are leaves in each call: found again through the graph
    tensors: int  # number of inputs that are tensors
    unconnected: frozenset[int] = (
        frozenset()
    )  # inputs that come in a tuple, which makes no edge to their history
    symbols: tuple[Symbol, ...] = ()  # of the sizes that follow them
    watched: Watched = ()  # tensors of the forward to be unchanged
    late: Late | None = None

    @property
    def held(self) -> set[int]:
        """The inputs that eager's backward keeps: for a second derivative, also where a first one does without them."""
        watched = {k for kind, k, _ in self.watched if kind == "i" and not self.leaves[k]}
        return watched - {*self.saved_inputs, *self.unconnected}

    @property
    def unsaved(self) -> list[int]:
        """The inputs of which only a second derivative would see that they changed, and is not meant to."""
        seen = {*self.saved_inputs, *(self.late.inputs if self.late is not None else ())}
        return [k for k in range(len(self.leaves)) if k not in seen]

    @property
    def edges(self) -> list[int]:
        """The inputs that the node's edges lead to."""
        return [k for k in range(len(self.leaves)) if k not in self.unconnected]


def make_apply(
    fw: Callable[[list], Sequence], backwards: Backwards, layout: Layout, again: Again
) -> tuple[Callable[..., tuple], str]:
    """The bound `apply`, and the source text of the forward."""
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
    if layout.apart:
        # An output that holds itself would never be freed.
        slots = [f"o[{k}].detach()" if k < layout.outputs else f"o[{k}]" for k in layout.saved_slots]
        kept = ", ".join([f"i[{k}]" for k in layout.saved_inputs] + slots)
        src.add(f"{src.name('release', layout.release)}.keep(ctx, [{kept}])")
    elif saved:
        src.add(f"ctx.save_for_backward({', '.join(saved)})")
    if layout.non_differentiable:
        src.add(f"ctx.mark_non_differentiable({', '.join(f'o[{k}]' for k in layout.non_differentiable)})")
    src.add("ctx.set_materialize_grads(False)")
    held = layout.held
    refs = [
        f"ref(given[{k}][0]), " if k in layout.unconnected else f"{'hold' if k in held else 'ref'}(i[{k}]), "
        for k, leaf in enumerate(layout.leaves)
        if not leaf
    ]
    src.add(f"ctx.inputs = ({''.join(refs)})")
    src.add(f"ctx.versions = ({''.join(f'version(i[{k}]), ' for k in layout.unsaved)})")
    src.add(f"ctx.outputs = ({''.join(f'ref(o[{k}]), ' for k in layout.tangents)})")
    if layout.watched:
        watched = [f"(ref({i}[{k}]), {i}[{k}]._version), " for i, k, _ in layout.watched]
        src.add(f"ctx.watched = ({''.join(watched)})")
    if layout.late is not None:
        src.add(f"ctx.late = {src.name('late', layout.late)}.versions(i)")
    src.add(f"ctx.sizes = i[{layout.tensors}:]" if layout.symbols else "ctx.sizes = ()")
    src.add(f"return tuple(o[:{layout.outputs}])")
    src.names.update(fw=fw, ref=weakref.ref, hold=_Held, version=version_of)
    forward = src.make("forward", "<graphlift forward>")
    methods = {
        "forward": staticmethod(forward),
        "backward": staticmethod(_backward(layout, backwards, again)),
    }
    cls = type("GraphliftRegion", (torch.autograd.Function,), methods)
    return _raw_apply.__get__(None, cls), src.text()


def _backward(layout: Layout, backwards: Backwards, again: Again) -> Callable[..., tuple]:
    slots, release, late, edges = layout.tangents, layout.release, layout.late, layout.edges
    sizes, holds = (None,) * len(layout.symbols), bool(layout.held)

    def backward(ctx: Any, *g: Tensor | None) -> tuple[Tensor | None, ...]:
        came = [g[k] for k in slots]
        here = 0
        for n, t in enumerate(came):
            if t is not None:
                here |= 1 << n
        if not here:
            pass_over(ctx, release)
            return (*(None for _ in layout.leaves), *sizes)
        wanted = wanted_of(ctx, edges)
        if layout.watched:
            require_unchanged(ctx, here, wanted, layout.watched)
        take = release.take if layout.apart else release.unpack
        saved = take(ctx, here, wanted)
        if holds and not keeps_graph():
            _let_go(ctx)
        if torch.is_grad_enabled():
            return again(ctx, came, saved)
        sparse = any(t is not None and t.layout is not torch.strided for t in came)
        if sparse or (late is not None and late.changed(ctx.late)):
            return again.as_captured(ctx, came, saved)
        return (*backwards(came, saved, ctx.sizes, (), wanted), *sizes)

    return backward


class _Held:
    """A reference to a tensor that keeps it, and is called as one that does not."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __call__(self) -> Tensor:
        return self.tensor


def _let_go(ctx: Any) -> None:
    ctx.inputs = [weakref.ref(held()) if type(held) is _Held else held for held in ctx.inputs]


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
            src.add(f"{src.name('port', _port)}(o[{k}])")


_lift = torch.ops.aten.lift.default


def _port(t: Tensor) -> None:
    """One more node behind the tensor itself, which changes nothing."""
    if t.is_complex():  # `lift` refuses those
        version = t._version
        t.transpose_(0, 0)
        set_version(t, version)
    else:
        _lift(t)


def pass_over(ctx: Any, release: Release | None) -> None:
    """No gradient came: the way here is through a later region, by an output that does not depend on this one.

    Eager's graph has no such way. What autograd is about to free is kept for a backward that does come through here.
    """
    if release is not None and not keeps_graph() and getattr(ctx, "kept", None) is None:
        with contextlib.suppress(RuntimeError):  # freed already
            release.take_over(ctx)


runs_everything: Callable[[], bool] = torch.autograd._is_checkpoint_valid


def wanted_of(ctx: Any, edges: Sequence[int]) -> int:
    """What of that a node's edges lead to the backward under way goes on to, as bits."""
    if runs_everything():
        return EVERYTHING
    return union(1 << k for k, (node, _) in zip(edges, ctx.next_functions, strict=True) if _is_wanted(node))


def require_unchanged(ctx: Any, here: int, wanted: int, watched: Watched) -> None:
    """Raises: as eager, whose backward would read a tensor that was changed in place since.

    `here`: the tangents that came; `wanted`: what it goes on to, as in `watched`: eager may not come to where it reads
    the tensor.
    """
    for (ref, version), (_, _, needed) in zip(ctx.watched, watched, strict=True):
        t = ref()
        if t is None or t._version == version:
            continue
        if any(mask & here and (leads & wanted or wanted == EVERYTHING) for mask, leads in needed):
            raise changed_in_place(t, version)


def _is_wanted(node: Any) -> bool:
    """Whether the backward under way goes on to this node of autograd's."""
    if node is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf whose gradient is asked for
        return True


def _slot_items(slots: tuple[int, ...]) -> list[str]:
    """`o[a], o[b]`, or `*o[a:b]` where the slots are consecutive to the end."""
    if len(slots) > 2 and slots == tuple(range(slots[0], slots[-1] + 1)):
        return [f"*o[{slots[0]}:{slots[-1] + 1}]"]
    return [f"o[{k}]" for k in slots]


def _is_batch(t: Any) -> bool:
    """Whether it is what vmap makes of a tensor, as for `is_grads_batched`."""
    of = torch._C._functorch
    return isinstance(t, Tensor) and (of.is_legacy_batchedtensor(t) or of.is_batchedtensor(t))


def _is_unlike_memory(t: Tensor) -> bool:
    return t.is_conj() or t.is_neg() or t._is_zerotensor()


class Backwards:
    """The compiled backwards, made when first called: the whole one, and those of some gradients, to some inputs.

    Some stop at marks, whose gradients they give after those of the inputs.
    """

    __slots__ = ("_arriving", "_compile", "_constants", "_made", "_symbols")

    def __init__(
        self,
        compile_backward: CompileBackward,
        arriving: Sequence[Spec],
        symbols: Sequence[Symbol],
        constants: Sequence[Tensor],
    ) -> None:
        # A backward called inside a compiled function runs with the frame hook on; compiling it must not.
        self._compile = functools.partial(call_disabled, compile_backward)
        self._arriving, self._symbols, self._constants = arriving, symbols, constants
        self._made: dict[tuple[int, tuple[int, ...], int], Backward] = {}

    def __call__(
        self,
        came: list[Tensor | None],
        saved: Sequence[Tensor | None],
        sizes: Sequence[int],
        stops: tuple[int, ...],
        wanted: int,
    ) -> Sequence[Tensor | None]:
        """Gradients, from those that came, which are brought to their layout.

        Raises: with a note of which line of the forward it concerns.
        """
        here = 0
        for n, (t, spec) in enumerate(zip(came, self._arriving, strict=True)):
            if t is not None:
                here |= 1 << n
                if t.stride() != spec.stride or _is_unlike_memory(t):
                    came[n] = self._laid_out(t, spec, sizes)
        made = self._made.get((here, stops, wanted))
        if made is None:
            made = self._made[here, stops, wanted] = self._compile(here, stops, wanted)
        args = [*saved, *came, *sizes, *self._constants]
        with torch._C._ExcludeDispatchKeyGuard(BELOW):
            try:
                return made.run(args)
            except Exception as error:
                if any(map(_is_batch, args)):  # generated code does not take those
                    return made.plainly(args)
                note_forward_line(error, made.graph, made.taken(args))
                raise

    def _laid_out(self, t: Tensor, spec: Spec, sizes: Sequence[int]) -> Tensor:
        if _is_batch(t):  # its strides are nobody's
            return t.contiguous()
        at = spec_at(spec, dict(zip(self._symbols, sizes, strict=True))) if sizes else spec
        if t.stride() == at.stride and not _is_unlike_memory(t):
            return t
        return torch.empty_strided(at.shape, at.stride, dtype=t.dtype, device=t.device).copy_(t)
