"""Children of multiprocessing end right after their put, by os._exit and without atexit."""

from __future__ import annotations

from typing import Any

import torch
import torch.multiprocessing as mp
from common import descriptors, report, run, wait_until

CHILDREN = 4


def put_one(queue: Any, number: int) -> None:
    import torch_limbo

    torch_limbo.enable()
    queue.put(torch.full((1024, 1024), float(number), device="cuda"))


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    torch.zeros(1, device="cuda")
    context = mp.get_context("spawn")

    def one_round() -> tuple[list[float], list[Any]]:
        queue = context.Queue()
        children = [
            context.Process(target=put_one, args=(queue, number)) for number in range(CHILDREN)
        ]
        for child in children:
            child.start()
        values = sorted(float(queue.get(timeout=90)[1023, 1023]) for _ in children)
        for child in children:
            child.join(60)
        exits = [child.exitcode for child in children]
        for child in children:
            child.close()
        queue.close()
        queue.join_thread()
        wait_until(
            lambda: int(torch_limbo.stats()["pieces_mapped"]) == 0,
            20,
            "memory of the dead stays mapped",
        )
        return values, exits

    one_round()
    before = descriptors()
    values, exits = one_round()
    wait_until(lambda: descriptors() <= before, 10, "descriptors of the dead stay open")
    report(values=values, exits=exits, descriptors=[before, descriptors()])
    return 0


if __name__ == "__main__":
    run(main)
