"""Memory of a CUDA graph and of torch.cuda.MemPool goes through a queue torch's own way.

private_pools.py native | limbo LIBRARY: the consumer's allocator; a library with allocators for
pools (counting_allocator.cpp).
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

import torch
import torch.multiprocessing as mp
from common import memory_use, report, wait_until

ELEMENTS = 1 << 20


def consume(queue: Any, pipe: Any, way: str) -> None:
    if way == "limbo":
        import torch_limbo

        torch_limbo.enable()
    held: dict[str, torch.Tensor] = {}

    def look() -> dict[str, list[float]]:
        torch.cuda.synchronize()
        return {name: [float(each.min()), float(each.max())] for name, each in held.items()}

    for _ in range(pipe.recv()):
        name, tensor = queue.get()
        held[name] = tensor
    del tensor
    pipe.send(look())
    pipe.recv()  # the graph was replayed
    pipe.send(look())
    pipe.recv()  # the sender has let go of everything, and written into all that it could get
    pipe.send(look())
    held.clear()
    gc.collect()
    torch.cuda.synchronize()
    pipe.send("let go")
    pipe.recv()


def refusal(tensor: torch.Tensor) -> str:
    import torch_limbo

    try:
        torch_limbo.share(tensor)
    except torch_limbo.LimboError as error:
        return error.code if "clone()" in str(error) else f"{error.code} without advice"
    return "none"


def in_pool(pool: Any, value: float) -> torch.Tensor:
    with torch.cuda.use_mem_pool(pool):
        return torch.full((ELEMENTS,), value, device="cuda")


def main() -> int:
    import torch_limbo

    way, path = sys.argv[1:]
    torch_limbo.enable()
    context = mp.get_context("spawn")
    queue = context.Queue()
    ours, theirs = context.Pipe()
    consumer = context.Process(target=consume, args=(queue, theirs, way))
    consumer.start()
    library = ctypes.CDLL(path)
    source = torch.ones(ELEMENTS, device="cuda")
    torch.cuda.synchronize()
    before = memory_use()

    sent: dict[str, torch.Tensor] = {}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sent["graph"] = source * 2
    graph.replay()
    pools = {"pool": torch.cuda.MemPool()}
    for name in ("counting", "shifted"):
        allocator = torch.cuda.memory.CUDAPluggableAllocator(path, f"{name}_alloc", f"{name}_free")
        pools[name] = torch.cuda.MemPool(allocator.allocator())
    beside = [in_pool(pool, 7.0) for pool in pools.values()]  # so that there are offsets
    for value, (name, pool) in enumerate(pools.items()):
        sent[name] = in_pool(pool, float(value))
    lendable = {name: bool(torch.ops.limbo.is_limbo(each)) for name, each in sent.items()}
    refusals = {name: refusal(each) for name, each in sent.items()}

    ours.send(len(sent))
    for item in sent.items():
        queue.put(item)
    if not ours.poll(90):
        raise TimeoutError("the consumer did not receive")
    first = ours.recv()
    source.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    ours.send("replayed")
    replayed = ours.recv()
    held = memory_use()["allocated"] - before["allocated"]
    del item, graph, pool, allocator
    for owned in (sent, pools, beside):
        owned.clear()
    gc.collect()
    torch.cuda.empty_cache()
    kept = memory_use()["allocated"] - before["allocated"]
    spoilers = [torch.full((ELEMENTS,), -1.0, device="cuda") for _ in range(32)]
    torch.cuda.synchronize()
    ours.send("spoiled")
    last = ours.recv()
    del spoilers
    ours.recv()

    def back() -> bool:
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        return memory_use()["allocated"] == before["allocated"]

    wait_until(back, 20, "what was sent is not back")
    ours.send("end")
    consumer.join(30)
    library.counting_bytes.restype = ctypes.c_long
    report(
        lendable=lendable,
        refusals=refusals,
        first=first,
        replayed=replayed,
        last=last,
        held=held,
        kept=kept,
        out=library.counting_bytes(),
        before=before,
        after=memory_use(),
        exit=consumer.exitcode,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
