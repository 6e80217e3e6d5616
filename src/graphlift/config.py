"""graphlift's configuration: one row per flag.

In: the environment at import, assignments (`graphlift.config.cache_size_limit = 16`) and `patch`. Out: plain module
attributes. Always: a value has its flag's type, and assigning an unknown name raises; `docs/config.md` is generated.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from graphlift.data import dataclass
from graphlift.errors import InvalidOption


def _no_check(value: Any) -> str | None:
    return None


def _at_least_one(value: Any) -> str | None:
    return None if value >= 1 else "an integer of at least 1"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: `check` returns what was expected when a value of the right type is not allowed."""

    name: str
    type: type
    default: Any
    help: str
    env: str
    check: Callable[[Any], str | None] = _no_check


def _fraction(value: Any) -> str | None:
    return None if 0.0 <= value <= 1.0 else "a number from 0.0 to 1.0"


def _callables(value: Any) -> str | None:
    return None if all(map(callable, value)) else "functions"


_ROWS = (
    Flag(
        "cache_size_limit",
        int,
        8,
        "How many compiled entries one code object may have per compiled callable. Beyond it the function runs "
        "eagerly, with one warning that names the guard that kept failing.",
        "GRAPHLIFT_CACHE_SIZE_LIMIT",
        _at_least_one,
    ),
    Flag(
        "accumulated_cache_size_limit",
        int,
        256,
        "How many compiled entries one code object may have over all compiled callables: a function compiled again "
        "and again, each time anew, is kept from filling the memory.",
        "GRAPHLIFT_ACCUMULATED_CACHE_SIZE_LIMIT",
        _at_least_one,
    ),
    Flag(
        "strict",
        bool,
        False,
        "Raise where graphlift would otherwise log, fall back to eager or ATen, and go on. For tests and bug reports.",
        "GRAPHLIFT_STRICT",
    ),
    Flag(
        "disable",
        bool,
        False,
        "Make graphlift.compile return its argument unchanged, to rule graphlift out while debugging.",
        "GRAPHLIFT_DISABLE",
    ),
    Flag(
        "capture_scalar_outputs",
        bool,
        False,
        "Capture .item(), int() and float() of tensors: the number is made while the graph runs. Off: a graph break.",
        "GRAPHLIFT_CAPTURE_SCALAR_OUTPUTS",
    ),
    Flag(
        "capture_dynamic_output_shape_ops",
        bool,
        False,
        "Capture operators whose result's shape depends on values (nonzero, boolean masks, unique, ...): the size is "
        "found while the graph runs. Off: a graph break.",
        "GRAPHLIFT_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS",
    ),
    Flag(
        "activation_memory_budget",
        float,
        1.0,
        "How much of the memory that the forward would keep for the backward it may keep: 1.0 keeps what is fastest, "
        "0.0 computes again in the backward all that may be computed again (never random numbers).",
        "GRAPHLIFT_ACTIVATION_MEMORY_BUDGET",
        _fraction,
    ),
    Flag(
        "reorderable_logging_functions",
        tuple,
        (),
        "Functions such as `print`, `warnings.warn` or `logging.Logger.info` that need not break the graph: their "
        "calls run after it, in their order, with tensors and containers as they were when the program called. They "
        "return None, and what they do depends on their arguments alone. Set it before the first call. In the "
        "environment: names such as `builtins.print`, separated by commas.",
        "GRAPHLIFT_REORDERABLE_LOGGING_FUNCTIONS",
        _callables,
    ),
    Flag(
        "logs",
        str,
        "",
        "Comma-separated log artifacts to print on stderr: graph_breaks, guards, recompiles, graph_code, aot, "
        "output_code, source, timings, or all.",
        "GRAPHLIFT_LOGS",
    ),
)

FLAGS: Mapping[str, Flag] = types.MappingProxyType({row.name: row for row in _ROWS})

# For type checkers and for readers; the values are set from FLAGS at the end of the module.
cache_size_limit: int
accumulated_cache_size_limit: int
strict: bool
capture_scalar_outputs: bool
capture_dynamic_output_shape_ops: bool
disable: bool
activation_memory_budget: float
reorderable_logging_functions: tuple[Callable[..., Any], ...]
logs: str

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def _parse(flag: Flag, text: str) -> Any:
    """The value written in an environment variable."""
    if flag.type is bool:
        word = text.strip().lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
    elif flag.type is tuple:
        with contextlib.suppress(ValueError, ImportError, AttributeError):
            return tuple(pkgutil.resolve_name(name.strip()) for name in text.split(",") if name.strip())
    elif flag.type is not str:
        with contextlib.suppress(ValueError):
            return flag.type(text)
    else:
        return text
    raise InvalidOption(
        f"environment variable {flag.env} has no valid value",
        found=repr(text),
        expected=_EXPECTED[flag.type],
        hint=f"unset {flag.env} or set it to such a value; {flag.help}",
    )


_EXPECTED = {
    bool: "1 or 0",
    int: "an integer",
    float: "a number",
    str: "a string",
    tuple: "names of functions, such as builtins.print,logging.Logger.info",
}


def _checked(name: str, value: Any) -> Any:
    """`value` if the flag `name` may have it; raises InvalidOption otherwise."""
    flag = FLAGS.get(name)
    if flag is None:
        raise InvalidOption(
            f"graphlift.config has no flag {name!r}",
            expected="one of " + ", ".join(FLAGS),
            hint="check the spelling",
        )
    if flag.type is float and type(value) is int:
        value = float(value)
    if flag.type is tuple and type(value) in (list, set, frozenset):
        value = tuple(value)
    expected = f"a value of type {flag.type.__name__}" if type(value) is not flag.type else flag.check(value)
    if expected is not None:
        raise InvalidOption(
            f"graphlift.config.{name} cannot have this value", found=repr(value), expected=expected
        )
    return value


@contextlib.contextmanager
def patch(**values: Any) -> Iterator[None]:
    """Sets flags for the duration of a `with` block (or of a decorated function), then restores them."""
    this = sys.modules[__name__]
    new = {name: _checked(name, value) for name, value in values.items()}
    old = {name: getattr(this, name) for name in new}
    try:
        for name, value in new.items():
            setattr(this, name, value)
        yield
    finally:
        for name, value in old.items():
            setattr(this, name, value)


def snapshot() -> dict[str, Any]:
    """All flags and their current values."""
    this = sys.modules[__name__]
    return {name: getattr(this, name) for name in FLAGS}


def config_markdown() -> str:
    """The text of `docs/config.md`."""
    parts = [
        "# Configuration",
        "",
        "Generated from `graphlift.config` by `make docs`; edit the rows there. Set a flag by assignment",
        "(`graphlift.config.cache_size_limit = 16`), for a block (`with graphlift.config.patch(strict=True):`), or in",
        "the environment before the first import.",
        "",
        "| flag | type | default | environment | what it does |",
        "|---|---|---|---|---|",
    ]
    for flag in FLAGS.values():
        parts.append(
            f"| `{flag.name}` | {flag.type.__name__} | `{flag.default!r}` | `{flag.env}` | {flag.help} |"
        )
    return "\n".join(parts) + "\n"


class _ConfigModule(types.ModuleType):
    """The module itself, with assignments checked."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
            return
        value = _checked(name, value)
        if name == "logs":
            _logs_changed(value)  # refuses unknown artifacts, and then the flag stays as it was
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise InvalidOption(f"graphlift.config.{name} cannot be deleted", hint="assign its default instead")


def _logs_changed(value: str) -> None:
    """Applies a new `logs` value where the log module is in use already; it reads the flag itself when imported."""
    configure = getattr(sys.modules.get("graphlift.logs"), "configure", None)
    if configure is not None:  # not where the log module is being imported, and brings this one in
        configure(value)


def _initialise() -> None:
    this = sys.modules[__name__]
    this.__class__ = _ConfigModule
    for flag in FLAGS.values():
        text = os.environ.get(flag.env)
        setattr(this, flag.name, flag.default if text is None else _parse(flag, text))


_initialise()
