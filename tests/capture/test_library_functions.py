"""The standard library in captured code: functions, containers, text, numbers.

In: programs as text. Out: one test each. Always: eager's results and effects; one graph unless more are said.
"""

from __future__ import annotations

import functools
import logging
import warnings
from typing import Any

import pytest
import torch

import graphlift
from tests.capture.library import graphs_of
from tests.capture.program import CountingBackend

LRU = "@functools.lru_cache(maxsize=2)\ndef G_f(n, m=1):\n    {}return n * 2\n"
RECIPES = """
G_n, G_seen = 0, []
class R:
    def __init__(self, n): self.n = n
    def __eq__(self, other): return self is other
    def __hash__(self): return 7
    def __repr__(self): return f'R({self.n})'
@functools.lru_cache(maxsize=2)
def G_f(n): return R(n)
@functools.lru_cache(64)
def G_g(r, shape): return [r.n, *shape], {'n': r.n}, None
"""
LOG = """
G_log = logging.getLogger('graphlift-test')
G_log.handlers.clear()
class H(logging.StreamHandler):
    def emit(self, record): print(self.format(record))
handler = H()
handler.setFormatter(logging.Formatter('%(levelname)s %(lineno)d %(funcName)s %(filename)s %(message)s'))
G_log.addHandler(handler)
G_log.setLevel(10)
G_log.propagate = False
"""
#: Functions with a cache: (body, what stands before it, the number of graphs).
CACHED = {
    "counts": ("q = G_f(3), G_f(3), G_f(n=3), G_f(3, m=2)", LRU.format(""), 1),
    "thrash": ("q = [G_f(i) for i in range(4)] + [G_f(0)]", LRU.format(""), 1),
    "info": ("q = G_f(3), G_f.cache_info()", LRU.format(""), 2),
    "clear": ("q = G_f(3)\nG_f.cache_clear()\nq = q, G_f.cache_info()", LRU.format(""), 2),
    "unhashable": ("try:\n    q = G_f([2])\nexcept TypeError as e:\n    q = str(e)", LRU.format(""), 1),
    "tensor": ("q = G_f(y)", LRU.format(""), 2),
    "prints": ("q = G_f(2)", LRU.format("print(n); "), 2),
    "raises": ("try:\n    q = G_f(2)\nexcept ZeroDivisionError as e:\n    q = str(e)", LRU.format("1 / 0; "), 2),
    "graph raises": ("q = G_f(2)\ny = y[torch.tensor([7])]", LRU.format(""), 1),
    "effect": ("q = G_f(2)", "G_l = []\n" + LRU.format("G_l.append(n); "), 2),
    "stale": (
        "q = G_f(2)\nglobal G_n\nG_n += 1",
        "G_n = 1\n@functools.lru_cache\ndef G_f(n): return n + G_n",
        4,
    ),
    "nan": ("q = G_f()", "@functools.cache\ndef G_f(): return float('nan')", 1),
    "recursion": ("q = G_f(20)", "@functools.cache\ndef G_f(n): return n if n < 2 else G_f(n - 1) + G_f(n - 2)", 1),
    "method": ("q = G_o.m(3), G_o.m(3)", "class A:\n    k = 2\n    @functools.lru_cache\n    def m(self, n): return n * self.k\nG_o = A()", 1),
    "list": ("q = G_f(2)\nq.append(1)\nq = list(q)", "@functools.cache\ndef G_f(n): return [n]", 3),
    "object": ("q = G_f(3).n, G_f(3) is G_f(3), G_g(G_f(3), y.shape), G_f.cache_info() if G_n else 0", RECIPES, 1),
    "object of outside": ("q = G_f(3), G_g(G_f(3), y.shape), G_seen.append(G_f(3))", RECIPES + "G_f(3), G_g(G_f(3), (3, 4))\n", 1),
    "object, forgotten": ("G_f(1)\nq = G_f(3).n, G_f(2).n\ny = y * G_f(4).n", RECIPES, 3),
    "registry": ("q = dict(G_f()), len(G_f())\nG_f()[len(G_f())] = 1", "@functools.cache\ndef G_f(): return {}", 3),
    "typed object": ("q = G_f(1), G_f(1.0), G_f(True), G_f(n=1)", "@functools.lru_cache(8, typed=True)\ndef G_f(n): return [type(n)]", 1),
    "makes tensors": ("q = G_f(2)", "@functools.cache\ndef G_f(n): return torch.ones(n)", 2),
    "made": (
        "seen = []\n@functools.lru_cache(maxsize=2)\ndef g(n, k=0):\n    seen.append(n)\n    return n * 2\n"
        "q = [g(i % 3) for i in range(5)], g(1.0), g(1), g(True), g(2, k=1), g(k=1, n=2), seen, g.cache_info()\n"
        "g.cache_clear()\nq = q, g.cache_info(), g.__name__, g.cache_parameters()",
        "",
        1,
    ),
    "made typed": ("g = functools.lru_cache(None, typed=True)(lambda n: str(n))\nq = g(1), g(1.0), g(True), g(1), g.cache_info()", "", 1),
    "made of tensors": ("@functools.cache\ndef g(n): return torch.ones(3) * n\nq = g(1) + g(1), g(1) is g(1), g(y) is g(y), g.cache_info()", "", 1),
    "made, kept out": ("g = functools.cache(lambda n: n * 2)\ntorch._dynamo.graph_break()\nq = g(3), g(3)", "", 4),
}  # fmt: skip


@pytest.mark.parametrize("name", CACHED)
def test_cached(name: str) -> None:
    body, before, graphs = CACHED[name]
    assert graphs_of(body, before) == graphs


#: What a cached function of sizes is, and what is done with what it gives.
OF_SIZES = {
    "numbers": ("lambda shape: shape[0] * 2", "q + 1"),
    "containers": ("lambda shape: ([shape[0], 4], {'n': shape[0] // 2}, None)", "q[0][0] + q[1]['n']"),
    "kept": ("lambda shape: [shape[0]]", "(G_kept.append(q), q[0])[1]"),
    "changed": ("lambda shape: [shape[0]]", "(q.append(1), len(q))[1]"),
    "changed outside": ("lambda shape: [shape[0]]", "(G_other(q), len(q))[1]"),
    "of what is outside": ("lambda shape: [shape[0] * len(G_kept)]", "q[0]"),
}


@pytest.mark.parametrize("name", OF_SIZES)
def test_cached_functions_of_sizes(name: str) -> None:
    """They are traced and their caches filled and counted as in eager; what becomes of a result is seen."""
    made, used = OF_SIZES[name]
    text = f"def f(x):\n    q = G_f(x.shape)\n    return x * ({used})"

    def run(wrap: Any) -> tuple[list[Any], Any, Any]:
        scope: dict[str, Any] = {"G_kept": [0], "G_other": graphlift.disable(lambda q: q.append(3))}
        scope["G_f"] = functools.lru_cache(4)(eval(made, scope))
        exec(text, scope)
        fn = wrap(scope["f"])
        results = [fn(torch.ones(n, 2)).tolist() for n in (5, 6, 7, 8, 9, 6, 9, 9)]
        return results, scope["G_f"].cache_info(), scope["G_kept"]

    backend = CountingBackend()
    assert run(lambda fn: graphlift.compile(fn, backend=backend)) == run(lambda fn: fn)
    if name in ("numbers", "containers"):
        assert len(backend.graphs) == 2


def test_what_a_cached_function_is_compared_with_is_no_input_of_the_graph() -> None:
    order = [[1, 0]]
    scope = {"G_f": functools.lru_cache(4)(lambda shape: ([order[0][0], order[0][1]], shape[0]))}
    exec("def f(x):\n    moved, n = G_f(x.shape)\n    return x.permute(moved) * n", scope)
    compiled = graphlift.compile(scope["f"], backend="auto")
    for n in (3, 4, 5):
        assert torch.equal(compiled(torch.ones(n, 2)), torch.full((2, n), float(n)))


#: Text of tensors, and calls that may be put off: (body, what stands before it, graphs; graphs where calls are put off).
SHOWN = {
    "returned": ("q = f'{y} and {y.sum():.2f} {x!r}' + str(y)", "", 1, 1),
    "kept": ("G_o.t = f'{y}'\nq = [str(y)] * 2", "class A: pass\nG_o = A()", 1, 1),
    "by the object": ("o = A()\no.t = y\nq = f'{o} {o!r}'", "class A:\n    def __repr__(self): return f'A({self.t})'", 1, 1),
    "read": ("t = f'{y.sum()}'\nq = 1 if 'tensor' in t else 0, t[:3], t.upper(), len(t), t == str(x)", "", 2, 2),
    "a key": ("q = {str(y): 1}", "", 2, 2),
    "percent": ("q = '%s' % y", "", 2, 2),
    "percent of two": ("q = '%s %d' % (y, 3)", "", 2, 2),
    "joined": ("q = ', '.join([str(y), 'b'])", "", 2, 2),
    "changed": ("q = f'{y}'\ny.add_(1)", "", 2, 2),
    "print": ("q = print('a', 1, y.shape, sep='|', end='!')", "", 2, 1),
    "print tensors": ("for i in range(3):\n    print(i, y[i], f'{y[i]:.1f}')\nq = 0", "", 4, 1),
    "print, then change": ("print(y)\ny.add_(1)\nprint(y)\nq = 0", "", 3, 2),
    "print containers": ("a = [1]\nprint(a)\na.append(y)\nprint(a, {'a': a}, (1, y))\nq = 0", "", 2, 1),
    "print objects": ("o = A()\no.t = y\nprint(o)\nq = 0", "class A:\n    def __repr__(self): return f'A({self.t})'", 2, 1),
    "print, then raise": ("print('before', y)\ny = y[torch.tensor([9])]\nq = 0", "", 2, 1),
    "print and break": ("for i in range(3):\n    print(i)\n    torch._dynamo.graph_break()\nq = 0", "", 2, 2),
    "print caught": ("try:\n    print('x')\n    1 / 0\nexcept ZeroDivisionError:\n    print('caught')\nq = 0", "", 2, 1),
    "warn": ("warnings.warn('careful')\nq = 0", "", 1, 1),
    "warn of the caller": ("def g():\n    warnings.warn('careful', UserWarning, stacklevel=2)\ng()\nq = 0", "", 1, 1),
    "warn of a caller outside": ("warnings.warn('careful', stacklevel=2)\nq = 0", "", 2, 2),
    "log": ("def g(v):\n    G_log.info('in %s', v)\n    return v * 2\nq = g(y)\nG_log.warning('a')", LOG, 3, 1),
    "log an exception": ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    G_log.exception('bad')\nq = 0", LOG, 2, 2),
}  # fmt: skip
PUT_OFF = (print, warnings.warn, logging.Logger.info, logging.Logger.warning, logging.Logger.exception)


@pytest.mark.parametrize("name", SHOWN)
def test_shown(name: str) -> None:
    body, before, graphs, _ = SHOWN[name]
    assert graphs_of(body, before) == graphs


@pytest.mark.parametrize("name", SHOWN)
def test_put_off(name: str) -> None:
    """Calls behind the graph: the output, and the lines that loggers and warnings name, are eager's."""
    body, before, _, graphs = SHOWN[name]
    with graphlift.config.patch(reorderable_logging_functions=PUT_OFF):
        assert graphs_of(body, before) == graphs


def test_put_off_bound() -> None:
    """A method of one logger."""
    with graphlift.config.patch(reorderable_logging_functions=[logging.getLogger("graphlift-test").info]):
        assert graphs_of("G_log.info('x')\nq = 0", LOG) == 1
