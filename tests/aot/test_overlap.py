"""The answer about shared memory against looking at every element."""

from __future__ import annotations

import random

import torch

from graphlift.aot.overlap import _places, overlaps_itself, share_memory
from graphlift.fake.spec import make_spec

CPU = torch.device("cpu")


def test_random_views() -> None:
    r = random.Random(0)
    for _ in range(4000):
        n = r.randrange(1, 4)
        shape = tuple(r.randrange(1, 4) for _ in range(n))
        stride = tuple(r.choice((0, 1, 2, 3, 4, 6, 8, 12)) for _ in range(n))
        a = make_spec(shape, stride, r.randrange(8), torch.float32, CPU)
        if r.random() < 0.6:
            b = make_spec(shape, stride, r.randrange(20), torch.float32, CPU)
        else:
            b = make_spec(shape[::-1], stride, r.randrange(20), torch.float32, CPU)
        assert share_memory(a, b) == bool(_places(a) & _places(b)), (a, b)
        if not overlaps_itself(a):
            assert len(_places(a)) == a.numel()


def test_halves_of_a_large_tensor_are_apart() -> None:
    a = make_spec((4096, 2048), (4096, 1), 0, torch.float32, CPU)
    b = make_spec((4096, 2048), (4096, 1), 2048, torch.float32, CPU)
    assert not share_memory(a, b)
    assert share_memory(a, make_spec((4096, 2048), (4096, 1), 2047, torch.float32, CPU))
