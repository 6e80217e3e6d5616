"""A compiled module is its original in everything but how the call runs."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import graphlift
from graphlift.errors import NotBuilt
from graphlift.modules import CompiledModule


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU())
        self.head = nn.Linear(width, 2)
        self.calls = 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.head(self.body(x)) * scale

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self(self(x)[:, [0, 1, 0]])


class Renamed(nn.Linear):
    """Another class with the layout of nn.Linear."""


@pytest.fixture
def pair() -> tuple[Net, Any]:
    torch.manual_seed(0)
    net = Net()
    return net, graphlift.compile(net, backend="eager")


X = torch.linspace(-1, 1, 15).reshape(5, 3)


def test_result_equals_the_original(pair: tuple[Net, Any]) -> None:
    net, compiled = pair
    expected = copy.deepcopy(net)(X, scale=2.0)
    torch.testing.assert_close(compiled(X, scale=2.0), expected)
    torch.testing.assert_close(compiled.eval()(X), net(X))
    torch.testing.assert_close(compiled.forward(X), net(X))


def test_types(pair: tuple[Net, Any]) -> None:
    net, compiled = pair
    assert (
        isinstance(compiled, Net) and isinstance(compiled, nn.Module) and isinstance(compiled, CompiledModule)
    )
    assert compiled.__class__ is Net and compiled._orig_mod is net
    assert repr(compiled) == repr(net)


def test_names_have_no_prefix_and_objects_are_shared(pair: tuple[Net, Any]) -> None:
    net, compiled = pair
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert dict(compiled.named_parameters()) == dict(net.named_parameters())
    assert all(a is b for a, b in zip(compiled.parameters(), net.parameters(), strict=True))
    assert [name for name, _ in compiled.named_modules()] == [name for name, _ in net.named_modules()]
    assert compiled.body is net.body
    compiled.load_state_dict(Net().state_dict())
    torch.testing.assert_close(compiled.eval()(X), net(X))


def test_attributes_are_shared_both_ways(pair: tuple[Net, Any]) -> None:
    net, compiled = pair
    compiled.calls = 7
    assert net.calls == 7
    net.extra = nn.Linear(1, 1)
    assert "extra.weight" in compiled.state_dict()
    del compiled.extra
    assert not hasattr(net, "extra") and not hasattr(compiled, "extra")
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'nothing'"):
        _ = compiled.nothing
    assert set(dir(net)) <= set(dir(compiled))


def test_modes_dtype_and_grad_flags(pair: tuple[Net, Any]) -> None:
    net, compiled = pair
    assert compiled.eval() is compiled and not net.training and not net.body[1].training
    assert compiled.train() is compiled and net.training
    assert compiled.to(torch.float64) is compiled and net.head.weight.dtype == torch.float64
    assert compiled.half().head.weight.dtype == torch.float16
    compiled.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())


def test_hooks_registered_on_either_run_once(pair: tuple[Net, Any]) -> None:
    net, compiled = pair
    seen: list[str] = []
    compiled.register_forward_hook(lambda *_: seen.append("compiled"))
    net.register_forward_pre_hook(lambda *_: seen.append("net"))
    compiled(X)
    assert sorted(seen) == ["compiled", "net"]


def test_methods_see_the_compiled_module(pair: tuple[Net, Any]) -> None:
    net, compiled = pair
    net.eval()
    torch.testing.assert_close(compiled.twice(X), net.twice(X))


def test_sequence_protocol() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    compiled = graphlift.compile(net, backend="eager")
    assert len(compiled) == 2 and list(compiled) == list(net) and compiled[0] is net[0]
    assert type(compiled[:1]) is nn.Sequential
    torch.testing.assert_close(compiled(X), net(X))


def test_copies_and_pickles_are_compiled_and_independent(pair: tuple[Net, Any]) -> None:
    net, compiled = pair
    compiled.eval()
    buffer = io.BytesIO()
    torch.save(compiled, buffer)
    buffer.seek(0)
    others = [
        copy.deepcopy(compiled),
        pickle.loads(pickle.dumps(compiled)),
        torch.load(buffer, weights_only=False),
    ]
    for other in others:
        assert isinstance(other, CompiledModule) and other.__class__ is Net
        assert other.head.weight is not net.head.weight and other._orig_mod is not net
        torch.testing.assert_close(other(X), net(X))
        with torch.no_grad():
            other.head.weight.zero_()
    assert net.head.weight.abs().sum() > 0
    shallow = copy.copy(compiled)
    assert isinstance(shallow, CompiledModule) and shallow.head is net.head


def test_deepcopy_keeps_sharing_within_a_container(pair: tuple[Net, Any]) -> None:
    net, compiled = copy.deepcopy(pair)
    assert compiled._orig_mod is net


def test_as_submodule(pair: tuple[Net, Any]) -> None:
    net, compiled = pair
    outer = nn.ModuleDict({"inner": compiled})
    assert "inner.head.weight" in outer.state_dict()
    outer.eval()
    assert not net.training


def test_compiling_again_starts_from_the_original(pair: tuple[Net, Any]) -> None:
    net, compiled = pair
    again = graphlift.compile(compiled, backend="eager")
    assert again._orig_mod is net and again is not compiled


def test_class_made_from_type_of_a_compiled_module_is_plain(pair: tuple[Net, Any]) -> None:
    _, compiled = pair
    fresh = type(compiled)(5)
    assert fresh.head.in_features == 5 and fresh(X).shape == (5, 2) and fresh._orig_mod is fresh
    assert type(copy.deepcopy(fresh)) is Net


def test_class_changes_are_followed() -> None:
    import torch.nn.utils.parametrize as parametrize

    class Double(nn.Module):
        def forward(self, w: torch.Tensor) -> torch.Tensor:
            return w * 2

    for through_compiled in (False, True):
        net = nn.Linear(3, 2)
        compiled = graphlift.compile(net, backend="eager")
        expected = net.weight.detach() * 2
        parametrize.register_parametrization(compiled if through_compiled else net, "weight", Double())
        torch.testing.assert_close(compiled.weight.detach(), expected)
        torch.testing.assert_close(compiled(X), net(X))
    net = nn.Linear(3, 2)
    compiled = graphlift.compile(net, backend="eager")
    compiled.__class__ = Renamed
    assert type(net) is Renamed and compiled.__class__ is Renamed


def test_init_subclass_and_del_run_for_the_original_alone() -> None:
    events: list[str] = []

    class Watched(nn.Module):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            events.append("subclass")
            super().__init_subclass__(**kwargs)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

        def __del__(self) -> None:
            events.append("del")

    compiled = graphlift.compile(Watched(), backend="eager")
    torch.testing.assert_close(compiled(X), X + 1)
    del compiled
    gc.collect()
    assert events == ["del"]


def test_lazy_module_takes_its_final_class() -> None:
    lazy = nn.LazyLinear(4)
    compiled = graphlift.compile(lazy, backend="eager")
    assert compiled(X).shape == (5, 4)
    assert compiled.__class__ is nn.Linear and compiled.weight.shape == (4, 3)
    torch.testing.assert_close(compiled(X), lazy(X))


def test_metaclass_and_class_attributes_are_the_originals() -> None:
    class Meta(type):
        pass

    class Custom(nn.Module, metaclass=Meta):
        limit = 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clamp(max=self.limit)

    compiled = graphlift.compile(Custom(), backend="eager")
    assert compiled.limit == 3
    torch.testing.assert_close(compiled(X * 10), (X * 10).clamp(max=3))
    Custom.limit = 1
    assert compiled.limit == 1
    torch.testing.assert_close(compiled(X * 10), (X * 10).clamp(max=1))


class Slotted(nn.Module):
    __slots__ = ("__hidden", "by")

    def __init__(self, by: int = 1) -> None:
        super().__init__()
        self.by = by
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.by += 1
        return self.linear(x) * self.by

    def hide(self, value: int) -> None:
        self.__hidden = value

    def hidden(self) -> int:
        return self.__hidden


class MoreSlots(Slotted):
    __slots__ = ("more",)


@pytest.mark.parametrize("cls", [Slotted, MoreSlots])
def test_slots_are_shared(cls: type[Slotted]) -> None:
    module = cls()
    compiled = graphlift.compile(module, backend="eager")
    torch.testing.assert_close(compiled(X), module.linear(X) * 2)
    torch.testing.assert_close(compiled.forward(X), module.linear(X) * 3)
    compiled.by = 10
    assert module.by == 10
    torch.testing.assert_close(compiled(X), module.linear(X) * 11)
    module.hide(4)
    assert compiled.hidden() == 4 and compiled._orig_mod is module and isinstance(compiled, cls)
    del compiled.by
    for each in (module, compiled):
        with pytest.raises(AttributeError, match="object has no attribute 'by'"):
            each.by  # noqa: B018
    module.by = 1
    copied = copy.deepcopy(compiled)
    assert hasattr(copied, "by") == hasattr(copy.deepcopy(module), "by")
    plain = type(compiled)(5)
    torch.testing.assert_close(plain(X), plain.linear(X) * 6)
    assert list(compiled.state_dict()) == list(module.state_dict())


def test_module_with_slots_cannot_change_its_class() -> None:
    class Other(Slotted):
        pass

    module = Slotted()
    compiled = graphlift.compile(module, backend="eager")
    with pytest.raises(NotBuilt, match="compile the module after its class has changed"):
        compiled.__class__ = Other


def test_forward_may_be_wrapped_in_place(pair: tuple[Net, Any]) -> None:
    """As accelerate does for autocast: what is assigned to `forward` calls the one that was there."""
    net, compiled = pair
    expected = net(X)
    for seam in (compiled, net):
        inner = seam.forward
        seam.forward = lambda x, inner=inner: inner(x) + 1
        torch.testing.assert_close(seam(X), expected + 1)
        torch.testing.assert_close(compiled(X), expected + 1)
        del seam.forward
    torch.testing.assert_close(compiled.forward(X), expected)


def test_signature_is_the_originals(pair: tuple[Net, Any]) -> None:
    import inspect

    net, compiled = pair
    assert inspect.signature(compiled.forward) == inspect.signature(net.forward)
    assert inspect.signature(compiled) == inspect.signature(net)


def test_dropping_a_compiled_module_frees_it() -> None:
    net = Net()
    compiled = graphlift.compile(net, backend="eager")
    compiled(X)
    parameter, module = weakref.ref(net.head.weight), weakref.ref(net)
    del net, compiled
    gc.collect()
    assert parameter() is None and module() is None


def test_two_instances_do_not_share_entries() -> None:
    a, b = Net(4), Net(6)
    ca, cb = graphlift.compile(a, backend="eager"), graphlift.compile(b, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(ca.eval()(X), a(X))
        torch.testing.assert_close(cb.eval()(X), b(X))


def test_disabled_module_shares_and_runs() -> None:
    net = Net().eval()
    off = graphlift.disable(net)
    assert list(off.state_dict()) == list(net.state_dict())
    torch.testing.assert_close(off(X), net(X))
    assert isinstance(copy.deepcopy(off), CompiledModule)
