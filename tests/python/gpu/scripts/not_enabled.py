"""The package is imported on both sides and enabled on neither: torch's memory goes torch's way."""

from __future__ import annotations

from typing import Any

import torch
import torch.multiprocessing as mp
from common import next_of, report, run


def consume(queue: Any, answers: Any) -> None:
    import torch_limbo

    tensor = queue.get()
    answers.put((int(tensor.sum()), bool(torch.ops.limbo.is_received(tensor))))
    assert torch_limbo.stats()["receives"] == 0
    del tensor


def main() -> int:
    import torch_limbo

    context = mp.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    consumer = context.Process(target=consume, args=(queue, answers))
    consumer.start()
    tensor = torch.arange(1000, device="cuda")
    _, arguments = torch.multiprocessing.reductions.reduce_tensor(tensor)
    queue.put(tensor)
    total, received = next_of(answers, [consumer])
    consumer.join(30)
    code = ""
    try:
        torch_limbo.share(tensor)
    except torch_limbo.LimboError as error:
        code = error.code
    report(
        backend=torch.cuda.get_allocator_backend(),
        storage_class=arguments[4].__module__.partition(".")[0],
        total=total,
        received=received,
        code=code,
        exit=consumer.exitcode,
    )
    return 0


if __name__ == "__main__":
    run(main)
