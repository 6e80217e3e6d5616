"""Operators whose kernel asks for grad mode, under a name that a compiled graph can call with grad mode off.

In: the ATen operator as autograd called it while tracing. Out: the operator that the emitted graph calls instead.
Always: same schema, same results; grad mode is on inside the kernel and autograd is not.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
_LIBRARY = torch.library.Library("graphlift", "DEF")
_SCHEMA = str(aten.mkldnn_rnn_layer.default._schema).removeprefix("aten::")
_LIBRARY.define(_SCHEMA)


def _mkldnn_rnn_layer(*args: Any) -> Any:
    """oneDNN's LSTM layer fills the workspace that its backward needs only in grad mode."""
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return aten.mkldnn_rnn_layer.default(*args)


def _mkldnn_rnn_layer_meta(*args: Any) -> Any:
    return aten.mkldnn_rnn_layer.default(*args)


_LIBRARY.impl("mkldnn_rnn_layer", _mkldnn_rnn_layer, "CPU")
_LIBRARY.impl("mkldnn_rnn_layer", _mkldnn_rnn_layer_meta, "Meta")

mkldnn_rnn_layer = torch.ops.graphlift.mkldnn_rnn_layer.default
