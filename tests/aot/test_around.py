"""What programs put around a compiled function: each of the regions in each of the surroundings says what eager's says.

Compared are results, gradients with strides and identity, hooks as they come, versions, random numbers and errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import graphlift

Seen = list[Any]
Function = Callable[[Tensor, Tensor], Any]


def _hooked(x: Tensor, w: Tensor) -> Tensor:
    h = x @ w
    h.register_hook(lambda g: g * 2)
    return h.sin() + h


def _dropped(a: Tensor, w: Tensor) -> Tensor:
    return F.dropout(F.gelu(a @ w), 0.5)


def _nested(x: Tensor, w: Tensor) -> Any:
    def outer(a: Tensor) -> Tensor:
        return checkpoint(torch.sin, a @ w, use_reentrant=False).cos()  # type: ignore[union-attr]

    return checkpoint(outer, x, use_reentrant=False)


def _on_cpu(x: Tensor, w: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return (x @ w).exp() * w


def _written(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x @ w
    h[0].mul_(2)
    row = h[1]
    row.add_(w[0])
    return h, row


def _without_grad(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        size = (x @ w).norm()
    return x / size * w


def _low(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ w).float().sin()


def _views(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = (x @ w).exp()
    return h.t(), h[0], h.view(-1)[2:], h.detach()


REGIONS: dict[str, Function] = {
    "two results": lambda x, w: ((x @ w).tanh(), (x * w).sum()),
    "hook": _hooked,
    "checkpoint": lambda x, w: checkpoint(_dropped, x, w, use_reentrant=False),
    "reentrant": lambda x, w: checkpoint(_dropped, x, w, use_reentrant=True),
    "nested checkpoints": _nested,
    "other numbers": lambda x, w: checkpoint(_dropped, x, w, use_reentrant=False, preserve_rng_state=False),
    "save on cpu": _on_cpu,
    "gradient": lambda x, w: torch.func.grad(lambda a: (a @ w).sin().sum())(x) * w,
    "batched": lambda x, w: torch.func.vmap(lambda a: (a @ w).exp())(x),
    "written": _written,
    "without grad": _without_grad,
    "autocast": _low,
    "views": _views,
    "inputs": lambda x, w: (x, x * w, w.view_as(w)),
}


def _total(results: Any) -> Tensor:
    listed = results if isinstance(results, tuple) else (results,)
    return torch.stack([(t * (k + 1.5)).sum() for k, t in enumerate(listed)]).sum()


def _twice(f: Function, x: Tensor, w: Tensor, seen: Seen) -> None:
    _total(f(x, w)).backward()
    first = x.grad
    loss = _total(f(x, w))
    loss.backward(retain_graph=True)
    loss.backward()
    seen.append(x.grad is first)
    loss.backward()  # raises where something was kept


def _anomaly(f: Function, x: Tensor, w: Tensor, seen: Seen) -> None:
    with torch.autograd.detect_anomaly(check_nan=False):
        _total(f(x, w)).backward()


def _saved_elsewhere(f: Function, x: Tensor, w: Tensor, seen: Seen) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach() * 2, lambda t: t + 0):
        loss = _total(f(x, w))
    loss.backward()


def _checkpointed(reentrant: bool) -> Callable[..., None]:
    def run(f: Function, x: Tensor, w: Tensor, seen: Seen) -> None:
        _total(checkpoint(lambda a, b: checkpoint(f, a, b, use_reentrant=reentrant), x, w * 1,
                          use_reentrant=reentrant)).backward()  # fmt: skip

    return run


def _transformed(f: Function, x: Tensor, w: Tensor, seen: Seen) -> None:
    seen.append(torch.func.grad(lambda a, b: _total(f(a, b)), argnums=(0, 1))(x.detach(), w.detach()))


def _derived_twice(f: Function, x: Tensor, w: Tensor, seen: Seen) -> None:
    grads = torch.autograd.grad(_total(f(x, w)), (x, w), create_graph=True, allow_unused=True)
    seen.extend(t.detach() for t in grads if t is not None)
    squares = [t.square().sum() for t in grads if t is not None and t.requires_grad]
    if squares:
        torch.stack(squares).sum().backward()


def _hooks(f: Function, x: Tensor, w: Tensor, seen: Seen) -> None:
    x.register_hook(lambda g: g * 3)
    w.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad))
    results = f(x, w)
    for t in results if isinstance(results, tuple) else (results,):
        if t.requires_grad and not t.is_leaf:
            t.register_hook(lambda g: seen.append(g.clone()))
            t.retain_grad()
    _total(results).backward()


def _scaled(f: Function, x: Tensor, w: Tensor, seen: Seen) -> None:
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=8.0), torch.optim.SGD([x, w], lr=0.1)
    scaler.scale(_total(f(x, w))).backward()
    scaler.unscale_(optimizer)
    seen.append(torch.nn.utils.clip_grad_norm_([x, w], 0.5))
    scaler.step(optimizer)
    scaler.update()
    seen += [x.detach().clone(), w.detach().clone()]


def _results_feed_on(f: Function, x: Tensor, w: Tensor, seen: Seen) -> None:
    h = f(x * 2, w.t())
    h = h[0] if isinstance(h, tuple) else h
    _total(f(h * 1, w)).backward()


def _in_inference_mode(f: Function, x: Tensor, w: Tensor, seen: Seen) -> None:
    with torch.inference_mode():
        seen.append(_total(f(x, w)))


AROUND: dict[str, Callable[[Function, Tensor, Tensor, Seen], None]] = {
    "backward": lambda f, x, w, seen: _total(f(x, w)).backward(),
    "twice": _twice,
    "one input": lambda f, x, w, seen: seen.extend(torch.autograd.grad(_total(f(x, w)), w)),
    "anomaly": _anomaly,
    "saved elsewhere": _saved_elsewhere,
    "checkpoints": _checkpointed(False),
    "reentrant checkpoints": _checkpointed(True),
    "transformed": _transformed,
    "second derivative": _derived_twice,
    "hooks": _hooks,
    "scaled": _scaled,
    "results feed on": _results_feed_on,
    "same input twice": lambda f, x, w, seen: _total(f(x, x)).backward(),
    "inference mode": _in_inference_mode,
}
REFUSED = "a second derivative through a compiled region"


def _observe(f: Function, around: Callable[..., None]) -> tuple[Seen, str]:
    x, w = (torch.linspace(a, 1, 9).view(3, 3).clone().requires_grad_() for a in (0.1, 0.4))
    torch.manual_seed(0)
    seen: Seen = []
    error = ""
    try:
        around(f, x, w, seen)
    except RuntimeError as raised:
        error = str(raised)[:60]
    seen += [x.grad, w.grad, x._version, w._version, torch.rand(1)]
    seen += [t.grad.stride() for t in (x, w) if t.grad is not None]
    return seen, error


@pytest.mark.filterwarnings("ignore")  # eager's own, of anomaly detection and reentrant checkpoints
@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
@pytest.mark.parametrize("around", AROUND)
def test_as_in_eager(around: str, backend: str) -> None:
    for name, region in REGIONS.items():
        expected, failure = _observe(region, AROUND[around])
        found, error = _observe(graphlift.compile(region, backend=backend), AROUND[around])
        if error.startswith(REFUSED):
            assert around == "second derivative", (name, error)
            continue
        assert error == failure, name
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
