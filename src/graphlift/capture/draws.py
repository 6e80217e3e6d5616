"""Numbers that the program draws from Python's and numpy's random generators.

In: calls such as `random.uniform(0.8, 1.2)` or `np.random.beta(a, a)`. Out: numbers that only each call knows.
Always: the region draws them before its graph, in the program's order, and the graph takes them as inputs; nothing is
drawn from a generator of the program's while capturing. A decision on such a number is a break, as on one that the graph reads.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from ..data import dataclass
from ..guards import IdIs
from ..shapes.expr import Expr, Range, Real, Relation, SizeLike, Symbol
from .breaks import Break
from .capture import Capture, NotConst
from .graph import GraphBuilder
from .residual import Residual
from .rules import rule
from .trackers import NONE, Args, ConstVar, FloatVar, Kwargs, ObjectVar, SizeVar, Tracker

_FLOATS = "random uniform triangular betavariate expovariate gammavariate gauss normalvariate vonmisesvariate"
_NUMPY_FLOATS = (
    "rand random random_sample uniform triangular beta exponential gamma normal randn standard_normal lognormal "
    "standard_gamma laplace logistic gumbel chisquare pareto weibull vonmises rayleigh"
)


def _until_given(low: Any, high: Any = None) -> tuple[Any, Any]:
    """Bounds as `range` and numpy take them."""
    return (0, low - 1) if high is None else (low, high - 1)


#: Between which integers a draw is, of its arguments.
_INTEGERS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "randint": lambda a, b: (a, b),
    "randrange": _until_given,
    "getrandbits": lambda k: (0, (1 << k) - 1),
    "choice": lambda seq: (min(seq), max(seq)),
}
#: Those whose arguments may vary: they raise for no others than their bounds say.
_OF_VARYING = frozenset(("uniform", "gauss", "randint", "randrange"))
_LARGEST = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """``fn(generator, *args, **kwargs)``, and what the number is called in the replacement (nothing: a seed is set)."""

    name: str
    fn: Any
    generator: ObjectVar
    args: tuple[Tracker, ...]
    kwargs: dict[str, Tracker]

    def line(self, residual: Residual) -> str:
        named = [f"{name}={residual.expr(arg)}" for name, arg in self.kwargs.items()]
        given = ", ".join([residual.expr(arg) for arg in (self.generator, *self.args)] + named)
        return f"{self.name or '_'} = {residual.constant(self.fn)}({given})"


def saved_states(residual: Residual) -> list[str]:
    """Expressions for (setter, argument) that put back the generators which the region draws from."""
    generators = {id(draw.generator): draw.generator for draw in residual.cap.draws.values()}
    states = []
    for generator in generators.values():
        put, get = _STATES[generator.cls]
        loaded = residual.expr(generator)
        states.append(f"({residual.constant(put)}, ({loaded}, {residual.constant(get)}({loaded})))")
    return states


#: How the state of a generator is put back, and read.
_STATES: dict[type, tuple[Any, Any]] = {
    random.Random: (random.Random.setstate, random.Random.getstate),
    np.random.RandomState: (np.random.RandomState.set_state, np.random.RandomState.get_state),
}


def draw(cap: Capture, fn: Any, args: Args, kwargs: Kwargs, largest: int = 0) -> Tracker:
    """``fn(*args, **kwargs)``, where ``fn`` is a method of a generator, the first argument."""
    name = fn.__name__
    generator = _generator(cap, name, args)
    if cap.policy is None or not cap.policy.allowed:
        raise Break(
            "c-function",
            f"{name}() of a random generator, for a backend of sizes that are numbers",
            at_once=True,
        )
    varies = name in _OF_VARYING and generator.cls is random.Random and not kwargs
    given = [_known_before(cap, arg, varies) for arg in args[1:]]
    named = {key: _known_before(cap, arg, False) for key, arg in kwargs.items()}
    values = [cap.sizes.reals.value(_number(a)) for a in given]
    sample = _sample(generator.cls, name, values, {key: _number(arg) for key, arg in named.items()})
    number = len(cap.draws)
    key, text = ("drawn", number), f"{name}_{number}"
    result: FloatVar | SizeVar
    if type(sample) is float and (name != "choice" or _all_are(float, values[0])):
        result = FloatVar(cap.sizes.reals.unknown(key, text))
    elif type(sample) is int and name in _INTEGERS and not kwargs:
        result = SizeVar(_integer(cap, generator.cls, name, [_number(a) for a in given], key, text))
    else:
        raise Break("c-function", f"{name}() of a random generator with these arguments", at_once=True)
    cap.fake_mode.sizes = cap.sizes
    cap.draws[_number(result)] = Draw(f"r{number}", fn, generator, tuple(given), named)
    return result


def _generator(cap: Capture, name: str, args: Args) -> ObjectVar:
    """The first argument: a generator of the program's that is there before the graph. Raises: Break."""
    generator = cap.realize(args[0]) if args else None
    if (
        type(generator) is not ObjectVar
        or generator.cls not in _STATES
        or generator.source is None
        or type(cap.builder) is not GraphBuilder
        or cap.in_cached
    ):
        raise Break("c-function", f"{name}() of a random generator here", at_once=True)
    return generator


def seed(cap: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Tracker:
    """``generator.seed(n)``: what is drawn before and after it is drawn in this order."""
    generator = _generator(cap, "seed", args)
    given = _known_before(cap, args[1], False) if len(args) == 2 and not kwargs else NONE
    if type(_number(given)) is not int:
        raise Break(
            "c-function", "seed() of a random generator with something other than an integer", at_once=True
        )
    if _sample(generator.cls, "seed", [_number(given)], {}) is _FAILED:
        raise Break("c-function", "seed() of a random generator, which raises", at_once=True)
    cap.draws[object()] = Draw("", fn, generator, (given,), {})
    return NONE


def _known_before(cap: Capture, tracker: Tracker, varies: bool) -> Tracker:
    """An argument whose value is known before the graph runs. Raises: Break."""
    tracker = cap.realize(tracker)
    if varies and type(tracker) in (FloatVar, SizeVar):
        number = _number(tracker)
        if cap.sizes.reals.symbols(number) and not cap.sizes.is_unknown(number):
            return tracker
    try:
        return ConstVar(cap.value_of(tracker))
    except NotConst:
        raise Break(
            "c-function", "a random generator with an argument that is not constant", at_once=True
        ) from None


def _number(tracker: Tracker) -> Any:
    if type(tracker) is FloatVar:
        return tracker.real
    return tracker.expr if type(tracker) is SizeVar else tracker.value  # type: ignore[attr-defined]


def _sample(cls: type, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What a generator of ours gives for these arguments; `_FAILED` where it raises, as the program's then does."""
    try:
        return getattr(cls(0), name)(*args, **kwargs)
    except Exception:
        return _FAILED


_FAILED = object()


def _all_are(kind: type, items: Any) -> bool:
    return all(type(item) is kind for item in items)


def _integer(cap: Capture, cls: type, name: str, args: list[Any], key: Any, text: str) -> Symbol:
    """The symbol of an integer between its bounds. Raises: Break where these are not known."""
    bounds = _until_given if cls is np.random.RandomState else _INTEGERS[name]
    if name == "choice" and not _all_are(int, args[0]) or len(args) > 2:
        raise Break("c-function", f"{name}() of a random generator with these arguments", at_once=True)
    low, high = bounds(*args)
    if not (_is_whole(low) and _is_whole(high)) or not cap.sizes.decide(Relation("<=", low, high)):
        raise Break("c-function", f"{name}() of a random generator with these arguments", at_once=True)
    symbol = cap.sizes.unknown_size(key, text, Range(_plain(low), _plain(high)))
    cap.sizes.hints[symbol] = (cap.sizes.hint(low) + cap.sizes.hint(high)) // 2
    for relation in (Relation("<=", low, symbol), Relation("<=", symbol, high)):
        if relation.constant is None and cap.sizes.is_true(relation) is None:
            cap.sizes.promise(relation)
    return symbol


def _is_whole(bound: Any) -> bool:
    if isinstance(bound, Expr):
        return not isinstance(bound, Real)
    return type(bound) is int and abs(bound) <= _LARGEST


def _plain(bound: SizeLike) -> int | None:
    return bound if isinstance(bound, int) else None


def _registered(fn: Any) -> None:
    @rule(fn)
    def handler(cap: Capture, args: Args, kwargs: Kwargs) -> Tracker:
        return draw(cap, fn, args, kwargs)


for _name in (*_FLOATS.split(), *_INTEGERS):
    _registered(getattr(random.Random, _name))

rule(random.Random.seed)(lambda cap, args, kwargs: seed(cap, random.Random.seed, args, kwargs))

#: numpy's, by the function's name: they are objects of Cython's.
_OF_NUMPY = frozenset((*_NUMPY_FLOATS.split(), "randint", "seed"))


def draw_of_numpy(cap: Capture, fn: ObjectVar, args: Args, kwargs: Kwargs) -> Tracker | None:
    """A method of numpy's global generator, or of another RandomState; None for other functions."""
    name = getattr(fn.obj, "__name__", "")
    if name not in _OF_NUMPY or fn.obj is not vars(np.random.RandomState).get(name) or fn.source is None:
        return None
    cap.guard(IdIs(fn.source, fn.obj))
    return (seed if name == "seed" else draw)(cap, fn.obj, args, kwargs)
