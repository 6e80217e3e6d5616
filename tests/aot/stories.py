"""Random regions with several outputs, and random stories of what a program then does with their gradients.

In: a `pick(n)` that chooses below n. Out: a Story, told by `tell(story, region)`: what could be seen, step by step.
Always: a story says the same of the region in eager each time; it ends where eager raises.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

Pick = Callable[[int], int]

#: What a region computes with: operators that save an operand, their result, both, or nothing, and views.
OPERATORS: tuple[tuple[str, Callable[[Tensor, Tensor], Tensor]], ...] = (
    ("sin", lambda a, b: a.sin()),
    ("exp", lambda a, b: (a * 0.1).exp()),
    ("tanh", lambda a, b: a.tanh()),
    ("mul", lambda a, b: a * b),
    ("square", lambda a, b: a * a),
    ("add", lambda a, b: a + b),
    ("neg", lambda a, b: -a),
    ("twice", lambda a, b: a * 2),
    ("matmul", lambda a, b: a @ b),
    ("t", lambda a, b: a.t()),
    ("view", lambda a, b: a.view_as(a)),
    ("row", lambda a, b: a[0].expand(3, 3)),
    ("mean", lambda a, b: a.mean() + b),
    ("detach", lambda a, b: a.detach() * b),
    ("clone", lambda a, b: a.clone()),
    ("mul_", lambda a, b: a.mul(1.5).mul_(b)),
)


@dataclass(frozen=True)
class Region:
    """Statements on two inputs, `v0` and `v1`; each makes the next variable."""

    statements: tuple[tuple[int, int, int], ...]  # operator and operands
    returned: tuple[int, ...]

    def run(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        env = list(inputs)
        for op, a, b in self.statements:
            env.append(OPERATORS[op][1](env[a], env[b]))
        return tuple(env[k] for k in self.returned)

    def graph(self) -> fx.GraphModule:
        g = fx.Graph()
        env = [g.placeholder("x"), g.placeholder("w")]
        for op, a, b in self.statements:
            env.append(g.call_function(OPERATORS[op][1], (env[a], env[b])))
        g.output(tuple(env[k] for k in self.returned))
        return fx.GraphModule(torch.nn.Module(), g)

    def __str__(self) -> str:
        lines = [f"v{n + 2} = {OPERATORS[op][0]}(v{a}, v{b})" for n, (op, a, b) in enumerate(self.statements)]
        return "\n".join([*lines, f"return {', '.join(f'v{k}' for k in self.returned)}"])


@dataclass(frozen=True)
class Step:
    """One thing that a program does. `of`, `to`: tensors by number, among inputs, outputs and what steps made."""

    kind: str
    of: tuple[int, ...]
    to: tuple[int, ...] = ()
    retain: bool = False

    def __str__(self) -> str:
        to = f" to {self.to}" if self.to else ""
        return f"{self.kind} {self.of}{to}{' retain' if self.retain else ''}"


@dataclass(frozen=True)
class Story:
    leaves: tuple[bool, bool]  # whether the inputs are leaves
    region: Region
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "\n".join([f"leaves {self.leaves}", str(self.region), *map(str, self.steps)])


KINDS = ("backward", "grad", "hook", "hook and change", "retain_grad", "later", "drop", "second", "join")


def make_story(pick: Pick, kinds: Sequence[str] = KINDS) -> Story:
    statements = tuple((pick(len(OPERATORS)), pick(n + 2), pick(n + 2)) for n in range(2 + pick(6)))
    made = len(statements)
    region = Region(statements, tuple(2 + pick(made) for _ in range(2 + pick(3))))
    count = 2 + len(region.returned)
    steps = []
    for _ in range(2 + pick(5)):
        kind = kinds[pick(len(kinds))]
        if kind in ("backward", "grad", "second"):
            of = tuple(2 + pick(count - 2) for _ in range(1 + (pick(4) == 0)))
            given = kind == "grad" or pick(3) == 0
            to = tuple(dict.fromkeys(pick(count) for _ in range(1 + pick(2)))) if given else ()
            if kind == "second" and not to:
                to = (pick(count),)
            steps.append(Step(kind, of, to, pick(2) == 0))
        else:
            steps.append(Step(kind, (pick(count), pick(count))))
            count += kind in ("later", "join")
    return Story((pick(2) == 0, pick(2) == 0), region, tuple(steps))


class Telling:
    """What could be seen so far: at which step, what, and its value."""

    def __init__(self, story: Story, run: Callable[..., tuple[Tensor, ...]]) -> None:
        g = torch.Generator().manual_seed(0)
        self.roots = [torch.randn(3, 3, generator=g).requires_grad_() for _ in range(2)]
        self.given = [t if leaf else t * 1.25 for t, leaf in zip(self.roots, story.leaves, strict=True)]
        self.env: list[Tensor | None] = [*self.given, *run(*self.given)]
        self.seen: list[tuple[int, str, Any]] = []
        self.at = 0

    def see(self, what: str, value: Any) -> None:
        self.seen.append((self.at, what, value.detach().clone() if isinstance(value, Tensor) else value))

    def take(self, step: Step) -> None:
        of = [self.env[k] for k in step.of]
        to = [self.env[k] for k in step.to]
        if any(t is None or not t.requires_grad for t in (*of, *to)):
            if step.kind in ("later", "join"):
                self.env.append(None)
            return
        first, n = of[0], self.at
        if step.kind == "backward":
            total = sum((t * (k + 1.5)).sum() for k, t in enumerate(of))
            total.backward(retain_graph=step.retain, inputs=to or None)
        elif step.kind == "grad":
            total = sum((t * (k + 1.5)).sum() for k, t in enumerate(of))
            found = torch.autograd.grad(total, to, retain_graph=step.retain, allow_unused=True)
            for t in found:
                self.see("found", t)
        elif step.kind == "second":
            total = sum((t * t * (k + 1.5)).sum() for k, t in enumerate(of))
            found = torch.autograd.grad(total, to, create_graph=True, allow_unused=True)
            for t in found:
                self.see("found", t)
            rest = [t.square().sum() for t in found if t is not None and t.requires_grad]
            if rest:
                sum(rest).backward(retain_graph=step.retain)
        elif step.kind == "hook":
            first.register_hook(lambda g: self.see(f"hook {n}", g))
        elif step.kind == "hook and change":
            first.register_hook(lambda g: self.see(f"hook {n}", g) or g * 2)
        elif step.kind == "retain_grad":
            first.retain_grad()
        elif step.kind == "later":
            self.env.append(first.sin())
        elif step.kind == "join":
            self.env.append(of[0] * of[1])
        else:
            self.env[step.of[0]] = None

    def see_gradients(self) -> None:
        for k, t in enumerate((*self.roots, *self.env)):
            if t is not None and (t.is_leaf or t.retains_grad) and t.grad is not None:
                self.see(f"gradient of {k}", t.grad)


def tell(story: Story, run: Callable[..., tuple[Tensor, ...]]) -> list[tuple[int, str, Any]]:
    """What can be seen of each step: hooks as they are called, gradients, errors; and what can still go backward."""
    told = Telling(story, run)
    for told.at, step in enumerate(story.steps):
        try:
            told.take(step)
        except RuntimeError as error:
            told.see("error", str(error)[:50])
            return told.seen
        told.see_gradients()
    for n, t in enumerate(told.given):
        if not t.is_leaf:
            told.at += 1
            try:
                t.sum().backward()
            except RuntimeError as error:
                told.see(f"error in the history of {n}", str(error)[:50])
    return told.seen


FREED = "Trying to backward through the graph a second time"
REFUSED = "a second derivative through a compiled region"


def difference(
    story: Story, found: list[tuple[int, str, Any]], expected: list[tuple[int, str, Any]]
) -> str | None:
    """The first thing that differs, but for what a region leaves open.

    In which order hooks on tensors that do not lead to each other are called; what was done already by a backward that
    fails; and that eager's `backward(inputs=...)` frees the operators that made these, so that it or a later one fails.
    """
    mine, theirs = _settled(found), _settled(expected)
    for x, y in itertools.zip_longest(mine, theirs):
        if y is not None and y[2] == FREED and _accumulates_before(story, y[0]):
            return None
        if x is None or y is None or x[:2] != y[:2] or not _same(x[2], y[2]):
            return f"{x} instead of {y}"
    return None


def _same(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x.shape == y.shape and torch.allclose(x, y, rtol=1e-3, atol=1e-3, equal_nan=True)
    return type(x) is type(y) and x == y


def _settled(seen: list[tuple[int, str, Any]]) -> list[tuple[int, str, Any]]:
    settled: list[tuple[int, str, Any]] = []
    for _, group in itertools.groupby(seen, key=lambda entry: entry[0]):
        entries = list(group)
        failed = [entry for entry in entries if "error" in entry[1]]
        settled += failed or sorted(entries, key=lambda entry: (entry[1].startswith("hook"), entry[1]))
    return settled


def _accumulates_before(story: Story, at: int) -> bool:
    return any(step.kind == "backward" and max(step.to, default=0) > 1 for step in story.steps[: at + 1])
