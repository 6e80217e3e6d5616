"""Minimum cuts, by maximum flow (Dinic's algorithm).

In: a network whose vertices are values, with capacities. Out: the values on the cut.
Always: among cuts of the same capacity, the one nearest the sink.
"""

from __future__ import annotations

import math

from .ir import Value

INFINITE = math.inf
_SOURCE, _SINK = 0, 1


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
    below = _reaches_sink(net.edges, 2 * len(net.values) + 2)
    return [v for k, v in enumerate(net.values, start=1) if 2 * k + 1 in below and 2 * k not in below]


def _reaches_sink(edges: list[tuple[int, int, float]], n: int) -> dict[int, int]:
    """Vertices that still reach the sink once the flow is maximal: the cut nearest the sink recomputes least.

    Edge 2k goes along the k-th one given and 2k+1 back; `room` is what each can still take, in whole numbers.
    """
    capacities = [c if c == INFINITE else (max(1, int(c)) if c else 0) for _, _, c in edges]
    unlimited = 1 + sum(c for c in capacities if c != INFINITE)
    ends: list[int] = []
    room: list[float] = []
    leaving: list[list[int]] = [[] for _ in range(n)]
    for (a, b, _), c in zip(edges, capacities, strict=True):
        leaving[a].append(len(ends))
        leaving[b].append(len(ends) + 1)
        ends += (b, a)
        room += (unlimited if c == INFINITE else c, 0)
    while True:
        distance = {_SINK: 0}
        found = [_SINK]
        for b in found:
            for e in leaving[b]:
                if room[e ^ 1] and ends[e] not in distance:
                    distance[ends[e]] = distance[b] + 1
                    found.append(ends[e])
        if _SOURCE not in distance:
            return distance
        untried = [[*each] for each in leaving]
        while path := _path(ends, room, untried, distance):
            flow = min(room[e] for e in path)
            for e in path:
                room[e] -= flow
                room[e ^ 1] += flow


def _path(
    ends: list[int], room: list[float], untried: list[list[int]], distance: dict[int, int]
) -> list[int]:
    """Edges with room from the source to the sink, each a step nearer to it; none where every such path is full."""
    path: list[int] = []
    at = _SOURCE
    while at != _SINK:
        edges, nearer = untried[at], distance[at] - 1
        while edges and not (room[edges[-1]] and distance.get(ends[edges[-1]]) == nearer):
            edges.pop()
        if edges:
            path.append(edges[-1])
            at = ends[edges[-1]]
        elif path:
            at = ends[path.pop() ^ 1]
            untried[at].pop()
        else:
            break
    return path
