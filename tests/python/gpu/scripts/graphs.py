"""A graph that uses a received tensor keeps it, after the tensor is gone, until it is destroyed.

graphs.py native | limbo: the consumer's allocator.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch.multiprocessing as mp
from common import limbo_blocks, report, run, wait_for_empty_limbo

ELEMENTS = 1 << 20
REPLAYS = 20


def consume(queue: Any, pipe: Any, way: str) -> None:
    if way == "limbo":
        import torch_limbo

        torch_limbo.enable()
    result = torch.zeros(ELEMENTS, dtype=torch.int32, device="cuda")
    result.add_(1)  # loads the kernel
    tensor = queue.get()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result.copy_(tensor)
        result.add_(1)
    del tensor  # the usual order: let go of when the capture is over
    torch.cuda.synchronize()
    pipe.send("captured")
    pipe.recv()  # the sender has tried to reuse the memory
    right = 0
    for _ in range(REPLAYS):
        result.zero_()
        graph.replay()
        torch.cuda.synchronize()
        right += int(bool((result == 4).all()))
    pipe.send(right)
    pipe.recv()
    del graph
    torch.cuda.synchronize()
    pipe.send("destroyed")
    pipe.recv()


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    context = mp.get_context("spawn")
    queue = context.Queue()
    ours, theirs = context.Pipe()
    consumer = context.Process(target=consume, args=(queue, theirs, sys.argv[1]))
    consumer.start()
    theirs.close()
    tensor = torch.full((ELEMENTS,), 3, dtype=torch.int32, device="cuda")
    queue.put(tensor)
    if not ours.poll(90):
        raise TimeoutError("the consumer did not capture")
    ours.recv()
    del tensor
    time.sleep(0.3)  # longer than a release takes to come back
    held = limbo_blocks()
    # Reused at once: if it came back too early, the graph sees this value.
    spoiler = torch.full((ELEMENTS,), 9, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    ours.send("go on")
    right = ours.recv()
    held_after = limbo_blocks()
    ours.send("destroy it")
    ours.recv()
    wait_for_empty_limbo()
    del spoiler
    ours.send("bye")
    consumer.join(30)
    report(held=held, held_after=held_after, right=right, replays=REPLAYS, exit=consumer.exitcode)
    return 0


if __name__ == "__main__":
    run(main)
