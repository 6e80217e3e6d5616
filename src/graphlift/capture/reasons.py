"""The registry of graph-break reasons.

In: a registered code and the particulars of one break. Out: `BreakReason`, printed in logs, errors and `explain`.
Always: one frozen row per code, no duplicates; `docs/breaks.md` is generated from the rows. A new row brings `example`,
a program that breaks for this reason and no other, and `fixed`, the same after the remedy: tests run both.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from graphlift.data import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """One kind of graph break: what is said to the user, why it happens, what the user can do.

    `example` and `fixed` are programs that know `torch` and `graphlift`; only faults of ours have none.
    """

    code: str
    text: str
    why: str
    remedy: str
    example: str = ""
    fixed: str = ""

    def section(self, example: str, fixed: str) -> list[str]:
        """Lines of documentation; the arguments head the two programs."""
        lines = [f"## {self.code}", "", f"{self.text[0].upper()}{self.text[1:]}.", ""]
        lines += [f"**Why.** {self.why}", "", f"**What to do.** {self.remedy}"]
        for heading, program in ((example, self.example), (fixed, self.fixed)):
            if program:
                lines += ["", heading, "", "```python", program.rstrip(), "```"]
        return lines


def listing(rows: Iterable[Reason], example: str, fixed: str) -> list[str]:
    """Lines of documentation: a table of the rows, and their sections."""
    rows = list(rows)
    lines = [
        "| code | what |",
        "|---|---|",
        *(f"| [`{row.code}`](#{row.code}) | {row.text} |" for row in rows),
    ]
    for row in rows:
        lines += ["", *row.section(example, fixed)]
    return lines


def reason_table(rows: Iterable[Reason]) -> Mapping[str, Reason]:
    table: dict[str, Reason] = {}
    for row in rows:
        if row.code in table:
            raise ValueError(f"break reason {row.code!r} is registered twice")
        if not (row.text and row.why and row.remedy):
            raise ValueError(f"break reason {row.code!r} lacks a text, a why or a remedy")
        table[row.code] = row
    return MappingProxyType(table)


#: Every kind of break, by code. Adding one is one row here and one test.
REASONS: Mapping[str, Reason] = reason_table(
    (
        Reason(
            "unsupported-builtin",
            "call of a Python builtin that is not modelled",
            "The builtin is implemented in C and has no rule in capture, so its effect on captured values is unknown.",
            "Move the call out of the compiled function, or mark its wrapper with graphlift.assume_constant_result if "
            "its result never changes.",
            example="""\
@graphlift.compile
def f(x, seen):
    seen[hash(x)] = True
    return x * 2

f(torch.ones(3), {})
""",
            fixed="""\
@graphlift.compile
def f(x, seen):
    seen[x] = True
    return x * 2

f(torch.ones(3), {})
""",
        ),
        Reason(
            "c-function",
            "call of a C function that is not modelled",
            "The callee has no Python bytecode to inline and is no known tensor operation.",
            "Call it outside the compiled function, wrap it as a torch.library custom operator, or use "
            "graphlift.allow_in_graph if it only computes on tensors.",
            example="""\
import os

@graphlift.compile
def f(x):
    return x * 2, os.getcwd()

f(torch.ones(3))
""",
            fixed="""\
import os

@graphlift.compile
def f(x):
    return x * 2

f(torch.ones(3)), os.getcwd()
""",
        ),
        Reason(
            "data-dependent-branch",
            "branch on the value of a tensor",
            "Which way the branch goes depends on numbers that exist only when the graph has run. A branch of which one "
            "side only raises, as an assert, is no break: it is taken to go the other way, and the graph checks that.",
            "Use torch.where or arithmetic instead of the branch, or branch on Python values or shapes.",
            example="""\
@graphlift.compile
def f(x):
    if x.sum() > 0:
        return x * 2
    return x

f(torch.ones(3))
""",
            fixed="""\
@graphlift.compile
def f(x):
    return torch.where(x.sum() > 0, x * 2, x)

f(torch.ones(3))
""",
        ),
        Reason(
            "tensor-item",
            "a tensor's value is read into Python (.item(), .tolist(), int(), float())",
            "The number exists only when the graph has run; Python code after it may depend on it.",
            "Keep the value as a tensor, or read it after the compiled function has returned.",
            example="""\
@graphlift.compile
def f(x):
    largest = x.max().item()
    return x / largest

f(torch.ones(3))
""",
            fixed="""\
@graphlift.compile
def f(x):
    largest = x.max()
    return x / largest

f(torch.ones(3))
""",
        ),
        Reason(
            "data-dependent-op",
            "operator whose output shape depends on tensor values",
            "The shape of the result (nonzero, masked_select, unique, ...) is known only when the graph has run.",
            "Use a form with a fixed shape (torch.where with three arguments, a mask and a sum), or move it out.",
            example="""\
@graphlift.compile
def f(x):
    return x[x > 0].sum()

f(torch.ones(3))
""",
            fixed="""\
@graphlift.compile
def f(x):
    return torch.where(x > 0, x, 0.0).sum()

f(torch.ones(3))
""",
        ),
        Reason(
            "unbacked-size",
            "a decision about a number that only the running graph knows",
            "The number was drawn from a random generator; or it was read from a tensor, or is how many elements an "
            "operator found, and was captured as such (config.capture_scalar_outputs, "
            "config.capture_dynamic_output_shape_ops). Python needs an answer now.",
            "State the fact with graphlift.check(condition) before it is needed: the graph then checks it in each call.",
            example="""\
@graphlift.config.patch(capture_scalar_outputs=True)
def run(compiled):
    compiled(torch.tensor(3), torch.ones(8))

@graphlift.compile
def f(count, x):
    n = count.item()
    if n > 5:
        return x.sum()
    return x * n

run(f)
""",
            fixed="""\
@graphlift.config.patch(capture_scalar_outputs=True)
def run(compiled):
    compiled(torch.tensor(3), torch.ones(8))

@graphlift.compile
def f(count, x):
    n = count.item()
    graphlift.check(n <= 5)
    if n > 5:
        return x.sum()
    return x * n

run(f)
""",
        ),
        Reason(
            "print-or-io",
            "input or output (print, logging, files, warnings)",
            "The effect must happen at this point of every call, so it runs in Python between two graphs.",
            "Remove it, or guard it with `if not torch.compiler.is_compiling():`.",
            example="""\
@graphlift.compile
def f(x):
    print("step")
    return x * 2

f(torch.ones(3))
""",
            fixed="""\
@graphlift.compile
def f(x):
    if not torch.compiler.is_compiling():
        print("step")
    return x * 2

f(torch.ones(3))
""",
        ),
        Reason(
            "weak-reference",
            "weak reference that cannot be followed",
            "What it refers to may have ended by then, which only the interpreter knows; a callback runs when it does.",
            "Follow the reference outside the compiled function and pass the object, or hold the object.",
            example="""\
import weakref

class Owner:
    scale = 2

@graphlift.compile
def f(x, ended):
    owner = Owner()
    reference = weakref.ref(owner, ended.append)
    return x * reference().scale

f(torch.ones(3), [])
""",
            fixed="""\
import weakref

class Owner:
    scale = 2

@graphlift.compile
def f(x):
    owner = Owner()
    reference = weakref.ref(owner)
    return x * reference().scale

f(torch.ones(3))
""",
        ),
        Reason(
            "class-definition",
            "class that is made by the captured code and outlives it, or that capture cannot make",
            "Each call makes a class of its own; one that only the captured code sees is made once, while capturing.",
            "Define the class outside the compiled function.",
            example="""\
@graphlift.compile
def f(x):
    class Result:
        pass

    result = Result()
    result.value = x * 2
    return result

f(torch.ones(3))
""",
            fixed="""\
class Result:
    pass

@graphlift.compile
def f(x):
    result = Result()
    result.value = x * 2
    return result

f(torch.ones(3))
""",
        ),
        Reason(
            "unsupported-opcode",
            "bytecode instruction that is not supported",
            "Capture has no rule for this instruction, so it runs natively.",
            "Rewrite the line with simpler Python; the instruction is named in the detail.",
        ),
        Reason(
            "generator",
            "generator or coroutine that cannot be captured",
            "The body of the generator is suspended and resumed by code that capture does not see.",
            "Use a list or a comprehension instead of the generator.",
            example="""\
import asyncio

async def double(x):
    return x * 2

@graphlift.compile
def f(x):
    return double(x)

asyncio.run(f(torch.ones(3)))
""",
            fixed="""\
def double(x):
    return x * 2

@graphlift.compile
def f(x):
    return double(x)

f(torch.ones(3))
""",
        ),
        Reason(
            "context-manager",
            "context manager that is not modelled",
            "Entering and leaving it may change state that capture does not know.",
            "Enter the context outside the compiled function.",
            example="""\
mode = torch.inference_mode()

@graphlift.compile
def f(x):
    mode.__exit__(None, None, None)
    return x * 2

mode.__enter__()
f(torch.ones(3))
""",
            fixed="""\
@graphlift.compile
def f(x):
    with torch.inference_mode():
        x = x + 1
    return x * 2

f(torch.ones(3))
""",
        ),
        Reason(
            "requested-break",
            "graph break requested by graphlift.graph_break() or torch._dynamo.graph_break()",
            "The program asks for it.",
            "Remove the call.",
            example="""\
@graphlift.compile
def f(x):
    x = x + 1
    graphlift.graph_break()
    return x * 2

f(torch.ones(3))
""",
            fixed="""\
@graphlift.compile
def f(x):
    x = x + 1
    return x * 2

f(torch.ones(3))
""",
        ),
        Reason(
            "disabled-function",
            "call of a function marked with graphlift.disable or torch.compiler.disable",
            "The function asks to be run by Python as it is.",
            "Remove the mark, or call the function outside the compiled function.",
            example="""\
@graphlift.disable
def helper(x):
    return x + 1

@graphlift.compile
def f(x):
    return helper(x) * 2

f(torch.ones(3))
""",
            fixed="""\
def helper(x):
    return x + 1

@graphlift.compile
def f(x):
    return helper(x) * 2

f(torch.ones(3))
""",
        ),
        Reason(
            "unsupported-fake-op",
            "tensor operator that failed on fake tensors",
            "Capture runs each operator once on metadata alone; this one has no metadata implementation.",
            "Register a fake implementation (torch.library.register_fake), or mark the caller with graphlift.disable.",
            example="""\
@torch.library.custom_op("example_without_fake::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@graphlift.compile
def f(x):
    return twice(x) + 1

f(torch.ones(3))
""",
            fixed="""\
@torch.library.custom_op("example_with_fake::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@twice.register_fake
def _(x):
    return torch.empty_like(x)

@graphlift.compile
def f(x):
    return twice(x) + 1

f(torch.ones(3))
""",
        ),
        Reason(
            "exception-raised",
            "exception raised while capturing",
            "The code raised with these inputs; it runs in Python so that the exception is the user's own.",
            "Nothing, if the exception is meant; otherwise fix the cause shown in the detail.",
            example="""\
@graphlift.compile
def f(x, weight):
    return x @ weight

try:
    f(torch.ones(3), torch.ones(2, 2))
except RuntimeError as error:
    print(error)
""",
            fixed="""\
@graphlift.compile
def f(x, weight):
    return x @ weight

f(torch.ones(3), torch.ones(3, 2))
""",
        ),
        Reason(
            "attribute-mutation",
            "change of an attribute that cannot be replayed",
            "The object has a __setattr__ of its own in C, or the attribute is one that the interpreter itself looks at.",
            "Return the new value instead of storing it, or store it outside the compiled function.",
            example="""\
class Box:
    pass

class Opened(Box):
    pass

@graphlift.compile
def f(x, box):
    box.__class__ = Opened
    return x * 2

f(torch.ones(3), Box())
""",
            fixed="""\
class Box:
    opened = False

@graphlift.compile
def f(x, box):
    box.opened = True
    return x * 2

f(torch.ones(3), Box())
""",
        ),
        Reason(
            "unsupported-mutation",
            "change of an object that cannot be replayed",
            "Changes are replayed after the graph, and this object's type has no rule for that.",
            "Use a list, a dict or an attribute of a plain object, or do it outside the compiled function.",
            example="""\
@graphlift.compile
def f(x, data):
    data[0] = 1
    return x * 2

f(torch.ones(3), bytearray(2))
""",
            fixed="""\
@graphlift.compile
def f(x, data):
    data[0] = 1
    return x * 2

f(torch.ones(3), [0, 0])
""",
        ),
        Reason(
            "unsupported-object",
            "object of a type that is not supported",
            "Capture has no rule to guard or rebuild a value of this type.",
            "Pass what is needed of it as plain values (numbers, strings, tensors, lists, dicts).",
            example="""\
@graphlift.compile
def f(x):
    generator = torch.Generator()
    return x * torch.rand(3, generator=generator)

f(torch.ones(3))
""",
            fixed="""\
generator = torch.Generator()

@graphlift.compile
def f(x):
    return x * torch.rand(3, generator=generator)

f(torch.ones(3))
""",
        ),
        Reason(
            "unsupported-attribute",
            "attribute access that runs code that cannot be captured",
            "The attribute is computed by a C descriptor or by code that capture cannot inline.",
            "Read the attribute outside the compiled function and pass the value.",
            example="""\
@graphlift.compile
def f(x):
    return x * 2, x.grad_fn

f(torch.ones(3, requires_grad=True) * 1)
""",
            fixed="""\
@graphlift.compile
def f(x):
    return x * 2

f(torch.ones(3, requires_grad=True)).grad_fn
""",
        ),
        Reason(
            "grad-fn-read",
            "grad_fn of a tensor made in the captured code",
            "Hooks on the node, and its successors, are those of operators in eager; a compiled graph has one node for all. "
            "`Module.register_backward_hook` reads it too.",
            "Use `Tensor.register_hook` or `Module.register_full_backward_hook`, or read it outside the compiled function.",
            example="""\
@graphlift.compile
def f(x):
    y = x * 2
    return y, y.grad_fn

f(torch.ones(3, requires_grad=True))
""",
            fixed="""\
@graphlift.compile
def f(x):
    y = x * 2
    y.register_hook(lambda grad: grad * 2)
    return y

f(torch.ones(3, requires_grad=True))
""",
        ),
        Reason(
            "backward-call",
            "backward() in the captured code",
            "It runs the backward of what came before, and adds to the `.grad` of every leaf that the history leads to, "
            "which only autograd knows.",
            "Nothing need be done: the forward, its backward and what follows, such as the optimizer's step, are compiled "
            "all the same. Where gradients are used as values, `torch.autograd.grad` is captured.",
            example="""\
w = torch.ones(3, requires_grad=True)

@graphlift.compile
def f(x):
    (w * x).sum().backward()
    return w.grad * 2

f(torch.ones(3))
""",
            fixed="""\
w = torch.ones(3, requires_grad=True)

@graphlift.compile
def f(x):
    (grad,) = torch.autograd.grad((w * x).sum(), w)
    return grad * 2

f(torch.ones(3))
""",
        ),
        Reason(
            "unsupported-call",
            "call that cannot be inlined",
            "The callee's arguments, defaults or body use something that capture does not support.",
            "See the detail; simplify the callee or mark it with graphlift.disable to accept the break.",
            example="""\
@graphlift.compile
def f(x):
    return x * 2, x.data_ptr()

f(torch.ones(3))
""",
            fixed="""\
@graphlift.compile
def f(x):
    return x * 2

f(torch.ones(3)), torch.ones(3).data_ptr()
""",
        ),
        Reason(
            "unsupported-tensor-subclass",
            "tensor subclass or mode that is not supported",
            "The type overrides how tensor operations behave, in Python that capture does not run.",
            "Convert to a plain tensor (.as_subclass(torch.Tensor)) before the compiled function.",
            example="""\
@graphlift.compile
def f(x):
    return x * 2

f(torch.eye(3).to_sparse())
""",
            fixed="""\
@graphlift.compile
def f(x):
    return x * 2

f(torch.eye(3).to_sparse().to_dense())
""",
        ),
        Reason(
            "varying-int",
            "use of an integer that changes from call to call",
            "Several versions were compiled for values of this integer; it is now passed on, and what computes with it "
            "runs natively.",
            "Compute what depends on it outside the compiled function, or with tensors.",
            example="""\
@graphlift.compile(dynamic=False)
def f(x, step):
    return x * step

for step in range(20):
    f(torch.ones(3), step)
""",
            fixed="""\
@graphlift.compile(dynamic=False)
def f(x, step):
    return x * step

for step in range(20):
    f(torch.ones(3), torch.tensor(step))
""",
        ),
        Reason(
            "varying-str",
            "use of a text that changes from call to call",
            "Several versions were compiled for values of this text; it is now passed on, and what looks at it runs "
            "natively.",
            "Look at it outside the compiled function, or pass on what follows from it.",
            example="""\
@graphlift.compile
def f(x, name):
    return x * 2, name.upper()

for step in range(8):
    f(torch.ones(3), f"step {step}")
""",
            fixed="""\
@graphlift.compile
def f(x, name):
    return x * 2, name

for step in range(8):
    f(torch.ones(3), f"step {step}".upper())
""",
        ),
        Reason(
            "frame-introspection",
            "code that looks at its own frame (locals(), sys._getframe, inspect.stack)",
            "The compiled code does not have the frames the code would look at.",
            "Pass the values explicitly.",
            example="""\
@graphlift.compile
def f(x, scale):
    return x * locals()["scale"]

f(torch.ones(3), 2)
""",
            fixed="""\
@graphlift.compile
def f(x, scale):
    return x * scale

f(torch.ones(3), 2)
""",
        ),
        Reason(
            "dynamic-import",
            "import that runs code or cannot be resolved while capturing",
            "The first import of a module runs arbitrary code.",
            "Import at the top of the module.",
            example="""\
@graphlift.compile
def f(x):
    import colorsys
    return x * len(colorsys.__all__)

f(torch.ones(3))
""",
            fixed="""\
import colorsys

@graphlift.compile
def f(x):
    return x * len(colorsys.__all__)

f(torch.ones(3))
""",
        ),
        Reason(
            "inline-limit",
            "inlining or unrolling limit reached",
            "The call chain is too deep or a loop too long to be captured as one graph.",
            "Compile the body of the loop instead of the whole, or use tensor operations for the loop.",
            example="""\
def halve(x, times):
    return x if times == 0 else halve(x / 2, times - 1)

@graphlift.compile
def f(x):
    return halve(x, 300)

f(torch.ones(3))
""",
            fixed="""\
@graphlift.compile
def f(x):
    for _ in range(30):
        x = x / 2
    return x

f(torch.ones(3))
""",
        ),
        Reason(
            "cache-limit",
            "cache_size_limit reached",
            "The guards of every cached entry failed, and no further entry is compiled: the function runs eagerly.",
            "See which guard fails (GRAPHLIFT_LOGS=recompiles) and make that value constant or a tensor, or raise "
            "graphlift.config.cache_size_limit.",
            example="""\
@graphlift.compile
def f(x, names):
    return x * len(names)

for step in range(20):
    f(torch.ones(3), ["name"] * step)
""",
            fixed="""\
@graphlift.compile
def f(x, length):
    return x * length

for step in range(20):
    f(torch.ones(3), torch.tensor(step))
""",
        ),
        Reason(
            "internal-error",
            "fault in graphlift itself",
            "Capture raised an unexpected exception; the function runs eagerly from now on, and the answer is eager's.",
            "Run with GRAPHLIFT_STRICT=1 to see the traceback, and report it.",
        ),
    )
)


_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep


@functools.cache
def is_library(filename: str) -> bool:
    """Whether a file is graphlift's, torch's or the standard library's: no place for the user to change anything."""
    torch = sys.modules.get("torch")
    folder = os.path.dirname(torch.__file__ or "") + os.sep if torch is not None else _PACKAGE
    if filename.startswith((_PACKAGE, folder)):
        return True
    return filename.startswith(_STDLIB) and "-packages" + os.sep not in filename


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One frame of the user's stack, outermost first in `BreakReason.stack`."""

    filename: str
    lineno: int
    name: str

    @property
    def line(self) -> str:
        """The source text of the line, stripped; empty where the file cannot be read."""
        return linecache.getline(self.filename, self.lineno).strip()

    def __str__(self) -> str:
        head = f'File "{self.filename}", line {self.lineno}, in {self.name}'
        return f"{head}\n  {self.line}" if self.line else head


@dataclass(frozen=True, slots=True)
class BreakReason:
    """One graph break: a registered code with what was found, at the user's line.

    `stack`: the user's frames, outermost first (the last one holds `lineno`); may be empty.
    """

    code: str
    detail: str = ""
    filename: str = "<unknown>"
    lineno: int = 0
    stack: tuple[StackFrame, ...] = ()

    def __post_init__(self) -> None:
        if self.code not in REASONS:
            raise ValueError(
                f"unregistered break reason {self.code!r}; add a row to graphlift.capture.reasons"
            )

    @property
    def reason(self) -> Reason:
        """The registered row."""
        return REASONS[self.code]

    @property
    def where(self) -> str:
        """`file:line` of the user's code."""
        return f"{self.filename}:{self.lineno}"

    def headline(self) -> str:
        """One line: code, text and detail."""
        text = f"{self.code}: {self.reason.text}"
        return f"{text} ({self.detail})" if self.detail else text

    @property
    def user_frames(self) -> tuple[StackFrame, ...]:
        """The frames of the stack that are not in torch or the standard library, if there are any; else all."""
        return tuple(frame for frame in self.stack if not is_library(frame.filename)) or self.stack

    def user_stack(self) -> str:
        """The user's stack as a traceback prints it; at least the line itself."""
        if self.stack:
            return "\n".join(str(frame) for frame in self.user_frames)
        line = linecache.getline(self.filename, self.lineno).strip()
        head = f'File "{self.filename}", line {self.lineno}'
        return f"{head}\n  {line}" if line else head

    def __str__(self) -> str:
        return "\n".join(
            [
                self.headline(),
                *(f"  {line}" for line in self.user_stack().splitlines()),
                f"  why: {self.reason.why}",
                f"  what to do: {self.reason.remedy}",
            ]
        )


def breaks_markdown() -> str:
    """The text of `docs/breaks.md`: one section per registered reason."""
    parts = [
        "# Graph breaks",
        "",
        "Generated from `graphlift.capture.reasons` by `make docs`; edit the rows there. A graph break is no error:",
        "the function is split into two graphs and the instruction in question runs in Python. `graphlift.explain(fn)`",
        "lists the breaks of a function; `GRAPHLIFT_LOGS=graph_breaks` prints them as they happen;",
        "`fullgraph=True` turns them into `GraphBreakError`.",
        "",
        *listing(REASONS.values(), "Breaks:", "Does not:"),
    ]
    return "\n".join(parts) + "\n"
