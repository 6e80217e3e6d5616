"""Identity, keys, odd containers and values: what is easily confused is kept apart."""

from __future__ import annotations

import collections
import decimal
import fractions
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import graphlift
from tests.capture.program import program
from tests.equality import assert_equal


class Key:
    pass


class Text(str):
    def shout(self):
        return self.upper() + "!"


class Number(int):
    def half(self):
        return self // 2


class Noisy(list):
    def append(self, item):
        super().append(("noisy", item))


KEYS = [Key(), Key()]


@program(lambda: {KEYS[0]: 1, KEYS[1]: 2})
def test_objects_as_keys(x: Tensor, table: dict):
    total = 0
    for key in table:
        total += table[key]
    table[KEYS[0]] = 5
    own = {key: i for i, key in enumerate(KEYS)}
    return x + total, table[KEYS[0]], KEYS[1] in table, own[KEYS[1]], Key() in own, len({*KEYS, KEYS[0]})


def test_ids_as_keys(compiler):
    def fn(x, a, b):
        seen = {id(a): "a"}
        return x + 1, seen, id(b) in seen, id(a) == id(b)

    a, b = Key(), Key()
    compiled = compiler.compile(fn, backend="eager")
    for other in (b, a, b):
        _, seen, found, same = compiled(torch.ones(1), a, other)
        assert seen == {id(a): "a"} and found == same == (other is a)


ID_QUESTIONS = {
    "equal": lambda o, ids: (id(o) == ids[0], (id(o),) == (ids[0],), [id(o)] == ids),
    "order": lambda o, ids: (id(o) <= ids[0] <= id(o), max(id(o), ids[0]) == ids[0]),
    "in a list": lambda o, ids: (id(o) in ids, ids.count(id(o)), id(o) in [i for i in ids]),
    "in a set": lambda o, ids: (id(o) in {i for i in ids}, {id(o)} & set(ids) == set(ids)),
    "in a set outside": lambda o, ids: (id(o) in ID_SET, ID_SET - {id(o)} == set()),
    "in a dict outside": lambda o, ids: (id(o) in ID_DICT, ID_DICT.get((id(o), "w")), {**ID_DICT}.get(id(o))),
    "other types": lambda o, ids: (id(o) == "a", id(o) != None, id(o) == id(ids), {id(o): 1}[id(o)]),  # noqa: E711
}
ID_SET = {id(KEYS[0])}
ID_DICT = {(id(KEYS[0]), "w"): 1, id(KEYS[0]): 2}


@pytest.mark.parametrize("question", ID_QUESTIONS)
def test_ids_among_numbers_made_outside(compiler, question):
    ask, ids = ID_QUESTIONS[question], [id(KEYS[0])]

    def fn(x, o):
        return x + 1, ask(o, ids)

    compiled = compiler.compile(fn, backend="eager")
    for key in (*KEYS, *KEYS):
        assert compiled(torch.ones(1), key)[1] == ask(key, ids)


def test_parametrizations_cached_for_a_block(compiler):
    from torch.nn.utils import parametrize

    def made():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        for layer in net:
            nn.utils.parametrizations.spectral_norm(layer)
        return net

    plain, shared = made(), made()
    compiled = compiler.compile(shared, backend="eager")
    for module in (plain, compiled):
        with parametrize.cached():
            for _ in range(3):
                module(torch.ones(1, 4))
    for ours, theirs in zip(shared.buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs)


@program(lambda: collections.OrderedDict(a=1, b=2, c=3))
def test_moved_in_an_ordered_dict(x: Tensor, table):
    table.move_to_end("a")
    return x + 1, list(table), list(table.items()), next(reversed(table))


def test_ordered_dict_in_its_own_order(compiler):
    def fn(x, table):
        return x + list(table.values())[0]

    table = collections.OrderedDict(a=1, b=2)
    compiled = compiler.compile(fn, backend="eager")
    assert compiled(torch.zeros(1), table).item() == 1
    table.move_to_end("a")
    assert compiled(torch.zeros(1), table).item() == 2


@program(lambda: Text("ab"), lambda: Number(7), breaks=True)
def test_subclasses_of_text_and_numbers(x: Tensor, text: Text, number: Number):
    return (
        x + number,
        text.shout(),
        number.half(),
        text + "c",
        number + 1,
        len(text),
        f"{text}",
        type(text) is str,
        text == "ab",
    )


@program(lambda: Noisy([1]), lambda: [0, [1]])
def test_overridden_append(x: Tensor, noisy: Noisy, nested: list):
    noisy.append(2)
    noisy.extend([3])
    nested[1] += [2]
    nested[0] += 1
    nested[1][0] *= 5
    del nested[1][:1]
    return x + len(noisy), noisy, nested


@program(lambda: np.float64(2.5), lambda: np.int64(3), breaks=True)
def test_numpy_scalars(x: Tensor, a, b):
    return x * float(a) + int(b), a * 2, b == 3, a != 1, isinstance(a, float), bool(a)


@program(lambda: np.arange(3.0), breaks=True)
def test_numpy_arrays(x: Tensor, values):
    values[0] = 5
    return x + torch.from_numpy(values), values * 2, len(values), x.numpy() + 1, (values == 5).any()


@program(lambda: decimal.Decimal("1.5"), lambda: fractions.Fraction(1, 2), breaks=True)
def test_c_objects_are_not_guessed(x: Tensor, price, share):
    return (
        x + 1,
        price == decimal.Decimal("1.50"),
        share == 0.5,
        price + 1,
        hash(share) == hash(0.5),
        share in [0.5],
    )


@program(lambda: types.SimpleNamespace(n=1, inner=types.SimpleNamespace(v=[1])))
def test_namespaces(x: Tensor, space):
    space.n += 1
    space.inner.v.append(2)
    space.new = {"x": x + 1}
    return x * space.n, vars(space.inner)["v"], hasattr(space, "gone")


class Registry(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))
        self.layers = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Identity()})
        self.history = []
        self.best = None

    def forward(self, x):
        self.steps += 1
        self.extra = x.mean()
        for name, layer in self.layers.items():
            x = layer(x)
            self.history.append(name)
        if self.best is None or self.training:
            self.best = x.sum()
        names = [n for n, _ in self.named_parameters()]
        return x, len(names), sum(p.numel() for p in self.parameters()), self.steps + 0


def test_module_with_state(compiler):
    torch.manual_seed(0)
    plain = Registry()
    other = Registry()
    other.load_state_dict(plain.state_dict())
    compiled = compiler.compile(other, backend="eager")
    for _ in range(3):
        x = torch.randn(2, 3)
        torch.testing.assert_close(compiled(x), plain(x))
        torch.testing.assert_close(
            (other.steps, other.extra, other.best), (plain.steps, plain.extra, plain.best)
        )
        assert other.history == plain.history


@program(lambda: {3, 1, 2}, lambda: frozenset({"b", "a"}))
def test_set_order(x: Tensor, numbers: set, letters: frozenset):
    return x + 1, list(numbers), list(letters), [n for n in numbers if n > 1], max(letters)


@program(breaks=True)
def test_locals_and_introspection(x: Tensor):
    n = 3
    return x + n, sorted(locals())


def _executed(x: Tensor):
    exec("made = 5")
    return eval("made") + x


@program(breaks=True)
def test_calls_share_the_dictionary_of_the_variables(x: Tensor):
    y = x + 1
    exec("found = 3")
    first = locals()
    seen = []
    for step in range(2):
        seen.append(locals().get("kept"))
        locals()["kept"] = step
    return y, first is locals(), locals()["found"], seen, _executed(y)


@program(lambda: memoryview(b"ab"), lambda: bytearray(b"cd"), breaks=True)
def test_buffers(x: Tensor, view, array):
    array.append(5)
    return x + len(view), bytes(array), view[0]


@program(lambda: iter([1, 2, 3]), breaks=True)
def test_iterators_given(x: Tensor, iterator):
    return x + next(iterator), list(iterator)


@program(lambda: (i for i in range(3)), breaks=True)
def test_generator_given(x: Tensor, generator):
    return x + sum(generator)


@program(lambda: collections.deque([1, 2], maxlen=2), breaks=True)
def test_deque_given(x: Tensor, queue):
    queue.append(3)
    return x + queue[0], list(queue), queue.maxlen


class Doubling(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, (value, value))


@program()
def test_fromkeys(x: Tensor):
    ordered = collections.OrderedDict.fromkeys([1], 2)
    return dict.fromkeys((1, 2), x + 1), Doubling.fromkeys("ab", 3), {}.fromkeys("xy"), ordered


@program(lambda: torch.tensor(2.0), breaks=True)
def test_searches_among_tensors(x: Tensor, y: Tensor):
    items = [y + 1, y, x.sum(), y]
    return (
        items.count(y),
        tuple(items).count(items[2]),
        items.index(y),
        items.index(y, 2),
        x + tuple(items).index(y),
    )


@program(lambda: torch.tensor(2.0), breaks=True)
def test_search_that_finds_no_tensor(x: Tensor, y: Tensor):
    return [y, y + 1].index(y - 1)


def described_dict():
    made = collections.OrderedDict(a=1)
    made.note = [1]
    return made


LOOKED_AT: list[object] = []


class Onlooker:
    """Tells of each attribute that is read, also of those that Python reads itself."""

    def __getattribute__(self, name):
        LOOKED_AT.append(name)
        return object.__getattribute__(self, name)


class Pretender:
    __class__ = Tensor  # type: ignore[assignment]
    n = 3


class TellingKey:
    def __init__(self, v):
        self.v = v

    def __hash__(self):
        LOOKED_AT.append(("hash", self.v))
        return self.v % 2

    def __eq__(self, other):
        LOOKED_AT.append(("equal", self.v, other.v))
        return self.v == other.v


@program(breaks=True)
def test_code_that_tells_of_being_run_runs_as_often_as_in_eager(x: Tensor):
    LOOKED_AT.clear()
    seen, pretender = Onlooker(), Pretender()
    seen.q = x
    graphlift.graph_break()
    table = {TellingKey(1): "a", TellingKey(3): "b", TellingKey(2): "c"}
    found = [table[TellingKey(3)], TellingKey(5) in table, len({TellingKey(1), TellingKey(3)})]
    table[TellingKey(1)] = "d"
    del table[TellingKey(2)]
    return seen.q + 1, found, list(table.values()), isinstance(pretender, Tensor), pretender.n, [*LOOKED_AT]


@program(described_dict, lambda: collections.OrderedDict(b=2))
def test_attributes_of_ordered_dicts(x, described, plain):
    """Unlike a dict it has them, as that of a module's state has."""
    seen = [hasattr(described, "note"), hasattr(plain, "note"), getattr(plain, "other", 0)]
    described.note.append(2)
    described.more = plain
    plain.back = "described"
    made = collections.OrderedDict(plain)
    try:
        made.note = described.note
    except AttributeError:
        seen.append("refused")
    made.pop("b")
    result = [described, plain, made, described.copy()]
    return x + len(made.note), seen, described.more is plain, result, hasattr(result[-1], "note")


@program(described_dict)
def test_attributes_of_ordered_dicts_are_left(x, described):
    made = collections.OrderedDict(a=x)
    made.made = described.note
    described.given = made
    described["given"] = made
    return x * 2


def test_attributes_of_ordered_dicts_are_seen_outside():
    def fn(x, given):
        given.seen = x + 1
        made = collections.OrderedDict(a=given)
        made.note = made
        return made

    given, wanted = described_dict(), described_dict()
    found, made = graphlift.compile(fn, backend="eager")(torch.ones(2), given), fn(torch.ones(2), wanted)
    assert vars(found)["note"] is found and vars(made)["note"] is made and found == {"a": given}
    assert list(vars(given)) == list(vars(wanted)) and torch.equal(given.seen, wanted.seen)


class Asked:
    """Says each time what it is asked."""

    def __init__(self, last: type[Exception] = IndexError, length: int = 3) -> None:
        self.asked: list[object] = []
        self.last, self.length = last, length

    def __len__(self) -> int:
        self.asked.append("length")
        return self.length

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        if index >= 3:
            raise self.last
        return index


ITERATIONS: list[Callable[[Asked], Any]] = [
    lambda s: list(reversed(s)),
    lambda s: tuple(reversed(s)),
    lambda s: list(iter(s)),
    lambda s: [next(it := iter(s)), list(it), list(it)],
    lambda s: [next(it := reversed(s)), tuple(it), [*it]],
    lambda s: reversed(s) is None,
    lambda s: (lambda first, *rest: rest)(*iter(s)),
    lambda s: [(b, a) for a, *b in [s]],
    lambda s: list(map(abs, s)),
]


@pytest.mark.parametrize("last", [IndexError, StopIteration, ValueError])
@pytest.mark.parametrize("length", [3, 5])
@pytest.mark.parametrize("iteration", ITERATIONS)
def test_sequences_are_asked_for_their_length_as_often(compiler, iteration, length, last) -> None:
    def fn(x: Tensor, s: Asked):
        try:
            found = iteration(s)
        except (ValueError, StopIteration) as error:
            found = type(error)
        return x + 1, found

    ours, eager = Asked(last, length), Asked(last, length)
    assert_equal(compiler.compile(fn)(torch.ones(2), ours), fn(torch.ones(2), eager))
    assert ours.asked == eager.asked


class Settings(types.ModuleType):
    """A module whose attributes are those of its class."""

    scale = 1

    @property
    def size(self):
        return self.width * 2

    def __getattr__(self, name):
        if name == "depth":
            return self.width + 1
        raise AttributeError(name)


settings = Settings("settings")
settings.width = 1
plain = types.ModuleType("plain")
plain.width = 1
plain.__getattr__ = lambda name: (name, plain.width)


def read_modules(x: Tensor) -> Any:
    held = settings.scale, settings.size, settings.depth, hasattr(settings, "missing"), plain.other
    return x + settings.size, held, torch.backends.cudnn.benchmark


def test_attributes_that_modules_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """A property comes before what the module holds, what its class holds behind that, and `__getattr__` last."""
    x, compiled = torch.ones(2), graphlift.compile(read_modules, backend="eager", fullgraph=True)
    changes = (
        (settings, "width", 3),
        (Settings, "scale", 5),
        (settings, "scale", 7),
        (plain, "width", 9),
        (torch.backends.cudnn, "benchmark", True),
    )
    assert_equal(compiled(x), read_modules(x))
    # torch's own tests, in the same process, forbid to set flags.
    with torch.backends.__allow_nonbracketed_mutation(), monkeypatch.context() as patch:
        for owner, name, value in changes:
            patch.setattr(owner, name, value)
            assert_equal(compiled(x), read_modules(x))


class Lazy(types.ModuleType):
    """A module that makes its attributes, or refuses to."""

    def __getattr__(self, name: str) -> int:
        ASKED.append(name)
        if name == "six":
            return 6
        raise AttributeError(name) if name == "absent" else RuntimeError(name)


ASKED: list[str] = []
LAZY = Lazy("lazy")


def reads_a_lazy_module(x):
    try:
        refused = LAZY.refused
    except RuntimeError as error:
        refused = len(str(error))
    return x * LAZY.six + getattr(LAZY, "absent", 5) + refused, len(ASKED)


def test_a_module_asks_its_class_once_for_an_attribute() -> None:
    results = []
    for fn in (reads_a_lazy_module, graphlift.compile(reads_a_lazy_module, backend="eager")):
        ASKED.clear()
        results.append((fn(torch.ones(2)), tuple(ASKED)))
    assert_equal(results[1], results[0])
