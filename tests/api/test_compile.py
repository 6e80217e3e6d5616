"""`compile` on everything that can be called, its errors, and the functions that steer it."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import graphlift
from graphlift import config
from graphlift.errors import (
    BackendError,
    GraphBreakError,
    InvalidOption,
    NotBuilt,
    NotCallable,
    RecompileError,
    UnknownBackend,
)
from tests.equality import assert_equal

X = torch.linspace(-2, 2, 6)
compile_eager = functools.partial(graphlift.compile, backend="eager")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    graphlift.reset()
    yield
    graphlift.set_stance("default")


class Counting:
    """A backend that runs the graph and counts compilations."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        assert all(type(value) in (torch.Tensor, nn.Parameter, int) for value in example_inputs)
        self.graphs.append(gm)
        return gm.forward


@compile_eager
def decorated(x: torch.Tensor) -> torch.Tensor:
    """Doc."""
    return x.sin() + 1


def plain(x: torch.Tensor, *rest: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x * by + sum(rest)


class Thing:
    def __init__(self, by: float) -> None:
        self.by = by

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by

    @compile_eager
    def compiled_method(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by + 1

    @compile_eager
    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x + 10

    @compile_eager
    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x + len(cls.__name__)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.by


def test_decorator_keeps_the_functions_face() -> None:
    assert decorated.__name__ == "decorated" and decorated.__doc__ == "Doc."
    assert decorated.__module__ == __name__ and inspect.signature(decorated) == inspect.signature(
        decorated.__wrapped__
    )
    torch.testing.assert_close(decorated(X), X.sin() + 1)


def test_decorator_with_options() -> None:
    backend = Counting()

    @graphlift.compile(backend=backend, fullgraph=True)
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    torch.testing.assert_close(f(X), X.cos())
    f(X + 1)
    assert len(backend.graphs) == 1


def test_function_with_varargs_and_keywords() -> None:
    f = compile_eager(plain)
    torch.testing.assert_close(f(X, X, X, by=3.0), plain(X, X, X, by=3.0))
    torch.testing.assert_close(f(X), plain(X))


@pytest.mark.parametrize(
    "target",
    [
        Thing(3.0).method,
        Thing(4.0),
        functools.partial(plain, by=5.0),
        torch.sin,
        lambda x: x.tanh(),
        Thing.static,
    ],
    ids=["bound method", "instance", "partial", "builtin", "lambda", "staticmethod"],
)
def test_any_callable(target: Any) -> None:
    backend = Counting()
    compiled = graphlift.compile(target, backend=backend)
    torch.testing.assert_close(compiled(X), target(X))
    torch.testing.assert_close(compiled(X * 2), target(X * 2))
    assert len(backend.graphs) == 1


def test_methods_bind() -> None:
    a, b = Thing(2.0), Thing(3.0)
    for thing in (a, b, a):
        torch.testing.assert_close(thing.compiled_method(X), X * thing.by + 1)
    torch.testing.assert_close(Thing.compiled_method(a, X), X * 2 + 1)
    torch.testing.assert_close(a.static(X), X + 10)
    torch.testing.assert_close(Thing.of_class(X), X + 5)


def test_class_compiles_calls_of_instances() -> None:
    backend = Counting()

    @graphlift.compile(backend=backend)
    class Scaled:
        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    assert isinstance(Scaled, type)
    torch.testing.assert_close(Scaled(2.0)(X), X * 2)
    assert len(backend.graphs) == 1

    @graphlift.compile(backend=backend)
    class Layer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    torch.testing.assert_close(Layer()(X), X + 1)
    assert len(backend.graphs) == 2

    with pytest.raises(NotCallable, match="instances of class Empty"):

        @graphlift.compile
        class Empty:
            pass


def test_compiling_a_compiled_function_starts_over() -> None:
    again = graphlift.compile(decorated, backend=Counting())
    assert again.__wrapped__ is decorated.__wrapped__
    torch.testing.assert_close(again(X), X.sin() + 1)


def test_compiled_functions_nest() -> None:
    inner = compile_eager(lambda x: x * 2)
    outer = compile_eager(lambda x: inner(x) + 1)
    torch.testing.assert_close(outer(X), X * 2 + 1)
    torch.testing.assert_close(inner(X), X * 2)


def test_copies_and_pickles_of_functions() -> None:
    assert copy.deepcopy(decorated) is decorated
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    compiled = compile_eager(plain)
    again = pickle.loads(pickle.dumps(compiled))
    assert again.__wrapped__ is plain
    torch.testing.assert_close(again(X), plain(X))
    thing = Thing(2.0)
    thing.method = compile_eager(thing.method)  # type: ignore[method-assign]
    other = copy.deepcopy(thing)
    other.by = 5.0
    torch.testing.assert_close(other.method(X), X * 5)
    torch.testing.assert_close(thing.method(X), X * 2)


def test_disable_returns_the_argument() -> None:
    assert graphlift.compile(plain, disable=True) is plain
    assert graphlift.compile(disable=True)(plain) is plain
    with config.patch(disable=True):
        assert graphlift.compile(plain) is plain


@pytest.mark.parametrize("value", [3, "eager", [], torch], ids=["int", "str", "list", "module"])
def test_not_callable(value: Any) -> None:
    with pytest.raises(NotCallable, match="something that can be called") as caught:
        graphlift.compile(value)
    assert "next step" in str(caught.value) and type(value).__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({"backend": "egaer"}, UnknownBackend, "did you mean 'eager'"),
        ({"backend": 3}, NotCallable, "neither a name nor a callable"),
        ({"mode": "fast"}, InvalidOption, "unknown mode"),
        ({"mode": "max-autotune"}, NotBuilt, "max-autotune"),
        ({"fullgraph": "yes"}, InvalidOption, "fullgraph"),
        ({"dynamic": 1}, InvalidOption, "dynamic"),
        ({"options": 3}, InvalidOption, "options"),
        ({"backend": "eager", "options": {"a": 1}}, InvalidOption, "takes no options"),
    ],
)
def test_bad_arguments_raise_before_the_first_call(kwargs: dict[str, Any], error: type, match: str) -> None:
    with pytest.raises(error, match=match):
        graphlift.compile(plain, **kwargs)
    with pytest.raises(error, match=match):
        graphlift.compile(**kwargs)


def test_fullgraph_names_reason_line_and_remedy() -> None:
    @graphlift.compile(backend="eager", fullgraph=True)
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1

    with pytest.raises(GraphBreakError) as caught:
        f(X)
    assert caught.value.code == "data-dependent-branch"
    assert __file__ in str(caught.value) and "torch.where" in str(caught.value)


def test_backend_that_raises_or_returns_nonsense() -> None:
    def broken(gm: Any, inputs: Any) -> Any:
        raise ZeroDivisionError("inside")

    with pytest.raises(BackendError, match="'broken' raised ZeroDivisionError: inside"):
        graphlift.compile(plain, backend=broken)(X)
    with pytest.raises(BackendError, match="cannot be called"):
        graphlift.compile(plain, backend=lambda gm, inputs: 3)(X)


def test_user_exception_passes_with_the_users_line() -> None:
    @compile_eager
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.dim() == 1 else x.nothing_here

    f(X)
    with pytest.raises(AttributeError, match="nothing_here") as caught:
        f(X[None])
    assert any(entry.frame.code.name == "f" for entry in caught.traceback)


# --- steering ---------------------------------------------------------------------------------------------------


def test_is_compiling_is_true_inside_only() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if graphlift.is_compiling() else x - 1

    assert not graphlift.is_compiling()
    torch.testing.assert_close(f(X), X - 1)
    torch.testing.assert_close(compile_eager(f)(X), X + 1)


def test_graph_break_splits() -> None:
    backend = Counting()

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        graphlift.graph_break("here")
        return y.cos()

    torch.testing.assert_close(graphlift.compile(f, backend=backend)(X), f(X))
    assert len(backend.graphs) == 2


@pytest.mark.parametrize("recursive", [True, False])
def test_disabled_function_runs_as_it_is(recursive: bool) -> None:
    backend = Counting()
    real: list[bool] = []

    def note(x: torch.Tensor) -> torch.Tensor:
        real.append(type(x) is torch.Tensor and not graphlift.is_compiling())
        return x * 3

    note = graphlift.disable(note, recursive=recursive)

    def f(x: torch.Tensor) -> torch.Tensor:
        return note(x + 1) - 1

    f_compiled = graphlift.compile(f, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(f_compiled(X), (X + 1) * 3 - 1)
    assert real == [True, True] and len(backend.graphs) == 2


def test_disable_forms() -> None:
    @graphlift.disable()
    def f(x: torch.Tensor) -> torch.Tensor:
        return x

    assert f(X) is X and f.__name__ == "f"

    @graphlift.disable
    class Plain:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    torch.testing.assert_close(Plain()(X), X + 1)
    with pytest.raises(NotCallable):
        graphlift.disable(3)
    backend = Counting()
    compiled = graphlift.compile(plain, backend=backend)
    with graphlift.disable():
        torch.testing.assert_close(compiled(X), plain(X))
    assert not backend.graphs
    compiled(X)
    assert len(backend.graphs) == 1


def test_reset_forgets() -> None:
    backend = Counting()
    compiled = graphlift.compile(plain, backend=backend)
    compiled(X), compiled(X)
    assert len(backend.graphs) == 1
    graphlift.reset()
    torch.testing.assert_close(compiled(X), plain(X))
    assert len(backend.graphs) == 2


def test_stances() -> None:
    backend = Counting()
    compiled = graphlift.compile(plain, backend=backend)
    with graphlift.set_stance("fail_on_recompile"), pytest.raises(RecompileError, match="plain"):
        compiled(X)
    compiled(X)
    with graphlift.set_stance("fail_on_recompile"):
        compiled(X)
        with pytest.raises(RecompileError, match="1 compiled entries"):
            compiled(X[:3])
    with graphlift.set_stance("eager_on_recompile"):
        torch.testing.assert_close(compiled(X[:3]), plain(X[:3]))
    assert len(backend.graphs) == 1
    compiled(X[:3])
    assert len(backend.graphs) == 2


def test_force_eager_uses_nothing_compiled() -> None:
    ran: list[int] = []

    def noisy(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            ran.append(1)
            return gm.forward(*args)

        return run

    compiled = graphlift.compile(plain, backend=noisy)
    compiled(X)
    assert len(ran) == 1

    @graphlift.set_stance("force_eager")
    def eagerly() -> torch.Tensor:
        return compiled(X)

    torch.testing.assert_close(eagerly(), plain(X))
    assert len(ran) == 1
    compiled(X)
    assert len(ran) == 2


def test_stance_refuses_unknown_names() -> None:
    with pytest.raises(InvalidOption, match="unknown stance"):
        graphlift.set_stance("relaxed")  # type: ignore[arg-type]


def test_cache_limit_falls_back_with_one_warning() -> None:
    backend = Counting()

    def f(x: torch.Tensor, n: tuple[int, ...]) -> torch.Tensor:
        return x * len(n)

    compiled = graphlift.compile(f, backend=backend)
    with config.patch(cache_size_limit=2), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(5):
            torch.testing.assert_close(compiled(X, (1,) * n), X * n)
    assert len(backend.graphs) == 2
    texts = [str(warning.message) for warning in caught if "cache_size_limit" in str(warning.message)]
    assert len(texts) == 1 and " n" in texts[0]


def test_allow_in_graph_makes_one_node() -> None:
    backend = Counting()

    @graphlift.allow_in_graph
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos().tan()

    compiled = graphlift.compile(lambda x: opaque(x) + 1, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(X), X.sin().cos().tan() + 1)
    assert [node.target for node in backend.graphs[0].graph.nodes if node.op == "call_function"][0] is opaque


def test_assumed_constant_result_runs_once() -> None:
    calls: list[int] = []

    @graphlift.assume_constant_result
    def table() -> int:
        calls.append(1)
        return 3

    compiled = graphlift.compile(lambda x: x * table(), backend="eager", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), X * 3)
    assert len(calls) == 1


def test_modules_imported_inside_are_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of a module, and what it calls, is no part of the function that imports it first."""
    text = "import graphlift.frame\n\ndef active():\n    return graphlift.frame.hook_active()\n\nACTIVE = active()\n"
    (tmp_path / "imported_late_by_a_test.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        import imported_late_by_a_test

        return x + 1, imported_late_by_a_test.ACTIVE

    compiled = graphlift.compile(f, backend="eager")
    for _ in range(2):
        result, active = compiled(X)
        torch.testing.assert_close(result, X + 1)
        assert not active


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("made_inside", [False, True])
def test_inference_mode(inside: bool, made_inside: bool) -> None:
    """Tensors made in inference mode and outside it, in it and outside it: values, views and kinds are eager's."""

    def changes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.view(-1).mul_(2)
        graphlift.graph_break()
        x[0].add_(1)
        return x.t(), x.softmax(-1), x

    def reads(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x.t()

    f = reads if made_inside and not inside else changes  # inference tensors cannot be changed outside

    def run(fn: Callable[..., Any]) -> list[Any]:
        with torch.inference_mode(made_inside):
            x = torch.arange(6.0).view(2, 3)
        with torch.inference_mode(inside):
            results = fn(x)
        kinds = [t.is_inference() for t in results]
        version = None if x.is_inference() else x._version
        return [*(t.clone() for t in results), kinds, version]

    for a, b in zip(run(f), run(graphlift.compile(f)), strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a)
        else:
            assert a == b


def test_an_inference_tensor_that_requires_grad_is_an_input() -> None:
    with torch.inference_mode():
        x = torch.ones(3, requires_grad=True)
    y = graphlift.compile(lambda x: x.expand(2, 3), backend="aot_eager")(x)
    assert y.is_inference() and y.shape == (2, 3)


def _predicts(net: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2 - 1
    with torch.inference_mode():
        z = net(y)
        flat = y.view(-1)
    return y, z, flat, z.argmax(-1), z[0]


def _learns_from_a_teacher(net: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.profiler.record_function("teacher"), torch.inference_mode():
        target = net(x).sin()
        with torch.inference_mode(False):
            inner = x.exp()
    return target, inner, (net(x) + target).relu()


def _writes_in_the_mode(net: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden, row, filled = x * 2, x * 3, x * 4
    last = row.unbind(0)[-1]
    with torch.inference_mode():
        hidden.data.add_(1)
        nn.functional.dropout(last, 0.5, inplace=True)
        filled[:4].fill_diagonal_(9)
        torch._foreach_mul_([filled], 2.0)
    return hidden, row, last, filled, filled + 1


@pytest.mark.parametrize("f", [_predicts, _learns_from_a_teacher, _writes_in_the_mode])
@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
def test_parts_in_inference_mode_are_compiled_for_themselves(f: Callable[..., Any], backend: str) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))

    def run(fn: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(1)
        x = torch.randn(5, 4)
        results = fn(net, x)
        kinds = [(t.is_inference(), t.requires_grad, t.is_leaf, t._is_view()) for t in results]
        written = [t._version != 0 for t in results if not t.is_inference()]
        net.zero_grad()
        if any(t.requires_grad for t in results):
            results[-1].sum().backward()
        return [
            *(t.detach().clone() for t in (x, *results)),
            [p.grad for p in net.parameters()],
            kinds,
            written,
        ]

    expected = run(f)
    compiled = graphlift.compile(f, backend=backend)
    assert_equal(run(compiled), expected)
    assert_equal(run(compiled), expected)
    assert not torch.is_inference_mode_enabled()
    report = graphlift.explain(f, backend=backend)(net, torch.randn(5, 4))
    assert not report.break_sites and not report.fallbacks


def test_training_step_with_its_optimizer_inside() -> None:
    """The backward is compiled while the compiled function runs, with the frame hook on."""

    def step(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    twin = copy.deepcopy(net)
    compiled = graphlift.compile(step)
    optimizers = [torch.optim.AdamW(m.parameters(), 0.01) for m in (net, twin)]
    for rows in (2, 2, 3):
        x = X.expand(rows, 6)
        torch.testing.assert_close(compiled(net, optimizers[0], x), step(twin, optimizers[1], x))
    for mine, its in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_inside(reentrant: bool) -> None:
    """The backward runs the checkpointed function again, outside of the compiled one: both times alike."""
    layer = nn.Linear(6, 6)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.utils.checkpoint.checkpoint(lambda y: layer(y).relu(), x * 2, use_reentrant=reentrant)
        return y.sum()

    compiled = graphlift.compile(f)
    for _ in range(2):
        mine, its = X.clone().requires_grad_(), X.clone().requires_grad_()
        compiled(mine).backward()
        f(its).backward()
        torch.testing.assert_close(mine.grad, its.grad)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: SystemExit(3), "code"),
        (lambda: StopIteration(5), "value"),
        (lambda: ImportError("text", name="module"), "name"),
        (lambda: UnicodeDecodeError("utf8", b"x", 0, 1, "why"), "reason"),
        (lambda: FileNotFoundError(2, "text", "file"), "filename"),
        (lambda: AttributeError("text", name="attribute"), "name"),
    ],
)
def test_exceptions_keep_their_fields(make: Callable[[], BaseException], field: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        raise make()
        return y

    with pytest.raises(type(make())) as expected:
        f(X)
    with pytest.raises(type(make())) as found:
        compile_eager(f)(X)
    assert str(found.value) == str(expected.value)
    assert getattr(found.value, field) == getattr(expected.value, field) is not None


def test_frozen_layer_before_batch_norm_is_compiled() -> None:
    """Its input's gradient is not asked for: undefined, and no reason to run in eager."""
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    twin = copy.deepcopy(model)
    x = torch.randn(5, 6)
    report = graphlift.explain(model)(x)
    assert not report.fallbacks
    model.load_state_dict(twin.state_dict())
    graphlift.compile(model)(x).square().sum().backward()
    twin(x).square().sum().backward()
    for mine, its in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad)


def test_a_function_of_torch_that_is_compiled_itself_is_captured() -> None:
    backend = Counting()
    x = torch.randn(3, 4)
    compiled = graphlift.compile(torch.nn.functional.softmax, backend=backend)
    assert torch.equal(compiled(x, dim=1), x.softmax(1)) and len(backend.graphs) == 1


def test_a_recompile_names_the_callables_own_entry() -> None:
    def make(k: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x * k

    first, second = (graphlift.compile(make(k), backend="eager", dynamic=False) for k in (2.0, 3.0))
    first(torch.ones(3))
    second(torch.ones(3))
    first(torch.ones(3))
    second(torch.ones(4))
    (varied,) = graphlift.advise(second).varied
    assert varied.subject == "x.shape[0]" and varied.values == (3, 4)
