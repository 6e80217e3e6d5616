"""GRAPHLIFT_LOGS: which artifacts are printed, and that nothing is printed otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import graphlift
from graphlift import config, logs
from graphlift.errors import InvalidOption
from graphlift.options import CompileEvent

X = torch.ones(3)


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    logs.configure(config.logs)


def test_unknown_artifact_lists_the_known_ones() -> None:
    with pytest.raises(InvalidOption, match="graph_breaks"):
        logs.configure("graph_braeks")


def test_refused_artifact_leaves_the_flag_as_it_was() -> None:
    before = config.logs
    with pytest.raises(InvalidOption, match="graph_braeks"):
        config.logs = "graph_braeks"
    assert config.logs == before


def test_configure_switches_on_exactly_what_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("guards, recompiles")
    assert logs.enabled("guards") and logs.enabled("recompiles") and not logs.enabled("aot")
    logs.log("guards", "one")
    logs.log("aot", "two")
    err = capsys.readouterr().err
    assert "[graphlift.guards] one" in err and "two" not in err
    logs.configure("all")
    assert all(map(logs.enabled, logs.ARTIFACTS))
    logs.configure("")
    logs.log("guards", "three")
    assert not capsys.readouterr().err


def test_config_assignment_and_patch_apply(capsys: pytest.CaptureFixture[str]) -> None:
    with config.patch(logs="graph_breaks"):
        assert logs.enabled("graph_breaks")
    assert not logs.enabled("graph_breaks")


def test_text_is_built_only_when_wanted() -> None:
    logs.log("guards", lambda: pytest.fail("built"))  # type: ignore[arg-type, return-value]


def test_events() -> None:
    import logging

    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("graphlift").addHandler(handler)
    try:
        logs.log_event(CompileEvent("fallback", "f", "a.py", 3, "n changed"))
        logs.log_event(CompileEvent("recompile", "f", "a.py", 3, "n changed"))
    finally:
        logging.getLogger("graphlift").removeHandler(handler)
    assert [r.levelname for r in records] == ["WARNING"]
    assert "f (a.py:3): n changed" in records[0].getMessage()


def test_real_run_logs_breaks_graphs_guards_and_recompiles(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x.sin() * n
        graphlift.graph_break("told to")
        return y.cos()

    compiled = graphlift.compile(f, backend="eager")
    with config.patch(logs="graph_breaks,graph_code,guards,recompiles,source,timings"):
        compiled(X, 1)
        compiled(X, 2)
    err = capsys.readouterr().err
    assert "requested-break" in err and __file__ in err and "told to" in err
    assert "sin" in err and "[graphlift.guards]" in err
    assert "[graphlift.recompiles]" in err and "n" in err
    compiled(X, 3)
    assert not capsys.readouterr().err
