"""Writes random Python functions over tensors: the programs that the compiler is checked on.

In: Hypothesis' choices. Out: the source of `def program(x, y, n, flag, items, box)`. Always: every name is bound before
use on every path, tensors keep the shape (rows, 3), and loops end; whether a program raises is for eager to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

UNARY = (
    "torch.sin({a})",
    "torch.tanh({a}) * 2",
    "{a}.relu()",
    "-{a} * 0.5",
    "{a}.abs() - 1",
    "{a}.exp().clamp(max=3.0)",
    "{a} + {a}.mean()",
    "{a}.softmax(-1)",
    "{a} - {a}.amax(-1, keepdim=True)",
    "{a} / (1 + {a}.var())",
    "{a}.cumsum(0) * 0.3",
    "{a}.flip(0)",
    "{a}.t().contiguous().t()",
    "{a}.reshape(-1).view({a}.shape)",
    "{a}.to(torch.float64).to({a}.dtype)",
    "{a}.roll(1, dims=1)",
    "F.layer_norm({a}, {a}.shape[-1:])",
    "F.gelu({a})",
    "torch.where({a} > 0, {a}, {a} * 0.1)",
    "torch.cat([{a}, {a} * 2], 0)[1 : 1 + {a}.shape[0]]",
    "({a} > 0).float() + ({a}.long() % 3)",
    "{a}[:, [2, 0, 1]]",
    "{a}.detach() + {a} * 0.5",
    "torch.stack([row.sin() for row in {a}.unbind(0)])",
)
BINARY = (
    "{a} + {b}",
    "{a} - {b} * 0.5",
    "{a} * {b}",
    "{a} / ({b}.abs() + 1)",
    "torch.maximum({a}, {b})",
    "torch.stack([{a}, {b}]).mean(0)",
    "torch.where({a} > {b}, {a}, {b})",
    "({a} @ {b}.t() @ {a}).tanh()",
    "helper({a}, {b})",
    "helper({b}, {a}, scale=n % 4)",
    "box.mix({a}, {b})",
    "reduce(torch.add, [{a}, {b}, {a}])",
    "partial(helper, scale=2)({a}, {b})",
    "torch.einsum('ij,ij->ij', {a}, {b})",
)
IN_PLACE = (
    "{a} += {b}",
    "{a}.mul_(0.5)",
    "{a}.clamp_(-2, 2)",
    "{a}[0] = {b}[1]",
    "{a}[:, 1:] += 1.0",
    "{a}[{b} > 1] = 0.25",
    "{a}.t().add_(0.5)",
    "{a}.copy_({b})",
    "{a}.view(-1)[::2].sub_(1)",
)
PYTHON = (
    "n = (n * 3 + 1) % 7",
    "n += {a}.shape[0]",
    "n = len(items) + {a}.dim()",
    "items.append({a} * 0.5)",
    "items = [item + 1 for item in items]",
    "{a} = {a} + items.pop() if items else {a}",
    "{a} = sum(items, {a})",
    "{a}, {b} = {b}, {a}",
    "text = f'{{n:02d}}-{{{a}.shape[1]}}-{{flag}}'",
    "table['n'] = n; table.setdefault('first', {a})",
    "table = {{key: value for key, value in table.items() if key != 'n'}}",
    "n = sum(i * j for i, j in zip(range(3), (n, 1, 2)))",
    "n = max(n, *(len(key) for key in table), 1)",
    "box.count += 1; {a} = {a} * box.count",
    "box.kept = {a} + 1",
    "{a} = {a} + box.kept if box.kept is not None else {a}",
    "{a} = (lambda v, k=n % 3: v * k)({a})",
    "n = getattr(box, 'missing', n) if hasattr(box, 'count') else 0",
    "{a} = {a} * (2 if isinstance({b}, torch.Tensor) and not flag else 1)",
    "first, *rest = ({a}, {b}, {a} + 1); {a} = first + rest[-1]",
    "n -= text.count('0') if text.startswith('0') else 1",
    "{a} = {a} @ {b} if not flag and n > 4 else {a}",  # refused by eager, when it is reached
)
BREAKS = (
    "print(end='')",
    "n = int({a}.sum().item() > 0) + n % 5",
    "n += int(({a} > 0).any())",
    "opaque(items)",
)
BLOCKS = (
    "if flag:",
    "if not flag or n > 3:",
    "if n % 2 == 0:",
    "if {a}.sum() > 0.123:",
    "for i in range(3):",
    "for item in list(items):",
    "for i, item in enumerate([{a}, {b}]):",
    "with torch.no_grad():",
    "with box:",
    "while n > 4 and rounds < 5:",
)
ELSE_BLOCKS = frozenset(("if flag:", "if n % 2 == 0:", "if {a}.sum() > 0.123:"))
TENSORS = ("a", "b", "c")


class Writer:
    """Builds one program line by line; `draw` is Hypothesis' source of choices."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], in_place: bool, breaks: bool) -> None:
        self.draw = draw
        self.in_place = in_place
        self.breaks = breaks
        self.lines: list[str] = []

    def choose(self, options: tuple[T, ...]) -> T:
        return self.draw(st.sampled_from(options))

    def write(self, depth: int, text: str) -> None:
        names = {"a": self.choose(TENSORS), "b": self.choose(TENSORS)}
        self.lines.extend("    " * depth + part for part in text.format(**names).split("; "))

    def statement(self, depth: int) -> None:
        kinds = ["unary", "unary", "binary", "binary", "python", "python"]
        kinds += ["in_place"] * self.in_place + ["break"] * self.breaks + ["block", "try"] * (depth < 3)
        match self.choose(tuple(kinds)):
            case "unary":
                self.write(depth, "{a} = " + self.choose(UNARY).replace("{a}", "{b}"))
            case "binary":
                target = self.choose(TENSORS)
                self.write(depth, f"{target} = " + self.choose(BINARY))
            case "python":
                self.write(depth, self.choose(PYTHON))
            case "in_place":
                self.write(depth, self.choose(IN_PLACE))
            case "break":
                self.write(depth, self.choose(BREAKS))
            case "block":
                self.block(depth)
            case "try":
                self.try_block(depth)

    def block(self, depth: int) -> None:
        head = self.choose(BLOCKS)
        self.write(depth, head)
        if head.startswith("while"):
            self.write(depth + 1, "n -= 2; rounds += 1")
        self.body(depth + 1)
        if head.startswith("for") and self.draw(st.booleans()):
            self.write(depth + 1, self.choose(("if n > 5: break", "if n > 5: continue", "c = c * 0.9")))
        if head in ELSE_BLOCKS and self.draw(st.booleans()):
            self.write(depth, "else:")
            self.body(depth + 1)

    def try_block(self, depth: int) -> None:
        self.write(depth, "try:")
        self.body(depth + 1)
        self.write(depth + 1, self.choose(("if flag: raise ValueError(n)", "table['absent']", "n = n + 1")))
        self.write(depth, "except (ValueError, KeyError) as error:")
        self.write(depth + 1, "n += len(error.args)")
        self.body(depth + 1)
        if self.draw(st.booleans()):
            self.write(depth, "finally:")
            self.body(depth + 1)

    def body(self, depth: int) -> None:
        for _ in range(self.draw(st.integers(1, 3))):
            self.statement(depth)

    def program(self, statements: int) -> str:
        for _ in range(statements):
            self.statement(1)
        head = ["def program(x, y, n, flag, items, box):", "    text, table, rounds = '', {}, 0"]
        # Under gradients the inputs are leaves, which eager lets nobody change in place.
        head.append("    a, b, c = x, y, x + y" if self.in_place else "    a, b, c = x * 1, y * 1, x + y")
        return "\n".join([*head, *self.lines, "    return a, b, c, n, items, table, text, box.count"]) + "\n"


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any], *, in_place: bool, breaks: bool) -> str:
    """Sources of random programs; smaller ones first when Hypothesis shrinks."""
    return Writer(draw, in_place, breaks).program(draw(st.integers(2, 10)))
