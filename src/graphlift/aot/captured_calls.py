"""What capture writes into graphs beside torch's own calls: state, contexts, custom functions, as the recorder runs it.

In: rows for the functions of `capture/`. Out: entries of `REPLACED`, and checks of what such calls return.
Always: what takes effect while operators run, rather than while they are recorded, leaves the graph to eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..capture import autograd_rules, tensor_attributes, torch_contexts, torch_state
from ..fake import FakeTensor
from .effect_ops import REPLACED
from .plan import FallBack


def _refuse(code: str, detail: str = "") -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise FallBack(code, detail)

    return refuse


def _nothing(*args: Any) -> None:
    return None


REPLACED.update(
    (setter, _refuse("global-setting", getattr(setter, "__name__", str(setter))))
    for setter in (*torch_state.SETTERS, torch_state.set_deterministic)
    if setter not in torch_state.DECIDED_WHEN_RECORDED
)
REPLACED[torch_contexts.enter_inference] = _refuse("inference-part")
REPLACED[tensor_attributes.set_data] = _refuse("data-assigned")
REPLACED[tensor_attributes.number_of] = _refuse("number-read")
REPLACED[torch_contexts.enter_label] = REPLACED[torch_contexts.leave_context] = _nothing


def note_result(function: Any, result: Any, aliases: list[FakeTensor]) -> None:
    """Collect what a custom function returns as an alias of something else: its history is not that of a view."""
    if function in autograd_rules.FUNCTIONS:
        for item in result if isinstance(result, tuple) else (result,):
            if type(item) is FakeTensor and item.path:
                aliases.append(item)


def require_no_alias(outputs: tuple, aliases: list[FakeTensor]) -> None:
    """Raises: FallBack where an output of the region is a view by way of a custom function."""
    for out in outputs:
        if type(out) is FakeTensor and any(
            out.home is alias.home and out.path[: len(alias.path)] == alias.path for alias in aliases
        ):
            raise FallBack("custom-function-view")
