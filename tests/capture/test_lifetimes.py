"""Objects that a call drops end with it, also in the call that is captured: nothing of the capture holds them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
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


class Holder:
    """Refers to what a callback of a weak reference watches, in one of several ways."""

    def __init__(self, watched: Any) -> None:
        self.child = watched
        self.table = {"key": watched}
        self.items = [watched]


def drop_attribute(holder: Holder) -> None:
    holder.child = None


def drop_key(holder: Holder) -> None:
    holder.table.pop("key")


def drop_keys(holder: Holder) -> None:
    holder.table.clear()


def drop_item(holder: Holder) -> None:
    holder.items[0] = None


def drop_items(holder: Holder) -> None:
    holder.items.clear()


DROPS = {
    drop: index for index, drop in enumerate((drop_attribute, drop_key, drop_keys, drop_item, drop_items))
}


@pytest.mark.parametrize("drop", DROPS)
def test_callbacks_of_weak_references_run_where_the_object_ends(compiler: Compiler, drop: Any) -> None:
    class Watched:
        pass

    def made() -> tuple[Holder, list[str]]:
        watched, log = Watched(), []
        holder = Holder(watched)
        kept = ("child", "table", "table", "items", "items")[DROPS[drop]]
        for name in {"child", "table", "items"} - {kept}:
            setattr(holder, name, None)
        weakref.finalize(watched, log.append, "ended")
        return holder, log

    def program(x: torch.Tensor, holder: Holder, log: list[str]) -> Any:
        y = x + 1
        drop(holder)
        return y, list(log)

    def resumed(x: torch.Tensor) -> Any:
        watched = Watched()
        finalizer = weakref.finalize(watched, len, "")
        before = finalizer.alive
        del watched
        return before, finalizer.alive

    compiled = compiler.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2), *made())[1] == program(torch.ones(2), *made())[1] == ["ended"]
    assert compiler.compile(resumed, backend="eager")(torch.ones(2)) == resumed(torch.ones(2))


def test_callbacks_of_the_collector_are_no_part_of_the_region() -> None:
    seen: list[str] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        seen.append(phase)

    class Ends:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            seen.append("end")

    def program(x: torch.Tensor) -> torch.Tensor:
        graphlift.disable(Ends)()
        gc.collect()
        return x + 1

    gc.callbacks.append(callback)
    try:
        report = graphlift.explain(program)(torch.ones(2))
        names = [region.fn_name for region in report.regions]
    finally:
        gc.callbacks.remove(callback)
    assert {"start", "end", "stop"} <= set(seen)
    assert names and not {"callback", "__del__"} & {name.rsplit(".", 1)[-1] for name in names}
