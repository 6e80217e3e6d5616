"""One handler per canonical instruction.

In: instructions, as `bytecode/` decodes them. Out: `HANDLERS`; `UNSUPPORTED` names those that always run natively.
Always: the modules here fill the table when they are imported; nothing else does.
"""

from . import building, calls, classes, exceptions, matching, names, operators, rest  # noqa: F401  (they fill the table)
from .table import HANDLERS, UNSUPPORTED

__all__ = ["HANDLERS", "UNSUPPORTED"]
