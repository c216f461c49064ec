"""torch.multiprocessing between a process on GPU 0 and one on GPU 1, in both directions."""

from __future__ import annotations

import gc
from typing import Any

import torch
import torch.multiprocessing as mp
from common import report, run, wait_until

COUNT = 200


def shape(number: int) -> tuple[int, int]:
    return 1 + number % 37, 100


def answer(questions: Any, answers: Any) -> None:
    import torch_limbo

    torch_limbo.enable()
    torch.cuda.set_device(1)
    while True:
        item = questions.get()
        if item is None:
            break
        number, tensor = item
        # Came on its owner's GPU; the answer is on this process's.
        assert tensor.device.index == 0, tensor.device
        answers.put((number, tensor.to("cuda:1") * 2))
        del item, tensor
    answers.put(None)


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    context = mp.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    process = context.Process(target=answer, args=(questions, answers))
    process.start()
    wrong = []
    sent = 0
    for number in range(COUNT):
        while sent < min(number + 8, COUNT):
            questions.put((sent, torch.full(shape(sent), float(sent), device="cuda:0")))
            sent += 1
        got, tensor = answers.get(timeout=60)
        right = got == number and tensor.device.index == 1 and tuple(tensor.shape) == shape(number)
        if not right or not bool((tensor == 2.0 * number).all()):
            wrong.append(f"{number}: got {got}, {tensor.device}, {tuple(tensor.shape)}")
        del tensor
    questions.put(None)
    assert answers.get(timeout=60) is None
    gc.collect()

    def left() -> dict[str, int]:
        torch_limbo.collect()
        numbers = torch_limbo.stats()
        return {name: int(numbers[name]) for name in ("limbo_blocks", "active_bytes", "in_flight")}

    wait_until(lambda: not any(left().values()), 20, "something that was sent is still out")
    process.join(60)
    report(wrong=wrong, left=left(), exit=process.exitcode)
    return 0


if __name__ == "__main__":
    run(main)
