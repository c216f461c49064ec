"""A Limbo producer that leaves torch's reducers alone, and a consumer that knows no Limbo."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.multiprocessing as mp
from common import report, run, wait_for_empty_limbo


def consume(queue: Any, answers: Any) -> None:
    tensor = queue.get()
    view = queue.get()
    total, part = int(tensor.sum()), view.tolist()
    tensor += 1
    torch.cuda.synchronize()
    known = "torch_limbo" in sys.modules
    answers.put((total, part, known))
    del tensor, view
    torch.cuda.ipc_collect()


def main() -> int:
    import torch_limbo

    torch_limbo.enable(multiprocessing="stock")
    context = mp.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    consumer = context.Process(target=consume, args=(queue, answers))
    consumer.start()
    tensor = torch.arange(1000, device="cuda")
    queue.put(tensor)
    queue.put(tensor[10:14])
    total, part, known = answers.get(timeout=90)
    consumer.join(30)
    changed = int(tensor.sum())
    allocated = torch.cuda.memory_allocated()
    del tensor
    torch.cuda.ipc_collect()
    wait_for_empty_limbo()
    report(
        total=total,
        part=part,
        known=known,
        changed=changed,
        returned=allocated - torch.cuda.memory_allocated(),
        exit=consumer.exitcode,
    )
    return 0


if __name__ == "__main__":
    run(main)
