"""A received tensor used on a side stream: its block comes back behind that stream's work.

The consumer runs under torch's own allocator ("native") or under Limbo ("limbo").
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch.multiprocessing as mp
from common import limbo_blocks, note, report, run, wait_for_empty_limbo, wait_until

ELEMENTS = 1 << 20
WORK_SECONDS = 0.8


def consume(queue: Any, pipe: Any, way: str) -> None:
    if way == "limbo":
        import torch_limbo

        torch_limbo.enable()
    from kernels import WriteFor

    write_for = WriteFor()
    side = torch.cuda.Stream()
    scratch = torch.zeros(1024, dtype=torch.int32, device="cuda")
    copy = torch.empty(ELEMENTS, dtype=torch.int32, device="cuda")
    with torch.cuda.stream(side):  # loads the kernels that are used below
        copy.copy_(torch.zeros_like(copy))
    torch.cuda.synchronize()
    tensor = queue.get()
    torch.cuda.current_stream().synchronize()
    start = time.monotonic()
    with torch.cuda.stream(side):
        write_for(scratch, WORK_SECONDS)
        copy.copy_(tensor)
    tensor.record_stream(side)
    del tensor
    released = time.monotonic()
    pipe.send((start, released))
    side.synchronize()
    done = time.monotonic()
    pipe.send((done, bool((copy == 3).all())))


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
        raise TimeoutError("the consumer did not answer")
    started, released = ours.recv()
    del tensor
    wait_until(lambda: limbo_blocks() == 1, 10, "the block did not go to limbo (or came back)")
    wait_for_empty_limbo()
    returned = time.monotonic()
    # Reused at once: if it came back too early, the copy on the side stream sees this value.
    spoiler = torch.full((ELEMENTS,), 9, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    done, copied_well = ours.recv()
    note(f"start {started:.3f} released {released:.3f} returned {returned:.3f} done {done:.3f}")
    consumer.join(30)
    del spoiler
    report(
        host_waited=released - started,
        returned_after=returned - started,
        done_after=done - started,
        work=WORK_SECONDS,
        copied_well=copied_well,
        exit=consumer.exitcode,
        statistics=torch_limbo.stats(),
    )
    return 0


if __name__ == "__main__":
    run(main)
