"""A producer is killed while this process waits for its unfinished work.

It has sent one tensor whose values were written, and one behind a kernel that runs for a minute.
This process queues work behind both, and must not wait for the dead: the wait is completed, the
storages are orphaned, and the finished tensor has its values.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
import torch.multiprocessing as mp
from common import note, report, run, wait_until

WORDS = 4 * 1024 * 1024
VALUE = 1234567
KERNEL_SECONDS = 60.0


def produce(pipe: Any) -> None:
    import torch_limbo

    torch_limbo.enable()
    from kernels import WriteFor

    write_for = WriteFor()
    finished = torch.full((WORDS,), VALUE, dtype=torch.int32, device="cuda")
    unfinished = torch.zeros(WORDS, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    pipe.send(torch_limbo.share(finished))
    write_for(unfinished, KERNEL_SECONDS)
    pipe.send(torch_limbo.share(unfinished))
    time.sleep(100)  # is killed here


def becomes_orphaned(tensor: torch.Tensor) -> bool:
    is_orphaned = torch.ops.limbo.is_orphaned
    wait_until(lambda: bool(is_orphaned(tensor)), 10, "a tensor of the dead is not orphaned")
    return True


def main() -> int:
    import torch_limbo

    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    producer = context.Process(target=produce, args=(theirs,))
    producer.start()
    theirs.close()

    # Every kernel that is used below, once: CUDA loads them at their first launch.
    warm = torch.zeros(WORDS, dtype=torch.int32, device="cuda")
    int((warm != VALUE).sum())
    copy = torch.empty_like(warm)
    copy.copy_(warm)
    torch.cuda.synchronize()

    if not ours.poll(90):
        raise TimeoutError("the producer sent nothing")
    finished = torch_limbo.receive(ours.recv())
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        unfinished = torch_limbo.receive(ours.recv())
        copy.copy_(unfinished)
    wrong_before = int((finished != VALUE).sum())
    waiting = not side.query()
    assert producer.pid is not None
    killed = time.monotonic()
    os.kill(producer.pid, signal.SIGKILL)
    wait_until(side.query, 30, "work behind the dead producer's is still waiting")
    seconds = time.monotonic() - killed
    note(f"went on {seconds:.3f} s after the kill")
    marked = [becomes_orphaned(finished), becomes_orphaned(unfinished)]
    wrong_after = int((finished != VALUE).sum())
    producer.join(10)
    del finished, unfinished
    torch.cuda.synchronize()
    wait_until(lambda: torch_limbo.stats()["releases_pending"] == 0, 10, "releases do not land")
    report(
        waiting=waiting,
        seconds=seconds,
        wrong=[wrong_before, wrong_after],
        orphaned=marked,
        exit=producer.exitcode,
        statistics=torch_limbo.stats(),
    )
    return 0


if __name__ == "__main__":
    run(main)
