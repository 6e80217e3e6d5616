"""Programs that random testing found to differ from eager, shrunk by hand or by machine: each once was a fault."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

import pytest

from .check import check

HEAD = """\
import collections, contextlib, copy, functools, itertools
import torch
import graphlift

DTYPE = torch.float32
SEEN = lambda scope, value: None
KEPT = []

@graphlift.disable
def opaque(value):
    SEEN(globals(), value)
    return value

def made(seed, rows=2, grad=False):
    tensor = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))
    return tensor.requires_grad_() if grad else tensor

"""


@dataclass(frozen=True, slots=True)
class Found:
    """A program, and the arguments of its calls."""

    name: str
    program: str
    calls: tuple[str, ...]

    def source(self) -> str:
        calls = "".join(f"def call_{i}():\n    return {text}\n\n" for i, text in enumerate(self.calls))
        names = ", ".join(f"call_{i}" for i in range(len(self.calls)))
        return f"{HEAD}{dedent(self.program)}\n{calls}CALLS = [{names}]\n"


FOUND = (
    Found(
        "an iterator sees the list it extends grow",
        """
        def program(x, items):
            items.extend(itertools.islice((x + len(items) for _ in items), 3))
            items += (item * 2 for item in list(items))
            return items
        """,
        ("made(1), [made(2)]", "made(1), [made(2), made(3)]"),
    ),
    Found(
        "copy of an object with slots",
        """
        class Slotted:
            __slots__ = ("v", "w")

            def __init__(self, v):
                self.v = v

        class Both(Slotted):
            def __init__(self, v):
                super().__init__(v)
                self.n = 1

        def program(x):
            return copy.copy(Slotted(x)).v + 1, copy.copy(Both(x)), hasattr(copy.copy(Both(x)), "w")
        """,
        ("made(1),", "made(2),"),
    ),
    Found(
        "a bound class method of a builtin lives across a break",
        """
        def program(x):
            return dict.fromkeys(opaque([1, 2]), x)
        """,
        ("made(1),",),
    ),
    Found(
        "change in place of a view of a leaf",
        """
        def program(x, y):
            KEPT.append(1)
            y *= 2
            return y
        """,
        (
            "made(1), made(2)",
            "made(1, 2, True), made(2)",
            "(x := made(1, 2, True)), x[:]",
            "(x := made(1, 2, True)), x * 1",
        ),
    ),
    Found(
        "a generator knows the function that made it",
        """
        def helper(t):
            return t

        def program(x):
            @functools.wraps(helper)
            def steps(t, *rest, k=1, **more):
                yield t
            return steps(x, 1, k=2, z=3)
        """,
        ("made(1),",),
    ),
    Found(
        "index assignment that eager refuses",
        """
        def program(x, index):
            KEPT.append(len(KEPT))
            try:
                x[index] = 0.25
            except (IndexError, RuntimeError) as error:
                KEPT.append(type(error).__name__)
                raise
            return x
        """,
        (
            "made(1), [0]",
            "made(1), made(2) > 0",
            "(x := made(1)), x",
            "made(1), made(2, 3) > 0",
            "made(1), made(2)",
        ),
    ),
    Found(
        "the text of an error is eager's",
        """
        def program(x, y):
            try:
                return x @ y
            except RuntimeError as error:
                KEPT.append(str(error))
        """,
        ("made(1), made(1)", "made(1), made(1).t()"),
    ),
    Found(
        "a generator dropped inside its try runs its finally",
        """
        def steps(t):
            try:
                yield t
                yield t + 1
            finally:
                KEPT.append("closed")

        def program(x):
            first = next(steps(x))
            for step in steps(x):
                if step.shape[0]:
                    break
            del step
            return first + 1
        """,
        ("made(1),", "made(2),"),
    ),
    Found(
        "errors of deleted attributes",
        """
        class Slotted:
            __slots__ = ("v",)

        class Plain:
            pass

        def program(x, thing):
            try:
                del thing.absent
            except AttributeError as error:
                KEPT.append(error.args)
            try:
                thing.other = 1
            except AttributeError as error:
                KEPT.append(error.args)
            return x + 1
        """,
        ("made(1), Plain()", "made(1), Slotted()"),
    ),
    Found(
        "items moved in a list are guarded to be what they were",
        """
        def program(x, items):
            y = x + 1
            items.reverse()
            items.insert(-1, y)
            return y
        """,
        (
            "(x := made(1)), [x, made(2)]",
            "(x := made(1)), [made(3), made(2)]",
            "(x := made(1)), [made(3), x]",
        ),
    ),
    Found(
        "items of objects of C classes",
        """
        def program(x, data):
            try:
                data[0] = 1
                del data[1]
            except TypeError as error:
                KEPT.append(str(error))
            return x + 1
        """,
        ("made(1), bytearray(3)", "made(1), [0, 0]", "made(1), (0, 0)"),
    ),
    Found(
        "what a slice of a list takes",
        """
        def program(x, items, value):
            try:
                items[0:1] = value
            except TypeError as error:
                KEPT.append(str(error))
            return x + 1
        """,
        ("made(1), [1, 2], 5", "made(1), [1, 2], {7: 8}", "made(1), [1, 2], (9, 9)"),
    ),
    Found(
        "an exception made outside is set up and raised inside",
        """
        class Fault(Exception):
            def __init__(self, message, code=0):
                super().__init__(code)

        def program(x):
            try:
                raise Fault("a")
            except Fault:
                raise Fault("b")
        """,
        ("made(1),", "made(2),"),
    ),
    Found(
        "an exception passed in is raised inside and caught",
        """
        def program(x, error):
            try:
                try:
                    raise KeyError(1)
                except KeyError:
                    raise error from None
            except ValueError as caught:
                KEPT.append(caught)
            return x + 1
        """,
        ("made(1), ValueError(1)", "made(1), ValueError(2)"),
    ),
    Found(
        "object.__init__ takes no arguments",
        """
        class Thing:
            def __init__(self, v):
                super().__init__(v)

        def program(x):
            return Thing(x)
        """,
        ("made(1),",),
    ),
    Found(
        "a question about a varying integer that its range answers",
        """
        def program(x, n):
            if n > 1:
                return x
            return x + 1
        """,
        ("made(1), 0", "made(1), 2", "made(1), 0", "made(1), 3", "made(1), 1", "made(1), -1"),
    ),
    Found(
        "a dict changed under its own iterator",
        """
        def program(x, table):
            for name, value in table.items():
                table.clear()
            return x + 1
        """,
        ("made(1), {'a': 1, 'b': 2}", "made(1), {'a': 1}", "made(1), {}"),
    ),
    Found(
        "a context left by an exception ends its generator",
        """
        @contextlib.contextmanager
        def noted(log, value):
            try:
                yield value
            finally:
                log.append(-value)

        def program(x):
            try:
                with noted(KEPT, 3):
                    raise RuntimeError
            except Exception as error:
                x = x + 1
            return x
        """,
        ("made(1),", "made(2),"),
    ),
    Found(
        "contexts on a stack end",
        """
        class Count:
            total = 0

            def __enter__(self):
                return self

            def __exit__(self, *exception):
                Count.total += 10

        class Owner:
            def run(self, t):
                with contextlib.ExitStack() as stack:
                    stack.enter_context(Count())
                return t + 1

        def program(x):
            try:
                Owner().run(x)
            finally:
                return Count.total
        """,
        ("made(1),", "made(2),"),
    ),
    Found(
        "copies ask for slots as for any attribute",
        """
        KEPT = []

        class Base:
            __slots__ = ("extra", "other")

            def __getattr__(self, name):
                if name == "extra":
                    return 7
                raise AttributeError(name)

            def __setattr__(self, name, value):
                KEPT.append((name, value))

        def program(x):
            copy.copy(Base())
            return x + len(KEPT)
        """,
        ("made(1),", "made(2),"),
    ),
    Found(
        "loops over subclasses of list that became shorter",
        """
        class Items(list):
            pass

        ITEMS = Items([1, 2, 3])

        def program(x):
            seen = []
            for item in ITEMS:
                ITEMS.clear()
                graphlift.graph_break()
                seen.append(item)
                ITEMS.extend([8, 9])
            return seen
        """,
        ("made(1),", "made(2),"),
    ),
    Found(
        "iterators behind the end of lists that became shorter",
        """
        def program(x):
            seen = []
            for way in (iter, reversed):
                items = [1, 2, 3, 4, 5]
                iterator = way(items)
                next(iterator), next(iterator)
                items.clear()
                items.append(9)
                graphlift.graph_break()
                seen += [*map(str, iterator), "end"]
                items += [7, 8, 9, 10]
                seen += [*iterator]
            return seen
        """,
        ("made(1),", "made(2),"),
    ),
    Found(
        "a generator ends with its last reference where C code asked for an attribute that is missing",
        """
        def careful(t):
            try:
                yield t
            finally:
                KEPT.append("end")

        def program(x):
            g = careful(x)
            next(g)
            opaque(1)
            dict(zip("ab", [1, 2]))
            try:
                sorted([1, 2], key=lambda i: {}[i])
            except KeyError as error:
                x = x + error.args[0]
            return x, g
        """,
        ("made(1),", "made(2),"),
    ),
    Found(
        "numbers that scale an operand and that eager refuses, after a write",
        """
        def program(x, other):
            x *= 0.5
            seen = []
            for scale in (False, 0.5, 1j):
                for operation in (torch.add, torch.sub, torch.rsub):
                    for right in (x, 1):
                        try:
                            seen.append(operation(other, right, alpha=scale))
                        except RuntimeError as error:
                            seen.append(str(error))
                try:
                    seen += torch._foreach_add([x, other], [other, other], alpha=scale)
                except RuntimeError as error:
                    seen.append(str(error))
            return tuple(seen)
        """,
        ("made(1), made(2)", "made(1), torch.ones(3, dtype=torch.int64)", "made(1), torch.tensor(True)"),
    ),
    Found(
        "calls that break inside a builtin that took items before",
        """
        def program(x):
            chosen = max(map(opaque, [1, 2])), sorted(map(opaque, "ba")), "".join(map(opaque, "ab"))
            return chosen, list(map(opaque, [x, x + 1])), {*filter(opaque, (0, 1, 2))}, sum(map(opaque, (1, 2)))
        """,
        ("made(1),", "made(2),"),
    ),
    Found(
        "global state set to what torch refuses",
        """
        def program(x, mode):
            y = x + 1
            graphlift.graph_break()
            try:
                torch.set_grad_enabled(mode)
                torch.set_default_dtype(mode)
            except TypeError as error:
                y = y, str(error)
            torch.use_deterministic_algorithms(mode)
            return y
        """,
        ("made(1), 0", "made(1), []", "made(1), None", "made(1), 'yes'"),
    ),
    Found(
        "a key that is the text of a shape that varies",
        """
        TABLE = {"torch.Size([4])": 1}

        def take(t):
            TABLE.pop(f"{t.shape}", None)

        def program(x, d):
            d |= {"b": max([torch.ones(2), x], key=lambda t: t.shape[0])}
            if take(x):
                return d
            return x + len(TABLE), dict(TABLE), d
        """,
        tuple(f"torch.ones({n}), {{}}" for n in (3, 2, 5, 4, 2)),
    ),
    Found(
        "texts of tensors that their kinds refuse",
        """
        def program(x):
            y, seen = x + 1, []
            whole, flags, number = y.sum().long(), y.sum() > 0, y.sum() * 1j
            for call in (lambda: f"{y:.2f}", lambda: f"{y.sum():d}", lambda: "{:d}{:.1f}".format(whole, flags),
                         lambda: f"{number:d}", lambda: f"{number:.1f}", lambda: f"{whole:x}{y.sum():>9.2e}",
                         lambda: f"{torch.nn.Parameter(y.sum()):.1f}", lambda: f"{y[0]:}{y.mean()}"):
                try:
                    seen.append(call())
                except (TypeError, ValueError) as error:
                    seen.append(error)
            return seen
        """,
        ("made(1),", "made(2),"),
    ),
)


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.name.replace(" ", "-"))
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_found(found: Found, backend: str) -> None:
    difference = check(found.source(), backend)
    assert difference is None, f"{difference}\n{found.source()}"
