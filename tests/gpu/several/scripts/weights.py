"""A trainer on GPU 0 hands its weights to a server on GPU 1, in buckets, fifty times.

weights.py mapped | link

"mapped": the server sees both GPUs, opens the buckets on the trainer's and copies across. "link":
it sees only its own GPU and opens them there, over the link.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from typing import Any

import torch
import torch.multiprocessing as mp
from common import descriptors, report, run, wait_for_empty_limbo, wait_until

ROUNDS = 50
EARLY = 9  # the round from which on nothing may grow
BUCKET_BYTES = 16 << 20
SHAPES = [(1024, 1024), (4096, 512), (2048, 1024), (1000,), (512, 4096), (333, 777)] * 2


def memory(device: str) -> dict[str, int]:
    import torch_limbo

    torch.cuda.synchronize(device)
    return {
        "free": torch.cuda.mem_get_info(device)[0],
        "pieces_mapped": int(torch_limbo.stats()["pieces_mapped"]),
        "allocated": torch.cuda.memory_allocated(device),
        "reserved": torch.cuda.memory_reserved(device),
        "descriptors": descriptors(),
    }


def memory_at_the_end(device: str, early: dict[str, int]) -> dict[str, int]:
    """What else runs on the GPU comes and goes, so its free memory is waited for; and what is
    loaded once is less than a bucket."""
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: memory(device)["free"] + BUCKET_BYTES >= early["free"], 20, "memory")
    return memory(device)


def buckets() -> list[list[int]]:
    """Indices of the weights that travel together."""
    made: list[list[int]] = [[]]
    size = 0
    for index, shape in enumerate(SHAPES):
        bytes_of_this = 4 * torch.Size(shape).numel()
        if made[-1] and size + bytes_of_this > BUCKET_BYTES:
            made.append([])
            size = 0
        made[-1].append(index)
        size += bytes_of_this
    return made


def serve(pipe: Any, way: str) -> None:
    if way == "link":
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    import torch_limbo

    torch_limbo.enable()
    own = "cuda:0" if way == "link" else "cuda:1"
    torch.cuda.set_device(own)
    weights = [torch.zeros(shape, device=own) for shape in SHAPES]
    wrong, early = [], {}
    for round_ in range(ROUNDS):
        for indices in buckets():
            message = pipe.recv()
            bucket = torch_limbo.receive(message, device=0 if way == "link" else None)
            offset = 0
            for index in indices:
                count = weights[index].numel()
                weights[index].copy_(bucket[offset : offset + count].view_as(weights[index]))
                offset += count
            del bucket
        for index, weight in enumerate(weights):
            expected = float(round_ * 100 + index)
            if not bool((weight == expected).all()):
                wrong.append(f"round {round_}, weight {index}: {float(weight.flatten()[0])}")
        gc.collect()
        if round_ == EARLY:
            early = memory(own)
        pipe.send(round_)
    pipe.send((wrong, early, memory_at_the_end(own, early)))
    pipe.recv()  # until the trainer has looked


def main() -> int:
    import torch_limbo

    way = sys.argv[1]
    torch_limbo.enable()
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs, way))
    server.start()
    theirs.close()
    weights = [torch.zeros(shape, device="cuda:0") for shape in SHAPES]
    # All buckets at once, the most that a round can need: how many are out at a time is chance.
    at_once = [torch.cat([weights[index].flatten() for index in each]) for each in buckets()]
    del at_once
    early: dict[str, int] = {}
    done = 0
    for round_ in range(ROUNDS):
        for index, weight in enumerate(weights):
            weight.fill_(float(round_ * 100 + index))  # the training step
        for indices in buckets():
            bucket = torch.cat([weights[index].flatten() for index in indices])
            ours.send(torch_limbo.share(bucket))
            del bucket
        if not ours.poll(60):
            raise TimeoutError(f"the server did not answer in round {round_}")
        done = ours.recv() + 1
        wait_for_empty_limbo()
        if round_ == EARLY:
            early = memory("cuda:0")
    late = memory_at_the_end("cuda:0", early)
    segments = len(torch.cuda.memory_snapshot())
    wrong, early_there, late_there = ours.recv()
    numbers = torch_limbo.stats()
    ours.send("seen")
    server.join(60)
    report(
        wrong=wrong,
        rounds=done,
        trainer=[early, late],
        trainers_segments=segments,
        bucket_bytes=BUCKET_BYTES,
        server=[early_there, late_there],
        left={name: int(numbers[name]) for name in ("limbo_blocks", "in_flight")},
        exit=server.exitcode,
    )
    return 0


if __name__ == "__main__":
    run(main)
