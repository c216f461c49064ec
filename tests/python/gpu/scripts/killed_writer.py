"""A consumer is killed while a kernel of seconds of its own writes the block that it was lent.

With "--child" the consumer has a fork child that outlives it: the child holds the driver's files,
the dead consumer's kernel may go on, and the block must stay in limbo until the child has ended.
With "--late" the consumer has started CUDA before it loads the library: its life line proves less,
and the block comes back 2 s later. With "--across" the consumer sees only the second GPU, and
writes over the link between the two.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch
import torch.multiprocessing as mp
from common import limbo_blocks, memory_use, note, report, run, wait_for_empty_limbo, wait_until

WORDS = 16 * 1024 * 1024  # 64 MiB of int32
CANARY = 0x5EED5EED
KERNEL_SECONDS = 2.0
KERNEL_SECONDS_WITH_CHILD = 5.0  # so that it still runs when the child ends


def consume(queue: Any, pipe: Any, with_child: bool, late: bool, across: bool) -> None:
    if across:
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    if late:
        torch.zeros(1, device="cuda")
    import torch_limbo  # before CUDA starts: the life line then ends with the driver's files
    from kernels import WriteFor

    assert torch_limbo.library_path().exists()
    write_for = WriteFor()
    tensor = torch_limbo.receive(queue.get(), device=0) if across else queue.get()
    child = 0
    if with_child:
        child = os.fork()
        if child == 0:
            time.sleep(60)  # is killed long before
            os._exit(0)
    write_for(tensor, KERNEL_SECONDS_WITH_CHILD if with_child else KERNEL_SECONDS)
    pipe.send((time.monotonic(), child))
    time.sleep(60)  # is killed here
    print(tensor.shape)


def main() -> int:
    import torch_limbo

    with_child, late, across = (word in sys.argv for word in ("--child", "--late", "--across"))
    torch_limbo.enable()
    context = mp.get_context("spawn")
    queue = context.Queue()
    ours, theirs = context.Pipe()
    consumer = context.Process(target=consume, args=(queue, theirs, with_child, late, across))
    consumer.start()
    theirs.close()

    blocks = [torch.zeros(WORDS, dtype=torch.int32, device="cuda")]
    address = blocks[0].data_ptr()
    queue.put(torch_limbo.share(blocks[0]) if across else blocks[0])
    if not ours.poll(90):
        raise TimeoutError("the consumer did not launch its kernel")
    launched, child = ours.recv()
    wait_until(lambda: int(blocks[0][0]) != 0, 5, "the kernel writes nothing")
    first = int(blocks[0][0])
    wait_until(lambda: int(blocks[0][0]) != first, 5, "the kernel has stopped writing")
    torch.cuda.synchronize()
    before = memory_use()
    blocks.clear()
    # The queue's feeder thread may still have it for a moment.
    wait_until(lambda: limbo_blocks() == 1, 10, "the freed block did not go to limbo")
    in_limbo = memory_use()
    note("in limbo", in_limbo)

    assert consumer.pid is not None
    killed = time.monotonic()
    os.kill(consumer.pid, signal.SIGKILL)
    stayed = None
    states: list[str] = []
    child_killed = killed
    if with_child:
        stayed = True
        while time.monotonic() - killed < 1.0:
            stayed = stayed and limbo_blocks() == 1
            time.sleep(0.02)
        states = [str(holder) for holder in torch_limbo.holders()]
        note("holders while the child lives", states)
        child_killed = time.monotonic()
        os.kill(child, signal.SIGKILL)
    if late:
        wait_until(lambda: len(torch_limbo.holders()) == 1, 5, "nobody holds anything")
        wait_until(
            lambda: torch_limbo.holders()[0].why.endswith("given 2 s to stop"), 1.9, "no grace time"
        )
        states = [str(holder) for holder in torch_limbo.holders()]
    seconds_to_return = wait_for_empty_limbo()
    returned = time.monotonic()
    note(f"returned {returned - killed:.3f} s after the kill")

    canary = torch.empty(WORDS, dtype=torch.int32, device="cuda")
    same_address = canary.data_ptr() == address
    canary.fill_(CANARY)
    torch.cuda.synchronize()
    spoiled = 0
    kernel_seconds = KERNEL_SECONDS_WITH_CHILD if with_child else KERNEL_SECONDS
    watched_until = max(launched + kernel_seconds, time.monotonic()) + 0.7
    looks = 0
    while time.monotonic() < watched_until:
        spoiled = max(spoiled, int((canary != CANARY).sum()))
        looks += 1
    del canary
    consumer.join(10)
    report(
        seen_writing=True,
        same_address=same_address,
        stayed_with_child=stayed,
        holders=states,
        seconds_to_return=returned - (child_killed if with_child else killed),
        waited=seconds_to_return,
        spoiled=spoiled,
        looks=looks,
        before=before,
        in_limbo=in_limbo,
        after=memory_use(),
        exit=consumer.exitcode,
        statistics=torch_limbo.stats(),
    )
    return 0


if __name__ == "__main__":
    run(main)
