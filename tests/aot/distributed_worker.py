"""One rank of test_distributed: trains for three steps in several ways and prints what differs from eager."""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import graphlift

STEPS = 3
BUCKET_MB = 0.002  # two kilobytes: several buckets


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )


def sharded() -> nn.Module:
    model, mesh = make(), init_device_mesh("cpu", (2,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def build(kind: str, backend: str | None) -> nn.Module:
    def compiled(module: nn.Module) -> nn.Module:
        return module if backend is None else graphlift.compile(module, backend=backend)

    if kind == "ddp of compiled":
        return DistributedDataParallel(compiled(make()), bucket_cap_mb=BUCKET_MB)
    if kind == "compiled ddp":
        return compiled(DistributedDataParallel(make(), bucket_cap_mb=BUCKET_MB))
    return compiled(sharded())


def whole(t: Any) -> torch.Tensor:
    return (t.full_tensor() if hasattr(t, "full_tensor") else t).detach().clone()


def train(model: nn.Module) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
        x, y = torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
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
    for kind in ("ddp of compiled", "compiled ddp", "compiled fsdp"):
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
