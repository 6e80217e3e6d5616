"""Functions whose composite kernel makes other calls on fakes than on real tensors.

In: the function as a program calls it. Out: what to call on fakes instead.
Always: gives, or raises, what the function does on real tensors, views included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .symbolic import as_one_operator

aten = torch.ops.aten


def _by_rows(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """As C++ does where it asks nothing of the sizes: a picture of one row."""

    def one(value: Any) -> Any:
        return value[0] if isinstance(value, (tuple, list)) else value

    steps = (1, one(kernel_size if stride in (None, (), []) else stride))
    return F.max_pool2d(
        x.unsqueeze(-2), (1, one(kernel_size)), steps, (0, one(padding)), (1, one(dilation)), ceil_mode
    ).squeeze(-2)


def _max_pool1d(function: Callable[..., Any]) -> Callable[..., Any]:
    """Without grad on the CPU, a kernel of its own, for floats, whose result is no view."""

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        by_rows = _varies(x.shape[-1]) and not kwargs.get("return_indices")
        result = (_by_rows if by_rows else function)(x, *args, **kwargs)
        if not isinstance(result, Tensor) or result.device.type != "cpu":
            return result
        if x.requires_grad and torch.is_grad_enabled():
            return result
        if not x.dtype.is_floating_point:
            raise NotImplementedError(f"max_pool1d of {x.dtype}")
        return result.clone(memory_format=torch.contiguous_format)

    return call


def _varies(*sizes: Any) -> bool:
    return any(isinstance(n, (torch.SymInt, torch.SymFloat)) for n in sizes)


#: (mode, whether antialiased, dimensions) -> the operator that takes sizes and scales.
_RESIZERS: dict[tuple[str, bool, int], Any] = {
    **{("nearest", False, d): getattr(aten, f"upsample_nearest{d}d").default for d in (1, 2, 3)},
    **{("nearest-exact", False, d): getattr(aten, f"_upsample_nearest_exact{d}d").default for d in (1, 2, 3)},
    ("linear", False, 1): aten.upsample_linear1d.default,
    ("bilinear", False, 2): aten.upsample_bilinear2d.default,
    ("trilinear", False, 3): aten.upsample_trilinear3d.default,
    ("bicubic", False, 2): aten.upsample_bicubic2d.default,
    ("bilinear", True, 2): aten._upsample_bilinear2d_aa.default,
    ("bicubic", True, 2): aten._upsample_bicubic2d_aa.default,
}


def _interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """With sizes that vary: C++ reads them, and computes them of factors, as plain numbers."""
    rest = (mode, align_corners, recompute_scale_factor, antialias)
    dims = input.dim() - 2
    resize = _RESIZERS.get((mode, antialias, dims))
    exact = mode.startswith("nearest")
    given, kinds = (scale_factor, (int, float)) if size is None else (size, (int, torch.SymInt))
    each = list(given) if isinstance(given, (tuple, list)) else [given] * dims
    if (
        resize is None
        or not _varies(*input.shape, *each)
        or (size is not None and (scale_factor is not None or recompute_scale_factor))
        or (exact and align_corners is not None)
        or len(each) != dims
        or not all(type(n) in kinds for n in each)
    ):
        return F.interpolate(input, size, scale_factor, *rest)
    scales: list[float | None] = [None] * dims
    if size is None:
        factors = [float(s) for s in each]
        each = [torch.sym_int(n * s) for n, s in zip(input.shape[2:], factors, strict=True)]
        scales = scales if recompute_scale_factor else [*factors]
    result: Tensor = resize(input, each, *(() if exact else (bool(align_corners),)), *scales)
    return result


def _tensor_of(data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
    """Of sizes: C++ reads them as plain numbers."""
    items = data if isinstance(data, (tuple, list)) else [data]
    numbers = all(type(n) in (int, float, torch.SymInt, torch.SymFloat) for n in items)
    if kwargs or not numbers or not _varies(*items):
        return torch.tensor(data, dtype=dtype, device=device, **kwargs)
    if dtype is None:
        whole = all(type(n) in (int, torch.SymInt) for n in items)
        dtype = torch.int64 if whole else torch.get_default_dtype()
    made = [torch.full((), n, dtype=dtype, device=device) for n in items]
    return torch.stack(made) if isinstance(data, (tuple, list)) else made[0]


def one_hot_of_size(x: Tensor, num_classes: Any = -1) -> Tensor:
    """The number of classes as a size; out of range it raises, as the original does with a text of its own."""
    if not isinstance(num_classes, torch.SymInt) or x.dtype != torch.int64:
        return torch._C._nn.one_hot(x, num_classes)
    return x.new_zeros((*x.shape, num_classes)).scatter_(-1, x.unsqueeze(-1), 1)


def _pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """To a length that varies: C++ compares the lengths as plain numbers."""
    parts = list(sequences)
    varies = all(isinstance(x, Tensor) and x.dim() for x in parts) and _varies(
        *[n for x in parts for n in x.shape]
    )
    if not varies or padding_side not in ("left", "right"):
        return torch._C._nn.pad_sequence(sequences, batch_first, padding_value, padding_side)
    first = parts[0]
    longest = first.shape[0]
    for x in parts[1:]:
        longest = torch.sym_max(longest, x.shape[0])
    lead = (len(parts), longest) if batch_first else (longest, len(parts))
    out = first.new_full((*lead, *first.shape[1:]), padding_value)
    for i, x in enumerate(parts):
        start = longest - x.shape[0] if padding_side == "left" else 0
        out.select(0 if batch_first else 1, i).narrow(0, start, x.shape[0]).copy_(x)
    return out


# --- what C++ reads the sizes of as plain numbers --------------------------------------------------------------


def _stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """Transforms of windows, in place of what C++ makes of the sizes."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    length = input.shape[-1] + (n_fft // 2 * 2 if center else 0) if input.dim() in (1, 2) else 0
    if (
        window is None  # of which it warns
        or tuple(window.shape) != (width,)
        or not input.dtype == window.dtype in (torch.float32, torch.float64)
        or not (0 < width <= n_fft and hop > 0 and return_complex and align_to_window is None)
        or length < n_fft
    ):
        rest = (center, pad_mode, normalized, onesided, return_complex, align_to_window)
        return torch.stft(input, n_fft, hop_length, win_length, window, *rest)
    rows = input if input.dim() == 2 else input.unsqueeze(0)
    if center:
        rows = F.pad(rows.unsqueeze(0), [n_fft // 2] * 2, pad_mode).squeeze(0)
    pieces = rows.unfold(-1, n_fft, hop)
    left = (n_fft - width) // 2
    pieces = pieces * F.pad(window, (left, n_fft - width - left))
    way = 1 if normalized else 0
    result: Tensor = aten._fft_r2c(pieces, [2], way, onesided is not False).transpose_(1, 2)
    return result if input.dim() == 2 else result.squeeze_(0)


def _cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    weighted = fweights is not None or aweights is not None
    if weighted or input.dim() not in (1, 2) or not input.is_floating_point() or not _varies(*input.shape):
        return torch.cov(input, correction=correction, fweights=fweights, aweights=aweights)
    rows = input if input.dim() == 2 else input.unsqueeze(0)
    count = rows.shape[1]
    if count <= correction:  # of which the original warns
        return torch.cov(input, correction=correction)
    rows = rows - (rows.sum(1) / count).unsqueeze(1)
    return (rows.mm(rows.t()) / (count - correction)).squeeze()


def _corrcoef(input: Tensor) -> Tensor:
    if input.dim() != 2 or not input.is_floating_point() or not _varies(*input.shape) or input.shape[0] == 1:
        return torch.corrcoef(input)
    together = _cov(input)
    deviation = together.diagonal().sqrt()
    return (together / deviation.view(-1, 1) / deviation.view(1, -1)).clip(-1, 1)


def _kron(input: Tensor, other: Tensor) -> Tensor:
    if not _varies(*input.shape, *other.shape):
        return torch.kron(input, other)
    rank = max(input.dim(), other.dim())
    left = (1,) * (rank - input.dim()) + tuple(input.shape)
    right = (1,) * (rank - other.dim()) + tuple(other.shape)
    a = input.reshape([n for size in left for n in (size, 1)])
    b = other.reshape([n for size in right for n in (1, size)])
    return (a * b).reshape([n * m for n, m in zip(left, right, strict=True)])


# --- cells of recurrent networks: C++ compares the batch sizes as plain numbers ------------------------------------


def _lstm_gates(x: Tensor, h: Tensor, c: Tensor, ih: list[Any], hh: list[Any]) -> tuple[Tensor, Tensor]:
    gates = (F.linear(h, *hh) + F.linear(x, *ih)).chunk(4, 1)
    taken, kept, shown = gates[0].sigmoid(), gates[1].sigmoid(), gates[3].sigmoid()
    after = kept * c + taken * gates[2].tanh()
    return shown * after.tanh(), after


def _gru_gates(x: Tensor, h: Tensor, ih: list[Any], hh: list[Any]) -> Tensor:
    of_x, of_h = F.linear(x, *ih).chunk(3, 1), F.linear(h, *hh).chunk(3, 1)
    reset, kept = (of_h[0] + of_x[0]).sigmoid(), (of_h[1] + of_x[1]).sigmoid()
    new = (of_x[2] + of_h[2] * reset).tanh()
    return (h - new) * kept + new


def _rnn_gates(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda x, h, ih, hh: function(F.linear(h, *hh) + F.linear(x, *ih))


def _cell(original: Callable[..., Any], gates: Callable[..., Any]) -> Callable[..., Any]:
    """The cell over a batch that varies, on the CPU; whatever else is asked, or does not fit, goes to the original."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) < 4 or kwargs:
            return original(*args, **kwargs)
        x, hidden, w_ih, w_hh = args[:4]
        state = list(hidden) if isinstance(hidden, (tuple, list)) else [hidden]
        b_ih, b_hh = (*args[4:], None, None)[:2]
        plain = all(t.dim() == 2 and t.device.type == "cpu" for t in (x, *state))
        if not (plain and _varies(x.shape[0])) or any(t.shape[0] != x.shape[0] for t in state):
            return original(*args)
        if x.shape[1] != w_ih.shape[1] or any(t.shape[1] != w_hh.shape[1] for t in state):
            return original(*args)
        return gates(x, *state, [w_ih, b_ih], [w_hh, b_hh])

    return call


def _recurrent(original: Callable[..., Any]) -> Callable[..., Any]:
    """A network over a batch or a length that varies: C++ makes operators of each step, by plain numbers of them."""

    def call(x: Tensor, *args: Any) -> Any:
        if len(args) != 8 or not isinstance(x, Tensor) or x.dim() != 3 or not _varies(*x.shape):
            return original(x, *args)
        states = list(args[0]) if isinstance(args[0], (tuple, list)) else [args[0]]
        features = states[0].shape[-1] * (2 if args[6] else 1)
        shapes = [(*x.shape[:2], features), *[state.shape for state in states]]
        return as_one_operator(original, (x, *args), shapes)

    return call


ON_FAKES: dict[Any, Callable[..., Any]] = {
    **{function: _max_pool1d(function) for function in (torch.max_pool1d, F.max_pool1d)},
    F.interpolate: _interpolate,
    torch.tensor: _tensor_of,
    torch.stft: _stft,
    torch.cov: _cov,
    torch.corrcoef: _corrcoef,
    torch.kron: _kron,
    torch._C._nn.one_hot: one_hot_of_size,
    torch._C._nn.pad_sequence: _pad_sequence,
    torch.lstm_cell: _cell(torch.lstm_cell, _lstm_gates),
    torch.gru_cell: _cell(torch.gru_cell, _gru_gates),
    torch.rnn_tanh_cell: _cell(torch.rnn_tanh_cell, _rnn_gates(torch.tanh)),
    torch.rnn_relu_cell: _cell(torch.rnn_relu_cell, _rnn_gates(torch.relu)),
    **{network: _recurrent(network) for network in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)},
}
