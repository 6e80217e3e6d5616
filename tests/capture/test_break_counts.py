"""What graph breaks cost: graphs per function and per pass of a loop, and what stays captured around a break.

In: small functions with breaks. Out: the operators of each graph, how often graphs run, how many regions are made.
Always: results equal eager's; the counts do not depend on the number of passes.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import graphlift
from graphlift.api import Settings
from graphlift.errors import GraphBreakError
from tests.equality import assert_equal


class Recorder:
    """A backend that notes the operators of each graph and counts the runs; `regions` counts compiled regions."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []
        self.runs = 0
        self.regions: list[Any] = []

    def __call__(self, gm: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        nodes = [n for n in gm.graph.nodes if n.op.startswith("call")]
        self.graphs.append([n.target if isinstance(n.target, str) else n.target.__name__ for n in nodes])

        def run(*args: Any) -> Any:
            self.runs += 1
            return gm.forward(*args)

        return run

    def compile(self, fn: Callable[..., Any]) -> Any:
        return Settings(backend=self).callable(fn, on_region=(self._note,))

    def _note(self, region: Any) -> None:
        """Callbacks of the garbage collector run in between, and are captured as any function; they do not count."""
        if region.filename == __file__:
            self.regions.append(region)


def X() -> Tensor:
    return torch.arange(3.0) + 1


# --- breaks in callees ---------------------------------------------------------------------------------------------


def stop_inside(x: Tensor) -> Tensor:
    x = x * 2
    print(end="")
    return x + 3


def only_stops() -> None:
    print(end="")


def calls(x: Tensor) -> Tensor:
    return stop_inside(x - 1) / 2


def calls_twice(x: Tensor) -> Tensor:
    return stop_inside(stop_inside(x - 1)) / 2


def calls_deep(x: Tensor) -> Tensor:
    return calls(x + 5) * calls(x)


def calls_empty(x: Tensor) -> Tensor:
    x = x - 1
    only_stops()
    return x / 2


def ends_in_a_call(x: Tensor) -> None:
    x.mul_(2)
    only_stops()


def in_blocks(x: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            return stop_inside(x - 1) / 2
    finally:
        only_stops()


def in_a_comprehension(x: Tensor) -> Any:
    return [stop_inside(x - i) / 2 for i in range(2)]


def in_a_closure(x: Tensor) -> Any:
    n = 1

    def inner(v: Tensor) -> Tensor:
        nonlocal n
        v = v * 2
        only_stops()
        n += 1
        return v * n

    return inner(x - 1) / n


class Made:
    def __init__(self, x: Tensor) -> None:
        self.x = x * 2
        only_stops()
        self.y = self.x + 3


def in_init(x: Tensor) -> Any:
    made = Made(x - 1)
    return made.x / made.y


class Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        only_stops()
        return x + 3


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x - 1) / 2


MODEL = Model()


def in_modules(x: Tensor) -> Tensor:
    return MODEL(x)


GRAPHS: dict[Callable[..., Any], list[list[str]]] = {
    calls: [["sub", "mul"], ["add", "truediv"]],
    calls_twice: [["sub", "mul"], ["add", "mul"], ["add", "truediv"]],
    calls_deep: [["add", "sub", "mul"], ["add", "truediv", "sub", "mul"], ["add", "truediv", "mul"]],
    calls_empty: [["sub"], ["truediv"]],
    ends_in_a_call: [["mul_"]],
    in_a_comprehension: [["sub", "mul"], ["add", "truediv", "sub", "mul"], ["add", "truediv"]],
    in_a_closure: [["sub", "mul"], ["mul", "truediv"]],
    in_init: [["sub", "mul"], ["add", "truediv"]],
    in_modules: [["sub", "mul"], ["add", "mul"], ["add", "truediv"]],
}


@pytest.mark.parametrize("fn", GRAPHS, ids=lambda fn: fn.__name__)
def test_the_callers_operators_stay_captured(fn: Callable[..., Any]) -> None:
    recorder = Recorder()
    compiled = recorder.compile(fn)
    for _ in range(3):
        x, y = X(), X()
        assert_equal((compiled(x), x), (fn(y), y))
    assert recorder.graphs == GRAPHS[fn]
    assert recorder.runs == 3 * len(GRAPHS[fn])
    assert len(recorder.regions) == len(GRAPHS[fn]), [str(r.break_reason) for r in recorder.regions]


def test_blocks_of_the_caller_are_entered_and_left_once() -> None:
    recorder = Recorder()
    compiled = recorder.compile(in_blocks)
    x = X().requires_grad_()
    assert_equal(compiled(x), in_blocks(x))
    modes = "_set_grad_enabled"
    assert [[op for op in ops if op != modes] for ops in recorder.graphs] == [
        ["sub", "mul"],
        ["add", "truediv"],
    ]


# --- loops ---------------------------------------------------------------------------------------------------------


def over_range(x: Tensor, n: int) -> Tensor:
    for i in range(n):
        x = x + 1
        print(i, end="")
        x = x * 0.5
    return x - 1


def over_list(x: Tensor, items: list[Tensor]) -> Tensor:
    for item in items:
        x = x + item
        only_stops()
        x = x * 0.5
    return x - 1


def over_enumerated(x: Tensor, items: list[Tensor]) -> Tensor:
    for i, item in enumerate(items):
        x = x + item
        print(i, end="")
        x = x * 0.5
    return x - 1


def over_zipped(x: Tensor, items: list[Tensor]) -> Tensor:
    for item, i in zip(items, range(1000)):
        x = x + item
        print(i, end="")
        x = x * 0.5
    return x - 1


def over_enumerated_pairs(x: Tensor, items: list[Tensor]) -> Tensor:
    for i, (item, (k, _)) in enumerate(zip(items, enumerate(items, 3)), 5):
        x = x + item
        print(i, k, end="")
        x = x * 0.5
    return x - 1


def over_dict(x: Tensor, items: list[Tensor]) -> Tensor:
    table = dict(enumerate(items))
    for key, item in table.items():
        x = x + item
        print(key, end="")
        x = x * 0.5
    return x - 1


def in_a_callee(x: Tensor, items: list[Tensor]) -> Tensor:
    for item in items:
        x = stop_inside(x + item) * 0.5
    return x - 1


def in_a_callees_loop(x: Tensor, items: list[Tensor]) -> Tensor:
    return over_list(x + 1, items) * 2


class Stack(nn.Module):
    def __init__(self, count: int, sequential: bool) -> None:
        super().__init__()
        layers = [Layer() for _ in range(count)]
        self.layers = nn.Sequential(*layers) if sequential else nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layers, nn.Sequential):
            return self.layers(x)
        for i, layer in enumerate(self.layers):
            x = layer(x)
            print(i, end="")
        return x


def over_iterator(x: Tensor, items: list[Tensor]) -> Tensor:
    for item in iter(items):
        x = x + item
        only_stops()
        x = x * 0.5
    return x - 1


def as_comprehension(x: Tensor, items: list[Tensor]) -> Any:
    return [(x + item) * 0.5 for item in items if only_stops() is None]


def while_loop(x: Tensor, n: int) -> Tensor:
    k = 0
    while k < n:
        k += 1
        x = x + 1
        print(k, end="")
        x = x * 0.5
    return x - 1


#: Functions, and the most regions that run in each pass.
LOOPS: dict[Callable[..., Any], int] = {
    over_range: 1,
    over_list: 1,
    over_enumerated: 1,
    over_zipped: 1,
    over_enumerated_pairs: 1,
    over_dict: 1,
    in_a_callee: 1,
    in_a_callees_loop: 1,
    as_comprehension: 1,
    over_iterator: 2,
    while_loop: 1,
}


@pytest.mark.parametrize("fn", LOOPS, ids=lambda fn: fn.__name__)
def test_a_loop_compiles_its_body_once(fn: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    regions, passes = {}, {}
    for n in (12, 40):
        graphlift.reset()
        recorder = Recorder()
        compiled = recorder.compile(fn)
        argument = n if fn in (over_range, while_loop) else [torch.full((3,), float(i)) for i in range(n)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = compiled(X(), argument)
        printed = capsys.readouterr().out
        assert_equal(got, fn(X(), argument))
        assert printed == capsys.readouterr().out
        regions[n], passes[n] = len(recorder.regions), recorder.runs
    assert regions[12] == regions[40] <= 8, regions
    assert passes[40] - passes[12] <= 28 * LOOPS[fn], passes


@pytest.mark.parametrize("sequential", (True, False))
def test_modules_of_one_kind_share_their_regions(
    sequential: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = []
    for n in (5, 20):
        graphlift.reset()
        recorder, model = Recorder(), Stack(n, sequential)
        assert_equal(recorder.compile(model)(X()), model(X()))
        half = len(out := capsys.readouterr().out) // 2
        assert out[:half] == out[half:]
        counts.append(len(recorder.regions))
    assert counts[0] == counts[1] <= 8, counts


def changes_what_it_iterates_over(x: Tensor) -> Any:
    items, seen = [1, 2], []
    for item in items:
        seen.append(item)
        print(item, end="")
        if len(items) < 5:
            items.append(item + 10)
        x = x * item
    table = {"a": 1}
    try:
        for key in table:
            print(key, end="")
            table[key * 2] = 1
    except RuntimeError as error:
        seen.append(str(error))
    return x, items, seen


def keeps_its_iterator(x: Tensor) -> Any:
    numbers = enumerate([5, 6, 7, 8])
    for i, n in numbers:
        print(i, end="")
        if i == 1:
            break
        x = x * n
    return x, type(numbers), list(numbers)


def leaves_early(x: Tensor) -> Any:
    for i in range(100):
        x = x + 1
        if i == 3:
            continue
        print(i, end="")
        if i > 5:
            break
    else:
        x = x * 100
    return x, i


class Sub(list[Any]):
    pass


def over_subclasses(x: Tensor) -> Any:
    for a, b in zip(Sub([1, 2, 3]), (4, 5, 6)):
        print(a, b, end="")
        x = x * a + b
    for item in Sub([1, 2]):
        print(item, end="")
        x = x * item
    return x


@pytest.mark.parametrize(
    "fn",
    (changes_what_it_iterates_over, keeps_its_iterator, leaves_early, over_subclasses),
    ids=lambda fn: fn.__name__,
)
def test_loops_stay_exact(fn: Callable[..., Any]) -> None:
    compiled = graphlift.compile(fn, backend="eager")
    for _ in range(2):
        assert_equal(compiled(X()), fn(X()))


# --- limits and stances --------------------------------------------------------------------------------------------


def scaled(x: Tensor, factor: float) -> Tensor:
    x = x * factor
    print(factor, end="")
    return x + factor


def never_the_same(x: Tensor, n: int) -> Any:
    factor, texts = 1.0, []
    for i in range(n):
        factor *= 0.75
        x = scaled(x, factor)
        texts.append(len(f"{i}:{factor}"))
    return x, factor, texts


def test_at_the_cache_limit_the_rest_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = graphlift.compile(never_the_same, backend="eager")
    want = never_the_same(X(), 30)
    printed = capsys.readouterr().out
    with pytest.warns(RuntimeWarning, match="cache_size_limit"):
        got = compiled(X(), 30)
    assert_equal(got, want)
    assert capsys.readouterr().out == printed
    assert_equal(compiled(X(), 5), never_the_same(X(), 5))


def deep(x: Tensor, n: int) -> Tensor:
    x = x + 1
    print(n, end="")
    return x if n == 0 else deep(x, n - 1) * 2


def test_deep_recursion_with_a_break_at_each_level(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = graphlift.compile(deep, backend="eager")
    for n in (3, 60, 3):
        assert_equal(compiled(X(), n), deep(X(), n))
        half = len(out := capsys.readouterr().out) // 2
        assert out[:half] == out[half:]


def test_force_eager_in_the_middle_and_entries_survive_it() -> None:
    recorder = Recorder()

    @graphlift.disable
    def switch() -> None:
        graphlift.set_stance(stance)

    def stops(x: Tensor) -> Tensor:
        x = x * 2
        switch()
        return x + 3

    def calls_it(x: Tensor) -> Tensor:
        return stops(x - 1) / 2

    stance = "default"
    compiled = recorder.compile(calls_it)
    assert_equal(compiled(X()), X() + 0.5)
    made, runs = len(recorder.regions), recorder.runs
    try:
        stance = "force_eager"
        assert_equal(compiled(X()), X() + 0.5)  # compiled up to the change, then as it is written
        assert (len(recorder.regions), recorder.runs) == (made, runs + 1)
        assert_equal(compiled(X()), X() + 0.5)
        assert (len(recorder.regions), recorder.runs) == (made, runs + 1)
    finally:
        graphlift.set_stance("default")
    stance = "default"
    assert_equal(compiled(X()), X() + 0.5)
    assert (len(recorder.regions), recorder.runs) == (made, runs + 3)


def test_fullgraph_names_every_frame_of_the_first_break() -> None:
    compiled = graphlift.compile(calls_deep, backend="eager", fullgraph=True)
    with pytest.raises(GraphBreakError, match="print-or-io") as caught:
        compiled(X())
    text = str(caught.value)
    places = [text.index(f", in {name}") for name in ("calls_deep\n", "calls\n", "stop_inside\n")]
    assert places == sorted(places) and "next step:" in text


# --- integers that vary --------------------------------------------------------------------------------------------

USES = (
    "n + 1", "1 - n", "n * n // 3 % 5", "-n, ~n, +n, abs(n)", "n ** 2 / 4", "x * n", "x[n % 3]", "x[: n % 3]",
    "[5, 6, 7][n % 3]", "'abc'[n % 3:]", "list(range(n))", "'a' * n, [0] * n, (x,) * (n % 3)", "f'{n} {n:>4} {n!r}'",
    "n in (1, 5, 9), n in {3: 1}", "{n: x, 'n': n}", "n if n % 2 else -1", "n and 3, n or 4, not n, bool(n)",
    "n < 7, 3 < n <= 9, n == 5, n != 5, n is None", "torch.full((2,), n), torch.zeros(n % 4, 2)", "x.view(3, -1).sum(n % 2)",
    "x.roll(n, 0)", "str(n), int(n), float(n), hex(n), divmod(n, 4), max(n, 5), sum([n, 1]), round(n, -1)",
    "isinstance(n, int), type(n), isinstance(n, bool), callable(n)", "(lambda k=n: k)(), [n for _ in range(2)]",
    "n.bit_length(), n.real, hash(n)", "sorted([5, n, 2]), {5, n}, [n].index(n)", "n & 3 | 8 ^ n, n << 2, n >> 1",
    "dict(a=n)['a'], [*range(n % 3)], 'x{}'.format(n), '%d' % n", "torch.tensor([n, 1]), x.new_full((1,), n)",
    "math.sqrt(n), math.gcd(n, 12), operator.index(n)", "int.__add__(n, 1), n.__mul__(2)", "range(n), range(1, n, 2)[-1:]",
    "x.to(torch.float64) ** (n % 3)", "F.pad(x, (n % 3, 0))", "torch.arange(n), x.repeat(n % 3)", "isinstance([n][0], (int, str))",
)  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.filterwarnings("ignore:graphlift:RuntimeWarning")
def test_whatever_is_done_with_an_integer_that_varies(use: str) -> None:
    namespace = {
        "torch": torch,
        "F": nn.functional,
        "math": math,
        "operator": operator,
        "print": lambda n: None,
    }
    source = f"def f(x, n):\n    y = x + 1\n    print(n)\n    return y, {use}, n\n"
    exec(compile(source, "<captured use>", "exec"), namespace)
    fn: Any = namespace["f"]
    compiled = graphlift.compile(fn, backend="eager")
    for n in (0, 1, 2, 3, 5, 7, 8, 9, 11, 12, 13, 40, 3, 0):
        assert_equal(compiled(X(), n), fn(X(), n))


def test_train_step_breaks_at_backward_alone() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Any:
        loss = model(x).square().sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), [p.clone() for p in model.parameters()]

    def trained(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return [run(model, optimizer, torch.randn(2, 3)) for _ in range(4)]

    recorder = Recorder()
    assert_equal(trained(recorder.compile(step)), trained(step))
    assert {r.break_reason.code for r in recorder.regions if r.break_reason} == {"backward-call"}
    assert recorder.runs == 4 * 2


def test_progress_bars_run_as_they_are() -> None:
    tqdm = pytest.importorskip("tqdm")
    seen: list[Any] = []

    def loop(x: Tensor) -> Tensor:
        for i in tqdm.tqdm(range(3), disable=True):
            x = x * 2 + i
        return x

    compiled = Settings(backend=lambda gm, inputs: gm.forward).callable(loop, on_region=(seen.append,))
    assert_equal(compiled(X()), loop(X()))
    assert {region.filename for region in seen} == {__file__}
