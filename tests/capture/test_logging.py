"""Logging in captured code: one break a call, and records that name the user's function and line."""

from __future__ import annotations

import functools
import io
import logging
from collections.abc import Callable, Iterator

import pytest
import torch

import graphlift
from graphlift.errors import GraphBreakError

LOG = logging.getLogger("graphlift_test_logging")


@pytest.fixture
def records() -> Iterator[Callable[[], str]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(funcName)s:%(lineno)d:%(levelname)s:%(message)s"))
    LOG.addHandler(handler)
    LOG.propagate = False

    def taken() -> str:
        text = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        return text

    yield taken
    LOG.removeHandler(handler)
    LOG.setLevel(logging.NOTSET)


def inner(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    LOG.error("inner")
    return y


def outer(x: torch.Tensor, count: int) -> torch.Tensor:
    y = x + count
    LOG.warning("outer %d", count)
    return inner(y) * 2


def quiet(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    LOG.debug("not shown")
    return y * 2


def test_records_name_the_program(records: Callable[[], str]) -> None:
    x = torch.randn(3)
    wanted = [outer(x, count) for count in range(3)]
    text = records()
    compiled = graphlift.compile(outer)
    found = [compiled(x, count) for count in range(3)]
    assert records() == text and "outer:" in text and "inner:" in text
    torch.testing.assert_close(found, wanted)


def test_one_break_for_each_record(records: Callable[[], str]) -> None:
    explained = graphlift.explain(outer)(torch.randn(3), 1)
    assert [reason.code for reason in explained.break_reasons] == ["print-or-io", "print-or-io"]


def test_levels_that_are_off_break_nothing(records: Callable[[], str]) -> None:
    LOG.setLevel(logging.WARNING)
    compiled = graphlift.compile(quiet, fullgraph=True)
    x = torch.randn(3)
    assert torch.equal(compiled(x), quiet(x)) and records() == ""
    LOG.setLevel(logging.DEBUG)
    with pytest.raises(GraphBreakError):
        compiled(x)
    compiled = graphlift.compile(quiet)
    assert torch.equal(compiled(x), quiet(x)) and "quiet:" in records()


@functools.lru_cache(None)
def warn_once(text: str) -> None:
    LOG.warning(text)


def warned(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    warn_once("once")
    return y * 2


def test_what_was_said_once_breaks_nothing(records: Callable[[], str]) -> None:
    compiled = graphlift.compile(warned)
    x = torch.randn(3)
    for _ in range(2):
        warn_once.cache_clear()
        for _ in range(3):
            assert torch.equal(compiled(x), warned(x))
        assert records().count(":once") == 1
        assert warn_once.cache_info().misses == 1
    assert graphlift.explain(warned)(x).graph_break_count == 0
