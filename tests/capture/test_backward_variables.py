"""What backwards and hooks look at when autograd calls them, which may have changed since; and functions made or called in odd places.

In: programs whose backward uses variables of theirs. Out: results and gradients, as eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import graphlift


class Mapped(Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return Fivefold.apply(grad)

    @staticmethod
    def vmap(info, in_dims, x):
        return x * 3, 0


class Fivefold(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * 5

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, scales):
        ctx.scales = scales
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scales[0], None


def made_inside(x):
    def scale(t):
        return t * 3

    class Tripled(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return scale(x)

        @staticmethod
        def backward(ctx, grad):
            return scale(grad) + ctx.saved_tensors[0]

    return Tripled.apply(x) + 1


def made_inside_and_not_used(x):
    return torch.masked.norm(x, 2.0, 0, mask=x > 0)


def returned_too(x):
    class Doubled(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 5

    return Doubled.apply(x), Doubled._backward_cls._forward_cls is Doubled


def of_a_class(x):
    k = 2

    class Late(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * k

    y = Late.apply(x)
    k = 5
    return y


def of_a_class_attribute(x):
    class Late(Function):
        scale = 2

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * Late.scale

    y = Late.apply(x)
    Late.scale = 5
    return y


def counted(x):
    count = 0

    class Counted(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            nonlocal count
            count += 1
            return grad * count

    y = Counted.apply(x)
    return y, lambda: count


def of_a_context(x):
    scales = [3]
    y = Scaled.apply(x, scales)
    scales[0] = 9
    return y


def of_a_hook(x):
    k = 2
    y = x * 1
    y.register_hook(lambda grad: grad * k)
    k = 5
    return y


def of_hooks_in_a_loop(x):
    for i in range(3):
        x = x * 1
        x.register_hook(lambda grad: grad * (i + 1))
    return x


def behind_a_break(x):
    k = 2
    y = x * 1
    y.register_hook(lambda grad: grad * k)
    graphlift.graph_break()
    z = y * 3
    k = 5
    return z


def through_defaults(x):
    for i in range(3):
        x = x * 1
        x.register_hook(lambda grad, i=i: grad * (i + 1))
    return x


def under_vmap(x):
    return torch.vmap(Mapped.apply)(x)


def under_vmap_and_grad(x):
    return torch.func.grad(lambda t: torch.vmap(Mapped.apply)(t).sum())(x) * x


def with_hooks_under_grad(x):
    def loss(t):
        y = t * 2
        y.register_hook(lambda grad: grad * 3)
        return y.sum()

    return torch.func.grad(loss)(x) * x


def in_a_backward(x):
    return Mapped.apply(x) * x


# --- what the caller changes before the backward ---------------------------------------------------------------------

SCALE = 2.0
WEIGHT = torch.tensor(2.0)


class Settings:
    scale = 2.0

    def __init__(self) -> None:
        self.scale, self.weight, self.scales = 2.0, torch.tensor(2.0), [2.0]


SETTINGS, TABLE = Settings(), {"scale": 2.0}


def helper(grad: Tensor) -> Tensor:
    return grad * 2


class Reading(Function):
    """Its backward reads what a program may change: globals, a dictionary, attributes of a class and of an object."""

    @staticmethod
    def forward(ctx, x, power=1.0):
        ctx.power = power
        ctx.save_for_backward(x)
        return x**power

    @staticmethod
    def backward(ctx, grad):
        scale = SCALE * TABLE["scale"] * Settings.scale * SETTINGS.scale * ctx.power
        return helper(grad) * scale + ctx.saved_tensors[0], None


class OfItsContext(Function):
    @staticmethod
    def forward(ctx, x, settings, weight):
        ctx.settings, ctx.weight = settings, weight
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.settings.scale * ctx.weight.exp(), None, None


class Weighted(Function):
    """Reads a tensor that it has not saved, which autograd does not watch."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.weight.exp(), None


class WithHook(torch.nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings, self.scale = settings, 2.0

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(lambda grad: grad * self.scale * self.settings.scale * self.settings.scales[0])
        return y * 2


def _with_a_hook_of_globals(x: Tensor, settings: Settings) -> Tensor:
    y = x * 1
    y.register_hook(lambda grad: torch.clamp(grad, -3, 3) * SCALE * WEIGHT)
    return y * 2


READERS: dict[str, Callable[[Tensor, Settings], Tensor]] = {
    "globals": lambda x, s: Reading.apply(x.sin(), 2.0) * x,
    "context": lambda x, s: OfItsContext.apply(x.sin(), s, s.weight),
    "tensor": lambda x, s: Weighted.apply(x.sin(), s.weight) * x,
    "two outputs": lambda x, s: (Weighted.apply(x.sin(), s.weight), Reading.apply(x)),
    "hook of globals": _with_a_hook_of_globals,
    "hook": lambda x, s: WithHook(s)(x),
}
CAPTURED = ("globals", "tensor", "two outputs")
CHANGES: dict[str, Callable[[Settings, pytest.MonkeyPatch], object]] = {
    "nothing": lambda s, m: None,
    "global": lambda s, m: m.setitem(globals(), "SCALE", 5.0),
    "function": lambda s, m: m.setitem(globals(), "helper", lambda grad: grad * 7),
    "dictionary": lambda s, m: m.setitem(TABLE, "scale", 5.0),
    "class": lambda s, m: m.setattr(Settings, "scale", 5.0),
    "object": lambda s, m: m.setattr(SETTINGS, "scale", 5.0),
    "argument": lambda s, m: setattr(s, "scale", 5.0),
    "list": lambda s, m: s.scales.__setitem__(0, 5.0),
    "tensor": lambda s, m: s.weight.fill_(0.5),
    "another tensor": lambda s, m: setattr(s, "weight", torch.tensor(0.5)),
    "global tensor": lambda s, m: m.setitem(globals(), "WEIGHT", torch.tensor(5.0)),
}


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "auto"))
@pytest.mark.parametrize("reader", READERS)
def test_changed_by_the_caller(reader: str, backend: str) -> None:
    def gradient(fn: Callable[..., Any], change: str) -> list[float]:
        settings, x = Settings(), torch.arange(1.0, 4.0, requires_grad=True)
        y = fn(x, settings)
        with pytest.MonkeyPatch.context() as patch:
            CHANGES[change](settings, patch)
            torch.autograd.backward([t.sum() for t in (y if isinstance(y, tuple) else (y,))])
        return x.grad.tolist()

    program = READERS[reader]
    compiled = graphlift.compile(program, backend=backend, fullgraph=reader in CAPTURED)
    for change in CHANGES:
        assert gradient(compiled, change) == pytest.approx(gradient(program, change)), change


@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
def test_code_replaced_before_a_hook_that_cannot_see_it(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hooked(x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(lambda grad: helper(grad))
        return y * 2

    y = graphlift.compile(hooked, backend=backend, fullgraph=True)(torch.ones(3, requires_grad=True))
    monkeypatch.setitem(globals(), "helper", lambda grad: grad * 7)
    with pytest.raises(RuntimeError, match=r"a hook was called after .* helper is .* graphlift.disable"):
        y.sum().backward()


@pytest.mark.parametrize("backend", ("aot_eager", "auto"))
def test_changed_where_the_graph_cannot_run_again(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(x: Tensor) -> Tensor:
        return torch.dropout(Reading.apply(x), 0.5, True)

    compiled = graphlift.compile(noisy, backend=backend, fullgraph=True)
    compiled(torch.ones(3, requires_grad=True)).sum().backward()
    y = compiled(torch.ones(3, requires_grad=True))
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    with pytest.raises(RuntimeError, match=r"the backward of Reading .* SCALE == 2.0: .* random numbers"):
        y.sum().backward()


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "auto"))
def test_changed_between_two_backwards(backend: str) -> None:
    def twice(fn: Callable[..., Tensor]) -> list[float]:
        x = torch.arange(1.0, 4.0, requires_grad=True)
        y = fn(x).sum()
        y.backward(retain_graph=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(globals(), "SCALE", 5.0)
            y.backward()
        assert x.grad is not None
        return x.grad.tolist()

    def program(x: Tensor) -> Tensor:
        return Reading.apply(x.sin(), 2.0) * x

    assert twice(graphlift.compile(program, backend=backend)) == pytest.approx(twice(program))


ONE_GRAPH = (made_inside, made_inside_and_not_used, through_defaults)
OTHERS = (
    *(returned_too, of_a_class, of_a_class_attribute, counted, of_a_context, of_a_hook, of_hooks_in_a_loop),
    *(behind_a_break, under_vmap, under_vmap_and_grad, with_hooks_under_grad, in_a_backward),
)


def _outcome(program: Callable[[Tensor], Any], twice: bool) -> Any:
    x = torch.arange(1.0, 4.0, requires_grad=True)
    result = program(x)
    y, *rest = result if isinstance(result, tuple) else (result,)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=twice)
    again = torch.autograd.grad(grad.sum(), x)[0].tolist() if grad.requires_grad else None
    return y.tolist(), grad.tolist(), again, [item() if callable(item) else item for item in rest]


@pytest.mark.parametrize("backend", ("eager", "auto"))
@pytest.mark.parametrize("program", (*ONE_GRAPH, *OTHERS), ids=lambda p: p.__name__)
def test_backward(program: Callable[[Tensor], Any], backend: str) -> None:
    compiled = graphlift.compile(program, backend=backend, fullgraph=program in ONE_GRAPH)
    for _ in range(2):
        assert _outcome(compiled, backend == "eager") == _outcome(program, backend == "eager")


class Collector:
    """What code around a model keeps in a variable of a module."""

    found: Any = None
    factor = 3.0


collector, fixed = Collector(), Collector()


class WithOneAttribute(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * fixed.factor


def collecting(x):
    """Which changes, as nothing that the backward looks at does."""
    collector.found = {}
    y = WithOneAttribute.apply(x)
    found = collector.found
    found["y"] = y.detach()
    collector.found = None
    return y, found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "auto"])
def test_what_a_backward_does_not_look_at_may_change(backend, monkeypatch):
    compiled = graphlift.compile(collecting, backend=backend, fullgraph=True)
    for factor in (3.0, 3.0, 5.0):
        monkeypatch.setattr(fixed, "factor", factor)
        x, other = (torch.arange(3.0).requires_grad_() for _ in range(2))
        (y, found), (wanted, kept) = compiled(x), collecting(other)
        y.sum().backward()
        wanted.sum().backward()
        assert torch.equal(x.grad, other.grad) and torch.equal(found["y"], kept["y"])
        assert collector.found is None
