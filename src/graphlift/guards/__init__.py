"""Guards: sources, guard records and their C evaluator.

In: sources and guards recorded by capture. Out: `compile_guards` makes them a `Check` that runs in C.
Always: a check never raises, never runs user code of its own accord and never keeps a tensor alive.
"""

try:
    from graphlift.guards import _guards as _guards  # first, so that a missing build is said plainly
except ImportError as error:
    raise ImportError(
        "graphlift.guards._guards is missing or does not fit this Python; build it with `pip install .`",
        name="graphlift.guards._guards",
    ) from error
from graphlift.guards.compile import Check, compile_guards
from graphlift.guards.guards import (
    ABSENT,
    DictKeys,
    DistinctTensors,
    Equals,
    Follows,
    GlobalState,
    Guard,
    HasKey,
    IdIs,
    Length,
    NoOverlap,
    Predicate,
    SameObject,
    SizeRelation,
    StorageOffset,
    TensorMeta,
    TensorSpec,
    TypeAttr,
    TypeIs,
    constant_key,
)
from graphlift.guards.sources import (
    Arg,
    Attr,
    CellContents,
    ClosureCell,
    Const,
    DictItem,
    DictKey,
    Func,
    InstanceDict,
    Ref,
    SeqItem,
    Slot,
    Source,
    TensorGrad,
    TensorSize,
    TypeOf,
    WeakTarget,
)

__all__ = [
    "ABSENT",
    "Arg",
    "Attr",
    "CellContents",
    "Check",
    "ClosureCell",
    "Const",
    "DictItem",
    "DictKey",
    "DictKeys",
    "DistinctTensors",
    "Equals",
    "Follows",
    "Func",
    "GlobalState",
    "Guard",
    "HasKey",
    "IdIs",
    "InstanceDict",
    "Length",
    "NoOverlap",
    "Predicate",
    "Ref",
    "SameObject",
    "SeqItem",
    "SizeRelation",
    "Slot",
    "Source",
    "StorageOffset",
    "TensorGrad",
    "TensorMeta",
    "TensorSize",
    "TensorSpec",
    "TypeAttr",
    "TypeIs",
    "TypeOf",
    "WeakTarget",
    "compile_guards",
    "constant_key",
]
