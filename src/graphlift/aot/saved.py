"""What eager would keep for its backward, read from autograd's own graph while tracing.

In: the outputs of the traced forward. Out: the bytes of memory that the graph's nodes hold.
Always: memory of the region's inputs is not counted, and shared memory counts once.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..fake import FakeTensor
from ..fake.tensor import fakes_in

Edge = tuple[Any, int]  # a node of autograd's graph, and which of its gradients arrives there
#: Backwards that read a tensor: of any of these outputs, as bits, that go on to any of these inputs, as bits.
Needed = tuple[tuple[int, int], ...]
#: Of autograd's graph: the outputs it lies behind, and what a backward comes to from there. Sets are bits.
Part = tuple[int, int]

_NAMES: dict[type, tuple[str, ...]] = {}  # per type of autograd node, the attributes that give what it saved


def eager_saved_bytes(
    outputs: Iterable[FakeTensor], inputs: Iterable[FakeTensor], region_of: Callable[[Any], Any]
) -> int:
    """Bytes of intermediate memory that eager's backward of `outputs` keeps alive.

    `region_of`: the checkpoint that a node of autograd's, or what made a tensor's memory, is in. Inside of one, memory
    that it makes is not kept.
    """
    seen = {id(f.home) for f in inputs}
    total = 0
    for node in _from([output.grad_fn for output in outputs]):
        for fake in _kept(node, region_of):
            if id(fake.home) not in seen:
                seen.add(id(fake.home))
                total += fake.spec.size_bytes() if fake.spec.symbolic else fake.home.nbytes
    return total


def nodes_behind(outputs: Sequence[Tensor], stops: Container[Edge] = frozenset()) -> dict[Any, int]:
    """The nodes of autograd's graph that a backward goes through, each with the outputs it lies behind, as bits.

    What lies behind `stops` is left out.
    """
    behind: dict[Any, int] = {}
    for k, output in enumerate(outputs):
        for node in _from((output.grad_fn,), stops):
            behind[node] = behind.get(node, 0) | 1 << k
    return behind


def leading_to(behind: Iterable[Any], ends: Mapping[Edge, int]) -> dict[Any, int]:
    """For each of these nodes which of `ends` (each a bit) a backward comes to from there, going on at none of them."""
    found: dict[Any, int] = {}
    for start in behind:
        pending = [start]
        while pending:
            node = pending[-1]
            edges = node.next_functions
            followed = [edge[0] for edge in edges if edge[0] is not None and edge not in ends]
            missing = [following for following in followed if following not in found]
            if missing:
                pending += missing
                continue
            found[node] = union(ends.get(edge, 0) for edge in edges) | union(found[f] for f in followed)
            pending.pop()
    return found


def needed_unchanged(
    behind: Mapping[Any, int], leads: Mapping[Any, int], region_of: Callable[[Any], Any]
) -> dict[int, Needed]:
    """By id, the homes whose memory eager's backward reads as it was; and in which backwards it does."""
    found: dict[int, dict[tuple[int, int], None]] = {}
    for node, mask in behind.items():
        for fake in _kept(node, region_of):
            found.setdefault(id(fake.home), {})[mask, leads[node]] = None
    return {home: tuple(pairs) for home, pairs in found.items()}


def released_parts(behind: Mapping[Any, int], leads: Mapping[Any, int]) -> tuple[Part, ...]:
    """The parts of autograd's graph that a backward frees as a whole.

    Nodes that hold nothing are in no part: a backward may go through them again.
    """
    parts: dict[Part, None] = {}
    for node, mask in behind.items():
        part = mask, leads[node]
        if part not in parts and _holds(node):
            parts[part] = None
    return tuple(parts)


def _kept(node: Any, region_of: Callable[[Any], Any]) -> Iterator[FakeTensor]:
    """What eager keeps for a node of its backward, without what a checkpoint would make again."""
    region = region_of(node)
    for fake in fakes_in(_saved_values(node), []):
        if region is None or region_of(fake) is not region:
            yield fake


def _holds(node: Any) -> bool:
    if node.name() == "torch::autograd::CopySlices":  # it holds another node
        return True
    return any(isinstance(v, Tensor) for v in tree_leaves(_saved_values(node)))


def union(masks: Iterable[int]) -> int:
    """Sets, written as bits, as one."""
    return functools.reduce(operator.or_, masks, 0)


def bits(flags: Iterable[bool]) -> int:
    """The set of the places of what is true."""
    return sum(1 << n for n, flag in enumerate(flags) if flag)


def members(mask: int) -> tuple[int, ...]:
    """What is in a set, in order."""
    return tuple([n for n in range(mask.bit_length()) if mask >> n & 1])


def _from(nodes: Iterable[Any], stops: Container[Edge] = frozenset()) -> Iterator[Any]:
    """These nodes of autograd's graph and those that a backward of them goes through, each once."""
    seen: set[Any] = {None}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            yield node
            pending.extend(edge[0] for edge in node.next_functions if edge not in stops)


def _saved_values(node: Any) -> list[Any]:
    names = _NAMES.get(type(node))
    if names is None:
        names = tuple(n for n in dir(node) if n.startswith("_saved_")) or ("saved_tensors",)
        _NAMES[type(node)] = names
    found: list[Any] = []
    for name in names:
        try:
            found.append(getattr(node, name, None))
        except (
            RuntimeError,
            IndexError,
        ):  # changed in place since: eager's backward raises, and so does the trace
            continue
    return found
