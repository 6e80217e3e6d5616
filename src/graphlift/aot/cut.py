"""Minimum cuts, by maximum flow.

In: a network whose vertices are values, with capacities. Out: the values on the cut.
Always: among cuts of the same capacity, the one nearest the sink.
"""

from __future__ import annotations

import math

from .ir import Value

INFINITE = math.inf
_LIMIT = 2**28  # capacities are scaled so that their sum stays within 32-bit integers
_UNLIMITED = 2**30  # what an infinite capacity becomes there


class Network:
    """Vertices in pairs: 2k enters value k, 2k+1 leaves it; 0 is the source and 1 the sink."""

    def __init__(self) -> None:
        self.index: dict[Value, int] = {}
        self.values: list[Value] = []
        self.edges: list[tuple[int, int, float]] = []

    def vertex(self, v: Value) -> int:
        k = self.index.get(v)
        if k is None:
            k = self.index[v] = len(self.values) + 1
            self.values.append(v)
        return 2 * k

    def edge(self, a: int, b: int, capacity: float) -> None:
        self.edges.append((a, b, capacity))


def min_cut(net: Network) -> list[Value]:
    """The values whose vertices the cut separates."""
    if not net.values:
        return []
    total = sum(c for _, _, c in net.edges if c != INFINITE)
    scale = max(1.0, total / _LIMIT)
    edges = [
        (a, b, _UNLIMITED if c == INFINITE else (max(1, int(c / scale)) if c else 0)) for a, b, c in net.edges
    ]
    below = _reaches_sink(edges, 2 * len(net.values) + 2)
    return [v for k, v in enumerate(net.values, start=1) if 2 * k + 1 in below and 2 * k not in below]


def _reaches_sink(edges: list[tuple[int, int, int]], n: int) -> set[int]:
    """Vertices that still reach the sink once the flow is maximal: the cut nearest the sink recomputes least."""
    import numpy as np
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_flow

    capacity: dict[tuple[int, int], int] = {}
    for a, b, c in edges:
        capacity[a, b] = min(_UNLIMITED, capacity.get((a, b), 0) + c)
    rows, cols = np.array(list(capacity), dtype=np.int32).T
    values = np.array(list(capacity.values()), dtype=np.int32)
    graph = csr_matrix((values, (rows, cols)), shape=(n, n))
    flow = maximum_flow(graph, 0, 1).flow
    residual = (graph - flow).tocsc()
    residual.eliminate_zeros()
    indptr, indices, data = residual.indptr, residual.indices, residual.data
    reached, stack = {1}, [1]
    while stack:
        b = stack.pop()
        for j in range(indptr[b], indptr[b + 1]):
            a = int(indices[j])
            if data[j] > 0 and a not in reached:
                reached.add(a)
                stack.append(a)
    return reached
