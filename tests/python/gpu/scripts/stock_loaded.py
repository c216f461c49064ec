"""Two processes that load Limbo as stock PyTorch loads plug-ins; one receives before all else.

With the library's path in PLUG_IN they know nothing else of Limbo: torch's own functions share.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.multiprocessing as mp
from common import memory_use, next_of, report, run, wait_for_empty_limbo, wait_until


def load() -> None:
    library = os.environ.get("PLUG_IN", "")
    if not library:
        import torch_limbo

        library = str(torch_limbo.library_path())
    torch.cuda.memory.change_current_allocator(
        torch.cuda.memory.CUDAPluggableAllocator(library, "limbo_malloc", "limbo_free")
    )


def wait_for_return(before: dict[str, int]) -> None:
    def back() -> bool:
        torch.cuda.ipc_collect()
        return memory_use()["allocated"] == before["allocated"]

    wait_until(back, 20, "what was sent is not back")


def consume(queue: Any, pipe: Any) -> None:
    load()
    whole, part = queue.get()  # nothing was allocated here yet
    part.fill_(4)
    whole.record_stream(torch.cuda.current_stream())
    one_storage = whole.untyped_storage()._cdata == part.untyped_storage()._cdata
    sums = [float(whole.sum()), float(part.sum())]
    torch.cuda.synchronize()
    del whole, part
    own = torch.ones(1000, device="cuda")
    backend = torch.cuda.get_allocator_backend()
    pipe.send((sums, one_storage, backend, torch.cuda.memory_allocated()))
    queue.put(own)
    queue.put(own)
    pipe.recv()


def main() -> int:
    load()
    context = mp.get_context("spawn")
    queue = context.Queue()
    ours, theirs = context.Pipe()
    consumer = context.Process(target=consume, args=(queue, theirs))
    consumer.start()
    theirs.close()
    tensor = torch.zeros(5, 5, device="cuda")
    before = memory_use()
    queue.put([tensor, tensor[:, 1]])
    sums, one_storage, backend, allocated = ours.recv()
    written = float(tensor.sum())
    first, second = next_of(queue, [consumer]), next_of(queue, [consumer])
    twice = first.untyped_storage()._cdata == second.untyped_storage()._cdata
    received = [float(first.sum()), float(second.sum())]
    del first, second
    torch.cuda.ipc_collect()
    ours.send("end")
    consumer.join(30)
    wait_for_return(before)
    if "torch_limbo" in sys.modules:
        wait_for_empty_limbo()
    report(
        alone="torch_limbo" not in sys.modules,
        sums=sums,
        one_storage=one_storage,
        backends=[torch.cuda.get_allocator_backend(), backend],
        allocated=allocated,
        written=written,
        twice=twice,
        received=received,
        before=before,
        after=memory_use(),
        exit=consumer.exitcode,
    )
    return 0


if __name__ == "__main__":
    run(main)
