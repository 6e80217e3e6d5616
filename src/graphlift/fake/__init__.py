"""Fake tensors: metadata without memory.

In: real tensors, through `FakeMode.from_real`. Out: FakeTensors on which torch runs and computes metadata only.
Always: device, strides, aliasing, autograd state and errors are eager's.
"""

from .errors import DataDependent, FakeLimit, Unsupported
from .mode import FakeMode, is_view_of_leaf, refuses_history
from .ops import quieted
from .spec import FakeStorage, Spec
from .tensor import FakeTensor, value_of
from .undecorated import keep_dynamo_out

__all__ = [
    "DataDependent",
    "FakeLimit",
    "FakeMode",
    "FakeStorage",
    "FakeTensor",
    "Spec",
    "Unsupported",
    "is_view_of_leaf",
    "quieted",
    "refuses_history",
    "value_of",
]

keep_dynamo_out()
