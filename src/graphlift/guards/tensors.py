"""Finds where torch keeps a tensor's facts and its modes, so that C can read them without linking torch.

In: the torch that is loaded. Out: `access()`, which has told `_guards` the offsets and addresses, or says why not.
Always: every offset and function is verified against Python's own answers on sample tensors and under several modes;
what cannot be verified is not used, and guards then take the slow path through Python.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from graphlift.data import dataclass
from graphlift.guards import _guards
from graphlift.guards.guards import Follows, GlobalState, TensorSpec, dispatch_keys

_WINDOW_BYTES = 192
_HISTORY_BYTES = 160  # at most the size of an AutogradMeta
_INLINE_DIMS = 5
_AUTOCAST_OFF = 127

# Names of libc10's and libtorch_cpu's C++ functions, in the order set_state_access takes them.
_STATE_SYMBOLS = (
    ("c10", "_ZN3c1013AutogradState13get_tls_stateEv"),
    ("c10", "_ZN3c1031get_default_dtype_as_scalartypeEv"),
    ("torch_cpu", "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE"),
    ("torch_cpu", "_ZN2at8autocast25is_autocast_cache_enabledEv"),
    ("c10", "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv"),
    ("torch_cpu", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"),
    ("torch_cpu", "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv"),
    ("torch_cpu", "_ZN2at13globalContextEv"),
    ("torch_cpu", "_ZNK2at7Context23deterministicAlgorithmsEv"),
    ("torch_cpu", "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv"),
)
_REQUIRES_GRAD = ("c10", "_ZNK3c1010TensorImpl13requires_gradEv")
_DEVICE_KINDS = ("cpu", "cuda", "meta", "mps", "xpu", "privateuse1")


class Unverified(Exception):
    """Something about this torch is not as expected; the text says what."""


@dataclass(frozen=True, slots=True)
class Access:
    """What can be read in C, and torch's numbers for dtypes and device types. `why` explains a missing part."""

    tensors: bool
    state: bool
    why: str
    dtype_codes: dict[Any, int]
    device_codes: dict[str, int]
    plain_keys: int

    def spec_fields(
        self, spec: TensorSpec
    ) -> tuple[int, int, int, tuple[int | None, ...], bool, bool] | None:
        """(keys, dtype and device word, rank, dims, has strides, requires_grad), or None: compare in Python."""
        device = self.device_codes.get(spec.device.type)
        dtype = self.dtype_codes.get(spec.dtype)
        strides = tuple([-1 - n.dim if isinstance(n, Follows) else n for n in spec.strides or ()])
        dims = spec.shape + strides
        if not self.tensors or device is None or dtype is None or spec.dispatch_keys & ~self.plain_keys:
            return None
        if (
            str(spec.layout) != "torch.strided"
            or spec.rank > 32
            or not all(_plain_dim(d) for d in spec.shape)
        ):
            return None
        if not all(_plain_dim(d) or isinstance(d, Follows) for d in spec.strides or ()):
            return None
        index = -1 if spec.device.index is None else spec.device.index
        word = _type_device_word(dtype, device, index)
        return spec.dispatch_keys, word, spec.rank, dims, spec.strides is not None, spec.requires_grad

    def state_facts(self, state: GlobalState) -> tuple[Any, ...] | None:
        """The facts in the order build_global takes them, or None: compare in Python."""
        dtype = self.dtype_codes.get(state.default_dtype)
        if not self.state or dtype is None or state.dispatch_modes or len(state.function_modes) > 127:
            return None
        dtypes = tuple(self.dtype_codes[d] if on else _AUTOCAST_OFF for _, on, d in state.autocast)
        on = any(enabled for _, enabled, _ in state.autocast)
        return (
            *(
                _autograd_bits(state),
                dtype,
                *state.deterministic,
                state.function_state,
                len(state.function_modes),
                on,
                bool(state.autocast_cache),
            ),
            *(dtypes, state.forward_ad_level, state.included_keys, state.excluded_keys),
        )


def _plain_dim(dim: Any) -> bool:
    return dim is None or (type(dim) is int and 0 <= dim < 2**62)


def _type_device_word(dtype: int, device: int, index: int) -> int:
    has_device = 1 << 32
    return dtype | device << 16 | (index & 0xFF) << 24 | has_device


_access: Access | None = None
_lock = threading.Lock()


def access() -> Access:
    """What `_guards` can read of torch; found out at the first call."""
    global _access
    with _lock:
        if _access is None:
            found: list[Access] = []
            # A new thread has no modes (fake, inference, default device) that would disturb the samples.
            worker = threading.Thread(target=lambda: found.append(_probe()), name="graphlift-probe")
            worker.start()
            worker.join()
            _access = found[0] if found else Access(False, False, "the probe failed", {}, {}, 0)
    return _access


def _probe() -> Access:
    try:
        libraries = _libraries()
        tensors = _probe_tensors(libraries)
    except (Unverified, OSError, AttributeError, RuntimeError, ValueError) as error:
        return Access(False, False, f"tensor layout: {error}", {}, {}, 0)
    try:
        _probe_state(libraries, tensors)
    except (Unverified, OSError, AttributeError, RuntimeError, ValueError) as error:
        return Access(
            True,
            False,
            f"global state: {error}",
            tensors.dtype_codes,
            tensors.device_codes,
            tensors.plain_keys,
        )
    return tensors


def _libraries() -> dict[str, ctypes.CDLL]:
    import torch

    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    suffix = "dylib" if sys.platform == "darwin" else "so"
    loaded = os.RTLD_NOLOAD | os.RTLD_LAZY
    names = ("c10", "torch_cpu")
    return {name: ctypes.CDLL(os.path.join(folder, f"lib{name}.{suffix}"), mode=loaded) for name in names}


def _address(libraries: dict[str, ctypes.CDLL], symbol: tuple[str, str]) -> int:
    library, name = symbol
    return ctypes.cast(getattr(libraries[library], name), ctypes.c_void_p).value or 0


# ---- tensors ----


def _samples() -> list[Any]:
    """Dense strided tensors that differ in every fact to be located."""
    import torch

    base = torch.empty(12, 10, dtype=torch.float32, device="cpu")
    complex_base = torch.empty(3, 4, dtype=torch.complex64, device="cpu")
    samples = [
        torch.empty((), dtype=torch.float64, device="cpu"),
        torch.empty(0, dtype=torch.int64, device="cpu"),
        base[2:5, 3:],
        base.t(),
        base[3].expand(7, 10),
        torch.empty(2, 3, 4, 5, 6, dtype=torch.bfloat16, device="meta"),
        torch.empty(2, 3, 4, 5, 6, 7, dtype=torch.float16, device="cpu"),
        torch.empty(2, 1, 3, 1, 2, 1, 5, 3, dtype=torch.bool, device="cpu").permute(3, 2, 1, 0, 7, 6, 5, 4),
        complex_base.conj(),
        torch._neg_view(base[4:]),
        torch.nn.Parameter(torch.empty(4, 5, dtype=torch.float32, device="cpu")),
        torch.nn.Parameter(torch.empty(9, dtype=torch.float64, device="cpu"), requires_grad=False),
    ]
    with torch.inference_mode():
        samples.append(torch.empty(9, 2, dtype=torch.uint8, device="cpu"))
    leaf = torch.empty(3, dtype=torch.float32, device="cpu", requires_grad=True)
    with torch.enable_grad():
        samples += [leaf, leaf * 2, (leaf * 2).detach()]
    return samples


def _words(tensor: Any) -> tuple[int, ...]:
    return struct.unpack(f"<{_WINDOW_BYTES // 8}Q", ctypes.string_at(tensor._cdata, _WINDOW_BYTES))


def _only(what: str, found: Iterator[int]) -> int:
    offsets = list(found)
    if len(offsets) != 1:
        raise Unverified(f"{what} found at {len(offsets)} places")
    return offsets[0]


def _locate(what: str, samples: list[Any], expected: Callable[[Any], int], mask: int = 2**64 - 1) -> int:
    """The one byte offset in TensorImpl at which every sample holds its expected word."""
    memory = [(_words(t), expected(t)) for t in samples]
    places = range(1, _WINDOW_BYTES // 8)
    return _only(what, (8 * i for i in places if all(words[i] & mask == want for words, want in memory)))


def _locate_rank(samples: list[Any]) -> int:
    """Rank, followed by room for five sizes and five strides, or by a pointer to all of them."""

    def fits(tensor: Any, place: int) -> bool:
        words, rank = _words(tensor), tensor.dim()
        if place + 11 > len(words) or words[place] != rank:
            return False
        sizes = words[place + 1 : place + 1 + rank]
        strides = words[place + 1 + _INLINE_DIMS : place + 1 + _INLINE_DIMS + rank]
        if rank > _INLINE_DIMS:
            # Only a place that fitted every small tensor gets here, so the word is a pointer.
            outside = struct.unpack(f"<{2 * rank}Q", ctypes.string_at(words[place + 1], 16 * rank))
            sizes, strides = outside[:rank], outside[rank:]
        return sizes == tuple(tensor.shape) and strides == tuple(tensor.stride())

    small = [t for t in samples if t.dim() <= _INLINE_DIMS]
    large = [t for t in samples if t.dim() > _INLINE_DIMS]
    place = _only("rank", (i for i in range(1, _WINDOW_BYTES // 8) if all(fits(t, i) for t in small)))
    if not all(fits(t, place) for t in large):
        raise Unverified("sizes of tensors of high rank")
    return 8 * place


def _impl_offset(samples: list[Any]) -> int:
    def holds(offset: int) -> bool:
        return all(struct.unpack("<Q", ctypes.string_at(id(t) + offset, 8))[0] == t._cdata for t in samples)

    return _only("tensor in its Python object", (offset for offset in (16, 24, 32) if holds(offset)))


def _locate_grad_flag() -> tuple[int, int]:
    """Where a tensor's AutogradMeta is, and in it the flag of what requires grad; (0, 0) where that cannot be told."""
    import torch

    plain = [torch.empty(n, device="cpu") for n in (0, 3, 7)]
    used, switched, *asked = [torch.empty(n, device="cpu", requires_grad=True) for n in (2, 3, 4, 5)]
    used.sum().backward()
    (asked[0] * 2).sum()
    asked[1].register_hook(lambda grad: None)
    switched.requires_grad_(False)
    asked += [torch.nn.Parameter(torch.empty(3, device="cpu")), used, switched]
    try:
        pairs = [(0, t) for t in plain] + [(1, t) for t in asked]
        memory = [(has, _words(t)) for has, t in pairs]
        places = range(2, _WINDOW_BYTES // 8)
        history = _only("history", (i for i in places if all(has == (words[i] > 0) for has, words in memory)))
        seen = [(t.requires_grad, ctypes.string_at(_words(t)[history], _HISTORY_BYTES)) for t in asked]
        flag = _only("flag", (i for i in range(_HISTORY_BYTES) if all(m[i] == on for on, m in seen)))
    except Unverified:
        return 0, 0
    return 8 * history, flag


def _dtype_codes(cpu: ctypes.CDLL) -> dict[Any, int]:
    """torch's number of each dtype, from its own C functions."""
    import torch

    codes = {}
    for dtype in {d for d in vars(torch).values() if isinstance(d, torch.dtype)}:
        function = getattr(cpu, f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}", None)
        if function is not None:
            codes[dtype] = int(function())
    return codes


def _plain_keys(samples: list[Any]) -> int:
    import torch

    keys = 0
    for tensor in samples:
        keys |= dispatch_keys(tensor)
    for name in ("CPU", "CUDA", "XPU", "MPS", "PrivateUse1", "Meta"):
        key = getattr(torch._C.DispatchKey, name, None)
        keys |= torch._C.DispatchKeySet(key).raw_repr() if key is not None else 0
    return keys


def _probe_tensors(libraries: dict[str, ctypes.CDLL]) -> Access:
    import torch

    samples = _samples()
    impl = _impl_offset(samples)
    cpu = libraries["torch_cpu"]
    dtypes = _dtype_codes(cpu)
    devices = {}
    for kind in _DEVICE_KINDS:
        function = getattr(cpu, f"aoti_torch_device_type_{kind}", None)
        if function is not None:
            devices[kind] = int(function())

    def type_device(tensor: Any) -> int:
        index = -1 if tensor.device.index is None else tensor.device.index
        return _type_device_word(dtypes[tensor.dtype], devices[tensor.device.type], index)

    sizes = [0] * (max(dtypes.values()) + 1)
    for dtype, code in dtypes.items():
        sizes[code] = dtype.itemsize
    plain = _plain_keys(samples)
    _guards.set_layout(
        impl,
        _locate("dispatch keys", samples, dispatch_keys),
        _locate_rank(samples),
        _locate("dtype and device", samples, type_device, mask=(1 << 40) - 1),
        _locate("storage", samples, lambda t: t.untyped_storage()._cdata),
        _locate("storage offset", samples, lambda t: t.storage_offset()),
        *_locate_grad_flag(),
        _address(libraries, _REQUIRES_GRAD),
        _address(libraries, ("torch_cpu", "aoti_torch_get_data_ptr")),
        plain,
        torch._C.TensorBase,
        torch._C.TensorBase.__dict__["grad"],
        tuple(sizes),
    )
    for tensor in samples + _samples():
        _verify_tensor(tensor, type_device(tensor))
    return Access(True, True, "", dtypes, devices, plain)


def _verify_tensor(tensor: Any, type_device: int) -> None:
    found = _guards.read_tensor(tensor)
    expected = (
        *(
            dispatch_keys(tensor),
            type_device,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.requires_grad,
        ),
        *(tensor.data_ptr(), tensor.untyped_storage()._cdata, tensor.storage_offset()),
    )
    if found != expected:
        raise Unverified(f"read {found} of a tensor that is {expected}")


# ---- modes ----


def _probe_state(libraries: dict[str, ctypes.CDLL], tensors: Access) -> None:
    import torch

    addresses = tuple(_address(libraries, symbol) for symbol in _STATE_SYMBOLS)
    raw = (ctypes.c_uint64 * 2).in_dll(libraries["c10"], "_ZN3c104impl26raw_local_dispatch_key_setE")
    now = GlobalState()
    # In a fresh thread the raw words differ from the true sets exactly by torch's static defaults.
    default = (raw[0] ^ now.included_keys, raw[1] ^ now.excluded_keys)
    path = os.path.realpath(libraries["c10"]._name)
    bits = _locate_autograd_bits(addresses[0])
    if not _guards.set_state_access(addresses, bits, path, default, torch.autograd.forward_ad.__dict__):
        raise Unverified("thread-local dispatch keys")
    for enter in _mode_samples():
        with enter():
            _verify_state(tensors, default)


def _locate_autograd_bits(get_state: int) -> int:
    """The byte of c10::AutogradState whose low bits are grad mode, inference mode and forward grad mode."""
    address = ctypes.CFUNCTYPE(ctypes.c_void_p)(get_state)()
    size_bytes = 32
    seen = []
    for enter in _mode_samples():
        with enter():
            seen.append((_autograd_bits(GlobalState()), ctypes.string_at(address or 0, size_bytes)))
    if address is None or len({bits for bits, _ in seen}) < 4:
        raise Unverified("autograd state")
    return _only(
        "autograd modes", (i for i in range(size_bytes) if all(m[i] & 7 == bits for bits, m in seen))
    )


def _autograd_bits(state: GlobalState) -> int:
    return state.grad_enabled | state.inference_mode << 1 | state.forward_grad_enabled << 2


def _mode_samples() -> list[Callable[[], Any]]:
    """Contexts, all of them thread-local, that change what is to be read."""
    import contextlib

    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    return [
        contextlib.nullcontext,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autograd.forward_ad._set_fwd_grad_enabled(False),
        lambda: torch.autocast("cpu", dtype=torch.float16),
        lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
        torch._C.DisableTorchFunctionSubclass,
        torch._C.DisableTorchFunction,
        TorchFunctionMode,
        TorchDispatchMode,
        torch.autograd.forward_ad.dual_level,
    ]


def _verify_state(tensors: Access, default: tuple[int, int]) -> None:
    import torch

    found, state = _guards.read_state(), GlobalState()
    expected = (
        _autograd_bits(state),
        tensors.dtype_codes[state.default_dtype],
        int(state.deterministic[0]),
        int(state.deterministic[1]),
        state.function_state,
        state.dispatch_modes,
        len(state.function_modes),
        int(torch.is_autocast_cache_enabled()),
        tuple(tensors.dtype_codes[torch.get_autocast_dtype(device)] for device, _, _ in state.autocast),
        state.forward_ad_level,
        (state.included_keys ^ default[0], state.excluded_keys ^ default[1]),
    )
    if found != expected:
        raise Unverified(f"read {found} of a state that is {expected}")
