"""A transformer encoder trained on batches of varying length, with a mask built from the lengths.

In: number of steps, and which compilers. Out: for each, compilations, seconds of the whole run (compiling included) and
of its second half, and the largest difference of its losses from eager's.
Always: every run starts from the same weights and sees the same batches; runs share the process, one after the other.

    python -m benchmarks.dynamic_shapes --steps 200 --compare
    python -m benchmarks.dynamic_shapes --models bert,resnet18     (models compiled with dynamic=True against False)
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 1000
SHORTEST, LONGEST = 32, 128


class Block(nn.Module):
    """Pre-norm self-attention and feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.feed_norm(x))))


class Encoder(nn.Module):
    """Gives the loss of predicting each token that a batch's lengths leave unmasked."""

    def __init__(self, width: int = 256, heads: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        batch, length = ids.shape
        inside = torch.arange(length, device=ids.device)[None, :] < lengths[:, None]
        bias = torch.zeros(batch, 1, 1, length).masked_fill(~inside[:, None, None, :], float("-inf"))
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        for block in self.blocks:
            x = block(x, bias)
        return F.cross_entropy(
            self.head(x).flatten(0, 1), labels.masked_fill(~inside, -100).flatten(), ignore_index=-100
        )


def batches(steps: int, batch: int = 8) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Token ids, lengths and labels; the longest sequence of a batch has the batch's length."""
    rng = torch.Generator().manual_seed(0)
    for _ in range(steps):
        length = int(torch.randint(SHORTEST, LONGEST + 1, (), generator=rng))
        lengths = torch.randint(SHORTEST // 2, length + 1, (batch,), generator=rng)
        lengths[0] = length
        ids, labels = torch.randint(0, VOCABULARY, (2, batch, length), generator=rng)
        yield ids, lengths, labels


@dataclass(frozen=True, slots=True)
class Run:
    """What training with one compiler gave."""

    name: str
    compilations: int
    seconds: float
    later_seconds: float  # of the second half of the steps, where nothing is compiled any more
    losses: tuple[float, ...]


def train(
    name: str, model: nn.Module, step: Callable[..., Tensor], steps: int, count: Callable[[], int]
) -> Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    start = half = time.perf_counter()
    for k, given in enumerate(batches(steps)):
        if k == steps // 2:
            half = time.perf_counter()
        optimizer.zero_grad()
        loss = step(*given)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    end = time.perf_counter()
    return Run(name, count(), end - start, end - half, tuple(losses))


def eager(model: nn.Module) -> tuple[Callable[..., Tensor], Callable[[], int]]:
    return model, lambda: 0


def graphlift_compiled(model: nn.Module) -> tuple[Callable[..., Tensor], Callable[[], int]]:
    import graphlift
    from graphlift import pipeline

    graphs: list[Any] = []

    def counting(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return pipeline.compile_native(gm, inputs)

    return graphlift.compile(model, backend=counting), lambda: len(graphs)


def torch_compiled(model: nn.Module) -> tuple[Callable[..., Tensor], Callable[[], int]]:
    from torch._inductor.compile_fx import compile_fx

    graphs: list[Any] = []

    def counting(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return compile_fx(gm, inputs)

    return torch.compile(model, backend=counting), lambda: len(graphs)


def against_static(names: list[str], calls: int) -> None:
    """A table of models: CPU seconds of the first call and milliseconds of a later one, static and dynamic."""
    print(
        f"{'':10} {'cold static':>12} {'dynamic':>8} {'ratio':>6} {'steady static':>14} {'dynamic':>8} {'ratio':>6}"
    )
    for name in names:
        found = [_measured(name, dynamic, calls) for dynamic in (False, True)]
        (cold, steady), (cold_dynamic, steady_dynamic) = found
        print(
            f"{name:10} {cold:10.2f} s {cold_dynamic:6.2f} s {cold_dynamic / cold:6.2f} "
            f"{steady * 1e3:11.1f} ms {steady_dynamic * 1e3:5.1f} ms {steady_dynamic / steady:6.2f}",
            flush=True,
        )


def _measured(name: str, dynamic: bool, calls: int) -> tuple[float, float]:
    """CPU seconds of the first call (compiling) and of the fastest later one: the least of three processes."""
    command = [sys.executable, "-m", "benchmarks.dynamic_shapes", "--one", name, "--calls", str(calls)]
    texts = [
        subprocess.run(
            [*command, *["--dynamic"] * dynamic], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(3)
    ]
    cold, steady = map(min, zip(*(map(float, text.split()[-2:]) for text in texts), strict=True))
    return cold, steady


def one_model(name: str, dynamic: bool, calls: int) -> None:
    import graphlift

    from .zoo import MODELS

    clock = time.process_time
    module = MODELS[name].make("full").eval()
    given, _ = MODELS[name].batch("full")
    with torch.no_grad():
        module(**given)
        graphlift.compile(lambda x: (x @ x).relu().sum(), dynamic=dynamic)(
            torch.randn(8, 8)
        )  # loads what is loaded once
        compiled = graphlift.compile(module, dynamic=dynamic)
        times = []
        for _ in range(1 + calls):
            start = clock()
            compiled(**given)
            times.append(clock() - start)
    print(times[0], min(times[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="names of models (benchmarks/zoo.py): dynamic against static")
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--dynamic", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--compare", action="store_true", help="also torch.compile (compiles for minutes)")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    asked = parser.parse_args()
    if asked.one:
        return one_model(asked.one, asked.dynamic, asked.calls)
    if asked.models:
        return against_static(asked.models.split(","), asked.calls)
    torch.manual_seed(0)
    model = Encoder(asked.width, layers=asked.layers)
    rows = [("eager", eager), ("graphlift", graphlift_compiled)]
    rows += [("torch.compile", torch_compiled)] if asked.compare else []
    reference: Run | None = None
    print(f"{'':14} compilations  seconds  second half  largest difference of a loss")
    for name, prepare in rows:
        fresh = copy.deepcopy(model)
        step, count = prepare(fresh)
        run = train(name, fresh, step, asked.steps, count)
        reference = reference or run
        apart = max(abs(a - b) for a, b in zip(run.losses, reference.losses, strict=True))
        print(
            f"{name:14} {run.compilations:12} {run.seconds:8.1f} {run.later_seconds:12.1f}  {apart:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
