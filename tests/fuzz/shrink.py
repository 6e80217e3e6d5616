"""Makes a failing program small: statements are deleted, blocks become their bodies, expressions their parts.

In: a program, its difference, a time. Out: a smaller program with a difference of the same kind.
Always: a step is kept only if the fault is still there; what is printed can be run by itself.
"""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

from .check import Difference, Slow, check

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def shrink(source: str, backend: str, difference: Difference, seconds: float) -> tuple[str, Difference]:
    """The smallest program found within the time, and what it shows."""
    end = time.monotonic() + seconds
    best, told = ast.parse(source), difference

    def fails(tree: ast.Module) -> Difference | None:
        try:
            found = check(ast.unparse(tree), backend)
        except (Slow, Exception):
            return None
        return found if found is not None and found.kind == difference.kind else None

    for steps in (deletions, deletions, unwrappings, deletions, simplifications, deletions, simplifications):
        position = 0
        while time.monotonic() < end:
            candidate = nth(best, steps, position)
            if candidate is None:
                break
            found = fails(candidate)
            if found is None:
                position += 1
            else:
                best, told = candidate, found
    return ast.unparse(best) + "\n", told


def nth(tree: ast.Module, steps: Callable[[ast.Module], Iterator[Callable[[], None]]], position: int) -> Any:
    """A copy of the tree with the step of that number taken; None past the last."""
    changed = copy.deepcopy(tree)
    for index, step in enumerate(steps(changed)):
        if index == position:
            step()
            return ast.fix_missing_locations(changed)
    return None


def deletions(tree: ast.Module) -> Iterator[Callable[[], None]]:
    """Deleting runs of statements, larger ones first, then the calls."""
    bodies = list(statement_lists(tree))
    for size in (8, 4, 2, 1):
        for owner, name, body in bodies:
            if size > 1 and len(body) < size:
                continue
            for start in range(len(body) - size, -1, -size):
                yield lambda o=owner, n=name, s=start, k=size: delete(o, n, s, k)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List) and is_calls(node):
            for index in range(len(node.value.elts)):
                yield lambda v=node.value, i=index: v.elts.pop(i)


def is_calls(node: ast.Assign) -> bool:
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id == "CALLS"


def delete(owner: Any, name: str, start: int, count: int) -> None:
    body = getattr(owner, name)
    del body[start : start + count]
    if not body and name == "body" and not isinstance(owner, ast.Module):
        body.append(ast.Pass())


def statement_lists(tree: ast.AST) -> Iterator[tuple[Any, str, list[Any]]]:
    for node in ast.walk(tree):
        for name in _BODIES:
            body = getattr(node, name, None)
            if isinstance(body, list) and body and not (len(body) == 1 and isinstance(body[0], ast.Pass)):
                yield node, name, body


def unwrappings(tree: ast.Module) -> Iterator[Callable[[], None]]:
    """A block replaced by its body or its else."""
    for owner, name, body in list(statement_lists(tree)):
        for index, node in enumerate(body):
            for inner in _BODIES:
                parts = getattr(node, inner, None)
                if isinstance(parts, list) and parts and isinstance(parts[0], ast.stmt):
                    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                        yield lambda o=owner, n=name, i=index, p=parts: splice(o, n, i, p)


def splice(owner: Any, name: str, index: int, parts: list[ast.stmt]) -> None:
    getattr(owner, name)[index : index + 1] = parts


def simplifications(tree: ast.Module) -> Iterator[Callable[[], None]]:
    """An expression replaced by one inside it, or an element of it removed."""
    for node in list(ast.walk(tree)):
        for name, value in list(ast.iter_fields(node)):
            if isinstance(value, ast.expr) and isinstance(getattr(value, "ctx", ast.Load()), ast.Load):
                for child in ast.iter_child_nodes(value):
                    if isinstance(child, ast.expr):
                        yield lambda n=node, f=name, c=child: setattr(n, f, c)
                if not isinstance(value, ast.Constant | ast.Name):
                    yield lambda n=node, f=name: setattr(n, f, ast.Constant(1))
                    yield lambda n=node, f=name: setattr(n, f, ast.Name("x", ast.Load()))
            elif isinstance(value, list) and value and isinstance(value[0], ast.expr | ast.keyword):
                for index in range(len(value)):
                    yield lambda v=value, i=index: v.pop(i)
