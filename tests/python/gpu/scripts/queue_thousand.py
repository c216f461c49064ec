"""1,000 tensors through an mp.Queue, values checked, memory the same before and after.

The consumer does not install Limbo: it receives under torch's own allocator, which it has used.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.multiprocessing as mp
from common import descriptors, memory_use, note, report, run, wait_for_empty_limbo

COUNT = 1000
DTYPES = (torch.float32, torch.int64, torch.uint8, torch.bfloat16)


def make(number: int) -> torch.Tensor:
    elements = 1 + (number * 37) % 5000
    return torch.full((elements,), number % 251, dtype=DTYPES[number % 4], device="cuda")


def consume(queue: Any, answers: Any) -> None:
    own = torch.ones(1000, device="cuda")  # this process has used its own allocator before
    while True:
        item = queue.get()
        if item is None:
            break
        first, wrong = None, 0
        number, tensor = item
        good = (
            tensor.dtype == DTYPES[number % 4]
            and tensor.numel() == 1 + (number * 37) % 5000
            and bool((tensor == number % 251).all())
        )
        if not good:
            wrong += 1
            first = f"{number}: {tensor.dtype} {tuple(tensor.shape)} {tensor[:4].tolist()}"
        del tensor, item
        answers.put((number, wrong, first))
    assert float(own.sum()) == 1000.0
    answers.put(torch.cuda.get_allocator_backend())


def one_round(queue: Any, answers: Any) -> list[str]:
    tensors = [make(number) for number in range(COUNT)]
    for number, tensor in enumerate(tensors):
        queue.put((number, tensor))
    del tensor
    tensors.clear()
    wrong = []
    for expected in range(COUNT):
        number, bad, text = answers.get(timeout=60)
        if bad or number != expected:
            wrong.append(f"expected {expected}: {number} {text}")
    wait_for_empty_limbo()
    return wrong


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    context = mp.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    consumer = context.Process(target=consume, args=(queue, answers))
    consumer.start()
    one_round(queue, answers)  # warm-up: segments are taken, pieces mapped
    before, open_before = memory_use(), descriptors()
    note("before", before)
    start = time.monotonic()
    wrong = one_round(queue, answers) + one_round(queue, answers)
    seconds = time.monotonic() - start
    after, open_after = memory_use(), descriptors()
    note("after", after, f"{seconds / 2 / COUNT * 1e6:.0f} us each")
    queue.put(None)
    backend = answers.get(timeout=60)
    consumer.join(30)
    report(
        wrong=wrong,
        before=before,
        after=after,
        descriptors=[open_before, open_after],
        consumer_exit=consumer.exitcode,
        consumer_backend=backend,
        backend=torch.cuda.get_allocator_backend(),
        statistics=torch_limbo.stats(),
        microseconds_each=seconds / 2 / COUNT * 1e6,
    )
    return 0


if __name__ == "__main__":
    run(main)
