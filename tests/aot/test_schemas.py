"""Every operator of ATen that writes an argument has a way through functionalization, found from its schema alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from graphlift.fake.mode import AS_VIEW
from graphlift.fake.ops import Kind, functional_form, op_info
from graphlift.fake.outs import OWN_RULES

# Metadata operators that are no view of their own tensor: resized or rebound memory, which stays eager where it shows.
RESIZING = frozenset(
    "aten::" + n
    for n in (
        "resize_ resize_as_ resize_as_sparse_ resize sparse_resize_ sparse_resize_and_clear_ set_ set_data "
        "_resize_output_ detach_ _coalesced_ copy_sparse_to_sparse_ swapaxes_ swapdims_"
    ).split()
)


def mutable_operators() -> list[Any]:
    """Those of the dispatcher; TorchScript has more, on lists and dictionaries."""
    dispatched = set(torch._C._dispatch_get_all_op_names())
    found = []
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::") or not schema.is_mutable:
            continue
        packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"), None)
        name = schema.overload_name or "default"
        if packet is not None and name in packet.overloads():
            func = getattr(packet, name)
            if func.name() in dispatched:
                found.append(func)
    return found


def way(func: Any) -> str:
    """How the recorder treats an operator that writes."""
    info = op_info(func)
    if func in OWN_RULES:
        return "eager: an output written by rules of its own"
    if info.kind is Kind.COMPOSITE:
        return "decomposed into other operators"
    if info.kind is Kind.VALUES:
        return "break: needs values"
    if info.kind is Kind.METADATA:
        if func in AS_VIEW:
            return "view step in place"
        return "resized or rebound memory" if info.name.partition(".")[0] in RESIZING else "unknown"
    if info.kind in (Kind.INPLACE, Kind.WRITES):
        return "functional overload" if functional_form(func) is not None else "its own kernel on copies"
    return "unknown"


def test_every_writing_operator_has_a_way() -> None:
    ways = {func: way(func) for func in mutable_operators()}
    counts = Counter(ways.values())
    print(dict(counts))
    assert not [func.name() for func, how in ways.items() if how == "unknown"]
    assert counts["functional overload"] > 1000


def test_functional_forms_take_the_same_arguments() -> None:
    for func in mutable_operators():
        form = functional_form(func)
        if form is None or op_info(func).random:
            continue
        wanted = [(a.name, str(a.type)) for a in func._schema.arguments if not a.is_out]
        assert [(a.name, str(a.type)) for a in form._schema.arguments] == wanted, func.name()
        assert not form._schema.is_mutable, func.name()
