"""The canonical dialect: every opcode mapped, round trips over the standard library, stack effects."""

from __future__ import annotations

import copy
import dis
import opcode
import sys
from types import CodeType, FunctionType

from graphlift.bytecode import decode, rules
from graphlift.bytecode.dialect import EFFECTS, JUMPS, effect, successors
from graphlift.bytecode.instr import CodeInfo
from graphlift.bytecode.version import TABLE
from tests.bytecode.chain import outcome
from tests.bytecode.reencode import reencode
from tests.bytecode.samples import CASES, MANY
from tests.bytecode.stdlib_codes import stdlib_codes
from tests.bytecode.test_chain import bound_args, in_slot_order

FILES, SEED = 60, 20240611


def test_every_opcode_is_mapped() -> None:
    for name in opcode.opmap:
        if name.startswith("INSTRUMENTED_"):  # co_code shows the instruction underneath
            continue
        assert (name in TABLE.rows) != (name in TABLE.never), f"{name}: exactly one of a row and a reason"
    assert not set(TABLE.rows) - set(opcode.opmap), "a row for an opcode that this version lacks"


def test_specialised_and_instrumented_code_decodes_the_same() -> None:
    def hot(n: int) -> int:
        total = 0
        for i in range(n):
            total += i if i % 2 else len("ab")
        return total

    before = decode(hot.__code__.replace()).instrs
    for _ in range(50):
        hot(20)
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        monitoring.use_tool_id(3, "test")
        monitoring.set_local_events(3, hot.__code__, monitoring.events.LINE | monitoring.events.CALL)
        hot(3)
    assert decode(hot.__code__).instrs == before
    if sys.version_info >= (3, 12):
        sys.monitoring.set_local_events(3, hot.__code__, 0)
        sys.monitoring.free_tool_id(3)


def _same(left: CodeInfo, right: CodeInfo) -> str:
    """Empty, or where two decoded code objects differ (byte offsets apart)."""
    for a, b in zip(left.instrs, right.instrs, strict=False):
        if (a.op, a.line, a.positions, a.handler) != (b.op, b.line, b.positions, b.handler):
            return f"{a} / {b}"
        if type(a.arg) is not type(b.arg) or (a.arg is not b.arg and repr(a.arg) != repr(b.arg)):
            return f"{a} / {b}"
    return "" if len(left.instrs) == len(right.instrs) else "different lengths"


def test_round_trip_over_the_standard_library() -> None:
    count = 0
    for code in stdlib_codes(FILES, SEED):
        difference = _same(decode(code), decode(reencode(code)))
        assert not difference, f"{code.co_filename}:{code.co_qualname}: {difference}"
        count += 1
    assert count > 500


def test_reencoded_functions_run_the_same() -> None:
    many = MANY.many  # type: ignore[attr-defined]
    samples_file = many.__code__.co_filename
    for fn, case in [*CASES, (many, (1, []))]:
        positional, keywords = bound_args(fn, in_slot_order(fn, case))
        again = FunctionType(reencode(fn.__code__), fn.__globals__, fn.__name__, None, fn.__closure__)
        want = outcome(fn, samples_file, *copy.deepcopy(positional), **keywords)
        got = outcome(again, samples_file, *copy.deepcopy(positional), **keywords)
        assert got == want, fn.__name__


def test_canonical_names_match_dis() -> None:
    """Constants, names and variables are those that dis shows at the same offset."""
    kinds = {
        "LOAD_CONST",
        "LOAD_ATTR",
        "STORE_ATTR",
        "LOAD_DEREF",
        "STORE_DEREF",
        "STORE_FAST",
        "STORE_GLOBAL",
    }
    for code in stdlib_codes(15, SEED + 1):
        shown = {i.offset: i for i in dis.get_instructions(code)}
        for at in decode(code).instrs:
            there = shown[at.offset]
            if at.op == there.opname and at.op in kinds:
                assert at.arg is there.argval or at.arg == there.argval, f"{at} / {there}"
            assert at.line == (there.positions.lineno if there.positions else None)


def _own_effect(number: int, arg: int, jumped: bool) -> int:
    takes = number in opcode.hasarg if sys.version_info >= (3, 12) else number >= opcode.HAVE_ARGUMENT
    return dis.stack_effect(number, arg if takes else None, jump=jumped)


def test_effects_match_the_interpreters_own() -> None:
    for code in stdlib_codes(25, SEED + 2):
        info = decode(code)
        for at, unit in zip(info.instrs, info.units, strict=True):
            for jumped in (False, True) if at.op in JUMPS and at.op != "JUMP" else (False,):
                if at.op in ("SEND", "END_ASYNC_FOR", "RETURN_GENERATOR") or (at.op == "FOR_ITER" and jumped):
                    continue  # what dis counts there is for the compiler, not for the interpreter
                if dis.opname[unit[-1].opcode] == "END_FOR":
                    continue  # FOR_ITER's exit goes past it
                own = sum(_own_effect(p.opcode, p.arg, jumped) for p in unit)
                popped, pushed = effect(at.op, at.arg, jumped=jumped)
                assert pushed - popped == own, f"{at}: {pushed} - {popped}, the interpreter has {own}"


def _check_depths(code: CodeType) -> None:
    """Every path gives every instruction the same stack depth, within the frame's room."""
    instrs = decode(code).instrs
    depths = {0: 0}
    todo = [0]

    def reach(index: int, depth: int, source: object) -> None:
        if index not in depths:
            depths[index] = depth
            todo.append(index)
        assert depths[index] == depth, (
            f"{code.co_qualname}: {depths[index]} or {depth} slots at {index} from {source}"
        )

    while todo:
        index = todo.pop()
        at, depth = instrs[index], depths[index]
        room = code.co_stacksize + (sys.version_info >= (3, 12))  # RETURN_CONST needs none, its parts do
        assert 0 <= depth <= room, f"{code.co_qualname}: {depth} slots at {at}"
        if at.handler is not None:
            assert at.handler.depth <= depth, f"{code.co_qualname}: handler below {at}"
            reach(at.handler.target, at.handler.depth + at.handler.push_lasti + 1, at)
        for target, jumped in successors(at.op, at.arg, index):
            popped, pushed = effect(at.op, at.arg, jumped=jumped)
            assert popped <= depth, f"{code.co_qualname}: {at} pops {popped} of {depth}"
            reach(target, depth - popped + pushed, at)


def test_stack_depths_agree_on_every_path() -> None:
    for code in stdlib_codes(FILES, SEED + 3):
        if code.co_flags & (0x20 | 0x80 | 0x200):  # generators: SEND and throw() have paths of their own
            continue
        _check_depths(code)


def test_every_operation_has_an_effect() -> None:
    seen = {at.op for code in stdlib_codes(20, SEED + 4) for at in decode(code).instrs}
    assert seen <= set(EFFECTS), sorted(seen - set(EFFECTS))


def test_jump_targets_are_indices_and_entry_is_after_the_prefix() -> None:
    for code in stdlib_codes(20, SEED + 5):
        info = decode(code)
        for at in info.instrs:
            if at.op in JUMPS:
                assert 0 <= at.arg < len(info.instrs)
        assert {at.op for at in info.instrs[: info.entry]} <= {
            "NOP", "MAKE_CELL", "COPY_FREE_VARS", "RETURN_GENERATOR", "POP_TOP",
        }  # fmt: skip


def test_decode_is_cached_and_holds_no_code() -> None:
    import gc
    import weakref

    code = compile("x = 1", "<t>", "exec")
    assert decode(code) is decode(code)
    gone = weakref.ref(code)
    del code
    gc.collect()
    assert gone() is None


def test_unknown_instruction_is_refused() -> None:
    from graphlift.bytecode import DecodeError

    code = (lambda: None).__code__
    bad = code.replace(co_code=bytes([opcode.opmap["CACHE"], 0]) + code.co_code)
    try:
        decode(bad)
    except DecodeError as error:
        assert "CACHE" in str(error)
    else:
        raise AssertionError("CACHE decoded")
    assert rules.OPMAP
