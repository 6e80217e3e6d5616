"""Warnings of the program: behind the graph, as eager shows them; at their place where more may come of them.

In: functions that warn, and filters. Out: eager's results, exceptions and text on stderr, in each of several calls.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import graphlift
from graphlift import explain


@pytest.fixture(autouse=True)
def shown_on_stderr(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As outside of pytest, which records them."""
    spec = importlib.util.find_spec("warnings")
    assert spec is not None and spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    with warnings.catch_warnings():
        monkeypatch.setattr(warnings, "_showwarnmsg_impl", fresh._showwarnmsg_impl)
        yield


def warns(x):
    y = x + 1
    warnings.warn(f"of {x.shape[0]}", stacklevel=1)
    return y * 2


def _warn_of_caller(x):
    warnings.warn("deep", DeprecationWarning, stacklevel=2)
    return x * 3


def warns_of_caller(x):
    return _warn_of_caller(x) + _warn_of_caller(x)


def catches(x):
    try:
        warnings.warn("caught", RuntimeWarning, stacklevel=1)
        return x + 1
    except RuntimeWarning:
        return x - 1


def reads_volatile(x):
    return x if x.volatile else x + 1


def warns_then_raises(x):
    warnings.warn("before", stacklevel=1)
    return x[torch.tensor([7])]


def warns_then_writes(x):
    warnings.warn("before", stacklevel=1)
    x.add_(1)
    return x * 2


def changes_filters(x):
    warnings.filters.insert(0, ("ignore", None, UserWarning, None, 0))
    warnings.warn("hidden", stacklevel=1)
    del warnings.filters[0]
    return x + 1


def forgets_what_was_shown(x):
    __warningregistry__.clear()
    warnings.warn("again", stacklevel=1)
    return x + 1


def records(x):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("recorded", stacklevel=1)
        return x + len(seen)


FILTERS: dict[str, Callable[[], None]] = {
    "default": lambda: None,
    "always": lambda: warnings.simplefilter("always"),
    "error": lambda: warnings.simplefilter("error"),
    "error of another": lambda: warnings.filterwarnings("error", message="zzz"),
    "once": lambda: warnings.simplefilter("once"),
}
ONE_GRAPH = (warns, warns_of_caller, catches, reads_volatile)
OTHERS = (warns_then_raises, warns_then_writes, changes_filters, forgets_what_was_shown, records)


def observed(fn, filters: str, capsys) -> tuple[list, str]:
    found = []
    globals().setdefault("__warningregistry__", {}).clear()
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.resetwarnings()
        FILTERS[filters]()
        for _ in range(3):
            try:
                found.append(fn(torch.ones(3)).tolist())
            except (Warning, IndexError) as error:
                found.append((type(error), str(error)))
    return found, capsys.readouterr().err


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("fn", ONE_GRAPH + OTHERS)
def test_as_eager(fn: Callable[[Tensor], Tensor], filters: str, capsys) -> None:
    expected = observed(fn, filters, capsys)
    assert observed(graphlift.compile(fn, backend="eager"), filters, capsys) == expected


@pytest.mark.parametrize("fn", ONE_GRAPH)
def test_one_graph(fn: Callable[[Tensor], Tensor]) -> None:
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    assert not explain(fn)(torch.ones(3)).break_reasons
