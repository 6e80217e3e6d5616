"""The door for people who build backends: a Python function through AOT autograd alone.

In: a function or module of tensors, and compilers of functional ATen graphs. Out: a callable that behaves as it does.
Always: one compiled region per kind of call (metadata, aliasing, modes, other arguments); Python runs while tracing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from .. import logs
from ..data import dataclass
from .compiled import Compiled, Partitioner, compile_graph
from .joint import autocast_state
from .record import Decompositions

#: `(GraphModule, example inputs) -> callable(*inputs) -> outputs`; the callable takes one list if it has `_boxed_call`
GraphCompiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Sequence]]

_PLAIN = (Tensor, torch.nn.Parameter)


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: GraphCompiler,
    bw_compiler: GraphCompiler | None = None,
    *,
    partitioner: Partitioner | None = None,
    decompositions: Decompositions | None = None,
) -> AotFunction:
    """Trace `fn` into functional ATen graphs, forward and backward, and run what the compilers make of them.

    `fn` takes and returns tensors in any nesting of tuples, lists and dicts; what is no tensor is part of the kind of
    call. Only its tensor operations are compiled: its Python runs when a kind of call is traced, and no more.
    `partitioner(trace, free)` gives a `Split`: `aot.partition`, within `config.activation_memory_budget`, is the
    default; another is `aot.save_all`. `decompositions` maps operators to functions of tensors that replace them.

    What cannot be made functional runs as `fn` itself, with a warning; `regions` says why in `fallback_reason`.
    """
    return AotFunction(fn, fw_compiler, bw_compiler or fw_compiler, partitioner, decompositions)


def aot_module(
    module: torch.nn.Module,
    fw_compiler: GraphCompiler,
    bw_compiler: GraphCompiler | None = None,
    *,
    partitioner: Partitioner | None = None,
    decompositions: Decompositions | None = None,
) -> torch.nn.Module:
    """As `aot_function`, for a module: parameters and buffers are inputs of the graphs, and stay the module's own."""
    return _AotModule(module, fw_compiler, bw_compiler or fw_compiler, partitioner, decompositions)


class AotFunction:
    """What `aot_function` returns. `regions` are its compiled regions, the oldest first."""

    def __init__(
        self,
        fn: Callable[..., Any],
        fw_compiler: GraphCompiler,
        bw_compiler: GraphCompiler,
        partitioner: Partitioner | None,
        decompositions: Decompositions | None,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn
        self._fw, self._bw = _boxed(fw_compiler), _boxed(bw_compiler)
        self._partitioner, self._decompositions = partitioner, decompositions
        self._entries: dict[Any, _Entry] = {}

    @property
    def regions(self) -> list[Compiled]:
        return [e.compiled for e in self._entries.values()]

    def print_readable(self) -> str:
        """Every graph of every region: as traced, joint, and partitioned."""
        return "\n\n".join(r.print_readable() for r in self.regions)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [a for a in leaves if isinstance(a, Tensor)]
        if any(type(t) not in _PLAIN for t in tensors):
            logs.warning(f"{self._name()} runs in eager: an argument is a tensor subclass")
            return self._fn(*args, **kwargs)
        others = tuple(None if isinstance(a, Tensor) else (type(a), a) for a in leaves)
        key = (spec, others, *_kind_of_call(tensors))
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._compile(leaves, spec, tensors)
        return pytree.tree_unflatten(list(entry.compiled.run(*tensors)), entry.out_spec[0])

    def _compile(self, leaves: list[Any], spec: Any, tensors: list[Tensor]) -> _Entry:
        out_spec: list[Any] = []

        def flat(*given: Any) -> tuple:
            it = iter(given)
            args, kwargs = pytree.tree_unflatten(
                [next(it) if isinstance(a, Tensor) else a for a in leaves], spec
            )
            outs, out_spec[:] = _flatten_into(self._fn(*args, **kwargs))
            return tuple(outs)

        leaves = [torch.empty(0) if isinstance(a, Tensor) else a for a in leaves]  # keeps no caller's tensor
        flat.__name__ = flat.__qualname__ = self._name()
        compiled = compile_graph(
            _one_call(flat, len(tensors)),
            tensors,
            fw_compiler=self._fw,
            bw_compiler=self._bw,
            decompositions=self._decompositions,
            partitioner=self._partitioner,
            listing=True,
        )
        if compiled.fallback_reason is not None:
            logs.warning(f"{self._name()} runs in eager: {compiled.fallback_reason}")
        return _Entry(compiled, out_spec)

    def _name(self) -> str:
        return getattr(self._fn, "__name__", type(self._fn).__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    compiled: Compiled
    out_spec: list[Any]  # one element, from the last time the function's Python ran


def _flatten_into(result: Any) -> tuple[list[Any], list[Any]]:
    outs, spec = pytree.tree_flatten(result)
    return outs, [spec]


def _one_call(flat: Callable[..., tuple], count: int) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_function(flat, tuple(graph.placeholder(f"input{k}") for k in range(count))))
    return fx.GraphModule(torch.nn.Module(), graph)


def _boxed(compiler: GraphCompiler) -> Callable[[fx.GraphModule, list[Any]], Callable[[list], Sequence]]:
    def compile_boxed(graph: fx.GraphModule, example: list[Any]) -> Callable[[list], Sequence]:
        run = compiler(graph, example)
        return run if getattr(run, "_boxed_call", False) else lambda args: run(*args)

    return compile_boxed


def _kind_of_call(tensors: list[Tensor]) -> tuple:
    """All that a traced region depends on, besides the values of other arguments."""
    positions: dict[int, int] = {}
    storages: dict[int, int] = {}
    kinds = []
    for k, t in enumerate(tensors):
        same = positions.setdefault(id(t), k)
        strided = t.layout is torch.strided
        shared = storages.setdefault(t.untyped_storage()._cdata, k) if strided else k
        layout = (t.stride(), t.storage_offset(), t.untyped_storage().nbytes()) if strided else ()
        flags = (t.requires_grad, t.is_leaf, t.is_conj(), t.is_neg(), t.is_inference(), t._is_view())
        kinds.append((type(t), t.dtype, t.device, t.layout, t.shape, layout, flags, same, shared))
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype())
    return (*kinds, modes, autocast_state())


class _AotModule(torch.nn.Module):
    """Shares the original's parameters, buffers and submodules."""

    def __init__(self, module: torch.nn.Module, *options: Any) -> None:
        super().__init__()
        self.original = module

        def run(state: dict[str, Tensor], training: tuple[bool, ...], args: tuple, kwargs: dict) -> Any:
            return torch.func.functional_call(module, state, args, kwargs)

        run.__name__ = type(module).__name__
        self.aot = AotFunction(run, *options)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        module = self.original
        state = dict(module.named_parameters(remove_duplicate=False))
        state.update(module.named_buffers(remove_duplicate=False))
        return self.aot(state, tuple(m.training for m in module.modules()), args, kwargs)
