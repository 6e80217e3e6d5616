"""Random functions of control flow: loops, handlers, contexts, closures, comprehensions, nested at will.

In: a seed. Out: the source of a function `f(a, b)` that ends soon. Always: the same source for the same seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Writer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = ["a", "b"]
        self.lines: list[str] = []
        self.fresh = 0
        self.loops = 0

    def source(self) -> str:
        self.lines = ["def f(a, b):", "    log = []"]
        self.block(1, 3)
        self.lines.append(f"    return log, {self.value()}")
        return "\n".join(self.lines)

    def name(self) -> str:
        return self.random.choice(self.names)

    def new_name(self) -> str:
        if self.random.random() < 0.4:
            return self.name()
        self.fresh += 1
        made = f"v{self.fresh}"
        self.names.append(made)
        return made

    def value(self, depth: int = 0) -> str:
        r = self.random
        if depth > 2:
            return r.choice([self.name(), str(r.randrange(5))])
        inner = lambda: self.value(depth + 1)  # noqa: E731
        forms: list[Callable[[], str]] = [
            self.name,
            lambda: str(r.randrange(9)),
            lambda: f"({inner()} + {inner()})",
            lambda: f"({inner()} * {r.randrange(3)} - {inner()})",
            lambda: f"({inner()} if {inner()} > {inner()} else {inner()})",
            lambda: f"({inner()} or {inner()} and {inner()})",
            lambda: f"note(log, {inner()}, {inner()}, k={inner()})",
            lambda: f"note(log, *[{inner()}], **dict(k={inner()}))",
            lambda: f"sum([x * {inner()} for x in range({r.randrange(4)}) if x != {inner()}])",
            lambda: f"sum(g() for g in [lambda: x + {self.name()} for x in range({r.randrange(3)})])",
            lambda: f"sum(x + {inner()} for x in range({r.randrange(4)}))",
            lambda: f"len(f'{{{self.name()}!r:>{{{r.randrange(1, 5)}}}}}')",
            lambda: f"({inner()} // {inner()})",
            lambda: f"max({inner()}, {inner()}, key=lambda q: -q)",
            lambda: f"[{inner()}, {inner()}][{r.choice('01')}]",
            lambda: f"{{1: {inner()}, 'z': {inner()}}}['z']",
            lambda: f"len([*range({r.randrange(3)})][{r.randrange(2)}:])",
            lambda: f"({inner()} < {inner()} <= {inner()}) + 0",
        ]
        return r.choice(forms)()

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def block(self, depth: int, count: int) -> None:
        for _ in range(self.random.randint(1, count)):
            self.statement(depth)

    def statement(self, depth: int) -> None:
        r = self.random
        simple: list[Callable[[int], None]] = [self.assign, self.assign, self.call, self.unpack, self.augment]
        rare: list[Callable[[int], None]] = [self.delete, self.leave, self.closure, self.check]
        nested: list[Callable[[int], None]] = [
            self.branch, self.loop, self.loop_while, self.attempt, self.attempt, self.context, self.match,
        ]  # fmt: skip
        kind = r.random()
        if depth < 5 and kind < 0.45:
            r.choice(nested)(depth)
        elif kind < 0.6:
            r.choice(rare)(depth)
        else:
            r.choice(simple)(depth)

    def assign(self, depth: int) -> None:
        text = self.value()
        self.put(depth, f"{self.new_name()} = {text}")

    def unpack(self, depth: int) -> None:
        text = f"{self.value()}, *[{self.value()}]"
        self.put(depth, f"{self.new_name()}, {self.new_name()} = {text}")

    def augment(self, depth: int) -> None:
        self.put(depth, f"{self.name()} += {self.value()}")

    def call(self, depth: int) -> None:
        self.put(depth, f"log.append({self.value()})")

    def delete(self, depth: int) -> None:
        self.put(depth, f"del {self.name()}")

    def leave(self, depth: int) -> None:
        ways = [f"return {self.value()}", f"raise KeyError({self.value()})"]
        if self.loops:
            ways += ["break", "continue"]
        self.put(depth, f"if {self.value()} > 4:")
        self.put(depth + 1, self.random.choice(ways))

    def check(self, depth: int) -> None:
        self.put(depth, f"assert {self.value()} < 9, {self.value()}")

    def closure(self, depth: int) -> None:
        name, seen = self.new_name(), self.name()
        self.put(depth, f"def inner(q={self.value()}):")
        if self.random.random() < 0.5 and seen not in ("q",):
            self.put(depth + 1, f"nonlocal {seen}")
            self.put(depth + 1, f"{seen} = q + 1")
        self.put(depth + 1, f"return q + {seen}")
        self.put(depth, f"{name} = inner()")

    def branch(self, depth: int) -> None:
        self.put(depth, f"if {self.value()}:")
        self.block(depth + 1, 2)
        if self.random.random() < 0.5:
            self.put(depth, f"elif {self.value()} is not None and not {self.value()}:")
            self.block(depth + 1, 2)
        if self.random.random() < 0.5:
            self.put(depth, "else:")
            self.block(depth + 1, 2)

    def loop(self, depth: int) -> None:
        count = self.random.randrange(4)
        form = self.random.choice(["range({})", "iter([*range({})])", "produce({})", "map(abs, range({}))"])
        self.put(depth, f"for {self.new_name()} in {form.format(count)}:")
        self.loops += 1
        self.block(depth + 1, 3)
        self.loops -= 1
        if self.random.random() < 0.3:
            self.put(depth, "else:")
            self.block(depth + 1, 2)

    def loop_while(self, depth: int) -> None:
        self.fresh += 1
        limit = f"w{self.fresh}"
        self.put(depth, f"{limit} = {self.random.randrange(1, 4)}")
        self.put(depth, f"while {limit} > 0 and {self.value()} is not None:")
        self.put(depth + 1, f"{limit} -= 1")
        self.loops += 1
        self.block(depth + 1, 2)
        self.loops -= 1

    def attempt(self, depth: int) -> None:
        r = self.random
        self.put(depth, "try:")
        self.block(depth + 1, 3)
        handlers = r.randrange(0, 3)
        for kind in r.sample(["ZeroDivisionError", "KeyError", "(NameError, TypeError)"], handlers):
            named = r.random() < 0.5
            self.put(depth, f"except {kind}{' as error' if named else ''}:")
            if named:
                self.put(depth + 1, "log.append(str(error))")
            loops, self.loops = self.loops, self.loops
            self.block(depth + 1, 2)
            self.loops = loops
        if handlers and r.random() < 0.4:
            self.put(depth, "else:")
            self.block(depth + 1, 2)
        if not handlers or r.random() < 0.4:
            self.put(depth, "finally:")
            self.block(depth + 1, 2)

    def context(self, depth: int) -> None:
        swallow = self.random.choice(["None", "ZeroDivisionError", "KeyError"])
        self.put(depth, f"with Recorder(log, {swallow}):")
        self.block(depth + 1, 3)

    def match(self, depth: int) -> None:
        self.put(depth, f"match [{self.value()}, {self.value()}]:")
        self.put(depth + 1, f"case [0, {self.new_name()}]:")
        self.block(depth + 2, 2)
        self.put(depth + 1, f"case [int(), int() as {self.new_name()}] if {self.value()}:")
        self.block(depth + 2, 2)


def program(seed: int) -> str:
    return Writer(seed).source()
