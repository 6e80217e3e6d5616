"""Loading the C extensions, with an error that says what to do when they are not there.

In: nothing. Out: the `graphlift.frame` package. Always: raises MissingExtension instead of ImportError.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType

from graphlift.errors import MissingExtension

_EXTENSIONS = ("graphlift.frame._frame", "graphlift.guards._guards")
_LEAVES = tuple(name.rpartition(".")[2] for name in _EXTENSIONS)


@functools.cache
def frame() -> ModuleType:
    """The package `graphlift.frame`."""
    try:
        import graphlift.frame as package
    except ImportError as error:
        if not is_ours(error):
            raise
        raise missing(error) from error
    return package


def is_ours(error: BaseException | None) -> bool:
    """Whether `error`, or what caused it, is about one of the extensions, absent or not loadable."""
    while isinstance(error, ImportError):
        if error.name in (*_EXTENSIONS, *_LEAVES) or any(
            f"import name {leaf!r}" in str(error) for leaf in _LEAVES
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def missing(error: ImportError) -> MissingExtension:
    """The error for a C extension that cannot be imported."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return MissingExtension(
        "a C extension of graphlift cannot be imported",
        found=str(error),
        expected=f"{' and '.join(_EXTENSIONS)}, built for CPython {version}",
        hint="run `pip install .` in graphlift's source folder (needs a C compiler), with this Python",
    )
