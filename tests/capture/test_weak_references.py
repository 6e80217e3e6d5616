"""Weak references and proxies, and objects whose end is noticed."""

from __future__ import annotations

import types
import weakref

import pytest
import torch
from torch import Tensor, nn

import graphlift
from benchmarks.compilers import Compiler
from tests.capture.program import program


class Node:
    def __init__(self, v=1, up=None):
        self.v = v
        self.up = weakref.ref(up) if up is not None else None
        self.kids = []


class Family:
    """A parent that holds its child, which refers back to it."""

    def __init__(self):
        self.root = Node(1)
        self.kid = Node(2, self.root)
        self.root.kids.append(self.kid)


@program(Node)
def test_reference_made_here(x: Tensor, node: Node):
    reference = weakref.ref(node)
    made = Node(x)
    other = weakref.ref(made)
    return other().v + reference().v, reference() is node, other() is made, weakref.ref(node) == reference


@program()
def test_reference_outlives_the_region(x: Tensor):
    node = Node(3)
    return x + 1, weakref.ref(node)() is node, (node, weakref.ref(node))[1]().v


def test_reference_is_returned(compiler: Compiler) -> None:
    def f(x: Tensor):
        node = Node(3)
        return x + 1, weakref.ref(node), node, weakref.ref(Node(4)), weakref.proxy(node)

    _, reference, node, ended, proxy = compiler.compile(f, backend="eager")(torch.ones(2))
    assert reference() is node and reference is weakref.ref(node) and ended() is None
    assert type(proxy) is weakref.ProxyType and proxy.v == 3


def test_what_a_reference_from_outside_leads_to(compiler: Compiler) -> None:
    def f(x: Tensor, kid: Node, root: Node | None = None):
        up = kid.up()
        return (x - 1, None) if up is None else (x * up.v, up is root)

    graphs = []
    compiled = compiler.compile(f, backend=lambda gm, inputs: graphs.append(gm) or gm)
    families = [Family() for _ in range(3)]
    for family in families:
        assert compiled(torch.ones(1), family.kid, family.root)[1] is True
        assert compiled(torch.ones(1), family.kid)[1] is False
    assert compiler.name == "eager" or len(graphs) == 2
    kid = families[0].kid
    families.clear()
    del family
    assert compiled(torch.ones(1), kid) == (torch.zeros(1), None)


@program(lambda: [Node(5)], breaks=True)
def test_dropped_from_a_list(x: Tensor, nodes: list):
    reference = weakref.ref(nodes[0])
    nodes[0] = None
    return x + 1, reference() is None


@program(lambda: types.SimpleNamespace(node=Node(3)), breaks=True)
def test_dropped_from_an_attribute(x: Tensor, holder):
    reference = weakref.ref(holder.node)
    value = reference().v
    del holder.node
    return x + value, reference() is None


@program(breaks=True)
def test_dropped_by_name(x: Tensor):
    node = Node(x)
    reference = weakref.ref(node)
    before = reference() is node
    del node
    return x + 1, before, reference() is None


@program(breaks=True)
def test_circle_lives_on(x: Tensor):
    node = Node(1)
    node.me = node
    reference = weakref.ref(node)
    del node
    return x + 1, reference() is None


@program(breaks=True)
def test_reference_across_a_break(x: Tensor):
    node, lost = Node(3), Node(4)
    reference, ended = weakref.ref(node), weakref.ref(lost)
    y = x + 1
    lost = None
    graphlift.graph_break()
    return y * reference().v, reference() is node, ended() is None


@program(Node)
def test_proxy(x: Tensor, node: Node):
    proxy = weakref.proxy(node)
    proxy.v = x
    proxy.new = 4
    del proxy.new
    return node.v + 1, isinstance(proxy, Node), type(proxy), hasattr(proxy, "new"), proxy.__class__


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = 3
        self.child = Child(self)

    def forward(self, x):
        return self.child(x)


class Child(nn.Module):
    def __init__(self, parent):
        super().__init__()
        object.__setattr__(self, "parent", weakref.proxy(parent))
        self.up = weakref.ref(parent)

    def forward(self, x):
        return x * self.parent.k + self.up().k


@program()
def test_refused(x: Tensor):
    log = []
    for value in (1, "s", (1,), None):
        try:
            weakref.ref(value)
        except TypeError as error:
            log.append(str(error))
    return x + 1, log


def test_module_that_knows_its_parent(compiler: Compiler) -> None:
    graphs = []
    model = Parent()
    compiled = compiler.compile(model, backend=lambda gm, inputs: graphs.append(gm) or gm)
    for value in (3, 5):
        model.k = value
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), value * 2.0))
    assert compiler.name == "eager" or len(graphs) == 2


def test_weak_dictionaries(compiler: Compiler) -> None:
    node = Node(3)
    by_value = weakref.WeakValueDictionary({"k": node})
    by_key = weakref.WeakKeyDictionary({node: 5})

    def f(x: Tensor, node: Node):
        return (
            x + by_value["k"].v + by_key[node],
            "k" in by_value,
            len(by_value),
            by_value.get("z"),
            node in by_key,
        )

    graphs = []
    compiled = compiler.compile(f, backend=lambda gm, inputs: graphs.append(gm) or gm)
    for _ in range(2):
        result, *rest = compiled(torch.zeros(1), node)
        assert result.item() == 8 and rest == [True, 1, None, True]
    assert compiler.name == "eager" or len(graphs) == 1


ENDED: list[int] = []


class Noted:
    def __init__(self, n: int) -> None:
        self.n = n

    def __del__(self) -> None:
        ENDED.append(self.n)


def made_and_dropped(x: Tensor, held: list):
    noted = Noted(1)
    y = x + noted.n
    del noted
    return y, list(ENDED)


def popped(x: Tensor, held: list):
    held.pop()
    return x + 1, list(ENDED)


def cleared(x: Tensor, held: list):
    held.clear()
    return x + 1, list(ENDED)


@pytest.mark.parametrize("fn", [made_and_dropped, popped, cleared])
def test_end_is_noticed_where_it_happens(fn, compiler: Compiler) -> None:
    compiled = compiler.compile(fn, backend="eager")
    for _ in range(2):
        ENDED.clear()
        expected = fn(torch.ones(1), [Noted(7)])
        ENDED.clear()
        assert compiled(torch.ones(1), [Noted(7)]) == expected


class Slots:
    __slots__ = ("a", "b")


@program()
def test_slot_without_a_value(x: Tensor):
    made = Slots()
    try:
        return made.a
    except AttributeError as error:
        return x + 1, str(error)


def test_slot_of_an_object_from_outside_without_a_value(compiler: Compiler) -> None:
    def f(x: Tensor, slots: Slots):
        return x + getattr(slots, "a", 1)

    compiled = compiler.compile(f, backend="eager")
    slots = Slots()
    assert compiled(torch.ones(1), slots).item() == 2
    slots.a = 5
    assert compiled(torch.ones(1), slots).item() == 6
    del slots.a
    assert compiled(torch.ones(1), slots).item() == 2
