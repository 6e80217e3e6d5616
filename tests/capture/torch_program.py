"""A program of torch calls as a test: eager and compiled, forward and backward, under every backend of graphlift.

In: a function, what makes its arguments, and the codes of the breaks it is known to have (none: one graph).
Out: a test over two calls. Always: results, aliasing, exceptions, what became of the arguments, gradients, random
streams and torch's global state are eager's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import graphlift
from tests.equality import assert_equal

BACKENDS = ("eager", "aot_eager", "auto")
Made = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Program:
    """One program: `makers` give its arguments; `breaks` is the code of its first break, if it has one."""

    fn: Callable[..., Any]
    makers: tuple[Made, ...]
    breaks: str | None


def real(*shape: int, grad: bool = False, seed: int = 0, dtype: torch.dtype = torch.float32) -> Made:
    """A maker of a random tensor, always the same."""

    def make() -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(grad)

    return make


def seeded(make: Made) -> Made:
    """The maker under a seed of its own: modules with the same parameters each time."""

    def seeded_make() -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return make()

    return seeded_make


def global_state() -> dict[str, Any]:
    """What a region could leave changed."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "cache": torch.is_autocast_cache_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "modes": torch.overrides._len_torch_function_stack(),
        "saved_hooks": torch._C._autograd._saved_tensors_hooks_is_enabled(),
        "sdp": [torch._C._get_flash_sdp_enabled(), torch._C._get_mem_efficient_sdp_enabled()],
        "math_sdp": torch._C._get_math_sdp_enabled(),
        "random": torch.get_rng_state().tolist()[:64],
    }


def reset_state() -> None:
    """Back to what torch starts with, whatever a program left."""
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_anomaly_enabled(False, True)
    torch.set_default_device(None)
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_cache_enabled(True)


def shown(value: Any) -> Any:
    """What of a value is compared: modules as their state and gradients, arrays as lists with their dtype."""
    if isinstance(value, nn.Module):
        return {
            "state": {k: shown(v) for k, v in value.state_dict(keep_vars=True).items()},
            "training": [m.training for m in value.modules()],
            "seen": shown(getattr(value, "seen", None)),
        }
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.strides, value.tolist()
    if isinstance(value, Tensor):
        return value, value.grad if value.is_leaf else None
    if isinstance(value, Iterator):
        return list(value)
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, torch.optim.Optimizer):
        return shown(value.state_dict())
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value).__name__, tuple(map(shown, value))
    if type(value) in (list, tuple):
        return type(value)(map(shown, value))
    return value


def outputs(value: Any, into: list[Tensor]) -> list[Tensor]:
    """The differentiable tensors of a result."""
    if isinstance(value, Tensor):
        if value.requires_grad and value.layout is torch.strided and all(value is not t for t in into):
            into.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            outputs(item, into)
    elif isinstance(value, dict):
        outputs(list(value.values()), into)
    return into


def run(program: Program, fn: Callable[..., Any], seed: int) -> Any:
    """One call with fresh arguments, and all that can be seen of it."""
    torch.manual_seed(seed)
    args = [make() for make in program.makers]
    try:
        result = fn(*args)
    except Exception as error:
        return "raised", type(error), str(error), shown(args), global_state()
    state = global_state()
    before = shown(result)
    reset_state()
    failure = None
    roots = outputs(result, [])
    if roots:
        weights = [torch.linspace(0.5, 1.5, t.numel(), dtype=torch.float64).reshape(t.shape) for t in roots]
        try:
            torch.autograd.backward(roots, [w.to(t.dtype) for w, t in zip(weights, roots, strict=True)])
        except Exception as error:
            failure = type(error), str(error)
    return before, shown(args), state, failure


def check(program: Program, backend: str) -> tuple[str, ...]:
    """Compare two calls with eager's; gives the codes of the breaks ("raises": eager does).

    Raises: AssertionError at the first difference.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graphlift.reset()
        compiled = graphlift.compile(program.fn, backend=backend)
        try:
            for seed in (0, 0):
                expected = run(program, program.fn, seed)
                reset_state()
                got = run(program, compiled, seed)
                reset_state()
                raised = got[0] == "raised" and expected[0] != "raised"
                assert not raised, f"raised {got[1].__name__}: {got[2]}, and eager did not"
                assert_equal(got, expected)
            graphlift.reset()
            torch.manual_seed(0)
            args = [make() for make in program.makers]
            try:
                told = graphlift.explain(program.fn, backend=backend)(*args)
            except Exception:
                return ("raises",)
        finally:
            reset_state()
    events = [event.reason.code for event in told.events if event.reason is not None]
    return (*(reason.code for reason in told.break_reasons), *events)


def torch_program(*makers: Made, breaks: str | None = None) -> Callable[[Any], Any]:
    """Make a test of the function. ``breaks``: the code of its first break, or "raises" where eager does.

    Two codes, as `a|b`, where it depends on what torch has loaded before.
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., None]:
        program = Program(fn, makers, breaks)

        @pytest.mark.parametrize("backend", BACKENDS)
        def test(backend: str) -> None:
            found = check(program, backend)
            wanted = [()] if breaks is None else [(code,) for code in breaks.split("|")]
            assert found[:1] in wanted, found

        test.__name__ = fn.__name__
        test.__module__ = fn.__module__
        test.__doc__ = fn.__doc__
        test.program = program  # type: ignore[attr-defined]
        return test

    return decorate
