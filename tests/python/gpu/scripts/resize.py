"""What may change the size of a received tensor, and what is refused with nothing changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp
from common import report, run, wait_for_empty_limbo

ELEMENTS = 1024


def consume(queue: Any, answers: Any) -> None:
    tensor = queue.get()
    expected = torch.arange(ELEMENTS, dtype=torch.int32)
    result: dict[str, Any] = {}

    def state() -> tuple[Any, ...]:
        storage = tensor.untyped_storage()
        return tuple(tensor.shape), storage.nbytes(), storage.data_ptr(), tensor.data_ptr()

    def refused(name: str, action: Callable[[], object]) -> None:
        before = state()
        try:
            action()
        except RuntimeError as error:
            same = state() == before and torch.equal(tensor.cpu(), expected)
            result[name] = "refused" if same else f"changed: {before} {state()}"
            result[name + " text"] = str(error)
        else:
            result[name] = "accepted"

    view = tensor[512:]
    other = torch.ones(100_000, dtype=torch.int32, device="cuda")
    refused("larger", lambda: tensor.resize_(100_000))
    refused("larger view", lambda: view.resize_(100_000))
    refused("out", lambda: torch.add(other, other, out=tensor))
    refused("resize_as", lambda: tensor.resize_as_(other))
    refused("set", lambda: tensor.set_(tensor.untyped_storage(), 0, (100_000,), (1,)))
    for size in (8 * ELEMENTS, 2 * ELEMENTS, 0):
        refused(f"storage {size}", functools.partial(tensor.untyped_storage().resize_, size))
    tensor.resize_(100)
    result["smaller"] = tuple(tensor.shape) == (100,) and torch.equal(tensor.cpu(), expected[:100])
    tensor.resize_(0)
    result["empty"] = tensor.numel() == 0
    tensor.resize_(ELEMENTS)
    result["again"] = torch.equal(tensor.cpu(), expected)
    result["received"] = not tensor.untyped_storage().resizable()
    answers.put(result)


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    context = mp.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    consumer = context.Process(target=consume, args=(queue, answers))
    consumer.start()
    tensor = torch.arange(ELEMENTS, dtype=torch.int32, device="cuda")
    queue.put(tensor)
    result = answers.get(timeout=90)
    consumer.join(30)
    intact = torch.equal(tensor.cpu(), torch.arange(ELEMENTS, dtype=torch.int32))
    del tensor
    wait_for_empty_limbo()
    report(result=result, intact=intact, exit=consumer.exitcode)
    return 0


if __name__ == "__main__":
    run(main)
