"""Objects that a call drops end with it, also in the call that is captured: nothing of the capture holds them."""

from __future__ import annotations

import gc

import torch

import graphlift
from benchmarks.compilers import Compiler


def test_objects_end_with_the_call(compiler: Compiler) -> None:
    ended: list[str] = []

    class Noted:
        def __del__(self) -> None:
            ended.append("object")

    @graphlift.disable
    def make() -> Noted:
        return Noted()

    @graphlift.disable
    def look(noted: Noted) -> None:
        pass

    def program(x: torch.Tensor) -> torch.Tensor:
        noted = make()
        noted.value = x
        look(noted)
        return x + 1

    compiled = compiler.compile(program, backend="eager")
    gc.disable()
    try:
        for count in (1, 2, 3):
            compiled(torch.ones(2))
            assert len(ended) == count
    finally:
        gc.enable()
