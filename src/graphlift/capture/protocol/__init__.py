"""The object protocol of Python on trackers: operators, truth, iteration, containment, items, comparison.

In: trackers. Out: trackers (or the program's own exception as `Raised`).
Always: constants are evaluated for real, tensors become graph nodes, everything else follows the special methods.
"""

from .arithmetic import BINARY, INPLACE, UNARY, binary, inplace, unary
from .comparison import COMPARE, compare, is_same, is_same_item, items_equal, truth
from .items import contains, del_item, get_item, key_error, make_slice, mapping_items, set_item
from .iteration import (
    add_to_set,
    change_list,
    change_set,
    evaluate,
    extend_from,
    extend_list,
    gather,
    get_iter,
    has_constants,
    is_iterable,
    iterate,
    length,
    next_item,
    payload_of,
    real_set,
    sequence_items,
    set_keys,
    set_of,
    update_set,
)

__all__ = [
    "BINARY",
    "COMPARE",
    "INPLACE",
    "UNARY",
    "binary",
    "change_list",
    "change_set",
    "update_set",
    "real_set",
    "has_constants",
    "add_to_set",
    "compare",
    "contains",
    "del_item",
    "evaluate",
    "extend_from",
    "extend_list",
    "get_item",
    "gather",
    "get_iter",
    "is_iterable",
    "inplace",
    "is_same",
    "is_same_item",
    "items_equal",
    "iterate",
    "key_error",
    "length",
    "make_slice",
    "mapping_items",
    "next_item",
    "payload_of",
    "sequence_items",
    "set_item",
    "set_keys",
    "set_of",
    "truth",
    "unary",
]
