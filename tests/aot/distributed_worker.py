"""One rank of test_distributed: trains for three steps in several ways and prints what differs from eager."""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import graphlift

STEPS = 3
BUCKET_MB = 0.002  # two kilobytes: several buckets


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )


class Branches(nn.Module):
    """Leaves out a layer in every other step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.even, self.last = make()[:3], nn.Linear(32, 32), make()[3:]
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        self.steps += 1
        return self.last(self.even(h) if self.steps % 2 else h)


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


Compile = Callable[[nn.Module], nn.Module]
parallel = functools.partial(DistributedDataParallel, bucket_cap_mb=BUCKET_MB)
LOW = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)
KINDS: dict[str, Callable[[Compile], nn.Module]] = {
    "ddp of compiled": lambda compiled: parallel(compiled(make())),
    "compiled ddp": lambda compiled: compiled(parallel(make())),
    "compiled fsdp": lambda compiled: compiled(sharded(make())),
    "static graph": lambda compiled: compiled(
        parallel(compiled(make()), static_graph=True, gradient_as_bucket_view=True)
    ),
    "unused parameters": lambda compiled: compiled(parallel(Branches(), find_unused_parameters=True)),
    "mixed precision": lambda compiled: compiled(
        sharded(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), mp_policy=LOW)
    ),
}


def build(kind: str, backend: str | None) -> nn.Module:
    torch.manual_seed(0)
    return KINDS[kind](
        lambda module: module if backend is None else graphlift.compile(module, backend=backend)
    )


def whole(t: Any) -> torch.Tensor:
    return (t.full_tensor() if hasattr(t, "full_tensor") else t).detach().clone()


@contextlib.contextmanager
def accumulating(model: Any) -> Iterator[None]:
    """Gradients stay where they are, to be added to."""
    of = getattr(model, "_orig_mod", model)
    if isinstance(of, DistributedDataParallel):
        with of.no_sync():
            yield
        return
    of.set_requires_gradient_sync(False)
    yield
    of.set_requires_gradient_sync(True)


def train(model: nn.Module) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
        x, y = torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        if step:  # a static graph is learnt from a first step that is whole
            with accumulating(model):
                nn.functional.mse_loss(model(x[:4]), y[:4]).backward()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        seen += [loss.detach(), *(whole(p.grad) for p in model.parameters())]
        optimizer.step()
    return seen + [whole(p) for p in model.parameters()]


def overlap(kind: str) -> list[str]:
    """What happens in a backward, in order: pieces of the compiled region start, buckets leave."""
    model = build(kind, "aot_eager")
    ddp = model if isinstance(model, DistributedDataParallel) else model._orig_mod
    events: list[str] = []

    def leave(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        events.append("bucket")
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])

    ddp.register_comm_hook(None, leave)
    model(torch.randn(8, 16)).sum().backward()  # the buckets are laid out after the first backward
    events.clear()
    loss = model(torch.randn(8, 16)).sum()
    pending, nodes = [loss.grad_fn], []
    while pending:
        node = pending.pop()
        if node is not None and node not in nodes:
            nodes.append(node)
            pending += [n for n, _ in node.next_functions]
            if "Graphlift" in type(node).__name__:
                node.register_prehook(lambda grads: events.append("piece"))
    loss.backward()
    return events


def main(rank: int, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # whatever the machine calls itself
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for kind in KINDS:
        expected = train(build(kind, None))
        for backend in ("eager", "auto"):
            for a, b in zip(train(build(kind, backend)), expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        if rank == 0:
            print(f"equal: {kind}")
    for kind in ("ddp of compiled", "compiled ddp"):
        events = overlap(kind)
        if rank == 0:
            print(f"{kind}: {' '.join(events)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may outlive the interpreter, which then aborts
