"""Raw allocations and frees, blocks that are used again, and doing without the cache."""

from __future__ import annotations

import pytest
import torch
from contract import (
    BLOCK_BYTES,
    MIB,
    block_at,
    check_statistics,
    empty,
    in_a_process,
    memory_use,
    stat,
)

pytestmark = pytest.mark.usefixtures("allocator")


def test_a_raw_allocation_is_counted_and_its_end_too() -> None:
    before = memory_use()
    counts = stat("allocation"), stat("allocation", when="allocated")
    pointer = torch.cuda.caching_allocator_alloc(1)
    assert pointer % BLOCK_BYTES == 0
    assert torch.cuda.memory_allocated() == before["allocated_bytes"] + BLOCK_BYTES
    assert stat("requested_bytes") == before["requested_bytes"] + 1
    assert stat("allocation") == counts[0] + 1
    assert stat("allocation", when="allocated") == counts[1] + 1
    torch.cuda.caching_allocator_delete(pointer)
    assert torch.cuda.memory_allocated() == before["allocated_bytes"]
    assert stat("allocation") == counts[0]
    check_statistics()


def test_nothing_is_taken_for_empty_tensors() -> None:
    before = memory_use()
    allocations = stat("allocation", when="allocated")
    tensor = torch.empty(0, device="cuda")
    assert tensor.data_ptr() == 0
    other = torch.empty(5, 0, 3, device="cuda")
    pointer = torch.cuda.caching_allocator_alloc(0)
    assert pointer == 0
    torch.cuda.caching_allocator_delete(pointer)
    del tensor, other
    assert memory_use() == before
    assert stat("allocation", when="allocated") == allocations


def test_wrong_frees_are_refused_and_change_nothing() -> None:
    pointer = torch.cuda.caching_allocator_alloc(2048)
    before = memory_use()
    with pytest.raises(RuntimeError):
        torch.cuda.caching_allocator_delete(pointer + 512)
    with pytest.raises(RuntimeError):
        torch.cuda.caching_allocator_delete(0x7000_0000_0200)
    assert memory_use() == before
    torch.cuda.caching_allocator_delete(pointer)
    after = memory_use()
    with pytest.raises(RuntimeError):
        torch.cuda.caching_allocator_delete(pointer)
    assert memory_use() == after
    check_statistics()


def test_a_stream_may_be_given_to_a_raw_allocation() -> None:
    side = torch.cuda.Stream()
    by_stream = torch.cuda.caching_allocator_alloc(MIB, stream=side)
    by_handle = torch.cuda.caching_allocator_alloc(MIB, device=0, stream=side.cuda_stream)
    assert block_at(by_stream)["stream"] == side.cuda_stream
    assert block_at(by_handle)["stream"] == side.cuda_stream
    with pytest.raises(TypeError):
        torch.cuda.caching_allocator_alloc(MIB, stream="side")
    for pointer in (by_stream, by_handle):
        torch.cuda.caching_allocator_delete(pointer)


def test_without_caching() -> None:
    """caching_allocator_enable(False): straight to the driver, and not counted."""
    before = stat("requested_bytes", when="allocated")
    allocated = torch.cuda.memory_allocated()
    reserved = torch.cuda.memory_reserved()
    torch.cuda.caching_allocator_enable(False)
    try:
        pointer = torch.cuda.caching_allocator_alloc(MIB)
        tensor = torch.full((MIB,), 7, dtype=torch.uint8, device="cuda")
        assert int(tensor.max()) == 7
        assert stat("requested_bytes", when="allocated") == before
        assert torch.cuda.memory_reserved() == reserved
        del tensor
        torch.cuda.caching_allocator_delete(pointer)
    finally:
        torch.cuda.caching_allocator_enable(True)
    tensor = empty(MIB)
    assert stat("requested_bytes", when="allocated") == before + MIB
    assert torch.cuda.memory_allocated() == allocated + MIB
    del tensor
    check_statistics()


def test_no_caching_by_the_environment() -> None:
    result = in_a_process(
        """
tensor = torch.full((MIB,), 7, dtype=torch.uint8, device="cuda")
right = int(tensor.max()) == 7
reserved = torch.cuda.memory_reserved()
side = torch.cuda.Stream()
tensor.record_stream(side)
del tensor
torch.cuda.empty_cache()
report(right=right, reserved=reserved)
""",
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
    )
    assert result == {"right": True, "reserved": 0}


def test_freed_blocks_are_reused() -> None:
    """On a stream of its own, where nothing comes free in between."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for size in (512, 5000, MIB, 3 * MIB, 30 * MIB):
            pointer = torch.cuda.caching_allocator_alloc(size)
            torch.cuda.caching_allocator_delete(pointer)
            device_allocations = torch.cuda.memory_stats()["num_device_alloc"]
            again = torch.cuda.caching_allocator_alloc(size)
            torch.cuda.caching_allocator_delete(again)
            assert again == pointer
            assert torch.cuda.memory_stats()["num_device_alloc"] == device_allocations


def test_blocks_are_reused_on_their_own_stream_only() -> None:
    side = torch.cuda.Stream()
    tensor = empty(30 * MIB)
    address = tensor.data_ptr()
    del tensor
    with torch.cuda.stream(side):
        other = empty(30 * MIB)
    assert other.data_ptr() != address
    again = empty(30 * MIB)
    assert again.data_ptr() == address


def test_neighbours_merge() -> None:
    """What was cut up serves a request of its full size again."""
    parts = [empty(2 * MIB) for _ in range(10)]
    reserved = torch.cuda.memory_reserved()
    addresses = {tensor.data_ptr() for tensor in parts}
    del parts
    whole = empty(9 * MIB)
    assert torch.cuda.memory_reserved() == reserved
    assert whole.data_ptr() in addresses
