"""torch.cuda.MemPool: whose memory goes where, allocators behind pools, ends of pools."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from contract import (
    DEFAULT_POOL,
    DEVICE,
    MIB,
    busy,
    captured,
    check_statistics,
    empty,
    full,
    in_a_process,
    in_threads,
    lies_in,
    live_blocks,
    memory_use,
    native_differs,
    needs_overlap,
    require_busy,
    segments,
    settle,
    stat,
)

pytestmark = pytest.mark.usefixtures("allocator")


def test_ids_are_new_each_time() -> None:
    graph_pool = torch.cuda.graph_pool_handle()
    pools = [torch.cuda.MemPool() for _ in range(3)]
    ids = [tuple(graph_pool), *(pool.id for pool in pools)]
    assert len(set(ids)) == 4
    assert DEFAULT_POOL not in ids
    assert [pool.id[0] for pool in pools] == [0, 0, 0]
    assert sorted(pool.id[1] for pool in pools) == [pool.id[1] for pool in pools]


def test_use_counts() -> None:
    pool = torch.cuda.MemPool()
    assert pool.use_count() == 1
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        keep = empty(1000)
    assert pool.use_count() == 1
    del keep


def test_allocations_inside_go_to_the_pool_and_others_do_not() -> None:
    pool = torch.cuda.MemPool()
    before = empty(3 * MIB)
    with torch.cuda.use_mem_pool(pool):
        small, large = full(1000, 1), full(3 * MIB, 2)
        with torch.cuda.stream(torch.cuda.Stream()):
            other_stream = full(1000, 3)
    after = full(3 * MIB, 4)
    for tensor in (small, large, other_stream):
        assert lies_in(tensor.data_ptr(), pool.id)
    for tensor in (before, after):
        assert not lies_in(tensor.data_ptr(), pool.id)
    assert {segment["segment_type"] for segment in pool.snapshot()} == {"small", "large"}
    assert all(tuple(segment["segment_pool_id"]) == pool.id for segment in pool.snapshot())
    assert len(pool.snapshot()) == len(segments(pool.id)) == 3
    torch.cuda.synchronize()
    assert [int(tensor.max()) for tensor in (small, large, other_stream)] == [1, 2, 3]
    check_statistics()
    del small, large, other_stream, tensor


def test_freed_memory_stays_in_its_pool() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(30 * MIB)
        address = tensor.data_ptr()
    del tensor  # outside of the context: it knows where it belongs
    outside = empty(30 * MIB)
    assert outside.data_ptr() != address
    with torch.cuda.use_mem_pool(pool):
        inside = empty(30 * MIB)
    assert inside.data_ptr() == address
    del inside


def test_a_pools_memory_goes_with_it() -> None:
    before = memory_use()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept, dropped = full(30 * MIB, 5), empty(50 * MIB)
    identity = pool.id
    del dropped
    del pool
    gc.collect()
    assert sum(segment["total_size"] for segment in segments(identity)) == 30 * MIB
    assert int(kept.min()) == 5
    del kept
    torch.cuda.empty_cache()
    assert segments(identity) == []
    assert memory_use() == before


def test_empty_cache_of_everything_while_a_pool_is_there() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(30 * MIB)
    del tensor
    torch.cuda.empty_cache()
    assert len(pool.snapshot()) == 1, "the memory of a living pool is kept"
    check_statistics()


@needs_overlap
def test_record_stream_in_a_pool() -> None:
    pool = torch.cuda.MemPool()
    side = torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        tensor = full(30 * MIB, 1)
        address = tensor.data_ptr()
        with busy(side):
            copy = tensor[:: 1 << 20].clone()
        tensor.record_stream(side)
        del tensor
        other = full(30 * MIB, 9)
        require_busy(side)
        assert other.data_ptr() != address
    torch.cuda.synchronize()
    assert bool((copy == 1).all())
    torch.cuda.empty_cache()  # no event is asked while allocations go to a pool
    with torch.cuda.use_mem_pool(pool):
        again = empty(30 * MIB)
        assert again.data_ptr() == address
    del other, again, copy


def test_nested_pools() -> None:
    pools = [torch.cuda.MemPool() for _ in range(3)]
    kept = []
    with torch.cuda.use_mem_pool(pools[0]):
        kept.append(empty(20 * MIB))
        with torch.cuda.use_mem_pool(pools[1]):
            kept.append(empty(20 * MIB))
            with torch.cuda.use_mem_pool(pools[2]):
                kept.append(empty(20 * MIB))
            kept.append(empty(20 * MIB))
        kept.append(empty(20 * MIB))
    kept.append(empty(20 * MIB))
    expected = [pools[0], pools[1], pools[2], pools[1], pools[0]]
    for tensor, pool in zip(kept, expected, strict=False):
        assert lies_in(tensor.data_ptr(), pool.id)
    assert [len(pool.snapshot()) for pool in pools] == [2, 2, 1]
    assert lies_in(kept[-1].data_ptr(), DEFAULT_POOL)
    kept.clear()
    del tensor


def test_an_exception_ends_the_routing() -> None:
    pool = torch.cuda.MemPool()
    with pytest.raises(ZeroDivisionError), torch.cuda.use_mem_pool(pool):
        _ = 1 // 0
    assert pool.use_count() == 1
    tensor = empty(3 * MIB)
    assert not lies_in(tensor.data_ptr(), pool.id)


def test_only_the_thread_of_the_context_is_routed() -> None:
    pool = torch.cuda.MemPool()
    entered, done = threading.Event(), threading.Event()
    found: list[bool] = []

    def work(index: int) -> None:
        if index == 0:
            with torch.cuda.use_mem_pool(pool):
                mine = empty(3 * MIB)
                entered.set()
                assert done.wait(30)
                again = empty(3 * MIB)
                found.append(lies_in(mine.data_ptr(), pool.id))
                found.append(lies_in(again.data_ptr(), pool.id))
        else:
            assert entered.wait(30)
            other = empty(3 * MIB)
            found.append(not lies_in(other.data_ptr(), pool.id))
            done.set()

    in_threads(2, work)
    assert found == [True] * 3
    gc.collect()
    assert live_blocks(pool.id) == 0


def in_and_out(pool: torch.cuda.MemPool, value: int) -> None:
    """The same sizes in the pool and outside of it, with their contents."""
    sizes = (700, 70_000, 3 * MIB)
    with torch.cuda.use_mem_pool(pool):
        inside = [full(size, value) for size in sizes]
    outside = [full(size, value + 100) for size in sizes]
    torch.cuda.current_stream().synchronize()
    assert [int(tensor.min()) for tensor in inside] == [value] * 3
    assert [int(tensor.min()) for tensor in outside] == [value + 100] * 3


def test_a_pool_for_each_of_many_threads() -> None:
    pools = [torch.cuda.MemPool() for _ in range(8)]

    def work(index: int, pools: list[torch.cuda.MemPool] = pools) -> None:
        for value in range(30):
            in_and_out(pools[index], value)
            if value % 10 == 0:
                torch.cuda.empty_cache()

    in_threads(8, work)
    assert [live_blocks(pool.id) for pool in pools] == [0] * 8
    check_statistics()


def test_one_pool_for_threads_that_take_turns() -> None:
    pool = torch.cuda.MemPool()
    turn = threading.Lock()

    def work(index: int) -> None:
        for _ in range(20):
            with turn:
                in_and_out(pool, index)

    in_threads(4, work)
    assert pool.use_count() == 1
    assert live_blocks(pool.id) == 0
    check_statistics()


def test_a_pool_is_entered_once_at_a_time() -> None:
    result = in_a_process(
        """
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    try:
        with torch.cuda.use_mem_pool(pool):
            text = ""
    except RuntimeError as error:
        text = str(error)
report(text=text)
"""
    )
    assert "already" in result["text"]


def test_nothing_is_returned_while_a_pool_is_used() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(1000)
        del tensor
        torch.cuda.empty_cache()
        assert len(pool.snapshot()) == 1
    assert len(pool.snapshot()) == 1


def test_a_route_that_is_never_ended_keeps_no_other_pools_memory() -> None:
    """As a program leaves it whose code between begin and end has failed."""
    left = torch.cuda.graph_pool_handle()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch._C._cuda_beginAllocateCurrentStreamToPool(DEVICE, left)
    try:
        start = torch.zeros(MIB, device="cuda")
        graph, result = captured(torch.add, start, 1)
        identity = graph.pool()
        assert segments(identity)
        del graph, result
        gc.collect()
        torch.cuda.empty_cache()
        assert segments(identity) == []
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            tensor = empty(30 * MIB)
        identity = pool.id
        del tensor, pool
        gc.collect()
        torch.cuda.empty_cache()
        assert segments(identity) == []
    finally:
        torch._C._cuda_endAllocateToPool(DEVICE, left)
        torch._C._cuda_releasePool(DEVICE, left)


@native_differs("there every route counts as a capture")
def test_memory_goes_back_and_events_are_asked_while_a_pool_is_used() -> None:
    side = torch.cuda.Stream()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        keep = full(30 * MIB, 1)
        address = keep.data_ptr()
        keep.record_stream(side)
        del keep
        torch.cuda.synchronize()
        keep = full(30 * MIB, 2)
        assert keep.data_ptr() == address, "the side stream is done with it"
    before = stat("reserved_bytes")
    outside = empty(50 * MIB)
    del outside
    with torch.cuda.use_mem_pool(pool):
        torch.cuda.empty_cache()
        assert stat("reserved_bytes") == before
    del keep


def test_a_graph_in_a_pool_of_the_programs() -> None:
    pool = torch.cuda.MemPool()
    start = torch.zeros(MIB, device="cuda")
    graph, result = captured(torch.add, start, 1, pool=pool.id)
    assert pool.use_count() == 2
    assert lies_in(result.data_ptr(), pool.id)
    start.fill_(4)
    graph.replay()
    assert bool((result == 5).all())
    del graph
    gc.collect()
    assert pool.use_count() == 1
    del result
    settle()


def test_a_backward_pass_of_a_pools_forward() -> None:
    """Gradients are made by other threads, and so lie outside; everything comes back."""
    before = memory_use()
    pool = torch.cuda.MemPool()
    weight = torch.randn(512, 512, device="cuda", requires_grad=True)
    with torch.cuda.use_mem_pool(pool):
        hidden = (weight @ weight).relu()
        loss = hidden.sum()
    loss.backward()
    assert weight.grad is not None
    assert torch.isfinite(weight.grad).all()
    del hidden, loss, weight, pool
    settle()
    assert memory_use() == before


def test_statistics_while_pools_come_and_go() -> None:
    pools = [torch.cuda.MemPool() for _ in range(3)]
    kept: list[torch.Tensor] = []
    for step in range(60):
        with torch.cuda.use_mem_pool(pools[step % 3]):
            kept.append(empty([600, 70_000, 3 * MIB, 12 * MIB][step % 4]))
        kept.append(empty(3 * MIB))
        if step % 5 == 4:
            del kept[::3]
        check_statistics()
    assert stat("allocated_bytes") == sum(
        block["size"]
        for segment in segments()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    kept.clear()
    pools.clear()
    gc.collect()
    check_statistics()


def test_a_pools_snapshot_without_traces() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(3 * MIB)
    assert [s["address"] for s in pool.snapshot(include_traces=False)] == [
        s["address"] for s in pool.snapshot()
    ]
    assert segments() != []
    everything = {segment["address"] for segment in segments()}
    assert {segment["address"] for segment in pool.snapshot()} <= everything
    del tensor
