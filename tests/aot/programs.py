"""Random tensor programs over views, writes and shared inputs, and an exact comparison of two ways to run them.

In: a `pick(n)` that chooses below n. Out: a Program whose `run(*inputs)` is plain torch.
Always: a program runs in eager without error on the inputs it was made with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

Pick = Callable[[int], int]


MODES: dict[str, Callable[[], Any]] = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


@dataclass(frozen=True)
class Statement:
    name: str
    operands: tuple[int, ...]
    run: Callable[..., Any]
    mode: str | None
    result: bool  # whether it makes a new variable

    def __str__(self) -> str:
        made = "v = " if self.result else ""
        mode = f" [{self.mode}]" if self.mode else ""
        return f"{made}{self.name}({', '.join(f'v{i}' for i in self.operands)}){mode}"


@dataclass
class Program:
    kinds: tuple[str, ...]
    statements: list[Statement]
    returned: tuple[int, ...]

    def run(self, *inputs: Tensor) -> tuple:
        env: list[Any] = list(inputs)
        for s in self.statements:
            execute(s, env)
        return tuple(env[k] for k in self.returned)

    def __str__(self) -> str:
        lines = [f"inputs: {', '.join(self.kinds)}"]
        k = len(self.kinds)
        for s in self.statements:
            text = str(s)
            if s.result:
                text = f"v{k}" + text[1:]
                k += 1
            lines.append(text)
        return "\n".join([*lines, f"return {self.returned}"])


def execute(s: Statement, env: list[Any]) -> None:
    operands = [env[i] for i in s.operands]
    if s.mode:
        with MODES[s.mode]():
            made = s.run(*operands)
    else:
        made = s.run(*operands)
    if s.result:
        env.append(made)


INPUT_KINDS = (
    "plain",
    "leaf",
    "nonleaf",
    "transposed",
    "view of leaf",
    "int",
    "slice",
    "alias of first",
    "again",
    "parameter",
    "complex",
    "empty",
    "expanded",
    "low precision",
    "view of first",
    "half of first",
)


def make_inputs(kinds: Sequence[str], seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs, and the leaves behind them whose gradients are compared."""
    g = torch.Generator().manual_seed(seed)
    inputs: list[Tensor] = []
    leaves: list[Tensor] = []
    for kind in kinds:
        data = torch.randn(3, 4, generator=g)
        if kind == "plain":
            t = data
        elif kind == "leaf":
            t = data.requires_grad_()
            leaves.append(t)
        elif kind == "nonleaf":
            leaves.append(data.requires_grad_())
            t = data * 1.5
        elif kind == "transposed":
            t = torch.randn(4, 3, generator=g).t()
        elif kind == "view of leaf":
            leaves.append(data.requires_grad_())
            t = (data * 0.5).view(4, 3).t()
        elif kind == "int":
            t = torch.randint(-5, 5, (3, 4), generator=g)
        elif kind == "slice":
            t = torch.randn(5, 9, generator=g)[1:4, 1:9:2]
        elif kind == "parameter":
            leaves.append(t := torch.nn.Parameter(data))
        elif kind == "complex":
            t = torch.randn(3, 4, dtype=torch.complex64, generator=g)
        elif kind == "empty":
            t = torch.empty(0)
        elif kind == "expanded":
            t = torch.randn(4, generator=g).expand(3, 4)
        elif kind == "low precision":
            t = data.bfloat16()
        elif kind == "view of first":
            t = inputs[0].view_as(inputs[0]) if inputs else data
        elif kind == "half of first":
            t = inputs[0].detach()[1:] if inputs and inputs[0].dim() else data
        elif kind == "alias of first":
            t = inputs[0].detach()[..., :2] if inputs else data
        else:
            t = inputs[0] if inputs else data
        inputs.append(t)
    return inputs, leaves


def _views(pick: Pick) -> tuple[str, Callable]:
    i = pick(3)
    return _chosen(
        pick,
        ("select", lambda a: a[i % a.shape[0]]),
        ("slice", lambda a: a[..., i % 2 :]),
        ("step", lambda a: a[::2]),
        ("t", lambda a: a.transpose(0, -1)),
        ("T", lambda a: a.T),
        ("mT", lambda a: a.mT),
        ("mH", lambda a: a.mH),
        ("H", lambda a: a.H),
        ("adjoint", lambda a: a.adjoint()),
        ("swapaxes", lambda a: a.swapaxes(0, -1)),
        ("unsqueeze", lambda a: a.unsqueeze(i % (a.dim() + 1))),
        ("squeeze", lambda a: a.squeeze()),
        ("squeeze dim", lambda a: a.squeeze(0)),
        ("view", lambda a: a.view(-1)),
        ("reshape", lambda a: a.reshape(-1)),
        ("view2", lambda a: a.view(2, -1)),
        ("unflatten", lambda a: a.unflatten(-1, (2, -1))),
        ("permute", lambda a: a.permute(*reversed(range(a.dim())))),
        ("expand", lambda a: a.expand(2, *a.shape)),
        ("expand_as", lambda a: a[:1].expand_as(a)),
        ("broadcast", lambda a: torch.broadcast_to(a, (2, *a.shape))),
        ("detach", lambda a: a.detach()),
        ("data", lambda a: a.data),
        ("diagonal", lambda a: a.diagonal()),
        ("diagonal 1", lambda a: a.diagonal(1)),
        ("unbind", lambda a: a.unbind(0)[-1]),
        ("chunk", lambda a: a.chunk(2, -1)[0]),
        ("split", lambda a: a.split(1, 0)[i % a.shape[0]]),
        ("split sizes", lambda a: a.split([1, a.shape[0] - 1])[1]),
        ("tensor_split", lambda a: a.tensor_split(3, -1)[i]),
        ("narrow", lambda a: a.narrow(0, 1, a.shape[0] - 1)),
        ("unfold", lambda a: a.unfold(0, 2, 1)),
        ("unfold apart", lambda a: a.unfold(-1, 2, 2)),
        ("as_strided", lambda a: a.as_strided((2, 2), (a.stride(0), 1))),
        ("as_strided at", lambda a: a.as_strided((2,), (1,), a.storage_offset() + 1)),
        ("view_as", lambda a: a.view_as(a)),
        ("flatten", lambda a: a.flatten()),
        ("ravel", lambda a: a.ravel()),
        ("contiguous", lambda a: a.contiguous()),
        ("to_int_view", lambda a: a.view(torch.int32)),
        ("to_short_view", lambda a: a.view(torch.int16)),
        ("to_float_view", lambda a: a.view(torch.float32)),
        ("real", lambda a: a.real),
        ("imag", lambda a: a.imag),
        ("conj", lambda a: a.conj()),
        ("view_as_real", lambda a: torch.view_as_real(a)),
        ("view_as_complex", lambda a: torch.view_as_complex(a.unflatten(-1, (-1, 2)))),
        ("movedim", lambda a: a.movedim(0, -1)),
        ("none index", lambda a: a[None, ..., None]),
        ("whole", lambda a: a[:]),
        ("alias", lambda a: torch.ops.aten.alias(a)),
        ("self", lambda a: a),
    )


def _chosen(pick: Pick, *rows: tuple[str, Callable]) -> tuple[str, Callable]:
    return rows[pick(len(rows))]


def _writes(pick: Pick) -> tuple[str, Callable]:
    i = pick(3)
    return _chosen(
        pick,
        ("add_", lambda a, b: a.add_(1)),
        ("mul_", lambda a, b: a.mul_(2)),
        ("add_b", lambda a, b: a.add_(b)),
        ("mul_b", lambda a, b: a.mul_(b)),
        ("copy_", lambda a, b: a.copy_(b)),
        ("copy_ double", lambda a, b: a.copy_(b.double())),
        ("copy_ int", lambda a, b: a.copy_(torch.arange(a.shape[-1]))),
        ("zero_", lambda a, b: a.zero_()),
        ("fill_", lambda a, b: a.fill_(3)),
        ("setitem", lambda a, b: a.__setitem__(i % a.shape[0], 7.0)),
        ("setitem_b", lambda a, b: a.__setitem__((..., slice(0, 1)), b[..., :1])),
        ("setitem mask", lambda a, b: a.__setitem__(a > 0, 2)),
        ("setitem list", lambda a, b: a.__setitem__([0, -1], b[:2])),
        ("setitem tensors", lambda a, b: a.__setitem__((torch.tensor([0]), ..., torch.tensor([1])), 4)),
        ("setitem step", lambda a, b: a.__setitem__((..., slice(None, None, 2)), -3)),
        ("setitem all", lambda a, b: a.__setitem__(slice(None), b)),
        ("iadd_item", lambda a, b: a.__setitem__(0, a[0].add_(1))),
        ("index_put_", lambda a, b: a.__setitem__(torch.tensor([0, -1]), 5)),
        ("index_put_ sum", lambda a, b: a.index_put_((torch.tensor([0, 0]),), b[:2], accumulate=True)),
        ("index_fill_", lambda a, b: a.index_fill_(-1, torch.tensor([0]), 2)),
        ("index_copy_", lambda a, b: a.index_copy_(0, torch.tensor([1]), b[:1])),
        ("scatter_", lambda a, b: a.scatter_(0, torch.zeros_like(a, dtype=torch.int64)[:1], 6)),
        ("scatter_add_", lambda a, b: a.scatter_add_(0, torch.zeros_like(a, dtype=torch.int64)[:2], b[:2])),
        ("masked_scatter_", lambda a, b: a.masked_scatter_(torch.ones_like(a, dtype=torch.bool), b)),
        ("fill_diagonal_", lambda a, b: a.fill_diagonal_(9)),
        ("tril_", lambda a, b: a.tril_()),
        ("masked", lambda a, b: a.masked_fill_(b > 0, -1)),
        ("sin_", lambda a, b: a.sin_()),
        ("clamp_", lambda a, b: a.clamp_(-1, 1)),
        ("relu_", lambda a, b: torch.relu_(a)),
        ("lerp_", lambda a, b: a.lerp_(b, 0.25)),
        ("out", lambda a, b: torch.add(a, 1, out=a)),
        ("out b", lambda a, b: torch.mul(b, 2, out=a)),
        ("data_add", lambda a, b: a.data.add_(1)),
        ("detach_mul", lambda a, b: a.detach().mul_(3)),
        ("real_mul", lambda a, b: a.real.mul_(2)),
        ("imag_add", lambda a, b: a.imag.add_(1)),
        ("conj_physical_", lambda a, b: a.conj_physical_()),
        ("swap", lambda a, b: (t := a.clone(), a.copy_(b), b.copy_(t))),
        ("addcmul_", lambda a, b: a.addcmul_(b, b, value=0.5)),
        ("index_add_", lambda a, b: a.index_add_(0, torch.tensor([0]), b[:1])),
        ("cumsum_", lambda a, b: a.cumsum_(0)),
        ("t_", lambda a, b: a.t_()),
        ("unsqueeze_", lambda a, b: a.unsqueeze_(0)),
        ("squeeze_", lambda a, b: a.squeeze_()),
        ("transpose_", lambda a, b: a.transpose_(0, -1)),
        ("as_strided_", lambda a, b: a.as_strided_((2,), (1,))),
        ("detach_", lambda a, b: a.detach_()),
        ("resize_", lambda a, b: a.resize_(2, 2).zero_()),
        ("set_", lambda a, b: a.set_(b)),
        ("requires_grad_", lambda a, b: a.requires_grad_()),
        ("foreach", lambda a, b: torch._foreach_add_([a, b], 1)),
        ("foreach views", lambda a, b: torch._foreach_mul_(list(a.unbind(0)), 2.0)),
        ("dropout_", lambda a, b: torch.nn.functional.dropout(a, 0.3, inplace=True)),
        ("normal_", lambda a, b: a.normal_()),
        ("random_", lambda a, b: a.random_(5)),
        ("bernoulli_", lambda a, b: a.bernoulli_(0.5)),
    )


def _pure(pick: Pick) -> tuple[str, Callable]:
    return _chosen(
        pick,
        ("mul", lambda a, b: a * 2),
        ("add", lambda a, b: a + b),
        ("sin", lambda a, b: a.sin()),
        ("prod", lambda a, b: a * b),
        ("sum", lambda a, b: a.sum()),
        ("clone", lambda a, b: a.clone()),
        ("where", lambda a, b: torch.where(a > 0, a, b)),
        ("zeros_like", lambda a, b: torch.zeros_like(a)),
        ("float", lambda a, b: a.float()),
        ("dropout", lambda a, b: torch.nn.functional.dropout(a, 0.5)),
        ("tensor", lambda a, b: torch.tensor([1.0, 2.0, 3.0])),
        ("exp", lambda a, b: (a * 0.1).exp()),
        ("rand", lambda a, b: torch.rand_like(a, dtype=torch.float32)),
        ("matmul", lambda a, b: a.matmul(b.mT)),
        ("cat", lambda a, b: torch.cat([a, b], -1)),
        ("stack", lambda a, b: torch.stack([a, a])),
        ("complex", lambda a, b: torch.complex(a.float(), a.float())),
        ("abs", lambda a, b: a.abs()),
        ("gather", lambda a, b: a.gather(0, torch.zeros_like(a, dtype=torch.int64))),
        ("index", lambda a, b: a[torch.tensor([0, 0])]),
        ("empty", lambda a, b: torch.empty(0)),
        ("like strided", lambda a, b: torch.ones_like(a)),
        ("leaf", lambda a, b: torch.ones(3, 4, requires_grad=True)),
        ("cumsum", lambda a, b: a.cumsum(0)),
        ("to double", lambda a, b: a.to(torch.float64)),
        ("to same", lambda a, b: a.to(a.dtype)),
    )


def make_program(pick: Pick, length: int | None = None) -> Program:
    kinds = tuple(INPUT_KINDS[pick(len(INPUT_KINDS))] for _ in range(1 + pick(3)))
    env: list[Any] = list(make_inputs(kinds)[0])
    statements: list[Statement] = []
    torch.manual_seed(0)
    for _ in range(length or 1 + pick(8)):
        group = pick(3)
        mode = {0: "no_grad", 1: "no_grad", 2: "no_grad", 8: "no_grad", 3: "inference_mode"}.get(pick(40))
        if group == 0:
            name, run = _views(pick)
            operands: tuple[int, ...] = (pick(len(env)),)
        else:
            name, run = (_writes if group == 1 else _pure)(pick)
            operands = (pick(len(env)), pick(len(env)))
        s = Statement(name, operands, run, mode, group != 1)
        trial = Program(kinds, [*statements, s], ())
        fresh = list(make_inputs(kinds)[0])
        try:
            torch.manual_seed(0)
            for st in trial.statements:
                execute(st, fresh)
        except Exception:
            continue
        env = fresh
        statements.append(s)
    returned = tuple(pick(len(env)) for _ in range(1 + pick(4)))
    return Program(kinds, statements, returned)


def graph_of(run: Callable[..., Any], count: int) -> fx.GraphModule:
    """A torch-level graph that calls `run` as one operation."""
    g = fx.Graph()
    places = tuple(g.placeholder(f"x{k}") for k in range(count))
    g.output(g.call_function(run, places))
    return fx.GraphModule(torch.nn.Module(), g)


def describe(outs: Sequence[Any], inputs: Sequence[Tensor]) -> dict[str, Any]:
    """Everything about the results that a program can observe, but for values."""
    every = [*inputs, *outs]
    storages = [t.untyped_storage()._cdata for t in every]
    ids = [id(t) for t in every]
    return {
        "shape": [tuple(t.shape) for t in every],
        "stride": [t.stride() for t in every],
        "dtype": [t.dtype for t in every],
        "requires_grad": [t.requires_grad for t in every],
        "leaf": [t.is_leaf for t in every],
        "grad_fn": [t.grad_fn is not None for t in every],
        "same object": [ids.index(i) for i in ids],
        "same storage": [storages.index(s) for s in storages],
        "offset": [t.storage_offset() for t in every],
        "is view": [t._base is not None for t in every],
        "base": [ids.index(id(t._base)) if id(t._base) in ids else -1 for t in every],
        "written": [None if t.is_inference() else t._version for t in every],
        "inference": [t.is_inference() for t in every],
    }


def shared_versions(every: Sequence[Tensor]) -> list[list[int]]:
    """For each tensor, those whose version counters move when it is written."""
    counted = [t for t in every if not t.is_inference()]
    found = []
    for t in counted:
        before = [o._version for o in counted]
        torch.autograd.graph.increment_version(t)
        found.append([k for k, (o, v) in enumerate(zip(counted, before, strict=True)) if o._version != v])
    return found


def run_once(run: Callable[..., tuple], kinds: Sequence[str]) -> dict[str, Any]:
    inputs, leaves = make_inputs(kinds)
    torch.manual_seed(0)
    try:
        outs = run(*inputs)
    except Exception as e:  # the comparison is of what eager does, errors included
        return {"error": type(e).__name__}
    try:
        found = describe(outs, inputs)
    except RuntimeError as e:  # a view whose history autograd refuses to give
        return {"describe error": type(e).__name__}
    found["values"] = [t.detach().clone() for t in (*inputs, *outs)]
    found["next random"] = torch.rand(2)
    loss = [t for t in (*inputs, *outs) if t.requires_grad and not t.is_leaf]
    loss = [t.abs() if t.is_complex() else t for t in loss]
    if len(kinds) == 2:  # some gradients do not come
        loss = loss[::2]
    try:
        if loss:
            total = sum((t * (k + 1.5)).sum() for k, t in enumerate(loss))
            total.backward()
    except RuntimeError as e:
        found["backward error"] = "RuntimeError"
        found["backward message"] = str(e)
    found["grads"] = [t.grad for t in leaves]
    found["version counters"] = shared_versions([*inputs, *outs])
    return found


def compare(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Names of what differs."""
    if "backward error" in a and "backward error" not in b:
        # Eager refuses a backward whose saved tensors changed; keeping other tensors may make it possible.
        a, b = dict(a), dict(b)
        for k in ("backward error", "backward message", "grads"):
            a.pop(k, None), b.pop(k, None)
    wrong = []
    for k in a.keys() | b.keys():
        if k == "backward message":
            continue
        if k not in a or k not in b:
            wrong.append(k)
        elif k in ("values", "grads", "next random"):
            left, right = (a[k], b[k]) if k != "next random" else ([a[k]], [b[k]])
            if not all(_same(x, y) for x, y in zip(left, right, strict=True)):
                wrong.append(k)
        elif a[k] != b[k]:
            wrong.append(k)
    return wrong


def _same(x: Tensor | None, y: Tensor | None) -> bool:
    if x is None or y is None:
        return x is y
    return (
        x.dtype == y.dtype
        and x.shape == y.shape
        and torch.allclose(x, y, rtol=1e-2 if x.dtype == torch.bfloat16 else 1e-4, atol=1e-5, equal_nan=True)
    )
