"""Torch's global state during capture: what is set is set for real, put back at the end, and replayed by the graph.

In: calls of torch's setters and getters. Out: graph nodes, and guards on what is read and not part of `GlobalState`.
Always: one row per setter, with the fact that it changes; every fact is as before once a capture ends.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad
from torch.backends import cuda, cudnn

from ..data import dataclass
from ..fake import quieted
from ..guards import Call as GuardCall
from ..guards import gives
from .breaks import Break
from .calls import LATE_RULES
from .capture import Capture, NotConst
from .frame import inline
from .protocol import evaluate
from .rules import RULES, rule
from .trackers import Args, ConstVar, Kwargs, Tracker

Call = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Fact:
    """One piece of state: ``write(*read())`` leaves it as it is; ``read`` gives nothing where torch does not say."""

    read: Callable[[], tuple[Any, ...]]
    write: Callable[..., Any]


def _single(read: Callable[[], Any]) -> Callable[[], tuple[Any, ...]]:
    def single() -> tuple[Any, ...]:
        try:
            return (read(),)
        except RuntimeError:  # the answer that it has no word for: set half by an older, half by a newer way
            return ()

    return single


def set_deterministic(enabled: bool, warn_only: bool) -> None:
    """Both flags of deterministic algorithms."""
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


def set_autocast(device: str, enabled: bool, dtype: torch.dtype) -> None:
    """Autocast of one kind of device."""
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, dtype)


def _autocast_fact(device: str) -> Fact:
    return Fact(
        lambda: (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), set_autocast
    )


def _flag(getter: str, setter: str) -> tuple[Callable[..., Any], Fact] | None:
    read, write = getattr(torch._C, getter, None), getattr(torch._C, setter, None)
    return None if read is None or write is None else (write, Fact(_single(read), write))


_GRAD = Fact(_single(torch.is_grad_enabled), torch._C._set_grad_enabled)
_CACHE = Fact(_single(torch.is_autocast_cache_enabled), torch.set_autocast_cache_enabled)
_DTYPE = Fact(_single(torch.get_default_dtype), torch._C._set_default_dtype)
_DETERMINISTIC = Fact(
    lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ),
    set_deterministic,
)
_ANOMALY = Fact(
    lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()), torch.set_anomaly_enabled
)
_DEVICES = tuple(map(_autocast_fact, ("cpu", "cuda")))

#: Setters, and the facts they change. Depth of autocast is counted in the log instead.
SETTERS: dict[Callable[..., Any], tuple[Fact, ...]] = {
    torch._C._set_grad_enabled: (_GRAD,),
    torch.set_autocast_enabled: _DEVICES,
    torch.set_autocast_dtype: _DEVICES,
    torch.set_autocast_cache_enabled: (_CACHE,),
    torch.autocast_increment_nesting: (),
    torch.autocast_decrement_nesting: (),
    torch.clear_autocast_cache: (),
    torch._C._set_default_dtype: (_DTYPE,),
    set_deterministic: (_DETERMINISTIC,),
    torch.set_anomaly_enabled: (_ANOMALY,),
}
#: Flags that only say which kernel runs, by the names of their getters and setters.
_KERNELS = (
    ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    ("_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
    ("_get_sdp_priority_order", "_set_sdp_priority_order"),
    ("_get_math_sdp_allow_fp16_bf16_reduction", "_set_math_sdp_allow_fp16_bf16_reduction"),
    ("_get_cublas_allow_tf32", "_set_cublas_allow_tf32"),
    ("_get_float32_matmul_precision", "_set_float32_matmul_precision"),
    ("_get_cudnn_enabled", "_set_cudnn_enabled"),
    ("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
    ("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit"),  # in builds with CUDA alone
    ("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
    ("_get_cudnn_allow_tf32", "_set_cudnn_allow_tf32"),
    ("_get_cudnn_depthwise_kernel", "_set_cudnn_depthwise_kernel"),
    ("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
    ("_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
    ("_get_nnpack_enabled", "_set_nnpack_enabled"),
)
_FLAGS = (
    *_KERNELS,
    ("_is_multithreading_enabled", "_set_multithreading_enabled"),
    ("_get_warnAlways", "_set_warnAlways"),
)
SETTERS.update((setter, (fact,)) for setter, fact in filter(None, (_flag(*row) for row in _FLAGS)))


def _warns_always() -> tuple[bool]:
    with quieted:  # another thread's capture may have changed it for a moment
        return (torch.is_warn_always_enabled(),)


SETTERS[torch._C._set_warnAlways] = (Fact(_warns_always, torch._C._set_warnAlways),)

_precision, _set_precision = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter


def _precision_fact(backend: str) -> Fact:
    return Fact(lambda: (backend, "all", _precision(backend, "all")), _set_precision)


SETTERS[_set_precision] = tuple(map(_precision_fact, ("cuda", "mkldnn")))
#: Setters that are called between compiled parts of a graph: what they say holds while a part is compiled and runs.
KERNEL_SETTERS = frozenset((_set_precision, *(getattr(torch._C, row[1], None) for row in _KERNELS)))

AUTOCAST_SETTERS = frozenset(
    (
        torch.set_autocast_enabled,
        torch.set_autocast_dtype,
        torch.set_autocast_cache_enabled,
        torch.autocast_increment_nesting,
        torch.autocast_decrement_nesting,
        torch.clear_autocast_cache,
        set_autocast,
    )
)
_AUTOCAST_DEVICES = ("cpu", "cuda")


def casts(graph: fx.Graph) -> bool:
    """Whether autocast is on, or the graph sets it."""
    return any(map(torch.is_autocast_enabled, _AUTOCAST_DEVICES)) or any(
        node.target in AUTOCAST_SETTERS for node in graph.nodes
    )


#: Setters whose whole effect is decided while operators are recorded; any other one keeps the graph in eager.
DECIDED_WHEN_RECORDED = AUTOCAST_SETTERS | {torch._C._set_grad_enabled}

#: Read for real; the guard on global state covers them, or nothing changes them.
GETTERS: tuple[Callable[..., Any], ...] = (
    torch.is_grad_enabled,
    torch.is_autocast_enabled,
    torch.is_autocast_cpu_enabled,
    torch.get_autocast_dtype,
    torch.get_autocast_cpu_dtype,
    torch.get_autocast_gpu_dtype,
    torch.is_autocast_cache_enabled,
    torch.get_default_dtype,
    torch.is_inference_mode_enabled,
    torch.are_deterministic_algorithms_enabled,
    torch.is_deterministic_algorithms_warn_only_enabled,
    torch._C._len_torch_dispatch_stack,
    torch._C._get_tracing_state,
    torch._C._get_privateuse1_backend_name,
    torch._C._get_accelerator,
    torch.cuda.is_available,
    torch.cuda.is_initialized,
    torch.cuda.device_count,
    torch.amp.is_autocast_available,
    torch.is_autocast_xla_enabled,
    torch.xpu.is_available,
    torch.cuda.is_current_stream_capturing,
    torch.xpu._is_in_bad_fork,
    torch._C._is_flash_attention_available,
    cuda.is_flash_attention_available,
    torch.backends.mps.is_available,
    torch.backends.mkldnn.is_available,
    cudnn.is_available,
    cudnn.version,
    torch.distributed.is_available,
    torch._C._has_mkldnn if callable(torch._C._has_mkldnn) else torch.is_grad_enabled,
)
#: Read for real under a guard of their own.
GUARDED_GETTERS: tuple[Callable[..., Any], ...] = (
    torch.get_num_threads,
    torch.get_num_interop_threads,
    torch.is_anomaly_enabled,
    torch.is_anomaly_check_nan_enabled,
    _precision,
    *(getattr(torch._C, getter) for getter, _ in _FLAGS if hasattr(torch._C, getter)),
    *((torch.distributed.is_initialized,) if torch.distributed.is_available() else ()),
)


def constants(cap: Capture, args: Args, kwargs: Kwargs) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as Python values; a break where one is not known."""
    try:
        return [cap.value_of(a) for a in args], {k: cap.value_of(v) for k, v in kwargs.items()}
    except NotConst:
        raise Break("unsupported-call", "global state set from a value that is not a constant") from None


def _register_setter(setter: Callable[..., Any]) -> None:
    @rule(setter)
    def set_state(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        values, named = constants(cap, args, kwargs)
        if not all(fact.read() for fact in SETTERS[setter]):
            raise Break("unsupported-call", f"{setter.__name__}, where torch does not say what is set")
        return evaluate(cap, cap.set_state, setter, (*values, *named.values()))


#: Getters, and what in the region decides their answer when it is called, with the getter's arguments if it has any.
_SET_BY = {getattr(torch._C, getter, None): getattr(torch._C, setter, None) for getter, setter in _FLAGS} | {
    torch.is_anomaly_enabled: torch.set_anomaly_enabled,
    torch.is_anomaly_check_nan_enabled: torch.set_anomaly_enabled,
    _precision: _set_precision,
}
#: Getters whose answers setters of others among them may change.
_PRECISIONS = (
    _precision,
    torch._C._get_cublas_allow_tf32,
    torch._C._get_cudnn_allow_tf32,
    torch._C._get_float32_matmul_precision,
)


def _is_own(cap: Capture, getter: Callable[..., Any], asked: list[Any]) -> bool:
    """Whether the region itself has set what the getter says. Raises: Break where it has set it in part."""
    own, called = _SET_BY.get(getter), cap.state_log
    if any(fn is own and list(values[: len(asked)]) == asked for fn, values in called):
        return True
    if asked[1:] == ["all"] or getter not in _PRECISIONS:
        return False
    related = {_SET_BY[other] for other in _PRECISIONS}
    if any(fn in related for fn, _ in called):
        raise Break("unsupported-call", f"{getter.__name__} after precision was set in another way")
    return False


def _read(cap: Capture, getter: Callable[..., Any], args: Args, kwargs: Kwargs, guarded: bool) -> Tracker:
    values, named = constants(cap, args, kwargs)
    if guarded and not _is_own(cap, getter, values):
        name = getattr(getter, "__name__", str(getter))
        try:
            found = getter(*values, **named)
        except RuntimeError as error:
            raise Break("exception-raised", f"{name}: {error}") from None
        asked = partial(getter, **named) if named else getter
        cap.guard(
            gives(GuardCall(operator.eq, GuardCall(asked, *values), found), True, f"{name}() == {found!r}")
        )
    cap.history_asked += getter is torch.is_grad_enabled
    return evaluate(cap, getter, *values, **named)


def _register_getter(getter: Callable[..., Any], guarded: bool) -> None:
    rule(getter)(lambda cap, args, kwargs: _read(cap, getter, args, kwargs, guarded))


LATE_RULES["torch.onnx.is_in_onnx_export"] = partial(_read, guarded=True)


def _noted_method(cap: Capture, value: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
    """What torch.compile puts around methods of `Module`: the method, and a note that only that compiler reads."""
    method = value.__closure__[0].cell_contents
    return inline(cap, ConstVar.known(method), args, kwargs)


_TAGGING = "torch._dynamo.mutation_guard.install_generation_tagging_init.<locals>"
LATE_RULES[f"{_TAGGING}.patched_init"] = LATE_RULES[f"{_TAGGING}.patched_setstate"] = _noted_method


@rule(torch.use_deterministic_algorithms)
def _use_deterministic(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    values, named = constants(cap, args, kwargs)
    mode = values[0] if values else named["mode"]
    return evaluate(cap, cap.set_state, set_deterministic, (mode, named.get("warn_only", False)))


@rule(_set_precision)
def _set_backend_precision(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
    """What the getter says is what was set only where nothing is inherited from all backends."""
    (backend, op, precision), _ = constants(cap, args, kwargs)
    everywhere = _read(cap, _precision, [ConstVar("generic"), ConstVar("all")], {}, guarded=True)
    if op != "all" or backend == "generic" or cap.value_of(everywhere) != "none":
        raise Break("unsupported-call", f"the precision of {backend} {op} is set")
    return evaluate(cap, cap.set_state, _set_precision, (backend, op, precision))


for _setter in SETTERS:
    if _setter not in RULES:
        _register_setter(_setter)
for _getter in dict.fromkeys(GETTERS):
    if _getter not in RULES:
        _register_getter(_getter, guarded=False)
for _getter in dict.fromkeys(GUARDED_GETTERS):
    if _getter not in RULES:
        _register_getter(_getter, guarded=True)


#: Dispatch keys that a thread may include with nothing looking on.
_ORDINARY_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.ADInplaceOrView
)


def foreign_mode() -> str | None:
    """What is active that gets to see every operator, as text: under it nothing is captured."""
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "hooks on saved tensors are active"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace is recording"
    included = torch._C._dispatch_tls_local_include_set() - _ORDINARY_KEYS
    if included.raw_repr():
        return f"{included} is included for this thread"
    excluded = torch._C._dispatch_tls_local_exclude_set()
    if excluded.has(torch._C.DispatchKey.AutogradOther) and not torch.is_inference_mode_enabled():
        return "autograd is excluded for this thread"
    return None


_FACTS: tuple[Fact, ...] = tuple(dict.fromkeys(fact for facts in SETTERS.values() for fact in facts))


class StateSnapshot:
    """Global state at the start of a capture, and the calls that bring it back."""

    def __init__(self) -> None:
        self.values = [fact.read() for fact in _FACTS]

    def restoring_calls(self, log: list[Call]) -> list[Call]:
        """What must be called, now, for the state to be what it was; ``log`` is what the region called."""
        calls = [
            (fact.write, before)
            for fact, before in zip(_FACTS, self.values, strict=True)
            if before and fact.read() != before
        ]
        depth = sum(
            (fn is torch.autocast_increment_nesting) - (fn is torch.autocast_decrement_nesting)
            for fn, _ in log
        )
        calls += [(torch.autocast_decrement_nesting, ())] * max(depth, 0)
        calls += [(torch.autocast_increment_nesting, ())] * max(-depth, 0)
        return calls
