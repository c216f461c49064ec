"""torch.cuda.ipc_collect() collects what was lent by torch's own way and by Limbo's."""

from __future__ import annotations

from typing import Any

import torch
import torch.multiprocessing as mp
from common import report, run, wait_until

ELEMENTS = 1 << 20  # 4 MiB


def consume(pipe: Any) -> None:
    import torch_limbo

    torch.cuda.init()  # what is below torch.multiprocessing asks for it, and crashes without
    shared, message = pipe.recv()
    stock = torch.UntypedStorage._new_shared_cuda(*shared)
    lent = torch_limbo.receive(message)
    pipe.send((stock.nbytes(), int(lent.sum())))
    pipe.recv()
    del stock, lent
    torch.cuda.synchronize()
    pipe.send("dropped")
    pipe.recv()


def use() -> tuple[int, int]:
    """Allocated bytes, and active ones: those in Limbo's limbo are active alone."""
    active = torch.cuda.memory_stats()["active_bytes.all.current"]
    return torch.cuda.memory_allocated(), active


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    consumer = context.Process(target=consume, args=(theirs,))
    consumer.start()
    theirs.close()
    torch.cuda.init()
    before = use()
    by_torch = torch.zeros(ELEMENTS, device="cuda")
    by_limbo = torch.ones(ELEMENTS, device="cuda")
    ours.send((by_torch.untyped_storage()._share_cuda_(), torch_limbo.share(by_limbo)))
    assert ours.recv() == (4 * ELEMENTS, ELEMENTS)
    del by_torch, by_limbo
    torch.cuda.ipc_collect()
    held = use()
    ours.send("drop")
    assert ours.recv() == "dropped"

    def all_back() -> bool:
        torch.cuda.ipc_collect()
        return use() == before

    wait_until(all_back, 20, "ipc_collect has not brought all back")
    ours.send("end")
    consumer.join(30)
    report(
        # By torch's way it is allocated until it is back, by Limbo's it is active alone.
        held=[held[0] - before[0], held[1] - before[1] - (held[0] - before[0])],
        before=before,
        after=use(),
        exit=consumer.exitcode,
    )
    return 0


if __name__ == "__main__":
    run(main)
