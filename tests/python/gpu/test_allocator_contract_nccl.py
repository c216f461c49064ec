"""NCCL registers segments: by the allocator's trackers, and by snapshots of a pool."""

from __future__ import annotations

import pytest
import torch.distributed
from contract import in_a_process

pytestmark = [
    pytest.mark.usefixtures("allocator"),
    pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="needs NCCL"),
]

# One process is a group of its own; what is tested is the registration of memory. Where a segment
# is announced twice, too late, or not at its end, NCCL's wrapper raises.
GROUP = """
import tempfile
import torch.distributed as dist

with tempfile.TemporaryDirectory() as folder:
    store = dist.FileStore(os.path.join(folder, "store"), 1)
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    sums = []
    def add_up(tensor):
        dist.all_reduce(tensor)
        sums.append(float(tensor.sum()))
"""


def test_segments_are_registered_as_they_come_and_go() -> None:
    result = in_a_process(
        GROUP
        + """
    before = torch.ones(3 * MIB, device=device)
    add_up(before)
    for round in range(3):
        during = torch.ones(40 * MIB, device=device)
        add_up(during)
        del during
        torch.cuda.empty_cache()
    del before
    torch.cuda.empty_cache()
    dist.destroy_process_group()
    report(sums=sums)
""",
        TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK="1",
        NCCL_NVLS_ENABLE="0",
    )
    mib = 1 << 20
    assert result["sums"] == [3 * mib, 40 * mib, 40 * mib, 40 * mib]


def test_a_pool_is_registered() -> None:
    result = in_a_process(
        GROUP
        + """
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(device)
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.ones(count * MIB, device=device) for count in (1, 8)]
    add_up(torch.ones(1, device=device))  # there is a communicator from here on
    backend.register_mem_pool(pool)
    for tensor in tensors:
        add_up(tensor)
    with torch.cuda.use_mem_pool(pool):
        tensors.append(torch.ones(32 * MIB, device=device))
    add_up(tensors[-1])
    numbers = [segment["address"] for segment in pool.snapshot()]
    backend.deregister_mem_pool(pool)
    del tensor, tensors, pool
    torch.cuda.empty_cache()
    dist.destroy_process_group()
    report(sums=sums, segments=len(set(numbers)))
""",
        NCCL_NVLS_ENABLE="0",
    )
    mib = 1 << 20
    assert result["sums"] == [1, mib, 8 * mib, 32 * mib]
    assert result["segments"] == 3
