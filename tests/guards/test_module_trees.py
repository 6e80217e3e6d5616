"""Guards on trees of modules: whatever a user can change about a model is seen, with and without a trace."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphlift.guards import Arg, DictItem, InstanceDict, TypeIs
from tests.guards.checking import Checked
from tests.guards.modules import guard_module, module_check


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4, bias=False))
        self.drop = nn.Dropout(0.25)
        self.scale = 0.5
        self.register_buffer("table", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.layers(self.norm(x))) * self.scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class OtherLinear(nn.Linear):
    pass


def set_data(model: Model, new: Any) -> None:
    model.blocks[1].layers[0].weight.data = new


Change = Callable[[Model], Any]

# (what, change, undo): the change must be seen, undoing it must pass again.
SEEN: list[tuple[str, Change, Change]] = [
    ("train/eval", lambda m: m.eval(), lambda m: m.train()),
    ("train/eval of one", lambda m: m.blocks[2].drop.eval(), lambda m: m.blocks[2].drop.train()),
    (
        "attribute",
        lambda m: setattr(m.blocks[1], "scale", 0.75),
        lambda m: setattr(m.blocks[1], "scale", 0.5),
    ),
    (
        "attribute type",
        lambda m: setattr(m.blocks[1], "scale", 1),
        lambda m: setattr(m.blocks[1], "scale", 0.5),
    ),
    (
        "dropout p",
        lambda m: setattr(m.blocks[0].drop, "p", 0.1),
        lambda m: setattr(m.blocks[0].drop, "p", 0.25),
    ),
    ("half", lambda m: m.half(), lambda m: m.float()),
    ("half of one", lambda m: m.head.half(), lambda m: m.head.float()),
    ("bfloat16", lambda m: m.to(torch.bfloat16), lambda m: m.to(torch.float32)),
    ("data shape", lambda m: set_data(m, torch.ones(8, 5)), lambda m: set_data(m, torch.ones(8, 4))),
    ("data dtype", lambda m: set_data(m, torch.ones(8, 4).double()), lambda m: set_data(m, torch.ones(8, 4))),
    ("data strides", lambda m: set_data(m, torch.ones(4, 8).t()), lambda m: set_data(m, torch.ones(8, 4))),
    (
        "requires_grad_",
        lambda m: m.head.weight.requires_grad_(False),
        lambda m: m.head.weight.requires_grad_(True),
    ),
    ("freeze all", lambda m: m.requires_grad_(False), lambda m: m.requires_grad_(True)),
    (
        "buffer shape",
        lambda m: setattr(m.blocks[0], "table", torch.zeros(4)),
        lambda m: setattr(m.blocks[0], "table", torch.zeros(3)),
    ),
    (
        "parameter removed",
        lambda m: setattr(m.head, "bias", None),
        lambda m: setattr(m.head, "bias", nn.Parameter(torch.zeros(2))),
    ),
    (
        "parameter deleted",
        lambda m: delattr(m.head, "bias"),
        lambda m: m.head.register_parameter("bias", nn.Parameter(torch.zeros(2))),
    ),
    (
        "bias where there was none",
        lambda m: setattr(m.blocks[0].layers[2], "bias", nn.Parameter(torch.zeros(4))),
        lambda m: (
            m.blocks[0].layers[2].register_parameter("bias", None)
            or setattr(m.blocks[0].layers[2], "bias", None)
        ),
    ),
    (
        "submodule of another class",
        lambda m: setattr(m, "head", OtherLinear(4, 2)),
        lambda m: setattr(m, "head", nn.Linear(4, 2)),
    ),
    (
        "class assignment",
        lambda m: setattr(m.head, "__class__", OtherLinear),
        lambda m: setattr(m.head, "__class__", nn.Linear),
    ),
    ("layer added", lambda m: m.blocks.append(Block()), lambda m: m.blocks.pop(3)),
    (
        "layer replaced by a bigger one",
        lambda m: m.blocks[0].layers.__setitem__(0, nn.Linear(4, 9)),
        lambda m: m.blocks[0].layers.__setitem__(0, nn.Linear(4, 8)),
    ),
    (
        "method on the instance",
        lambda m: setattr(m.head, "forward", lambda x: x),
        lambda m: delattr(m.head, "forward"),
    ),
]

NOT_SEEN: list[tuple[str, Change]] = [
    ("unrelated attribute", lambda m: setattr(m, "counter", 17)),
    ("unrelated attribute below", lambda m: setattr(m.blocks[1].norm, "counter", 17)),
    ("values of parameters", lambda m: m.head.weight.data.add_(1)),
    ("load_state_dict", lambda m: m.load_state_dict(copy.deepcopy(m.state_dict()))),
    ("equal parameter", lambda m: setattr(m.head, "weight", nn.Parameter(torch.ones(2, 4)))),
    ("equal submodule", lambda m: setattr(m, "head", nn.Linear(4, 2))),
    ("grad", lambda m: m(torch.ones(2, 4)).sum().backward()),
    ("zero_grad", lambda m: m.zero_grad()),
    ("state dict hook", lambda m: m.register_state_dict_pre_hook(lambda *args: None)),
    ("float again", lambda m: m.float()),
]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.mark.parametrize(("what", "change", "undo"), SEEN, ids=[row[0] for row in SEEN])
@pytest.mark.parametrize("warm", [0, 1, 5])
def test_change_is_seen(model: Model, what: str, change: Change, undo: Change, warm: int) -> None:
    check = module_check(model)
    for _ in range(warm):
        assert check.passes(model)
    for _ in range(3):
        change(model)
        assert not check.passes(model), what
        assert not check.passes(model), what
        undo(model)
        for _ in range(3):
            found = check.fetch(model)
            assert found is not None, check.check.explain_failure(check.func, model)
            expected = [t for m in model.modules() for t in [*m._parameters.values(), *m._buffers.values()]]
            assert {id(t) for t in found} == {id(t) for t in expected if t is not None}


@pytest.mark.parametrize(("what", "change"), NOT_SEEN, ids=[row[0] for row in NOT_SEEN])
def test_change_that_does_not_matter(model: Model, what: str, change: Change) -> None:
    check = module_check(model).warm(model)
    for _ in range(3):
        change(model)
        for _ in range(3):
            assert check.passes(model), f"{what}: {check.check.explain_failure(check.func, model)}"


def test_hooks(model: Model) -> None:
    check = module_check(model).warm(model)
    registrations: list[Callable[[], Any]] = [
        lambda: model.register_forward_hook(lambda *args: None),
        lambda: model.blocks[2].layers[1].register_forward_pre_hook(lambda *args: None),
        lambda: model.head.register_full_backward_hook(lambda *args: None),
        lambda: nn.modules.module.register_module_forward_hook(lambda *args: None),
        lambda: nn.modules.module.register_module_forward_pre_hook(lambda *args: None),
    ]
    for register in registrations:
        handle = register()
        assert not check.passes(model)
        handle.remove()
        assert check.passes(model) and check.passes(model)


def test_method_replaced_on_the_class(model: Model) -> None:
    check = module_check(model).warm(model)
    original = nn.LayerNorm.forward
    try:
        nn.LayerNorm.forward = lambda self, x: x
        assert not check.passes(model)
    finally:
        nn.LayerNorm.forward = original
    assert check.passes(model) and check.passes(model)
    OtherLinear.forward = nn.Linear.forward
    assert check.passes(model)
    del OtherLinear.forward


def test_trace_is_used_and_survives_unrelated_changes(model: Model) -> None:
    check = module_check(model).warm(model).check
    walks, hits = check.stats["walks"], check.stats["trace_hits"]
    for step in range(100):
        model.step = step
        model.blocks[1].step = step
        assert check(None, model) is not None
    assert check.stats["walks"] == walks
    assert check.stats["trace_hits"] >= hits + 100


def test_a_number_that_varies_is_looked_at_alone(model: Model) -> None:
    steps = DictItem(
        InstanceDict(DictItem(DictItem(InstanceDict(Arg(0, "self")), "_modules"), "head")), "steps"
    )
    guards, fetch = guard_module(model, Arg(0, "self"))
    model.head.steps = 1000
    check = Checked([*guards, TypeIs(steps, int)], [*fetch, steps], 1).warm(model)
    for step in range(1001, 1101):
        model.head.steps = step
        found = check.fetch(model)
        assert found is not None and found[-1] == step
    walks = check.check.stats["walks"]
    assert walks < 10, "the rest of the model is vouched for by the trace"
    model.head.steps = "1"
    assert not check.passes(model)
    model.head.steps = 2000
    assert check.passes(model)
    model.blocks[0].scale = 0.75
    assert not check.passes(model)


def test_several_models(model: Model) -> None:
    check = module_check(model)
    models = [model, *(Model() for _ in range(5))]
    for _ in range(4):
        assert all(check.passes(m) for m in models)
    walks = check.check.stats["walks"]
    for m in models:
        check.check(None, m)
    assert check.check.stats["walks"] == walks
    models[3].half()
    assert [check.passes(m) for m in models] == [True, True, True, False, True, True]
    assert not check.passes(None) and not check.passes(nn.Linear(4, 2))


def test_a_model_that_changes_at_every_call(model: Model) -> None:
    check = module_check(model)
    for step in range(200):
        model.head = nn.Linear(4, 2)
        assert check.check(None, model) is not None, step
        if step % 50 == 7:
            model.head = nn.Linear(4, 3)
            assert check.check(None, model) is None
    assert check.check.stats["records"] < 40, "recording is given up where it does not pay"


def test_the_model_is_not_kept_alive() -> None:
    model = Model()
    check = module_check(model).warm(model).check
    before = [sys.getrefcount(p) for p in model.parameters()]
    for _ in range(200):
        check(None, model)
    assert [sys.getrefcount(p) for p in model.parameters()] == before
    refs = [weakref.ref(o) for o in [model, *model.parameters(), *model.modules()]]
    del model
    gc.collect()
    assert {ref() for ref in refs} == {None}
    assert not check.expired, "nothing in it was known by identity"


def test_deepcopied_and_deleted_models() -> None:
    model = Model()
    check = module_check(model).warm(model)
    other = copy.deepcopy(model)
    ref = weakref.ref(model)
    del model
    gc.collect()
    assert ref() is None
    assert check.passes(other)
    for _ in range(20):
        fresh = Model()
        assert check.passes(fresh) and check.passes(fresh) and check.passes(fresh)
        fresh.blocks[0].layers[0] = nn.Linear(4, 9)
        assert not check.passes(fresh)


def test_message_reads_as_the_users_expression(model: Model) -> None:
    check = module_check(model).warm(model)
    model.blocks[2].drop.p = 0.1
    assert check.why(model) == "self.blocks[2].drop.p == 0.25: expected 0.25, found 0.1"
