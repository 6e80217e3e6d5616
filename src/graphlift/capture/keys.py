"""Keys whose class says what they equal: what that is made of must be the same when the region is replayed.

In: what the class of a key looked at, and what was there. Out: nothing, or the end of the region before it was a key.
Always: a container keeps the hash that its key had when it was put there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .breaks import RunEagerly
from .trackers import ConstVar, DictVar, ObjectVar, Tracker, ValueKey, describe

if TYPE_CHECKING:
    from .capture import Capture


def require_same(cap: Capture, key: ValueKey) -> None:
    """For a key of what is made, or changed, when the region is replayed. Raises: RunEagerly."""
    for var, before in key.read.values():
        if id(var) in cap.changed or contents(var) != before:
            detail = (
                f"a {describe(key.tracker)} as a key, of which the region changes what its hash is made of"
            )
            raise RunEagerly("unsupported-object", detail, earlier=key.born)


def contents(var: Tracker) -> Any:
    """What an object that the region made holds; of one from outside, None: its changes are in the log."""
    if type(var) is DictVar and var.real is None:
        return {key: _identity(value) for key, value in var.known.items()}
    if type(var) is ObjectVar and var.obj is None:
        return {name: _identity(value) for name, value in var.slots.items()}
    return None


def _identity(value: Tracker) -> Any:
    """What stays the same when a value is looked at for the first time."""
    if value.source is not None:
        return value.source
    return id(value.value) if type(value) is ConstVar else id(value)
