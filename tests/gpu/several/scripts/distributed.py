"""DistributedDataParallel over NCCL, a GPU for each of two processes, against one that has all."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import next_of, report, run

STEPS = 20
ROWS = 32


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16)]
    return torch.nn.Sequential(*layers)


def batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 64, generator=generator)


def train(network: torch.nn.Module, rows: slice, device: torch.device) -> list[float]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = network(batch(step)[rows].to(device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def work(rank: int, folder: str, answers: Any) -> None:
    import torch_limbo

    torch_limbo.enable()
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2, device_id=device)
    network = model().to(device)
    parallel = torch.nn.parallel.DistributedDataParallel(network, device_ids=[rank])
    half = ROWS // 2
    losses = train(parallel, slice(rank * half, (rank + 1) * half), device)
    parameters = [parameter.detach().cpu().tolist() for parameter in network.parameters()]
    backend = torch.cuda.get_allocator_backend()
    dist.barrier()
    dist.destroy_process_group()
    answers.put((rank, backend, losses, parameters))


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=work, args=(rank, folder, answers)) for rank in (0, 1)]
        for process in processes:
            process.start()
        results = sorted(next_of(answers, processes) for _ in processes)
        for process in processes:
            process.join(60)
    alone = model().to("cuda:0")
    train(alone, slice(0, ROWS), torch.device("cuda:0"))
    reference = [parameter.detach().cpu() for parameter in alone.parameters()]
    found = [[torch.tensor(each) for each in result[3]] for result in results]
    pairs = list(zip(found[0], found[1], strict=True))
    report(
        backends=[result[1] for result in results],
        devices=[result[0] for result in results],
        losses=[result[2] for result in results],
        same_parameters=all(bool((one == other).all()) for one, other in pairs),
        difference=max(
            float((one - other).abs().max()) for one, other in zip(found[0], reference, strict=True)
        ),
        exits=[process.exitcode for process in processes],
    )
    return 0


if __name__ == "__main__":
    run(main)
