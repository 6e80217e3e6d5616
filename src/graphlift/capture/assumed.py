"""Branches on tensors of which one side only raises: asserts, and checks that raise what their values deserve.

In: a conditional jump on a tensor whose value is not known, or 3.13's TO_BOOL before one. Out: the side that goes on, and an assertion in the graph.
Always: where the assertion fails, the frame runs again as it is, and raises what the program raises (rerun.py); a graph
after which that is not possible ends before the branch.
"""

from __future__ import annotations

from typing import Any

import torch

from .capture import DIRECT, Capture
from .frame import Frame
from .graph import GraphBuilder
from .protocol import truth
from .trackers import TensorVar, Tracker

#: How many instructions the side that raises may have.
_LONGEST = 100
#: Whether each jumps where the value is true.
_JUMPS = {"POP_JUMP_IF_TRUE": True, "POP_JUMP_IF_FALSE": False}
_ENDS = ("RETURN", "YIELD", "SEND", "JUMP_IF", "POP_JUMP", "FOR_ITER", "RERAISE")


def branch(cap: Capture, frame: Frame, value: Tracker, at: int) -> bool:
    """The truth of what the instruction ``at``, perhaps a conditional jump, would take off the stack."""
    value = cap.realize(value)
    if type(value) is not TensorVar or not _is_unknown(cap, value):
        return truth(cap, value, DIRECT)
    instrs = frame.info.instrs
    jump = instrs[at]
    if jump.op not in _JUMPS:
        return truth(cap, value)
    jump_raises, next_raises = _only_raises(instrs, jump.arg), _only_raises(instrs, at + 1)
    if jump_raises == next_raises:
        return truth(cap, value)
    assumed = _JUMPS[jump.op] == next_raises
    if cap.unsafe is None:
        detail = "truth of a tensor, of which one side raises"
        cap.unsafe = cap.step, cap.user_stack(), "data-dependent-branch", detail
    flag = value if assumed else cap.emit("call_function", torch.logical_not, [value], {}, torch.logical_not)
    cap.emit("call_function", torch._assert_async, [flag], {}, torch._assert_async)
    return assumed


def _is_unknown(cap: Capture, tensor: TensorVar) -> bool:
    from .calls import is_known

    fake = tensor.fake
    one = all(type(size) is int for size in fake.shape) and fake.numel() == 1
    plain = tensor.cls is torch.Tensor and fake.device.type == "cpu" and type(cap.builder) is GraphBuilder
    return one and plain and not cap.is_faking and not is_known(tensor)


def _only_raises(instrs: Any, start: int) -> bool:
    """Whether the instructions from ``start`` on lead nowhere but to a ``raise``."""
    pc = start
    for _ in range(_LONGEST):
        instr = instrs[pc]
        if instr.op == "RAISE_VARARGS":
            return True
        if instr.op == "JUMP" and instr.arg > pc:
            pc = instr.arg
        elif instr.op.startswith(_ENDS) or "JUMP" in instr.op:
            return False
        else:
            pc += 1
    return False
