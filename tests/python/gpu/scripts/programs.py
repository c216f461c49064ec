"""Programs of torch.multiprocessing on a GPU: workers that collate, pools, a broker, a queue that
is joined, spawn."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp
import torch.utils.data
from common import memory_use, next_of, note, report, run, wait_for_empty_limbo

WAIT_S = 60


class OnTheGpu(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"data": torch.full((3, 2), float(index), device="cuda")}


def summed(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(tensors).sum(0)


def take(queue: Any, answers: Any) -> None:
    answers.put(float(queue.get(timeout=WAIT_S).sum()))


def fill(rank: int, rows: torch.Tensor, queue: Any) -> None:
    rows[rank].fill_(rank + 10)
    torch.cuda.synchronize()
    queue.put(rows[rank])  # sent on, back to its owner


def check(name: str, results: dict[str, Any], right: bool) -> None:
    note(name, right)
    results[name] = right


def a_data_loader(context: Any) -> bool:
    loader = torch.utils.data.DataLoader(
        OnTheGpu(), batch_size=3, num_workers=2, multiprocessing_context=context
    )
    seen = [batch["data"] for batch in loader]
    expected = torch.arange(12.0).view(4, 3, 1, 1).expand(4, 3, 3, 2)
    return torch.equal(torch.stack(seen).cpu(), expected)


def pools(context: Any) -> bool:
    ones = torch.ones(5, device="cuda")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        futures = [executor.submit(summed, [ones, ones * n]) for n in range(5)]
        right = all(
            bool((future.result(WAIT_S) == n + 1).all()) for n, future in enumerate(futures)
        )
    with context.Pool(1) as pool:
        many = pool.map(summed, [[ones, ones * n] for n in range(5)])
        right = right and all(bool((tensor == n + 1).all()) for n, tensor in enumerate(many))
        pool.close()
        pool.join()
    return right


def a_broker(context: Any) -> bool:
    with context.Manager() as manager:
        queue, answers = manager.Queue(), manager.Queue()
        taker = context.Process(target=take, args=(queue, answers))
        taker.start()
        queue.put(torch.full((10,), 3.0, device="cuda"))
        right = answers.get(timeout=WAIT_S) == 30.0
        taker.join(WAIT_S)
        return right and taker.exitcode == 0


def add_and_say_so(queue: Any, answers: Any) -> None:
    while (tensor := queue.get(timeout=WAIT_S)) is not None:
        tensor.add_(1)
        torch.cuda.synchronize()
        answers.put(float(tensor.sum()))
        del tensor
        queue.task_done()
    queue.task_done()


def joined_queue(context: Any) -> bool:
    """Every message is told done by who has taken it, and then the queue's join ends."""
    queue, answers = context.JoinableQueue(), context.Queue()
    adder = context.Process(target=add_and_say_so, args=(queue, answers))
    adder.start()
    tensors = [torch.full((10,), float(number), device="cuda") for number in range(3)]
    for tensor in [*tensors, None]:
        queue.put(tensor)
    sums = [next_of(answers, [adder]) for _ in tensors]
    queue.join()
    adder.join(WAIT_S)
    seen = [float(tensor.sum()) for tensor in tensors]
    return sums == seen == [10.0, 20.0, 30.0] and adder.exitcode == 0


def started(context: Any) -> bool:
    """By the server that the other programs' processes come from."""
    return filled_by(
        lambda rows, queue: mp.start_processes(
            fill, args=(rows, queue), nprocs=2, join=False, start_method="forkserver"
        ),
        context.SimpleQueue(),
    )


def spawned(_: Any) -> bool:
    """By ``mp.spawn``, which starts new interpreters."""
    return filled_by(
        lambda rows, queue: mp.spawn(fill, args=(rows, queue), nprocs=2, join=False),
        mp.get_context("spawn").SimpleQueue(),
    )


def filled_by(start: Callable[[torch.Tensor, Any], Any], queue: Any) -> bool:
    rows = torch.zeros(2, 100, device="cuda")
    children = start(rows, queue)
    back = [next_of(queue, children.processes) for _ in range(2)]
    same = all(row.untyped_storage().data_ptr() == rows.data_ptr() for row in back)
    while not children.join():
        pass
    return same and rows.sum(1).tolist() == [1000.0, 1100.0]


def main() -> int:
    import torch_limbo

    context: Any = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch_limbo"])
    torch_limbo.enable()
    results: dict[str, Any] = {}
    kept = torch.ones(1, device="cuda")
    before = memory_use()
    for program in (a_data_loader, pools, a_broker, joined_queue, started, spawned):
        check(program.__name__, results, program(context))
    wait_for_empty_limbo()
    after = memory_use()
    del kept
    report(results=results, before=before, after=after)
    return 0


if __name__ == "__main__":
    run(main)
