"""A pool that is given Limbo as its allocator.

pool_behind.py stock | object | native: torch's allocator is Limbo by stock loading, and the pool's
the same wrapper; or by an object, and the pool's that object; or torch's own, with Limbo behind the
pool alone.
"""

from __future__ import annotations

import gc
import sys

import torch
import torch_limbo
from common import report


def main() -> int:
    way = sys.argv[1]
    if way == "object":
        allocator: torch.cuda.memory._CUDAAllocator = torch_limbo.LimboAllocator()
    else:
        allocator = torch.cuda.memory.CUDAPluggableAllocator(
            str(torch_limbo.library_path()), "limbo_malloc", "limbo_free"
        )
    if way != "native":
        torch.cuda.memory.change_current_allocator(allocator)
    outside = torch.full((1000,), 1.0, device="cuda")
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        inside = [torch.full((count,), 2.0, device="cuda") for count in (1000, 1 << 20, 1 << 24)]
    values = [float(each.sum()) for each in (outside, *inside)]
    pointers = [each.data_ptr() for each in inside]
    ranges = [(each["address"], each["address"] + each["total_size"]) for each in pool.snapshot()]
    lies_inside = all(any(low <= at < high for low, high in ranges) for at in pointers)
    del inside, pool
    gc.collect()
    torch.cuda.empty_cache()
    report(
        backend=torch.cuda.get_allocator_backend(),
        values=values,
        lies_inside=lies_inside,
        left=torch.cuda.memory_reserved() - before,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
