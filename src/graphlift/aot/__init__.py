"""Ahead-of-time autograd: functional forward and backward graphs from a torch-level graph.

In: a GraphModule and example inputs. Out: a callable that behaves exactly as the graph does in eager.
Always: the graphs handed to compilers are functional ATen; every effect is put back outside them.
"""

from .compiled import Compiled, compile_graph, interpret
from .functions import aot_function, aot_module
from .partition import partition, save_all
from .plan import FallBack

__all__ = [
    "Compiled",
    "FallBack",
    "aot_function",
    "aot_module",
    "compile_graph",
    "interpret",
    "partition",
    "save_all",
]
