"""Random object graphs, random guards on them, random changes: the C evaluator always answers as Python does.

In: a seed. Out: nothing, or an AssertionError. Always: standard library only.
"""

from __future__ import annotations

import copy
import random
from collections import OrderedDict
from typing import Any

from graphlift.guards import (
    Arg,
    DictItem,
    DictKey,
    DictKeys,
    DistinctTensors,
    Equals,
    Guard,
    HasKey,
    IdIs,
    InstanceDict,
    Length,
    SeqItem,
    Slot,
    Source,
    TypeIs,
    TypeOf,
)
from tests.guards.checking import Checked


class Node:
    pass


class Other(Node):
    pass


class Slotted:
    __slots__ = ("a", "b")


CONSTANTS: list[Any] = [
    0,
    1,
    True,
    1.0,
    0.0,
    -0.0,
    float("nan"),
    "a",
    "long text",
    b"x",
    None,
    (1, 2.5),
    2**70,
    3j,
    ...,
]
KEYS: list[Any] = ["a", "b", "c", 1, 2.5, None, ("k", 1)]


def fresh(value: Any) -> Any:
    """An equal constant that is another object, where that is possible."""
    if type(value) is float:
        return float(repr(value))
    if type(value) is int and abs(value) > 300:
        return int(str(value))
    if type(value) is tuple:
        return tuple(fresh(item) for item in list(value))
    return value


def make(rng: random.Random, depth: int) -> Any:
    kind = (
        rng.choice(["const", "node", "node", "dict", "list", "tuple", "ordered", "slots"])
        if depth
        else "const"
    )
    if kind == "const":
        return fresh(rng.choice(CONSTANTS))
    if kind in ("dict", "ordered"):
        table: dict[Any, Any] = {} if kind == "dict" else OrderedDict()
        keys = KEYS if rng.random() < 0.3 else KEYS[:3]
        for key in rng.sample(keys, rng.randrange(4)):
            table[key] = make(rng, depth - 1)
        return table
    if kind in ("list", "tuple"):
        items = [make(rng, depth - 1) for _ in range(rng.randrange(4))]
        return items if kind == "list" else tuple(items)
    node: Any = Slotted() if kind == "slots" else rng.choice([Node, Other])()
    for name in ("a", "b"):
        if rng.random() < 0.8:
            setattr(node, name, make(rng, depth - 1))
    return node


def guards_for(rng: random.Random, value: Any, source: Source, sources: list[Source]) -> list[Guard]:
    """Guards that hold now, each made or left out at random, here and below."""
    guards: list[Guard] = []
    sources.append(source)

    def maybe(guard: Guard, chance: float = 0.5) -> None:
        if rng.random() < chance:
            guards.append(guard)

    maybe(TypeIs(source, type(value)))
    maybe(IdIs(TypeOf(source), type(value)), 0.1)
    if isinstance(value, Node | Slotted):
        maybe(IdIs(source, value), 0.1)
    try:
        maybe(Equals(source, value), 0.7)
    except TypeError:
        pass
    if isinstance(value, dict):
        maybe(Length(source, len(value)), 0.3)
        maybe(DictKeys(source, list(value)), 0.3)
        for key in KEYS:
            maybe(HasKey(source, key, key in value), 0.15)
        for i in range(len(value)):
            if rng.random() < 0.2:
                key = list(value)[i]
                guards += guards_for(rng, key, DictKey(source, i), sources)
        for key, item in value.items():
            if rng.random() < 0.7:
                guards += guards_for(rng, item, DictItem(source, key), sources)
    elif isinstance(value, list | tuple):
        maybe(Length(source, len(value)), 0.5)
        for i, item in enumerate(value):
            if rng.random() < 0.7:
                index = i if rng.random() < 0.7 else i - len(value)
                guards += guards_for(rng, item, SeqItem(source, index), sources)
    elif isinstance(value, Node):
        guards += guards_for(rng, value.__dict__, InstanceDict(source), sources)
    elif isinstance(value, Slotted):
        for name in ("a", "b"):
            if hasattr(value, name):
                guards += guards_for(rng, getattr(value, name), Slot(source, name), sources)
    return guards


def containers(value: Any, found: list[Any], seen: set[int]) -> list[Any]:
    if id(value) in seen:
        return found
    seen.add(id(value))
    if isinstance(value, dict):
        found.append(value)
        items = list(value.values())
    elif isinstance(value, list | tuple):
        if isinstance(value, list):
            found.append(value)
        items = list(value)
    elif isinstance(value, Node):
        found.append(value)
        items = list(value.__dict__.values())
    elif isinstance(value, Slotted):
        found.append(value)
        items = [getattr(value, name) for name in ("a", "b") if hasattr(value, name)]
    else:
        return found
    for item in items:
        containers(item, found, seen)
    return found


def replacement(rng: random.Random, old: Any) -> Any:
    """An equal value, a slightly different one, or something else."""
    choice = rng.random()
    if choice < 0.35:
        try:
            return copy.deepcopy(old)
        except Exception:
            return fresh(old)
    if choice < 0.5:
        return fresh(old)
    if choice < 0.7 and isinstance(old, dict):
        return OrderedDict(old) if type(old) is dict else dict(old)
    if choice < 0.7 and isinstance(old, tuple) and old:
        return (make(rng, 0), *old[1:])
    return make(rng, rng.randrange(3))


def change(rng: random.Random, root: list[Any]) -> None:
    target = rng.choice(containers(root[0], [root], set()))
    roll = rng.random()
    if target is root:
        if roll < 0.3:
            root[0] = replacement(rng, root[0])
    elif isinstance(target, dict):
        if roll < 0.2 and target:
            key = rng.choice(list(target))
            target[key] = target.pop(key)
        elif roll < 0.3 and target:
            del target[rng.choice(list(target))]
        elif roll < 0.4:
            target[rng.choice([*KEYS, "extra"])] = make(rng, 1)
        elif roll < 0.5 and isinstance(target, OrderedDict) and target:
            target.move_to_end(rng.choice(list(target)), last=rng.random() < 0.5)
        elif target:
            key = rng.choice(list(target))
            target[key] = replacement(rng, target[key])
    elif isinstance(target, list):
        if roll < 0.1:
            target.append(make(rng, 1))
        elif target and roll < 0.2:
            target.pop()
        elif target:
            i = rng.randrange(len(target))
            target[i] = replacement(rng, target[i])
    elif isinstance(target, Slotted):
        name = rng.choice(["a", "b"])
        if roll < 0.2 and hasattr(target, name):
            delattr(target, name)
        else:
            setattr(target, name, replacement(rng, getattr(target, name, None)))
    else:
        name = rng.choice(["a", "b", "unrelated"])
        if roll < 0.1:
            target.__class__ = Other if type(target) is Node else Node
        elif roll < 0.2:
            target.__dict__ = dict(target.__dict__)
        elif roll < 0.3 and name in target.__dict__:
            delattr(target, name)
        else:
            setattr(target, name, replacement(rng, target.__dict__.get(name)))


def run(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(8):
        root = [make(rng, 4)]
        sources: list[Source] = []
        guards = guards_for(rng, root[0], Arg(0, "x"), sources)
        if len(sources) > 1 and rng.random() < 0.3:
            guards.append(DistinctTensors(tuple(rng.sample(sources, 2))))
        fetch = rng.sample(sources, min(len(sources), rng.randrange(4)))
        check = Checked(guards, fetch)
        for _ in range(40):
            for _ in range(rng.randrange(1, 4)):
                # What user code cannot see must not matter either: no comparison here, only the C side.
                check.check(check.func, root[0])
            check.passes(root[0])
            snapshot = copy.deepcopy(root[0]) if rng.random() < 0.1 else None
            change(rng, root)
            check.passes(root[0])
            if snapshot is not None:
                check.passes(snapshot)
