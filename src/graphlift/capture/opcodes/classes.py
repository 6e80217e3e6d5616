"""Instructions of the bodies of classes, whose names live in a namespace.

In: the capture, the frame, the instruction's resolved argument. Out: None.
Always: a name is looked up in the namespace, then where a function would look for it.
"""

from __future__ import annotations

import builtins
from typing import Any

from ..breaks import Break
from ..capture import Capture
from ..class_rules import load, store
from ..frame import Frame
from ..protocol import del_item
from ..trackers import ConstVar, DictVar, Tracker
from .names import global_value, load_cell, undefined
from .table import op


def _namespace(frame: Frame) -> Tracker:
    if frame.namespace is None:
        raise Break("unsupported-opcode", "names of a module")
    return frame.namespace


@op("LOAD_BUILD_CLASS")
def _load_build_class(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(ConstVar(builtins.__build_class__))


@op("SETUP_ANNOTATIONS")
def _setup_annotations(cap: Capture, frame: Frame, arg: Any) -> None:
    if load(cap, _namespace(frame), "__annotations__") is None:
        store(cap, _namespace(frame), "__annotations__", DictVar({}))


@op("LOAD_NAME")
def _load_name(cap: Capture, frame: Frame, name: str) -> None:
    found = load(cap, _namespace(frame), name)
    frame.stack.append(global_value(cap, frame, name) if found is None else found)


@op("STORE_NAME")
def _store_name(cap: Capture, frame: Frame, name: str) -> None:
    store(cap, _namespace(frame), name, frame.stack.pop())


@op("DELETE_NAME")
def _delete_name(cap: Capture, frame: Frame, name: str) -> None:
    if load(cap, _namespace(frame), name) is None:
        raise undefined(cap, name)
    if type(frame.namespace) is ConstVar:
        raise Break("class-definition", "an enumeration that deletes a name")
    del_item(cap, _namespace(frame), ConstVar(name))


def _load_or_cell(cap: Capture, frame: Frame, namespace: Tracker, name: str) -> None:
    found = load(cap, namespace, name)
    frame.stack.append(load_cell(cap, frame, name) if found is None else found)


@op("LOAD_CLASSDEREF")
def _load_classderef(cap: Capture, frame: Frame, name: str) -> None:
    _load_or_cell(cap, frame, _namespace(frame), name)


@op("LOAD_LOCALS")
def _load_locals(cap: Capture, frame: Frame, arg: Any) -> None:
    frame.stack.append(_namespace(frame))


@op("LOAD_FROM_DICT_OR_DEREF")
def _load_from_dict_or_deref(cap: Capture, frame: Frame, name: str) -> None:
    _load_or_cell(cap, frame, frame.stack.pop(), name)


@op("LOAD_FROM_DICT_OR_GLOBALS")
def _load_from_dict_or_globals(cap: Capture, frame: Frame, name: str) -> None:
    found = load(cap, frame.stack.pop(), name)
    frame.stack.append(global_value(cap, frame, name) if found is None else found)
