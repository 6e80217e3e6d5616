"""Random programs of tensor and Python operations do what they do in eager: results, mutations, gradients, errors.

A failing program is printed as source; Hypothesis shrinks it first. `HYPOTHESIS_PROFILE=long` runs many more.
"""

from __future__ import annotations

import copy
import linecache
from functools import partial, reduce
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, note
from torch import Tensor

from benchmarks.compilers import Compiler
from tests.equality import assert_equal
from tests.programs.writer import programs

pytestmark = pytest.mark.filterwarnings("ignore")
BACKENDS = ("eager", "aot_eager", "auto")


class Box:
    """An object with state, methods and a context."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: Tensor | None = None

    def mix(self, a: Tensor, b: Tensor) -> Tensor:
        self.count += 1
        return (a + b) / self.count

    def __enter__(self) -> Box:
        self.count += 1
        return self

    def __exit__(self, *exception: object) -> None:
        self.count -= 2


def helper(a: Tensor, b: Tensor, *, scale: int = 1) -> Tensor:
    if scale > 2:
        return a - b
    return a * scale + b


def opaque(items: list[Tensor]) -> None:
    """Something with an effect that no compiler looks into."""
    print(end="")
    items.reverse()


SCOPE = {"torch": torch, "F": F, "partial": partial, "reduce": reduce, "helper": helper, "opaque": opaque}


def load(source: str) -> Any:
    """The function of ``source``, with lines that tracebacks can show."""
    filename = (
        f"program_{hash(source):x}.py"  # in angle brackets it would count as generated code, never captured
    )
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    scope = dict(SCOPE)
    exec(compile(source, filename, "exec"), scope)
    return scope["program"]


def arguments(rows: int, n: int, flag: bool, requires_grad: bool) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(rows * 100 + n)
    x, y, item = (torch.randn(rows, 3, generator=generator) for _ in range(3))
    return x.requires_grad_(requires_grad), y.requires_grad_(requires_grad), n, flag, [item], Box()


# (rows, n, flag) of each call: the same again, other values, other Python values, another size.
CALLS = ((4, 2, True), (4, 2, True), (4, 5, False), (2, 2, True))


def run(program: Any, call: tuple[int, int, bool], requires_grad: bool) -> dict[str, Any]:
    """Everything a caller can see of one call: the outcome, the arguments afterwards and the gradients."""
    args = arguments(*call, requires_grad)
    try:
        result = program(*args)
    except Exception as error:
        result = ("raised", type(error), str(error))
    seen: dict[str, Any] = {"result": result, "items": args[4], "box": args[5], "inputs": args[:2]}
    if requires_grad and not isinstance(result[0], str):
        outputs = [leaf for leaf in result[:3] if leaf.requires_grad]
        if outputs:
            sum(output.sum() for output in outputs).backward()
            seen["gradients"] = [x.grad for x in args[:2]]
    return copy.copy(seen)


def check(compiler: Compiler, backend: str, source: str, requires_grad: bool) -> None:
    note(source)
    eager = load(source)
    compiler.reset()
    compiled = compiler.compile(load(source), backend=backend)
    for call in CALLS:
        expected = run(eager, call, requires_grad)
        got = run(compiled, call, requires_grad)
        for kind, seen, other in (("compiled", got, expected), ("eager", expected, got)):
            alone = isinstance(seen["result"][0], str) and not isinstance(other["result"][0], str)
            assert not alone, f"call{call}: only {kind} raised {seen['result'][1:]}"
        assert_equal(got, expected, path=f"call{call}")


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def compiler(request: pytest.FixtureRequest) -> Compiler:
    from benchmarks.compilers import COMPILERS

    return COMPILERS[request.config.getoption("--compiler")]()


@given(source=programs(in_place=False, breaks=False))
def test_whole_graphs_with_gradients(compiler: Compiler, backend: str, source: str) -> None:
    check(compiler, backend, source, requires_grad=True)
    if backend == "eager" and compiler.name != "eager":
        explained = compiler.explain(load(source), *arguments(*CALLS[0], requires_grad=True))
        assert explained.graph_count >= 1, "nothing was captured"


@given(source=programs(in_place=True, breaks=False))
def test_mutation(compiler: Compiler, backend: str, source: str) -> None:
    check(compiler, backend, source, requires_grad=False)


@given(source=programs(in_place=False, breaks=True))
def test_breaks_with_gradients(compiler: Compiler, backend: str, source: str) -> None:
    check(compiler, backend, source, requires_grad=True)


@given(source=programs(in_place=True, breaks=True))
def test_breaks_and_mutation(compiler: Compiler, backend: str, source: str) -> None:
    check(compiler, backend, source, requires_grad=False)
