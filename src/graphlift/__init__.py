"""graphlift: a graph-capture compiler for PyTorch.

In: `import graphlift`. Out: the public names below, each loaded when first used.
Always: importing graphlift imports nothing but this file, so that it adds nothing noticeable to `import torch`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphlift import config, errors
    from graphlift.aot import aot_function, aot_module
    from graphlift.api import advise, compile, explain
    from graphlift.backends import list_backends, register_backend
    from graphlift.control import disable, reset
    from graphlift.errors import GraphliftError
    from graphlift.marks import (
        allow_in_graph,
        assume_constant_result,
        check,
        graph_break,
        is_compiling,
        mark_dynamic,
        mark_static,
        maybe_mark_dynamic,
    )
    from graphlift.padding import pad_to_buckets
    from graphlift.stance import set_stance

__version__ = "0.1.0"

# Where each public name lives. Modules come as themselves.
_HOMES: dict[str, str] = {
    "GraphliftError": "errors",
    "advise": "api",
    "allow_in_graph": "marks",
    "aot_function": "aot",
    "aot_module": "aot",
    "assume_constant_result": "marks",
    "check": "marks",
    "compile": "api",
    "disable": "control",
    "explain": "api",
    "graph_break": "marks",
    "is_compiling": "marks",
    "list_backends": "backends",
    "mark_dynamic": "marks",
    "mark_static": "marks",
    "maybe_mark_dynamic": "marks",
    "pad_to_buckets": "padding",
    "register_backend": "backends",
    "reset": "control",
    "set_stance": "stance",
}
_MODULES = ("config", "errors")

# Names of the public surface that this version does not have: what each will be, and what to use until then.
_NOT_BUILT: dict[str, tuple[str, str]] = {
    "Dim": ("named dynamic dimensions for export", "graphlift.mark_dynamic on the tensors that vary"),
    "export": ("export of a whole graph", "graphlift.compile(fn, fullgraph=True) captures one graph"),
    "load": ("loading a saved compiled program", "compile in the process that runs it"),
    "save": ("saving a compiled program", "compile in the process that runs it"),
    "verify": ("comparison of every region with eager", "compare outputs with torch.testing.assert_close"),
}

__all__ = [
    "GraphliftError",
    "advise",
    "allow_in_graph",
    "aot_function",
    "aot_module",
    "assume_constant_result",
    "check",
    "compile",
    "config",
    "disable",
    "errors",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
    "pad_to_buckets",
    "register_backend",
    "reset",
    "set_stance",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is not None:
        value = getattr(importlib.import_module(f"graphlift.{home}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"graphlift.{name}")
    elif name in _NOT_BUILT:
        value = _not_built(name)
    else:
        raise AttributeError(f"module 'graphlift' has no attribute {name!r}")
    globals()[name] = value
    return value


def _not_built(name: str) -> Any:
    """A stand-in that can be imported and raises NotBuilt when it is called."""
    what, instead = _NOT_BUILT[name]

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        from graphlift.errors import NotBuilt

        raise NotBuilt(f"graphlift.{name} ({what}) is not built in version {__version__}", hint=instead)

    stand_in.__name__ = stand_in.__qualname__ = name
    stand_in.__doc__ = f"Not built yet: {what}."
    return stand_in


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_NOT_BUILT})
