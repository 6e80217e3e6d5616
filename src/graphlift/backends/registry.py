"""Which backends there are, and how a name becomes a callable.

In: a name or a callable, with mode and options. Out: `ResolvedBackend`.
Always: unknown names raise UnknownBackend with the near misses, before anything is captured.
"""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from graphlift import logs
from graphlift.data import dataclass
from graphlift.errors import (
    BackendError,
    InvalidOption,
    NotBuilt,
    NotCallable,
    UnknownBackend,
    UnsupportedCPU,
)
from graphlift.options import Backend
from graphlift.timing import importing, stage

MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True, slots=True)
class ResolvedBackend:
    """A backend ready to be called; `name` is for reports."""

    name: str
    compile: Backend


@dataclass(frozen=True, slots=True)
class BackendRow:
    """One backend of graphlift: `make(mode, options)` returns the callable and may check the machine."""

    name: str
    help: str
    make: Callable[[str | None, Mapping[str, Any]], Backend]


def _no_options(name: str, mode: str | None, options: Mapping[str, Any]) -> None:
    if options:
        raise InvalidOption(
            f"backend {name!r} takes no options", found=", ".join(map(str, options)), expected="options=None"
        )


def _eager(mode: str | None, options: Mapping[str, Any]) -> Backend:
    _no_options("eager", mode, options)
    return run_captured


def run_captured(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The backend "eager": the captured graph as it is."""
    with importing():
        from graphlift.capture.checkpoint_rules import with_checkpoints

    return with_checkpoints(gm).forward  # type: ignore[no-any-return]


def _aot_eager(mode: str | None, options: Mapping[str, Any]) -> Backend:
    _no_options("aot_eager", mode, options)

    def aot_eager(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        with importing():
            from graphlift import pipeline

        return pipeline.compile_aten(gm, example_inputs)

    return aot_eager


def _auto(mode: str | None, options: Mapping[str, Any]) -> Backend:
    _no_options("auto", mode, options)
    if mode not in (None, "default"):
        raise NotBuilt(
            f"mode={mode!r} is not built for backend='auto' yet",
            expected="mode=None or 'default'",
            hint="leave mode out, or use backend='inductor' with this mode",
        )
    require_cpu()

    def auto(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        with importing():
            from graphlift import pipeline

        return pipeline.compile_native(gm, example_inputs)

    return auto


def require_cpu() -> None:
    """Raises UnsupportedCPU where native code generation has no target."""
    import platform

    import torch

    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64") and not torch.cpu._is_avx2_supported():
        raise UnsupportedCPU(
            "graphlift's code generator needs a CPU with AVX2",
            found=f"{machine} without AVX2",
            expected="AVX2 or AVX-512",
            hint="use backend='aot_eager' (graphs run through ATen) or backend='inductor' on this machine",
        )


_BUILT_IN: Mapping[str, BackendRow] = {
    row.name: row
    for row in (
        BackendRow("auto", "differentiate, fuse and generate native code for the device (default)", _auto),
        BackendRow("llvm", "the same as auto on CPU", _auto),
        BackendRow("aot_eager", "differentiate ahead of time, run ATen operators: to debug aot", _aot_eager),
        BackendRow("eager", "run the captured graph as it is: to debug capture", _eager),
    )
}

_registered: dict[str, Backend] = {}


def register_backend(fn: Backend | None = None, name: str | None = None) -> Any:
    """Registers `fn(GraphModule, example_inputs) -> callable` under `name` (its own name by default); a decorator."""
    if fn is None:
        return functools.partial(register_backend, name=name)
    if not callable(fn):
        raise NotCallable(
            "register_backend takes a callable",
            found=repr(fn)[:200],
            expected="a callable (GraphModule, example_inputs) -> callable",
        )
    name = name or getattr(fn, "__name__", None)
    if not name:
        raise InvalidOption("the backend has no name", found=repr(fn)[:200], hint="pass name=")
    if name in _BUILT_IN:
        raise InvalidOption(f"backend name {name!r} is graphlift's own", hint="choose another name")
    _registered[name] = fn
    return fn


def list_backends(*, dynamo: bool = False) -> list[str]:
    """Names that `backend=` accepts: graphlift's own, registered ones, and TorchDynamo's.

    TorchDynamo's registry is complete only with `dynamo=True`, which imports torch._dynamo; otherwise "inductor" and
    the backends that installed packages announce are listed.
    """
    names = [*_BUILT_IN, *sorted(_registered)]
    foreign = set(_dynamo_names()) if dynamo else {"inductor", *_announced()}
    return names + sorted(foreign - set(names) - {"graphlift"})


def _announced() -> list[str]:
    return [entry.name for entry in metadata.entry_points(group="torch_dynamo_backends")]


def _dynamo_names() -> list[str]:
    """Every TorchDynamo backend (imports torch._dynamo)."""
    import torch._dynamo

    names: list[str] = torch._dynamo.list_backends(exclude_tags=())
    return names


def resolve(
    backend: Any, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> ResolvedBackend:
    """The backend that the user asked for.

    Raises UnknownBackend, InvalidOption (mode, options), NotBuilt, UnsupportedCPU, or NotCallable.
    """
    options = dict(options or {})
    if mode not in MODES:
        raise InvalidOption("unknown mode", found=repr(mode), expected=", ".join(map(repr, MODES)))
    if isinstance(backend, str):
        return _by_name(backend, mode, options)
    if not callable(backend):
        raise NotCallable(
            "backend is neither a name nor a callable",
            found=f"{backend!r:.100} of type {type(backend).__name__}",
            expected="a name from graphlift.list_backends(), or a callable (GraphModule, inputs) -> callable",
        )
    name = getattr(backend, "__name__", type(backend).__name__)
    ours = not str(getattr(backend, "__module__", "")).startswith("torch.")
    return ResolvedBackend(
        name, _checked(name, _with_arguments(name, backend, mode, options), static_sizes=not ours)
    )


def lookup_backend(name: str) -> Backend:
    """The callable `(GraphModule, example_inputs) -> callable` of a named backend, for callers that wrap it.

    Raises UnknownBackend.
    """
    return _by_name(name, None, {}).compile


def _by_name(name: str, mode: str | None, options: Mapping[str, Any]) -> ResolvedBackend:
    row = _BUILT_IN.get(name)
    if row is not None:
        return ResolvedBackend(name, row.make(mode, options))
    if name in _registered:
        return ResolvedBackend(name, _checked(name, _with_arguments(name, _registered[name], mode, options)))
    if name != "graphlift":
        from graphlift.backends import bridge

        foreign = bridge.dynamo_backend(name, mode, options)
        if foreign is not None:
            return ResolvedBackend(name, _checked(name, foreign, static_sizes=True))
    known = list_backends(dynamo="torch._dynamo" in sys.modules)
    near = difflib.get_close_matches(name, known, 1)
    raise UnknownBackend(
        f"unknown backend {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
        expected="one of " + ", ".join(known),
        hint="pass one of these names or a callable, or add one with graphlift.register_backend",
    )


def _with_arguments(name: str, fn: Backend, mode: str | None, options: Mapping[str, Any]) -> Backend:
    """A user's backend gets `mode` and `options` only where given, as torch.compile passes them."""
    extra: dict[str, Any] = {}
    if mode not in (None, "default"):
        extra["mode"] = mode
    if options:
        extra["options"] = dict(options)
    return functools.partial(fn, **extra) if extra else fn


def _checked(name: str, fn: Backend, static_sizes: bool = False) -> Backend:
    """`fn`, timed; a failure or a result that cannot be called becomes BackendError.

    `static_sizes`: it takes graphs in which every size is a number, so each new size is compiled anew; and it would
    not see that a tensor is given other memory.
    """

    def compile_graph(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        if static_sizes and _assigns_data(gm):
            logs.warning(
                "a graph runs eagerly as captured: a tensor is given other memory by assigning to .data"
            )
            return gm.forward  # type: ignore[no-any-return]
        with stage("backend"):
            try:
                compiled = fn(gm, example_inputs)
            except Exception as error:
                raise BackendError(
                    f"backend {name!r} raised {type(error).__name__}: {error}",
                    hint="run with backend='eager' to check that the graph itself is right, then debug the backend",
                ) from error
        if not callable(compiled):
            raise BackendError(
                f"backend {name!r} returned something that cannot be called",
                found=f"{compiled!r:.100} of type {type(compiled).__name__}",
                expected="a callable that takes the graph's inputs and returns its outputs",
            )
        return compiled

    compile_graph.__name__ = name
    compile_graph.static_sizes = static_sizes  # type: ignore[attr-defined]
    return compile_graph


def _assigns_data(gm: Any) -> bool:
    from graphlift.capture.tensor_attributes import set_data

    return any(node.target is set_data for node in gm.graph.nodes)
