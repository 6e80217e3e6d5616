"""The guard on torch's modes: each mode in both directions, in C and in Python, also when captured inside a mode."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphlift.guards import DictItem, Equals, GlobalState, InstanceDict, sources, tensors
from tests.guards.checking import Checked


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic(warn_only: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


MODES: dict[str, Callable[[], Any]] = {
    "none": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "no forward grad": lambda: torch.autograd.forward_ad._set_fwd_grad_enabled(False),
    "autocast bf16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast f16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "autocast no cache": lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
    "float64": lambda: default_dtype(torch.float64),
    "deterministic": lambda: deterministic(False),
    "deterministic warn": lambda: deterministic(True),
    "device meta": lambda: torch.device("meta"),
    "device cpu": lambda: torch.device("cpu"),
    "function mode": FunctionMode,
    "dispatch mode": DispatchMode,
    "no torch_function": torch._C.DisableTorchFunction,
    "no torch_function subclass": torch._C.DisableTorchFunctionSubclass,
    "dual level": torch.autograd.forward_ad.dual_level,
}


@pytest.mark.parametrize("captured_in", MODES)
def test_each_mode_against_each(captured_in: str) -> None:
    with MODES[captured_in]():
        check = Checked([GlobalState()], nargs=0)
        assert check.passes()
        assert check.passes()
    for name, mode in MODES.items():
        with mode():
            assert check.passes() == (name == captured_in), f"captured in {captured_in}, now {name}"


def test_function_modes_are_known_by_their_types_and_what_is_read_of_them() -> None:
    class Other(FunctionMode):
        pass

    def entered(cls: type, scale: float) -> Any:
        mode = cls()
        mode.scale = scale
        return mode

    inner = sources.FunctionMode(1)
    with FunctionMode(), entered(FunctionMode, 2.0) as mode:
        guards = [GlobalState(), Equals(DictItem(InstanceDict(inner), "scale"), 2.0)]
        check = Checked(guards, [inner], nargs=0)
        assert check.fetch() == (mode,)
    assert not check.passes()
    for outer, cls, scale in ((FunctionMode, FunctionMode, 2.0), (Other, FunctionMode, 2.0)):
        for _ in range(3):
            with outer(), entered(cls, scale) as mode:
                found = check.fetch()
                assert (found == (mode,)) == (outer is FunctionMode)
    with FunctionMode(), entered(Other, 2.0):
        assert not check.passes()
    with FunctionMode(), entered(FunctionMode, 3.0):
        assert not check.passes()
    with entered(FunctionMode, 2.0):
        assert not check.passes()


def test_plain_state_and_modes_are_read_in_c() -> None:
    assert tensors.access().state_facts(GlobalState()) is not None
    with FunctionMode(), torch.device("meta"):
        assert tensors.access().state_facts(GlobalState()) is not None


def test_another_thread_has_its_own_modes() -> None:
    check = Checked([GlobalState()], nargs=0)
    found = []

    def work() -> None:
        found.append(check.passes())
        with torch.no_grad():
            found.append(check.passes())

    with torch.no_grad():
        assert not check.passes()
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
            thread.join()
    assert found == [True, False] * 3 and check.passes()


def test_default_device_set_for_good() -> None:
    check = Checked([GlobalState()], nargs=0)
    torch.set_default_device("meta")
    try:
        assert not check.passes()
        inside = Checked([GlobalState()], nargs=0)
        assert inside.passes()
        torch.set_default_device("cpu")
        assert not inside.passes()
        torch.set_default_device("meta")
        assert inside.passes(), "the device counts, not the object that stands for it"
    finally:
        torch.set_default_device(None)
    assert check.passes() and not inside.passes()


def test_irrelevant_changes() -> None:
    check = Checked([GlobalState()], nargs=0)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        torch.manual_seed(3)
        # The dtype that a switched-off autocast would use decides nothing.
        torch.set_autocast_dtype("cpu", torch.float16)
        torch.set_autocast_cache_enabled(False)
        assert check.passes()
    finally:
        torch.set_num_threads(threads)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch.set_autocast_cache_enabled(True)


def test_message() -> None:
    check = Checked([GlobalState()], nargs=0)
    with torch.no_grad():
        assert "grad mode is True, found False" in check.why()
    with torch.autocast("cpu"):
        assert "autocast" in check.why()


def test_two_different_states_contradict() -> None:
    first = GlobalState()
    with torch.no_grad():
        second = GlobalState()
    with pytest.raises(ValueError, match="contradict"):
        Checked([first, second], nargs=0)
    assert len(Checked([first, GlobalState()], nargs=0).check.guards) == 1
