"""Random Python programs over tensors.

In: a seed. Out: `Program`: the source of a self-contained module with classes, helpers, `program` and `CALLS`.
Always: the same seed gives the same program; loops end. Whether a program raises is for eager to say.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from . import corners, grammar

SLOT = re.compile(r"\$((?:to|own|name|new)\.)?([a-zA-Z]+)((?:\|\w+:\w+(?:,\w+:\w+)*)?)")
#: What stands for an expression of a type where nothing else can.
SIMPLEST = {
    "T": "x",
    "S": "x.sum()",
    "int": "1",
    "float": "0.5",
    "bool": "True",
    "str": "'a'",
    "list": "[x]",
    "ints": "[1, 2]",
    "dict": "{'a': x}",
    "strs": "{}",
    "tup": "(x, 1)",
    "set": "{1}",
    "obj": "OBJ",
    "fn": "helper",
    "gen": "iter([x])",
    "flagged": "flag",
    "small": "2",
    "lit": "3",
    "any": "None",
}
PARAMETERS = {
    "x": "T",
    "y": "T",
    "n": "int",
    "flag": "bool",
    "items": "list",
    "ints": "ints",
    "d": "dict",
    "obj": "obj",
    "s": "str",
}


#: How often a program has a feature at all.
FLAGS = {
    "break": 0.7,
    "inplace": 0.4,
    "rng": 0.2,
    "grad": 0.3,
    "risky": 0.3,
    "rows": 0.2,
    **dict.fromkeys("net dia gen dictiter keys".split(), 0.25),
    "set": 0.35,
    **dict.fromkeys("del dtype auto weak meta made".split(), 0.12),
    **dict.fromkeys(
        "add getitem setitem call len iter eq bool lt contains enter iadd getattr setattr".split(), 0.3
    ),
}
PREFIX = {
    "list": "li",
    "ints": "is",
    "dict": "di",
    "str": "st",
    "set": "se",
    "tup": "tu",
    "obj": "ob",
    "fn": "fn",
}
GLOBAL_NAMES = {"OBJ": "obj", "KEPT": "kept", "helper": "fn"}
ABOUT_OBJECTS = re.compile(r"obj|\$class|recurse")
#: Special methods with random bodies: signature, type of the result, names of the parameters.
DUNDERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "add": ("__add__(self, other)", "T", {}),
    "getitem": ("__getitem__(self, index)", "T", {"index": "int"}),
    "call": ("__call__(self, t, k=1)", "T", {"t": "T", "k": "int"}),
}
FIXED_DUNDERS = {
    "add": ("__radd__ = __add__",),
    "setitem": (
        "def __setitem__(self, index, value):",
        "    self.items[:1] = [value]",
        "    self.n += index",
    ),
    "len": ("def __len__(self):", "    return len(self.items)"),
    "iter": ("def __iter__(self):", "    yield from range(self.n % 4)"),
    "eq": ("def __eq__(self, other):", "    return self.n == getattr(other, 'n', None)", "__hash__ = None"),
    "bool": ("def __bool__(self):", "    return self.n > 1"),
    "lt": ("def __lt__(self, other):", "    return self.n < other.n"),
    "contains": ("def __contains__(self, item):", "    return item == self.n"),
    "enter": (
        "def __enter__(self):",
        "    self.n += 1",
        "    return self",
        "def __exit__(self, *exception):",
        "    self.items.append(exception[0])",
        "    return self.n > 2",
    ),
    "iadd": ("def __iadd__(self, other):", "    self.v = self.v + other", "    return self"),
    "getattr": (
        "def __getattr__(self, name):",
        "    if name == 'extra': return 7",
        "    raise AttributeError('no ' + name)",
    ),
    "setattr": (
        "def __setattr__(self, name, value):",
        "    KEPT.append(name)",
        "    super().__setattr__(name, value)",
    ),
}


@dataclass(frozen=True, slots=True)
class Program:
    """A program as source, and the backend that it is to be compiled with."""

    seed: int
    source: str
    backend: str


@dataclass(frozen=True, slots=True)
class Row:
    """One template with the flags that it needs."""

    weight: int
    flags: tuple[str, ...]
    text: str
    leaf: bool


def _rows(table: str) -> list[Row]:
    rows = []
    for line in table.strip().splitlines():
        match = re.match(r"(?:(\d+)\* )?((?:\?\w+ )*)(.*)", line)
        assert match is not None
        weight, flags, text = match.groups()
        needs = tuple(flags.replace("?", "").split())
        rows.append(
            Row(int(weight or 1), needs, text, all(kind == "name." for kind, _, _ in SLOT.findall(text)))
        )
    return rows


EXPRESSIONS = {
    name: [
        row for tables in (grammar.EXPRESSIONS, corners.EXPRESSIONS) for row in _rows(tables.get(name, ""))
    ]
    for name in grammar.EXPRESSIONS | corners.EXPRESSIONS
}
SUBJECTS, CATCHES = _rows(grammar.SUBJECTS), _rows(grammar.CATCHES)
STATEMENTS, RAISES, LOOPS, WITHS, HANDLERS, PATTERNS = (
    [row for table in (grammar, corners) for row in _rows(getattr(table, name))]
    for name in "STATEMENTS RAISES LOOPS WITHS HANDLERS PATTERNS".split()
)


@dataclass(slots=True)
class Scope:
    """Names that may be read, and those among them that may be assigned, by type."""

    names: dict[str, str] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    in_loop: bool = False
    result: str = "T"

    def child(self, **names: str) -> Scope:
        return Scope({**self.names, **names}, self.own | set(names), self.in_loop, self.result)

    def of(self, kind: str, own: bool = False) -> list[str]:
        return [n for n, k in self.names.items() if k == kind and (not own or n in self.own)]


class NoName(Exception):
    """A template needs a variable of a type that has none."""


class Writer:
    """Writes one program; `random` decides everything."""

    def __init__(self, seed: int, attempt: int = 0) -> None:
        self.random = random.Random(f"{seed}/{attempt}")
        self.seed = seed
        self.lines: list[str] = []
        self.depth = 0
        self.fresh = 0
        self.classes: list[str] = []
        self.functions: list[str] = []
        self.scope = Scope()
        self.flags = {name for name, rate in FLAGS.items() if self.random.random() < rate}
        self.break_rate = self.random.choice((0.3, 1, 1, 3)) if "break" in self.flags else 0
        self.max_depth = self.random.choice((1, 2, 2, 3))
        self.raise_rate = self.random.choice((0, 0, 0.02, 0.06))

    # --- choices -------------------------------------------------------------------------------------------------

    def chance(self, rate: float) -> bool:
        return self.random.random() < rate

    def pick(self, rows: list[Row], leaf: bool = False) -> str:
        usable = [row for row in rows if self.flags.issuperset(row.flags) and (row.leaf or not leaf)]
        if "method" in self.flags:  # methods that use objects would call themselves
            usable = [row for row in usable if not ABOUT_OBJECTS.search(row.text)]
        weights = [row.weight * (self.break_rate if "break" in row.flags else 1) for row in usable]
        return self.random.choices(usable, weights)[0].text if usable else ""

    # --- templates -----------------------------------------------------------------------------------------------

    def expression(self, kind: str, depth: int, **names: str) -> str:
        if kind == "class":
            return self.random.choice(self.classes)
        before = self.scope
        if names:
            self.scope = before.child(**names)
        try:
            for _ in range(4):
                text = (
                    self.pick(EXPRESSIONS[kind], leaf=depth >= self.max_depth) if kind in EXPRESSIONS else ""
                )
                try:
                    if text:
                        return self.fill(text, depth)
                except NoName:
                    continue
            return SIMPLEST[kind]
        finally:
            self.scope = before

    def fill(self, template: str, depth: int) -> str:
        """The template with its slots filled; names that it makes are bound after it."""
        made: dict[str, str] = {}

        def slot(match: re.Match[str]) -> str:
            how, kind, extra = match.groups()
            if how == "new.":
                name = self.new_name(kind)
                made[name] = kind
                return name
            if how == "to.":
                owned = self.scope.of(kind, own=True)
                if owned and self.chance(0.6):
                    return self.random.choice(owned)
                name = self.new_name(kind)
                made[name] = kind
                return name
            if how is not None:
                known = self.scope.of(kind, own=how == "own.")
                if 0 <= template.find("; ") < match.start():  # made by a line before
                    known += [name for name, other in made.items() if other == kind]
                if not known:
                    raise NoName(kind)
                return self.random.choice(known)
            names = dict(part.split(":") for part in extra[1:].split(",")) if extra else {}
            text = self.expression(kind, depth + 1, **names)
            return f"({text})" if needs_brackets(text) else text

        result = SLOT.sub(slot, template)
        for name, kind in made.items():
            self.scope.names[name] = kind
            self.scope.own.add(name)
        return result

    def new_name(self, kind: str) -> str:
        self.fresh += 1
        return f"{PREFIX.get(kind, kind[0])}{self.fresh}"

    # --- statements ----------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def lines_of(self, rows: list[Row]) -> None:
        while True:
            try:
                filled = self.fill(self.pick(rows), 0)
            except NoName:
                continue
            break
        for part in filled.split("; "):
            self.line(part)

    @contextmanager
    def block(self, head: str, leak: float = 0.02, **names: str) -> Iterator[None]:
        """The body of a block: what it binds is mostly not seen after it."""
        self.line(head)
        self.depth += 1
        before, start = self.scope, len(self.lines)
        self.scope = before.child(**names)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self.depth -= 1
        inner, self.scope = self.scope, before
        for name in inner.own - before.own:
            if name in inner.names and self.chance(leak):
                before.names[name] = inner.names[name]
                before.own.add(name)

    def body(self, most: int = 3) -> None:
        for _ in range(self.random.randint(1, most)):
            self.statement()

    def statement(self) -> None:
        if self.chance(self.raise_rate):
            self.lines_of(RAISES)
            return
        roll = self.random.random()
        if self.depth < 5 and roll < 0.28:
            kind = self.random.choices(tuple(BLOCKS), tuple(weight for weight, _ in BLOCKS.values()))[0]
            BLOCKS[kind][1](self)
        elif self.scope.in_loop and roll < 0.34:
            self.line(f"if {self.expression('bool', 1)}: {self.random.choice(('break', 'continue'))}")
        elif roll < 0.35 and self.depth > 1:
            self.line(f"return {self.expression(self.scope.result, 1)}")
        else:
            self.lines_of(STATEMENTS)

    def if_block(self) -> None:
        with self.block(f"if {self.expression('bool', 0)}:"):
            self.body()
        if self.chance(0.2):
            with self.block(f"elif {self.expression('bool', 0)}:"):
                self.body(2)
        if self.chance(0.4):
            with self.block("else:"):
                self.body(2)

    def loop_block(self) -> None:
        before = self.scope
        self.scope = before.child()
        head = self.fill_head(LOOPS)
        self.scope.in_loop = True
        with self.block(head):
            if head.startswith("for"):  # what is iterated over may grow
                self.line("if not fuel(): break")
            self.body()
        self.scope = before
        if self.chance(0.15):
            with self.block("else:"):
                self.body(1)

    def fill_head(self, rows: list[Row]) -> str:
        while True:
            try:
                return self.fill(self.pick(rows), 0)
            except NoName:
                continue

    def with_block(self) -> None:
        before = self.scope
        self.scope = before.child()
        head = self.fill_head(WITHS)
        if head.endswith(")") and " as stack: " in head:
            head, first = head.split(" as stack: ")
            with self.block(head + " as stack:"):
                self.line(first)
                self.body()
        else:
            with self.block(head, leak=0.5):
                self.body()
        inner, self.scope = self.scope, before
        for name in inner.own - before.own:
            if self.chance(0.1):
                before.names[name] = inner.names[name]
                before.own.add(name)

    def try_block(self) -> None:
        rate = self.raise_rate
        self.raise_rate = max(rate, 0.2)
        with self.block("try:", leak=0.1):
            self.body()
            if self.chance(0.35):
                self.lines_of(RAISES)
        self.raise_rate = rate
        handlers = self.random.choice((0, 1, 1, 1, 2))
        for _ in range(handlers):
            head = self.pick(CATCHES)
            with self.block(head):
                if " as error" in head and self.chance(0.8):
                    self.lines_of(HANDLERS)
                self.body(2)
            if head in ("except:", "except BaseException:"):
                break
        if handlers and self.chance(0.2):
            with self.block("else:"):
                self.body(1)
        if not handlers or self.chance(0.3):
            in_loop, self.scope.in_loop = self.scope.in_loop, self.scope.in_loop and self.chance(0.2)
            with self.block("finally:"):
                self.body(2)
            self.scope.in_loop = in_loop

    def match_block(self) -> None:
        self.line(f"match {self.fill(self.pick(SUBJECTS), 0)}:")
        self.depth += 1
        for _ in range(self.random.randint(1, 3)):
            before = self.scope
            self.scope = before.child()
            head = self.fill_head(PATTERNS)
            with self.block(head):
                self.body(2)
            self.scope = before
        if self.chance(0.4):
            with self.block("case _:"):
                self.body(1)
        self.depth -= 1

    def function_block(self) -> None:
        """A nested function, mostly with variables of the function around it, called or kept."""
        name = self.new_name("fn")
        parameters = "t, k=" + self.expression("int", 2) + self.random.choice(("", ", *rest", ", **more"))
        outer = self.scope
        generator = self.chance(0.15)
        shared = [n for n in outer.own - {"t", "k"} if n not in PARAMETERS or self.chance(0.3)]
        shared = sorted(
            self.random.sample(sorted(shared), min(len(shared), self.random.choice((0, 0, 1, 2))))
        )
        if self.chance(0.1):
            self.line(self.random.choice(("@compose", "@functools.wraps(helper)", "@opaque")))
        with self.block(f"def {name}({parameters}):", leak=0):
            self.scope.own = {"t", "k", *shared}
            self.scope.names.update(t="T", k="int")
            self.scope.in_loop, self.scope.result = False, "T"
            if shared:
                self.line(f"nonlocal {', '.join(shared)}")
            self.body()
            if generator:
                self.line(f"yield {self.expression('T', 1)}")
                self.body(2)
                self.line(f"yield {self.expression('T', 1)}")
            else:
                self.line(f"return {self.expression('T', 0)}")
        outer.names[name] = "maker" if generator else "fn"
        call = f"{name}({self.expression('T', 1)}, {self.expression('int', 1)})"
        if generator:
            made = self.new_name("gen")
            self.line(f"{made} = {call}")
            outer.names[made] = "gen"
            outer.own.add(made)
        elif self.chance(0.7):
            target = self.new_name("T")
            self.line(f"{target} = {call}")
            outer.names[target] = "T"
            outer.own.add(target)

    # --- classes and the whole -----------------------------------------------------------------------------------

    def method(self, head: str, statements: int = 1, result: str = "T", **names: str) -> None:
        outer, flags = self.scope, self.flags
        if "self" in head:
            self.flags = flags | {"method"}
        self.scope = Scope({**GLOBAL_NAMES, **names}, set(names), result=result)
        self.scope.names["x"] = "T"
        with self.block(f"def {head}:", leak=0):
            if "x" not in head.split("(")[1]:
                self.line("x = self.v" if "self" in head else "x = t")
            for _ in range(self.random.randint(0, statements)):
                self.statement()
            self.line(f"return {self.expression(result, 1)}")
        self.scope, self.flags = outer, flags

    def class_block(self, name: str, base: str) -> None:
        head = f"class {name}({base}):" if base else f"class {name}:"
        self.line("")
        self.line("")
        with self.block(head):
            if not base:
                if self.chance(0.2):
                    self.line('__slots__ = ("v", "n", "items", "extra", "child", "__dict__")')
                self.line('tag = "base"')
                self.line("total = 0")
                with self.block("def __init__(self, v, n=1):"):
                    self.line("self.v, self.n, self.items = v, n, [v]")
                self.line("__repr__ = lambda self: f'<{type(self).__name__} {self.n}>'")
            elif self.chance(0.5):
                with self.block("def __init__(self, v, n=2):"):
                    self.line("super().__init__(v, n)")
                    self.line(self.random.choice(("self.n += 1", "self.extra = n", "self.items.append(v)")))
            required = not base
            if required or self.chance(0.4):
                self.line("@property")
                self.method("p(self)", 1)
            if required or self.chance(0.3):
                self.line("@property")
                self.method("q(self)", 1, "int")
                self.line("@q.setter")
                with self.block("def q(self, value):"):
                    self.line("self.n = value % 10")
            if required or self.chance(0.5):
                self.method("m(self, t, k=1)", 2, t="T", k="int")
                if base and self.chance(0.5):
                    self.lines[-1] = "    " * (self.depth + 1) + "return super().m(t, k) + self.n"
            if required or self.chance(0.3):
                self.line("@classmethod")
                with self.block("def cm(cls, t):"):
                    self.line("cls.total += 1")
                    self.line("return t * cls.total")
                self.line("@staticmethod")
                with self.block("def sm(t):"):
                    self.line("return t + 1")
            for flag, (dunder, result, names) in DUNDERS.items():
                if flag in self.flags and (required or self.chance(0.2)):
                    self.method(dunder, 1, result, **names)
            for flag, text in FIXED_DUNDERS.items():
                if flag in self.flags and required:
                    for part in text:
                        self.line(part)

    def calls(self) -> None:
        """The calls: mostly small changes of one first call."""
        self.line("")
        self.line("")
        self.line(f"OBJ = {self.random.choice(self.classes)}(made(50), 3)")
        for line in corners.OBJECTS:
            self.line(line)
        count = self.random.randint(2, 5)
        first = self.call_values()
        for index in range(count):
            values = dict(first)
            if index:
                other = self.call_values()
                for name in self.random.sample(sorted(values), self.random.choice((0, 1, 1, 2, 3))):
                    values[name] = other[name]
            with self.block(f"def call_{index}():"):
                for name, text in values.items():
                    self.line(f"{name} = {text}")
                self.line(f"return {', '.join(PARAMETERS)}")
        self.line(f"CALLS = [{', '.join(f'call_{i}' for i in range(count))}]")

    def call_values(self) -> dict[str, str]:
        pick, grad = self.random.choice, "True" if "grad" in self.flags and self.chance(0.6) else "False"
        rows = pick((2, 2, 2, 3))
        cls = self.random.choice(self.classes)
        return {
            "x": f"made({pick((1, 2))}, {rows}, {grad})",
            "y": pick((f"made(3, {rows})", f"made(3, {rows})", f"made(3, {rows}, {grad})", "x", "x[:]")),
            "n": str(pick((0, 1, 2, 2, 3, 5))),
            "flag": pick(("True", "False")),
            "items": pick((f"[made(4, {rows}), made(5, {rows})]", "[x, y]", "[x]", "[]", "[y, y, x]")),
            "ints": pick(("[3, 1, 2]", "[1, 2]", "[]", "[n, 2, 2]")),
            "d": pick(("{'a': y}", "{'a': x, 'b': y}", "{}", "{'b': y, 'a': x}")),
            "obj": pick((f"{cls}(y, n)", "OBJ", f"{cls}(x)", "OBJ")),
            "s": pick(("'a'", "'ab'", "''", "'b'")),
        }

    def write(self) -> Program:
        backend = self.random.choices(("eager", "aot_eager", "auto"), (92, 6, 2))[0]
        dtype = "float64" if backend != "eager" else self.random.choice(("float32", "float32", "float64"))
        self.line(f"DTYPE = torch.{dtype}")
        names = ["Base", *(f"Derived{i}" for i in range(self.random.choice((0, 1, 1, 2))))]
        self.line("")
        self.classes = ["Base"]
        for index, name in enumerate(names):
            self.class_block(name, self.random.choice(names[:index]) if index else "")
            self.classes = names[: index + 1]
        for _ in range(self.random.choice((0, 0, 1, 2))):
            self.line("")
            self.line("")
            helper = f"h{self.new_name('fn')}"
            self.method(f"{helper}(t, k=1)", 3, t="T", k="int")
            self.functions.append(helper)
        self.line("")
        self.line("")
        self.scope = Scope({**GLOBAL_NAMES, **PARAMETERS}, set(PARAMETERS) - {"x"}, result="out")
        self.scope.names.update(dict.fromkeys(self.functions, "fn"))
        with self.block(f"def program({', '.join(PARAMETERS)}):"):
            self.line("global FUEL")
            self.line("FUEL = 9")
            for _ in range(self.random.choice((2, 4, 6, 9, 12))):
                self.statement()
            visible = [n for n in self.scope.own if n not in ("x",)]
            chosen = sorted(self.random.sample(sorted(visible), min(len(visible), 5)))
            self.line(f"return {self.expression('T', 1)}, {', '.join(chosen)}")
        self.calls()
        source = f"{grammar.PRELUDE}{corners.PRELUDE}\n\n" + "\n".join(self.lines) + "\n"
        return Program(self.seed, source, backend)


#: Kinds of blocks: how often, and what writes them.
BLOCKS = {
    "if": (4, Writer.if_block),
    "loop": (4, Writer.loop_block),
    "with": (2, Writer.with_block),
    "try": (3, Writer.try_block),
    "match": (1, Writer.match_block),
    "function": (3, Writer.function_block),
}


def needs_brackets(text: str) -> bool:
    return re.fullmatch(r"[\w.]+(\([^()]*\))?", text) is None


def generate(seed: int) -> Program:
    """The program of a seed."""
    for attempt in range(50):
        program = Writer(seed, attempt).write()
        try:
            compile(program.source, "program", "exec", dont_inherit=True)
        except SyntaxError:  # a walrus in a comprehension's iterable and the like
            continue
        return program
    raise AssertionError(f"no valid program for seed {seed}")
