"""Tensors under names on a GPU: acquired behind queued work, released, swept of the dead."""

from __future__ import annotations

from typing import Any

import torch
import torch.multiprocessing as mp
from common import memory_use, report, run, wait_for_empty_limbo, wait_until

SPACE = "gpu-test"
ELEMENTS = 1 << 20


def consume(pipe: Any) -> None:
    import torch_limbo

    registry = torch_limbo.Registry(SPACE)
    while (name := pipe.recv()) is not None:
        weights = registry.acquire(name)
        copy = weights.clone()  # in stream order behind what the owner had queued
        pipe.send((float(copy.sum()), tuple(weights.shape), type(weights).__name__))
        if pipe.recv() == "release":
            registry.release(weights)
            torch.cuda.synchronize()
            pipe.send((weights.numel(), registry.names()[0].name))


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    consumer = context.Process(target=consume, args=(theirs,))
    consumer.start()
    theirs.close()
    registry = torch_limbo.Registry(SPACE)
    torch.cuda.init()
    before = memory_use()
    registry.publish("other", torch.zeros(ELEMENTS, device="cuda"))
    ours.send("other")
    warm = ours.recv()
    ours.send("release")
    released_other = ours.recv()

    weights = torch.nn.Parameter(torch.zeros(4, ELEMENTS // 4, device="cuda"))
    registry.publish("weights", weights)
    torch.cuda._sleep(1_000_000_000)  # about half a second
    with torch.no_grad():
        weights.fill_(2.0)
    del weights  # the registry keeps it
    ours.send("weights")
    seen = ours.recv()
    holders = [holder.pid for holder in registry.holders("weights") if holder.claims]
    ours.send("release")
    released = ours.recv()
    wait_until(
        lambda: not any(holder.claims for holder in torch_limbo.holders()), 20, "still claimed"
    )

    ours.send("weights")
    ours.recv()
    swept = torch_limbo.stats()["claims_swept"]
    consumer.kill()
    consumer.join(30)
    registry.close()
    wait_for_empty_limbo()
    report(
        warm=warm,
        seen=seen,
        held_by_consumer=holders == [consumer.pid],
        released=[released_other, released],
        swept=torch_limbo.stats()["claims_swept"] - swept,
        names=[found.name for found in registry.names()],
        before=before,
        after=memory_use(),
    )
    return 0


if __name__ == "__main__":
    run(main)
