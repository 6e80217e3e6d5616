"""Metadata of operators on tensors whose sizes are symbolic.

In: an operator and its arguments, with sizes of one table. Out: what `mode.py` computes, in the table's symbols.
Always: the operator's own kernel has answered for the sizes of this call and for other ones, and the symbolic answer
agrees with both; where there is no rule, or they differ, the sizes involved are fixed instead (raises Solved).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _pop_mode_temporarily

from ..shapes.expr import (
    Expr,
    Real,
    Relation,
    SizeLike,
    SizeUnknown,
    Symbol,
    contiguous_strides,
    evaluate,
    free,
)
from ..shapes.node import expr_of, to_symint
from ..shapes.table import SymbolTable
from . import layer_size_rules, matrix_size_rules  # noqa: F401  which fill the table of rules
from .ops import quietly
from .size_rules import FIXED, rule_of
from .spec import FakeStorage, Spec, make_spec
from .tensor import FakeTensor, fakes_in, new_fake
from .view_rules import REQUIREMENTS, VIEWS, Layout

if TYPE_CHECKING:
    from .mode import FakeMode
    from .ops import OpInfo

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class NoRule(Exception):
    """The operator's metadata cannot be said in symbols here; the text says why."""


class Elsewhere(NoRule):
    """The operator refuses other sizes: those that are equal in this call may have to be."""


# -- sizes in arguments ----------------------------------------------------------------------------------------


def plain_sizes(a: Any) -> Any:
    """Nested arguments with torch's symbolic numbers as sizes of ours."""
    cls = type(a)
    if cls in _SYMBOLIC:
        if cls is torch.SymInt:
            return expr_of(a)
        return a.node.value if cls is torch.SymFloat else bool(a)
    if cls is list or cls is tuple:
        return cls([plain_sizes(v) for v in a])
    if cls is torch.Size:
        return tuple([plain_sizes(v) for v in a])
    if cls is dict:
        return {k: plain_sizes(v) for k, v in a.items()}
    return a


def torch_sizes(a: Any, table: SymbolTable) -> Any:
    """The reverse: sizes of ours as torch takes them."""
    cls = type(a)
    if isinstance(a, Expr):
        return to_symint(a, table)
    if cls is list or cls is tuple:
        return cls([torch_sizes(v, table) for v in a])
    if cls is dict:
        return {k: torch_sizes(v, table) for k, v in a.items()}
    return a


def involved(a: Any, into: list[SizeLike]) -> list[SizeLike]:
    """The symbolic sizes in nested arguments, those of tensors included."""
    cls = type(a)
    if cls is FakeTensor:
        if a.spec.symbolic:
            into += [n for n in (*a.spec.shape, *a.spec.stride, a.spec.offset) if isinstance(n, Expr)]
    elif cls is list or cls is tuple:
        for v in a:
            involved(v, into)
    elif cls is dict:
        involved(tuple(a.values()), into)
    elif isinstance(a, Expr):
        into.append(a)
    return into


#: What C++ code says that reads the sizes of tensors as numbers, and that takes an argument as a number only.
_READS_NUMBERS = "on tensor with symbolic sizes/strides"
_TAKES_NUMBERS = ("contain only concrete integers", "but instead found type 'Sym")


def needed_as_numbers(error: Exception, a: Any) -> list[SizeLike]:
    """The symbolic sizes in the arguments ``a`` that an operator, by its ``error``, needs as numbers."""
    text = str(error)
    if _READS_NUMBERS in text:
        return involved(plain_sizes(a), [])
    if any(said in text for said in _TAKES_NUMBERS):
        numbers = involved(pytree.tree_map_only(torch.Tensor, lambda _: None, plain_sizes(a)), [])
        return numbers or involved(plain_sizes(a), [])
    return []


def is_symbolic(args: tuple, kwargs: dict) -> bool:
    return bool(involved(args, []) or (kwargs and involved(kwargs, [])))


# -- specs -----------------------------------------------------------------------------------------------------


def spec_at(spec: Spec, env: Mapping[Symbol, int]) -> Spec:
    """The metadata where the symbols have these values."""
    if not spec.symbolic:
        return spec
    return make_spec(
        tuple([evaluate(n, env) for n in spec.shape]),
        tuple([evaluate(n, env) for n in spec.stride]),
        evaluate(spec.offset, env),
        spec.dtype,
        spec.device,
        spec.layout,
        spec.conj,
        spec.neg,
    )


def strides_of(
    table: SymbolTable, sizes: Sequence[SizeLike], found: Sequence[int]
) -> tuple[tuple[SizeLike, ...], tuple[int | None, ...]]:
    """A tensor's strides in symbols, as far as its dimensions follow one another without gaps.

    Beside them, for each stride that is symbolic, the dimension that it follows: the stride is that one's size times
    its stride.
    """
    strides: list[SizeLike] = list(found)
    follows: list[int | None] = [None] * len(sizes)
    expected: SizeLike = 1
    last: int | None = None
    order = sorted(range(len(sizes)), key=lambda d: (found[d], table.hint(sizes[d]) != 1, -d))
    for d in order:
        if not isinstance(expected, int) and found[d] == table.hint(expected):
            strides[d], follows[d] = expected, last
        if sizes[d] != 1:
            expected, last = strides[d] * sizes[d], d
    return tuple(strides), tuple(follows)


class _Concrete:
    """Arguments as they are for certain values of the symbols; tensors on one storage stay on one storage.

    `shared`: tensors by their metadata, for operators to which storages mean nothing.
    """

    def __init__(
        self, mode: FakeMode, env: Mapping[Symbol, int], shared: dict[Spec, FakeTensor] | None = None
    ) -> None:
        self.mode = mode
        self.env = env
        self.shared = shared
        self.homes: dict[int, FakeStorage] = {}
        self.fakes: dict[int, FakeTensor] = {}

    def of(self, a: Any) -> Any:
        cls = type(a)
        if cls is FakeTensor and self.shared is not None and a.home.constant is None:
            found = self.shared.get(a.spec)
            if found is None:
                found = self.shared[a.spec] = self._fake(a)
            return found
        if cls is FakeTensor:
            found = self.fakes.get(id(a))
            if found is None:
                found = self.fakes[id(a)] = self._fake(a)
            return found
        if cls is list or cls is tuple:
            return cls([self.of(v) for v in a])
        if cls is dict:
            return {k: self.of(v) for k, v in a.items()}
        if isinstance(a, Real):
            return self.real(a)
        return evaluate(a, self.env) if isinstance(a, Expr) else a

    def real(self, a: Real) -> float:
        """The float in this call, or another one."""
        table = self.mode.sizes
        assert table is not None
        value = table.reals.values[a]
        return value if self.env is table.hints else 0.75 * value or 0.125

    def _fake(self, a: FakeTensor) -> FakeTensor:
        home = self.homes.get(id(a.home))
        if home is None:
            home = self.homes[id(a.home)] = FakeStorage(evaluate(a.home.nbytes, self.env))
            home.constant = a.home.constant
        return new_fake(self.mode, spec_at(a.spec, self.env), home)


def at_hints(mode: FakeMode, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments as they are in this call."""
    table = mode.sizes
    assert table is not None
    concrete = _Concrete(plain_mode(table), table.hints)
    return concrete.of(args), concrete.of(kwargs)


def plain_mode(table: SymbolTable) -> FakeMode:
    """The mode that owns fakes of one table outside of any capture."""
    found = table.recipes.get("mode")
    if found is None:
        from .mode import FakeMode

        found = table.recipes["mode"] = FakeMode(table)
    return found  # type: ignore[return-value]


# -- recipes ---------------------------------------------------------------------------------------------------


def recipe(
    mode: FakeMode,
    info: OpInfo,
    key: tuple | None,
    args: tuple,
    kwargs: dict,
    concrete: Callable[[OpInfo, tuple, dict], Any],
) -> Any:
    """The operator's recipe; `concrete` computes it for arguments without symbols."""
    return _once(mode, key, lambda table: _checked(table, info, args, kwargs, concrete, key is not None))


def _once(mode: FakeMode, key: tuple | None, make: Callable[[SymbolTable], Any]) -> Any:
    """What ``make`` gives, which is kept where there is a key."""
    table = mode.sizes
    assert table is not None
    found = table.recipes.get(key) if key is not None else None
    if found is None:
        found = make(table)
        if key is not None:
            table.recipes[key] = found
    return found


def _checked(
    table: SymbolTable,
    info: OpInfo,
    args: tuple,
    kwargs: dict,
    concrete: Callable[[OpInfo, tuple, dict], Any],
    shared: bool,
) -> Any:
    for relation in REQUIREMENTS.get(info.func, _nothing)(args, kwargs):
        table.require(relation)
    now = _answer(table, table.hints, info, args, kwargs, concrete, shared)
    try:
        varying = involved((args, kwargs), [])
        reals_only = all(isinstance(size, Real) for size in varying)
        found = now if reals_only else _symbolic(table, info, args, kwargs, now)

        def check(other: Mapping[Symbol, int]) -> None:
            there = _answer_elsewhere(table, other, info, args, kwargs, concrete, shared)
            if not _agree(found, there, other):
                raise NoRule("gives another layout for other sizes")

        check_elsewhere(table, info, args, kwargs, {} if reals_only else table.witness(), check)
        return found
    except NoRule as why:
        fix(table, info, args, kwargs, str(why))
        raise AssertionError("unreachable: some size was involved") from why


def _nothing(args: tuple, kwargs: dict) -> list[Relation]:
    return []


def check_elsewhere(
    table: SymbolTable,
    info: OpInfo,
    args: tuple,
    kwargs: dict,
    other: Mapping[Symbol, int] | None,
    check: Callable[[Mapping[Symbol, int]], None],
) -> None:
    """``check`` the operator for other sizes. Raises: NoRule; or Solved, with the one fixed that has to stay as it is,
    or with those made one that are equal in this call."""
    if other is None:
        return
    try:
        check(other)
    except NoRule as why:
        sizes = involved((args, kwargs), [])
        varying = {s for size in sizes for s in free(size) if not isinstance(s, Real)}
        symbols = sorted(varying, key=lambda s: s.name)
        for symbol in symbols if len(symbols) > 1 else ():
            without = table.witness(symbol)
            if without is not None:
                with suppress(NoRule):
                    check(without)
                    table.fix([symbol], f"{info.name} {why}")
        if isinstance(why, Elsewhere):
            table.merge(sizes, f"{info.name} {why}")
        raise


def fix(table: SymbolTable, info: OpInfo, args: tuple, kwargs: dict, why: str, failing: bool = False) -> None:
    """Gives up the sizes that the operator sees. Raises: Solved."""
    table.fix(involved((args, kwargs), []), f"{info.name} {why}", failing)


def _at(table: SymbolTable, env: Mapping[Symbol, int], shared: bool) -> _Concrete:
    if not shared:
        return _Concrete(plain_mode(table), env)
    held: Any = table.recipes.get(id(env))
    if held is None or held[0] is not env:
        held = table.recipes[id(env)] = (env, {})
    return _Concrete(plain_mode(table), env, held[1])


def _answer(
    table: SymbolTable,
    env: Mapping[Symbol, int],
    info: OpInfo,
    args: tuple,
    kwargs: dict,
    concrete: Any,
    shared: bool = False,
) -> Any:
    """The answer in this call; an error of eager's holds for this call's sizes only."""
    at = _at(table, env, shared)
    try:
        return concrete(info, at.of(args), at.of(kwargs))
    except Exception as error:
        fix(table, info, args, kwargs, f"raises {type(error).__name__} for these sizes", failing=True)
        raise


def _answer_elsewhere(
    table: SymbolTable,
    env: Mapping[Symbol, int],
    info: OpInfo,
    args: tuple,
    kwargs: dict,
    concrete: Any,
    shared: bool = False,
) -> Any:
    at = _at(table, env, shared)
    try:
        return concrete(info, at.of(args), at.of(kwargs))
    except Exception as error:
        raise Elsewhere(f"raises {type(error).__name__} for other sizes: {error}") from error


def _symbolic(table: SymbolTable, info: OpInfo, args: tuple, kwargs: dict, now: Any) -> Any:
    rule = VIEWS.get(info.func) or rule_of(info.func) or _library_rule(info.func)
    if rule is None:
        raise NoRule("has no symbolic rule")
    try:
        sizes = rule(table, args, kwargs)
    except SizeUnknown as why:
        raise NoRule(f"has a rule for numbers only: {why}") from why
    if sizes is None:
        raise NoRule("has no symbolic rule for these arguments")
    return _combined(table, sizes, now)


def _library_rule(func: Any) -> Callable[..., Any] | None:
    """The fake implementation that a custom operator's library registered, run on fakes whose sizes are symbols."""
    entry = torch._library.simple_registry.singleton._data.get(func.name())
    if entry is None or entry.fake_impl.kernel is None:
        return None

    def rule(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
        try:
            with plain_mode(table):
                made = entry.fake_impl.kernel(*torch_sizes(args, table), **torch_sizes(kwargs, table))
        except Exception as error:
            text = f"has a fake implementation that refuses sizes in symbols: {type(error).__name__}: {error}"
            raise NoRule(text) from error
        return _layouts(made)

    return rule


def _layouts(made: Any) -> Any:
    if type(made) in (tuple, list):
        return type(made)(map(_layouts, made))
    return Layout(made.spec.shape, made.spec.stride, made.spec.offset) if type(made) is FakeTensor else None


def _combined(table: SymbolTable, sizes: Any, now: Any) -> Any:
    """The recipe `now` with the sizes that a rule gave."""
    if type(now) in (tuple, list):
        if type(sizes) not in (tuple, list) or len(sizes) != len(now):
            raise NoRule("has another number of results than its rule says")
        return type(now)([_combined(table, s, n) for s, n in zip(sizes, now, strict=True)])
    if type(now) is not Spec or sizes == FIXED:
        return now
    if sizes is None:
        raise NoRule("has a result that its rule leaves out")
    if type(sizes) is Layout:
        shape = tuple([table.settle(n) for n in sizes.shape])
        found = _like(now, shape, sizes.stride, sizes.offset)
    else:
        shape = tuple([table.settle(n) for n in sizes])
        found = _like(now, shape, _strides(table, shape, now), now.offset)
    if spec_at(found, table.hints) is not now:
        raise NoRule("gives another layout than its rule says")
    return found


def _like(spec: Spec, shape: Any, stride: Any, offset: SizeLike) -> Spec:
    return make_spec(
        tuple(shape), tuple(stride), offset, spec.dtype, spec.device, spec.layout, spec.conj, spec.neg
    )


def _strides(table: SymbolTable, shape: tuple[SizeLike, ...], now: Spec) -> tuple[SizeLike, ...]:
    """The strides of a dense result: dimensions in the order that they have in this call."""
    if len(shape) != len(now.shape):
        raise NoRule("has another rank than its rule says")
    straight = contiguous_strides(shape)
    if tuple([table.hint(n) for n in straight]) == now.stride:
        return straight
    strides: list[SizeLike] = list(now.stride)
    expected: SizeLike = 1
    order = sorted(range(len(shape)), key=lambda d: (now.stride[d], now.shape[d] != 1, -d))
    for d in order:
        if now.stride[d] == table.hint(expected):
            strides[d] = expected
        if shape[d] != 1:
            expected = expected * shape[d]
    return tuple(strides)


def _agree(found: Any, there: Any, env: Mapping[Symbol, int]) -> bool:
    if type(found) in (tuple, list):
        return len(found) == len(there) and all(_agree(f, t, env) for f, t in zip(found, there, strict=True))
    if type(found) is Spec:
        return type(there) is Spec and spec_at(found, env) is there
    return type(found) is type(there) and getattr(found, "value", None) == getattr(there, "value", None)


# -- composite functions that read sizes as plain numbers -----------------------------------------------------------


def as_one_operator(
    function: Callable[..., Sequence[Tensor]], args: tuple, shapes: Sequence[Sequence[Any]]
) -> tuple[FakeTensor, ...]:
    """What the function gives, in symbols: results of these shapes, laid out as its own kernels do.

    A graph ends before it and after it. Raises: what it raises in this call.
    """
    given = fakes_in(args, [])
    mode = given[0].owner
    table = mode.sizes
    assert table is not None
    now = _run_at(table, table.hints, function, args)
    found = []
    for spec, sizes in zip(now, shapes, strict=True):
        shape = tuple([table.settle(n) for n in plain_sizes(sizes)])
        strides = strides_of(table, shape, spec.stride)[0]  # type: ignore[arg-type]  # numbers in this call
        found.append(_like(spec, shape, strides, spec.offset))
    other = table.witness()
    try:
        there = now if other is None else _run_at(table, other, function, args)
    except Exception as error:
        table.merge(involved(args, []), f"{function.__name__} raises for other sizes: {error}")
        there = []
    if [spec_at(spec, table.hints if other is None else other) for spec in found] != there:
        table.fix(involved(args, []), f"{function.__name__} gives another layout for other sizes")
    table.asked += 1
    return _Made.apply(lambda: tuple(mode.wrap(spec) for spec in found), *given)


def _run_at(
    table: SymbolTable, env: Mapping[Symbol, int], function: Callable[..., Any], args: tuple
) -> list[Spec]:
    at = _Concrete(plain_mode(table), env)
    concrete = at.of(args)
    for fake in fakes_in(args, []):
        at.of(fake).requires_grad_(fake.requires_grad)
    with _pop_mode_temporarily(), plain_mode(table):
        return [made.spec for made in quietly(function, concrete, {})]


class _Made(torch.autograd.Function):
    """Results that have a history where one of the tensors that they are made of has one."""

    @staticmethod
    def forward(ctx: Any, make: Callable[[], Any], *given: Tensor) -> Any:
        return make()


# -- operators that write --------------------------------------------------------------------------------------


def check_in_place(
    mode: FakeMode,
    info: OpInfo,
    key: tuple | None,
    args: tuple,
    kwargs: dict,
    concrete: Callable[[OpInfo, tuple, dict], Any],
) -> None:
    """Eager's errors for an in-place operator, and that its other arguments fit whatever the sizes are."""
    homes = [f.home for f in fakes_in((*args, *kwargs.values()), [])]
    if len(set(map(id, homes))) < len(homes):
        key = None  # memory that is shared counts, too
    _once(mode, key, lambda table: _check_in_place(table, info, args, kwargs, concrete))


def _check_in_place(
    table: SymbolTable,
    info: OpInfo,
    args: tuple,
    kwargs: dict,
    concrete: Callable[[OpInfo, tuple, dict], Any],
) -> bool:
    _answer(table, table.hints, info, args, kwargs, concrete)
    rule = rule_of(info.func)
    if rule is not None:
        shape = rule(table, args, kwargs)
        for a, b in zip(shape, args[0].spec.shape, strict=False):
            if a != b:
                table.decide(Relation("==", a, b))

    def check(other: Mapping[Symbol, int]) -> None:
        _answer_elsewhere(table, other, info, args, kwargs, concrete)

    try:
        check_elsewhere(table, info, args, kwargs, table.witness(), check)
    except NoRule as why:
        fix(table, info, args, kwargs, str(why))
    return True
