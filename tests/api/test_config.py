"""Flags: types, environment, patching, and the generated page."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from graphlift import config
from graphlift.errors import InvalidOption


def test_defaults_and_annotations_match_the_table() -> None:
    assert set(config.__annotations__) >= set(config.FLAGS)
    assert config.FLAGS["cache_size_limit"].default == 8
    assert len({flag.env for flag in config.FLAGS.values()}) == len(config.FLAGS)
    for flag in config.FLAGS.values():
        assert type(flag.default) is flag.type and flag.help


def test_patch_sets_and_restores_also_after_an_exception() -> None:
    before = config.snapshot()
    with pytest.raises(KeyError), config.patch(cache_size_limit=2, strict=True):
        assert (config.cache_size_limit, config.strict) == (2, True)
        raise KeyError
    assert config.snapshot() == before


def test_patch_is_a_decorator() -> None:
    @config.patch(cache_size_limit=3)
    def inside() -> int:
        return config.cache_size_limit

    assert inside() == 3 and inside() == 3
    assert config.cache_size_limit != 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("cache_size_limit", "8"), ("cache_size_limit", True), ("cache_size_limit", 0), ("strict", 1)],
)
def test_wrong_values_are_refused_and_change_nothing(name: str, value: object) -> None:
    before = config.snapshot()
    with pytest.raises(InvalidOption, match=name):
        setattr(config, name, value)
    with pytest.raises(InvalidOption, match=name), config.patch(**{name: value}):
        pass
    assert config.snapshot() == before


def test_unknown_flag_is_refused() -> None:
    with pytest.raises(InvalidOption, match="no flag 'cache_size'"):
        config.cache_size = 3  # type: ignore[attr-defined]
    with pytest.raises(InvalidOption, match="cannot be deleted"):
        del config.strict


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"GRAPHLIFT_CACHE_SIZE_LIMIT": "3"}, "3 False"),
        ({"GRAPHLIFT_STRICT": "1"}, "8 True"),
        ({"GRAPHLIFT_STRICT": "off"}, "8 False"),
    ],
)
def test_environment(env: dict[str, str], expected: str) -> None:
    assert _run(env, "print(config.cache_size_limit, config.strict)").stdout.strip() == expected


def test_bad_environment_names_the_variable_and_the_next_step() -> None:
    done = _run({"GRAPHLIFT_CACHE_SIZE_LIMIT": "many"}, "pass")
    assert done.returncode != 0
    assert (
        "GRAPHLIFT_CACHE_SIZE_LIMIT" in done.stderr and "'many'" in done.stderr and "next step" in done.stderr
    )


def test_the_log_module_may_come_first():
    done = _run({"GRAPHLIFT_LOGS": "guards"}, "print(logs.enabled('guards'))", module="logs")
    assert done.stdout.strip() == "True", done.stderr


def _run(env: dict[str, str], code: str, module: str = "config") -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GRAPHLIFT_")}
    return subprocess.run(
        [sys.executable, "-c", f"from graphlift import {module}; {code}"],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
