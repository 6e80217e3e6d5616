"""The standard library in captured code: functions, containers, text, numbers.

In: programs as text. Out: one test each. Always: eager's results and effects; one graph unless more are said.
"""

from __future__ import annotations

import pytest

from tests.capture.library import graphs_of

LRU = "@functools.lru_cache(maxsize=2)\ndef G_f(n, m=1):\n    {}return n * 2\n"
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
    "list": ("q = G_f(2)\nq.append(1)\nq = list(q)", "@functools.cache\ndef G_f(n): return [n]", 4),
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
    "made, kept out": ("g = functools.cache(lambda n: n * 2)\ntorch._dynamo.graph_break()\nq = g(3), g(3)", "", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CACHED)
def test_cached(name: str) -> None:
    body, before, graphs = CACHED[name]
    assert graphs_of(body, before) == graphs
