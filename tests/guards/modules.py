"""The guards that a capture of a whole module tree makes, for tests and for the timing script."""

from __future__ import annotations

from typing import Any

import torch

from graphlift.guards import (
    ABSENT,
    Arg,
    DictItem,
    DictKeys,
    Equals,
    GlobalState,
    Guard,
    HasKey,
    InstanceDict,
    Length,
    Source,
    TensorMeta,
    TensorSpec,
    TypeAttr,
    TypeIs,
)

HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_backward_hooks", "_backward_pre_hooks"),
)


def guard_module(module: torch.nn.Module, source: Source) -> tuple[list[Guard], list[Source]]:
    """Guards on types, hooks, flags, plain attributes and parameters of a tree, and its tensors as the fetch."""
    guards: list[Guard] = []
    fetch: list[Source] = []

    def visit(module: torch.nn.Module, source: Source) -> None:
        table = InstanceDict(source)
        guards.extend([TypeIs(source, type(module)), HasKey(table, "forward", False)])
        guards.extend(Length(DictItem(table, name), 0) for name in HOOKS)
        for name, value in module.__dict__.items():
            if type(value) in (int, float, bool, str):
                guards.append(Equals(DictItem(table, name), value))
        for kind in ("_parameters", "_buffers"):
            for name, value in module.__dict__[kind].items():
                item = DictItem(DictItem(table, kind), name)
                if value is None:
                    guards.append(Equals(item, None))
                else:
                    guards.append(TensorMeta(item, TensorSpec.of(value)))
                    fetch.append(item)
        if isinstance(module, torch.nn.Sequential | torch.nn.ModuleList):
            guards.append(DictKeys(DictItem(table, "_modules"), list(module._modules)))
        for name, child in module._modules.items():
            visit(child, DictItem(DictItem(table, "_modules"), name))

    visit(module, source)
    for cls in dict.fromkeys(type(m) for m in module.modules()):
        guards.append(TypeAttr(cls, "forward", cls.forward))
        guards.append(TypeAttr(cls, "__call__", torch.nn.Module.__call__))
        guards.append(TypeAttr(cls, "__getattribute__", object.__getattribute__))
        guards.append(TypeAttr(cls, "__torch_function__", ABSENT))
    hooks = torch.nn.modules.module
    from graphlift.guards import Const

    globals_ = Const(hooks.__dict__, "torch.nn.modules.module")
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks"):
        guards.append(Length(DictItem(globals_, name), 0))
    guards.append(GlobalState())
    return guards, fetch


def module_check(module: torch.nn.Module) -> Any:
    from tests.guards.checking import Checked

    guards, fetch = guard_module(module, Arg(0, "self"))
    return Checked(guards, fetch, 1, type(module).forward)
