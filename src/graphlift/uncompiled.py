"""Frames that run as they are, and with the hook off everything that they call.

In: the code and the arguments of a frame about to run. Out: the answer to the hook, or None for all other frames.
Always: in captured code, calls of the functions of `WHOLE` are breaks, so that such frames come to run.
"""

from __future__ import annotations

import importlib
import logging
import os
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import rnn
from torch.utils.hooks import BackwardHook


def _always(func: Callable[..., Any], *arguments: Any) -> Any:
    """A check that always passes and fetches nothing."""
    return ()


def is_packed(*arguments: Any) -> bool:
    """Whether there are packed sequences among the arguments."""
    return any(isinstance(argument, rnn.PackedSequence) for argument in arguments)


def _packed(func: Callable[..., Any], *arguments: Any) -> Any:
    return () if is_packed(*arguments) else None


def _call_with(func: Callable[..., Any], *given: Any) -> Any:
    return func(*given[:-1])  # the last is what the check fetched


def _call_disabled(func: Callable[..., Any], args: Any, kwargs: Any, fetched: Any) -> Any:
    return func(*args, **kwargs)


LAZY = "the first call of a lazy module, which makes its parameters"

#: Functions that are not traced into, and why.
WHOLE: dict[Any, str] = {
    LazyModuleMixin._infer_parameters: LAZY,
    **dict.fromkeys(
        (BackwardHook.setup_input_hook, BackwardHook.setup_output_hook),
        "a module's backward hook, which is put on the nodes of eager's own history",
    ),
    **dict.fromkeys(
        (rnn.pack_padded_sequence, rnn.pad_packed_sequence, rnn.pack_sequence, rnn.unpad_sequence),
        "sequences packed by the lengths in a tensor",
    ),
}
#: Methods of which that holds for packed sequences.
RECURRENT = tuple(cls.forward for cls in (nn.RNN, nn.LSTM, nn.GRU))

#: What the hook is answered: a check, what to call, and whether that is to be captured.
#: - What Python runs to import a module: the module's own code is no part of the user's function.
#: - What handlers of logging do with a record.
#: - What torch marks so for its own compiler: checkpoints, whose function must run alike again in the backward.
_ANSWERS: dict[CodeType, tuple[Callable[..., Any], Callable[..., Any], bool]] = {
    importlib._bootstrap._find_and_load.__code__: (_always, _call_with, False),  # type: ignore[attr-defined]
    torch._disable_dynamo(lambda: None).__code__: (_always, _call_disabled, False),
    logging.Logger.handle.__code__: (_always, _call_with, False),
    **{fn.__code__: (_always, _call_with, False) for fn in WHOLE},
    **{fn.__code__: (_packed, _call_with, False) for fn in RECURRENT},
}
#: The same for what `torch.compile` gives: a compiler of its own, which takes over the evaluation of frames meanwhile.
_OTHER_COMPILER = (
    os.path.join(os.path.dirname(torch.__file__), "_dynamo", "eval_frame.py"),
    "compile_wrapper",
)


def answer(code: CodeType, arguments: tuple[Any, ...]) -> Any:
    """What the hook is answered for a frame that runs as it is; None for other frames."""
    if (code.co_filename, code.co_name) == _OTHER_COMPILER:
        return _always, _call_disabled, False
    found = _ANSWERS.get(code)
    return found if found is None or found[0](None, *arguments) is not None else None


def before_lazy(func: Any) -> Any:
    """What the hook is answered for a call of a module that makes parameters in it: all of the call is eager's.

    None for other frames, and once the module has them.
    """
    module = getattr(func, "__wrapped__", None)
    if not isinstance(module, nn.Module) or not _waits(module):
        return None
    return _WhileLazy(module), _call_disabled, False


class _WhileLazy:
    """The check of such an answer; in reports it stands for the guards of a region."""

    guards = ()

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)

    def __call__(self, func: Callable[..., Any], *arguments: Any) -> Any:
        module = self._module()
        return () if module is not None and _waits(module) else None

    def explain_failure(self, func: Callable[..., Any], *arguments: Any) -> str:
        return "a lazy module has made its parameters, in a call that was eager's"


def _waits(module: nn.Module) -> bool:
    return any(isinstance(m, LazyModuleMixin) and m.has_uninitialized_params() for m in module.modules())
